"""cocotb side of `sim.bench.server`: a simulator that waits at time 0 and forks for every requested run.

Every run starts from the same initial state without the start-up time of Python and the simulator. A run that crashes
its process affects no other run.
"""

import json
import os
import signal
import traceback
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import cocotb

from sim.bench.streams import cycle

PASSED = 77  # exit status of a run that passed; any other status, also that of a normal exit, is a failure


@cocotb.test()
async def serve(dut: Any) -> None:
    """Fork for each request line and reply with the exit status."""
    folder = Path(os.environ["SERVER_FOLDER"])
    with (folder / "requests").open() as requests, (folder / "replies").open("w") as replies:
        while line := requests.readline():
            job = json.loads(line)
            module = import_module(job.pop("module"))  # once for all runs
            if child := os.fork():
                _, status = os.waitpid(child, 0)
                replies.write(f"{os.waitstatus_to_exitcode(status)}\n")
                replies.flush()
            else:
                await _perform(dut, module, **job)
    os._exit(0)  # the end of a model that has evaluated nothing crashes in modules that Verilator builds separately


async def _perform(
    dut: Any, module: ModuleType, folder: str, environment: dict[str, str], ports: dict[str, int], limit_s: int
) -> None:
    """Perform one run and end the process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(limit_s)
    os.chdir(folder)
    os.environ.update(environment)
    for name, value in ports.items():
        getattr(dut, name).value = value
    try:
        for test in vars(module).values():
            if hasattr(test, "generate_tests"):  # how cocotb recognises a test
                await test.func(dut)
        (Path(folder) / "cycles").write_text(str(cycle()))
        os._exit(PASSED)
    except BaseException:
        (Path(folder) / "run.log").write_text(traceback.format_exc())
        os._exit(1)
