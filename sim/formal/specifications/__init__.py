"""Specifications: components whose assertions state the properties of a unit."""
