"""Standard-cell libraries: the embedded one, its sources, and the Liberty reader."""
