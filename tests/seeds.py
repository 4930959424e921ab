"""Run the tests that depend on the seed under several seeds: `python -m tests.seeds 20 [TESTS]`.

`--first N` takes the seeds from N on; without it, they are drawn. Other arguments, such as folders, `-n 2` or
`--heavy`, go to pytest. One line per seed is printed and added to `build/seeds.txt`: result, seconds, commit, arguments
of pytest, failed tests. `python -m docs.measure seeds` writes these lines as a page. The exit status is 1 if a test
failed under any seed.
"""

from __future__ import annotations

import argparse
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

from util.files import ROOT, build_root, git_revision


def record() -> Path:
    """File with the lines of all seeds that have run."""
    return build_root().parent / "seeds.txt"


def run(seed: int, arguments: list[str]) -> tuple[bool, str]:
    """Whether the tests pass under `seed`, and the line of the table."""
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "--seeded", "--seed", str(seed), *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    failed = re.findall(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", done.stdout, re.M)
    result = "passed" if done.returncode == 0 else "failed"
    count = re.search(r"(\d+) passed", done.stdout)
    line = f"{seed:>10}  {result}  {count.group(1) if count else 0:>5} passed  {time.monotonic() - start:6.0f} s"
    line += f"  {git_revision()}  {' '.join(arguments) or 'all tests'}"
    if done.returncode and not failed:  # pytest did not start
        lines = done.stdout.strip().splitlines()  # the order of the error and of pytest's summary is not fixed
        failed = [line for line in lines if line.startswith("ERROR: ")] or lines[-1:]
    return done.returncode == 0, "\n".join([line, *(f"            {name}" for name in failed)])


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the tests that depend on the seed under several seeds.")
    parser.add_argument("count", type=int, help="number of seeds")
    parser.add_argument("--first", type=int, help="first seed; the others follow it (default: random seeds)")
    options, arguments = parser.parse_known_args(words)
    if options.count < 1:
        parser.error(f"count must be at least 1, got {options.count}")
    first = options.first
    drawn = (secrets.randbelow(1 << 31) for _ in range(options.count))
    seeds = drawn if first is None else range(first, first + options.count)
    path = record()
    path.parent.mkdir(parents=True, exist_ok=True)
    passed = True
    with path.open("a") as table:
        for seed in seeds:
            good, line = run(seed, arguments)
            print(line, flush=True)
            table.write(line + "\n")
            table.flush()
            passed &= good
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
