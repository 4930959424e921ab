"""Every array parameter of a golden model with damaged values: a ValueError names the argument."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden import (
    attention,
    baselines,
    bf16,
    codecsight,
    hashing,
    mamba,
    mosaic,
    oaken,
    page_table,
    quickvideo,
    ranking,
    reference_decoder,
    rope,
    scores,
    selection,
    vector_kernels,
    wicsum,
)
from golden.clustering import ClusterTable
from golden.mean_keys import MeanKeys
from golden.page_table import PageTable, PagingConfig
from golden.reference_decoder import Decoder, DecoderConfig
from golden.resv import Resv, ResvConfig
from util import checks

T, HQ, HKV, D = 3, 4, 2, 8
R = np.random.default_rng(5)
KEYS, VALUES, QUERIES = (R.standard_normal((T, h, D)).astype(bfloat16) for h in (HKV, HKV, HQ))
CODES = R.integers(0, 0x3F80, (4, 6)).astype(np.uint16)
WORDS = np.array([[0x3F80, 0x4000]], np.uint16)
SCAN = {"x": np.ones((3, 2)), "dt": np.ones((3, 2)), "a": -np.ones((2, 4)), "b": np.ones((3, 4)), "c": np.ones((3, 4))}
SCAN["h"] = np.zeros((2, 4))
THRESHOLDS = oaken.profile(R.standard_normal((50, D)))


def resv(queries, keys, values):
    return Resv(ResvConfig(), 1, HKV, D).step(0, queries, keys, values)


def mosaic_frame(embedding, keys, values):
    return mosaic.MosaicCache(1, HKV, D, T).append(embedding, keys, values)


def quick_scores(keys, values):
    return quickvideo.group_scores(keys, values, quickvideo.QuickVideoConfig())


def representatives(keys, clusters, counts):
    return MeanKeys(D).update(keys, clusters, counts)


def mamba_block(u):
    params = mamba.MambaParams.random(np.random.default_rng(0), D, D, states=2)
    return mamba.mamba(u, params, mamba.MambaState.zero(params))


def chunked_scan(x, dt, a, b, c, h):
    return mamba.chunked_scan(x, dt, a, b, c, h, 2)


def decoder(x, positions):
    model = Decoder(DecoderConfig(layers=1), np.random.default_rng(0))
    return model.run(x, positions, lambda new: (np.zeros_like(new.q), None))


# function: valid arguments; integer arguments cannot be NaN
CASES = {
    resv: {"queries": QUERIES, "keys": KEYS, "values": VALUES},
    hashing.hash_codes: {"keys": KEYS, "planes": hashing.hyperplanes(HKV * D)},
    representatives: {"keys": KEYS[:, 0], "clusters": np.array([0, 1, 0]), "counts": np.array([2, 1])},
    scores.dots: {"rows": QUERIES[:, 0], "means": KEYS[:, 0]},
    scores.weights: {"scores": np.ones((2, 3)), "head_dim": 8},
    wicsum.exact: {"weights": np.ones((2, 3)), "counts": np.ones(3, int), "wics_ratio": 0.3},
    wicsum.select: {"codes": CODES, "counts": np.ones(6, int), "target": 19661},
    selection.top_k: {"scores": CODES, "k": 2},
    attention.light_attention: {
        "queries": QUERIES,
        "keys": KEYS,
        "values": VALUES,
        "tokens": [np.arange(0)] * HKV,
    },
    ClusterTable().assign: {"codes": np.array([1, 2], np.uint32)},
    PageTable(PagingConfig(), HKV, D).append: {"clusters": np.array([0, 1])},
    mosaic_frame: {"embedding": np.ones(5), "keys": KEYS[None], "values": VALUES[None]},
    quick_scores: {"keys": KEYS, "values": VALUES},
    quickvideo.pipeline: {"ready": np.ones(2), "prefill": np.ones(2)},
    oaken.quantise: {"x": R.standard_normal((4, D)), "thresholds": THRESHOLDS},
    baselines.rekv: {"queries": QUERIES, "blocks": R.standard_normal((5, HQ * D)), "k": 2},
    baselines.retroinfer: {"queries": QUERIES, "centroids": R.standard_normal((5, HKV, D)), "probes": 2},
    baselines.cacheblend: {"values": VALUES, "cached": VALUES, "suffix": 1},
    rope.rotate: {"x": R.standard_normal((T, D)), "position": np.arange(float(T))},
    mamba_block: {"u": R.standard_normal((T, D))},
    mamba.selective_scan: SCAN,
    chunked_scan: SCAN,
    mamba.softplus: {"x": np.ones(3)},
    mosaic.spread: {"x": np.ones((3, 4))},
    mosaic.absorb: {"mean": np.ones(4), "variance": 0.1, "n": 2, "x": np.ones(4)},
    page_table.merge: {"start": np.array([0, 4]), "length": np.array([4, 2])},
    ranking.order: {"scores": np.ones(3), "scale": np.ones(3)},
    reference_decoder.attention_weights: {"q": R.standard_normal((T, HQ, D)), "k": R.standard_normal((T, HKV, D))},
    decoder: {"x": R.standard_normal((2, 32)), "positions": np.arange(2.0)},
}
DAMAGES = {
    "nan": lambda x: _with(x, np.nan),
    "infinite": lambda x: _with(x, -np.inf),
    "text": lambda x: np.full(x.shape, "a"),
    "one more axis": lambda x: x[..., None],
    "no axis": lambda x: x.ravel()[0],
}


def _with(x, value):
    if not np.issubdtype(x.dtype, np.inexact) and x.dtype != bfloat16:
        return x.astype(float) + 0.5  # fractions where integers are valid
    x = x.copy()
    x.ravel()[-1] = value
    return x


# arguments that broadcast, are flattened or define another size may have other axes
FREE = {(hashing.hash_codes, "keys"), (rope.rotate, "x"), (rope.rotate, "position"), (decoder, "positions")}
FREE |= {(baselines.cacheblend, "values"), (mamba.softplus, "x"), (ranking.order, "scores"), (ranking.order, "scale")}
DAMAGED = [
    (call, name, damage)
    for call, arguments in CASES.items()
    for name, x in arguments.items()
    for damage in DAMAGES
    if isinstance(x, np.ndarray) and not ("axis" in damage and (call, name) in FREE)
]


@pytest.mark.parametrize("call, name, damage", DAMAGED, ids=lambda x: x if isinstance(x, str) else x.__qualname__)
def test_damaged_arrays(call, name, damage):
    arguments = CASES[call]
    call(**arguments)
    with pytest.raises(ValueError, match=name):
        call(**{**arguments, name: DAMAGES[damage](arguments[name])})


def test_type_error_is_also_value_error():
    assert issubclass(checks.ArgumentTypeError, TypeError) and issubclass(checks.ArgumentTypeError, ValueError)


@pytest.mark.parametrize("call", [resv, attention.light_attention, baselines.retroinfer], ids=lambda c: c.__name__)
def test_indivisible_heads_raise(call):
    with pytest.raises(ValueError, match=r"queries must have a multiple of 2 heads, got 3"):
        call(**{**CASES[call], "queries": QUERIES[:, :3]})


def test_empty_steps():
    none = {name: x[:0] for name, x in CASES[resv].items()}
    with pytest.raises(ValueError, match="must hold at least one token, got none"):
        resv(**none)
    with pytest.raises(ValueError, match="queries must have 1 to 3 tokens"):
        attention.light_attention(**{**CASES[attention.light_attention], "queries": QUERIES[:0]})


def table():
    result = ClusterTable()
    result.assign(np.array([0, 2**32 - 1], np.uint32))
    return result


STREAM = quickvideo.scan([(0, True), (4, False), (8, False)])
PLAN = codecsight.window_plan(1, codecsight.CodecSightConfig(window=5, stride=2, gop=3))


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: attention.light_attention(QUERIES, KEYS[:, :0], VALUES[:, :0], []),
            "keys must have at least one head",
        ),
        (
            lambda: attention.attention_mass(QUERIES[..., :0], KEYS[..., :0]),
            "keys must have at least one head and one e",
        ),
        (lambda: mosaic.query_vector(np.ones((2, 4, 0)), 2), r"q must have tokens, elements and .* shape \(2, 4, 0\)"),
        (lambda: mosaic.spread(np.ones((0, 4))), "x must hold at least one entry, got none"),
        (lambda: mosaic.absorb(np.ones(4), 0.1, 0, np.ones(4)), "n must be at least 1, got 0"),
        (lambda: mosaic.threshold(0, mosaic.MosaicConfig()), "n must be at least 1, got 0"),
        (lambda: mamba.selective_scan(**{**SCAN, "b": np.ones((3, 5))}), r"b must have shape \(3, 4\), got \(3, 5\)"),
        (lambda: page_table.merge(np.arange(2), np.arange(3)), r"length must have shape \(2\), got \(3,\)"),
        (lambda: table().rehash(np.array([0, 1]), np.array([5])), r"codes must have shape \(2\), got \(1,\)"),
        (lambda: codecsight.processed_fraction(PLAN, 0, 0.5), "gop must be at least 1, got 0"),
        (lambda: codecsight.patch_mask(np.ones((2, 2), bool), -1), "group must be at least 1, got -1"),
        (
            lambda: quickvideo.members(STREAM, quickvideo.intervals(STREAM, 2), 2),
            "interval must be between 0 and 0, got",
        ),
        (lambda: quickvideo.members(STREAM, [], 0), "cut must hold at least one interval, got none"),
        (lambda: quickvideo.seek_target(STREAM, None), "start must be an integer, got None"),
        (lambda: quickvideo.frame_index(3, 2, None, 4), "last must be an integer, got None"),
        (lambda: quickvideo.frame_index(3, 5, 2, 4), "last must be at least 5, got 2"),
        (lambda: quickvideo.take_tokens(KEYS, np.array([T])), "token_ids must be between 0 and 2, got 3"),
        (lambda: quickvideo.take_tokens(KEYS, np.array([-1])), "token_ids must be between 0 and 2, got -1"),
        (lambda: quickvideo.take_tokens(KEYS, np.zeros((1, 3), int)), r"token_ids must have shape \(k,\) or \(k, 2\)"),
        (lambda: ranking.order(1.0), "scores must have at least one axis, got a scalar"),
        (lambda: ranking.order(np.ones(3), np.ones(2)), r"scale must broadcast to shape \(3,\), got \(2,\)"),
        (lambda: reference_decoder.causal(3, 2), "new must be between 0 and 2, got 3"),
        (
            lambda: reference_decoder.attention_weights(np.ones((2, 1, 0)), np.ones((2, 1, 0))),
            "q must have heads of at",
        ),
        (lambda: bf16.add(WORDS, WORDS[:, [0, 1, 0]]), r"a and b must have shapes that broadcast, got \(1, 2\) and"),
        (lambda: bf16.divide(np.ones(2, np.uint32), np.ones(3, np.uint32)), "a and b must have shapes that broadcast"),
        (
            lambda: vector_kernels.rms_norm(WORDS[0], WORDS[0], 2),
            r"x must have shape \(R, n\), n at least 1, got \(2,\)",
        ),
        (lambda: vector_kernels.layer_norm(WORDS[:, :0], WORDS, WORDS, 2, 1e-5), r"x must have shape .*, got \(1, 0\)"),
        (lambda: vector_kernels.lane_sum(np.ones((1, 6), np.uint32), 3), "lanes must be a power of two, got 3"),
        (
            lambda: vector_kernels.exponentials(np.zeros(0, np.uint32), 64),
            r"scores must have shape \(n,\), n at least 1",
        ),
        (lambda: vector_kernels.signs(np.zeros(4, np.uint32)), r"projections must have shape \(R, n\)"),
    ],
)
def test_empty_and_mismatched_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_empty_and_extreme_arguments_have_results():
    assert reference_decoder.attention_weights(np.ones((0, 2, 4)), np.ones((0, 1, 4))).shape == (2, 0, 0)
    assert reference_decoder.silu(np.array([-1e4, 0, 1e4])).tolist() == [0, 0, 1e4]
    assert page_table.merge([], []).shape == (0, 2)
    filled = codecsight.restore(np.array([[0.5]]), np.array([[True, False]]), fill=1)  # an integer
    assert filled.tolist() == [[[0.5], [1.0]]]
    y, h = mamba.selective_scan(**{name: x[:0] if name in "xdtbc" else x for name, x in SCAN.items()})
    assert y.shape == (0, 2) and np.array_equal(h, SCAN["h"])
