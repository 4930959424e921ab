"""Layout of a page in memory: where the keys and values of its tokens are, in BF16 or encoded."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from golden.kv_formats import Affine, BlockFloat, BlockFormat, Packed
from util import checks

KV_BITS = (16, 8, 4)  # BF16, and codes of `BlockFloat` and `Affine` of `golden.kv_formats`
HEADER_BYTES = 4  # of an encoded word
QUARTERS = 4  # blocks of a word with 8 bits, each with an exponent of one byte


@dataclass(frozen=True)
class PageLayout:
    """Bytes of a head page: the part of a page that belongs to one KV head.

    A head page is a sequence of blocks of tokens. A block has the keys of its tokens, then their values. In BF16 a
    block is a slot. Encoded, the key of a token is a sequence of records, one for each memory word of the BF16 key: the
    codes of its elements, the first one lowest, then the header of 4 bytes. With 4 bits the header is that of the word,
    with 8 bits it has an exponent for each quarter of the word, the first one lowest. Records follow each other without
    a gap. A block is the smallest number of tokens whose keys fill whole memory words. Copies of pages consist of whole
    blocks, and therefore of whole words.

    head_dim     elements of one head
    page_tokens  token slots of a page
    lanes        elements of a memory word
    kv_bits      bits of an element: 16, 8 or 4

    Raises
    ------
    ValueError
        A size is not valid, or a page is not a whole number of blocks.
    """

    head_dim: int
    page_tokens: int
    lanes: int = 64
    kv_bits: int = 16

    def __post_init__(self) -> None:
        for name in ("head_dim", "page_tokens", "lanes"):
            checks.integer(name, getattr(self, name), 1)
        if self.kv_bits not in KV_BITS:
            raise ValueError(f"kv_bits must be 16, 8 or 4, got {self.kv_bits}")
        if not self.is_encoded:
            return
        if self.kv_bits == 8 and self.lanes % QUARTERS:
            raise ValueError(f"lanes must be a multiple of {QUARTERS} for kv_bits 8, got {self.lanes}")
        if self.head_dim % self.lanes:
            raise ValueError(f"head_dim must be a multiple of lanes = {self.lanes}, got {self.head_dim}")
        if self.page_tokens % self.block_tokens:
            size = self.block_tokens
            raise ValueError(f"page_tokens must be a multiple of {size}, the tokens of a block, got {self.page_tokens}")

    @property
    def is_encoded(self) -> bool:
        """Whether keys and values are encoded."""
        return self.kv_bits != 16

    @cached_property
    def format(self) -> BlockFormat:
        """Format of a memory word, or of a quarter of it."""
        return BlockFloat(8, self.lanes // QUARTERS) if self.kv_bits == 8 else Affine(self.kv_bits, self.lanes)

    @property
    def record_bytes(self) -> int:
        """Bytes of an encoded word."""
        return self.kv_bits * self.lanes // 8 + HEADER_BYTES

    @property
    def key_bytes(self) -> int:
        """Bytes of the key, or of the value, of one token."""
        return self.head_dim // self.lanes * self.record_bytes if self.is_encoded else 2 * self.head_dim

    @property
    def block_tokens(self) -> int:
        """Tokens of a block."""
        word = 2 * self.lanes
        return word // math.gcd(word, self.key_bytes) if self.is_encoded else 1

    @property
    def block_bytes(self) -> int:
        """Bytes of a block."""
        return 2 * self.block_tokens * self.key_bytes

    @property
    def head_page_bytes(self) -> int:
        """Bytes of a head page."""
        return self.page_tokens // self.block_tokens * self.block_bytes

    def block_offset(self, slot: int) -> int:
        """First byte of the block of a slot."""
        return slot // self.block_tokens * self.block_bytes

    def offset(self, slot: int, value: int) -> int:
        """First byte of the key (`value` 0) or the value (`value` 1) of a slot."""
        keys = value * self.block_tokens + slot % self.block_tokens
        return self.block_offset(slot) + keys * self.key_bytes

    def used_bytes(self, used: int) -> int:
        """Bytes of the blocks of a head page that hold its first `used` tokens."""
        return -(-used // self.block_tokens) * self.block_bytes

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Stored bytes of keys or values, uint8 (T, key_bytes), from BF16 bit patterns, uint16 (T, head_dim)."""
        codes = np.ascontiguousarray(codes, "<u2")
        if not self.is_encoded:
            return codes.view(np.uint8)
        packed = self.format.encode(codes.reshape(-1, self.format.block))
        numbers = packed.codes.reshape(-1, self.lanes)
        if self.kv_bits == 4:
            numbers = numbers[:, ::2] | numbers[:, 1::2] << 4
        headers = packed.headers.astype(self._header_type).view(np.uint8).reshape(-1, HEADER_BYTES)
        return np.concatenate([numbers, headers], axis=1).reshape(-1, self.key_bytes)

    def decode(self, stored: np.ndarray) -> np.ndarray:
        """BF16 bit patterns, uint16 (T, head_dim), of stored keys or values, uint8 (T, key_bytes)."""
        stored = np.ascontiguousarray(stored, np.uint8)
        if not self.is_encoded:
            return stored.view("<u2")
        records = stored.reshape(-1, self.record_bytes)
        codes, headers = records[:, :-HEADER_BYTES], np.ascontiguousarray(records[:, -HEADER_BYTES:])
        if self.kv_bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        packed = Packed(codes.reshape(-1, self.format.block), headers.view(self._header_type).ravel())
        return self.format.decode(packed).reshape(-1, self.head_dim)

    @property
    def _header_type(self) -> str:
        """NumPy type of the header of a block of the format."""
        return f"<u{self.format.header_bits // 8}"
