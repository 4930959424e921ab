"""Cycle model of the VECTOR unit."""

# mypy: disable-error-code="arg-type"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from collections.abc import Mapping

from hw.core.isa import Destination, ExecUnit, Fit
from hw.core.vector.command import INSTRUCTION_BYTES
from hw.lxe.microcode import Function, Instruction, Post, Source
from hw.lxe.vpe_lane import STAGES
from sw_model.cycles.processes import Process, Queue, Wait
from sw_model.cycles.state import IssuedCommand
from sw_model.cycles.unit import UnitModel


class VectorUnitModel(UnitModel):
    """Commands VECTOR and MEANS: processes for instructions, input, engine and output."""

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
            command = yield from core.next(ExecUnit.VECTOR)
            core.accept(ExecUnit.VECTOR)
            yield 1
            if command.name == "MEANS":
                yield 2
            for queue in self.orders.values():
                yield from queue.put(command)

    def _lengths(self, command: IssuedCommand) -> list[tuple[int, int]]:
        """Elements and beats of every repetition."""
        f, jobs = command.fields, []
        elements = self.core.length(command)
        if not elements or not self._meets_fit(f, elements):
            return []
        for row in range(f.get("repeat", 0)):
            length = elements + (row // f["group"] if f.get("group", 0) else 0)
            jobs.append((length, -(-length // self.core.width)))
        return jobs

    def _meets_fit(self, f: Mapping[str, int], elements: int) -> bool:
        """Whether the condition `fit` of a command is met."""
        fits = elements + f.get("pad", 0) <= self.core.config.vpe_rows * self.core.width
        return {Fit.ANY: True, Fit.FITS: fits, Fit.EXCEEDS: not fits}[Fit(f.get("fit", 0))]

    def _instruct(self) -> Process:
        core, reader = self.core, self.core.readers["code"]
        word, item = core.word_bytes, INSTRUCTION_BYTES
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

    def _means(self, command: IssuedCommand) -> Wait:
        """MEANS: one event after the other; instructions, input and output of an event finish before the next."""
        core, reader, writer = self.core, self.core.readers["vector"], self.core.writers["vector"]
        beats, f = core.config.kv_heads * core.head, command.fields
        means = command.data.means(command.tokens)
        for number, (cluster, opened, tokens) in enumerate(means):
            word_address = command.data.mean_keys // core.word_bytes + cluster * beats
            yield 2
            mean = Instruction(a=Source.IMMEDIATE if opened else Source.STREAM, wait=True)
            for op, source in [
                (mean, word_address),
                *((Instruction(wait=True), f["keys"] + n * f["stride"]) for n in tokens),
            ]:
                yield from self.code.put((op, beats))
                if op.a is Source.STREAM:
                    yield from self.pieces.put((beats, False))
                    yield from reader.request(source, beats)
                yield 1
            store = Instruction(a=Source.MEMORY, function=Function.DIVIDE, to_stream=True, wait=True)
            yield from self.code.put((store, beats))
            yield from writer.request(word_address, beats, number + 1 == len(means))
            for _ in range(beats):
                yield 1
                yield from self.out.get()
                yield from writer.put()
            yield 1
        for _ in range(2):
            self.averaged.push(None)

    def _code_jobs(self, word_address: int, words: int, count: int) -> Process:
        for _ in range(count):
            yield from self.core.readers["code"].request(word_address, words)
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
                for name in "a" * (1 + f.get("a_again", 0)) + "b" * f.get("b_used", 0):
                    count, wide = f.get(f"{name}_beats", 0) or beats, f.get(f"{name}_wide", 0)
                    yield from self.pieces.put((count, bool(wide)))
                    yield from reader.request(f[name] + row * f.get(f"{name}_stride", 0), count << wide)
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
                    yield self.beats.get_bell

    def _engine(self) -> Process:
        """Beats in the order and cycles in which the sequencer of the engine issues them."""
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
                                self.core.readers["vector"].read()
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
                yield from self._means(command)
                yield from self.ends.put(bool(command.tokens))
                yield 1
                continue
            to, lengths = f.get("destination", 0), self._lengths(command)
            if to == Destination.NONE:
                lengths = []
            for row, (_, beats) in enumerate(lengths):
                final = row + 1 == len(lengths)
                if to == Destination.CODES:
                    yield from self.out.get()
                    yield from core.codes.put(final)
                    yield 1
                else:
                    stored = f.get("out_beats", 0)
                    width, wide = stored or -(-(lengths[0][0] + f.get("pad", 0)) // n), f.get("out_wide", 0)
                    yield from writer.request(f["out"] + row * f.get("out_stride", 0), width << wide, final)
                    for beat in range(width):
                        yield 1
                        if beat < (stored or beats):
                            yield from self.out.head()
                        yield from writer.put()
                        if wide:
                            yield 1
                            yield from writer.put()
                        if beat < (stored or beats):
                            self.out.pop()
                    yield 1
            yield from self.ends.put(to == Destination.MEMORY and bool(lengths))
            yield 1

    def _end(self) -> Process:
        core, stored = self.core, 0
        while True:
            memory = yield from self.ends.get()
            if memory:
                stored += 1
                yield from core.writers["vector"].stored.reach(stored)
            core.complete(ExecUnit.VECTOR)
            yield 1
