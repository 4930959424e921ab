"""Sliding window with sinks and a parallel state-space branch (the hybrid cache with all its phases)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compiler.policies.base import Branch, LayerWidths
from compiler.policies.window import WindowPolicy
from golden.mamba import MambaParams
from golden.state_space import StateSpaceShape, StateSpaceWeights, in_memory_order
from hw.config import Config
from util import checks


@dataclass(frozen=True)
class HybridPolicy(WindowPolicy):
    """Attention to sink and recent tokens, plus a state-space branch that carries the released tokens as its state.

    The output of the branch is added to the attention output before the output projection. Its parameters are random,
    as those of the paper, so that cost and state are meaningful and the text is not.

    ssm_input  input of the branch: the rotated `query` (code of the authors) or the normalised `hidden` states
    inner      channels; 0: twice the elements of the input
    states     states of a channel
    width      taps of the convolution
    rank       inputs of the step projection; 0: a sixteenth of the input
    seed       of the random parameters; layer and seed determine them

    Source: "To Infinity and Beyond", phase 3 (`golden.hybrid.HybridDecoder` with `ssm_mode` = `mamba`, SPEC 6).
    """

    name: ClassVar[str] = "hybrid"
    ssm_input: str = "query"
    inner: int = 0
    states: int = 16
    width: int = 4
    rank: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("ssm_input", self.ssm_input, ("query", "hidden"))
        for name, low in (("inner", 0), ("states", 1), ("width", 1), ("rank", 0), ("seed", 0)):
            checks.integer(name, getattr(self, name), low)

    def branch(self, config: Config, widths: LayerWidths) -> Branch:
        """The branch in elements of the core."""
        model, heads, query = self._model_inputs(widths), widths.q_heads * config.head_dim, self.ssm_input == "query"
        shape = StateSpaceShape(
            inputs=heads if query else widths.hidden,
            outputs=heads,
            inner=self.inner or 2 * model,
            states=self.states,
            width=self.width,
            rank=self.rank or -(-model // 16),
            lanes=config.dpe_inputs,
            align_bits=config.align_bits,
        )
        return Branch(shape, query)

    def branch_params(self, config: Config, widths: LayerWidths, layer: int) -> MambaParams:
        """Random parameters of the branch of a layer, with the heads of the model."""
        shape, outputs = self.branch(config, widths).shape, widths.q_heads * widths.head
        return MambaParams.random(
            np.random.default_rng((self.seed, layer)), self._model_inputs(widths), outputs, shape.inner, self.states,
            self.width, shape.rank,
        )  # fmt: skip

    def branch_weights(self, config: Config, widths: LayerWidths, layer: int) -> StateSpaceWeights:
        """The same parameters in the memory of the core."""
        params = in_memory_order(
            self.branch_params(config, widths, layer), widths.q_heads, config.head_dim, config.dpe_inputs,
            query=self.ssm_input == "query",
        )  # fmt: skip
        return StateSpaceWeights.of_params(params, self.branch(config, widths).shape)

    def _model_inputs(self, widths: LayerWidths) -> int:
        return widths.q_heads * widths.head if self.ssm_input == "query" else widths.hidden
