"""Timing of single bursts compared with the replay of the same requests, and with closed forms of the link."""

import dataclasses

import numpy as np
import pytest

from sw_model.memory.dram import pattern, replay
from sw_model.memory.live import DramTiming, DriveTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory, memory_names
from sw_model.memory.ssd import load_ssd, read

CLOCK_MHZ = 800.0


def closed_loop(timing, addresses, size, outstanding, write=False):
    """Latencies in ns with so many bursts in flight, and the rate in GB/s."""
    ends, latency = [], []
    for n, address in enumerate(addresses):
        start = ends[n - outstanding] if n >= outstanding else 0
        ends.append(timing.ready(start, address, size, write))
        latency.append((ends[-1] - start) * 1000 / CLOCK_MHZ)
    return np.array(latency), len(addresses) * size / (max(ends) * 1000 / CLOCK_MHZ)


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
    """Many long bursts in flight: the controller's rate, within a tenth of it."""
    memory = dataclasses.replace(load_memory(name), refresh="none", data_clock_stops=False)
    trace = pattern(memory, "seq", 4096, 400, outstanding=32)
    want = replay(memory, trace).bandwidth_gbps
    _, gbps = closed_loop(DramTiming(memory), trace.address.tolist(), 4096, 32)
    print(name, want, gbps)
    assert gbps == pytest.approx(want, rel=0.1)


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


def test_a_drive_behind_the_link():
    """A page's array read, then its register; as many pages at once as there are chips, as the drive's own replay."""
    drive, link = load_ssd("bg6-like"), PcieLink(3, 4)
    timing = PcieTiming(link, drive=DriveTiming(drive), drive_at=1 << 30)
    host = timing.ready(0, 0, 4096, False) * 1000 / CLOCK_MHZ
    first = timing.ready(0, 1 << 30, 4096, False) * 1000 / CLOCK_MHZ
    again = timing.ready(int(first), (1 << 30) + 4096, 4096, False) * 1000 / CLOCK_MHZ
    assert first > host + drive.read_us * 1e3 > again - first
    pages = DriveTiming(drive)
    ends = [pages.read_ns(0, n * drive.page_bytes, drive.page_bytes) for n in range(drive.chips)]
    alone = dataclasses.replace(drive, link_gbps=1e6)  # the link model adds the link's time
    want = read(alone, drive.page_bytes, drive.chips, drive.chips).latency_us
    assert np.sort(ends) / 1e3 == pytest.approx(np.sort(want), rel=0.01)
