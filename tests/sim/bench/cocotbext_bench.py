"""cocotb test: cocotbext-axi drives the register port of a core and serves its memories.

It runs inside the simulator. `test_cocotbext_axi.py` writes `job.json` and the memory images, and reads the results.
"""

import json
import os
import random
from pathlib import Path
from typing import Any

import cocotb
from cocotb.triggers import with_timeout
from cocotbext.axi import AxiBus, AxiLiteBus, AxiLiteMaster, AxiRam

from sim.bench.streams import PERIOD_NS, reset, start_clock

TIMEOUT_CYCLES = 100_000


def pauses(name: str, job: dict[str, Any]) -> Any:
    """Endless random pauses of one channel: True in a cycle in which it pauses."""
    rng = random.Random(f"{name}:{job['seed']}")
    while True:
        yield rng.random() < job["stall"]


def memory(dut: Any, port: str, job: dict[str, Any]) -> AxiRam:
    """An `AxiRam` behind AXI4 port `port`, filled with its image; addresses wrap at its size."""
    image = (Path(os.environ["BENCH_FOLDER"]) / f"{port}.image").read_bytes()
    ram = AxiRam(AxiBus.from_prefix(dut, f"{port}_"), dut.clk, dut.rst, size=len(image), mem=bytearray(image))
    channels = ram.write_if.aw_channel, ram.write_if.w_channel, ram.write_if.b_channel
    for number, channel in enumerate((*channels, ram.read_if.ar_channel, ram.read_if.r_channel)):
        channel.set_pause_generator(pauses(f"{port}{number}", job))
    return ram


@cocotb.test()
async def run_script(dut: Any) -> None:
    """Perform the register accesses of the job and store what they return, then store the memories."""
    folder = Path(os.environ["BENCH_FOLDER"])
    job = json.loads((folder / "job.json").read_text())
    start_clock(dut)
    registers = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "registers_"), dut.clk, dut.rst)
    rams = {port: memory(dut, port, job) for port in job["memories"]}
    await reset(dut)

    async def interrupt() -> None:
        while dut.irq.value == 0:
            await dut.irq.value_change

    answers: list[Any] = []
    for name, *values in job["script"]:
        if name == "write":
            answers.append(int((await registers.write(values[0], values[1].to_bytes(4, "little"))).resp))
        elif name == "read":
            response = await registers.read(values[0], 4)
            answers.append([int.from_bytes(response.data, "little"), int(response.resp)])
        else:
            await with_timeout(interrupt(), TIMEOUT_CYCLES * PERIOD_NS, "ns")
            answers.append(0)
    (folder / "answers.json").write_text(json.dumps(answers))
    for port, ram in rams.items():
        (folder / f"{port}.result").write_bytes(bytes(ram.mem))
