"""Offloader: moves the oldest pages out of device memory."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Const, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import access_port, page_words, reading, writing
from hw.dre.kvmu.command import Op
from hw.dre.kvmu.records import (
    BLOCK_WORDS,
    CONTEXT_WORDS,
    FRAME_RECORD,
    NONE,
    PAGE_RECORD,
    STORE_HEADER,
    WORD_BITS,
    context_block,
    frame_block,
    page_block,
    state_word,
)
from hw.dre.kvmu.sizes import FrameAction, KvmuSizes, Report, edit, header_port
from hw.dre.transfer import Tier, TransferKind

# header of the context of a page, as far as it is needed
BASES = data.StructLayout({"pages_base": 32, "host_pages_base": 32, "storage_pages_base": 32})


class Offloader(wiring.Component):
    """Executes the first half of STEP: offloads the oldest pages of all contexts until few enough tokens are resident.

    The oldest page frame may belong to any context. So its record gives the context, and the header of this context in
    memory gives the addresses of the page record and of its backing tier. The page loses its frame and is closed. One
    page stays resident. A page whose backing tier has a copy is not copied again. The reply has one beat per page.

    Timing: per page 4 accesses, 1 write and the release of a page frame, besides its copy.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of commands, accepted with its result ; o : stream of results
    memory, store : accesses to the store and its header
    frames : requests to `PageFrames` ; copies : stream of copy jobs
    offloaded : a page leaves device memory in this cycle
    cfg_max_resident_tokens : setting of the KVMU
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                "o": Out(stream.Signature(sizes.result)),
                "memory": Out(access_port()),
                "store": Out(header_port(STORE_HEADER)),
                "frames": Out(sizes.frame_call),
                "copies": Out(stream.Signature(sizes.job)),
                "offloaded": Out(1),
                "cfg_max_resident_tokens": In(range(sizes.page_frames * sizes.page_tokens + 1)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        store, result = self.store.value, Signal(self.sizes.result)
        oldest, bases, record = Signal(FRAME_RECORD), Signal(BASES), Signal(PAGE_RECORD)
        m.d.comb += [self.store.next.eq(store), self.o.payload.eq(result)]
        with m.FSM(init="IDLE"):
            with m.State("IDLE"):
                m.d.sync += result.eq(0)
                with m.If(self.i.valid):
                    m.next = "CHECK"
            with m.State("CHECK"):
                m.next = "READ_FRAME"
                with m.If((store.resident_tokens <= self.cfg_max_resident_tokens) | (store.resident_pages <= 1)):
                    m.next = "ANSWER"
            self._read_page(m, oldest, bases, record)
            self._release(m, oldest, bases, record)
            self._copy(m, oldest, bases, record)
            with m.State("COPY"):
                m.d.comb += self.copies.valid.eq(1)
                with m.If(self.copies.ready):
                    m.d.comb += self.offloaded.eq(1)
                    m.d.sync += result.count.eq(result.count + 1)
                    m.next = "CHECK"
            with m.State("ANSWER"):
                m.d.comb += [self.o.valid.eq(1), self.i.ready.eq(self.o.ready)]
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m

    def _read_page(self, m: Module, oldest: data.View, bases: data.View, record: data.View) -> None:
        """Read the records of the oldest page frame and of its page, whose address is in the header of its context."""
        store = self.store.value
        with reading(m, self.memory, "READ_FRAME", frame_block(store, store.oldest)) as content:
            m.d.sync += oldest.eq(content.word_select(store.oldest[0], FRAME_RECORD.size))
            m.next = "READ_TABLES"
        backing_block = CONTEXT_WORDS["host_pages_base"] // BLOCK_WORDS
        assert backing_block == CONTEXT_WORDS["storage_pages_base"] // BLOCK_WORDS
        for state, following, block in (
            ("READ_TABLES", "READ_BACKING", 0),
            ("READ_BACKING", "READ_PAGE", backing_block),
        ):
            with reading(m, self.memory, state, context_block(store, oldest.context, block)) as content:
                for name, _ in BASES:
                    if CONTEXT_WORDS[name] // BLOCK_WORDS == block:
                        m.d.sync += bases[name].eq(content.word_select(CONTEXT_WORDS[name] % BLOCK_WORDS, WORD_BITS))
                m.next = following
        with reading(m, self.memory, "READ_PAGE", page_block(bases, oldest.page)) as content:
            m.d.sync += record.eq(content)
            m.next = "RELEASE_FRAME"

    def _release(self, m: Module, oldest: data.View, bases: data.View, record: data.View) -> None:
        """Release the page frame and write the record of the page."""
        store, call = self.store.value, self.frames.request
        with m.State("RELEASE_FRAME"):
            m.d.comb += [
                call.valid.eq(1),
                call.payload.action.eq(FrameAction.RELEASE),
                call.payload.frame.eq(record.frame[: self.sizes.frame_bits]),
            ]
            with m.If(call.ready):
                m.next = "WRITE_PAGE"
        kept, saved = 0b01001, 0b10000  # flags chained and storage stay; saved is set
        flags = (record.flags.as_value() & kept) | saved
        parts = page_words(frame=NONE, state=state_word(record.used, record.references, flags))
        with writing(m, self.memory, "WRITE_PAGE", page_block(bases, oldest.page), parts):
            m.d.comb += edit(self.store, resident_tokens=store.resident_tokens - record.used)
            m.next = "COPY"

    def _copy(self, m: Module, oldest: data.View, bases: data.View, record: data.View) -> None:
        """The copy job of the page."""
        job, storage = self.copies.payload, record.flags.storage
        m.d.comb += [
            job.op.eq(Op.STEP),
            job.page.eq(oldest.page),
            job.count.eq(record.used),
            job.report.eq(Report.ONCE),
            job.copy.eq(~record.flags.saved),
            job.located.eq(1),
            job.heads.eq(Const(-1, self.sizes.kv_heads)),
            job.source.tier.eq(Tier.DEVICE),
            job.source.number.eq(record.frame),
            job.target.tier.eq(Mux(storage, Tier.STORAGE, Tier.HOST)),
            job.target.base.eq(Mux(storage, bases.storage_pages_base, bases.host_pages_base)),
            job.target.number.eq(oldest.page),
            job.tokens.eq(record.used[: len(job.tokens)]),
            job.kind.eq(TransferKind.OFFLOAD),
        ]
