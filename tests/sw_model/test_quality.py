"""The quality table compared with sums over single tokens, and its order on a generated stream."""

import math

import numpy as np
import pytest

from golden.attention import light_attention
from golden.kv_formats import read_back
from sw_model.media.generator import Generator, GeneratorConfig
from sw_model.media.stream import Geometry
from sw_model.policies.base import Policy, Selection, Step, Work
from sw_model.quality import policies_for, quality_table, retrieved, shape_of

GEOMETRY = Geometry(layers=2, q_heads=4, kv_heads=2, head_dim=16)


class OddTokens(Policy):
    """The odd past tokens for KV head 0, the first three for KV head 1."""

    name = "odd"

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        past = self.past(layer)
        return Selection((np.arange(1, past, 2), np.arange(min(3, past))))

    def account(self, step: Step) -> Work:
        return self.work(step, 0, 0)


class OddTokensWithRatio(OddTokens):
    """OddTokens that records the retrieved share."""

    def select(self, layer: int, queries: np.ndarray, stage: str) -> Selection:
        self.queries(layer, queries, stage)
        selection = super().select(layer, queries, stage)
        self.note(layer, stage, selection.tokens)
        return selection


def stream(frames, seed, text_interval=4):
    config = GeneratorConfig(geometry=GEOMETRY, tokens_per_frame=3, sigma_frame=1.5, seed=seed)
    return list(Generator(config).chunks(frames, text_interval=text_interval, text_tokens=2))


def test_table_equals_sums_over_single_tokens(seed):
    chunks = stream(6, seed)
    rows = {row.stage: row for row in quality_table(chunks, {"odd": OddTokens(shape_of(GEOMETRY))})}
    errors = {"frame": [], "text": []}
    bytes_read = {"frame": [], "text": []}
    for i, chunk in enumerate(chunks[1:], start=1):
        past = sum(c.tokens for c in chunks[:i])
        read = 0
        for layer in range(2):
            k = np.concatenate([c.k[layer] for c in chunks[: i + 1]]).astype(float)
            v = np.concatenate([c.v[layer] for c in chunks[: i + 1]]).astype(float)
            chosen = [set(range(1, past, 2)), set(range(min(3, past)))]
            read += sum(len(c) for c in chosen) * 4 * 16
            for t in range(chunk.tokens):
                for a in range(4):
                    h = a // 2
                    q = chunk.q[layer, t, a].astype(float)
                    seen = range(past + t + 1)
                    weight = [math.exp(math.fsum(q * k[n, h]) / 4) for n in seen]
                    sparse = [w if n >= past or n in chosen[h] else 0.0 for n, w in zip(seen, weight, strict=True)]
                    output = [math.fsum(w * v[n, h, j] for n, w in enumerate(weight)) / sum(weight) for j in range(16)]
                    sparse_output = [
                        math.fsum(w * v[n, h, j] for n, w in enumerate(sparse)) / sum(sparse) for j in range(16)
                    ]
                    error = math.dist(output, sparse_output) / math.hypot(*output)
                    errors[chunk.stage].append((len(chosen[h]) / past, sum(sparse) / sum(weight), error, i))
        bytes_read[chunk.stage].append(read)
    for stage, row in rows.items():
        # a step counts as one, however many tokens it has: average within the step first
        steps = sorted({entry[3] for entry in errors[stage]})
        means = [np.mean([e[:3] for e in errors[stage] if e[3] == i], axis=0) for i in steps]
        assert (row.ratio, row.recall, row.output_error) == pytest.approx(np.mean(means, axis=0))
        assert row.read_bytes == np.mean(bytes_read[stage]) and row.steps == len(steps)


def test_every_policy_on_a_generated_stream(seed):
    """Full attention is exact; a policy that reads less has less of the weight; 4 bits give errors and full recall."""
    rows = quality_table(stream(40, seed, text_interval=8), policies_for(GEOMETRY, 3), every=3)
    table = {(row.policy, row.stage): row for row in rows}
    assert len(table) == 20
    for stage in ("frame", "text"):
        full = table["full", stage]
        assert full.ratio == 1 and full.recall == pytest.approx(1) and full.output_error == 0
        for (name, at), row in table.items():
            if at == stage:
                assert 0 < row.ratio <= 1 and 0 < row.recall <= 1 + 1e-12 and row.read_bytes > 0
                assert name in ("full", "mosaic") or row.read_bytes <= full.read_bytes
        assert table["quickprefill", stage].recall < 1 and table["quickprefill", stage].output_error > 0
        oaken = table["oaken", stage]
        assert oaken.recall == pytest.approx(1) and 0 < oaken.output_error < 0.3
        assert oaken.read_bytes < 0.7 * full.read_bytes


def test_resv_reads_less_for_text_and_keeps_most_of_the_weight(seed):
    """The threshold of text tokens is lower. The means are over 20 text tokens: those of two depend on the seed."""
    rows = quality_table(stream(80, seed, text_interval=4), policies_for(GEOMETRY, 3, ("resv",)), every=1)
    text, frame = (next(row for row in rows if row.stage == stage) for stage in ("text", "frame"))
    assert text.steps == 20 and text.ratio < frame.ratio
    assert text.recall > 2 * text.ratio  # a selection by score holds more of the weight than its share of the tokens


@pytest.mark.parametrize("name", ["int8", "affine4", "kivi4", "oaken"])
def test_kv_format_changes_the_past_only(name, seed):
    """Full attention has the error and the bytes of the format; the policy `oaken` keeps its own."""
    chunks = stream(20, seed, text_interval=None)

    def measured(form):
        policies = policies_for(GEOMETRY, 3, ("full", "oaken"))
        return {row.policy: row for row in quality_table(chunks, policies, every=19, kv_format=form)}

    plain, stored = measured(None), measured(name)
    assert stored["oaken"] == plain["oaken"] and stored["full"].recall == plain["full"].recall
    (first, second) = chunks[:2]  # the only measured step
    layers = [read_back(name, first.k[layer], first.v[layer]) for layer in range(len(first.k))]
    assert stored["full"].read_bytes == pytest.approx(
        sum(x.bits for x in layers) / 16 * 4 * 16 * first.tokens * GEOMETRY.kv_heads
    )
    past = (np.arange(first.tokens),) * GEOMETRY.kv_heads
    errors = []
    for layer, read in enumerate(layers):
        q, k, v = second.q[layer], second.k[layer].astype(float), second.v[layer].astype(float)
        outputs = [
            light_attention(q, np.concatenate([pk, k]), np.concatenate([pv, v]), past)
            for pk, pv in ((read.keys, read.values), (first.k[layer].astype(float), first.v[layer].astype(float)))
        ]
        errors.append(np.mean(np.linalg.norm(outputs[0] - outputs[1], axis=2) / np.linalg.norm(outputs[1], axis=2)))
    assert stored["full"].output_error == pytest.approx(np.mean(errors))
    assert stored["full"].output_error > 0
    with pytest.raises(ValueError, match=r"kv_format must be one of .*, got 'int5'"):
        measured("int5")


def test_interval_measures_a_subset_of_the_steps(seed):
    chunks = stream(9, seed, text_interval=None)
    (all_steps,) = quality_table(chunks, {"odd": OddTokens(shape_of(GEOMETRY))})
    (some,) = quality_table(chunks, {"odd": OddTokens(shape_of(GEOMETRY))}, every=4)
    assert (all_steps.steps, some.steps) == (8, 2)  # the first step has no past


def test_retrieved_share_of_a_stream(seed):
    """The share of the tokens that `select` returned is the ratio for the cost model."""
    chunks = stream(8, seed)
    shares = retrieved(chunks, OddTokens(shape_of(GEOMETRY)))
    want = {"frame": [], "text": []}
    for i, chunk in enumerate(chunks[1:], start=1):
        past = sum(c.tokens for c in chunks[:i])
        want[chunk.stage].append((past // 2 + min(3, past)) / 2 / past)
    assert (
        set(shares) == {"frame", "text"} and shares["frame"] == 1.0
    )  # OddTokens records no share, so the expected ratio is used
    measured = retrieved(stream(8, seed), OddTokensWithRatio(shape_of(GEOMETRY)))
    assert measured == pytest.approx({stage: np.mean(values) for stage, values in want.items()})
    with pytest.raises(ValueError, match="a step that has a past"):
        retrieved(chunks[:1], OddTokens(shape_of(GEOMETRY)))


def test_invalid_arguments_raise_value_error(seed):
    chunks = stream(1, seed, text_interval=None)
    with pytest.raises(ValueError, match="policies must name at least one policy"):
        quality_table(chunks, {})
    with pytest.raises(ValueError, match="chunks must hold a step that has a past"):
        quality_table(chunks, {"odd": OddTokens(shape_of(GEOMETRY))})
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        quality_table(chunks, {"odd": OddTokens(shape_of(GEOMETRY))}, every=0)


def test_budget_limits_the_frames(seed):
    """With a budget of two frames ReKV and CodecSight retrieve two frames; Mosaic retrieves complete clusters."""
    policies = policies_for(GEOMETRY, 3, ("rekv", "mosaic", "codecsight"), budget_frames=2)
    rows = {row.policy: row for row in quality_table(stream(9, seed, text_interval=9), policies) if row.stage == "text"}
    assert rows["rekv"].ratio == rows["codecsight"].ratio == pytest.approx(2 / 9)
    assert 0 < rows["mosaic"].ratio < 1  # the first cluster is selected even if it is larger
    with pytest.raises(ValueError, match="budget_frames must be at least 1, got 0"):
        policies_for(GEOMETRY, 3, budget_frames=0)
