"""Page walker: visits the pages of a cluster."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass

from amaranth import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import access_port, page_words, reading, writing
from hw.dre.kvmu.command import Fault, Op
from hw.dre.kvmu.records import (
    CLUSTER_RECORD,
    CONTEXT_HEADER,
    FLAGS,
    PAGE_RECORD,
    STORE_HEADER,
    cluster_block,
    page_block,
    state_word,
)
from hw.dre.kvmu.sizes import FrameAction, KvmuSizes, Report, edit, header_port
from hw.dre.transfer import Tier, TransferKind


@dataclass(frozen=True)
class Walk:
    """Registers of a walk.

    page, record : page that is visited, and its record
    remaining : pages that are not complete, this one included
    index : tokens before the token that FIND looks for
    past_tokens : tokens of the page from before this step
    """

    page: Signal
    record: data.View
    remaining: Signal
    index: Signal
    past_tokens: Signal


class PageWalker(wiring.Component):
    """Executes SELECT, MARK, FIND and LOOKUP: visits one page or the pages of a cluster in chain order.

    SELECT and MARK turn each page with tokens from before this step into a copy job: a report of a resident page, a
    copy to the staging area, or, with `retain`, a copy to a page frame. With `retain`, the page becomes the newest one,
    also if it is resident. FIND counts along the pages to token `index`;
    LOOKUP reads one page. Both give the address of a slot in the last reply beat and change nothing.

    Timing: one access per page and one for the cluster; `retain` 4 to 5 more for each page that is
    fetched, 1 to 5 for each resident one.

    Parameters
    ----------
    sizes : sizes of the KVMU

    Members
    -------
    i : stream of commands, accepted with its result ; o : stream of results
    memory, store : accesses to the store and its header ; context, number : header and number of the open context
    frames : requests to `PageFrames` ; copies : stream of copy jobs
    out_of_space : from `CopyGenerator`, valid when it accepts a job: the staging area is full, SELECT ends with STAGING
    retain : from the dispatcher: fetched pages stay in device memory, and selected pages become the newest ones
    changed : a page becomes the newest one in this cycle
    """

    def __init__(self, *, sizes: KvmuSizes):
        self.sizes = sizes
        super().__init__(
            {
                "i": In(stream.Signature(sizes.command)),
                "o": Out(stream.Signature(sizes.result)),
                "memory": Out(access_port()),
                "store": Out(header_port(STORE_HEADER)),
                "context": In(CONTEXT_HEADER),
                "number": In(range(sizes.max_contexts)),
                "frames": Out(sizes.frame_call),
                "copies": Out(stream.Signature(sizes.job)),
                "out_of_space": In(1),
                "retain": In(1),
                "changed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sizes, result = self.sizes, Signal(self.sizes.result)
        walk = Walk(
            page=Signal(sizes.page_bits, name="page"),
            record=Signal(PAGE_RECORD, name="record"),
            remaining=Signal(sizes.page_bits + 1, name="remaining"),
            index=Signal.like(self.i.payload.index, name="index"),
            past_tokens=Signal(range(sizes.page_tokens + 1), name="past_tokens"),
        )
        record, step = walk.record, (self.store.value.step + 1)[:32]
        m.d.comb += [
            self.store.next.eq(self.store.value),
            self.o.payload.eq(result),
            walk.past_tokens.eq(Mux(record.step == step, record.past, record.used)),
        ]
        with m.FSM(init="IDLE"):
            self._start(m, walk, result)
            self._visit(m, walk, result)
            self._retain(m, walk)
            self._report(m, walk, result)
            with m.State("ANSWER"):
                m.d.comb += [self.o.valid.eq(1), self.i.ready.eq(self.o.ready)]
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m

    def _refuse(self, m: Module, result: data.View, cause: Fault) -> None:
        m.d.sync += result.fault.eq(cause)
        m.next = "ANSWER"

    def _start(self, m: Module, walk: Walk, result: data.View) -> None:
        """IDLE: check the arguments; SELECT and FIND read the record of the cluster."""
        command, context = self.i.payload, self.context
        heads = self.sizes.kv_heads
        bad_head = command.head >= heads if heads < 1 << len(command.head) else Const(0)
        by_cluster = (command.op == Op.SELECT) | (command.op == Op.FIND)
        with m.State("IDLE"):
            m.d.sync += [
                result.eq(0),
                walk.page.eq(command.page),
                walk.remaining.eq(1),
                walk.index.eq(command.index),
            ]
            with m.If(self.i.valid & by_cluster):
                m.next = "READ_CHAIN"
                with m.If(command.cluster >= context.clusters):
                    self._refuse(m, result, Fault.CLUSTER)
                with m.Elif((command.op == Op.FIND) & bad_head):
                    self._refuse(m, result, Fault.ADDRESS)
            with m.Elif(self.i.valid):
                m.next = "READ_PAGE"
                with m.If((command.page >= context.never_used) | ((command.op == Op.LOOKUP) & bad_head)):
                    self._refuse(m, result, Fault.ADDRESS)
        with reading(m, self.memory, "READ_CHAIN", cluster_block(context, command.cluster)) as content:
            chain = data.View(CLUSTER_RECORD, content)
            m.d.sync += [walk.page.eq(chain.first_page), walk.remaining.eq(chain.pages)]
            m.next = "READ_PAGE"
            with m.If(command.op == Op.SELECT):
                m.d.sync += result.count.eq(chain.pages)
                with m.If((chain.pages == 0) | ~command.heads.any()):
                    m.next = "ANSWER"
            with m.Elif(chain.pages == 0):
                self._refuse(m, result, Fault.ADDRESS)
        with reading(m, self.memory, "READ_PAGE", page_block(context, walk.page)) as content:
            m.d.sync += walk.record.eq(content)
            m.next = "VISIT"

    def _visit(self, m: Module, walk: Walk, result: data.View) -> None:
        """VISIT: what to do with the page. NEXT: the next page of the chain."""
        command, record = self.i.payload, walk.record
        flags = record.flags
        exists = flags.chained | record.references.any()
        with m.State("VISIT"):
            m.next = "REPORT"
            with m.If(~exists):
                self._refuse(m, result, Fault.ADDRESS)
            with m.Elif(command.op == Op.LOOKUP):
                self._locate(m, walk, result, command.slot)
            with m.Elif((command.op == Op.FIND) & (walk.index < record.used)):
                self._locate(m, walk, result, walk.index[: self.sizes.slot_bits])
            with m.Elif(command.op == Op.FIND):
                m.d.sync += walk.index.eq(walk.index - record.used)
                m.next = "NEXT"
                with m.If(walk.remaining == 1):
                    self._refuse(m, result, Fault.ADDRESS)
            with m.Elif((walk.past_tokens == 0) | ~command.heads.any()):
                m.next = "NEXT"
            with m.Elif(self.retain & flags.resident):
                m.next = "RENEW_FRAME"
            with m.Elif(self.retain):
                m.next = "TAKE_FRAME"
                with m.If(~self.frames.available):
                    self._refuse(m, result, Fault.NO_PAGE_FRAME)
            with m.If(exists & (command.op == Op.MARK)):
                m.d.sync += result.count.eq(1)
        with m.State("NEXT"):
            m.d.sync += [walk.page.eq(record.next), walk.remaining.eq(walk.remaining - 1)]
            m.next = "READ_PAGE"
            with m.If(walk.remaining == 1):
                m.next = "ANSWER"

    def _locate(self, m: Module, walk: Walk, result: data.View, slot: Value) -> None:
        """The address of a slot is the result."""
        record, target = walk.record, result.target
        m.next = "ANSWER"
        with m.If(~record.live.bit_select(slot, 1)):
            self._refuse(m, result, Fault.ADDRESS)
        with m.Else():
            m.d.sync += [
                result.page.eq(walk.page),
                result.slot.eq(slot),
                result.head.eq(self.i.payload.head),
                result.located.eq(1),
                target.tier.eq(Mux(record.flags.resident, Tier.DEVICE, self._backing_tier(record))),
                target.base.eq(self._backing_base(record)),
                target.number.eq(Mux(record.flags.resident, record.frame, walk.page)),
                target.slot.eq(slot),
            ]

    def _backing_tier(self, record: data.View) -> Value:
        return Mux(record.flags.storage, Tier.STORAGE, Tier.HOST)

    def _backing_base(self, record: data.View) -> Value:
        return Mux(record.flags.storage, self.context.storage_pages_base, self.context.host_pages_base)

    def _retain(self, m: Module, walk: Walk) -> None:
        """RENEW_FRAME: a resident page becomes the newest one. TAKE_FRAME, WRITE_PAGE: so does an offloaded page."""
        record, frames, store = walk.record, self.frames, self.store.value
        page_frame = Signal(self.sizes.frame_bits)
        m.d.comb += [
            frames.request.payload.frame.eq(record.frame[: self.sizes.frame_bits]),
            frames.request.payload.context.eq(self.number),
            frames.request.payload.page.eq(walk.page),
        ]
        with m.State("RENEW_FRAME"):
            m.d.comb += [frames.request.valid.eq(1), frames.request.payload.action.eq(FrameAction.RENEW)]
            with m.If(frames.request.ready):
                m.d.comb += self.changed.eq(1)
                m.next = "REPORT"
        with m.State("TAKE_FRAME"):
            m.d.comb += [frames.request.valid.eq(1), frames.request.payload.action.eq(FrameAction.TAKE)]
            m.d.sync += page_frame.eq(frames.frame)
            with m.If(frames.request.ready):
                m.next = "WRITE_PAGE"
        flags = record.flags.as_value() | Const({"resident": 1}, FLAGS).as_value()
        parts = page_words(frame=page_frame, state=state_word(record.used, record.references, flags))
        with writing(m, self.memory, "WRITE_PAGE", page_block(self.context, walk.page), parts):
            m.d.comb += [
                self.changed.eq(1),
                *edit(self.store, resident_tokens=store.resident_tokens + record.used),
            ]
            m.d.sync += record.frame.eq(page_frame)
            m.next = "REPORT"

    def _report(self, m: Module, walk: Walk, result: data.View) -> None:
        """REPORT: the copy job of the page."""
        command, record, job = self.i.payload, walk.record, self.copies.payload
        resident, admits = record.flags.resident, Signal()
        m.d.comb += [
            admits.eq(self.retain & ~resident),
            job.op.eq(command.op),
            job.page.eq(walk.page),
            job.count.eq(walk.past_tokens),
            job.report.eq(Report.HEADS),
            job.copy.eq(~resident),
            job.located.eq(1),
            job.heads.eq(Mux(admits, Const(-1, self.sizes.kv_heads), command.heads)),
            job.reported.eq(command.heads),
            job.source.tier.eq(self._backing_tier(record)),
            job.source.base.eq(self._backing_base(record)),
            job.source.number.eq(walk.page),
            job.target.tier.eq(Tier.DEVICE),
            job.target.number.eq(record.frame),
            job.staged.eq(~resident & ~self.retain),
            job.tokens.eq(record.used[: len(job.tokens)]),
            job.kind.eq(Mux(self.retain, TransferKind.RETAIN, TransferKind.FETCH)),
        ]
        with m.State("REPORT"):
            m.d.comb += self.copies.valid.eq(1)
            with m.If(self.copies.ready):
                m.next = "NEXT"
                with m.If(self.out_of_space):
                    self._refuse(m, result, Fault.STAGING)
