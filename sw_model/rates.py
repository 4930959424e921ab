"""Bandwidths of the memory system in one run: device memory, host link and drive."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

import numpy as np

from sw_model.assumptions import LINKS, Assumptions
from sw_model.core_ports import keys_bytes_per_s, load_bytes_per_s
from sw_model.memory.dram import Trace, pattern, replay
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd, read
from sw_model.policies import Work
from sw_model.policies.base import BF16_BYTES
from sw_model.systems import System
from util import checks

READS = 4096  # of a replay


@dataclass(frozen=True)
class Rates:
    """Bytes per second of the memory system in one run.

    dram_stream  device memory, long sequential reads
    dram_kv      device memory, reads of attended KV
    link         host link
    storage      drive behind the link; None where nothing behind the link is slower than the link
    fetch_bytes  bytes that one layer fetches over the link (a size, not a rate)
    """

    assume: Assumptions
    dram_stream: float
    dram_kv: float
    link: float
    storage: float | None
    fetch_bytes: int


@lru_cache(maxsize=256)
def ssd_bytes_per_s(extent: int) -> float:
    """Useful rate of the drive's flash for reads of `extent` bytes, 64 outstanding, in blocks of 4 KiB.

    It is the steady rate, without the first and the last reads. The link of the drive preset is left out, because the
    drive sits behind the link of the system.
    """
    drive, block_bytes = load_ssd("bg6-like"), ceil(extent / 4096) * 4096
    drive = replace(drive, link_gbps=drive.channels * drive.channel_gbps)
    return read(drive, block_bytes, 4000, 64, random=True).steady_gbps * 1e9 * extent / block_bytes


@lru_cache(maxsize=256)
def dram_share(memory: str, unit: int, nbytes: int) -> float:
    """Share of the peak bandwidth for `nbytes` read in scattered pieces of `unit` bytes, 256 outstanding.

    The reads are replayed bank by bank; of more than 64 MiB only the first 64 MiB, because the share is constant then.
    """
    spec = load_memory(memory)
    nbytes = min(nbytes, 1 << 26)
    unit = max(spec.burst_bytes, unit // spec.burst_bytes * spec.burst_bytes)
    return replay(spec, pattern(spec, "rand", unit, max(1, nbytes // unit), outstanding=256)).share


@lru_cache(maxsize=256)
def page_share(memory: str, page_bytes: int, slot_bytes: int, slots: int) -> float:
    """Share of the peak bandwidth for reads of the keys, or of the values, of one KV head in pages with `slots` tokens.

    The reads are replayed bank by bank. With few tokens in a page they go to few channels and bank groups.
    """
    spec, pages = load_memory(memory), READS // slots
    address = np.arange(pages)[:, None] * page_bytes + np.arange(slots) * slot_bytes
    reads, nothing = address.size, np.zeros(address.size, np.int64)
    trace = Trace(
        address.ravel(), slot_bytes // 2, nothing.astype(np.uint8), nothing.astype(np.int32), nothing, np.array([reads])
    )
    return replay(spec, trace).share


def rates_of(
    system: System, link: str, work: Work, assume: Assumptions, batch: int, retained: float, memory_detail: bool
) -> Rates:
    """Rates of a system for the work of one layer.

    link           `paper`: an accelerator has the nominal rate of V-Rex Table I; `realistic`: it has the packet model
                   with a drive or host memory behind it. A GPU is a real machine and has the packet model in both.
    retained       share of the fetched KV that is in device memory already
    memory_detail  the reads of attended KV are replayed bank by bank

    Raises ValueError for an unknown link preset.
    """
    checks.one_of("link", link, LINKS)
    memory = load_memory(system.memory)
    peak = system.device_memory.peak_gbps * 1e9
    stream = kv = peak * memory.stream_share
    if system.core:
        stream, kv = load_bytes_per_s(system), keys_bytes_per_s(system, encoded=assume.kv_bits < 16)
        if work.page_slots:
            slot_bytes = 2 * BF16_BYTES * system.core.config.head_dim
            page_bytes = slot_bytes * system.core.config.page_tokens * system.core.config.kv_heads
            kv = min(stream, peak * page_share(system.memory, page_bytes, slot_bytes, round(work.page_slots)))
    extent = max(64, round(work.extent_bytes))
    if memory_detail and work.attend_read_bytes:
        kv = min(stream, peak * dram_share(system.memory, min(extent, 1 << 17), round(work.attend_read_bytes / batch)))
    fetch = round(work.fetch_bytes * (1 - retained))
    if (link == "paper" and system.core) or not fetch:
        return Rates(assume, stream, kv, system.link.nominal_gbps * 1e9, None, fetch)
    pcie = PcieLink(system.link.generation, system.link.lanes)
    if system.link.behind == "ssd":  # the drive writes the requested data into the device memory
        return Rates(assume, stream, kv, pcie.write_gbps(4096) * 1e9, ssd_bytes_per_s(min(extent, 1 << 19)), fetch)
    return Rates(assume, stream, kv, pcie.fetch_gbps(min(extent, 1 << 20)) * 1e9, None, fetch)
