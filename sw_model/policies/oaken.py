"""Full attention to a KV cache quantised to 4 bits, with outliers stored separately (Oaken, arXiv 2503.18599)."""

from dataclasses import replace

import numpy as np

from golden import oaken
from golden.growable_array import GrowableArray
from sw_model.policies.base import ModelShape, Policy, Selection, Step, Work

CORE_BITS = 4.5  # bits of an element in the pages of a core with `kv_bits` = 4, header of its record included
VALUE_OPS = 8  # compare with four thresholds, shift, scale, round, pack


class Oaken(Policy):
    """The quantisation thresholds of a layer are profiled on its first step.

    bits  bits of one stored element until `append` measures them; a core has its own format
    """

    name = "oaken"

    def __init__(self, model: ModelShape, bits: float = 4.86) -> None:
        super().__init__(model)
        self._bits = bits
        self._stored_bits = self._stored_values = 0
        shape = (model.kv_heads, model.head_dim)
        self._read = [(GrowableArray(shape, np.float32), GrowableArray(shape, np.float32)) for _ in range(model.layers)]
        self._thresholds: dict[tuple[int, int], oaken.Thresholds] = {}

    @property
    def bits(self) -> float:
        """Bits of one stored element, scales and outliers included."""
        return self._stored_bits / self._stored_values if self._stored_values else self._bits

    def append(self, layer: int, keys: np.ndarray, values: np.ndarray) -> None:
        super().append(layer, keys, values)
        for kind, x in enumerate((keys, values)):
            rows = np.asarray(x, np.float64).reshape(len(x), -1)
            thresholds = self._thresholds.setdefault((layer, kind), oaken.profile(rows))
            stored = oaken.quantise(rows, thresholds)
            self._stored_bits += stored.bits
            self._stored_values += rows.size
            self._read[layer][kind].extend(stored.values.reshape(np.shape(x)))

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        past = self.past(layer)
        tokens = (np.arange(past),) * self.model.kv_heads
        self.note(layer, stage, tokens)
        keys, values = (read.array[:past] for read in self._read[layer])
        return Selection(tokens, keys=keys, values=values, bits=self.bits)

    def account(self, step: Step) -> Work:
        bits = self.bits if step.machine == "gpu" else CORE_BITS
        stored = 2 * (step.past_tokens + step.new_tokens) * step.model.key_dim  # read back, and written
        return replace(
            self.work(step, step.past_tokens, extents=1 if step.past_tokens else 0, bits=bits),
            # the KV codec of a core encodes and decodes on the way to and from memory
            vector_ops=VALUE_OPS * stored * step.batch if step.machine == "gpu" else 0.0,
        )
