"""BF16 and FP32 arithmetic: adders, formats, fused dot product, elementary functions."""
