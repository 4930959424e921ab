"""The LOAD unit: rows of device memory, and the tokens that a KV head attends to, into the operand memory; COUNT."""

import enum
from dataclasses import dataclass, field

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_ADDRESS_BITS
from hw.common.tree import reduce_tree
from hw.core.isa import BY_NAME, LIST_SETS, STRIDE
from hw.core.lengths import (
    LENGTH_BITS,
    block_count,
    clipped_count,
    command_length,
    entries_layout,
    lengths_layout,
)  # fmt: skip
from hw.core.operand_fill import FILL, OperandFill
from hw.core.retrieval.page_lists import LIST_ENTRY, PageListReader
from hw.core.sequencer import COMMAND, view
from hw.kv_codec.page_decoder import PageDecoder, run_layout
from hw.kv_codec.page_layout import PageLayout
from hw.lxe.operand_memory import OperandMemory
from hw.weight_codec.tile_layout import ENCODED, Encoding, TileLayout
from hw.weight_codec.weight_decoder import WeightDecoder

MAX_OPEN_COMMANDS = 4  # commands whose words have not all arrived
MAX_OPEN_RUNS = 16  # runs of words whose words have not all arrived, with encoded pages

# With encoded weights, a description has the format of the rows in its highest bits.
ENCODED_FILL = data.StructLayout({"fill": FILL, "encoding": Encoding})


class LengthLimit(enum.IntEnum):
    """Dimension of a LOAD that the run-time length limits. `ENCODED`: none; `block` is the format of the rows."""

    NONE = 0
    ROWS = 1
    WORDS = 2
    ENCODED = 3


@dataclass(frozen=True)
class _Registers:
    """Registers of `LoadRequest`.

    Attributes
    ----------
    fill : description of the current command's words
    remaining : rows or tokens that are not requested yet
    skipped : GATHER: tokens that are not skipped yet
    address, stride : LOAD: word of the next row, words from one row to the next; GATHER: stride of the step's tokens
    offset, head : GATHER: first word that is read of a slot, page list
    page, page_valid, slot : current entry of the page list, whether it has more tokens, and the next of them
    position : tokens of the head that are requested or skipped since the last restart
    step_word : word of the step's next token
    word : with encoded pages, first word that is used of each key or value
    run_sent : with encoded pages, the run of the tokens that are requested next is sent
    encoding, row_words : with encoded weights, format of the rows of a LOAD, and memory words of a row
    """

    fill: Signal = field(default_factory=lambda: Signal(FILL, name="fill_register"))
    remaining: Signal = field(default_factory=lambda: Signal(LENGTH_BITS, name="remaining"))
    address: Signal = field(default_factory=lambda: Signal(WORD_ADDRESS_BITS, name="address"))
    stride: Signal = field(default_factory=lambda: Signal(STRIDE, name="stride"))
    skipped: Signal = field(default_factory=lambda: Signal(LENGTH_BITS, name="skipped"))
    offset: Signal = field(default_factory=lambda: Signal(9, name="offset"))
    head: Signal = field(default_factory=lambda: Signal(8, name="head"))
    page: Signal = field(default_factory=lambda: Signal(LIST_ENTRY, name="page"))
    page_valid: Signal = field(default_factory=lambda: Signal(name="page_valid"))
    slot: Signal = field(default_factory=lambda: Signal(8, name="slot"))
    position: Signal = field(default_factory=lambda: Signal(LENGTH_BITS, name="position"))
    step_word: Signal = field(default_factory=lambda: Signal(WORD_ADDRESS_BITS, name="step_word"))
    word: Signal = field(default_factory=lambda: Signal(8, name="word"))
    run_sent: Signal = field(default_factory=lambda: Signal(name="run_sent"))
    encoding: Signal = field(default_factory=lambda: Signal(Encoding, name="encoding"))
    row_words: Signal = field(default_factory=lambda: Signal(LENGTH_BITS, name="row_words"))


class LoadRequest(wiring.Component):
    """Converts LOAD, GATHER and COUNT to read jobs and to the description of where their words go.

    LOAD reads `rows` rows of `beats` words. COUNT is a LOAD of one word that is not stored. GATHER reads the past
    tokens of a KV head from its page list, then the tokens of the step; with `restart` = 0 it continues where the last
    GATHER stopped. It first skips `skip` blocks.

    With encoded pages, a job reads past tokens of one block of a page. A run describes its words for `PageDecoder`.

    With encoded weights, an encoded row of a LOAD consists of whole tiles: `beats` is rounded down to a multiple of
    `width`, and the job reads fewer words.

    Timing: one row per cycle; one token per two cycles, one more cycle per page. Skipping takes three cycles per page,
    and two per token of the step. With encoded pages, the past tokens of a block take three cycles; a LOAD, and the
    tokens of the step of a GATHER, take one more cycle.

    Parameters
    ----------
    width : BF16 elements of a word
    layout : of a head page
    kv_heads : KV heads
    tiles : of encoded weights; None: all weights are BF16

    Members
    -------
    i : stream of COMMAND
    lengths, counted : run-time lengths, and that of the last COUNT
    fill : stream of FILL, or of ENCODED_FILL with encoded weights
    job : stream of read jobs
    list_start, list_number : a GATHER begins with this page list
    pages : stream of the entries of this list
    runs : with encoded pages, stream of `run_layout`
    """

    def __init__(self, *, width: int, layout: PageLayout, kv_heads: int, tiles: TileLayout | None = None):
        self.width, self.layout, self.key_words, self.kv_heads = width, layout, layout.records, kv_heads
        self.tiles = tiles
        runs = {"runs": Out(stream.Signature(run_layout(layout, LENGTH_BITS)))} if layout.is_encoded else {}
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "lengths": In(lengths_layout(kv_heads)),
                "counted": In(LENGTH_BITS),
                "fill": Out(stream.Signature(FILL if tiles is None else ENCODED_FILL)),
                "job": Out(stream.Signature(JOB)),
                "list_start": Out(1),
                "list_number": Out(range(LIST_SETS * kv_heads)),
                "pages": In(stream.Signature(LIST_ENTRY)),
                **runs,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        r = _Registers()
        load, gather = view(self.i.payload, "LOAD"), view(self.i.payload, "GATHER")
        rows, beats = self._load_size(m, load)
        skipped, tokens = self._gather_size(m, gather, r)
        fill = Value.cast(r.fill) if self.tiles is None else Cat(r.fill, r.encoding)
        m.d.comb += [
            Value.cast(self.fill.payload).eq(fill),
            self.list_number.eq(gather.head[: len(self.list_number)]),
        ]
        with m.FSM(name="request"):
            with m.State("IDLE"):
                m.d.comb += self.i.ready.eq(1)
                with m.If(self.i.valid & (self.i.payload.opcode == BY_NAME["GATHER"].code)):
                    self._start_gather(m, gather, r, skipped, tokens)
                with m.Elif(self.i.valid & (self.i.payload.opcode == BY_NAME["COUNT"].code)):
                    self._start_count(m, view(self.i.payload, "COUNT"), r)
                with m.Elif(self.i.valid):
                    self._start_load(m, load, r, rows, beats)
            self._request_rows(m, r)
            self._request_tokens(m, r)
        return m

    def _load_size(self, m: Module, load: data.View) -> tuple[Value, Value]:
        """Rows and words of a row of a LOAD within its run-time length."""
        total = command_length(m, "load_length", self.lengths, load, self.kv_heads, self.counted)
        total_blocks = block_count(m, "load_blocks", total, self.width)
        first_row = Signal(LENGTH_BITS)
        m.d.comb += first_row.eq(load.block << (self.width.bit_length() - 1))
        rows = clipped_count(m, "load_rows", total, first_row, load.rows)
        beats = clipped_count(m, "load_beats", total_blocks, load.block, load.beats)
        return (
            Mux(load.limit == LengthLimit.ROWS, rows, load.rows),
            Mux(load.limit == LengthLimit.WORDS, beats, load.beats),
        )

    def _past_tokens(self, number: Value) -> Value:
        """Past tokens of a page list."""
        return self.lengths.tokens.as_value().word_select(number, LENGTH_BITS)

    def _gather_size(self, m: Module, gather: data.View, r: _Registers) -> tuple[Value, Value]:
        """Tokens that a GATHER skips and reads: at most `skip`, then `blocks` blocks of those that remain."""
        all_tokens, position, start = Signal(LENGTH_BITS), Signal(LENGTH_BITS), Signal(LENGTH_BITS)
        skip, limit, shift = Signal(LENGTH_BITS), Signal(LENGTH_BITS), self.width.bit_length() - 1
        m.d.comb += [
            all_tokens.eq(self._past_tokens(gather.head) + gather.tokens),
            position.eq(Mux(gather.restart, 0, r.position)),
            skip.eq(gather.skip << shift),
            limit.eq(gather.blocks << shift),
        ]
        skipped = clipped_count(m, "gather_skipped", all_tokens, position, skip)
        m.d.comb += start.eq(position + skipped)
        return skipped, clipped_count(m, "gather_tokens", all_tokens, start, limit)

    def _start_gather(self, m: Module, gather: data.View, r: _Registers, skipped: Value, tokens: Value) -> None:
        is_part = (gather.words != 0) & (gather.words < self.key_words)
        if self.tiles is not None:
            m.d.sync += r.encoding.eq(Encoding.BF16)
        m.d.sync += [
            r.fill.eq(0),
            r.fill.target.eq(gather.target),
            r.fill.rows.eq(tokens),
            r.fill.beats.eq(Mux(is_part, gather.words, self.key_words)),
            r.fill.tiled.eq(1),
            r.fill.transposed.eq(gather.values),
            r.offset.eq(Mux(gather.values, self.key_words, 0) + gather.word),
            r.skipped.eq(skipped),
            r.remaining.eq(tokens),
            r.stride.eq(gather.stride),
            r.head.eq(gather.head),
        ]
        with m.If(gather.restart):
            m.d.comb += self.list_start.eq(1)
            m.d.sync += [
                r.page_valid.eq(0),
                r.position.eq(0),
                r.step_word.eq((gather.step_word + gather.word)[:WORD_ADDRESS_BITS]),
            ]
        if self.layout.is_encoded:
            m.d.sync += [
                r.offset.eq(Mux(gather.values, self.layout.key_block_words, 0)),
                r.word.eq(gather.word),
                r.run_sent.eq(0),
            ]
        m.next = "GATHER"

    def _start_load(self, m: Module, load: data.View, r: _Registers, rows: Value, beats: Value) -> None:
        m.d.sync += [
            r.fill.target.eq(load.target),
            r.fill.step.eq(load.step),
            r.fill.rows.eq(rows),
            r.fill.beats.eq(beats),
            r.fill.activations.eq(load.activations),
            r.fill.tiled.eq(load.tiled),
            r.fill.transposed.eq(0),
            r.fill.counts.eq(0),
            r.address.eq(load.source),
            r.stride.eq(load.stride),
        ]
        if self.tiles is not None:
            self._start_encoded(m, self.tiles, load, r, beats)
        m.next = "LOAD"

    def _start_count(self, m: Module, count: data.View, r: _Registers) -> None:
        m.d.sync += [
            r.fill.eq(0),
            r.fill.rows.eq(1),
            r.fill.beats.eq(1),
            r.fill.counts.eq(1),
            r.address.eq(count.header),
        ]
        if self.tiles is not None:
            m.d.sync += [r.encoding.eq(Encoding.BF16), r.row_words.eq(1)]
        m.next = "LOAD"

    def _start_encoded(self, m: Module, tiles: TileLayout, load: data.View, r: _Registers, beats: Value) -> None:
        """With encoded weights: format and memory words of a row; a row of a format has whole tiles."""
        shift, is_encoded = self.width.bit_length() - 1, load.limit == LengthLimit.ENCODED
        m.d.sync += [r.encoding.eq(Encoding.BF16), r.row_words.eq(beats)]
        for encoding in ENCODED:
            with m.If(is_encoded & (load.block[:2] == encoding.value)):
                m.d.sync += [
                    r.encoding.eq(encoding),
                    r.fill.beats.eq(Cat(Const(0, shift), beats[shift:])),
                    r.row_words.eq((beats[shift:] * tiles.tile_words(encoding))[:LENGTH_BITS]),
                ]

    def _request_rows(self, m: Module, r: _Registers) -> None:
        """States of LOAD."""
        with m.State("LOAD"):
            m.d.comb += self.fill.valid.eq(1)
            m.d.sync += r.remaining.eq(Mux(r.fill.beats == 0, 0, r.fill.rows))
            with m.If(self.fill.ready):
                m.next = "RUN" if self.layout.is_encoded else "ROWS"
        if self.layout.is_encoded:
            with m.State("RUN"):
                with m.If(r.remaining != 0):
                    self._send_run(m, r.remaining)
                with m.If((r.remaining == 0) | self.runs.ready):
                    m.next = "ROWS"
        with m.State("ROWS"):
            m.d.comb += [
                self.job.valid.eq(r.remaining != 0),
                self.job.payload.address.eq(r.address),
                self.job.payload.count.eq(r.fill.beats if self.tiles is None else r.row_words),
            ]
            with m.If(r.remaining == 0):
                m.next = "IDLE"
            with m.Elif(self.job.ready):
                m.d.sync += [r.remaining.eq(r.remaining - 1), r.address.eq((r.address + r.stride)[:WORD_ADDRESS_BITS])]

    def _request_tokens(self, m: Module, r: _Registers) -> None:
        """States of GATHER."""
        with m.State("GATHER"):
            m.d.comb += self.fill.valid.eq(1)
            with m.If(self.fill.ready):
                m.next = "NEXT"
        with m.State("NEXT"):  # the next token is on the current page, on the next page, or a token of the step
            m.next = "PAGE"
            with m.If((r.remaining == 0) & (r.skipped == 0)):
                m.next = "IDLE"
            with m.Elif(r.position >= self._past_tokens(r.head)):
                m.next = "STEP_TOKEN"
            with m.Elif(r.page_valid):
                m.next = "PAST_TOKEN"
        with m.State("PAGE"):
            m.d.comb += self.pages.ready.eq(1)
            with m.If(self.pages.valid):
                m.d.sync += [r.page.eq(self.pages.payload), r.page_valid.eq(1), r.slot.eq(0)]
                m.next = "PAST_TOKEN"
        with m.State("PAST_TOKEN"):
            on_page, skipped = Signal(LENGTH_BITS), Signal(LENGTH_BITS)  # tokens left on the page, and skipped of them
            m.d.comb += [
                on_page.eq(r.page.count - r.slot),
                skipped.eq(Mux(r.skipped < on_page, r.skipped, on_page)),
            ]
            with m.If(r.skipped != 0):
                m.d.sync += [r.slot.eq(r.slot + skipped), r.page_valid.eq(skipped != on_page)]
                self._skip(m, r, skipped)
            if self.layout.is_encoded:
                with m.Else():
                    self._request_block(m, r, on_page)
            else:
                with m.Else():
                    address = r.page.address + r.offset + r.slot * (2 * self.key_words)
                    self._request_token(m, r, address[:WORD_ADDRESS_BITS])
                    with m.If(self.job.ready):
                        m.d.sync += [r.slot.eq(r.slot + 1), r.page_valid.eq(r.slot + 1 != r.page.count)]
        with m.State("STEP_TOKEN"):
            next_word = (r.step_word + r.stride)[:WORD_ADDRESS_BITS]
            with m.If(r.skipped != 0):
                m.d.sync += r.step_word.eq(next_word)
                self._skip(m, r, Const(1))
            if self.layout.is_encoded:
                with m.Elif(~r.run_sent):
                    self._send_run(m, r.remaining)
                    m.d.sync += r.run_sent.eq(self.runs.ready)
            with m.Else():
                self._request_token(m, r, r.step_word)
                with m.If(self.job.ready):
                    m.d.sync += r.step_word.eq(next_word)

    def _request_block(self, m: Module, r: _Registers, on_page: Value) -> None:
        """With encoded pages: run, then job, of the next tokens of the block of the present slot."""
        layout, in_block = self.layout, Signal(range(self.layout.block_tokens + 1))
        tokens, end = Signal(range(layout.block_tokens + 1)), Signal(range(layout.block_tokens * layout.key_units + 1))
        word, first = layout.place(r.slot)
        m.d.comb += [
            in_block.eq(layout.block_tokens - r.slot[: layout.slot_bits]),
            tokens.eq(_smallest(r.remaining, on_page, in_block)[: len(tokens)]),
            end.eq(tokens * layout.key_units),
        ]
        with m.If(~r.run_sent):
            fields = {"encoded": 1, "first": first, "word": r.word, "beats": r.fill.beats}
            self._send_run(m, tokens, **fields)
            m.d.sync += r.run_sent.eq(self.runs.ready)
        with m.Else():
            block = layout.block_of(r.slot) * (2 * layout.key_block_words)
            m.d.comb += [
                self.job.valid.eq(1),
                self.job.payload.address.eq((r.page.address + block + r.offset + word)[:WORD_ADDRESS_BITS]),
                self.job.payload.count.eq(layout.words(first, end)),
            ]
            with m.If(self.job.ready):
                m.d.sync += [
                    r.remaining.eq(r.remaining - tokens),
                    r.position.eq(r.position + tokens),
                    r.slot.eq(r.slot + tokens),
                    r.page_valid.eq(tokens != on_page),
                    r.run_sent.eq(0),
                ]
                m.next = "NEXT"

    def _send_run(self, m: Module, count: Value, **fields: Value | int) -> None:
        """Offer a run to the decoder of pages; by default one of plain words."""
        run = self.runs.payload
        m.d.comb += [self.runs.valid.eq(1), run.count.eq(count)]
        m.d.comb += [run[name].eq(Value.cast(value)[: len(Value.cast(run[name]))]) for name, value in fields.items()]

    def _skip(self, m: Module, r: _Registers, tokens: Value) -> None:
        m.d.sync += [r.skipped.eq(r.skipped - tokens), r.position.eq(r.position + tokens)]
        m.next = "NEXT"

    def _request_token(self, m: Module, r: _Registers, address: Value) -> None:
        """Read job for one token."""
        m.d.comb += [
            self.job.valid.eq(1),
            self.job.payload.address.eq(address),
            self.job.payload.count.eq(r.fill.beats),
        ]
        with m.If(self.job.ready):
            m.d.sync += [r.remaining.eq(r.remaining - 1), r.position.eq(r.position + 1)]
            m.next = "NEXT"


def _smallest(*values: Value) -> Value:
    """The smallest of some numbers."""
    return reduce_tree(lambda a, b: Mux(b < a, b, a), values)


class LoadUnit(wiring.Component):
    """Executes LOAD, GATHER and COUNT.

    `LoadRequest` sends read jobs, `OperandFill` writes the words that arrive; a queue of fill descriptions between them
    lets the requests of up to `MAX_OPEN_COMMANDS` commands run ahead. `PageListReader` reads the page list of a GATHER.

    ```
    memory ──> PageListReader
                     v
    command ──> LoadRequest ──> jobs ──> read engine ──> words ──> OperandFill ──> operand memory
                     └────────> fill descriptions ──────────────────────^
    ```

    With encoded pages, `PageDecoder` is between the words and `OperandFill`, with a queue of runs from `LoadRequest`.
    With encoded weights, `WeightDecoder` follows it; the words of other commands pass it by.

    Timing: one word per cycle; the requests of a LOAD take one cycle per row, those of a GATHER two cycles per token
    and one more per page, after one memory latency for the first entry of the page list. `LoadRequest` has the numbers
    with encoded pages, `WeightDecoder` those with encoded weights.

    Parameters
    ----------
    memory : the operand memory
    layout : of a head page
    kv_heads, max_pages : KV heads, and largest number of entries of a page list
    tiles : of encoded weights; None: all weights are BF16

    Members
    -------
    i : stream of COMMAND
    complete : a command is complete: its last word is in the operand memory
    lengths : run-time lengths ; counted : clusters of the context of the last COUNT
    job, words : read engine
    write : stream of writes to the operand memory
    list_base, list_entries : word address of the page lists, number of entries of each list
    list_job, list_words : read engine for the page lists
    fault : SIZE: a row beyond the operand memory
    """

    def __init__(
        self,
        memory: OperandMemory,
        *,
        layout: PageLayout,
        kv_heads: int,
        max_pages: int,
        tiles: TileLayout | None = None,
    ):
        self.memory, self.layout, self.kv_heads, self.max_pages, self.tiles = memory, layout, kv_heads, max_pages, tiles
        self.word = 16 * memory.inputs
        super().__init__(
            {
                "i": In(stream.Signature(COMMAND)),
                "complete": Out(1),
                "lengths": In(lengths_layout(kv_heads)),
                "counted": Out(LENGTH_BITS),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(read_word_layout(self.word))),
                "write": Out(stream.Signature(memory.write)),
                "list_base": In(WORD_ADDRESS_BITS),
                "list_entries": In(entries_layout(kv_heads, max_pages)),
                "list_job": Out(stream.Signature(JOB)),
                "list_words": In(stream.Signature(read_word_layout(self.word))),
                "fault": Out(FAULT),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.request = request = LoadRequest(
            width=self.memory.inputs, layout=self.layout, kv_heads=self.kv_heads, tiles=self.tiles
        )
        m.submodules.pages = pages = PageListReader(word=self.word, kv_heads=self.kv_heads, max_pages=self.max_pages)
        m.submodules.fill = fill = OperandFill(self.memory, key_words=self.layout.records)
        m.submodules.descriptions = descriptions = SyncFIFOBuffered(
            width=len(Value.cast(request.fill.payload)), depth=MAX_OPEN_COMMANDS
        )
        wiring.connect(m, wiring.flipped(self.i), request.i)
        wiring.connect(m, request.job, wiring.flipped(self.job))
        words = fill.words if self.tiles is None else self._decode_weights(m, descriptions, fill)
        if self.layout.is_encoded:
            self._decode(m, request, words)
        else:
            wiring.connect(m, wiring.flipped(self.words), words)
        wiring.connect(m, fill.write, wiring.flipped(self.write))
        wiring.connect(m, pages.o, request.pages)
        wiring.connect(m, pages.job, wiring.flipped(self.list_job))
        wiring.connect(m, wiring.flipped(self.list_words), pages.words)
        m.d.comb += [
            descriptions.w_data.eq(request.fill.payload),
            descriptions.w_en.eq(request.fill.valid),
            request.fill.ready.eq(descriptions.w_rdy),
            Value.cast(fill.fill.payload).eq(descriptions.r_data[: FILL.size]),
            fill.fill.valid.eq(descriptions.r_rdy),
            descriptions.r_en.eq(fill.fill.ready),
            request.lengths.eq(self.lengths),
            request.counted.eq(fill.counted),
            self.counted.eq(fill.counted),
            pages.start.eq(request.list_start),
            pages.number.eq(request.list_number),
            pages.base.eq(self.list_base),
            pages.entries.eq(self.list_entries),
            self.complete.eq(fill.complete),
            self.fault.eq(fill.fault),
        ]
        assert COUNT_BITS >= LENGTH_BITS
        return m

    def _decode_weights(self, m: Module, descriptions: SyncFIFOBuffered, fill: OperandFill) -> wiring.PureInterface:
        """The decoder of weights before the operand memory; returns the stream of words before both.

        The current description says whether words are decoded. The decoder has no word of a command that is complete.
        """
        assert self.tiles is not None
        m.submodules.weight_decoder = decoder = WeightDecoder(lanes=self.tiles.lanes)
        words = stream.Signature(read_word_layout(self.word)).create(path=("load_words",))
        description = data.View(ENCODED_FILL, descriptions.r_data)
        run, sent, is_encoded = decoder.runs, Signal(), Signal()
        m.d.comb += [
            is_encoded.eq(descriptions.r_rdy & (Value.cast(description.encoding) != Encoding.BF16.value)),
            run.valid.eq(is_encoded & ~sent & (description.fill.rows != 0) & (description.fill.beats != 0)),
            Value.cast(run.payload.encoding).eq(Value.cast(description.encoding)),
            run.payload.rows.eq(description.fill.rows),
            run.payload.tiles.eq(description.fill.beats >> (self.tiles.lanes.bit_length() - 1)),
            decoder.words.payload.eq(words.payload),
            decoder.words.valid.eq(words.valid & is_encoded),
            words.ready.eq(Mux(is_encoded, decoder.words.ready, fill.words.ready)),
            fill.words.valid.eq(Mux(is_encoded, decoder.o.valid, words.valid)),
            fill.words.payload.data.eq(Mux(is_encoded, decoder.o.payload.data, words.payload.data)),
            decoder.o.ready.eq(fill.words.ready),
        ]
        with m.If(fill.complete):
            m.d.sync += sent.eq(0)
        with m.Elif(run.valid & run.ready):
            m.d.sync += sent.eq(1)
        return wiring.flipped(words)

    def _decode(self, m: Module, request: LoadRequest, words: wiring.PureInterface) -> None:
        """The decoder of pages after the read engine."""
        m.submodules.decoder = decoder = PageDecoder(self.layout, count_bits=LENGTH_BITS)
        m.submodules.runs = runs = SyncFIFOBuffered(width=decoder.run.size, depth=MAX_OPEN_RUNS)
        wiring.connect(m, wiring.flipped(self.words), decoder.words)
        wiring.connect(m, decoder.o, words)
        m.d.comb += [
            runs.w_data.eq(request.runs.payload),
            runs.w_en.eq(request.runs.valid),
            request.runs.ready.eq(runs.w_rdy),
            Value.cast(decoder.runs.payload).eq(runs.r_data),
            decoder.runs.valid.eq(runs.r_rdy),
            runs.r_en.eq(decoder.runs.ready),
        ]
