"""Bandwidth of the device memory as the engines of several cores read and write it.

Each core has some bursts in flight for an engine, and the cores access different places of the memory. The accesses are
replayed bank by bank (`sw_model.memory.dram`), so that no rate and no latency is assumed.
"""

from functools import lru_cache
from itertools import pairwise
from math import ceil

import numpy as np

from compiler.builder import Share
from compiler.memory import row_words
from hw.core.dma import BURST
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from sw_model.memory.dram import Trace, pattern, replay, splitmix64
from sw_model.policies.base import BF16_BYTES
from sw_model.systems import Core, System, memory_model
from sw_model.unit_cycles import PORT_CYCLES, SCORES

REFRESH_INTERVALS = 4  # of a replay, at the peak rate
INTERVAL = 4096  # memory clocks of one of them in a memory without refresh
DIGITS = 2  # of the share of written bytes, so that similar products share a replay
DRIFT = 2  # largest lead of a core in tiles; shares for 0 to 2 differ by less than 1 %, for 8 by up to 5 % (HBM2e)
WRITTEN_ROWS = 16  # most rows of results that are written in turn
LATENCIES = 4096  # single reads of a mean latency


@lru_cache(maxsize=256)
def streams_share(
    memory: str,
    cores: int,
    size: int,
    window: int,
    *,
    writes: float = 0,
    stride: int = 1,
    rows: int = 1,
    row: int = 0,
    tile: int = 0,
) -> float:
    """Share of the peak bandwidth when each core reads and writes pieces of `size` bytes, `window` of them in flight.

    writes  share of the pieces
    stride  pieces from one read to the next
    rows    rows that are written in turn, a piece of each ; row: bytes from one to the next
    tile    bytes of a tile; consecutive tiles belong to consecutive cores (`compiler.memory.tile_numbers`), `stride` is
            not used. 0: the cores read different parts of the memory

    The start addresses of parts are random, because the cores drift apart. In tiles a core has a lead of up to `DRIFT`.
    """
    spec = memory_model(memory)
    clocks = REFRESH_INTERVALS * spec.timing.get("refi", INTERVAL)
    count = ceil(clocks * spec.clock_ps * spec.peak_gbps / 1000 / (cores * size))
    written = np.floor(np.arange(1, count + 1) * writes).astype(np.int64)  # spread evenly between the reads
    is_write = np.diff(written, prepend=0) > 0
    reads, written = np.cumsum(~is_write) - 1, np.cumsum(is_write) - 1
    random = splitmix64(1, 2 * cores)
    word = size * spec.channels * spec.pseudo_channels
    start = (random % np.uint64(spec.capacity_bytes // 2 // word)).astype(np.int64) * word
    read = start[:cores] + (reads * size * stride)[:, None]
    if tile:
        drift = (random[:cores] % np.uint64(DRIFT + 1)).astype(np.int64)
        first, inside = divmod((reads * size)[:, None], tile)
        read = ((first + drift) * cores + np.arange(cores)) * tile + inside
    address = np.where(
        is_write[:, None], start[cores:] + (written % rows * row + written // rows * size)[:, None], read
    )
    trace = Trace(
        address.ravel() % spec.capacity_bytes, size, np.repeat(is_write, cores).astype(np.uint8),
        np.tile(np.arange(cores, dtype=np.int32), count), np.zeros(count * cores, np.int64),
        np.full(cores, window, np.int64),
    )  # fmt: skip
    return replay(spec, trace).share


@lru_cache(maxsize=256)
def read_latency_s(memory: str, nbytes: int) -> float:
    """Mean latency of single reads of `nbytes` bytes at random addresses, in controller and device."""
    spec = memory_model(memory)
    return float(replay(spec, pattern(spec, "rand", nbytes, LATENCIES)).latency_ns.mean()) * 1e-9


def _rounded(share: float) -> float:
    return float(f"{share:.{DIGITS}g}")


def word_bytes(core: Core) -> int:
    """Bytes of a word of the memory ports."""
    return BF16_BYTES * core.config.dpe_inputs


def burst_bytes(system: System) -> int:
    """Bytes of the longest burst of a core, at least a burst of the memory."""
    assert system.core
    return max(BURST * word_bytes(system.core), memory_model(system.memory).burst_bytes)


def load_bytes_per_s(
    system: System,
    cores: tuple[int, ...] | None = None,
    written: float = 0.0,
    rows: int = 1,
    elements: int = 0,
    tile: int = 0,
) -> float:
    """Rate at which these cores, or all, read operands at the same time.

    written  share of bytes that the matrix engines write meanwhile, to `rows` rows of FP32 `elements`; the rate is
             that of both
    tile     see `streams_share`

    The device memory limits it, at the rate of all cores, or the ports of these cores, of which each transfers a word
    per cycle, or the words that a load unit has in flight.
    """
    core = system.core
    assert core
    cores = cores or tuple(range(core.config.cores))
    word, hertz, window = word_bytes(core), core.clock_mhz * 1e6, READ_ENGINES["load"][1]
    size = max(4 * core.config.dpe_inputs, memory_model(system.memory).burst_bytes)  # results of a block
    row = row_words(ceil(4 * elements / word), core.config.dpe_inputs) * word
    flight, rows = max(1, window * word // size), min(rows, WRITTEN_ROWS)
    share = streams_share(
        system.memory, core.config.cores, size, flight, writes=_rounded(written), rows=rows, row=row, tile=tile
    )  # fmt: skip
    ports = len({number % min(core.config.device_ports, core.config.cores) for number in cores})
    wait_s = read_latency_s(system.memory, burst_bytes(system)) + (PORT_CYCLES + BURST) / hertz
    return min(
        system.device_memory.peak_gbps * 1e9 * share, ports * word * hertz, len(cores) * window * word / wait_s
    )  # fmt: skip


@lru_cache(maxsize=4096)  # equal layers
def weights_s(
    system: System,
    vectors: int,
    inputs: int,
    matrices: tuple[int, ...],
    weight_bytes: float = BF16_BYTES,
    groups: int = 1,
    *,
    interleaved: bool = True,
) -> float:
    """Time of concurrent products of vectors with matrices of `inputs` columns; `matrices` : the rows of each.

    The reads of the weights determine it. The results are written meanwhile, to rows as long as those of the inputs. A
    core has whole blocks of rows. When the cores with fewer blocks are done, the others read alone.

    weight_bytes  bytes of a weight
    groups        groups of cores; each multiplies other vectors, and reads all weights
    interleaved   the tiles of the cores are interleaved (`compiler.memory.tile_numbers`)
    """
    assert system.core
    config, count = system.core.config, system.core.config.cores // groups
    blocks = [ceil(outputs / config.dpe_inputs) for outputs in matrices]
    written = 4 * vectors / (weight_bytes * inputs + 4 * vectors)
    block_bytes = (weight_bytes * inputs + 4 * vectors) * sum(matrices) / sum(blocks)
    tile = round(weight_bytes * config.dpe_inputs**2) if interleaved and count > 1 else 0
    own = [  # blocks of each core of a group
        sum(len(Share(n, count).balanced_with(sum(blocks[:at])).part(each)) for at, each in enumerate(blocks))
        for n in range(count)
    ]
    seconds = 0.0
    for before, blocks_read in pairwise(sorted({0, *own})):  # the cores that have blocks left read together
        cores = tuple(group * count + n for group in range(groups) for n in range(count) if own[n] >= blocks_read)
        rate = load_bytes_per_s(system, cores, written, vectors, inputs, tile)
        seconds += len(cores) * (blocks_read - before) * block_bytes / rate
    return seconds


def keys_bytes_per_s(system: System, rows: int = 0, score_bytes: float = 0.0, *, encoded: bool = False) -> float:
    """Rate of keys or values that the cores read: those of a token alternate, those of an encoded page are contiguous.

    score_bytes  per byte of keys, that the matrix engine writes meanwhile to `rows` long rows of scores; the rate is
                 that of both
    """
    core = system.core
    assert core
    word, size = word_bytes(core), BF16_BYTES * core.config.head_dim
    window = max(1, READ_ENGINES["load"][1] * word // size)
    writes, rows = _rounded(score_bytes / (1 + score_bytes)), min(max(1, rows), WRITTEN_ROWS)
    row = row_words(ceil(4 * SCORES / word), core.config.dpe_inputs) * word
    share = streams_share(
        system.memory, core.config.cores, size, window, writes=writes, stride=1 if encoded else 2, rows=rows,
        row=row,
    )  # fmt: skip
    return min(load_bytes_per_s(system), system.device_memory.peak_gbps * 1e9 * share)


def vector_bytes_per_s(system: System, read_bytes: float, written_bytes: float) -> float:
    """Rate at which the vector engines of all cores read and write long rows, both together."""
    core = system.core
    assert core
    window = max(1, (READ_ENGINES["vector"][1] + WRITE_ENGINES["vector"][1]) // BURST)
    writes = _rounded(written_bytes / (read_bytes + written_bytes))
    share = streams_share(system.memory, core.config.cores, burst_bytes(system), window, writes=writes)
    return system.device_memory.peak_gbps * 1e9 * share
