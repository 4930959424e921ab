"""NVMe drive: channels, chips, page reads, and the host link.

A request is divided into flash pages, which are distributed over channels first, then over chips. A chip serves one
page at a time: it reads the array into its register and holds the page until its channel has transferred the requested
bytes. The data of a request cross the link when all its pages are read; requests that are on the link at the same time
share it equally. Chips and channels serve in order of arrival. A closed loop keeps a number of requests outstanding.

Modelled are reads only, with the translation table in memory and without a cache: fetching KV pages needs no more.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sw_model import preset_file
from sw_model.memory.dram import splitmix64
from sw_model.memory.dram_kernel import compiled

PRESETS = preset_file.PRESETS / "ssd"


@dataclass(frozen=True)
class Ssd:
    """Parameters of a drive.

    `link_gbps` is the payload rate of the link in GB/s, `command_us` the time of a command without flash and link.
    """

    name: str
    channels: int
    chips_per_channel: int
    page_bytes: int
    read_us: float
    channel_gbps: float
    link_gbps: float
    command_us: float

    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for key in ("channels", "chips_per_channel", "page_bytes"):
            preset_file.positive(key, getattr(self, key), self.name, whole=True)
        for key in ("read_us", "channel_gbps", "link_gbps", "command_us"):
            preset_file.positive(key, getattr(self, key), self.name, zero=key == "command_us")

    @property
    def chips(self) -> int:
        """Chips on all channels."""
        return self.channels * self.chips_per_channel


@dataclass(frozen=True)
class SsdRun:
    """Result of a simulated read run."""

    bandwidth_gbps: float
    latency_us: NDArray[np.float64]
    bytes_moved: int


def load_ssd(name_or_path: str | Path) -> Ssd:
    """Load a drive by preset name or from a TOML file. Raises ValueError that names the invalid entry."""
    path = preset_file.find(name_or_path, PRESETS, "drive")
    values, sources = preset_file.sourced(preset_file.read(path, "drive"), f"{path}: ")
    return preset_file.build(Ssd, values | {"sources": sources}, str(path))


@compiled
def _read(first_page, offset, size, page_bytes, channels, chips, read_ps, channel_ps, link_ps, command_ps, qd, latency):
    """Closed loop of reads in order. Times in picoseconds; channel_ps and link_ps per byte. Returns the end.
    Events: (time, kind, request, page): 0 a page's array read is done, 1 its channel transfer is done. The link's fair
    share is kept as virtual bytes: a request that enters at v leaves when v + size bytes have passed."""
    n = len(first_page)
    busy = np.zeros(chips, np.bool_)
    channel_busy = np.zeros(channels, np.bool_)
    crossing = [(0.0, 0) for _ in range(0)]
    virtual, since = 0.0, 0.0
    chip_queue = [[(0, 0) for _ in range(0)] for _ in range(chips)]
    chip_head = np.zeros(chips, np.int64)
    channel_queue = [[(0.0, 0, 0) for _ in range(0)] for _ in range(channels)]
    remaining = np.zeros(n, np.int64)
    issued = np.zeros(n)
    events = [(0.0, 0, 0, 0) for _ in range(0)]
    started, finished, now = 0, 0, 0.0
    while finished < n:
        while started < n and started - finished < qd:
            r = started
            started += 1
            issued[r] = now
            last_page = (offset[r] + size - 1) // page_bytes
            remaining[r] = last_page + 1
            for p in range(last_page + 1):
                page = first_page[r] + p
                chip = page % chips
                chip_queue[chip].append((r, page))
                if not busy[chip]:
                    busy[chip] = True
                    q, g = chip_queue[chip][chip_head[chip]]
                    chip_head[chip] += 1
                    heappush(events, (now + command_ps + read_ps, 0, q, g))
        if len(crossing) > 0:
            leave = since + (crossing[0][0] - virtual) * len(crossing) * link_ps
            if len(events) == 0 or leave <= events[0][0]:
                now = leave
                virtual, since = crossing[0][0], now
                _, r = heappop(crossing)
                latency[r] = now - issued[r]
                finished += 1
                continue
        now, kind, r, page = heappop(events)
        chip, channel = page % chips, page % channels
        if kind == 0:
            heappush(channel_queue[channel], (now, r, page))
        else:
            channel_busy[channel] = False
            if chip_head[chip] < len(chip_queue[chip]):
                q, g = chip_queue[chip][chip_head[chip]]
                chip_head[chip] += 1
                heappush(events, (now + read_ps, 0, q, g))
            else:
                busy[chip] = False
            remaining[r] -= 1
            if remaining[r] == 0:
                if len(crossing) > 0:
                    virtual += (now - since) / (len(crossing) * link_ps)
                since = now
                heappush(crossing, (virtual + size, r))
        if not channel_busy[channel] and len(channel_queue[channel]) > 0:
            _, q, g = heappop(channel_queue[channel])
            low = max(offset[q], (g - first_page[q]) * page_bytes)
            high = min(offset[q] + size, (g - first_page[q] + 1) * page_bytes)
            channel_busy[channel] = True
            heappush(events, (now + (high - low) * channel_ps, 1, q, g))
    return now


def read(ssd: Ssd, size: int, n: int, outstanding: int, *, random: bool = False, seed: int = 1) -> SsdRun:
    """Simulate `n` reads of `size` bytes, sequential or at random multiples of the size."""
    if size < 1 or n < 1 or outstanding < 1:
        raise ValueError(f"size, n and outstanding must be positive, got {size}, {n} and {outstanding}")
    index = np.arange(n, dtype=np.int64)
    if random:
        space = max(1, (1 << 37) // size)
        index = ((splitmix64(seed, n) >> np.uint64(16)) % np.uint64(space)).astype(np.int64)
    first, offset = np.divmod(index * size, ssd.page_bytes)
    latency = np.zeros(n)
    end = _read(
        first, offset, size, ssd.page_bytes, ssd.channels, ssd.chips, ssd.read_us * 1e6, 1e3 / ssd.channel_gbps,
        1e3 / ssd.link_gbps, ssd.command_us * 1e6, outstanding, latency,
    )  # fmt: skip
    return SsdRun(bandwidth_gbps=n * size / end * 1e3, latency_us=latency * 1e-6, bytes_moved=n * size)
