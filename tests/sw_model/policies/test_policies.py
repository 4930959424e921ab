"""Every policy on one small stream: selections compared with a plain rule, costs with known sums."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from golden import baselines, oaken
from golden.attention import light_attention
from golden.codecsight import CodecSightConfig
from golden.hybrid import HybridConfig
from golden.mosaic import MosaicCache, MosaicConfig, query_vector
from golden.quickvideo import QuickVideoConfig
from golden.resv import Resv, ResvConfig
from golden.rope import THETA_LLAMA3, rotate
from sw_model.policies import LLAMA3_8B, POLICIES, ModelShape, Step, load
from sw_model.policies.base import Matmul
from sw_model.policies.codecsight import CodecSight
from sw_model.policies.hybrid import VECTOR_BYTES, Hybrid
from sw_model.policies.infinigen import InfiniGen, InfiniGenP
from sw_model.policies.mosaic import Mosaic
from sw_model.policies.oaken import Oaken
from sw_model.policies.quickprefill import QuickPrefill
from sw_model.policies.rekv import ReKV
from sw_model.policies.resv import ReSV

MODEL = ModelShape(layers=2, hidden=32, q_heads=4, kv_heads=2, head_dim=16)
TOKENS = 4  # of a frame
FRAME = Step(10, 40_000, "frame")
TEXT = Step(1, 40_000, "text")


@pytest.fixture
def stream(rng):
    """Fourteen steps (stage, start, raw keys, keys, values, raw queries, queries), each (L, T, H, d), BF16 values."""
    base, steps, start = rng.standard_normal((2, 3, TOKENS, 2, 16)) * 2, [], 0
    for i in range(14):
        stage = "text" if i in (6, 13) else "frame"
        t = 3 if stage == "text" else TOKENS
        raw_k = base[:, rng.integers(3), :t] + 0.4 * rng.standard_normal((2, t, 2, 16))
        raw_q = np.repeat(base[:, rng.integers(3), :t], 2, axis=2) + 0.4 * rng.standard_normal((2, t, 4, 16))
        at = (start + np.arange(t))[:, None]
        k, q = rotate(raw_k, at).astype(bfloat16), rotate(raw_q, at).astype(bfloat16)
        steps.append((stage, start, raw_k, k, rng.standard_normal((2, t, 2, 16)).astype(bfloat16), raw_q, q))
        start += t
    return steps


def play(policy, stream):
    """Run the policy; yields (step number, layer, selection)."""
    for i, (stage, _, _, k, v, _, q) in enumerate(stream):
        for layer in range(2):
            policy.append(layer, k[layer].astype(np.float32), v[layer].astype(np.float32))
            yield i, layer, policy.select(layer, q[layer].astype(np.float32), stage)


def test_names_of_the_published_policies():
    assert list(POLICIES) == [
        "full", "infinigen", "infinigenp", "rekv", "resv", "mosaic", "quickprefill", "codecsight", "hybrid", "oaken",
    ]  # fmt: skip


@pytest.mark.parametrize("name", POLICIES)
def test_selection_has_past_distinct_ascending_tokens(name, stream):
    """Also: the first step selects no token, and attention to the selection is finite."""
    options = {"tokens_per_frame": TOKENS} if name in ("mosaic",) else {}
    policy = load(name)(MODEL, **options)
    for i, layer, got in play(policy, stream):
        past = stream[i][1]
        assert len(got.tokens) == 2
        for tokens in got.tokens:
            assert (np.diff(tokens) > 0).all() and (not len(tokens) or (tokens[0] >= 0 and tokens[-1] < past))
        out = light_attention(
            stream[i][6][layer], policy.keys(layer), policy.values(layer), got.tokens, got.allowed,
            got.pseudo_keys, got.pseudo_values,
        )  # fmt: skip
        assert np.isfinite(out).all()
    for stage in ("frame", "text"):
        assert 0 < policy.ratio(Step(1, 50, stage)) <= 1


@pytest.mark.parametrize("name", POLICIES)
def test_cost_is_linear_in_the_batch_and_zero_without_a_past(name):
    policy = load(name)(LLAMA3_8B)
    for step in (FRAME, TEXT):
        one, four = policy.account(step), policy.account(replace(step, batch=4))
        for field in ("attend_read_bytes", "append_bytes", "fetch_bytes", "fetch_extents", "predict_flops"):
            assert getattr(four, field) == pytest.approx(4 * getattr(one, field)), field
        for field in ("vector_ops", "hamming_pairs", "threshold_rows"):
            assert getattr(four, field) == pytest.approx(4 * getattr(one, field)), field
        assert four.attended_tokens == one.attended_tokens and four.processed_tokens == one.processed_tokens
        empty = policy.account(replace(step, past_tokens=0))
        assert empty.fetch_bytes == empty.attended_tokens == empty.attend_read_bytes == 0


def test_resv_selection_equals_the_golden_model(stream):
    config = ResvConfig(hash_bits=16, hamming_threshold=4, prefetch="same_layer", attend="own")
    golden = Resv(config, 2, 2, 16)
    policy, ratios = ReSV(MODEL, config), []
    for i, layer, got in play(policy, stream):
        stage, past, _, k, v, _, q = stream[i]
        step = golden.step(layer, q[layer], k[layer], v[layer], stage)
        assert [t.tolist() for t in got.tokens] == [t.tolist() for t in step.attended]
        out = light_attention(q[layer], policy.keys(layer), policy.values(layer), got.tokens, got.allowed)
        assert (out == step.output).all()
        if past and stage == "frame":
            ratios.append(step.selected.ratio(past))
    assert policy.ratio(FRAME) == pytest.approx(np.mean(ratios))
    clusters = [len(layer.tables[0]) for layer in golden.layers]
    assert policy.tokens_per_cluster == pytest.approx(np.mean([54 / c for c in clusters]))


def test_rekv_ranks_frames_before_the_rotary_embedding(stream):
    for i, (stage, start, raw_k, _, v, raw_q, _) in enumerate(stream):  # not rounded to BF16, which reorders near ties
        at = (start + np.arange(raw_k.shape[1]))[:, None]
        stream[i] = (stage, start, raw_k, rotate(raw_k, at), v, raw_q, rotate(raw_q, at))
    policy = ReKV(MODEL, frames=3)
    for i, layer, got in play(policy, stream):
        frames = [j for j in range(i) if stream[j][0] == "frame"]
        sizes = np.full(len(frames), TOKENS)
        raw = [stream[j][2][layer] for j in frames] or [np.zeros((0, 2, 16))]
        best = baselines.rekv(stream[i][5][layer], baselines.rekv_blocks(np.concatenate(raw), sizes, 2), 3)
        expected = {t for f in best for t in range(stream[frames[f]][1], stream[frames[f]][1] + TOKENS)}
        expected |= {t for j in range(i) if stream[j][0] == "text" for t in range(stream[j][1], stream[j][1] + 3)}
        assert [t.tolist() for t in got.tokens] == [sorted(expected)] * 2


@pytest.mark.parametrize("kind", [InfiniGen, InfiniGenP])
def test_infinigen_speculates_per_query_head(kind, stream):
    policy, columns = kind(MODEL, alpha=3.0), {}
    for i, layer, got in play(policy, stream):
        stage, past, _, _, _, _, q = stream[i]
        rows = q[layer].astype(np.float64)
        columns.setdefault(layer, baselines.infinigen_columns(rows))
        if stage == "frame" and kind is InfiniGen:
            assert [t.tolist() for t in got.tokens] == [list(range(past))] * 2 and got.allowed is None
            continue
        heads = baselines.infinigen(rows, policy.keys(layer)[:past], columns[layer], 3.0)
        for row in range(len(rows) * 2):
            for h in range(2):
                assert got.tokens[h][got.allowed[h][row]].tolist() == heads[2 * h + row % 2].tolist()
        assert set(got.tokens[1].tolist()) == set(heads[2].tolist()) | set(heads[3].tolist())


def test_mosaic_retrieves_the_clusters_of_its_cache_and_all_text(stream):
    config = MosaicConfig(budget_frames=3)
    policy, cache, frames = Mosaic(MODEL, config, TOKENS), MosaicCache(2, 2, 16, TOKENS, config), []
    for i, layer, got in play(policy, stream):
        if layer == 0 and i and stream[i - 1][0] == "frame":
            _, start, _, k, v, _, _ = stream[i - 1]
            unrotated = rotate(k[0].astype(np.float32), -(start + np.arange(TOKENS))[:, None], THETA_LLAMA3)
            cache.append(unrotated.mean(axis=0).ravel(), k.astype(np.float32), v.astype(np.float32))
            frames.append(start)
        wanted = {t for j in range(i) if stream[j][0] == "text" for t in range(stream[j][1], stream[j][1] + 3)}
        if frames:
            retrieved = cache.retrieve(layer, query_vector(stream[i][6][layer].astype(np.float64), 2)).tokens
            assert len(retrieved) <= 3 * TOKENS
            wanted |= {frames[t // TOKENS] + t % TOKENS for t in retrieved.tolist()}
            assert len(got.pseudo_keys) == len(cache.layers[layer].clusters)
        assert [t.tolist() for t in got.tokens] == [sorted(wanted)] * 2
    with pytest.raises(ValueError, match="tokens_per_frame = 5 tokens, got 4"):
        list(play(Mosaic(MODEL, config, 5), stream))


@pytest.mark.parametrize("head_mode", ["shared", "per_head"])
def test_quickprefill_prunes_each_full_group_once(head_mode, stream):
    config = QuickVideoConfig(rho=0.3, group_frames=3, head_mode=head_mode)
    for i, layer, got in play(QuickPrefill(MODEL, config), stream):
        keys = np.concatenate([s[3][layer] for s in stream]).astype(np.float64)
        frames = [j for j in range(i) if stream[j][0] == "frame"]
        for h in range(2):
            expected = set(range(stream[i][1]))
            for g in range(0, len(frames) - len(frames) % 3, 3):
                group = [t for j in frames[g : g + 3] for t in range(stream[j][1], stream[j][1] + TOKENS)]
                norm = {t: np.square(keys[t] if head_mode == "shared" else keys[t, h]).sum() for t in group}
                expected -= set(sorted(group, key=lambda t: (norm[t], t))[int(len(group) * 0.3) :])
            assert set(got.tokens[h].tolist()) == expected


def test_codecsight_selects_its_window_and_hybrid_its_blocks(stream):
    window = CodecSight(MODEL, CodecSightConfig(window=4, stride=2, gop=2))
    for i, _, got in play(window, stream):
        held = [j for j in range(i) if stream[j][0] == "frame"][-3 if stream[i][0] == "frame" else -4 :]
        expected = {t for j in held for t in range(stream[j][1], stream[j][1] + TOKENS)}
        expected |= {t for j in range(i) if stream[j][0] == "text" for t in range(stream[j][1], stream[j][1] + 3)}
        assert set(got.tokens[0].tolist()) == expected
    blocks = Hybrid(MODEL, HybridConfig(block=2, sink_blocks=1, recent_blocks=4, max_tokens=12))
    for i, _, got in play(blocks, stream):
        past = stream[i][1]
        held = {0, 1} | set(range(max(0, past - 8), past))
        assert set(got.tokens[0].tolist()) <= held | set(range(12)) and len(got.tokens[0]) <= 12
        if past > 20:
            assert {0, 1} <= set(got.tokens[0].tolist())


def test_oaken_reads_the_stored_values(stream):
    policy = Oaken(MODEL)
    for i, layer, got in play(policy, stream):
        past = stream[i][1]
        first = stream[0][3][layer].astype(np.float64).reshape(TOKENS, -1)
        limits = oaken.profile(first)
        for j in range(i):
            rows = stream[j][3][layer].astype(np.float64).reshape(len(stream[j][3][layer]), -1)
            stored = oaken.quantise(rows, limits).values.astype(np.float32)
            assert (got.keys[stream[j][1] : stream[j][1] + len(rows)].reshape(len(rows), -1) == stored).all()
        assert len(got.keys) == len(got.values) == past
    assert 4 < policy.bits < 8


def test_account_of_resv():
    """40K tokens, 1250 clusters: 10 x 32 rows, bits from 1024-element keys, 128 candidates in the window."""
    work = ReSV(LLAMA3_8B).account(FRAME)
    assert work.matmuls == (Matmul(10, 1024, 32, 1), Matmul(40, 128, 1250, 8))
    assert work.predict_flops == 2 * (10 * 1024 * 32 + 320 * 128 * 1250)
    assert (work.threshold_rows, work.threshold_entries, work.threshold_passes) == (320, 1250, 12.7)
    assert work.hamming_pairs == 10 * 4096 / 32
    assert work.attended_tokens == pytest.approx(13080)
    assert work.fetch_bytes == pytest.approx(13080 * (1 - 4096 / 40000) * 4096)
    assert work.extent_bytes == pytest.approx(32 * 512)  # one page of one head
    assert work.schedule == "next_layer"
    assert ReSV(LLAMA3_8B).account(replace(FRAME, ratio=0.1)).attended_tokens == 4000
    text = ReSV(LLAMA3_8B).account(TEXT)
    assert text.attended_tokens == pytest.approx(1000) and text.threshold_passes == 8.5


def test_retrieved_bytes_of_a_frame_exceed_the_edge_link():
    """32.7 % of 40K tokens are 1.71 GB; 4 GB/s move 1.016 GB in 254 ms, so two fifths must be in device memory."""
    work = ReSV(LLAMA3_8B).account(replace(FRAME, resident_tokens=0))
    volume = 32 * work.fetch_bytes
    assert round(volume / 1e9, 2) == 1.71 and round(4e9 * 0.254) == 1016000000
    assert 1 - 1.016e9 / volume >= 0.40


def test_account_of_the_other_policies():
    full = load("full")(LLAMA3_8B).account(FRAME)
    assert full.attended_tokens == 40000 and full.predict_flops == 0 and full.schedule == "ahead"
    gpu = replace(FRAME, machine="gpu")
    assert load("infinigen")(LLAMA3_8B).account(gpu) == full  # no retrieval in the prefill
    partial = load("infinigenp")(LLAMA3_8B).account(gpu)
    assert partial.matmuls[1] == Matmul(40, 38, 40000, 8) and partial.threshold_entries == 40000
    assert partial.extent_bytes == pytest.approx(512)  # scattered tokens, head by head
    rekv = load("rekv")(LLAMA3_8B).account(FRAME)
    assert rekv.matmuls == (Matmul(1, 4096, 4000, 1),) and rekv.extent_bytes == pytest.approx(5120)
    mosaic = load("mosaic")(LLAMA3_8B).account(gpu)
    assert mosaic.attended_tokens == pytest.approx(640 + 1250)
    quick = load("quickprefill")(LLAMA3_8B).account(FRAME)
    assert quick.attended_tokens == 20000 and quick.fetch_bytes == pytest.approx((20000 - 4096) * 4096)
    hybrid = load("hybrid")(LLAMA3_8B)
    growth = [hybrid.account(replace(FRAME, past_tokens=n)).attended_tokens for n in (100, 576, 10**4, 10**6)]
    assert growth == [100, 576, 576, 576]  # constant once the window is full
    branch = Hybrid(LLAMA3_8B, ssm_inner=64).account(FRAME)
    weights = 4096 * 2 * 64 + 64 * (256 + 32) + 256 * 64 + 64 * 4096
    assert branch.predict_flops == 2 * 10 * weights and branch.weight_bytes == 2 * weights
    state, vectors = 2 * 64 * (4 * 16 + 2 * 3), 10 * 64 * VECTOR_BYTES  # state: FP32, inputs of three taps
    assert branch.predict_read_bytes == state and branch.scratch_bytes == vectors
    assert hybrid.account(FRAME).predict_read_bytes == 0
    packed = Oaken(LLAMA3_8B, bits=4.0).account(gpu)
    assert packed.attend_read_bytes == full.attend_read_bytes / 4
    assert packed.fetch_bytes == pytest.approx((40000 - 4 * 4096) * 1024)
    coded = Oaken(LLAMA3_8B, bits=4.0).account(FRAME)  # the format of a core
    assert coded.attend_read_bytes == full.attend_read_bytes * 4.5 / 16


def test_account_of_the_programs():
    """InfiniGen and Mosaic on the cores: all columns, all clusters, one look-up for each selected cluster and head."""
    partial = load("infinigenp")(LLAMA3_8B).account(FRAME)
    assert partial.matmuls == (Matmul(10, 4096, 4096, weights=True), Matmul(40, 128, 40000, 8))
    assert partial.weight_bytes == 2 * 4096**2 and partial.predict_read_bytes == 2 * 40000 * 1024
    assert partial.scratch_bytes == 2 * 320 * 40000
    assert partial.selects == 0.508 * 40000 and partial.first_layer == pytest.approx(1 / 0.508)
    every = load("infinigen")(LLAMA3_8B).account(FRAME)
    assert every.selects == every.attended_tokens == 40000 and every.page_slots == 1
    mosaic = load("mosaic")(LLAMA3_8B).account(FRAME)
    assert mosaic.attended_tokens == pytest.approx(640) and mosaic.selects == pytest.approx(20)
    assert mosaic.lone_read_bytes == 4 * 320 * 2 * 1250 and mosaic.threshold_rows == 16
    assert mosaic.matmuls == (Matmul(40, 128, 2500, 8),)


def test_account_of_codecsight_on_the_cores():
    """Sixteen new frames and four refreshed ones are 20 passes; a frame attends to the frames before it."""
    work, half = (CodecSight(LLAMA3_8B, pruned=share).account(FRAME) for share in (0.0, 0.5))
    assert work.passes == 20 / 16 and work.processed_tokens == 10 and work.fetch_bytes == 0
    assert half.passes == 20 / 16 and half.processed_tokens == 12.5 * 0.625 / 1.25  # 5 frames and 15 halves of 20
    before = (sum(range(64, 80)) + sum(range(0, 64, 16))) / 20 * 10
    assert work.attended_tokens == pytest.approx(before)
    assert work.predict_read_bytes * 1.25 == pytest.approx(2 * 600 / 16 * 4096)  # 60 reused frames, for each new one


def test_account_of_codecsight():
    """Window 80, stride 16, GOP 16: a quarter of the window is processed, 15.6 % with half of the patches static."""
    gpu = replace(FRAME, machine="gpu")
    work = CodecSight(LLAMA3_8B).account(gpu)
    assert work.processed_tokens == 10 * 0.25 * 80 / 16 and work.vision_fraction == 1
    half = CodecSight(LLAMA3_8B, pruned=0.5).account(gpu)
    assert half.processed_tokens == 10 * 0.15625 * 80 / 16 and half.vision_fraction == 1 - 15 / 32
    assert work.attended_tokens == 800 and work.fetch_bytes == 0


def test_readme_template_runs(tmp_path, stream):
    readme = (Path(__file__).parents[3] / "sw_model/policies/README.md").read_text()
    (template,) = re.findall(r"```python\n(.*?)```", readme, re.S)
    assert len(template.splitlines()) < 60
    file = tmp_path / "mine.py"
    file.write_text(template)
    policy = load(str(file))(MODEL, sink=2, recent=5)
    for i, _, got in play(policy, stream):
        past = stream[i][1]
        assert set(got.tokens[0].tolist()) == {t for t in range(past) if t < 2 or t >= past - 5}
    assert load(str(file))(LLAMA3_8B).account(FRAME).attended_tokens == 516
    assert all(f"`{name}`" in readme for name in POLICIES)


def test_invalid_options_raise_value_error():
    with pytest.raises(ValueError, match=r"config\.score_includes_current must be True"):
        ReSV(MODEL, ResvConfig(score_includes_current=False))
    with pytest.raises(ValueError, match=r"config\.score must be a norm of keys or values, got 'attention'"):
        QuickPrefill(MODEL, QuickVideoConfig(score="attention"))


def test_resv_without_a_wtu_compares_all_clusters(stream):
    """Exact selection measures no passes; there are more clusters than those of a window."""
    config = ResvConfig(selector="exact", window_tokens=0)
    policy = ReSV(MODEL, config)
    assert [n for n, _, _ in play(policy, stream)][-1] == 13 and not any(policy._measured_passes.values())
    late = Step(10, 400_000, "frame")
    assert policy.account(late).hamming_pairs > ReSV(MODEL, ResvConfig()).account(late).hamming_pairs
