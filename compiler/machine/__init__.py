"""Fast, bit-exact execution of core programs with compiled kernels."""
