"""What is proved of the KVMU and its parts; each specification's docstring is the property."""

from amaranth import Cat, Module, Signal
from amaranth.hdl import Assert, Assume
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.dre.age_list import AgeList
from hw.dre.free_list import FreeList


class FreeListSpec(wiring.Component):
    """No number is lent twice and none is lost: one is on offer exactly while some are not lent, and it is one of them.

    The list relies on its owner to give back only what is lent.
    """

    def __init__(self, size: int):
        self.size = size
        ports = {"take": In(1), "give": In(1), "give_number": In(range(size)), "clear": In(1)}
        super().__init__({**ports, "cover_exhausted": Out(1), "cover_used_again": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.list = free = FreeList(size=self.size)
        lent = Signal(self.size)
        m.d.comb += [
            free.take.eq(self.take),
            free.give.eq(self.give),
            free.give_number.eq(self.give_number),
            free.clear.eq(self.clear),
            Assume(~self.give | lent.bit_select(self.give_number, 1)),
            Assert(free.available == ~lent.all()),
            Assert(~free.available | ~lent.bit_select(free.number, 1)),
            self.cover_exhausted.eq(lent.all()),
            self.cover_used_again.eq((free.fresh == self.size) & free.available & (free.number == self.size - 1)),
        ]
        with m.If(self.take & free.available):
            m.d.sync += lent.bit_select(free.number, 1).eq(1)
        with m.If(self.give):
            m.d.sync += lent.bit_select(self.give_number, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += lent.eq(0)
        return m


class AgeListSpec(wiring.Component):
    """The list is the order of entry of its members: the oldest one, and every member's owner and neighbours.

    Beside the list stands a matrix: which frame was entered before which. The list relies on its owner to enter
    only frames that are not members and to remove only the member it has read.
    """

    def __init__(self, size: int, owners: int):
        self.size, self.owners = size, owners
        ports = {
            "push": In(1),
            "frame": In(range(size)),
            "owner": In(range(owners)),
            "read": In(1),
            "read_frame": In(range(size)),
            "remove": In(1),
            "clear": In(1),
        }
        super().__init__({**ports, "cover_full": Out(1), "cover_middle_removed": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.list = ages = AgeList(size=self.size, owners=self.owners)
        frames = range(self.size)
        member, shown = Signal(self.size), Signal(range(self.size))
        before = [Signal(self.size, name=f"before{f}") for f in frames]  # bit g: frame g is older than f
        owner = [Signal(range(self.owners), name=f"owner{f}") for f in frames]
        reading = Signal()
        older = Signal(self.size)
        m.d.comb += [
            ages.push.eq(self.push),
            ages.push_frame.eq(self.frame),
            ages.push_owner.eq(self.owner),
            ages.read.eq(self.read),
            ages.read_frame.eq(self.read_frame),
            ages.remove.eq(self.remove),
            ages.clear.eq(self.clear),
            Assume(~(self.push & self.remove) & ~(self.push & member.bit_select(self.frame, 1))),
            Assume(~self.read | member.bit_select(self.read_frame, 1)),
            Assume(~self.remove | (reading & ~self.read)),
            Assert(ages.count == sum(member[f] for f in frames)),
        ]
        # a row belongs to the list as it was when it was read
        m.d.sync += reading.eq(self.read & ~self.push & ~self.clear)
        with m.If(self.read):
            m.d.sync += shown.eq(self.read_frame)
        for f in frames:
            with m.If(shown == f):
                m.d.comb += older.eq(before[f] & member)
            others = [member[g] & before[g][f] for g in frames]  # what is newer than f
            m.d.comb += Assert(~member[f] | (before[f] & member).any() | (ages.oldest == f))
            with m.If(reading & (shown == f)):
                m.d.comb += Assert(ages.row.owner == owner[f])
                for g in frames:
                    nearest = ~Cat(member[h] & before[f][h] & before[h][g] for h in frames).any()
                    m.d.comb += Assert(~(member[g] & before[f][g] & nearest) | (ages.row.older == g))
                    next_one = ~Cat(others[h] & before[g][h] for h in frames).any()
                    m.d.comb += Assert(~(others[g] & next_one) | (ages.row.newer == g))
        m.d.comb += [
            self.cover_full.eq(member.all()),
            self.cover_middle_removed.eq(self.remove & older.any() & (ages.count == self.size)),
        ]
        with m.If(self.push):
            m.d.sync += member.bit_select(self.frame, 1).eq(1)
            for f in frames:
                with m.If(self.frame == f):
                    m.d.sync += [before[f].eq(member), owner[f].eq(self.owner)]
                with m.Else():
                    m.d.sync += before[f].bit_select(self.frame, 1).eq(0)
        with m.If(self.remove):
            m.d.sync += member.bit_select(shown, 1).eq(0)
        with m.If(self.clear):
            m.d.sync += member.eq(0)
        return m
