"""Layout of a head page: where the keys and values of its tokens are, in BF16 or as words of the KV codec."""

# mypy: disable-error-code="assignment,arg-type"

import math
from dataclasses import dataclass

from amaranth import Value
from amaranth.lib import data

from hw.kv_codec import affine, bfp

BF16_BITS = 16


@dataclass(frozen=True, kw_only=True)
class PageLayout:
    """A head page is the part of a page that belongs to one KV head: a sequence of blocks of tokens.

    A block has the keys of its tokens, then their values. In BF16 a block is a slot. Encoded, the key of a token is a
    sequence of records, one for each memory word of the BF16 key, and a record is an encoded word: codes, then header.
    Records follow each other without a gap. A block is the smallest number of tokens whose keys fill whole memory
    words. So a copy of whole blocks consists of whole words. A `unit` is the largest number of bits of which both a
    record and a word are multiples.

    Parameters
    ----------
    head_dim : elements of one head
    page_tokens : token slots of a page
    word : bits of a memory word
    kv_bits : bits of a stored element: 16, or 8 or 4 for encoded words

    Raises
    ------
    ValueError
        When encoded keys are not whole words, or a page is not a whole number of blocks.
    """

    head_dim: int
    page_tokens: int
    word: int
    kv_bits: int = BF16_BITS

    def __post_init__(self) -> None:
        if not self.is_encoded:
            return
        if self.head_dim % self.lanes:
            raise ValueError(f"head_dim must be a multiple of dpe_inputs = {self.lanes}, got {self.head_dim}")
        if self.page_tokens % self.block_tokens:
            size = self.block_tokens
            raise ValueError(f"page_tokens must be a multiple of {size}, the tokens of a block, got {self.page_tokens}")

    @property
    def is_encoded(self) -> bool:
        """Whether keys and values are encoded."""
        return self.kv_bits != BF16_BITS

    @property
    def lanes(self) -> int:
        """Elements of a memory word."""
        return self.word // BF16_BITS

    @property
    def records(self) -> int:
        """Records of the key of one token."""
        return self.head_dim // self.lanes

    @property
    def record(self) -> data.StructLayout:
        """Layout of a record."""
        if self.kv_bits == bfp.BITS:
            return bfp.packed_layout(self.lanes)
        return affine.packed_layout(self.lanes, self.kv_bits)

    @property
    def key_bits(self) -> int:
        """Bits of the key, or of the value, of one token."""
        return self.records * self.record.size if self.is_encoded else BF16_BITS * self.head_dim

    @property
    def block_tokens(self) -> int:
        """Tokens of a block, a power of two."""
        return self.word // math.gcd(self.word, self.key_bits) if self.is_encoded else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return 2 * self.block_tokens * self.key_bits // 8

    @property
    def head_page_bytes(self) -> int:
        """Bytes of a head page."""
        return self.page_tokens // self.block_tokens * self.block_bytes

    @property
    def key_block_words(self) -> int:
        """Memory words of the keys of a block."""
        return self.block_tokens * self.key_bits // self.word

    @property
    def unit(self) -> int:
        """Bits of a unit."""
        return math.gcd(self.word, self.record.size)

    @property
    def word_units(self) -> int:
        """Units of a memory word, a power of two."""
        return self.word // self.unit

    @property
    def record_units(self) -> int:
        """Units of a record."""
        return self.record.size // self.unit

    @property
    def key_units(self) -> int:
        """Units of the key of one token."""
        return self.records * self.record_units

    @property
    def slot_bits(self) -> int:
        """Width of the number of a slot in its block."""
        return (self.block_tokens - 1).bit_length()

    def block_of(self, slot: Value) -> Value:
        """Number of the block of a slot."""
        return slot[self.slot_bits :]

    def blocks(self, tokens: Value) -> Value:
        """Number of blocks that hold the first `tokens` tokens of a page."""
        return (tokens + (self.block_tokens - 1)) >> self.slot_bits if self.slot_bits else tokens

    def place(self, slot: Value) -> tuple[Value, Value]:
        """Word and unit at which the key of a slot begins, counted from the keys of its block."""
        first, bits = slot[: self.slot_bits] * self.key_units, (self.word_units - 1).bit_length()
        return first >> bits, first[:bits]

    def words(self, first: Value, units: Value | int) -> Value:
        """Memory words of some units from unit `first` of the first word on."""
        return (first + units + (self.word_units - 1)) >> (self.word_units - 1).bit_length()
