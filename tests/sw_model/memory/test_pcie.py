"""The PCIe closed form and event model compared with pcie-bench and published measurements."""

import json
from pathlib import Path

import pytest

from sw_model.memory.live import PcieTiming
from sw_model.memory.pcie import PcieLink, transfer

DATA = json.loads((Path(__file__).parent / "data" / "pcie.json").read_text())


def link(row, **more):
    generation, lanes = row["link"].removeprefix("gen").split("x")
    return PcieLink(int(generation), int(lanes), max_payload=row["mps"], max_read_request=row["mrrs"], **more)


@pytest.mark.parametrize("row", DATA["tables"], ids=lambda r: f"{r['link']}-{r['mps']}-{r['mrrs']}")
def test_tables(row):
    for size, gbps in row["read"].items():
        assert link(row).read_gbps(int(size)) == pytest.approx(gbps, rel=1e-3)
    for size, gbps in row["read_rcb64"].items():
        assert link(row, rcb64=True).read_gbps(int(size)) == pytest.approx(gbps, rel=1e-3)
    for size, gbps in row["write"].items():
        assert link(row).write_gbps(int(size)) == pytest.approx(gbps, rel=1e-3)


def test_tag_limits():
    for row in DATA["tag_limited"]:
        one = link(row, tags=row["tags"], round_trip_ns=row["rtt_ns"])
        assert min(one.read_gbps(4096), one.tag_limit_gbps()) == pytest.approx(row["GBps"], rel=1e-3)


def test_published_measurements_are_bracketed():
    """Intel AN 690, Gen3 x8, payload 256: 7.1 GB/s writes, 7.0 GB/s reads; the data-link overhead of the
    specification's tables is what it recommends at most."""
    one = PcieLink(3, 8)
    raw_read = one.raw_gbps * 4096 / one.read_wire_bytes(4096)
    raw_write = one.raw_gbps * 4096 / one.write_wire_bytes(4096)
    assert one.read_gbps(4096) < 7.0 < raw_read
    assert one.write_gbps(4096) < 7.1 < raw_write


@pytest.mark.parametrize("tags", [8, 32, 256])
def test_event_model_meets_the_closed_form(tags):
    one = PcieLink(4, 16, tags=tags, round_trip_ns=1000.0, descriptor_ns=0.0)
    t = transfer(one, 4 << 20, unit=4096)
    assert t.gbps == pytest.approx(min(one.fetch_gbps(4096), one.tag_limit_gbps()), rel=0.03)
    assert t.bytes_delivered == 4 << 20 and t.most_in_flight <= tags


def test_credits_bound_the_event_model():
    """Receive buffers of 16 kB over one microsecond carry at most 16 GB/s."""
    one = PcieLink(4, 16, round_trip_ns=1000.0, descriptor_ns=0.0)
    t = transfer(one, 4 << 20, unit=4096, buffer_bytes=16384)
    assert t.gbps <= 16.4 and t.gbps == pytest.approx(16.4, rel=0.05)


def test_small_units_are_descriptor_bound():
    one = PcieLink(3, 4)
    assert one.fetch_gbps(128) < one.fetch_gbps(4096) < one.read_gbps(4096) < one.raw_gbps
    assert one.dma_ns(1 << 20, 16384) > (1 << 20) / one.read_gbps(4096)


@pytest.mark.parametrize(
    "bad",
    [{"generation": 9}, {"lanes": 3}, {"max_payload": 100}, {"max_read_request": 8192}, {"tags": 0},
     {"round_trip_ns": -1.0}, {"max_read_request": 300}, {"max_read_request": 64}, {"max_payload": 8192},
     {"tags": 769}, {"descriptor_ns": -1.0}, {"lanes": 32}],
)  # fmt: skip
def test_bad_links(bad):
    ((key, value),) = bad.items()
    with pytest.raises(ValueError, match=f"{key} must be .*, got {value}"):
        PcieLink(**({"generation": 3, "lanes": 4} | bad))


def test_unaligned_reads():
    """A first completion ends at the boundary of 64 bytes; no request crosses 4 KiB."""
    one = PcieLink(3, 4)
    assert one.completions(512) == 2 == one.completions(512, 4096)
    assert one.completions(512, 32) == 3  # 32, 256 and 224 bytes
    assert one.completions(64, 32) == 2
    assert list(one.requests(512, 4000)) == [(4000, 96), (4096, 416)]
    assert one.completions(512, 4000) == 2 + 2  # 32 and 64 bytes; 256 and 160 bytes
    assert one.read_wire_bytes(512, 4000) == 512 + 4 * 20 and one.request_wire_bytes(512, 4000) == 2 * 24
    assert one.write_wire_bytes(256, 4000) == 256 + 2 * 24 > one.write_wire_bytes(256)
    assert PcieLink(3, 4, rcb64=True).completions(128, 32) == 3
    aligned, unaligned = (PcieTiming(one).ready(0, address, 4096, False) for address in (0, 32))
    assert unaligned > aligned


def test_sizes_that_are_no_bytes_are_rejected():
    one = PcieLink(3, 4)
    for call in (one.completions, one.read_wire_bytes, one.write_wire_bytes, one.request_wire_bytes, one.fetch_gbps):
        with pytest.raises(ValueError, match="size must be at least 1, got 0"):
            call(0)
    with pytest.raises(ValueError, match="address must be at least 0, got -64"):
        one.completions(64, -64)


def test_steady_rate_is_the_closed_form_at_small_units():
    """The rate of a short transfer includes the round trip of its first request; the steady rate does not."""
    one = PcieLink(3, 4, descriptor_ns=0.0)
    short = transfer(one, 1 << 17, unit=4096)
    assert short.steady_gbps == pytest.approx(one.fetch_gbps(4096), rel=0.01)
    assert short.gbps < 0.99 * short.steady_gbps
    assert transfer(one, 4096, unit=4096).steady_gbps == transfer(one, 4096, unit=4096).gbps


def test_requests_of_a_read():
    """4 KiB in requests of 512 bytes: eight headers of 12 bytes, each in a packet."""
    one = PcieLink(3, 4)
    assert one.request_wire_bytes(4096) == 4096 // one.max_read_request * one.request_wire_bytes(1)


def test_transfers_that_cannot_be():
    with pytest.raises(ValueError, match="size and unit must be positive, got 0 and 4096"):
        transfer(PcieLink(3, 4), 0, unit=4096)
    with pytest.raises(ValueError, match="buffer_bytes must be at least one request of"):
        transfer(PcieLink(3, 4), 1 << 20, unit=4096, buffer_bytes=8)
