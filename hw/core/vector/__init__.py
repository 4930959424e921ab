"""The VECTOR unit: the vector engine with its instruction fetch, its input and its output."""
