"""DPE: the matrix engine, MAC trees side by side (V-Rex, section V-A, Fig. 9)."""

import enum
from functools import cached_property
from typing import Any

from amaranth import ClockSignal, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import DEPTH, DEPTHS, DotCore, check_sizes, planes_layout, to_planes
from hw.arith.floats import FloatAdd
from hw.arith.formats import BF16, FP32
from hw.common.counters import count
from hw.common.memory import Ram
from hw.common.parts import place
from hw.common.pipeline import CreditGate, delay
from hw.config import Config


class Stat(enum.StrEnum):
    """Counters, 32 bits each, cleared by `stat_clear`."""

    BUSY = "busy"  # beats taken: cycles in which every tree worked
    STARVED = "starved"  # cycles with a tile but no beat to use it
    UNLOADED = "unloaded"  # cycles in which a beat waited for its tile
    BLOCKED = "blocked"  # cycles in which a beat waited for places behind `o`
    TILES = "tiles"  # tiles used up
    RESULTS = "results"  # result beats


def row_ports(inputs: int) -> dict[str, wiring.Member]:
    """Ports of `MacRow`."""
    return {
        "x": In(planes_layout(inputs).size),
        "weights": In(planes_layout(inputs).size),
        "load": In(1),
        "swap": In(1),
        "fresh": In(1),
        "total": In(FP32.size),
        "y": Out(FP32.size),
    }


class MacRow(wiring.Component):
    """One MAC tree with its row of the tile, double-buffered, and its FP32 adder.

    Timing: `y` is the sum of the `x` that was given `core.latency` cycles ago and today's `total`.

    Members
    -------
    x : BF16 codes as planes ; weights : BF16 codes ; load : keep them as the next row
    swap : the next row becomes the row ; fresh : take no `total` ; total : FP32 code to add ; y : FP32 code
    """

    def __init__(self, *, inputs: int, align_bits: int, cuts: tuple[str, ...]):
        self.inputs = inputs
        self.core: dict[str, Any] = {"inputs": inputs, "align_bits": align_bits, "cuts": cuts}
        super().__init__(row_ports(inputs))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = DotCore(**self.core)
        m.submodules.add = add = FloatAdd(FP32)
        following, row = Signal(len(self.weights), reset_less=True), Signal(len(self.weights), reset_less=True)
        with m.If(self.load):
            m.d.sync += following.eq(to_planes(m, "weights_held", self.weights))
        with m.If(self.swap):
            m.d.sync += row.eq(following)
        m.d.comb += [
            Value.cast(core.a).eq(self.x),
            Value.cast(core.b).eq(row),
            add.a.eq(self.total),
            add.b.eq(core.y),
            self.y.eq(Mux(self.fresh, core.y, add.y)),
        ]
        return m


class DPE(wiring.Component):
    """Multiplies tiles of weights with rows of activations: `trees` fused dot products of `inputs` every cycle.

    A tile, `trees` rows of `inputs` weights, comes in `loads = trees / load_rows` beats of `i_weights`. Every beat of
    `i` holds `inputs` activations; all trees use it with the tile in force. Its results are added to slot `slot` of the
    accumulators, or start it (`first`), or leave as a beat of `o` (`last`; the slot is then free). `release` says that
    the beat is the last to use its tile: the next one takes its place without a gap when it has been loaded by then.

    So Y = W X with W (M, K) and X (K, T) is, for each `trees` rows of W: for each `inputs` columns of W: T beats, slot
    t for column t of X, `first` in the first tile, `last` in the last, `release` at t = T - 1.

    Timing
    ------
    One beat per cycle, `latency` cycles from a beat to its result. A tile that T beats use takes max(T, loads + 1)
    cycles when nobody stalls (`cycles`). `i.ready`, `i_weights.ready` are functions of registers; there is no
    combinational path between streams. No place left behind `o` holds up every beat of `i`.

    Numerics: as `DotCore`; then FP32 additions in the order of the beats, rounded to nearest even. `first` adds
    nothing, so K = `inputs` gives the dot product itself.

    Parameters
    ----------
    trees, inputs : MAC trees N_h and products of one tree N_w (a power of two)
    load_rows : rows of a tile in one beat of `i_weights`; divides `trees`
    slots : accumulators of each tree
    align_bits, depth : alignment width and pipeline registers of a tree

    Members
    -------
    i : stream of `activations` ; i_weights : stream of `load_rows` rows of BF16 codes ; o : stream of `results`
    stat_* : see `Stat`
    """

    def __init__(
        self,
        *,
        trees: int,
        inputs: int,
        load_rows: int = 1,
        slots: int = 16,
        align_bits: int = 24,
        depth: int = DEPTH,
    ):
        check_sizes(inputs, align_bits)
        for name, value in (("trees", trees), ("slots", slots)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        if load_rows < 1 or trees % load_rows:
            raise ValueError(f"load_rows = {load_rows}: must divide trees = {trees}")
        if depth not in DEPTHS:
            raise ValueError(f"depth = {depth}: must be {min(DEPTHS)} to {max(DEPTHS)}")
        self.trees, self.inputs, self.load_rows, self.slots = trees, inputs, load_rows, slots
        self.align_bits, self.depth = align_bits, depth
        vector = data.ArrayLayout(BF16.size, inputs)
        self.activations = data.StructLayout(
            {"x": vector, "slot": range(slots), "first": 1, "last": 1, "release": 1},
        )
        self.results = data.StructLayout({"y": data.ArrayLayout(FP32.size, trees), "slot": range(slots)})
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
            slots=config.dpe_accumulators,
            align_bits=config.align_bits,
        )

    @cached_property
    def parts(self) -> dict[str, wiring.Component]:
        """Modules that this one instantiates."""
        return {"dpe_row": MacRow(inputs=self.inputs, align_bits=self.align_bits, cuts=DEPTHS[self.depth])}

    @property
    def loads(self) -> int:
        """Beats of `i_weights` that make a tile."""
        return self.trees // self.load_rows

    @property
    def latency(self) -> int:
        """Cycles from a beat of `i` with `last` to its beat of `o`."""
        return len(DEPTHS[self.depth]) + 3

    def cycles(self, tiles: int, beats: int) -> int:
        """Cycles from the first beat of `i_weights` to the last of `o` for `tiles` tiles of `beats` beats each."""
        return self.loads + 1 + (tiles - 1) * max(beats, self.loads + 1) + beats - 1 + self.latency

    @property
    def timing(self) -> dict[str, object]:
        """Latency and cycle formula, as written into the generated unit's JSON."""
        return {
            "latency": self.latency,
            "beats_per_cycle": 1,
            "macs_per_beat": self.trees * self.inputs,
            "cycles_per_tile": "max(beats, loads + 1)",
            "loads": self.loads,
        }

    @property
    def accumulators(self) -> Ram:
        """The memory of sums: a row for each slot, a word for each tree."""
        return Ram(depth=self.slots, width=FP32.size, words=self.trees)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        core_latency = len(DEPTHS[self.depth])
        m.submodules.totals = totals = self.accumulators
        m.submodules.gate = gate = CreditGate(self.results, stages=core_latency + 1)
        beat, weights = self.i.payload, self.i_weights.payload

        # tiles: one in force, one that loads; `full` when the one that loads is complete
        tile, full, swap = Signal(), Signal(), Signal()
        group = Signal(range(self.loads))
        take, load, change = Signal(), Signal(), Signal()
        m.d.comb += [
            self.i.ready.eq(tile & gate.ready),
            self.i_weights.ready.eq(~full),
            take.eq(self.i.valid & self.i.ready),
            load.eq(self.i_weights.valid & ~full),
            change.eq(full & (~tile | (take & beat.release))),
        ]
        m.d.sync += swap.eq(change)  # the beat that is taken now still uses the tile in the next cycle
        with m.If(change):
            m.d.sync += tile.eq(1)
        with m.Elif(take & beat.release):
            m.d.sync += tile.eq(0)
        with m.If(load & (group == self.loads - 1)):
            m.d.sync += [full.eq(1), group.eq(0)]
        with m.Elif(load):
            m.d.sync += group.eq(group + 1)
        with m.Elif(change):
            m.d.sync += full.eq(0)

        # what goes with a beat through the trees
        held = Signal(planes_layout(self.inputs).size, reset_less=True)
        with m.If(take):
            m.d.sync += held.eq(to_planes(m, "x", beat.x))
        taken = delay(m, "taken", take, core_latency)
        along = Signal(data.StructLayout({"slot": range(self.slots), "first": 1, "last": 1}))
        m.d.comb += [along.slot.eq(beat.slot), along.first.eq(beat.first), along.last.eq(beat.last)]
        for stage in range(core_latency):
            later = Signal.like(along, name=f"along{stage}", reset_less=True)
            m.d.sync += later.eq(along)
            along = later
        m.d.comb += [totals.r_addr.eq(along.slot), totals.r_en.eq(taken & ~along.first)]
        ending, valid = Signal.like(along, name="ending", reset_less=True), Signal()
        m.d.sync += [ending.eq(along), valid.eq(taken)]

        for k in range(self.trees):
            row = place(
                m,
                "dpe_row",
                f"row{k}",
                row_ports(self.inputs),
                clk=ClockSignal(),
                rst=ResetSignal(),
                x=held,
                weights=Value.cast(weights[k % self.load_rows]),
                load=load & (group == k // self.load_rows),
                swap=swap,
                fresh=ending.first,
                total=totals.r_data[k],
            )
            m.d.comb += [totals.w_data[k].eq(row["y"]), gate.result.y[k].eq(row["y"])]
        m.d.comb += [
            totals.w_addr.eq(ending.slot),
            totals.w_mask.eq((valid & ~ending.last).replicate(self.trees)),
            gate.take.eq(take & beat.last),
            gate.done.eq(valid & ending.last),
            gate.result.slot.eq(ending.slot),
        ]
        wiring.connect(m, wiring.flipped(self.o), gate.o)

        events = {
            Stat.BUSY: take,
            Stat.STARVED: self.i.ready & ~self.i.valid,
            Stat.UNLOADED: self.i.valid & ~tile,
            Stat.BLOCKED: self.i.valid & tile & ~gate.ready,
            Stat.TILES: take & beat.release,
            Stat.RESULTS: self.o.valid & self.o.ready,
        }
        count(m, self, events)
        return m
