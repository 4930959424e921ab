"""WTU: the weighted cumulative-sum threshold unit."""
