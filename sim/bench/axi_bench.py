"""cocotb test of designs with AXI ports: serves memories, feeds streams, performs a script of register accesses.

It runs inside the simulator; `sim.bench.axi_run.simulate` writes its job and reads its record.
"""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import cocotb
import numpy as np
from cocotb.triggers import ClockCycles, Lock, RisingEdge, SimTimeoutError, gather, with_timeout

from golden.store import recover
from sim.bench.axi import AxiLite, AxiMemory, Failure, serve
from sim.bench.stream_bench import from_words, record_ports, to_words
from sim.bench.streams import PERIOD_NS, Sink, Source, cycle, reset, start_clock

PROGRESS_CYCLES = 20_000  # cycles between two lines of the log


class Script:
    """Performs the steps of a job in order and stores their results in `answers`.

    write ADDRESS VALUE [STROBE], read ADDRESS (gives [value, response]), wait CYCLES, reset,
    interrupt CYCLES BIT: wait until that bit of `irq` is 1, at most that long (gives the cycle, or -1)
    fail PORT WRITE AFTER RESPONSE [ID]: see `AxiMemory.fail`
    recover PORT BASE SIZE: undo an interrupted step of the store in these bytes of a memory (gives the restored lines)
    parallel STEPS STEPS ..: several scripts at once (gives the answers of each)
    """

    def __init__(self, dut: Any, memories: dict[str, AxiMemory], port: str | None, stall: float, seed: int):
        self.dut, self.memories = dut, memories
        self.lite = AxiLite(dut, port, stall=stall, seed=seed) if port else None
        self.register_lock = Lock()
        self.answers: list[Any] = []

    async def run(self, steps: list[list[Any]]) -> None:
        await self._perform(steps, self.answers)

    async def _perform(self, steps: list[list[Any]], answers: list[Any]) -> None:
        for number, (name, *values) in enumerate(steps, 1):
            answers.append(await getattr(self, f"_{name}")(*values))
            if name == "interrupt":  # long runs are followed in the log
                cocotb.log.info(f"step {number} of {len(steps)} in cycle {cycle()}")

    async def _parallel(self, *scripts: list[list[Any]]) -> list[list[Any]]:
        answers: list[list[Any]] = [[] for _ in scripts]
        await gather(*(self._perform(steps, to) for steps, to in zip(scripts, answers, strict=True)))
        return answers

    async def _write(self, address: int, value: int, strobe: int = 15) -> int:
        assert self.lite is not None
        async with self.register_lock:
            return await self.lite.write(address, value, strobe)

    async def _read(self, address: int) -> list[int]:
        assert self.lite is not None
        async with self.register_lock:
            return list(await self.lite.read(address))

    async def _fail(self, port: str, *failure: Any) -> None:
        self.memories[port].fail(*failure)

    async def _recover(self, port: str, base: int, size: int) -> int:
        image = self.memories[port].image
        part = np.frombuffer(bytearray(image[base : base + size]), np.uint8)
        lines = recover(part, base, origin=base)
        image[base : base + size] = part.tobytes()
        return lines

    async def _wait(self, cycles: int) -> None:
        await ClockCycles(self.dut.clk, cycles)

    async def _interrupt(self, cycles: int, bit: int = 0) -> int:
        async def risen() -> None:
            while not int(self.dut.irq.value) >> bit & 1:
                await self.dut.irq.value_change

        for start in range(0, cycles, PROGRESS_CYCLES):
            try:
                await with_timeout(risen(), min(PROGRESS_CYCLES, cycles - start) * PERIOD_NS, "ns")
            except SimTimeoutError:
                cocotb.log.info(f"cycle {cycle()}")  # long programs are followed in the log
            else:
                await RisingEdge(self.dut.clk)
                return cycle()
        return -1

    async def _reset(self) -> None:
        self.dut.rst.value = 1
        for _ in range(2):
            await RisingEdge(self.dut.clk)
            for memory in self.memories.values():
                memory.reset()
        self.dut.rst.value = 0
        if self.lite is not None:
            self.lite.reset()


@cocotb.test()
async def axi(dut: Any) -> None:
    """Perform the job; at the end no burst may be in flight."""
    folder = Path(os.environ["BENCH_FOLDER"])
    job = json.loads((folder / "job.json").read_text())
    stimulus = np.load(folder / "stimulus.npz")
    given = pickle.loads((folder / "memories.pickle").read_bytes())
    start_clock(dut)
    for name, value in job["config"].items():
        getattr(dut, name).value = value
    memories = {}
    for port, options in job["memories"].items():
        image, timing = given[port]
        failures = [Failure(*failure) for failure in options.pop("failures")]
        memories[port] = AxiMemory(dut, port, image, timing=timing, failures=failures, **options)
    script = Script(dut, memories, job["lite"], job["stall"], job["seed"])
    await reset(dut)
    if memories:
        cocotb.start_soon(serve(list(memories.values())))
    sources = {n: Source(dut, n, stall=job["stall"], seed=job["seed"]) for n in stimulus.files}
    sinks = {n: Sink(dut, n, stall=job["stall"], seed=job["seed"]) for n in job["outputs"]}
    ports: dict[str, list[int]] = {name: [] for name in job["ports"]}
    if ports:
        cocotb.start_soon(record_ports(dut, ports))
    work = [source.send(to_words(stimulus[n])) for n, source in sources.items()]
    work += [sink.receive(job["outputs"][n]) for n, sink in sinks.items()]
    begin = cycle()
    if job["cycles"]:
        for task in work:
            cocotb.start_soon(task)
        await ClockCycles(dut.clk, job["cycles"])
    else:
        await with_timeout(gather(*work, script.run(job["script"])), job["timeout_cycles"] * PERIOD_NS, "ns")
    end = cycle()
    await ClockCycles(dut.clk, job["drain_cycles"])
    for memory in memories.values():
        memory.checker.finish()
    record: dict[str, Any] = {"answers": json.dumps(script.answers), "span": np.array([begin, end])}
    for name, sink in sinks.items():
        record[f"words.{name}"] = from_words(sink.words, len(sink.payload))
    for name in job["status"]:
        record[f"status.{name}"] = str(int(getattr(dut, name).value))  # can exceed 64 bits
    for name, words in ports.items():
        record[f"ports.{name}"] = from_words(words, len(getattr(dut, name)))
    for port, memory in memories.items():
        checker = memory.checker
        traffic = {"bursts": checker.bursts, "beats": checker.beats, "most": checker.most}
        record[f"traffic.{port}"] = json.dumps({**traffic, "failed": memory.failed, "requests": checker.requests})
    (folder / "images.pickle").write_bytes(pickle.dumps({port: memory.image for port, memory in memories.items()}))
    np.savez(folder / "record.npz", **record)
