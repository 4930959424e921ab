"""The cocotb side of `sim.mutation.server`: a simulator that waits at time 0 and forks for every run it is asked for.

So each run begins with the same fresh unit, and none pays for the start of Python and the simulator; what a mutant does
to its process ends with that process.
"""

import json
import os
import signal
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import cocotb

from sim.bench.streams import cycle
from sim.mutation.netlist import SELECT
from sim.mutation.server import PASSED


@cocotb.test()
async def serve(dut: Any) -> None:
    """One line in, one line out, until there are no more."""
    folder = Path(os.environ["SERVER_FOLDER"])
    with (folder / "asked").open() as asked, (folder / "answered").open("w") as answered:
        while line := asked.readline():
            if child := os.fork():
                _, status = os.waitpid(child, 0)
                answered.write(f"{os.waitstatus_to_exitcode(status)}\n")
                answered.flush()
            else:
                await _perform(dut, **json.loads(line))


async def _perform(dut: Any, module: str, folder: str, environment: dict[str, str], mutant: int, limit_s: int) -> None:
    """One run; the process ends with it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    os.chdir(folder)
    os.environ.update(environment)
    getattr(dut, SELECT).value = mutant
    try:
        for test in vars(import_module(module)).values():
            if hasattr(test, "generate_tests"):  # as cocotb itself tells them
                await test.func(dut)
        (Path(folder) / "cycles").write_text(str(cycle()))
        os._exit(PASSED)
    except BaseException:
        (Path(folder) / "run.log").write_text(traceback.format_exc())
        os._exit(1)
