"""Age list of the KVMU: occupied page frames in the order in which they were entered."""

from amaranth import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram


class AgeList(wiring.Component):
    """Doubly linked list of up to `size` page frames, oldest first. Any member can be removed.

    `push` and `remove` must not come in the same cycle. `remove` removes the page frame of the last `read`, at the
    earliest one cycle after `read`.

    Parameters
    ----------
    size : page frames, at least 2
    owners : page numbers are below this number, at least 2

    Members
    -------
    count, oldest : number of members; page frame of the oldest member, valid while count > 0
    push, push_page_frame, push_owner : enter a page frame as the newest member, with the page that owns it
    read, read_page_frame : show `row` of a member from the next cycle on
    row : owner and neighbours of this member
    remove : remove the member of the last `read`
    clear : remove all members

    Raises
    ------
    ValueError
        If a size is below 2.
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
                "push_page_frame": In(range(size)),
                "push_owner": In(range(owners)),
                "read": In(1),
                "read_page_frame": In(range(size)),
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
        newest, page_frame = Signal(range(self.size)), Signal(range(self.size))
        for ram, column in ((owner, self.row.owner), (older, self.row.older), (newer, self.row.newer)):
            m.d.comb += [ram.r_en.eq(self.read), ram.r_addr.eq(self.read_page_frame), column.eq(ram.r_data[0])]
        with m.If(self.read):
            m.d.sync += page_frame.eq(self.read_page_frame)
        m.d.comb += [
            owner.w_addr.eq(self.push_page_frame),
            owner.w_data[0].eq(self.push_owner),
            owner.w_mask.eq(self.push),
        ]
        with m.If(self.push):
            m.d.comb += [
                older.w_addr.eq(self.push_page_frame),
                older.w_data[0].eq(newest),
                older.w_mask.eq(1),
                newer.w_addr.eq(newest),
                newer.w_data[0].eq(self.push_page_frame),
                newer.w_mask.eq(self.count != 0),
            ]
            m.d.sync += [newest.eq(self.push_page_frame), self.count.eq(self.count + 1)]
            with m.If(self.count == 0):
                m.d.sync += self.oldest.eq(self.push_page_frame)
        with m.Elif(self.remove):
            m.d.comb += [
                newer.w_addr.eq(self.row.older),
                newer.w_data[0].eq(self.row.newer),
                newer.w_mask.eq(page_frame != self.oldest),
                older.w_addr.eq(self.row.newer),
                older.w_data[0].eq(self.row.older),
                older.w_mask.eq(page_frame != newest),
            ]
            m.d.sync += self.count.eq(self.count - 1)
            with m.If(page_frame == self.oldest):
                m.d.sync += self.oldest.eq(self.row.newer)
            with m.If(page_frame == newest):
                m.d.sync += newest.eq(self.row.older)
        with m.If(self.clear):
            m.d.sync += self.count.eq(0)
        return m
