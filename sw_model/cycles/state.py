"""State of a core that the models of its units share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from golden.decoder_layer import DecoderLayer, StepResult
from golden.kvmu import Descriptor, Op, TransferKind
from hw.config import Config
from hw.core.isa import Command, ExecUnit, LengthSource, SyncEvent
from hw.core.lengths import LENGTH_BITS
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.sequencer import QUEUE_DEPTH
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU
from hw.lxe.dpe import DPE
from hw.lxe.microcode import Instruction
from hw.lxe.vpe import VPE
from sw_model.cycles.copy_engine import CopyEngineModel
from sw_model.cycles.ports import Port, ReadEngineModel, WriteEngineModel
from sw_model.cycles.processes import Bell, Clock, Counter, Queue
from util.timing import MemoryTiming


@dataclass(frozen=True)
class StepData:
    """What a step's cycles depend on besides its commands.

    clusters : before the step ; opened, places : of each token, whether it opens a cluster, byte address of its place
    piece_tokens : tokens that are clustered and stored together
    means : for each piece, clusters with new tokens: their number, whether they are new, which tokens of the piece
    rows : for each head (passes, levels) of every row ; selected : for each head, pages of each cluster it selected
    pages : for each head, (byte address, past tokens) of every page
    fetch, offload : transfers to the device and from it
    """

    clusters: int = 0
    opened: Sequence[bool] = ()
    places: Sequence[int] = ()
    piece_tokens: int = 1
    means: Sequence[Sequence[tuple[int, bool, Sequence[int]]]] = ()
    rows: Sequence[Sequence[tuple[int, int]]] = ()
    selected: Sequence[Sequence[int]] = ()
    pages: Sequence[Sequence[tuple[int, int]]] = ()
    fetch: Sequence[Descriptor] = ()
    offload: Sequence[Descriptor] = ()

    @classmethod
    def of(cls, layer: DecoderLayer, step: Callable[[], StepResult]) -> StepData:
        """Of a step that the golden `layer` is about to do."""
        unit = layer.table.kvmu
        layer.table.open(layer.context)
        clusters, before = len(layer.table.clusters.counts), len(unit.descriptors)
        trace = step()
        moved = unit.descriptors[before:]
        opened, assigned = [bool(flag) for flag in trace.assigned.opened], trace.assigned.cluster.tolist()
        size, means = layer.shape.piece_tokens or len(opened), []
        for start in range(0, len(opened), size):
            groups: dict[int, list[int]] = {}
            for token, cluster in enumerate(assigned[start : start + size]):
                groups.setdefault(cluster, []).append(token)
            means.append([(cluster, opened[start + tokens[0]], tokens) for cluster, tokens in groups.items()])
        chains = layer.table.context.clusters["pages"]
        return cls(
            clusters, opened, [r.address for r in trace.replies if r.op == Op.APPEND],
            size, means,
            [list(zip(rows.passes.tolist(), rows.levels.tolist(), strict=True)) for rows in trace.rows],
            [[int(chains[c]) for c in np.flatnonzero(rows.selected.any(axis=0)).tolist()] for rows in trace.rows],
            [[page for page in pages if page[1]] for pages in trace.pages],
            [d for d in moved if d.kind != TransferKind.OFFLOAD], [d for d in moved if d.kind == TransferKind.OFFLOAD],
        )  # fmt: skip


class CoreState:
    """State that the unit models share: ports, engines, queues, event counters.

    mean_keys_word  word address of the mean keys
    instructions    vector programs by word address
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        mean_keys_word: int,
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        self.config, self.clock = config, Clock()
        self.mean_keys_word, self.instructions = mean_keys_word, instructions
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
        self.data, self.pieces, self.past = StepData(), 0, [0] * config.kv_heads
        self.codes = Queue(clock, depth=1, latency=0)  # to the retrieval unit
        self.slots_written = Counter(clock)  # pieces whose keys and values are stored; `pieces` counts all of them
        self.copier = CopyEngineModel(clock, self.readers, self.writers)

    def next(self, unit: ExecUnit) -> Generator[int | Bell, None, Command]:
        """Wait for the next command of a unit and for the events that it names.

        The unit executes the command from this cycle on.
        """
        command, waits = yield from self.queues[unit].head()
        for event, count in waits.items():
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

    def length(self, command: Command) -> int:
        """Length of a command, run-time lengths resolved."""
        f = command.fields
        size = f.get("length", 0)
        known = (
            self.clusters
            if size == LengthSource.CLUSTERS
            else self.past[f.get("head", 0)]
            if size == LengthSource.TOKENS
            else 0
        )
        return (known + f.get("extra", 0)) % (1 << LENGTH_BITS)

    @property
    def clusters(self) -> int:
        """Clusters in the table after the tokens of the step."""
        return self.data.clusters + sum(self.data.opened)
