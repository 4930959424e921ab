"""Formal proofs: the engine, the table of claims, and the specifications."""
