"""Page editor: changes the state of pages and releases pages."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import count_ones
from hw.dre.kvmu.access import access_port, cluster_words, element, page_words, reading, writing
from hw.dre.kvmu.command import COUNT_BITS, Fault, Op
from hw.dre.kvmu.records import (
    CLUSTER_RECORD,
    CONTEXT_HEADER,
    NONE,
    PAGE_RECORD,
    STORE_HEADER,
    cluster_block,
    count_block,
    page_block,
    state_word,
)
from hw.dre.kvmu.sizes import FrameAction, KvmuSizes, Report, edit, header_port
from hw.dre.transfer import Tier, TransferKind


@dataclass(frozen=True)
class Page:
    """Registers of the page in work.

    number, record : its number and its record
    chain : record of its cluster
    skip, quota : pages that EVICT still skips, and removes
    releasing : the page is released for the chain editor, without a command
    """

    number: Signal
    record: data.View
    chain: data.View
    skip: Signal
    quota: Signal
    releasing: Signal


class PageEditor(wiring.Component):
    """Executes SEAL, HOLD, MIGRATE, FREE and EVICT, and releases the pages that MOVE has emptied.

    SEAL, HOLD and MIGRATE read a page record, change flags or references, and write it. FREE drops a reference; a page
    that loses its last one leaves the chain of its cluster (UNCHAIN), then its page frame and its number become free
    (DROP). EVICT walks the chain of a cluster, skips the first pages, and removes the next ones in the same way. A page
    with further references leaves the chain, but stays in use (KEEP_PAGE).

    Timing: SEAL, HOLD, MIGRATE 2 accesses; a release 4 to 15 accesses.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of commands, accepted with its result ; o : stream of results
    release : stream of pages of `ChainEditor` to release, accepted when they are released; never with a command
    memory, store, context : accesses to the store and its headers
    pages, frames : requests to `FreePages` and `PageFrames`
    copies : stream of copy jobs: the beats of EVICT, the copies of MIGRATE
    freed : a page is freed in this cycle
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                "o": Out(stream.Signature(sizes.result)),
                "release": In(stream.Signature(data.StructLayout({"page": sizes.page_bits}))),
                "memory": Out(access_port()),
                "store": Out(header_port(STORE_HEADER)),
                "context": Out(header_port(CONTEXT_HEADER)),
                "pages": Out(sizes.page_call),
                "frames": Out(sizes.frame_call),
                "copies": Out(stream.Signature(sizes.job)),
                "freed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, result = self.sizes, Signal(self.sizes.result)
        page = Page(
            number=Signal(sizes.page_bits, name="page"),
            record=Signal(PAGE_RECORD, name="record"),
            chain=Signal(CLUSTER_RECORD, name="chain"),
            skip=Signal.like(self.i.payload.index, name="skip"),
            quota=Signal(sizes.page_bits + 1, name="quota"),
            releasing=Signal(name="releasing"),
        )
        m.d.comb += [
            self.store.next.eq(self.store.value),
            self.context.next.eq(self.context.value),
            self.o.payload.eq(result),
        ]
        with m.FSM(init="IDLE"):
            self._check(m, page, result)
            self._edit(m, page, result)
            self._report(m, page, result)
            self._unchain(m, page)
            self._drop(m, page)
            with m.State("ANSWER"):
                m.d.comb += [
                    self.o.valid.eq(~page.releasing),
                    self.i.ready.eq(~page.releasing & self.o.ready),
                    self.release.ready.eq(page.releasing),
                ]
                with m.If(page.releasing | self.o.ready):
                    m.next = "IDLE"
        return m

    def _refuse(self, m: Module, result: data.View, cause: Fault) -> None:
        m.d.sync += [result.fault.eq(cause), result.count.eq(0)]
        m.next = "ANSWER"

    def _check(self, m: Module, page: Page, result: data.View) -> None:
        """IDLE: arguments of the command. EVICT walks to the first page that it removes; others read their page."""
        command, context = self.i.payload, self.context.value
        kept_pages = command.index + command.page
        with m.State("IDLE"):
            m.d.sync += [
                result.eq(0),
                page.releasing.eq(self.release.valid),
                page.number.eq(Mux(self.release.valid, self.release.payload.page, command.page)),
                page.skip.eq(0),
                page.quota.eq(0),
            ]
            with m.If(self.release.valid):
                m.next = "READ_PAGE"
            with m.Elif(self.i.valid & (command.op == Op.EVICT)):
                m.next = "READ_EVICTED"
                with m.If(command.cluster >= context.clusters):
                    self._refuse(m, result, Fault.CLUSTER)
            with m.Elif(self.i.valid):
                to_device = (command.tier != Tier.HOST) & (command.tier != Tier.STORAGE)
                m.next = "READ_PAGE"
                with m.If((command.page >= context.never_used) | ((command.op == Op.MIGRATE) & to_device)):
                    self._refuse(m, result, Fault.ADDRESS)
        with reading(m, self.memory, "READ_EVICTED", cluster_block(context, command.cluster)) as content:
            chain = data.View(CLUSTER_RECORD, content)
            m.d.sync += [
                page.number.eq(chain.first_page),
                page.skip.eq(command.index),
                page.quota.eq((chain.pages - kept_pages)[: len(page.quota)]),
            ]
            m.next = "READ_PAGE"
            with m.If(chain.pages <= kept_pages):
                m.next = "ANSWER"
        with reading(m, self.memory, "READ_PAGE", page_block(context, page.number)) as content:
            record = data.View(PAGE_RECORD, content)
            m.d.sync += page.record.eq(content)
            m.next = "EDIT"
            with m.If(page.releasing):
                m.next = "UNCHAIN"
            with m.Elif(page.skip != 0):
                m.d.sync += [page.number.eq(record.next), page.skip.eq(page.skip - 1)]
                m.next = "READ_PAGE"
            with m.Elif(command.op == Op.EVICT):
                m.next = "REPORT"

    def _edit(self, m: Module, page: Page, result: data.View) -> None:
        """EDIT: SEAL, HOLD, MIGRATE and the first half of FREE change flags and references."""
        command, record, context = self.i.payload, page.record, self.context.value
        flags, references = record.flags, record.references
        max_references = (1 << self.sizes.reference_bits) - 1
        to_storage = command.tier == Tier.STORAGE
        moves_copy = Signal()
        with m.State("EDIT"):
            m.next = "WRITE_STATE"
            m.d.sync += moves_copy.eq(0)
            with m.If(~flags.chained & ~references.any()):
                self._refuse(m, result, Fault.ADDRESS)
            with m.Else(), m.Switch(command.op):
                with m.Case(Op.SEAL):
                    m.d.sync += flags.open.eq(0)
                with m.Case(Op.HOLD):
                    with m.If(references == max_references):
                        self._refuse(m, result, Fault.HELD)
                    with m.Else():
                        m.d.sync += [
                            flags.open.eq(0),
                            references.eq(references + 1),
                            result.count.eq(references + 1 + flags.chained),
                        ]
                with m.Case(Op.MIGRATE):
                    m.d.sync += [
                        flags.storage.eq(to_storage),
                        moves_copy.eq(flags.saved & (flags.storage != to_storage)),
                    ]
                with m.Default():  # FREE
                    m.next = "UNCHAIN"
                    with m.If(references.any()):
                        m.d.sync += [
                            references.eq(references - 1),
                            result.count.eq((references - 1)[:8] + flags.chained),
                        ]
                        with m.If(flags.chained | (references != 1)):
                            m.next = "WRITE_STATE"
        state = state_word(record.used, references, flags)
        with writing(m, self.memory, "WRITE_STATE", page_block(context, page.number), page_words(state=state)):
            m.next = "ANSWER"
            with m.If(moves_copy):
                m.next = "COPY"

    def _report(self, m: Module, page: Page, result: data.View) -> None:
        """REPORT: the beat of an evicted page. COPY: the pieces of a migrated page."""
        job, command, context, record = self.copies.payload, self.i.payload, self.context.value, page.record
        sides = {True: (Tier.STORAGE, context.storage_pages_base), False: (Tier.HOST, context.host_pages_base)}
        to_storage = command.tier == Tier.STORAGE
        migrates = command.op == Op.MIGRATE
        m.d.comb += [
            job.op.eq(command.op),
            job.page.eq(page.number),
            job.count.eq(record.used),
            job.report.eq(Mux(migrates, Report.NONE, Report.ONCE)),
            job.copy.eq(migrates),
            job.heads.eq(Mux(migrates, Const(-1, self.sizes.kv_heads), 1)),
            job.tokens.eq(record.used[: len(job.tokens)]),
            job.kind.eq(TransferKind.MIGRATE),
            job.source.number.eq(page.number),
            job.target.number.eq(page.number),
        ]
        for side, reverse in ((job.source, True), (job.target, False)):
            (tier, base), (other_tier, other_base) = sides[not reverse], sides[reverse]
            m.d.comb += [
                side.tier.eq(Mux(to_storage, tier, other_tier)),
                side.base.eq(Mux(to_storage, base, other_base)),
            ]
        with m.State("REPORT"):
            m.d.comb += self.copies.valid.eq(1)
            with m.If(self.copies.ready):
                m.d.sync += [page.quota.eq(page.quota - 1), result.count.eq(result.count + 1)]
                m.next = "UNCHAIN"
        with m.State("COPY"):
            m.d.comb += self.copies.valid.eq(1)
            with m.If(self.copies.ready):
                m.next = "ANSWER"

    def _unchain(self, m: Module, page: Page) -> None:
        """Remove the page from the chain of its cluster and its tokens from the count."""
        context, record, chain = self.context.value, page.record, page.chain
        first, last = record.previous == NONE, record.next == NONE
        tokens, count = Signal(range(33)), Signal(COUNT_BITS)
        m.d.comb += [
            tokens.eq(count_ones(m, record.live)),
            count.eq(Mux(chain.count > tokens, chain.count - tokens, 0)),
        ]
        with m.State("UNCHAIN"):
            m.next = "READ_CHAIN"
            with m.If(~record.flags.chained):
                m.next = "DROP"
        with reading(m, self.memory, "READ_CHAIN", cluster_block(context, record.cluster)) as content:
            m.d.sync += chain.eq(content)
            m.next = "WRITE_CHAIN"
        parts = cluster_words(
            count=count,
            pages=chain.pages - 1,
            first_page=Mux(first, record.next, chain.first_page),
            last_page=Mux(last, record.previous, chain.last_page),
        )
        with writing(m, self.memory, "WRITE_CHAIN", cluster_block(context, record.cluster), parts):
            m.next = "WRITE_COUNT"
        parts = element(count, COUNT_BITS, record.cluster)
        with writing(m, self.memory, "WRITE_COUNT", count_block(context, record.cluster), parts):
            m.next = "LINK_PREVIOUS"
        with m.State("LINK_PREVIOUS"):
            m.next = "WRITE_PREVIOUS"
            with m.If(first):
                m.next = "LINK_NEXT"
        previous, following = page_block(context, record.previous), page_block(context, record.next)
        with writing(m, self.memory, "WRITE_PREVIOUS", previous, page_words(next=record.next)):
            m.next = "LINK_NEXT"
        with m.State("LINK_NEXT"):
            m.next = "WRITE_NEXT"
            with m.If(last):
                m.next = "DROP"
        with writing(m, self.memory, "WRITE_NEXT", following, page_words(previous=record.previous)):
            m.next = "DROP"

    def _drop(self, m: Module, page: Page) -> None:
        """Free the page and its page frame, unless it has further references; then the next page of EVICT."""
        store, context, record = self.store.value, self.context.value, page.record
        flags = record.flags
        with m.State("DROP"):
            m.next = "RELEASE_PAGE"
            with m.If((self.i.payload.op == Op.EVICT) & ~page.releasing & record.references.any()):
                m.next = "KEEP_PAGE"
            with m.Elif(flags.resident):
                m.next = "RELEASE_FRAME"
        kept = (Const(0b11100, len(flags.as_value())) & flags.as_value())[:5]
        parts = page_words(next=NONE, previous=NONE, state=state_word(record.used, record.references, kept))
        with writing(m, self.memory, "KEEP_PAGE", page_block(context, page.number), parts):
            m.next = "NEXT"
        with m.State("RELEASE_FRAME"):
            m.d.comb += [
                self.frames.request.valid.eq(1),
                self.frames.request.payload.action.eq(FrameAction.RELEASE),
                self.frames.request.payload.frame.eq(record.frame),
            ]
            with m.If(self.frames.request.ready):
                m.next = "RELEASE_PAGE"
        with m.State("RELEASE_PAGE"):
            m.d.comb += [
                self.pages.request.valid.eq(1),
                self.pages.request.payload.release.eq(1),
                self.pages.request.payload.page.eq(page.number),
            ]
            with m.If(self.pages.request.ready):
                m.d.comb += self.freed.eq(1)
                with m.If(flags.resident):
                    m.d.comb += edit(self.store, resident_tokens=store.resident_tokens - record.used)
                m.next = "NEXT"
        with m.State("NEXT"):
            m.d.sync += page.number.eq(record.next)
            m.next = "ANSWER"
            with m.If(page.quota != 0):
                m.next = "READ_PAGE"
