"""Serving of many video streams on one or several devices: arrivals, admission, batches, latency, capacity."""
