"""Page frames of device memory: free list, and the resident pages in order of age."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import access_port, element, reading, writing
from hw.dre.kvmu.records import FRAME_RECORD, NONE, STORE_HEADER, frame_block
from hw.dre.kvmu.sizes import FrameAction, KvmuSizes, edit, header_port

OLDER, NEWER = 2, 3  # words of a page frame record


class PageFrames(wiring.Component):
    """Allocates the page frame of a page, which becomes the newest one, renews page frames and releases them.

    The records of the page frames form two lists: the free frames, which are used again oldest first, and the frames of
    resident pages in order of age.

    Timing: 3 to 4 accesses per allocation, 2 to 5 per release, 1 to 5 to renew.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    call : requests {action, frame, context, page} of the editors; a request is held until it is accepted, in the cycle
        in which it is complete. `frame` is then the allocated frame. `available`: a frame is free; valid between
        requests
    memory : accesses to the store ; store : header of the store
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "call": In(sizes.frame_call),
                "memory": Out(access_port()),
                "store": Out(header_port(STORE_HEADER)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        store, request = self.store.value, self.call.request
        number, older, newer = (Signal(32, name=name) for name in ("number", "older", "newer"))
        reuse = store.free_count != 0
        m.d.comb += [
            self.store.next.eq(store),
            self.call.frame.eq(number[: self.sizes.frame_bits]),
            self.call.available.eq(reuse | (store.never_used != store.page_frames)),
        ]
        with m.FSM(init="IDLE"):
            with m.State("IDLE"), m.If(request.valid):
                with m.If(request.payload.action != FrameAction.TAKE):
                    m.d.sync += number.eq(request.payload.frame)
                    m.next = "READ_FRAME"
                with m.Else():
                    m.d.sync += [number.eq(Mux(reuse, store.free_first, store.never_used)), newer.eq(NONE)]
                    m.next = "WRITE_FRAME"
                    with m.If(reuse):
                        m.next = "READ_FREE"
            self._allocate(m, number, newer)
            self._unlink(m, number, older, newer)
            self._renew(m, number, older, newer)
            self._release(m, number, older, newer)
        return m

    def _word(self, frame: Value, word: int, value: Value) -> tuple[Value, Value]:
        return element(value, 32, Cat(Const(word, 2), frame[0]))

    def _allocate(self, m: Module, number: Signal, next_free: Signal) -> None:
        """Take a frame from the free list, or one that was never used, and append it to the list of ages."""
        store, request = self.store.value, self.call.request
        reuse, empty = store.free_count != 0, store.newest == NONE
        with reading(m, self.memory, "READ_FREE", frame_block(store, number)) as content:
            m.d.sync += next_free.eq(_record(content, number).newer)
            m.next = "WRITE_FRAME"
        record = Signal(FRAME_RECORD)
        m.d.comb += [
            record.context.eq(request.payload.context),
            record.page.eq(request.payload.page),
            record.older.eq(store.newest),
            record.newer.eq(NONE),
        ]
        parts = element(record, FRAME_RECORD.size, number[:1])
        with writing(m, self.memory, "WRITE_FRAME", frame_block(store, number), parts):
            m.next = "LINK_NEWEST"
            with m.If(empty):
                m.next = "ALLOCATED"
        with writing(
            m, self.memory, "LINK_NEWEST", frame_block(store, store.newest), self._word(store.newest, NEWER, number)
        ):
            m.next = "ALLOCATED"
        with m.State("ALLOCATED"):
            m.d.comb += [
                request.ready.eq(1),
                *edit(
                    self.store,
                    newest=number,
                    oldest=Mux(empty, number, store.oldest),
                    never_used=Mux(reuse, store.never_used, store.never_used + 1),
                    free_count=Mux(reuse, store.free_count - 1, 0),
                    free_first=Mux(reuse, next_free, store.free_first),
                    free_last=Mux(store.free_count == 1, NONE, store.free_last),
                    resident_pages=store.resident_pages + 1,
                ),
            ]
            m.next = "IDLE"

    def _unlink(self, m: Module, number: Signal, older: Signal, newer: Signal) -> None:
        """Unlink a frame from the list of ages, which does not change if the newest frame is to be renewed."""
        store, renews = self.store.value, self.call.request.payload.action == FrameAction.RENEW
        oldest, newest = older == NONE, newer == NONE
        with reading(m, self.memory, "READ_FRAME", frame_block(store, number)) as content:
            record = _record(content, number)
            m.d.sync += [older.eq(record.older), newer.eq(record.newer)]
            m.next = "LINK_OLDER"
            with m.If(renews & (record.newer == NONE)):
                m.next = "RENEWED"
        with m.State("LINK_OLDER"):
            m.next = "WRITE_OLDER"
            with m.If(oldest):
                m.next = "LINK_NEWER"
        with writing(m, self.memory, "WRITE_OLDER", frame_block(store, older), self._word(older, NEWER, newer)):
            m.next = "LINK_NEWER"
        with m.State("LINK_NEWER"):
            m.next = "WRITE_NEWER"
            with m.If(newest):
                m.next = "WRITE_FREE"
        with writing(m, self.memory, "WRITE_NEWER", frame_block(store, newer), self._word(newer, OLDER, older)):
            m.next = "WRITE_FREE"
            with m.If(renews):
                m.next = "WRITE_AGES"

    def _renew(self, m: Module, number: Signal, older: Signal, newer: Signal) -> None:
        """Append an unlinked frame to the list of ages."""
        store, newest = self.store.value, self.store.value.newest
        ages = element(Cat(newest, Const(NONE, 32)), 64, Cat(Const(1, 1), number[0]))  # fields older and newer
        with writing(m, self.memory, "WRITE_AGES", frame_block(store, number), ages):
            m.next = "LINK_RENEWED"
        parts = self._word(newest, NEWER, number)
        with writing(m, self.memory, "LINK_RENEWED", frame_block(store, newest), parts):
            m.next = "RENEWED"
        with m.State("RENEWED"):
            m.d.comb += [
                self.call.request.ready.eq(1),
                *edit(
                    self.store,
                    newest=number,
                    oldest=Mux((older == NONE) & (newer != NONE), newer, store.oldest),
                ),
            ]
            m.next = "IDLE"

    def _release(self, m: Module, number: Signal, older: Signal, newer: Signal) -> None:
        """Append an unlinked frame to the free list."""
        store = self.store.value
        oldest, newest, reuse = older == NONE, newer == NONE, store.free_count != 0
        free = Cat(Const(NONE, 32), Const(0, 32), Const(NONE, 32), Const(NONE, 32))
        parts = element(free, FRAME_RECORD.size, number[:1])
        with writing(m, self.memory, "WRITE_FREE", frame_block(store, number), parts):
            m.next = "LINK_FREE"
            with m.If(~reuse):
                m.next = "RELEASED"
        last = store.free_last
        with writing(m, self.memory, "LINK_FREE", frame_block(store, last), self._word(last, NEWER, number)):
            m.next = "RELEASED"
        with m.State("RELEASED"):
            m.d.comb += [
                self.call.request.ready.eq(1),
                *edit(
                    self.store,
                    oldest=Mux(oldest, newer, store.oldest),
                    newest=Mux(newest, older, store.newest),
                    free_first=Mux(reuse, store.free_first, number),
                    free_last=number,
                    free_count=store.free_count + 1,
                    resident_pages=store.resident_pages - 1,
                ),
            ]
            m.next = "IDLE"


def _record(content: Value, number: Value) -> data.View:
    """Record of a page frame from its block."""
    return data.View(FRAME_RECORD, content.word_select(number[0], FRAME_RECORD.size))
