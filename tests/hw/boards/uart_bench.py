"""Runs inside the simulator: a session of the host program exchanges messages with the board's top level."""

import json
import os
from pathlib import Path

import cocotb
from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, Timer, with_timeout

from compiler.board_host import Session
from sim.bench.streams import PERIOD_NS, start_clock


class Line:
    """Host end of a serial line: sends bytes and collects received bytes. A bit takes `bit` ns."""

    def __init__(self, dut, bit):
        self.dut, self.bit, self.received = dut, bit, bytearray()
        cocotb.start_soon(self._listen())

    async def send(self, data, stop=1):
        for byte in data:
            for level in (0, *(byte >> k & 1 for k in range(8)), stop):
                self.dut.rx.value = level
                await Timer(self.bit, "ns")

    async def _listen(self):
        while True:
            await FallingEdge(self.dut.tx)
            await Timer(self.bit // 2, "ns")
            byte = 0
            for k in range(8):
                await Timer(self.bit, "ns")
                byte |= int(self.dut.tx.value) << k
            await Timer(self.bit, "ns")
            assert self.dut.tx.value == 1, "a byte without a stop bit"
            self.received.append(byte)

    async def run(self, session):
        """Run a session to its end."""
        await self.send(session.begin())
        while not session.done:
            await Timer(2 * self.bit, "ns")
            data = bytes(self.received)
            self.received.clear()
            if answer := session.feed(data):
                await self.send(answer)


@cocotb.test()
async def host(dut):
    job = json.loads(Path(os.environ["BENCH_JOB"]).read_text())
    dut.rx.value = 1
    start_clock(dut)
    dut.rst.value = 1
    await ClockCycles(dut.clk, 4)
    dut.rst.value = 0
    line = Line(dut, job["divisor"] * PERIOD_NS)
    limit = job["limit_cycles"] * PERIOD_NS
    await RisingEdge(dut.busy)  # the self-test after power-up
    if job["interrupt"] == "incomplete message":
        await line.send(bytes([0xEE, 0x02, 0x00]))  # an unknown code and an incomplete message
        await ClockCycles(dut.clk, 2 * job["patience"])
    elif job["interrupt"] != "at once":
        await with_timeout(FallingEdge(dut.busy), limit, "ns")
        await ClockCycles(dut.clk, 2)
        assert (dut.passed.value, dut.failed.value) == (1 - job["broken"], job["broken"])
    if job["interrupt"] == "no stop bit":
        await line.send(b"\x55", stop=0)
        dut.rx.value = 1
        await ClockCycles(dut.clk, 2 * job["patience"])
    session = Session(job["description"])
    problem = ""
    try:
        await with_timeout(line.run(session), limit, "ns")
        assert dut.lost.value == 0
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    beats = {name: len(words) for name, words in session.received.items()}
    Path(os.environ["BENCH_JOB"]).with_name("result.json").write_text(json.dumps({"problem": problem, "beats": beats}))
