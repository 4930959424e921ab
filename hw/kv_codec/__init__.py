"""KV codec: encoder and decoder of the words of a KV cache in few bits."""
