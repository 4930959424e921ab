"""Compiled kernels of ReSV give the clusters, mean keys and selections of the golden models, bit for bit."""

import pickle

import numba
import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden import bf16, exp, hashing, scores, wicsum
from golden.clustering import ClusterRule, ClusterTable
from golden.mean_keys import MeanKeys
from golden.resv import ResvConfig, ResvLayer
from golden.wicsum import WtuConfig
from sw_model.huggingface import kernels
from sw_model.huggingface.means import CompiledMeans
from sw_model.huggingface.resv import CompiledReSV, CompiledResvLayer, CompiledTable, default_config
from sw_model.policies import LLAMA3_8B, ModelShape, ReSV

FIELDS = ("cluster", "opened", "count", "distance", "overflow", "compared")


def similar_codes(rng, n, groups=40, flips=4):
    """Hash codes around some centres."""
    centres = rng.integers(0, 2**32, groups, np.uint32)
    codes = centres[rng.integers(0, groups, n)]
    for _ in range(flips):
        codes = codes ^ (rng.integers(0, 2, n).astype(np.uint32) << rng.integers(0, 32, n).astype(np.uint32))
    return codes


@pytest.mark.parametrize(
    "rule",
    [
        ClusterRule(),
        ClusterRule(first_match=True),
        ClusterRule(window_tokens=0),
        ClusterRule(window_tokens=37, hamming_threshold=5, hamming_inclusive=True),
        ClusterRule(max_cluster_tokens=3, window_tokens=90),
        ClusterRule(max_cluster_tokens=2, max_clusters=9),
        ClusterRule(max_candidates=5, window_tokens=64, first_match=True),
        ClusterRule(max_clusters=7, hamming_threshold=1),
        ClusterRule(max_candidates=1, hamming_threshold=0),
        ClusterRule(hamming_threshold=33),
        ClusterRule(cluster_hash="majority"),
    ],
    ids=str,
)
def test_clusters_equal_those_of_the_golden_table(rule, rng):
    golden, compiled = ClusterTable(rule), CompiledTable(rule)
    for size in (1, 10, 0, 700, 13, 1):
        codes = similar_codes(rng, size)
        expected, result = golden.assign(codes), compiled.assign(codes)
        for field in FIELDS:
            assert np.array_equal(getattr(result, field), getattr(expected, field)), field
            assert getattr(result, field).dtype == getattr(expected, field).dtype
    for name in ("codes", "counts", "first_token", "first_candidate", "tokens", "overflowed"):
        assert np.array_equal(getattr(compiled, name), getattr(golden, name)), name


@pytest.mark.parametrize("clusters", [1, 63, 64, 65, 128, 129])
def test_search_reads_no_cluster_beyond_the_last_one(clusters, rng):
    """Words beyond the last cluster can hold codes of removed clusters, for instance after a cache was rewound."""
    rule = ClusterRule(hamming_threshold=1, max_cluster_tokens=2)
    golden, compiled = ClusterTable(rule), CompiledTable(rule)
    codes = rng.permutation(2**16).astype(np.uint32)[:clusters] << 8
    for table in (golden, compiled):
        table.assign(codes)
    new = rng.integers(0, 2**32, 40, np.uint32)
    compiled._reserve(len(new))
    compiled._codes[clusters:] = np.resize(new, len(compiled._codes) - clusters)
    for step in (new, codes, new, codes):
        expected, result = golden.assign(step), compiled.assign(step)
        for field in FIELDS:
            assert np.array_equal(getattr(result, field), getattr(expected, field)), field


def test_exponential_equals_the_golden_one_for_every_distance():
    @numba.njit
    def exponentials(distances, codes):
        for i in range(len(distances)):
            codes[i] = kernels._exponential(distances[i])

    steps = np.arange(exp.FARTHEST + 2, dtype=np.float32)
    with np.errstate(over="ignore"):
        distances = np.concatenate([steps, np.nextafter(steps[1:], 0), [1e30, np.inf], [0.5, 1e-40]]).astype(np.float32)
    codes = np.empty(len(distances), np.int32)
    exponentials(distances, codes)
    assert np.array_equal(codes, exp.power(bf16.encode(distances, bf16.FP32)))


@pytest.mark.parametrize(("buckets", "levels"), [(2, 0), (2, 20), (16, 1), (64, 0), (4096, 3)])
def test_thresholding_equals_that_of_the_wtu(buckets, levels, rng):
    factor = bf16.decode(exp.scale(64), bf16.FP32).astype(np.float32)[()]
    for clusters in (1, 2, 15, 16, 17, 64, 333):
        for spread in (0.0, 1.0, 40.0, 1e4):
            row = (spread * rng.standard_normal((5, clusters))).astype(np.float32)
            counts = rng.integers(1, 65536, clusters, dtype=np.int32)
            for ratio in (0, 1, 19661, 65535, 65536):
                config = WtuConfig(buckets=buckets, refine_levels=levels)
                expected = wicsum.select(scores.codes(row, 64), counts, ratio, config).selected.any(axis=0)
                selected = np.zeros(clusters, bool)
                kernels.select_clusters(row, counts, factor, ratio, buckets, levels, selected)
                assert np.array_equal(selected, expected)


@pytest.mark.parametrize("kind", ["normal", "ties", "wide", "cancelling", "zero"])
def test_scores_are_exact_sums_rounded_to_float32(kind, rng):
    """Sums halfway between two float32 numbers, elements of very different sizes, and sums near zero."""
    rows, keys = rng.standard_normal((9, 2 * 32)), rng.standard_normal((40, 2 * 32))
    if kind == "ties":
        rows, keys = np.round(rows * 64), np.round(keys * 64)
        keys[:, 0], rows[:, 0] = 2.0**20, 2.0**10
    elif kind == "wide":
        keys *= 2.0 ** rng.integers(-60, 60, keys.shape)
    elif kind == "cancelling":
        keys[:, 1::2], rows[:, 1::2] = keys[:, ::2] * (1 + 2.0**-7), -rows[:, ::2]
    elif kind == "zero":
        keys[3], rows[2] = 0, 0
    rows, keys = rows.astype(bfloat16), keys.astype(bfloat16)
    golden, compiled = MeanKeys(64), CompiledMeans(64, heads=2)
    for means in (golden, compiled):
        means.update(keys, np.arange(40), np.ones(40, np.int32))
    for head in range(2):
        columns = slice(32 * head, 32 * head + 32)
        head_rows = np.ascontiguousarray(rows[:, columns]).astype(np.float64)
        expected = scores.dots(head_rows, golden.means[:, columns])
        assert np.array_equal(compiled.dots(head_rows, head), expected)


@pytest.mark.parametrize("bits", [1, 7, 32])
def test_hash_codes_equal_the_golden_ones(bits, rng):
    """Also those of zero keys, of keys with very different elements, and of sums that cancel."""
    layer = CompiledResvLayer(ResvConfig(hash_bits=bits), 2, 16)
    keys = rng.standard_normal((60, 32))
    keys[3] = 0
    keys[4:20] *= 2.0 ** rng.integers(-50, 50, (16, 32))
    normals = layer.planes.astype(np.float64)
    keys[20:30] = 0
    keys[20:30, 0], keys[20:30, 1] = normals[1, 0], -normals[0, 0]  # orthogonal to the first plane
    keys = keys.astype(bfloat16)
    assert np.array_equal(layer._hash_codes(keys), hashing.hash_codes(keys, layer.planes))


@pytest.mark.parametrize("change", ["none", "tokens", "heads", "stage", "nan"])
def test_invalid_steps_raise_the_errors_of_the_policy(change, rng):
    model = ModelShape(1, 64, 4, 2, 16)
    keys, queries = (rng.standard_normal((3, heads, 16)).astype(bfloat16) for heads in (2, 4))
    arguments = {"tokens": (0, queries[:2], "frame"), "heads": (0, queries[:, :2], "frame")}
    arguments |= {"stage": (0, queries, "film"), "nan": (0, np.full_like(queries, np.nan), "frame")}
    messages = []
    for policy in (ReSV(model), CompiledReSV(model)):
        policy.append(0, keys, keys)
        try:
            policy.select(*arguments.get(change, (0, queries, "frame")))
        except ValueError as error:
            messages.append(str(error))
        with pytest.raises(ValueError, match="values"):
            policy.append(0, keys, keys[:2])
        assert policy.past(0) == 0
        assert len(policy.keys(0)) == 3
    assert len(messages) == (0 if change == "none" else 2)
    assert len(set(messages)) <= 1


def test_codes_outside_32_bits_are_rejected():
    with pytest.raises(ValueError, match="codes must be between 0 and 4294967295"):
        CompiledTable().assign(np.array([2**32]))


@pytest.mark.parametrize("store", ["bf16", "fp32_sum"])
@pytest.mark.parametrize("scale", [1.0, 2.0**-128])
def test_mean_keys_equal_the_golden_ones(store, scale, rng):
    """With a scale near the smallest normal number, sums are flushed to zero."""
    golden, compiled = MeanKeys(24, store), CompiledMeans(24, store)
    counts = np.zeros(0, np.int32)
    for step in range(12):
        keys = (rng.standard_normal((9, 24)) * scale).astype(bfloat16)
        n = min(200, len(counts) + (100 if step == 5 else 2))
        counts = np.r_[counts, np.zeros(n - len(counts), np.int32)]
        new = np.arange(len(golden.means), n)
        clusters = np.r_[new, rng.integers(0, n, 9)][:9] if len(new) <= 9 else new
        keys = np.resize(keys, (len(clusters), 24)).astype(bfloat16)
        np.add.at(counts, clusters, 1)
        golden.update(keys, clusters, counts)
        compiled.update(keys, clusters, counts)
        assert np.array_equal(compiled.means.astype(bfloat16).view(np.uint16), golden.means.view(np.uint16))


def stream(rng, steps, heads, d, group, scenes=6):
    """Keys (T, heads, d) and queries (T, heads * group, d) that form clusters, bfloat16."""
    centres = rng.standard_normal((scenes, heads, d))
    for step in range(steps):
        tokens = int(rng.integers(1, 12))
        keys = centres[step * scenes // steps] + 0.2 * rng.standard_normal((tokens, heads, d))
        queries = 2 * centres[rng.integers(0, scenes)].repeat(group, axis=0) + rng.standard_normal(
            (tokens, heads * group, d)
        )
        yield keys.astype(bfloat16), queries.astype(bfloat16)


CONFIGS = [
    default_config(),
    ResvConfig(cluster_scope="kv_head", wics_ratio=0.0),
    ResvConfig(wics_ratio=1.0, hash_bits=8, hamming_threshold=2),
    ResvConfig(sink_tokens=5, recent_always_tokens=17, wtu=WtuConfig(buckets=2, refine_levels=0)),
    ResvConfig(wtu=WtuConfig(buckets=64, refine_levels=32), center_keys=True),
    ResvConfig(cluster_hash="rehash_mean", mean_store="fp32_sum", window_tokens=50),
    ResvConfig(selector="exact"),
    ResvConfig(gqa_select="per_q_head", attend="own"),
    ResvConfig(wtu=WtuConfig(weight="tc")),
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_selections_equal_those_of_the_policy(config, rng):
    model = ModelShape(1, 8 * 32, 8, 2, 32)
    golden, compiled = ReSV(model, config), CompiledReSV(model, config)
    for step, (keys, queries) in enumerate(stream(rng, 40, 2, 32, 4)):
        stage = "frame" if step % 3 else "text"
        selections = []
        for policy in (golden, compiled):
            policy.append(0, keys, keys)
            selections.append(policy.select(0, queries, stage))
        expected, result = selections
        for h in range(2):
            assert np.array_equal(result.tokens[h], expected.tokens[h])
            assert (result.allowed is None) == (expected.allowed is None)
            if expected.allowed is not None:
                assert np.array_equal(result.allowed[h], expected.allowed[h])
    assert compiled._measured == golden._measured


def test_text_that_is_not_clustered_is_always_attended(rng):
    config = ResvConfig(cluster_text=False, wics_ratio=0.1)
    golden, compiled = ResvLayer(config, 2, 16), CompiledResvLayer(config, 2, 16)
    past = 0
    for step, (keys, queries) in enumerate(stream(rng, 30, 2, 16, 2)):
        stage = "text" if step % 4 == 3 else "frame"
        for layer in (golden, compiled):
            layer.append(keys, stage)
        expected = golden.select(queries, past)
        selections, attended = compiled.attended_tokens(queries, past)
        tokens, _ = golden.attended(expected, past)
        for h in range(2):
            assert np.array_equal(selections[h], expected.tokens[h])
            assert np.array_equal(attended[h], tokens[h])
        past += len(keys)


def test_row_longer_than_the_limit_is_rejected(rng):
    layer = CompiledResvLayer(ResvConfig(hamming_threshold=0, wtu=WtuConfig(max_row_clusters=8)), 1, 16)
    layer.append(rng.standard_normal((9, 1, 16)))
    with pytest.raises(ValueError, match="max_row_clusters must be at least 9, got 8"):
        layer.attended_tokens(rng.standard_normal((1, 1, 16)), 9)


def test_default_configuration_has_no_short_rows():
    assert CompiledReSV(LLAMA3_8B).config.wtu.max_row_clusters == 1 << 20


@pytest.mark.parametrize("work", [1, 200, 1 << 18])
@pytest.mark.parametrize("config", CONFIGS[:5], ids=range(5))
def test_selections_of_tensor_operations_equal_those_of_the_policy(config, work, rng, device, monkeypatch):
    """The operations for a GPU run on `--torch-device`; a copy of the policy starts without mean keys on the device.
    The result does not depend on the number of scores that are computed at a time."""
    from sw_model.huggingface import tensor_kernels

    monkeypatch.setattr(tensor_kernels, "WORK_SCORES", work)
    model = ModelShape(1, 8 * 32, 8, 2, 32)
    golden, compiled = ReSV(model, config), CompiledReSV(model, config)
    for step, (keys, queries) in enumerate(stream(rng, 40, 2, 32, 4)):
        if step == 20:
            compiled = pickle.loads(pickle.dumps(compiled))
            assert compiled.index[0].device is None
        compiled.use_device(0, str(device))
        for policy in (golden, compiled):
            policy.append(0, keys, keys)
        expected, result = (policy.select(0, queries, "frame") for policy in (golden, compiled))
        for h in range(2):
            assert np.array_equal(result.tokens[h], expected.tokens[h])
    if compiled.index[0].fused:
        assert len(compiled.index[0]._mirrors) == len(compiled.index[0].tables)


@pytest.mark.parametrize(("buckets", "levels"), [(2, 0), (2, 20), (16, 1), (4096, 3)])
def test_thresholding_of_tensor_operations_equals_that_of_the_wtu(buckets, levels, rng, torch, device):
    from sw_model.huggingface import tensor_kernels

    factor = float(bf16.decode(exp.scale(64), bf16.FP32))
    for clusters in (1, 2, 17, 333):
        for spread in (0.0, 1.0, 40.0, 1e4):
            rows = (spread * rng.standard_normal((3, 5, clusters))).astype(np.float32)
            counts = rng.integers(1, 65536, clusters, dtype=np.int32)
            for ratio in (0, 1, 19661, 65535, 65536):
                config = WtuConfig(buckets=buckets, refine_levels=levels)
                counts_tensor = torch.from_numpy(counts.astype(np.int64))[None].to(device)
                selected = tensor_kernels.select_clusters(
                    torch.from_numpy(rows).to(device), counts_tensor, factor, ratio, buckets, levels
                )
                for head in range(3):
                    expected = wicsum.select(scores.codes(rows[head], 64), counts, ratio, config).selected
                    assert np.array_equal(selected[head].cpu().numpy(), expected)


@pytest.mark.parametrize("kind", ["normal", "ties", "wide"])
@pytest.mark.parametrize("work", [1, 2 * 32 * 16, 1 << 19])  # one mean key at a time, parts of 16, 16 and 8, all
def test_scores_of_tensor_operations_are_exact_or_in_doubt(kind, work, rng, torch, device, monkeypatch):
    from sw_model.huggingface import tensor_kernels

    monkeypatch.setattr(tensor_kernels, "WORK_MEANS", work)
    rows, keys = rng.standard_normal((2, 9, 32)), rng.standard_normal((2, 40, 32))
    if kind == "ties":
        rows, keys = np.round(rows * 64), np.round(keys * 64)
        keys[..., 0], rows[..., 0] = 2.0**20, 2.0**10
    elif kind == "wide":
        keys *= 2.0 ** rng.integers(-60, 60, keys.shape)
    rows, keys = (x.astype(bfloat16).astype(np.float64) for x in (rows, keys))
    result, doubtful = tensor_kernels.dots(*(torch.from_numpy(x).to(device) for x in (rows, keys)))
    for head in range(2):
        expected = scores.dots(rows[head], keys[head])
        same = (result[head].cpu().numpy() == expected).all(axis=1)
        assert (same | doubtful[head].cpu().numpy()).all()
    assert kind == "wide" or not doubtful.any()
