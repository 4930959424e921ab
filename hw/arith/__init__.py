"""BF16 and FP32 arithmetic: adders, number formats, fused dot product, elementary functions."""
