"""DPE: the matrix engine, an array of MAC trees (V-Rex, section V-A, Fig. 9)."""

import enum
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from amaranth import ClockSignal, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import DEPTH, DEPTHS, DotCore, check_sizes, planes_layout, to_planes
from hw.arith.floats import FloatAdd
from hw.arith.formats import BF16, FP32
from hw.common.counters import count
from hw.common.instances import instantiate
from hw.common.memory import Ram
from hw.common.pipeline import CreditGate, delay
from hw.config import Config


class Stat(enum.StrEnum):
    """Counters of the matrix engine, 32 bits each. `stat_clear` sets them to zero."""

    BUSY = "busy"  # beats of `i`: cycles in which all trees work
    STARVED = "starved"  # cycles with a tile and without a beat of `i`
    UNLOADED = "unloaded"  # cycles in which a beat waited for its tile
    BLOCKED = "blocked"  # cycles in which a beat waited for a free entry of the output queue
    TILES = "tiles"  # tiles that were released
    RESULTS = "results"  # beats of `o`


def row_ports(inputs: int) -> dict[str, wiring.Member]:
    """Ports of `MacRow`."""
    return {
        "x": In(planes_layout(inputs).size),
        "weights": In(planes_layout(inputs).size),
        "load": In(1),
        "swap": In(1),
        "first": In(1),
        "total": In(FP32.size),
        "y": Out(FP32.size),
    }


class MacRow(wiring.Component):
    """One MAC tree with two buffers for its row of the weight tile, and its FP32 adder.

    Timing: `y` is the sum of the dot product of the `x` of `core.latency` cycles before and the present `total`.

    Members
    -------
    x : BF16 codes as planes (see `hw.arith.dot.to_planes`)
    weights, load : BF16 codes for the second buffer, and its write enable
    swap : copy the second buffer into the first one, which the tree uses
    first, total : FP32 code that is added; nothing is added when `first` is 1
    y : FP32 code of the sum

    Attributes
    ----------
    settling : clock edges with constant inputs after which all registers are constant
    enables : inputs that have no effect while another input is 0
    """

    enables: Mapping[str, str] = {"weights": "load"}

    def __init__(self, *, inputs: int, align_bits: int, registers: tuple[str, ...]):
        self.inputs = inputs
        self.core: dict[str, Any] = {"inputs": inputs, "align_bits": align_bits, "registers": registers}
        self.settling = 2 + len(registers)  # both buffers, then the registers of the tree
        super().__init__(row_ports(inputs))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = DotCore(**self.core)
        m.submodules.add = add = FloatAdd(FP32)
        next_row, row = Signal(len(self.weights), reset_less=True), Signal(len(self.weights), reset_less=True)
        with m.If(self.load):
            m.d.sync += next_row.eq(to_planes(m, "next_weights", self.weights))
        with m.If(self.swap):
            m.d.sync += row.eq(next_row)
        m.d.comb += [
            Value.cast(core.a).eq(self.x),
            Value.cast(core.b).eq(row),
            add.a.eq(self.total),
            add.b.eq(core.y),
            self.y.eq(Mux(self.first, core.y, add.y)),
        ]
        return m


class DPE(wiring.Component):
    """Matrix engine: multiplies weight tiles with activation rows, `trees` fused dot products per cycle.

    A tile has `trees` rows of `inputs` weights. It is loaded in `loads = trees / load_rows` beats of `i_weights`. A
    beat of `i` has `inputs` activations, which all trees multiply with the current tile. Each tree adds the result to
    the accumulator that the beat selects. `first` starts a new sum. `last` sends the sum to `o` instead of the
    accumulator. `release` marks the last beat of the current tile. The next tile follows without a gap when it is
    loaded by then.

    Y = W X with W (M, K) and X (K, T) is computed as follows: for each `trees` rows of W, for each `inputs` columns of
    W, T beats. Beat t uses accumulator t for column t of X. `first` is set in the first tile, `last` in the last tile,
    `release` at t = T - 1.

    Timing
    ------
    One beat per cycle; `latency` cycles from a beat to its result. A tile of T beats takes max(T, loads + 1) cycles
    when no stream stalls (`cycles` is the formula). `i.ready` and `i_weights.ready` depend on registers only. There is
    no combinational path between streams. A full output queue stops all beats of `i`.

    Numerics: dot products as in `DotCore`, then FP32 additions in the order of the beats, rounded to nearest even. A
    sum of one tile (K = `inputs`) is the dot product itself.

    Parameters
    ----------
    trees : MAC trees N_h
    inputs : products of one tree N_w, a power of two
    load_rows : rows of a tile in one beat of `i_weights`, a divisor of `trees`
    accumulators : FP32 accumulators of each tree
    align_bits, depth : alignment width and pipeline registers of a tree

    Members
    -------
    i : stream of `activations`
    i_weights : stream of `load_rows` rows of BF16 codes
    o : stream of `results`
    stat_* : counters, see `Stat`

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    def __init__(
        self,
        *,
        trees: int,
        inputs: int,
        load_rows: int = 1,
        accumulators: int = 16,
        align_bits: int = 24,
        depth: int = DEPTH,
    ):
        check_sizes(inputs, align_bits)
        for name, value in (("trees", trees), ("accumulators", accumulators)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if load_rows < 1 or trees % load_rows:
            raise ValueError(f"load_rows must be a divisor of trees = {trees}, got {load_rows}")
        if depth not in DEPTHS:
            raise ValueError(f"depth must be {min(DEPTHS)} to {max(DEPTHS)}, got {depth}")
        self.trees, self.inputs, self.load_rows, self.accumulators = trees, inputs, load_rows, accumulators
        self.align_bits, self.depth = align_bits, depth
        vector = data.ArrayLayout(BF16.size, inputs)
        self.control = data.StructLayout({"accumulator": range(accumulators), "first": 1, "last": 1})
        self.activations = data.StructLayout(
            {"x": vector, "accumulator": range(accumulators), "first": 1, "last": 1, "release": 1},
        )
        self.results = data.StructLayout({"y": data.ArrayLayout(FP32.size, trees), "accumulator": range(accumulators)})
        super().__init__(
            {
                "i": In(stream.Signature(self.activations)),
                "i_weights": In(stream.Signature(data.ArrayLayout(vector, load_rows))),
                "o": Out(stream.Signature(self.results)),
                "stat_clear": In(1),
                **{f"stat_{name}": Out(32) for name in Stat},
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "DPE":
        """The matrix engine of one core."""
        return cls(
            trees=config.dpe_trees,
            inputs=config.dpe_inputs,
            load_rows=config.dpe_load_rows,
            accumulators=config.dpe_accumulators,
            align_bits=config.align_bits,
        )

    @cached_property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules of which this one has instances, by name."""
        return {"dpe_row": MacRow(inputs=self.inputs, align_bits=self.align_bits, registers=DEPTHS[self.depth])}

    @property
    def loads(self) -> int:
        """Beats of `i_weights` per tile."""
        return self.trees // self.load_rows

    @property
    def latency(self) -> int:
        """Cycles from a beat of `i` with `last` to its beat of `o`."""
        return len(DEPTHS[self.depth]) + 3

    def cycles(self, tiles: int, beats: int) -> int:
        """Cycles from the first beat of `i_weights` to the last beat of `o`: `tiles` tiles of `beats` beats each."""
        return self.loads + 1 + (tiles - 1) * max(beats, self.loads + 1) + beats - 1 + self.latency

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula. The JSON file of the generated unit contains them."""
        return {
            "latency": self.latency,
            "beats_per_cycle": 1,
            "macs_per_beat": self.trees * self.inputs,
            "cycles_per_tile": "max(beats, loads + 1)",
            "loads": self.loads,
        }

    @property
    def accumulator_memory(self) -> Ram:
        """The memory of the accumulators: one row per accumulator, one word per tree."""
        return Ram(depth=self.accumulators, width=FP32.size, words=self.trees)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        core_latency = len(DEPTHS[self.depth])
        m.submodules.totals = totals = self.accumulator_memory
        m.submodules.gate = gate = CreditGate(self.results, stages=core_latency + 1)
        beat = self.i.payload
        accept, tile = Signal(), Signal()
        m.d.comb += [self.i.ready.eq(tile & gate.ready), accept.eq(self.i.valid & self.i.ready)]
        loads, swap = self._tiles(m, accept, tile)

        # control signals move with the beat through the trees; the accumulators are read in the last cycle
        x = Signal(planes_layout(self.inputs).size, reset_less=True)
        with m.If(accept):
            m.d.sync += x.eq(to_planes(m, "x", beat.x))
        accept_d = delay(m, "accept", accept, core_latency)
        control = Signal(self.control)
        m.d.comb += [control[name].eq(beat[name]) for name, _ in self.control]
        for stage in range(core_latency):
            control_d = Signal.like(control, name=f"control{stage}", reset_less=True)
            m.d.sync += control_d.eq(control)
            control = control_d
        m.d.comb += [totals.r_addr.eq(control.accumulator), totals.r_en.eq(accept_d & ~control.first)]
        ending, valid = Signal(self.control, reset_less=True), Signal()
        m.d.sync += [ending.eq(control), valid.eq(accept_d)]

        self._trees(m, x, loads, swap, ending.first, totals, gate)
        m.d.comb += [
            totals.w_addr.eq(ending.accumulator),
            totals.w_mask.eq((valid & ~ending.last).replicate(self.trees)),
            gate.take.eq(accept & beat.last),
            gate.done.eq(valid & ending.last),
            gate.result.accumulator.eq(ending.accumulator),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)

        events = {
            Stat.BUSY: accept,
            Stat.STARVED: self.i.ready & ~self.i.valid,
            Stat.UNLOADED: self.i.valid & ~tile,
            Stat.BLOCKED: self.i.valid & tile & ~gate.ready,
            Stat.TILES: accept & beat.release,
            Stat.RESULTS: self.o.valid & self.o.ready,
        }
        count(m, self, events)
        return m

    def _tiles(self, m: Module, accept: Value, tile: Signal) -> tuple[list[Value], Signal]:
        """Control of the two weight buffers. `tile` becomes 1 while there is a current tile.

        Returns the write enables of the second buffers, one per beat of a tile, and the signal that copies them into
        the first ones.
        """
        release = accept & self.i.payload.release
        full, swap = Signal(), Signal()  # the next tile is complete; it becomes the current one
        group = Signal(range(self.loads))
        load, change = Signal(), Signal()
        m.d.comb += [
            self.i_weights.ready.eq(~full),
            load.eq(self.i_weights.valid & ~full),
            change.eq(full & (~tile | release)),
        ]
        m.d.sync += swap.eq(change)  # one cycle later: the beat of this cycle uses the old tile in the next cycle
        with m.If(change):
            m.d.sync += tile.eq(1)
        with m.Elif(release):
            m.d.sync += tile.eq(0)
        with m.If(load & (group == self.loads - 1)):
            m.d.sync += [full.eq(1), group.eq(0)]
        with m.Elif(load):
            m.d.sync += group.eq(group + 1)
        with m.Elif(change):
            m.d.sync += full.eq(0)
        return [load & (group == number) for number in range(self.loads)], swap

    def _trees(
        self, m: Module, x: Value, loads: Sequence[Value], swap: Value, first: Value, totals: Ram, gate: CreditGate
    ) -> None:
        """The MAC trees: their sums are inputs of the accumulators and of the output queue."""
        for k in range(self.trees):
            row = instantiate(
                m,
                "dpe_row",
                f"row{k}",
                row_ports(self.inputs),
                clk=ClockSignal(),
                rst=ResetSignal(),
                x=x,
                weights=Value.cast(self.i_weights.payload[k % self.load_rows]),
                load=loads[k // self.load_rows],
                swap=swap,
                first=first,
                total=totals.r_data[k],
            )
            m.d.comb += [totals.w_data[k].eq(row["y"]), gate.result.y[k].eq(row["y"])]
