"""The statistics compared with a plain computation of each, on a small stream."""

import numpy as np
import pytest

from golden.hashing import hyperplanes
from sw_model.media import generator, statistics
from sw_model.media.generator import Generator
from sw_model.media.stream import BF16, Chunk


@pytest.fixture
def chunks(seed):
    return list(Generator(generator.small(seed)).chunks(48, text_interval=12, text_tokens=4))


def plain_layer(chunks, ratio, seed):
    """All statistics from their definitions, in Python loops and float64; mean keys change by chunks, in BF16."""
    planes, stored = hyperplanes(128, seed=seed).astype(np.float64), []  # mean keys of the clusters
    leaders, members, ratios, prefixes, cosines, distances = [], [], {"frame": [], "text": []}, [], [], []
    previous, token = None, 0
    for chunk in chunks:
        keys = chunk.k[0].astype(np.float64).reshape(chunk.tokens, -1)
        codes = (keys @ planes > 0).astype(int)
        if chunk.stage == "frame" and previous is not None:
            for a, code_a in zip(*previous, strict=True):
                for b, code_b in zip(keys, codes, strict=True):
                    cosines.append(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
                    distances.append(int((code_a != code_b).sum()))
        previous = (keys, codes) if chunk.stage == "frame" else previous
        past = {token_id for group in members for token_id in group}
        sizes = [len(group) for group in members]
        for code in codes:
            far = [int((code != leader).sum()) for leader in leaders]
            if far and min(far) < 7:
                members[far.index(min(far))].append(token)
            else:
                leaders.append(code)
                members.append([token])
            token += 1
        for number, group in enumerate(members):
            old = sizes[number] if number < len(sizes) else 0
            if len(group) > old:
                total = np.float32(stored[number] * np.float32(old) if old else np.zeros(keys.shape[1], np.float32))
                for joined in group[old:]:
                    total = total + keys[joined - token].astype(np.float32)  # `token` is that after the chunk
                stored[number : number + 1] = [(total / np.float32(len(group))).astype(BF16).astype(np.float32)]
        if not past:
            continue
        fetched = []
        for head in range(2):
            means = np.array(stored, np.float64).reshape(len(members), 2, 64)[:, head]
            union = set()
            for row in chunk.q[0, :, 2 * head : 2 * head + 2].reshape(-1, 64).astype(np.float64):
                weight = np.exp(means @ row / 8) * [len(group) for group in members]
                order = np.argsort(-(means @ row))
                prefix = 0
                while weight[order[:prefix]].sum() <= ratio * weight.sum():
                    prefix += 1
                union |= {int(j) for j in order[:prefix]}
                if chunk.stage == "frame":
                    prefixes.append(prefix / len(members))
            fetched.append(len(past & {t for j in union for t in members[j]}) / len(past))
        ratios[chunk.stage].append(np.mean(fetched))
    return leaders, ratios, prefixes, np.array(cosines), np.array(distances)


def test_every_statistic_against_its_definition(chunks, seed):
    (got,) = statistics.measure(chunks, wics_ratio=0.3, seed=seed)
    leaders, ratios, prefixes, cosines, distances = plain_layer(chunks, 0.3, seed)
    assert (got.tokens, got.clusters) == (48 * 10 + 16, len(leaders))
    assert got.tokens_per_cluster == 496 / len(leaders)
    assert got.adjacent_cosine == pytest.approx(cosines.mean(), abs=1e-9)
    assert got.adjacent_deviation == pytest.approx(cosines.std(), abs=1e-9)
    same = cosines.reshape(-1, 10, 10).diagonal(axis1=1, axis2=2)
    assert got.same_position_cosine == pytest.approx(same.mean(), abs=1e-9)
    assert got.cosine_hamming == pytest.approx(np.corrcoef(cosines, distances)[0, 1], abs=1e-9)
    assert got.prefix_share == pytest.approx(np.mean(prefixes), abs=1e-9)
    assert got.frame_ratio == pytest.approx(np.mean(ratios["frame"]), abs=1e-9)
    assert got.text_ratio == pytest.approx(np.mean(ratios["text"]), abs=1e-9)


def test_switches(chunks, seed):
    (full,) = statistics.measure(chunks, seed=seed)
    (frames_only,) = statistics.measure(chunks, cluster_text=False, seed=seed)
    (late,) = statistics.measure(chunks, warmup_tokens=400, every=4, seed=seed)
    (more,) = statistics.measure(chunks, wics_ratio=0.9, seed=seed)
    assert (full.tokens, frames_only.tokens) == (496, 480)
    assert frames_only.text_ratio is not None
    assert late.clusters == full.clusters
    assert late.frame_ratio != full.frame_ratio
    assert more.frame_ratio > full.frame_ratio


def test_what_cannot_be_measured_is_none(chunks):
    (one,) = statistics.measure(chunks[:1])
    assert one.tokens == 10
    assert {one.same_position_cosine, one.cosine_hamming, one.frame_ratio, one.text_ratio} == {None}
    rows = {row.name: row for row in statistics.table([one])}
    assert rows["retrieval ratio, text"].mean is None
    assert rows["tokens per cluster"].mean == one.tokens_per_cluster


def test_table_spans_the_layers(seed):
    layers = statistics.measure(Generator(generator.coin(layers=2, seed=seed)).chunks(12))
    rows = {row.name: row for row in statistics.table(layers)}
    row = rows["correlation of cosine and Hamming distance"]
    values = [layer.cosine_hamming for layer in layers]
    assert (row.least, row.most, row.paper) == (min(values), max(values), "-0.8")
    assert row.mean == pytest.approx(np.mean(values))


def test_rejects(chunks):
    with pytest.raises(ValueError, match="the stream has no chunks"):
        statistics.measure([])
    with pytest.raises(ValueError, match="every must be at least 1, got 0"):
        statistics.measure(chunks, every=0)
    with pytest.raises(ValueError, match="wics_ratio must be finite and between 0 and 1"):
        statistics.measure(chunks, wics_ratio=1.5)
    k = np.zeros((1, 10, 1, 64), BF16)
    other = Chunk("frame", np.arange(10), k, k, k)
    with pytest.raises(ValueError, match=r"\(layers, KV heads, d\) = \(1, 2, 64\), got \(1, 1, 64\)"):
        statistics.measure([*chunks[:1], other])
