"""Bank-level DRAM timing: one open-page FR-FCFS controller per channel, compiled with numba.

Modelled per bank: activate, precharge, column and refresh timing. Per bank group and rank: short and long column and
activate distances, the four-activate window and bus turnarounds; the data bus is free for two clocks between data of a
read and of a write, for postamble and preamble. Per channel: a command bus (HBM has one for rows and one for columns),
bounded read and write queues, write drain between 80 and 20 %, all-bank or per-bank refresh. An activate of LPDDR5 is
two commands; the second takes the first free command slot, at the latest `aad` clocks after the first one, and delays
other activates until then. The data clock of LPDDR5 must be started again after a pause. An activate of HBM takes two
clocks of its bus; distances to and from it count from the second one.

Scheduling order: requests whose row was opened for them, oldest ready one first; a due refresh, which delays everything
else; then the read or write queue, oldest ready command first. A precharge waits for older requests to the open row.

`replay` runs a trace of requests in a closed loop (limited outstanding requests per stream) or an open loop (arrival
times). The result depends only on the inputs. Not modelled: data forwarded from the write queue, power-down, the PHY.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sw_model.memory import dram_kernel as k
from sw_model.memory.spec import DIGITS, REFRESH, Memory

ACTIVATE_CLOCKS = {"hbm": 2}  # clocks of an activate command on its bus


@dataclass(frozen=True)
class Ports:
    """Ports between the memory and the streams. The reads of a stream pass its port in order, writes are posted.

    `number` is the port of each stream. The data of a DRAM burst occupy a port for `transfer` memory clocks, and the
    stream counts a request as outstanding for `pause` more; both can be fractions. `buffer` DRAM bursts of reads of a
    stream can be outstanding.
    """

    number: NDArray[np.int64]
    transfer: float
    pause: float
    buffer: int


NO_PORTS = Ports(np.zeros(0, np.int64), 0.0, 0.0, 0)


@dataclass(frozen=True)
class Trace:
    """Requests of `size` bytes, or of the number of bytes in `length`, which are at most `size`.

    Byte addresses, write flags, stream numbers and arrival times in memory clocks; `outstanding` requests per stream.
    """

    address: NDArray[np.int64]
    size: int
    write: NDArray[np.uint8]
    stream: NDArray[np.int32]
    arrival: NDArray[np.int64]
    outstanding: NDArray[np.int64]
    ports: Ports = NO_PORTS
    length: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Replay:
    """Result of a replay.

    `latency_ns` has one value per request, from its issue to the completion of its last burst, in controller and DRAM.
    `bandwidth_gbps` (GB/s) is from the first issue to the last completion; `share` is its share of the peak.
    """

    clocks: int
    bandwidth_gbps: float
    share: float
    latency_ns: NDArray[np.float64]
    commands: dict[str, int]
    bytes_moved: int


def splitmix64(seed: int, n: int) -> NDArray[np.uint64]:
    """First n values of the SplitMix64 generator. Value i mixes the state seed + (i + 1) gamma."""
    with np.errstate(over="ignore"):
        state = np.uint64(seed) + np.uint64(0x9E3779B97F4A7C15) * np.arange(1, n + 1, dtype=np.uint64)
        state = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ state >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return state ^ state >> np.uint64(31)


def pattern(
    memory: Memory,
    kind: str,
    size: int,
    n: int,
    *,
    outstanding: int = 1,
    rate: float | None = None,
    seed: int = 1,
    write_share: float = 0.0,
    second_writes: bool = False,
) -> Trace:
    """Trace of `n` requests of `size` bytes.

    kind         `seq`: consecutive addresses; `rand`: random multiples of the size; `two_seq`: two sequential streams
                 half the memory apart, the second one writes if `second_writes`
    rate         share of the peak bandwidth for an open loop; None: closed loop
    write_share  share of the requests that write, drawn with `seed`
    """
    if n < 1 or size < 1 or outstanding < 1:
        raise ValueError(f"n, size and outstanding must be positive, got {n}, {size} and {outstanding}")
    if rate is not None and rate <= 0:
        raise ValueError(f"rate must be positive, got {rate}")
    if not 0 <= write_share <= 1:
        raise ValueError(f"write_share must be between 0 and 1, got {write_share}")
    capacity = memory.capacity_bytes
    if size % memory.burst_bytes:
        raise ValueError(f"size must be a multiple of the burst of {memory.burst_bytes} bytes, got {size}")
    if size > capacity // 2:
        raise ValueError(f"size must be at most half of the {capacity} bytes of {memory.name}, got {size}")
    i = np.arange(n, dtype=np.int64)
    streams, stream = 1, np.zeros(n, np.int32)
    if kind == "seq":
        address = i * size % capacity
    elif kind == "rand":
        address = ((splitmix64(seed, n) >> np.uint64(16)) % np.uint64(capacity // size)).astype(np.int64) * size
    elif kind == "two_seq":
        streams, stream = 2, (i % 2).astype(np.int32)
        address = i // 2 * size + i % 2 * (capacity // 2)
    else:
        raise ValueError(f"pattern must be one of seq, rand, two_seq, got {kind!r}")
    if kind == "two_seq" and second_writes:
        write = stream.astype(np.uint8)
    else:
        uniform = (splitmix64(seed ^ 0x5BD1E995, n) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        write = (uniform < write_share).astype(np.uint8)
    arrival, limit = np.zeros(n, np.int64), outstanding
    if rate is not None:
        period_clocks = size / (rate * memory.peak_gbps) * 1000 / memory.clock_ps
        arrival, limit = np.floor(np.arange(n) * period_clocks).astype(np.int64), n
    return Trace(address, size, write, stream, arrival, np.full(streams, limit, np.int64))


def decode(memory: Memory, mapping: str, burst: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Physical coordinates (channel, pseudo-channel, rank, group, bank, row, column) of burst numbers."""
    out = {digit: np.zeros(len(burst), np.int64) for digit in DIGITS}
    product, remainder = dict.fromkeys(DIGITS, 1), burst
    for digit, radix in memory.mapping[mapping]:
        remainder, value = np.divmod(remainder, radix)
        out[digit] += value * product[digit]
        product[digit] *= radix
    return out


def parameters(memory: Memory) -> NDArray[np.int64]:
    """Parameter vector of the compiled kernel."""
    t = memory.timing
    lpddr = memory.style == "lpddr5"
    bl, bl_max = (t["bl_min"], t["bl_max"]) if lpddr else (t["bl"], t["bl"])
    columns = {
        k.RCD_RD: "rcd_read", k.RCD_WR: "rcd_write", k.CL: "cl", k.CWL: "cwl", k.RP: "rp", k.RP_ALL: "rp_all",
        k.RAS: "ras", k.RC: "rc", k.WR: "wr", k.RTP: "rtp", k.CCD_S: "ccd_s", k.CCD_L: "ccd_l", k.WTR_S: "wtr_s",
        k.WTR_L: "wtr_l", k.RRD_S: "rrd_s", k.RRD_L: "rrd_l", k.FAW: "faw", k.RFC: "rfc", k.REFI: "refi",
        k.RFC_BANK: "rfc_bank", k.REFI_BANK: "refi_bank", k.PBR_PBR: "pbr_to_pbr", k.PBR_ACT: "pbr_to_act",
        k.AAD: "aad", k.PPD: "ppd", k.CS: "cs",
    }  # fmt: skip
    out = np.zeros(k.N_PARAMETERS, np.int64)
    for state_index, name in columns.items():
        out[state_index] = t.get(name, 0)
    out[k.BL], out[k.BL_MAX] = bl, bl_max
    out[k.READ_Q], out[k.WRITE_Q] = memory.read_queue, memory.write_queue
    out[k.RANKS], out[k.GROUPS], out[k.BANKS] = memory.ranks, memory.bank_groups, memory.banks_per_group
    out[k.LPDDR], out[k.HBM] = lpddr, memory.style == "hbm"
    out[k.ACT_CLOCKS] = ACTIVATE_CLOCKS.get(memory.style, 1)
    if memory.style == "hbm":
        out[k.PBR_PBR] = out[k.PBR_ACT] = t.get("rrefd", 0)
    # a distance to or from an activate counts from the last clock of the activate
    for parameter in (k.RCD_RD, k.RCD_WR, k.RAS):
        out[parameter] += out[k.ACT_CLOCKS] - 1
    for parameter in (k.RP, k.RP_ALL, k.RFC, k.RFC_BANK, k.PBR_ACT):
        out[parameter] -= out[k.ACT_CLOCKS] - 1
    out[k.REFRESH], out[k.ROW_HIT] = REFRESH.index(memory.refresh), memory.row_hit_first
    out[k.POSTED] = memory.posted_writes
    out[k.WCK] = t.get("wck_post", 0) if lpddr and memory.data_clock_stops else -1
    return out


def digits_of(memory: Memory, mapping: str) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Number, radix and weight of every digit of a mapping, for the compiled kernel."""
    weights, product = [], dict.fromkeys(DIGITS, 1)
    for digit, radix in memory.mapping[mapping]:
        weights.append(product[digit])
        product[digit] *= radix
    numbers = [DIGITS.index(digit) for digit, _ in memory.mapping[mapping]]
    return np.array(numbers), np.array([radix for _, radix in memory.mapping[mapping]]), np.array(weights)


def _check(memory: Memory, trace: Trace, mapping: str) -> None:
    """Raise ValueError for a trace that the memory or its mapping cannot replay."""
    n = len(trace.address)
    if mapping not in memory.mapping:
        raise ValueError(f"mapping must be one of {', '.join(memory.mapping)} for {memory.name}, got {mapping!r}")
    if n == 0 or trace.size < 1:
        raise ValueError(f"trace must not be empty, got {n} requests of {trace.size} bytes")
    burst_bytes, streams = memory.burst_bytes, len(trace.outstanding)
    for name, array in (("write", trace.write), ("stream", trace.stream), ("arrival", trace.arrival)):
        if len(array) != n:
            raise ValueError(f"{name} must have one value for each of {n} requests, got {len(array)}")
    if trace.length is not None:
        wrong = (trace.length < 1) | (trace.length > trace.size) | (trace.length % burst_bytes != 0)
        if len(trace.length) != n or wrong.any():
            got = int(trace.length[np.argmax(wrong)]) if wrong.any() else f"{len(trace.length)} values"
            raise ValueError(
                f"length must be a multiple of the burst of {burst_bytes} bytes up to {trace.size} for each of {n} "
                f"requests, got {got}"
            )
    if trace.size % burst_bytes:
        raise ValueError(f"size must be a multiple of the burst of {burst_bytes} bytes, got {trace.size}")
    if (trace.address % burst_bytes).any():
        partial = int(trace.address[np.argmax(trace.address % burst_bytes != 0)])
        raise ValueError(f"address must be a multiple of the burst of {burst_bytes} bytes, got {partial}")
    if trace.address.min() < 0 or int(trace.address.max()) + trace.size > memory.capacity_bytes:
        outside = int(trace.address.min() if trace.address.min() < 0 else trace.address.max())
        raise ValueError(
            f"addresses must be inside the {memory.capacity_bytes} bytes of {memory.name}, got {outside} for "
            f"{trace.size} bytes"
        )
    if streams == 0 or trace.outstanding.min() < 1:
        raise ValueError(f"outstanding must be at least 1 for every stream, got {trace.outstanding.tolist()}")
    if trace.stream.min() < 0 or trace.stream.max() >= streams:
        wrong = int(trace.stream.min() if trace.stream.min() < 0 else trace.stream.max())
        raise ValueError(f"stream must be in [0, {streams}), one for each value of outstanding, got {wrong}")
    if trace.arrival.min() < 0:
        raise ValueError(f"arrival must be at least 0, got {int(trace.arrival.min())}")


def replay(memory: Memory, trace: Trace, mapping: str = "A") -> Replay:
    """Replay a trace with an address mapping of the memory. Raises ValueError for invalid traces and mappings."""
    _check(memory, trace, mapping)
    n, per, ports = len(trace.address), trace.size // memory.burst_bytes, trace.ports
    count = np.full(n, per) if trace.length is None else trace.length // memory.burst_bytes
    channel, bank, row = (np.empty(n * per, np.int32) for _ in range(3))
    digit, radix, weight = digits_of(memory, mapping)
    k.decode_bursts(
        trace.address, per, memory.burst_bytes, digit, radix, weight, len(digit), memory.ranks, memory.bank_groups,
        memory.banks_per_group, channel, bank, row,
    )  # fmt: skip
    order = np.argsort(trace.stream, kind="stable").astype(np.int64)
    first = np.searchsorted(trace.stream[order], np.arange(len(trace.outstanding) + 1)).astype(np.int64)
    latency, stats = np.zeros(n, np.int64), np.zeros(k.N_STATS, np.int64)
    clocks = k.replay_kernel(
        parameters(memory), memory.channels, memory.pseudo_channels, per, channel, bank, row, trace.write,
        count, trace.stream, order, first, trace.arrival, trace.outstanding, ports.number, ports.transfer, ports.pause,
        ports.buffer, latency, stats,
    )  # fmt: skip
    total_bytes = int(count.sum()) * memory.burst_bytes
    gbps = total_bytes / (clocks * memory.clock_ps) * 1000
    return Replay(
        clocks=int(clocks),
        bandwidth_gbps=gbps,
        share=gbps / memory.peak_gbps,
        latency_ns=latency.astype(np.float64) * (memory.clock_ps / 1000),
        commands=dict(zip(("ACT", "PRE", "RD", "WR", "REFab", "REFpb"), stats.tolist(), strict=True)),
        bytes_moved=total_bytes,
    )
