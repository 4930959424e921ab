"""Light attention: softmax attention over a selected part of the cache and the step's own tokens.

float64 throughout. An implementation whose exponential is off by at most `EXP_ERROR` (relative) and that rounds
its result to BF16 once stays within `tolerance` of it (V-Rex, Section IV-A, step 5).
"""

from collections.abc import Sequence

import numpy as np

from util import checks

EXP_ERROR = 0.0065  # 2^(1/256) - 1 for the fraction cut off, half a BF16 ulp for the table entry: 0.642 % at worst


def light_attention(
    queries: np.ndarray,
    keys: np.ndarray,
    values: np.ndarray,
    tokens: Sequence[np.ndarray],
    allowed: Sequence[np.ndarray] | None = None,
    pseudo_keys: np.ndarray | None = None,
    pseudo_values: np.ndarray | None = None,
) -> np.ndarray:
    """Attention of one step's queries to the selected past tokens and, causally, to the step itself.

    Parameters
    ----------
    queries : (T, Hq, d); query head a uses KV head a // (Hq / Hkv)
    keys, values : (N + T, Hkv, d), the step's own tokens last
    tokens : for every KV head the past tokens (below N) its queries attend to, ascending
    allowed : for every KV head bool (T * group, len(tokens[h])): which of them each row (token, query head) attends
        to; None: all
    pseudo_keys, pseudo_values : (E, Hkv, d), attended by every query in addition

    Returns
    -------
    float64 (T, Hq, d). Scale 1 / sqrt(d); positions are whatever the keys and queries were rotated to.

    Raises
    ------
    ValueError
        Shapes that do not fit, NaN or infinite values, token numbers outside the past.
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
    """Softmax weight that full attention gives each token: float64 (Hkv, T * group, N + T), rows sum to one."""
    q, k, _ = _tensors(queries, keys, keys)
    steps, kv_heads, group, d = q.shape
    past = len(k) - steps
    mask = np.concatenate([np.ones((steps * group, past), bool), np.repeat(np.tri(steps, dtype=bool), group, 0)], 1)
    return np.stack(
        [_softmax(q[:, h].reshape(-1, d) @ checks.reals("keys", k[:, h]).T, mask, d) for h in range(kv_heads)]
    )


def tolerance(values: np.ndarray, exp_error: float = EXP_ERROR) -> float:
    """How far an output may be from float64 if every exponential is off by at most `exp_error` (relative).

    The normalised weights then move by at most 2 e / (1 - e) in sum, and every output by that times the largest
    value; a result rounded to BF16 adds half a unit in the last place, 2^-8 relative.
    """
    e = checks.real("exp_error", exp_error, 0, 0.5)
    return float(np.abs(checks.reals("values", values)).max(initial=0)) * (2 * e / (1 - e) + 2**-8)


def _tensors(queries: np.ndarray, keys: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The queries as (T, Hkv, group, d); keys and values with their shapes checked, since most are never looked at."""
    k, v = np.asarray(keys), np.asarray(values)
    if k.ndim != 3 or v.shape != k.shape:
        raise ValueError(f"keys and values must have one shape (N + T, Hkv, d), got {k.shape} and {v.shape}")
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
