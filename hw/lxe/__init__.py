"""LXE: the matrix engine (DPE) and the vector engine (VPE) of a core, and their memory."""
