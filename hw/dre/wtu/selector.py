"""Base class of the two selectors of the WTU: the read pipeline, the adder tree and the result register."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import Addend, add_all
from hw.dre.wtu.command import TARGET_BITS, SelectionMode, WtuSizes
from hw.dre.wtu.decision import Decision
from hw.dre.wtu.weights import Weights


@dataclass(frozen=True)
class SumPath:
    """Signals and submodules between a read of the key memory and the running sum.

    A beat takes three cycles from the read to the sum: its keys arrive in the first cycle (`loaded`), its weights in
    the second (`weighted`), and the sum of its weights in the third (`summed`). The class only holds the signals;
    `Selector.elaborate` connects them.

    decision : running sum and bucket decision
    weights : weight of every lane
    beat : number of the beat that is read next
    last_read : it is read, and it is the last beat of the row
    loaded, weighted, summed : a beat is in this stage; driven by the selector
    loaded_last, weighted_last, summed_last : this beat is the last one of the row; driven by the selector
    used : lanes of the loaded beat that hold a cluster
    addends : inputs of the adder tree, one per lane; driven by the selector
    finish : the search has ended; driven by the selector
    finished : the result has entered the output register
    """

    decision: Decision
    weights: Weights
    beat: Signal
    last_read: Signal
    loaded: Signal
    weighted: Signal
    summed: Signal
    loaded_last: Signal
    weighted_last: Signal
    summed_last: Signal
    used: Signal
    addends: tuple[Signal, ...]
    finish: Signal
    finished: Signal

    @classmethod
    def create(cls, sizes: WtuSizes) -> "SumPath":
        """Unconnected signals and submodules for a selector of the given sizes."""
        return cls(
            decision=Decision(sizes),
            weights=Weights(sizes),
            beat=Signal(range(sizes.beats), name="beat"),
            last_read=Signal(name="last_read"),
            loaded=Signal(name="loaded"),
            weighted=Signal(name="weighted"),
            summed=Signal(name="summed"),
            loaded_last=Signal(name="loaded_last"),
            weighted_last=Signal(name="weighted_last"),
            summed_last=Signal(name="summed_last"),
            used=Signal(sizes.lanes, name="used"),
            addends=tuple(Signal(sizes.sum_bits, name=f"addend{w}") for w in range(sizes.lanes)),
            finish=Signal(name="finish"),
            finished=Signal(name="finished"),
        )


class Selector(wiring.Component, ABC):
    """Finds the cutoff key of a row. Abstract: `SweepSelector` and `HistogramSelector` implement the bucket search.

    A subclass implements `_search` and the cycle formula. The base class reads the row, weighs and adds its clusters,
    and sends the result.

    Timing
    ------
    `cycles` gives the cycles from accepting a row to being ready for the next row. It is exact while `o` does not
    stall and every read is accepted.

    Parameters
    ----------
    sizes : sizes of the WTU

    Members
    -------
    i : stream of `WtuSizes.row`, accepted when the result leaves ; o : stream of `WtuSizes.choice`
    read, read_at, read_accepted : read of a beat of the row, its address in the pair memory; the beat is valid
    pairs : keys and token counts of this beat, one cycle later
    mode, refine, target : values of the ports `cfg_*` of the WTU
    busy : a row is in the selector
    blocked : a finished row waits until the previous result has left
    """

    latency = None
    formula = ""  # text of `cycles`

    def __init__(self, sizes: WtuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.row)),
                "o": Out(stream.Signature(sizes.choice)),
                "read": Out(1),
                "read_at": Out(range(sizes.pair_beats)),
                "read_accepted": In(1),
                "pairs": In(sizes.pair),
                "mode": In(SelectionMode),
                "refine": In(range(sizes.levels)),
                "target": In(TARGET_BITS),
                "busy": Out(1),
                "blocked": Out(1),
            }
        )

    @staticmethod
    def memory_bits(sizes: WtuSizes) -> dict[str, int]:
        """Memories that only this selector has, in bits."""
        return {}

    @staticmethod
    def reset_cycles(sizes: WtuSizes) -> int:
        """Cycles after a reset until the selector accepts a row."""
        return 0

    @staticmethod
    @abstractmethod
    def cycles(sizes: WtuSizes, beats: int, passes: int, levels: int, is_long: bool = False) -> int:
        """Cycles of a row of `beats` beats when `passes` buckets are examined in `levels` levels."""

    @staticmethod
    @abstractmethod
    def reads(passes: int, levels: int) -> int:
        """Reads of all beats of a long row in the selector."""

    @abstractmethod
    def _search(self, m: Module, path: SumPath) -> None:
        """Add the bucket search: drive `read`, `busy`, the stages and `addends` of `path`, and its decision."""

    def elaborate(self, platform: object) -> Module:
        m = Module()
        path = SumPath.create(self.sizes)
        m.submodules.decision, m.submodules.weights = path.decision, path.weights
        self._read_row(m, path)
        self._add_weights(m, path)
        self._send_choice(m, path)
        self._search(m, path)
        return m

    def _read_row(self, m: Module, path: SumPath) -> None:
        """Count the beats of the row; the address follows from the first beat of the row."""
        row = self.i.payload
        m.d.comb += [
            path.last_read.eq(self.read_accepted & (path.beat + 1 == row.beats)),
            self.read_at.eq((row.start + path.beat)[: len(self.read_at)]),
        ]
        with m.If(self.read_accepted):
            m.d.sync += path.beat.eq(Mux(path.last_read, 0, path.beat + 1))

    def _add_weights(self, m: Module, path: SumPath) -> None:
        """Weigh the loaded beat and add the addends of all lanes in one cycle."""
        row, decision, weights, sizes = self.i.payload, path.decision, path.weights, self.sizes
        total = add_all(m, [Addend(addend) for addend in path.addends], sizes.sum_bits)
        m.d.sync += decision.amount.eq(total)
        m.d.comb += [
            weights.load.eq(path.loaded),
            weights.pairs.eq(self.pairs),
            weights.high.eq(row.high),
            weights.mode.eq(self.mode),
            *(path.used[w].eq(~path.loaded_last | (w < row.tail)) for w in range(sizes.lanes)),
            decision.row_low.eq(row.low),
            decision.row_high.eq(row.high),
            decision.mode.eq(self.mode),
            decision.refine.eq(self.refine),
            decision.target.eq(self.target),
        ]

    def _send_choice(self, m: Module, path: SumPath) -> None:
        """Send the result through a register, so that the next row starts while this one is reported."""
        choice, row = self.o.payload, self.i.payload
        m.d.comb += [
            path.finished.eq(path.finish & (~self.o.valid | self.o.ready)),
            self.blocked.eq(path.finish & ~path.finished),
            self.i.ready.eq(path.finished),
        ]
        with m.If(self.o.ready):
            m.d.sync += self.o.valid.eq(0)
        with m.If(path.finished):
            m.d.sync += self.o.valid.eq(1)
            for name in ("start", "beats", "tail", "join", "long"):
                m.d.sync += Value.cast(choice[name]).eq(row[name])
            for name in ("cutoff", "passes", "limited", "tie_count"):
                m.d.sync += Value.cast(choice[name]).eq(getattr(path.decision, name))
