"""Products of weight matrices with activations: layout of a matrix in device memory, and the commands of a product."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from math import inf

from compiler.blocks import Activations, Product
from compiler.builder import ALONE, CommandRef, LoadedOperands, Operands, ProgramBuilder, Share
from compiler.memory import block_words, row_words, tile_numbers
from golden.weight_formats import WeightFormat
from hw.config import Config
from hw.core.load_unit import LengthLimit
from hw.lxe.operand_memory import OperandMemory

MAX_VECTORS = 255  # activation vectors of a MULTIPLY


@dataclass(frozen=True)
class Matrix:
    """A matrix in device memory, stored as tiles or as rows. With several `cores` their tiles are interleaved.

    Attributes
    ----------
    address : word address ; m_blocks, k_blocks : result blocks and input blocks of `dpe_inputs` elements
    cores : number of cores whose tiles are interleaved, see `compiler.memory.tile_numbers`
    stride : words from one row to the next, when the matrix is stored as rows; 0: it is stored as tiles
    form : format of the tiles; None: BF16
    bias : with a format, word address of BF16 tiles that are the last input block; None: there are none
    """

    address: int
    m_blocks: int
    k_blocks: int
    _: KW_ONLY
    cores: int = 1
    stride: int = 0
    form: WeightFormat | None = None
    bias: int | None = None

    def tile_addresses(self, m: int, width: int) -> range:
        """Word addresses of the tiles of result block `m`; a word has `width` elements."""
        if self.cores > 1:
            numbers, base = tile_numbers(m, self.m_blocks, self.k_blocks, width, self.cores), self.address
            return range(base + numbers.start * width, base + numbers.stop * width, numbers.step * width)
        stored = self.k_blocks - (self.bias is not None)
        tile_words = self.form.tile_words(width) if self.form else width
        first = self.address + m * block_words(stored, width, self.form)
        return range(first, first + stored * tile_words, tile_words)


class Products:
    """Compiles products for one core.

    Parameters
    ----------
    config : of the core ; cores : as of the attribute
    keeps : the weights of a result block can stay in the operand memory while all tokens are multiplied

    Attributes
    ----------
    cores : number of cores for which the users of the products interleave their matrices
    width : elements of a word, and of an edge of a tile
    half : tiles in each half of the weight memory ; rows : words of the activation memory
    accumulators : results that a MULTIPLY can accumulate for each row of a tile
    """

    def __init__(self, config: Config, cores: int = 1, *, keeps: bool = True):
        memory, self.cores, self.keeps = OperandMemory.from_config(config), cores, keeps
        self.width = config.dpe_inputs
        self.half = memory.weight_half // self.width
        self.rows = memory.activation_rows
        self.accumulators = min(config.dpe_accumulators, MAX_VECTORS)

    def program(self, share: Share = ALONE) -> Operands:
        """An empty program of the core with this share."""
        return Operands(ProgramBuilder(share), self.half * self.width, self.rows)

    def result_row(self, m_blocks: int, wide: bool = True) -> int:
        """Words from one row of results to the next: rows of FP32 (`wide`) have the gap of `row_words`.

        A result block is written row by row. Without the gap, all rows of many models begin in the same channel.
        """
        return row_words(2 * m_blocks, self.width) if wide else m_blocks

    def fits(self, tokens: int, words: int) -> bool:
        """Whether activations of `words` words per token fit the operand memory, and their tokens the accumulators."""
        return tokens * words <= self.rows and tokens <= self.accumulators

    def block(self, tokens: int, k_blocks: int) -> int:
        """Tokens whose products are best computed together, so that fewest words are loaded per product.

        A block of tokens that fits the operand memory loads the weights once. Of more tokens, each group of result
        blocks also loads the activations.
        """
        fitting = min(tokens, self.accumulators, self.rows // k_blocks)
        others = [self._words_of_pieces(tokens), self._words_of_kept_weights(tokens, k_blocks)]
        return fitting if fitting and 1 / fitting < min(others) else tokens

    def _words_of_pieces(self, tokens: int) -> float:
        """Words that a product of many tokens loads for a result, in words of a row of the matrix, piece by piece."""
        size = self._piece_tokens(tokens)
        return 1 / size + 1 / (self.accumulators // size * self.width)

    def _words_of_kept_weights(self, tokens: int, k_blocks: int) -> float:
        """As `_words_of_pieces`, if the weights of a result block stay in both halves until all tokens are multiplied.

        Infinite if these weights or the activations of a token do not fit.
        """
        fits = self.keeps and k_blocks <= 2 * self.half and k_blocks <= self.rows // 2
        return 1 / tokens + 1 / self.width if fits else inf

    def multiply(
        self,
        p: Operands,
        matrix: Matrix,
        tokens: int,
        x: Activations,
        out: int,
        *,
        wide: bool,
        stride: int = 0,
        after: Sequence[CommandRef] = (),
        share: Share | None = None,
    ) -> list[CommandRef]:
        """Append the product of a matrix with activations; `out` gets one row per token. Returns the last command.

        A core computes its part of the result blocks, as one of the cores of `share`; None: of all cores.

        Loads start in order: both halves of the weights come before the activations, which wait longer. Activations
        that fit the operand memory are loaded once. Otherwise they are loaded in pieces, each before the weights of the
        next step, which wait for the MULTIPLY before this one. Steps with the same weights share them. `wide`: the
        results are FP32.
        `stride`: words from one row of results to the next; 0: those of `result_row`.
        `after`: commands that write the matrix, when it is not constant.
        """
        k_blocks = matrix.k_blocks
        n, words_per_block, fits = self.width, 1 + wide, self.fits(tokens, k_blocks)
        stride = stride or self.result_row(matrix.m_blocks, wide)
        part = (share or p.builder.share).part(matrix.m_blocks)
        steps = self.plan(part, k_blocks, tokens)
        loading = self.loading(steps)
        both = any(step.results * step.inputs > self.half for step in steps)

        def load_weights(step: Product) -> LoadedOperands:
            if matrix.stride:
                source = matrix.address + step.m * n * matrix.stride + step.k
                fields = {"stride": matrix.stride, "rows": step.results * n, "beats": step.inputs, "tiled": 1}
                return p.weights("LOAD", {"source": source, **fields}, after, both=both)
            first, *more = self._tile_loads(matrix, step)
            return p.weights("LOAD", first, after, more, both=both)

        ahead = 1 if both else 2  # weights in the operand memory
        weights = [load_weights(steps[at]) for at in loading[:ahead]]
        piece, loaded, product, number = (-1, -1, -1), None, list[CommandRef](), -1
        for at, step in enumerate(steps):
            if fits:
                loaded = x.load_all(p, tokens)
            elif loaded is None or piece != (step.token, step.k, step.inputs):
                piece, loaded = (
                    (step.token, step.k, step.inputs),
                    x.load(p, step.token, step.tokens, step.k, step.inputs),
                )
            if at in loading:
                number += 1
                if number:
                    weights += [load_weights(steps[at]) for at in loading[number + ahead - 1 : number + ahead]]
            product = [p.multiply(
                {
                    "m_stride": step.inputs, "k_stride": 1, "m_blocks": step.results, "k_blocks": step.inputs,
                    "activations": step.k if fits else 0, "x_stride": k_blocks if fits else step.inputs,
                    "vectors": step.tokens, "first": step.k == 0, "last": step.k + step.inputs == k_blocks,
                    "spread": not fits, "out": out + step.token * stride + step.m * words_per_block,
                    "stride": stride, "wide": wide,
                },
                weights[number], loaded, n,
            )]  # fmt: skip
        return product

    def _tile_loads(self, matrix: Matrix, step: Product) -> list[dict[str, int]]:
        """Fields of the LOADs of the tiles of a step, and of the tiles of the bias if the step has them.

        An interleaved matrix needs one LOAD for each result block.
        """
        n, form, bias, loads = self.width, matrix.form, matrix.bias, list[dict[str, int]]()
        stored = matrix.k_blocks - (bias is not None)
        count, block_rows = min(step.k + step.inputs, stored) - step.k, step.inputs * n
        if matrix.cores > 1:
            for result in range(step.results):
                addresses = matrix.tile_addresses(step.m + result, n)
                shape = {"rows": count, "stride": addresses.step, "beats": n, "step": n}
                loads.append({"source": addresses[step.k], **shape, "target": result * block_rows})
            return loads
        decode = {} if form is None else {"limit": LengthLimit.ENCODED, "block": form.number}
        if count:
            addresses, block = matrix.tile_addresses(step.m, n), block_words(stored, n, form)
            shape = {"rows": step.results, "stride": block, "beats": count * n, "step": block_rows}
            if count == step.inputs and count * addresses.step == block:  # the tiles are contiguous
                shape = {"rows": 1, "beats": step.results * block_rows}
            loads.append({"source": addresses[step.k], **shape, **decode, "target": 0})
        if count < step.inputs:
            assert bias is not None
            shape = {"rows": step.results, "stride": block_words(1, n), "beats": n, "step": block_rows}
            loads.append({"source": bias + step.m * block_words(1, n), **shape, "target": count * n})
        return loads

    def plan(self, part: range, k_blocks: int, tokens: int) -> list[Product]:
        """MULTIPLY commands of these result blocks, in order; the input blocks of a result block follow each other."""
        m_blocks = len(part)
        if not m_blocks:
            return []
        if self.fits(tokens, k_blocks):
            size, most, longest = tokens, self.half // k_blocks or 1, k_blocks
        elif self._words_of_kept_weights(tokens, k_blocks) < self._words_of_pieces(tokens):
            size = min(tokens, self.accumulators, self.rows // 2 // k_blocks)
            starts = range(0, tokens, size)
            return [Product(token, min(size, tokens - token), m, 1, 0, k_blocks) for m in part for token in starts]
        else:  # a piece of the activations is used for as many result blocks as the accumulators allow
            size = self._piece_tokens(tokens)
            most, longest = min(m_blocks, self.accumulators // size, self.half), self.rows // 2 // size
            most = -(-m_blocks // -(-m_blocks // most))  # groups of about the same size
        groups = [(m, min(most, part.stop - m)) for m in part[::most]]
        return [
            Product(token, min(size, tokens - token), m, results, k, min(inputs, k_blocks - k))
            for token in range(0, tokens, size)
            for m, results in groups
            for inputs in [min(k_blocks, self.half // results, longest)]
            for k in range(0, k_blocks, inputs)
        ]

    def blocks(self, tokens: int, k_blocks: int) -> list[tuple[int, int]]:
        """Sizes of the blocks of tokens that are computed together, each with the number of such blocks."""
        block = self.block(tokens, k_blocks)
        return [(block, tokens // block), *[(tokens % block, 1)] * (tokens % block > 0)]

    def loaded_words(self, m_blocks: int, k_blocks: int, tokens: int) -> int:
        """Words that a core loads for a product in blocks of tokens: weights and activations."""
        words = 0
        for size, times in self.blocks(tokens, k_blocks):
            plan = self.plan(range(m_blocks), k_blocks, size)
            words += times * self.weight_tiles(plan) * self.width
            words += times * self.activation_words(plan, k_blocks, size)
        return words

    @staticmethod
    def loading(plan: Sequence[Product]) -> list[int]:
        """Positions of the steps that load weights: those of the others are in the operand memory."""
        return [at for at, step in enumerate(plan) if not at or step.weights != plan[at - 1].weights]

    def weight_tiles(self, plan: Sequence[Product]) -> int:
        """Tiles of weights that a core loads for the steps of a product."""
        return sum(plan[at].results * plan[at].inputs for at in self.loading(plan))

    def activation_words(self, plan: Sequence[Product], k_blocks: int, tokens: int) -> int:
        """Words of activations that a core loads for the steps of a product."""
        if self.fits(tokens, k_blocks):
            return tokens * k_blocks if plan else 0
        return sum(step.tokens * step.inputs for step in self.pieces(plan))

    @staticmethod
    def pieces(plan: Sequence[Product]) -> list[Product]:
        """The steps that load a piece of activations that do not fit the operand memory."""
        pieces = [(step.token, step.k, step.inputs) for step in plan]
        return [step for at, step in enumerate(plan) if not at or pieces[at] != pieces[at - 1]]

    def _piece_tokens(self, tokens: int) -> int:
        """Tokens of a piece of activations that do not fit the operand memory."""
        return min(tokens, self.accumulators, self.rows // 2)


@lru_cache(maxsize=1024)
def divide(products: Products, m_blocks: int, k_blocks: int, tokens: int, cores: int) -> tuple[int, int]:
    """Cores that divide the result blocks of a product of many tokens, and groups of cores that divide its tokens.

    Of all such grids the one whose busiest core has the shortest time, with one word loaded in a cycle. A core that has
    fewer result blocks of more tokens loads more activations and fewer weights.
    """

    def cycles(groups: int) -> int:
        most, longest = -(-m_blocks // (cores // groups)), -(-tokens // groups)
        return max(products.loaded_words(most, k_blocks, longest), most * k_blocks * longest)

    groups = min(range(1, max(1, min(cores, tokens)) + 1), key=cycles)
    return cores // groups, groups
