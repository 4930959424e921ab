"""Memory behind a read engine and a write engine, for units that send jobs of words."""

import random
from collections import deque
from collections.abc import Mapping
from typing import Any

import cocotb
import numpy as np
from cocotb.task import Task
from cocotb.triggers import ClockCycles, Event, RisingEdge

from sim.bench.streams import Sink, Source, cycle


class JobMemory:
    """Serves the jobs of a unit on an image of memory. A write takes effect when it is acknowledged.

    Parameters
    ----------
    dut : the unit ; ports are named `read_job`, `read_words`, `write_job`, `write_words` and `write_done`
    image : uint8, content of the memory
    fields : offset and width of the fields `address` and `count` of a job
    latency : smallest and largest number of cycles from a job to its first word or its acknowledgement
    stall, seed : see `Source`

    Attributes
    ----------
    written : for every word that was written: address, number of its job, cycle of its transfer
    words : the words that were written
    acknowledged : cycle in which each write job was acknowledged
    """

    def __init__(
        self,
        dut: Any,
        image: np.ndarray,
        fields: Mapping[str, tuple[int, int]],
        latency: tuple[int, int],
        stall: Mapping[str, Any],
        seed: int,
    ):
        self.dut, self.image, self.fields, self.latency = dut, image, fields, latency
        self.rng = random.Random(f"memory:{seed}")
        streams = {"stall": stall.get("read_words", 0.0), "seed": seed}
        self.read_job, self.write_job, self.write_words = (
            Sink(dut, name, stall=stall.get(name, 0.0), seed=seed) for name in ("read_job", "write_job", "write_words")
        )
        self.read_words = Source(dut, "read_words", **streams)
        self.nbytes = len(dut.write_words__payload) * 8 // 9 // 8
        self.reads: deque[tuple[int, int]] = deque()
        self.writes: deque[tuple[int, int, int]] = deque()
        self.arrived: deque[tuple[int, int]] = deque()
        self.event = Event()
        self.written: list[tuple[int, int, int]] = []
        self.words: list[bytes] = []
        self.acknowledged: list[int] = []
        self.jobs = 0
        self.read_job.on_word = self._take_read
        self.write_job.on_word = self._take_write
        self.write_words.on_word = self._take_word
        dut.write_done.value = 0

    def start(self) -> list[Task]:
        """Start serving; returns the tasks."""
        forever = 1 << 60
        work = [sink.receive(forever) for sink in (self.read_job, self.write_job, self.write_words)]
        return [cocotb.start_soon(task) for task in [*work, self._serve_reads(), self._serve_writes()]]

    def _fields(self, word: int) -> tuple[int, int]:
        places = (self.fields["address"], self.fields["count"])
        address, count = (word >> offset & (1 << width) - 1 for offset, width in places)
        return address, count

    def _take_read(self, word: int) -> None:
        self.reads.append((*self._fields(word),))
        self.event.set()

    def _take_write(self, word: int) -> None:
        address, count = self._fields(word)
        self.writes.append((address, count, self.jobs))
        self.jobs += 1
        self.event.set()

    def _take_word(self, word: int) -> None:
        self.arrived.append((word & (1 << 8 * self.nbytes) - 1, cycle()))
        assert word >> 8 * self.nbytes == (1 << self.nbytes) - 1, "write strobe of a line must be complete"
        self.event.set()

    async def _wait(self) -> None:
        self.event.clear()
        await self.event.wait()

    async def _serve_reads(self) -> None:
        while True:
            while not self.reads:
                await self._wait()
            address, count = self.reads.popleft()
            content = [self._word(address + n) for n in range(count)]
            await ClockCycles(self.dut.clk, self.rng.randint(*self.latency))
            last = 1 << 8 * self.nbytes
            await self.read_words.send(word | last * (n == count - 1) for n, word in enumerate(content))

    def _word(self, address: int) -> int:
        start = address * self.nbytes
        assert start + self.nbytes <= len(self.image), f"read of word {address:#x} outside the memory"
        return int.from_bytes(self.image[start : start + self.nbytes].tobytes(), "little")

    async def _serve_writes(self) -> None:
        while True:
            while not self.writes or len(self.arrived) < self.writes[0][1]:
                await self._wait()
            address, count, job = self.writes.popleft()
            words = [self.arrived.popleft() for _ in range(count)]
            await ClockCycles(self.dut.clk, self.rng.randint(*self.latency))
            for n, (word, when) in enumerate(words):
                content = word.to_bytes(self.nbytes, "little")
                start = (address + n) * self.nbytes
                assert start + self.nbytes <= len(self.image), f"write of word {address + n:#x} outside the memory"
                self.image[start : start + self.nbytes] = np.frombuffer(content, np.uint8)
                self.written.append((address + n, job, when))
                self.words.append(content)
            self.dut.write_done.value = 1
            await RisingEdge(self.dut.clk)
            self.acknowledged.append(cycle())
            self.dut.write_done.value = 0

    def record(self) -> dict[str, np.ndarray]:
        """The image and everything that was written, for the record of a run."""
        return {
            "memory.image": self.image,
            "memory.written": np.array(self.written, np.int64).reshape(-1, 3),
            "memory.words": np.frombuffer(b"".join(self.words), np.uint8).reshape(-1, self.nbytes),
            "memory.acknowledged": np.array(self.acknowledged, np.int64),
        }
