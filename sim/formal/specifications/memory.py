"""Specifications of memories with one port; the docstring of each class is the property."""

from amaranth import Module, Mux, ResetSignal, Signal, Value
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import BufferedRam
from hw.dre.wtu.beat_memory import BeatMemory
from sim.formal.specifications.common import constant


class BufferedRamSpec(wiring.Component):
    """A read returns what was written last, if there is a cycle without a read between two writes.

    The specification tracks one bit of an arbitrary row. The data is valid until the cycle after the next read or
    write.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "write": In(2),
                "w_addr": In(1),
                "w_data": In(2),
                "read": In(1),
                "r_addr": In(1),
                "row": In(1),
                "word": In(1),
                "cover_waited": Out(1),
                "cover_same_cycle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = BufferedRam(depth=2, width=1, words=2)
        constant(m, self.row, self.word)
        waits = Signal()  # no cycle without a read since the last write
        content, expected, valid, waited = Signal(), Signal(), Signal(), Signal()
        arrives = self.write.any()
        written = self.write.bit_select(self.word, 1) & (self.w_addr == self.row)
        new_content = Mux(written, self.w_data.bit_select(self.word, 1), content)
        m.d.comb += [
            Assume(~ResetSignal()),
            Assume(~(waits & self.read & arrives)),
            memory.w_addr.eq(self.w_addr),
            memory.w_mask.eq(self.write),
            Value.cast(memory.w_data).eq(self.w_data),
            memory.r_addr.eq(self.r_addr),
            memory.r_en.eq(self.read),
            Assert(~valid | (Value.cast(memory.r_data).bit_select(self.word, 1) == expected)),
            self.cover_waited.eq(self.read & waits & (self.r_addr == self.row) & content & waited),
            self.cover_same_cycle.eq(self.read & written & (self.r_addr == self.row)),
        ]
        m.d.sync += [content.eq(new_content), waits.eq(arrives | (waits & self.read)), waited.eq(written)]
        with m.If(self.read):
            m.d.sync += [valid.eq(self.r_addr == self.row), expected.eq(new_content)]
        with m.Elif(arrives):
            m.d.sync += valid.eq(0)
        return m


class BeatMemorySpec(wiring.Component):
    """A read returns what was written last, if writer and readers keep the rules of `BeatMemory`.

    The specification tracks an arbitrary position. The writer fills a ring in order, whenever a beat is ready to be
    written. Reader 0 reads any position. The last of two readers empties the ring in order and updates beats that it
    has read.
    """

    DEPTH = 8

    def __init__(self, readers: int):
        self.readers = readers
        super().__init__(
            {
                "offer": In(1),
                "w_data": In(1),
                "read": In(readers),
                "position": In(range(self.DEPTH)),
                "update": In(1),
                "u_data": In(1),
                "tracked": In(range(self.DEPTH)),
                "cover_read": Out(1),
                "cover_waits": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = BeatMemory(depth=self.DEPTH, width=1, lanes=1, readers=self.readers)
        constant(m, self.tracked)
        head, tail = Signal(range(self.DEPTH)), Signal(range(self.DEPTH))
        level = Signal(range(self.DEPTH + 1))
        content, known = Signal(), Signal()
        read_before, last_before = Signal(), Signal(range(self.DEPTH))
        reads = [self.read[0], self.read[-1]]
        places = [self.position, tail if self.readers == 2 else self.position]
        write, hit = Signal(), Signal(self.readers)
        written = write & (head == self.tracked)
        updated = self.update & (last_before == self.tracked)
        m.d.comb += [
            Assume(~ResetSignal()),
            write.eq(self.offer & memory.w_ready & (level != self.DEPTH)),
            memory.write.eq(write),
            memory.w_at.eq(head),
            memory.w_data.eq(self.w_data),
            memory.update.eq(self.update),
            memory.u_data.eq(self.u_data),
        ]
        for reader in range(self.readers):
            m.d.comb += [
                memory.read[reader].eq(reads[reader]),
                memory.r_at[reader].eq(places[reader]),
                hit[reader].eq(reads[reader] & (places[reader] == self.tracked)),
            ]
            shown, expected = Signal(name=f"shown{reader}"), Signal(name=f"expected{reader}")
            m.d.sync += [shown.eq(hit[reader] & known), expected.eq(content)]
            m.d.comb += Assert(~shown | (Value.cast(memory.r_data[reader]) == expected))
            same = reads[reader] & (places[reader][0] == last_before[0])
            m.d.comb += Assume(~(self.update & same))
        if self.readers == 2:
            m.d.comb += [
                Assume(~reads[1] | (level != 0)),
                Assume(~(reads[0] & reads[1] & (places[0][0] == places[1][0]))),
                Assume(~self.update | (read_before & ~write)),
            ]
            m.d.sync += [
                read_before.eq(reads[1]),
                last_before.eq(tail),
                tail.eq((tail + reads[1])[: len(tail)]),
            ]
        else:  # any beats are freed
            m.d.comb += Assume(~self.update)
        frees = reads[1] if self.readers == 2 else level != 0
        m.d.sync += [head.eq((head + write)[: len(head)]), level.eq((level + write - frees)[: len(level)])]
        with m.If(written):
            m.d.sync += [content.eq(self.w_data), known.eq(1)]
        with m.Elif(updated):
            m.d.sync += content.eq(self.u_data)
        m.d.comb += [
            self.cover_read.eq(hit.any() & content & known),
            self.cover_waits.eq(self.offer & ~memory.w_ready),
        ]
        return m
