"""VPE: vector processing engine of the LXE (V-Rex, section V-A, Fig. 9)."""

import enum as python_enum
from collections.abc import Sequence

from amaranth import Cat, ClockSignal, Const, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.arith.divide import Divide
from hw.arith.formats import to_bf16
from hw.common.memory import Ram
from hw.common.parts import place
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.lxe.lane import LANE, SHARED, STAGES, Lane
from hw.lxe.microcode import REDUCTIONS, SCALARS, Function, Instruction, Post, Source, instruction_layout

CODE_DEPTH = 4  # instructions that wait on chip
CARRIED = (  # fields of an instruction that go with its beats
    *("pre", "times", "function", "post", "a", "b", "a_row", "b_row", "c", "c_immediate", "immediate"),
    *("to_scalar", "to_memory", "round", "tail"),
)


class Stat(python_enum.StrEnum):
    """Counters, 32 bits each, cleared by `stat_clear`."""

    INSTRUCTIONS = "instructions"  # instructions finished issuing
    ISSUED = "issued"  # cycles in which a beat was issued
    STARVED = "starved"  # cycles in which a beat waited for `i`
    BLOCKED = "blocked"  # cycles in which a beat waited for `o`
    WAITING = "waiting"  # cycles in which a beat waited for earlier results, a division or a fold
    IDLE = "idle"  # cycles without an instruction


class VPE(wiring.Component):
    """Executes programs of micro-instructions on rows of numbers, one beat of `lanes` numbers per cycle.

    Every instruction (see `hw.lxe.microcode`) streams beats from the input, the vector memory or a scalar through the
    lanes: add or compare, multiply, function, and a reduction or rotation, each step optional. Results go to the vector
    memory, the output stream and, for reductions, to one of 8 scalar registers.

    Timing
    ------
    One beat per cycle, also from one instruction to the next, except: a DIVIDE takes `divide_cycles` more per beat; SUM
    and MAX take log2(lanes) more per row; ROTATE takes two cycles per beat; an instruction with `wait` starts `STAGES`
    cycles after the last issue before it instead of one. `cycles` is the exact count of a program when nobody stalls.
    Memory and scalar results can be read by a beat issued `STAGES` cycles later; nothing checks that: set `wait`.
    `latency` is the cycles from a beat of `i` to its beat of `o`. The input stalls for lack of a place in the output
    queue only in instructions with `to_stream`. `i.ready` depends on no input.

    Numerics: FP32, rounded to nearest even after each step; subnormals are zero. Functions and, where the instruction
    says `round`, results are BF16. Sums: each lane in the order of beats, then halves of lanes onto each other.

    Parameters
    ----------
    lanes : elements per beat, a power of two from 2
    rows : rows of the vector memory, a power of two, at least the number of scalar registers

    Members
    -------
    code : stream of instructions ; i, o : streams of beats, FP32 codes
    stat_* : see `Stat`

    Raises
    ------
    ValueError
        For sizes that cannot be built.
    """

    latency = STAGES + 2
    divide_cycles = Divide.latency

    def __init__(self, *, lanes: int, rows: int):
        for name, value, least in (("lanes", lanes, 2), ("rows", rows, SCALARS)):
            if value < least or value & (value - 1):
                raise ValueError(f"{name} = {value}: must be a power of two, at least {least}")
        self.lanes, self.rows = lanes, rows
        self.instruction = instruction_layout((rows - 1).bit_length())
        self.beat = data.ArrayLayout(32, lanes)
        super().__init__(
            {
                "code": In(stream.Signature(self.instruction)),
                "i": In(stream.Signature(self.beat)),
                "o": Out(stream.Signature(self.beat)),
                "stat_clear": In(1),
                **{f"stat_{name}": Out(32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "VPE":
        """The VPE of one core."""
        return cls(lanes=config.vpe_lanes, rows=config.vpe_rows)

    @property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return {"vpe_lane": Lane()}

    @property
    def fold_cycles(self) -> int:
        """Cycles in which the lanes' totals are combined at the end of a row."""
        return self.lanes.bit_length() - 1

    def cycles(self, program: Sequence[Instruction]) -> int:
        """Cycles from the first issue of `program` to its last, both included, when nobody stalls."""
        total, pending = 0, 0
        for k, op in enumerate(program):
            fold = self.fold_cycles * (op.post in (Post.SUM, Post.MAX))
            divide = self.divide_cycles * (op.function is Function.DIVIDE)
            beats = op.beats * (2 if op.post is Post.ROTATE else 1)
            total += pending + (STAGES - 1) * (op.wait and k > 0) + op.rows * (beats * (1 + divide) + fold)
            pending = fold + divide  # of the last beat; nobody waits for it at the end
            total -= pending
        return total

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula, as written into the generated unit's JSON."""
        return {
            "latency": self.latency,
            "cycles_per_instruction": "rows * (beats * (1 + divide + rotate) + fold) + wait",
            "divide": self.divide_cycles,
            "rotate": 1,
            "fold": self.fold_cycles,
            "wait": STAGES - 1,
        }

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row_bits = (self.rows - 1).bit_length()

        m.submodules.code_fifo = code_fifo = SyncFIFOBuffered(width=self.instruction.size, depth=CODE_DEPTH)
        m.submodules.gate = gate = CreditGate(self.beat, stages=STAGES)
        m.submodules.memory_a = memory_a = Ram(depth=self.rows, width=32, words=self.lanes)
        m.submodules.memory_b = memory_b = Ram(depth=self.rows, width=32, words=self.lanes)
        scalars = [Signal(32, name=f"scalar{k}") for k in range(SCALARS)]
        m.d.comb += [
            code_fifo.w_data.eq(self.code.payload),
            code_fifo.w_en.eq(self.code.valid),
            self.code.ready.eq(code_fifo.w_rdy),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)

        # the instruction that issues beats
        now, have = Signal(self.instruction), Signal()
        beat, row, phase = Signal(16), Signal(16), Signal(2)
        a_row, b_row, to_row = (Signal(row_bits, name=n) for n in ("a_row", "b_row", "to_row"))
        rotate, reduces, folds, divides = (Signal(name=n) for n in ("rotate", "reduces", "folds", "divides"))
        first, last, final = Signal(), Signal(), Signal()  # beat of a row; last beat of all
        m.d.comb += [
            rotate.eq(now.post == Post.ROTATE),
            folds.eq((now.post == Post.SUM) | (now.post == Post.MAX)),
            reduces.eq(Cat(now.post == post for post in REDUCTIONS).any()),
            divides.eq(now.function == Function.DIVIDE),
            first.eq(beat == 0),
            last.eq(beat + 1 == now.beats),
            final.eq(last & (row + 1 == now.rows) & (~rotate | (phase == 3))),
        ]

        # issue
        busy, issue, ready = Signal(), Signal(), Signal()
        hold = Signal(range(self.divide_cycles + self.fold_cycles + 1))
        held, needs, takes, emits, free = (Signal(name=n) for n in ("held", "needs", "takes", "emits", "free"))
        m.d.comb += [
            held.eq((hold != 0) | (now.wait & busy & first & (row == 0) & (phase == 0))),
            needs.eq((now.a == Source.STREAM) & (phase != 3)),
            takes.eq((now.a == Source.STREAM) & ~phase[0]),
            emits.eq(now.to_stream & Mux(reduces, last, ~rotate | phase[0])),
            free.eq(gate.ready | ~emits),
            ready.eq(have & ~held & free),
            issue.eq(ready & (self.i.valid | ~needs)),
            self.i.ready.eq(ready & takes),
            gate.take.eq(issue & emits),
            code_fifo.r_en.eq(~have | (issue & final)),
        ]
        with m.If(issue):
            m.d.sync += hold.eq(Mux(divides, self.divide_cycles, 0) + Mux(folds & last, self.fold_cycles, 0))
        with m.Elif(hold != 0):
            m.d.sync += hold.eq(hold - 1)
        # of a pair (x, y), ROTATE issues x cos, y sin, y cos, x sin
        step_beat, step_b = Signal(), Signal(row_bits)
        m.d.comb += [
            step_beat.eq(~rotate | phase[0]),
            step_b.eq(Mux(rotate & (phase == 1), -1, 1)),
        ]
        with m.If(issue):
            m.d.sync += [
                phase.eq(Mux(rotate, phase + 1, 0)),
                a_row.eq(a_row + (~rotate | (phase == 0) | (phase == 3))),
                to_row.eq(to_row + step_beat),
                b_row.eq(b_row + step_b),
                beat.eq(beat + step_beat),
            ]
            with m.If(last & step_beat):
                m.d.sync += [beat.eq(0), row.eq(row + 1), b_row.eq(now.b_row)]
        with m.If(code_fifo.r_en):
            fresh = data.View(self.instruction, code_fifo.r_data)
            m.d.sync += [
                now.eq(fresh),
                have.eq(code_fifo.r_rdy),
                *(counter.eq(0) for counter in (beat, row, phase)),
                *(counter.eq(start) for counter, start in zip((a_row, b_row, to_row), _rows(fresh), strict=True)),
            ]

        # operands of an issued beat, one cycle later
        arrived = Signal(self.beat, reset_less=True)
        with m.If(issue):
            m.d.sync += arrived.eq(self.i.payload)
        for memory, address in ((memory_a, a_row), (memory_b, b_row)):
            m.d.comb += [memory.r_addr.eq(address), memory.r_en.eq(issue)]

        # control moves along with the beat; stage s is `s` cycles after issue
        fields = dict(iter(self.instruction))
        control = data.StructLayout(
            {
                **{name: fields[name].shape for name in CARRIED},
                "c_value": 32,
                "phase": 2,
                "index": 5,
                "first": 1,
                "last": 1,
                "emits": 1,
                "to_row": row_bits,
            }
        )
        valid = [Signal(name=f"valid{s}") for s in range(STAGES + 1)]
        stage = [Signal(control, name=f"stage{s}", reset_less=s > 0) for s in range(STAGES + 1)]
        m.d.comb += valid[0].eq(issue)
        m.d.comb += [stage[0][name].eq(now[name]) for name in CARRIED]
        own = {"phase": phase, "index": beat[:5], "first": first, "last": last, "emits": emits, "to_row": to_row}
        m.d.comb += [stage[0][name].eq(value) for name, value in own.items()]

        # a division stays in stage 3, a fold in stage 6
        dividing = Signal(range(self.divide_cycles + 1))
        stay = Signal()
        m.d.comb += stay.eq(valid[3] & (stage[3].function == Function.DIVIDE) & (dividing != self.divide_cycles))
        m.d.sync += dividing.eq(Mux(stay, dividing + 1, 0))
        fold = Signal(range(self.fold_cycles + 1))  # steps left
        entering = Signal()
        folding = valid[5] & stage[5].last & ((stage[5].post == Post.SUM) | (stage[5].post == Post.MAX))
        m.d.sync += entering.eq(valid[5])
        moves = {3: ~stay, STAGES: fold == 0}
        for s in range(1, STAGES + 1):
            following = Signal(control, name=f"next{s}")
            m.d.comb += following.eq(stage[s - 1])
            if s == 2:  # scalars are read in stage 1
                value = Mux(stage[1].c_immediate, stage[1].immediate, _select(scalars, stage[1].c))
                m.d.comb += following.c_value.eq(value)
            with m.If(moves.get(s, 1)):
                m.d.sync += [valid[s].eq(valid[s - 1] & ~(stay & (s == 4))), stage[s].eq(following)]
        with m.If(fold != 0):
            m.d.sync += fold.eq(fold - 1)
        with m.Elif(folding):
            m.d.sync += fold.eq(self.fold_cycles)
        m.d.comb += busy.eq(Cat(valid[1:6]).any() | (fold != 0))

        # lanes
        one, two, three, five, six = stage[1], stage[2], stage[3], stage[5], stage[6]
        same = {
            name: Mux(one[name] == Source.SCALAR, _select(scalars, one[f"{name}_row"][:3]), one.immediate)
            for name in ("a", "b")
        }
        turning = five.post == Post.ROTATE
        use = _tail_mask(m, "use", five, self.lanes)
        totals = [Signal(32, name=f"total{k}") for k in range(self.lanes)]
        fold_step = Signal(range(self.fold_cycles + 1))
        m.d.comb += fold_step.eq(self.fold_cycles - fold)
        active = fold != 0
        post = Mux(active, six.post, five.post)
        lanes = Signal(SHARED)
        shared = {
            "same_a": same["a"],
            "same_b": same["b"],
            "a_stream": one.a == Source.STREAM,
            "a_memory": one.a == Source.MEMORY,
            "a_kept": one.phase == 3,
            "keep": valid[1] & (one.post == Post.ROTATE) & (one.phase == 0),
            "b_memory": one.b == Source.MEMORY,
            "pre": one.pre,
            "times": two.times,
            "c": two.c_value,
            "hold": stay,
            "divide": valid[3] & (dividing == 0),
            "divisor": three.c_value,
            "function": three.function,
            "silu": stage[4].function == Function.SILU,
            "accumulate": active | (valid[5] & (five.post != Post.NONE)),
            "load": ~active & Mux(turning, ~five.phase[0], five.first),
            "subtract": ~active & turning & (five.phase == 1),
            "maximum": post == Post.MAX,
            "fold": active,
            "from_total": six.post == Post.ROTATE,
            "round": six.round,
        }
        for name, value in shared.items():
            m.d.comb += lanes[name].eq(value)
        results = []
        for k in range(self.lanes):
            other = Signal(32, name=f"other{k}")
            with m.Switch(fold_step):
                for step in range(self.fold_cycles):
                    half = self.lanes >> (step + 1)
                    if k < half:
                        with m.Case(step):
                            m.d.comb += other.eq(totals[k + half])
            out = place(
                m,
                "vpe_lane",
                f"lane{k}",
                LANE,
                clk=ClockSignal(),
                rst=ResetSignal(),
                shared=Value.cast(lanes),
                stream=arrived[k],
                memory_a=memory_a.r_data[k],
                memory_b=memory_b.r_data[k],
                use=use[k],
                other=other,
            )
            m.d.comb += totals[k].eq(out["total"])
            results.append(out["y"])

        # packed signs
        packed, bits = Signal(32), Signal(self.lanes)
        positive = Cat(~word[31] & word[23:31].any() & ~(word[23:31].all() & word[:23].any()) for word in results)
        m.d.comb += bits.eq(positive & _tail_mask(m, "packs", six, self.lanes))
        with m.If(valid[6] & (six.post == Post.PACK)):
            before = Signal(32)
            m.d.sync += before.eq(packed)
            m.d.comb += packed.eq(Mux(six.first, 0, before))
            with m.Switch(six.index):
                for k in range(-(-32 // self.lanes)):
                    with m.Case(k):
                        low = k * self.lanes
                        m.d.comb += packed[low : min(32, low + self.lanes)].eq(bits)

        # stage 6: elements first, the scalar when the fold is done
        scalar, narrow = Signal(32), Signal(32)
        done = Signal()
        sums = (six.post == Post.SUM) | (six.post == Post.MAX)
        m.d.comb += [
            done.eq(valid[6] & (fold == 0)),
            scalar.eq(Mux(six.post == Post.PACK, packed, Mux(sums, totals[0], results[0]))),
            narrow.eq(Mux(six.round, Cat(Const(0, 16), to_bf16(m, "scalar_rounded", scalar)), scalar)),
            gate.done.eq(done & six.emits),
        ]
        reducing = Signal()
        m.d.comb += reducing.eq(Cat(six.post == post for post in REDUCTIONS).any())
        for k in range(self.lanes):
            m.d.comb += gate.result[k].eq(Mux(reducing, narrow if k == 0 else 0, results[k]))
            for memory in (memory_a, memory_b):
                m.d.comb += memory.w_data[k].eq(results[k])
        writes = Signal()
        m.d.comb += writes.eq(entering & six.to_memory & ((six.post != Post.ROTATE) | six.phase[0]))
        for memory in (memory_a, memory_b):
            m.d.comb += [memory.w_addr.eq(six.to_row), memory.w_mask.eq(writes.replicate(self.lanes))]
        with m.If(done & reducing & six.last), m.Switch(six.to_scalar):
            for k, register in enumerate(scalars):
                with m.Case(k):
                    m.d.sync += register.eq(narrow)

        events = {
            Stat.INSTRUCTIONS: issue & final,
            Stat.ISSUED: issue,
            Stat.STARVED: ready & needs & ~self.i.valid,
            Stat.BLOCKED: have & ~held & ~free,
            Stat.WAITING: have & held,
            Stat.IDLE: ~have,
        }
        for stat, event in events.items():
            counter = getattr(self, f"stat_{stat}")
            m.d.sync += counter.eq(Mux(self.stat_clear, 0, counter + event))
        return m


def _rows(instruction: data.View) -> tuple[Value, Value, Value]:
    return instruction.a_row, instruction.b_row, instruction.to_row


def _select(words: Sequence[Signal], index: Value) -> Value:
    """`words[index]`."""
    if len(words) == 1:
        return words[0]
    half = len(words) // 2
    return Mux(index[-1], _select(words[half:], index[:-1]), _select(words[:half], index[:-1]))


def _tail_mask(m: Module, name: str, control: data.View, lanes: int) -> Value:
    """Which lanes take part in a reduction: all, but in a row's last beat the first `tail`."""
    everyone, mask = Signal(name=f"{name}_everyone"), Signal(lanes, name=name)
    m.d.comb += [
        everyone.eq(~control.last | (control.tail == 0)),
        mask.eq(Cat(everyone | (control.tail > k) for k in range(lanes))),
    ]
    return mask
