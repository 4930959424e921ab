"""Score rows for the WTU, their golden selection, and the simulation of the unit on them."""

from dataclasses import dataclass

import numpy as np

from golden.scores import codes, dots, query_rows
from golden.selection import sortable
from golden.wicsum import WtuConfig, select
from hw.dre.wtu.command import KeyOrder, SelectionMode
from hw.dre.wtu.wtu import WtuDesign
from sim.bench.run import simulate
from sim.ports.wtu import SELECTIONS, wtu_ports
from sw_model.media.generator import Generator, small

KEYS = {
    KeyOrder.PLAIN: lambda words: words,
    KeyOrder.SIGNED: sortable,
    KeyOrder.REVERSED: lambda words: 0xFFFF - words,
}


@dataclass(frozen=True)
class Settings:
    """Values of the `cfg_*` ports."""

    mode: SelectionMode = SelectionMode.RATIO
    order: KeyOrder = KeyOrder.PLAIN
    target: int = 19661
    refine: int = 1

    def ports(self):
        weight, stop_rule = SELECTIONS[self.mode]
        config = WtuConfig(refine_levels=self.refine, weight=weight, stop_rule=stop_rule)
        return wtu_ports(config, self.target, self.order)

    def golden(self, sizes):
        weight, stop_rule = SELECTIONS[self.mode]
        refine = sizes.levels - 1 if self.mode is SelectionMode.COUNT else self.refine
        limits = {"buckets": sizes.buckets, "max_row_clusters": sizes.max_row_clusters}
        return WtuConfig(**limits, refine_levels=refine, weight=weight, stop_rule=stop_rule)


MODES = {
    "ratio": Settings(),
    "budget": Settings(SelectionMode.BUDGET, KeyOrder.SIGNED, target=300, refine=3),
    "count": Settings(SelectionMode.COUNT, KeyOrder.SIGNED, target=20),
    "count of the smallest": Settings(SelectionMode.COUNT, KeyOrder.REVERSED, target=33),
}


@dataclass
class Row:
    """Words and token counts of one row; with `join` it is reported together with the next row."""

    words: np.ndarray
    counts: np.ndarray
    join: bool = False


def expected(sizes, settings, rows):
    """The golden selection of each row: a list of `Rows` with one row each."""
    config = settings.golden(sizes)
    return [select(KEYS[settings.order](r.words)[None], r.counts, settings.target, config) for r in rows]


def packet_counts(unit, rows, want):
    """Packets of each row: 1, or for a long row its load and one packet per read."""
    for row, w in zip(rows, want, strict=True):
        yield unit.packets(int(w.passes[0]), int(w.levels[0])) if len(row.words) > unit.sizes.pairs else 1


def packets(sizes, rows, repeats=None):
    """Columns of the input stream; `repeats` is the number of packets of each row, 1 by default.

    Unused lanes carry the largest word and the largest count.
    """
    repeats = [1] * len(rows) if repeats is None else list(repeats)
    rows = [row for row, times in zip(rows, repeats, strict=True) for _ in range(times)]
    lengths = [max(1, -(-len(row.words) // sizes.lanes)) for row in rows]
    ends = np.cumsum(lengths) - 1
    words, counts = np.zeros((2, ends[-1] + 1, sizes.lanes), np.int64)
    used, last, join, long = np.full(len(words), sizes.lanes), *np.zeros((3, len(words)), np.int64)
    for row, end, length in zip(rows, ends, lengths, strict=True):
        start, is_long = end + 1 - length, len(row.words) > sizes.pairs
        words[start : end + 1].reshape(-1)[: len(row.words)] = row.words
        counts[start : end + 1].reshape(-1)[: len(row.words)] = row.counts
        used[end] = len(row.words) - (length - 1) * sizes.lanes
        words[end, used[end] :], counts[end, used[end] :] = 0xFFFF, (1 << sizes.count_bits) - 1
        last[end], join[end] = 1, row.join
        long[start], long[start + 1 : end + 1] = is_long, not is_long  # only the first one counts
    return {"words": words, "counts": counts, "used": used, "join": join, "long": long, "last": last}


def run(unit, rows, settings, **options):
    """Simulate the unit on the rows and compare every output beat with the golden model; returns (record, golden)."""
    sizes, want = unit.sizes, expected(unit.sizes, settings, rows)
    masks, lists, union = [], [], None
    for row, chosen in zip(rows, want, strict=True):
        union = chosen.selected[0] if union is None else union | chosen.selected[0]
        if not row.join:
            length = max(1, -(-len(union) // sizes.lanes))
            bits = np.zeros(length * sizes.lanes, bool)
            bits[: len(union)] = union
            masks.append(bits.reshape(length, sizes.lanes))
            lists.append(np.flatnonzero(union))
            union = None
    beats, indices = sum(map(len, masks)), sum(len(clusters) + 1 for clusters in lists)
    repeats = list(packet_counts(unit, rows, want))
    again = [int(k < times) for times in repeats if times > 1 for k in range(1, times + 1)]
    outputs = {"o_again": len(again), "o_row": len(rows), "o": beats, "o_index": indices}
    record = simulate(unit, "wtu", {"i": packets(sizes, rows, repeats)}, outputs, config=settings.ports(), **options)

    assert record.outputs["o_again"]["again"].tolist() == again
    assert record.outputs["o_row"]["cutoff"].tolist() == [int(w.cutoff[0]) for w in want]
    assert record.outputs["o_row"]["passes"].tolist() == [int(w.passes[0]) for w in want]
    got = record.outputs["o"]
    assert (got["mask"].astype(np.int64)[:, None] >> np.arange(sizes.lanes) & 1 == np.concatenate(masks)).all()
    assert got["first"].tolist() == [k * sizes.lanes for mask in masks for k in range(len(mask))]
    assert got["last"].tolist() == [k + 1 == len(mask) for mask in masks for k in range(len(mask))]
    got = record.outputs["o_index"]
    assert got["cluster"].tolist() == [c for clusters in lists for c in (*clusters.tolist(), len(clusters))]
    assert got["last"].tolist() == [k == len(clusters) for clusters in lists for k in range(len(clusters) + 1)]
    assert record.status["stat_rows"] == len(rows)
    assert record.status["stat_clusters"] == sum(len(row.words) for row in rows)
    assert record.status["stat_passes"] == sum(int(w.passes[0]) for w in want)
    assert record.status["stat_selected"] == sum(int(w.selected.sum()) for w in want)
    assert record.status["stat_reads"] == sum(reads(unit, rows, want))
    return record, want


def reads(unit, rows, want):
    """Beats that the selector reads of each row.

    The histogram design reads the row once per level. The sweep design reads it once for the sum and once per bucket.
    If the row is stored, it reads three more beats per level (one for a fully selected row) until the decision is
    known.
    """
    for row, w in zip(rows, want, strict=True):
        beats, passes, levels = max(1, -(-len(row.words) // unit.sizes.lanes)), int(w.passes[0]), int(w.levels[0])
        dropped = 0 if len(row.words) > unit.sizes.pairs else 3 * levels or 1
        yield max(1, levels) * beats if unit.design is WtuDesign.HISTOGRAM else (1 + passes) * beats + dropped


def cycles(unit, rows, want):
    """Cycles of each row by the formula of the unit."""
    return [unit.cycles(len(row.words), int(w.passes[0]), int(w.levels[0])) for row, w in zip(rows, want, strict=True)]


def generator_scores(rng, stage, count, clusters):
    """`count` rows of float32 scores of a small stream's queries against groups of its keys: (count, clusters)."""
    source = Generator(small(seed=int(rng.integers(1 << 30))))
    keys = np.concatenate([source.frame().k[0] for _ in range(-(-clusters * 4 // 10))])
    means = keys[: clusters * 4].astype(np.float64).reshape(clusters, 4, *keys.shape[1:]).mean(axis=1)
    scores = []
    while sum(map(len, scores)) < count:
        chunk = source.frame() if stage == "frame" else source.text(10)
        rows = query_rows(chunk.q[0].astype(np.float64), keys.shape[1])
        scores += [dots(rows[head], means[:, head]) for head in range(keys.shape[1])]
    return np.concatenate(scores)[:count]


def fuzz(rng, sizes, settings, count, longest):
    """Rows of every kind, in random order, as words for the given mode."""
    tall = {stage: generator_scores(rng, stage, count // 8 + 1, longest) for stage in ("frame", "text")}
    rows = []
    for n in range(count):
        length = int(rng.integers(1, longest + 1)) if rng.random() < 0.8 else int(rng.integers(1, 2 * sizes.lanes))
        kind = int(rng.integers(10))
        counts = rng.integers(0, 64, length)
        if kind < 3:
            scores = tall["frame" if kind < 2 else "text"][rng.integers(count // 8 + 1)][:length]
            words = codes(scores[None], 64)[0] if settings.mode is SelectionMode.RATIO else bf16(scores)
        elif kind == 3:  # an attention sink of one token far above the rest
            scores = tall["frame"][rng.integers(count // 8 + 1)][:length].copy()
            sink = int(rng.integers(length))
            scores[sink], counts[sink] = scores.max() + 64, 1
            words = codes(scores[None], 64)[0] if settings.mode is SelectionMode.RATIO else bf16(scores)
        elif kind == 4:
            words = np.full(length, rng.integers(0x7F80))
        elif kind == 5:
            words = np.zeros(length, np.int64)
        elif kind == 6:
            words = np.zeros(length, np.int64)
            words[rng.integers(length)] = rng.integers(0x7F80)
        elif kind == 7:  # ties by the hundred
            words = rng.choice(rng.integers(0x3000, 0x3F80, 3), length)
        elif kind == 8:
            words = rng.integers(0, 0x7F80, length)
        else:
            words, counts = rng.integers(0x3E00, 0x3F81, length), rng.choice([65535, 65534, 0], length)
        words = words.astype(np.int64)
        if settings.order is KeyOrder.SIGNED and kind > 3:
            words |= rng.integers(0, 2, length) << 15
        rows.append(Row(words, counts, join=False))
        if n % 3 == 0 and rows[-1].words.size > 1:  # a second row of the same table
            rows[-1].join = bool(rng.integers(2))
            rows.append(Row(rng.permutation(rows[-1].words), counts))
    return rows


def bf16(values):
    """BF16 codes of float32 values, truncated."""
    return np.asarray(values, np.float32).view(np.uint32) >> 16
