"""Programs on a simulated core: memories, register accesses, and outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from compiler.driver import Driver, Step
from hw.axi.ports import Cause
from hw.config import Config
from hw.core.core import Core
from hw.core.dma import BURST
from hw.core.isa import COMMAND_BYTES, OPCODES, Command
from sim.bench import build as builds
from sim.bench.axi import OKAY, Failure, FixedTiming, Sparse
from sim.bench.axi_run import AxiRecord, Image, simulate
from util.timing import MemoryTiming

BASES = {"device": 0x8000_0000, "host": 0x40_0000_0000}
LIMIT = 200_000  # cycles after which a program counts as hung


@dataclass
class Outcome:
    """End of one program: its events, fault and number of cycles; `end` is the cycle of its interrupt."""

    done: bool
    failed: bool
    hung: bool
    cause: Cause
    source: int
    address: int
    cycles: int
    end: int = 0


def check_responses(script: Sequence[Step], answers: Sequence[Any]) -> None:
    """Raise AssertionError if a register access of a script had another response than OKAY."""
    for (name, *values), answer in zip(script, answers, strict=True):
        if name in ("write", "read"):
            response = answer if name == "write" else answer[1]
            assert response == OKAY, f"{name} of register {values[0]:#x}: response {response}"


@lru_cache(maxsize=2)
def built(config: Config, settings: tuple[Any, ...]) -> builds.Build:
    """Build of a core, cached because elaboration takes longer than most programs; its simulations are long."""
    return builds.build(Core.from_config(config), "core", optimize=builds.OPTIMIZE)


@dataclass
class CoreRun:
    """A core with its memories; `run` appends a program, `simulate` performs all programs in one simulation.

    settings : of the KV prediction unit, as registers ; limit : cycles of a program
    number : of the core in a cluster ; bases : of its regions
    """

    core: Core
    device: bytearray | Sparse
    host: bytearray | Sparse
    settings: Mapping[str, int] = field(default_factory=dict)
    limit: int = LIMIT
    number: int = 0
    bases: Mapping[str, int] = field(default_factory=lambda: dict(BASES))
    script: list[Step] = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # index in the script at which each program's outcome begins
    started: list[tuple[int, int]] = field(
        default_factory=list
    )  # address and number of commands of each program in `runs`

    def __post_init__(self) -> None:
        self.word_bytes = self.core.processor.word // 8
        self.driver = Driver(self.core.map, self.word_bytes, self.number)
        self.set_up()

    def set_up(self) -> None:
        """Write regions and settings, as after power-on."""
        words = {"device_words": len(self.device) // self.word_bytes, "host_words": len(self.host) // self.word_bytes}
        bases = {f"{side}_start": base for side, base in self.bases.items()}
        self.script += self.driver.setup(**bases, **words, **self.settings)

    def put(self, address: int, program: bytes | Sequence[Command]) -> None:
        """Store a program (commands or bytes) in the device memory at word `address`."""
        code = program if isinstance(program, bytes) else self.driver.image(program)
        self.device[address * self.word_bytes : address * self.word_bytes + len(code)] = code

    def run(self, address: int, commands: int, *, clear: bool = False) -> None:
        """Start the program at word `address` and wait for its end; `clear`: clear a fault afterwards."""
        self.script += [*self.driver.write("clear_counters", 1), *self.driver.start(address, commands)]
        self.runs.append(len(self.script))
        self.started.append((address, commands))
        self.script += [*self.driver.finish(self.limit), *self.driver.read("cycles")]
        if clear:
            self.script += self.driver.clear()

    def reset_after(self, address: int, commands: int, cycles: int) -> None:
        """Start a program and reset the core `cycles` cycles later."""
        self.script += [*self.driver.start(address, commands), *[["wait", cycles]] * bool(cycles), ["reset"]]
        self.set_up()

    def simulate(
        self,
        *,
        stall: float = 0.0,
        timing: Mapping[str, MemoryTiming] | None = None,
        failures: Mapping[str, Sequence[Failure]] | None = None,
        outstanding: int = 64,
        **options: Any,
    ) -> tuple[list[Outcome], AxiRecord]:
        """Run everything; returns the outcomes and the record. `options` go to `sim.bench.axi_run.simulate`."""
        memories = {
            side: Image(
                getattr(self, side),
                start=base,
                timing=(timing or {}).get(side, FixedTiming(latency=12)),
                stall=stall,
                failures=(failures or {}).get(side, ()),
                longest=BURST,
                outstanding=outstanding,
            )
            for side, base in self.bases.items()
        }
        record = simulate(
            self.core,
            "core",
            memories,
            script=self.script,
            lite="registers",
            stall=stall,
            timeout_cycles=(len(self.runs) + 1) * (self.limit + 1000),
            made=built(self.core.config, builds.build_settings()),
            config={"barrier__released": 1, "barrier__broken": 0},
            explain=lambda answers: list(zip(self.names(), self.outcomes(answers), strict=True)),
            **options,
        )
        check_responses(self.script, record.answers)
        return self.outcomes(record.answers), record

    def names(self) -> list[list[str]]:
        """Names of the commands of each program; unknown opcodes are omitted."""
        known = {opcode.code: opcode.name for opcode in OPCODES}
        result = []
        for at, count in self.started:
            code = self.device[at * self.word_bytes : at * self.word_bytes + count * COMMAND_BYTES]
            result.append([known[byte] for byte in code[::COMMAND_BYTES] if byte in known])
        return result

    def outcomes(self, answers: Sequence[Any]) -> list[Outcome]:
        """Outcomes of the programs, from the answers of the script."""
        result = []
        for at in self.runs:
            interrupt, (events, _), (_, _), (cause, _), (address, _), _, (cycles, _) = answers[at : at + 7]
            status = bool(events & 1), bool(events & 2), interrupt < 0
            result.append(Outcome(*status, Cause(cause & 15), cause >> 4, address, cycles, interrupt))
        return result
