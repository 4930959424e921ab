"""Dynamic KV cache retrieval engine: HCU, WTU, HC table, KVMU."""
