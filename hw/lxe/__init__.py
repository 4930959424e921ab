"""LXE: the matrix and vector engines for language-model kernels."""
