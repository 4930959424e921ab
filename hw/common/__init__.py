"""Blocks that every unit uses: stream helpers, reductions, memories."""
