"""Layout of a mapped unit: placement, routing, checks, extraction, pictures."""
