"""Line cache of the KVMU: a few lines of the store on chip, through which all components read and write the store."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import JOB
from hw.common.memory import SinglePortRam
from hw.common.tree import reduce_tree
from hw.dre.kvmu.access import STROBE_BITS, Access, access_port
from hw.dre.kvmu.records import BASE_BITS, BLOCK_BITS
from hw.dre.kvmu.undo_log import LineWriter, UndoLog, word_address


class LineMemory(wiring.Component):
    """Memory of the lines, one memory with a single port for each block of a line. A cycle reads or writes.

    Only the blocks in `r_en` and in `w_mask` are accessed, which saves energy.

    Timing: `r_data` has the blocks one cycle after `r_en`, and keeps each until its next read.

    Parameters
    ----------
    lines : number of lines ; blocks : blocks of a line

    Members
    -------
    address : line to read or write
    r_en, r_data : blocks to read; contents of the line
    w_mask, w_data : write enable of each 16 bits, contents
    """

    latency = 1

    def __init__(self, *, lines: int, blocks: int):
        self.lines, self.blocks = lines, blocks
        super().__init__(
            {
                "address": In(range(lines)),
                "r_en": In(blocks),
                "r_data": Out(blocks * BLOCK_BITS),
                "w_mask": In(blocks * STROBE_BITS),
                "w_data": In(blocks * BLOCK_BITS),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for n in range(self.blocks):
            m.submodules[f"block{n}"] = block = SinglePortRam(depth=self.lines, width=16, words=STROBE_BITS)
            m.d.comb += [
                block.r_addr.eq(self.address),
                block.w_addr.eq(self.address),
                block.r_en.eq(self.r_en[n]),
                block.w_mask.eq(self.w_mask.word_select(n, STROBE_BITS)),
                Value.cast(block.w_data).eq(self.w_data.word_select(n, BLOCK_BITS)),
                self.r_data.word_select(n, BLOCK_BITS).eq(Value.cast(block.r_data)),
            ]
        return m


def lookup_port(lines: int) -> wiring.Signature:
    """Port of `Lookahead`, which reads ahead of the other components and never makes them wait for memory.

    valid, address : look up a block
    done : the block is looked up in this cycle; the results hold in this cycle
    hit : its line is in the cache; `data` has the block in the next cycle
    full : its line is neither in the cache nor requested, because there is no place for it
    slot : place of the line if it is requested
    arrived, arrived_slot : a requested line has arrived
    freed : a line is used, which can make a place
    release : no line is kept for its first use
    """
    return wiring.Signature(
        {
            "valid": Out(1),
            "address": Out(32),
            "done": In(1),
            "hit": In(1),
            "full": In(1),
            "slot": In(range(lines)),
            "data": In(BLOCK_BITS),
            "arrived": In(1),
            "arrived_slot": In(range(lines)),
            "freed": In(1),
            "release": Out(1),
        }
    )


@dataclass(frozen=True)
class Lines:
    """Registers and submodules of the cache.

    rows : contents of the lines
    fills : places of the requested lines, in the order of their requests
    tags, valid, dirty, recent : address of each line; it has content, has changed, was used lately
    pending, ahead : it is requested from memory; it was requested by a lookup and is not used yet
    slot, tag : number and address of the line in work
    evicted : address of the line that was written back last
    """

    rows: LineMemory
    fills: SyncFIFO
    log: UndoLog
    writer: LineWriter
    tags: Sequence[Signal]
    valid: Signal
    dirty: Signal
    recent: Signal
    pending: Signal
    ahead: Signal
    slot: Signal
    tag: Signal
    evicted: Signal


class Search:
    """Signals of the comparison of an address with the tags.

    executes, looks : the address is that of a request in IDLE, or of a lookup; rests : IDLE without a request, or WAIT
    line, block : number of the line, and of the block in it
    matches, hit, requested : lines with this address; one of them is in the cache, is requested from memory
    slot, recent : the line that matches, else the victim; lines that are used lately after its use
    victim, victim_dirty : place for another line; it has changed
    can_fill : a job can be issued ; has_place : a lookup can use the victim
    fills : the line is requested in this cycle ; uses_rows : the request reads or writes the lines
    receives, arriving : a word of a line is there; lines that are complete with it
    """

    def __init__(self, *, lines: int, line: int, block: int):
        self.executes, self.looks, self.rests = (Signal(name=name) for name in ("executes", "looks", "rests"))
        self.line, self.block = Signal(line, name="searched_line"), Signal(block, name="searched_block")
        self.matches, self.recent = Signal(lines, name="matches"), Signal(lines, name="next_recent")
        self.hit, self.requested = Signal(name="hit"), Signal(name="requested")
        self.slot, self.victim = Signal(range(lines), name="searched_slot"), Signal(range(lines), name="victim")
        self.victim_dirty, self.can_fill = Signal(name="victim_dirty"), Signal(name="can_fill")
        self.has_place, self.fills, self.uses_rows = Signal(name="has_place"), Signal(name="fills"), Signal()
        self.receives, self.arriving = Signal(name="receives"), Signal(lines, name="arriving")


class LineCache(wiring.Component):
    """Executes reads and writes of blocks on a fully associative cache with write-back and an undo log.

    The first change of a clean line writes its old content to the undo log. A changed line is written to memory when
    its place is needed or by FLUSH, and only after memory has acknowledged all log entries. So memory always contains
    what is needed to restore the start of the step. The victim of a miss is the lowest line that was not used lately.
    When the log is full, changed lines are dropped instead of written, so that memory can still be restored. LOG is for
    a line that another unit changes: the line is read and logged, and leaves the cache at once.

    Lookups read ahead while no request is executed, or while the request waits for memory. A lookup that misses
    requests the line in a place without changes. Such a line is kept for its first use by a request; at most half of
    the lines are requested or kept. Memory sends the lines in the order of the jobs.

    Timing, while memory and client do not stall: READ hit 2 cycles; WRITE hit 1 cycle, and 4 + 2 * words of a line
    more if the line was clean; a miss adds 2 cycles, the words of the line and the latency of memory, and 3 + words of
    a line if its victim is dirty. LOG takes 4 + 2 * words of a line after its miss. `memory.request.ready` depends on
    the address of the request.

    Parameters
    ----------
    word : bits of a memory word
    lines : lines on chip, at least 2

    Members
    -------
    memory : accesses of the other components, one at a time
    lookup : lookups of `Lookahead`
    read_job, read_words, write_job, write_words, write_done : a read engine and a write engine
    log_base, log_entries, step, restart : see `UndoLog`
    log_full : the undo log is full ; settled : memory has acknowledged everything that was written
    filled, written_back, logged : a line is requested, is written back, is logged in this cycle

    Raises
    ------
    ValueError
        If `lines` is below 2.
    """

    def __init__(self, *, word: int, lines: int):
        if lines < 2:
            raise ValueError(f"lines must be at least 2, got {lines}")
        self.word, self.lines, self.line = word, lines, max(word, BLOCK_BITS)
        self.blocks, self.line_words = self.line // BLOCK_BITS, self.line // word
        super().__init__(
            {
                "memory": In(access_port()),
                "lookup": In(lookup_port(lines)),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(word))),
                "write_job": Out(stream.Signature(JOB)),
                "write_words": Out(stream.Signature(write_word_layout(word))),
                "write_done": In(1),
                "log_base": In(BASE_BITS),
                "log_entries": In(32),
                "step": In(32),
                "restart": In(1),
                "log_full": Out(1),
                "settled": Out(1),
                "filled": Out(1),
                "written_back": Out(1),
                "logged": Out(1),
            }
        )

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory in bits."""
        return {"lines": self.lines * self.line}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        number = range(self.lines)
        lines = Lines(
            rows=LineMemory(lines=self.lines, blocks=self.blocks),
            fills=SyncFIFO(width=max(1, (self.lines - 1).bit_length()), depth=self.lines // 2 + 1),
            log=UndoLog(line=self.line),
            writer=LineWriter(word=self.word, line=self.line),
            tags=[Signal(32 - self._offset_bits, name=f"tag{n}") for n in number],
            **{name: Signal(self.lines, name=name) for name in ("valid", "dirty", "recent", "pending", "ahead")},
            slot=Signal(number, name="slot"),
            tag=Signal(32 - self._offset_bits, name="tag"),
            evicted=Signal(32 - self._offset_bits, name="evicted"),
        )
        m.submodules.rows, m.submodules.log, m.submodules.writer = lines.rows, lines.log, lines.writer
        m.submodules.fills = lines.fills
        log, writer = lines.log, lines.writer
        wiring.connect(m, writer.job, wiring.flipped(self.write_job))
        wiring.connect(m, writer.words, wiring.flipped(self.write_words))
        for n in number:
            with m.If(lines.slot == n):
                m.d.comb += lines.tag.eq(lines.tags[n])
        m.d.comb += [
            writer.done.eq(self.write_done),
            writer.i.payload.address.eq(lines.tag << self._offset_bits),
            writer.i.payload.content.eq(lines.rows.r_data),
            log.i.payload.address.eq(lines.tag << self._offset_bits),
            log.i.payload.content.eq(lines.rows.r_data),
            log.base.eq(self.log_base),
            log.log_entries.eq(self.log_entries),
            log.step.eq(self.step),
            log.restart.eq(self.restart),
            self.log_full.eq(log.full),
            self.settled.eq(writer.pending == 0),
            self.logged.eq(log.o.valid & log.o.ready),
        ]
        search = self._search(m, lines)
        m.d.comb += lines.rows.address.eq(Mux(search.executes | search.looks, search.slot, lines.slot))
        with m.FSM(init="IDLE") as fsm:
            self._execute(m, lines, search)
            self._write_lines(m, lines)
            self._flush(m, lines)
            with m.State("WAIT"), m.If(~(lines.pending & ~search.arriving).bit_select(lines.slot, 1)):
                m.next = "IDLE"
        m.d.comb += [
            search.executes.eq(fsm.ongoing("IDLE") & self.memory.request.valid),
            search.rests.eq(fsm.ongoing("WAIT") | (fsm.ongoing("IDLE") & ~self.memory.request.valid)),
            search.looks.eq(self.lookup.valid & search.rests & ~search.receives),
        ]
        self._look_up(m, lines, search)
        self._receive(m, lines, search, ~fsm.ongoing("FLUSH_NEXT"))
        with m.If(self.lookup.release):
            m.d.sync += lines.ahead.eq(0)
        return m

    @property
    def _offset_bits(self) -> int:
        """Bits of a block number inside a line."""
        return self.blocks.bit_length() - 1

    def _search(self, m: Module, lines: Lines) -> Search:
        """Compare the tags with the address of the request, or with that of a lookup, and choose a victim."""
        bits, number = self._offset_bits, range(self.lines)
        search, address = Search(lines=self.lines, line=32 - bits, block=max(1, bits)), Signal(32)
        busy, unused = Signal(self.lines), Signal(self.lines)
        recent, requested = Signal(self.lines), Signal(range(self.lines + 1))
        line, writes = address[bits:], lines.writer.pending != 0
        m.d.comb += [
            address.eq(Mux(search.looks, self.lookup.address, self.memory.request.payload.address)),
            search.line.eq(line),
            search.block.eq(address[:bits] if bits else 0),
            search.matches.eq(Cat((lines.valid | lines.pending)[n] & (lines.tags[n] == line) for n in number)),
            search.hit.eq((search.matches & lines.valid).any()),
            search.requested.eq((search.matches & lines.pending).any()),
            recent.eq(lines.recent | search.matches),
            search.recent.eq(Mux(recent.all(), search.matches, recent)),
            busy.eq(lines.ahead | lines.pending | Mux(search.looks, lines.valid & lines.dirty, 0)),
            unused.eq(~busy & ~lines.recent),
            search.victim.eq(_first(Mux(unused.any(), unused, ~busy))),
            search.victim_dirty.eq((lines.valid & lines.dirty).bit_select(search.victim, 1)),
            search.slot.eq(Mux(search.matches.any(), _index(search.matches), search.victim)),
            requested.eq(reduce_tree(lambda a, b: a + b, list(lines.ahead | lines.pending))),
            # a line that was just written back is read after the acknowledgement
            search.can_fill.eq(~self.read_job.valid & ~((line == lines.evicted) & writes)),
            search.has_place.eq(~busy.all() & (requested < self.lines // 2)),
        ]
        return search

    def _execute(self, m: Module, lines: Lines, search: Search) -> None:
        """IDLE executes hits and requests the line of a miss; RESPOND sends a block."""
        request, response, rows = self.memory.request, self.memory.response, lines.rows
        op, sent_block, access = request.payload.op, Signal.like(search.block), Signal()
        all_blocks = Const(-1, self.blocks)
        m.d.comb += access.eq((op == Access.READ) | (op == Access.WRITE) | (op == Access.LOG))
        with m.State("IDLE"):
            m.d.comb += rows.w_data.eq(request.payload.data.replicate(self.blocks))
            with m.If(search.executes):
                m.d.sync += [lines.slot.eq(search.slot), sent_block.eq(search.block)]
            with m.If(search.executes & access & search.hit):
                m.d.comb += [search.uses_rows.eq(1), self.lookup.freed.eq(1)]
                m.d.sync += lines.ahead.eq(lines.ahead & ~search.matches)
                with m.If(op != Access.LOG):
                    m.d.sync += lines.recent.eq(search.recent)
                with m.If(op == Access.READ):
                    m.d.comb += [rows.r_en.eq((1 << search.block)[: self.blocks]), request.ready.eq(1)]
                    m.next = "RESPOND"
                with m.Elif((search.matches & lines.dirty).any()):
                    m.d.comb += [
                        request.ready.eq(1),
                        rows.w_mask.eq((request.payload.strobe << (search.block * STROBE_BITS))[: len(rows.w_mask)]),
                    ]
                with m.Else():
                    m.d.comb += rows.r_en.eq(all_blocks)
                    m.next = "LOG"
            with m.Elif(search.executes & access & search.requested):
                m.next = "WAIT"
            with m.Elif(search.executes & access & search.victim_dirty):
                m.d.comb += [search.uses_rows.eq(1), rows.r_en.eq(all_blocks)]
                m.next = "EVICT"
            with m.Elif(search.executes & access & search.can_fill):
                m.d.comb += search.fills.eq(1)
                m.next = "WAIT"
            with m.Elif(search.executes & (op == Access.FLUSH)):
                m.next = "FLUSH"
            with m.Elif(search.executes & ~access & (lines.pending == 0)):
                m.d.comb += request.ready.eq(1)
                m.d.sync += [lines.valid.eq(0), lines.recent.eq(0), lines.ahead.eq(0)]
                m.next = "RESPOND"
        with m.State("RESPOND"):
            m.d.comb += [
                response.valid.eq(1),
                response.payload.eq(rows.r_data.word_select(sent_block, BLOCK_BITS)),
            ]
            with m.If(response.ready):
                m.next = "IDLE"

    def _look_up(self, m: Module, lines: Lines, search: Search) -> None:
        """Lookups read a block, or request its line."""
        lookup, rows, sent_block = self.lookup, lines.rows, Signal.like(search.block)
        m.d.comb += [
            lookup.done.eq(search.looks),
            lookup.hit.eq(search.hit),
            lookup.full.eq(~search.hit & ~search.requested & ~search.fills),
            lookup.slot.eq(search.slot),
            lookup.data.eq(rows.r_data.word_select(sent_block, BLOCK_BITS)),
        ]
        with m.If(search.looks):
            m.d.sync += sent_block.eq(search.block)
            with m.If(search.hit):
                m.d.comb += rows.r_en.eq((1 << search.block)[: self.blocks])
                m.d.sync += lines.recent.eq(search.recent)
            with m.Elif(~search.requested & search.can_fill & search.has_place):
                m.d.comb += search.fills.eq(1)
                m.d.sync += lines.ahead.bit_select(search.victim, 1).eq(1)

    def _receive(self, m: Module, lines: Lines, search: Search, rows_free: Value) -> None:
        """Request lines, in any state, and store their words."""
        rows, halves, index = lines.rows, self.word // 16, Signal(range(self.line_words))
        fills, line = lines.fills, Signal.like(search.line)
        arriving = Signal(range(self.lines))
        m.d.comb += [
            fills.w_en.eq(search.fills),
            fills.w_data.eq(search.victim),
            self.filled.eq(search.fills),
            self.read_job.payload.address.eq(word_address(Cat(Const(0, self._offset_bits), line), self.word)),
            self.read_job.payload.count.eq(self.line_words),
            self.read_job.payload.last.eq(1),
            arriving.eq(fills.r_data),
            search.receives.eq(fills.r_rdy & self.read_words.valid),
            self.read_words.ready.eq(fills.r_rdy & rows_free & ~search.uses_rows),
            fills.r_en.eq(self.read_words.valid & self.read_words.ready & self.read_words.payload.last),
            search.arriving.eq(Mux(fills.r_en, (1 << arriving)[: self.lines], 0)),
            self.lookup.arrived.eq(fills.r_en),
            self.lookup.arrived_slot.eq(arriving),
        ]
        with m.If(self.read_job.ready):
            m.d.sync += self.read_job.valid.eq(0)
        with m.If(search.fills):
            m.d.sync += [self.read_job.valid.eq(1), line.eq(search.line)]
            m.d.sync += [flags.bit_select(search.victim, 1).eq(0) for flags in (lines.valid, lines.dirty)]
            m.d.sync += lines.pending.bit_select(search.victim, 1).eq(1)
            for n in range(self.lines):
                with m.If(search.victim == n):
                    m.d.sync += lines.tags[n].eq(search.line)
        with m.If(self.read_words.valid & self.read_words.ready):
            m.d.comb += [
                rows.address.eq(arriving),
                rows.w_data.eq(self.read_words.payload.data.replicate(self.line_words)),
                rows.w_mask.eq((Const((1 << halves) - 1) << (index * halves))[: len(rows.w_mask)]),
            ]
            m.d.sync += index.eq(Mux(self.read_words.payload.last, 0, index + 1))
        with m.If(fills.r_en):
            m.d.sync += lines.valid.bit_select(arriving, 1).eq(1)
            m.d.sync += lines.pending.bit_select(arriving, 1).eq(0)

    def _write_lines(self, m: Module, lines: Lines) -> None:
        """LOG writes the old content of a line to the undo log; EVICT writes a changed line to memory."""
        log, writer = lines.log, lines.writer
        with m.State("LOG"):
            m.d.comb += [
                log.i.valid.eq(1),
                log.o.ready.eq(writer.i.ready),
                writer.i.valid.eq(log.o.valid),
                writer.i.payload.eq(log.o.payload),
            ]
            with m.If(log.i.ready):
                m.next = "IDLE"
                with m.If(self.memory.request.payload.op == Access.LOG):
                    m.d.comb += self.memory.request.ready.eq(1)
                    m.d.sync += lines.valid.bit_select(lines.slot, 1).eq(0)
                with m.Else():
                    m.d.sync += lines.dirty.bit_select(lines.slot, 1).eq(1)
        with m.State("EVICT"):
            with m.If(log.full):
                m.d.sync += [flags.bit_select(lines.slot, 1).eq(0) for flags in (lines.valid, lines.dirty)]
                m.next = "IDLE"
            with m.Elif(writer.pending == 0):
                m.next = "EVICT_WRITE"
        with m.State("EVICT_WRITE"):
            m.d.comb += [writer.i.valid.eq(1), self.written_back.eq(writer.i.ready)]
            m.d.sync += lines.evicted.eq(lines.tag)
            with m.If(writer.i.ready):
                m.d.sync += lines.dirty.bit_select(lines.slot, 1).eq(0)
                m.next = "IDLE"

    def _flush(self, m: Module, lines: Lines) -> None:
        """FLUSH writes every changed line and waits for the acknowledgements."""
        writer, rows, dirty = lines.writer, lines.rows, lines.dirty
        lowest_dirty = _index(dirty & (~dirty + 1))
        with m.State("FLUSH"):
            with m.If(lines.log.full):
                m.d.sync += [lines.valid.eq(lines.valid & ~dirty), dirty.eq(0)]
                m.next = "FLUSH_END"
            with m.Elif(writer.pending == 0):
                m.next = "FLUSH_NEXT"
        with m.State("FLUSH_NEXT"):
            m.d.comb += [rows.address.eq(lowest_dirty), rows.r_en.eq(dirty.any().replicate(self.blocks))]
            m.d.sync += lines.slot.eq(lowest_dirty)
            m.next = "FLUSH_WRITE"
            with m.If(dirty == 0):
                m.next = "FLUSH_END"
        with m.State("FLUSH_WRITE"):
            m.d.comb += [writer.i.valid.eq(1), self.written_back.eq(writer.i.ready)]
            with m.If(writer.i.ready):
                m.d.sync += dirty.bit_select(lines.slot, 1).eq(0)
                m.next = "FLUSH_NEXT"
        with m.State("FLUSH_END"), m.If(writer.pending == 0):
            m.d.comb += self.memory.request.ready.eq(1)
            m.next = "RESPOND"


def _index(one_hot: Value) -> Value:
    """Number of the set bit; 0 if no bit is set."""
    numbers = [Mux(one_hot[n], n, 0) for n in range(len(one_hot))]
    return reduce_tree(lambda a, b: a | b, numbers)


def _first(flags: Value) -> Value:
    """Number of the lowest set bit; 0 if no bit is set."""
    return _index((flags & (~flags + 1))[: len(flags)])
