"""Timing of device memory, host link and storage."""
