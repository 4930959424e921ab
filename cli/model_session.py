"""A session of a model on the machine for the command line: tokenizer, configuration, measured steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cli.rtl import timings
from compiler.checkpoint import Checkpoint
from compiler.golden_machine import Retrieved
from compiler.runtime import Limits, Machine, Retrieval, Session, compile_model
from hw.config import Config
from hw.core.isa import Command
from sw_model.cycles.core import CoreModel
from sw_model.cycles.step_data import recording
from sw_model.systems import load_system
from util.progress import Progress
from util.text import table

BASES = {"device": 0, "host": 1 << 47}
TOKENIZER = "tokenizer.json"


def tokenizer(folder: Path) -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """Functions from text to token IDs and back, of the `tokenizer.json` of a checkpoint."""
    from tokenizers import Tokenizer

    if not (folder / TOKENIZER).is_file():
        raise ValueError(f"checkpoint {str(folder)!r}: {TOKENIZER} is missing")
    try:
        loaded = Tokenizer.from_file(str(folder / TOKENIZER))
    except Exception as error:  # the library raises plain Exception
        raise ValueError(f"{folder / TOKENIZER}: {error}") from None
    return lambda text: loaded.encode(text).ids, loaded.decode


class CycleClock:
    """Predicts the cycles of every program that a machine runs, on one core with the memories of a system.

    Attributes
    ----------
    cycles : of all programs so far ; clock_mhz : of the core
    """

    def __init__(self, machine: Machine, system: str):
        loaded = load_system(system)
        timing = timings(loaded, BASES["host"])
        assert loaded.core is not None
        self.clock_mhz, self.cycles = loaded.core.clock_mhz, 0
        self.machine, self._run = machine, machine.core.run
        self.model = CoreModel(machine.config, timing, BASES, machine.core.instructions)
        machine.core.run = self.run  # type: ignore[method-assign]

    def run(self, program: Iterable[Command], progress: Callable[[int], Any] | None = None) -> Retrieved:
        """Run a program on the machine, and predict its cycles."""
        commands, core = list(program), self.machine.core
        with recording(core.table) as steps:
            retrieved = self._run(commands, progress)
        self.cycles += self.model.run(len(core.device) // core.word_bytes, commands, steps)
        return retrieved


@dataclass(frozen=True)
class StepRow:
    """A measured step.

    kind : prompt, frame or answer ; tokens, commands : of the step ; seconds : on this computer
    attended : mean share of the past tokens that a KV head attends to ; fetched_bytes : from host memory
    cycles, ms : predicted time on one core; None without a prediction
    """

    kind: str
    tokens: int
    commands: int
    seconds: float
    attended: float
    fetched_bytes: int
    cycles: int | None
    ms: float | None


class Report:
    """Measures the steps of a session."""

    def __init__(self, session: Session, clock: CycleClock | None):
        self.session, self.clock = session, clock
        self.rows: list[StepRow] = []

    def measure(self, kind: str, step: Callable[[], Any]) -> Any:
        """Run `step` and append a row for all steps of the session that it executes."""
        done, started, cycles = len(self.session.steps), time.perf_counter(), self.clock.cycles if self.clock else 0
        result = step()
        steps = self.session.steps[done:]
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
                kind, sum(each.tokens for each in steps), sum(each.commands for each in steps),
                time.perf_counter() - started, float(np.mean(shares)) if shares else 1.0,
                sum(sum(each.retrieved.fetched) for each in steps), spent,
                None if self.clock is None or spent is None else spent / self.clock.clock_mhz / 1000,
            )
        )  # fmt: skip
        return result

    def tokens(self, answer: Iterator[int]) -> Iterator[int]:
        """The tokens of an answer; the first one includes the question."""
        kind = "question"
        while (token := self.measure(kind, lambda: next(answer, None))) is not None:
            yield token
            kind = "answer"

    def asdict(self) -> dict[str, Any]:
        """Tokens of the session, and all rows."""
        return {"position": self.session.position, "steps": [asdict(row) for row in self.rows]}

    def as_text(self) -> str:
        """Table of the mean step of each kind."""
        rows = []
        for kind in dict.fromkeys(row.kind for row in self.rows):
            same = [row for row in self.rows if row.kind == kind]
            mean = {name: np.mean([getattr(row, name) for row in same]) for name in ("tokens", "seconds", "attended")}
            fetched = np.mean([row.fetched_bytes for row in same]) / 1e6
            ms = "" if same[0].ms is None else f"{np.mean([row.ms for row in same if row.ms is not None]):.2f}"
            rows.append(
                (kind, str(len(same)), f"{mean['tokens']:.1f}", f"{mean['attended']:.1%}", f"{fetched:.3f}", ms,
                 f"{mean['seconds']:.2f}")
            )  # fmt: skip
        names = ("step", "count", "tokens", "attended", "fetched, MB", "predicted, ms", "here, s")
        return f"{table(names, rows)}\n{self.session.position} tokens in the session"


def prepare(
    model: Path,
    config: Config,
    limits: Limits,
    retrieval: Retrieval,
    *,
    system: str = "",
    progress: Progress,
) -> tuple[Machine, CycleClock | None]:
    """Compile a checkpoint for a core with the KV heads of the model; `system`: predict cycles with its memories."""
    checkpoint = Checkpoint(model)
    config = config.replace(kv_heads=checkpoint.spec.text.kv_heads)
    machine = compile_model(checkpoint, config, limits, retrieval, progress=progress)
    return machine, CycleClock(machine, system) if system else None
