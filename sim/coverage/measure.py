"""Measures the coverage of groups of tests; each group writes its result to a folder, so a campaign can resume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hw.registry import UNITS
from sim.coverage import verilog as coverage
from sim.coverage.bins import table as bins
from util.files import ROOT, git_revision, write

# tests of Numba functions that take only seconds as plain Python
INTERPRETED = ("tests/sw_model/memory/test_ssd.py", "tests/synth/power/test_circuit.py")
PACKAGES = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")


@dataclass(frozen=True)
class TestGroup:
    """Tests that run together: a test file of `tests/hw`, or a folder. Simulations of `tests/hw` are measured too.

    interpreted : run Numba functions as plain Python, so that their lines are measured
    """

    path: str
    interpreted: bool = False

    @property
    def name(self) -> str:
        name = self.path.removeprefix("tests").strip("/").replace("/", "-").removesuffix(".py") or "tests"
        return f"{name}-interpreted" if self.interpreted else name

    @property
    def verilog(self) -> bool:
        return self.path.startswith("tests/hw/")

    @property
    def arguments(self) -> list[str]:
        """Paths for pytest; the test files directly in `tests` are one group."""
        if self.path != "tests":
            return [self.path]
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_*.py"))]


def all_groups() -> list[TestGroup]:
    """All tests of the project, each in one group, and groups that repeat the `INTERPRETED` tests."""
    tests = ROOT / "tests"
    files = sorted((tests / "hw").rglob("test_*.py"))
    folders = sorted({path.relative_to(tests).parts[0] for path in tests.glob("*/**/test_*.py")} - {"hw"})
    groups = [TestGroup(str(path.relative_to(ROOT))) for path in files]
    groups += [TestGroup(f"tests/{name}") for name in folders]
    return [*groups, TestGroup("tests"), *(TestGroup(path, interpreted=True) for path in INTERPRETED)]


def select_groups(names: Sequence[str]) -> list[TestGroup]:
    """The groups of `names` (units, test files or folders of tests); all groups without names.

    Raises ValueError for an unknown name.
    """
    everything = all_groups()
    if not names:
        return everything
    selected = []
    for name in names:
        if name in UNITS:
            path = UNITS[name].tests
        else:
            path = name.rstrip("/") if name.startswith("tests") else f"tests/{name}".rstrip("/")
        matching = [group for group in everything if group.path == path or group.path.startswith(f"{path}/")]
        if not matching:
            raise ValueError(f"tests must be units ({', '.join(UNITS)}), or files or folders of tests, got {name!r}")
        selected += matching
    return list(dict.fromkeys(selected))


def run(group: TestGroup, folder: Path, *, seed: int = 1, heavy: bool = False) -> bool:
    """Run the tests of a group and write their coverage to `folder`; returns whether they passed.

    Replaces an earlier result of the group. A group whose tests fail has no result.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    result_path, data = folder / f"{group.name}.json", folder / f"{group.name}.python"
    for path in (result_path, data):
        path.unlink(missing_ok=True)
    start = time.time()
    with tempfile.TemporaryDirectory(prefix="coverage-", dir=folder) as temporary:
        runs = Path(temporary) / "runs"
        environment = {**os.environ, "COVERAGE_FILE": str(Path(temporary) / "data"), "VREX_RUNS": str(runs)}
        environment |= {"NUMBA_DISABLE_JIT": "1"} if group.interpreted else {}
        python = [sys.executable, "-m", "coverage"]
        options = [
            "-q",
            "--rootdir",
            str(ROOT),
            f"--seed={seed}",
            *["--heavy"] * heavy,
            *["--coverage"] * group.verilog,
        ]
        completed = subprocess.run(
            [*python, "run", "-m", "pytest", *options, *group.arguments], cwd=ROOT, env=environment, check=False
        )
        if completed.returncode not in (0, 5):  # 5: no test collected, all tests are heavy
            return False
        subprocess.run([*python, "combine", "-q"], cwd=ROOT, env=environment, check=True)
        shutil.move(Path(temporary) / "data", data)
        result = {
            "tests": group.path,
            "revision": git_revision() or "unknown",
            "seconds": round(time.time() - start),
            "heavy": heavy,
            "verilog": pack(coverage.merge(runs.glob("*/coverage.dat"))),
            "bins": bins.merge(runs.glob("*/bins.json")),
        }
    write(result_path, json.dumps(result))
    return True


def pack(units: dict[str, coverage.Points]) -> dict[str, Any]:
    """Points for JSON: unit -> kind -> location -> detail -> hits."""
    packed: dict[str, Any] = {}
    for unit, kinds in units.items():
        for kind, points in kinds.items():
            for (location, detail), hits in points.items():
                packed.setdefault(unit, {}).setdefault(kind, {}).setdefault(location, {})[detail] = hits
    return packed


def unpack(packed: dict[str, Any]) -> dict[str, coverage.Points]:
    """The inverse of `pack`."""
    return {
        unit: {
            kind: {
                (location, detail): hits
                for location, points in kinds.get(kind, {}).items()
                for detail, hits in points.items()
            }
            for kind in coverage.KINDS
        }
        for unit, kinds in packed.items()
    }
