"""Published figures compared with the values of this model."""
