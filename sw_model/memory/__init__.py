"""Timing models of device memory (DRAM), host link (PCIe) and storage (SSD). README.md describes them."""
