"""Compiler of a vision tower and its projector: memory layout, and programs from patches to visual tokens.

The tower is that of `golden.vision`. Attention has no retrieval. The keys of a head are loaded as weights directly from
the key projection. The values are computed transposed, as the product of the normalised tokens, which are the weights,
with the rows of the value matrix. Their rows are then the weights of the product with the softmax weights. The tokens
of a window attend to each other as those of a picture do. The last words of the keys and values of a window also hold
tokens of the next one, whose softmax weights are 0.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial

import numpy as np

from compiler import vector_programs as programs
from compiler.blocks import Columns
from compiler.builder import ALONE, CommandRef, Operands, Share
from compiler.layer import MAX_FFN, MAX_HIDDEN, MAX_Q_HEADS
from compiler.memory import Region, matrix_words, row_words, tiles
from compiler.products import Matrix, Products
from compiler.vector_code import VectorCode, largest_divisor
from compiler.vision_parts import Head, Pooling, multiply
from golden.decoder_layer import one, pad_heads, pair_order
from golden.vision import VisionShape, pad
from hw.config import Config
from hw.core.isa import Command, Destination
from hw.lxe.microcode import Instruction

MAX_TOKENS = 1 << 14  # of an image: 128 x 128 patches


@dataclass
class VisionCompiler:
    """Allocates the memory of a vision tower and compiles its programs.

    Heads are padded with zeros to whole words. A bias is one more input block of its matrix: the activations get one
    more word (1, 0, .., 0).

    Parameters
    ----------
    config : configuration of the core ; shape : sizes of the tower
    region : device memory for the tower ; frames : largest number of images of a program
    cores : largest number of cores that work on a program
    masks : programs can skip patches, see `keep`

    Attributes
    ----------
    patches : word address of the input: flattened patches, BF16, `patch_words` words each, image after image
    out : word address of the output: tokens of `out_words` words, image after image
    matrices : matrices by name, with their biases ; rows : word addresses of the other weights by name
    one, zero : word addresses of the words (1, 0, .., 0) and (0, .., 0)
    x, attended : word addresses of the hidden states before a layer, and after its attention
    normed : word address of the normalised hidden states; each row ends with the word `one`, and rows of zeros fill the
        last block of tokens of every window
    q, k, vt : word addresses of queries, keys, and transposed values, the latter window after window
    cosines : word address of the RoPE angles of every token, in pairs of FP32 words
    selected : word address of the RoPE angles, or position embeddings, of the patches that a program computes; 0: all
    pooling : compiler of the average pooling; None without it
    weights : shapes of the weights by name ; products, vectors : compilers of products and of vector programs

    Raises
    ------
    ValueError
        A size is not supported; the message names it.
    """

    config: Config
    shape: VisionShape
    region: Region
    frames: int = 1
    cores: int = 1
    masks: bool = False

    def __post_init__(self) -> None:
        c, s = self.config, self.shape
        self.products, self.vectors = Products(c), VectorCode(c, self.region)
        self._multiply = partial(multiply, self.products)
        self.width, self.weights = self.products.width, self.shape.weights()
        n = self.width
        self._check_sizes()
        self.patch_words, self.x_words, self.ffn = (
            self._words(size) for size in (s.patch_elements, s.hidden, s.ffn)
        )  # fmt: skip
        self.out_words, self.head, self.rotated = self._words(s.outputs), s.padded_head // n, s.rotated_head // n
        self.middle_words = self._words(s.projector.hidden) if s.projector else 0
        self.heads, self.rotated_heads = s.heads * self.head, s.heads * self.rotated  # of all heads of a token
        self.query_row = row_words(self.rotated_heads, n)
        # a row of `context` and of `middle` has the 1 of the bias behind its end
        self.context_row, self.middle_row = row_words(self.heads + 1, n), row_words(self.ffn + 1, n)
        layers = [s.segments(layer) for layer in range(s.layers)] or [[(0, s.tokens)]]
        segments = [segment for layer in layers for segment in layer]
        self.blocks = max(self._words(count) for _, count in segments)  # of the tokens of the largest window
        vt_blocks = max(sum(self._words(count) for _, count in layer) for layer in layers)
        allocate, t = self.region.allocate, s.tokens
        padded = max(start + self._words(count) * n for start, count in segments)
        self.one, self.zero = allocate(1), allocate(1)
        self.matrices: dict[str, Matrix] = {}
        self.rows: dict[str, int] = {}
        for name, size in self.weights.items():
            if name == "vision.positions" or name.removesuffix("_bias") in self._vectors():
                self.rows[name] = allocate((size[0] if name == "vision.positions" else 1) * self.x_words)
            elif not name.endswith("_bias"):
                m_blocks, k_blocks = self._blocks(name)
                self.matrices[name] = Matrix(allocate(matrix_words(m_blocks, k_blocks, n)), m_blocks, k_blocks)
        self.patches = allocate(self.frames * s.patches * self.patch_words)
        self.out = allocate(self.frames * s.output_tokens * self.out_words)
        self.pooling = Pooling(s, self.products, self.vectors, self.region) if s.pooled else None
        behind = self.pooling.padding if self.pooling else 0  # rows of zeros behind the hidden states
        self.x, self.attended, self.factors = (
            allocate((t + behind) * self.x_words), allocate(t * self.x_words), allocate(4 * t)
        )  # fmt: skip
        self.padding = padded - t  # rows of zeros
        self.normed = allocate(padded * (self.x_words + 1))
        self.q, self.k, self.vt, self.context = (
            allocate(t * self.query_row), allocate(padded * self.query_row),
            allocate(self.heads * n * vt_blocks), allocate(t * self.context_row),
        )  # fmt: skip
        self.cosines = allocate(2 * t * self.rotated) if s.grid else 0
        self.selected, self.whole = allocate(self.row_words * s.patches) if self.masks else 0, s
        # a core processes two heads concurrently
        self.scores = [allocate(2 * t * self.blocks) for _ in range(2 * self.cores)]
        self.shares = [allocate(t * self.blocks) for _ in range(2 * self.cores)]
        sizes = self.x_words, self.ffn, self.middle_words, self.rotated_heads  # of rows of FP32, which have gaps
        self.wide = allocate(t * max(row_words(2 * words, n) for words in sizes))
        self.gate = allocate(t * row_words(2 * self.ffn, n)) if s.gated else 0
        self.middle = allocate(t * self.middle_row)
        self.projected = allocate(t * row_words(self.middle_words, n)) if s.projector else 0
        self._programs()

    @property
    def row_words(self) -> int:
        """Words of the RoPE angles, or of the position embedding, of a patch."""
        return 2 * self.rotated if self.shape.grid else self.x_words

    def keep(self, kept: Sequence[int]) -> "VisionCompiler":
        """The compiler of programs, of one image, that compute only the squares of patches `kept`.

        See `golden.vision.VisionShape.keep`. The memory is the same: the patches of the image are those of the result's
        `shape.order`, and its tokens follow each other at `out`. `ValueError` if the compiler has no `masks`.
        """
        if not self.masks:
            raise ValueError("masks must be True for a program that skips patches, got False")
        other = copy(self)
        other.shape, n = self.whole.keep(kept), self.width
        segments = [segment for layer in range(max(1, other.shape.layers)) for segment in other.shape.segments(layer)]
        other.padding = max(start + self._words(count) * n for start, count in segments) - other.shape.tokens
        return other

    def _check_sizes(self) -> None:
        c, s, n = self.config, self.shape, self.width
        for name, value, required in (
            ("inputs", s.inputs, c.dpe_inputs),
            ("align_bits", s.align_bits, c.align_bits),
        ):
            if value != required:
                raise ValueError(f"{name} must be that of the core, {required}, got {value}")
        sizes = [("hidden", s.hidden, MAX_HIDDEN), ("outputs", s.outputs, MAX_HIDDEN)]
        for name, value, _ in sizes:
            if value % n:
                raise ValueError(f"{name} must be a multiple of {n}, got {value}")
        sizes += [("patch_elements", s.patch_elements, MAX_HIDDEN), ("ffn", s.ffn, MAX_FFN),
                  ("heads", s.heads, MAX_Q_HEADS), ("tokens", s.tokens, MAX_TOKENS)]  # fmt: skip
        if s.grid is not None:
            sizes.append(("hidden / heads", s.rotated_head, c.vpe_rows * n))
        if s.projector is not None:
            sizes.append(("hidden of the projector", s.projector.hidden, MAX_FFN))
            sizes.append(("inputs of the projector", s.projector.merge * s.hidden, MAX_FFN))
        for name, value, maximum in sizes:
            if value > maximum:
                raise ValueError(f"{name} must be at most {maximum}, got {value}")
        if c.vpe_rows < 3:
            raise ValueError(f"vpe_rows must be at least 3, got {c.vpe_rows}")
        if self.frames < 1:
            raise ValueError(f"frames must be at least 1, got {self.frames}")

    def _words(self, elements: int) -> int:
        return -(-elements // self.width)

    def _vectors(self) -> set[str]:
        """Names of the class token and of the weights of norms."""
        return {name for name, size in self.weights.items() if len(size) == 1 and not name.endswith("_bias")}

    def _blocks(self, name: str) -> tuple[int, int]:
        """Result blocks and input blocks of a matrix, with the block of its bias."""
        sizes = zip(self.weights[name], self._groups(name), strict=True)
        m_blocks, k_blocks = (count * self._words(size // count) for size, count in sizes)
        if name.rpartition(".")[2] in ("q", "k"):
            m_blocks = self.rotated_heads
        return m_blocks, k_blocks + (f"{name}_bias" in self.weights)

    def _groups(self, name: str) -> tuple[int, int]:
        """Parts of the rows and of the columns of a matrix that are padded: heads."""
        kind = name.rpartition(".")[2]
        return self.shape.heads if kind in ("q", "k", "v") else 1, self.shape.heads if kind == "o" else 1

    def _programs(self) -> None:
        c, n, s = self.config, self.width, self.shape
        self.residual_piece = largest_divisor(self.x_words, c.vpe_rows)
        self.norm_piece = largest_divisor(self.x_words, c.vpe_rows // 3)  # weights, biases and products of a piece
        self.ffn_piece = largest_divisor(self.ffn, c.vpe_rows // 2)
        fixed = {"copy": programs.copy(), "residual": programs.residual(self.residual_piece * n, n)}
        if s.norm == "layer_norm":
            fixed |= {
                "norm factors": programs.layer_factors(s.hidden, n, s.epsilon),
                "norm parameters": programs.layer_parameters(self.norm_piece * n, n),
                "norm": programs.layer_scale(self.norm_piece * n, n),
            }
        else:
            fixed |= {"norm factors": programs.rms_factor(s.hidden, n, s.epsilon), **self._rms_scale()}
        if s.gated:
            fixed["ffn"] = programs.gated(self.ffn_piece * n, n)
        else:
            fixed["ffn"] = programs.activation(s.activation, self.ffn_piece * n, n)
        if s.grid is not None:
            fixed["rope"] = programs.rope(s.rotated_head, n, s.heads)
        if s.projector is not None and s.projector.norm_epsilon is not None:
            fixed |= {"projector norm factors": programs.rms_factor(s.hidden, n, s.projector.norm_epsilon)}
            fixed |= self._rms_scale()
        if s.projector is not None:
            self.middle_piece = largest_divisor(self.middle_words, c.vpe_rows // 2)
            fixed["projector"] = programs.activation(s.projector.activation, self.middle_piece * n, n)
        varying = {
            "softmax": programs.softmax(1, n, s.head),
            "long exponentials": programs.long_exponentials(1, n, s.head),
            "divide by sum": programs.divide_by_sum(1, n),
        }
        self.vectors.add(fixed)
        self.vectors.add(varying, varying=True)

    def _rms_scale(self) -> dict[str, list[Instruction]]:
        """Programs of an RMSNorm after its factors: load the weights of a piece, and scale a row."""
        n = self.width
        program = programs.rms_scale(self.norm_piece * n, n)
        prologue = len(programs.rms_scale(self.norm_piece * n, n, 0))
        return {"rms weights": program[:prologue], "rms norm": program[prologue:]}

    # memory image

    def images(self, weights: Mapping[str, np.ndarray]) -> dict[int, bytes]:
        """Memory image by word address: weights, constants and vector programs.

        `weights` : BF16 bit patterns, uint16, by name, with the shapes of `VisionShape.weights`; `ValueError` for a
        missing name or another shape.
        """
        weights = self.shape.check(weights)
        images = dict(self.vectors.images)
        images[self.one], images[self.zero] = one(self.width).astype("<u2").tobytes(), bytes(2 * self.width)
        for name, address in self.rows.items():
            images[address] = np.asarray(weights[name], "<u2").tobytes()
        if self.shape.grid is not None:
            angles = self.shape.grid.angles(self.shape.head, self.shape.rotated_head)
            pairs = [x.reshape(len(x), -1, self.width) for x in angles]
            images[self.cosines] = np.stack(pairs, axis=2).astype("<u4").tobytes()
        if self.pooling is not None:
            images |= self.pooling.images(self.x)
        for name, matrix in self.matrices.items():
            padded = self._padded(name, weights)
            images[matrix.address] = padded.tobytes() if name.endswith(".v") else tiles(padded, self.width)
        return images

    def _padded(self, name: str, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """Codes of a matrix in whole blocks, with its bias in the first column of the last block."""
        (row_groups, column_groups), (m_blocks, k_blocks) = self._groups(name), self._blocks(name)
        bias, n = weights.get(f"{name}_bias"), self.width
        size = m_blocks * n // row_groups

        def pad_rows(matrix: np.ndarray) -> np.ndarray:
            if self.shape.grid is None or name.rpartition(".")[2] not in ("q", "k"):
                return pad(matrix, 0, row_groups, size)
            heads = pad_heads(matrix, row_groups, size, 0).reshape(row_groups, size, *matrix.shape[1:])
            return heads[:, pair_order(size, n)].reshape(-1, *matrix.shape[1:])

        rows = pad(pad_rows(weights[name]), 1, column_groups, (k_blocks - (bias is not None)) * n // column_groups)
        padded = np.zeros((m_blocks * n, k_blocks * n), "<u2")
        padded[:, : rows.shape[1]] = rows
        if bias is not None:
            padded[:, rows.shape[1]] = pad_rows(bias)
        return padded

    # programs

    def program(self, frames: int = 1, share: Share = ALONE) -> list[Command]:
        """Program from the patches of `frames` images to their tokens, of the core with this share."""
        p = self.products.program(share)
        self.add(p, frames)
        return p.complete()

    def add(self, p: Operands, frames: int = 1, after: Sequence[CommandRef] = ()) -> list[CommandRef]:
        """Append the commands of `frames` images, which follow the commands `after`, and return the last one.

        With several cores, every core computes some columns of a product, some rows of a vector operation, and some
        heads. The cores meet after each of these, so that all results are in memory.
        """
        if not 1 <= frames <= self.frames:
            raise ValueError(f"frames must be 1 to {self.frames}, got {frames}")
        if p.builder.share.count > self.cores:
            raise ValueError(f"cores must be at most {self.cores}, got {p.builder.share.count}")
        last = [*after, *self._constants(p, after)]
        for frame in range(frames):
            last = self._frame(p, frame, last)
        return last

    def _constants(self, p: Operands, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Write what does not change: the 1 behind each row of activations, and rows of zeros behind `normed`."""
        t, row, beat = self.shape.tokens, self.x_words + 1, {"a_beats": 1, "out_beats": 1, "extra": 1}
        part, last = p.builder.share.part, list[CommandRef]()
        for rows, words, stride in (
            (self.normed, self.x_words, row),
            (self.context, self.heads, self.context_row),
            (self.middle, self.ffn, self.middle_row),
        ):
            last += self._vector(p, "copy", after, repeat=part(t), a=self.one, out=rows + words, out_stride=stride,
                                 **beat)  # fmt: skip
        if self.padding:
            last += self._vector(p, "copy", after, repeat=part(self.padding * row), a=self.zero,
                                 out=self.normed + t * row, out_stride=1, **beat)  # fmt: skip
        return p.builder.meet(last)

    def _frame(self, p: Operands, frame: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        s, meet = self.shape, p.builder.meet
        if s.kept is not None:
            after = meet(self._select(p, after))
        last = self._embed(p, self.patches + frame * s.computed * self.patch_words, after)
        for number in range(s.layers):
            last = self._layer(p, number, last)
        source, t = self.x + s.first_output * self.x_words, s.output_tokens
        out = self.out + frame * t * self.out_words
        if self.pooling is not None:
            last, source = meet(self.pooling.add(p, self.x, self.wide, self.attended, last)), self.attended
        if s.projector is None:
            fields = {"source": source, "target": out, "words": t * self.x_words}
            return meet(p.builder.lead("COPY", fields, after=last))
        if s.projector.norm_epsilon is not None:
            normed = self.attended, self.x_words
            last = meet(self._rms_norm(p, "projector.norm", "projector norm factors", self.x, *normed, last))
            source += self.attended - self.x
        first = meet(self._product(p, "projector.linear_1", t, source, last, self.wide))
        words, row = self.middle_words, row_words(self.middle_words, self.width)
        middle = meet(self._activation(p, "projector", t, words, self.middle_piece, first, self.projected, row))
        return meet(self._product(p, "projector.linear_2", t, self.projected, middle, out, wide=False, row=row))

    def _select(self, p: Operands, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Copy the RoPE angles, or position embeddings, of the patches that are computed, run by run."""
        places = np.flatnonzero(np.isin(self.whole.order, self.shape.order))
        words, target, last = self.row_words, self.selected, list(after)
        table = self.cosines or self.rows["vision.positions"] + self.shape.class_token * words
        for run in np.split(places, np.flatnonzero(np.diff(places) > 1) + 1):
            fields = {"source": table + int(run[0]) * words, "target": target, "words": len(run) * words}
            last = p.builder.lead("COPY", fields, after=after) or last
            target += len(run) * words
        return last

    def _embed(self, p: Operands, patches: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Patch embedding, position embeddings, class token, and the norm of CLIP."""
        s, out, meet = self.shape, self.attended if self.shape.input_norm else self.x, p.builder.meet
        if s.grid is not None:
            last = meet(self._product(p, "vision.patch", s.computed, patches, after, out, wide=False))
        else:
            position, skip, first = self.rows["vision.positions"], s.class_token * self.x_words, list[CommandRef]()
            if s.class_token:
                first = self._residual(p, 1, position, self.rows["vision.class_token"], out, after, wide=False)
            product = meet(self._product(p, "vision.patch", s.computed, patches, after, self.wide))
            added = position + skip if s.kept is None else self.selected
            last = meet([*first, *self._residual(p, s.computed, added, self.wide, out + skip, product)])
        return meet(self._norm(p, "vision.input_norm", out, self.x, self.x_words, last)) if s.input_norm else last

    def _layer(self, p: Operands, number: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        t, row, prefix, meet = self.shape.tokens, self.x_words + 1, f"vision.layers.{number}.", p.builder.meet
        norm = meet(self._norm(p, f"{prefix}attention_norm", self.x, self.normed, row, after))
        x, matrices = [Columns(self.normed, row)], self.matrices
        q = self._queries(p, matrices[f"{prefix}q"], x, self.q, norm)
        k = self._queries(p, matrices[f"{prefix}k"], x, self.k, [*norm, *q])
        context = meet(self._attend(p, number, q, k, norm))
        rows = [Columns(self.context, matrices[f"{prefix}o"].k_blocks, self.context_row)]  # with the 1 of a bias
        o = meet(self._multiply(p, matrices[f"{prefix}o"], t, rows, context, self.wide))
        attended = meet(self._residual(p, t, self.x, self.wide, self.attended, o))
        norm = meet(self._norm(p, f"{prefix}ffn_norm", self.attended, self.normed, row, attended))
        if self.shape.gated:
            self._multiply(p, matrices[f"{prefix}gate"], t, x, norm, self.gate)
        up = meet(self._multiply(p, matrices[f"{prefix}up"], t, x, norm, self.wide))
        if self.shape.gated:
            middle = meet(self._gated(p, up))
        else:
            out = self.middle, self.middle_row
            middle = meet(self._activation(p, "ffn", t, self.ffn, self.ffn_piece, up, *out))
        rows = [Columns(self.middle, matrices[f"{prefix}down"].k_blocks, self.middle_row)]
        down = meet(self._multiply(p, matrices[f"{prefix}down"], t, rows, middle, self.wide))
        return meet(self._residual(p, t, self.attended, self.wide, self.x, down))

    def _queries(
        self, p: Operands, matrix: Matrix, x: Sequence[Columns], out: int, after: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """Queries or keys of all tokens, with RoPE rotated. `after` : the norm, and what has rotated from `wide`."""
        t, words, angles, meet = self.shape.tokens, self.rotated_heads, self.rotated, p.builder.meet
        if self.shape.grid is None:
            return meet(self._multiply(p, matrix, t, x, after[:1], out, wide=False, stride=self.query_row))
        product = meet(self._multiply(p, matrix, t, x, after, self.wide))
        cosines = self.cosines if self.shape.kept is None else self.selected
        stride = row_words(2 * words, self.width)
        return meet(self._vector(p, "rope", product, repeat=p.builder.share.part(t), a=cosines,
                                 a_stride=2 * angles, a_beats=angles, a_wide=1, b=self.wide, b_stride=stride,
                                 b_beats=words, b_wide=1, b_used=1, out=out, out_stride=self.query_row, out_beats=words,
                                 extra=1))  # fmt: skip

    def _attend(
        self,
        p: Operands,
        number: int,
        q: Sequence[CommandRef],
        k: Sequence[CommandRef],
        norm: Sequence[CommandRef],
    ) -> list[CommandRef]:
        """Attention of all heads in all windows of a layer; returns the last command. The cores take heads in turn.

        With more cores than heads, several cores share the tokens of a head. The scores of a head are computed during
        the softmax of the head before. Heads use two buffers in turn. The next scores in a buffer follow the product
        that reads its softmax weights, so that they overwrite nothing that is still used.
        """
        words, vt, heads, share = self.query_row, self.vt, list[Head](), p.builder.share
        row, segments = self.x_words + 1, self.shape.segments(number)
        groups, team = share.groups(len(segments) * self.shape.heads)
        values = Columns(self.matrices[f"vision.layers.{number}.v"].address, row)
        part = share.part(self.heads * self.width)  # rows of the value matrix
        for window, (start, tokens) in enumerate(segments):
            blocks, rows = self._words(tokens), team.part(tokens)
            matrix = Matrix(self.normed + start * row, blocks, row, stride=row)
            x, out = [values.skip(part.start)], vt + part.start * blocks
            product = self._multiply(p, matrix, len(part), x, [], out, wide=False, written=norm, alone=True)
            written = p.builder.meet(product)
            for group in groups:
                if group is None or group // self.shape.heads != window or not rows:
                    continue
                h = group % self.shape.heads
                buffer, at = 2 * share.number + len(heads) % 2, vt + h * self.head * self.width * blocks
                keys = Matrix(self.k + start * words + h * self.rotated, blocks, self.rotated, stride=words)
                x = [Columns(self.q + (start + rows.start) * words + h * self.rotated, self.rotated, words)]
                out, stride = self.scores[buffer], 2 * blocks
                scores = self._multiply(p, keys, len(rows), x, q, out, stride=stride, written=k, alone=True)
                shares = self._softmax(p, buffer, len(rows), tokens, scores)
                heads.append(Head(h, buffer, start + rows.start, len(rows), blocks, at, written, shares))
                if len(heads) > 1:
                    self._mix(p, heads[-2])
            vt += self.heads * self.width * blocks
        return self._mix(p, heads[-1]) if heads else []

    def _softmax(self, p: Operands, buffer: int, rows: int, keys: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Softmax of rows of scores, one score per key; rows longer than the vector memory take two commands."""
        out, blocks = self.shares[buffer], self._words(keys)
        scores = {"a": self.scores[buffer], "a_stride": 2 * blocks, "a_wide": 1}
        fields = {"repeat": rows, "out": out, "out_stride": blocks, "extra": keys}
        if blocks <= self.config.vpe_rows:
            return self._vector(p, "softmax", after, **scores, **fields)
        weights = self._vector(p, "long exponentials", after, a_again=1, **scores, **fields)
        return self._vector(p, "divide by sum", weights, a_again=1, a=out, a_stride=blocks, **fields)

    def _mix(self, p: Operands, at: Head) -> list[CommandRef]:
        """Values of a head times their softmax weights."""
        values, stride = Matrix(at.values, self.head, at.blocks, stride=at.blocks), self.context_row
        x, out = [Columns(self.shares[at.buffer], at.blocks)], self.context + at.start * stride + at.number * self.head
        return self._multiply(
            p, values, at.tokens, x, at.shares, out, wide=False, stride=stride, written=at.written, alone=True
        )

    def _product(
        self,
        p: Operands,
        name: str,
        tokens: int,
        source: int,
        after: Sequence[CommandRef],
        out: int,
        wide: bool = True,
        row: int | None = None,
    ) -> list[CommandRef]:
        """Product of a matrix with rows, and the bias if there is one. `row` : words between rows; None: no gaps"""
        matrix, bias = self.matrices[name], f"{name}_bias" in self.weights
        columns = [Columns(source, matrix.k_blocks - bias, row), *[Columns(self.one, 1, 0)] * bias]
        return self._multiply(p, matrix, tokens, columns, after, out, wide=wide)

    # vector commands

    def _vector(
        self, p: Operands, name: str, after: Sequence[CommandRef], *, repeat: int | range, **fields: int
    ) -> list[CommandRef]:
        return self.vectors.command(p, name, after, repeat=repeat, **fields)

    def _norm(
        self, p: Operands, name: str, source: int, out: int, out_stride: int, after: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """Norm of the rows of all tokens."""
        if self.shape.norm == "rms_norm":
            return self._rms_norm(p, name, "norm factors", source, out, out_stride, after)
        rows, words, piece = p.builder.share.part(self.shape.tokens), self.x_words, self.norm_piece
        last = list[CommandRef]()
        if not rows:
            return last
        factors = self._vector(p, "norm factors", after, repeat=rows, a=source, a_stride=words, a_beats=words,
                               a_again=1, out=self.factors, out_stride=4, out_beats=2, out_wide=1, extra=1)  # fmt: skip
        for start in range(0, words, piece):
            self._vector(p, "norm parameters", [], repeat=1, a=self.rows[name] + start, a_beats=piece,
                         b=self.rows[f"{name}_bias"] + start, b_beats=piece, b_used=1, destination=Destination.NONE,
                         extra=1)  # fmt: skip
            last = self._vector(p, "norm", factors, repeat=rows, a=self.factors, a_stride=4, a_beats=2, a_wide=1,
                                b=source + start, b_stride=words, b_beats=piece, b_used=1, out=out + start,
                                out_stride=out_stride, out_beats=piece, extra=1)  # fmt: skip
        return last

    def _rms_norm(
        self, p: Operands, name: str, factors: str, source: int, out: int, out_stride: int, after: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """RMSNorm of the rows of all tokens, with the vector program `factors`."""
        rows, words, piece = p.builder.share.part(self.shape.tokens), self.x_words, self.norm_piece
        last = list[CommandRef]()
        if not rows:
            return last
        written = self._vector(p, factors, after, repeat=rows, a=source, a_stride=words, a_beats=words,
                               out=self.factors, out_stride=4, out_beats=1, out_wide=1, extra=1)  # fmt: skip
        for start in range(0, words, piece):
            self._vector(p, "rms weights", [], repeat=1, a=self.rows[name] + start, a_beats=piece,
                         destination=Destination.NONE, extra=1)  # fmt: skip
            last = self._vector(p, "rms norm", written, repeat=rows, a=self.factors, a_stride=4, a_beats=1, a_wide=1,
                                b=source + start, b_stride=words, b_beats=piece, b_used=1, out=out + start,
                                out_stride=out_stride, out_beats=piece, extra=1)  # fmt: skip
        return last

    def _residual(
        self, p: Operands, tokens: int, x: int, y: int, out: int, after: Sequence[CommandRef], wide: bool = True
    ) -> list[CommandRef]:
        """x + y of rows; y is FP32 in rows with gaps if it is `wide`."""
        words, piece, last = self.x_words, self.residual_piece, list[CommandRef]()
        stride = row_words(2 * words, self.width) if wide else words
        for start in range(0, words, piece):
            last = self._vector(p, "residual", after, repeat=p.builder.share.part(tokens), a=x + start, a_stride=words,
                                a_beats=piece, b=y + (1 + wide) * start, b_stride=stride, b_beats=piece, b_wide=wide,
                                b_used=1, out=out + start, out_stride=words, out_beats=piece, extra=1)  # fmt: skip
        return last

    def _activation(
        self,
        p: Operands,
        name: str,
        tokens: int,
        words: int,
        piece: int,
        after: Sequence[CommandRef],
        out: int,
        row: int,
    ) -> list[CommandRef]:
        """Activation function of FP32 rows in `wide`; the results are at `out`, `row` words from one to the next."""
        wide, last = row_words(2 * words, self.width), list[CommandRef]()
        for start in range(0, words, piece):
            last = self._vector(p, name, after, repeat=p.builder.share.part(tokens), a=self.wide + 2 * start,
                                a_stride=wide, a_beats=piece, a_wide=1, out=out + start, out_stride=row,
                                out_beats=piece, extra=1)  # fmt: skip
        return last

    def _gated(self, p: Operands, after: Sequence[CommandRef]) -> list[CommandRef]:
        """SiLU of the FP32 rows in `gate` times those in `wide`; the result is in `middle`."""
        piece, words, n, last = self.ffn_piece, self.ffn, self.width, list[CommandRef]()
        inputs = {"stride": row_words(2 * words, n), "beats": piece, "wide": 1}
        fields = {f"{side}_{key}": value for side in "ab" for key, value in inputs.items()}
        for start in range(0, words, piece):
            last = self._vector(p, "ffn", after, repeat=p.builder.share.part(self.shape.tokens), b_used=1, **fields,
                                a=self.gate + 2 * start, b=self.wide + 2 * start, out=self.middle + start,
                                out_stride=self.middle_row, out_beats=piece, extra=1)  # fmt: skip
        return last
