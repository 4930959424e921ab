"""The VECTOR unit: the vector engine with its instruction fetch, its operand fetch and its result writer."""
