"""The examples in docs/examples run, and their output is plausible."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"


def run(name: str) -> list[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(EXAMPLES / f"{name}.py")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_all_examples_are_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"retrieve", "simulate", "machine"}


def test_retrieve():
    """A cut opens new clusters and reduces the share that is read."""
    rows = [re.findall(r"[\d.]+", line) for line in run("retrieve")]
    clusters, read = [int(row[2]) for row in rows], [int(row[3].rstrip(".")) for row in rows]
    assert clusters == sorted(clusters) and clusters[3] - clusters[2] >= 10
    assert min(read[:3]) > 2 * max(read[3:]) > 0


def test_simulate():
    (line,) = run("simulate")
    assert line.startswith("40 of 40 tokens are in the same cluster")


def test_machine():
    """A faster link is never slower, and finally another resource limits the frame."""
    rows = [re.match(r" *(\d+) GB/s: ([\d.]+) frames/s, \d+% of the time waiting for (\w+)", x) for x in run("machine")]
    rates, bounds = [float(row[2]) for row in rows], [row[3] for row in rows]
    assert rates == sorted(rates) and bounds[0] == "fetch" != bounds[-1]


@pytest.mark.parametrize("name", ["retrieve", "simulate", "machine"])
def test_example_is_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 35
