"""NumPy reference models: one module for each mechanism of the papers. README.md lists them."""
