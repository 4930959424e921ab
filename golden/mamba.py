"""Mamba-1 block in float64 (arXiv 2312.00752): gated causal convolution and selective scan, whole or in chunks."""

from dataclasses import dataclass

import numpy as np

from golden.reference_decoder import silu
from util import checks


def softplus(x: np.ndarray) -> np.ndarray:
    """log(1 + exp(x)) without overflow. ValueError for a NaN or an infinity."""
    return np.logaddexp(0, checks.reals("x", x))


@dataclass(frozen=True)
class MambaParams:
    """Weights of one block with I inputs, E inner channels, N states per channel, step rank R and O outputs.

    w_in (I, 2 E)             input to channels and gate
    conv (E, width)           depthwise convolution, oldest tap first; conv_bias (E,)
    w_x (E, R + 2 N)          channels to step, B and C
    w_dt (R, E)               step to channels; dt_bias (E,)
    a (E, N)                  decay rates, negative
    d (E,)                    weight of the path around the scan
    w_out (E, O)              channels to output
    """

    w_in: np.ndarray
    conv: np.ndarray
    conv_bias: np.ndarray
    w_x: np.ndarray
    w_dt: np.ndarray
    dt_bias: np.ndarray
    a: np.ndarray
    d: np.ndarray
    w_out: np.ndarray

    def __post_init__(self) -> None:
        inner, width = self.conv.shape
        checks.integer("conv width", width, 1)
        inputs, states, rank, outputs = len(self.w_in), self.a.shape[1], len(self.w_dt), self.w_out.shape[1]
        for name, shape in (
            ("w_in", (inputs, 2 * inner)),
            ("conv_bias", (inner,)),
            ("w_x", (inner, rank + 2 * states)),
            ("w_dt", (rank, inner)),
            ("dt_bias", (inner,)),
            ("a", (inner, states)),
            ("d", (inner,)),
            ("w_out", (inner, outputs)),
        ):
            checks.reals(name, getattr(self, name), *shape)
        if not (self.a < 0).all():
            raise ValueError(f"a must be negative (states decay), its maximum is {self.a.max()}")

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        inputs: int,
        outputs: int,
        inner: int | None = None,
        states: int = 16,
        width: int = 4,
        rank: int | None = None,
    ) -> "MambaParams":
        """Random weights as at the start of a Mamba training: a = -1 to -N, steps between 0.001 and 0.1."""
        e = inner or 2 * inputs
        r = rank or -(-inputs // 16)
        step = np.exp(rng.uniform(np.log(0.001), np.log(0.1), e))
        return cls(
            rng.standard_normal((inputs, 2 * e)) / np.sqrt(inputs),
            rng.uniform(-1, 1, (e, width)) / np.sqrt(width),
            rng.uniform(-1, 1, e) / np.sqrt(width),
            rng.standard_normal((e, r + 2 * states)) / np.sqrt(e),
            rng.standard_normal((r, e)) / np.sqrt(r),
            step + np.log(-np.expm1(-step)),  # the inverse of softplus
            -np.tile(np.arange(1.0, states + 1), (e, 1)),
            np.ones(e),
            rng.standard_normal((e, outputs)) / np.sqrt(e),
        )


@dataclass(frozen=True)
class MambaState:
    """State of a sequence: the last width - 1 inputs of the channels (width - 1, E), and h (E, N)."""

    inputs: np.ndarray
    h: np.ndarray

    @classmethod
    def zero(cls, params: MambaParams) -> "MambaState":
        """State before the first token."""
        inner, width = params.conv.shape
        return cls(np.zeros((width - 1, inner)), np.zeros(params.a.shape))


def _scan_arguments(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The checked arguments of a scan, float64."""
    x = checks.reals("x", x, None, None)
    dt = checks.reals("dt", dt, *x.shape)
    a = checks.reals("a", a, x.shape[1], None)
    b, c = (checks.reals(name, value, len(x), a.shape[1]) for name, value in (("b", b), ("c", c)))
    return x, dt, a, b, c, checks.reals("h", h, *a.shape)


def selective_scan(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Recurrence h <- exp(dt a) h + dt b x; y = h c, token by token.

    x, dt (T, E); a (E, N); b, c (T, N); h (E, N). Returns y (T, E) and the last h (E, N). ValueError for other shapes,
    a NaN or an infinity.
    """
    x, dt, a, b, c, h = _scan_arguments(x, dt, a, b, c, h)
    y = np.empty_like(x)
    for t in range(len(x)):
        h = np.exp(dt[t][:, None] * a) * h + (dt[t] * x[t])[:, None] * b[t]
        y[t] = h @ c[t]
    return y, h


def chunked_scan(
    x: np.ndarray, dt: np.ndarray, a: np.ndarray, b: np.ndarray, c: np.ndarray, h: np.ndarray, chunk: int
) -> tuple[np.ndarray, np.ndarray]:
    """`selective_scan` in independent chunks of `chunk` tokens; equal up to rounding.

    Every chunk starts from zero and reports the remaining share of an incoming state at its end, exp(a sum(dt)). Only
    the short pass that hands states from chunk to chunk is sequential. It adds the contribution of the incoming state
    to the outputs of the chunk.
    """
    size = checks.integer("chunk", chunk, 1)
    x, dt, a, b, c, h = _scan_arguments(x, dt, a, b, c, h)
    chunks = [slice(i, i + size) for i in range(0, len(x), size)]
    chunk_states = [selective_scan(x[p], dt[p], a, b[p], c[p], np.zeros_like(h)) for p in chunks]
    y = np.empty_like(x)
    for part, (from_zero, end) in zip(chunks, chunk_states, strict=True):
        decay = np.exp(np.cumsum(dt[part], axis=0)[:, :, None] * a)  # of the incoming state, after each token
        y[part] = from_zero + np.einsum("ten,en,tn->te", decay, h, c[part])
        h = decay[-1] * h + end
    return y, h


def mamba(
    u: np.ndarray, params: MambaParams, state: MambaState, chunk: int | None = None
) -> tuple[np.ndarray, MambaState]:
    """Run the block on tokens `u` (T, I). Returns outputs (T, O) and the state after them.

    chunk  tokens of a chunk of the scan (`chunked_scan`); None: sequential scan

    ValueError for a wrong shape, a NaN or an infinity.
    """
    p = params
    inner, width = p.conv.shape
    states, rank = p.a.shape[1], len(p.w_dt)
    u = checks.reals("u", u, None, len(p.w_in))
    checks.reals("state.inputs", state.inputs, width - 1, inner)
    checks.reals("state.h", state.h, inner, states)
    x, z = np.split(u @ p.w_in, 2, axis=1)
    inputs = np.concatenate([state.inputs, x])
    taps = np.stack([inputs[i : i + len(u)] for i in range(width)], axis=2)  # (T, E, width), oldest first
    x = silu((taps * p.conv).sum(axis=2) + p.conv_bias)
    step, b, c = np.split(x @ p.w_x, [rank, rank + states], axis=1)
    dt = softplus(step @ p.w_dt + p.dt_bias)
    if chunk is None:
        y, h = selective_scan(x, dt, p.a, b, c, state.h)
    else:
        y, h = chunked_scan(x, dt, p.a, b, c, state.h, chunk)
    out = ((y + p.d * x) * silu(z)) @ p.w_out
    return out, MambaState(inputs[len(u) :], h)
