"""Parts of a step that one command or a few commands process: activations, query rows, pieces, products."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from compiler.builder import CommandRef, LoadedOperands, Operands


@dataclass(frozen=True)
class Columns:
    """Adjacent columns of the activations of a step, in a region with one row per token.

    Attributes
    ----------
    address : word address of the first row ; words : words of a row
    stride : words from one row to the next; None: `words`; 0: all tokens have the same row
    """

    address: int
    words: int
    stride: int | None = None

    @property
    def row_stride(self) -> int:
        """Words from one row to the next."""
        return self.words if self.stride is None else self.stride

    def skip(self, tokens: int) -> "Columns":
        """The columns without the first `tokens` tokens."""
        return replace(self, address=self.address + tokens * self.row_stride)


class Activations:
    """Activations of a step in device memory: one row per token, whose columns can lie in several regions.

    Parameters
    ----------
    columns : regions of the row, in order
    after : commands that write the activations
    """

    def __init__(self, columns: Sequence[Columns], after: Sequence[CommandRef]):
        self.columns, self.after = columns, after
        self.words = sum(column.words for column in columns)
        self.resident: LoadedOperands | None = None  # all of them are in the operand memory

    def load(self, p: Operands, token: int, tokens: int, first: int, count: int) -> LoadedOperands:
        """Append LOADs of the words `first` to `first + count` of the rows of `tokens` tokens."""
        loads, start = [], 0  # `start`: first word of the current region within the row
        for column in self.columns:
            low, high = max(first, start), min(first + count, start + column.words)
            if low < high:
                source = column.address + token * column.row_stride + low - start
                loads.append({"source": source, "stride": column.row_stride, "rows": tokens, "beats": high - low,
                              "target": low - first, "step": count})  # fmt: skip
            start += column.words
        return p.activations(loads, tokens * count, self.after)

    def load_all(self, p: Operands, tokens: int) -> LoadedOperands:
        """The whole rows of all tokens; the LOADs are appended at the first use."""
        if self.resident is None:
            self.resident = self.load(p, 0, tokens, 0, self.words)
        return self.resident


@dataclass(frozen=True)
class RowBlock:
    """Query rows of one KV head whose results fit the accumulators: query heads of consecutive tokens.

    Attributes
    ----------
    token, tokens : first token and number of tokens
    head, heads : first query head of the KV head and number of query heads, all of them unless `tokens` is 1
    row : first row, counted over all tokens
    """

    token: int
    tokens: int
    head: int
    heads: int
    row: int

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.tokens * self.heads

    def part(self, rows: range) -> "list[RowBlock]":
        """Some of its rows, in blocks whose tokens have all their heads, and blocks of single tokens."""
        blocks, at = list[RowBlock](), rows.start
        while at < rows.stop:
            (token, head), tokens = divmod(at, self.heads), 1
            heads = min(self.heads - head, rows.stop - at)
            if heads == self.heads:
                tokens = (rows.stop - at) // heads
            blocks.append(RowBlock(self.token + token, tokens, self.head + head, heads, self.row + at))
            at += tokens * heads
        return blocks


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a step that are clustered and stored together.

    Attributes
    ----------
    token, tokens : first token and number of tokens
    query : it is the last piece of a step with queries
    """

    token: int
    tokens: int
    query: bool


@dataclass(frozen=True)
class Product:
    """One MULTIPLY of a matrix with activations.

    Attributes
    ----------
    token, tokens : first token and number of tokens
    m, results : first result block and number of result blocks ; k, inputs : the same for input blocks
    """

    token: int
    tokens: int
    m: int
    results: int
    k: int
    inputs: int

    @property
    def weights(self) -> tuple[int, int, int, int]:
        """Which tiles of the matrix it multiplies."""
        return self.m, self.results, self.k, self.inputs
