"""Published figures compared with the model: completeness, and verdicts that follow from the residuals."""

import pytest

from sw_model.assumptions import Assumptions
from sw_model.papers import codecsight, quickvideo
from sw_model.papers.figures import published
from sw_model.papers.mosaic_hybrid import rekv_gb
from sw_model.papers.reproduce import FREE_ASSUMPTIONS, Reading, brief, evaluate, reproduce, row_of, worst_residual


@pytest.fixture(scope="module")
def reproduction():
    return reproduce()


def test_every_target_has_a_row(reproduction):
    assert [r.id for r in reproduction.rows] == list(published())
    assert {r.use for r in reproduction.rows} == {"system", "arith"}
    assert len(reproduction.contradictions) == 5
    assert len(FREE_ASSUMPTIONS) < 9


def test_one_figure_lists_the_contradictions_of_its_paper_only():
    lines = reproduce("hybrid.t2.cache").as_text()
    assert lines.count("contradiction: ") == lines.count("contradiction: Hybrid: ") == 1


def test_verdict_follows_from_the_residual(reproduction):
    for row in reproduction.rows:
        assert row.verdict != "not modelled", row.id
        if row.use == "system" and isinstance(row.tolerance, float) and row.residual is not None:
            assert (row.verdict == "inside") == (abs(row.residual) <= row.tolerance), row.id
        if row.verdict == "outside" and row.use == "system" and isinstance(row.tolerance, float):
            assert "depends on" in row.comment, row.id


def test_arithmetic_agrees_except_where_the_paper_contradicts_itself(reproduction):
    """V-Rex prints 11.4 % less power for 35 W against 40 W."""
    arith = {row.id: row.verdict for row in reproduction.rows if row.use == "arith"}
    assert len(arith) == 18 and {name for name, verdict in arith.items() if verdict != "inside"} == {"vrex.power_delta"}


def test_score_of_all_system_figures(reproduction):
    """All figures share the model's constants, so a change of the model can change the score; then update it here."""
    assert reproduction.score() == (35, 49, 49)


def test_prefill_time_of_a_serving_request():
    """Full recomputation of 20,480 tokens by a decoder of 6.5 G parameters at 82 % of 312 TFLOPS: products, causal
    attention and launches."""
    model = codecsight.INTERN
    tokens = 80 * 256
    flops = 2 * 6.5e9 * tokens + 28 * 4 * 3584 * tokens * tokens / 2
    assert codecsight.full(model).prefill == pytest.approx(flops / (312e12 * 0.822) + 28 * 30 * 18e-6)
    assert codecsight.recomputed(0.0) == 20 and codecsight.recomputed(0.5) == 12.5
    assert codecsight.codecsight(model, 0.0).total > codecsight.codecsight(model, 0.5).total


def test_maximum_pruning_exceeds_every_class_of_motion():
    """85 % fewer tokens is not a mean over clips, so the speedups over all clips do not use it."""
    assert codecsight.MAX_PRUNED > max(codecsight.CLASSES) > codecsight.PRUNED
    assert 1 - codecsight.recomputed(codecsight.MAX_PRUNED) / 80 == pytest.approx(0.85)


def test_first_group_of_quickvideo_waits_for_its_interval():
    """Two of 1800 frames of Qwen2.5-VL take 8 x 15 cells. The first group of 32 frames ends four frames into the second
    interval, which another core decodes, so it waits for the first interval: 750 frames, 31 sampled ones."""
    assert quickvideo.pair_tokens(1800) == 8 * 15
    ready = quickvideo.ready_s(30, 16, 64, 32)
    before = 2 * 3.2 + 0.0020 * 30 * 60 * 24 + 23  # two openings, the packets, a process
    assert ready[0] == pytest.approx((before + 31 * (24 + 0.53)) * quickvideo.FRAME_S)
    assert quickvideo.sequential_s(60, 16) == pytest.approx(60)  # a minute for an hour


def test_memory_per_frame_of_a_video_model(reproduction):
    """A frame takes 11.2 MB of KV, 5.2 MB of features before pooling, 1.4 MB after, and 1.8 MB of pixels; the paper
    gives 19.5 MB. In chunks of 64 frames ReKV's window is full after 128 frames, which it holds twice; buffers for 192
    frames and vectors come in addition."""
    rows = {r.id: r.model for r in reproduction.rows}
    memory, vram = rows["mosaic.t1.memory"], rows["mosaic.vram"]
    frame = 196 * 57344 + 729 * 7168 + 196 * 7168 + 384 * 384 * 6
    assert (memory[5] - memory[4]) / 512 == pytest.approx(frame / 1e9)
    vectors = 1024 * 28 * 28 * 128 * 2
    assert vram[0] - memory[5] == pytest.approx(((2 * 128 + 192 - 1024) * 196 * 57344 + vectors) / 1e9)


@pytest.mark.parametrize(
    ("kv_bytes", "vector_bytes", "measured"),
    [
        (28 * 2 * 4 * 128 * 2, 28 * 28 * 128 * 2, 20.7445 - 16.5889),
        (24 * 2 * 2 * 64 * 2, 24 * 14 * 64 * 2, 3.0533 - 2.0162),
    ],
)
def test_memory_of_rekv_matches_a_measurement(kv_bytes, vector_bytes, measured):
    """Peak memory minus weights of ReKV with LLaVA-OneVision 7B and 0.5B, one frame at a time, 536 frames, measured by
    github.com/Tauke190/EfficientReKV (results/cost_model). Transformers 4.45 computes the logits of all 196 tokens, in
    half and in single precision; activations are not counted."""
    logits = 196 * 152000 * (2 + 4) / 1e9
    assert rekv_gb(536, 1, kv_bytes, vector_bytes) + logits == pytest.approx(measured, rel=0.005)


def test_tpot_of_the_edge_system_is_inside(reproduction):
    row = next(r for r in reproduction.rows if r.id == "vrex.fig13.tpot_edge")
    assert row.verdict == "inside"


def test_assumption_changes_one_figure():
    some = reproduce("vrex.fig13.frame_edge_b1")
    assert len(some.rows) == 1
    other = reproduce("vrex.fig13.frame_edge_b1", assume=Assumptions(retained_hit=0.9))
    assert other.rows[0].model[-1] < some.rows[0].model[-1]
    with pytest.raises(ValueError, match=r"figure must be an identifier .*got 'fig99'"):
        reproduce("fig99")


def test_residual_and_verdict_of_a_target():
    assert worst_residual([1.1, 2.0], [1.0, 2.0]) == pytest.approx(0.1)
    assert worst_residual({"a": 1}, {"a": 1, "b": 2}) is None
    target = {"id": "x", "paper": "p", "where": "w", "what": "t", "use": "system", "value": [10.0], "tolerance": 0.2}
    assert row_of(target, Reading([11.0])).verdict == "inside"
    assert row_of(target, Reading([13.0], depends_on="luck")).comment == "depends on: luck"
    assert row_of(target, Reading(None)).verdict == "not modelled"
    two = target | {"value": {"a": [10.0, 20.0]}}
    assert row_of(two, Reading([11.0, 40.0])).numbers_in_tolerance == (1, 2)
    shape = row_of(target | {"tolerance": "shape"}, Reading([11.0]))
    assert (shape.verdict, shape.numbers_in_tolerance) == ("not modelled", None)


def test_brief_value_has_four_digits():
    assert brief({"a": [1.23456, None, 2], "b": "text"}) == "{a: [1.235, , 2], b: text}"


def test_figure_without_an_evaluator_is_not_modelled():
    assert evaluate("vrex.nothing", Assumptions(), "paper").comment == "not modelled: no evaluator"
