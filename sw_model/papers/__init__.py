"""The published figures, and this model's values for them."""
