"""Runs on one simulator build that stays up, so that a run costs a fork and no start of a simulator."""

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

PASSED = 77  # exit status of a run; one that ends in any other way, even by a simulator that just stops, has failed
_END_S = 120.0


class Server:
    """A simulator of a mutated netlist; `run` does what `sim.bench.run.run_module` does, with a mutant switched on.

    Ends with `close`, or with the process that made it.
    """

    def __init__(self, made: Build):
        self.folder = run_folder(f"{made.name}-server")
        for pipe in ("asked", "answered"):
            os.mkfifo(self.folder / pipe)
        environment = {"SERVER_FOLDER": str(self.folder), "COCOTB_LOG_LEVEL": "ERROR"}
        self.simulator = threading.Thread(target=self._simulate, args=(made, environment), daemon=True)
        self.simulator.start()
        # opened for both directions a pipe never waits for the other end
        self.asked = os.open(self.folder / "asked", os.O_RDWR)
        self.answered = os.open(self.folder / "answered", os.O_RDWR)

    def _simulate(self, made: Build, environment: Mapping[str, str]) -> None:
        with suppress(SimulatorError):  # which `run` notices
            run_process(made, "sim.mutation.serve", self.folder, environment)

    def run(self, module: str, folder: Path, environment: Mapping[str, str], *, mutant: int, limit_s: int) -> int:
        """The cycles of the run; raises `SimulatorError` when it failed or took longer than `limit_s`."""
        job = {"module": module, "folder": str(folder), "environment": dict(environment)}
        os.write(self.asked, (json.dumps({**job, "mutant": mutant, "limit_s": limit_s}) + "\n").encode())
        answer = b""
        while not answer.endswith(b"\n"):
            if select.select([self.answered], [], [], 1.0)[0]:
                answer += os.read(self.answered, 64)
            elif not self.simulator.is_alive():
                raise SimulatorError(f"the simulator ended: see {self.folder / 'run.log'}")
        if int(answer) == PASSED:
            return int((folder / "cycles").read_text())
        log = folder / "run.log"
        why = log.read_text().strip().splitlines()[-1] if log.exists() else f"exit status {int(answer)}"
        raise SimulatorError(why)

    def close(self) -> None:
        os.close(self.asked)
        os.close(self.answered)
        self.simulator.join(_END_S)
        shutil.rmtree(self.folder, ignore_errors=True)
