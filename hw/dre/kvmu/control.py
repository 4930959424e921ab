"""State machine of the KVMU: command input, selection, fetch, lookup and reply."""

from amaranth import Const, Module, Mux, Signal, Value

from hw.dre.kvmu.command import Fault, Op, Stat
from hw.dre.kvmu.datapath import lowest
from hw.dre.kvmu.paging import Paging
from hw.dre.transfer import Tier, TransferKind


class Control(Paging):
    """The complete state machine; `build` adds it to a module."""

    def build(self, m: Module) -> None:
        """Add the state machine and the datapath to `m`."""
        self._wires(m)
        self._output(m)
        with m.FSM(init="CLEAR") as fsm:
            self._clear(m)
            self._idle(m)
            self._append(m)
            self._move(m)
            self._release(m)
            self._evict(m)
            self._offload(m)
            self._select(m)
            self._fetch(m)
            self._find(m)
            self._end_command(m)
        self.events[Stat.BUSY] = ~fsm.ongoing("IDLE")
        self.events[Stat.BLOCKED_REPLY] = self.emit & ~self.output_free
        self.events[Stat.WAITING] = self.waiting
        self.events[Stat.APPENDED] = self.appended & (self.cmd.op == Op.APPEND)
        self.events[Stat.MOVED] = self.appended & (self.cmd.op == Op.MOVE)
        self.events[Stat.OPENED] = self.opening
        self.events[Stat.FREED] = self.released

    def _clear(self, m: Module) -> None:
        """BEGIN and reset: clear the tables and compute the region addresses of the layer."""
        unit, tables, limit = self.unit, self.tables, 1 << self.unit.address_bits
        self.region_bad = region_bad = Signal()
        rows = max(unit.max_clusters, unit.max_pages)
        sweep, boot = Signal(range(rows + 1)), Signal(init=1)
        starts = {}
        for tier, base, pages in (
            (Tier.DEVICE, unit.cfg_page_frames_base, unit.page_frames),
            (Tier.HOST, unit.cfg_host_pages_base, unit.max_pages),
            (Tier.STORAGE, unit.cfg_storage_pages_base, unit.max_pages),
        ):
            start = Signal(unit.address_bits + 1, name=f"start_{tier.name.lower()}")
            m.d.comb += start.eq(base + self.cmd.layer * (pages * unit.page_bytes))
            starts[tier] = (start, start + pages * unit.page_bytes > limit)
        overflow = unit.cfg_staging_base + (unit.cfg_staging_head_pages << 1) * unit.head_page_bytes > limit
        for _, beyond in starts.values():
            overflow |= beyond
        with m.State("BEGIN"):
            m.d.comb += self.waiting.eq(self.tracker.active)
            with m.If(~self.tracker.active):
                m.next = "CLEAR"
        with m.State("CLEAR"):
            for ram, depth in ((tables.clusters, unit.max_clusters), (tables.marks, unit.max_pages)):
                m.d.comb += [ram.w_addr.eq(sweep), ram.w_mask.eq(Mux(sweep < depth, -1, 0))]
            m.d.comb += [
                tables.touched.w_addr.eq(sweep),
                tables.touched.w_mask.eq(Mux(sweep < unit.max_pages // unit.group, -1, 0)),
                tables.free_pages.clear.eq(1),
                tables.free_page_frames.clear.eq(1),
                tables.ages.clear.eq(1),
            ]
            m.d.sync += [sweep.eq(sweep + 1), unit.stat_resident.eq(0)]
            with m.If(sweep == rows):
                m.d.sync += [sweep.eq(0), boot.eq(0), region_bad.eq(overflow)]
                m.d.sync += [self.bases[tier].eq(start[: unit.address_bits]) for tier, (start, _) in starts.items()]
                with m.If(overflow):
                    m.d.comb += self.fault.eq(Fault.REGION)
                    m.d.sync += self.reply.fault.eq(Fault.REGION)
                m.next = "ANSWER"
                with m.If(boot):
                    m.next = "IDLE"

    def _idle(self, m: Module) -> None:
        """Accept a command and read the rows of its cluster and its page."""
        unit, tables, command = self.unit, self.tables, self.unit.i.payload
        with m.State("IDLE"):
            m.d.comb += [
                unit.i.ready.eq(1),
                tables.clusters.r_addr.eq(command.cluster[: len(tables.clusters.r_addr)]),
                tables.clusters.r_en.eq(1),
                tables.touched.r_addr.eq(0),
                tables.touched.r_en.eq(1),
                *self._read_page(command.page),
            ]
            cleared = (
                self.pushed,
                self.failed,
                self.located,
                self.heads,
                self.hit,
                self.staged,
                self.row,
                self.visited_marks,
            )
            more = (self.source_tier, self.target_tier, self.source_slot, self.target_slot)
            m.d.sync += [
                *(register.eq(0) for register in (*cleared, *more)),
                self.cmd.eq(command),
                self.reply.eq(0),
                self.reply.op.eq(command.op),
                self.reply.last.eq(1),
                self.page.eq(command.page),
                self.index.eq(command.index),
                self.staging_head_page.eq(Mux(command.bank, unit.cfg_staging_head_pages, 0)),
                self.space.eq(unit.cfg_staging_head_pages),
            ]
            with m.If(unit.i.valid):
                with m.Switch(command.op):
                    for op in Op:
                        with m.Case(op):
                            m.next = op.name
                    with m.Default():
                        self._refuse(m, Fault.OP)
                with m.Switch(command.op):
                    with m.Case(Op.FETCH):
                        m.d.sync += self.kind.eq(Mux(command.retain, TransferKind.RETAIN, TransferKind.FETCH))
                    with m.Case(Op.STEP):
                        m.d.sync += self.kind.eq(TransferKind.OFFLOAD)
                    with m.Case(Op.MOVE):
                        m.d.sync += self.kind.eq(TransferKind.MOVE)
                    with m.Case(Op.MIGRATE):
                        m.d.sync += self.kind.eq(TransferKind.MIGRATE)
                with m.If(self.region_bad & (command.op != Op.BEGIN)):
                    self._refuse(m, Fault.REGION)

    def _select(self, m: Module) -> None:
        """SELECT: mark every page of the chain. MARK: one page."""
        tables, unit = self.tables, self.unit
        with m.State("SELECT"):
            m.d.sync += [self.owner.eq(self.chain), self.page.eq(self.chain.first_page)]
            m.d.comb += self._read_page(self.chain.first_page)
            m.next = "MARKING"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(~self.chain_nonempty):
                m.next = "ANSWER"
        with m.State("MARK"):
            m.next = "MARKING"
            with m.If(~self.page_exists):
                self._refuse(m, Fault.ADDRESS)
        with m.State("MARKING"):
            m.d.comb += [
                tables.marks.w_addr.eq(self.page),
                tables.marks.w_mask.eq(self.cmd.heads),
                tables.marks.w_data.eq(Const(-1, unit.kv_heads)),
                *self._read_page(self.entry.next_page),
            ]
            with m.If(self.cmd.heads.any()):
                m.d.comb += self._touch(self.page, 1)
            m.d.sync += [self.page.eq(self.entry.next_page), self.reply.count.eq(self.reply.count + 1)]
            with m.If((self.page == self.owner.last_page) | (self.cmd.op == Op.MARK)):
                m.next = "ANSWER"

    def _fetch(self, m: Module) -> None:
        """FETCH: marked pages in ascending order, one head page per cycle. MOVE, STEP and MIGRATE also copy here."""
        unit, tables, entry = self.unit, self.tables, self.entry
        with m.State("FETCH"):
            m.next = "SCAN"
            with m.If(~self._transfers_allowed()):
                m.d.comb += self.waiting.eq(1)
                m.next = "FETCH"
        with m.State("SCAN"):
            remaining = Signal(unit.group)
            number = Signal(self.page_bits)
            m.d.comb += [
                remaining.eq(self.touched & ~self.visited_marks),
                number.eq((self.row << self.group_bits) | lowest(remaining, unit.group)),
            ]
            with m.If(remaining == 0):
                m.d.comb += [
                    tables.touched.w_addr.eq(self.row),
                    tables.touched.w_mask.eq(Const(-1, unit.group)),
                    tables.touched.r_addr.eq(self.row + 1),
                    tables.touched.r_en.eq(1),
                ]
                m.d.sync += [self.row.eq(self.row + 1), self.visited_marks.eq(0)]
                with m.If(((self.row + 1) << self.group_bits) >= tables.free_pages.never_used):
                    m.next = "FINISH"
            with m.Else():
                m.d.comb += self._read_page(number)
                m.d.sync += [
                    self.page.eq(number),
                    self.visited_marks.eq(self.visited_marks | (remaining & (~remaining + 1))),
                ]
                m.next = "PAGE"
        with m.State("PAGE"):
            admit = self.cmd.retain & ~entry.resident
            m.d.comb += [tables.marks.w_addr.eq(self.page), tables.marks.w_mask.eq(self._all_heads())]
            m.d.sync += [
                self.tokens.eq(entry.used),
                self.source_tier.eq(self.backing_tier),
                self.source_page.eq(self.page),
                self.target_page.eq(entry.page_frame),
                self.hit.eq(entry.resident),
                self.staged.eq(~entry.resident & ~self.cmd.retain),
                self.heads.eq(Mux(admit, self._all_heads(), self.marks)),
            ]
            m.next = "COPY"
            with m.If(self.failed):
                m.d.sync += self.heads.eq(0)
                m.next = "SCAN"
            with m.Elif(admit & ~tables.free_page_frames.available):
                self._abort_fetch(m, Fault.NO_PAGE_FRAME)
            with m.Elif(admit):
                frame = tables.free_page_frames.number
                m.d.comb += [
                    *self._write_page(self.page, resident=1, page_frame=frame),
                    tables.free_page_frames.allocate.eq(1),
                    tables.ages.push.eq(1),
                    tables.ages.push_page_frame.eq(frame),
                    tables.ages.push_owner.eq(self.page),
                ]
                m.d.sync += [self.target_page.eq(frame), unit.stat_resident.eq(unit.stat_resident + entry.used)]

        report, copied = Signal(), Signal()
        with m.State("COPY"):
            remaining = self.heads & (self.heads - 1)[: unit.kv_heads]
            with m.If(self.staged & (self.space == 0)):
                self._abort_fetch(m, Fault.STAGING)
            with m.Else():
                m.d.comb += [
                    report.eq(self.cmd.op == Op.FETCH),
                    self.emit.eq(report & (self.hit | self.joiner.i.ready)),
                    self.joiner.i.valid.eq(~self.hit & (~report | self.output_free)),
                    self.beat.transit.eq(~self.hit),
                    self.beat.tag.eq(Mux(self.hit, 0, self.tracker.tag)),
                    copied.eq((~report | self.output_free) & (self.hit | self.joiner.i.ready)),
                ]
            with m.If(copied):
                m.d.sync += self.heads.eq(remaining)
                with m.If(self.staged):
                    m.d.sync += [self.staging_head_page.eq(self.staging_head_page + 1), self.space.eq(self.space - 1)]
                with m.If(report):
                    m.d.sync += self.reply.count.eq(self.reply.count + 1)
                with m.If(remaining == 0), m.Switch(self.cmd.op):
                    with m.Case(Op.FETCH):
                        m.next = "SCAN"
                    with m.Case(Op.STEP):
                        m.next = "STEP"
                    with m.Case(Op.MOVE):
                        m.d.comb += self._read_page(self.cmd.page)
                        m.next = "MOVE_END"
                    with m.Default():
                        m.next = "FINISH"
        self.events[Stat.HITS] = copied & report & self.hit
        self.events[Stat.FETCHED] = copied & report & ~self.hit

    def _abort_fetch(self, m: Module, cause: Fault | int) -> None:
        """Abort a FETCH: the remaining part of the walk only clears marks."""
        m.d.comb += self.fault.eq(cause)
        m.d.sync += [self.reply.fault.eq(cause), self.failed.eq(1), self.heads.eq(0)]
        m.next = "SCAN"

    def _find(self, m: Module) -> None:
        """LOOKUP and FIND: address of a token."""
        entry = self.entry

        def answer(page: Value, slot: Value) -> None:
            m.next = "ANSWER"
            with m.If(~self.live.bit_select(slot, 1)):
                self._refuse(m, Fault.ADDRESS)
            with m.Else():
                m.d.sync += [
                    self.located.eq(1),
                    self.reply.page.eq(page),
                    self.reply.slot.eq(slot),
                    self.reply.head.eq(self.cmd.head),
                    self.heads.eq((Const(1, self.unit.kv_heads) << self.cmd.head)[: self.unit.kv_heads]),
                    self.target_tier.eq(Mux(entry.resident, Tier.DEVICE, self.backing_tier)),
                    self.target_page.eq(Mux(entry.resident, entry.page_frame, page)),
                    self.target_slot.eq(slot),
                ]

        with m.State("LOOKUP"):
            with m.If(~self.page_exists | self.bad_head):
                self._refuse(m, Fault.ADDRESS)
            with m.Else():
                answer(self.cmd.page, self.cmd.slot)
        with m.State("FIND"):
            m.d.sync += [self.owner.eq(self.chain), self.page.eq(self.chain.first_page)]
            m.d.comb += self._read_page(self.chain.first_page)
            m.next = "FIND_PAGE"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(~self.chain_nonempty | self.bad_head):
                self._refuse(m, Fault.ADDRESS)
        with m.State("FIND_PAGE"):
            with m.If(self.index < entry.used):
                answer(self.page, self.index[: len(self.target_slot)])
            with m.Elif(self.page == self.owner.last_page):
                self._refuse(m, Fault.ADDRESS)
            with m.Else():
                m.d.sync += [self.index.eq(self.index - entry.used), self.page.eq(entry.next_page)]
                m.d.comb += self._read_page(entry.next_page)

    def _end_command(self, m: Module) -> None:
        """The end of a command with transfers, and the last beat of every command."""
        joiner, tracker = self.joiner, self.tracker
        with m.State("SYNC"):
            m.d.comb += self.waiting.eq(tracker.active)
            with m.If(~tracker.active):
                m.next = "ANSWER"
        with m.State("FINISH"):
            with m.If(~self.pushed):
                m.next = "ANSWER"
            with m.Else():
                m.d.comb += [joiner.i.valid.eq(1), joiner.i.payload.bytes.eq(0), joiner.i.payload.last.eq(1)]
                with m.If(joiner.i.ready):
                    m.next = "DRAIN"
        with m.State("DRAIN"), m.If(joiner.idle & self.splitter.idle):
            m.d.comb += tracker.close.eq(1)
            m.d.sync += [self.reply.tagged.eq(1), self.reply.tag.eq(tracker.tag)]
            m.next = "ANSWER"
        with m.State("ANSWER"):
            m.d.comb += [self.emit.eq(1), self.beat.eq(self.reply)]
            with m.If(self.located):
                m.d.comb += [self.beat.tier.eq(self.target_tier), self.beat.address.eq(self.target)]
            with m.If(self.output_free):
                m.next = "IDLE"
