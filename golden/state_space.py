"""State-space branch of a decoder layer as the core computes it, bit exact (SPEC 6, `golden.mamba` is the reference).

Products are fused products of `dot`; their inputs and the inputs of the channels are BF16. Everything else is FP32:
every product and sum is rounded, in the order of `compiler.state_space_programs`. The state h is FP32.

Two functions are approximations of the vector engine:

- softplus(x) = max(x, 0) + log1p(u), u = exp(-abs(x)) in BF16 (`golden.exp`), log1p(u) = u times a cubic polynomial.
  Its error is at most 0.8 % of the result.
- exp(z) for z <= 0 is the power 2**6 of a quadratic polynomial, ((1 + w)**2 + 1) / 2 with w = z / 64 and at least -1/2.
  Its error is at most 8e-5. A BF16 exponential would be 1 for all z above -0.0027, so that states would not decay.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from golden import bf16
from golden import vector_kernels as kernels
from golden.bf16 import BF16, FP32
from golden.decoder_layer import one, pad_heads, pair_order, with_bias
from golden.dot import matmul, to_bf16
from golden.elementary import silu
from golden.exp import power
from golden.mamba import MambaParams
from golden.vpe import maximum, narrow, widen
from util import checks

SQUARINGS = 6  # of the polynomial of the exponential of negative numbers
LOWEST = -0.5  # least argument of the polynomial
LOG1P = (0.99960631, -0.48640886, 0.25401521, -0.07433791)  # log1p(u) / u for 0 <= u <= 1, relative error 4e-4
LOG2_STEPS = float(np.log2(np.e) * 256)  # exponent steps of `golden.exp` for 1


@dataclass(frozen=True)
class StateSpaceShape:
    """Sizes of a branch, in elements of the core.

    inputs, outputs  width of the input and of the output
    inner            channels
    states           states of a channel
    width            taps of the convolution
    rank             inputs of the step projection
    lanes            products of a tile; also lanes of the vector engine; the other widths except `rank`, `states` and
                     `width` are multiples of it
    align_bits       bits of an aligned product (`golden.dot`)
    """

    inputs: int
    outputs: int
    inner: int
    states: int
    width: int
    rank: int
    lanes: int
    align_bits: int = 24

    def __post_init__(self) -> None:
        for field in fields(self):
            checks.integer(field.name, getattr(self, field.name), 1)
        for name in ("inputs", "outputs", "inner"):
            if getattr(self, name) % self.lanes:
                raise ValueError(f"{name} must be a multiple of {self.lanes}, got {getattr(self, name)}")

    @property
    def padded_rank(self) -> int:
        """`rank`, padded to whole words."""
        return -(-self.rank // self.lanes) * self.lanes

    @property
    def padded_terms(self) -> int:
        """Elements of the terms B and C of a token, padded to whole words."""
        return -(-2 * self.states // self.lanes) * self.lanes


@dataclass(frozen=True)
class StateSpaceWeights:
    """Parameters of a branch: BF16 bit patterns, and FP32 bit patterns of `decay`.

    channels, gate  (inner, inputs): input to channels and gate
    taps            (inner, width): depthwise convolution, oldest tap first; taps_bias (inner,)
    low             (padded_rank + padded_terms, inner): channels to step, B and C
    step            (inner, padded_rank): step to channels; step_bias (inner,)
    decay           (inner, states): decay rates times 2**-SQUARINGS, negative
    skip            (inner,): weight of the path around the scan
    out             (outputs, inner): channels to output
    """

    channels: np.ndarray
    gate: np.ndarray
    taps: np.ndarray
    taps_bias: np.ndarray
    low: np.ndarray
    step: np.ndarray
    step_bias: np.ndarray
    decay: np.ndarray
    skip: np.ndarray
    out: np.ndarray

    @classmethod
    def of_params(cls, params: MambaParams, shape: StateSpaceShape) -> StateSpaceWeights:
        """Parameters of `golden.mamba`, rounded. ValueError if they do not have the shape."""
        inner, width = params.conv.shape
        states, rank = params.a.shape[1], len(params.w_dt)
        got = len(params.w_in), params.w_out.shape[1], inner, states, width, rank
        want = shape.inputs, shape.outputs, shape.inner, shape.states, shape.width, shape.rank
        if got != want:
            raise ValueError(f"params must have sizes {want} (inputs, outputs, inner, states, width, rank), got {got}")
        low = np.zeros((shape.padded_rank + shape.padded_terms, inner))
        low[:rank] = params.w_x.T[:rank]
        low[shape.padded_rank : shape.padded_rank + 2 * states] = params.w_x.T[rank:]
        step = np.zeros((inner, shape.padded_rank))
        step[:, :rank] = params.w_dt.T
        channels, gate = np.split(params.w_in.T, 2)
        return cls(
            channels=bf16.encode(channels), gate=bf16.encode(gate), taps=bf16.encode(params.conv),
            taps_bias=bf16.encode(params.conv_bias), low=bf16.encode(low), step=bf16.encode(step),
            step_bias=bf16.encode(params.dt_bias), decay=bf16.encode(params.a * 2.0**-SQUARINGS, FP32),
            skip=bf16.encode(params.d), out=bf16.encode(params.w_out.T),
        )  # fmt: skip

    def params(self, shape: StateSpaceShape) -> MambaParams:
        """The exact values of these parameters, for `golden.mamba`."""
        value = {
            field.name: bf16.decode(getattr(self, field.name), FP32 if field.name == "decay" else BF16)
            for field in fields(self)
        }
        rank, states, start = shape.rank, shape.states, shape.padded_rank
        low = np.concatenate([value["low"][:rank], value["low"][start : start + 2 * states]])
        return MambaParams(
            np.concatenate([value["channels"], value["gate"]]).T, value["taps"], value["taps_bias"], low.T,
            value["step"][:, :rank].T, value["step_bias"], value["decay"] * 2.0**SQUARINGS, value["skip"],
            value["out"].T,
        )  # fmt: skip


def spread_matrix(shape: StateSpaceShape) -> np.ndarray:
    """Matrix (2 states * lanes, padded_terms) that copies each term of a token to all lanes of a word, BF16."""
    matrix = np.zeros((2 * shape.states, shape.lanes, shape.padded_terms), np.uint16)
    for term in range(2 * shape.states):
        matrix[term, :, term] = one(1)[0]
    return matrix.reshape(-1, shape.padded_terms)


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) of FP32 bit patterns, FP32. The error is at most 0.8 % of the result."""
    distance = maximum(x, _times(x, -1))
    u = widen(power(_times(distance, LOG2_STEPS)))
    total = _times(u, LOG1P[3])
    for coefficient in LOG1P[2::-1]:
        total = bf16.multiply(bf16.add(total, kernels.constant(coefficient), FP32), u, FP32)
    return bf16.add(total, maximum(x, kernels.constant(0)), FP32)


def decays(scaled: np.ndarray) -> np.ndarray:
    """exp(2**SQUARINGS * w) of FP32 bit patterns w <= 0, FP32. The error is at most 8e-5."""
    one_more = bf16.add(maximum(scaled, kernels.constant(LOWEST)), kernels.constant(1), FP32)
    value = bf16.multiply(one_more, one_more, FP32)
    value = _times(bf16.add(value, kernels.constant(1), FP32), 0.5)
    for _ in range(SQUARINGS):
        value = bf16.multiply(value, value, FP32)
    return value


def _times(x: np.ndarray, factor: float) -> np.ndarray:
    return bf16.multiply(x, kernels.constant(factor), FP32)


def fold_rows(rows: np.ndarray) -> np.ndarray:
    """Sum of rows (n, E), FP32 bit patterns: the last n // 2 rows are added to the first ones until one row is left."""
    rows = rows.copy()
    while len(rows) > 1:
        half = len(rows) // 2
        rows[:half] = bf16.add(rows[:half], rows[len(rows) - half :], FP32)
        rows = rows[: len(rows) - half]
    return rows[0]


class StateSpaceBranch:
    """The branch of one layer of one stream.

    Attributes
    ----------
    shape, weights : sizes and parameters
    inputs : inputs of the channels of the last width - 1 tokens, BF16 bit patterns (width - 1, inner)
    h : state of the scan, FP32 bit patterns (states, inner)
    """

    def __init__(self, shape: StateSpaceShape, weights: StateSpaceWeights):
        self.shape, self.weights = shape, weights
        self.inputs = np.zeros((shape.width - 1, shape.inner), np.uint16)
        self.h = np.zeros((shape.states, shape.inner), np.uint32)
        self._spread = spread_matrix(shape)

    def _product(self, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        return matmul(x, matrix, self.shape.lanes, self.shape.align_bits)

    def step(self, u: np.ndarray) -> np.ndarray:
        """Outputs of the next tokens u (T, inputs), BF16 bit patterns: FP32 bit patterns (T, outputs)."""
        s, w, tokens = self.shape, self.weights, len(u)
        history = np.concatenate([self.inputs, to_bf16(self._product(u, w.channels))])
        gate = self._product(u, w.gate)
        x = self._convolution(history, tokens)
        low = to_bf16(self._product(x, w.low))
        ones = np.tile(one(s.lanes), (tokens, 1))
        raw = self._product(
            np.concatenate([low[:, : s.padded_rank], ones], axis=1), with_bias(w.step, w.step_bias, s.lanes)
        )
        dt = softplus(raw)
        scaled = bf16.multiply(widen(x), dt, FP32)
        around = bf16.multiply(widen(x), np.broadcast_to(widen(w.skip), x.shape), FP32)
        terms = widen(to_bf16(self._product(np.ascontiguousarray(low[:, s.padded_rank :]), self._spread)))
        terms = terms.reshape(tokens, 2, s.states, s.lanes)[..., 0]
        y = np.empty((tokens, s.inner), np.uint32)
        for t in range(tokens):
            y[t] = bf16.add(self._scan(dt[t], scaled[t], *terms[t]), around[t], FP32)
        self.inputs = history[tokens:]
        return self._product(kernels.gated(gate, y), w.out)

    def _convolution(self, history: np.ndarray, tokens: int) -> np.ndarray:
        """SiLU of the causal convolution, BF16 bit patterns (T, inner); `history` also has the tokens before."""
        taps, wide = widen(self.weights.taps).T, widen(history)
        rows = []
        for t in range(tokens):
            products = bf16.multiply(wide[t : t + self.shape.width], taps, FP32)
            total = bf16.add(fold_rows(products), widen(self.weights.taps_bias), FP32)
            rows.append(silu(narrow(total)))
        return np.stack(rows)

    def _scan(self, dt: np.ndarray, scaled: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
        """Advance h by a token and return h c, FP32 bit patterns (inner,)."""
        decay = decays(bf16.multiply(self.weights.decay.T, np.broadcast_to(dt, self.h.shape), FP32))
        added = bf16.multiply(np.broadcast_to(b[:, None], self.h.shape), np.broadcast_to(scaled, self.h.shape), FP32)
        self.h = bf16.add(bf16.multiply(self.h, decay, FP32), added, FP32)
        return fold_rows(bf16.multiply(np.broadcast_to(c[:, None], self.h.shape), self.h, FP32))


def in_memory_order(params: MambaParams, heads: int, head_dim: int, lanes: int, *, query: bool) -> MambaParams:
    """Parameters for `heads` heads of `head_dim` elements in the memory of the core, from those of a model.

    The outputs are padded as `golden.decoder_layer.pad_heads` does. With `query` the inputs are queries: they are
    padded, too, and in `pair_order`.
    """
    values = {field.name: getattr(params, field.name) for field in fields(params)}
    values["w_out"] = pad_heads(params.w_out, heads, head_dim, 1)
    if query:
        padded = pad_heads(params.w_in, heads, head_dim, 0).reshape(heads, head_dim, -1)
        values["w_in"] = padded[:, pair_order(head_dim, lanes)].reshape(heads * head_dim, -1)
    return MambaParams(**values)
