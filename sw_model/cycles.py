"""Cycles of a core's programs: its units, readers, writers and ports as processes, in the units' own cycle formulas.

The program, the sizes of the core and the memories' timing go in, and of the data only what a step's golden twin says
of it: candidates of each token, buckets of each row, pages, transfers. Nothing is measured or fitted: every number of
cycles here is one of the RTL's registers, a unit's formula, or an answer of a memory's timing.
"""

# mypy: disable-error-code="arg-type"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from golden.kvmu_unit import Descriptor, Kind, Op, Tier
from golden.layer import Layer, StepTrace
from hw.config import Config
from hw.core.isa import BY_NAME, COMMAND_BYTES, Command, Event, Size, To, Unit
from hw.core.machine import READERS, WRITERS
from hw.core.sequencer import QUEUE
from hw.core.vector import CODE_BYTES
from hw.dre.hcu import HCU
from hw.dre.kvmu import GROUP
from hw.dre.kvmu_timing import KvmuTiming
from hw.dre.wtu import WTU
from hw.lxe.dpe import DPE
from hw.lxe.lane import STAGES
from hw.lxe.microcode import Function, Instruction, Post, Source
from hw.lxe.vpe import VPE
from sim.axi import Timing
from sw_model.ports import Port, Reader, Writer
from sw_model.processes import Bell, Clock, Counter, Process, Queue, Wait


@dataclass(frozen=True)
class StepData:
    """What a step's cycles depend on besides its commands.

    clusters : before the step ; opened, places : of each token, whether it opens a cluster, byte address of its place
    means : clusters with new tokens: their number, whether they are new, which tokens of the step
    rows : for each head (passes, levels) of every row ; selected : for each head, pages of each cluster it selected
    pages : for each head, (byte address, past tokens) of every page ; used : page numbers in use
    fetch, offload : transfers to the device and from it
    """

    clusters: int = 0
    opened: Sequence[bool] = ()
    places: Sequence[int] = ()
    means: Sequence[tuple[int, bool, Sequence[int]]] = ()
    rows: Sequence[Sequence[tuple[int, int]]] = ()
    selected: Sequence[Sequence[int]] = ()
    pages: Sequence[Sequence[tuple[int, int]]] = ()
    used: int = 0
    fetch: Sequence[Descriptor] = ()
    offload: Sequence[Descriptor] = ()

    @classmethod
    def of(cls, layer: Layer, step: Callable[[], StepTrace]) -> StepData:
        """Of a step that the golden `layer` is about to do."""
        unit = layer.table.kvmu
        clusters, before = len(layer.table.clusters.counts), len(unit.descriptors)
        trace = step()
        moved = unit.descriptors[before:]
        groups: dict[int, list[int]] = {}
        for token, cluster in enumerate(trace.assigned.cluster.tolist()):
            groups.setdefault(cluster, []).append(token)
        opened = [bool(flag) for flag in trace.assigned.opened]
        chains = {cluster: len(pages) for cluster, pages in unit.table.chains.items()}
        return cls(
            clusters, opened, [r.address for r in trace.replies if r.op == Op.APPEND],
            [(cluster, opened[tokens[0]], tokens) for cluster, tokens in groups.items()],
            [list(zip(rows.passes.tolist(), rows.levels.tolist(), strict=True)) for rows in trace.rows],
            [[chains[c] for c in np.flatnonzero(rows.selected.any(axis=0)).tolist()] for rows in trace.rows],
            [[page for page in pages if page[1]] for pages in trace.pages], len(unit.table.pages),
            [d for d in moved if d.kind != Kind.OFFLOAD], [d for d in moved if d.kind == Kind.OFFLOAD],
        )  # fmt: skip


class CoreModel:
    """A core of a configuration behind two memories; `run` executes programs one after the other.

    mean_word : word of the representative keys ; instructions : vector programs by their place
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, Timing],
        bases: Mapping[str, int],
        mean_word: int,
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        self.config, self.clock = config, Clock()
        self.mean_word, self.instructions = mean_word, instructions
        clock, self.word_bytes = self.clock, 2 * config.dpe_inputs
        ports = {side: Port(clock, timing[side], self.word_bytes, bases[side]) for side in ("device", "host")}
        self.readers = {name: Reader(clock, ports["device"], depth) for name, (_, depth) in READERS.items()}
        self.writers = {name: Writer(clock, ports["device"], depth) for name, (_, depth) in WRITERS.items()}
        self.readers["host"], self.writers["host"] = Reader(clock, ports["host"], 64), Writer(clock, ports["host"], 32)
        self.engine, self.vpe, self.hcu = DPE.from_config(config), VPE.from_config(config), HCU.from_config(config)
        self.wtu = WTU.from_config(config)
        self.width, self.head = config.dpe_inputs, config.head_dim // config.dpe_inputs
        self.queues = {unit: Queue(clock, depth=QUEUE) for unit in Unit}
        self.done = {event: Counter(clock) for event in Event}
        self.given = dict.fromkeys(Unit, 0)
        self.spans: list[tuple[Unit, str, int, int]] = []
        self.starts: dict[Unit, deque[tuple[str, int]]] = {unit: deque() for unit in Unit}
        self.data, self.steps, self.past = StepData(), 0, [0] * config.kv_heads
        self.codes, self.rows = Queue(clock, depth=1, latency=0), Queue(clock, depth=1, latency=0)  # to the cache unit
        self.placed = Counter(clock)
        self.copier = Copier(self)
        for unit in (Loading(self), Multiplying(self), VectorUnit(self), CacheUnit(self), Copying(self)):
            unit.begin()

    def run(self, place: int, program: Sequence[Command], data: StepData | None = None) -> int:
        """Cycles of a program at word `place` in which the core is busy; RuntimeError when it has no END."""
        self.data = data or StepData()
        self.steps += bool(self.data.opened)
        self.past = [sum(count for _, count in of) for of in self.data.pages] or [0] * self.config.kv_heads
        start, self.end = self.clock.now, -1
        self.clock.start(self._sequence(place, program))
        self.clock.run()
        if self.end < 0:
            raise RuntimeError(f"a program of {len(program)} commands does not end")
        self.clock.now = self.end
        return self.end - start

    def _sequence(self, place: int, program: Sequence[Command]) -> Process:
        word = self.word_bytes
        words = max(1, COMMAND_BYTES // word)
        per_word = max(1, word // COMMAND_BYTES)
        yield 1  # ASK
        yield from self.readers["program"].ask(place, -(-len(program) // per_word) * words)
        for number, command in enumerate(program):
            if number % per_word == 0:
                for _ in range(words):
                    yield 1
                    yield from self.readers["program"].word()
            yield 1
            unit = BY_NAME[command.name].unit
            if unit is None:
                break
            waits = {event: self.given[event.unit] - (wait - 1) for event, wait in command.waits.items() if wait}
            yield from self.queues[unit].put((command, waits))
            self.given[unit] += 1
        else:
            return
        yield 2  # DRAIN, FINISH
        for event in Event:
            yield from self.done[event].reach(self.given[event.unit])
        self.end = self.clock.now + 1

    def next(self, unit: Unit) -> Generator[int | Bell, None, Command]:
        """The next command of a unit, when it has waited for what it names; the unit takes it in this cycle."""
        command, waits = yield from self.queues[unit].head()
        for event, count in waits.items():
            if self.done[event].value < count:
                yield from self.done[event].reach(count)
                yield 1
        self.starts[unit].append((command.name, self.clock.now))
        return command

    def take(self, unit: Unit) -> None:
        """The command that `next` gave has been taken."""
        self.queues[unit].pop()

    def complete(self, unit: Unit) -> None:
        """A command is complete in this cycle."""
        name, start = self.starts[unit].popleft()
        self.spans.append((unit, name, start, self.clock.now + 1))
        self.done[Event(unit)].add()

    def length(self, command: Command) -> int:
        """The length that a command means."""
        f = command.fields
        size = f.get("size", 0)
        known = self.clusters if size == Size.CLUSTERS else self.past[f.get("head", 0)] if size == Size.TOKENS else 0
        return known + f.get("extra", 0)

    @property
    def clusters(self) -> int:
        """In the table, after the step's tokens."""
        return self.data.clusters + sum(self.data.opened)


class UnitModel:
    """A unit of the core."""

    def __init__(self, core: CoreModel):
        self.core, self.clock = core, core.clock

    def begin(self) -> None:
        """Start its processes."""
        raise NotImplementedError


def part(total: int, start: int, most: int) -> int:
    """How many of `total` things there are from number `start` on, at most `most`."""
    return min(max(total - start, 0), most)


class Loading(UnitModel):
    """LOAD and GATHER: one half asks, the other places words."""

    def begin(self) -> None:
        self.fills = Queue(self.clock, depth=4)
        self.at, self.served, self.slot = 0, 0, 0  # page of the list, tokens served, token of the page
        self.clock.start(self._ask())
        self.clock.start(self._place())

    def _ask(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            command = yield from core.next(Unit.LOAD)
            core.take(Unit.LOAD)
            f = command.fields
            yield 1
            if command.name == "GATHER":
                yield from self._gather(f)
                continue
            n, total = core.width, core.length(command)
            rows, beats, block = f.get("rows", 0), f.get("beats", 0), f.get("block", 0)
            if f.get("vary", 0) == 1:
                rows = part(total, block * n, rows)
            if f.get("vary", 0) == 2:
                beats = part(-(-total // n), block, beats)
            yield from self.fills.put((rows, beats, False))
            yield 1
            for row in range(rows if beats else 0):
                yield from reader.ask(f["source"] + row * f.get("stride", 0), beats)
                yield 1
            yield 1

    def _gather(self, f: Mapping[str, int]) -> Wait:
        core, reader = self.core, self.core.readers["load"]
        head, values = f.get("head", 0), f.get("values", 0)
        if f.get("restart", 0):
            self.at = self.served = self.slot = 0
        past, pages = core.past[head], core.data.pages[head] if core.data.pages else ()
        tokens = part(past + f["tokens"], self.served, f["blocks"] * core.width)
        yield from self.fills.put((tokens, core.head, bool(values)))
        yield 1
        for _ in range(tokens):
            yield 1  # NEXT
            if self.served < past:
                if not self.slot:
                    yield 1  # PAGE
                place, count = pages[self.at]
                address = place // core.word_bytes + (2 * self.slot + values) * core.head
                self.slot += 1
                if self.slot == count:
                    self.slot, self.at = 0, self.at + 1
            else:
                address = f["own"] + (self.served - past) * f["stride"]
            yield from reader.ask(address, core.head)
            yield 1
            self.served += 1
        yield 1

    def _place(self) -> Process:
        core, reader = self.core, self.core.readers["load"]
        while True:
            rows, beats, transposed = yield from self.fills.head()
            if rows and beats:
                yield 1
                if transposed:
                    yield from self._turn(rows, beats)
                else:
                    for word in range(rows * beats):
                        if word:
                            yield 1
                        yield from reader.word()
            self.fills.pop()
            core.complete(Unit.LOAD)
            yield 1

    def _turn(self, rows: int, beats: int) -> Wait:
        """Through the transposer: blocks of rows come while the one before leaves."""
        clock, reader, width = self.clock, self.core.readers["load"], self.core.width
        out: list[int] = []  # when the last word of each block leaves
        while rows:
            if len(out) > 1:
                yield from clock.until(out[-2] + 1)
            count = min(rows, width)
            for _ in range(count * beats):
                yield from reader.word()
                yield 1
            begin = max(clock.now + 1, out[-1] + 1 if out else 0)
            out.append(begin + width * beats - 1)
            rows -= count
        yield from clock.until(out[-1])


class Multiplying(UnitModel):
    """MULTIPLY: weights, activations and results, each a command or two ahead of the next."""

    def begin(self) -> None:
        clock = self.clock
        self.orders = {name: Queue(clock, depth=1, latency=0) for name in ("engine", "store")}
        self.results, self.ends = Queue(clock, latency=0), Queue(clock, depth=4)
        self.credits = Counter(clock, self.core.engine.latency + 1)  # places behind the engine
        self.read = Counter(clock)
        self.clock.start(self._accept())
        self.clock.start(self._work())
        self.clock.start(self._store())
        self.clock.start(self._end())

    def _accept(self) -> Process:
        core = self.core
        while True:
            command = yield from core.next(Unit.MATRIX)
            core.take(Unit.MATRIX)
            yield 1
            f, n = command.fields, core.width
            total, block = -(-core.length(command) // n), f.get("block", 0)
            results, inputs, last = f["m_blocks"], f["k_blocks"], f.get("last", 0)
            if f.get("vary", 0) == 1:
                results = part(total, block, results)
            if f.get("vary", 0) == 2:
                inputs, last = part(total, block, inputs), block + inputs >= total
            order = (results, inputs, f["vectors"], bool(last) and bool(results and inputs), f)
            yield from self.orders["engine"].put(order)
            yield from self.orders["store"].put(order)

    def _work(self) -> Process:
        """Tiles: each is loaded while the one before is used."""
        clock, engine = self.clock, self.core.engine
        change, release = -1, -1  # cycles: the newest tile came into force, the last beat of the one before
        while True:
            results, inputs, vectors, last, _ = yield from self.orders["engine"].get()
            accepted = clock.now
            loaded = accepted + 1
            for tile in range(results * inputs):
                loaded = max(loaded + 1, change + 1) + engine.loads - 1  # its last beat of weights
                change = max(loaded + 1, release)
                beat = max(change, accepted + 1)
                ending = last and tile % inputs == inputs - 1
                for _ in range(vectors):
                    beat += 1
                    yield from clock.until(beat)
                    if ending:
                        yield from self.credits.reach(1)
                        self.credits.value -= 1
                        beat = clock.now
                        self.results.push(None, engine.latency)
                release = beat
            clock.at(clock.now + (1 if results * inputs else 0), self._was_read)
            yield 1

    def _was_read(self) -> None:
        self.core.done[Event.OPERANDS].add()
        self.read.add()

    def _store(self) -> Process:
        clock, writer = self.clock, self.core.writers["matrix"]
        while True:
            results, _, vectors, last, f = yield from self.orders["store"].get()
            yield 1
            wide = f.get("wide", 0)
            for m in range(results if last else 0):
                for t in range(vectors):
                    yield from self.results.get()
                    final = m + 1 == results and t + 1 == vectors
                    address = f["out"] + m * (1 + wide) + t * f.get("stride", 0)
                    clock.start(self._job(address, 1 + wide, final))
                    yield from writer.put()
                    if wide:
                        yield 1
                        yield from writer.put()
                    clock.at(clock.now + 2, self._credit)
                    yield 1
            yield from self.ends.put(last)
            yield 1

    def _job(self, address: int, count: int, final: bool) -> Process:
        yield from self.core.writers["matrix"].ask(address, count, final)

    def _credit(self) -> None:
        self.credits.add()

    def _end(self) -> Process:
        core, stored, read = self.core, 0, 0
        while True:
            last = yield from self.ends.get()
            read += 1
            yield from self.read.reach(read)
            if last:
                stored += 1
                yield from core.writers["matrix"].stored.reach(stored)
            core.complete(Unit.MATRIX)
            yield 1


class VectorUnit(UnitModel):
    """VECTOR and MEANS: instructions, input, the engine, output."""

    def begin(self) -> None:
        clock = self.clock
        self.orders = {name: Queue(clock, depth=1, latency=0) for name in ("instruct", "fetch", "drain")}
        self.code = Queue(clock, depth=4)  # instructions, with their beats
        self.pieces = Queue(clock, depth=8)
        self.beats, self.out = Queue(clock, depth=1, latency=0), Queue(clock, depth=STAGES + 3)
        self.ends = Queue(clock, depth=4)
        self.joined, self.averaged = Queue(clock, latency=0), Queue(clock, latency=0)  # beginning and end of MEANS
        for process in (self._accept, self._instruct, self._fetch, self._feed, self._engine, self._drain, self._end):
            clock.start(process())

    def _accept(self) -> Process:
        core = self.core
        while True:
            command = yield from core.next(Unit.VECTOR)
            core.take(Unit.VECTOR)
            yield 1
            if command.name == "MEANS":
                yield 2
            for queue in self.orders.values():
                yield from queue.put(command)

    def _lengths(self, command: Command) -> list[tuple[int, int]]:
        """Of every repetition, elements and beats."""
        f, found = command.fields, []
        elements = self.core.length(command)
        if not elements:
            return []
        for row in range(f["repeat"]):
            length = elements + (row // f["group"] if f.get("group", 0) else 0)
            found.append((length, -(-length // self.core.width)))
        return found

    def _instruct(self) -> Process:
        core, reader = self.core, self.core.readers["code"]
        word, item = core.word_bytes, CODE_BYTES
        while True:
            command = yield from self.orders["instruct"].get()
            yield 1
            if command.name == "MEANS":
                self.joined.push(None)
                yield from self.averaged.get()
                continue
            f = command.fields
            program = core.instructions[f["code"]]
            words = -(-len(program) * item // word)
            lengths = self._lengths(command)
            self.clock.start(self._code_jobs(f["code"], words, len(lengths)))
            for _, beats in lengths:
                for number, op in enumerate(program):
                    if word < item:
                        for _ in range(item // word):
                            yield from reader.word()
                            yield 1
                    elif number % (word // item) == 0:
                        yield from reader.word()
                    varies = op.beats == 1 and op.a in (Source.STREAM, Source.MEMORY) and f.get("a_beats", 0) == 0
                    yield from self.code.put((op, beats if varies else op.beats))
                    if word >= item:
                        yield 1
                if word > item and len(program) % (word // item):
                    yield 1  # the rest of the word

    def _means(self, f: Mapping[str, int]) -> Wait:
        """MEANS: an event after the other, each taken by instructions, input and output before the next."""
        core, reader, writer = self.core, self.core.readers["vector"], self.core.writers["vector"]
        beats = core.config.kv_heads * core.head
        for number, (cluster, opened, tokens) in enumerate(core.data.means):
            place = core.mean_word + cluster * beats
            yield 2
            mean = Instruction(a=Source.IMMEDIATE if opened else Source.STREAM, wait=True)
            for op, source in [(mean, place), *((Instruction(wait=True), f["keys"] + n * f["stride"]) for n in tokens)]:
                yield from self.code.put((op, beats))
                if op.a is Source.STREAM:
                    yield from self.pieces.put((beats, False))
                    yield from reader.ask(source, beats)
                yield 1
            store = Instruction(a=Source.MEMORY, function=Function.DIVIDE, to_stream=True, wait=True)
            yield from self.code.put((store, beats))
            yield from writer.ask(place, beats, number + 1 == len(core.data.means))
            for _ in range(beats):
                yield 1
                yield from self.out.get()
                yield from writer.put()
            yield 1
        for _ in range(2):
            self.averaged.push(None)

    def _code_jobs(self, place: int, words: int, count: int) -> Process:
        for _ in range(count):
            yield from self.core.readers["code"].ask(place, words)
            yield 1

    def _fetch(self) -> Process:
        reader = self.core.readers["vector"]
        while True:
            command = yield from self.orders["fetch"].get()
            yield 1
            f = command.fields
            if command.name == "MEANS":
                self.joined.push(None)
                yield from self.averaged.get()
                continue
            for row, (_, beats) in enumerate(self._lengths(command)):
                for name in ("a", "b") if f.get("b_used", 0) else ("a",):
                    count, wide = f.get(f"{name}_beats", 0) or beats, f.get(f"{name}_wide", 0)
                    yield from self.pieces.put((count, bool(wide)))
                    yield from reader.ask(f[name] + row * f.get(f"{name}_stride", 0), count << wide)
                    yield 1

    def _feed(self) -> Process:
        reader = self.core.readers["vector"]
        while True:
            beats, wide = yield from self.pieces.get()
            for _ in range(beats):
                if wide:
                    yield from reader.word()
                    yield 1
                yield from reader.words.head()
                yield from self.beats.put(None)
                while self.beats.items:
                    yield self.beats.got_bell

    def _engine(self) -> Process:
        """Beats as the engine's sequencer issues them."""
        clock, vpe = self.clock, self.core.vpe
        last = hold = -STAGES  # cycle of the last issue; first cycle in which one is held up no more
        fold = 0
        while True:
            op, beats = yield from self.code.get()
            yield 1
            rotate = op.post is Post.ROTATE
            reduces = op.post in (Post.SUM, Post.MAX, Post.LAST, Post.PACK)
            for row in range(op.rows):
                for beat in range(beats):
                    for phase in range(4 if rotate and beat % 2 == 0 else 0 if rotate else 1):
                        begin = max(clock.now, last + 1, hold)
                        if op.wait and not (row or beat or phase):
                            begin = max(begin, last + fold + STAGES)
                        yield from clock.until(begin)
                        if op.a is Source.STREAM and phase != 3:
                            yield from self.beats.head()
                            if phase != 1:
                                self.beats.pop()
                                self.core.readers["vector"].take()
                        final = beat == beats - 1
                        if op.to_stream and (final if reduces else not rotate or phase % 2):
                            yield from self.out.put(None, STAGES)
                        last = clock.now
                        fold = vpe.fold_cycles if op.post in (Post.SUM, Post.MAX) and final else 0
                        hold = last + 1 + fold + (vpe.divide_cycles if op.function is Function.DIVIDE else 0)

    def _drain(self) -> Process:
        core, writer = self.core, self.core.writers["vector"]
        n = core.width
        while True:
            command = yield from self.orders["drain"].get()
            yield 1
            f = command.fields
            if command.name == "MEANS":
                for _ in range(2):
                    yield from self.joined.get()
                yield from self._means(command.fields)
                yield from self.ends.put(bool(core.data.means))
                yield 1
                continue
            to, lengths = f.get("to", 0), self._lengths(command)
            if to == To.NONE:
                lengths = []
            for row, (elements, beats) in enumerate(lengths):
                final = row + 1 == len(lengths)
                if to == To.CODES:
                    yield from self.out.get()
                    yield from core.codes.put(final)
                    yield 1
                elif to == To.SCORES:
                    lanes = core.config.wtu_lanes
                    for beat in range(beats):
                        yield from self.out.get()
                        pieces = -(-min(n, elements - beat * n) // lanes)
                        for piece in range(pieces):
                            end = beat + 1 == beats and piece + 1 == pieces
                            yield from core.rows.put((f.get("head", 0), end, end and final and bool(f.get("flag", 0))))
                            yield 1
                else:
                    stored = f.get("out_beats", 0)
                    width = stored or -(-(self._lengths(command)[0][0] + f.get("pad", 0)) // n)
                    yield from writer.ask(f["out"] + row * f.get("out_stride", 0), width << f.get("out_wide", 0), final)
                    for beat in range(width):
                        yield 1
                        if beat < (stored or beats):
                            yield from self.out.get()
                        yield from writer.put()
                    yield 1
            yield from self.ends.put(to == To.MEMORY and bool(lengths))
            yield 1

    def _end(self) -> Process:
        core, stored = self.core, 0
        while True:
            memory = yield from self.ends.get()
            if memory:
                stored += 1
                yield from core.writers["vector"].stored.reach(stored)
            core.complete(Unit.VECTOR)
            yield 1


class Copier:
    """Copies in order between the two sides: reads run ahead of writes."""

    def __init__(self, core: CoreModel):
        self.core, self.clock = core, core.clock
        self.routes = Queue(core.clock, depth=16)
        self.written = {False: 0, True: 0}  # jobs given to each side's writer
        core.clock.start(self._move())

    def _reader(self, host: bool) -> Reader:
        return self.core.readers["host" if host else "copy"]

    def _writer(self, host: bool) -> Writer:
        return self.core.writers["host" if host else "copy"]

    def give(self, source: int, target: int, words: int, from_host: bool, to_host: bool) -> Generator[Any, None, int]:
        """A copy; ends in the cycle in which it is taken. Gives its number among those to its side."""
        yield from self.routes.put((words, from_host, to_host))
        yield from self._reader(from_host).ask(source, words)
        yield from self._writer(to_host).ask(target, words, True)
        self.written[to_host] += 1
        return self.written[to_host]

    def wait(self, number: int, to_host: bool) -> Wait:
        """Wait until a copy has been acknowledged."""
        yield from self._writer(to_host).stored.reach(number)

    def _move(self) -> Process:
        while True:
            words, from_host, to_host = yield from self.routes.get()
            for _ in range(words):
                yield from self._reader(from_host).word()
                yield from self._writer(to_host).put()
                yield 1


class Copying(UnitModel):
    """COPY and PLACE."""

    def begin(self) -> None:
        self.finals = Queue(self.clock)
        self.clock.start(self._ask())
        self.clock.start(self._end())

    def _ask(self) -> Process:
        core, copier = self.core, self.core.copier
        while True:
            command = yield from core.next(Unit.COPY)
            f = command.fields
            if command.name == "COPY":
                sides = bool(f.get("from_host", 0)), bool(f.get("to_host", 0))
                number = yield from copier.give(f["source"], f["target"], f["words"], *sides)
                self.finals.push((number, sides[1], False))
            else:
                yield 1
                unit = core.config.page_tokens * 2 * core.head
                for token, place in enumerate(core.data.places):
                    for head in range(core.config.kv_heads):
                        for value, name in enumerate(("key", "value")):
                            source = f[f"{name}s"] + token * f[f"{name}_stride"] + head * core.head
                            target = place // core.word_bytes + head * unit + value * core.head
                            number = yield from copier.give(source, target, core.head, False, False)
                            yield 1
                self.finals.push((number, False, True))
            core.take(Unit.COPY)
            yield 1

    def _end(self) -> Process:
        core = self.core
        while True:
            number, host, placed = yield from self.finals.get()
            yield from core.copier.wait(number, host)
            core.complete(Unit.COPY)
            if placed:
                core.placed.add()
            yield 1


class CacheUnit(UnitModel):
    """BEGIN, CLUSTER, FETCH and SETTLE: the KV prediction unit."""

    def begin(self) -> None:
        c = self.core.config
        self.kvmu = KvmuTiming(c.kv_heads, min(GROUP, c.kvmu_pages), max(c.hcu_clusters, c.kvmu_pages))
        self.clustered, self.fetched, self.settled = (Counter(self.clock) for _ in range(3))
        self.clock.start(self._commands())
        self.clock.start(self._tokens())

    def _commands(self) -> Process:
        core, steps, fetches = self.core, 0, 0
        while True:
            command = yield from core.next(Unit.CACHE)
            if command.name == "BEGIN":
                yield self.kvmu.begin()
            elif command.name == "CLUSTER":
                steps += 1
                yield from self.clustered.reach(steps)
            elif command.name == "SETTLE":
                yield from self.settled.reach(steps)
            else:
                fetches += 1
                yield from self.fetched.reach(fetches)
            core.take(Unit.CACHE)
            core.complete(Unit.CACHE)
            yield 1

    def _tokens(self) -> Process:
        """A step: its tokens one after the other, rows of scores, transfers."""
        core, clock, hcu = self.core, self.clock, self.core.hcu
        while True:
            last, number, clusters = False, 0, 0
            placed = 0  # when the newest token has its place
            while not last:
                last = yield from core.codes.get()
                if not number:
                    clusters = core.data.clusters
                yield 2 + hcu.token_cycles(0, clusters) + 1
                yield from clock.until(placed)
                placed = clock.now + self.kvmu.append(opens=False)  # the cluster's entry takes as long
                clusters += core.data.opened[number]
                number += 1
            yield from clock.until(placed + 1)
            self.clustered.add()
            if core.data.rows:
                yield from self._select(clusters)
                yield 4 + -(-core.data.used // self.kvmu.group)  # FETCH looks for marks
                yield from self._transfer(core.data.fetch)
                self.fetched.add()
            yield 4
            yield from self._transfer(core.data.offload)  # transfers of one kind wait for those of another
            self.settled.add()

    def _select(self, clusters: int) -> Wait:
        """Rows load while the one before is selected; a head's clusters are marked while the next one's rows are."""
        core, clock = self.core, self.clock
        yield 4 + -(-clusters // core.config.wtu_lanes)  # the clusters' counts
        selector = marking = 0  # when they are free
        ends = [0, 0]  # of the two rows before: the queue has places for so many
        for head, rows in enumerate(core.data.rows):
            for passes, levels in rows:
                yield from clock.until(ends[-2])
                end = False
                while not end:
                    _, end, _ = yield from core.rows.get()
                    yield 1
                selector = max(clock.now + 1, selector) + core.wtu.cycles(clusters, passes, levels)
                ends.append(selector)
            marking = max(marking, selector + -(-clusters // core.config.wtu_lanes) + 3)
            marking += sum(self.kvmu.select(pages) for pages in core.data.selected[head])
        yield from clock.until(marking)

    def _transfer(self, descriptors: Sequence[Descriptor]) -> Wait:
        """Descriptors, once the step's tokens are in their places, and the acknowledgement of their last."""
        core, word = self.core, self.core.word_bytes
        if not descriptors:
            return
        yield from core.placed.reach(core.steps)
        ends: dict[bool, int] = {}
        for one in descriptors:
            sides = one.source_tier != Tier.DEVICE, one.target_tier != Tier.DEVICE
            ends[sides[1]] = yield from core.copier.give(
                one.source // word, one.target // word, one.bytes // word, *sides
            )
            yield 1
        for host, number in ends.items():
            yield from core.copier.wait(number, host)
        yield 4
