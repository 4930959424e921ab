"""Power of mapped netlists from simulated switching activity."""
