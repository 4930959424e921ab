"""The RETRIEVAL unit: the KV prediction unit, the state of the current step, and the way to memory."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import FAULT, JOB, WORD_ADDRESS_BITS, Cause
from hw.config import Config
from hw.core.isa import BY_NAME, MAX_STEP
from hw.core.lengths import command_length, entries_layout, lengths_layout
from hw.core.retrieval.kept_tokens import KeptTokens
from hw.core.retrieval.mean_updates import MEAN_UPDATE, MeanUpdates
from hw.core.retrieval.page_lists import PageLists
from hw.core.retrieval.row_reader import RowReader
from hw.core.retrieval.step_slots import StepSlots
from hw.core.sequencer import COMMAND, view
from hw.dre import kvpu
from hw.dre.kvmu.command import Op
from hw.dre.kvmu.records import TABLE_BYTES
from hw.dre.kvpu import KVPU

HASH_CODE = data.StructLayout({"hash": 32, "query": 1, "last": 1})  # hash code of a key; `last` of a piece


class RetrievalUnit(wiring.Component):
    """Executes OPEN, KEEP, CLUSTER, SELECT, FETCH, RELEASE, MOVE and OFFLOAD, and keeps the state of the current step.

    OPEN makes a context, the state of one layer of one stream, the one in use. Hash codes from the vector engine drive
    the KV prediction unit (KVPU) without commands. SELECT makes the row reader send score rows and token counts from
    memory to it, after the KVPU has written the token counts of the step. Three parts record its results for the other
    units: `MeanUpdates` the cluster assignments, `StepSlots` the slots of tokens, `PageLists` the past tokens of each
    KV head. CLUSTER waits until all tokens have a cluster and a slot and the old mean keys of their clusters are in the
    undo log, SELECT until its rows are sent, FETCH until the selected pages are in device memory. RELEASE, MOVE and
    OFFLOAD wait until the keys and values are stored. RELEASE removes pages from a cluster. MOVE moves a token to
    another cluster, and waits until its key and value are copied. OFFLOAD writes the pages that leave device memory and
    commits the step. SELECT takes the token counts of the context, or a row of others.

    SELECT and FETCH can also precede the tokens of a step. Then the pages of a layer are fetched while the layer before
    still reads its page lists. OPEN says which of the two lists of each KV head the selection fills. The first SELECT
    or FETCH after OPEN or OFFLOAD empties them.

    KEEP sends a row of norms, one per token of the step, and `KeptTokens` records which tokens are selected. Then the
    program sends hash codes of as many tokens, and STORE skips the others, until OFFLOAD or OPEN.

    A step is clustered in pieces of at most `max_step_tokens` tokens, because `MeanUpdates` and `StepSlots` record one
    piece. A piece is a packet of hash codes, then CLUSTER, MEANS and STORE. The codes of the next piece wait until
    STORE is complete, so no slot is overwritten. No assignment is overwritten either: codes and MEANS are commands of
    the vector unit, which sends the codes of a command after all updates of an earlier MEANS. With `query` in the last
    code of the last piece, the KVPU writes the token counts of the step.

    ```
    codes ─────────────────────> KVPU ──> assignments ──> MeanUpdates ──> VECTOR unit
    memory ──> RowReader ──> rows ─┘│ └──> replies ──> StepSlots (COPY unit), PageLists ──> memory
                                    ├──> descriptors ──> COPY unit
                                    └──> store <──> memory
    ```

    Timing: data dependent. CLUSTER, FETCH and MOVE complete one cycle after their phase, OPEN, RELEASE and OFFLOAD
    with the reply of the KVPU.

    Parameters
    ----------
    config : sizes of the core

    Members
    -------
    i : stream of COMMAND
    complete : the command is complete
    codes : stream of HASH_CODE from the vector engine
    score_job, score_words, count_job, count_words : read engines of the score rows and of the token counts
    lengths : run-time lengths: clusters, and past tokens of each page list
    list_base, list_entries : page lists in memory, see `PageLists`
    list_job, list_words, list_write_done : write engine for the page lists
    some_kept, kept : which tokens of the step STORE copies, see `KeptTokens`
    slot_index, slot_word, slot, tokens, stored : slots of the tokens of a piece, see `StepSlots`
    request_updates, updates : mean updates of a piece, see `MeanUpdates`
    descriptors : stream of transfers; held back until the keys and values of the step are stored
    transfer_done, done_tag : a transfer is complete
    read_job, read_words, write_job, write_words, write_done : read engine and write engine for the store
    mean_keys_base : byte address of the mean keys of the open context, in units of 128
    fault : TABLE: a table is full or refuses a command
    cfg_page_lists_base : byte address of the page lists ; cfg_* : settings of the KVPU
    """

    def __init__(self, config: Config):
        self.config, self.kvpu = config, KVPU.from_config(config)
        self.word = 16 * config.dpe_inputs
        self.max_step_tokens = config.max_step_tokens
        self.kvpu_settings = {
            name: member.shape for name, member in self.kvpu.signature.members.items() if name.startswith("cfg_")
        }
        self.settings = {**self.kvpu_settings, "cfg_page_lists_base": self.kvpu.kvmu.sizes.address_bits}
        kvmu = self.kvpu.kvmu
        self.slot_bits = kvmu.sizes.layout.slot_bits
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "codes": In(stream.Signature(HASH_CODE)),
                "score_job": Out(stream.Signature(JOB)),
                "score_words": In(stream.Signature(read_word_layout(self.word))),
                "count_job": Out(stream.Signature(JOB)),
                "count_words": In(stream.Signature(read_word_layout(self.word))),
                "lengths": Out(lengths_layout(config.kv_heads)),
                "list_base": Out(WORD_ADDRESS_BITS),
                "list_entries": Out(entries_layout(config.kv_heads, config.max_pages)),
                "list_job": Out(stream.Signature(JOB)),
                "list_words": Out(stream.Signature(write_word_layout(self.word))),
                "list_write_done": In(1),
                "slot_index": In(range(self.max_step_tokens)),
                "slot_word": Out(WORD_ADDRESS_BITS),
                **({"slot": Out(self.slot_bits)} if self.slot_bits else {}),
                "tokens": Out(range(self.max_step_tokens + 1)),
                "stored": In(1),
                "some_kept": Out(1),
                "kept": Out(stream.Signature(1)),
                "request_updates": In(1),
                "updates": Out(stream.Signature(MEAN_UPDATE)),
                "descriptors": Out(stream.Signature(kvmu.o_dma.payload.shape())),
                "transfer_done": In(1),
                "done_tag": In(range(kvmu.tags)),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(self.word))),
                "write_job": Out(stream.Signature(JOB)),
                "write_words": Out(stream.Signature(write_word_layout(self.word))),
                "write_done": In(1),
                "mean_keys_base": Out(self.kvpu.mean_keys_base.shape()),
                "fault": Out(FAULT),
                **{name: In(shape) for name, shape in self.settings.items()},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        unit, reply = self.kvpu, self.kvpu.o.payload.shape()
        means = MeanUpdates(assignment=unit.o_assignment.payload.shape(), max_tokens=self.max_step_tokens)
        slots = StepSlots(
            reply=reply, word_bytes=self.word // 8, max_tokens=self.max_step_tokens, slot_bits=self.slot_bits
        )
        lists = PageLists(reply=reply, word=self.word, kv_heads=self.config.kv_heads, max_pages=self.config.max_pages)
        m.submodules.kvpu, m.submodules.mean_updates, m.submodules.step_slots = unit, means, slots
        rows, kept = RowReader(unit.wtu.sizes, self.word // 16), KeptTokens(unit.wtu.sizes, MAX_STEP)
        m.submodules.kept_tokens = kept
        m.submodules.page_lists, m.submodules.row_reader = lists, rows

        m.d.comb += [getattr(unit, name).eq(getattr(self, name)) for name in self.kvpu_settings]
        self._connect_rows(m, rows)
        m.d.comb += [unit.o_row.ready.eq(1), unit.o_complete.ready.eq(1)]
        wiring.connect(m, unit.o_assignment, means.assignments)
        wiring.connect(m, unit.o_kept, kept.bitmap)
        wiring.connect(m, kept.o, wiring.flipped(self.kept))
        wiring.connect(m, means.o, wiring.flipped(self.updates))
        for name in ("read_job", "write_job", "write_words"):
            wiring.connect(m, getattr(unit, name), wiring.flipped(getattr(self, name)))
        wiring.connect(m, wiring.flipped(self.read_words), unit.read_words)
        wiring.connect(m, unit.o, lists.reply)
        wiring.connect(m, lists.job, wiring.flipped(self.list_job))
        wiring.connect(m, lists.words, wiring.flipped(self.list_words))
        m.d.comb += [
            means.request.eq(self.request_updates),
            slots.slot_index.eq(self.slot_index),
            *([self.slot.eq(slots.slot)] if self.slot_bits else []),
            slots.stored.eq(self.stored),
            self.slot_word.eq(slots.slot_word),
            self.tokens.eq(slots.tokens),
            self.some_kept.eq(kept.active),
            unit.write_done.eq(self.write_done),
            self.mean_keys_base.eq(unit.mean_keys_base),
            slots.reply.valid.eq(unit.o.valid & unit.o.ready),
            slots.reply.payload.eq(unit.o.payload),
            lists.write_done.eq(self.list_write_done),
            lists.base.eq((self.cfg_page_lists_base >> ((self.word // 8).bit_length() - 1))[:WORD_ADDRESS_BITS]),
            self.list_base.eq(lists.base),
            self.list_entries.eq(lists.entries),
            self.lengths.clusters.eq(unit.clusters),
            self.lengths.tokens.eq(lists.tokens),
        ]
        self._connect_transfers(m, slots)
        self._execute(m, means, slots, kept, rows, lists, self._open_tags(m))
        self._report_faults(m)
        return m

    def _connect_rows(self, m: Module, rows: RowReader) -> None:
        """Score rows and token counts from memory to the KVPU."""
        for inner, outer in ((rows.score_job, self.score_job), (rows.count_job, self.count_job)):
            wiring.connect(m, inner, wiring.flipped(outer))
        wiring.connect(m, wiring.flipped(self.score_words), rows.score_words)
        wiring.connect(m, wiring.flipped(self.count_words), rows.count_words)
        scores = self.kvpu.i_scores
        m.d.comb += [
            scores.valid.eq(rows.o.valid),
            rows.o.ready.eq(scores.ready),
            *(scores.payload[name].eq(rows.o.payload[name]) for name in rows.o.payload.shape().members),
            scores.payload.keep.eq(rows.i.payload.uncounted),
        ]
        wiring.connect(m, self.kvpu.o_again, rows.again)
        counts_base = self.kvpu.counts_base * (TABLE_BYTES * 8 // self.word)
        own = view(self.i.payload, "SELECT").counts
        m.d.comb += rows.counts_base.eq(Mux(own != 0, own, counts_base[:WORD_ADDRESS_BITS]))

    def _connect_transfers(self, m: Module, slots: StepSlots) -> None:
        """Descriptors wait until the keys and values of the last piece are stored; completions go back."""
        descriptors = self.kvpu.o_dma
        m.d.comb += [
            self.descriptors.valid.eq(descriptors.valid & ~slots.pending),
            self.descriptors.payload.eq(descriptors.payload),
            descriptors.ready.eq(self.descriptors.ready & ~slots.pending),
            self.kvpu.i_done.valid.eq(self.transfer_done),
            self.kvpu.i_done.payload.tag.eq(self.done_tag),
        ]

    def _open_tags(self, m: Module) -> Signal:
        """Bit t: tag t is open, that is, between its reply and its completion, whichever comes first."""
        reply, completion = self.kvpu.o, self.kvpu.o_complete
        tags = 1 << len(reply.payload.tag)
        open_tags, replied, completed = Signal(tags), Signal(tags), Signal(tags)
        tagged = reply.valid & reply.ready & reply.payload.last & reply.payload.tagged
        m.d.comb += [
            replied.eq(Mux(tagged, 1 << reply.payload.tag, 0)),
            completed.eq(Mux(completion.valid, 1 << completion.payload.tag, 0)),
        ]
        m.d.sync += open_tags.eq(open_tags ^ replied ^ completed)
        return open_tags

    def _execute(
        self,
        m: Module,
        means: MeanUpdates,
        slots: StepSlots,
        kept: KeptTokens,
        rows: RowReader,
        lists: PageLists,
        open_tags: Signal,
    ) -> None:
        """State machine of the commands."""
        reply, opcode, unit = self.kvpu.o.payload, self.i.payload.opcode, self.kvpu
        last_reply = self.kvpu.o.valid & self.kvpu.o.ready & reply.last
        fetch_transfers, fetch_tag = Signal(), Signal.like(reply.tag)  # the fetch moves pages, with this tag
        counts_written = Signal()  # memory has the token counts of the context
        new_selection = Signal()  # the next SELECT or FETCH begins a selection
        hold_codes = Signal()  # all codes of a piece are received, its keys and values are not stored
        with m.If(slots.step_starts):
            m.d.sync += counts_written.eq(0)
        with m.If(last_reply & ((reply.op == Op.SYNC) | (reply.op == Op.OPEN))):
            m.d.sync += counts_written.eq(1)
        with m.If(last_reply & ((reply.op == Op.OPEN) | (reply.op == Op.STEP))):
            m.d.sync += new_selection.eq(1)
            m.d.comb += kept.clear.eq(1)
        with m.If(self.codes.valid & self.codes.ready & self.codes.payload.last):
            m.d.sync += hold_codes.eq(1)
        with m.Elif(self.stored):
            m.d.sync += hold_codes.eq(0)
        m.d.comb += self.i.ready.eq(self.complete)
        self._send_code(m)
        with m.FSM(name="commands"):
            with m.State("IDLE"):
                m.d.comb += [
                    unit.i.valid.eq(self.codes.valid & ~hold_codes),
                    self.codes.ready.eq(unit.i.ready & ~hold_codes),
                ]
                with m.If(self.i.valid), m.Switch(opcode):
                    with m.Case(BY_NAME["CLUSTER"].code):
                        all_have_slots = (slots.tokens == means.tokens) & slots.pending
                        m.d.comb += self.complete.eq(means.clustered & all_have_slots & unit.settled)
                        m.d.comb += means.clear_clustered.eq(self.complete)
                    with m.Case(BY_NAME["OPEN"].code):
                        m.d.sync += lists.second.eq(view(self.i.payload, "OPEN").lists)
                        m.next = "OPEN"
                    with m.Case(BY_NAME["KEEP"].code), m.If(kept.empty):
                        m.next = "KEEP"
                    for name in ("SELECT", "FETCH"):
                        with m.Case(BY_NAME[name].code):
                            m.d.comb += lists.clear.eq(new_selection)
                            m.d.sync += new_selection.eq(0)
                            m.next = name
                    for name in ("RELEASE", "MOVE", "OFFLOAD"):
                        with m.Case(BY_NAME[name].code), m.If(~slots.pending):
                            m.next = name
            self._select(m, rows, counts_written)
            self._keep(m, rows, kept)
            for name, op in (
                ("OPEN", Op.OPEN),
                ("FETCH", Op.FETCH),
                ("RELEASE", Op.EVICT),
                ("MOVE", Op.MOVE),
                ("OFFLOAD", Op.STEP),
            ):
                with m.State(name):
                    self._send_command(m, name)
                    with m.If(unit.i.ready):
                        m.next = f"{name}_REPLY"
                with m.State(f"{name}_REPLY"), m.If(last_reply & (reply.op == op)):
                    m.d.sync += [fetch_transfers.eq(reply.tagged), fetch_tag.eq(reply.tag)]
                    if name in ("FETCH", "MOVE"):
                        m.next = "TRANSFER"
                    else:
                        m.d.comb += self.complete.eq(1)
                        m.next = "IDLE"
            with m.State("TRANSFER"):
                transferring = fetch_transfers & open_tags.bit_select(fetch_tag, 1)
                m.d.comb += self.complete.eq(lists.idle & ~transferring)
                with m.If(self.complete):
                    m.next = "IDLE"

    def _send_command(self, m: Module, name: str) -> None:
        """Offer a command to the KVPU in the present state."""
        command, context = self.kvpu.i.payload, view(self.i.payload, "OPEN").context
        pages, token = view(self.i.payload, "RELEASE"), view(self.i.payload, "MOVE")
        operations = {
            "OPEN": kvpu.Op.OPEN,
            "FETCH": kvpu.Op.FETCH,
            "RELEASE": kvpu.Op.RELEASE,
            "MOVE": kvpu.Op.MOVE,
            "OFFLOAD": kvpu.Op.STEP,
        }
        m.d.comb += [
            self.kvpu.i.valid.eq(1),
            command.op.eq(operations[name]),
            command.context.eq(context[: len(command.context)]),
            command.cluster.eq((token if name == "MOVE" else pages).cluster[: len(command.cluster)]),
            command.first_pages.eq(pages.first[: len(command.first_pages)]),
            command.last_pages.eq(pages.last[: len(command.last_pages)]),
            command.page.eq(token.page[: len(command.page)]),
            command.slot.eq(token.slot[: len(command.slot)]),
            command.opened.eq(token.opened),
            command.hash.eq(token.hash[: self.config.hash_bits]),
        ]

    def _select(self, m: Module, rows: RowReader, counts_written: Signal) -> None:
        """SELECT sends the KV head to the KVPU, ROWS lets the row reader send the rows."""
        unit, select = self.kvpu, view(self.i.payload, "SELECT")
        clusters = command_length(m, "select_length", self.lengths, select, self.config.kv_heads)
        m.d.comb += [
            rows.i.payload.source.eq(select.source),
            rows.i.payload.stride.eq(select.stride),
            rows.i.payload.rows.eq(select.rows),
            rows.i.payload.clusters.eq(clusters),
        ]
        with m.State("SELECT"):
            with m.If((select.rows == 0) | (clusters == 0)):
                m.d.comb += self.complete.eq(1)
                m.next = "IDLE"
            with m.Else():
                m.d.comb += [
                    unit.i.valid.eq(1),
                    unit.i.payload.op.eq(kvpu.Op.SELECT),
                    unit.i.payload.head.eq(select.head[: len(unit.i.payload.head)]),
                ]
                with m.If(unit.i.ready):
                    m.next = "ROWS"
        with m.State("ROWS"):
            m.d.comb += [rows.i.valid.eq(counts_written), self.complete.eq(rows.i.valid & rows.i.ready)]
            with m.If(self.complete):
                m.next = "IDLE"

    def _keep(self, m: Module, rows: RowReader, kept: KeptTokens) -> None:
        """KEEP sends the number of tokens to keep to the KVPU, NORMS lets the row reader send the row."""
        unit, keep = self.kvpu, view(self.i.payload, "KEEP")
        with m.State("KEEP"):
            m.d.comb += [
                unit.i.valid.eq(1),
                unit.i.payload.op.eq(kvpu.Op.KEEP),
                unit.i.payload.count.eq(keep.count),
                kept.start.eq(unit.i.ready),
            ]
            with m.If(unit.i.ready):
                m.next = "NORMS"
        with m.State("NORMS"):
            m.d.comb += [
                rows.i.valid.eq(1),
                rows.i.payload.source.eq(keep.source),
                rows.i.payload.rows.eq(1),
                rows.i.payload.clusters.eq(keep.tokens),
                rows.i.payload.uncounted.eq(1),
            ]
            with m.If(rows.i.ready):
                m.next = "KEPT"
        with m.State("KEPT"):
            m.d.comb += self.complete.eq(kept.complete)
            with m.If(kept.complete):
                m.next = "IDLE"

    def _send_code(self, m: Module) -> None:
        """The hash code from the vector engine as a command of the KVPU; the state machine overrides it."""
        code, command = self.codes.payload, self.kvpu.i.payload
        m.d.comb += [
            command.op.eq(kvpu.Op.CODE),
            command.hash.eq(code.hash[: self.config.hash_bits]),
            command.query.eq(code.query),
            command.last.eq(code.last),
        ]

    def _report_faults(self, m: Module) -> None:
        """A refused command or a full table."""
        unit, reply = self.kvpu, self.kvpu.o.payload
        table_fault = Signal()
        m.d.comb += table_fault.eq(
            (unit.o.valid & (Value.cast(reply.fault) != 0)) | unit.stat_hcu_fault | unit.stat_wtu_fault
        )
        with m.If(table_fault):
            m.d.comb += [
                self.fault.cause.eq(Cause.TABLE),
                self.fault.address.eq(Cat(Value.cast(reply.fault), Value.cast(reply.op))),
            ]
