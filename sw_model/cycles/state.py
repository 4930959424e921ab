"""State of a core that the models of its units share."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass

from hw.config import Config
from hw.core.isa import ExecUnit, LengthSource, SyncEvent
from hw.core.lengths import LENGTH_BITS
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.sequencer import QUEUE_DEPTH
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU
from hw.lxe.dpe import DPE
from hw.lxe.microcode import Instruction
from hw.lxe.vpe import VPE
from sw_model.cycles.copy_engine import CopyEngineModel
from sw_model.cycles.line_cache import CacheCounts
from sw_model.cycles.ports import Port, ReadEngineModel, WriteEngineModel
from sw_model.cycles.processes import Bell, Clock, Counter, Queue
from sw_model.cycles.step_data import StepData
from util.timing import MemoryTiming


@dataclass(frozen=True)
class IssuedCommand:
    """A command in a queue, with the data of the step to which it belongs.

    waits : for each event, how many occurrences it waits for
    tokens : tokens of the step, for CLUSTER, MEANS and STORE those of the piece
    """

    name: str
    fields: Mapping[str, int]
    waits: Mapping[SyncEvent, int]
    data: StepData
    tokens: range


class CoreState:
    """State that the unit models share: ports, engines, queues, event counters.

    instructions    vector programs by word address
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        self.config, self.clock = config, Clock()
        self.instructions = instructions
        clock, self.word_bytes = self.clock, 2 * config.dpe_inputs
        ports = {side: Port(clock, timing[side], self.word_bytes, bases[side]) for side in ("device", "host")}
        self.readers = {
            name: ReadEngineModel(clock, ports["device"], depth) for name, (_, depth) in READ_ENGINES.items()
        }
        self.writers = {
            name: WriteEngineModel(clock, ports["device"], depth) for name, (_, depth) in WRITE_ENGINES.items()
        }
        self.readers["host"], self.writers["host"] = (
            ReadEngineModel(clock, ports["host"], 64),
            WriteEngineModel(clock, ports["host"], 32),
        )
        self.engine, self.vpe, self.hcu = DPE.from_config(config), VPE.from_config(config), HCU.from_config(config)
        self.wtu = WTU.from_config(config)
        self.width, self.head = config.dpe_inputs, config.head_dim // config.dpe_inputs
        self.queues = {unit: Queue(clock, depth=QUEUE_DEPTH) for unit in ExecUnit}
        self.done = {event: Counter(clock) for event in SyncEvent}
        self.issued = dict.fromkeys(ExecUnit, 0)
        self.spans: list[tuple[ExecUnit, str, int, int]] = []
        self.starts: dict[ExecUnit, deque[tuple[str, int]]] = {unit: deque() for unit in ExecUnit}
        self.codes = Queue(clock, depth=1, latency=0)  # to the retrieval unit
        self.slots_written = Counter(clock)  # pieces whose keys and values are stored
        self.commits: list[CacheCounts] = []  # counts of the line cache at the end of each step
        self.copier = CopyEngineModel(clock, self.readers, self.writers)

    def next(self, unit: ExecUnit) -> Generator[int | Bell, None, IssuedCommand]:
        """Wait for the next command of a unit and for the events that it names.

        The unit executes the command from this cycle on.
        """
        command: IssuedCommand = yield from self.queues[unit].head()
        for event, count in command.waits.items():
            if self.done[event].value < count:
                yield from self.done[event].reach(count)
                yield 1
        self.starts[unit].append((command.name, self.clock.now))
        return command

    def accept(self, unit: ExecUnit) -> None:
        """Remove the command that `next` returned."""
        self.queues[unit].pop()

    def complete(self, unit: ExecUnit) -> None:
        """Count a command as complete in this cycle."""
        name, start = self.starts[unit].popleft()
        self.spans.append((unit, name, start, self.clock.now + 1))
        self.done[SyncEvent(unit)].add()

    def length(self, command: IssuedCommand) -> int:
        """Length of a command, run-time lengths resolved."""
        f, known = command.fields, 0
        size = f.get("length", 0)
        if size == LengthSource.CLUSTERS:
            known = command.data.clusters_after
        elif size == LengthSource.TOKENS:
            known = command.data.past(f.get("head", 0))
        return (known + f.get("extra", 0)) % (1 << LENGTH_BITS)
