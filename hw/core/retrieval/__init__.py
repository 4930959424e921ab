"""The RETRIEVAL unit: the KV prediction unit and the state of the current step."""
