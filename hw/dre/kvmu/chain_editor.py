"""Chain editor: stores tokens in the pages of a cluster."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import (
    STROBE_BITS,
    access_port,
    cluster_words,
    element,
    logging,
    page_words,
    reading,
    writing,
)
from hw.dre.kvmu.command import COUNT_BITS, Fault, Op
from hw.dre.kvmu.records import (
    CLUSTER_RECORD,
    CONTEXT_HEADER,
    FLAGS,
    NONE,
    PAGE_RECORD,
    STORE_HEADER,
    cluster_block,
    count_block,
    mean_blocks,
    page_block,
    state_word,
    token_block,
)
from hw.dre.kvmu.sizes import KvmuSizes, Report, edit, header_port
from hw.dre.transfer import Tier, TransferKind


@dataclass(frozen=True)
class Token:
    """Registers of the token that is stored.

    number : its number
    chain : record of its cluster
    last : record of the last page of the chain
    page, slot, page_frame : where it is stored
    opens : it opens a page
    mean_block : line of the mean key that is logged next, as the number of its first block
    source : record of the page from which MOVE takes it
    """

    number: Signal
    chain: data.View
    last: data.View
    page: Signal
    slot: Signal
    page_frame: Signal
    opens: Signal
    mean_block: Signal
    source: data.View


class ChainEditor(wiring.Component):
    """Executes APPEND and MOVE: stores a token in the open page of its cluster, or opens a page.

    To store a token, it reads the record of its cluster and that of the last page of the chain. If this page is open,
    it adds a slot to it. Otherwise it allocates a page and a page frame and appends the page to the chain. Then it
    writes the token number to the token list, and the counts. The result is the address of the slot, where another unit
    writes key and value.

    APPEND to a cluster that exists also writes its mean key to the undo log, because the vector engine changes it next.

    MOVE first reads the page that holds the token and seals it. After storing, it copies key and value, and removes the
    token from its page and its cluster. A page that has become empty goes to `PageEditor`. All refusals come before
    the first write.

    Timing: APPEND 7 accesses in an open page, 9 to 14 if it opens a page, and one for each line of the mean key; MOVE 7
    more, and a release of a page.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of commands, accepted with its result ; o : stream of results
    memory, store, context : accesses to the store and its headers ; number : number of the open context
    pages, frames : requests to `FreePages` and `PageFrames`
    frames_busy : transfers in flight, other than a fetch, may use free page frames; APPEND then waits for a page
    copies : stream of copy jobs ; release : stream of pages without tokens, accepted when they are released
    opening : a page is opened in this cycle ; waiting : APPEND waits for `frames_busy`
    cfg_* : settings of the KVMU
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                "o": Out(stream.Signature(sizes.result)),
                "memory": Out(access_port()),
                "store": Out(header_port(STORE_HEADER)),
                "context": Out(header_port(CONTEXT_HEADER)),
                "number": In(range(sizes.max_contexts)),
                "pages": Out(sizes.page_call),
                "frames": Out(sizes.frame_call),
                "frames_busy": In(1),
                "copies": Out(stream.Signature(sizes.job)),
                "release": Out(stream.Signature(data.StructLayout({"page": sizes.page_bits}))),
                "opening": Out(1),
                "waiting": Out(1),
                "cfg_max_cluster_tokens": In(COUNT_BITS),
                "cfg_offload_to_storage": In(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, result = self.sizes, self.o.payload
        token = Token(
            number=Signal(32, name="token"),
            chain=Signal(CLUSTER_RECORD, name="chain"),
            last=Signal(PAGE_RECORD, name="last_page"),
            page=Signal(sizes.page_bits, name="page"),
            slot=Signal(sizes.slot_bits, name="slot"),
            page_frame=Signal(sizes.frame_bits, name="page_frame"),
            opens=Signal(name="opens"),
            mean_block=Signal(32, name="mean_block"),
            source=Signal(PAGE_RECORD, name="source"),
        )
        fault = Signal(Fault)
        m.d.comb += [
            self.store.next.eq(self.store.value),
            self.context.next.eq(self.context.value),
            result.fault.eq(fault),
            result.page.eq(token.page),
            result.slot.eq(token.slot),
            result.located.eq(1),
            result.target.tier.eq(Tier.DEVICE),
            result.target.number.eq(token.page_frame),
            result.target.slot.eq(token.slot),
        ]
        with m.FSM(init="IDLE"):
            self._check(m, fault)
            self._read_source(m, token, fault)
            self._read_chain(m, token)
            self._open_page(m, token, fault)
            self._write_token(m, token)
            self._remove_source(m, token)
            with m.State("ANSWER"):
                m.d.comb += [self.o.valid.eq(1), self.i.ready.eq(self.o.ready)]
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m

    def _refuse(self, m: Module, fault: Signal, cause: Fault) -> None:
        m.d.sync += fault.eq(cause)
        m.next = "ANSWER"

    def _check(self, m: Module, fault: Signal) -> None:
        """IDLE: compare the cluster with the number of clusters."""
        command, context = self.i.payload, self.context.value
        opens = (command.cluster == context.clusters) & (context.clusters != context.max_clusters)
        with m.State("IDLE"):
            m.d.sync += fault.eq(Fault.NONE)
            with m.If(self.i.valid):
                with m.If(Mux(command.opened, ~opens, command.cluster >= context.clusters)):
                    self._refuse(m, fault, Fault.CLUSTER)
                with m.Elif(command.op != Op.MOVE):
                    m.next = "START"
                with m.Elif(command.page >= context.never_used):
                    self._refuse(m, fault, Fault.ADDRESS)
                with m.Else():
                    m.next = "READ_SOURCE"

    def _read_source(self, m: Module, token: Token, fault: Signal) -> None:
        """MOVE: read the record of the page of the token, and the number of the token."""
        command, context, source = self.i.payload, self.context.value, token.source
        page = page_block(context, command.page)
        position = Cat(command.slot, command.page)
        with reading(m, self.memory, "READ_SOURCE", page) as content:
            m.d.sync += source.eq(content)
            m.next = "CHECK_SOURCE"
        with m.State("CHECK_SOURCE"):
            in_use = source.flags.chained | source.references.any()
            m.next = "READ_TOKEN"
            with m.If(~in_use | ~source.live.bit_select(command.slot, 1)):
                self._refuse(m, fault, Fault.ADDRESS)
            with m.Elif(~source.flags.resident):
                self._refuse(m, fault, Fault.NOT_RESIDENT)
            with m.Elif(source.references.any()):
                self._refuse(m, fault, Fault.HELD)
        with reading(m, self.memory, "READ_TOKEN", token_block(context, position)) as content:
            m.d.sync += token.number.eq(content.word_select(position[:3], 32))
            m.next = "START"

    def _read_chain(self, m: Module, token: Token) -> None:
        """Read the record of the cluster and that of its last page; an opened cluster starts without pages."""
        command, context, chain, last = self.i.payload, self.context.value, token.chain, token.last
        moves = command.op == Op.MOVE
        mean_first, mean_last = mean_blocks(context, command.cluster, self.sizes.key_bytes, self.sizes.line_blocks)
        with m.State("START"):
            m.d.sync += [
                token.number.eq(Mux(moves, token.number, context.tokens)),
                token.mean_block.eq(mean_first),
                chain.eq(0),
                chain.hash.eq(command.hash),
                chain.first_token.eq(context.tokens),
                chain.first_page.eq(NONE),
                chain.last_page.eq(NONE),
            ]
            m.next = "READ_CHAIN"
            with m.If(command.opened):
                m.next = "ALLOCATE"
        with reading(m, self.memory, "READ_CHAIN", cluster_block(context, command.cluster)) as content:
            m.d.sync += chain.eq(content)
            m.next = "READ_LAST"
            with m.If(data.View(CLUSTER_RECORD, content).pages == 0):
                m.next = "ALLOCATE"
            with m.If(command.op == Op.APPEND):
                m.next = "LOG_MEAN"
        with logging(m, self.memory, "LOG_MEAN", token.mean_block):
            m.d.sync += token.mean_block.eq(token.mean_block + self.sizes.line_blocks)
            with m.If(token.mean_block == mean_last):
                m.next = "READ_LAST"
                with m.If(chain.pages == 0):
                    m.next = "ALLOCATE"
        with reading(m, self.memory, "READ_LAST", page_block(context, chain.last_page)) as content:
            record = data.View(PAGE_RECORD, content)
            m.d.sync += [
                last.eq(content),
                token.page.eq(chain.last_page),
                token.slot.eq(record.used[: self.sizes.slot_bits]),
                token.page_frame.eq(record.frame),
            ]
            m.next = "ALLOCATE"
            with m.If(record.flags.open & ~(moves & (chain.last_page == command.page))):
                m.next = "WRITE_SLOT"
                with m.If(moves):
                    m.d.sync += token.opens.eq(0)
                    m.next = "SEAL_SOURCE"
        source = token.source
        sealed = state_word(source.used, source.references, _changed(source.flags, open=0))
        with writing(m, self.memory, "SEAL_SOURCE", page_block(context, command.page), page_words(state=sealed)):
            m.next = "WRITE_SLOT"
            with m.If(token.opens):
                m.next = "TAKE_PAGE"
        used, step = last.used + 1, (self.store.value.step + 1)[:32]
        flags = _changed(last.flags, open=used != self.sizes.page_tokens)
        live = last.live | (Const(1, self.sizes.page_tokens) << token.slot)[: self.sizes.page_tokens]
        parts = page_words(
            live=live,
            state=state_word(used, last.references, flags),
            step=step,
            past=Mux(last.step == step, last.past, last.used),
        )
        with writing(m, self.memory, "WRITE_SLOT", page_block(context, token.page), parts):
            m.next = "WRITE_TOKEN"

    def _open_page(self, m: Module, token: Token, fault: Signal) -> None:
        """Allocate a page and a page frame, write the record of the page and append it to the chain."""
        sizes, command, context, chain = self.sizes, self.i.payload, self.context.value, token.chain
        pages, frames = self.pages, self.frames
        with m.State("ALLOCATE"):
            m.d.sync += [token.slot.eq(0), token.opens.eq(1)]
            m.next = "TAKE_PAGE"
            with m.If(command.op == Op.MOVE):
                m.next = "SEAL_SOURCE"
            with m.If(~pages.available):
                self._refuse(m, fault, Fault.NO_PAGE)
            with m.Elif(~frames.available):
                self._refuse(m, fault, Fault.NO_PAGE_FRAME)
            with m.Elif((command.op == Op.APPEND) & self.frames_busy):
                m.d.comb += self.waiting.eq(1)
                m.next = "ALLOCATE"
        with m.State("TAKE_PAGE"):
            m.d.comb += pages.request.valid.eq(1)
            m.d.sync += token.page.eq(pages.page)
            with m.If(pages.request.ready):
                m.next = "TAKE_FRAME"
        with m.State("TAKE_FRAME"):
            m.d.comb += [
                frames.request.valid.eq(1),
                frames.request.payload.context.eq(self.number),
                frames.request.payload.page.eq(token.page),
            ]
            m.d.sync += token.page_frame.eq(frames.frame)
            with m.If(frames.request.ready):
                m.next = "WRITE_PAGE"
        flags = Const({"chained": 1, "open": 1, "resident": 1}, FLAGS).as_value()
        storage = Const({"storage": 1}, FLAGS).as_value()
        record = page_words(
            cluster=command.cluster,
            next=NONE,
            previous=chain.last_page,
            frame=token.page_frame,
            live=1,
            state=state_word(1, 0, flags | Mux(self.cfg_offload_to_storage, storage, 0)),
            step=(self.store.value.step + 1)[:32],
            past=0,
        )
        with writing(m, self.memory, "WRITE_PAGE", page_block(context, token.page), record):
            m.d.comb += self.opening.eq(1)
            m.d.sync += chain.pages.eq(chain.pages + 1)
            m.next = "LINK_PAGE"
            with m.If(chain.pages == 0):
                m.d.sync += [chain.first_page.eq(token.page), chain.last_page.eq(token.page)]
                m.next = "WRITE_TOKEN"
        with writing(m, self.memory, "LINK_PAGE", page_block(context, chain.last_page), page_words(next=token.page)):
            m.d.sync += chain.last_page.eq(token.page)
            m.next = "WRITE_TOKEN"
        assert sizes.page_tokens > 1, "a new page stays open"

    def _write_token(self, m: Module, token: Token) -> None:
        """Write the number of the token, the record of the cluster and its count."""
        command, context, chain = self.i.payload, self.context.value, token.chain
        position = Cat(token.slot, token.page)
        count = Signal(COUNT_BITS)
        # a MOVE inside a cluster removes a token before it adds one
        before = Mux(self._stays(token) & (chain.count != 0), chain.count - 1, chain.count)
        m.d.comb += count.eq(Mux(before >= self.cfg_max_cluster_tokens, self.cfg_max_cluster_tokens, before + 1))
        parts = element(token.number, 32, position[:3])
        with writing(m, self.memory, "WRITE_TOKEN", token_block(context, position), parts):
            m.next = "WRITE_CHAIN"
        changes = {"count": count, "pages": chain.pages, "first_page": chain.first_page, "last_page": chain.last_page}
        content, _ = cluster_words(hash=chain.hash, first_token=chain.first_token, **changes)
        _, changed = cluster_words(**changes)
        strobe = Mux(
            command.opened, Const((1 << STROBE_BITS) - 1, STROBE_BITS), changed
        )  # of a new cluster the whole record
        block = cluster_block(context, command.cluster)
        with writing(m, self.memory, "WRITE_CHAIN", block, (content, strobe)):
            m.next = "WRITE_COUNT"
        parts = element(count, COUNT_BITS, command.cluster)
        with writing(m, self.memory, "WRITE_COUNT", count_block(context, command.cluster), parts):
            m.d.comb += [
                *edit(self.store, resident_tokens=self.store.value.resident_tokens + 1),
                *edit(
                    self.context,
                    tokens=context.tokens + (command.op == Op.APPEND),
                    clusters=context.clusters + command.opened,
                ),
            ]
            m.next = "ANSWER"
            with m.If(command.op == Op.MOVE):
                m.next = "COPY"

    def _stays(self, token: Token) -> Value:
        """1 if MOVE moves a token inside its cluster."""
        command = self.i.payload
        return (command.op == Op.MOVE) & ~command.opened & (token.source.cluster == command.cluster)

    def _remove_source(self, m: Module, token: Token) -> None:
        """MOVE: copy the token, clear its old slot, lower the count of its cluster, release an empty page."""
        sizes, command, context, source = self.sizes, self.i.payload, self.context.value, token.source
        job, count = self.copies.payload, Signal(COUNT_BITS)
        live = source.live & ~(Const(1, sizes.page_tokens) << command.slot)[: sizes.page_tokens]
        all_heads = Const(-1, sizes.kv_heads)
        m.d.comb += [
            job.op.eq(Op.MOVE),
            job.report.eq(Report.NONE),
            job.copy.eq(1),
            job.heads.eq(all_heads),
            job.source.tier.eq(Tier.DEVICE),
            job.source.number.eq(source.frame),
            job.source.slot.eq(command.slot),
            job.target.tier.eq(Tier.DEVICE),
            job.target.number.eq(token.page_frame),
            job.target.slot.eq(token.slot),
            job.tokens.eq(1),
            job.kind.eq(TransferKind.MOVE),
            self.release.payload.page.eq(command.page),
        ]
        with m.State("COPY"):
            m.d.comb += self.copies.valid.eq(1)
            with m.If(self.copies.ready):
                m.next = "CLEAR_SLOT"
        with writing(m, self.memory, "CLEAR_SLOT", page_block(context, command.page), page_words(live=live)):
            m.next = "READ_SOURCE_CHAIN"
            with m.If(self._stays(token)):
                m.next = "CHECK_EMPTY"
        block = cluster_block(context, source.cluster)
        with reading(m, self.memory, "READ_SOURCE_CHAIN", block) as content:
            old = data.View(CLUSTER_RECORD, content).count
            m.d.sync += count.eq(Mux(old == 0, 0, old - 1))
            m.next = "WRITE_SOURCE_CHAIN"
        with writing(m, self.memory, "WRITE_SOURCE_CHAIN", block, cluster_words(count=count)):
            m.next = "WRITE_SOURCE_COUNT"
        parts = element(count, COUNT_BITS, source.cluster)
        with writing(m, self.memory, "WRITE_SOURCE_COUNT", count_block(context, source.cluster), parts):
            m.next = "CHECK_EMPTY"
        with m.State("CHECK_EMPTY"):
            m.next = "ANSWER"
            with m.If(live == 0):
                m.next = "RELEASE"
        with m.State("RELEASE"):
            m.d.comb += self.release.valid.eq(1)
            with m.If(self.release.ready):
                m.next = "ANSWER"


def _changed(flags: data.View, **changes: object) -> Value:
    """Flags of a page with some of them changed."""
    return Cat(Value.cast(changes.get(name, flags[name]))[:1] for name, _ in FLAGS if name != "reserved")
