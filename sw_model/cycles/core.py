"""The cycle model: cores with their programs, on one device memory and one host link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import repeat

import numpy as np

from hw.config import Config
from hw.core.isa import Command, ExecUnit
from hw.lxe.microcode import Instruction
from sw_model.cycles import columns as col
from sw_model.cycles import sequencer
from sw_model.cycles.layout import TABLES, Ask, Kind, Side, place
from sw_model.cycles.machine import PROCESS_KINDS, compiled, new_machine
from sw_model.cycles.native import native_memory
from sw_model.cycles.step_data import StepData
from sw_model.cycles.tables import Tables
from sw_model.memory.live import DramTiming
from sw_model.memory.spec import load_memory, memory_names
from util.timing import FinalTiming, MemoryTiming

Span = tuple[ExecUnit, str, int, int]  # unit, command, first cycle, cycle after the last one


@dataclass(frozen=True)
class Traffic:
    """Bytes of bursts: read from and written to device memory, read from and written to the host."""

    device_read: int = 0
    device_written: int = 0
    host_read: int = 0
    host_written: int = 0

    @property
    def device(self) -> int:
        """Bytes read and written in device memory."""
        return self.device_read + self.device_written

    @property
    def host(self) -> int:
        """Bytes over the link, both directions."""
        return self.host_read + self.host_written

    def __sub__(self, other: Traffic) -> Traffic:
        return self.plus(other, -1)

    def plus(self, other: Traffic, times: int = 1) -> Traffic:
        """This traffic and `times` that of another part."""
        return Traffic(*(a + times * b for a, b in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class CacheCounts:
    """Counted events of the cache of the KVMU: accessed blocks, lines read, written back, entries of the undo log."""

    accesses: int
    fills: int
    writebacks: int
    logged: int


class MultiCoreModel:
    """Cores that share a device memory and a host link, one program each.

    Parameters
    ----------
    config : sizes of a core ; cores : their number
    timing, bases : timing model and first byte address of the regions of each memory, by side
    instructions : vector programs by word address

    Attributes
    ----------
    now : cycle in which the next programs start
    spans_of : for each core, the commands that it has executed, in the order of their ends
    commands : for each core, the table of the commands of its last program (`columns.Command`)
    commits : counts of the cache of the KVMU of core 0 at the end of each step
    traffic : bytes that all cores have moved; in the last run also up to each BARRIER of core 0 (`traffic_at`)
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        instructions: Mapping[int, Sequence[Instruction]],
        *,
        cores: int,
    ):
        self.config, self.instructions, self.cores = config, instructions, cores
        self.timing = [timing[side.name.lower()] for side in Side]
        self.machine, self.now = new_machine(config, cores), 0
        device = self.timing[Side.DEVICE]
        self._set("is_native", Side.DEVICE, isinstance(device, DramTiming))
        if not isinstance(device, DramTiming):  # compiled processes need arrays of this type
            device = DramTiming(load_memory(memory_names()[0]))
        self.native = native_memory(device)
        for side, model in zip(Side, self.timing, strict=True):
            self._set("is_final", side, isinstance(model, FinalTiming))
            for c in range(cores):
                self.machine[place("base", c, side)] = bases[side.name.lower()]
        self.spans_of: list[list[Span]] = [[] for _ in range(cores)]
        self.commands: list[np.ndarray] = []
        self.commits: list[CacheCounts] = []
        self.traffic_at: list[Traffic] = []

    @property
    def traffic(self) -> Traffic:
        """Bytes that all cores have moved so far."""
        at = place("moved", 0, 0)
        return self._traffic(self.machine[at : at + 2 * len(Side)].tolist())

    def _traffic(self, words: Sequence[int]) -> Traffic:
        return Traffic(*(2 * self.config.dpe_inputs * count for count in words))

    def _set(self, name: str, index: int, value: int) -> None:
        self.machine[place(name, index)] = value

    def run_all(
        self,
        word_addresses: Sequence[int],
        programs: Sequence[Sequence[Command]],
        steps: Sequence[Sequence[StepData]] = (),
    ) -> list[int]:
        """Cycles from the common start of the programs, one for each core, to the end of each.

        `steps` has, for each core, the data of each OPEN command of its program and of the commands after it. Cores
        that share a step have BARRIERs; then only `steps` of core 0 count, which retrieves for all of them. Raises
        RuntimeError if a program has no END command.
        """
        if len(programs) != self.cores:
            raise ValueError(f"programs must be {self.cores}, one for each core, got {len(programs)}")
        m, processes, tables = self.machine, compiled(), Tables(self.config, self.instructions)
        data_of = list(steps) or list(repeat((), self.cores))
        if any(command.name == "BARRIER" for command in programs[0]):
            leader = programs[0]
            places = [tables.program(program, data_of[0], leader if n else None) for n, program in enumerate(programs)]
        else:
            places = [tables.program(program, data) for program, data in zip(programs, data_of, strict=True)]
        data = tables.data()
        m[place("now")], m[place("commits")], m[place("marks")] = self.now, 0, 0
        kind = PROCESS_KINDS.index(sequencer.sequence)
        for c, (first, count) in enumerate(places):
            m[place("end", c)] = -1
            processes.start(m, data, c, kind, 0, word_addresses[c], first, count, 0)
        m[place("resumed")] = -1
        while processes.run(m, data, self.native):
            self._answer()
        if m[place("overflow")]:
            raise RuntimeError("a queue of the cycle model is full")
        ends = [int(m[place("end", c)]) for c in range(self.cores)]
        for program, end in zip(programs, ends, strict=True):
            if end < 0:
                raise RuntimeError(f"a program of {len(program)} commands does not end")
        self._record(data, places, int(m[place("commits")]), tables.barriers)
        start, self.now = self.now, max(ends)
        return [end - start for end in ends]

    def _answer(self) -> None:
        """Call the timing model for which the processes wait."""
        m, at = self.machine, place("ask", 0)
        ask = m[at : at + len(Ask)].tolist()
        timing = self.timing[ask[Ask.SIDE]]
        if ask[Ask.CONFIRM]:
            m[at + Ask.READY] = timing.confirm(ask[Ask.NUMBER], ask[Ask.CYCLE])
            return
        answer = timing.arrive(ask[Ask.CYCLE], ask[Ask.ADDRESS], ask[Ask.BYTES], bool(ask[Ask.WRITE]))
        m[at + Ask.READY], m[at + Ask.NUMBER] = answer

    def _record(self, data: np.ndarray, places: Sequence[tuple[int, int]], commits: int, barriers: int) -> None:
        """Spans and counts of a run."""

        def table(name: str, first: int, count: int) -> np.ndarray:
            width = TABLES[name]
            begin = data[list(TABLES).index(name)] + first * width
            return data[begin : begin + count * width].reshape(count, width)

        self.commands = [table("command", first, count) for first, count in places]
        for spans, rows in zip(self.spans_of, self.commands, strict=True):
            rows = rows[rows[:, col.Command.DONE] > 0]
            rows = rows[np.argsort(rows[:, col.Command.DONE], kind="stable")]
            shown = (col.Command.UNIT, col.Command.KIND, col.Command.START, col.Command.DONE)
            spans += [(ExecUnit(unit), Kind(kind).name, a, b) for unit, kind, a, b in rows[:, shown].tolist()]
        self.commits += [CacheCounts(*row) for row in table("commit", 0, commits).tolist()]
        self.traffic_at = [self._traffic(row) for row in table("traffic", 0, barriers).tolist()]


class CoreModel(MultiCoreModel):
    """One core that has the memories to itself; `run` executes programs one after the other."""

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        super().__init__(config, timing, bases, instructions, cores=1)

    @property
    def spans(self) -> list[Span]:
        """Commands that the core has executed, in the order of their ends."""
        return self.spans_of[0]

    def run(self, word_address: int, program: Sequence[Command], steps: Sequence[StepData] = ()) -> int:
        """Cycles in which the core executes the program at `word_address`, see `run_all`."""
        return self.run_all([word_address], [program], [steps])[0]
