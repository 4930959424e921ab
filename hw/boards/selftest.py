"""A unit's vectors in the fabric: plays the inputs, compares every beat of the outputs, says whether all were equal."""

from __future__ import annotations

from amaranth import Cat, Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.boards.protocol import Vectors, echoed, table

ECHO_DEPTH = 32  # answers under way
DRAIN = 256  # cycles after the last beat in which none may follow


class Player(wiring.Component):
    """Words from a memory, one after the other, from `begin` on; `done` when the last was taken.

    Timing: one word per cycle, the first two cycles after `begin`.

    Members
    -------
    begin : start over ; o : stream of words ; done : none is left
    """

    def __init__(self, words: list[int], *, width: int):
        self.words, self.width = words, width
        super().__init__({"begin": In(1), "o": Out(stream.Signature(width)), "done": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.rom = rom = memory.Memory(shape=self.width, depth=max(1, len(self.words)), init=self.words)
        read = rom.read_port()
        index, following = Signal(range(len(self.words) + 1)), Signal(range(len(self.words) + 1))
        m.d.comb += [
            following.eq(index + (self.o.valid & self.o.ready)),
            read.addr.eq(following),
            read.en.eq(1),
            self.o.payload.eq(read.data),
            self.done.eq(index == len(self.words)),
        ]
        m.d.sync += [index.eq(following), self.o.valid.eq(following != len(self.words))]
        with m.If(self.begin):
            m.d.sync += [index.eq(0), self.o.valid.eq(0)]
        return m


class SelfTest(wiring.Component):
    """Runs `vectors` through a unit.

    Timing: `busy` from `begin` to the end: all beats and `DRAIN` cycles, or `patience` cycles without a beat.

    Parameters
    ----------
    unit : what the streams belong to; not instantiated here
    vectors : what to play and to expect
    patience : cycles after which a unit that rests has failed

    Members
    -------
    begin : start, while the unit is in reset ; stop : end, as failed
    busy, passed : under way; the last run was equal throughout
    to_NAME, from_NAME : streams to the unit's inputs and from its outputs
    """

    def __init__(self, unit: wiring.Component, vectors: Vectors, *, patience: int = 1 << 20):
        self.unit, self.vectors, self.patience, self.table = unit, vectors, patience, table(unit)
        super().__init__(
            {
                "begin": In(1),
                "stop": In(1),
                "busy": Out(1),
                "passed": Out(1),
                **{f"to_{one.name}": Out(stream.Signature(one.width)) for one in self.table.inputs},
                **{f"from_{one.name}": In(stream.Signature(one.width)) for one in self.table.outputs},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        played, beats, wrong, done = [], [], [], []
        answers = dict(self.vectors.echo)
        fifos: dict[str, tuple[str, SyncFIFOBuffered]] = {}
        for one in self.table.inputs:
            out = getattr(self, f"to_{one.name}")
            if one.name in answers:
                fifo = SyncFIFOBuffered(width=one.width, depth=ECHO_DEPTH)
                m.submodules[f"echo_{one.name}"] = fifo
                fifos[answers[one.name]] = (one.name, fifo)
                m.d.comb += [out.valid.eq(fifo.r_rdy), out.payload.eq(fifo.r_data), fifo.r_en.eq(out.ready)]
                done.append(~fifo.r_rdy)
            else:
                player = Player(self.vectors.inputs.get(one.name, []), width=one.width)
                m.submodules[f"play_{one.name}"] = player
                m.d.comb += [out.valid.eq(player.o.valid & self.busy), out.payload.eq(player.o.payload)]
                m.d.comb += [player.o.ready.eq(out.ready & self.busy), player.begin.eq(self.begin)]
                done.append(player.done)
                played.append(out.valid & out.ready)
        for one in self.table.outputs:
            into = getattr(self, f"from_{one.name}")
            expected = Player(self.vectors.outputs.get(one.name, []), width=one.width)
            m.submodules[f"expect_{one.name}"] = expected
            room = 1
            if one.name in fifos:
                answer, fifo = fifos[one.name]
                fields = echoed(self.unit, answer, one.name)
                word = Signal(len(fifo.w_data), name=f"answer_{answer}")
                for source, target, width in fields:
                    m.d.comb += word[target : target + width].eq(into.payload[source : source + width])
                m.d.comb += [fifo.w_data.eq(word), fifo.w_en.eq(into.valid & into.ready)]
                room = fifo.w_rdy
            # a beat too many is taken too, and is wrong
            m.d.comb += into.ready.eq(self.busy & room & (expected.o.valid | expected.done))
            beat = Signal(name=f"beat_{one.name}")
            m.d.comb += [beat.eq(into.valid & into.ready), expected.o.ready.eq(beat), expected.begin.eq(self.begin)]
            beats.append(beat)
            wrong.append(beat & (expected.done | (into.payload != expected.o.payload)))
            done.append(expected.done)
        rest = Signal(range(max(self.patience, DRAIN) + 1))
        moving, complete = Cat(*played, *beats).any(), Cat(*done).all()
        with m.If(self.busy):
            m.d.sync += rest.eq(rest + 1)
            with m.If(moving):
                m.d.sync += rest.eq(0)
            with m.If(Cat(*wrong).any() | (rest == self.patience) | self.stop):
                m.d.sync += [self.busy.eq(0), self.passed.eq(0)]
            with m.Elif(complete & ~moving & (rest >= DRAIN)):
                m.d.sync += [self.busy.eq(0), self.passed.eq(1)]
        with m.If(self.begin):
            m.d.sync += [self.busy.eq(1), self.passed.eq(0), rest.eq(0)]
        return m
