"""Page lists in device memory: the past tokens that each KV head attends to in a step.

A KV head has two lists, so that one can be written for the next layer while the other one is read.
"""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.gearbox import Gearbox
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.core.isa import LIST_SETS
from hw.core.lengths import LENGTH_BITS, entries_layout
from hw.dre.kvmu.command import Op

# Entry of a list: first word of the keys and values of one page for one KV head, and number of tokens.
LIST_ENTRY = data.StructLayout({"address": WORD_ADDRESS_BITS, "count": 8, "unused": 24})
ENTRY_BYTES = LIST_ENTRY.size // 8
QUEUE_DEPTH = 4  # entries that wait for the write engine


def list_words(max_pages: int, word: int) -> int:
    """Memory words between two lists, for words of `word` bits."""
    return max(1, max_pages * LIST_ENTRY.size // word)


def _entries_per_word(word: int) -> int:
    if word < LIST_ENTRY.size:
        raise ValueError(f"word must be at least {LIST_ENTRY.size}, got {word}")
    return word // LIST_ENTRY.size


class PageLists(wiring.Component):
    """Writes the pages that the SELECT replies report to memory, to one of two lists of their KV head.

    List n begins `n * list_words(max_pages, word)` words after `base`. The first list of KV head h has the number h,
    the second one `kv_heads + h`. An entry is 8 bytes, see `LIST_ENTRY`.

    Timing: one entry per cycle, limited by the write engine; a full queue stops the replies.

    Parameters
    ----------
    reply : layout of a reply of the KV prediction unit
    word : bits of a memory word, at least 64
    kv_heads : KV heads
    max_pages : entries of each list

    Members
    -------
    reply : stream of replies
    second : replies go to the second lists
    clear : empties the lists to which replies go
    base : word address of the first list
    job, words, write_done : write engine
    entries, tokens : number of entries of each list, and their tokens
    idle : memory has acknowledged all entries

    Raises
    ------
    ValueError
        When `word` is below 64.
    """

    def __init__(self, *, reply: data.StructLayout, word: int, kv_heads: int, max_pages: int):
        self.word, self.kv_heads, self.max_pages = word, kv_heads, max_pages
        self.entries_per_word = _entries_per_word(word)
        super().__init__(
            {
                "reply": In(stream.Signature(reply)),
                "second": In(1),
                "clear": In(1),
                "base": In(WORD_ADDRESS_BITS),
                "job": Out(stream.Signature(JOB)),
                "words": Out(stream.Signature(write_word_layout(word))),
                "write_done": In(1),
                "entries": Out(entries_layout(kv_heads, max_pages)),
                "tokens": Out(data.ArrayLayout(LENGTH_BITS, LIST_SETS * kv_heads)),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reply, shift = self.reply.payload, (self.entries_per_word - 1).bit_length()
        entry_write = data.StructLayout(
            {"word": WORD_ADDRESS_BITS, "position": range(self.entries_per_word), "entry": LIST_ENTRY}
        )
        m.submodules.queue = queue = SyncFIFOBuffered(width=entry_write.size, depth=QUEUE_DEPTH)
        lists = LIST_SETS * self.kv_heads
        newest, index, append = Signal(entry_write), Signal(range(self.max_pages + 1)), Signal()
        number = Signal(range(lists))  # list of the reply
        m.d.comb += [
            self.reply.ready.eq(queue.w_rdy),
            append.eq(self.reply.valid & queue.w_rdy & (reply.op == Op.SELECT) & ~reply.last),
            number.eq(reply.head + Mux(self.second, self.kv_heads, 0)),
            index.eq(Array(self.entries[n] for n in range(lists))[number]),
            newest.word.eq(self.base + number * list_words(self.max_pages, self.word) + (index >> shift)),
            newest.position.eq(index[:shift]),
            newest.entry.address.eq(reply.address >> ((self.word // 8).bit_length() - 1)),
            newest.entry.count.eq(reply.count),
            queue.w_data.eq(newest),
            queue.w_en.eq(append),
        ]
        for n in range(lists):
            with m.If(self.clear & (self.second == (n >= self.kv_heads))):
                m.d.sync += [self.entries[n].eq(0), self.tokens[n].eq(0)]
            with m.Elif(append & (number == n)):
                m.d.sync += [self.entries[n].eq(index + 1), self.tokens[n].eq(self.tokens[n] + reply.count)]
        self._write(m, queue, data.View(entry_write, queue.r_data))
        unacknowledged = Signal(8)
        m.d.sync += unacknowledged.eq(unacknowledged + append - self.write_done)
        m.d.comb += self.idle.eq(unacknowledged == 0)
        return m

    def _write(self, m: Module, queue: SyncFIFOBuffered, oldest: data.View) -> None:
        """One job and one word with byte strobes per entry."""
        # of the oldest entry: accepted in an earlier cycle; accepted by the end of this one
        job_accepted, word_accepted, job_done, word_done = Signal(), Signal(), Signal(), Signal()
        m.d.comb += [
            self.job.valid.eq(queue.r_rdy & ~job_accepted),
            self.job.payload.address.eq(oldest.word),
            self.job.payload.count.eq(1),
            self.job.payload.last.eq(1),
            self.words.valid.eq(queue.r_rdy & ~word_accepted),
            self.words.payload.data.eq(Cat(Value.cast(oldest.entry) for _ in range(self.entries_per_word))),
            self.words.payload.strobe.eq(((1 << ENTRY_BYTES) - 1) << (oldest.position * ENTRY_BYTES)),
            job_done.eq(job_accepted | self.job.ready),
            word_done.eq(word_accepted | self.words.ready),
            queue.r_en.eq(job_done & word_done),
        ]
        with m.If(queue.r_rdy):
            m.d.sync += [job_accepted.eq(job_done & ~queue.r_en), word_accepted.eq(word_done & ~queue.r_en)]


class PageListReader(wiring.Component):
    """Reads the entries of a page list from memory, in order, ahead of their use.

    `start` begins with the first entry of a list. Words of the list before that are not used yet are dropped.

    Timing: one entry per cycle after the latency of memory.

    Parameters
    ----------
    word : bits of a memory word, at least 64
    kv_heads, max_pages : as `PageLists`

    Members
    -------
    start, number : begin with the list `number`
    base, entries : as `PageLists`
    job, words : read engine
    o : stream of LIST_ENTRY

    Raises
    ------
    ValueError
        When `word` is below 64.
    """

    def __init__(self, *, word: int, kv_heads: int, max_pages: int):
        self.word, self.kv_heads, self.max_pages = word, kv_heads, max_pages
        self.entries_per_word = _entries_per_word(word)
        super().__init__(
            {
                "start": In(1),
                "number": In(range(LIST_SETS * kv_heads)),
                "base": In(WORD_ADDRESS_BITS),
                "entries": In(entries_layout(kv_heads, max_pages)),
                "job": Out(stream.Signature(JOB)),
                "words": In(stream.Signature(read_word_layout(word))),
                "o": Out(stream.Signature(LIST_ENTRY)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gearbox = gearbox = Gearbox(word=self.word, item=LIST_ENTRY.size)
        number, pending = Signal.like(self.number), Signal()
        reading = Signal()  # words of a job are outstanding
        entries = Array(self.entries[n] for n in range(LIST_SETS * self.kv_heads))[number]
        shift = (self.entries_per_word - 1).bit_length()
        word_received = self.words.valid & self.words.ready
        m.d.comb += [
            self.job.valid.eq(pending & ~reading & (entries != 0)),
            self.job.payload.address.eq(self.base + number * list_words(self.max_pages, self.word)),
            self.job.payload.count.eq((entries + (self.entries_per_word - 1)) >> shift),
            gearbox.i.valid.eq(self.words.valid & ~pending),
            gearbox.i.payload.eq(self.words.payload),
            gearbox.flush.eq(pending),
            self.words.ready.eq(Mux(pending, reading, gearbox.i.ready)),
            self.o.valid.eq(gearbox.o.valid & ~pending),
            Value.cast(self.o.payload).eq(Value.cast(gearbox.o.payload)),
            gearbox.o.ready.eq(self.o.ready & ~pending),
        ]
        with m.If(word_received & self.words.payload.last):
            m.d.sync += reading.eq(0)
        with m.If(pending & ~reading & (self.job.ready | (entries == 0))):
            m.d.sync += [pending.eq(0), reading.eq(entries != 0)]
        with m.If(self.start):
            m.d.sync += [pending.eq(1), number.eq(self.number)]
        return m
