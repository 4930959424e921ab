"""Line cache of the KVMU: a few lines of the store on chip, through which all components read and write the store."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
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


@dataclass(frozen=True)
class Lines:
    """Registers and submodules of the cache.

    rows : contents of the lines
    tags, valid, dirty, recent : address of each line; it has content, has changed, was used lately
    slot, tag : number and address of the line in work
    evicted : address of the line that was written back last
    """

    rows: LineMemory
    log: UndoLog
    writer: LineWriter
    tags: Sequence[Signal]
    valid: Signal
    dirty: Signal
    recent: Signal
    slot: Signal
    tag: Signal
    evicted: Signal


class LineCache(wiring.Component):
    """Executes reads and writes of blocks on a fully associative cache with write-back and an undo log.

    The first change of a clean line writes its old content to the undo log. A changed line is written to memory when
    its place is needed or by FLUSH, and only after memory has acknowledged all log entries. So memory always contains
    what is needed to restore the start of the step. The victim of a miss is the lowest line that was not used lately.
    When the log is full, changed lines are dropped instead of written, so that memory can still be restored. LOG is for
    a line that another unit changes: the line is read and logged, and leaves the cache at once.

    Timing, while memory and client do not stall: READ hit 2 cycles; WRITE hit 1 cycle, and 4 + 2 * words of a line
    more if the line was clean; a miss adds 2 cycles, the words of the line and the latency of memory, and 2 + words of
    a line if its victim is dirty. LOG takes 4 + 2 * words of a line after its miss. `memory.request.ready` depends on
    the address of the request.

    Parameters
    ----------
    word : bits of a memory word
    lines : lines on chip, at least 2

    Members
    -------
    memory : accesses of the other components, one at a time
    read_job, read_words, write_job, write_words, write_done : a read engine and a write engine
    log_base, log_entries, step, restart : see `UndoLog`
    log_full : the undo log is full ; settled : memory has acknowledged everything that was written
    filled, written_back, logged : a line is read, is written back, is logged in this cycle

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
            log=UndoLog(line=self.line),
            writer=LineWriter(word=self.word, line=self.line),
            tags=[Signal(32 - self._offset_bits, name=f"tag{n}") for n in number],
            valid=Signal(self.lines, name="valid"),
            dirty=Signal(self.lines, name="dirty"),
            recent=Signal(self.lines, name="recent"),
            slot=Signal(number, name="slot"),
            tag=Signal(32 - self._offset_bits, name="tag"),
            evicted=Signal(32 - self._offset_bits, name="evicted"),
        )
        m.submodules.rows, m.submodules.log, m.submodules.writer = lines.rows, lines.log, lines.writer
        log, writer = lines.log, lines.writer
        wiring.connect(m, writer.job, wiring.flipped(self.write_job))
        wiring.connect(m, writer.words, wiring.flipped(self.write_words))
        for n in number:
            with m.If(lines.slot == n):
                m.d.comb += lines.tag.eq(lines.tags[n])
        m.d.comb += [
            lines.rows.address.eq(lines.slot),
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
        with m.FSM(init="IDLE"):
            self._lookup(m, lines)
            self._write_lines(m, lines)
            self._fill(m, lines)
            self._flush(m, lines)
        return m

    @property
    def _offset_bits(self) -> int:
        """Bits of a block number inside a line."""
        return self.blocks.bit_length() - 1

    def _lookup(self, m: Module, lines: Lines) -> None:
        """IDLE compares the tags and executes hits; RESPOND sends a block."""
        request, response, rows = self.memory.request, self.memory.response, lines.rows
        op, address = request.payload.op, request.payload.address
        block = address[: self._offset_bits] if self._offset_bits else Const(0, 1)
        sent_block = Signal.like(block)
        matches, recent, access = Signal(self.lines), Signal(self.lines), Signal()
        hit_slot, victim = Signal(range(self.lines)), Signal(range(self.lines))
        victim_dirty = (lines.valid & lines.dirty).bit_select(victim, 1)
        all_blocks = Const(-1, self.blocks)
        m.d.comb += [
            access.eq((op == Access.READ) | (op == Access.WRITE) | (op == Access.LOG)),
            matches.eq(
                Cat(lines.valid[n] & (lines.tags[n] == address[self._offset_bits :]) for n in range(self.lines))
            ),
            recent.eq(lines.recent | matches),
            hit_slot.eq(_index(matches)),
            victim.eq(_index((~lines.recent & (lines.recent + 1))[: self.lines])),
        ]
        with m.State("IDLE"):
            m.d.comb += [
                rows.address.eq(Mux(matches.any(), hit_slot, victim)),
                rows.w_data.eq(request.payload.data.replicate(self.blocks)),
            ]
            m.d.sync += [lines.slot.eq(rows.address), sent_block.eq(block)]
            with m.If(request.valid & access & matches.any()):
                with m.If(op != Access.LOG):
                    m.d.sync += lines.recent.eq(Mux(recent.all(), matches, recent))
                with m.If(op == Access.READ):
                    m.d.comb += [rows.r_en.eq((1 << block)[: self.blocks]), request.ready.eq(1)]
                    m.next = "RESPOND"
                with m.Elif((matches & lines.dirty).any()):
                    m.d.comb += [
                        request.ready.eq(1),
                        rows.w_mask.eq((request.payload.strobe << (block * STROBE_BITS))[: len(rows.w_mask)]),
                    ]
                with m.Else():
                    m.d.comb += rows.r_en.eq(all_blocks)
                    m.next = "LOG"
            with m.Elif(request.valid & access):
                m.next = "FILL"
                with m.If(victim_dirty):
                    m.d.comb += rows.r_en.eq(all_blocks)
                    m.next = "EVICT"
            with m.Elif(request.valid & (op == Access.FLUSH)):
                m.next = "FLUSH"
            with m.Elif(request.valid):
                m.d.comb += request.ready.eq(1)
                m.d.sync += [lines.valid.eq(0), lines.recent.eq(0)]
                m.next = "RESPOND"
        with m.State("RESPOND"):
            m.d.comb += [
                response.valid.eq(1),
                response.payload.eq(rows.r_data.word_select(sent_block, BLOCK_BITS)),
            ]
            with m.If(response.ready):
                m.next = "IDLE"

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
                m.next = "FILL"
            with m.Elif(writer.pending == 0):
                m.next = "EVICT_WRITE"
        with m.State("EVICT_WRITE"):
            m.d.comb += [writer.i.valid.eq(1), self.written_back.eq(writer.i.ready)]
            m.d.sync += lines.evicted.eq(lines.tag)
            with m.If(writer.i.ready):
                m.next = "FILL"

    def _fill(self, m: Module, lines: Lines) -> None:
        """FILL requests the line of the request; FILL_WORDS stores it."""
        rows, address = lines.rows, self.memory.request.payload.address[self._offset_bits :]
        index, halves = Signal(range(self.line_words)), self.word // 16
        first_block = Cat(Const(0, self._offset_bits), address)
        m.d.comb += [
            self.read_job.payload.address.eq(word_address(first_block, self.word)),
            self.read_job.payload.count.eq(self.line_words),
            self.read_job.payload.last.eq(1),
        ]
        with m.State("FILL"):
            in_flight = (address == lines.evicted) & (lines.writer.pending != 0)
            m.d.comb += self.read_job.valid.eq(~in_flight)
            m.d.sync += [
                lines.valid.bit_select(lines.slot, 1).eq(0),
                lines.dirty.bit_select(lines.slot, 1).eq(0),
                index.eq(0),
            ]
            with m.If(self.read_job.valid & self.read_job.ready):
                m.d.comb += self.filled.eq(1)
                m.next = "FILL_WORDS"
        with m.State("FILL_WORDS"):
            m.d.comb += [
                self.read_words.ready.eq(1),
                rows.w_data.eq(self.read_words.payload.data.replicate(self.line_words)),
                rows.w_mask.eq(
                    Mux(self.read_words.valid, Const((1 << halves) - 1) << (index * halves), 0)[: len(rows.w_mask)]
                ),
            ]
            with m.If(self.read_words.valid):
                m.d.sync += index.eq(index + 1)
                with m.If(self.read_words.payload.last):
                    m.d.sync += lines.valid.bit_select(lines.slot, 1).eq(1)
                    for n in range(self.lines):
                        with m.If(lines.slot == n):
                            m.d.sync += lines.tags[n].eq(address)
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
