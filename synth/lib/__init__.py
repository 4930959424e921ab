"""The embedded predictive standard-cell library: constants with their sources, cells, and the Liberty they give."""
