"""Runs tests with everything measured; what each part gave stays in a folder, so that a campaign may take its time."""

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

# tests of compiled functions that take seconds without the compiler
INTERPRETED = ("tests/sw_model/memory/test_ssd.py", "tests/synth/power/test_circuit.py")
PACKAGES = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")


@dataclass(frozen=True)
class Part:
    """Tests that run together: a test file of `tests/hw`, whose simulations are measured too, or a whole folder.

    interpreted : with the compiled functions as plain Python, so that their lines count
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
        """Of pytest; the tests that lie in no folder are a part of their own."""
        if self.path != "tests":
            return [self.path]
        return [str(path.relative_to(ROOT)) for path in sorted((ROOT / "tests").glob("test_*.py"))]


def parts() -> list[Part]:
    """All tests of the project, once each, and once more those that are `INTERPRETED`."""
    tests = ROOT / "tests"
    files = sorted((tests / "hw").rglob("test_*.py"))
    folders = sorted({path.relative_to(tests).parts[0] for path in tests.glob("*/**/test_*.py")} - {"hw"})
    found = [Part(str(path.relative_to(ROOT))) for path in files] + [Part(f"tests/{name}") for name in folders]
    return [*found, Part("tests"), *(Part(path, interpreted=True) for path in INTERPRETED)]


def chosen(names: Sequence[str]) -> list[Part]:
    """The parts that `names` stand for: units, test files or folders of tests; all without names.

    Raises ValueError for a name that is none.
    """
    everything = parts()
    if not names:
        return everything
    found = []
    for name in names:
        if name in UNITS:
            path = UNITS[name].tests
        else:
            path = name.rstrip("/") if name.startswith("tests") else f"tests/{name}".rstrip("/")
        matching = [part for part in everything if part.path == path or part.path.startswith(f"{path}/")]
        if not matching:
            raise ValueError(f"{name!r}: must be a unit ({', '.join(UNITS)}), or a file or folder of tests")
        found += matching
    return list(dict.fromkeys(found))


def run(part: Part, folder: Path, *, seed: int = 1, heavy: bool = False) -> bool:
    """Run the tests of a part and keep in `folder` what they reached, in place of what it had; whether they passed.

    A part whose tests fail leaves nothing.
    """
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    kept, data = folder / f"{part.name}.json", folder / f"{part.name}.python"
    for path in (kept, data):
        path.unlink(missing_ok=True)
    started = time.time()
    with tempfile.TemporaryDirectory(prefix="coverage-", dir=folder) as aside:
        runs = Path(aside) / "runs"
        environment = {**os.environ, "COVERAGE_FILE": str(Path(aside) / "data"), "VREX_RUNS": str(runs)}
        environment |= {"NUMBA_DISABLE_JIT": "1"} if part.interpreted else {}
        python = [sys.executable, "-m", "coverage"]
        options = ["-q", "--rootdir", str(ROOT), f"--seed={seed}", *["--heavy"] * heavy, *["--coverage"] * part.verilog]
        done = subprocess.run(
            [*python, "run", "-m", "pytest", *options, *part.arguments], cwd=ROOT, env=environment, check=False
        )
        if done.returncode not in (0, 5):  # 5: all of its tests are heavy
            return False
        subprocess.run([*python, "combine", "-q"], cwd=ROOT, env=environment, check=True)
        shutil.move(Path(aside) / "data", data)
        told = {
            "tests": part.path,
            "revision": git_revision() or "unknown",
            "seconds": round(time.time() - started),
            "heavy": heavy,
            "verilog": pack(coverage.merge(runs.glob("*/coverage.dat"))),
            "bins": bins.merge(runs.glob("*/bins.json")),
        }
    write(kept, json.dumps(told))
    return True


def pack(units: dict[str, coverage.Points]) -> dict[str, Any]:
    """Points for JSON: unit -> kind -> place -> what -> hits."""
    packed: dict[str, Any] = {}
    for unit, kinds in units.items():
        for kind, points in kinds.items():
            for (place, what), hits in points.items():
                packed.setdefault(unit, {}).setdefault(kind, {}).setdefault(place, {})[what] = hits
    return packed


def unpack(packed: dict[str, Any]) -> dict[str, coverage.Points]:
    """The inverse of `pack`."""
    return {
        unit: {
            kind: {
                (place, what): hits for place, points in kinds.get(kind, {}).items() for what, hits in points.items()
            }
            for kind in coverage.KINDS
        }
        for unit, kinds in packed.items()
    }
