"""NVMe drive: channels, chips, dies, planes, page reads, and the host link.

A read is divided into flash pages, which are distributed over channels first, then over chips, dies and planes. A chip
accepts a command when it and its channel are idle. The command reads pages of one row of one die, at most one of every
plane: the oldest waiting page, and the waiting pages of its row in the other planes. The array read starts when the
command is transferred. Data that wait for a channel are transferred before new commands, and a chip is idle again when
all its data are transferred. Chips of a channel take turns.

The link transfers messages in order: the submission entry that the drive fetches, the data of a request when all its
pages are read, and the completion entry. A closed loop keeps a number of requests outstanding.

Modelled are reads only, with the translation table in memory and without a cache: fetching KV pages needs no more.
"""

from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sw_model import preset_file
from sw_model.memory.dram import splitmix64
from util import checks
from util.compiled import compiled

PRESETS = preset_file.PRESETS / "ssd"
# NVMe Base Specification: doorbell, submission queue entry, completion queue entry
DOORBELL_BYTES, SUBMISSION_BYTES, COMPLETION_BYTES = 4, 64, 16
SPACE_BYTES = 1 << 37  # addresses of random reads
COMMAND, ARRAY, DATA, TO_HOST, TO_DRIVE = range(5)  # events, by what has ended
FETCH, PAYLOAD, COMPLETION = range(3)  # messages to the host


@dataclass(frozen=True)
class Ssd:
    """Parameters of a drive.

    read_us         array read of one page in each plane of a die
    channel_gbps    transfer rate of a channel in GB/s
    command_us      command and address cycles of a read on the channel, for the first page
    plane_us        command and address cycles of every further plane of the command
    link_gbps       payload rate of the link in GB/s, in packets of `payload_bytes`
    packet_bytes    bytes of a packet on the link, without the payload
    """

    name: str
    channels: int
    chips_per_channel: int
    dies_per_chip: int
    planes_per_die: int
    page_bytes: int
    read_us: float
    channel_gbps: float
    command_us: float
    plane_us: float
    link_gbps: float
    payload_bytes: int
    packet_bytes: int

    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        counts = ("channels", "chips_per_channel", "dies_per_chip", "planes_per_die", "page_bytes", "payload_bytes")
        for key in (*counts, "packet_bytes"):
            preset_file.positive(key, getattr(self, key), self.name, zero=key == "packet_bytes", whole=True)
        for key in ("read_us", "channel_gbps", "link_gbps", "command_us", "plane_us"):
            preset_file.positive(key, getattr(self, key), self.name, zero=key in ("command_us", "plane_us"))

    @property
    def chips(self) -> int:
        """Chips on all channels."""
        return self.channels * self.chips_per_channel

    @property
    def planes(self) -> int:
        """Planes of all chips: the largest number of pages that are read at once."""
        return self.chips * self.dies_per_chip * self.planes_per_die

    @property
    def link_bytes_per_ns(self) -> float:
        """Rate of the link including packet overhead, GB/s."""
        return self.link_gbps * (self.payload_bytes + self.packet_bytes) / self.payload_bytes

    def message_ns(self, nbytes: int) -> float:
        """Time of a message with `nbytes` of payload on the link."""
        packets = max(1, -(-nbytes // self.payload_bytes))
        return (nbytes + packets * self.packet_bytes) / self.link_bytes_per_ns


@dataclass(frozen=True)
class SsdRun:
    """Result of a simulated read run.

    bandwidth_gbps  from the first request to the last completion
    steady_gbps     between a tenth and nine tenths of the completions; `bandwidth_gbps` for fewer than ten requests
    """

    bandwidth_gbps: float
    steady_gbps: float
    latency_us: NDArray[np.float64]
    bytes_moved: int


def load_ssd(name_or_path: str | Path) -> Ssd:
    """Load a drive by preset name or from a TOML file. Raises ValueError that names the invalid entry."""
    path = preset_file.find(name_or_path, PRESETS, "drive")
    values, sources = preset_file.sourced(preset_file.read(path, "drive"), f"{path}: ")
    return preset_file.build(Ssd, values | {"sources": sources}, str(path))


@compiled
def _read(first_page, offset, size, page_bytes, row, sizes, times, message_ns, qd, latency, ends):
    """Closed loop of reads in order; times in ns. `latency` is by request, `ends` in order of completion.

    row         row of page p of request r at r * (pages of a request) + p
    sizes       channels, chips of a channel, dies of a chip, planes of a die
    times       array read, command, further plane of a command, byte on the channel
    message_ns  link times: request of a submission entry, data, completion entry, doorbell and submission entry
    Events are (time, number, kind, index): `number` keeps the order of events at one time.
    """
    channels, ways, dies, planes = sizes
    read_ns, command_ns, plane_ns, byte_ns = times
    n, units = len(first_page), channels * ways * dies * planes
    per = (size + page_bytes - 2) // page_bytes + 1
    # pages: of request r from r * per on; FIFO of every plane
    bytes_of = np.zeros(n * per, np.int64)
    next_page = np.full(n * per, -1, np.int64)
    arrived = np.zeros(n * per, np.int64)
    head, tail = np.full(units, -1, np.int64), np.full(units, -1, np.int64)
    waiting = np.zeros(channels * ways, np.int64)  # pages that no command has
    # a busy chip: pages of its command, and the number of those that are not transferred
    busy = np.zeros(channels * ways, np.bool_)
    command = np.zeros((channels * ways, planes), np.int64)
    holding = np.zeros(channels * ways, np.int64)
    channel_busy, turn = np.zeros(channels, np.bool_), np.zeros(channels, np.int64)
    data = [[0 for _ in range(0)] for _ in range(channels)]
    data_head = np.zeros(channels, np.int64)
    to_host = [(0, 0) for _ in range(0)]
    to_host_head, to_drive, to_drive_head = 0, [0 for _ in range(0)], 0
    remaining, issued = np.zeros(n, np.int64), np.zeros(n)
    events = [(0.0, 0, 0, 0) for _ in range(0)]
    number, started, finished, count, die, now = 0, 0, 0, 0, 0, 0.0
    while finished < n:
        while started < n and started - finished < qd:
            issued[started] = now
            to_drive.append(started)
            if len(to_drive) - to_drive_head == 1:
                number += 1
                heappush(events, (now + message_ns[3], number, TO_DRIVE, 0))
            started += 1
        now, _, kind, index = heappop(events)
        channel = -1
        if kind == TO_DRIVE:
            r = to_drive[to_drive_head]
            to_drive_head += 1
            if to_drive_head < len(to_drive):
                number += 1
                heappush(events, (now + message_ns[3], number, TO_DRIVE, 0))
            to_host.append((FETCH, r))
            if len(to_host) - to_host_head == 1:
                number += 1
                heappush(events, (now + message_ns[0], number, TO_HOST, 0))
            continue
        if kind == TO_HOST:
            what, r = to_host[to_host_head]
            to_host_head += 1
            if what == FETCH:
                first, last = first_page[r], first_page[r] + (offset[r] + size - 1) // page_bytes
                remaining[r] = last - first + 1
                for page in range(first, last + 1):
                    k = r * per + page - first
                    low = max(offset[r], (page - first) * page_bytes)
                    bytes_of[k] = min(offset[r] + size, (page - first + 1) * page_bytes) - low
                    arrived[k] = count
                    count += 1
                    chip = page % channels * ways + page // channels % ways
                    at = page // (channels * ways)
                    unit = (chip * dies + at % dies) * planes + at // dies % planes
                    if head[unit] < 0:
                        head[unit] = k
                    else:
                        next_page[tail[unit]] = k
                    tail[unit] = k
                    waiting[chip] += 1
            elif what == COMPLETION:
                latency[r] = now - issued[r]
                ends[finished] = now
                finished += 1
            if to_host_head < len(to_host):
                number += 1
                heappush(events, (now + message_ns[to_host[to_host_head][0]], number, TO_HOST, 0))
            if what != FETCH:
                continue
        elif kind == COMMAND:
            channel = index // ways
            number += 1
            heappush(events, (now + read_ns, number, ARRAY, index))
            channel_busy[channel] = False
        elif kind == ARRAY:
            channel = index // ways
            for p in range(holding[index]):
                data[channel].append(command[index, p])
        else:
            k = index
            page = first_page[k // per] + k % per
            channel = page % channels
            chip = channel * ways + page // channels % ways
            channel_busy[channel] = False
            holding[chip] -= 1
            if holding[chip] == 0:
                busy[chip] = False
            r = k // per
            remaining[r] -= 1
            if remaining[r] == 0:
                to_host.append((PAYLOAD, r))
                to_host.append((COMPLETION, r))
                if len(to_host) - to_host_head == 2:
                    number += 1
                    heappush(events, (now + message_ns[PAYLOAD], number, TO_HOST, 0))
        # waiting data first, then commands to an idle chip; after the arrival of a request, on every channel
        for c in range(channels):
            if channel_busy[c] or (channel >= 0 and c != channel):
                continue
            if data_head[c] < len(data[c]):
                k = data[c][data_head[c]]
                data_head[c] += 1
                channel_busy[c] = True
                number += 1
                heappush(events, (now + bytes_of[k] * byte_ns, number, DATA, k))
                continue
            for _ in range(ways):
                chip = c * ways + turn[c]
                turn[c] = (turn[c] + 1) % ways
                if busy[chip] or waiting[chip] == 0:
                    continue
                busy[chip] = channel_busy[c] = True
                # the die of the oldest page: that page, and waiting pages of the same row in the other planes
                oldest = -1
                for unit in range(chip * dies * planes, (chip + 1) * dies * planes):
                    k = head[unit]
                    if k >= 0 and (oldest < 0 or arrived[k] < arrived[oldest]):
                        oldest, die = k, unit // planes
                pages = 0
                for unit in range(die * planes, (die + 1) * planes):
                    k, before = head[unit], -1
                    while k >= 0 and row[k] != row[oldest]:
                        k, before = next_page[k], k
                    if k < 0:
                        continue
                    command[chip, pages] = k
                    pages += 1
                    if before < 0:
                        head[unit] = next_page[k]
                    else:
                        next_page[before] = next_page[k]
                    if tail[unit] == k:
                        tail[unit] = before
                waiting[chip] -= pages
                holding[chip] = pages
                number += 1
                heappush(events, (now + command_ns + (pages - 1) * plane_ns, number, COMMAND, chip))
                break


def rows(pages: NDArray[np.int64], planes: int) -> NDArray[np.int64]:
    """Row of every page in its plane. A translation layer appends: rows are in the order of the first access."""
    number, first, inverse = np.unique(pages, return_index=True, return_inverse=True)
    order = np.lexsort((first, number % planes))  # by plane, then by first access
    plane = (number % planes)[order]
    start = np.searchsorted(plane, plane)
    row = np.empty(len(number), np.int64)
    row[order] = np.arange(len(number)) - start
    return row[inverse]


def read(ssd: Ssd, size: int, n: int, outstanding: int, *, random: bool = False, seed: int = 1) -> SsdRun:
    """Simulate `n` reads of `size` bytes, sequential or at random multiples of the size."""
    for name, value in (("size", size), ("n", n), ("outstanding", outstanding)):
        checks.integer(name, value, 1)
    index = np.arange(n, dtype=np.int64)
    if random:
        space = max(1, SPACE_BYTES // size)
        index = ((splitmix64(seed, n) >> np.uint64(16)) % np.uint64(space)).astype(np.int64)
    first, offset = np.divmod(index * size, ssd.page_bytes)
    pages = first[:, None] + np.arange((size + ssd.page_bytes - 2) // ssd.page_bytes + 1)
    used, row = pages <= ((offset + size - 1) // ssd.page_bytes + first)[:, None], np.zeros_like(pages)
    row[used] = rows(pages[used], ssd.planes)
    latency, ends = np.zeros(n), np.zeros(n)
    messages = (ssd.message_ns(0), ssd.message_ns(size), ssd.message_ns(COMPLETION_BYTES))
    _read(
        first, offset, size, ssd.page_bytes, row.ravel(),
        (ssd.channels, ssd.chips_per_channel, ssd.dies_per_chip, ssd.planes_per_die),
        (ssd.read_us * 1e3, ssd.command_us * 1e3, ssd.plane_us * 1e3, 1 / ssd.channel_gbps),
        (*messages, ssd.message_ns(DOORBELL_BYTES) + ssd.message_ns(SUBMISSION_BYTES)), outstanding, latency, ends,
    )  # fmt: skip
    rate, low, high = n * size / float(ends[-1]), n // 10, n * 9 // 10
    steady = (high - low) * size / float(ends[high - 1] - ends[low - 1]) if low else rate
    return SsdRun(rate, steady, latency * 1e-3, n * size)
