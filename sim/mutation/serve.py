"""cocotb side of `sim.mutation.server`: a simulator that waits at time 0 and forks for every requested run.

Every run starts from the same initial state without the start-up time of Python and the simulator. A mutant that
crashes its process affects no other run.
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
    """Fork for each request line and reply with the exit status."""
    folder = Path(os.environ["SERVER_FOLDER"])
    with (folder / "requests").open() as requests, (folder / "replies").open("w") as replies:
        while line := requests.readline():
            if child := os.fork():
                _, status = os.waitpid(child, 0)
                replies.write(f"{os.waitstatus_to_exitcode(status)}\n")
                replies.flush()
            else:
                await _perform(dut, **json.loads(line))


async def _perform(dut: Any, module: str, folder: str, environment: dict[str, str], mutant: int, limit_s: int) -> None:
    """Perform one run and end the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    os.chdir(folder)
    os.environ.update(environment)
    getattr(dut, SELECT).value = mutant
    try:
        for test in vars(import_module(module)).values():
            if hasattr(test, "generate_tests"):  # how cocotb recognises a test
                await test.func(dut)
        (Path(folder) / "cycles").write_text(str(cycle()))
        os._exit(PASSED)
    except BaseException:
        (Path(folder) / "run.log").write_text(traceback.format_exc())
        os._exit(1)
