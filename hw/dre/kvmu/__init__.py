"""KVMU: the KV cache management unit."""
