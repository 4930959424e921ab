"""VPE: vector processing engine of the LXE (V-Rex, section V-A, Fig. 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from amaranth import Cat, ClockSignal, Const, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.divide import Divide
from hw.arith.formats import to_bf16
from hw.common.counters import count
from hw.common.memory import Ram
from hw.common.parts import place
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.lxe.lane import LANE, SHARED, STAGES, Lane
from hw.lxe.microcode import REDUCTIONS, SCALARS, Function, Instruction, Post, Source, instruction_layout
from hw.lxe.sequencer import Sequencer, Stat, folds


@dataclass(frozen=True)
class _Flight:
    """The beats between issue and result, by stage: stage s is `s` cycles after issue.

    valid, stage : whether there is a beat, and its control
    stay, divide : stages up to 3 wait for a division, which begins
    fold : steps left of a fold, in which totals are combined ; entering : the beat is new in stage 6
    busy : some result has not arrived yet
    """

    valid: Sequence[Signal]
    stage: Sequence[data.View]
    stay: Value
    divide: Value
    fold: Value
    entering: Value
    busy: Value


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

    @cached_property
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
        m.submodules.sequencer = sequencer = Sequencer(
            self.instruction, divide_cycles=self.divide_cycles, fold_cycles=self.fold_cycles
        )
        m.submodules.gate = gate = CreditGate(self.beat, stages=STAGES)
        m.submodules.memory_a = memory_a = Ram(depth=self.rows, width=32, words=self.lanes)
        m.submodules.memory_b = memory_b = Ram(depth=self.rows, width=32, words=self.lanes)
        scalars = [Signal(32, name=f"scalar{k}") for k in range(SCALARS)]
        wiring.connect(m, wiring.flipped(self.code), sequencer.code)
        wiring.connect(m, wiring.flipped(self.o), gate.o)
        flight = self._carry(m, sequencer, scalars)
        m.d.comb += [
            sequencer.offered.eq(self.i.valid),
            sequencer.free.eq(gate.ready),
            sequencer.busy.eq(flight.busy),
            self.i.ready.eq(sequencer.takes),
            gate.take.eq(sequencer.sends),
        ]

        # operands of an issued beat, one cycle later
        arrived = Signal(self.beat, reset_less=True)
        with m.If(sequencer.issue):
            m.d.sync += arrived.eq(self.i.payload)
        for memory, address in ((memory_a, sequencer.a_row), (memory_b, sequencer.b_row)):
            m.d.comb += [memory.r_addr.eq(address), memory.r_en.eq(sequencer.issue)]
        results, totals = self._lanes(m, flight, scalars, (arrived, memory_a.r_data, memory_b.r_data))

        # stage 6: elements first, the scalar when the fold is done
        six = flight.stage[6]
        scalar, done, reducing, writes = Signal(32), Signal(), Signal(), Signal()
        found = Mux(six.post == Post.PACK, self._packed(m, flight, results), Mux(folds(six), totals[0], results[0]))
        m.d.comb += [
            scalar.eq(Mux(six.round, Cat(Const(0, 16), to_bf16(m, "scalar_rounded", found)), found)),
            done.eq(flight.valid[6] & (flight.fold == 0)),
            gate.done.eq(done & six.emits),
            reducing.eq(Cat(six.post == post for post in REDUCTIONS).any()),
            writes.eq(flight.entering & six.to_memory & ((six.post != Post.ROTATE) | six.phase[0])),
        ]
        for memory in (memory_a, memory_b):
            m.d.comb += [memory.w_addr.eq(six.to_row), memory.w_mask.eq(writes.replicate(self.lanes))]
        for k, result in enumerate(results):
            m.d.comb += gate.result[k].eq(Mux(reducing, scalar if k == 0 else 0, result))
            m.d.comb += [memory.w_data[k].eq(result) for memory in (memory_a, memory_b)]
        with m.If(done & reducing & six.last), m.Switch(six.to_scalar):
            for k, register in enumerate(scalars):
                with m.Case(k):
                    m.d.sync += register.eq(scalar)

        count(m, self, {stat: sequencer.events[stat] for stat in Stat})
        return m

    def _carry(self, m: Module, sequencer: Sequencer, scalars: Sequence[Signal]) -> _Flight:
        """Control moves along with the beat; a division stays in stage 3, a fold in stage 6."""
        control = data.StructLayout({**{name: field.shape for name, field in sequencer.control_layout}, "c_value": 32})
        valid = [Signal(name=f"valid{s}") for s in range(STAGES + 1)]
        stage = [Signal(control, name=f"stage{s}", reset_less=s > 0) for s in range(STAGES + 1)]
        m.d.comb += valid[0].eq(sequencer.issue)
        m.d.comb += [stage[0][name].eq(sequencer.control[name]) for name, _ in sequencer.control_layout]

        dividing, stay = Signal(range(self.divide_cycles + 1)), Signal()
        m.d.comb += stay.eq(valid[3] & (stage[3].function == Function.DIVIDE) & (dividing != self.divide_cycles))
        m.d.sync += dividing.eq(Mux(stay, dividing + 1, 0))
        fold, entering = Signal(range(self.fold_cycles + 1)), Signal()
        m.d.sync += entering.eq(valid[5])
        with m.If(fold != 0):
            m.d.sync += fold.eq(fold - 1)
        with m.Elif(valid[5] & stage[5].last & folds(stage[5])):
            m.d.sync += fold.eq(self.fold_cycles)

        moves = {3: ~stay, STAGES: fold == 0}
        for s in range(1, STAGES + 1):
            following = Signal(control, name=f"next{s}")
            m.d.comb += following.eq(stage[s - 1])
            if s == 2:  # scalars are read in stage 1
                value = Mux(stage[1].c_immediate, stage[1].immediate, _select(scalars, stage[1].c))
                m.d.comb += following.c_value.eq(value)
            with m.If(moves.get(s, 1)):
                m.d.sync += [valid[s].eq(valid[s - 1] & ~(stay & (s == 4))), stage[s].eq(following)]
        return _Flight(
            valid=valid,
            stage=stage,
            stay=stay,
            divide=valid[3] & (dividing == 0),
            fold=fold,
            entering=entering,
            busy=Cat(valid[1:6]).any() | (fold != 0),
        )

    def _lanes(
        self, m: Module, flight: _Flight, scalars: Sequence[Signal], operands: Sequence[data.View]
    ) -> tuple[list[Signal], list[Signal]]:
        """The lanes with what they share; their results and totals. `operands`: stream, memory a, memory b."""
        one, two, three, five, six = (flight.stage[s] for s in (1, 2, 3, 5, 6))
        same = {
            name: Mux(one[name] == Source.SCALAR, _select(scalars, one[f"{name}_row"][:3]), one.immediate)
            for name in ("a", "b")
        }
        turning = five.post == Post.ROTATE
        active = flight.fold != 0
        shared = {
            "same_a": same["a"],
            "same_b": same["b"],
            "a_stream": one.a == Source.STREAM,
            "a_memory": one.a == Source.MEMORY,
            "a_kept": one.phase == 3,
            "keep": flight.valid[1] & (one.post == Post.ROTATE) & (one.phase == 0),
            "b_memory": one.b == Source.MEMORY,
            "pre": one.pre,
            "times": two.times,
            "c": two.c_value,
            "hold": flight.stay,
            "divide": flight.divide,
            "divisor": three.c_value,
            "function": three.function,
            "silu": flight.stage[4].function == Function.SILU,
            "accumulate": active | (flight.valid[5] & (five.post != Post.NONE)),
            "load": ~active & Mux(turning, ~five.phase[0], five.first),
            "subtract": ~active & turning & (five.phase == 1),
            "maximum": Mux(active, six.post, five.post) == Post.MAX,
            "fold": active,
            "from_total": six.post == Post.ROTATE,
            "round": six.round,
        }
        word = Signal(SHARED)
        m.d.comb += [word[name].eq(value) for name, value in shared.items()]

        use = _tail_mask(m, "use", five, self.lanes)
        totals = [Signal(32, name=f"total{k}") for k in range(self.lanes)]
        step = Signal(range(self.fold_cycles + 1))
        m.d.comb += step.eq(self.fold_cycles - flight.fold)
        results = []
        for k in range(self.lanes):
            other = Signal(32, name=f"other{k}")
            with m.Switch(step):
                for number in range(self.fold_cycles):
                    half = self.lanes >> (number + 1)
                    if k < half:
                        with m.Case(number):
                            m.d.comb += other.eq(totals[k + half])
            out = place(
                m,
                "vpe_lane",
                f"lane{k}",
                LANE,
                clk=ClockSignal(),
                rst=ResetSignal(),
                shared=Value.cast(word),
                **{name: vector[k] for name, vector in zip(("stream", "memory_a", "memory_b"), operands, strict=True)},
                use=use[k],
                other=other,
            )
            m.d.comb += totals[k].eq(out["total"])
            results.append(out["y"])
        return results, totals

    def _packed(self, m: Module, flight: _Flight, results: Sequence[Signal]) -> Signal:
        """Signs of the elements of a row so far, as bits of one word."""
        six = flight.stage[6]
        packed, bits = Signal(32), Signal(self.lanes)
        positive = Cat(~word[31] & word[23:31].any() & ~(word[23:31].all() & word[:23].any()) for word in results)
        m.d.comb += bits.eq(positive & _tail_mask(m, "packs", six, self.lanes))
        with m.If(flight.valid[6] & (six.post == Post.PACK)):
            before = Signal(32)
            m.d.sync += before.eq(packed)
            m.d.comb += packed.eq(Mux(six.first, 0, before))
            with m.Switch(six.index):
                for k in range(-(-32 // self.lanes)):
                    with m.Case(k):
                        low = k * self.lanes
                        m.d.comb += packed[low : min(32, low + self.lanes)].eq(bits)
        return packed


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
