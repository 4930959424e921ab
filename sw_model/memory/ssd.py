"""NVMe drive: channels, chips, dies, planes, page reads, and the host link.

A read is divided into flash pages, which are distributed over channels first, then over chips, dies and planes. A chip
accepts a command when it and its channel are idle. The command reads pages of one row of one die, at most one of every
plane: the oldest waiting page, and the waiting pages of its row in the other planes. Pages of a row have the same
number in their blocks. The array read starts when the
command is transferred. Data that wait for a channel are transferred before new commands, and a chip is idle again when
all its data are transferred. Chips of a channel take turns.

The link transfers messages in order in each direction. To the drive: the doorbell of a new request, the submission
entry that the drive fetches, and the doorbell of a completion. To the host: the request of a submission entry, the
data of a request when all its pages are read, and the completion entry. A closed loop keeps a number of requests
outstanding.

Modelled are reads only, with the translation table in memory and without a cache: fetching KV pages needs no more.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sw_model import preset_file
from util import checks
from util.compiled import inlined, unowned

PRESETS = preset_file.PRESETS / "ssd"
# request of a submission entry (as MQSim counts it); doorbell and completion entry of the NVMe Base Specification
REQUEST_BYTES, DOORBELL_BYTES, COMPLETION_BYTES = 4, 4, 16
SECTOR_BYTES = 512
# messages: direction, then kind. The data of a request have its size.
TO_HOST, TO_DRIVE = range(2)
FETCH, PAYLOAD, COMPLETION = range(3)
DOORBELL, ENTRY, HEAD = range(3)
# page reads: chip, plane (numbered over all chips), row, bytes, owner, order of arrival, next one of a queue
R_CHIP, R_PLANE, R_ROW, R_BYTES, R_OWNER, R_ORDER, R_NEXT, N_READ = range(8)
# channels: turn of the chips, queue of data that wait, what is transferred (a page read, or a command to a chip)
C_TURN, C_FIRST, C_LAST, C_KIND, C_INDEX, N_CHANNEL = range(6)
IDLE, COMMAND, DATA = range(3)
# chips: page reads without a command, page reads of the command, those of them that are not transferred
H_WAITING, H_COMMAND, H_HELD, N_CHIP = range(4)
NONE, FAR = -1, 1 << 60
# combined multiple recursive generator MRG32k3a (L'Ecuyer, Operations Research 47, 1999): steps and moduli
GENERATOR_STEPS = np.array(
    [[[0, 1, 0], [0, 0, 1], [-810728, 1403580, 0]], [[0, 1, 0], [0, 0, 1], [-1370589, 0, 527612]]], np.int64
)
GENERATOR_MODULI = (4294967087, 4294944443)
REFERENCE_SEED = 799  # of the addresses in the recorded runs of MQSim


@dataclass(frozen=True)
class Ssd:
    """Parameters of a drive.

    blocks_per_plane, pages_per_block
                     blocks of a plane, flash pages of a block
    spare_share      share of the pages that the drive keeps for itself
    read_us          array read of one page in each plane of a die
    ready_us         time until the chip signals that the array read is done
    channel_gbps     transfer rate of a channel in GB/s
    command_us       command and address cycles of a read on the channel, for the first page
    plane_us         command and address cycles of every further plane of the command
    link_gbps        payload rate of the link in GB/s, in packets of `payload_bytes`
    packet_bytes     bytes of a packet on the link, without the payload
    submission_bytes bytes of a submission queue entry
    """

    name: str
    channels: int
    chips_per_channel: int
    dies_per_chip: int
    planes_per_die: int
    blocks_per_plane: int
    pages_per_block: int
    spare_share: float
    page_bytes: int
    read_us: float
    ready_us: float
    channel_gbps: float
    command_us: float
    plane_us: float
    link_gbps: float
    payload_bytes: int
    packet_bytes: int
    submission_bytes: int

    sources: dict[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        counts = ("channels", "chips_per_channel", "dies_per_chip", "planes_per_die", "blocks_per_plane")
        for key in (*counts, "pages_per_block", "page_bytes", "payload_bytes", "packet_bytes", "submission_bytes"):
            preset_file.positive(key, getattr(self, key), self.name, zero=key == "packet_bytes", whole=True)
        for key in ("read_us", "channel_gbps", "link_gbps"):
            preset_file.positive(key, getattr(self, key), self.name)
        for key in ("ready_us", "command_us", "plane_us", "spare_share"):
            preset_file.positive(key, getattr(self, key), self.name, zero=True)
        if self.page_bytes % SECTOR_BYTES:
            raise ValueError(f"page_bytes must be a multiple of {SECTOR_BYTES}, got {self.page_bytes}")
        if self.spare_share >= 1:
            raise ValueError(f"spare_share must be below 1, got {self.spare_share}")

    @property
    def chips(self) -> int:
        """Chips on all channels."""
        return self.channels * self.chips_per_channel

    @property
    def planes(self) -> int:
        """Planes of all chips: the largest number of pages that are read at once."""
        return self.chips * self.dies_per_chip * self.planes_per_die

    @property
    def capacity_bytes(self) -> int:
        """Bytes that the host can use, in whole sectors of every plane."""
        sectors = self.blocks_per_plane * self.pages_per_block * self.page_bytes // SECTOR_BYTES
        return self.planes * int(sectors * (1 - self.spare_share)) * SECTOR_BYTES

    @property
    def link_bytes_per_ns(self) -> float:
        """Rate of the link including packet overhead, GB/s."""
        return self.link_gbps * (self.payload_bytes + self.packet_bytes) / self.payload_bytes

    def message_ns(self, nbytes: int) -> int:
        """Time of a message with `nbytes` of payload on the link, in whole ns as in MQSim."""
        packets = max(1, -(-nbytes // self.payload_bytes))
        return int((nbytes + packets * self.packet_bytes) / self.link_bytes_per_ns)


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


F_ENDS = 9  # of the arrays of `new_flash`: ends of events


def new_flash(ssd: Ssd, reads: int) -> tuple[NDArray[np.generic], ...]:
    """State of idle flash with at most `reads` page reads, and of an idle link, for the compiled functions.

    The second array has the times in ns of an array read, a command, a further plane, and a byte on the channel.
    """
    events = ssd.channels + ssd.chips + 2
    return (
        np.array([ssd.channels, ssd.chips_per_channel, ssd.dies_per_chip, ssd.planes_per_die]),
        np.array([1e3 * (ssd.read_us + ssd.ready_us), 1e3 * ssd.command_us, 1e3 * ssd.plane_us, 1 / ssd.channel_gbps]),
        np.zeros((reads, N_READ), np.int64),
        np.arange(reads),  # places of page reads; the free ones are in front
        np.array([reads, 0, 0]),  # free places, page reads that have arrived, events that have been set
        np.full((ssd.planes, 2), NONE),  # first and last page read of a plane without a command
        np.zeros((ssd.chips, N_CHIP), np.int64),
        np.zeros((ssd.chips, ssd.planes_per_die), np.int64),  # page reads of the command of a chip
        np.tile(np.array([0, NONE, NONE, IDLE, NONE]), (ssd.channels, 1)),
        np.full(events, FAR),  # end of each channel's transfer, each chip's array read, each direction's message, ns
        np.zeros(events, np.int64),  # order of events that end at one time
        np.full(ssd.planes, NONE),  # order of arrival of the page read whose page is in the register of a plane
    )


@inlined
def _set_event(flash, event, at):
    count, ends, order = flash[4], flash[F_ENDS], flash[10]
    ends[event], order[event] = at, count[2]
    count[2] += 1


@unowned
def _next_event(flash):
    ends, order = flash[F_ENDS], flash[10]
    first = 0
    for event in range(1, len(ends)):
        if ends[event] < ends[first] or (ends[event] == ends[first] and order[event] < order[first]):
            first = event
    return first


@inlined
def _append(reads, queue, first, last, k):
    """Append page read k to a queue."""
    reads[k, R_NEXT] = NONE
    if queue[first] == NONE:
        queue[first] = k
    else:
        reads[queue[last], R_NEXT] = k
    queue[last] = k


@inlined
def _chip_and_plane(sizes, page):
    """Chip of a page, and its plane, numbered over all chips."""
    channels, ways, dies, planes = sizes
    chip = page % channels * ways + page // channels % ways
    at = page // (channels * ways)
    return chip, (chip * dies + at % dies) * planes + at // dies % planes


@unowned
def _arrive(flash, page, row, nbytes, owner):
    """A page read arrives; `start_idle` starts it. Returns its place in the array of page reads."""
    sizes, _, reads, places, count, queues, chips = flash[:7]
    count[0] -= 1
    k = places[count[0]]
    chip, plane = _chip_and_plane(sizes, page)
    reads[k, R_CHIP], reads[k, R_PLANE], reads[k, R_ROW] = chip, plane, row
    reads[k, R_BYTES], reads[k, R_OWNER], reads[k, R_ORDER] = nbytes, owner, count[1]
    count[1] += 1
    chips[chip, H_WAITING] += 1
    _append(reads, queues[plane], 0, 1, k)
    return k


@unowned
def _take_command(flash, chip):
    """Move page reads from the queues of the planes to a command of a chip; returns their number.

    They are the oldest one, and the oldest one of the same row in every other plane of its die.
    """
    sizes, _, reads, _, _, queues, chips, commands = flash[:8]
    registers = flash[11]
    _, _, dies, planes = sizes
    oldest = NONE
    for plane in range(chip * dies * planes, (chip + 1) * dies * planes):
        k = queues[plane, 0]
        if k != NONE and (oldest == NONE or reads[k, R_ORDER] < reads[oldest, R_ORDER]):
            oldest = k
    die = reads[oldest, R_PLANE] // planes
    pages = 0
    for plane in range(die * planes, (die + 1) * planes):
        k, before = queues[plane, 0], NONE
        while k != NONE and reads[k, R_ROW] != reads[oldest, R_ROW]:
            k, before = reads[k, R_NEXT], k
        if k == NONE:
            continue
        at = pages  # data are transferred in the order of arrival
        while at > 0 and reads[commands[chip, at - 1], R_ORDER] > reads[k, R_ORDER]:
            commands[chip, at] = commands[chip, at - 1]
            at -= 1
        commands[chip, at] = k
        registers[plane] = reads[k, R_ORDER]
        pages += 1
        if before == NONE:
            queues[plane, 0] = reads[k, R_NEXT]
        else:
            reads[before, R_NEXT] = reads[k, R_NEXT]
        if queues[plane, 1] == k:
            queues[plane, 1] = before
    chips[chip, H_WAITING] -= pages
    chips[chip, H_COMMAND] = chips[chip, H_HELD] = pages
    return pages


@unowned
def _start(flash, channel, now):
    """Start a transfer on an idle channel: data that wait, else a command to an idle chip."""
    sizes, times, reads = flash[:3]
    chips, channels = flash[6], flash[8]
    ways = sizes[1]
    k = channels[channel, C_FIRST]
    if k != NONE:
        channels[channel, C_FIRST] = reads[k, R_NEXT]
        channels[channel, C_KIND], channels[channel, C_INDEX] = DATA, k
        _set_event(flash, channel, now + int(reads[k, R_BYTES] * times[3] + 0.5))
        return
    for _ in range(ways):
        chip = channel * ways + channels[channel, C_TURN]
        channels[channel, C_TURN] = (channels[channel, C_TURN] + 1) % ways
        if chips[chip, H_HELD] == 0 and chips[chip, H_WAITING] > 0:
            pages = _take_command(flash, chip)
            channels[channel, C_KIND], channels[channel, C_INDEX] = COMMAND, chip
            _set_event(flash, channel, now + int(times[1] + (pages - 1) * times[2] + 0.5))
            return


@unowned
def start_idle(flash, now):
    """Start transfers on idle channels."""
    channels = flash[8]
    for channel in range(len(channels)):
        if channels[channel, C_KIND] == IDLE:
            _start(flash, channel, now)


@unowned
def _end_event(flash, event):
    """End a transfer of a channel or an array read of a chip. Returns the owner of a page read that is done, or -1."""
    sizes, times, reads, places, count, _, chips, commands, channels, ends, _, _ = flash
    now, owner = ends[event], NONE
    ends[event] = FAR
    if event >= sizes[0]:
        chip = event - sizes[0]
        for p in range(chips[chip, H_COMMAND]):
            _append(reads, channels[chip // sizes[1]], C_FIRST, C_LAST, commands[chip, p])
        return owner
    if channels[event, C_KIND] == COMMAND:
        _set_event(flash, sizes[0] + channels[event, C_INDEX], now + int(times[0] + 0.5))
    else:
        k = channels[event, C_INDEX]
        chips[reads[k, R_CHIP], H_HELD] -= 1
        owner = reads[k, R_OWNER]
        reads[k, R_ORDER] = NONE
        places[count[0]] = k
        count[0] += 1
    channels[event, C_KIND] = IDLE
    return owner


@unowned
def request_page(flash, page, row, nbytes, owner, k, order):
    """A page of a burst is requested; `start_idle` starts its read.

    `k`, `order`: place and order of arrival of the last read of this page, or -1. Until its transfer starts, `nbytes`
    are added to it. If the page is still in the register of its plane, only a transfer is added, which needs no command
    and no idle chip. Returns place and order of arrival of the read of the page, and the owner of the data.
    """
    sizes, _, reads, places, count, _, chips, _, channels, _, _, registers = flash
    if order != NONE:
        chip, plane = _chip_and_plane(sizes, page)
        channel = chip // sizes[1]
        is_sent = channels[channel, C_KIND] == DATA and channels[channel, C_INDEX] == k
        if reads[k, R_ORDER] == order and not is_sent:
            reads[k, R_BYTES] += nbytes
            return k, order, reads[k, R_OWNER]
        if registers[plane] == order:
            count[0] -= 1
            again = places[count[0]]
            reads[again, R_CHIP], reads[again, R_PLANE], reads[again, R_BYTES] = chip, plane, nbytes
            reads[again, R_OWNER], reads[again, R_ORDER] = owner, count[1]
            count[1] += 1
            chips[chip, H_HELD] += 1
            _append(reads, channels[channel], C_FIRST, C_LAST, again)
            return k, order, owner
    k = _arrive(flash, page, row, nbytes, owner)
    return k, reads[k, R_ORDER], owner


@unowned
def advance(flash, until, owners, times):
    """Simulate up to time `until`. Owner and end time of each finished page read are written to `owners` and `times`;
    the result is their number."""
    done = 0
    while True:
        event = _next_event(flash)
        now = flash[F_ENDS][event]
        if now > until or now == FAR:
            return done
        owner = _end_event(flash, event)
        if owner != NONE:
            owners[done], times[done] = owner, now
            done += 1
        start_idle(flash, now)


@unowned
def _send(flash, link, message_ns, direction, message, now):
    """Append a message (request * 3 + kind) to those of one direction of the link."""
    messages, sent, queued = link
    messages[direction, queued[direction]] = message
    queued[direction] += 1
    if queued[direction] == sent[direction] + 1:
        _set_event(flash, len(flash[F_ENDS]) - 2 + direction, now + message_ns[direction, message % 3])


@unowned
def _read(first_page, offset, size, page_bytes, row, flash, link, message_ns, qd, remaining, issued, latency, finish):
    """Closed loop of reads in order; times in ns. `latency` is by request, `finish` in order of completion.

    row                row of page p of request r, shape (requests, largest number of pages)
    link               messages by direction, numbers of messages sent and queued
    message_ns         times of messages by direction and kind
    remaining, issued  pages that are not read, and time of the issue, of every request; zeros
    """
    n, ends = len(first_page), flash[F_ENDS]
    messages, sent, queued = link
    started, finished, to_host = min(n, qd), 0, len(ends) - 2
    for r in range(started):
        _send(flash, link, message_ns, TO_DRIVE, r * 3 + DOORBELL, 0)
    while finished < n:
        event = _next_event(flash)
        now = ends[event]
        if event < to_host:
            r = _end_event(flash, event)
            if r != NONE:
                remaining[r] -= 1
                if remaining[r] == 0:
                    _send(flash, link, message_ns, TO_HOST, r * 3 + PAYLOAD, now)
                    _send(flash, link, message_ns, TO_HOST, r * 3 + COMPLETION, now)
            start_idle(flash, now)
            continue
        direction = event - to_host
        r, kind = divmod(messages[direction, sent[direction]], 3)
        sent[direction] += 1
        ends[event] = FAR
        if direction == TO_DRIVE and kind == DOORBELL:
            _send(flash, link, message_ns, TO_HOST, r * 3 + FETCH, now)
        elif direction == TO_DRIVE and kind == ENTRY:
            last = (offset[r] + size - 1) // page_bytes
            remaining[r] = last + 1
            for p in range(last + 1):
                low, high = max(offset[r], p * page_bytes), min(offset[r] + size, (p + 1) * page_bytes)
                _arrive(flash, first_page[r] + p, row[r, p], high - low, r)
            start_idle(flash, now)
        elif direction == TO_HOST and kind == FETCH:
            _send(flash, link, message_ns, TO_DRIVE, r * 3 + ENTRY, now)
        elif direction == TO_HOST and kind == COMPLETION:
            latency[r], finish[finished] = now - issued[r], now
            finished += 1
            _send(flash, link, message_ns, TO_DRIVE, r * 3 + HEAD, now)
            if started < n:
                issued[started] = now
                _send(flash, link, message_ns, TO_DRIVE, started * 3 + DOORBELL, now)
                started += 1
        if sent[direction] < queued[direction]:
            _set_event(flash, event, now + message_ns[direction, messages[direction, sent[direction]] % 3])


def rows(pages: NDArray[np.int64], planes: int) -> NDArray[np.int64]:
    """Row of every page in its plane. A translation layer appends: rows are in the order of the first access."""
    number, first, inverse = np.unique(pages, return_index=True, return_inverse=True)
    order = np.lexsort((first, number % planes))  # by plane, then by first access
    plane = (number % planes)[order]
    start = np.searchsorted(plane, plane)
    row = np.empty(len(number), np.int64)
    row[order] = np.arange(len(number)) - start
    return row[inverse]


def _generator_product(a: NDArray[np.int64], b: NDArray[np.int64], modulus: int) -> NDArray[np.int64]:
    """Product of two matrices modulo `modulus`. Sums wrap at 64 bits, as those of MQSim do."""
    out = np.zeros((len(a), b.shape[1]), np.int64)
    for k in range(len(b)):
        out = np.fmod(a[:, k : k + 1] * b[k : k + 1] + out, modulus)
    return out


def uniform(seed: int, n: int) -> NDArray[np.float64]:
    """First n values of the generator of MQSim's requests, in (0, 1).

    They are those of MRG32k3a after (seed // 200 + 1) 2^(seed % 200) steps.
    """
    checks.integer("seed", seed, 0)
    states = []
    for step, modulus in zip(GENERATOR_STEPS, GENERATOR_MODULI, strict=True):
        jump, state, count = np.where(step < 0, step + modulus, step), np.ones((3, 1), np.int64), seed // 200 + 1
        for _ in range(seed % 200):
            jump = _generator_product(jump, jump, modulus)
        while count:
            if count & 1:
                state = _generator_product(jump, state, modulus)
            count >>= 1
            jump = _generator_product(jump, jump, modulus)
        states.append(state[:, 0].tolist())
    (x0, x1, x2), (y0, y1, y2) = states
    (a0, a1, _), (b0, _, b2) = (step[2].tolist() for step in GENERATOR_STEPS)
    values = np.empty(n)
    for i in range(n):
        x0, x1, x2 = x1, x2, (a0 * x0 + a1 * x1) % GENERATOR_MODULI[0]
        y0, y1, y2 = y1, y2, (b0 * y0 + b2 * y2) % GENERATOR_MODULI[1]
        values[i] = (x2 - y2) % GENERATOR_MODULI[0] + 1
    return values * 2.328306549295728e-10


def addresses(ssd: Ssd, size: int, n: int, *, random: bool, seed: int = REFERENCE_SEED) -> NDArray[np.int64]:
    """Byte addresses of `n` reads of `size` bytes in the first half of a drive, multiples of `size`.

    They are random, or consecutive from the first random one on. With the default seed they are those of the recorded
    runs of MQSim.
    """
    sectors = ssd.capacity_bytes // SECTOR_BYTES // 2
    place = (uniform(seed, n if random else 1) * sectors).astype(np.int64) * SECTOR_BYTES // size
    if not random:
        place = (place + np.arange(n)) % max(1, sectors * SECTOR_BYTES // size)
    return place * size


def read(ssd: Ssd, size: int, n: int, outstanding: int, *, random: bool = False, seed: int = REFERENCE_SEED) -> SsdRun:
    """Simulate `n` reads of `size` bytes, sequential or at random multiples of the size; see `addresses`."""
    for name, value in (("size", size), ("n", n), ("outstanding", outstanding)):
        checks.integer(name, value, 1)
    if size % SECTOR_BYTES:
        raise ValueError(f"size must be a multiple of the sector of {SECTOR_BYTES} bytes, got {size}")
    if size > ssd.capacity_bytes // 2:
        raise ValueError(f"size must be at most half of the {ssd.capacity_bytes} bytes of {ssd.name}, got {size}")
    first, offset = np.divmod(addresses(ssd, size, n, random=random, seed=seed), ssd.page_bytes)
    pages = first[:, None] + np.arange((size + ssd.page_bytes - 2) // ssd.page_bytes + 1)
    used, row = pages <= ((offset + size - 1) // ssd.page_bytes + first)[:, None], np.zeros_like(pages)
    row[used] = rows(pages[used], ssd.planes) % ssd.pages_per_block
    remaining, issued, latency, finish = np.zeros((4, n), np.int64)
    link = (np.zeros((2, 3 * n), np.int64), np.zeros(2, np.int64), np.zeros(2, np.int64))
    to_host = (ssd.message_ns(REQUEST_BYTES), ssd.message_ns(size), ssd.message_ns(COMPLETION_BYTES))
    to_drive = (ssd.message_ns(DOORBELL_BYTES), ssd.message_ns(ssd.submission_bytes), ssd.message_ns(DOORBELL_BYTES))
    flash = new_flash(ssd, min(n, outstanding) * pages.shape[1])
    _read(
        first, offset, size, ssd.page_bytes, row, flash, link, np.array([to_host, to_drive]), outstanding, remaining,
        issued, latency, finish,
    )  # fmt: skip
    rate, low, high = n * size / float(finish[-1]), n // 10, n * 9 // 10
    steady = (high - low) * size / float(finish[high - 1] - finish[low - 1]) if low else rate
    return SsdRun(rate, steady, latency.astype(np.float64) * 1e-3, n * size)
