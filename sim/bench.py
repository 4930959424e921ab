"""The general cocotb test: feeds every input stream, drains every output stream, records what happened.

It runs inside the simulator; `sim.run.simulate` writes its job and reads its record.
"""

import json
import os
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, gather, with_timeout

from sim.streams import PERIOD_NS, Echo, Sink, Source, reset, start_clock


def _integers(words: np.ndarray) -> list[int]:
    return [int.from_bytes(row.tobytes(), "little") for row in words]


@cocotb.test()
async def streams(dut: Any) -> None:
    """All beats in, all expected beats out, within the time-out; statistics at the end."""
    folder = Path(os.environ["BENCH_FOLDER"])
    job = json.loads((folder / "job.json").read_text())
    stimulus = np.load(folder / "stimulus.npz")
    start_clock(dut)
    for name, value in job["config"].items():
        getattr(dut, name).value = value
    await reset(dut)

    def begin() -> tuple[dict[str, Source], dict[str, Sink], list[Coroutine[Any, Any, None]]]:
        sources = {n: Source(dut, n, stall=job["stall"].get(n, 0.0), seed=job["seed"]) for n in stimulus.files}
        sinks = {n: Sink(dut, n, stall=job["stall"].get(n, 0.0), seed=job["seed"]) for n in job["outputs"]}
        work = [source.send(_integers(stimulus[n])) for n, source in sources.items()]
        for name, (sink, fields) in job["echo"].items():
            sources[name] = Source(dut, name, stall=job["stall"].get(name, 0.0), seed=job["seed"])
            work.append(Echo(sinks[sink], sources[name], fields).run(job["outputs"][sink]))
        return sources, sinks, work + [sink.receive(job["outputs"][n]) for n, sink in sinks.items()]

    if job["reset_after"]:
        tasks = [cocotb.start_soon(part) for part in begin()[2]]
        await ClockCycles(dut.clk, job["reset_after"])
        for task in tasks:
            task.cancel()
        await reset(dut)
    sources, sinks, work = begin()
    await with_timeout(gather(*work), job["timeout_cycles"] * PERIOD_NS, "ns")
    await ClockCycles(dut.clk, job["drain_cycles"])
    record: dict[str, Any] = {}
    for name, sink in sinks.items():
        assert sink.valid.value == 0, f"{name}: more than the expected {job['outputs'][name]} beats"
        size = (len(sink.payload) + 7) // 8
        raw = b"".join(word.to_bytes(size, "little") for word in sink.words)
        record[f"words.{name}"] = np.frombuffer(raw, np.uint8).reshape(-1, size)
        record[f"cycles.{name}"] = np.array(sink.cycles, np.int64)
    for name, source in sources.items():
        record[f"cycles.{name}"] = np.array(source.cycles, np.int64)
    for name in job["status"]:
        record[f"status.{name}"] = int(getattr(dut, name).value)
    np.savez(folder / "record.npz", **record)
