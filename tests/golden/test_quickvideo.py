"""QuickVideo: intervals and indices over rationals, pruning by sorting, the overlap by an event loop."""

from fractions import Fraction
from itertools import pairwise
from math import floor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golden import bf16, rope, selection
from golden.quickvideo import (
    SCORES,
    QuickVideoConfig,
    Scan,
    frame_index,
    group_scores,
    intervals,
    members,
    norm_codes,
    overlap_bound,
    pipeline,
    quick_prefill,
    ready_times,
    scan,
    schedule,
    seek_target,
    take_tokens,
    top_tokens,
)
from golden.reference_decoder import Decoder, DecoderConfig, KVCache

SEEDS = st.integers(0, 2**32 - 1)
GIB = 2**30

# -- QuickCodec


@st.composite
def streams(draw):
    """Distinct stamps that need not start at 0, any non-empty subset of which are keyframes."""
    stamps = draw(st.lists(st.integers(-500, 5000), min_size=1, max_size=60, unique=True))
    keys = draw(st.lists(st.sampled_from(stamps), min_size=1, unique=True))
    return Scan(tuple(sorted(stamps)), tuple(sorted(keys)))


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(stream=streams(), count=st.integers(1, 70))
def test_every_frame_belongs_to_exactly_one_interval(stream, count):
    cut = intervals(stream, count)
    assert 1 <= len(cut) <= count
    assert cut[0][0] == stream.first and cut[-1][1] == stream.last
    assert all(a[1] == b[0] for a, b in pairwise(cut))
    assert all(start in stream.keyframes for start, _ in cut[1:])
    decoded = [pts for i in range(len(cut)) for pts in members(stream, cut, i)]
    assert decoded == list(stream.stamps)
    for start, _ in cut:
        target = seek_target(stream, start)
        assert target == max((k for k in stream.keyframes if k <= start), default=stream.keyframes[0])


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(stream=streams(), count=st.integers(1, 70))
def test_intervals_meet_at_the_keyframe_nearest_to_each_step(stream, count):
    cuts = {stream.first, stream.last}
    for i in range(1, count):
        estimate = stream.first + Fraction(i * (stream.last - stream.first), count)
        below = [k for k in stream.keyframes if k <= estimate]
        above = [k for k in stream.keyframes if k > estimate]
        if below and above:
            cuts.add(below[-1] if estimate - below[-1] < above[0] - estimate else above[0])
    ordered = sorted(cuts)
    assert intervals(stream, count) == (list(pairwise(ordered)) or [(stream.first,) * 2])


def test_intervals_by_hand():
    stream = scan([(pts, pts % 250 == 0) for pts in range(1000, 2000, 10)])
    assert intervals(stream, 4) == [(1000, 1250), (1250, 1500), (1500, 1750), (1750, 1990)]
    assert intervals(stream, 2) == [(1000, 1500), (1500, 1990)]
    assert len(intervals(stream, 64)) == 4, "fewer keyframes than intervals"
    assert intervals(scan([(pts, pts == 0) for pts in range(9)]), 4) == [(0, 8)], "one keyframe"
    assert intervals(scan([(7, True)]), 3) == [(7, 7)], "one frame"
    # the frame of a keyframe that ends the stream belongs to the last interval
    stream = scan([(0, True), (1, False), (2, True)])
    assert [members(stream, intervals(stream, 2), i) for i in range(len(intervals(stream, 2)))] == [[0, 1, 2]]


def test_floor_misplaces_third_of_millisecond_stream():
    """301 frames at 30 per second with stamps in integer milliseconds: floor misplaces 100, rounding none."""
    stamps = [round(Fraction(i * 1000, 30)) for i in range(301)]
    for offset in (0, 12_345):
        wrong = {
            rounding: sum(
                frame_index(p + offset, offset, stamps[-1] + offset, 301, rounding) != i for i, p in enumerate(stamps)
            )
            for rounding in ("nearest", "floor")
        }
        assert wrong == {"nearest": 0, "floor": 100}


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(first=st.integers(-1000, 1000), span=st.integers(0, 2000), at=st.integers(0, 2000), count=st.integers(1, 500))
def test_frame_index_rounds_the_exact_quotient_half_to_even(first, span, at, count):
    pts = first + min(at, span)
    exact = Fraction((count - 1) * (pts - first), span) if span else Fraction(0)
    assert frame_index(pts, first, first + span, count) == round(exact)
    assert frame_index(pts, first, first + span, count, "floor") == floor(exact)


def test_schedule_is_round_robin():
    assert schedule(7, 3) == [[0, 3, 6], [1, 4], [2, 5]]
    assert schedule(2, 3) == [[0], [1], []]


@settings(derandomize=True, database=None, deadline=None)
@given(
    costs=st.lists(st.lists(st.integers(1, 9), max_size=5), min_size=1, max_size=9),
    cores=st.integers(1, 4),
    group=st.integers(1, 6),
)
def test_ready_times_match_clock_simulation(costs, cores, group):
    """All cores advance tick by tick; a frame is done when its cost has been worked off."""
    todo = [[(i, f) for i in range(len(costs)) if i % cores == c for f in range(len(costs[i]))] for c in range(cores)]
    remaining = {(i, f): costs[i][f] for i in range(len(costs)) for f in range(len(costs[i]))}
    done, now = {}, 5
    while any(todo):
        now += 1
        for queue in todo:
            if queue:
                remaining[queue[0]] -= 1
                if remaining[queue[0]] == 0:
                    done[queue.pop(0)] = now
    frames = [done[i, f] for i in range(len(costs)) for f in range(len(costs[i]))]
    wanted = [max(frames[i : i + group]) for i in range(0, len(frames), group)]
    assert ready_times(costs, cores, group, delta=5).tolist() == wanted


# -- QuickPrefill


def plain_score(config, keys, values, queries, token, heads):
    """Score of one token over the KV heads `heads`, from scalars."""
    if config.score == "attention":
        group = queries.shape[1] // keys.shape[1]
        total = 0.0
        for h in heads:
            for a in range(h * group, (h + 1) * group):
                for q in queries[:, a]:
                    e = [float(np.exp(q @ k / np.sqrt(len(q)))) for k in keys[:, h]]
                    total += e[token] / sum(e)
        return total / (len(heads) * group)
    x = keys if config.score.startswith("key") else values
    norm = sum(float(v) ** 2 for h in heads for v in x[token, h]) ** 0.5
    return -norm if config.score.endswith("small") else norm


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("head_mode", ["shared", "per_head"])
def test_scores_match_scalars(rng, score, head_mode):
    config = QuickVideoConfig(score=score, head_mode=head_mode)
    keys, values, queries = (rng.standard_normal(s) for s in ((9, 2, 6), (9, 2, 6), (3, 4, 6)))
    got = group_scores(keys, values, config, queries)
    for token in range(9):
        if head_mode == "shared":
            assert got[token] == pytest.approx(plain_score(config, keys, values, queries, token, [0, 1]))
        else:
            for h in range(2):
                assert got[token, h] == pytest.approx(plain_score(config, keys, values, queries, token, [h]))


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(scores=st.lists(st.integers(-3, 3), min_size=1, max_size=40), rho=st.floats(0, 1))
def test_top_tokens_in_order_with_lowest_index_on_ties(scores, rho):
    count = floor(len(scores) * rho)
    ranked = sorted(range(len(scores)), key=lambda i: (-scores[i], i))
    wanted = sorted(ranked[:count]) if 0 < count < len(scores) else list(range(len(scores)))
    assert top_tokens(np.array(scores), rho).tolist() == wanted
    both = top_tokens(np.array([scores, scores[::-1]]).T, rho)
    assert both[:, 0].tolist() == wanted and len(both) == len(wanted)


def test_equal_norms_after_rotation_are_ordered_by_index(rng):
    """Identical patches have keys that differ by their rotation only; the lowest token wins on every machine."""
    modes = [(score, mode) for score in ("key_norms", "key_norms_small") for mode in ("shared", "per_head")]
    differing: set[tuple[str, str]] = set()  # modes in which the rounding of the rotation has changed a norm
    while len(differing) < len(modes):
        keys = rope.rotate(np.tile(rng.standard_normal((1, 2, 64)), (40, 1, 1)), np.arange(40)[:, None])
        for score, mode in modes:
            scores = group_scores(keys, keys, QuickVideoConfig(score=score, head_mode=mode))
            differing |= {(score, mode)} if len(np.unique(scores)) > 1 else set()
            got = top_tokens(scores, 0.25)
            assert got.reshape(10, -1).T.tolist() == [list(range(10))] * (1 if got.ndim == 1 else 2)


def test_take_per_head(rng):
    x = rng.standard_normal((5, 2, 3))
    chosen = np.array([[0, 1], [3, 4]])
    np.testing.assert_array_equal(take_tokens(x, chosen), np.stack([x[[0, 3], 0], x[[1, 4], 1]], axis=1))
    np.testing.assert_array_equal(take_tokens(x, np.array([1, 2])), x[1:3])


def test_hardware_norms_match_real_norms_up_to_rounding(rng):
    keys = bf16.encode(rng.standard_normal((64, 200)) * rng.uniform(0.5, 2, (64, 1)))
    codes = norm_codes(keys)
    exact = np.sum(bf16.decode(keys) ** 2, axis=1)
    np.testing.assert_allclose(bf16.decode(codes), exact, rtol=2**-8)
    rows = selection.smallest(codes[None], 20)
    chosen = np.flatnonzero(rows.selected[0])
    ranked = sorted(range(64), key=lambda i: (int(codes[i]), i))[:20]
    assert chosen.tolist() == sorted(ranked)
    real = top_tokens(-np.sqrt(exact), 20 / 64)
    assert len(set(chosen) & set(real.tolist())) >= 18


def prefill(rng, sizes, config, layers=2):
    decoder = Decoder(DecoderConfig(layers=layers), rng)
    groups = [rng.standard_normal((n, 32)) for n in sizes]
    text = rng.standard_normal((3, 32))
    return decoder, groups, text, *quick_prefill(decoder, groups, text, config)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("head_mode", ["shared", "per_head"])
@pytest.mark.parametrize("rho", [0.0, 0.2, 0.5, 0.9, 1.0])
def test_cache_shrinks_by_rho(rng, score, head_mode, rho):
    sizes = [11, 8, 8, 1, 5]
    config = QuickVideoConfig(score=score, head_mode=head_mode, rho=rho)
    _, _, _, _, cache = prefill(rng, sizes, config)
    wanted = sum(floor(n * rho) if 0 < floor(n * rho) < n else n for n in sizes) + 3
    assert [len(k) for k in cache.k] == [wanted] * 2 == [len(v) for v in cache.v]


@pytest.mark.parametrize("score", ["key_norms_small", "attention"])
def test_rho_one_equals_full_prefill(rng, score):
    decoder, groups, text, hidden, cache = prefill(rng, [6, 4, 5], QuickVideoConfig(score=score, rho=1))
    full = KVCache.empty(decoder.config)
    x = np.concatenate([*groups, text])
    wanted = decoder.prefill(x, np.arange(len(x)), full)
    np.testing.assert_allclose(hidden, wanted[-3:], atol=1e-11)
    for layer in range(2):
        np.testing.assert_allclose(cache.k[layer], full.k[layer], atol=1e-11)


def test_pruned_prefill_by_hand(rng):
    """One layer, two groups: the second sees the survivors of the first, the text those of both."""
    decoder, groups, text, hidden, cache = prefill(rng, [6, 4], QuickVideoConfig(rho=0.5), layers=1)
    full = KVCache.empty(decoder.config)
    x = np.concatenate([*groups, text])
    decoder.prefill(x, np.arange(len(x)), full)
    keys = full.k[0]
    norms = [float(np.sum(k**2)) for k in keys]
    survivors = sorted(sorted(range(6), key=lambda i: norms[i])[:3])
    survivors += sorted(sorted(range(6, 10), key=lambda i: norms[i])[:2])
    np.testing.assert_allclose(cache.k[0][:5], keys[survivors], atol=1e-12)
    alone = KVCache([keys[survivors]], [full.v[0][survivors]])
    wanted = decoder.prefill(text, np.arange(10, 13), alone)
    np.testing.assert_allclose(hidden, wanted, atol=1e-12)


# -- overlap

TIMES = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=20)


@settings(derandomize=True, database=None, deadline=None, max_examples=200)
@given(times=TIMES, delta=st.integers(0, 9))
def test_pipeline_is_not_below_bound(times, delta):
    decode, prefill_times = (np.array(x, float) for x in zip(*times, strict=True))
    finish = pipeline(delta + np.cumsum(decode), prefill_times)
    assert finish[-1] >= overlap_bound(decode, prefill_times, delta)
    # event by event: the prefill of a group starts when it is decoded and the previous prefill has ended
    clock = decoded = delta
    for d, p in times:
        decoded += d
        clock = max(clock, decoded) + p
    assert finish[-1] == clock


@settings(derandomize=True, database=None, deadline=None)
@given(groups=st.integers(1, 30), decode=st.integers(0, 20), prefill=st.integers(0, 20), delta=st.integers(0, 5))
def test_bound_is_exact_for_uniform_groups(groups, decode, prefill, delta):
    d, p = np.full(groups, float(decode)), np.full(groups, float(prefill))
    assert pipeline(delta + np.cumsum(d), p)[-1] == overlap_bound(d, p, delta)


# -- arithmetic of the paper


def test_appendix_d():
    """One hour at 1 frame per second, 256 tokens a frame, width 4096, BF16.

    The attention's figure is its Q, K and V and one block of 4096 x 4096 bytes more; the cache's is computed
    with 8 heads of 512 (no grouping) in 28 layers, and printed 0.04 % too large (393.9).
    """
    tokens, width = 3600 * 256, 4096
    attention_bytes = 3 * tokens * width * 2 + 4096 * 4096
    assert attention_bytes == 22_666_018_816
    assert round(attention_bytes / GIB, 1) == 21.1
    mlp_bytes = tokens * 16 * width * 2
    assert mlp_bytes == 120_795_955_200 and mlp_bytes / GIB == 112.5
    groups = 3600 // QuickVideoConfig().group_frames
    assert groups == 225
    assert round(attention_bytes / groups / GIB, 2) == 0.09 and mlp_bytes / groups / GIB == 0.5
    cache_bytes = tokens * 28 * 2 * 8 * 512 * 2
    assert cache_bytes / GIB == 393.75 == pytest.approx(393.9, rel=4e-4)
    assert 3600 * 3 * 1920 * 800 == 16_588_800_000, "an hour of frames at 1 per second"


# -- bad input


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: QuickVideoConfig(score="luck"), "score must be one of attention, key_norms"),
        (lambda: QuickVideoConfig(head_mode="some"), "head_mode must be one of per_head, shared"),
        (lambda: QuickVideoConfig(rho=1.1), "rho must be finite and between 0 and 1, got 1.1"),
        (lambda: QuickVideoConfig(group_frames=0), "group_frames must be at least 1, got 0"),
        (lambda: scan([]), "packets must hold a time stamp"),
        (lambda: scan([(None, True)]), "packets must hold a time stamp"),
        (lambda: scan([(1, False)]), "packets must hold a keyframe"),
        (lambda: scan([(0, True), (0, False)]), "distinct time stamps, 0 repeats"),
        (lambda: intervals(scan([(1, True)]), 0), "count must be at least 1, got 0"),
        (lambda: frame_index(5, 0, 4, 3), "pts must be between 0 and 4, got 5"),
        (lambda: frame_index(5, 0, 9, 3, "up"), "rounding must be one of floor, nearest"),
        (lambda: ready_times([[1.0]], 0, 1), "cores must be at least 1, got 0"),
        (lambda: group_scores(np.ones((2, 1, 2)), np.ones((2, 1, 3)), QuickVideoConfig()), "values must have shape"),
        (
            lambda: group_scores(np.full((1, 1, 2), np.nan), np.ones((1, 1, 2)), QuickVideoConfig()),
            "keys must be finite",
        ),
        (
            lambda: group_scores(np.ones((2, 1, 2)), np.ones((2, 1, 2)), QuickVideoConfig(score="attention")),
            "queries must hold the text's queries",
        ),
        (lambda: top_tokens(np.ones(3), -0.1), "rho must be finite and between 0 and 1, got -0.1"),
        (lambda: pipeline(np.ones(2), np.ones(3)), r"prefill must have shape \(2\), got \(3,\)"),
        (lambda: overlap_bound(np.ones(0), np.ones(0)), "decode must hold at least one group"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ValueError, match=words):
        call()


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("head_mode", ["shared", "per_head"])
def test_scores_of_no_tokens_are_refused(score, head_mode, rng):
    config = QuickVideoConfig(score=score, head_mode=head_mode)
    keys, queries = rng.standard_normal((3, 2, 4)), rng.standard_normal((2, 4, 4))
    with pytest.raises(ValueError, match="keys must hold at least one token, got none"):
        group_scores(keys[:0], keys[:0], config, queries)
    if score == "attention":
        for wrong, message in ((queries[:, :3], "multiple of the 2 KV heads, got 3"), (3, "queries must have shape")):
            with pytest.raises(ValueError, match=message):
                group_scores(keys, keys, config, wrong)


@pytest.mark.parametrize("score", ["key_norms_small", "attention"])
@pytest.mark.parametrize(
    ("groups", "text", "message"),
    [
        ([3, 0], 2, r"groups\[1\] must hold at least one token, got none"),
        ([0], 2, r"groups\[0\] must hold at least one token, got none"),
        ([3], 0, "text must hold at least one token, got none"),
        ([], 0, "text must hold at least one token, got none"),
    ],
)
def test_prefill_of_no_tokens_is_refused_before_any_layer_runs(score, groups, text, message, rng, monkeypatch):
    decoder = Decoder(DecoderConfig(), rng)
    monkeypatch.setattr(decoder, "run", lambda *_: pytest.fail("a layer ran"))
    with pytest.raises(ValueError, match=message):
        quick_prefill(decoder, [np.ones((n, 32)) for n in groups], np.ones((text, 32)), QuickVideoConfig(score=score))
    with pytest.raises(ValueError, match=r"groups\[1\] must have shape \(any, 32\), got \(2, 3\)"):
        quick_prefill(decoder, [np.ones((2, 32)), np.ones((2, 3))], np.ones((1, 32)), QuickVideoConfig(score=score))
    with pytest.raises(ValueError, match=r"text must have shape \(any, 32\), got \(1, 3\)"):
        quick_prefill(decoder, [np.ones((2, 32))], np.ones((1, 3)), QuickVideoConfig(score=score))


def test_arrays_of_another_rank_are_named():
    for call, message in (
        (lambda: top_tokens(np.float64(1), 0.5), r"scores must have shape \(N,\) or \(N, Hkv\), got \(\)"),
        (lambda: top_tokens(np.ones((2, 2, 2)), 0.5), r"scores must have shape \(N,\) or \(N, Hkv\)"),
        (lambda: norm_codes(np.zeros(3, np.uint16)), r"keys must have shape \(N, D\), both at least 1, got \(3,\)"),
        (lambda: norm_codes(np.zeros((0, 3), np.uint16)), "keys must have shape"),
        (lambda: norm_codes(np.zeros((3, 0), np.uint16)), "keys must have shape"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
