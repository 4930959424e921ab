"""KVMU: the KV cache management unit. README.md describes its components and their states; `kvmu.py` connects them."""
