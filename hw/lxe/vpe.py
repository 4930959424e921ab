"""VPE: the vector engine of the LXE (V-Rex, section V-A, Fig. 9)."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from amaranth import Cat, ClockSignal, Const, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.divide import Divide
from hw.arith.formats import to_bf16
from hw.common.counters import count
from hw.common.instances import instantiate
from hw.common.memory import Ram
from hw.common.pipeline import CreditGate
from hw.config import Config
from hw.lxe.micro_sequencer import MicroSequencer, Stat, folds
from hw.lxe.microcode import REDUCTIONS, SCALARS, Function, Instruction, Post, Source, instruction_layout
from hw.lxe.vpe_lane import LANE_PORTS, SHARED_LAYOUT, STAGES, VpeLane


@dataclass(frozen=True)
class _BeatsInFlight:
    """The beats between issue and result. Stage s is `s` cycles after the issue.

    valid, stage : whether stage s has a beat, and its control signals
    hold : the stages up to 3 wait for a division
    divide : a division begins
    fold : remaining steps of a fold, which combines the totals of the lanes
    new_result : the beat of stage 6 arrived in this cycle
    busy : results of issued beats are outstanding
    """

    valid: Sequence[Signal]
    stage: Sequence[data.View]
    hold: Value
    divide: Value
    fold: Value
    new_result: Value
    busy: Value


class VPE(wiring.Component):
    """Vector engine: executes programs of micro-instructions on rows of numbers, one beat of `lanes` numbers per cycle.

    An instruction (see `hw.lxe.microcode`) passes beats from the input, from the vector memory or of a scalar through
    the lanes. The steps are: add or compare, multiply, function, and a reduction or rotation. Each step is optional.
    Results go to the vector memory, to the output stream and, for reductions, to one of 8 scalar registers.

    Timing
    ------
    One beat per cycle, also between instructions, with these exceptions. A beat with DIVIDE takes `divide_cycles` more.
    A row with SUM or MAX takes log2(lanes) more. ROTATE takes two cycles per beat. An instruction with `wait` starts
    `STAGES` cycles after the last beat before it, instead of one. `cycles` is the exact count when no stream stalls.
    Beats that are issued at least `STAGES` cycles later can read the results in memory and scalars. The hardware does
    not check this: set `wait`. `latency` is the number of cycles from a beat of `i` to its beat of `o`. The output
    queue stops the input only in instructions with `to_stream`. `i.ready` does not depend on inputs.

    Numerics: FP32, rounded to nearest even after each step; subnormals are zero. Functions give BF16 numbers, and so do
    results of instructions with `round`. A sum adds the beats of each lane in order, then folds halves of the lanes.

    Parameters
    ----------
    lanes : elements per beat, a power of two from 2
    rows : rows of the vector memory, a power of two from `SCALARS`

    Members
    -------
    code : stream of instructions
    i, o : streams of beats of FP32 codes
    stat_* : counters, see `Stat`

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    latency = STAGES + 2
    divide_cycles = Divide.latency

    def __init__(self, *, lanes: int, rows: int):
        for name, value, minimum in (("lanes", lanes, 2), ("rows", rows, SCALARS)):
            if value < minimum or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least {minimum}, got {value}")
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
        """The vector engine of one core."""
        return cls(lanes=config.vpe_lanes, rows=config.vpe_rows)

    @cached_property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules of which this one has instances, by name."""
        return {"vpe_lane": VpeLane()}

    @property
    def fold_cycles(self) -> int:
        """Cycles in which the totals of the lanes are combined at the end of a row."""
        return self.lanes.bit_length() - 1

    def cycles(self, program: Sequence[Instruction]) -> int:
        """Cycles from the first to the last issue of `program`, both included, when no stream stalls."""
        total, pending = 0, 0
        for k, op in enumerate(program):
            fold = self.fold_cycles * (op.post in (Post.SUM, Post.MAX))
            divide = self.divide_cycles * (op.function is Function.DIVIDE)
            beats = op.beats * (2 if op.post is Post.ROTATE else 1)
            total += pending + (STAGES - 1) * (op.wait and k > 0) + op.rows * (beats * (1 + divide) + fold)
            pending = fold + divide  # of the last beat; it delays only what follows
            total -= pending
        return total

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula. The JSON file of the generated unit contains them."""
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
        m.submodules.sequencer = sequencer = MicroSequencer(
            self.instruction, divide_cycles=self.divide_cycles, fold_cycles=self.fold_cycles
        )
        m.submodules.gate = gate = CreditGate(self.beat, stages=STAGES)
        m.submodules.memory_a = memory_a = Ram(depth=self.rows, width=32, words=self.lanes)
        m.submodules.memory_b = memory_b = Ram(depth=self.rows, width=32, words=self.lanes)
        scalars = [Signal(32, name=f"scalar{k}") for k in range(SCALARS)]
        wiring.connect(m, wiring.flipped(self.code), sequencer.code)
        wiring.connect(m, wiring.flipped(self.o), gate.o)
        flight = self._pipeline(m, sequencer, scalars)
        m.d.comb += [
            sequencer.input_valid.eq(self.i.valid),
            sequencer.output_ready.eq(gate.ready),
            sequencer.busy.eq(flight.busy),
            self.i.ready.eq(sequencer.input_ready),
            gate.take.eq(sequencer.emits),
        ]

        # operands of an issued beat, one cycle later
        input_beat = Signal(self.beat, reset_less=True)
        with m.If(sequencer.issue):
            m.d.sync += input_beat.eq(self.i.payload)
        for memory, address in ((memory_a, sequencer.a_row), (memory_b, sequencer.b_row)):
            m.d.comb += [memory.r_addr.eq(address), memory.r_en.eq(sequencer.issue)]
        results, totals = self._lanes(m, flight, scalars, (input_beat, memory_a.r_data, memory_b.r_data))
        self._results(m, flight, results, totals, scalars, gate, (memory_a, memory_b))
        count(m, self, {stat: sequencer.events[stat] for stat in Stat})
        return m

    def _results(
        self,
        m: Module,
        flight: _BeatsInFlight,
        results: Sequence[Signal],
        totals: Sequence[Signal],
        scalars: Sequence[Signal],
        gate: CreditGate,
        memories: Sequence[Ram],
    ) -> None:
        """Stage 6: write elements in the first cycle of a beat, the scalar of a reduction at the end of the fold."""
        six = flight.stage[6]
        scalar, done, reducing, writes = Signal(32), Signal(), Signal(), Signal()
        packed = self._packed(m, flight, results)
        row_result = Mux(six.post == Post.PACK, packed, Mux(folds(six), totals[0], results[0]))
        rounded = Cat(Const(0, 16), to_bf16(m, "scalar_rounded", row_result))
        m.d.comb += [
            scalar.eq(Mux(six.round, rounded, row_result)),
            done.eq(flight.valid[6] & (flight.fold == 0)),
            gate.done.eq(done & six.emits),
            reducing.eq(Cat(six.post == post for post in REDUCTIONS).any()),
            writes.eq(flight.new_result & six.to_memory & ((six.post != Post.ROTATE) | six.phase[0])),
        ]
        for memory in memories:
            m.d.comb += [memory.w_addr.eq(six.to_row), memory.w_mask.eq(writes.replicate(self.lanes))]
        for k, result in enumerate(results):
            m.d.comb += gate.result[k].eq(Mux(reducing, scalar if k == 0 else 0, result))
            m.d.comb += [memory.w_data[k].eq(result) for memory in memories]
        with m.If(done & reducing & six.last), m.Switch(six.to_scalar):
            for k, register in enumerate(scalars):
                with m.Case(k):
                    m.d.sync += register.eq(scalar)

    def _pipeline(self, m: Module, sequencer: MicroSequencer, scalars: Sequence[Signal]) -> _BeatsInFlight:
        """Control signals of the pipeline stages. A division waits in stage 3, a fold in stage 6."""
        control = data.StructLayout({**{name: field.shape for name, field in sequencer.control_layout}, "c_value": 32})
        valid = [Signal(name=f"valid{s}") for s in range(STAGES + 1)]
        stage = [Signal(control, name=f"stage{s}", reset_less=s > 0) for s in range(STAGES + 1)]
        m.d.comb += valid[0].eq(sequencer.issue)
        m.d.comb += [stage[0][name].eq(sequencer.control[name]) for name, _ in sequencer.control_layout]

        dividing, hold = Signal(range(self.divide_cycles + 1)), Signal()
        m.d.comb += hold.eq(valid[3] & (stage[3].function == Function.DIVIDE) & (dividing != self.divide_cycles))
        m.d.sync += dividing.eq(Mux(hold, dividing + 1, 0))
        fold, new_result = Signal(range(self.fold_cycles + 1)), Signal()
        m.d.sync += new_result.eq(valid[5])
        with m.If(fold != 0):
            m.d.sync += fold.eq(fold - 1)
        with m.Elif(valid[5] & stage[5].last & folds(stage[5])):
            m.d.sync += fold.eq(self.fold_cycles)

        advances = {3: ~hold, STAGES: fold == 0}
        for s in range(1, STAGES + 1):
            next_control = Signal(control, name=f"next{s}")
            m.d.comb += next_control.eq(stage[s - 1])
            if s == 2:  # scalars are read in stage 1
                value = Mux(stage[1].c_immediate, stage[1].immediate, _select(scalars, stage[1].c))
                m.d.comb += next_control.c_value.eq(value)
            with m.If(advances.get(s, 1)):
                m.d.sync += [valid[s].eq(valid[s - 1] & ~(hold & (s == 4))), stage[s].eq(next_control)]
        return _BeatsInFlight(
            valid=valid,
            stage=stage,
            hold=hold,
            divide=valid[3] & (dividing == 0),
            fold=fold,
            new_result=new_result,
            busy=Cat(valid[1:6]).any() | (fold != 0),
        )

    def _shared(self, m: Module, flight: _BeatsInFlight, scalars: Sequence[Signal]) -> Signal:
        """Operands and control signals that are equal for all lanes."""
        stage1, stage2, stage3, stage5, stage6 = (flight.stage[s] for s in (1, 2, 3, 5, 6))
        same = {
            name: Mux(stage1[name] == Source.SCALAR, _select(scalars, stage1[f"{name}_row"][:3]), stage1.immediate)
            for name in ("a", "b")
        }
        rotates = stage5.post == Post.ROTATE
        active = flight.fold != 0
        shared = {
            "same_a": same["a"],
            "same_b": same["b"],
            "a_stream": stage1.a == Source.STREAM,
            "a_memory": stage1.a == Source.MEMORY,
            "use_saved": stage1.phase == 3,
            "save_operand": flight.valid[1] & (stage1.post == Post.ROTATE) & (stage1.phase == 0),
            "b_memory": stage1.b == Source.MEMORY,
            "pre": stage1.pre,
            "times": stage2.times,
            "c": stage2.c_value,
            "hold": flight.hold,
            "divide": flight.divide,
            "divisor": stage3.c_value,
            "function": stage3.function,
            "silu": flight.stage[4].function == Function.SILU,
            "accumulate": active | (flight.valid[5] & (stage5.post != Post.NONE)),
            "load": ~active & Mux(rotates, ~stage5.phase[0], stage5.first),
            "subtract": ~active & rotates & (stage5.phase == 1),
            "maximum": Mux(active, stage6.post, stage5.post) == Post.MAX,
            "fold": active,
            "from_total": stage6.post == Post.ROTATE,
            "round": stage6.round,
        }
        word = Signal(SHARED_LAYOUT)
        m.d.comb += [word[name].eq(value) for name, value in shared.items()]
        return word

    def _lanes(
        self, m: Module, flight: _BeatsInFlight, scalars: Sequence[Signal], operands: Sequence[data.View]
    ) -> tuple[list[Signal], list[Signal]]:
        """The lanes: their results and totals. `operands`: beats of the stream, of memory a and of memory b."""
        shared = self._shared(m, flight, scalars)
        use = _tail_mask(m, "use", flight.stage[5], self.lanes)
        totals = [Signal(32, name=f"total{k}") for k in range(self.lanes)]
        step = Signal(range(self.fold_cycles + 1))
        m.d.comb += step.eq(self.fold_cycles - flight.fold)
        results = []
        for k in range(self.lanes):
            other = Signal(32, name=f"other{k}")  # a step adds the upper half of the remaining lanes to the lower half
            with m.Switch(step):
                for number in range(self.fold_cycles):
                    half = self.lanes >> (number + 1)
                    if k < half:
                        with m.Case(number):
                            m.d.comb += other.eq(totals[k + half])
            out = instantiate(
                m,
                "vpe_lane",
                f"lane{k}",
                LANE_PORTS,
                clk=ClockSignal(),
                rst=ResetSignal(),
                shared=Value.cast(shared),
                **{name: vector[k] for name, vector in zip(("stream", "memory_a", "memory_b"), operands, strict=True)},
                use=use[k],
                other=other,
            )
            m.d.comb += totals[k].eq(out["total"])
            results.append(out["y"])
        return results, totals

    def _packed(self, m: Module, flight: _BeatsInFlight, results: Sequence[Signal]) -> Signal:
        """PACK: one bit per element of the row, up to and including the beat in stage 6; 1 for positive elements."""
        six = flight.stage[6]
        packed, bits = Signal(32), Signal(self.lanes)
        positive = Cat(~word[31] & word[23:31].any() & ~(word[23:31].all() & word[:23].any()) for word in results)
        m.d.comb += bits.eq(positive & _tail_mask(m, "packs", six, self.lanes))
        with m.If(flight.valid[6] & (six.post == Post.PACK)):
            previous = Signal(32)
            m.d.sync += previous.eq(packed)
            m.d.comb += packed.eq(Mux(six.first, 0, previous))
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
    """One bit per lane that takes part in a reduction: the first `tail` lanes in the last beat of a row, else all."""
    all_lanes, mask = Signal(name=f"{name}_all_lanes"), Signal(lanes, name=name)
    m.d.comb += [
        all_lanes.eq(~control.last | (control.tail == 0)),
        mask.eq(Cat(all_lanes | (control.tail > k) for k in range(lanes))),
    ]
    return mask
