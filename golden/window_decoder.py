"""Decoder layers on the slots of a window as the core computes them, bit exact (CodecSight, SPEC 4.3).

A window holds the keys and values of its tokens in slots, in order of the tokens. The next window takes over some
slots: keys are rotated by the change of their position and rounded to BF16 again, values do not change. All other
tokens are computed in ascending order of their slots; a token attends to all slots up to its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from golden import vector_kernels as kernels
from golden.decoder_layer import DecoderLayer
from golden.dot import to_bf16
from golden.vpe import widen


@dataclass(frozen=True)
class Move:
    """Slots that the next window takes over.

    source, target, count  first slot in the old and in the new window; number of slots
    angle                  change of the position, one number or one for each RoPE pair, float64; None: keys are copied
    """

    source: int
    target: int
    count: int
    angle: np.ndarray | None


@dataclass
class WindowDecoder:
    """Layers with the keys and values of a window.

    layers        parameters of the layers; their tables are not used
    slots         largest number of slots
    keys, values  for each layer, BF16 bit patterns (slots, Hkv, d) in memory order
    """

    layers: Sequence[DecoderLayer]
    slots: int
    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.keys, self.values = self._empty(), self._empty()

    def _empty(self) -> list[np.ndarray]:
        shape = self.layers[0].shape
        return [np.zeros((self.slots, shape.kv_heads, shape.head_dim), np.uint16) for _ in self.layers]

    def carry(self, moves: Sequence[Move]) -> None:
        """Begin the next window with the slots of `moves`; all others are empty."""
        old_keys, old_values = self.keys, self.values
        self.keys, self.values = self._empty(), self._empty()
        for number, layer in enumerate(self.layers):
            for move in moves:
                source, target = slice(move.source, move.source + move.count), move.target
                keys = old_keys[number][source]
                if move.angle is not None:
                    plain = np.empty_like(keys)
                    plain[:, :, layer.order] = keys
                    cos, sin = layer.shape.angles(np.asarray(move.angle)[None])
                    keys = kernels.rope(widen(plain), cos, sin)[:, :, layer.order]
                self.keys[number][target : target + move.count] = keys
                self.values[number][target : target + move.count] = old_values[number][source]

    def step(self, x: np.ndarray, positions: np.ndarray, start: int) -> np.ndarray:
        """Hidden states (T, hidden) at `positions` through all layers; their tokens get the slots from `start` on."""
        for number, layer in enumerate(self.layers):
            s, end = layer.shape, start + len(x)
            cos, sin = s.angles(np.asarray(positions))
            projected, values = layer.projections(x)
            q, k = (kernels.rope(heads, cos, sin)[:, :, layer.order] for heads in projected)
            self.keys[number][start:end], self.values[number][start:end] = k, values
            context = np.zeros((len(x), s.q_heads, s.head_dim), np.uint16)
            for token, head in np.ndindex(context.shape[:2]):
                kv, length = head // (s.q_heads // s.kv_heads), start + token + 1
                keys = np.ascontiguousarray(self.keys[number][:length, kv])
                scores = layer.product(np.ascontiguousarray(q[token, head][None]), keys)[0]
                weights = np.zeros((1, end), np.uint16)
                weights[0, :length] = kernels.softmax(scores, s.model_head_dim, s.inputs)
                mixed = layer.product(weights, np.ascontiguousarray(self.values[number][:end, kv].T))
                context[token, head] = to_bf16(mixed)[0]
            x = layer.finish(x, context)
        return x
