"""Layout of the store in memory: headers and records, as the KVMU reads and writes them.

All values are little-endian. A block is 32 bytes, which is eight words of 32 bits. Header fields are listed with the
number of their word. Tables start at multiples of 128 bytes and their base addresses are divided by 128; the base
addresses of host and storage pages are divided by 4,096.
"""

from collections.abc import Mapping

from amaranth import Cat, Const, Module, Value
from amaranth.hdl import ValueLike
from amaranth.lib import data

WORD_BITS = 32
BASE_BITS = 32  # width of a base address in a header
BLOCK_WORDS = 8
BLOCK_BYTES = 32
BLOCK_BITS = 8 * BLOCK_BYTES
HEADER_BLOCKS = 4  # blocks of a header
TABLE_BYTES = 128  # unit of the base addresses of tables
BACKING_BYTES = 4096  # unit of the base addresses of host and storage pages
NONE = 0xFFFF_FFFF  # no page, page frame or context
VERSION = 1
STORE_MAGIC = 0x5358_5256  # VRXS
CONTEXT_MAGIC = 0x4358_5256  # VRXC
PRESENT = 1  # state of a context that exists

# field of the store header -> word
STORE_WORDS = {
    "contexts": 2,
    "contexts_base": 3,
    "frames_base": 4,
    "log_base": 5,
    "log_entries": 6,
    "page_frames": 7,
    "never_used": 8,
    "free_first": 9,
    "free_last": 10,
    "free_count": 11,
    "oldest": 12,
    "newest": 13,
    "resident_pages": 14,
    "resident_tokens": 15,
    "step": 31,
}
# field of a context header -> word
CONTEXT_WORDS = {
    "max_clusters": 3,
    "max_pages": 4,
    "clusters_base": 5,
    "counts_base": 6,
    "pages_base": 7,
    "lists_base": 8,
    "mean_keys_base": 9,
    "host_pages_base": 10,
    "storage_pages_base": 11,
    "tokens": 12,
    "clusters": 13,
    "first_candidate": 14,
    "never_used": 15,
    "free_first": 16,
    "free_last": 17,
    "free_count": 18,
}
STORE_HEADER = data.StructLayout(dict.fromkeys(STORE_WORDS, WORD_BITS))
CONTEXT_HEADER = data.StructLayout(dict.fromkeys(CONTEXT_WORDS, WORD_BITS))

FLAGS = data.StructLayout({"chained": 1, "open": 1, "resident": 1, "storage": 1, "saved": 1, "reserved": 3})
CLUSTER_RECORD = data.StructLayout(
    {"hash": 32, "first_token": 32, "count": 32, "pages": 32, "first_page": 32, "last_page": 32, "reserved": 64}
)
PAGE_RECORD = data.StructLayout(
    {
        "cluster": 32,
        "next": 32,
        "previous": 32,
        "frame": 32,
        "live": 32,
        "used": 8,
        "references": 8,
        "flags": FLAGS,
        "reserved": 8,
        "step": 32,
        "past": 32,
    }
)
FRAME_RECORD = data.StructLayout({"context": 32, "page": 32, "older": 32, "newer": 32})
# field of a record -> word of its block; `state` contains used, references and flags
CLUSTER_WORDS = {"hash": 0, "first_token": 1, "count": 2, "pages": 3, "first_page": 4, "last_page": 5}
PAGE_WORDS = {"cluster": 0, "next": 1, "previous": 2, "frame": 3, "live": 4, "state": 5, "step": 6, "past": 7}


def state_word(used: ValueLike, references: ValueLike, flags: ValueLike) -> Value:
    """Word 5 of a page record: used slots, references and flags."""
    return Cat(resized(used, 8), resized(references, 8), resized(flags, 8), Const(0, 8))


def resized(value: ValueLike, width: int) -> Value:
    """`value` with exactly `width` bits: zero-extended or cut."""
    value = Value.cast(value)
    return value[:width] if len(value) >= width else Cat(value, Const(0, width - len(value)))


def cluster_block(context: data.View, cluster: Value) -> Value:
    """Number of the block that holds the record of a cluster."""
    return _block(context.clusters_base, cluster)


def count_block(context: data.View, cluster: Value) -> Value:
    """Number of the block that holds the token count of a cluster."""
    return _block(context.counts_base, cluster >> 4)


def page_block(context: data.View, page: Value) -> Value:
    """Number of the block that holds the record of a page."""
    return _block(context.pages_base, page)


def token_block(context: data.View, position: Value) -> Value:
    """Number of the block that holds the token number of a slot; `position` is page * slots of a page + slot."""
    return _block(context.lists_base, position >> 3)


def frame_block(store: data.View, frame: Value) -> Value:
    """Number of the block that holds the record of a page frame; a block holds two."""
    return _block(store.frames_base, frame >> 1)


def mean_blocks(context: data.View, cluster: Value, key_bytes: int, line_blocks: int) -> tuple[Value, Value]:
    """First and last line of the mean key of a cluster, as the numbers of their first blocks."""
    start = cluster * key_bytes
    bits = (line_blocks - 1).bit_length()
    lines = [
        _block(context.mean_keys_base, byte >> (BLOCK_BYTES - 1).bit_length())
        for byte in (start, start + key_bytes - 1)
    ]
    first, last = (Cat(Const(0, bits), line[bits:]) for line in lines)
    return first, last


def context_block(store: data.View, number: Value, block: ValueLike) -> Value:
    """Number of a block of the header of context `number`."""
    return _block(store.contexts_base, (number << 2) + block)


def _block(base: Value, offset: Value) -> Value:
    return ((base << 2) + offset)[:WORD_BITS]


def load_words(m: Module, header: data.View, words: Mapping[str, int], block: int, content: Value) -> None:
    """Load the fields of block number `block` of a header from the content of the block."""
    for name, word in words.items():
        if word // BLOCK_WORDS == block:
            m.d.sync += header[name].eq(content.word_select(word % BLOCK_WORDS, WORD_BITS))
