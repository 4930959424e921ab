"""Building blocks that all units use: memories, pipelines, stream helpers, reductions, counters, module instances."""
