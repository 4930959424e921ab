"""A drive behind a simulated link: bursts of a page, and closed loops compared with the replay of the same requests."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from sw_model.memory.live import PcieTiming
from sw_model.memory.live_drive import DriveTiming, PcieDriveTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.ssd import addresses, load_ssd, read
from tests.sw_model.memory.test_live import CLOCK_MHZ, closed_loop

DRIVE, AT = load_ssd("bg6-like"), 1 << 40
PAGE = DRIVE.page_bytes
READ_NS, TRANSFER_NS = 1e3 * (DRIVE.read_us + DRIVE.ready_us), 1 / DRIVE.channel_gbps


def ends(timing, *numbers):
    """Times at which bursts are in the buffer."""
    while any(number not in timing.ends for number in numbers):
        timing.advance(timing.next_event())
    return [timing.ends[number] for number in numbers]


def answer(timing, cycle, address, nbytes):
    """Cycle of the answer to a read without other bursts."""
    ready, number = timing.arrive(cycle, address, nbytes, False)
    while (revised := timing.confirm(number, ready)) != ready:
        ready = revised
    return ready


def drive_loop(drive, addresses, size, outstanding):
    """Latencies in ns with so many requests in flight, without the link, and the time of the last one."""
    timing, now, issued, latency = DriveTiming(drive), 0.0, {}, []
    requests = iter(addresses)
    while len(latency) < len(addresses):
        for address in itertools.islice(requests, outstanding - len(issued)):
            issued[timing.arrive(now, address, size)] = now
        now = timing.next_event()
        timing.advance(now)
        latency += [timing.ends[number] - issued.pop(number) for number in timing.ends]
        timing.ends.clear()
    return np.array(latency), now


@pytest.mark.parametrize("name", ["bg6-like", "bg6-like-16-dies"])
@pytest.mark.parametrize("random", [False, True])
def test_agrees_with_the_replay(name, random, rng):
    """Requests of pages, some in flight, without the link: the same times as the replay."""
    drive = replace(load_ssd(name), link_gbps=1e6)
    count, outstanding, size = 200, int(rng.integers(2, 100)), int(rng.integers(1, 9)) * PAGE
    latency, end = drive_loop(drive, addresses(drive, size, count, random=random).tolist(), size, outstanding)
    want = read(drive, size, count, outstanding, random=random)
    assert np.sort(latency) / 1e3 == pytest.approx(np.sort(want.latency_us))
    assert count * size / end == pytest.approx(want.bandwidth_gbps)


def test_bursts_of_a_page_share_its_read():
    """The page is read once; data of a burst that comes during the read are transferred together with the others."""
    timing, quarter = DriveTiming(DRIVE), PAGE // 4
    first, second = (timing.arrive(n * 100.0, n * quarter, quarter) for n in range(2))
    one, two = ends(timing, first, second)
    command = 1e3 * DRIVE.command_us
    assert one == two == pytest.approx(command + READ_NS + 2 * quarter * TRANSFER_NS, abs=3)


def test_register_keeps_page_until_the_plane_reads_another():
    timing, quarter, planes = DriveTiming(DRIVE), PAGE // 4, DRIVE.planes
    (start,) = ends(timing, timing.arrive(0.0, 0, quarter))
    (again,) = ends(timing, timing.arrive(start, quarter, quarter))
    assert again - start == pytest.approx(quarter * TRANSFER_NS, abs=2)
    (other,) = ends(timing, timing.arrive(again, planes * PAGE, quarter))  # next page of the plane
    assert other - again > READ_NS
    (back,) = ends(timing, timing.arrive(other, 2 * quarter, quarter))
    assert back - other > READ_NS


def test_burst_over_two_pages_ends_with_the_later_one():
    """The pages are on different channels; the second one waits for a longer transfer."""
    timing = DriveTiming(DRIVE)
    long = timing.arrive(0.0, PAGE, PAGE)
    both = timing.arrive(0.0, PAGE - 512, 1024)
    alone = DriveTiming(DRIVE)
    assert ends(timing, both)[0] == ends(timing, long)[0] > ends(alone, alone.arrive(0.0, PAGE - 512, 512))[0]


@pytest.mark.parametrize(
    ("address", "nbytes", "message"),
    [
        (0, 0, "nbytes must be at least 1, got 0"),
        (-1, 4, "address must be .* got -1"),
        (DRIVE.capacity_bytes - 3, 4, "address must be .* got"),
    ],
)
def test_bytes_outside_the_drive(address, nbytes, message):
    timing = DriveTiming(DRIVE)
    with pytest.raises(ValueError, match=message):
        timing.arrive(0.0, address, nbytes)
    assert timing.bursts == 0


def test_too_many_page_reads():
    timing = DriveTiming(DRIVE)
    with pytest.raises(RuntimeError, match="page reads of a drive at once must be at most 4096, got 4097"):
        timing.arrive(0.0, 0, (timing.READS + 1) * PAGE)
    assert timing.bursts == 0


def test_idle_drive_does_nothing():
    timing = DriveTiming(DRIVE)
    timing.advance(timing.next_event())
    assert not timing.ends


def test_host_memory_and_drive_share_the_link():
    """Host memory answers as without a drive; the drive adds its read; writes are posted to both."""
    timing, link = PcieDriveTiming(PcieTiming(PcieLink(3, 4)), DriveTiming(DRIVE), AT), PcieTiming(PcieLink(3, 4))
    host = timing.arrive(0, 0, 4096, False)
    assert host == (link.ready(0, 0, 4096, False), 0)
    alone = answer(timing, 20_000, AT, 4096)
    assert alone > 20_000 + (READ_NS + 4096 * TRANSFER_NS) * CLOCK_MHZ / 1e3
    assert timing.arrive(alone, AT, 4096, True)[0] < alone + host[0]
    with pytest.raises(ValueError, match="drive_at must be at least 0, got -1"):
        PcieDriveTiming(link, DriveTiming(DRIVE), -1)


def test_answered_burst_is_not_open():
    timing = PcieDriveTiming(PcieTiming(PcieLink(3, 4)), DriveTiming(DRIVE), AT)
    end = answer(timing, 0, AT, 512)
    with pytest.raises(KeyError):
        timing.confirm(1, end)


def test_rate_is_that_of_the_link_or_of_the_flash():
    """Sequential bursts reach the link's rate with many in flight; few wait for the array reads of their pages."""
    link = PcieLink(3, 4)

    def rate(outstanding):
        timing = PcieDriveTiming(PcieTiming(link), DriveTiming(DRIVE), 0)
        return closed_loop(timing, addresses(DRIVE, 4096, 2000, random=False).tolist(), 4096, outstanding)[1]

    assert rate(512) == pytest.approx(link.read_gbps(link.max_read_request), rel=0.1)
    assert 16 * 4096 / (READ_NS + link.round_trip_ns + 4 * PAGE * TRANSFER_NS) < rate(16) < 16 * 4096 / READ_NS
