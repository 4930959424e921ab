"""Free pages of the open context."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import access_port, page_words, reading, writing
from hw.dre.kvmu.records import CONTEXT_HEADER, NONE, PAGE_RECORD, PAGE_WORDS, page_block
from hw.dre.kvmu.sizes import KvmuSizes, edit, header_port


class FreePages(wiring.Component):
    """Allocates and releases page numbers of the open context. Free pages are used again, oldest first.

    The free pages are a list: the context header has its first and last page, each record the next one. A page number
    from the list is preferred to one that was never used. A release clears the record of the page.

    Timing: at most 1 access per allocation, 1 to 2 per release.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    call : requests {release, page} of the editors; a request is held until it is accepted, in the cycle in which it is
        complete. `page` is then the allocated page; `available`: a page is free, valid between requests
    memory : accesses to the store ; context : header of the open context
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "call": In(sizes.page_call),
                "memory": Out(access_port()),
                "context": Out(header_port(CONTEXT_HEADER)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        context, request = self.context.value, self.call.request
        reuse, next_free = context.free_count != 0, Signal(32)
        page = request.payload.page
        m.d.comb += [
            self.context.next.eq(context),
            self.call.page.eq(Mux(reuse, context.free_first, context.never_used)[: self.sizes.page_bits]),
            self.call.available.eq(reuse | (context.never_used != context.max_pages)),
        ]
        with m.FSM(init="IDLE"):
            with m.State("IDLE"), m.If(request.valid):
                m.next = "ALLOCATED"
                with m.If(request.payload.release):
                    m.next = "CLEAR"
                with m.Elif(reuse):
                    m.next = "READ_FREE"
            with reading(m, self.memory, "READ_FREE", page_block(context, context.free_first)) as content:
                m.d.sync += next_free.eq(data.View(PAGE_RECORD, content).next)
                m.next = "ALLOCATED"
            with m.State("ALLOCATED"):
                m.d.comb += [
                    request.ready.eq(1),
                    *edit(
                        self.context,
                        never_used=Mux(reuse, context.never_used, context.never_used + 1),
                        free_count=Mux(reuse, context.free_count - 1, 0),
                        free_first=Mux(reuse, next_free, context.free_first),
                        free_last=Mux(context.free_count == 1, NONE, context.free_last),
                    ),
                ]
                m.next = "IDLE"
            cleared = page_words(**dict.fromkeys(PAGE_WORDS, 0) | {"next": NONE})
            with writing(m, self.memory, "CLEAR", page_block(context, page), cleared):
                m.next = "RELEASED"
                with m.If(reuse):
                    m.next = "LINK_FREE"
            last = page_block(context, context.free_last)
            with writing(m, self.memory, "LINK_FREE", last, page_words(next=page)):
                m.next = "RELEASED"
            with m.State("RELEASED"):
                m.d.comb += [
                    request.ready.eq(1),
                    *edit(
                        self.context,
                        free_first=Mux(reuse, context.free_first, page),
                        free_last=page,
                        free_count=context.free_count + 1,
                    ),
                ]
                m.next = "IDLE"
        return m
