"""Softmax attention over selected past tokens and the tokens of the step (V-Rex, Section IV-A, step 5), in float64.

`tolerance` bounds the error of an implementation that approximates the exponential with a relative error of at most
`EXP_ERROR` and rounds its result to BF16 once.
"""

from collections.abc import Sequence

import numpy as np

from util import checks

EXP_ERROR = (
    0.0065  # relative; 2^(1/256) - 1 for the truncated exponent plus half a BF16 ulp of the table: at most 0.642 %
)


def light_attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tokens: Sequence[np.ndarray],
    allowed: Sequence[np.ndarray] | None = None,
    pseudo_keys: np.ndarray | None = None,
    pseudo_values: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of one step's queries to the selected past tokens and, with a causal mask, to the tokens of the step.

    Parameters
    ----------
    queries : (T, Hq, d); query head a uses KV head a // (Hq / Hkv)
    keys, values : (N + T, Hkv, d), after RoPE; the tokens of the step come last
    tokens : for every KV head, the past tokens (0 to N - 1) that its queries attend to, ascending
    allowed : for every KV head bool (T * group, len(tokens[h])): past tokens that each row (token, query head) attends
        to; None: all
    pseudo_keys, pseudo_values : (E, Hkv, d); additional entries that every query attends to

    Returns
    -------
    np.ndarray
        float64 (T, Hq, d). The scale is 1 / sqrt(d).

    Raises
    ------
    ValueError
        Shapes do not match, a value is NaN or infinite, or a token number is not a past token.
    """
    q, k, v = _tensors(queries, keys, values)
    steps, kv_heads, group, d = q.shape
    past = len(k) - steps
    if len(tokens) != kv_heads:
        raise ValueError(f"tokens must have one list for each of {kv_heads} heads, got {len(tokens)}")
    extra_k = extra_v = np.zeros((0, kv_heads, d))
    if pseudo_keys is not None or pseudo_values is not None:
        extra_k = checks.reals("pseudo_keys", pseudo_keys, None, kv_heads, d)
        extra_v = checks.reals("pseudo_values", pseudo_values, len(extra_k), kv_heads, d)
    causal = np.repeat(np.tri(steps, dtype=bool), group, axis=0)
    out = np.empty((kv_heads, steps * group, d))
    for h in range(kv_heads):
        ids = checks.integers("tokens", tokens[h], None, low=0, high=past - 1)
        picked = np.ones((len(causal), len(ids)), bool) if allowed is None else np.asarray(allowed[h], bool)
        if picked.shape != (len(causal), len(ids)):
            raise ValueError(f"allowed must have shape {(len(causal), len(ids))}, got {picked.shape}")
        mask = np.concatenate([np.ones((len(causal), len(extra_k)), bool), picked, causal], axis=1)
        key_ids = np.r_[ids, past : len(k)]
        head_k = np.concatenate([extra_k[:, h], checks.reals("keys", k[key_ids, h])])
        head_v = np.concatenate([extra_v[:, h], checks.reals("values", v[key_ids, h])])
        out[h] = _softmax(q[:, h].reshape(-1, d) @ head_k.T, mask, d) @ head_v
    return out.reshape(kv_heads, steps, group, d).transpose(1, 0, 2, 3).reshape(steps, kv_heads * group, d)


def attention_mass(queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Softmax weight of every token under full attention: float64 (Hkv, T * group, N + T); each row sums to one."""
    q, k, _ = _tensors(queries, keys, keys)
    steps, kv_heads, group, d = q.shape
    past = len(k) - steps
    mask = np.concatenate([np.ones((steps * group, past), bool), np.repeat(np.tri(steps, dtype=bool), group, 0)], 1)
    return np.stack(
        [_softmax(q[:, h].reshape(-1, d) @ checks.reals("keys", k[:, h]).T, mask, d) for h in range(kv_heads)]
    )


def tolerance(values: np.ndarray, exp_error: float = EXP_ERROR) -> float:
    """Largest deviation from the float64 output, if every exponential has a relative error of at most `exp_error`.

    The sum of the changes of the normalised weights is at most 2 e / (1 - e). Every output changes by at most this
    factor times the largest value. Rounding to BF16 adds half a unit in the last place (relative 2**-8).
    """
    e = checks.real("exp_error", exp_error, 0, 0.5)
    return float(np.abs(checks.reals("values", values)).max(initial=0)) * (2 * e / (1 - e) + 2**-8)


def _tensors(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries as (T, Hkv, group, d), keys and values as arrays. Checks shapes only: most keys are not read."""
    k, v = np.asarray(keys), np.asarray(values)
    if k.ndim != 3 or v.shape != k.shape:
        raise ValueError(f"keys and values must have one shape (N + T, Hkv, d), got {k.shape} and {v.shape}")
    if not k.shape[1] or not k.shape[2]:
        raise ValueError(f"keys must have at least one head and one element, got shape {k.shape}")
    q = checks.reals("queries", queries, None, None, k.shape[2])
    steps, heads, d = q.shape
    if not 1 <= steps <= len(k):
        raise ValueError(f"queries must have 1 to {len(k)} tokens, the last of the keys, got {steps}")
    if not heads or heads % k.shape[1]:
        raise ValueError(f"queries must have a multiple of {k.shape[1]} heads, got {heads}")
    return q.reshape(steps, k.shape[1], heads // k.shape[1], d), k, v


def _softmax(logits: np.ndarray, mask: np.ndarray, d: int) -> np.ndarray:
    scaled = np.where(mask, logits / np.sqrt(d), -np.inf)
    weight = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return weight / weight.sum(axis=1, keepdims=True)
