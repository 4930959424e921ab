"""AXI4 in simulation: a memory with timing, a protocol checker, and an AXI4-Lite master.

Checker and memory are independent: each samples the signals at every rising edge of the clock.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cocotb.triggers import RisingEdge

from sim.bench.streams import cycle, getter, number, pause, setter
from util.timing import FinalTiming, MemoryTiming

OKAY, EXOKAY, SLVERR, DECERR = range(4)
BOUNDARY = 4096
CONFIRMED = -1  # number of a burst whose answer has started
CHANNELS = {
    "aw": ("id", "addr", "len", "size", "burst"),
    "w": ("data", "strb", "last"),
    "b": ("id", "resp"),
    "ar": ("id", "addr", "len", "size", "burst"),
    "r": ("id", "data", "resp", "last"),
}


@dataclass
class FixedTiming(FinalTiming):
    """Every burst is answered after `latency` cycles and occupies the memory for `gap` cycles per beat."""

    latency: int = 4
    gap: float = 0.0
    beat_bytes: int = 1
    free: float = 0.0

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        start = max(float(cycle), self.free)
        self.free = start + self.gap * nbytes / self.beat_bytes
        return int(start) + self.latency


@dataclass(frozen=True)
class BatchTiming(FinalTiming):
    """Reads are answered after `latency` cycles, all writes of a period at the next multiple of `period`."""

    period: int
    latency: int = 4

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        return (cycle // self.period + 1) * self.period if write else cycle + self.latency


@dataclass(frozen=True)
class Failure:
    """Error response: read beat number `at` of all read beats, or write burst number `at` of all write bursts."""

    write: bool
    at: int
    response: int


class Sparse:
    """Sparse memory with the slice interface of a bytearray; unwritten bytes are 0."""

    def __init__(self, size: int):
        self.size, self.pages = size, dict[int, bytearray]()

    def __len__(self) -> int:
        return self.size

    def _pages(self, where: slice) -> Iterator[tuple[int, int, int]]:
        """Number, first byte and end of each page of the slice `where`."""
        start, stop, _ = where.indices(self.size)
        while start < stop:
            page, first = divmod(start, BOUNDARY)
            end = min(BOUNDARY, first + stop - start)
            yield page, first, end
            start += end - first

    def __getitem__(self, where: slice) -> bytes:
        empty = bytes(BOUNDARY)
        return b"".join(bytes(self.pages.get(page, empty)[first:end]) for page, first, end in self._pages(where))

    def __setitem__(self, where: slice, data: bytes) -> None:
        done = 0
        for page, first, end in self._pages(where):
            self.pages.setdefault(page, bytearray(BOUNDARY))[first:end] = data[done : done + end - first]
            done += end - first


class AxiProtocolError(AssertionError):
    """A port violates the AXI protocol."""


class AxiChecker:
    """Checks one AXI4 port: `observe` in every cycle for each channel, `finish` at the end of a run.

    Rules: valid and payload stay until ready; bursts are INCR of full width, aligned, inside 4 KiB and not longer than
    `longest` words; words follow the order and lengths of their bursts, and the last word has `last`; every response
    has a request; responses of one ID keep the order of their requests, and the last beat has `last`; at most
    `outstanding` bursts of each direction are in flight.
    """

    def __init__(self, name: str, word_bytes: int, *, longest: int = 256, outstanding: int = 4096):
        self.name, self.word_bytes, self.longest, self.outstanding = name, word_bytes, longest, outstanding
        self.bursts = {"read": 0, "write": 0}
        self.beats = {"read": 0, "write": 0}
        self.requests: list[list[int] | None] = []  # write, ID, address, words of every burst; None at a reset
        self.reset()

    def reset(self) -> None:
        """Clear the state, as after a reset."""
        self.requests.append(None)
        self.held: dict[str, tuple[int, ...]] = {}
        self.writing: deque[tuple[int, int]] = deque()  # ID and remaining words, in the order of AW
        self.written: dict[int, int] = defaultdict(int)  # complete bursts without a response, by ID
        self.reading: dict[int, deque[int]] = defaultdict(deque)  # remaining beats of each burst, by ID
        self.most = {"read": 0, "write": 0}

    def _demand(self, rule: bool, text: str) -> None:
        if not rule:
            raise AxiProtocolError(f"{self.name}, cycle {cycle()}: {text}")

    def observe(self, channel: str, payload: tuple[int, ...] | None, ready: bool) -> None:
        """Check one cycle of `channel`: its payload if valid, and whether ready is 1."""
        before = self.held.pop(channel, None)
        if before is not None:
            self._demand(payload == before, f"{channel} changed before it was accepted")
        if payload is None:
            return
        if not ready:
            self.held[channel] = payload
            return
        getattr(self, f"_{channel}")(*payload)

    def _address(self, kind: str, identity: int, address: int, length: int, size: int, burst: int) -> None:
        words = length + 1
        self._demand(burst == 1, f"{kind} burst type {burst}")
        self._demand(1 << size == self.word_bytes, f"{kind} size {1 << size} bytes")
        self._demand(address % self.word_bytes == 0, f"{kind} address {address:#x} is not aligned")
        self._demand(words <= self.longest, f"{kind} burst of {words} words")
        end = address + words * self.word_bytes - 1
        self._demand(address // BOUNDARY == end // BOUNDARY, f"{kind} burst {address:#x} to {end:#x} crosses 4 KiB")
        self.bursts[kind] += 1
        self.requests.append([int(kind == "write"), identity, address, words])

    def _aw(self, identity: int, address: int, length: int, size: int, burst: int) -> None:
        self._address("write", identity, address, length, size, burst)
        self.writing.append((identity, length + 1))
        self._count("write", len(self.writing) + sum(self.written.values()))

    def _ar(self, identity: int, address: int, length: int, size: int, burst: int) -> None:
        self._address("read", identity, address, length, size, burst)
        self.reading[identity].append(length + 1)
        self._count("read", sum(map(len, self.reading.values())))

    def _count(self, kind: str, in_flight: int) -> None:
        self.most[kind] = max(self.most[kind], in_flight)
        self._demand(in_flight <= self.outstanding, f"{in_flight} {kind} bursts in flight")

    def _w(self, data: int, strobe: int, last: int) -> None:
        self._demand(bool(self.writing), "a word without a burst")
        identity, remaining = self.writing[0]
        self._demand(bool(last) == (remaining == 1), f"wlast = {last} with {remaining} words left")
        self.beats["write"] += 1
        if remaining == 1:
            self.writing.popleft()
            self.written[identity] += 1
        else:
            self.writing[0] = identity, remaining - 1

    def _b(self, identity: int, response: int) -> None:
        self._demand(self.written[identity] > 0, f"an answer to no burst of ID {identity}")
        self.written[identity] -= 1

    def _r(self, identity: int, data: int, response: int, last: int) -> None:
        in_flight = self.reading[identity]
        self._demand(bool(in_flight), f"a beat of no burst of ID {identity}")
        in_flight[0] -= 1
        self._demand(bool(last) == (in_flight[0] == 0), f"rlast = {last} with {in_flight[0]} beats left")
        self.beats["read"] += 1
        if last:
            in_flight.popleft()

    def finish(self) -> None:
        """Check that nothing is in flight."""
        remaining = len(self.writing) + sum(self.written.values()) + sum(map(len, self.reading.values()))
        self._demand(not remaining, f"{remaining} bursts without an end")
        self._demand(not self.held, f"channels {sorted(self.held)} wait")


class AxiMemory:
    """A memory behind AXI4 port `port` of a design; every cycle goes through an `AxiChecker`.

    Responses of one ID keep their order; those of different IDs may be reordered and, on reads, interleaved by beat. An
    access beyond the image returns DECERR.

    Parameters
    ----------
    image : contents of the memory from address `start`; writes change it
    timing : response times of bursts ; stall : probability of a pause on each channel in each cycle
    failures : error responses ; longest, outstanding : limits of the checker
    """

    def __init__(
        self,
        dut: Any,
        port: str,
        image: bytearray | Sparse,
        *,
        start: int = 0,
        timing: MemoryTiming | None = None,
        stall: float = 0.0,
        seed: int = 0,
        failures: Sequence[Failure] = (),
        longest: int = 256,
        outstanding: int = 4096,
    ):
        self.clk, self.image, self.start = dut.clk, image, start
        self.timing = timing or FixedTiming()
        self.stall, self.rng = stall, random.Random(f"{port}:{seed}")
        self.failures = {(f.write, f.at): f.response for f in failures}
        self.next: tuple[bool, int | None, int, int] | None = None  # see `fail`
        self.failed: list[int] = []  # addresses of the bursts that have failed, reads and writes
        pins = {
            f"{channel}{field}": getattr(dut, f"{port}__{channel}{field}")
            for channel, fields in CHANNELS.items()
            for field in ("valid", "ready", *fields)
        }
        self._requests = [
            (c, getter(pins[f"{c}valid"]), f"{c}ready", [pins[f"{c}{field}"] for field in CHANNELS[c]], accept)
            for c, accept in (("ar", self._accept_ar), ("aw", self._accept_aw), ("w", self._accept_w))
        ]
        self._answers = [
            (c, getter(pins[f"{c}ready"]), f"{c}valid", [f"{c}{field}" for field in CHANNELS[c]], following)
            for c, following in (("r", self._next_r), ("b", self._next_b))
        ]
        self._set = {name: setter(pin) for name, pin in pins.items()}
        self.word_bytes = len(pins["wdata"]) // 8
        self.checker = AxiChecker(port, self.word_bytes, longest=longest, outstanding=outstanding)
        self.served = {False: 0, True: 0}  # read beats, write bursts
        self.shown: dict[str, int] = {}
        self.reset()

    def reset(self) -> None:
        """Clear the state as after power-on; the image is unchanged."""
        self.checker.reset()
        # open bursts; reads by ID: ready cycle, number of the timing model, address, remaining words, first address
        # writes: ID, address, remaining words, first address; answers by ID: ready cycle, number, response
        self.reads: dict[int, deque[list[int]]] = defaultdict(deque)
        self.writes: deque[tuple[int, int, int, int]] = deque()
        self.answers: dict[int, deque[list[int]]] = defaultdict(deque)
        self.bad: dict[int, int] = {}  # error response of an open write burst, by ID
        self.pauses = dict.fromkeys(CHANNELS, 0)
        self.offer: dict[str, tuple[int, ...] | None] = {"r": None, "b": None}
        self.unanswered = {"r": 0, "b": 0}  # bursts whose last beat has not been offered
        self.accept = dict.fromkeys(("aw", "w", "ar"), False)
        for name in ("rvalid", "bvalid", "awready", "wready", "arready"):
            self._show(name, 0)

    def _show(self, name: str, value: int) -> None:
        if self.shown.get(name) != value:
            self.shown[name] = value
            self._set[name](value)

    def _ready_now(self, channel: str) -> bool:
        if self.pauses[channel]:
            self.pauses[channel] -= 1
        elif self.stall:
            self.pauses[channel] = pause(self.rng, self.stall)
        return self.pauses[channel] == 0

    def fail(self, write: bool, after: int, response: int, identity: int | None = None) -> None:
        """Let one future response fail: after `after` more read beats or write bursts, of one ID or of all.

        Replaces all earlier failures. No response fails when `after` is negative.
        """
        self.failures, self.next = {}, (write, identity, after, response) if after >= 0 else None

    def step(self, now: int) -> None:
        """Sample the signals at the clock edge of cycle `now`, and set those of the next cycle."""
        # most channels are idle in most cycles: then the checker has nothing to observe
        for channel, is_valid, ready, fields, accept in self._requests:
            is_ready = self.accept[channel]
            if is_valid() == "1":
                payload = tuple(map(number, fields))
                self.checker.observe(channel, payload, is_ready)
                if is_ready:
                    accept(now, *payload)
            elif channel in self.checker.held:
                self.checker.observe(channel, None, False)
            if self.stall or not is_ready:
                self.accept[channel] = self._ready_now(channel)
                self._show(ready, int(self.accept[channel]))
        for channel, is_taken, valid, names, following in self._answers:
            offer = self.offer[channel]
            if offer is not None:
                accepted = is_taken() == "1"
                self.checker.observe(channel, offer, accepted)
                if not accepted:
                    continue
            may_offer = not self.stall or self._ready_now(channel)
            new = following(now) if may_offer and self.unanswered[channel] else None
            if offer is not None or new is not None:
                self.offer[channel] = new
                self._show(valid, int(new is not None))
            if new is not None:
                for name, value in zip(names, new, strict=True):
                    self._show(name, value)

    def _offset(self, address: int) -> int | None:
        offset = address - self.start
        return offset if 0 <= offset <= len(self.image) - self.word_bytes else None

    def _fails(self, write: bool, identity: int, address: int, response: int) -> int:
        number = self.served[write]
        self.served[write] += 1
        response = self.failures.get((write, number), response)
        if self.next and self.next[0] == write and self.next[1] in (None, identity):
            only, after, failure = self.next[1:]
            response, self.next = (response, (write, only, after - 1, failure)) if after else (failure, None)
        if response != OKAY:
            self.failed.append(address)
        return response

    def _accept_ar(self, now: int, identity: int, address: int, length: int, size: int, burst: int) -> None:
        ready, number = self.timing.arrive(now, address, (length + 1) * self.word_bytes, False)
        self.reads[identity].append([ready, number, address, length + 1, address])
        self.unanswered["r"] += 1

    def _accept_aw(self, now: int, identity: int, address: int, length: int, size: int, burst: int) -> None:
        self.writes.append((identity, address, length + 1, address))

    def _accept_w(self, now: int, data: int, strobe: int, last: int) -> None:
        identity, address, remaining, first = self.writes.popleft()
        offset = self._offset(address)
        if offset is None:
            self.bad[identity] = DECERR
        else:
            new = data.to_bytes(self.word_bytes, "little")
            if strobe == (1 << self.word_bytes) - 1:
                self.image[offset : offset + self.word_bytes] = new
            else:
                for k in range(self.word_bytes):
                    if strobe >> k & 1:
                        self.image[offset + k : offset + k + 1] = new[k : k + 1]
        if remaining > 1:
            self.writes.appendleft((identity, address + self.word_bytes, remaining - 1, first))
            return
        response = self._fails(True, identity, first, self.bad.pop(identity, OKAY))
        ready, number = self.timing.arrive(now, first, address + self.word_bytes - first, True)
        self.answers[identity].append([ready, number, response])
        self.unanswered["b"] += 1

    def _is_ready(self, burst: list[int], now: int) -> bool:
        """True if the answer of a burst whose ready cycle has come can start; otherwise its ready cycle is later."""
        if burst[1] != CONFIRMED:
            ready = self.timing.confirm(burst[1], now)
            if ready > now:
                burst[0] = ready
                return False
            burst[1] = CONFIRMED
        return True

    def _pick(self, queues: dict[int, Any], now: int) -> int | None:
        candidates = [
            identity
            for identity, queue in queues.items()
            if queue and queue[0][0] <= now and self._is_ready(queue[0], now)
        ]
        if not candidates:
            return None
        if self.stall:
            return self.rng.choice(candidates)
        if len(candidates) == 1:
            return candidates[0]
        return min(candidates, key=lambda identity: queues[identity][0][0])

    def _next_r(self, now: int) -> tuple[int, ...] | None:
        identity = self._pick(self.reads, now)
        if identity is None:
            return None
        burst = self.reads[identity][0]
        offset = self._offset(burst[2])
        word = b"" if offset is None else self.image[offset : offset + self.word_bytes]
        burst[2] += self.word_bytes
        burst[3] -= 1
        last = burst[3] == 0
        if last:
            self.reads[identity].popleft()
            self.unanswered["r"] -= 1
        response = self._fails(False, identity, burst[4], OKAY if offset is not None else DECERR)
        return identity, int.from_bytes(word, "little"), response, int(last)

    def _next_b(self, now: int) -> tuple[int, ...] | None:
        identity = self._pick(self.answers, now)
        if identity is None:
            return None
        self.unanswered["b"] -= 1
        return identity, self.answers[identity].popleft()[2]


async def serve(memories: Sequence[AxiMemory]) -> None:
    """Serve the ports of a design until the simulation ends; one task for all of them, which every cycle resumes."""
    edge = RisingEdge(memories[0].clk)
    while True:
        await edge
        now = cycle()
        for memory in memories:
            memory.step(now)


class AxiLite:
    """Accesses to an AXI4-Lite port, one at a time; `stall` pauses before each handshake."""

    def __init__(self, dut: Any, port: str, *, stall: float = 0.0, seed: int = 0):
        self.clk, self.dut, self.port = dut.clk, dut, port
        self.stall, self.rng = stall, random.Random(f"{port}:{seed}")
        self.reset()

    def _pin(self, name: str) -> Any:
        return getattr(self.dut, f"{self.port}__{name}")

    def reset(self) -> None:
        for name in ("awvalid", "wvalid", "arvalid", "bready", "rready"):
            self._pin(name).value = 0

    async def _pause(self) -> None:
        for _ in range(pause(self.rng, self.stall)):
            await RisingEdge(self.clk)

    async def _send(self, channel: str, **fields: int) -> None:
        await self._pause()
        for name, value in fields.items():
            self._pin(f"{channel}{name}").value = value
        self._pin(f"{channel}valid").value = 1
        while True:
            await RisingEdge(self.clk)
            if self._pin(f"{channel}ready").value == 1:
                break
        self._pin(f"{channel}valid").value = 0

    async def _receive(self, channel: str, *fields: str) -> list[int]:
        await self._pause()
        self._pin(f"{channel}ready").value = 1
        while True:
            await RisingEdge(self.clk)
            if self._pin(f"{channel}valid").value == 1:
                break
        values = [int(self._pin(f"{channel}{name}").value) for name in fields]
        self._pin(f"{channel}ready").value = 0
        return values

    async def write(self, address: int, value: int, strobe: int = 15) -> int:
        """Write a 32-bit register; returns the response."""
        if self.rng.random() < 0.5:
            await self._send("aw", addr=address)
            await self._send("w", data=value, strb=strobe)
        else:
            await self._send("w", data=value, strb=strobe)
            await self._send("aw", addr=address)
        return (await self._receive("b", "resp"))[0]

    async def read(self, address: int) -> tuple[int, int]:
        """Value and response of a 32-bit register."""
        await self._send("ar", addr=address)
        value, response = await self._receive("r", "data", "resp")
        return value, response
