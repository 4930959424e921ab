"""Every array parameter of a golden model with damaged values: a ValueError names the argument."""

import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden import attention, baselines, hashing, mamba, mosaic, oaken, quickvideo, rope, scores, selection, wicsum
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
FREE |= {(baselines.cacheblend, "values")}
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
