"""Mutation campaign: the tests of a unit run on every mutant of it until one fails.

A campaign is a pytest session in which every simulation of the unit in the configuration under test uses the netlist
with mutants. All tests first run without a mutant and must pass; tests that never simulate this configuration are left
out. On each mutant the tests then run in the order of their kills per second. A run that takes `PATIENCE` times the
cycles of the run without a mutant counts as failed.

A fault that needs at least `EVENTS` counted events to show is out of reach of simulation: no test runs on it, and it
does not count in the score.

Results are stored mutant by mutant in `build/mutants`, so an interrupted campaign continues. A new test cannot lose a
kill: with `keep`, earlier kills stay valid and only survivors run again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from amaranth.lib import wiring

from hw import emit
from sim.bench.build import Build
from sim.bench.override import simulator_override, source_override
from sim.bench.server import Server
from sim.mutation.equivalence import equivalents
from sim.mutation.netlist import SELECT, Mutant, MutatedNetlist, check_count, insert_mutants
from util.files import ROOT
from util.progress import Progress, no_progress

PATIENCE, SLACK = 3, 2000  # a mutant may take PATIENCE times the cycles of the unit plus SLACK
LIMIT_S = 120  # of one run
EVENTS = 1 << 16
EQUIVALENT, UNDECIDED = "proved equal for all inputs", "not decided"


class CampaignError(RuntimeError):
    """A test fails without a mutant, or no test simulates the unit in this configuration."""


@dataclass(frozen=True)
class Result:
    """Result of one mutant: the test that killed it and the reason, or the result of the equivalence proof."""

    mutant: int
    killed: str | None
    how: str
    equivalent: bool = False


@dataclass(frozen=True)
class Campaign:
    """All mutants of a unit with their results.

    Attributes
    ----------
    tests : node ids of the tests that simulate the unit
    seconds : total time of all runs and proofs
    """

    unit: str
    mutants: tuple[Mutant, ...]
    results: tuple[Result, ...]
    tests: tuple[str, ...]
    seconds: float

    @property
    def killed(self) -> int:
        return sum(result.killed is not None for result in self.results)

    @property
    def equivalent(self) -> list[tuple[Mutant, Result]]:
        return [(m, r) for m, r in zip(self.mutants, self.results, strict=True) if r.equivalent]

    @property
    def _alive(self) -> list[tuple[Mutant, Result]]:
        pairs = zip(self.mutants, self.results, strict=True)
        return [(mutant, result) for mutant, result in pairs if result.killed is None and not result.equivalent]

    @property
    def unreached(self) -> list[tuple[Mutant, Result]]:
        """Mutants that no test killed and that need at least `EVENTS` counted events to show."""
        return [(mutant, result) for mutant, result in self._alive if mutant.events >= EVENTS]

    @property
    def survivors(self) -> list[tuple[Mutant, Result]]:
        return [(mutant, result) for mutant, result in self._alive if mutant.events < EVENTS]

    @property
    def score(self) -> float:
        """Killed mutants divided by killed and surviving mutants."""
        return self.killed / max(1, self.killed + len(self.survivors))

    def json(self) -> dict[str, Any]:
        pairs = zip(self.mutants, self.results, strict=True)
        return {
            "unit": self.unit,
            "mutants": len(self.mutants),
            "killed": self.killed,
            "equivalent": len(self.equivalent),
            "unreached": len(self.unreached),
            "survivors": len(self.survivors),
            "score": self.score,
            "seconds": self.seconds,
            "tests": list(self.tests),
            "results": [{**asdict(mutant), "events": mutant.events, **asdict(result)} for mutant, result in pairs],
        }


@dataclass
class _Case:
    """A test with its time and its kills."""

    item: pytest.Item
    seconds: float
    kills: int = 0
    spent: float = 0.0

    @property
    def kill_rate(self) -> float:
        """Kills per second; one extra kill lets every new test run early."""
        return (self.kills + 1) / (self.spent + self.seconds)


def run(
    unit: str,
    component: wiring.Component,
    tests: Sequence[str],
    count: int,
    *,
    seed: int = 1,
    heavy: bool = False,
    keep: bool = False,
    root: Path | None = None,
    tool: str = "yowasp",
    progress: Progress = no_progress,
) -> Campaign:
    """Run `tests` (files or node ids of pytest) on `count` mutants of `component`.

    If no test simulates `component`, the mutants go into the configuration that most tests simulate.

    Parameters
    ----------
    seed : seed of the selection of mutants and of the test session
    heavy : also run tests that take minutes
    keep : reuse earlier kills although tests, benches or golden models have changed since
    root : folder of the results, by default `mutants` in `$VREX_BUILD` or `build`
    tool : yosys build, as in `hw.yosys.run`

    Raises
    ------
    CampaignError
        A test fails without a mutant, or no test simulates the unit.
    ValueError
        `count` is not 1 to 65,535.
    """
    check_count(count)
    arguments = ["--rootdir", str(ROOT), "--import-mode=importlib", "-o", "addopts=", "-p", "no:terminal"]
    arguments += ["-p", "no:cacheprovider", "--capture=no", "--assert=plain", f"--seed={seed}"]
    arguments += [*["--heavy"] * heavy, *tests]
    progress(f"{unit}: netlist", 0, count)
    component = _simulated_component(component, unit, arguments)
    root = root or Path(os.environ.get("VREX_BUILD", "build")).absolute() / "mutants"
    reference = emit.to_rtlil(component, unit)
    folder = root / f"{unit}-{_digest([reference.encode(), f'{count} {seed} {heavy} {tests}'.encode()])}"
    design = insert_mutants(component, unit, count, folder, seed=seed, tool=tool)
    store = _Store(folder / "results.jsonl", _digest(map(Path.read_bytes, _code())), keep)
    session = _Session(design, reference, store, tool, progress)
    try:
        with source_override(session.sources), simulator_override(session.run):
            status = pytest.main(arguments, plugins=[session])
    finally:
        session.close()
    if session.error:
        raise session.error
    if status == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if not session.finished:
        raise CampaignError(f"{unit}: pytest ended with status {status}")
    return session.finished


def _simulated_component(component: wiring.Component, unit: str, arguments: list[str]) -> wiring.Component:
    """`component` if a test simulates it, else the component of its class that most tests simulate."""
    finder = _Finder(type(component), unit)
    with source_override(finder.sources):
        pytest.main(arguments, plugins=[finder])
    if emit.to_rtlil(component, unit) in finder.tests or not finder.tests:
        return component
    return finder.components[max(finder.tests, key=lambda text: finder.tests[text])]


class _Finder:
    """A pytest plugin that runs every test up to its first build and counts the components that are built."""

    def __init__(self, component_type: type, unit: str):
        self.component_type, self.unit = component_type, unit
        self.tests: Counter[str] = Counter()  # by RTLIL of the component
        self.components: dict[str, wiring.Component] = {}

    def sources(self, component: wiring.Component, name: str) -> dict[str, str]:
        if type(component) is self.component_type:
            text = emit.to_rtlil(component, self.unit)
            self.tests[text] += 1
            self.components[text] = component
        pytest.skip("the campaign only reads which component the test builds")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True


def _code() -> list[Path]:
    """All source files that decide whether a test fails."""
    return sorted(path for folder in ("golden", "sim", "tests/hw") for path in (ROOT / folder).rglob("*.py"))


def _digest(chunks: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for chunk in chunks:
        digest.update(hashlib.sha256(chunk).digest())
    return digest.hexdigest()[:16]


class _Store:
    """Results on disk, one line each, with the digest of the code that produced them."""

    def __init__(self, path: Path, code: str, keep: bool):
        self.path, self.code, self.results, self.seconds = path, code, dict[int, Result](), dict[int, float]()
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:  # an incomplete line: the process was killed while it wrote it
                continue
            code_digest, seconds, result = row.pop("code"), row.pop("seconds"), Result(**row)
            if code_digest == code or (keep and (result.killed or result.equivalent)):
                self.results[result.mutant], self.seconds[result.mutant] = result, seconds

    def add(self, result: Result, seconds: float) -> None:
        """Store a result; the times of several results of one mutant add up."""
        self.results[result.mutant] = result
        self.seconds[result.mutant] = round(self.seconds.get(result.mutant, 0.0) + seconds, 3)
        row = {**asdict(result), "seconds": self.seconds[result.mutant], "code": self.code}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@dataclass
class _Session:
    """The pytest plugin that runs the campaign."""

    design: MutatedNetlist
    reference: str
    store: _Store
    tool: str
    progress: Progress
    error: CampaignError | None = None
    finished: Campaign | None = None
    mutant: int = 0
    servers: dict[Path, Server] = field(default_factory=dict)  # by build folder
    cycles: dict[tuple[str, int], int] = field(default_factory=dict)  # by test and number of the run, without a mutant
    builds_unit: dict[tuple[str, int], bool] = field(default_factory=dict)  # by test and number of the build
    test: str = ""
    builds: int = 0
    runs: int = 0
    reports: list[pytest.TestReport] = field(default_factory=list)  # of the last run of a test

    # overrides of simulations

    def sources(self, component: wiring.Component, name: str) -> dict[str, str]:
        """The netlist with mutants, if `component` is the unit in this configuration; else skip the test."""
        key = self.test, self.builds
        self.builds += 1
        if key not in self.builds_unit:
            self.builds_unit[key] = emit.to_rtlil(component, self.design.name) == self.reference
        if not self.builds_unit[key]:
            pytest.skip("the test simulates another component than the unit under test")
        return {f"{name}.v": self._verilog(name)}

    def _verilog(self, name: str) -> str:
        return self.design.verilog.replace(f"module {self.design.name}(", f"module {name}(", 1)

    def run(self, build: Build, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        """Run the simulation on the server of `build`, with the current mutant."""
        if build.folder not in self.servers:
            self.servers[build.folder] = Server(build)
        key = self.test, self.runs
        self.runs += 1
        if self.mutant and key in self.cycles:
            job = json.loads((folder / "job.json").read_text())
            job["timeout_cycles"] = min(job["timeout_cycles"], PATIENCE * self.cycles[key] + SLACK)
            (folder / "job.json").write_text(json.dumps(job))
        ports = {SELECT: self.mutant}
        cycles = self.servers[build.folder].run(module, folder, environment, ports=ports, limit_s=LIMIT_S)
        if not self.mutant:
            self.cycles[key] = cycles

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    # hooks of pytest

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            cases = self._run_without_mutant(session.items)
            for done, mutant in enumerate(self.design.mutants):
                self.progress(f"{self.design.name}: mutants", done, len(self.design.mutants))
                if mutant.number not in self.store.results:
                    started = time.monotonic()
                    self.store.add(self._run_tests(mutant, cases), time.monotonic() - started)
            self._prove_survivors()
            results = tuple(self.store.results[mutant.number] for mutant in self.design.mutants)
            seconds = sum(self.store.seconds.values())
            tests = tuple(case.item.nodeid for case in cases)
            self.finished = Campaign(self.design.name, self.design.mutants, results, tests, seconds)
        except CampaignError as error:
            self.error = error
        return True

    def _run_without_mutant(self, items: Sequence[pytest.Item]) -> list[_Case]:
        cases = []
        for done, item in enumerate(items):
            self.progress(f"{self.design.name}: tests", done, len(items))
            started = time.monotonic()
            if reason := self._failure(item):
                raise CampaignError(f"{item.nodeid} fails without a mutant: {reason}")
            if self.runs:
                cases.append(_Case(item, time.monotonic() - started))
        if not cases:
            raise CampaignError(f"{self.design.name}: no test simulates it in this configuration")
        return sorted(cases, key=lambda case: case.seconds)

    def _run_tests(self, mutant: Mutant, cases: Sequence[_Case]) -> Result:
        if mutant.events >= EVENTS:
            return Result(mutant.number, None, "")
        self.mutant = mutant.number
        for case in sorted(cases, key=lambda case: -case.kill_rate):
            started = time.monotonic()
            reason = self._failure(case.item)
            case.spent += time.monotonic() - started
            if reason:
                case.kills += 1
                return Result(mutant.number, case.item.nodeid, reason)
        return Result(mutant.number, None, "")

    def _failure(self, item: pytest.Item) -> str:
        """Run a test; returns the first line of the failure message, or an empty string."""
        self.test, self.builds, self.runs = item.nodeid, 0, 0
        self.reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)  # an item may run more than once
        for report in self.reports:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                return str(crash.message if crash else report.longrepr).strip().split("\n")[0][:200] or "failed"
        return ""

    def _prove_survivors(self) -> None:
        """Try to prove that surviving mutants are equivalent to the unit."""
        results = self.store.results
        alive = [m for m in self.design.mutants if not results[m.number].how and m.events < EVENTS]
        if not alive:
            return
        self.progress(f"{self.design.name}: survivors", 0, len(alive))
        started = time.monotonic()
        for done, (mutant, cycle, same) in enumerate(equivalents(self.design, alive, tool=self.tool), start=1):
            how = EQUIVALENT if same else UNDECIDED if cycle is None else f"can differ from cycle {cycle} on"
            took, started = time.monotonic() - started, time.monotonic()
            self.store.add(Result(mutant.number, None, how, same), took)
            self.progress(f"{self.design.name}: survivors", done, len(alive))
