"""Parts of a vision tower: attention heads, products in blocks of tokens, and average pooling."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compiler import vector_programs as programs
from compiler.blocks import Activations, Columns
from compiler.builder import ALONE, CommandRef, Operands, Share
from compiler.memory import Region, row_words
from compiler.products import Matrix, Products, divide
from compiler.vector_code import VectorCode
from golden import bf16
from golden.vision import VisionShape


@dataclass(frozen=True)
class Head:
    """Attention head in a window, for the tokens of one core.

    number, buffer : of the head, and the buffer of its scores
    start, tokens : first token and tokens of the core ; blocks : blocks of tokens of the window
    values : word address of the transposed values ; written : commands that write them
    shares : commands that write the softmax weights
    """

    number: int
    buffer: int
    start: int
    tokens: int
    blocks: int
    values: int
    written: list[CommandRef]
    shares: list[CommandRef]


def multiply(
    products: Products,
    p: Operands,
    matrix: Matrix,
    tokens: int,
    columns: Sequence[Columns],
    after: Sequence[CommandRef],
    out: int,
    *,
    wide: bool = True,
    stride: int = 0,
    written: Sequence[CommandRef] = (),
    alone: bool = False,
) -> list[CommandRef]:
    """Product of a matrix with columns of activations, in blocks of tokens; arguments as of `Products.multiply`.

    The cores divide result blocks and tokens (`compiler.products.divide`); `alone` : the core computes all of it. Rows
    of FP32 results have gaps (`compiler.memory.row_words`), unless `stride` gives the words between them.
    `after` : commands that write the activations or use `out` before ; `written` : commands that write the matrix
    """
    cores, m_blocks = ALONE if alone else p.builder.share, matrix.m_blocks
    stride = stride or (row_words(2 * m_blocks, products.width) if wide else m_blocks)
    size, groups = divide(products, m_blocks, matrix.k_blocks, tokens, cores.count)
    group, number = divmod(cores.number, size)
    last = list[CommandRef]()
    if group >= groups or not tokens:  # a core that is left over
        return last
    part = Share(group, groups).part(tokens)
    block = products.block(len(part), matrix.k_blocks)
    for token in part[::block]:
        x, count = Activations([column.skip(token) for column in columns], after), min(block, part.stop - token)
        last = products.multiply(
            p, matrix, count, x, out + token * stride, wide=wide, stride=stride, after=written,
            share=Share(number, size),
        )  # fmt: skip
    return last


class Pooling:
    """Average pooling of hidden states, as `golden.vision.VisionTower.pool` computes it.

    The hidden states are transposed: they are the weights, and the rows of an identity matrix the activations. The
    transposed rows are the weights of the product with rows of zeros and ones, which name the tokens of each average.

    Parameters
    ----------
    shape : of a tower with pooling ; region : device memory

    Attributes
    ----------
    blocks : words of a transposed row ; padding : rows behind the hidden states that must be zeros
    identity, members, counts : word addresses of an identity matrix of one tile, of the rows that name the tokens of
        each average, and of the FP32 numbers of these tokens
    transposed : word address of the transposed hidden states
    """

    def __init__(self, shape: VisionShape, products: Products, vectors: VectorCode, region: Region):
        self.shape, self.products, self.vectors, n = shape, products, vectors, products.width
        self.words, self.blocks = shape.hidden // n, -(-shape.tokens // n)
        self.padding = self.blocks * n - shape.tokens
        self.identity, self.members = region.allocate(n), region.allocate(shape.output_tokens * self.blocks)
        self.counts = region.allocate(2 * shape.output_tokens)
        self.transposed = region.allocate(shape.hidden * self.blocks)
        vectors.add({"average": programs.average(shape.hidden, n)})

    def images(self, x: int) -> dict[int, bytes]:
        """Constants by word address, with the rows of zeros behind the hidden states at `x`."""
        n, members = self.products.width, self.shape.pooling
        rows = np.zeros((len(members), self.blocks * n), "<u2")
        rows[:, : self.shape.tokens] = bf16.encode(members)
        counts = np.zeros((len(members), n), "<f4")
        counts[:, 0] = members.sum(axis=1)
        images = {
            self.identity: bf16.encode(np.eye(n)).astype("<u2").tobytes(),
            self.members: rows.tobytes(),
            self.counts: counts.tobytes(),
        }
        if self.padding:
            images[x + self.shape.tokens * self.words] = bytes(2 * self.padding * self.shape.hidden)
        return images

    def add(self, p: Operands, x: int, sums: int, out: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Append the pooling of the hidden states at `x`, which `after` has written, and return the last command.

        `sums` : word address of a buffer for FP32 rows ; `out` : word address of the result, BF16 rows
        """
        rows, n, words, blocks = self.shape.output_tokens, self.products.width, self.words, self.blocks
        transposed = list[CommandRef]()
        for word in range(words):
            matrix = Matrix(x + word, blocks, 1, stride=words)
            target, tile = self.transposed + word * n * blocks, [Columns(self.identity, 1)]
            transposed += multiply(self.products, p, matrix, n, tile, [], target, wide=False, written=after)
        matrix, members = Matrix(self.transposed, words, blocks, stride=blocks), [Columns(self.members, blocks)]
        meet, part = p.builder.meet, p.builder.share.part(rows)
        last = meet(multiply(self.products, p, matrix, rows, members, [], sums, written=meet(transposed)))
        stride = row_words(2 * words, n)
        return self.vectors.command(
            p, "average", last, repeat=part, a=self.counts, a_stride=2, a_beats=1, a_wide=1, b=sums, b_stride=stride,
            b_beats=words, b_wide=1, b_used=1, out=out, out_stride=words, out_beats=words, extra=1,
        )  # fmt: skip
