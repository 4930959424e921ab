"""Timing of single bursts compared with the replay of the same requests, and with closed forms of the link."""

import dataclasses
import heapq

import numpy as np
import pytest

from sw_model.memory.dram import Trace, pattern, replay
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory, memory_names

CLOCK_MHZ = 800.0


def closed_loop(timing, addresses, size, outstanding, write=None, stream=None):
    """Latencies in ns with so many bursts of every stream in flight, and the rate in GB/s."""
    count = len(addresses)
    write = [False] * count if write is None else write
    stream = [0] * count if stream is None else stream
    waiting, in_flight, latency, last = [[] for _ in range(max(stream) + 1)], [], [], 0
    for burst in range(count - 1, -1, -1):
        waiting[stream[burst]].append(burst)

    def issue(now, port):
        burst = waiting[port].pop()
        answer = timing.arrive(now, addresses[burst], size, bool(write[burst]))
        heapq.heappush(in_flight, (*answer, now, port))

    for port in range(len(waiting)):
        for _ in range(min(outstanding, len(waiting[port]))):
            issue(0, port)
    while in_flight:
        cycle, number, start, port = heapq.heappop(in_flight)
        revised = timing.confirm(number, cycle)
        if revised > cycle:
            heapq.heappush(in_flight, (revised, number, start, port))
            continue
        latency.append((cycle - start) * 1000 / CLOCK_MHZ)
        last = cycle
        if waiting[port]:
            issue(cycle, port)
    return np.array(latency), count * size / (last * 1000 / CLOCK_MHZ)


@pytest.mark.parametrize("name", memory_names())
@pytest.mark.parametrize("kind", ["seq", "rand"])
def test_one_burst_at_a_time_is_the_replay(name, kind):
    """Alone, a burst's latency is the controller's: within three of the core's cycles, the grain of its clock."""
    memory = dataclasses.replace(load_memory(name), refresh="none", data_clock_stops=False)
    trace = pattern(memory, kind, memory.burst_bytes, 400, outstanding=1)
    want = replay(memory, trace).latency_ns
    got, _ = closed_loop(DramTiming(memory), trace.address.tolist(), memory.burst_bytes, 1)
    assert abs(np.mean(got) - np.mean(want)) < 3000 / CLOCK_MHZ
    # row hits and conflicts differ by the same
    assert abs(np.ptp(np.percentile(got, [10, 90])) - np.ptp(np.percentile(want, [10, 90]))) < 3000 / CLOCK_MHZ + 1


@pytest.mark.parametrize("name", memory_names())
def test_long_streams_are_the_replays(name):
    """Many long bursts in flight: the controller's rate, with refresh."""
    memory = load_memory(name)
    trace = pattern(memory, "seq", 4096, 1000, outstanding=32)
    want = replay(memory, trace).bandwidth_gbps
    _, gbps = closed_loop(DramTiming(memory), trace.address.tolist(), 4096, 32)
    assert gbps == pytest.approx(want, rel=0.01)


# pattern, bytes of a burst, bursts in flight of a port, share of writes, ports
TRAFFIC = {
    "sequential reads": ("seq", 1024, 16, 0.0, 1),
    "random reads of 64 bytes": ("rand", 64, 16, 0.0, 1),
    "random reads, 16 in flight": ("rand", 256, 16, 0.0, 1),
    "random reads, 64 in flight": ("rand", 256, 64, 0.0, 1),
    "random reads, 256 in flight": ("rand", 256, 256, 0.0, 1),
    "sequential, 30 % writes": ("seq", 256, 64, 0.3, 1),
    "random, 30 % writes, 16 in flight": ("rand", 256, 16, 0.3, 1),
    "random, 30 % writes, 64 in flight": ("rand", 256, 64, 0.3, 1),
    "random, 30 % writes, 256 in flight": ("rand", 256, 256, 0.3, 1),
    "random writes": ("rand", 256, 64, 1.0, 1),
    "a port that reads and one that writes, sequential": ("two_seq", 1024, 32, 0.0, 2),
    "four ports, random reads": ("rand", 256, 16, 0.0, 4),
    "eight ports, random, 30 % writes": ("rand", 256, 32, 0.3, 8),
}


def live_and_replay(memory, traffic):
    """Latencies in ns and rate in GB/s of simulated ports, and the replay of the same requests."""
    kind, size, outstanding, write_share, ports = TRAFFIC[traffic]
    count = 3000 * min(ports, 4)
    trace = pattern(memory, kind, size, count, outstanding=outstanding, write_share=write_share, second_writes=True)
    stream = (np.arange(count) % ports).astype(np.int32)
    trace = dataclasses.replace(trace, stream=stream, outstanding=np.full(ports, outstanding))
    answers = closed_loop(
        DramTiming(memory), trace.address.tolist(), size, outstanding, trace.write.tolist(), stream.tolist()
    )
    return *answers, replay(memory, trace)


@pytest.mark.parametrize("name", memory_names())
@pytest.mark.parametrize("traffic", TRAFFIC)
@pytest.mark.parametrize("refresh", ["all-bank", "per-bank"])
def test_traffic_has_the_rate_of_the_replay(name, traffic, refresh):
    """Turnaround, activate distances, four-activate window and refresh: within 3 % of the replay."""
    memory = load_memory(name)
    if refresh == "per-bank" and (memory.style == "ddr" or TRAFFIC[traffic][2] != 64):
        refresh = "none"
    latency, gbps, want = live_and_replay(dataclasses.replace(memory, refresh=refresh), traffic)
    assert gbps == pytest.approx(want.bandwidth_gbps, rel=0.03)
    assert np.mean(latency) == pytest.approx(np.mean(want.latency_ns), rel=0.03, abs=1000 / CLOCK_MHZ)


@pytest.mark.parametrize("name", memory_names())
@pytest.mark.parametrize(
    "traffic", ["random, 30 % writes, 64 in flight", "random writes", "eight ports, random, 30 % writes"]
)
def test_posted_writes_have_the_rate_of_the_replay(name, traffic):
    memory = dataclasses.replace(load_memory(name), posted_writes=True)
    latency, gbps, want = live_and_replay(memory, traffic)
    assert gbps == pytest.approx(want.bandwidth_gbps, rel=0.03)
    assert np.mean(latency) == pytest.approx(np.mean(want.latency_ns), rel=0.03, abs=1000 / CLOCK_MHZ)


@pytest.mark.parametrize("name", memory_names())
def test_posted_write_does_not_wait_for_reads(name):
    """A few writes, while another port always reads. They do not fill the queue of the controller, so that their
    commands wait until no read waits: posted, they are answered at once, else after hundreds of clocks."""
    memory = dataclasses.replace(load_memory(name), refresh="none")
    reads, writes = 1000 * memory.channels, 4
    address = np.r_[np.arange(reads) * memory.burst_bytes, memory.capacity_bytes // 2 + np.arange(writes) * 4096]
    write = np.arange(reads + writes) >= reads

    def longest_write_clocks(posted):
        trace = Trace(
            address, memory.burst_bytes, write.astype(np.uint8), write.astype(np.int32), np.zeros(len(write), np.int64),
            np.array([24 * memory.channels, writes]),
        )  # fmt: skip
        result = replay(dataclasses.replace(memory, posted_writes=posted), trace)
        return result.latency_ns[reads:].max() * 1000 / memory.clock_ps

    assert longest_write_clocks(True) <= 16
    assert longest_write_clocks(False) > 500


def test_transfers_of_a_full_queue_are_confirmed_once(seed):
    """Thousands of bursts in one cycle: the pool grows, and every burst is answered once."""
    memory = load_memory("lpddr5-6400-256b")
    trace = pattern(memory, "rand", 4096, 200, outstanding=200, seed=seed)
    latency, gbps = closed_loop(DramTiming(memory), trace.address.tolist(), 4096, 200)
    assert len(latency) == 200
    assert gbps == pytest.approx(replay(memory, trace).bandwidth_gbps, rel=0.03)


def test_answers_of_later_bursts_do_not_change_ready():
    """`ready` is the answer without later bursts; `confirm` delays a read behind an older one of its bank."""
    memory = dataclasses.replace(load_memory("lpddr5-6400-256b"), refresh="none")
    alone, number = DramTiming(memory).ready(0, 0, 64, False), 0
    timing = DramTiming(memory)
    cycle, number = timing.arrive(0, 0, 64, True)
    for n in range(40):
        timing.arrive(0, n * 64, 64, False)
    assert cycle <= alone < timing.confirm(number, cycle)
    with pytest.raises(ValueError, match="nbytes must be at least 1, got 0"):
        timing.ready(0, 0, 0, False)
    with pytest.raises(ValueError, match="address must be at least 0, got -64"):
        timing.ready(0, -64, 64, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mapping": "Z"}, r"mapping must be one of .* got 'Z'"),
        ({"clock_mhz": 0.0}, "clock_mhz must be positive, got 0.0"),
        ({"fixed_ns": -1.0}, "fixed_ns must be at least 0, got -1.0"),
    ],
)
def test_impossible_ports_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        DramTiming(load_memory("lpddr5-6400-256b"), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clock_mhz": 0.0}, "clock_mhz must be positive, got 0.0"),
        ({"clock_mhz": -800.0}, "clock_mhz must be positive, got -800.0"),
    ],
)
def test_impossible_link_ports_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        PcieTiming(PcieLink(3, 4), **options)


def test_fixed_delay_is_added_to_every_answer():
    """Also to a confirmed answer."""
    memory = dataclasses.replace(load_memory("lpddr5-6400-256b"), refresh="none", data_clock_stops=False)
    addresses = pattern(memory, "rand", 256, 500).address.tolist()
    near, far = (closed_loop(DramTiming(memory, fixed_ns=ns), addresses, 256, 1)[0] for ns in (0.0, 40.0))
    assert np.median(far) == pytest.approx(np.median(near) + 40)


@pytest.mark.parametrize("size", [128, 512, 4096])
def test_reads_over_the_link(size):
    link = PcieLink(3, 4, tags=64)
    timing = PcieTiming(link)
    alone = timing.ready(0, 0, size, False) * 1000 / CLOCK_MHZ
    assert link.round_trip_ns <= alone < link.round_trip_ns + 2 * size / link.packet_gbps + 2
    _, gbps = closed_loop(PcieTiming(link), [size * n for n in range(3000)], size, 256)
    want = min(link.read_gbps(min(size, link.max_read_request)), link.tag_limit_gbps(size))
    assert gbps == pytest.approx(want, rel=0.05)


def test_writes_are_posted():
    link = PcieLink(3, 4)
    timing = PcieTiming(link)
    ends = [timing.ready(0, 0, 4096, True) for _ in range(100)]
    assert 100 * 4096 / (ends[-1] * 1000 / CLOCK_MHZ) == pytest.approx(link.write_gbps(4096), rel=0.01)
