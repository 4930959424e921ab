"""NumPy reference models: one module per mechanism (imports NumPy and ml_dtypes only)."""
