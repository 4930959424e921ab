"""QuickVideo (arXiv 2505.16175): parallel decoding by keyframe intervals, grouped prefill with a pruned cache, overlap.

The decoding part computes with integers on presentation time stamps (PTS). It follows Algorithms 2 and 3 and Eq. 1 with
four corrections of the printed text: the swapped initial values of the scan, `i` instead of `c` in the estimate, a
missing `else`, and a frame index that counts from the first stamp and rounds. The decoder that uses these intervals is
`sw_model.media.quickcodec`.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor

import numpy as np

from golden import bf16, ranking
from golden.reference_decoder import Decoder, KVCache, LayerInput, attention, attention_weights, causal, embeddings
from golden.vector_kernels import lane_sum
from golden.vpe import narrow, widen
from util import checks

SCORES = ("key_norms_small", "key_norms", "value_norms_small", "value_norms", "attention")


@dataclass(frozen=True)
class QuickVideoConfig:
    """Parameters of grouped prefill; those of decoding are arguments of the functions below.

    score         importance of a token: small or large norm of its key or value, or `attention`
    rho           share of the tokens of each group to keep (0 to 1)
    group_frames  frames of a group
    head_mode     `shared`: one set of tokens for a layer; `per_head`: one set for each KV head
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
    """Sorted time stamps of the frames and of the keyframes of a stream."""

    stamps: tuple[int, ...]
    keyframes: tuple[int, ...]

    @property
    def first(self) -> int:
        """Time stamp of the first frame."""
        return self.stamps[0]

    @property
    def last(self) -> int:
        """Time stamp of the last frame."""
        return self.stamps[-1]


def scan(packets: Iterable[tuple[int | None, bool]]) -> Scan:
    """Scan the packets (time stamp, is keyframe) of a stream, in any order. Packets without a time stamp are ignored.

    ValueError if no packet has a time stamp, no packet is a keyframe, or a time stamp repeats.
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
    """Divide a stream into at most `count` intervals [a, b) that start at the keyframes nearest to equal steps.

    The last interval includes the last frame of the stream. There are fewer than `count` intervals if one keyframe is
    nearest to several steps, or if no keyframe follows a step.
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
    """Time stamps of the frames of one interval of `cut`, ascending."""
    if not cut:
        raise ValueError("cut must hold at least one interval, got none")
    checks.integer("interval", interval, 0, len(cut) - 1)
    start, end = cut[interval]
    last = interval == len(cut) - 1
    return list(stream.stamps[bisect_left(stream.stamps, start) : None if last else bisect_left(stream.stamps, end)])


def seek_target(stream: Scan, start: int) -> int:
    """Keyframe at which decoding of the interval that starts at `start` begins: the last one not after it."""
    checks.integer("start", start)
    return stream.keyframes[max(0, bisect_right(stream.keyframes, start) - 1)]


def frame_index(pts: int, first: int, last: int, count: int, rounding: str = "nearest") -> int:
    """Eq. 1: number of the frame with time stamp `pts` among `count` evenly spaced frames from `first` to `last`.

    rounding  `nearest` (ties to even), or `floor` as printed
    """
    checks.integer("count", count, 1)
    checks.integer("last", last, checks.integer("first", first))
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
    """Intervals of each CPU core in order. Interval i runs on core i mod `cores`."""
    checks.integer("count", count, 0)
    checks.integer("cores", cores, 1)
    return [list(range(core, count, cores)) for core in range(cores)]


def ready_times(per_interval: Sequence[Sequence[float]], cores: int, group_frames: int, delta: float = 0) -> np.ndarray:
    """Time at which each group of frames is decoded, float64 (groups,).

    per_interval  decode time of every frame of every interval, in order
    cores         CPU cores; each decodes its intervals one after the other
    group_frames  frames of a group
    delta         start time of all cores

    A group is ready when its last frame is.
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
    """Importance of the tokens of a group, larger is better: float64 (N,), or (N, Hkv) for head_mode `per_head`.

    Keys and values are (N, Hkv, d). Norms cover all heads unless `per_head`. Score `attention` needs the queries (T,
    Hq, d) of the text: softmax over the keys of the group, sum over the text, mean over the query heads.
    """
    keys = checks.reals("keys", keys, None, None, None)
    values = checks.reals("values", values, *keys.shape)
    if not len(keys):
        raise ValueError("keys must hold at least one token, got none")
    per_head = config.head_mode == "per_head"
    if config.score == "attention":
        text = np.zeros((0, 1, 1)) if queries is None else checks.reals("queries", queries, None, None, keys.shape[2])
        if not len(text):
            raise ValueError("queries must hold the text's queries for score 'attention', got none")
        summed = attention_weights(text, keys).sum(axis=1)  # (Hq, N)
        by_head = summed.reshape(keys.shape[1], -1, len(keys)).mean(axis=1).T
        return by_head if per_head else by_head.mean(axis=1)
    vectors = keys if config.score.startswith("key") else values
    norms = np.linalg.norm(vectors if per_head else vectors.reshape(len(vectors), -1), axis=-1)
    return -norms if config.score.endswith("small") else norms


def top_tokens(scores: np.ndarray, rho: float) -> np.ndarray:
    """The floor(N rho) tokens with the largest scores, int64 ascending: (k,) for scores (N,), (k, Hkv) for (N, Hkv).

    The lower index wins ties (`golden.ranking`). All tokens stay if floor(N rho) is 0 or N.
    """
    scores = checks.reals("scores", scores)
    if scores.ndim not in (1, 2):
        raise ValueError(f"scores must have shape (N,) or (N, Hkv), got {scores.shape}")
    return np.sort(ranking.largest(scores.T, kept_count(len(scores), rho)).T, axis=0)


def kept_count(tokens: int, rho: float) -> int:
    """Number of tokens of a group of `tokens` that stay: floor(tokens rho), or all if that is 0."""
    return floor(tokens * checks.real("rho", rho, 0, 1)) or tokens


def norm_codes(keys: np.ndarray, lanes: int = 64) -> np.ndarray:
    """Squared norms by which the machine ranks keys: BF16 bit patterns (N,) of keys (N, D), BF16 bit patterns.

    The vector engine squares and adds in FP32, as `golden.vector_kernels.lane_sum`, and rounds the sum to BF16 once.
    The `k` smallest (`golden.selection.smallest`) are the tokens that score `key_norms_small` keeps.
    """
    codes = bf16.codes("keys", keys)
    if codes.ndim != 2 or not codes.size:
        raise ValueError(f"keys must have shape (N, D), both at least 1, got {codes.shape}")
    wide = widen(codes)
    return narrow(lane_sum(bf16.multiply(wide, wide, bf16.FP32), lanes))


def take_tokens(x: np.ndarray, token_ids: np.ndarray) -> np.ndarray:
    """Entries (k, Hkv, d) of `x` (N, Hkv, d) at token_ids (k,), or at the head's own column of token_ids (k, Hkv)."""
    ids = checks.integers("token_ids", token_ids, low=0, high=len(x) - 1)
    if ids.ndim != 1 and (ids.ndim != 2 or ids.shape[1] != x.shape[1]):
        raise ValueError(f"token_ids must have shape (k,) or (k, {x.shape[1]}), got {ids.shape}")
    return x[ids] if ids.ndim == 1 else np.take_along_axis(x, ids[:, :, None], axis=0)


def quick_prefill(
    decoder: Decoder,
    groups: Sequence[np.ndarray],
    text: np.ndarray,
    config: QuickVideoConfig | None = None,
) -> tuple[np.ndarray, KVCache]:
    """Prefill embeddings group by group with the pruned cache. Returns the hidden states of the text and the cache.

    The first group includes the tokens before the video. The text (T, hidden) after the video is never pruned. For
    score `attention`, the text runs after every group to give its queries, and is then removed from the cache.
    """
    config = config or QuickVideoConfig()
    groups = [embeddings(f"groups[{i}]", group, decoder.config) for i, group in enumerate(groups)]
    text = embeddings("text", text, decoder.config)
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
    """Time at which each group is prefilled, float64 (G,). Prefill of a group starts when the group is decoded and the
    previous prefill is done.
    """
    ready, prefill = checks.reals("ready", ready, None), checks.reals("prefill", prefill, len(ready))
    end_times = np.empty(len(ready))
    start_time = 0.0
    for g in range(len(ready)):
        start_time = max(ready[g], start_time) + prefill[g]
        end_times[g] = start_time
    return end_times


def overlap_bound(decode: np.ndarray, prefill: np.ndarray, delta: float = 0) -> float:
    """Eq. 3: lower bound of the end time of decoding and prefill that overlap; exact if all groups are equal."""
    decode = checks.reals("decode", decode, None)
    prefill = checks.reals("prefill", prefill, len(decode))
    if len(decode) == 0:
        raise ValueError("decode must hold at least one group, got none")
    return max(decode.sum() + prefill[-1], prefill.sum() + decode[0]) + checks.real("delta", delta, 0)
