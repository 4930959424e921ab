"""Compiler of the state-space branch of a layer: memory layout, and its commands in the program of a step.

The state of a context is in device memory: the inputs of the channels of the last tokens, BF16, one row per token; then
h, FP32, one beat per state, channel word after channel word. A step reads it and writes it at its end.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

from compiler import state_space_programs as programs
from compiler import vector_programs
from compiler.blocks import Activations, Columns
from compiler.builder import CommandRef, Operands
from compiler.memory import Region, matrix_words, row_words, tiles
from compiler.policies.base import Branch, LayerWidths, Policy
from compiler.products import Matrix, Products
from compiler.vector_code import VectorCode, largest_divisor
from golden.decoder_layer import one, with_bias
from golden.state_space import StateSpaceShape, StateSpaceWeights, spread_matrix
from hw.core.isa import Destination


def state_words(shape: StateSpaceShape) -> int:
    """Words of the state of a context."""
    return (shape.width - 1 + 2 * shape.states) * (shape.inner // shape.lanes)


@dataclass(frozen=True)
class BranchStep:
    """Inputs of the branch in a step.

    tokens : number of tokens ; state_word : word address of the state of the context
    u : word address of the inputs, one row per token ; after : commands that write them
    """

    tokens: int
    state_word: int
    u: int
    after: Sequence[CommandRef]


class StateSpaceCompiler:
    """Allocates the memory of the branch of a layer and appends its commands to the program of a step.

    Parameters
    ----------
    branch : sizes and input ; tokens : tokens of the largest step
    products, vectors : compilers of products and of vector programs
    region : device memory of the layer

    Attributes
    ----------
    out : word address of the outputs of a step, FP32, one row per token ; fused : the same with the attention, BF16
    query : the inputs are the rotated queries; False: the normalised hidden states

    Raises
    ------
    ValueError
        The vector memory is too small for the states of a channel, or for the taps.
    """

    def __init__(self, branch: Branch, tokens: int, products: Products, vectors: VectorCode, region: Region):
        shape, self.query = branch.shape, branch.query
        self.shape, self.products, self.vectors, self.region = shape, products, vectors, region
        rows, n = vectors.config.vpe_rows, products.width
        if programs.rows_of_scan(shape.states) > rows:
            most = (rows - programs.STEP_TERMS) // 3
            raise ValueError(f"states must be at most {most} for vpe_rows = {rows}, got {shape.states}")
        if programs.rows_of_convolution(1, shape.width) > rows:
            raise ValueError(f"width must be at most {(rows - 1) // 3} for vpe_rows = {rows}, got {shape.width}")
        self.inner = shape.inner // n
        self.row = row_words(self.inner, n)  # of activations that a product reads
        self.wide_row = products.result_row(self.inner)  # of FP32 products
        self.rank, self.terms = shape.padded_rank // n, shape.padded_terms // n
        self.taps_piece = largest_divisor(self.inner, rows // programs.rows_of_convolution(1, shape.width))
        self.steps_piece = largest_divisor(self.inner, rows // programs.rows_of_steps(1))
        self.gate_piece = largest_divisor(self.inner, min(rows, -(-self.inner // vectors.config.cores)))
        allocate, t = region.allocate, tokens
        self.history = allocate((shape.width - 1 + t) * self.inner)
        self.gate, self.x, self.low = (
            allocate(t * self.wide_row),
            allocate(t * self.row),
            allocate(t * (self.rank + self.terms)),
        )
        self.raw, self.steps = allocate(t * self.wide_row), allocate(2 * programs.STEP_TERMS * t * self.inner)
        self.spread, self.y = allocate(2 * t * shape.states), allocate(2 * t * self.inner)
        self.gated, self.out = allocate(t * self.row), allocate(t * products.result_row(shape.outputs // n))
        self.one, self.fused = allocate(1), allocate(t * shape.outputs // n)
        width, states, piece = shape.width, shape.states, self.steps_piece
        fuse_piece = largest_divisor(shape.outputs // n // vectors.config.kv_heads, rows)
        vectors.add(
            {
                "residual of branch": vector_programs.residual(fuse_piece * n, n),
                "branch taps": programs.load(width * self.taps_piece),
                "branch taps bias": programs.load(self.taps_piece, width * self.taps_piece),
                "branch push": programs.push(self.taps_piece, width),
                "branch convolution": programs.convolution(self.taps_piece, width),
                "branch skip": programs.load(piece),
                "branch steps": programs.steps(piece),
                "branch state": programs.load(2 * states),
                "branch scan": programs.scan(states),
                "branch store": programs.state_of_scan(states),
                "branch gate": vector_programs.gated(self.gate_piece * n, n),
            }
        )
        self._allocate_weights()

    def _allocate_weights(self) -> None:
        s, n = self.shape, self.products.width
        shapes = {
            "channels": (self.inner, s.inputs // n), "gate": (self.inner, s.inputs // n),
            "low": (self.rank + self.terms, self.inner), "step": (self.inner, self.rank + 1),
            "spread": (2 * s.states, self.terms), "out": (s.outputs // n, self.inner),
        }  # fmt: skip
        cores, allocate = self.products.cores, self.region.allocate
        self.matrices = {
            name: Matrix(allocate(matrix_words(m_blocks, k_blocks, n, cores)), m_blocks, k_blocks, cores=cores)
            for name, (m_blocks, k_blocks) in shapes.items()
        }
        self.taps, self.taps_bias = self.region.allocate(s.width * self.inner), self.region.allocate(self.inner)
        self.skip, self.decay = self.region.allocate(self.inner), self.region.allocate(2 * s.states * self.inner)

    def another(self) -> "StateSpaceCompiler":
        """The branch of another layer: its own weights, the same buffers and vector programs."""
        other = copy(self)
        other._allocate_weights()
        return other

    def images(self, weights: StateSpaceWeights) -> dict[int, bytes]:
        """Contents of the device memory for this branch, by word address."""
        s, w, n = self.shape, weights, self.products.width
        matrices = {
            "channels": w.channels, "gate": w.gate, "low": w.low, "step": with_bias(w.step, w.step_bias, n),
            "spread": spread_matrix(s), "out": w.out,
        }  # fmt: skip
        # taps of a piece of channels follow each other, tap after tap; decay rates and states of a channel word, too
        taps = w.taps.T.reshape(s.width, -1, self.taps_piece * n).swapaxes(0, 1)
        decay = w.decay.T.reshape(s.states, -1, n).swapaxes(0, 1)
        return {
            **{self.matrices[name].address: tiles(matrix, n, self.products.cores) for name, matrix in matrices.items()},
            self.taps: taps.astype("<u2").tobytes(), self.taps_bias: w.taps_bias.astype("<u2").tobytes(),
            self.skip: w.skip.astype("<u2").tobytes(), self.decay: decay.astype("<u4").tobytes(),
            self.one: one(n).tobytes(),
        }  # fmt: skip

    def add_to(self, p: Operands, step: BranchStep, context: Sequence[int]) -> list[CommandRef]:
        """Append a step of the branch, and write its sum with the attention outputs at the addresses `context`.

        Each address has the heads of one KV head, one row per token. Returns the last commands.
        """
        written, saved = self.add_step(p, step)
        out, last, words = p.builder.meet(written), list[CommandRef](), self.shape.outputs // self.products.width
        width, row = words // len(context), self.products.result_row(words)
        piece = largest_divisor(width, self.vectors.config.vpe_rows)
        for part in p.builder.share.part(words // piece):
            head, start = divmod(part * piece, width)
            last = self.vectors.command(
                p, "residual of branch", out, repeat=step.tokens,
                a=context[head] + start, a_stride=width, a_beats=piece,
                b=self.out + 2 * part * piece, b_stride=row, b_beats=piece, b_wide=1, b_used=1,
                out=self.fused + part * piece, out_stride=words, out_beats=piece, extra=1,
            )  # fmt: skip
        return [*last, *saved]

    def add_step(self, p: Operands, step: BranchStep) -> tuple[list[CommandRef], list[CommandRef]]:
        """Append the commands of a step. Returns the commands that write `out`, and those that write the state.

        Every core computes some columns of a product and some words of the channels.
        """
        t, meet, kept = step.tokens, p.builder.meet, (self.shape.width - 1) * self.inner
        restored = self._copy(p, step.state_word, self.history, kept, step.after)
        u = Activations([Columns(step.u, self.shape.inputs // self.products.width)], step.after)
        self._multiply(p, "gate", t, u, self.gate, wide=True)
        channels = self._multiply(p, "channels", t, u, self.history + kept, wide=False)
        history = meet([*restored, *channels])
        x = meet(self._convolution(p, t, history))
        written = self._copy(p, self.history + t * self.inner, step.state_word, kept, history)
        low = meet(
            self._multiply(p, "low", t, Activations([Columns(self.x, self.inner, self.row)], x), self.low, wide=False)
        )
        stride = self.rank + self.terms
        terms = Activations([Columns(self.low + self.rank, self.terms, stride)], low)
        spread = self._multiply(p, "spread", t, terms, self.spread, wide=False)
        ranks = Activations([Columns(self.low, self.rank, stride), Columns(self.one, 1, stride=0)], low)
        raw = meet([*spread, *self._multiply(p, "step", t, ranks, self.raw, wide=True)])
        steps = meet(self._steps(p, t, raw))
        y, saved = self._scan(p, t, steps, step.state_word + kept)
        gated, piece, scanned = list[CommandRef](), self.gate_piece, meet(y)
        for word in self._pieces(p, piece):
            gated = self.vectors.command(
                p, "branch gate", scanned, repeat=t, a=self.gate + 2 * word, a_stride=self.wide_row, a_beats=piece,
                a_wide=1, b=self.y + 2 * word, b_stride=2 * self.inner, b_beats=piece, b_wide=1, b_used=1,
                out=self.gated + word, out_stride=self.row, out_beats=piece, extra=1,
            )  # fmt: skip
        result = Activations([Columns(self.gated, self.inner, self.row)], meet(gated))
        return self._multiply(p, "out", t, result, self.out, wide=True), [*written, *saved]

    def _multiply(
        self, p: Operands, name: str, tokens: int, x: Activations, out: int, *, wide: bool
    ) -> list[CommandRef]:
        return self.products.multiply(p, self.matrices[name], tokens, x, out, wide=wide)

    def _copy(self, p: Operands, source: int, target: int, words: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Copy of core 0; nothing for 0 words."""
        return (
            p.builder.lead("COPY", {"source": source, "target": target, "words": words}, after=after) if words else []
        )

    def _pieces(self, p: Operands, piece: int) -> range:
        """First words of the pieces of the channels that this core computes."""
        part = p.builder.share.part(self.inner // piece)
        return range(part.start * piece, part.stop * piece, piece)

    def _convolution(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        piece, width, command, last = self.taps_piece, self.shape.width, self.vectors.command, list[CommandRef]()
        silent = {"a_beats": piece, "destination": Destination.NONE, "extra": 1}
        for word in self._pieces(p, piece):
            at, inputs = self.history + word, (width - 1) * self.inner
            command(p, "branch taps", [], repeat=1, a=self.taps + word * width, **(silent | {"a_beats": width * piece}))
            command(p, "branch taps bias", [], repeat=1, a=self.taps_bias + word, **silent)
            command(p, "branch push", after, repeat=width - 1, a=at, a_stride=self.inner, **silent)
            last = command(p, "branch convolution", after, repeat=tokens, a=at + inputs, a_stride=self.inner,
                           a_beats=piece, out=self.x + word, out_stride=self.row, out_beats=piece,
                           extra=1)  # fmt: skip
        return last

    def _steps(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        piece, inner, last, beats = self.steps_piece, self.inner, list[CommandRef](), programs.STEP_TERMS
        for word in self._pieces(p, piece):
            self.vectors.command(p, "branch skip", [], repeat=1, a=self.skip + word, a_beats=piece,
                                 destination=Destination.NONE, extra=1)  # fmt: skip
            last = self.vectors.command(
                p, "branch steps", after, repeat=tokens, a=self.raw + 2 * word, a_stride=self.wide_row, a_beats=piece,
                a_wide=1, b=self.x + word, b_stride=self.row, b_beats=piece, b_used=1,
                out=self.steps + 2 * beats * word, out_stride=2 * beats * inner, out_beats=beats * piece, out_wide=1,
                extra=1,
            )  # fmt: skip
        return last

    def _scan(
        self, p: Operands, tokens: int, after: Sequence[CommandRef], state: int
    ) -> tuple[list[CommandRef], list[CommandRef]]:
        states, inner, beats, y, saved = self.shape.states, self.inner, programs.STEP_TERMS, [], []
        for word in self._pieces(p, 1):
            at = state + 2 * states * word
            self.vectors.command(
                p, "branch state", [], repeat=1, a=self.decay + 2 * states * word, a_beats=states, a_wide=1, b=at,
                b_beats=states, b_wide=1, b_used=1, destination=Destination.NONE, extra=1,
            )  # fmt: skip
            y = self.vectors.command(
                p, "branch scan", after, repeat=tokens, a=self.steps + 2 * beats * word, a_stride=2 * beats * inner,
                a_beats=beats, a_wide=1, b=self.spread, b_stride=2 * states, b_beats=2 * states, b_used=1,
                out=self.y + 2 * word, out_stride=2 * inner, out_beats=1, out_wide=1, extra=1,
            )  # fmt: skip
            saved = self.vectors.command(
                p, "branch store", [], repeat=1, a=self.one, a_beats=1, out=at, out_beats=states, out_wide=1, extra=1
            )
        return y, saved


def branch_compiler(
    policy: Policy, widths: tuple[int, int, int], tokens: int, products: Products, vectors: VectorCode, region: Region
) -> StateSpaceCompiler | None:
    """The branch of a layer with the `LayerWidths` `widths`, or None; `tokens`: of the largest step."""
    branch = policy.branch(vectors.config, LayerWidths(*widths))
    return StateSpaceCompiler(branch, tokens, products, vectors, region) if branch else None
