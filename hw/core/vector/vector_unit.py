"""The VECTOR unit: the vector engine with its code, its input and its output."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_read, words_written
from hw.axi.gearbox import Gearbox
from hw.axi.ports import JOB, WORD_BITS
from hw.common.fork import fork
from hw.config import Config
from hw.core.isa import BY_NAME, Destination
from hw.core.lengths import LENGTH_BITS, length, lengths_layout
from hw.core.retrieval_unit import HASH_CODE, MEAN_UPDATE, MeanOp
from hw.core.sequencer import COMMAND, fields, view
from hw.lxe.microcode import Function, Instruction, Pre, Source, Times, instruction_layout
from hw.lxe.vpe import VPE

CODE_BYTES = 16  # of an instruction in memory
MAX_INPUT_JOBS = 8  # pieces of input on their way
MAX_UNACKNOWLEDGED = 4  # commands of which everything has left, and memory has not acknowledged it


def assemble(program: Sequence[Instruction], rows: int, *, varies: bool = False) -> bytes:
    """A program of the vector engine as it stands in memory, for a vector memory of `rows` rows.

    varies : instructions that are as long as the row of their command are given with 0 beats
    """
    layout = instruction_layout((rows - 1).bit_length())
    code = b""
    for op in program:
        word = layout.const(op.fields()).as_bits()
        if varies and op.a in (Source.STREAM, Source.MEMORY):
            for name in ("beats", "tail"):
                word &= ~(0xFFFF << layout[name].offset)
        code += word.to_bytes(CODE_BYTES, "little")
    return code


def to_fp32(m: Module, name: str, count: Value) -> Signal:
    """FP32 code of a whole number."""
    code = Signal(32, name=name)
    width = len(count)
    m.d.comb += code.eq(0)
    for top in range(width):
        with m.If(count[top]):
            m.d.comb += code.eq(Cat(Const(0, 23 - top), count[:top], Const(127 + top, 8)))
    return code


class VectorUnit(wiring.Component):
    """Executes VECTOR and MEANS: one part gives code, one input, one takes output; each goes on by itself.

    MEANS needs no code from memory: each event of a changed mean is an instruction, a piece of input, or output. A
    command is complete when memory has acknowledged its output.

    Timing: as the engine's; the parts of a command start two cycles after it came.

    Members
    -------
    i : stream of COMMAND ; complete : one of them is ; lengths : run-time lengths
    code_job, code_words, in_job, in_words : of two readers ; out_job, out_words, stored : of a writer
    codes, scores : to the KV prediction unit ; members, recall : events of the step's means
    mean_keys_base : word of the representative keys
    stat_busy : the engine issues a beat
    """

    def __init__(self, config: Config, score: data.StructLayout):
        self.config, self.score = config, score
        self.engine = VPE.from_config(config)
        self.width = config.vpe_lanes
        self.word = 16 * self.width
        self.dimension = config.kv_heads * config.head_dim // self.width  # words of a key of all heads
        reading, writing = stream.Signature(words_read(self.word)), stream.Signature(words_written(self.word))
        jobs = stream.Signature(JOB)
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "lengths": In(lengths_layout(config.kv_heads)),
                "code_job": Out(jobs),
                "code_words": In(reading),
                "in_job": Out(jobs),
                "in_words": In(reading),
                "out_job": Out(jobs),
                "out_words": Out(writing),
                "stored": In(1),
                "codes": Out(stream.Signature(HASH_CODE)),
                "scores": Out(stream.Signature(score)),
                "members": In(stream.Signature(MEAN_UPDATE)),
                "recall": Out(1),
                "mean_keys_base": In(WORD_BITS),
                "stat_busy": Out(1),
            }
        )
        # a command with its lengths: elements of a row, its beats with zeros behind
        self.order = data.StructLayout(
            {
                **{f.name: f.bits for f in BY_NAME["VECTOR"].fields},
                "means": 1,
                "keys": WORD_BITS,
                "key_stride": 24,
                "elements": LENGTH_BITS,
                "padded": LENGTH_BITS,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.engine = engine = self.engine
        shift = self.width.bit_length() - 1
        given = view(self.i.payload, "VECTOR")
        means = view(self.i.payload, "MEANS")
        is_means = self.i.payload.opcode == BY_NAME["MEANS"].code
        elements = length(m, "length", self.lengths, given, self.config.kv_heads)
        order, valid = Signal(self.order), Signal()
        resolved = {
            **{f.name: given[f.name] for f in BY_NAME["VECTOR"].fields},
            "repeat": Mux(~is_means & (elements == 0), 0, given.repeat),
            "means": is_means,
            "keys": means.keys,
            "key_stride": means.stride,
            "elements": elements,
            "padded": (elements + given.pad + (self.width - 1)) >> shift,
        }
        source = stream.Signature(self.order).create(path=("order",))
        parts = [stream.Signature(1).create(path=(name,)) for name in ("instruct", "fetch", "drain")]
        fork(m, "order", source, parts)
        m.d.comb += [source.valid.eq(valid), self.i.ready.eq(~valid | source.ready)]
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), *(order[name].eq(value) for name, value in resolved.items())]
        m.d.comb += [self.recall.eq(valid & source.ready & order.means), self.stat_busy.eq(engine.o.valid)]
        events = [stream.Signature(MEAN_UPDATE).create(path=(f"event{n}",)) for n in range(3)]
        fork(m, "events", self.members, events)
        m.d.comb += [event.payload.eq(self.members.payload) for event in events]
        self._instruct(m, parts[0], order, events[0])
        self._fetch(m, parts[1], order, events[1])
        self._drain(m, parts[2], order, events[2])
        return m

    def _begin(self, m: Module, name: str, source: stream.Interface, order: data.View) -> tuple[Signal, Signal]:
        """The command that a part works on, and whether there is one."""
        now, busy = Signal(self.order, name=f"{name}_now"), Signal(name=f"{name}_busy")
        m.d.comb += source.ready.eq(~busy)
        with m.If(source.valid & source.ready):
            m.d.sync += [now.eq(order), busy.eq(1)]
        return now, busy

    def _length(
        self, m: Module, name: str, source: stream.Interface, now: data.View, ended: Value
    ) -> tuple[Value, Value]:
        """Beats of the row at hand and elements of its last beat; `ended`: go on to the next row."""
        rows, beats = Signal(8, name=f"{name}_rows"), Signal(LENGTH_BITS, name=f"{name}_beats")
        shift = self.width.bit_length() - 1
        m.d.comb += beats.eq((now.elements + (self.width - 1)) >> shift)
        with m.If(source.valid & source.ready):
            m.d.sync += rows.eq(0)
        with m.Elif(ended & (now.group != 0)):
            m.d.sync += rows.eq(rows + 1)
            with m.If(rows + 1 == now.group):
                m.d.sync += [rows.eq(0), now.elements.eq(now.elements + 1)]
        return beats, now.elements[:shift]

    def _instruct(self, m: Module, source: stream.Interface, order: data.View, event: stream.Interface) -> None:
        """Instructions: read once for every repetition; the length of the command for those without one."""
        engine = self.engine
        now, busy = self._begin(m, "instruct", source, order)
        m.submodules.gear = gear = Gearbox(word=self.word, item=8 * CODE_BYTES)
        wiring.connect(m, wiring.flipped(self.code_words), gear.i)
        per_word = max(1, self.word // (8 * CODE_BYTES))
        words = max(1, 8 * CODE_BYTES // self.word)
        shift = per_word.bit_length() - 1
        asked, given, place = Signal(16), Signal(16), Signal(8)  # repetitions asked for, given; instruction
        last, rest = Signal(), Signal()
        read = data.View(engine.instruction, gear.o.payload.as_value()[: engine.instruction.size])
        made, ended = Signal(engine.instruction), Signal()
        beats, tail = self._length(m, "instruct", source, now, ended)
        m.d.comb += [
            last.eq(place + 1 == now.instructions),
            rest.eq((now.instructions[:shift] if shift else Const(0, 1)) != 0),
            self.code_job.valid.eq(busy & ~now.means & (asked != now.repeat)),
            self.code_job.payload.address.eq(now.code),
            self.code_job.payload.count.eq((((now.instructions + (per_word - 1)) >> shift) * words)[:24]),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [counter.eq(0) for counter in (asked, given, place)]
        with m.If(self.code_job.valid & self.code_job.ready):
            m.d.sync += asked.eq(asked + 1)
        # of a mean: times its tokens, plus each new key, by its tokens
        what, count = event.payload, to_fp32(m, "count_code", event.payload.count)
        fixed = {"wait": 1, "beats": self.dimension, "to_memory": 1}
        mean = Instruction(times=Times.C, c_immediate=True)
        key = Instruction(pre=Pre.ADD, b=Source.MEMORY)
        store = Instruction(a=Source.MEMORY, function=Function.DIVIDE, c_immediate=True, to_stream=True)

        def instruction(op: Instruction, **changes: int) -> list:
            return [made[name].eq(value) for name, value in {**op.fields(), **fixed, **changes}.items()]

        flush = Signal()
        m.d.comb += gear.flush.eq(flush)
        with m.If(now.means):
            m.d.comb += [engine.code.valid.eq(busy & event.valid), event.ready.eq(busy & engine.code.ready)]
            with m.Switch(what.part):
                with m.Case(MeanOp.MEAN):
                    m.d.comb += instruction(mean)
                    m.d.comb += made.immediate.eq(Mux(what.opened, 0, count))
                    m.d.comb += made.a.eq(Mux(what.opened, Source.IMMEDIATE, Source.STREAM))
                with m.Case(MeanOp.KEY):
                    m.d.comb += instruction(key)
                with m.Default():
                    m.d.comb += instruction(store, to_memory=0)
                    m.d.comb += made.immediate.eq(count)
            with m.If(event.valid & event.ready & (what.part == MeanOp.STORE) & what.last):
                m.d.sync += busy.eq(0)
        with m.Else():
            m.d.comb += [
                made.eq(read),
                engine.code.valid.eq(busy & (given != now.repeat) & gear.o.valid & ~flush),
                gear.o.ready.eq(busy & (given != now.repeat) & engine.code.ready),
            ]
            with m.If(read.beats == 0):
                m.d.comb += [made.beats.eq(beats), made.tail.eq(tail)]
            with m.If(engine.code.valid & engine.code.ready):
                m.d.sync += [place.eq(Mux(last, 0, place + 1)), given.eq(given + last)]
                with m.If(last):
                    m.d.comb += ended.eq(1)
                    m.d.sync += flush.eq(rest)
            with m.If(busy & (given == now.repeat)):
                m.d.sync += busy.eq(0)
        with m.If(flush):
            m.d.sync += flush.eq(0)
        m.d.comb += engine.code.payload.eq(made)

    def _fetch(self, m: Module, source: stream.Interface, order: data.View, event: stream.Interface) -> None:
        """Input: jobs in the order of the engine's beats, and words as beats of FP32 codes."""
        engine, word = self.engine, self.word
        now, busy = self._begin(m, "fetch", source, order)
        m.submodules.pieces = pieces = SyncFIFOBuffered(width=1, depth=MAX_INPUT_JOBS)
        count, second, ended = Signal(16), Signal(), Signal()
        length, _ = self._length(m, "fetch", source, now, ended)
        a_at, b_at, wide, what = Signal(WORD_BITS), Signal(WORD_BITS), Signal(), event.payload
        job, go = self.in_job, Signal()
        m.d.comb += [pieces.w_data.eq(wide), job.valid.eq(go & pieces.w_rdy), pieces.w_en.eq(job.valid & job.ready)]
        with m.If(source.valid & source.ready):
            m.d.sync += [count.eq(0), second.eq(0), a_at.eq(order.a), b_at.eq(order.b)]
        with m.If(now.means):
            reads = Mux(what.part == MeanOp.MEAN, ~what.opened, what.part == MeanOp.KEY)
            mean = self.mean_keys_base + what.cluster * self.dimension
            m.d.comb += [
                go.eq(busy & event.valid & reads),
                job.payload.address.eq(
                    Mux(what.part == MeanOp.MEAN, mean, now.keys + what.token * now.key_stride)[:WORD_BITS]
                ),
                job.payload.count.eq(self.dimension),
                event.ready.eq(busy & (~reads | (job.ready & pieces.w_rdy))),
            ]
            with m.If(event.valid & event.ready & (what.part == MeanOp.STORE) & what.last):
                m.d.sync += busy.eq(0)
        with m.Else():
            beats, known = Signal(LENGTH_BITS), Mux(second, now.b_beats, now.a_beats)
            m.d.comb += [
                beats.eq(Mux(known == 0, length, known)),
                go.eq(busy & (count != now.repeat)),
                wide.eq(Mux(second, now.b_wide, now.a_wide)),
                job.payload.address.eq(Mux(second, b_at, a_at)),
                job.payload.count.eq(Mux(wide, beats << 1, beats)),
            ]
            with m.If(job.valid & job.ready):
                with m.If(~second):
                    m.d.sync += a_at.eq((a_at + now.a_stride)[:WORD_BITS])
                with m.Else():
                    m.d.sync += b_at.eq((b_at + now.b_stride)[:WORD_BITS])
                with m.If(~second & now.b_used):
                    m.d.sync += second.eq(1)
                with m.Else():
                    m.d.comb += ended.eq(1)
                    m.d.sync += [second.eq(0), count.eq(count + 1)]
            with m.If(busy & (count == now.repeat)):
                m.d.sync += busy.eq(0)

        held, upper, words = Signal(word), Signal(), self.in_words
        spread = Cat(Cat(Const(0, 16), words.payload.data.word_select(k, 16)) for k in range(self.width))
        two, whole = pieces.r_data, Signal()
        m.d.comb += [
            whole.eq(pieces.r_rdy & words.valid & (~two | upper)),
            engine.i.valid.eq(whole),
            engine.i.payload.as_value().eq(Mux(two, Cat(held, words.payload.data), spread)),
            words.ready.eq(pieces.r_rdy & ((two & ~upper) | engine.i.ready)),
            pieces.r_en.eq(words.valid & words.ready & words.payload.last),
        ]
        with m.If(words.valid & words.ready & two):
            m.d.sync += [held.eq(words.payload.data), upper.eq(~upper)]

    def _drain(self, m: Module, source: stream.Interface, order: data.View, event: stream.Interface) -> None:
        """Output: to memory with zeros behind, as hash codes, or as rows of scores."""
        engine, word, width = self.engine, self.word, self.width
        now, busy = self._begin(m, "drain", source, order)
        m.submodules.ends = ends = SyncFIFOBuffered(
            width=1, depth=MAX_UNACKNOWLEDGED
        )  # whether memory has to acknowledge
        row, beat, address, upper = Signal(16), Signal(LENGTH_BITS), Signal(WORD_BITS), Signal()
        y = engine.o.payload
        lanes = [y[k] for k in range(width)]
        varies, inside, valid_beats, all_beats = Signal(), Signal(), Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        wide, asked, last_row, done = Signal(), Signal(), Signal(), Signal()
        storing, due, what, ended = Signal(), Signal(), event.payload, Signal()
        beats, _ = self._length(m, "drain", source, now, ended)
        m.d.comb += [
            varies.eq((now.out_beats == 0) & ~now.means),
            valid_beats.eq(Mux(now.means, self.dimension, Mux(varies, beats, now.out_beats))),
            all_beats.eq(Mux(varies, now.padded, valid_beats)),
            inside.eq(beat < valid_beats),
            wide.eq(now.out_wide & ~now.means),
            last_row.eq(Mux(now.means, what.last, row + 1 == now.repeat)),
        ]
        with m.If(source.valid & source.ready):
            m.d.sync += [row.eq(0), beat.eq(0), address.eq(order.out), asked.eq(0)]

        # elements beyond the length are zero
        keep = [~varies | ((beat << (width.bit_length() - 1)) + k < now.elements) for k in range(width)]
        kept = [Mux(bit & inside, lane, 0) for bit, lane in zip(keep, lanes, strict=True)]
        full, narrow = Cat(*kept), Cat(lane[16:] for lane in kept)
        ready, row_ends, word_goes = Signal(), Signal(), Signal()
        m.d.comb += [
            self.out_job.payload.address.eq(
                Mux(now.means, self.mean_keys_base + what.cluster * self.dimension, address)[:WORD_BITS]
            ),
            self.out_job.payload.count.eq(Mux(wide, all_beats << 1, all_beats)),
            self.out_job.payload.last.eq(last_row),
            self.out_words.payload.data.eq(Mux(wide, Mux(upper, full[word:], full[:word]), narrow)),
            self.out_words.payload.strobe.eq(-1),
        ]
        to = Mux(now.means, Destination.MEMORY, now.destination)
        m.d.comb += done.eq(~now.means & (row == now.repeat))
        m.d.comb += [
            due.eq(~now.means | (event.valid & (what.part == MeanOp.STORE))),
            storing.eq(busy & (to == Destination.MEMORY) & ~done & due),
            self.out_job.valid.eq(storing & ~asked),
            self.out_words.valid.eq(storing & asked & (engine.o.valid | ~inside)),
            word_goes.eq(self.out_words.valid & self.out_words.ready),
            ready.eq(word_goes & (upper | ~wide)),
            row_ends.eq(ready & (beat + 1 == all_beats)),
        ]
        with m.If(self.out_job.valid & self.out_job.ready):
            m.d.sync += asked.eq(1)
        with m.If(word_goes & wide):
            m.d.sync += upper.eq(~upper)
        with m.If(ready):
            m.d.sync += beat.eq(beat + 1)
        with m.If(row_ends):
            m.d.comb += ended.eq(1)
            m.d.sync += [beat.eq(0), row.eq(row + 1), address.eq((address + now.out_stride)[:WORD_BITS]), asked.eq(0)]
        m.d.comb += event.ready.eq(busy & now.means & ((what.part != MeanOp.STORE) | row_ends))

        # hash codes
        code_goes, score_goes, score_row = Signal(), Signal(), Signal()
        m.d.comb += [
            self.codes.valid.eq(busy & (to == Destination.CODES) & ~done & engine.o.valid),
            self.codes.payload.hash.eq(lanes[0]),
            self.codes.payload.query.eq(now.flag),
            self.codes.payload.last.eq(last_row),
            code_goes.eq(self.codes.valid & self.codes.ready),
        ]
        with m.If(code_goes):
            m.d.sync += row.eq(row + 1)

        # scores: a beat in pieces of the threshold unit's width
        piece = self.config.wtu_lanes
        pieces = width // piece
        part, start = Signal(range(max(2, pieces))), Signal(LENGTH_BITS + 1)
        words = Cat(lane[16:] for lane in lanes)
        m.d.comb += [
            start.eq((beat << (width.bit_length() - 1)) + part * piece),
            score_row.eq(start + piece >= now.elements),
            self.scores.valid.eq(busy & (to == Destination.SCORES) & ~done & engine.o.valid),
            Value.cast(self.scores.payload.words).eq(words.word_select(part, 16 * piece)),
            self.scores.payload.used.eq(Mux(score_row, now.elements - start, piece)),
            self.scores.payload.last.eq(score_row),
            self.scores.payload.join.eq(~last_row),
            self.scores.payload.head.eq(now.head[: len(self.scores.payload.head)]),
            self.scores.payload.final.eq(last_row & now.flag),
            score_goes.eq(self.scores.valid & self.scores.ready),
        ]
        beat_goes = score_goes & ((part == pieces - 1) | score_row)
        with m.If(score_goes):
            m.d.sync += part.eq(part + 1)
        with m.If(beat_goes):
            m.d.sync += [part.eq(0), beat.eq(beat + 1)]
            with m.If(score_row):
                m.d.comb += ended.eq(1)
                m.d.sync += [beat.eq(0), row.eq(row + 1)]
        m.d.comb += engine.o.ready.eq(
            Mux(to == Destination.CODES, code_goes, Mux(to == Destination.SCORES, beat_goes, ready & inside))
        )
        # without output the command ends with its last instruction: the next one of the unit comes behind it anyway
        finished, stored = Signal(), Signal(range(MAX_UNACKNOWLEDGED + 2))
        with m.If(now.means & row_ends & what.last):
            m.d.sync += finished.eq(1)
        m.d.comb += [
            ends.w_en.eq(busy & Mux(now.means, finished, (to == Destination.NONE) | done)),
            ends.w_data.eq((to == Destination.MEMORY) & (now.means | (now.repeat != 0))),
            self.complete.eq(ends.r_rdy & (~ends.r_data | (stored != 0))),
            ends.r_en.eq(self.complete),
        ]
        m.d.sync += stored.eq((stored + self.stored - (self.complete & ends.r_data))[: len(stored)])
        with m.If(ends.w_en & ends.w_rdy):
            m.d.sync += [busy.eq(0), finished.eq(0)]
        assert fields("VECTOR").size <= COMMAND["body"].width
