"""The CACHE unit: the KV prediction unit, what it says about the present step, and its way to memory."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import words_written
from hw.axi.ports import FAULT, JOB, WORD_BITS, Cause
from hw.common.memory import Ram
from hw.config import Config
from hw.core.isa import BY_NAME
from hw.core.lengths import LENGTH_BITS, lengths_layout
from hw.core.load_unit import LIST_ENTRY
from hw.core.sequencer import COMMAND, view
from hw.dre import kvpu
from hw.dre.kvmu import command as kvmu_command
from hw.dre.kvpu import KVPU
from hw.dre.transfer import Tier

MAX_LIST_PAGES = 1024  # pages that one head of a step can attend to, at most


class MeanOp(enum.Enum, shape=unsigned(2)):
    """What an event of a changed mean is."""

    MEAN = 0  # a cluster that tokens joined: its mean so far, of `count` tokens, none if `opened`
    KEY = 1  # one of these tokens
    STORE = 2  # the new mean, of `count` tokens


MEAN_UPDATE = data.StructLayout({"part": MeanOp, "cluster": 16, "count": 16, "opened": 1, "token": 8, "last": 1})
HASH_CODE = data.StructLayout({"hash": 32, "query": 1, "last": 1})


class RetrievalUnit(wiring.Component):
    """Executes BEGIN, CLUSTER, FETCH and OFFLOAD, and keeps what the present step needs.

    A step begins with its first place in the cache. From then on its tokens' clusters (`members`) and places (`place`)
    are known, and after FETCH the lists of past tokens that each head attends to: of every selected page the tokens
    that were there before the step.

    Members
    -------
    i : stream of COMMAND ; complete : one of them is
    codes, scores : from the vector engine
    lengths : run-time lengths ; list_* : as the loader's ; fault
    place_at, place : word of the place of a token of the step ; tokens : how many have one ; placed : they are filled
    recall, members : give the events of all changed means of the step
    dma : descriptors, held back until the step's places are filled ; dma_done, dma_tag : one is complete
    job, words : of a writer, for the tables in memory
    cfg_* : as the KV prediction unit's
    """

    def __init__(self, config: Config):
        self.config, self.kvpu = config, KVPU.from_config(config)
        self.word = 16 * config.dpe_inputs
        self.units, self.most = min(MAX_LIST_PAGES, config.max_pages), config.max_step_tokens
        self.settings = {
            name: member.shape for name, member in self.kvpu.signature.members.items() if name.startswith("cfg_")
        }
        kvmu = self.kvpu.kvmu
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "codes": In(stream.Signature(HASH_CODE)),
                "scores": In(stream.Signature(self.kvpu.score)),
                "lengths": Out(lengths_layout(config.kv_heads)),
                "list_head": In(range(config.kv_heads)),
                "list_at": In(range(self.units)),
                "list_en": In(1),
                "list_entry": Out(LIST_ENTRY),
                "place_at": In(range(self.most)),
                "place": Out(WORD_BITS),
                "tokens": Out(range(self.most + 1)),
                "placed": In(1),
                "recall": In(1),
                "members": Out(stream.Signature(MEAN_UPDATE)),
                "dma": Out(stream.Signature(kvmu.o_dma.payload.shape())),
                "dma_done": In(1),
                "dma_tag": In(range(kvmu.tags)),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(words_written(self.word))),
                "fault": Out(FAULT),
                **{name: In(shape) for name, shape in self.settings.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.kvpu = unit = self.kvpu
        m.d.comb += [getattr(unit, name).eq(getattr(self, name)) for name in self.settings]
        wiring.connect(m, wiring.flipped(self.scores), unit.i_scores)
        m.d.comb += [
            unit.o_row.ready.eq(1),
            unit.o_complete.ready.eq(1),
            unit.o.ready.eq(1),
            unit.o_assignment.ready.eq(1),
        ]
        m.d.comb += self.lengths.clusters.eq(unit.clusters)
        self._members(m)
        self._replies(m)
        self._tables(m)
        return m

    def _members(self, m: Module) -> None:
        """The step's assignments, and the events of its means."""
        given, taken = self.kvpu.o_assignment.payload, self.kvpu.o_assignment.valid
        entry = data.StructLayout({"cluster": 16, "count": 16, "opened": 1})
        entries = [Signal(entry, name=f"token{n}") for n in range(self.most)]
        count, fresh = Signal(range(self.most + 1)), Signal(init=1)
        self.assigned, self.clustering = count, Signal()  # tokens; the last one has come
        place = Mux(fresh, 0, count)
        with m.If(taken):
            m.d.sync += [count.eq(place + 1), fresh.eq(given.last)]
            for n, one in enumerate(entries):
                with m.If(place == n):
                    m.d.sync += [one.cluster.eq(given.cluster), one.count.eq(given.count), one.opened.eq(given.opened)]
        with m.If(taken & given.last):
            m.d.sync += self.clustering.eq(1)

        left, group, chosen, at = Signal(self.most), Signal(self.most), Signal(entry), Signal(range(self.most))
        lowest, rest = Signal(self.most), Signal(self.most)
        event = self.members.payload

        def first(bits: Value) -> Value:
            number: Value = 0
            for n in reversed(range(self.most)):
                number = Mux(bits[n], n, number)
            return number

        with m.FSM(name="means"):
            m.d.comb += chosen.eq(Array(entries)[at])
            with m.State("IDLE"), m.If(self.recall):
                m.d.sync += left.eq(Cat(n < count for n in range(self.most)))
                m.next = "PICK"
            with m.State("PICK"):
                m.d.comb += at.eq(first(left))
                m.d.sync += group.eq(Cat(left[n] & (one.cluster == chosen.cluster) for n, one in enumerate(entries)))
                m.next = "MEAN"
            with m.State("MEAN"):
                m.d.comb += [
                    at.eq(first(group)),
                    self.members.valid.eq(1),
                    event.part.eq(MeanOp.MEAN),
                    event.cluster.eq(chosen.cluster),
                    event.count.eq((chosen.count - 1)[:16]),
                    event.opened.eq(chosen.opened),
                ]
                m.d.sync += [left.eq(left & ~group)]
                with m.If(self.members.ready):
                    m.next = "KEY"
            with m.State("KEY"):
                m.d.comb += [
                    lowest.eq(group & (~group + 1)[: self.most]),
                    rest.eq(group & ~lowest),
                    at.eq(first(group)),
                    self.members.valid.eq(1),
                    event.part.eq(MeanOp.KEY),
                    event.token.eq(at),
                ]
                stored = Signal(entry)
                m.d.sync += stored.eq(chosen)
                with m.If(self.members.ready):
                    m.d.sync += group.eq(rest)
                    with m.If(rest == 0):
                        m.next = "STORE"
            with m.State("STORE"):
                m.d.comb += [
                    self.members.valid.eq(1),
                    event.part.eq(MeanOp.STORE),
                    event.cluster.eq(stored.cluster),
                    event.count.eq(stored.count),
                    event.last.eq(left == 0),
                ]
                with m.If(self.members.ready):
                    m.next = "PICK"
                    with m.If(left == 0):
                        m.next = "IDLE"

    def _replies(self, m: Module) -> None:
        """Places, lists, and the ends of commands."""
        unit, reply, low = self.kvpu, self.kvpu.o.payload, (self.word // 8).bit_length() - 1
        come, op = unit.o.valid, reply.op
        heads = self.config.kv_heads
        spot = data.StructLayout({"page": len(reply.page), "slot": len(reply.slot), "word": WORD_BITS})
        spots = [Signal(spot, name=f"spot{n}") for n in range(self.most)]
        over, unplaced = Signal(init=1), Signal()  # the step before is over; the places wait for their tokens
        place = Mux(over, 0, self.tokens)
        appended = come & (op == kvmu_command.Op.APPEND)
        with m.If(appended):
            m.d.sync += [over.eq(0), self.tokens.eq(place + 1), unplaced.eq(1)]
            for n, one in enumerate(spots):
                with m.If(place == n):
                    m.d.sync += [one.page.eq(reply.page), one.slot.eq(reply.slot), one.word.eq(reply.address >> low)]
        with m.If(self.placed):
            m.d.sync += unplaced.eq(0)
        m.d.comb += self.place.eq(Array(one.word for one in spots)[self.place_at])

        # of a selected page, the tokens that were there before the step
        past: Value = reply.count
        for n in reversed(range(self.most)):
            past = Mux((n < self.tokens) & (spots[n].page == reply.page), spots[n].slot, past)
        entry, count = Signal(LIST_ENTRY), Signal(8)
        listed = [Signal(range(self.units + 1), name=f"listed{h}") for h in range(heads)]
        full = Signal()
        m.d.comb += [count.eq(past), entry.address.eq(reply.address >> low), entry.count.eq(count)]
        reported = come & (op == kvmu_command.Op.FETCH) & ~reply.last
        lists = [Ram(depth=self.units, width=LIST_ENTRY.size) for _ in range(heads)]
        for h, ram in enumerate(lists):
            m.submodules[f"list{h}"] = ram
            mine = reported & (reply.head == h) & (count != 0)
            m.d.comb += [
                ram.w_addr.eq(listed[h][: len(ram.w_addr)]),
                ram.w_data[0].eq(entry),
                ram.w_mask.eq(mine & (listed[h] != self.units)),
                ram.r_addr.eq(self.list_at),
                ram.r_en.eq(self.list_en),
            ]
            with m.If(appended & over):
                m.d.sync += [listed[h].eq(0), self.lengths.tokens[h].eq(0)]
            with m.Elif(mine):
                m.d.sync += [listed[h].eq(listed[h] + 1), self.lengths.tokens[h].eq(self.lengths.tokens[h] + count)]
            with m.If(mine & (listed[h] == self.units)):
                m.d.comb += full.eq(1)
        head = Signal.like(self.list_head)
        m.d.sync += head.eq(self.list_head)
        m.d.comb += Value.cast(self.list_entry).eq(Array(ram.r_data[0] for ram in lists)[head])

        # descriptors wait until the step's tokens are in their places
        asked = unit.o_dma
        m.d.comb += [
            self.dma.valid.eq(asked.valid & ~unplaced),
            self.dma.payload.eq(asked.payload),
            asked.ready.eq(self.dma.ready & ~unplaced),
            unit.i_done.valid.eq(self.dma_done),
            unit.i_done.payload.tag.eq(self.dma_tag),
        ]
        # a tag is open between its reply and its completion, whichever comes first
        tags = 1 << len(reply.tag)
        open_, told, ended = Signal(tags), Signal(tags), Signal(tags)
        m.d.comb += [
            told.eq(Mux(come & reply.last & reply.tagged, 1 << reply.tag, 0)),
            ended.eq(Mux(unit.o_complete.valid, 1 << unit.o_complete.payload.tag, 0)),
        ]
        m.d.sync += open_.eq(open_ ^ told ^ ended)
        fetched, begun = Signal(), Signal()
        fetching, fetch_tag = Signal(), Signal.like(reply.tag)  # FETCH moves something, under this tag
        with m.If(appended & over):
            m.d.sync += fetched.eq(0)
        with m.If(come & reply.last):
            with m.If(op == kvmu_command.Op.FETCH):
                m.d.sync += [fetched.eq(1), fetching.eq(reply.tagged), fetch_tag.eq(reply.tag)]
            with m.If(op == kvmu_command.Op.STEP):
                m.d.sync += over.eq(1)
            with m.If(op == kvmu_command.Op.BEGIN):
                m.d.sync += [begun.eq(1), over.eq(1)]

        code = self.codes.payload
        m.d.comb += [
            unit.i.payload.op.eq(kvpu.Op.CODE),
            unit.i.payload.hash.eq(code.hash[: self.config.hash_bits]),
            unit.i.payload.query.eq(code.query),
            unit.i.payload.last.eq(code.last),
        ]
        with m.FSM(name="commands"):
            with m.State("IDLE"):
                m.d.comb += [unit.i.valid.eq(self.codes.valid), self.codes.ready.eq(unit.i.ready)]
                with m.If(self.i.valid), m.Switch(self.i.payload.opcode):
                    with m.Case(BY_NAME["BEGIN"].code):
                        m.next = "BEGIN"
                    with m.Case(BY_NAME["CLUSTER"].code):
                        m.d.comb += self.complete.eq(self.clustering & (self.tokens == self.assigned) & ~over)
                        with m.If(self.complete):
                            m.d.sync += self.clustering.eq(0)
                    with m.Case(BY_NAME["FETCH"].code):
                        m.d.comb += self.complete.eq(fetched & ~(fetching & open_.bit_select(fetch_tag, 1)))
                        with m.If(self.complete):
                            m.d.sync += fetched.eq(0)
                    with m.Case(BY_NAME["OFFLOAD"].code):
                        m.d.comb += self.complete.eq(over & (open_ == 0))
            with m.State("BEGIN"):
                m.d.comb += [
                    unit.i.valid.eq(1),
                    unit.i.payload.op.eq(kvpu.Op.BEGIN),
                    unit.i.payload.layer.eq(view(self.i.payload, "BEGIN").layer[: len(unit.i.payload.layer)]),
                ]
                with m.If(unit.i.ready):
                    m.next = "BEGUN"
            with m.State("BEGUN"):
                m.d.comb += self.complete.eq(begun)
                with m.If(begun):
                    m.d.sync += begun.eq(0)
                    m.next = "IDLE"
        m.d.comb += self.i.ready.eq(self.complete)

        refused = Signal()
        m.d.comb += refused.eq(
            (come & (Value.cast(reply.fault) != 0))
            | unit.stat_hc_table_faults.any()
            | unit.stat_hcu_fault
            | unit.stat_wtu_fault
        )
        with m.If(refused):
            m.d.comb += [
                self.fault.cause.eq(Cause.TABLE),
                self.fault.address.eq(Cat(Value.cast(reply.fault), Value.cast(op))),
            ]
        with m.Elif(full):
            m.d.comb += [self.fault.cause.eq(Cause.SIZE), self.fault.address.eq(reply.head)]
        assert Tier.DEVICE is not Tier.HOST

    def _tables(self, m: Module) -> None:
        """The HC table's writes as words."""
        write, word = self.kvpu.o_write, self.word
        word_bytes = word // 8
        low = word_bytes.bit_length() - 1
        parts = max(1, len(write.payload.data) // word)
        part, offset = Signal(range(max(2, parts))), write.payload.address[:low]
        content, strobe, bytes_ = Signal(word), Signal(word_bytes), write.payload.bytes
        asked, put, wide, final = Signal(), Signal(), Signal(), Signal()
        most = min(word_bytes, 16)
        mask = Mux(bytes_ >= most, (1 << most) - 1, 15)  # records of 16 bytes, indices of 4
        m.d.comb += [
            wide.eq(bytes_ > word_bytes),
            final.eq(~wide | (part == parts - 1)),
            content.eq(write.payload.data.word_select(part, min(word, 128)) << (offset << 3)),
            strobe.eq(mask << offset),
            self.job.valid.eq(write.valid & ~asked),
            self.job.payload.address.eq((write.payload.address >> low)[:WORD_BITS]),
            self.job.payload.count.eq(Mux(wide, parts, 1)),
            self.words.valid.eq(write.valid & ~put),
            self.words.payload.data.eq(content),
            self.words.payload.strobe.eq(strobe),
        ]
        job_gone, words_gone = Signal(), Signal()
        m.d.comb += [
            job_gone.eq(asked | self.job.ready),
            words_gone.eq(put | (self.words.ready & final)),
            write.ready.eq(job_gone & words_gone),
        ]
        with m.If(write.valid):
            m.d.sync += [asked.eq(job_gone & ~write.ready), put.eq(words_gone & ~write.ready)]
            with m.If(self.words.valid & self.words.ready):
                m.d.sync += part.eq(Mux(final, 0, part + 1))
        assert LENGTH_BITS <= 16
