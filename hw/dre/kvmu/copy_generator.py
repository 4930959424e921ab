"""Copy generator: turns pages into reply beats and into pieces of memory to copy."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.records import BACKING_BYTES
from hw.dre.kvmu.sizes import KvmuSizes, Report
from hw.dre.transfer import Tier, TransferKind


class CopyGenerator(wiring.Component):
    """Executes copy jobs: one head page per cycle becomes a reply beat, a piece to copy, or both.

    A beat has the address of a head page, or of a page, and whether its bytes are in transit. A piece is what `Joiner`
    joins with its neighbours and `Splitter` turns into descriptors. The first piece of a command, or of a fetch, waits
    until its tag is free and no transfers of another kind are in flight. A job with `finish` ends the transfers of a
    command: the last descriptor gets its `last` bit and the tag is closed. All SELECT and MARK of a fetch share a tag.

    Timing: 1 cycle, and 1 per head page, while no stream stalls; `finish` 1 cycle, or as long as descriptors leave.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of jobs of one component at a time; a job is accepted in the cycle in which it is complete
    out_of_space : valid when a job is accepted: the staging bank is full, the rest of the job is dropped
    o : stream of replies ; pieces : to the joiner
    drained : the engine has accepted all pieces as descriptors
    tag, tag_free, active, active_kind, close : see `Tracker`
    kind : kind of the transfers
    tagged, sent_tag : the last `finish` closed the tag `sent_tag`
    restart : the fetch ends in this cycle, the next one starts with an empty bank
    bank, fetched : staging bank of the fetch; its head pages so far
    hit, copied, waiting, blocked : a head page is reported without or with a copy, a job waits, a beat waits for `o`
    cfg_* : settings of the KVMU
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        staging = range(sizes.staging_head_pages + 1)
        super().__init__(
            {
                "i": In(stream.Signature(sizes.job)),
                "out_of_space": Out(1),
                "o": Out(stream.Signature(sizes.reply)),
                "pieces": Out(stream.Signature(sizes.piece)),
                "drained": In(1),
                "tag": In(range(sizes.tags)),
                "tag_free": In(1),
                "active": In(1),
                "active_kind": In(TransferKind),
                "close": Out(1),
                "kind": Out(TransferKind),
                "tagged": Out(1),
                "sent_tag": Out(range(sizes.tags)),
                "restart": In(1),
                "bank": In(1),
                "fetched": Out(sizes.reply["count"].shape),
                **{name: Out(1) for name in ("hit", "copied", "waiting", "blocked")},
                "cfg_page_frames_base": In(sizes.address_bits),
                "cfg_staging_base": In(sizes.address_bits),
                "cfg_staging_head_pages": In(staging),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beat, emit, output_free = Signal(self.sizes.reply), Signal(), Signal()
        remaining, head = Signal(self.sizes.kv_heads), Signal(range(self.sizes.kv_heads))
        staged = Signal(range(self.sizes.staging_head_pages + 1))  # head pages of the fetch in the staging area
        pushed = Signal()  # pieces of the command are sent
        sent = Signal()  # the piece of this head page is sent, its beat waits for `o`
        m.d.comb += [output_free.eq(~self.o.valid | self.o.ready), self.blocked.eq(emit & ~output_free)]
        with m.If(output_free):
            m.d.sync += self.o.valid.eq(emit)
            with m.If(emit):
                m.d.sync += self.o.payload.eq(beat)
        with m.If(self.restart):
            m.d.sync += [staged.eq(0), self.fetched.eq(0)]
        self._addresses(m, beat, head, staged)
        with m.FSM(init="IDLE"):
            self._start(m, remaining, head, pushed)
            self._report(m, emit, output_free)
            self._copy(m, emit, output_free, remaining, staged, pushed, sent)
            self._finish(m, pushed)
        return m

    def _addresses(self, m: Module, beat: Signal, head: Signal, staged: Signal) -> None:
        """Source and target of the head page, the piece and the fields of the beat."""
        sizes, job, piece = self.sizes, self.i.payload, self.pieces.payload
        source, target = Signal(sizes.address_bits), Signal(sizes.address_bits)
        head_page = Mux(self.bank, self.cfg_staging_head_pages, 0) + staged
        staging = (self.cfg_staging_base + head_page * sizes.head_page_bytes)[: sizes.address_bits]
        copies = Signal()
        m.d.comb += [
            copies.eq(job.copy),
            source.eq(self._address(job.source, head)),
            target.eq(Mux(job.staged, staging, self._address(job.target, head))),
            piece.source.eq(source),
            piece.target.eq(target),
            piece.source_tier.eq(job.source.tier),
            piece.target_tier.eq(job.target.tier),
            piece.bytes.eq(sizes.layout.blocks(job.tokens) * sizes.layout.block_bytes),
            beat.op.eq(job.op),
            beat.fault.eq(job.fault),
            beat.page.eq(job.page),
            beat.slot.eq(job.slot),
            beat.head.eq(head),
            beat.tier.eq(Mux(job.located, job.target.tier, Tier.DEVICE)),
            beat.address.eq(Mux(job.located, target, 0)),
            beat.count.eq(job.count),
            beat.transit.eq(copies & ~job.last),
            beat.tagged.eq(job.tagged),
            beat.tag.eq(Mux(job.tagged, self.sent_tag, Mux(beat.transit, self.tag, 0))),
            beat.last.eq(job.last),
        ]

    def _address(self, position: data.View, head: Value) -> Value:
        sizes = self.sizes
        base = Mux(position.tier == Tier.DEVICE, self.cfg_page_frames_base, position.base * BACKING_BYTES)
        head_page = (position.number * sizes.kv_heads + head) * sizes.head_page_bytes
        offset = head_page + sizes.layout.block_of(position.slot) * sizes.layout.block_bytes
        return (base + offset)[: sizes.address_bits]

    def _start(self, m: Module, remaining: Signal, head: Signal, pushed: Signal) -> None:
        """IDLE: wait for a job, and for the transfers in flight if it is the first one with pieces."""
        job = self.i.payload
        heads = Signal.like(remaining)
        m.d.comb += [heads.eq(remaining), head.eq(lowest(heads))]
        allowed = self.tag_free & (~self.active | (self.active_kind == job.kind))
        with m.State("IDLE"):
            m.d.sync += remaining.eq(job.heads)
            m.d.comb += heads.eq(job.heads)
            with m.If(~self.i.valid):
                pass
            with m.Elif(job.finish):
                m.next = "END"
                with m.If(~pushed):
                    m.d.comb += self.i.ready.eq(1)
                    m.d.sync += self.tagged.eq(0)
                    m.next = "IDLE"
            with m.Elif(job.copy & ~pushed & ~allowed):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                with m.If(job.copy):
                    m.d.sync += self.kind.eq(job.kind)
                m.next = "COPY"
                with m.If(job.report == Report.ONCE):
                    m.next = "REPORT"

    def _report(self, m: Module, emit: Signal, output_free: Signal) -> None:
        """REPORT: the only beat of a job, before its copies."""
        job = self.i.payload
        with m.State("REPORT"):
            m.d.comb += emit.eq(1)
            with m.If(output_free):
                m.next = "COPY"
                with m.If(~job.copy):
                    m.d.comb += self.i.ready.eq(1)
                    m.next = "IDLE"

    def _copy(
        self,
        m: Module,
        emit: Signal,
        output_free: Signal,
        remaining: Signal,
        staged: Signal,
        pushed: Signal,
        sent: Signal,
    ) -> None:
        """COPY: one head per cycle. A piece does not wait for `o`, so that neither stream depends on the other."""
        job = self.i.payload
        reports, after, copied, done = Signal(), Signal.like(remaining), Signal(), Signal()
        m.d.comb += [
            reports.eq((job.report == Report.HEADS) & (job.reported & remaining & (~remaining + 1)).any()),
            after.eq(remaining & (remaining - 1)),
            copied.eq(~job.copy | sent | self.pieces.ready),
        ]
        with m.State("COPY"):
            with m.If(job.staged & (staged == self.cfg_staging_head_pages)):
                m.d.comb += [self.out_of_space.eq(1), self.i.ready.eq(1)]
                m.next = "IDLE"
            with m.Else():
                m.d.comb += [
                    self.pieces.valid.eq(job.copy & ~sent),
                    emit.eq(reports & copied),
                    done.eq(copied & (~reports | output_free)),
                ]
            with m.If(self.pieces.valid & self.pieces.ready):
                m.d.sync += sent.eq(1)
            with m.If(done):
                m.d.sync += [remaining.eq(after), sent.eq(0)]
                m.d.comb += [self.hit.eq(reports & ~job.copy), self.copied.eq(reports & job.copy)]
                with m.If(job.copy):
                    m.d.sync += pushed.eq(1)
                with m.If(reports):
                    m.d.sync += self.fetched.eq(self.fetched + 1)
                with m.If(job.staged):
                    m.d.sync += staged.eq(staged + 1)
                with m.If(after == 0):
                    m.d.comb += self.i.ready.eq(1)
                    m.next = "IDLE"

    def _finish(self, m: Module, pushed: Signal) -> None:
        """END sends the end of the pieces; DRAIN waits for the descriptors and closes the tag."""
        with m.State("END"):
            m.d.comb += [
                self.pieces.valid.eq(1),
                self.pieces.payload.bytes.eq(0),
                self.pieces.payload.last.eq(1),
            ]
            with m.If(self.pieces.ready):
                m.next = "DRAIN"
        with m.State("DRAIN"), m.If(self.drained):
            m.d.comb += [self.close.eq(1), self.i.ready.eq(1)]
            m.d.sync += [self.tagged.eq(1), self.sent_tag.eq(self.tag), pushed.eq(0)]
            m.next = "IDLE"


def lowest(bits: Value) -> Value:
    """Number of the lowest bit that is set, 0 if none is set."""
    width = len(bits)
    number: Value = Const(0, max(1, (width - 1).bit_length()))
    for n in reversed(range(width)):
        number = Mux(bits[n], n, number)
    return number
