"""The drive model compared with MQSim and with values computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sw_model.memory.ssd import _read, load_ssd, read, rows

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


@pytest.mark.parametrize(("config", "mean", "largest"), [
    ("bg6_like_pcie3x4_64units", 0.01, 0.06),
    ("bg6_like_pcie3x4", 0.02, 0.18),
])  # fmt: skip
def test_reference_table(config, mean, largest):
    """Both drives; the largest errors are at random reads of one die's planes with many requests in flight."""
    tests = [test for test in DATA if test["config"] == config]
    assert len(tests) == 84
    all_errors = errors(tests)
    assert (all_errors.mean(0) <= mean).all() and all_errors[:, 0].max() <= largest
    flash = errors([test for test in tests if test["result"]["bw_MBps"] < LINK_MBPS])
    assert len(flash) > 40 and (flash.mean(0) <= mean).all()


def test_one_read_by_hand():
    """Doorbell, submission entry and its request, command, array, channel, data and completion entry on the link."""
    ssd = load_ssd("bg6-like")
    one = read(ssd, 16384, 1, 1).latency_us[0]
    packet, raw = 28, ssd.link_gbps * 156 / 128
    messages = (4 + packet) + packet + (64 + packet) + (16 + packet)
    link = (messages + 16384 + 128 * packet) / (raw * 1e3)
    assert one == pytest.approx(0.29 + 50 + 16384 / 2e3 + link)
    assert ssd.message_ns(16384) == pytest.approx(16384 / ssd.link_gbps)


def two_pages(ssd, second):
    """End of two reads of a page each that arrive together, without the link: the first page and page `second`."""
    ssd = replace(ssd, link_gbps=1e9, channel_gbps=1.0, command_us=1.0, plane_us=2.0, read_us=100.0)
    latency, ends = np.zeros(2), np.zeros(2)
    pages = np.array([0, second])
    _read(
        pages, np.zeros(2, np.int64), 10000, ssd.page_bytes, np.array([0, second // ssd.planes]),
        (ssd.channels, ssd.chips_per_channel, ssd.dies_per_chip, ssd.planes_per_die),
        (100e3, 1e3, 2e3, 1.0), (0.0, 0.0, 0.0, 0.0), 2, latency, ends,
    )  # fmt: skip
    return ends[-1] / 1e3


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
        load_ssd("bg6-like"), channels=1, chips_per_channel=1, dies_per_chip=1, planes_per_die=planes, page_bytes=10000,
        read_us=100.0, channel_gbps=1.0, command_us=1.0, plane_us=2.0, link_gbps=1e9,
    )  # fmt: skip
    want = commands * (1 + (planes - 1) * 2 + 100 + planes * 10)
    assert read(ssd, 40000, 1, 1).latency_us[0] == pytest.approx(want)


def test_rows_are_in_the_order_of_first_access():
    """Pages 8 and 0 of eight planes are in plane 0; page 8 is read first."""
    assert rows(np.array([8, 0, 1, 8, 9, 16]), 8).tolist() == [0, 1, 0, 0, 1, 2]


def test_steady_rate_leaves_out_start_and_end():
    """Few short reads: the rate from first to last is low, the steady one is that of many reads."""
    ssd = load_ssd("bg6-like")
    few, many = (read(ssd, 4096, n, 64, random=True) for n in (1000, 20000))
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
    for key in ("dies_per_chip", "planes_per_die"):
        with pytest.raises(ValueError, match=f"{key} must be positive, got 0"):
            replace(load_ssd("bg6-like"), **{key: 0})
