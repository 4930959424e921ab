"""The examples a newcomer starts from run as they are, and what they print is what their code says."""

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


def test_there_are_no_others():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {"retrieve", "simulate", "machine"}


def test_retrieve():
    """A cut opens new clusters, and the scene before it is read less than it was."""
    found = [re.findall(r"[\d.]+", line) for line in run("retrieve")]
    clusters, read = [int(row[2]) for row in found], [int(row[3].rstrip(".")) for row in found]
    assert clusters == sorted(clusters) and clusters[3] - clusters[2] >= 10
    assert min(read[:3]) > 2 * max(read[3:]) > 0


def test_simulate():
    (line,) = run("simulate")
    assert line.startswith("40 of 40 tokens are in the same cluster")


def test_machine():
    """More link is never slower, and in the end something else bounds the frame."""
    found = [
        re.match(r" *(\d+) GB/s: ([\d.]+) frames/s, \d+% of the time waiting for (\w+)", x) for x in run("machine")
    ]
    rates, bounds = [float(row[2]) for row in found], [row[3] for row in found]
    assert rates == sorted(rates) and bounds[0] == "fetch" != bounds[-1]


@pytest.mark.parametrize("name", ["retrieve", "simulate", "machine"])
def test_short(name):
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 35
