"""The drive model compared with MQSim and with values computed by hand."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sw_model.memory.ssd import load_ssd, read

DATA = json.loads((Path(__file__).parent / "data" / "ssd.json").read_text())["tests"]


def test_reference_table():
    ssd = load_ssd("bg6-like")
    bandwidth, latency = [], []
    for test in DATA:
        random = test["pattern"] != "STREAMING"
        r = read(ssd, test["size_KiB"] * 1024, test["n"], test["qd"], random=random)
        bandwidth.append(r.bandwidth_gbps * 1e3 / test["result"]["bw_MBps"] - 1)
        latency.append(r.latency_us.mean() / test["result"]["lat_us"]["avg"] - 1)
    assert len(DATA) == 84
    assert np.abs(bandwidth).mean() <= 0.04 and np.abs(latency).mean() <= 0.04
    assert np.abs(bandwidth).max() <= 0.30


def test_one_read_by_hand():
    ssd = load_ssd("bg6-like")
    one = read(ssd, 16384, 1, 1).latency_us[0]
    assert one == pytest.approx(ssd.command_us + 50 + 16384 / 2e3 + 16384 / (ssd.link_gbps * 1e3))


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
    with pytest.raises(ValueError, match="size"):
        read(load_ssd("bg6-like"), 0, 1, 1)
