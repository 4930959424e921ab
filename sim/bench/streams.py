"""cocotb drivers of Amaranth streams: a source and a sink with random pauses, both checking the protocol."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any

from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, Event, RisingEdge
from cocotb.utils import get_sim_steps, get_sim_time

PERIOD_NS = 2
# the simulator itself delays writes to the end of a time step, see `sim.bench.run`; otherwise cocotb must queue them
_WRITES_AT_ONCE = os.environ.get("COCOTB_TRUST_INERTIAL_WRITES") == "1"
_DEPOSIT = 0  # of cocotb's simulator interface: set until something else sets the signal


@cache
def _period_steps() -> int:
    return get_sim_steps(PERIOD_NS, "ns")


def cycle() -> int:
    """Number of the current clock cycle."""
    return get_sim_time("step") // _period_steps()


def text(signal: Any) -> str:
    """Bits of a signal as the simulator gives them: "0", "1", "x" or "z", the highest bit first.

    `signal.value` wraps them in an object, which takes longer than a clock cycle of a small unit.
    """
    return signal._handle.get_signal_val_binstr()


def number(signal: Any) -> int:
    """Value of a signal; raises `ValueError` if a bit is unknown."""
    bits = text(signal)
    try:
        return int(bits, 2)
    except ValueError:
        raise ValueError(f"bits of {signal._path} must be 0 or 1, got {bits}") from None


def getter(signal: Any) -> Callable[[], str]:
    """A function that gives `text(signal)`."""
    return signal._handle.get_signal_val_binstr


def setter(signal: Any) -> Callable[[int], None]:
    """A function that sets a signal: `signal.value = value` takes longer than a clock cycle of a small unit."""

    def queue(value: int) -> None:
        signal.value = value

    if not _WRITES_AT_ONCE:
        return queue
    write, digits = signal._handle.set_signal_val_binstr, f"0{len(signal)}b"
    return lambda value: write(_DEPOSIT, format(value, digits))


def start_clock(dut: Any) -> None:
    Clock(dut.clk, PERIOD_NS, unit="ns").start()


async def reset(dut: Any, cycles: int = 2) -> None:
    """Hold reset for some cycles."""
    dut.rst.value = 1
    await ClockCycles(dut.clk, cycles)
    dut.rst.value = 0


STALL_PHASES = ("none", "source", "sink", "both")
Stall = float | Sequence[float]  # probability of a pause per cycle; or (probability, cycles per phase, first phase)


def stall_phase(at: int, length: float, first: float) -> str:
    """Which sides pause in cycle `at` of a run with alternating pauses."""
    return STALL_PHASES[int(at // length + first) % len(STALL_PHASES)]


def chance(stall: Stall, side: str) -> float:
    """Probability of a pause on `side` ("source" or "sink") in the current cycle."""
    if isinstance(stall, float | int):
        return stall
    probability, length, first = stall
    return probability if stall_phase(cycle(), length, first) in (side, "both") else 0.0


def pause(rng: random.Random, stall: float) -> int:
    """Cycles to pause before the next beat: geometric, so that each cycle pauses with probability `stall`."""
    count = 0
    while rng.random() < stall:
        count += 1
    return count


class Source:
    """Sends words into stream port `name`; holds valid and payload until the transfer.

    Between beats it waits for the ready signal, not for the clock, so long waits take no simulation time.
    """

    def __init__(self, dut: Any, name: str, *, stall: Stall = 0.0, seed: int = 0):
        self.clk = dut.clk
        self.valid, self.ready = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")
        self._set_valid, self._set_payload = setter(self.valid), setter(getattr(dut, f"{name}__payload"))
        self.stall, self.rng = stall, random.Random(f"{name}:{seed}")
        self.cycles: list[int] = []
        self._set_valid(0)
        self._set_payload(0)

    async def send(self, words: Iterable[int]) -> None:
        """Send every word, in order; `cycles` gets the cycle of each transfer."""
        for word in words:
            if gap := pause(self.rng, chance(self.stall, "source")):
                self._set_valid(0)
                await ClockCycles(self.clk, gap)
            self._set_payload(word)
            self._set_valid(1)
            while True:
                await RisingEdge(self.clk)
                if text(self.ready) == "1":
                    break
                await RisingEdge(self.ready)
            self.cycles.append(cycle())
        self._set_valid(0)


class Sink:
    """Receives words from stream port `name`; asserts that valid and payload are stable while it is not ready."""

    def __init__(self, dut: Any, name: str, *, stall: Stall = 0.0, seed: int = 0):
        self.name, self.clk = name, dut.clk
        self.valid, self.ready = getattr(dut, f"{name}__valid"), getattr(dut, f"{name}__ready")
        self.payload = getattr(dut, f"{name}__payload")
        self.stall, self.rng = stall, random.Random(f"{name}:{seed}")
        self.cycles: list[int] = []
        self.words: list[int] = []
        self.on_word: Callable[[int], None] | None = None
        self._set_ready = setter(self.ready)
        self._set_ready(0)

    async def receive(self, count: int) -> None:
        """Receive `count` words into `words`, and the cycle of each into `cycles`."""
        for _ in range(count):
            offered = None  # the offered word, which must not change until it is accepted
            if gap := pause(self.rng, chance(self.stall, "sink")):
                self._set_ready(0)
                # rare beats would always find a sink that is ready again
                if not isinstance(self.stall, float | int) and self.rng.random() < 0.5:
                    await RisingEdge(self.clk)  # before this edge, valid still belongs to the accepted beat
                    offered = self._offer(offered)
                    if offered is None:
                        await RisingEdge(self.valid)
                for _ in range(gap):
                    await RisingEdge(self.clk)
                    offered = self._offer(offered)
            self._set_ready(1)
            while True:
                await RisingEdge(self.clk)
                if text(self.valid) == "1":
                    break
                assert offered is None, f"{self.name}: valid fell before ready"
                await RisingEdge(self.valid)
            self.words.append(self._offer(offered))
            self.cycles.append(cycle())
            if self.on_word is not None:
                self.on_word(self.words[-1])
        self._set_ready(0)

    def _offer(self, offered: int | None) -> Any:
        word = number(self.payload) if text(self.valid) == "1" else None
        assert offered is None or word == offered, f"{self.name}: valid or payload changed before ready"
        return word


class Echo:
    """Answers every word of a sink on a source, as a DMA engine answers descriptors.

    Without stalls on the source the answers keep the order without delay; with stalls each is delayed and reordered.
    `fields` are (offset in the sink's word, offset in the answer, width) of what is copied; the rest is 0.
    """

    def __init__(self, sink: Sink, source: Source, fields: Iterable[tuple[int, int, int]]):
        self.source, self.fields = source, [tuple(field) for field in fields]
        self.waiting: list[int] = []
        self.new_word = Event()
        sink.on_word = self._take

    def _take(self, word: int) -> None:
        self.waiting.append(sum((word >> a & (1 << width) - 1) << b for a, b, width in self.fields))
        self.new_word.set()

    async def run(self, count: int) -> None:
        """Answer `count` words."""
        rng = self.source.rng
        for _ in range(count):
            while not self.waiting:
                self.new_word.clear()
                await self.new_word.wait()
            stall = chance(self.source.stall, "source")
            if gap := pause(rng, stall):
                await ClockCycles(self.source.clk, gap)
            await self.source.send([self.waiting.pop(rng.randrange(len(self.waiting)) if stall else 0)])
