"""The tests of a unit, run as they are, on every mutant of it until one fails.

A pytest session in which all simulations of the unit in the configuration under test go to a simulator of the mutated
netlist. First every test runs on the unit as it is: it has to pass, and those that never simulate this configuration
are left out. Then each mutant meets the tests, the one that killed most for its time first. A run that takes
`PATIENCE` times the cycles of the unmutated one has failed, as by a time-out of its own.

A fault in a bit of a counter that no run of fewer than `EVENTS` events changes is out of reach of simulation: it meets
no test, and counts as little as one that is proved to be none.

What came out is kept, mutant by mutant, under `build/mutants`, so that a campaign that was stopped goes on. A new test
kills no mutant less: with `keep`, only those that nothing has killed yet meet the tests again.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from amaranth.lib import wiring

from hw import emit
from sim.bench.build import Build
from sim.bench.override import simulator_override, source_override
from sim.mutation.equivalence import equivalents
from sim.mutation.netlist import Mutant, Mutated, check_count, mutated
from sim.mutation.server import Server
from util.files import ROOT

PATIENCE, SLACK = 3, 2000  # times as many cycles, and cycles, that a mutant may take
LIMIT_S = 120
EVENTS = 1 << 16
SAME, OPEN = "proved equal for all inputs", "not decided"
Progress = Callable[[str, int, int], None]


class CampaignError(RuntimeError):
    """A test fails without any mutant, or none simulates the unit in this configuration."""


@dataclass(frozen=True)
class Result:
    """What became of one mutant: the test that `killed` it and how, or why nothing did."""

    mutant: int
    killed: str | None
    how: str
    equivalent: bool = False


@dataclass(frozen=True)
class Campaign:
    """All mutants of a unit and what became of them; `tests` simulate it, `seconds` of all runs together."""

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
        """Those in counters that would show after `EVENTS` events at the earliest, if nothing killed them."""
        return [(mutant, result) for mutant, result in self._alive if mutant.events >= EVENTS]

    @property
    def survivors(self) -> list[tuple[Mutant, Result]]:
        return [(mutant, result) for mutant, result in self._alive if mutant.events < EVENTS]

    @property
    def score(self) -> float:
        """Share of the mutants that are neither equivalent nor out of reach that were killed."""
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
    """A test: its time, the cycles of its runs, and what it killed."""

    item: pytest.Item
    seconds: float
    kills: int = 0
    runs: int = 0
    spent: float = 0.0

    @property
    def worth(self) -> float:
        """Kills per second, with one kill more than there were, so that a new test gets its turn."""
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
    progress: Progress = lambda what, done, total: None,
) -> Campaign:
    """`count` mutants of `component` against `tests`, files or node ids of pytest.

    Tests that only simulate sizes of their own get mutants of what most of them simulate.

    Parameters
    ----------
    seed : of the choice of mutants and, as of every test session, of the tests
    heavy : also tests that take minutes
    keep : believe earlier kills although tests, benches or golden models have changed since
    root : folder of results, by default `mutants` in `$VREX_BUILD` or `build`
    tool : yosys build, as `hw.yosys.run` takes it

    Raises
    ------
    CampaignError
        A test fails without a mutant, or none simulates the unit.
    ValueError
        A number of mutants that is not 1 to 65,535.
    """
    check_count(count)
    arguments = ["--rootdir", str(ROOT), "--import-mode=importlib", "-o", "addopts=", "-p", "no:terminal"]
    arguments += ["-p", "no:cacheprovider", "--capture=no", "--assert=plain", f"--seed={seed}"]
    arguments += [*["--heavy"] * heavy, *tests]
    progress(f"{unit}: netlist", 0, count)
    component = _simulated(component, unit, arguments)
    root = root or Path(os.environ.get("VREX_BUILD", "build")).absolute() / "mutants"
    reference = emit.to_rtlil(component, unit)
    folder = root / f"{unit}-{_digest([reference.encode(), f'{count} {seed} {heavy} {tests}'.encode()])}"
    design = mutated(component, unit, count, folder, seed=seed, tool=tool)
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


def _simulated(component: wiring.Component, unit: str, arguments: list[str]) -> wiring.Component:
    """`component` if some test simulates it, else that of its kind which most tests simulate, if there is one."""
    found = _Finder(type(component), unit)
    with source_override(found.sources):
        pytest.main(arguments, plugins=[found])
    if emit.to_rtlil(component, unit) in found.tests or not found.tests:
        return component
    return found.components[max(found.tests, key=lambda text: found.tests[text])]


class _Finder:
    """A pytest plugin that runs every test up to its first build; what those are of, and how often."""

    def __init__(self, kind: type, unit: str):
        self.kind, self.unit = kind, unit
        self.tests: Counter[str] = Counter()
        self.components: dict[str, wiring.Component] = {}

    def sources(self, component: wiring.Component, name: str) -> dict[str, str]:
        if type(component) is self.kind:
            text = emit.to_rtlil(component, self.unit)
            self.tests[text] += 1
            self.components[text] = component
        pytest.skip("only looking")

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return True


def _code() -> list[Path]:
    """All code that decides whether a test fails."""
    return sorted(path for part in ("golden", "sim", "tests/hw") for path in (ROOT / part).rglob("*.py"))


def _digest(parts: Iterable[bytes]) -> str:
    made = hashlib.sha256()
    for part in parts:
        made.update(hashlib.sha256(part).digest())
    return made.hexdigest()[:16]


class _Store:
    """Results on disk, a line each, with the digest of the code that they came from."""

    def __init__(self, path: Path, code: str, keep: bool):
        self.path, self.code, self.results, self.seconds = path, code, dict[int, Result](), dict[int, float]()
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                row = json.loads(line)
            except ValueError:  # the line in which the process was killed
                continue
            of, seconds, result = row.pop("code"), row.pop("seconds"), Result(**row)
            if of == code or (keep and (result.killed or result.equivalent)):
                self.results[result.mutant], self.seconds[result.mutant] = result, seconds

    def add(self, result: Result, seconds: float) -> None:
        """Another result, or a later one of the same mutant, whose times add up."""
        self.results[result.mutant] = result
        self.seconds[result.mutant] = round(self.seconds.get(result.mutant, 0.0) + seconds, 3)
        row = {**asdict(result), "seconds": self.seconds[result.mutant], "code": self.code}
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")


@dataclass
class _Session:
    """The pytest plugin."""

    design: Mutated
    reference: str
    store: _Store
    tool: str
    progress: Progress
    error: CampaignError | None = None
    finished: Campaign | None = None
    mutant: int = 0
    servers: dict[Path, Server] = field(default_factory=dict)  # by build
    cycles: dict[tuple[str, int], int] = field(default_factory=dict)  # of each run of a test, without a mutant
    ours: dict[tuple[str, int], bool] = field(default_factory=dict)  # whether a test's n-th build is of the unit
    test: str = ""
    builds: int = 0
    runs: int = 0
    reports: list[pytest.TestReport] = field(default_factory=list)  # of the last run of a test

    # what simulations become

    def sources(self, component: wiring.Component, name: str) -> dict[str, str]:
        """What is built of a component: the mutated netlist, if it is the unit in this configuration."""
        key = self.test, self.builds
        self.builds += 1
        if key not in self.ours:
            self.ours[key] = emit.to_rtlil(component, self.design.name) == self.reference
        if not self.ours[key]:
            pytest.skip("simulates something else than the unit under test")
        return {f"{name}.v": self._verilog(name)}

    def _verilog(self, name: str) -> str:
        return self.design.verilog.replace(f"module {self.design.name}(", f"module {name}(", 1)

    def run(self, made: Build, module: str, folder: Path, environment: Mapping[str, str]) -> None:
        if made.folder not in self.servers:
            self.servers[made.folder] = Server(made)
        key = self.test, self.runs
        self.runs += 1
        if self.mutant and key in self.cycles:
            job = json.loads((folder / "job.json").read_text())
            job["timeout_cycles"] = min(job["timeout_cycles"], PATIENCE * self.cycles[key] + SLACK)
            (folder / "job.json").write_text(json.dumps(job))
        cycles = self.servers[made.folder].run(module, folder, environment, mutant=self.mutant, limit_s=LIMIT_S)
        if not self.mutant:
            self.cycles[key] = cycles

    def close(self) -> None:
        for server in self.servers.values():
            server.close()

    # the session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.reports.append(report)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        try:
            cases = self._unmutated(session.items)
            for done, mutant in enumerate(self.design.mutants):
                self.progress(f"{self.design.name}: mutants", done, len(self.design.mutants))
                if mutant.number not in self.store.results:
                    started = time.monotonic()
                    self.store.add(self._meet(mutant, cases), time.monotonic() - started)
            self._survivors()
            results = tuple(self.store.results[mutant.number] for mutant in self.design.mutants)
            seconds = sum(self.store.seconds.values())
            tests = tuple(case.item.nodeid for case in cases)
            self.finished = Campaign(self.design.name, self.design.mutants, results, tests, seconds)
        except CampaignError as error:
            self.error = error
        return True

    def _unmutated(self, items: Sequence[pytest.Item]) -> list[_Case]:
        cases = []
        for done, item in enumerate(items):
            self.progress(f"{self.design.name}: tests", done, len(items))
            started = time.monotonic()
            if why := self._fails(item):
                raise CampaignError(f"{item.nodeid} fails without a mutant: {why}")
            if self.runs:
                cases.append(_Case(item, time.monotonic() - started))
        if not cases:
            raise CampaignError(f"{self.design.name}: no test simulates it in this configuration")
        return sorted(cases, key=lambda case: case.seconds)

    def _meet(self, mutant: Mutant, cases: Sequence[_Case]) -> Result:
        if mutant.events >= EVENTS:
            return Result(mutant.number, None, "")
        self.mutant = mutant.number
        for case in sorted(cases, key=lambda case: -case.worth):
            started = time.monotonic()
            why = self._fails(case.item)
            case.spent += time.monotonic() - started
            if why:
                case.kills += 1
                return Result(mutant.number, case.item.nodeid, why)
        return Result(mutant.number, None, "")

    def _fails(self, item: pytest.Item) -> str:
        """Run a test; the first line of why it failed, or nothing."""
        self.test, self.builds, self.runs = item.nodeid, 0, 0
        self.reports.clear()
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)  # an item may run more than once
        for report in self.reports:
            if report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                return str(crash.message if crash else report.longrepr).strip().split("\n")[0][:200] or "failed"
        return ""

    def _survivors(self) -> None:
        """Try to show that those that nothing killed cannot be told from the unit."""
        results = self.store.results
        alive = [m for m in self.design.mutants if not results[m.number].how and m.events < EVENTS]
        if not alive:
            return
        self.progress(f"{self.design.name}: survivors", 0, len(alive))
        started = time.monotonic()
        for done, (mutant, cycle, same) in enumerate(equivalents(self.design, alive, tool=self.tool), start=1):
            how = SAME if same else OPEN if cycle is None else f"can differ from cycle {cycle} on"
            took, started = time.monotonic() - started, time.monotonic()
            self.store.add(Result(mutant.number, None, how, same), took)
            self.progress(f"{self.design.name}: survivors", done, len(alive))
