"""External programs of the layout flow: where they are, and runs with a log and a time limit."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hw.yosys import ToolError
from synth.layout.lef import OSU018

QROUTER = Path("/usr/lib/qrouter/qrouternullg")  # qrouter without a display
PACKAGES = "graywolf qrouter qflow-tech-osu018"  # Debian packages


def missing() -> list[str]:
    """Names of the programs and files that the flow needs and that are missing."""
    absent = [name for name in ("graywolf",) if shutil.which(name) is None]
    absent += [name for name, path in (("qrouter", QROUTER), ("qflow-tech-osu018", OSU018)) if not path.exists()]
    return absent


def require() -> None:
    """Raise `ToolError` that says what to install, if something is missing."""
    if absent := missing():
        raise ToolError(f"layout needs {', '.join(absent)} (Debian: apt install {PACKAGES})")


def run(
    command: Sequence[str],
    folder: Path,
    log: Path,
    *,
    seconds: float,
    watch: Callable[[str], None] | None = None,
) -> None:
    """Run a program in `folder` with its output in `log`; `watch` gets the log every second.

    The program and its children end with this function, whatever happens. Raises `ToolError`.
    """
    name = Path(command[0]).name
    begin = time.monotonic()
    environment = {key: value for key, value in os.environ.items() if key != "DISPLAY"}
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            env=environment, start_new_session=True,
        )  # fmt: skip
        try:
            while process.poll() is None:
                try:
                    process.wait(1.0)
                except subprocess.TimeoutExpired:
                    if watch:
                        watch(log.read_text(errors="replace"))
                if time.monotonic() - begin > seconds:
                    raise ToolError(f"{name} must end within {seconds:.0f} s, got no result{_last_line(log)}")
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise ToolError(f"{name} failed with status {process.returncode}{_last_line(log)}")


def _last_line(log: Path) -> str:
    """The end of a log in words for an error message, because the folder of the run does not remain."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip(" -*=")]
    return f": {lines[-1][:200]}" if lines else ""
