"""A text decoder as the machine computes it, bit exact: embedding, layers, final norm, LM head, greedy choice."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from golden import vector_kernels as kernels
from golden.bf16 import FP32, decode
from golden.decoder_layer import DecoderLayer, StepResult, link
from golden.dot import matmul


@dataclass
class LanguageModel:
    """Layers of one stream with embedding and LM head.

    layers     decoder layers, in order
    embedding  BF16 bit patterns (vocabulary, hidden)
    norm       BF16 bit patterns (hidden,) of the final RMSNorm
    head       BF16 bit patterns (vocabulary, hidden) of the LM head
    prefetch   `next_layer`: every layer selects for the next one; `same_layer`: every layer selects for itself
    """

    layers: Sequence[DecoderLayer]
    embedding: np.ndarray
    norm: np.ndarray
    head: np.ndarray
    prefetch: str = "same_layer"

    def __post_init__(self) -> None:
        link(self.layers, self.prefetch)

    def embed(self, tokens: Sequence[int]) -> np.ndarray:
        """Hidden states of token IDs: BF16 bit patterns (T, hidden)."""
        return self.embedding[np.asarray(tokens, np.int64)]

    def step(self, x: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, list[StepResult]]:
        """Hidden states (T, hidden) at `positions` through all layers.

        Returns the logits of the last token, FP32 bit patterns (vocabulary,), and the results of the layers.
        """
        results = []
        for layer in self.layers:
            results.append(layer.step(x, positions))
            x = results[-1].output
        shape = self.layers[0].shape
        normed = kernels.rms_norm(x[-1:], self.norm, shape.inputs, shape.norm_epsilon)
        return matmul(normed, self.head, shape.inputs, shape.align_bits)[0], results


def greedy(logits: np.ndarray) -> int:
    """Index of the largest logit, FP32 bit patterns (vocabulary,); of equal ones the first.

    The machine does not distinguish logits that differ by less than 2**-102.
    """
    return int(np.argmax(decode(logits, FP32)))
