"""Age list: which frames are occupied, by whom, and in which order they were entered."""

from amaranth import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram


class AgeList(wiring.Component):
    """Doubly linked list over `size` frames, oldest first; any member can leave.

    `push` and `remove` never come in the same cycle. `remove` acts on the frame whose `row` is presented, so it
    comes at the earliest one cycle after `read`.

    Parameters
    ----------
    size : frames
    owners : owners are numbers below this

    Members
    -------
    count, oldest : members, and the frame of the first (valid while count > 0)
    push, push_frame, push_owner : enter a frame as the newest
    read, read_frame : present `row` of a member from the next cycle on
    row : its owner and its neighbours
    remove : take `read_frame` of the last `read` out
    clear : forget everything
    """

    def __init__(self, *, size: int, owners: int):
        for name, value in (("size", size), ("owners", owners)):
            if value < 2:
                raise ValueError(f"{name} must be at least 2, got {value}")
        self.size, self.owners = size, owners
        self.layout = data.StructLayout(
            {"owner": (owners - 1).bit_length(), "older": (size - 1).bit_length(), "newer": (size - 1).bit_length()}
        )
        super().__init__(
            {
                "count": Out(range(size + 1)),
                "oldest": Out(range(size)),
                "push": In(1),
                "push_frame": In(range(size)),
                "push_owner": In(range(owners)),
                "read": In(1),
                "read_frame": In(range(size)),
                "row": Out(self.layout),
                "remove": In(1),
                "clear": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.owner = owner = Ram(depth=self.size, width=len(self.push_owner))
        m.submodules.older = older = Ram(depth=self.size, width=len(self.oldest))
        m.submodules.newer = newer = Ram(depth=self.size, width=len(self.oldest))
        newest, frame = Signal(range(self.size)), Signal(range(self.size))
        for ram, column in ((owner, self.row.owner), (older, self.row.older), (newer, self.row.newer)):
            m.d.comb += [ram.r_en.eq(self.read), ram.r_addr.eq(self.read_frame), column.eq(ram.r_data[0])]
        with m.If(self.read):
            m.d.sync += frame.eq(self.read_frame)
        m.d.comb += [owner.w_addr.eq(self.push_frame), owner.w_data[0].eq(self.push_owner), owner.w_mask.eq(self.push)]
        with m.If(self.push):
            m.d.comb += [
                older.w_addr.eq(self.push_frame),
                older.w_data[0].eq(newest),
                older.w_mask.eq(1),
                newer.w_addr.eq(newest),
                newer.w_data[0].eq(self.push_frame),
                newer.w_mask.eq(self.count != 0),
            ]
            m.d.sync += [newest.eq(self.push_frame), self.count.eq(self.count + 1)]
            with m.If(self.count == 0):
                m.d.sync += self.oldest.eq(self.push_frame)
        with m.Elif(self.remove):
            m.d.comb += [
                newer.w_addr.eq(self.row.older),
                newer.w_data[0].eq(self.row.newer),
                newer.w_mask.eq(frame != self.oldest),
                older.w_addr.eq(self.row.newer),
                older.w_data[0].eq(self.row.older),
                older.w_mask.eq(frame != newest),
            ]
            m.d.sync += self.count.eq(self.count - 1)
            with m.If(frame == self.oldest):
                m.d.sync += self.oldest.eq(self.row.newer)
            with m.If(frame == newest):
                m.d.sync += newest.eq(self.row.older)
        with m.If(self.clear):
            m.d.sync += self.count.eq(0)
        return m
