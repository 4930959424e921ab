"""Lookahead: reads the records of clusters into the line cache before the SELECT commands that need them."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.line_cache import lookup_port
from hw.dre.kvmu.records import CLUSTER_RECORD, CONTEXT_HEADER, PAGE_RECORD, cluster_block, page_block
from hw.dre.kvmu.sizes import KvmuSizes


class Lookahead(wiring.Component):
    """Walks the chains of several clusters at the same time and makes the line cache read their records.

    A walk reads the record of its cluster and then the records of its pages, in chain order. It asks the cache for one
    block at a time. If the line of the block is not in the cache, the cache requests it from memory, and the walk
    sleeps until the line arrives. Meanwhile the other walks continue, so that as many lines are requested as there are
    walks. SELECT then has its records in the cache.

    A walk ends when the dispatcher accepts the SELECT of its cluster. `restart` ends all walks. The lookahead changes
    nothing: without its reads, a command takes longer and has the same result. A cluster that the context does not have
    starts no walk, and a walk stops at a page that the context does not have.

    Timing: 2 cycles for a block that is in the cache, 1 for another one, and 1 cycle between two blocks; the oldest
    walk that can continue is the next one. It waits while the cache executes a request.

    Parameters
    ----------
    sizes : sizes of the KVMU; there are half as many walks as lines in the cache

    Members
    -------
    i : stream of clusters in the order of their SELECT commands; a cluster waits while all walks are in use
    accepted, cluster : the dispatcher accepts a SELECT of `cluster` in this cycle
    restart : all walks end, and the cluster of this cycle starts none
    context : header of the open context
    cache : lookups of the line cache
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes, self.walks = sizes, sizes.lookahead
        super().__init__(
            {
                "i": In(stream.Signature(sizes.cluster_bits)),
                "accepted": In(1),
                "cluster": In(sizes.cluster_bits),
                "restart": In(1),
                "context": In(CONTEXT_HEADER),
                "cache": Out(lookup_port(sizes.cache_lines)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, walks, number = self.sizes, self.walks, range(self.walks)
        # per walk: cluster, next record (a cluster or a page), pages that are not read; line that it waits for
        cluster = Array(Signal(sizes.cluster_bits, name=f"cluster{n}") for n in number)
        record = Array(Signal(max(sizes.cluster_bits, sizes.page_bits), name=f"record{n}") for n in number)
        remaining = Array(Signal(sizes.page_bits + 1, name=f"remaining{n}") for n in number)
        slot = Array(Signal(range(sizes.cache_lines), name=f"slot{n}") for n in number)
        used, ended, in_pages = Signal(walks), Signal(walks), Signal(walks)
        asleep, blocked = Signal(walks), Signal(walks)  # until the line arrives; until the cache has space
        oldest, newest, chosen = Signal(range(walks)), Signal(range(walks)), Signal(range(walks))

        cache, context = self.cache, self.context
        m.d.comb += [
            cache.address.eq(
                Mux(
                    in_pages.bit_select(chosen, 1),
                    page_block(context, record[chosen][: sizes.page_bits]),
                    cluster_block(context, record[chosen][: sizes.cluster_bits]),
                )
            ),
            cache.release.eq(used == 0),
        ]
        for n in number:
            with m.If((cache.arrived & (slot[n] == cache.arrived_slot)) | (blocked[n] & (cache.arrived | cache.freed))):
                m.d.sync += [asleep[n].eq(0), blocked[n].eq(0)]
        present = Signal()  # the chosen walk continues
        m.d.comb += present.eq((used & ~ended).bit_select(chosen, 1) & ~self.restart)
        with m.FSM(init="CHOOSE"):
            with m.State("CHOOSE"):
                ready = Signal(walks)
                m.d.comb += ready.eq(used & ~ended & ~asleep)
                m.d.sync += chosen.eq(self._first(m, ready, oldest))
                with m.If(ready.any()):
                    m.next = "LOOK_UP"
            with m.State("LOOK_UP"):
                m.d.comb += cache.valid.eq(present)
                with m.If(~present):
                    m.next = "CHOOSE"
                with m.Elif(cache.done & cache.hit):
                    m.next = "ADVANCE"
                with m.Elif(cache.done):
                    m.d.sync += [
                        slot[chosen].eq(cache.slot),
                        asleep.bit_select(chosen, 1).eq(1),
                        blocked.bit_select(chosen, 1).eq(cache.full),
                    ]
                    m.next = "CHOOSE"
            with m.State("ADVANCE"):
                m.next = "CHOOSE"
                self._advance(m, chosen, in_pages, record, remaining, ended)

        pops = self.accepted & used.bit_select(oldest, 1) & (cluster[oldest] == self.cluster)
        m.d.comb += self.i.ready.eq(~used.bit_select(newest, 1))
        pushes = self.i.valid & self.i.ready & (self.i.payload < context.clusters)
        with m.If(pops):
            m.d.sync += [used.bit_select(oldest, 1).eq(0), oldest.eq(_next(oldest, walks))]
        with m.If(pushes):
            m.d.sync += [
                cluster[newest].eq(self.i.payload),
                record[newest].eq(self.i.payload),
                used.bit_select(newest, 1).eq(1),
                *(flags.bit_select(newest, 1).eq(0) for flags in (ended, in_pages, asleep, blocked)),
                newest.eq(_next(newest, walks)),
            ]
        with m.If(self.restart):
            m.d.sync += [used.eq(0), oldest.eq(0), newest.eq(0)]
        return m

    def _first(self, m: Module, ready: Value, oldest: Value) -> Value:
        """The oldest walk of `ready`: the first one from `oldest` on, or the first one of all."""
        later, result = Signal(self.walks), Signal(range(self.walks))
        m.d.comb += later.eq(ready & (Const(-1, self.walks) << oldest)[: self.walks])
        for flags in (ready, later):  # the last assignment holds
            for n in reversed(range(self.walks)):
                with m.If(flags[n]):
                    m.d.comb += result.eq(n)
        return result

    def _advance(
        self, m: Module, chosen: Value, in_pages: Signal, record: Array, remaining: Array, ended: Signal
    ) -> None:
        """Continue with the first page after the record of a cluster, and with the next page after a page."""
        chain, page = data.View(CLUSTER_RECORD, self.cache.data), data.View(PAGE_RECORD, self.cache.data)
        follows, pages = Signal(32), Signal(32)
        m.d.comb += [follows.eq(chain.first_page), pages.eq(chain.pages)]
        with m.If(in_pages.bit_select(chosen, 1)):
            m.d.comb += [follows.eq(page.next), pages.eq(remaining[chosen] - 1)]
        m.d.sync += [
            record[chosen].eq(follows[: self.sizes.page_bits]),
            remaining[chosen].eq(pages[: self.sizes.page_bits + 1]),
            in_pages.bit_select(chosen, 1).eq(1),
        ]
        with m.If((pages == 0) | (follows >= self.context.never_used)):
            m.d.sync += ended.bit_select(chosen, 1).eq(1)


def _next(pointer: Value, walks: int) -> Value:
    return Mux(pointer == walks - 1, 0, pointer + 1)
