"""Amaranth RTL of the accelerator."""
