"""States of the KVMU that place, move, free and offload pages."""

from amaranth import Const, Module, Mux, Signal

from hw.dre.kvmu.command import Fault, Op, Stat
from hw.dre.kvmu.datapath import Datapath
from hw.dre.transfer import Kind, Tier


class Paging(Datapath):
    """APPEND, MOVE, SEAL, HOLD, MIGRATE, FREE, EVICT and STEP."""

    def _place(self, m: Module) -> None:
        """APPEND, and the second half of MOVE: a slot in the open page of the cluster, or a new page."""
        unit, tables, entry, owner = self.unit, self.tables, self.entry, self.owner
        number, frame, some = tables.free_pages.number, tables.free_page_frames.number, owner.length != 0
        with m.State("APPEND"):
            m.d.sync += owner.eq(self.chain)
            m.d.comb += self._read_page(self.chain.newest)
            m.next = "PLACE"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
        with m.State("PLACE"):
            tracker = self.tracker
            reuse = (self.cmd.op == Op.APPEND) & tracker.active & (tracker.active_kind != Kind.FETCH)
            with m.If(some & entry.open):
                more = entry.used != unit.page_tokens - 1
                m.d.comb += [
                    *self._write_page(owner.newest, used=entry.used + 1, open=more),
                    tables.live.w_addr.eq(owner.newest),
                    tables.live.w_mask.eq(self._bit(entry.used[: len(self.target_slot)])),
                    tables.live.w_data.eq(Const(-1, unit.page_tokens)),
                    self.appended.eq(1),
                ]
                m.d.sync += [
                    self.reply.page.eq(owner.newest),
                    self.reply.slot.eq(entry.used[: len(self.target_slot)]),
                    self.target_page.eq(entry.frame),
                    self.target_slot.eq(entry.used[: len(self.target_slot)]),
                ]
                self._placed(m)
            with m.Elif(~tables.free_pages.available):
                self._refuse(m, Fault.NO_PAGE)
            with m.Elif(~tables.free_page_frames.available):
                self._refuse(m, Fault.NO_PAGE_FRAME)
            with m.Elif(reuse):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                with m.If(some):
                    m.d.comb += self._write_page(owner.newest, newer=number)
                m.next = "OPEN"
        with m.State("OPEN"):
            m.d.comb += [
                self.opening.eq(1),
                self.appended.eq(1),
                tables.pages.w_addr.eq(number),
                tables.pages.w_mask.eq(1),
                self.new_entry.eq(0),
                self.new_entry.cluster.eq(self.cmd.cluster[: len(self.new_entry.cluster)]),
                self.new_entry.older.eq(owner.newest),
                self.new_entry.used.eq(1),
                self.new_entry.frame.eq(frame),
                self.new_entry.chained.eq(1),
                self.new_entry.open.eq(1),
                self.new_entry.resident.eq(1),
                self.new_entry.storage.eq(unit.cfg_offload_to_storage),
                tables.clusters.w_addr.eq(self.cmd.cluster[: len(tables.clusters.w_addr)]),
                tables.clusters.w_mask.eq(1),
                self.new_chain.first.eq(Mux(some, owner.first, number)),
                self.new_chain.newest.eq(number),
                self.new_chain.length.eq(owner.length + 1),
                tables.live.w_addr.eq(number),
                tables.live.w_mask.eq(Const(-1, unit.page_tokens)),
                tables.live.w_data.eq(Const(1, unit.page_tokens)),
                tables.free_pages.take.eq(1),
                tables.free_page_frames.take.eq(1),
                tables.ages.push.eq(1),
                tables.ages.push_frame.eq(frame),
                tables.ages.push_owner.eq(number),
            ]
            m.d.sync += [self.reply.page.eq(number), self.target_page.eq(frame)]
            self._placed(m)

    def _placed(self, m: Module) -> None:
        m.d.sync += [self.located.eq(1), self.unit.stat_resident.eq(self.unit.stat_resident + 1)]
        m.next = "ANSWER"
        with m.If(self.cmd.op == Op.MOVE):
            m.d.sync += self.heads.eq(self._all_heads())
            m.next = "COPY"

    def _move(self, m: Module) -> None:
        """MOVE: check and seal the source, place, copy every head, clear the slot. SEAL, HOLD, MIGRATE on the way."""
        tables, entry = self.tables, self.entry
        with m.State("MOVE"):
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(~self.known | ~self.live.bit_select(self.cmd.slot, 1)):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(~entry.resident):
                self._refuse(m, Fault.NOT_RESIDENT)
            with m.Elif(entry.held.any()):
                self._refuse(m, Fault.HELD)
            with m.Elif(~self._clear_to_go()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0)
                m.d.sync += [
                    self.source_page.eq(entry.frame),
                    self.source_slot.eq(self.cmd.slot),
                    self.tokens.eq(1),
                ]
                m.next = "APPEND"
        with m.State("MOVED"):
            left = self.live & ~self._bit(self.cmd.slot)
            m.d.comb += [
                tables.live.w_addr.eq(self.cmd.page),
                tables.live.w_mask.eq(self._bit(self.cmd.slot)),
            ]
            m.next = "FINISH"
            with m.If(left == 0):
                m.next = "RELEASE"
        with m.State("SEAL"):
            m.next = "ANSWER"
            with m.If(~self.known):
                self._refuse(m, Fault.ADDRESS)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0)
        with m.State("HOLD"):
            m.next = "ANSWER"
            with m.If(~self.known):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(entry.held.all()):
                self._refuse(m, Fault.HELD)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0, held=entry.held + 1)
                m.d.sync += self.reply.count.eq(entry.held + 1 + entry.chained)
        with m.State("MIGRATE"):
            storage = self.cmd.tier == Tier.STORAGE
            with m.If(~self.known | (~storage & (self.cmd.tier != Tier.HOST))):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(~self._clear_to_go()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, storage=storage)
                m.d.sync += [
                    self.source_tier.eq(self.home),
                    self.source_page.eq(self.cmd.page),
                    self.target_tier.eq(self.cmd.tier),
                    self.target_page.eq(self.cmd.page),
                    self.tokens.eq(entry.used),
                ]
                m.next = "FINISH"
                with m.If(entry.saved & (entry.storage != storage)):
                    m.d.sync += self.heads.eq(self._all_heads())
                    m.next = "COPY"

    def _release(self, m: Module) -> None:
        """FREE, EVICT, and the end of a MOVE that emptied its page: out of the chain, free unless others hold it."""
        tables, entry, gone, chain = self.tables, self.entry, self.gone, self.chain
        number, evicts = self.page, self.cmd.op == Op.EVICT
        freed = ~evicts | (gone.held == 0)
        with m.State("FREE"):
            m.next = "RELEASE"
            with m.If(~self.known):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(entry.held.any()):
                m.d.comb += self._write_page(number, held=entry.held - 1)
                m.d.sync += self.reply.count.eq(entry.held - 1 + entry.chained)
                with m.If(entry.chained | (entry.held != 1)):
                    m.next = "ANSWER"
        with m.State("RELEASE"):
            m.d.sync += gone.eq(entry)
            m.d.comb += [
                tables.clusters.r_addr.eq(entry.cluster),
                tables.clusters.r_en.eq(1),
                tables.ages.read.eq(1),
                tables.ages.read_frame.eq(entry.frame),
                *self._write_page(number, chained=0, held=Mux(evicts, entry.held, 0)),
            ]
            m.next = "UNLINK"
        with m.State("UNLINK"):
            first, last = chain.first == number, chain.newest == number
            m.d.comb += [
                tables.clusters.w_addr.eq(gone.cluster),
                tables.clusters.w_mask.eq(gone.chained),
                self.new_chain.length.eq(chain.length - 1),
                self.new_chain.first.eq(Mux(first, gone.newer, chain.first)),
                self.new_chain.newest.eq(Mux(last, gone.older, chain.newest)),
                *self._read_page(gone.older),
            ]
            m.d.sync += self.owner.eq(chain)
            with m.If(freed):
                m.d.comb += [
                    self.released.eq(1),
                    tables.marks.w_addr.eq(number),
                    tables.marks.w_mask.eq(self._all_heads()),
                    *self._touch(number, 0),
                    tables.free_pages.give.eq(1),
                    tables.free_pages.give_number.eq(number),
                    tables.free_page_frames.give.eq(gone.resident),
                    tables.free_page_frames.give_number.eq(gone.frame),
                    tables.ages.remove.eq(gone.resident),
                ]
            with m.If(freed & gone.resident):
                m.d.sync += self.unit.stat_resident.eq(self.unit.stat_resident - gone.used)
            m.next = "UNLINK_OLDER"
        with m.State("UNLINK_OLDER"):
            with m.If(gone.chained & (self.owner.first != number)):
                m.d.comb += self._write_page(gone.older, newer=gone.newer)
            m.d.comb += self._read_page(gone.newer)
            m.next = "UNLINK_NEWER"
        with m.State("UNLINK_NEWER"):
            with m.If(gone.chained & (self.owner.newest != number)):
                m.d.comb += self._write_page(gone.newer, older=gone.older)
            m.d.comb += self._read_page(gone.newer)
            m.d.sync += self.page.eq(gone.newer)
            m.next = "FINISH"
            with m.If(evicts & (self.quota != 0)):
                m.next = "EVICT_PAGE"

    def _evict(self, m: Module) -> None:
        """EVICT: along the chain past the first pages, then page after page out of it."""
        entry, stay = self.entry, self.cmd.index + self.cmd.page
        with m.State("EVICT"):
            m.d.sync += [self.page.eq(self.chain.first), self.quota.eq((self.chain.length - stay)[: len(self.quota)])]
            m.d.comb += self._read_page(self.chain.first)
            m.next = "EVICT_PAGE"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(self.chain.length <= stay):
                m.next = "ANSWER"
            with m.Elif(self.cmd.index != 0):
                m.next = "EVICT_SKIP"
        with m.State("EVICT_SKIP"):
            m.d.comb += self._read_page(entry.newer)
            m.d.sync += [self.page.eq(entry.newer), self.index.eq(self.index - 1)]
            with m.If(self.index == 1):
                m.next = "EVICT_PAGE"
        with m.State("EVICT_PAGE"):
            m.d.comb += [self.emit.eq(1), self.beat.count.eq(entry.used), self.beat.address.eq(0)]
            with m.If(self.room):
                m.d.sync += [self.quota.eq(self.quota - 1), self.reply.count.eq(self.reply.count + 1)]
                m.next = "RELEASE"

    def _offload(self, m: Module) -> None:
        """STEP: while too many tokens are resident, the oldest page leaves; its bytes too, unless its home has them."""
        unit, tables, entry = self.unit, self.tables, self.entry
        with m.State("STEP"):
            with m.If((unit.stat_resident <= unit.cfg_max_resident_tokens) | (tables.ages.count <= 1)):
                m.next = "FINISH"
            with m.Elif(~self.pushed & ~self._clear_to_go()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += [tables.ages.read.eq(1), tables.ages.read_frame.eq(tables.ages.oldest)]
                m.next = "OLDEST"
        with m.State("OLDEST"):
            m.d.comb += [tables.ages.remove.eq(1), *self._read_page(tables.ages.row.owner)]
            m.d.sync += self.page.eq(tables.ages.row.owner)
            m.next = "LEAVE"
        leaving = Signal()
        with m.State("LEAVE"):
            m.d.comb += [
                leaving.eq(1),
                *self._write_page(self.page, resident=0, open=0, saved=1),
                tables.free_page_frames.give.eq(1),
                tables.free_page_frames.give_number.eq(entry.frame),
            ]
            m.d.sync += [
                unit.stat_resident.eq(unit.stat_resident - entry.used),
                self.source_page.eq(entry.frame),
                self.target_tier.eq(self.home),
                self.target_page.eq(self.page),
                self.tokens.eq(entry.used),
                self.hit.eq(entry.saved),
                self.reply.count.eq(self.reply.count + 1),
            ]
            m.next = "LEFT"
        with m.State("LEFT"):
            m.d.comb += [
                self.emit.eq(1),
                self.beat.transit.eq(~self.hit),
                self.beat.tag.eq(Mux(self.hit, 0, self.tracker.tag)),
            ]
            with m.If(self.room):
                m.d.sync += self.heads.eq(self._all_heads())
                m.next = "COPY"
                with m.If(self.hit):
                    m.d.sync += self.heads.eq(0)
                    m.next = "STEP"
        self.events[Stat.OFFLOADED] = leaving
