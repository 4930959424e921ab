"""Headers of the store and of the open context, and the commit of a step."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Mapping

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.access import Access, access_port, ordering, reading, words, writing
from hw.dre.kvmu.command import Fault
from hw.dre.kvmu.records import (
    BACKING_BYTES,
    BLOCK_BYTES,
    BLOCK_WORDS,
    CONTEXT_HEADER,
    CONTEXT_MAGIC,
    CONTEXT_WORDS,
    HEADER_BLOCKS,
    PRESENT,
    STORE_HEADER,
    STORE_MAGIC,
    STORE_WORDS,
    TABLE_BYTES,
    VERSION,
    WORD_BITS,
    context_block,
    load_words,
)

# blocks of the headers that change
CONTEXT_BLOCKS, STORE_BLOCK, STEP_BLOCK = (1, 2), 1, 3
# first word of a header that changes
CONTEXT_FIRST, STORE_FIRST = CONTEXT_WORDS["tokens"], STORE_WORDS["never_used"]


class Action(enum.Enum, shape=unsigned(2)):
    """What the header unit does."""

    OPEN = 0  # read the headers of the store and of a context
    COMMIT = 1  # write all changes of the step to memory
    FLUSH = 2  # write all changed lines to memory


class Headers(wiring.Component):
    """Holds the header of the store and that of the open context in registers; reads them and commits them.

    OPEN drops the lines of the cache, because software may have changed memory, reads both headers and checks them. No
    context is open if a check fails. COMMIT writes the changed words of both headers and all dirty lines; the line with
    the step number follows when memory has acknowledged all others. FLUSH (SYNC) writes all dirty lines, so that other
    readers of memory see them; it does not end the step.

    The components change fields of the registers at any time (`store_write`, `context_write`). Memory has these changes
    only after COMMIT.

    Timing: OPEN 8 accesses, COMMIT 4 accesses and two flushes.

    Parameters
    ----------
    address_bits : width of a byte address
    line_blocks : blocks of a line of the cache
    limits : largest valid values of `max_clusters`, `max_pages` and `page_frames` in the headers
    page_bytes, head_page_bytes : bytes of a page and of a head page
    staging_bits : width of the number of head pages of a staging bank

    Members
    -------
    i : stream of {action, context} from the dispatcher ; o : stream of causes, NONE if the action succeeded
    memory : accesses to the store
    store, context : registers with the headers ; number, is_open : number of the open context; whether one is open
    store_in, store_write, context_in, context_write : new values of the registers, from the components that edit them
    log_full : the undo log is full, so the step is not committed
    committed : the step is committed in this cycle
    cfg_* : settings of the KVMU
    """

    def __init__(
        self,
        *,
        address_bits: int,
        line_blocks: int,
        limits: Mapping[str, int],
        contexts: int,
        page_bytes: int,
        head_page_bytes: int,
        staging_bits: int,
    ):
        self.address_bits, self.line_blocks, self.limits = address_bits, line_blocks, dict(limits)
        self.page_bytes, self.head_page_bytes = page_bytes, head_page_bytes
        number = range(contexts)
        super().__init__(
            {
                "i": In(stream.Signature(data.StructLayout({"action": Action, "context": number}))),
                "o": Out(stream.Signature(Fault)),
                "memory": Out(access_port()),
                "store": Out(STORE_HEADER),
                "context": Out(CONTEXT_HEADER),
                "number": Out(number),
                "is_open": Out(1),
                "store_in": In(STORE_HEADER),
                "store_write": In(1),
                "context_in": In(CONTEXT_HEADER),
                "context_write": In(1),
                "log_full": In(1),
                "committed": Out(1),
                "cfg_store_base": In(address_bits),
                "cfg_page_frames_base": In(address_bits),
                "cfg_staging_base": In(address_bits),
                "cfg_staging_head_pages": In(staging_bits),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        block, fault = Signal(range(HEADER_BLOCKS)), Signal(Fault)
        with m.If(self.store_write):
            m.d.sync += self.store.eq(self.store_in)
        with m.If(self.context_write):
            m.d.sync += self.context.eq(self.context_in)
        with m.FSM(init="IDLE"):
            with m.State("IDLE"):
                m.d.sync += [block.eq(0), fault.eq(Fault.NONE)]
                m.d.comb += self.i.ready.eq(self.i.valid)
                with m.If(self.i.valid & (self.i.payload.action == Action.OPEN)):
                    m.d.sync += [self.number.eq(self.i.payload.context), self.is_open.eq(0)]
                    m.next = "DROP_LINES"
                with m.Elif(self.i.valid & (self.i.payload.action == Action.COMMIT)):
                    m.next = "WRITE_CONTEXT"
                with m.Elif(self.i.valid):
                    m.next = "FLUSH_LINES"
            self._read_headers(m, block, fault)
            self._check(m, fault)
            self._commit(m, block, fault)
            with m.State("ANSWER"):
                m.d.comb += [self.o.valid.eq(1), self.o.payload.eq(fault)]
                with m.If(self.o.ready):
                    m.next = "IDLE"
        return m

    def _read_headers(self, m: Module, block: Signal, fault: Signal) -> None:
        """Read the blocks of both headers. A magic number, version or state that is not valid ends the reading."""
        store_block = (self.cfg_store_base >> BLOCK_BYTES.bit_length() - 1)[:32] + block
        with ordering(m, self.memory, "DROP_LINES", Access.INVALIDATE):
            m.next = "READ_STORE"
        with reading(m, self.memory, "READ_STORE", store_block) as content:
            self._load(m, self.store, STORE_WORDS, block, content)
            m.d.sync += block.eq(block + 1)
            m.next = "READ_STORE"
            with m.If(block == HEADER_BLOCKS - 1):
                m.next = "CHECK_STORE"
            with m.If((block == 0) & ~_starts_with(content, STORE_MAGIC, VERSION)):
                self._refuse(m, fault, Fault.CONTEXT)
        with m.State("CHECK_STORE"):
            m.next = "READ_CONTEXT"
            with m.If((self.number >= self.store.contexts) | (self.store.page_frames > self.limits["page_frames"])):
                self._refuse(m, fault, Fault.CONTEXT)
        with reading(m, self.memory, "READ_CONTEXT", context_block(self.store, self.number, block)) as content:
            self._load(m, self.context, CONTEXT_WORDS, block, content)
            m.d.sync += block.eq(block + 1)
            m.next = "READ_CONTEXT"
            with m.If(block == HEADER_BLOCKS - 1):
                m.next = "CHECK_CONTEXT"
            with m.If((block == 0) & ~_starts_with(content, CONTEXT_MAGIC, VERSION, PRESENT)):
                self._refuse(m, fault, Fault.CONTEXT)

    def _load(self, m: Module, header: data.View, fields: Mapping[str, int], block: Value, content: Value) -> None:
        with m.Switch(block):
            for number in range(HEADER_BLOCKS):
                with m.Case(number):
                    load_words(m, header, fields, number, content)

    def _refuse(self, m: Module, fault: Signal, cause: Fault) -> None:
        m.d.sync += fault.eq(cause)
        m.next = "ANSWER"

    def _check(self, m: Module, fault: Signal) -> None:
        """Compare sizes with the limits of the unit, and the ends of the regions with the address space."""
        store, context, limit = self.store, self.context, 1 << self.address_bits
        too_large = Signal()
        width = max(self.address_bits, WORD_BITS + BACKING_BYTES.bit_length()) + 1  # no sum overflows
        ends = {name: Signal(width, name=f"{name}_end") for name in ("frames", "staging", "host", "drive")}
        pages = context.max_pages[: self.limits["max_pages"].bit_length()]
        frames = store.page_frames[: self.limits["page_frames"].bit_length()]
        m.d.comb += [
            too_large.eq(
                (context.max_clusters > self.limits["max_clusters"]) | (context.max_pages > self.limits["max_pages"])
            ),
            ends["frames"].eq(self.cfg_page_frames_base + frames * self.page_bytes),
            ends["staging"].eq(self.cfg_staging_base + self.cfg_staging_head_pages * (2 * self.head_page_bytes)),
            ends["host"].eq(context.host_pages_base * BACKING_BYTES + pages * self.page_bytes),
            ends["drive"].eq(context.storage_pages_base * BACKING_BYTES + pages * self.page_bytes),
        ]
        with m.State("CHECK_CONTEXT"):
            m.next = "ANSWER"
            with m.If(too_large):
                self._refuse(m, fault, Fault.CONTEXT)
            with m.Elif(Cat(end > limit for end in ends.values()).any()):
                self._refuse(m, fault, Fault.REGION)
            with m.Else():
                m.d.sync += self.is_open.eq(1)

    def _commit(self, m: Module, block: Signal, fault: Signal) -> None:
        """Write the changed words of the headers, then all dirty lines, then the line with the step number."""
        store_first = (self.cfg_store_base >> BLOCK_BYTES.bit_length() - 1)[:32]
        context_first = context_block(self.store, self.number, 0)
        parts = {n: words(_fields(self.context, CONTEXT_WORDS, n, CONTEXT_FIRST)) for n in CONTEXT_BLOCKS}
        chosen = [Mux(block == 0, *(parts[n][k] for n in CONTEXT_BLOCKS)) for k in range(2)]
        # the line with the step number also contains the other changed words if a line has four blocks
        store_first_phase = self.line_blocks < HEADER_BLOCKS
        next_step = (self.store.step + 1)[:WORD_BITS]
        with writing(
            m, self.memory, "WRITE_CONTEXT", context_first + CONTEXT_BLOCKS[0] + block, (chosen[0], chosen[1])
        ):
            m.d.sync += block.eq(block + 1)
            with m.If(block == len(CONTEXT_BLOCKS) - 1):
                m.next = "WRITE_STORE" if store_first_phase else "FLUSH"
        with writing(
            m,
            self.memory,
            "WRITE_STORE",
            store_first + STORE_BLOCK,
            words(_fields(self.store, STORE_WORDS, STORE_BLOCK, STORE_FIRST)),
        ):
            m.next = "FLUSH" if store_first_phase else "WRITE_STEP"
        with ordering(m, self.memory, "FLUSH", Access.FLUSH):
            m.next = "WRITE_STEP" if store_first_phase else "WRITE_STORE"
        with writing(
            m,
            self.memory,
            "WRITE_STEP",
            store_first + STEP_BLOCK,
            words({STORE_WORDS["step"] % BLOCK_WORDS: next_step}),
        ):
            m.next = "FLUSH_STEP"
        with ordering(m, self.memory, "FLUSH_LINES", Access.FLUSH):
            m.next = "ANSWER"
        with ordering(m, self.memory, "FLUSH_STEP", Access.FLUSH):
            m.next = "ANSWER"
            with m.If(self.log_full):
                m.d.sync += fault.eq(Fault.LOG)
            with m.Else():
                m.d.comb += self.committed.eq(1)
                m.d.sync += self.store.step.eq(next_step)


def _starts_with(content: Value, *numbers: int) -> Value:
    expected = Cat(Const(number, WORD_BITS) for number in numbers)
    return content[: len(expected)] == expected


def _fields(header: data.View, fields: Mapping[str, int], block: int, first: int) -> dict[int, Value]:
    """Words of a block of a header, from word `first` on, by their number inside the block."""
    return {
        word % BLOCK_WORDS: header[name]
        for name, word in fields.items()
        if word // BLOCK_WORDS == block and word >= first
    }


assert TABLE_BYTES == HEADER_BLOCKS * BLOCK_BYTES
