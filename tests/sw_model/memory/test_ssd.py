"""The drive model compared with MQSim and with values computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sw_model.memory.ssd import (
    FAR,
    _arrive,
    _end_event,
    _next_event,
    addresses,
    load_ssd,
    new_flash,
    read,
    rows,
    start_idle,
)

DATA = json.loads((Path(__file__).parent / "data" / "ssd.json").read_text())["tests"]
DRIVES = {"bg6_like_pcie3x4_64units": "bg6-like", "bg6_like_pcie3x4": "bg6-like-16-dies"}
LINK_MBPS = 3100  # rate from which the link is the limit


def errors(tests):
    """Relative errors of bandwidth and mean latency."""
    rows = []
    for test in tests:
        ssd = load_ssd(DRIVES[test["config"]])
        r = read(ssd, test["size_KiB"] * 1024, test["n"], test["qd"], random=test["pattern"] != "STREAMING")
        bandwidth = r.bandwidth_gbps * 1e3 / test["result"]["bw_MBps"] - 1
        rows.append((bandwidth, r.latency_us.mean() / test["result"]["lat_us"]["avg"] - 1))
    return np.abs(np.array(rows))


@pytest.mark.parametrize("config", DRIVES)
def test_reference_table(config):
    """All runs of both drives, with the addresses of the reference. It is rounded to 0.1 MB/s and 10 ns."""
    tests = [test for test in DATA if test["config"] == config]
    assert len(tests) == 84
    assert errors(tests).max() <= 3e-4


def test_one_read_by_hand():
    """Doorbell, fetch and transfer of the submission entry, command, array, channel, data and completion entry."""
    ssd = load_ssd("bg6-like")
    one = read(ssd, 16384, 1, 1).latency_us[0]
    packet, raw = 28, ssd.link_gbps * 156 / 128
    messages = (4 + packet, 4 + packet, 72 + packet, 16384 + 128 * packet, 16 + packet)
    link = sum(int(nbytes / raw) for nbytes in messages) / 1e3
    assert one == pytest.approx(0.29 + 50 + 0.02 + 16384 / 2e3 + link)
    assert ssd.message_ns(16384) == int(16384 / ssd.link_gbps)


def read_pages(ssd, pages, rows):
    """Ends in us of page reads of 10,000 bytes that arrive together."""
    flash, ends = new_flash(ssd, len(pages)), np.zeros(len(pages))
    for owner, (page, row) in enumerate(zip(pages, rows, strict=True)):
        _arrive(flash, page, row, 10000, owner)
    start_idle(flash, 0)
    while flash[9][event := _next_event(flash)] < FAR:
        now = flash[9][event]
        owner = _end_event(flash, event)
        if owner >= 0:
            ends[owner] = now / 1e3
        start_idle(flash, now)
    return ends


def two_pages(ssd, second):
    """End of the first page and of page `second`, which arrive together, without the link."""
    ssd = replace(ssd, channel_gbps=1.0, command_us=1.0, plane_us=2.0, read_us=100.0, ready_us=0.0)
    return read_pages(ssd, [0, second], [0, second // ssd.planes]).max()


def test_commands_channels_and_planes_by_hand():
    """Array 100 us, transfer of 10 us, command of 1 us; pages go to channels, chips, dies and planes."""
    ssd = load_ssd("bg6-like-16-dies")
    other_channel, other_chip, other_die = 1, 4, 4 * 2
    assert two_pages(ssd, other_channel) == pytest.approx(1 + 100 + 10)
    # the second command follows the first one on the channel, and its data wait for the channel
    assert two_pages(ssd, other_chip) == pytest.approx(1 + 100 + 10 + 10)
    # a chip executes one command at a time; data that wait go first
    assert two_pages(ssd, other_die) == pytest.approx(2 * (1 + 100 + 10))
    # a page of the same plane needs a second command
    assert two_pages(ssd, ssd.planes) == pytest.approx(2 * (1 + 100 + 10))


@pytest.mark.parametrize(("planes", "commands"), [(1, 4), (2, 2), (4, 1)])
def test_one_command_reads_a_page_of_every_plane(planes, commands):
    """A read of four pages of one die: 100 us for each command, 2 us for each further plane, 10 us for each page."""
    ssd = replace(
        load_ssd("bg6-like"), channels=1, chips_per_channel=1, dies_per_chip=1, planes_per_die=planes, page_bytes=10240,
        read_us=100.0, ready_us=0.0, channel_gbps=1.024, command_us=1.0, plane_us=2.0, link_gbps=1e9,
    )  # fmt: skip
    want = commands * (1 + (planes - 1) * 2 + 100 + planes * 10)
    assert read(ssd, 40960, 1, 1).latency_us[0] == pytest.approx(want)


def test_data_of_a_command_are_transferred_in_the_order_of_arrival():
    """Four pages of one row, the last plane first: a command of 1 + 3 * 2 us, then 10 us for each page."""
    ssd = replace(
        load_ssd("bg6-like-16-dies"), channel_gbps=1.0, command_us=1.0, plane_us=2.0, read_us=100.0, ready_us=0.0
    )
    die_stride = ssd.chips * ssd.dies_per_chip
    ends = read_pages(ssd, [3 * die_stride, die_stride, 0, 2 * die_stride], [5, 5, 5, 5])
    assert ends.tolist() == [117, 127, 137, 147]
    # pages of another row need commands of their own
    ends = read_pages(ssd, [3 * die_stride, die_stride, 0, 2 * die_stride], [5, 6, 5, 6])
    assert ends.tolist() == [113, 236, 123, 246]


def test_addresses_are_multiples_in_the_first_half_of_the_drive():
    ssd = load_ssd("bg6-like")
    assert ssd.capacity_bytes == 64 * int(256 * 768 * 32 * 0.93) * 512
    for size in (4096, 12288, 1 << 20):
        at = addresses(ssd, size, 2000, random=True)
        assert (at % size == 0).all() and at.min() >= 0 and at.max() < ssd.capacity_bytes / 2
        assert len(np.unique(at)) > 1900 and np.mean(at) == pytest.approx(ssd.capacity_bytes / 4, rel=0.05)
        assert np.diff(addresses(ssd, size, 50, random=False)).tolist() == [size] * 49
        assert addresses(ssd, size, 1, random=False) == at[0] != addresses(ssd, size, 1, random=False, seed=1)


def test_a_drive_with_half_the_dies_has_half_the_space():
    """The address space follows the description; so do the random addresses."""
    ssd = load_ssd("bg6-like-16-dies")
    half = replace(ssd, dies_per_chip=1)
    assert 2 * half.capacity_bytes == ssd.capacity_bytes
    assert addresses(half, 4096, 100, random=True).max() < half.capacity_bytes / 2


def test_rows_are_in_the_order_of_first_access():
    """Pages 8 and 0 of eight planes are in plane 0; page 8 is read first."""
    assert rows(np.array([8, 0, 1, 8, 9, 16]), 8).tolist() == [0, 1, 0, 0, 1, 2]


def test_steady_rate_leaves_out_start_and_end():
    """Few short reads: the rate from first to last is low, the steady one is that of many reads."""
    ssd = load_ssd("bg6-like")
    few, many = (read(ssd, 4096, n, 256, random=True) for n in (1000, 20000))
    assert few.steady_gbps == pytest.approx(many.bandwidth_gbps, rel=0.04)
    assert few.bandwidth_gbps < 0.95 * few.steady_gbps
    assert read(ssd, 4096, 5, 1).steady_gbps == read(ssd, 4096, 5, 1).bandwidth_gbps


def test_link_and_chips_bound():
    ssd = load_ssd("bg6-like")
    assert read(ssd, 1 << 20, 200, 16).bandwidth_gbps <= ssd.link_gbps
    slow = replace(ssd, read_us=500.0)
    iops = 4000 / (read(slow, 4096, 4000, 256, random=True).bandwidth_gbps * 1e9 / 4096)
    assert iops >= 4000 * 500e-6 / ssd.chips


def test_bad_input():
    with pytest.raises(ValueError, match="drive must be one of"):
        load_ssd("floppy")
    with pytest.raises(ValueError, match="read_us"):
        replace(load_ssd("bg6-like"), read_us=0.0)
    for name, arguments in {"size": (0, 1, 1), "n": (4096, 0, 1), "outstanding": (4096, 1, 0)}.items():
        with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
            read(load_ssd("bg6-like"), *arguments)
    with pytest.raises(ValueError, match="size must be a multiple of the sector of 512 bytes, got 100"):
        read(load_ssd("bg6-like"), 100, 1, 1)
    with pytest.raises(ValueError, match="seed must be at least 0, got -1"):
        read(load_ssd("bg6-like"), 4096, 1, 1, random=True, seed=-1)
    for key in ("dies_per_chip", "planes_per_die"):
        with pytest.raises(ValueError, match=f"{key} must be positive, got 0"):
            replace(load_ssd("bg6-like"), **{key: 0})
    with pytest.raises(ValueError, match="page_bytes must be a multiple of 512, got 10000"):
        replace(load_ssd("bg6-like"), page_bytes=10000)
    with pytest.raises(ValueError, match=r"spare_share must be below 1, got 1\.0"):
        replace(load_ssd("bg6-like"), spare_share=1.0)
    with pytest.raises(ValueError, match=r"size must be at most half of the .* bytes of .*, got 100000000000"):
        read(load_ssd("bg6-like"), 10**11, 1, 1)
