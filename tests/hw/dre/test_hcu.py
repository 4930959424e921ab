"""Verilog of the HCU compared with the golden cluster table, bit for bit, and with its cycle formula."""

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest

from golden.clustering import ClusterRule, ClusterTable
from hw.config import PRESETS, Config
from hw.dre.hcu import HCU, Op
from hw.emit import to_rtlil
from sim.bench.build import has_simulator
from sim.bench.run import InTurns, simulate
from sim.ports.hcu import cluster_rule, hcu_ports


def codes(rng, n, bits, centers=None, flip=0.08):
    """Hash codes around centres that change slowly, like the keys of a video."""
    centers = centers or max(2, n // 25)
    base = rng.integers(0, 2**bits, centers)
    drift = np.clip(np.arange(n) * centers // n + rng.integers(-3, 4, n), 0, centers - 1)
    noise = ((rng.random((n, bits)) < flip) * (1 << np.arange(bits))).sum(1)
    return (base[drift] ^ noise).astype(np.uint32)


def tokens(stream, step=10):
    n = len(stream)
    return {"op": np.full(n, Op.TOKEN.value), "hash": stream, "last": np.arange(n) % step == step - 1}


@cache
def tiny():
    """The unit of most tests, elaborated once."""
    return HCU.from_config(Config.preset("tiny"))


FIELDS = {field.name for field in fields(ClusterRule)}


def run(unit, beats, count, **options):
    """A simulation; options that are fields of `ClusterRule` set the ports, the others go to `simulate`."""
    settings = {name: options.pop(name) for name in FIELDS & options.keys()}
    return simulate(unit, "hcu", {"i": beats}, {"o": count}, config=hcu_ports(rule(unit, **settings)), **options)


def rule(unit, **settings):
    return cluster_rule(unit, **{"window_tokens": 0, **settings})


def assert_equal(record, table, stream, start=0, base=0):
    """Compare every output beat with the golden assignment, whose first cluster is `base`; return the assignment."""
    want, got = table.assign(stream), record.outputs["o"]
    assert got["token"].tolist() == list(range(start, start + len(stream)))
    assert got["hash"].tolist() == stream.tolist()
    for name in ("cluster", "opened", "count", "distance", "overflow"):
        number = getattr(want, name).astype(int) + (base if name == "cluster" else 0)
        assert got[name].tolist() == number.tolist(), name
    return want


def expected_cycles(unit, want, table):
    """Cycles of every token by the formula of the docstring, from the golden results."""
    end = len(table) - np.cumsum(want.opened[::-1])[::-1]
    return [unit.token_cycles(int(e - c), int(e)) for e, c in zip(end, want.compared, strict=True)]


CASES = {
    "default": ("small", {}),
    "le": ("tiny", {"hamming_inclusive": True, "hamming_threshold": 3}),
    "first match": ("tiny", {"first_match": True, "hamming_threshold": 5}),
    "window_tokens": ("tiny", {"window_tokens": 20, "hamming_threshold": 4}),
    "window of one": ("tiny", {"window_tokens": 1}),
    "saturated counts": ("tiny", {"max_cluster_tokens": 3, "hamming_threshold": 6, "window_tokens": 30}),
    "saturated counts, all candidates": ("tiny", {"max_cluster_tokens": 3, "hamming_threshold": 6}),
    "first match, saturated counts": ("tiny", {"first_match": True, "max_cluster_tokens": 4, "hamming_threshold": 5}),
    "full table": ("tiny", {"hamming_threshold": 2}),
    "full table, first match": ("tiny", {"hamming_threshold": 3, "first_match": True}),
    "full table, all saturated": ("tiny", {"hamming_threshold": 0, "max_cluster_tokens": 2}),
    "full table in a window": ("tiny", {"hamming_threshold": 1, "window_tokens": 24}),
    "full table in a window, first match": ("tiny", {"first_match": True, "hamming_threshold": 1, "window_tokens": 24}),
    "first match in a window, saturated counts": (
        "tiny",
        {"first_match": True, "window_tokens": 24, "hamming_threshold": 4, "max_cluster_tokens": 3},
    ),
    "largest window": ("small", {"window_tokens": 1024}),
}
SHAPES = {  # accumulators and lanes, which do not change the result
    "one slice": {"hcu_lanes": 16},
    "uneven slices": {"hcu_lanes": 7},
    "bit serial": {"hcu_lanes": 1},
    "two accumulators": {"hcu_accumulators": 2},
    "eight accumulators, one slice": {"hcu_accumulators": 8, "hcu_lanes": 16},
}


@pytest.mark.parametrize("stall", [0.0, InTurns(0.6)], ids=["streaming", "stalled"])
@pytest.mark.parametrize("name", CASES)
def test_matches_golden(name, stall, rng, seed):
    preset, settings = CASES[name]
    unit = HCU.from_config(Config.preset(preset))
    stream = codes(rng, 401 if preset == "tiny" else 1500, unit.hash_bits)
    table = ClusterTable(rule(unit, **settings))
    record = run(unit, tokens(stream), len(stream), stall=stall, seed=seed, **settings)
    want = assert_equal(record, table, stream)
    assert record.outputs["o"]["last"].tolist() == tokens(stream)["last"].tolist()
    assert record.status["stat_tokens"] == len(stream)
    assert record.status["stat_opened"] == want.opened.sum()
    assert record.status["stat_compared"] == want.compared.sum()
    assert record.status["stat_overflow"] == table.overflowed
    assert table.overflowed or "full" not in name
    assert record.status["stat_busy"] == sum(expected_cycles(unit, want, table))
    # every cycle after the reset of 2 cycles is busy, blocked or starved; counting ends 7 cycles after the last beat
    cycles = sum(record.status[f"stat_{kind}"] for kind in ("busy", "blocked", "starved"))
    assert cycles == record.cycles["o"][-1] + 7 - 2


@pytest.mark.parametrize("name", SHAPES)
def test_lanes_and_accumulators_do_not_change_result(name, rng, seed):
    unit = HCU.from_config(Config.preset("tiny").replace(**SHAPES[name]))
    stream = codes(rng, 300, unit.hash_bits)
    settings = {"window_tokens": 30, "hamming_threshold": 4, "max_cluster_tokens": 12}
    table = ClusterTable(rule(unit, **settings))
    record = run(unit, tokens(stream), len(stream), stall=0.3, seed=seed, **settings)
    want = assert_equal(record, table, stream)
    assert record.status["stat_busy"] == sum(expected_cycles(unit, want, table))


@pytest.mark.parametrize("hash_bits", [2, 6])
def test_largest_inclusive_threshold_matches_every_distance(hash_bits, rng, seed):
    """The limit is then hash_bits + 2 = 2**n, which needs one bit more than the threshold."""
    sizes = {"lanes": hash_bits, "accumulators": 1, "max_candidates": 2, "max_step_tokens": 4, "max_window_tokens": 8}
    unit = HCU(hash_bits=hash_bits, **sizes)
    stream = rng.integers(0, 1 << hash_bits, 40).astype(np.uint32)
    settings = {"hamming_threshold": hash_bits + 1, "hamming_inclusive": True}
    table = ClusterTable(rule(unit, **settings))
    record = run(unit, tokens(stream), len(stream), seed=seed, **settings)
    want = assert_equal(record, table, stream)
    assert want.opened.sum() == 1 and not record.status["stat_overflow"]


def test_full_throughput(rng):
    """Without stalls, the distance between results equals the formula."""
    unit = HCU.from_config(Config.preset("small"))
    stream = codes(rng, 600, unit.hash_bits)
    table = ClusterTable(rule(unit, window_tokens=300))
    record = run(unit, tokens(stream), len(stream), window_tokens=300)
    want = assert_equal(record, table, stream)
    assert np.diff(record.cycles["o"]).tolist() == expected_cycles(unit, want, table)[1:]
    assert record.status["stat_blocked"] == 0


PAUSES = {"none": 0.0, "source": {"i": 0.3}, "sink": {"o": 0.3}, "both": 0.3}


@pytest.mark.parametrize("pauses", PAUSES)
def test_begin_and_load_restore_table(pauses, rng, seed):
    """BEGIN and LOAD restore a table: the rest of its stream gives the same result."""
    unit = tiny()
    settings = {"window_tokens": 40, "hamming_threshold": 4}
    stream = codes(rng, 260, unit.hash_bits)
    table = ClusterTable(rule(unit, **settings))
    table.assign(stream[:150])
    first, size = table.first_candidate, len(table)
    beats = {
        "op": [Op.TOKEN.value] * 30 + [Op.BEGIN.value] + [Op.LOAD.value] * (size - first) + [Op.TOKEN.value] * 110,
        "hash": np.concatenate([stream[:30], [0], table.codes[first:], stream[150:]]),
        "count": np.concatenate([np.zeros(31, int), table.counts[first:], np.zeros(110, int)]),
        "index": np.concatenate([np.zeros(30, int), [150], table.first_token[first:], np.zeros(110, int)]),
        "cluster": np.concatenate([np.zeros(30, int), [first], np.zeros(size - first + 110, int)]),
    }
    record = run(unit, {k: np.asarray(v) for k, v in beats.items()}, 140, stall=PAUSES[pauses], seed=seed, **settings)
    record.outputs["o"] = {k: v[30:] for k, v in record.outputs["o"].items()}
    assert_equal(record, table, stream[150:], start=150)
    assert record.status["stat_fault"] == 0


def restore(table):
    """Beats that restore the state of a golden table: BEGIN, and one LOAD per candidate."""
    first, size = table.first_candidate, len(table)
    assert size - first <= (table.rule.max_candidates or size)
    zeros = np.zeros(size - first, int)
    return {
        "op": np.array([Op.BEGIN.value] + [Op.LOAD.value] * (size - first)),
        "hash": np.concatenate([[0], table.codes[first:]]),
        "count": np.concatenate([table.counts[first - 1 : first] if first else [0], table.counts[first:]]),
        "index": np.concatenate([[table.tokens], table.first_token[first:]]),
        "cluster": np.concatenate([[first], zeros]),
        "last": np.concatenate([[0], zeros]),
    }


def extend(beats, more):
    """Append beats to lists by field name; a missing field is 0."""
    for name in ("op", "hash", "count", "index", "cluster", "last"):
        beats.setdefault(name, []).extend(more.get(name, np.zeros(len(more["op"]), int)))


SAVED = {  # changes of the preset `tiny`, settings
    "no window": ({}, {"hamming_threshold": 4}),
    "window": ({}, {"hamming_threshold": 4, "window_tokens": 30}),
    "largest window": ({}, {"hamming_threshold": 5, "window_tokens": 64}),
    "window of one": ({}, {"hamming_threshold": 4, "window_tokens": 1}),
    "saturated counts": ({}, {"hamming_threshold": 6, "window_tokens": 30, "max_cluster_tokens": 3}),
    "full table, all saturated": ({}, {"hamming_threshold": 0, "max_cluster_tokens": 2}),
    "no cluster number remains": ({"cluster_bits": 5}, {"hamming_threshold": 1, "window_tokens": 6}),
    "first match, two accumulators": ({"hcu_accumulators": 2}, {"first_match": True, "hamming_threshold": 5}),
}


@pytest.mark.parametrize("name", SAVED)
def test_tables_saved_at_random_moments_continue_with_equal_results(name, rng, seed):
    """Three streams use one unit in turns of random length; every turn restores the table of its stream."""
    changes, settings = SAVED[name]
    unit = HCU.from_config(Config.preset("tiny").replace(**changes))
    tables = [ClusterTable(rule(unit, **settings)) for _ in range(3)]
    streams = [codes(rng, 200, unit.hash_bits) for _ in tables]
    beats, want = {}, {}
    while waiting := [number for number, table in enumerate(tables) if table.tokens < 200]:
        table, stream = (part[number] for number in [rng.choice(waiting)] for part in (tables, streams))
        extend(beats, restore(table))
        start = table.tokens
        piece = stream[start : start + int(rng.integers(1, 25))]
        extend(beats, tokens(piece))
        result = table.assign(piece)
        for field in ("cluster", "opened", "count", "distance", "overflow"):
            want.setdefault(field, []).extend(getattr(result, field).astype(int).tolist())
        want.setdefault("token", []).extend(range(start, start + len(piece)))
    beats = {name: np.array(column) for name, column in beats.items()}
    record = run(unit, beats, 600, stall=0.3, seed=seed, **settings)
    for field, column in want.items():
        assert record.outputs["o"][field].tolist() == column, field
    assert record.status["stat_fault"] == 0
    assert record.status["stat_overflow"] == any(table.overflowed for table in tables)
    assert any(table.overflowed for table in tables) or name not in (
        "full table, all saturated",
        "no cluster number remains",
    )


def test_load_takes_one_cycle_per_record(rng):
    """One more LOAD delays the next result by one cycle and the comparison with the loaded cluster."""
    unit = tiny()
    delays = []
    for size in (0, 1, 7, 16):
        table = ClusterTable(rule(unit, hamming_threshold=0))
        table.assign(np.arange(size) * 0x0111)
        beats = {}
        extend(beats, restore(table))
        extend(beats, tokens(np.array([0x1234])))
        beats = {name: np.array(column) for name, column in beats.items()}
        record = run(unit, beats, 1, hamming_threshold=0)
        delays.append(record.cycles["o"][0] - unit.token_cycles(0, size) - size)
    assert len(set(delays)) == 1


@pytest.mark.parametrize("window", [0, 4096], ids=["no window", "window"])
@pytest.mark.parametrize("start", [2**13 - 100, 2**14 - 100, 2**20 - 100, 2**31 + 2**14 - 100])
def test_token_numbers_beyond_the_stored_bits_match_golden(start, window, rng, seed):
    """The unit of the paper preset stores 13 bits of a first token; the oldest candidates leave the window in turn."""
    unit = HCU.from_config(Config.preset("paper"))
    settings = {"window_tokens": window, "hamming_threshold": 3}
    table, size = ClusterTable(rule(unit, **settings)), 60
    table.assign(rng.integers(0, 1 << 32, size).astype(np.uint32))
    oldest = 4096 if window else start - 1
    ages = np.concatenate([oldest - np.arange(30), np.sort(rng.choice(np.arange(1, 3800), 30, replace=False))[::-1]])
    table.tokens, table.first_token[:] = start, start - ages
    stream = rng.permutation(np.concatenate([codes(rng, 180, 32), table.codes, table.codes[:20]])).astype(np.uint32)
    beats = {}
    extend(beats, restore(table))
    extend(beats, tokens(stream))
    beats = {name: np.array(column) for name, column in beats.items()}
    record = run(unit, beats, len(stream), stall=0.3, seed=seed, **settings)
    want = assert_equal(record, table, stream, start=start)
    assert record.status["stat_compared"] == want.compared.sum()
    assert (table.first_candidate == 30) == bool(window)


HIGH = {  # first token, number of the first cluster, clusters loaded, window
    "odd bits": (0xA5A5_A5F0, 0xA5F0, 4, 60),
    "even bits": (0x5A5A_5A10, 0x5A10, 4, 60),
    "to the end": (2**32 - 200, 2**16 - 20, 4, 60),
    "the last number": (2**31 - 60, 2**16 - 1, 1, 8),
}


@pytest.mark.parametrize("name", HIGH)
def test_large_numbers_match_golden(name, rng, seed):
    """Tables that start at large numbers, whose high bits a stream reaches after hours."""
    unit = tiny()
    start, base, size, window = HIGH[name]
    settings = {"window_tokens": window, "hamming_threshold": 3, "max_cluster_tokens": 0xFFFF}
    table = ClusterTable(replace(rule(unit, **settings), max_clusters=(1 << unit.cluster_bits) - base))
    table.assign(np.array([0, 0x00FF, 0xFF00, 0x0F0F])[:size])
    table.tokens = start
    table.first_token[:] = start - np.arange(7, 7 - size, -1)
    table.counts[:] = [0x5AFE, 0xFFFE, 0xFFFF, 0xA5FE][:size]
    stream = np.concatenate([codes(rng, 100, unit.hash_bits), table.codes, table.codes ^ 0xFFFF, [0x0F0F] * 3])
    stream = np.concatenate([table.codes[:1] ^ 0xFFFF, rng.permutation(stream)]).astype(np.uint32)
    n = len(stream)
    beats = {
        "op": [Op.BEGIN.value] + [Op.LOAD.value] * size + [Op.TOKEN.value] * n,
        "hash": [0, *table.codes, *stream],
        "count": [0, *table.counts, *[0] * n],
        "index": [start, *table.first_token, *[0] * n],
        "cluster": [base] + [0] * (size + n),
    }
    record = run(unit, {k: np.array(v) for k, v in beats.items()}, n, stall=0.3, seed=seed, **settings)
    want = assert_equal(record, table, stream, start=start, base=base)
    assert record.status["stat_compared"] == want.compared.sum()
    assert record.status["stat_overflow"] == table.overflowed


def test_stat_clear_holds_counters_at_zero(rng):
    """`stat_clear` holds all counters at zero while the unit works."""
    unit = tiny()
    stream = codes(rng, 100, unit.hash_bits)
    beats = tokens(stream)
    config = {"cfg_hamming_threshold": 2, "cfg_max_cluster_tokens": 65535, "stat_clear": 1}
    record = simulate(unit, "hcu", {"i": beats}, {"o": 100}, config=config)
    assert_equal(record, ClusterTable(rule(unit, hamming_threshold=2)), stream)
    assert record.outputs["o"]["overflow"].any() and not any(record.status.values())


def test_counters_through_a_long_wait(rng):
    """Long after the last token only the counter of idle cycles still counts."""
    unit, idle = tiny(), 33_001
    stream = codes(rng, 40, unit.hash_bits)
    table = ClusterTable(rule(unit))
    record = run(unit, tokens(stream), len(stream), drain_cycles=idle)
    want = assert_equal(record, table, stream)
    busy = sum(expected_cycles(unit, want, table))
    assert (record.status["stat_busy"], record.status["stat_blocked"]) == (busy, 0)
    assert record.status["stat_starved"] == record.cycles["o"][-1] + idle - 1 - 2 - busy


def test_last_cluster_of_full_table_saturates(rng, seed):
    """All other clusters of a full table are saturated: tokens go to the last cluster, even when it is saturated."""
    unit, most = tiny(), 0xFFFF
    settings = {"hamming_threshold": 0, "max_cluster_tokens": most}
    table = ClusterTable(rule(unit, **settings))
    table.assign(np.arange(unit.max_candidates) * 0x0111)
    table.counts[:] = most
    table.counts[-1] = most - 5
    stream = codes(rng, 20, unit.hash_bits)
    size, n = unit.max_candidates, len(stream)
    beats = {
        "op": np.repeat([Op.BEGIN.value, Op.LOAD.value, Op.TOKEN.value], [1, size, n]),
        "hash": np.concatenate([[0], table.codes, stream]),
        "count": np.concatenate([[0], table.counts, np.zeros(n, int)]),
        "index": np.concatenate([[size], table.first_token, np.zeros(n, int)]),
    }
    record = run(unit, beats, n, stall=0.3, seed=seed, **settings)
    want = assert_equal(record, table, stream, start=size)
    assert want.overflow.all() and want.count.tolist() == [*range(most - 4, most + 1), *[most] * (n - 5)]


@pytest.mark.parametrize("pauses", PAUSES)
def test_load_into_full_table_sets_fault(pauses, seed):
    unit = tiny()
    n = unit.max_candidates + 2
    beats = {"op": np.full(n + 1, Op.LOAD.value), "count": np.ones(n + 1, int), "hash": np.arange(n + 1)}
    beats["op"][-1] = Op.TOKEN.value
    record = run(unit, beats, 1, hamming_threshold=1, stall=PAUSES[pauses], seed=seed)
    assert record.status["stat_fault"] == 1
    assert record.outputs["o"]["overflow"].tolist() == [1]


def test_last_cluster_number_raises_overflow(rng):
    """After the last cluster number a token joins the nearest candidate and sets `overflow`."""
    unit = HCU.from_config(Config.preset("tiny").replace(cluster_bits=5))
    settings = {"window_tokens": 12, "hamming_threshold": 2}
    stream = codes(rng, 300, unit.hash_bits, centers=60, flip=0.2)
    table = ClusterTable(rule(unit, **settings))
    record = run(unit, tokens(stream), len(stream), stall=0.2, **settings)
    assert_equal(record, table, stream)
    assert len(table) == 32 and record.status["stat_overflow"] == 1


@pytest.mark.parametrize(("cycles", "stall"), [(1, 0.3), (2, 0.3), (37, 0.3), (500, 0.3), (90, {"o": 0.97})])
def test_reset_restores_initial_state(cycles, stall, rng, seed):
    """After a reset at any time the results are the same and the counters start at zero."""
    unit = tiny()
    stream = codes(rng, 150, unit.hash_bits)
    settings = {"window_tokens": 40, "hamming_threshold": 4}
    record = run(unit, tokens(stream), len(stream), stall=stall, seed=seed, reset_after=cycles, **settings)
    want = assert_equal(record, ClusterTable(rule(unit, **settings)), stream)
    assert record.status["stat_compared"] == want.compared.sum()


@pytest.mark.skipif(not has_simulator("icarus"), reason="Icarus Verilog is not installed")
def test_icarus_agrees(rng, seed):
    unit = tiny()
    stream = codes(rng, 120, unit.hash_bits)
    record = run(
        unit,
        tokens(stream),
        len(stream),
        stall=0.4,
        seed=seed,
        hamming_threshold=3,
        window_tokens=40,
        simulator="icarus",
    )
    assert_equal(record, ClusterTable(rule(unit, hamming_threshold=3, window_tokens=40)), stream)


@pytest.mark.parametrize("index", range(3))
def test_paper_preset_over_ten_thousand_tokens(index, rng, seed):
    """Three streams of 3,500 tokens through the unit of the paper preset, with pauses on both streams."""
    unit = HCU.from_config(Config.preset("paper"))
    stream = codes(rng, 3500, 32)
    table = ClusterTable(rule(unit, window_tokens=4096))
    record = run(unit, tokens(stream), len(stream), stall=0.5, seed=seed, window_tokens=4096)
    want = assert_equal(record, table, stream)
    assert record.status["stat_busy"] == sum(expected_cycles(unit, want, table))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    unit = HCU.from_config(Config.preset(preset))
    assert "module \\hcu" in to_rtlil(unit, "hcu")
    first_token_bits = {"tiny": 7, "small": 11, "paper": 13}[preset]
    assert unit.memory_bits["first_tokens"] == unit.max_candidates * first_token_bits


GOOD = {
    "hash_bits": 16,
    "lanes": 8,
    "accumulators": 1,
    "max_candidates": 16,
    "max_step_tokens": 8,
    "max_window_tokens": 64,
}


@pytest.mark.parametrize(
    "change",
    [
        {"lanes": 0},
        {"lanes": 17},
        {"accumulators": 3},
        {"max_candidates": 12},
        {"max_candidates": 1},
        {"max_step_tokens": 0},
        {"max_window_tokens": 0},
    ],
    ids=str,
)
def test_rejects_bad_parameters(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
        HCU(**{**GOOD, **change})
