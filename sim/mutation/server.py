"""A simulator process that stays alive and forks for every run, which saves its start-up time."""

from __future__ import annotations

import json
import os
import select
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from sim.bench.build import Build, SimulatorError
from sim.bench.run import run_folder, run_process

PASSED = 77  # exit status of a run that passed; any other status, also that of a normal exit, is a failure
_END_S = 120.0


class Server:
    """A simulator of a netlist with mutants; `run` is `sim.bench.run.run_module` with one active mutant.

    The simulator ends with `close` or with the process that started it.
    """

    def __init__(self, build: Build):
        self.folder = run_folder(f"{build.name}-server")
        for pipe in ("requests", "replies"):
            os.mkfifo(self.folder / pipe)
        environment = {"SERVER_FOLDER": str(self.folder), "COCOTB_LOG_LEVEL": "ERROR"}
        self.simulator = threading.Thread(target=self._simulate, args=(build, environment), daemon=True)
        self.simulator.start()
        # O_RDWR: opening the pipe does not block until the simulator opens its end
        self.requests = os.open(self.folder / "requests", os.O_RDWR)
        self.replies = os.open(self.folder / "replies", os.O_RDWR)

    def _simulate(self, build: Build, environment: Mapping[str, str]) -> None:
        with suppress(SimulatorError):  # `run` detects that the thread has ended
            run_process(build, "sim.mutation.serve", self.folder, environment)

    def run(self, module: str, folder: Path, environment: Mapping[str, str], *, mutant: int, limit_s: int) -> int:
        """Run and return the number of cycles; raises `SimulatorError` on a failure or after `limit_s`."""
        job = {"module": module, "folder": str(folder), "environment": dict(environment)}
        os.write(self.requests, (json.dumps({**job, "mutant": mutant, "limit_s": limit_s}) + "\n").encode())
        reply = b""
        while not reply.endswith(b"\n"):
            if select.select([self.replies], [], [], 1.0)[0]:
                reply += os.read(self.replies, 64)
            elif not self.simulator.is_alive():
                raise SimulatorError(f"the simulator ended: see {self.folder / 'run.log'}")
        if int(reply) == PASSED:
            return int((folder / "cycles").read_text())
        log = folder / "run.log"
        reason = log.read_text().strip().splitlines()[-1] if log.exists() else f"exit status {int(reply)}"
        raise SimulatorError(reason)

    def close(self) -> None:
        os.close(self.requests)
        os.close(self.replies)
        self.simulator.join(_END_S)
        shutil.rmtree(self.folder, ignore_errors=True)
