"""Decoder of stored weights: MXFP4, INT4 and FP8 become BF16 on their way to the operand memory."""
