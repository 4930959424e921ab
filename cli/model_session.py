"""A session of a model on the machine for the command line: checkpoint, tokenizer, measured steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from cli.rtl import timings
from compiler.checkpoint import Checkpoint
from compiler.policies import Policy
from compiler.policies.base import LayerWidths
from compiler.runtime import BF16_WEIGHTS, Limits, Machine, Session, Step, compile_model
from compiler.tokenizer import TextTokenizer
from hw.config import Config
from sim.bench.core_run import BASES
from sim.bench.model_run import ModelRun
from sw_model.cycles.session import SessionModel
from sw_model.systems import System, load_system
from util.progress import Progress
from util.text import table


class Model:
    """A checkpoint with its tokenizer, and the machine that runs it. `system`: also predict cycles with its memories.

    Opening reads no weights. Raises ValueError if the checkpoint, its tokenizer or the system is not usable.

    Attributes
    ----------
    system : the loaded system, or None ; clock : after `load` the predicted cycles, or None
    tokenizer : of the checkpoint
    """

    def __init__(
        self,
        folder: Path,
        config: Config,
        limits: Limits,
        policy: Policy,
        system: str = "",
        *,
        cores: int = 1,
        weights: str = BF16_WEIGHTS,
    ):
        self.checkpoint = Checkpoint(folder)
        self.config = policy.core(config).replace(kv_heads=self.checkpoint.spec.text.kv_heads)
        if weights != BF16_WEIGHTS:
            self.config = self.config.replace(weight_bits=4)
        self.limits, self.policy, self.cores, self.weights = limits, policy, cores, weights
        self.system = load_system(system) if system else None
        self.clock: CycleClock | None = None
        if self.system is not None:
            timings(self.system, BASES["host"])  # raises ValueError for a system without a core
        self.tokenizer = TextTokenizer(folder)

    def require_vision(self) -> None:
        """ValueError if the model has no vision tower."""
        spec = self.checkpoint.spec
        if spec.vision is None:
            raise ValueError(f"model must have a vision tower to watch a video, got one of family {spec.family}")

    @property
    def batches(self) -> bool:
        """Whether one step can serve several streams."""
        text = self.checkpoint.spec.text
        return self.policy.batches(self.config, LayerWidths(text.hidden, text.q_heads, text.head_dim))

    def load(self, progress: Progress) -> Machine:
        """Compile the model and load its weights into the memory of a machine."""
        machine = compile_model(
            self.checkpoint,
            self.config,
            self.limits,
            self.policy,
            cores=self.cores,
            weights=self.weights,
            progress=progress,
        )
        self.clock = CycleClock(machine, self.system) if self.system is not None else None
        return machine


class CycleClock:
    """Predicts the cycles of every program that a machine runs, with the memories of a system.

    Attributes
    ----------
    clock_mhz : of the cores
    """

    def __init__(self, machine: Machine, system: System):
        assert system.core is not None
        self.clock_mhz = system.core.clock_mhz
        self._model = SessionModel(machine, timings(system, BASES["host"]), BASES)

    @property
    def cycles(self) -> int:
        """Of all programs so far."""
        return sum(self._model.cycles)


class Simulation:
    """The programs of a session in the core's RTL, with the memories of a system. Create it before the first step.

    Attributes
    ----------
    cycles : of every program, after `check`
    """

    def __init__(self, machine: Machine, system: System | None):
        assert system is not None
        self.run, self.system = ModelRun(machine), system

    @property
    def programs(self) -> int:
        """Programs so far."""
        return self.run.recorded

    def check(self, progress: Progress) -> list[int]:
        """Simulate all programs and return the cycles of each. `ModelMismatch` if a bit differs from golden."""
        progress("simulation of the core", 0, 0)
        self.run.check(timing=timings(self.system, BASES["host"]))
        return self.run.cycles


@dataclass(frozen=True)
class StepRow:
    """A measured step.

    kind : prompt, frame or answer ; tokens, commands : of the step ; seconds : on this computer
    attended : mean share of the past tokens that a KV head attends to
    fetched_bytes, offloaded_bytes : from and to host memory ; released_pages : whose tokens are forgotten
    input_bytes, output_bytes : that the host writes to device memory, and reads from it
    round_trips : programs, after each of which the host acts
    cycles, ms : predicted time; None without a prediction
    rtl_cycles : of the simulated cores; None without a simulation
    """

    kind: str
    tokens: int
    commands: int
    seconds: float
    attended: float
    fetched_bytes: int
    offloaded_bytes: int
    released_pages: int
    input_bytes: int
    output_bytes: int
    round_trips: int
    cycles: int | None
    ms: float | None
    rtl_cycles: int | None = None


class Report:
    """Measures the steps of one session, or those that serve several sessions."""

    def __init__(self, sessions: Sequence[Session], clock: CycleClock | None, simulation: Simulation | None = None):
        self.sessions, self.clock, self.simulation = sessions, clock, simulation
        self.rows: list[StepRow] = []
        self._programs = [0]  # recorded programs after each row

    def measure(self, kind: str, step: Callable[[], Any]) -> Any:
        """Run `step` and append a row for all steps of the sessions that it executes."""
        done, started = [len(session.steps) for session in self.sessions], time.perf_counter()
        cycles = self.clock.cycles if self.clock else 0
        result = step()
        steps = [each for n, session in enumerate(self.sessions) for each in session.steps[done[n] :]]
        if not steps:
            return result
        shares = [
            np.mean(heads) / past
            for each in steps
            for past, heads in zip(each.retrieved.past, each.retrieved.attended, strict=True)
            if past
        ]
        spent = self.clock.cycles - cycles if self.clock else None
        self.rows.append(
            StepRow(
                kind, sum(each.tokens for each in steps), _of_machine(steps, "commands"),
                time.perf_counter() - started, float(np.mean(shares)) if shares else 1.0,
                sum(sum(each.retrieved.fetched) for each in steps),
                sum(sum(each.retrieved.offloaded) for each in steps),
                sum(sum(each.retrieved.released) for each in steps),
                _of_machine(steps, "input_bytes"), _of_machine(steps, "output_bytes"),
                _of_machine(steps, "round_trips"), spent,
                None if self.clock is None or spent is None else spent / self.clock.clock_mhz / 1000,
            )
        )  # fmt: skip
        self._programs.append(self.simulation.programs if self.simulation else 0)
        return result

    def tokens(self, answer: Iterator[Any]) -> Iterator[Any]:
        """The tokens of an answer, or of several; the first ones include the question."""
        kind = "question"
        while (token := self.measure(kind, lambda: next(answer, None))) is not None:
            yield token
            kind = "answer"

    def check(self, progress: Progress) -> None:
        """Run the steps in the core's RTL, if there is one, and enter the cycles into all rows.

        Raises `ModelMismatch` if a bit differs.
        """
        if self.simulation is None:
            return
        cycles = self.simulation.check(progress)
        spans = pairwise(self._programs)
        self.rows = [
            replace(row, rtl_cycles=sum(cycles[start:end])) for row, (start, end) in zip(self.rows, spans, strict=True)
        ]

    def asdict(self) -> dict[str, Any]:
        """Tokens of all sessions, and all rows."""
        return {"position": self.position, "steps": [asdict(row) for row in self.rows]}

    @property
    def position(self) -> int:
        """Tokens of all sessions."""
        return sum(session.position for session in self.sessions)

    def as_text(self) -> str:
        """Table of the mean step of each kind."""
        rows = []
        for kind in dict.fromkeys(row.kind for row in self.rows):
            same = [row for row in self.rows if row.kind == kind]
            cells = [kind, str(len(same))]
            for _, name, scale, form in self._columns():
                cells.append(f"{np.mean([getattr(row, name) for row in same]) * scale:{form}}")
            rows.append(tuple(cells))
        lines = [table(("step", "count", *(title for title, *_ in self._columns())), rows)]
        several = f"{len(self.sessions)} sessions" if len(self.sessions) > 1 else "the session"
        lines.append(f"{self.position} tokens in {several}")
        if self.simulation is not None:
            lines.append("all bits of the RTL are equal to those of the golden machine")
        return "\n".join(lines)

    def _columns(self) -> list[tuple[str, str, float, str]]:
        """Title, field of `StepRow`, factor and format of each column of the table."""
        columns = [("tokens", "tokens", 1, ".1f"), ("attended", "attended", 1, ".1%"),
                   ("fetched, MB", "fetched_bytes", 1e-6, ".3f"), ("offloaded, MB", "offloaded_bytes", 1e-6, ".3f"),
                   ("input, MB", "input_bytes", 1e-6, ".3f"), ("output, MB", "output_bytes", 1e-6, ".3f"),
                   ("round trips", "round_trips", 1, ".1f")]  # fmt: skip
        if self.clock is not None:
            columns += [("predicted, ms", "ms", 1, ".3f"), ("predicted, cycles", "cycles", 1, ",.0f")]
        if self.simulation is not None:
            columns.append(("RTL, cycles", "rtl_cycles", 1, ",.0f"))
        return [*columns, ("here, s", "seconds", 1, ".2f")]


def _of_machine(steps: Sequence[Step], name: str) -> int:
    """Sum of a number of the machine, which every session that a step served has."""
    return round(sum(getattr(each, name) / each.sessions for each in steps))
