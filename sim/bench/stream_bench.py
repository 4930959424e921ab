"""cocotb test of stream units: feeds every input stream, drains every output stream, and records the transfers.

It runs inside the simulator; `sim.bench.run.simulate` writes its job and reads its record. This module and those that
it imports do not import Amaranth, whose import takes 40 % of the start of a simulation.
"""

import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, RisingEdge, gather, with_timeout

from sim.bench.job_memory import JobMemory
from sim.bench.streams import PERIOD_NS, Echo, Sink, Source, number, reset, start_clock


def to_words(words: np.ndarray) -> list[int]:
    """Integers of payload words, which are rows of little-endian bytes."""
    return [int.from_bytes(row.tobytes(), "little") for row in words]


def from_words(words: list[int], width: int) -> np.ndarray:
    """The inverse of `to_words`, for words of `width` bits."""
    size = (width + 7) // 8
    return np.frombuffer(b"".join(word.to_bytes(size, "little") for word in words), np.uint8).reshape(-1, size)


async def record_ports(dut: Any, ports: dict[str, list[int]]) -> None:
    """Append the value of every port at every rising edge of the clock."""
    handles = [(getattr(dut, name), words) for name, words in ports.items()]
    while True:
        await RisingEdge(dut.clk)
        for handle, words in handles:
            words.append(number(handle))


@cocotb.test()
async def streams(dut: Any) -> None:
    """Send all beats, receive all expected beats within the time-out, then read the counters."""
    folder = Path(os.environ["BENCH_FOLDER"])
    job = json.loads((folder / "job.json").read_text())
    stimulus = np.load(folder / "stimulus.npz")
    start_clock(dut)
    ports: dict[str, list[int]] = {name: [] for name in job["ports"]}
    if ports:
        cocotb.start_soon(record_ports(dut, ports))
    for name, value in job["config"].items():
        getattr(dut, name).value = value
    await reset(dut)

    memories: list[JobMemory] = []
    background: list[Any] = []

    def begin() -> tuple[dict[str, Source], dict[str, Sink], list[Coroutine[Any, Any, None]]]:
        sources = {n: Source(dut, n, stall=job["stall"].get(n, 0.0), seed=job["seed"]) for n in stimulus.files}
        sinks = {n: Sink(dut, n, stall=job["stall"].get(n, 0.0), seed=job["seed"]) for n in job["outputs"]}
        work = [source.send(to_words(stimulus[n])) for n, source in sources.items()]
        for name, (sink, fields) in job["echo"].items():
            sources[name] = Source(dut, name, stall=job["stall"].get(name, 0.0), seed=job["seed"])
            work.append(Echo(sinks[sink], sources[name], fields).run(job["outputs"][sink]))
        if (latency := job["memory_latency"]) is not None:
            image = np.load(folder / "memory.npy")
            memories.append(JobMemory(dut, image, job["job_fields"], latency, job["stall"], job["seed"]))
            background.extend(memories[-1].start())
        return sources, sinks, work + [sink.receive(job["outputs"][n]) for n, sink in sinks.items()]

    broken_off = []
    for cycles in job["reset_after"]:
        _, sinks, work = begin()
        broken_off.append(sinks)
        tasks = [cocotb.start_soon(task) for task in work]
        await ClockCycles(dut.clk, cycles)
        for task in [*tasks, *background]:
            task.cancel()
        background.clear()
        await reset(dut, 1)  # no register needs a second cycle
    sources, sinks, work = begin()
    await with_timeout(gather(*work), job["timeout_cycles"] * PERIOD_NS, "ns")
    await ClockCycles(dut.clk, job["drain_cycles"])
    record: dict[str, Any] = {}
    for name, sink in sinks.items():
        assert sink.valid.value == 0, f"{name}: more than the expected {job['outputs'][name]} beats"
        for early in broken_off if job["repeats"] else ():
            words = early[name].words
            assert words == sink.words[: len(words)], f"{name}: other beats before a reset"
        record[f"words.{name}"] = from_words(sink.words, len(sink.payload))
        record[f"cycles.{name}"] = np.array(sink.cycles, np.int64)
    for name, source in sources.items():
        record[f"cycles.{name}"] = np.array(source.cycles, np.int64)
    for memory in memories[-1:]:
        record |= memory.record()
    for name in job["status"]:
        record[f"status.{name}"] = int(getattr(dut, name).value)
    for name, words in ports.items():
        record[f"ports.{name}"] = from_words(words, len(getattr(dut, name)))
    np.savez(folder / "record.npz", **record)
