"""Verilog of the WTU compared with the golden selection, bit for bit, and with its cycle formula."""

from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest

from golden.wicsum import fixed_point
from hw.config import PRESETS, Config
from hw.dre.wtu.command import KeyOrder, SelectionMode
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.emit import to_rtlil
from sim.bench.build import has_simulator
from sim.bench.run import InTurns, simulate
from tests.hw.dre.wtu.wtu_rows import (
    KEYS,
    MODES,
    Row,
    Settings,
    bf16,
    cycles,
    fuzz,
    packet_counts,
    packets,
    run,
)


@cache  # a unit is elaborated once
def build(preset, design, **changes):
    return WTU.from_config(Config.preset(preset).replace(**changes), design)


def stored(design):
    """A unit in which every row fits the pair memory."""
    return build("tiny", design, wtu_pairs=Config.preset("tiny").max_row_clusters)


def streamed(design):
    """A unit in which most rows are long: the pair memory holds four beats."""
    return build("tiny", design, wtu_pairs=16)


def plain(settings, row):
    """Selection by sorting with Python integers, the result of a complete division."""
    keys = KEYS[settings.order](row.words).tolist()
    if settings.mode is SelectionMode.RATIO:
        adds = [v * int(t) for v, t in zip(fixed_point(row.words[None])[0].tolist(), row.counts, strict=True)]
        limit = sum(adds) * settings.target // 65536
    else:
        adds = row.counts.tolist() if settings.mode is SelectionMode.BUDGET else [1] * len(keys)
        limit = settings.target - 1
    order, total, selected = sorted(range(len(keys)), key=lambda j: (-keys[j], j)), 0, 0
    while selected < len(order) and total <= limit:
        total += adds[order[selected]]
        selected += 1
    if settings.mode is SelectionMode.COUNT:
        return sorted(order[:selected])
    return [j for j in range(len(keys)) if keys[j] >= keys[order[selected - 1]]]


def assert_cycles_add_up(record):
    """Every cycle after the reset of 2 cycles is in one of four counters, up to 7 cycles after the last beat."""
    cycles = sum(record.status[f"stat_{kind}"] for kind in ("busy", "blocked", "waiting", "starved"))
    assert cycles == max(beats[-1] for beats in record.cycles.values() if len(beats)) + 7 - 2


@pytest.mark.parametrize("unit_of", [stored, streamed, pytest.param(partial(build, "small"), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", MODES)
def test_matches_golden(name, design, unit_of, rng, seed):
    """Rows of every kind with random pauses on every stream, also compared with sorting where a bucket is one key."""
    unit, settings = unit_of(design), MODES[name]
    rows = fuzz(rng, unit.sizes, settings, 150, unit.sizes.max_row_clusters)
    record, want = run(unit, rows, settings, stall=InTurns(0.4, 256), seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    assert_cycles_add_up(record)
    assert record.status["stat_fault"] == 0
    for row, chosen in zip(rows, want, strict=True):
        selected, sorted_out = set(np.flatnonzero(chosen.selected[0])), set(plain(settings, row))
        assert selected >= sorted_out if name == "ratio" else selected == sorted_out


EXTREMES = {
    "nothing is enough": Settings(target=0, refine=0),
    "everything": Settings(target=65536, refine=3),
    "down to one key": Settings(target=40000, refine=3),
    "budget of one": Settings(SelectionMode.BUDGET, target=1, refine=2),
    "budget beyond the row": Settings(SelectionMode.BUDGET, KeyOrder.REVERSED, target=0xFFFFFFFF),
    "best one": Settings(SelectionMode.COUNT, KeyOrder.SIGNED, target=1),
}


@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", EXTREMES)
def test_extreme_settings(name, design, rng, seed):
    unit, settings = build("tiny", design), EXTREMES[name]
    rows = fuzz(rng, unit.sizes, settings, 200, unit.sizes.max_row_clusters)
    record, want = run(unit, rows, settings, stall=0.3, seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    if settings.refine == 3 or settings.mode is SelectionMode.COUNT:
        assert [np.flatnonzero(w.selected[0]).tolist() for w in want] == [plain(settings, row) for row in rows]


def boundary_rows(sizes):
    """Rows without a cluster, of one cluster, of full beats, of maximum length; saturated or zero counts; one score."""
    full, half = sizes.max_row_clusters, sizes.max_row_clusters // 2
    ramp = np.arange(full) * (0x7F7F // full)
    lone = np.zeros(full, np.int64)
    lone[half] = 0x3F80
    saturated, none = np.full(full, 65535), np.zeros(full, np.int64)
    yield Row(none[:0], none[:0])
    yield Row(ramp[5:6], saturated[:1])
    yield Row(none[:1], saturated[:1])
    yield Row(np.full(full, 0x7F7F), saturated)  # the largest possible sum
    for words in (ramp, ramp[::-1], lone, none):
        for counts in (saturated, none, np.ones(full, np.int64)):
            yield Row(words, counts)
            yield Row(words[: sizes.lanes], counts[: sizes.lanes])
            yield Row(words[:half], counts[:half], join=True)
            yield Row(words[half:], counts[half:])


@pytest.mark.parametrize("unit_of", [stored, streamed])
@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", ["ratio", "budget", "count"])
def test_boundaries(name, design, unit_of, seed):
    unit, settings = unit_of(design), MODES[name]
    rows = [row for row in boundary_rows(unit.sizes) for _ in range(3 if len(row.words) else 15)]
    record, want = run(unit, rows, settings, stall=InTurns(0.3), seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))


def edge_rows(rng, clusters, target):
    """Rows whose largest clusters add up to the limit, so that one more is selected, and to the limit plus one."""
    values = [2, 4, 7, 10, 13, 16, 19, 22, 24]  # right shifts of the clusters that complete the sum; the last adds ones
    while True:
        mains = rng.integers(3, clusters - len(values) + 1)
        words = np.sort(rng.choice(np.arange(0x4000, 0x4100), mains, replace=False))[::-1]
        counts = rng.integers(1, 1 << rng.integers(1, 17, mains))
        adds = (fixed_point(words[None])[0] * counts).tolist()
        enough = next(k for k in range(mains) if sum(adds[: k + 1]) << 16 >= target * sum(adds))
        for more in (0, 1):
            remaining = -((more - sum(adds[: enough + 1]) << 16) // target) - sum(adds)
            filled = []
            for value in values:
                filled.append(max(0, min(65535, remaining >> 24 - value)))
                remaining -= filled[-1] << 24 - value
            if remaining == 0:
                order = rng.permutation(mains + len(values))
                small = (int(words[0]) >> 7) - np.array(values) << 7
                yield Row(np.concatenate([words, small])[order], np.concatenate([counts, filled])[order])


@pytest.mark.parametrize("target", [19661, 65_000])
@pytest.mark.parametrize("design", WtuDesign)
def test_rows_at_their_limit(design, target, rng, seed):
    """A difference of one in any sum changes the selection."""
    unit = build("tiny", design)
    settings = Settings(target=target, refine=unit.sizes.levels - 1)
    source = edge_rows(rng, unit.sizes.max_row_clusters, settings.target)
    rows = [next(source) for _ in range(60)]
    _, want = run(unit, rows, settings, stall=InTurns(0.3), seed=seed)
    near = [int(w.acc[0] - w.stop_sum[0]) for w in want]
    assert min(near) == 1 and sum(x == 1 for x in near) > 10


@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", MODES)
def test_rows_of_one_cluster_or_two(name, design, rng, seed):
    unit, lengths = build("tiny", design), rng.integers(1, 3, 80)
    rows = [Row(rng.integers(0x3C00, 0x3F80, length), rng.integers(1, 40, length)) for length in lengths]
    record, want = run(unit, rows, MODES[name], stall=InTurns(0.3, 64), seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))


@pytest.mark.parametrize("design", WtuDesign)
def test_full_throughput(design, rng):
    """Without stalls, the distance between results equals the formula: loading and reporting overlap."""
    unit = stored(design)
    counts = rng.integers(1, 40, 20)  # three rows fit into the pair memory
    rows = [Row(bf16(np.exp(rng.normal(0, 1.5, 20))), counts, join=n % 8 < 7) for n in range(64)]
    record, want = run(unit, rows, Settings())
    assert np.diff(record.cycles["o_row"]).tolist() == cycles(unit, rows, want)[1:]
    assert record.status["stat_blocked"] == 0
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    # the first row overlaps with no other row, and the selector may still clear its memories
    beats = len(packets(unit.sizes, rows[:1])["last"])
    begin = max(record.cycles["i"][0] + beats + 1, record.cycles["i"][0] + unit.reset_cycles)
    assert record.cycles["o_row"][0] - begin == cycles(unit, rows, want)[0]
    assert record.cycles["i"][2 * beats - 1] < record.cycles["o_row"][0]


@pytest.mark.parametrize("design", WtuDesign)
def test_long_rows_take_the_cycles_of_the_formula(design, rng):
    """Without stalls, a long row takes `long_row_cycles` from its first beat to the first beat of the next row.

    A row without `join` can take longer, because its list has one cluster per cycle.
    """
    unit = streamed(design)
    lengths = [*range(17, 65), *rng.integers(17, 65, 40)]
    rows = [
        Row(bf16(np.exp(rng.normal(0, 1.5, length))), rng.integers(1, 40, length), join=n < 2)
        for length in lengths
        for n in range(3)
    ]
    record, want = run(unit, rows, Settings())
    beats = np.array([-(-len(row.words) // unit.sizes.lanes) for row in rows])
    times = np.array(list(packet_counts(unit, rows, want)))
    starts = record.cycles["i"][np.cumsum([0, *(beats * times)[:-1]])]
    expected = [
        unit.long_row_cycles(len(row.words), int(w.passes[0]), int(w.levels[0]))
        for row, w in zip(rows, want, strict=True)
    ]
    measured = np.diff(starts).tolist()
    joined = [n for n, row in enumerate(rows) if row.join and n]  # the selector clears its memories before row 0
    assert [measured[n] for n in joined] == [expected[n] for n in joined]
    assert all(m >= e for m, e in zip(measured, expected[:-1], strict=True))
    assert record.status["stat_waiting"] == record.status["stat_blocked"] == 0
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))


@pytest.mark.parametrize("design", WtuDesign)
def test_sender_that_waits_for_every_request(design, rng, seed):
    """The result is the same if the next packet of a long row starts after its beat on `o_again` only."""
    unit = streamed(design)
    rows = [row for row in fuzz(rng, unit.sizes, Settings(), 40, 64) if len(row.words) > 16]
    for row in rows:
        row.join = False
    record, want = run(unit, rows, Settings(), stall={"i": 0.9, "o_again": 0.5}, seed=seed)
    ends = np.flatnonzero(packets(unit.sizes, rows, packet_counts(unit, rows, want))["last"])
    # an answer does not depend on the packet after it: it leaves before that packet begins
    assert (record.cycles["o_again"][:-1] < record.cycles["i"][ends[:-1] + 1]).all()
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    assert record.status["stat_waiting"] > 0
    assert_cycles_add_up(record)


@pytest.mark.heavy
@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", MODES)
def test_rows_of_32768_clusters(name, design, rng, seed):
    """The longest rows of a context, joined and single, in every mode."""
    unit, settings = build("paper", design), MODES[name]
    full = unit.sizes.max_row_clusters
    rows = [row for row in boundary_rows(unit.sizes) if len(row.words) in (full, full // 2)][:7]
    rows += [Row(words, rng.integers(1, 65536, full), join=True) for words in rng.integers(0, 0x7F80, (2, full))]
    rows.append(Row(bf16(np.exp(rng.normal(0, 1.5, full))), rng.integers(1, 40, full)))
    record, want = run(unit, rows, settings, seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    assert sum(unit.memory_bits.values()) <= 84_000


@pytest.mark.parametrize("design", WtuDesign)
def test_rows_that_come_one_by_one(design, rng, seed):
    """A row arrives in any cycle of the previous row, including the cycle in which that row leaves."""
    unit = build("tiny", design)
    counts = rng.integers(1, 40, unit.sizes.lanes)
    lengths = rng.integers(1, unit.sizes.lanes + 1, 150)
    rows = [Row(bf16(np.exp(rng.normal(0, 1.5, length))), counts[:length]) for length in np.sort(lengths)]
    record, want = run(unit, rows, Settings(), stall={"i": 0.95, "o_row": 0.9}, seed=seed)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
    assert_cycles_add_up(record)


@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("after", [5, 301])
def test_reset_in_mid_flight(after, design, rng, seed):
    """After a reset at any time the results are the same and the counters start at zero."""
    unit = build("tiny", design, wtu_pairs=32)
    rows = fuzz(rng, unit.sizes, Settings(), 12, unit.sizes.max_row_clusters)
    resets = [*rng.integers(1, 400, 20).tolist(), after]
    record, want = run(unit, rows, Settings(), stall=0.2, seed=seed, reset_after=resets)
    assert record.status["stat_busy"] == sum(cycles(unit, rows, want))


@pytest.mark.parametrize("design", WtuDesign)
def test_counters_can_be_held_at_zero(design, rng):
    unit, settings = build("tiny", design), EXTREMES["everything"]
    rows = fuzz(rng, unit.sizes, settings, 10, unit.sizes.max_row_clusters)
    counted, want = run(unit, rows, settings)
    outputs = {name: len(cycles) for name, cycles in counted.cycles.items() if name != "i"}
    config, columns = {**settings.ports(), "stat_clear": 1}, packets(unit.sizes, rows, packet_counts(unit, rows, want))
    record = simulate(unit, "wtu", {"i": columns}, outputs, config=config)
    assert record.outputs["o_row"]["cutoff"].tolist() == [int(w.cutoff[0]) for w in want]
    assert counted.status["stat_busy"] and not any(record.status.values())


@pytest.mark.parametrize("unit_of", [stored, streamed])
@pytest.mark.parametrize("design", WtuDesign)
def test_words_beyond_the_longest_row_are_dropped(design, unit_of, rng, seed):
    """Too many words set the fault bit; the row keeps the words that fit, in every packet of a long row."""
    unit = unit_of(design)
    most, lanes = unit.sizes.max_row_clusters, unit.sizes.lanes
    words, counts = rng.integers(0x3E00, 0x3F80, most + 2 * lanes + 1), rng.integers(0, 9, most + 2 * lanes + 1)
    good = Row(words[:most], counts[:most])
    first, want = run(unit, [good, good], Settings())
    columns = packets(unit.sizes, [Row(words, counts), good], packet_counts(unit, [good, good], want))
    if unit.sizes.pairs == most:  # a row of more clusters than the pair memory that is not announced as a long row
        columns["long"][:] = 0
    keep = {"o_row": 2, "o": 2 * unit.sizes.beats, "o_index": 2 * int(want[0].selected.sum()) + 2}
    keep["o_again"] = len(first.cycles["o_again"])
    selected = np.flatnonzero(want[0].selected[0]).tolist()
    for pauses in ({}, {"i": 0.3}, dict.fromkeys(keep, 0.3), dict.fromkeys([*keep, "i"], 0.3)):
        record = simulate(unit, "wtu", {"i": columns}, keep, config=Settings().ports(), stall=pauses, seed=seed)
        assert record.status["stat_fault"] == 1
        assert record.outputs["o_row"]["cutoff"].tolist() == [int(w.cutoff[0]) for w in want]
        assert record.outputs["o_index"]["cluster"].tolist() == 2 * [*selected, len(selected)]
    # a reset clears the fault until the words are sent again
    options = {"config": Settings().ports(), "reset_after": 150, "record_ports": True}
    fault = simulate(unit, "wtu", {"i": columns}, keep, **options).ports["stat_fault"].ravel()
    assert np.count_nonzero(np.diff(fault.astype(int)) < 0) == 1 and fault[-1]


@pytest.mark.skipif(not has_simulator("icarus"), reason="Icarus Verilog is not installed")
@pytest.mark.parametrize("design", WtuDesign)
def test_icarus_agrees(design, rng, seed):
    unit = build("tiny", design)
    run(unit, fuzz(rng, unit.sizes, Settings(), 20, 40), Settings(), stall=0.3, seed=seed, simulator="icarus")


SHAPES = {
    "one lane": {"wtu_lanes": 1},
    "four buckets": {"wtu_buckets": 4},
    "a hundred buckets and more": {"wtu_buckets": 128, "wtu_lanes": 8},
    "two beats": {"wtu_lanes": 32},
    "two beats of a long row": {"wtu_lanes": 8, "wtu_pairs": 16},
    "narrow counts": {"wtu_pairs": 8, "count_bits": 6},
}


@pytest.mark.heavy
@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", SHAPES)
def test_any_shape(name, design, rng, seed):
    unit = build("tiny", design, **SHAPES[name])
    for settings in (replace(MODES["ratio"], refine=1), replace(MODES["count"])):
        rows = fuzz(rng, unit.sizes, settings, 200, unit.sizes.max_row_clusters)
        record, want = run(unit, rows, settings, stall=0.3, seed=seed)
        assert record.status["stat_busy"] == sum(cycles(unit, rows, want))


@pytest.mark.heavy
@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("name", MODES)
def test_paper_preset_over_ten_thousand_rows(name, design, rng, seed):
    unit, settings = build("paper", design), MODES[name]
    short = fuzz(rng, unit.sizes, settings, 7600, 200)
    long = [*fuzz(rng, unit.sizes, settings, 80, unit.sizes.max_row_clusters), *boundary_rows(unit.sizes)]
    done = 0
    for rows, stall in ((short, 0.3), (long, 0.1)):
        record, want = run(unit, rows, settings, stall=stall, seed=seed)
        assert record.status["stat_busy"] == sum(cycles(unit, rows, want))
        done += len(rows)
    assert done >= 10_000


@pytest.mark.parametrize("design", WtuDesign)
def test_memory_of_the_paper_preset_is_at_most_88_kbit(design):
    assert sum(build("paper", design).memory_bits.values()) <= 88_000


@pytest.mark.parametrize("design", WtuDesign)
@pytest.mark.parametrize("preset", [pytest.param(p, marks=[pytest.mark.heavy] * (p == "paper")) for p in PRESETS])
def test_every_preset_elaborates(preset, design):
    unit = build(preset, design)
    assert "module \\wtu" in to_rtlil(unit, "wtu") and unit.memory_bits["pairs"] == 32 * unit.sizes.pairs


GOOD = {"lanes": 4, "pairs": 16, "max_row_clusters": 64, "buckets": 16}


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": 3},
        {"pairs": 4},
        {"pairs": 24},
        {"max_row_clusters": 8},
        {"max_row_clusters": 1024},
        {"max_row_clusters": 96},
        {"buckets": 1},
        {"buckets": 512},
        {"count_bits": 17},
        {"design": "slow"},
    ],
    ids=str,
)
def test_rejects_bad_parameters(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value!r}"):
        WTU(**{**GOOD, **change})
