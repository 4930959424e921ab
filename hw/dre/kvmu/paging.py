"""States of the KVMU that store, move, free and offload pages."""

from amaranth import Const, Module, Mux, Signal

from hw.dre.kvmu.command import Fault, Op, Stat
from hw.dre.kvmu.datapath import Datapath
from hw.dre.transfer import Tier, TransferKind


class Paging(Datapath):
    """States of APPEND, MOVE, SEAL, HOLD, MIGRATE, FREE, EVICT and STEP."""

    def _append(self, m: Module) -> None:
        """APPEND and the second half of MOVE: allocate a slot in the open page of the cluster, or open a new page."""
        unit, tables, entry, owner = self.unit, self.tables, self.entry, self.owner
        number, frame, chain_nonempty = tables.free_pages.number, tables.free_page_frames.number, owner.length != 0
        with m.State("APPEND"):
            m.d.sync += owner.eq(self.chain)
            m.d.comb += self._read_page(self.chain.last_page)
            m.next = "PLACE"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
        with m.State("PLACE"):
            tracker = self.tracker
            reuse = (self.cmd.op == Op.APPEND) & tracker.active & (tracker.active_kind != TransferKind.FETCH)
            with m.If(chain_nonempty & entry.open):
                more = entry.used != unit.page_tokens - 1
                m.d.comb += [
                    *self._write_page(owner.last_page, used=entry.used + 1, open=more),
                    tables.live.w_addr.eq(owner.last_page),
                    tables.live.w_mask.eq(self._bit(entry.used[: len(self.target_slot)])),
                    tables.live.w_data.eq(Const(-1, unit.page_tokens)),
                    self.appended.eq(1),
                ]
                m.d.sync += [
                    self.reply.page.eq(owner.last_page),
                    self.reply.slot.eq(entry.used[: len(self.target_slot)]),
                    self.target_page.eq(entry.page_frame),
                    self.target_slot.eq(entry.used[: len(self.target_slot)]),
                ]
                self._token_stored(m)
            with m.Elif(~tables.free_pages.available):
                self._refuse(m, Fault.NO_PAGE)
            with m.Elif(~tables.free_page_frames.available):
                self._refuse(m, Fault.NO_PAGE_FRAME)
            with m.Elif(reuse):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                with m.If(chain_nonempty):
                    m.d.comb += self._write_page(owner.last_page, next_page=number)
                m.next = "OPEN"
        with m.State("OPEN"):
            m.d.comb += [
                self.opening.eq(1),
                self.appended.eq(1),
                tables.pages.w_addr.eq(number),
                tables.pages.w_mask.eq(1),
                self.new_entry.eq(0),
                self.new_entry.cluster.eq(self.cmd.cluster[: len(self.new_entry.cluster)]),
                self.new_entry.previous_page.eq(owner.last_page),
                self.new_entry.used.eq(1),
                self.new_entry.page_frame.eq(frame),
                self.new_entry.chained.eq(1),
                self.new_entry.open.eq(1),
                self.new_entry.resident.eq(1),
                self.new_entry.storage.eq(unit.cfg_offload_to_storage),
                tables.clusters.w_addr.eq(self.cmd.cluster[: len(tables.clusters.w_addr)]),
                tables.clusters.w_mask.eq(1),
                self.new_chain.first_page.eq(Mux(chain_nonempty, owner.first_page, number)),
                self.new_chain.last_page.eq(number),
                self.new_chain.length.eq(owner.length + 1),
                tables.live.w_addr.eq(number),
                tables.live.w_mask.eq(Const(-1, unit.page_tokens)),
                tables.live.w_data.eq(Const(1, unit.page_tokens)),
                tables.free_pages.allocate.eq(1),
                tables.free_page_frames.allocate.eq(1),
                tables.ages.push.eq(1),
                tables.ages.push_page_frame.eq(frame),
                tables.ages.push_owner.eq(number),
            ]
            m.d.sync += [self.reply.page.eq(number), self.target_page.eq(frame)]
            self._token_stored(m)

    def _token_stored(self, m: Module) -> None:
        m.d.sync += [self.located.eq(1), self.unit.stat_resident.eq(self.unit.stat_resident + 1)]
        m.next = "ANSWER"
        with m.If(self.cmd.op == Op.MOVE):
            m.d.sync += self.heads.eq(self._all_heads())
            m.next = "COPY"

    def _move(self, m: Module) -> None:
        """MOVE: seal the source page, allocate a slot, copy every head, clear the old slot. SEAL, HOLD, MIGRATE."""
        tables, entry = self.tables, self.entry
        with m.State("MOVE"):
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(~self.page_exists | ~self.live.bit_select(self.cmd.slot, 1)):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(~entry.resident):
                self._refuse(m, Fault.NOT_RESIDENT)
            with m.Elif(entry.references.any()):
                self._refuse(m, Fault.HELD)
            with m.Elif(~self._transfers_allowed()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0)
                m.d.sync += [
                    self.source_page.eq(entry.page_frame),
                    self.source_slot.eq(self.cmd.slot),
                    self.tokens.eq(1),
                ]
                m.next = "APPEND"
        with m.State("MOVE_END"):
            live_after = self.live & ~self._bit(self.cmd.slot)
            m.d.comb += [
                tables.live.w_addr.eq(self.cmd.page),
                tables.live.w_mask.eq(self._bit(self.cmd.slot)),
            ]
            m.next = "FINISH"
            with m.If(live_after == 0):
                m.next = "RELEASE"
        with m.State("SEAL"):
            m.next = "ANSWER"
            with m.If(~self.page_exists):
                self._refuse(m, Fault.ADDRESS)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0)
        with m.State("HOLD"):
            m.next = "ANSWER"
            with m.If(~self.page_exists):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(entry.references.all()):
                self._refuse(m, Fault.HELD)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, open=0, references=entry.references + 1)
                m.d.sync += self.reply.count.eq(entry.references + 1 + entry.chained)
        with m.State("MIGRATE"):
            storage = self.cmd.tier == Tier.STORAGE
            with m.If(~self.page_exists | (~storage & (self.cmd.tier != Tier.HOST))):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(~self._transfers_allowed()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += self._write_page(self.cmd.page, storage=storage)
                m.d.sync += [
                    self.source_tier.eq(self.backing_tier),
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
        """FREE, EVICT and the end of a MOVE that emptied its page: unlink the page and free it."""
        tables, entry, old_entry, chain = self.tables, self.entry, self.old_entry, self.chain
        number, evicts = self.page, self.cmd.op == Op.EVICT
        freed = ~evicts | (old_entry.references == 0)
        with m.State("FREE"):
            m.next = "RELEASE"
            with m.If(~self.page_exists):
                self._refuse(m, Fault.ADDRESS)
            with m.Elif(entry.references.any()):
                m.d.comb += self._write_page(number, references=entry.references - 1)
                m.d.sync += self.reply.count.eq(entry.references - 1 + entry.chained)
                with m.If(entry.chained | (entry.references != 1)):
                    m.next = "ANSWER"
        with m.State("RELEASE"):
            m.d.sync += old_entry.eq(entry)
            m.d.comb += [
                tables.clusters.r_addr.eq(entry.cluster),
                tables.clusters.r_en.eq(1),
                tables.ages.read.eq(1),
                tables.ages.read_page_frame.eq(entry.page_frame),
                *self._write_page(number, chained=0, references=Mux(evicts, entry.references, 0)),
            ]
            m.next = "UNLINK"
        with m.State("UNLINK"):
            first, last = chain.first_page == number, chain.last_page == number
            m.d.comb += [
                tables.clusters.w_addr.eq(old_entry.cluster),
                tables.clusters.w_mask.eq(old_entry.chained),
                self.new_chain.length.eq(chain.length - 1),
                self.new_chain.first_page.eq(Mux(first, old_entry.next_page, chain.first_page)),
                self.new_chain.last_page.eq(Mux(last, old_entry.previous_page, chain.last_page)),
                *self._read_page(old_entry.previous_page),
            ]
            m.d.sync += self.owner.eq(chain)
            with m.If(freed):
                m.d.comb += [
                    self.released.eq(1),
                    tables.marks.w_addr.eq(number),
                    tables.marks.w_mask.eq(self._all_heads()),
                    *self._touch(number, 0),
                    tables.free_pages.release.eq(1),
                    tables.free_pages.release_number.eq(number),
                    tables.free_page_frames.release.eq(old_entry.resident),
                    tables.free_page_frames.release_number.eq(old_entry.page_frame),
                    tables.ages.remove.eq(old_entry.resident),
                ]
            with m.If(freed & old_entry.resident):
                m.d.sync += self.unit.stat_resident.eq(self.unit.stat_resident - old_entry.used)
            m.next = "UNLINK_PREVIOUS"
        with m.State("UNLINK_PREVIOUS"):
            with m.If(old_entry.chained & (self.owner.first_page != number)):
                m.d.comb += self._write_page(old_entry.previous_page, next_page=old_entry.next_page)
            m.d.comb += self._read_page(old_entry.next_page)
            m.next = "UNLINK_NEXT"
        with m.State("UNLINK_NEXT"):
            with m.If(old_entry.chained & (self.owner.last_page != number)):
                m.d.comb += self._write_page(old_entry.next_page, previous_page=old_entry.previous_page)
            m.d.comb += self._read_page(old_entry.next_page)
            m.d.sync += self.page.eq(old_entry.next_page)
            m.next = "FINISH"
            with m.If(evicts & (self.quota != 0)):
                m.next = "EVICT_PAGE"

    def _evict(self, m: Module) -> None:
        """EVICT: skip the first pages of the chain, then remove page after page."""
        entry, kept_pages = self.entry, self.cmd.index + self.cmd.page
        with m.State("EVICT"):
            m.d.sync += [
                self.page.eq(self.chain.first_page),
                self.quota.eq((self.chain.length - kept_pages)[: len(self.quota)]),
            ]
            m.d.comb += self._read_page(self.chain.first_page)
            m.next = "EVICT_PAGE"
            with m.If(self.bad_cluster):
                self._refuse(m, Fault.CLUSTER)
            with m.Elif(self.chain.length <= kept_pages):
                m.next = "ANSWER"
            with m.Elif(self.cmd.index != 0):
                m.next = "EVICT_SKIP"
        with m.State("EVICT_SKIP"):
            m.d.comb += self._read_page(entry.next_page)
            m.d.sync += [self.page.eq(entry.next_page), self.index.eq(self.index - 1)]
            with m.If(self.index == 1):
                m.next = "EVICT_PAGE"
        with m.State("EVICT_PAGE"):
            m.d.comb += [self.emit.eq(1), self.beat.count.eq(entry.used), self.beat.address.eq(0)]
            with m.If(self.output_free):
                m.d.sync += [self.quota.eq(self.quota - 1), self.reply.count.eq(self.reply.count + 1)]
                m.next = "RELEASE"

    def _offload(self, m: Module) -> None:
        """STEP: offload the oldest page while too many tokens are resident; copy it unless a copy exists."""
        unit, tables, entry = self.unit, self.tables, self.entry
        with m.State("STEP"):
            with m.If((unit.stat_resident <= unit.cfg_max_resident_tokens) | (tables.ages.count <= 1)):
                m.next = "FINISH"
            with m.Elif(~self.pushed & ~self._transfers_allowed()):
                m.d.comb += self.waiting.eq(1)
            with m.Else():
                m.d.comb += [tables.ages.read.eq(1), tables.ages.read_page_frame.eq(tables.ages.oldest)]
                m.next = "OLDEST"
        with m.State("OLDEST"):
            m.d.comb += [tables.ages.remove.eq(1), *self._read_page(tables.ages.row.owner)]
            m.d.sync += self.page.eq(tables.ages.row.owner)
            m.next = "LEAVE"
        offloading = Signal()
        with m.State("LEAVE"):
            m.d.comb += [
                offloading.eq(1),
                *self._write_page(self.page, resident=0, open=0, saved=1),
                tables.free_page_frames.release.eq(1),
                tables.free_page_frames.release_number.eq(entry.page_frame),
            ]
            m.d.sync += [
                unit.stat_resident.eq(unit.stat_resident - entry.used),
                self.source_page.eq(entry.page_frame),
                self.target_tier.eq(self.backing_tier),
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
            with m.If(self.output_free):
                m.d.sync += self.heads.eq(self._all_heads())
                m.next = "COPY"
                with m.If(self.hit):
                    m.d.sync += self.heads.eq(0)
                    m.next = "STEP"
        self.events[Stat.OFFLOADED] = offloading
