"""Number formats of stored weights, MXFP4, INT4 and FP8, and their tiles in memory words.

A weight is an element times a scale. The product is exact and is rounded once to BF16, to nearest even, with the rules
of the LXE: results below the smallest normal number are zeros of their sign, all NaN are the canonical NaN.

======  ========  ==============================  ======================================  ====================
format  element   scale                           entry of the tile header                inputs of a scale
======  ========  ==============================  ======================================  ====================
mxfp4   E2M1      2**(entry - 127), 255: NaN      8 bits, E8M0                            32
int4    code - z  FP32, 15 fraction bits          32 bits: FP32 number whose low byte is  128, or of a
                                                  the zero point z, 0 to 15               checkpoint
fp8     E4M3      FP32; subnormals are zero       32 bits, FP32                           all, or of a
                                                                                          checkpoint
======  ========  ==============================  ======================================  ====================

A scale of `int4` holds every number of F16 and BF16, and a scale of `fp8` every number of FP32. So the weights of AWQ,
GPTQ and FP8 checkpoints are the products that these checkpoints define.

Memory: a matrix is stored as tiles of `lanes` rows and columns, as BF16 matrices are. A tile is a whole number of
memory words of `lanes` * 16 bits: the header, then the codes. The header has the entries row after row and is padded
with zeros to whole words. The codes have `bits` bits and follow row after row, the first element lowest.

Sources: OCP Microscaling Formats 1.0 (mxfp4), AWQ 2306.00978 and GPTQ 2210.17323 (int4), OCP FP8 1.0 (fp8).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from golden import bf16, kv_formats
from golden.bf16 import FP32, Format
from util import checks

BF16_BITS = 16
INT4_SCALE = Format("scale", 15, np.uint32)  # the upper 24 bits of FP32
CHUNK = 1 << 20  # weights that are converted at the same time


@dataclass(frozen=True)
class PackedWeights:
    """A matrix of M outputs and K inputs in a format.

    codes : uint8 (M, K) ; entries : of the tile headers, uint32 (M, ceil(K / group)) ; group : inputs of a scale
    """

    codes: np.ndarray
    entries: np.ndarray
    group: int

    def __post_init__(self) -> None:
        checks.integer("group", self.group, 1)
        rows, inputs = self.codes.shape
        if self.entries.shape != (rows, -(-inputs // self.group)):
            expected = (rows, -(-inputs // self.group))
            raise ValueError(f"entries must have shape {expected}, got {self.entries.shape}")

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice | np.ndarray) -> PackedWeights:
        """Rows of the matrix."""
        return PackedWeights(self.codes[rows], self.entries[rows], self.group)


class WeightFormat(ABC):
    """A format of stored weights.

    Attributes
    ----------
    name, number : name, and value of the field `format` of LOAD
    bits : of a code ; entry_bits : of an entry of a tile header
    largest_group : most inputs of a tile that share an entry; None: all
    """

    name: ClassVar[str]
    number: ClassVar[int]
    bits: ClassVar[int]
    entry_bits: ClassVar[int]
    largest_group: ClassVar[int | None] = None

    # numbers

    @abstractmethod
    def group(self, inputs: int) -> int:
        """Inputs of a scale when BF16 weights of `inputs` inputs are quantised."""

    @abstractmethod
    def _quantise(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Codes (rows, groups, group) and entries (rows, groups) of real numbers (rows, groups, group)."""

    @abstractmethod
    def zero_codes(self, entries: np.ndarray) -> np.ndarray:
        """Codes of the element zero with these entries, uint8."""

    @abstractmethod
    def products(self, codes: np.ndarray, entries: np.ndarray) -> np.ndarray:
        """Elements times scales, float64, exact; the arrays broadcast."""

    def quantise(self, weights: np.ndarray, group: int | None = None) -> PackedWeights:
        """Codes and entries of BF16 bit patterns, uint16 (M, K); each code is the nearest one.

        `group` : inputs of a scale; None: as `self.group` says. Subnormal weights are zeros. Raises ValueError if a
        weight is an infinity or a NaN.
        """
        weights = bf16.codes("weights", weights)
        rows, inputs = weights.shape
        if np.any((weights >> 7 & 255) == bf16.EXPONENT_MAX):
            row, column = np.argwhere((weights >> 7 & 255) == bf16.EXPONENT_MAX)[0]
            raise ValueError(f"weights must be finite, got {weights[row, column]:#06x} at row {row}, column {column}")
        group = self.group(inputs) if group is None else checks.integer("group", group, 1)
        groups = -(-inputs // group)
        codes = np.empty((rows, inputs), np.uint8)
        entries = np.empty((rows, groups), np.uint32)
        for part in _row_chunks(rows, inputs):
            padded = np.zeros((part.stop - part.start, groups * group))
            padded[:, :inputs] = bf16.decode(weights[part])
            quantised, entries[part] = self._quantise(padded.reshape(len(padded), groups, group))
            codes[part] = quantised.reshape(padded.shape)[:, :inputs]
        return PackedWeights(codes, entries, group)

    def decode(self, packed: PackedWeights) -> np.ndarray:
        """BF16 bit patterns of the weights, uint16 (M, K)."""
        rows, inputs = packed.codes.shape
        columns = np.arange(inputs) // packed.group
        result = np.empty((rows, inputs), np.uint16)
        for part in _row_chunks(rows, inputs):
            result[part] = bf16.encode(self.products(packed.codes[part], packed.entries[part][:, columns]))
        return result

    # memory

    def columns(self, packed: PackedWeights, columns: np.ndarray, lanes: int) -> PackedWeights:
        """A matrix of these columns in groups that fit tiles of `lanes` columns; column -1 has the element zero.

        The number of columns is a multiple of `lanes`. Raises ValueError if columns that share an entry of a tile have
        several scales.
        """
        own = lanes // self.entries_per_row(lanes)
        blocks = np.where(columns < 0, -1, columns // packed.group).reshape(-1, own)
        groups = blocks.max(axis=1)
        if np.any((blocks >= 0) & (blocks != groups[:, None])):
            raise ValueError(f"group must cover each block of {own} inputs, got {packed.group} inputs")
        entries = np.where(groups >= 0, packed.entries[:, groups], 0).astype(np.uint32)
        zeros = np.repeat(self.zero_codes(entries), own, axis=1)
        return PackedWeights(np.where(columns >= 0, packed.codes[:, columns], zeros), entries, own)

    def entries_per_row(self, lanes: int) -> int:
        """Entries of a row of a tile."""
        return 1 if self.largest_group is None else -(-lanes // self.largest_group)

    def header_words(self, lanes: int) -> int:
        """Memory words of the header of a tile."""
        return -(-lanes * self.entries_per_row(lanes) * self.entry_bits // (BF16_BITS * lanes))

    def tile_words(self, lanes: int) -> int:
        """Memory words of a tile: header and codes."""
        return self.header_words(lanes) + lanes * self.bits // BF16_BITS

    def fits(self, packed: PackedWeights, lanes: int) -> bool:
        """Whether a tile of `lanes` columns has as many scales in a row as its header has entries."""
        own = lanes // self.entries_per_row(lanes)  # inputs of an entry
        return packed.group % own == 0 or packed.group >= packed.codes.shape[1]

    def tiles(self, packed: PackedWeights, lanes: int) -> np.ndarray:
        """Tiles of a matrix in memory, uint8 (row blocks, column blocks, bytes of a tile).

        Missing rows of the last row block are zeros. Raises ValueError if K is not a multiple of `lanes`, or if a
        header has too few entries for the groups.
        """
        checks.integer("lanes", lanes, BF16_BITS // self.bits)
        rows, inputs = packed.codes.shape
        if inputs % lanes:
            raise ValueError(f"inputs must be a multiple of {lanes}, got {inputs}")
        per_row = self.entries_per_row(lanes)
        if not self.fits(packed, lanes):
            raise ValueError(f"group must be a multiple of {lanes // per_row}, got {packed.group}")
        m_blocks, k_blocks = -(-rows // lanes), inputs // lanes
        codes = np.zeros((m_blocks * lanes, inputs), np.uint8)
        codes[:rows] = packed.codes
        entries = np.zeros((m_blocks * lanes, k_blocks * per_row), np.uint32)
        entries[:rows] = packed.entries[:, np.arange(k_blocks * per_row) * (lanes // per_row) // packed.group]
        header = _by_tiles(entries, m_blocks, k_blocks).astype(f"<u{self.entry_bits // 8}").view(np.uint8)
        body = _by_tiles(codes, m_blocks, k_blocks)
        if self.bits == 4:
            body = body[..., ::2] | body[..., 1::2] << 4
        padding = self.header_words(lanes) * 2 * lanes - header.shape[-1]
        return np.concatenate([np.pad(header, ((0, 0), (0, 0), (0, padding))), body], axis=-1)

    def decode_tiles(self, words: np.ndarray) -> np.ndarray:
        """BF16 bit patterns of the rows of tiles, uint16 (tiles * lanes, lanes), from their memory words.

        words : uint16 (tiles * tile_words, lanes)
        """
        lanes = words.shape[-1]
        header, per_row = self.header_words(lanes), self.entries_per_row(lanes)
        tiles = np.ascontiguousarray(words, "<u2").reshape(-1, self.tile_words(lanes), lanes)
        stored = np.ascontiguousarray(tiles[:, :header]).reshape(len(tiles), -1).view(f"<u{self.entry_bits // 8}")
        entries = stored[:, : lanes * per_row].astype(np.uint32).reshape(len(tiles) * lanes, per_row)
        codes = np.ascontiguousarray(tiles[:, header:]).reshape(len(tiles), -1).view(np.uint8)
        if self.bits == 4:
            codes = np.stack([codes & 15, codes >> 4], axis=-1)
        codes = codes.reshape(-1, lanes)
        return bf16.encode(self.products(codes, np.repeat(entries, lanes // per_row, axis=1)))


class Mxfp4(WeightFormat):
    """MXFP4: E2M1 elements, one E8M0 scale for 32 of them, chosen as in `kv_formats.Microscaling`."""

    name, number, bits, entry_bits, largest_group = "mxfp4", 1, 4, 8, 32

    def group(self, inputs: int) -> int:
        return 32

    def _quantise(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        packed = kv_formats.MXFP4.resized(x.shape[-1]).encode(bf16.encode(x))
        return packed.codes, packed.headers

    def zero_codes(self, entries: np.ndarray) -> np.ndarray:
        return np.zeros(entries.shape, np.uint8)

    def products(self, codes: np.ndarray, entries: np.ndarray) -> np.ndarray:
        element = kv_formats.E2M1.numbers[codes & 7] * 2.0**kv_formats.E2M1.unit
        scale = np.where(entries == 255, np.nan, np.ldexp(1.0, entries.astype(np.int64) - bf16.BIAS))
        return np.where(codes >> 3, -element, element) * scale


class Int4(WeightFormat):
    """INT4: code minus zero point, times the scale of a group.

    Quantisation covers the numbers of a group and zero, from the smallest to the largest, with 16 equal steps.
    """

    name, number, bits, entry_bits = "int4", 2, 4, 32

    def group(self, inputs: int) -> int:
        return 128

    def _quantise(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = np.minimum(x.min(axis=-1), 0), np.maximum(x.max(axis=-1), 0)
        entries = bf16.encode((high - low) / 15, INT4_SCALE) << 8
        scale = bf16.decode(entries, FP32)
        divisor = np.where(scale > 0, scale, np.inf)
        zero = np.clip(np.rint(-low / divisor), 0, 15)
        codes = np.clip(np.rint(x / divisor[..., None]) + zero[..., None], 0, 15)
        return codes.astype(np.uint8), entries | zero.astype(np.uint32)

    def zero_codes(self, entries: np.ndarray) -> np.ndarray:
        return (entries & 15).astype(np.uint8)

    def products(self, codes: np.ndarray, entries: np.ndarray) -> np.ndarray:
        element = codes.astype(np.float64) - (entries & 15)
        with np.errstate(invalid="ignore"):  # zero times infinity
            return element * bf16.decode((entries >> 8 << 8).astype(np.uint32), FP32)


class Fp8(WeightFormat):
    """FP8: E4M3 times a scale, which is the largest magnitude of the group divided by 448."""

    name, number, bits, entry_bits = "fp8", 3, 8, 32

    def group(self, inputs: int) -> int:
        return inputs

    def _quantise(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        entries = bf16.encode(np.abs(x).max(axis=-1) / 448, FP32)
        scale = bf16.decode(entries, FP32)[..., None]
        quotient = x / np.where(scale > 0, scale, np.inf)
        # `ml_dtypes` rounds float64 twice, first to float32
        numbers = kv_formats.E4M3.numbers * 2.0**kv_formats.E4M3.unit
        middles = (numbers[:-1] + numbers[1:]) / 2
        below = np.searchsorted(middles, np.abs(quotient))
        is_middle = np.searchsorted(middles, np.abs(quotient), side="right") > below
        code = below + (is_middle & below % 2)  # even codes win ties
        return (code | np.signbit(quotient) << 7).astype(np.uint8), entries

    def zero_codes(self, entries: np.ndarray) -> np.ndarray:
        return np.zeros(entries.shape, np.uint8)

    def products(self, codes: np.ndarray, entries: np.ndarray) -> np.ndarray:
        number = np.append(kv_formats.E4M3.numbers * 2.0**kv_formats.E4M3.unit, np.nan)[codes & 127]
        with np.errstate(invalid="ignore"):
            return np.where(codes >> 7, -number, number) * bf16.decode(entries.astype(np.uint32), FP32)


def _row_chunks(rows: int, inputs: int) -> list[slice]:
    """Slices of rows with about `CHUNK` weights each."""
    size = max(1, CHUNK // max(1, inputs))
    return [slice(row, min(row + size, rows)) for row in range(0, rows, size)]


def _by_tiles(matrix: np.ndarray, m_blocks: int, k_blocks: int) -> np.ndarray:
    """Elements of each tile, row after row: (row blocks, column blocks, elements of a tile)."""
    rows, columns = matrix.shape
    blocks = matrix.reshape(m_blocks, rows // m_blocks, k_blocks, columns // k_blocks).swapaxes(1, 2)
    return np.ascontiguousarray(blocks).reshape(m_blocks, k_blocks, -1)


FORMATS: dict[str, WeightFormat] = {form.name: form for form in (Mxfp4(), Int4(), Fp8())}
BY_NUMBER = {form.number: form for form in FORMATS.values()}
