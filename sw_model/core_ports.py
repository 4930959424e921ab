"""Bandwidth of the device memory as the engines of several cores read and write it.

Each core has some bursts in flight for an engine, and the cores access different places of the memory. The accesses are
replayed bank by bank (`sw_model.memory.dram`), so that no rate and no latency is assumed.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import ceil
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from compiler.builder import Share
from compiler.memory import row_words
from hw.core.dma import BURST
from hw.core.processor import READ_ENGINES
from sw_model.memory.dram import Ports, Trace, pattern, replay, splitmix64
from sw_model.memory.spec import Memory
from sw_model.policies.base import BF16_BYTES
from sw_model.systems import Core, System, memory_model
from sw_model.unit_cycles import PORT_CYCLES, SCORES, ProductLoads, index_readers, value_readers

REFRESH_INTERVALS = 4  # of a replay, at the peak rate
INTERVAL = 4096  # memory clocks of one of them in a memory without refresh
DIGITS = 2  # of the share of written bytes, so that similar products share a replay
DRIFT = 8  # largest lead of a core in BF16 tiles; in programs 6 to 10. Rates with 16 differ by less than 2 %
BURSTS = 16  # that a reader has in flight
WRITTEN_ROWS = 16  # most rows of results that are written in turn
LATENCIES = 4096  # single reads of a mean latency


@dataclass(frozen=True)
class Reads:
    """What each core reads: pieces of `size` bytes.

    words   words of the port that a core has requested at the same time
    stride  pieces from one piece to the next
    tile    bytes of a tile; consecutive tiles belong to consecutive cores (`compiler.memory.tile_numbers`), `stride` is
            not used. 0: the cores read different parts of the memory
    """

    size: int
    words: int
    stride: int = 1
    tile: int = 0


@dataclass(frozen=True)
class SharedRows:
    """Rows that all cores of a group read besides: a piece of each, then the next piece of each.

    rows, row  number of rows, and bytes from one to the next
    size       bytes of a piece
    period     bytes of its own reads that a core reads before these pieces; 0: it has none
    groups     of cores, each of which has other rows
    """

    rows: int
    row: int
    size: int
    period: int = 0
    groups: int = 1


@dataclass(frozen=True)
class Writes:
    """What each core writes, in pieces of `size` bytes, without waiting.

    share      of all bytes
    rows, row  rows that are written in turn, a piece of each, and bytes from one to the next
    adjacent   the pieces of the cores follow each other in the same rows; else the cores write different parts
    """

    share: float
    size: int
    rows: int = 1
    row: int = 0
    adjacent: bool = False


Accesses = TypeVar("Accesses", Reads, Writes, SharedRows)


def memory_at_rate(system: System) -> Memory:
    """The device memory with the clock that gives its peak rate in the description of the system."""
    memory = memory_model(system.memory)
    return replace(memory, clock_ps=round(memory.clock_ps * memory.peak_gbps / system.device_memory.peak_gbps))


@lru_cache(maxsize=1024)
def streams_bytes_per_s(
    system: System,
    cores: tuple[int, ...],
    reads: Reads,
    writes: Writes | None = None,
    shared: SharedRows | None = None,
) -> float:
    """Rate at which these cores read and write, all bytes together. Data that are read pass the ports, as in the core.

    The start addresses of parts are random, because the cores drift apart. A core has a lead of up to `DRIFT` tiles.
    """
    spec, core, count = memory_at_rate(system), system.core, len(cores)
    assert core
    reads = _whole_bursts(reads, spec.burst_bytes)
    writes = writes and _whole_bursts(writes, spec.burst_bytes)
    shared = shared and _whole_bursts(shared, spec.burst_bytes)
    clocks = REFRESH_INTERVALS * spec.timing.get("refi", INTERVAL)
    least = clocks * spec.clock_ps * spec.peak_gbps / 1000 / count  # bytes of a core
    random, number = splitmix64(1, 2 * count), np.arange(count)
    start = (random % np.uint64(spec.capacity_bytes // 2 // reads.size)).astype(np.int64) * reads.size
    # the reads of a core: positions in its part, or in the shared rows, and lengths
    position, length, is_shared = _schedule(reads, shared, spec.burst_bytes, least)
    address = position[:, None] * reads.stride + start[:count]
    tile = core.config.dpe_inputs * word_bytes(core)
    lead = (random[:count] % np.uint64(DRIFT + 1)).astype(np.int64) * tile
    if reads.tile:
        first, inside = divmod(position[:, None], reads.tile)
        address = ((first + lead // reads.tile) * count + number) * reads.tile + inside
    if shared:
        rows = (number * shared.groups // count) * shared.rows * shared.row  # of the group of each core
        ahead = lead // shared.period * shared.size if shared.period else 0
        address = np.where(is_shared[:, None], position[:, None] + rows + ahead, address)
    write = np.zeros(len(address), np.uint8)
    if writes and writes.share:  # after the reads whose results they are
        done = np.floor(length.cumsum() * writes.share / (1 - writes.share) / writes.size).astype(np.int64)
        after = np.repeat(np.arange(len(done)), np.diff(done, prepend=0)) + 1
        turn, piece = np.arange(len(after)) % writes.rows, np.arange(len(after)) // writes.rows
        at = start[count] + number * writes.size if writes.adjacent else start[count:]
        step = writes.size * (count if writes.adjacent else 1)
        address = np.insert(address, after, at + (turn * writes.row + piece * step)[:, None], axis=0)
        length, write = np.insert(length, after, writes.size), np.insert(write, after, 1)
    ports = min(core.config.device_ports, core.config.cores)
    per_cycle, word = 1e6 / core.clock_mhz / spec.clock_ps, word_bytes(core)  # memory clocks; bytes
    trace = Trace(
        address.ravel() % spec.capacity_bytes, int(length.max()), np.repeat(write, count),
        np.tile(number.astype(np.int32), len(length)), np.zeros(address.size, np.int64), np.full(count, BURSTS),
        Ports(
            np.array(cores) % ports, spec.burst_bytes / word * per_cycle, PORT_CYCLES * per_cycle,
            max(reads.words * word, reads.size) // spec.burst_bytes,
        ),
        np.repeat(length, count),
    )  # fmt: skip
    return replay(spec, trace).bandwidth_gbps * 1e9


def _whole_bursts(part: Accesses, burst: int) -> Accesses:
    """The same accesses with sizes and rows of whole DRAM bursts, for cores with short words."""
    names = {"size", "row", "tile"} & vars(part).keys()
    return replace(part, **{name: -(-getattr(part, name) // burst) * burst for name in names})


def _schedule(
    reads: Reads, shared: SharedRows | None, burst: int, least: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Reads of a core with at least `least` bytes: positions, lengths, and which of them are those of `shared`."""
    own, pieces = 1, [(0, 0)]  # of a period; shared piece: position, length
    if shared:
        own = round(shared.period / reads.size)
        ends = [*range(0, shared.size, reads.size), shared.size]
        pieces = [(row * shared.row + at, end - at) for row in range(shared.rows) for at, end in pairwise(ends)]
    position, length = (np.array(column, np.int64) for column in zip(*pieces, strict=True))
    if not shared:
        position, length = position[:0], length[:0]
    periods = np.arange(ceil(least / (own * reads.size + length.sum())))[:, None]
    step = shared.size if shared else 0
    positions = np.hstack([(periods * own + np.arange(own)) * reads.size, position + periods * step])
    lengths = np.concatenate([np.full(own, reads.size), -(-length // burst) * burst])
    is_shared = np.arange(len(lengths)) >= own
    return positions.ravel(), np.tile(lengths, len(periods)), np.tile(is_shared, len(periods))


@lru_cache(maxsize=256)
def read_latency_s(memory: str, nbytes: int) -> float:
    """Mean latency of single reads of `nbytes` bytes at random addresses, in controller and device."""
    spec = memory_model(memory)
    size = -(-nbytes // spec.burst_bytes) * spec.burst_bytes
    return float(replay(spec, pattern(spec, "rand", size, LATENCIES)).latency_ns.mean()) * 1e-9


def _rounded(share: float) -> float:
    return float(f"{share:.{DIGITS}g}")


def word_bytes(core: Core) -> int:
    """Bytes of a word of the memory ports."""
    return BF16_BYTES * core.config.dpe_inputs


def burst_bytes(system: System) -> int:
    """Bytes of the longest burst of a core, at least a burst of the memory."""
    assert system.core
    return max(BURST * word_bytes(system.core), memory_model(system.memory).burst_bytes)


def all_cores(core: Core) -> tuple[int, ...]:
    """All cores."""
    return tuple(range(core.config.cores))


def operand_reads(system: System, tile: int = 0) -> Reads:
    """Reads of the load units, which read bursts."""
    return Reads(burst_bytes(system), READ_ENGINES["load"][1], tile=tile)


@lru_cache(maxsize=256)
def load_bytes_per_s(system: System) -> float:
    """Rate at which all cores read operands at the same time, different ones."""
    assert system.core
    return streams_bytes_per_s(system, all_cores(system.core), operand_reads(system))


def activations_bytes_per_s(system: System, rows: int, inputs: int) -> float:
    """Rate at which all cores read the same `rows` rows of `inputs` activations, row by row."""
    core = system.core
    assert core
    word = word_bytes(core)
    row = row_words(ceil(BF16_BYTES * inputs / word), core.config.dpe_inputs) * word
    return streams_bytes_per_s(
        system, all_cores(core), operand_reads(system), shared=SharedRows(rows, row, BF16_BYTES * inputs)
    )


@lru_cache(maxsize=4096)  # equal layers
def product_s(
    system: System,
    vectors: int,
    inputs: int,
    matrices: tuple[int, ...],
    loads: ProductLoads,
    weight_bytes: float = BF16_BYTES,
    *,
    interleaved: bool = True,
) -> float:
    """Time of concurrent products of vectors with matrices of `inputs` columns; `matrices` : the rows of each.

    The reads of weights, and of activations that are loaded in pieces, determine it. The results are written meanwhile.
    A core has whole blocks of rows. When the cores with fewer blocks are done, the others read alone.

    vectors       that share a load of the weights
    weight_bytes  bytes of a weight
    interleaved   the tiles of the cores are interleaved (`compiler.memory.tile_numbers`)
    """
    core = system.core
    assert core
    config, groups, word = core.config, loads.groups, word_bytes(core)
    count = config.cores // groups
    blocks = [ceil(outputs / config.dpe_inputs) for outputs in matrices]
    weights = weight_bytes * inputs * sum(matrices) / sum(blocks)  # bytes of a block
    results = 4 * vectors * sum(matrices) / sum(blocks)
    pieces, shared = 0.0, None
    if loads.piece_rows:
        row = row_words(ceil(BF16_BYTES * inputs / word), config.dpe_inputs) * word
        period = loads.piece_tiles * weight_bytes * config.dpe_inputs**2
        shared = SharedRows(loads.piece_rows, row, loads.piece_bytes, round(period), groups)
        pieces = weights * loads.piece_rows * loads.piece_bytes / period
    writes = Writes(
        _rounded(results / (weights + pieces + results)), 4 * config.dpe_inputs, min(vectors, WRITTEN_ROWS),
        row_words(2 * max(blocks), config.dpe_inputs) * word, adjacent=True,
    )  # fmt: skip
    tile = round(weight_bytes * config.dpe_inputs**2) if interleaved and count > 1 else 0
    own = [  # blocks of each core of a group
        sum(len(Share(n, count).balanced_with(sum(blocks[:at])).part(each)) for at, each in enumerate(blocks))
        for n in range(count)
    ]
    seconds = 0.0
    for before, read in pairwise(sorted({0, *own})):  # the cores that have blocks left read together
        cores = tuple(group * count + n for group in range(groups) for n in range(count) if own[n] >= read)
        rate = streams_bytes_per_s(system, cores, operand_reads(system, tile), writes, shared)
        seconds += len(cores) * (read - before) * (weights + pieces + results) / rate
    return seconds


def keys_bytes_per_s(system: System, rows: int = 0, score_bytes: float = 0.0, *, encoded: bool = False) -> float:
    """Rate of keys or values that the cores read: those of a token alternate, those of an encoded page are contiguous.

    score_bytes  per byte of keys, that the matrix engine writes meanwhile to `rows` long rows of scores; the rate is
                 that of both
    """
    core = system.core
    assert core
    word, size = word_bytes(core), BF16_BYTES * core.config.head_dim
    row = row_words(ceil(4 * SCORES / word), core.config.dpe_inputs) * word
    reads = Reads(size, READ_ENGINES["load"][1], stride=1 if encoded else 2)
    writes = Writes(_rounded(score_bytes / (1 + score_bytes)), size, min(max(1, rows), WRITTEN_ROWS), row)
    return min(load_bytes_per_s(system), streams_bytes_per_s(system, all_cores(core), reads, writes))


def values_bytes_per_s(system: System, passes: int) -> float:
    """Rate at which the cores read the values of one stream, `passes` times: those of `unit_cycles.value_readers`."""
    core = system.core
    assert core
    readers, words = value_readers(passes, core)
    piece, head = words * word_bytes(core), BF16_BYTES * core.config.head_dim
    reads = Reads(piece, READ_ENGINES["load"][1], stride=2 * head // piece)
    return streams_bytes_per_s(system, readers, reads)


def index_bytes_per_s(system: System, entries: float) -> float:
    """Rate at which the cores read the vectors of `entries` candidates; those of the KV heads follow each other."""
    core = system.core
    assert core
    size = BF16_BYTES * core.config.head_dim
    return streams_bytes_per_s(system, index_readers(entries, core), Reads(size, READ_ENGINES["load"][1], tile=size))


def same_word_bytes_per_s(system: System) -> float:
    """Rate at which the cores together read one word, whose DRAM bursts are all in one bank."""
    memory = memory_at_rate(system)
    return memory.burst_bytes / (memory.timing["ccd_l"] * memory.clock_ps) * 1e12


def vector_bytes_per_s(system: System, read_bytes: float, written_bytes: float) -> float:
    """Rate at which the vector engines of all cores read and write long rows, both together."""
    core, size = system.core, burst_bytes(system)
    assert core
    writes = Writes(_rounded(written_bytes / (read_bytes + written_bytes)), size)
    return streams_bytes_per_s(system, all_cores(core), Reads(size, READ_ENGINES["vector"][1]), writes)
