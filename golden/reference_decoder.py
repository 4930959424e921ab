"""Small decoder in float64, on which cache methods are compared with plain prefill.

Pre-norm layers as in Llama: RMSNorm, grouped-query attention with half-split RoPE, SwiGLU. The caller supplies the
attention as a function (`Attend`), so that pruned, refreshed, masked and fused attention run on one decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from golden import rope
from util import checks


def silu(x: np.ndarray) -> np.ndarray:
    """x / (1 + exp(-x)); a zero where exp(-x) overflows."""
    values = np.asarray(x)
    with np.errstate(over="ignore"):
        return values / (1 + np.exp(-values))


def softmax(x: np.ndarray) -> np.ndarray:
    """Softmax along the last axis; a score of -inf has weight zero."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return weights / weights.sum(axis=-1, keepdims=True)


def causal(new: int, total: int) -> np.ndarray:
    """Causal mask, bool (new, total): the last `new` of `total` tokens attend to themselves and earlier tokens."""
    checks.integer("new", new, 0, checks.integer("total", total, 0))
    return np.arange(total) <= np.arange(total - new, total)[:, None]


def attention_weights(q: np.ndarray, k: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Softmax weights (Hq, T, S) of queries (T, Hq, d) over keys (S, Hkv, d), scale 1/sqrt(d).

    Query head a uses KV head a // (Hq / Hkv). `allowed`, bool (T, S), is the attention mask; None: all keys.

    ValueError if Hq is not a multiple of Hkv, a shape does not match, or a query may attend to no key.
    """
    q = checks.reals("q", q, None, None, None)
    k = checks.reals("k", k, None, None, q.shape[2])
    if not q.shape[2]:
        raise ValueError(f"q must have heads of at least one element, got shape {q.shape}")
    if k.shape[1] == 0 or q.shape[1] % k.shape[1]:
        raise ValueError(f"q must have a multiple of the {k.shape[1]} KV heads, got {q.shape[1]} heads")
    expanded = np.repeat(k, q.shape[1] // k.shape[1], axis=1)
    scores = np.einsum("tad,sad->ats", q, expanded) / np.sqrt(q.shape[2])
    if allowed is None:
        allowed = np.ones((len(q), len(k)), bool)
    if allowed.shape != (len(q), len(k)):
        raise ValueError(f"allowed must have shape ({len(q)}, {len(k)}), got {allowed.shape}")
    if not allowed.any(axis=1).all():
        raise ValueError(
            f"allowed must allow every query at least one key, got none for query {int(np.argmin(allowed.any(1)))}"
        )
    return softmax(np.where(allowed, scores, -np.inf))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray | None = None) -> np.ndarray:
    """Attention output (T, Hq, d) with values (S, Hkv, d); other parameters as in `attention_weights`."""
    weights = attention_weights(q, k, allowed)
    v = checks.reals("v", v, *np.shape(k))
    return np.einsum("ats,sad->tad", weights, np.repeat(v, len(weights) // v.shape[1], axis=1))


@dataclass(frozen=True)
class DecoderConfig:
    """Shape of a decoder.

    layers             number of layers
    hidden, ffn        width of the hidden states and of the feed-forward layer
    q_heads, kv_heads  query and KV heads
    d                  elements of one head
    theta              base of RoPE
    sections, layout   position axes as in `golden.rope`; None: one axis
    """

    layers: int = 2
    hidden: int = 32
    q_heads: int = 4
    kv_heads: int = 2
    d: int = 8
    ffn: int = 64
    theta: float = rope.THETA_LLAMA3
    sections: tuple[int, ...] | None = None
    layout: str = "chunked"

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "q_heads", "kv_heads", "d", "ffn"):
            checks.integer(name, getattr(self, name), 1)
        if self.q_heads % self.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {self.kv_heads}, got {self.q_heads}")
        rope.frequencies(self.d, self.theta)
        if self.sections is not None:
            rope.pair_axes(self.d, self.sections, self.layout)

    def rotate(self, x: np.ndarray, position: np.ndarray | float) -> np.ndarray:
        """Rotate vectors (..., d) by positions with one or several axes."""
        return rope.rotate(x, position, self.theta, self.sections, self.layout)


@dataclass(frozen=True)
class LayerInput:
    """Input of `Attend`: normalised hidden states (T, hidden), q (T, Hq, d), k, v (T, Hkv, d); q, k after RoPE."""

    layer: int
    hidden: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


# returns the attention output (T, Hq, d) and an addend after the output projection (T, hidden), or None
Attend = Callable[[LayerInput], tuple[np.ndarray, np.ndarray | None]]


@dataclass
class KVCache:
    """Keys and values of a sequence, one array (S, Hkv, d) per layer; S may differ between layers."""

    k: list[np.ndarray] = field(default_factory=list)
    v: list[np.ndarray] = field(default_factory=list)

    @classmethod
    def empty(cls, config: DecoderConfig, slots: int = 0) -> "KVCache":
        """Cache with `slots` zero entries in every layer."""
        shape = (slots, config.kv_heads, config.d)
        return cls([np.zeros(shape) for _ in range(config.layers)], [np.zeros(shape) for _ in range(config.layers)])

    def check(self, config: DecoderConfig, name: str = "cache", slots: int | None = None) -> None:
        """ValueError unless the cache belongs to a decoder of this shape, with `slots` entries in every layer.

        `slots` None: any number, which may differ between layers. `name` is that of the cache in the message.
        """
        if len(self.k) != config.layers or len(self.v) != config.layers:
            raise ValueError(f"{name} must have {config.layers} layers, got {len(self.k)} and {len(self.v)}")
        for layer, (k, v) in enumerate(zip(self.k, self.v, strict=True)):
            shape = (k.shape[0] if slots is None and k.ndim else slots, config.kv_heads, config.d)
            for side, array in (("k", k), ("v", v)):
                if array.shape != shape:
                    raise ValueError(f"{name}.{side}[{layer}] must have shape {shape}, got {array.shape}")

    def append(self, layer: int, k: np.ndarray, v: np.ndarray) -> None:
        """Append keys and values to a layer."""
        self.k[layer] = np.concatenate([self.k[layer], k])
        self.v[layer] = np.concatenate([self.v[layer], v])


def embeddings(name: str, x: np.ndarray, config: DecoderConfig) -> np.ndarray:
    """Check that `x` has shape (T, hidden) with T at least 1 and finite elements; returns float64."""
    array = checks.reals(name, x, None, config.hidden)
    if not len(array):
        raise ValueError(f"{name} must hold at least one token, got none")
    return array


class Decoder:
    """Decoder with random weights from `rng`, scaled so that activations have magnitudes near 1, or with `weights`.

    `weights` has one mapping for each layer with float matrices (inputs, outputs), which are copied: `q`, `k`, `v`, `o`
    of the attention and `gate`, `up`, `down` of the feed-forward layer.
    """

    def __init__(
        self,
        config: DecoderConfig,
        rng: np.random.Generator | None = None,
        weights: Sequence[Mapping[str, np.ndarray]] | None = None,
    ):
        self.config = config
        q_width, kv_width = config.q_heads * config.d, config.kv_heads * config.d
        shapes = {
            "q": (config.hidden, q_width),
            "k": (config.hidden, kv_width),
            "v": (config.hidden, kv_width),
            "o": (q_width, config.hidden),
            "gate": (config.hidden, config.ffn),
            "up": (config.hidden, config.ffn),
            "down": (config.ffn, config.hidden),
        }
        if (rng is None) == (weights is None):
            raise ValueError("one of rng and weights must be set, got both or none")
        if rng is not None:
            self.weights = [
                {name: rng.standard_normal(shape) / np.sqrt(shape[0]) for name, shape in shapes.items()}
                for _ in range(config.layers)
            ]
        if weights is not None:
            self.weights = _checked_weights(weights, shapes, config.layers)

    def run(self, x: np.ndarray, positions: np.ndarray, attend: Attend) -> np.ndarray:
        """Hidden states (T, hidden) after all layers; `x` (T, hidden) are the embeddings at `positions`."""
        c = self.config
        x = embeddings("x", x, c)
        where = checks.reals("positions", positions)
        if where.shape[:1] != x.shape[:1]:
            raise ValueError(f"positions must be one per row of x ({len(x)}), got shape {where.shape}")
        where = where[:, None]  # the same for all heads
        for layer, w in enumerate(self.weights):
            normed = _rms_norm(x)
            q = c.rotate((normed @ w["q"]).reshape(len(x), c.q_heads, c.d), where)
            k = c.rotate((normed @ w["k"]).reshape(len(x), c.kv_heads, c.d), where)
            v = (normed @ w["v"]).reshape(len(x), c.kv_heads, c.d)
            attention_output, extra = attend(LayerInput(layer, normed, q, k, v))
            x = x + attention_output.reshape(len(x), -1) @ w["o"] + (0 if extra is None else extra)
            normed = _rms_norm(x)
            x = x + (silu(normed @ w["gate"]) * (normed @ w["up"])) @ w["down"]
        return x

    def prefill(self, x: np.ndarray, positions: np.ndarray, cache: KVCache) -> np.ndarray:
        """Run new tokens (T, hidden) after those in the cache, with a causal mask, and append their keys and values."""
        cache.check(self.config)

        def attend(new: LayerInput) -> tuple[np.ndarray, None]:
            cache.append(new.layer, new.k, new.v)
            keys = cache.k[new.layer]
            return attention(new.q, keys, cache.v[new.layer], causal(len(new.q), len(keys))), None

        return self.run(x, positions, attend)


def _checked_weights(
    weights: Sequence[Mapping[str, np.ndarray]], shapes: dict[str, tuple[int, int]], layers: int
) -> list[dict[str, np.ndarray]]:
    if len(weights) != layers:
        raise ValueError(f"weights must have one entry for each of {layers} layers, got {len(weights)}")
    for i, layer in enumerate(weights):
        problems = [f"lacks {name}" for name in shapes if name not in layer]
        problems += [f"got {name}" for name in layer if name not in shapes]
        if problems:
            raise ValueError(f"weights[{i}] must have the keys {', '.join(shapes)}, {problems[0]}")
    return [
        {name: checks.reals(f"weights[{i}]['{name}']", layer[name], *shape) for name, shape in shapes.items()}
        for i, layer in enumerate(weights)
    ]


def _rms_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + 1e-6)
