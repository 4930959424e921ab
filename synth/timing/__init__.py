"""Static timing analysis of mapped netlists."""
