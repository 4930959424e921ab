"""The DRAM model compared with Ramulator 2.1 on traces regenerated here, and with closed forms."""

import gzip
import hashlib
import json
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sw_model.memory.dram import Ports, Trace, decode, pattern, replay
from sw_model.memory.spec import PRESETS, load_memory, memory_names, parse_memory

DATA = json.loads(gzip.decompress((Path(__file__).parent / "data" / "dram.json.gz").read_bytes()))["tests"]
PRESET = {"lpddr5": "lpddr5-6400-256b", "ddr4": "ddr4-3200-8ch"}
REFRESH = {"NoRefresh": "none", "AllBank": "all-bank", "PerBank": "per-bank"}


def one_channel(memory):
    mapping = {k: tuple(d for d in v if d[0] != "ch") for k, v in memory.mapping.items()}
    return replace(memory, channels=1, mapping=mapping)


def setting(test):
    """Memory and trace of one reference test."""
    memory = load_memory(PRESET[test["memory"].split("_")[0]])
    if test["memory"].endswith("_1ch"):
        memory = one_channel(memory)
    memory = replace(
        memory,
        refresh=REFRESH[test["refresh"]],
        read_queue=test["queue"],
        write_queue=test["queue"],
        row_hit_first=test["scheduler"] == "FRFCFSRowHit",
        data_clock_stops=test["wck"] != "always_on",
    )
    p = test["pattern"]
    trace = pattern(
        memory,
        p["kind"],
        p["size"],
        p["n"],
        outstanding=p.get("qd", 1),
        rate=p.get("rate"),
        seed=p.get("seed", 1),
        write_share=p.get("write_frac", 0.0),
        second_writes=p.get("second_writes", False),
    )
    return memory, trace


def bursts(test):
    return test["pattern"]["n"] * max(1, test["pattern"]["size"] // 32)


def errors(tests):
    """Relative errors of bandwidth, mean read latency and activates."""
    rows = []
    for test in tests:
        memory, trace = setting(test)
        r = replay(memory, trace, test["mapping"])
        reads = r.latency_ns[trace.write == 0]
        latency = reads.mean() / test["read_latency_ns"] - 1 if test["read_latency_ns"] else 0.0
        rows.append((r.share * 100 / test["bandwidth_pct"] - 1, latency, r.commands["ACT"] / test["activates"] - 1))
    return np.abs(np.array(rows))


def test_traces_are_the_reference_ones():
    """Burst coordinates hash to the reference's digest."""
    for test in [t for t in DATA if bursts(t) <= 20000]:
        memory, trace = setting(test)
        per = max(1, trace.size // memory.burst_bytes)
        index = (trace.address[:, None] // memory.burst_bytes + np.arange(per)).reshape(-1)
        places = decode(memory, test["mapping"], index)
        digest = hashlib.sha256()
        arrays = (trace.address.astype("<i8"), trace.write.astype("u1"), trace.arrival.astype("<i8"))
        vectors = np.stack([places[k] for k in ("ch", "ra", "bg", "ba", "ro", "co")], 1).astype("<i4")
        for array in (*arrays, vectors):
            digest.update(np.ascontiguousarray(array).tobytes())
        assert digest.hexdigest()[:16] == test["sha"], test["pattern"]["name"]


def test_small_reference_tests():
    tests = [t for t in DATA if bursts(t) <= 16000]
    assert len(tests) > 60
    e = errors(tests)
    assert e[:, 0].mean() <= 0.004 and np.percentile(e[:, 0], 95) <= 0.01
    assert e[:, 1].mean() <= 0.003
    assert e[:, 2].mean() <= 0.01


@pytest.mark.heavy
def test_every_reference_test():
    e = errors(DATA)
    assert len(e) == 432
    assert e[:, 0].mean() <= 0.002 and np.percentile(e[:, 0], 95) <= 0.006
    assert e[:, 1].mean() <= 0.002
    assert e[:, 2].mean() <= 0.002


def test_latency_by_hand():
    """A lone 64 B read that opens a closed bank: one clock to issue, row, data clock, second burst, data."""
    memory = replace(one_channel(load_memory("lpddr5-6400-256b")), refresh="none")
    t = memory.timing
    r = replay(memory, pattern(memory, "seq", 64, 1))
    clocks = 1 + t["rcd_read"] + 1 + t["ccd_l"] + t["cl"] + t["bl_min"]
    assert r.latency_ns[0] == pytest.approx(clocks * 1.25)
    ddr = replace(one_channel(load_memory("ddr4-3200-8ch")), refresh="none")
    d = ddr.timing
    assert replay(ddr, pattern(ddr, "seq", 64, 1)).latency_ns[0] == pytest.approx(
        (1 + d["rcd_read"] + d["cl"] + d["bl"]) * 0.625
    )


def latencies(memory, *bursts):
    """Latencies in clocks of bursts; a burst is (arrival, address)."""
    arrival, address = np.array(bursts, np.int64).T
    n, size = len(bursts), memory.burst_bytes
    trace = replace(
        pattern(memory, "seq", size, n, outstanding=n), address=np.ascontiguousarray(address), arrival=arrival.copy()
    )
    return np.round(replay(memory, trace).latency_ns * 1000 / memory.clock_ps).astype(int).tolist()


def test_activates_of_hbm_count_from_their_second_clock():
    """An activate takes two clocks: one clock more from its first one to a column, one less from a precharge to it."""
    memory = replace(load_memory("hbm2e-3024-5120b"), refresh="none")
    t = memory.timing
    read = t["cl"] + t["bl"]
    row_bytes = memory.capacity_bytes // memory.rows
    assert latencies(memory, (0, 0)) == [1 + t["rcd_read"] + 1 + read]
    other_row = latencies(memory, (0, 0), (1000, row_bytes))[1]
    assert other_row == 1 + t["rp"] - 1 + t["rcd_read"] + 1 + read
    # the row stays open for ras from the second clock of the activate
    assert latencies(memory, (0, 0), (0, row_bytes))[1] == 1 + t["ras"] + 1 + t["rp"] - 1 + t["rcd_read"] + 1 + read


def test_per_bank_refresh_of_hbm_delays_other_banks():
    """A refresh of bank 0 delays an activate of another bank of the pseudo-channel by rrefd, and of no other one."""
    memory = replace(load_memory("hbm2e-3024-5120b"), refresh="per-bank")
    t = memory.timing
    before = t["refi_bank"] - 1
    first_digits = [radix for _, radix in memory.mapping["A"]]
    pseudo_channel = first_digits[0] * memory.burst_bytes
    group = pseudo_channel * first_digits[1] * first_digits[2]
    alone = 1 + t["rcd_read"] + 1 + t["cl"] + t["bl"]
    assert latencies(memory, (before, group)) == [alone + t["rrefd"] - 1]
    assert latencies(memory, (before, 0)) == [alone + t["rfc_bank"] - 1]
    assert latencies(memory, (before, group + pseudo_channel)) == [alone + 1]  # the refresh used the command bus


def test_precharges_of_lpddr5_keep_their_distance():
    """Two banks are closed at the same time: the second precharge follows ppd clocks later."""
    memory = replace(load_memory("lpddr5-6400-256b"), refresh="none", data_clock_stops=False)
    row_bytes, group_bytes = memory.capacity_bytes // memory.rows, 256 * memory.channels
    requests = [(0, 0), (0, group_bytes), (1000, row_bytes), (1000, row_bytes + group_bytes)]
    ends = {}
    for ppd in (20, 50):
        ends[ppd] = latencies(replace(memory, timing={**memory.timing, "ppd": ppd}), *requests)
    assert ends[50][3] - ends[20][3] == 30 and ends[50][:3] == ends[20][:3]
    assert memory.timing["ppd"] == 2


@pytest.mark.parametrize("name", memory_names())
def test_long_streams_reach_the_refresh_limit(name):
    memory = load_memory(name)
    n = 6000 if memory.style == "hbm" else 2000
    r = replay(memory, pattern(memory, "seq", 4096, n, outstanding=256))
    assert r.share == pytest.approx(memory.stream_share, abs=0.03)
    assert r.bytes_moved == n * 4096 and r.commands["RD"] * memory.burst_bytes == r.bytes_moved


def test_hbm_needs_many_outstanding_requests():
    """Scattered 256 B: 3.5 % of the peak with 16 in flight, two thirds with 1024, 81 % with longer queues (Ramulator on
    the same memory; the number of its requests is not recorded, and few refreshes are in a run)."""
    for test in json.loads((Path(__file__).parent / "data" / "hbm2e.json").read_text())["tests"]:
        memory = replace(load_memory(HBM), read_queue=test["queue"], write_queue=test["queue"])
        trace = pattern(memory, test["kind"], test["size"], test["n"], outstanding=test["qd"])
        assert 100 * replay(memory, trace).share == pytest.approx(test["bandwidth_pct"], rel=0.04), test["name"]


def test_two_streams_and_a_rate_by_hand():
    memory = load_memory("lpddr5-6400-256b")
    half = memory.capacity_bytes // 2
    trace = pattern(memory, "two_seq", 256, 4, outstanding=2, rate=0.5, second_writes=True)
    assert trace.address.tolist() == [0, half, 256, half + 256]
    assert trace.stream.tolist() == trace.write.tolist() == [0, 1, 0, 1] and trace.outstanding.tolist() == [4, 4]
    clocks = 256 / (0.5 * memory.peak_gbps) / memory.clock_ps * 1000
    assert trace.arrival.tolist() == [int(n * clocks) for n in range(4)]
    assert replace(memory, refresh="none").stream_share == 1 > memory.stream_share


def test_every_request_completes_once_and_runs_repeat(seed):
    memory = load_memory("lpddr5-6400-256b")
    trace = pattern(memory, "rand", 256, 3000, outstanding=64, seed=seed, write_share=0.3)
    first, second = replay(memory, trace), replay(memory, trace)
    assert np.array_equal(first.latency_ns, second.latency_ns) and first.clocks == second.clocks
    assert (first.latency_ns > 0).all()
    assert first.commands["RD"] + first.commands["WR"] == 3000 * 8
    assert first.share <= 1


def test_bad_input():
    memory = load_memory("lpddr5-6400-256b")
    with pytest.raises(ValueError, match=r"memory must be one of .*got 'sram'"):
        load_memory("sram")
    with pytest.raises(ValueError, match=r"mapping must be one of .* got 'Z'"):
        replay(memory, pattern(memory, "seq", 64, 1), "Z")
    with pytest.raises(ValueError, match="got 'zigzag'"):
        pattern(memory, "zigzag", 64, 1)
    with pytest.raises(ValueError, match="rate"):
        pattern(memory, "seq", 64, 1, rate=0)
    with pytest.raises(ValueError, match="n, size and outstanding must be positive, got 0, 64 and 1"):
        pattern(memory, "seq", 64, 0)
    with pytest.raises(ValueError, match=r"write_share must be between 0 and 1, got 1.5"):
        pattern(memory, "seq", 64, 1, write_share=1.5)
    with pytest.raises(ValueError, match="must be at most half of the"):
        pattern(memory, "seq", memory.capacity_bytes, 1)
    trace = pattern(memory, "seq", 64, 1)
    with pytest.raises(ValueError, match="trace must not be empty, got 0 requests of 64 bytes"):
        replay(memory, replace(trace, address=trace.address[:0]))
    with pytest.raises(ValueError, match="outstanding must be at least 1"):
        replay(memory, replace(trace, outstanding=trace.outstanding * 0))
    with pytest.raises(ValueError, match="addresses must be inside"):
        replay(memory, replace(trace, address=trace.address + memory.capacity_bytes))
    data = {"name": "x", "style": "lpddr5", "organisation": {}, "timing_clocks": {}, "controller": {}, "mapping": {}}
    with pytest.raises(ValueError, match="missing"):
        parse_memory(data)


@pytest.mark.parametrize(
    ("table", "key", "value", "message"),
    [
        ("organisation", "channels", 0, "channels"),
        ("timing_clocks", "rfc", 9999, "refresh must be shorter"),
        ("timing_clocks", "cl", -3, "cl"),
        ("controller", "refresh", "never", "refresh must be one of"),
        ("mapping", "A", [["ch", 16]], "covers"),
        ("mapping", "A", [1, 2], r"a mapping must be a list of \[digit, radix\]"),
    ],
)
def test_unphysical_memories_are_rejected(table, key, value, message):
    data = tomllib.loads((PRESETS / "lpddr5-6400-256b.toml").read_text())
    data[table][key] = value
    with pytest.raises(ValueError, match=message):
        parse_memory(data)


def changed(name, refresh=None, **timing):
    """A preset with other timing values."""
    memory = load_memory(name)
    return replace(memory, refresh=refresh or memory.refresh, timing={**memory.timing, **timing})


LPDDR5, HBM, DDR4 = "lpddr5-6400-256b", "hbm2e-3024-5120b", "ddr4-3200-8ch"


@pytest.mark.parametrize(
    ("name", "refresh", "timing", "message"),
    [
        (LPDDR5, None, {"ccd_s": 1}, "timing ccd_s must be at least the burst of 2 clocks, got 1"),
        (HBM, None, {"ccd_s": 1}, "timing ccd_s must be at least the burst of 2 clocks, got 1"),
        (DDR4, None, {"ccd_s": 3}, "timing ccd_s must be at least the burst of 4 clocks, got 3"),
        (DDR4, None, {"ccd_l": 3, "ccd_s": 4}, "timing ccd_l must be at least ccd_s = 4, got 3"),
        (LPDDR5, None, {"rc": 48}, r"timing rc must be at least ras \+ rp = 49, got 48"),
        (LPDDR5, None, {"rrd_l": 3}, "timing rrd_l must be at least rrd_s = 4, got 3"),
        (LPDDR5, None, {"wtr_l": 4}, "timing wtr_l must be at least wtr_s = 5, got 4"),
        (LPDDR5, None, {"bl_max": 1}, "timing bl_max must be at least bl_min = 2, got 1"),
        (LPDDR5, None, {"aad": 0}, "timing aad must be at least 1, got 0"),
        (LPDDR5, None, {"cas": 2}, "timing cas must be at most 1, got 2"),
        (LPDDR5, None, {"refi": 0}, "timing refi must be positive, got 0"),
        (LPDDR5, None, {"refi": 300}, r"timing refi must be at least 330 \(rfc \+ rp_all \+ an access\), got 300"),
        (LPDDR5, "per-bank", {"refi_bank": 0}, "timing refi_bank must be positive, got 0"),
        (LPDDR5, "per-bank", {"refi_bank": 150}, r"timing refi_bank must be at least 175 .*, got 150"),
        (HBM, "per-bank", {"refi_bank": 20}, r"timing refi_bank must be at least 142 .*, got 20"),
        (LPDDR5, "per-bank", {"rfc_bank": 9000}, "timing rfc_bank must be below 6168, got 9000"),
        (DDR4, "per-bank", {}, "refresh must be none or all-bank for style ddr, got 'per-bank'"),
        (LPDDR5, None, {"clx": 3}, r"timing must have only keys of style lpddr5 \(aad, .*\), got 'clx'"),
        (DDR4, None, {"aad": 8}, r"timing must have only keys of style ddr .*, got 'aad'"),
    ],
)
def test_impossible_timings_are_rejected(name, refresh, timing, message):
    with pytest.raises(ValueError, match=message):
        changed(name, refresh, **timing)


@pytest.mark.parametrize(
    ("name", "key"),
    [(LPDDR5, "pbr_to_pbr"), (LPDDR5, "pbr_to_act"), (LPDDR5, "rfc_bank"), (HBM, "rrefd"), (HBM, "refi_bank")],
)
def test_per_bank_refresh_needs_its_numbers(name, key):
    memory = load_memory(name)
    timing = {k: v for k, v in memory.timing.items() if k != key}
    assert replace(memory, timing=timing).refresh == "all-bank"
    with pytest.raises(ValueError, match=f"timing {key} is missing"):
        replace(memory, timing=timing, refresh="per-bank")


@pytest.mark.parametrize("name", memory_names())
@pytest.mark.parametrize("refresh", ["all-bank", "per-bank"])
def test_shortest_valid_refresh_interval_leaves_time_for_accesses(name, refresh):
    """At the shortest interval that is not refused, random reads and writes end."""
    if refresh == "per-bank" and name == DDR4:
        refresh = "all-bank"
    key = "refi" if refresh == "all-bank" else "refi_bank"
    with pytest.raises(ValueError, match=f"timing {key} must be at least") as error:
        changed(name, refresh, **{key: load_memory(name).timing["rfc"] + 1 if key == "refi" else 100})
    shortest = int(str(error.value).split("at least ")[1].split()[0])
    memory = changed(name, refresh, **{key: shortest, "rfc_bank": 100} if refresh == "per-bank" else {key: shortest})
    result = replay(memory, pattern(memory, "rand", 256, 500, outstanding=64, write_share=0.3))
    assert 0 < result.share < load_memory(name).stream_share


def test_traces_of_incomplete_bursts_are_rejected():
    """Bytes of a part of a burst would be lost."""
    memory = load_memory(LPDDR5)
    trace = pattern(memory, "rand", 64, 4, outstanding=2)
    with pytest.raises(ValueError, match="size must be a multiple of the burst of 32 bytes, got 100"):
        pattern(memory, "seq", 100, 4)
    with pytest.raises(ValueError, match="size must be a multiple of the burst of 32 bytes, got 48"):
        replay(memory, replace(trace, size=48))
    with pytest.raises(ValueError, match="address must be a multiple of the burst of 32 bytes, got 7"):
        replay(memory, replace(trace, address=trace.address * 0 + 7))
    with pytest.raises(ValueError, match=r"addresses must be inside the \d+ bytes of .*, got -64 for 64 bytes"):
        replay(memory, replace(trace, address=trace.address * 0 - 64))
    with pytest.raises(ValueError, match="arrival must be at least 0, got -1"):
        replay(memory, replace(trace, arrival=trace.arrival - 1))
    with pytest.raises(ValueError, match="write must have one value for each of 4 requests, got 3"):
        replay(memory, replace(trace, write=trace.write[:3]))


@pytest.mark.parametrize("stream", [1, -1, 1 << 20])
def test_streams_without_a_limit_are_rejected(stream):
    memory = load_memory(LPDDR5)
    trace = pattern(memory, "rand", 64, 4, outstanding=2)
    with pytest.raises(ValueError, match=rf"stream must be in \[0, 1\), .*, got {stream}"):
        replay(memory, replace(trace, stream=trace.stream + np.int32(stream)))


def test_an_unknown_kind_of_memory_is_rejected():
    data = tomllib.loads((PRESETS / "lpddr5-6400-256b.toml").read_text())
    with pytest.raises(ValueError, match="style must be one of"):
        parse_memory(data | {"style": "core"})
    data["controller"]["refresh"] = "per-bank"
    parse_memory(data)
    del data["timing_clocks"]["refi_bank"]
    with pytest.raises(ValueError, match="timing refi_bank is missing"):
        parse_memory(data)


def test_ports_pace_the_reads_of_their_streams():
    """Two streams behind a slow port take its time; two ports half of it; `pause` delays the next read of a stream."""
    memory = replace(load_memory("lpddr5-6400-256b"), refresh="none")
    n, size = 400, 256
    bursts = size // memory.burst_bytes
    stream = (np.arange(n) % 2).astype(np.int32)
    address = np.arange(n, dtype=np.int64) * size
    nothing = np.zeros(n, np.int64)

    def clocks(number, transfer, pause=0.0, buffer=4 * bursts, write=nothing):
        ports = Ports(np.array(number), transfer, pause, buffer)
        trace = Trace(address, size, write.astype(np.uint8), stream, nothing, np.array([16, 16]), ports)
        return replay(memory, trace).clocks

    shared, apart = clocks([0, 0], 5.0), clocks([0, 1], 5.0)
    assert shared == pytest.approx(n * bursts * 5, rel=0.03) and apart == pytest.approx(shared / 2, rel=0.03)
    alone = clocks([0, 1], 0.01, buffer=bursts)  # each read of a stream waits for the one before
    assert clocks([0, 1], 0.01, pause=100.0, buffer=bursts) == pytest.approx(alone + 100 * (n // 2 - 1), rel=0.03)
    assert clocks([0, 0], 5.0, write=nothing + 1) < shared / 10  # writes are posted


def test_lengths_of_requests_count():
    memory = load_memory("lpddr5-6400-256b")
    trace = pattern(memory, "seq", 2048, 64, outstanding=8)
    short = replace(trace, length=np.where(np.arange(64) % 2, 256, 2048))
    assert replay(memory, short).bytes_moved == 32 * (256 + 2048) < replay(memory, trace).bytes_moved
    for length in (np.full(64, 4096), np.full(64, 100), np.zeros(64, np.int64), np.full(63, 256)):
        with pytest.raises(ValueError, match="length must be a multiple of the burst of 32 bytes up to 2048"):
            replay(memory, replace(trace, length=length))
