"""A simulator process that stays alive and forks for every run, which saves its start-up time."""

from __future__ import annotations

import json
import os
import select
import shutil
import threading
from collections.abc import Mapping
from contextlib import suppress
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from sim.bench.build import Build, SimulatorError
from sim.bench.run import run_folder, run_process
from sim.bench.serve import PASSED

KEPT = 4  # simulators that `Servers` keeps
_END_S = 120.0


class ServerEnded(SimulatorError):
    """The simulator of a server has ended."""


class Server:
    """A simulator of one build; `run` is `sim.bench.run.run_module` without the start of a process.

    The simulator ends with `close` or with the process that started it.
    """

    def __init__(self, build: Build):
        self.folder = run_folder(f"{build.name}-server")
        for pipe in ("requests", "replies"):
            os.mkfifo(self.folder / pipe)
        environment = {"SERVER_FOLDER": str(self.folder), "COCOTB_LOG_LEVEL": "ERROR"}
        own = replace(build, runner=copy(build.runner))  # a runner keeps the folder of its run
        self.simulator = threading.Thread(target=self._simulate, args=(own, environment), daemon=True)
        self.simulator.start()
        # O_RDWR: opening the pipe does not block until the simulator opens its end
        self.requests = os.open(self.folder / "requests", os.O_RDWR)
        self.replies = os.open(self.folder / "replies", os.O_RDWR)

    def _simulate(self, build: Build, environment: Mapping[str, str]) -> None:
        with suppress(SimulatorError):  # `run` detects that the thread has ended
            run_process(build, "sim.bench.serve", self.folder, environment)

    def run(
        self,
        module: str,
        folder: Path,
        environment: Mapping[str, str],
        *,
        ports: Mapping[str, int] | None = None,
        limit_s: int = 0,
    ) -> int:
        """Run and return the number of cycles; raises `SimulatorError` on a failure or after `limit_s` (0: no limit).

        ports : values of input ports that the module does not set
        """
        job: dict[str, Any] = {"module": module, "folder": str(folder), "environment": dict(environment)}
        job |= {"ports": dict(ports or {}), "limit_s": limit_s}
        os.write(self.requests, (json.dumps(job) + "\n").encode())
        reply = b""
        while not reply.endswith(b"\n"):
            if select.select([self.replies], [], [], 1.0)[0]:
                reply += os.read(self.replies, 64)
            elif not self.simulator.is_alive():
                raise ServerEnded(f"the simulator ended: see {self.folder / 'run.log'}")
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


class Servers:
    """Override of simulations (`sim.bench.override.simulator_override`) with the servers of the last `KEPT` builds.

    Runs that write waveforms, coverage or progress start a process, and so does the repetition of a failed run, whose
    log is complete. An interrupted command ends its descendants, and so a server that runs in its process.
    """

    def __init__(self) -> None:
        self.servers: dict[Path, Server] = {}  # by build folder, the last used one last

    def __call__(self, build: Build, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        plain = build.simulator == "verilator" and not build.waves and not build.coverage
        if not plain or os.environ.get("VREX_PROGRESS"):
            run_process(build, module, folder, environment)
            return
        server = self.servers.pop(build.folder, None) or Server(build)
        self.servers[build.folder] = server
        for last in list(self.servers)[:-KEPT]:
            self.servers.pop(last).close()
        try:
            server.run(module, folder, environment)
        except ServerEnded:
            self.servers.pop(build.folder).close()
            run_process(build, module, folder, environment)
        except SimulatorError as error:
            run_process(build, module, folder, environment)
            raise SimulatorError(f"{build.name}: the run failed in a forked simulator only: {error}") from error

    def close(self) -> None:
        while self.servers:
            self.servers.popitem()[1].close()
