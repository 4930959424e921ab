"""QuickVideo (arXiv 2505.16175): keyframe-parallel decoding, grouped prefill with a pruned cache, their overlap.

The decoding part is integers on presentation time stamps (its Algorithms 2 and 3 and Eq. 1, with the printed
slips mended: the scan's swapped initial values, `i` for `c` in the estimate, the lost `else`, and an index that
counts from the first stamp and rounds). The real decoder that follows these intervals is
`sw_model.media.quickcodec`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor

import numpy as np

from golden import bf16, dot
from golden.reference_decoder import Decoder, KVCache, LayerInput, attention, attention_weights, causal
from util import checks

SCORES = ("key_norms_small", "key_norms", "value_norms_small", "value_norms", "attention")


@dataclass(frozen=True)
class QuickVideoConfig:
    """Every switch of grouped prefill; those of decoding are arguments of the functions below.

    score         what a token of a group is kept for: a small or large norm of its key or value, or `attention`
    rho           share of each group's tokens that is kept
    group_frames  frames per group
    head_mode     one kept set per layer (`shared`), or one per KV head (`per_head`)
    """

    score: str = "key_norms_small"
    rho: float = 0.5
    group_frames: int = 16
    head_mode: str = "shared"

    def __post_init__(self) -> None:
        checks.one_of("score", self.score, SCORES)
        checks.one_of("head_mode", self.head_mode, ("shared", "per_head"))
        checks.real("rho", self.rho, 0, 1)
        checks.integer("group_frames", self.group_frames, 1)


# -- QuickCodec


@dataclass(frozen=True)
class Scan:
    """What one pass over a stream's packets tells: the sorted stamps of its frames and of its keyframes."""

    stamps: tuple[int, ...]
    keyframes: tuple[int, ...]

    @property
    def first(self) -> int:
        return self.stamps[0]

    @property
    def last(self) -> int:
        return self.stamps[-1]


def scan(packets: Iterable[tuple[int | None, bool]]) -> Scan:
    """Scan (stamp, is keyframe) of every packet, in any order; packets without a stamp are left out.

    ValueError if no packet has a stamp, none of them is a keyframe, or a stamp repeats.
    """
    packet_list = [(pts, bool(key)) for pts, key in packets if pts is not None]
    stamps = sorted(pts for pts, _ in packet_list)
    if not stamps:
        raise ValueError("packets must hold a time stamp, none does")
    if repeated := [a for a, b in pairwise(stamps) if a == b]:
        raise ValueError(f"packets must have distinct time stamps, {repeated[0]} repeats")
    keyframes = sorted(pts for pts, key in packet_list if key)
    if not keyframes:
        raise ValueError("packets must hold a keyframe, none is")
    return Scan(tuple(stamps), tuple(keyframes))


def intervals(stream: Scan, count: int) -> list[tuple[int, int]]:
    """Cut a stream into at most `count` intervals [a, b) that meet at keyframes near equal steps.

    The last one ends with the stream's last frame, and includes it. There are fewer than `count` where the
    same keyframe is nearest to several steps, or no keyframe lies beyond a step.
    """
    checks.integer("count", count, 1)
    first, last, keys = stream.first, stream.last, stream.keyframes
    cuts = {first, last}
    for i in range(1, count):
        scaled = i * (last - first) + count * first  # the estimate times `count`, so that it stays an integer
        j = bisect_right(keys, scaled, key=lambda key: key * count)
        if 0 < j < len(keys):
            previous_key, next_key = keys[j - 1], keys[j]
            cuts.add(previous_key if abs(previous_key * count - scaled) < abs(next_key * count - scaled) else next_key)
    return list(pairwise(sorted(cuts))) or [(first, last)]


def members(stream: Scan, cut: list[tuple[int, int]], interval: int) -> list[int]:
    """Stamps that interval `which` of `cut` decodes and keeps, ascending."""
    start, end = cut[interval]
    last = interval == len(cut) - 1
    return list(stream.stamps[bisect_left(stream.stamps, start) : None if last else bisect_left(stream.stamps, end)])


def seek_target(stream: Scan, start: int) -> int:
    """Keyframe from which the interval that starts at `start` is decoded: the last one up to it."""
    return stream.keyframes[max(0, bisect_right(stream.keyframes, start) - 1)]


def frame_index(pts: int, first: int, last: int, count: int, rounding: str = "nearest") -> int:
    """Eq. 1: number of the frame stamped `pts` among `count` evenly spaced ones from `first` to `last`.

    `rounding` is `nearest`, ties to even, or `floor`, as printed.
    """
    checks.integer("count", count, 1)
    checks.integer("pts", pts, first, last)
    checks.one_of("rounding", rounding, ("nearest", "floor"))
    if last == first:
        return 0
    quotient, remainder = divmod((count - 1) * (pts - first), last - first)
    if rounding == "floor":
        return quotient
    doubled = 2 * remainder - (last - first)
    return quotient + (doubled > 0 or (doubled == 0 and quotient % 2))


def schedule(count: int, cores: int) -> list[list[int]]:
    """Intervals of each core, in its order: interval i runs on core i mod `cores`."""
    checks.integer("count", count, 0)
    checks.integer("cores", cores, 1)
    return [list(range(core, count, cores)) for core in range(cores)]


def ready_times(per_interval: Sequence[Sequence[float]], cores: int, group_frames: int, delta: float = 0) -> np.ndarray:
    """When each group of frames is complete, float64 (groups,).

    `per_interval` lists the decode time of every frame of every interval, in order; a core decodes its
    intervals one after the other, all cores start at `delta`, and a group waits for its last frame.
    """
    checks.integer("group_frames", group_frames, 1)
    done: list[np.ndarray] = [np.empty(0)] * len(per_interval)
    for core_intervals in schedule(len(per_interval), cores):
        start_time = checks.real("delta", delta, 0)
        for interval in core_intervals:
            done[interval] = start_time + np.cumsum(checks.reals("per_interval", per_interval[interval], None))
            start_time = float(done[interval][-1]) if len(done[interval]) else start_time
    frames = np.concatenate([*done, np.empty(0)])
    return np.array([frames[i : i + group_frames].max() for i in range(0, len(frames), group_frames)])


# -- QuickPrefill


def group_scores(
    keys: np.ndarray, values: np.ndarray, config: QuickVideoConfig, queries: np.ndarray | None = None
) -> np.ndarray:
    """Importance of a group's tokens, the higher the better: float64 (N,), or (N, Hkv) per head.

    Keys and values are (N, Hkv, d); norms run over all heads together unless `per_head`. `attention` takes the
    text's queries (T, Hq, d): softmax over the group's keys, summed over the text, mean over query heads.
    """
    keys = checks.reals("keys", keys, None, None, None)
    values = checks.reals("values", values, *keys.shape)
    per_head = config.head_mode == "per_head"
    if config.score == "attention":
        if queries is None or len(queries) == 0:
            raise ValueError("queries must hold the text's queries for score 'attention', got none")
        summed = attention_weights(queries, keys).sum(axis=1)  # (Hq, N)
        by_head = summed.reshape(keys.shape[1], -1, len(keys)).mean(axis=1).T
        return by_head if per_head else by_head.mean(axis=1)
    vectors = keys if config.score.startswith("key") else values
    norms = np.linalg.norm(vectors if per_head else vectors.reshape(len(vectors), -1), axis=-1)
    return -norms if config.score.endswith("small") else norms


def top_tokens(scores: np.ndarray, rho: float) -> np.ndarray:
    """Tokens to keep of scores (N,) or (N, Hkv): the floor(N rho) best, int64 ascending (k,) or (k, Hkv).

    The lower index wins a tie. Nothing is pruned when floor(N rho) is 0 or N.
    """
    scores = checks.reals("scores", scores)
    count = floor(len(scores) * checks.real("rho", rho, 0, 1))
    if not 0 < count < len(scores):
        count = len(scores)
    return np.sort(np.argsort(-scores, axis=0, kind="stable")[:count], axis=0)


def norm_codes(keys: np.ndarray, inputs: int = 64) -> np.ndarray:
    """Squared norms as the hardware ranks them: BF16 codes, uint16 (N,), of keys given as BF16 codes (N, D).

    Tiles of `inputs` products are summed in FP32 in increasing index and rounded to BF16 once. The smallest
    `k` of them (`golden.selection.smallest`) are the kept set of `key_norms_small`.
    """
    checks.integer("inputs", inputs, 1)
    codes = bf16.codes("keys", keys)
    tiles = np.pad(codes, ((0, 0), (0, -codes.shape[1] % inputs))).reshape(len(codes), -1, inputs)
    total = dot.dot(tiles[:, 0], tiles[:, 0])
    for k in range(1, tiles.shape[1]):
        total = bf16.add(total, dot.dot(tiles[:, k], tiles[:, k]), bf16.FP32)
    return dot.to_bf16(total)


def take_tokens(x: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """Entries (k, Hkv, d) of `x` (N, Hkv, d): those of `chosen` (k,), or of its own column (k, Hkv) per head."""
    return x[token_ids] if token_ids.ndim == 1 else np.take_along_axis(x, token_ids[:, :, None], axis=0)


def quick_prefill(
    decoder: Decoder,
    groups: Sequence[np.ndarray],
    text: np.ndarray,
    config: QuickVideoConfig | None = None,
) -> tuple[np.ndarray, KVCache]:
    """Prefill embeddings group by group against the pruned cache; the text's hidden states and the cache.

    The first group also holds what stands before the video; the text (T, hidden) after it is never pruned.
    For score `attention` the text rides behind every group to ask its questions, and leaves no trace.
    """
    config = config or QuickVideoConfig()
    cache = KVCache.empty(decoder.config)
    asking = config.score == "attention"
    start = 0
    for group in groups:
        size = len(group)

        def attend(new: LayerInput, size: int = size) -> tuple[np.ndarray, None]:
            past_k, past_v = cache.k[new.layer], cache.v[new.layer]
            keys, values = np.concatenate([past_k, new.k]), np.concatenate([past_v, new.v])
            out = attention(new.q, keys, values, causal(len(new.q), len(keys)))
            group_k, group_v = new.k[:size], new.v[:size]
            token_ids = top_tokens(group_scores(group_k, group_v, config, new.q[size:]), config.rho)
            cache.append(new.layer, take_tokens(group_k, token_ids), take_tokens(group_v, token_ids))
            return out, None

        x = np.concatenate([group, text]) if asking else group
        decoder.run(x, np.arange(start, start + len(x)), attend)
        start += size
    return decoder.prefill(text, np.arange(start, start + len(text)), cache), cache


# -- overlap


def pipeline(ready: np.ndarray, prefill: np.ndarray) -> np.ndarray:
    """When each group is prefilled, float64 (G,): after it is ready and the group before is done."""
    ready, prefill = checks.reals("ready", ready, None), checks.reals("prefill", prefill, len(ready))
    end_times = np.empty(len(ready))
    start_time = 0.0
    for g in range(len(ready)):
        start_time = max(ready[g], start_time) + prefill[g]
        end_times[g] = start_time
    return end_times


def overlap_bound(decode: np.ndarray, prefill: np.ndarray, delta: float = 0) -> float:
    """Eq. 3: no overlap of groups decoded one after the other ends earlier; exact when all groups are alike."""
    decode = checks.reals("decode", decode, None)
    prefill = checks.reals("prefill", prefill, len(decode))
    if len(decode) == 0:
        raise ValueError("decode must hold at least one group, got none")
    return max(decode.sum() + prefill[-1], prefill.sum() + decode[0]) + checks.real("delta", delta, 0)
