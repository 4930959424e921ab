"""Dynamic KV cache retrieval engine: HCU, WTU, KVMU, and the KVPU that connects them."""
