"""Vision towers and projectors as the core computes them, bit exact: CLIP and SigLIP of LLaVA, and Qwen2.5-VL.

It combines the fused products of `dot` and the vector kernels of `vector_kernels`. The stages:

1. Patch embedding: the product of flattened patches (`patch_rows`) with a matrix, plus position embeddings. CLIP has a
   class token before the patches, and a LayerNorm after the embedding. Qwen2.5-VL has no position embeddings: queries
   and keys are rotated by two-dimensional RoPE (`patch_grid`).
2. Layers: norm, attention of every token to all tokens or to those of its window, residual, norm, feed-forward layer,
   residual. The norms are LayerNorms, or RMSNorms. The feed-forward layer can have a gate.
3. Pooling, if there is one: averages of the patches in rectangles (`pooling_members`). The class token stays.
4. Projector: matrix, activation, matrix. Each patch gives one token of the language model; with `merge`, an RMSNorm
   comes first, and several contiguous patches give one token.

Hidden states between the stages are BF16. A bias is one more input of a product: its tile is the last one, with the
input 1 and otherwise zeros. The softmax weights of a token are rounded to BF16 before they multiply the values.

An average is a product of the hidden states of all tokens with factors 0 and 1, whose FP32 result is divided by the
number of tokens and rounded once, to BF16. With T tokens in K tiles of N products, W alignment bits and the n tokens of
an average, without overflow:

    |y - exact| <= 2**-8 |exact| + 1.01 (K (N - 1) 2**(2 - W) + (2 K - 1) 2**-24 n) max|x| / n + 2**-126
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isqrt

import numpy as np

from golden import bf16
from golden import vector_kernels as kernels
from golden.bf16 import FP32
from golden.decoder_layer import one, pad_heads, pair_order, with_bias
from golden.dot import matmul, to_bf16
from golden.patch_grid import PatchGrid, check_kept
from golden.vpe import narrow, widen
from util import checks

NORMS = ("layer_norm", "rms_norm")


@dataclass(frozen=True)
class ProjectorShape:
    """Sizes of the projector.

    hidden, outputs  outputs of the first and of the second matrix, in elements
    activation       activation function between them, of `vector_kernels.ACTIVATIONS`
    bias             both matrices have a bias
    drop_first       the first token of the tower has no output (LLaVA drops the class token of CLIP)
    merge            tokens of the tower that give one output
    norm_epsilon     term of the RMSNorm before the first matrix; None: no norm
    """

    hidden: int
    outputs: int
    activation: str = "gelu"
    bias: bool = True
    drop_first: bool = False
    merge: int = 1
    norm_epsilon: float | None = None

    def __post_init__(self) -> None:
        for name in ("hidden", "outputs", "merge"):
            checks.integer(name, getattr(self, name), 1)
        checks.one_of("activation", self.activation, kernels.ACTIVATIONS)
        if self.norm_epsilon is not None and checks.real("norm_epsilon", self.norm_epsilon) <= 0:
            raise ValueError(f"norm_epsilon must be positive, got {self.norm_epsilon}")


@dataclass(frozen=True)
class VisionShape:
    """Sizes of a vision tower and of the matrix engine.

    patches, patch_elements  patches of an image, elements of a patch
    hidden, ffn              width of the hidden states and of the feed-forward layer, in elements
    layers                   layers that are computed (LLaVA: all except the last one)
    heads                    attention heads
    activation               activation function of the feed-forward layer, of `vector_kernels.ACTIVATIONS`; silu if it
                             has a gate
    epsilon                  added to the variance by the norms
    class_token              a class token precedes the patches
    input_norm               a LayerNorm follows the embedding
    patch_bias               the patch embedding has a bias
    projector                sizes of the projector; None: the hidden states are the output
    inputs                   products of a tile; also lanes of the vector engine
    align_bits               bits of an aligned product (`golden.dot`)
    norm                     layer_norm, or rms_norm, which has no bias
    gated                    the feed-forward layer has a gate
    grid                     order, windows and RoPE of the patches; None: row-major order, no windows, a table of
                             position embeddings
    full_attention_layers    layers without windows
    pooled                   rows, and columns, of the averages that replace a square of patches; 0: no pooling
    kept                     row-major numbers of the squares of `group`**2 patches that are computed, ascending; None:
                             all. See `keep`
    """

    patches: int
    patch_elements: int
    hidden: int
    ffn: int
    layers: int
    heads: int
    activation: str
    epsilon: float
    class_token: bool
    input_norm: bool
    patch_bias: bool
    projector: ProjectorShape | None
    inputs: int
    align_bits: int = 24
    norm: str = "layer_norm"
    gated: bool = False
    grid: PatchGrid | None = None
    full_attention_layers: tuple[int, ...] = ()
    pooled: int = 0
    kept: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("patches", "patch_elements", "hidden", "ffn", "heads", "inputs"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("layers", self.layers, 0)
        checks.one_of("activation", self.activation, ("silu",) if self.gated else kernels.ACTIVATIONS)
        checks.one_of("norm", self.norm, NORMS)
        if checks.real("epsilon", self.epsilon) <= 0:
            raise ValueError(f"epsilon must be positive, got {self.epsilon}")
        if self.hidden % self.heads:
            raise ValueError(f"hidden must be a multiple of heads = {self.heads}, got {self.hidden}")
        if self.pooled:
            merges = self.projector is not None and (self.projector.merge, self.projector.norm_epsilon) != (1, None)
            if self.grid is not None or merges:
                raise ValueError(
                    f"pooled must be 0 with a grid, or a merge or norm in the projector, got {self.pooled}"
                )
            if isqrt(self.patches) ** 2 != self.patches:
                raise ValueError(f"patches must be a square number for pooling, got {self.patches}")
        checks.integer("pooled", self.pooled, 0, isqrt(self.patches))
        if self.output_tokens < 1:
            raise ValueError(f"patches must be at least 2 if drop_first drops one of them, got {self.patches}")
        if self.kept is not None:
            check_kept(self.kept, self.patches // self.group**2)
            if self.pooled:
                raise ValueError(f"pooled must be 0 for a tower that skips patches, got {self.pooled}")
        if self.grid is not None and (self.class_token or self.patches != self.grid.rows * self.grid.columns):
            raise ValueError(f"patches must be those of grid without a class token, got {self.patches}")
        if self.grid is not None and self.head % 4:
            raise ValueError(f"hidden / heads must be a multiple of 4, got {self.head}")
        if self.projector is not None and (self.tokens - self.first_output) % self.projector.merge:
            raise ValueError(f"tokens must be a multiple of merge = {self.projector.merge}, got {self.tokens}")

    @property
    def head(self) -> int:
        """Elements of a head."""
        return self.hidden // self.heads

    @property
    def padded_head(self) -> int:
        """Elements of a head of values in memory: a multiple of `inputs`."""
        return -(-self.head // self.inputs) * self.inputs

    @property
    def rotated_head(self) -> int:
        """Elements of a head of queries and keys in memory; with RoPE a multiple of 2 `inputs`."""
        return self.padded_head if self.grid is None else -(-self.head // (2 * self.inputs)) * 2 * self.inputs

    @property
    def tokens(self) -> int:
        """Tokens of the tower."""
        return self.computed + self.class_token

    @property
    def group(self) -> int:
        """Side of the square of patches that becomes one token."""
        return 1 if self.grid is None else self.grid.merge

    @property
    def computed(self) -> int:
        """Patches that are computed."""
        return self.patches if self.kept is None else len(self.kept) * self.group**2

    def keep(self, kept: Sequence[int]) -> "VisionShape":
        """The tower for a picture of which only the squares of patches `kept` are computed, in row-major numbers.

        The other patches have no tokens: nothing attends to them, and they have no output. The remaining patches keep
        their positions (CodecSight, SPEC 4.1). `ValueError` unless the numbers ascend and the tower has them.
        """
        numbers = tuple(int(number) for number in kept)
        check_kept(numbers, self.patches // self.group**2)
        return replace(self, kept=numbers, grid=self.grid and replace(self.grid, kept=numbers))

    @property
    def first_output(self) -> int:
        """First token of the tower that has an output."""
        return int(self.projector is not None and self.projector.drop_first)

    @property
    def output_tokens(self) -> int:
        """Tokens of the output."""
        if self.pooled:
            return self.pooled**2 + self.class_token - self.first_output
        return (self.tokens - self.first_output) // (self.projector.merge if self.projector else 1)

    @property
    def order(self) -> np.ndarray:
        """Row-major number of each patch that is computed, int64 (computed,)."""
        if self.grid is not None:
            return self.grid.order
        return np.arange(self.patches) if self.kept is None else np.array(self.kept)

    @property
    def output_order(self) -> np.ndarray:
        """Row-major number of each token of the output, int64 (output_tokens,)."""
        if self.grid is None:
            return np.arange(self.output_tokens)
        return self.grid.order if self.projector is None else self.grid.token_order

    @property
    def pooling(self) -> np.ndarray:
        """Whether a token of the tower is a member of each output of the pooling, bool (output_tokens, tokens)."""
        members = pooling_members(isqrt(self.patches), self.pooled)
        if not self.class_token:
            return members
        whole = np.zeros((len(members) + 1, self.tokens), bool)
        whole[0, 0], whole[1:, 1:] = True, members
        return whole[self.first_output :]

    def segments(self, layer: int) -> list[tuple[int, int]]:
        """First token and number of tokens of every group of tokens that attend to each other."""
        if self.grid is None or layer in self.full_attention_layers:
            return [(0, self.tokens)]
        sizes = self.grid.windows
        return list(zip(np.cumsum((0, *sizes[:-1])).tolist(), sizes, strict=True))

    @property
    def output_grid(self) -> tuple[int, int] | None:
        """Rows and columns of the tokens of the output; None: the decoder takes them as a sequence."""
        if self.grid is None:
            return None
        merge = self.grid.merge if self.projector is not None else 1
        return self.grid.rows // merge, self.grid.columns // merge

    @property
    def outputs(self) -> int:
        """Elements of a token of the output."""
        return self.hidden if self.projector is None else self.projector.outputs

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Shape of every weight by its name: matrices (outputs, inputs), vectors, and the table of position embeddings.

        The names are those of `compiler.tensor_table`.
        """
        h, shapes = self.hidden, dict[str, tuple[int, ...]]()

        def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> None:
            shapes.update({name: (outputs, inputs), **({f"{name}_bias": (outputs,)} if bias else {})})

        def norm(name: str) -> None:
            shapes.update({name: (h,), **({f"{name}_bias": (h,)} if self.norm == "layer_norm" else {})})

        linear("vision.patch", h, self.patch_elements, self.patch_bias)
        if self.grid is None:
            shapes["vision.positions"] = (self.patches + self.class_token, h)
        if self.class_token:
            shapes["vision.class_token"] = (h,)
        if self.input_norm:
            norm("vision.input_norm")
        for number in range(self.layers):
            prefix = f"vision.layers.{number}."
            norm(prefix + "attention_norm")
            for name in ("q", "k", "v", "o"):
                linear(prefix + name, h, h)
            norm(prefix + "ffn_norm")
            for name in ("gate", "up") if self.gated else ("up",):
                linear(prefix + name, self.ffn, h)
            linear(prefix + "down", h, self.ffn)
        if self.projector is not None:
            if self.projector.norm_epsilon is not None:
                shapes["projector.norm"] = (h,)
            linear("projector.linear_1", self.projector.hidden, h * self.projector.merge, self.projector.bias)
            linear("projector.linear_2", self.projector.outputs, self.projector.hidden, self.projector.bias)
        return shapes

    def check(self, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The weights of this shape. `ValueError` unless all are BF16 bit patterns, uint16, of the right shape.

        The matrix of the patch embedding can have the axes of a convolution (hidden, C, [frames,] rows, columns).
        """
        checked = {}
        for name, shape in self.weights().items():
            if name not in weights:
                raise ValueError(f"weights must have {name!r}, got no such name")
            array = bf16.codes(f"weights[{name!r}]", weights[name])
            if name == "vision.patch" and array.ndim > 2:
                array = array.reshape(len(array), -1)
            if array.shape != shape:
                raise ValueError(f"weights[{name!r}] must have shape {shape}, got {array.shape}")
            checked[name] = array
        return checked


def patch_rows(pixels: np.ndarray, patch_size: int) -> np.ndarray:
    """Flattened patches, BF16 bit patterns, of normalised pixels.

    `pixels` : float (C, height, width), or (C, frames, height, width) for patches of several frames
    Returns (N, C * patch_size**2), or (N, C * frames * patch_size**2). Patches are in row-major order; the elements of
    a patch are in the order of the weights of a convolution. Pixels at the right and lower edge that do not fill a
    patch are dropped.
    """
    image, size = np.asarray(pixels), checks.integer("patch_size", patch_size, 1)
    image = checks.reals("pixels", image, *[None] * (4 if image.ndim == 4 else 3))
    *_, height, width = image.shape
    rows, columns = height // size, width // size
    if not rows or not columns:
        raise ValueError(f"pixels must have at least {size} rows and columns, got shape {image.shape}")
    blocks = image[..., : rows * size, : columns * size].reshape(-1, rows, size, columns, size)
    return bf16.encode(blocks.transpose(1, 3, 0, 2, 4).reshape(rows * columns, -1))


def pooling_members(side: int, pooled: int) -> np.ndarray:
    """Patches of each average of an adaptive average pooling, bool (pooled**2, side**2), both in row-major order.

    Average i of a side has the patches floor(i side / pooled) to ceil((i + 1) side / pooled) - 1. If `side` is no
    multiple of `pooled`, neighbours can have a row or column in common.
    """
    checks.integer("pooled", pooled, 1, checks.integer("side", side, 1))
    patch, number = np.arange(side), np.arange(pooled)[:, None]
    inside = (patch >= number * side // pooled) & (patch < -(-(number + 1) * side // pooled))
    return np.kron(inside, inside)


def pad(matrix: np.ndarray, axis: int, groups: int, size: int) -> np.ndarray:
    """Pad each of `groups` equal parts of an axis with zeros at its end to `size` elements."""
    moved = np.moveaxis(np.asarray(matrix), axis, 0)
    parts = moved.reshape(groups, -1, *moved.shape[1:])
    padded = np.zeros((groups, size, *moved.shape[1:]), moved.dtype)
    padded[:, : parts.shape[1]] = parts
    return np.ascontiguousarray(np.moveaxis(padded.reshape(groups * size, *moved.shape[1:]), 0, axis))


@dataclass
class VisionTower:
    """Vision tower and projector.

    shape    sizes
    weights  BF16 bit patterns of every weight, shapes as in `VisionShape.weights`
    """

    shape: VisionShape
    weights: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        self.weights = self.shape.check(self.weights)

    def run(self, patches: np.ndarray) -> np.ndarray:
        """Tokens of the output, BF16 bit patterns (output_tokens, outputs), of patches (computed, patch_elements)."""
        features = self.features(patches)
        if self.shape.pooled:
            features = self.pool(features)
        return features if self.shape.projector is None else self.project(features)

    def features(self, patches: np.ndarray) -> np.ndarray:
        """Hidden states after the last layer, BF16 bit patterns (tokens, hidden), of patches (computed, elements)."""
        s = self.shape
        if bf16.codes("patches", patches).shape != (s.computed, s.patch_elements):
            raise ValueError(f"patches must have shape {(s.computed, s.patch_elements)}, got {patches.shape}")
        embedded = self._product("vision.patch", patches)
        if s.grid is None:
            position = self.weights["vision.positions"]
            x = kernels.residual(position[int(s.class_token) :][s.order], embedded)
        else:
            x = narrow(embedded)
        if s.class_token:
            first = kernels.residual(position[:1], widen(self.weights["vision.class_token"][None]))
            x = np.concatenate([first, x])
        if s.input_norm:
            x = self._norm("vision.input_norm", x)
        for number in range(s.layers):
            x = self._layer(number, x)
        return x

    def pool(self, features: np.ndarray) -> np.ndarray:
        """Class token, unless it has no output, and averages: BF16 bit patterns (output_tokens, hidden)."""
        s, members = self.shape, self.shape.pooling
        factors = bf16.encode(members)
        sums = matmul(factors, np.ascontiguousarray(features.T), s.inputs, s.align_bits)
        return bf16.divide(sums, bf16.encode(members.sum(axis=1), FP32)[:, None])

    def project(self, features: np.ndarray) -> np.ndarray:
        """Tokens of the language model, BF16 bit patterns (output_tokens, outputs), of `features` after the pooling."""
        s, projector = self.shape, self.shape.projector
        if projector is None:
            raise ValueError("projector must be a ProjectorShape, got None")
        x = features if s.pooled else features[s.first_output :]
        if projector.norm_epsilon is not None:
            x = kernels.rms_norm(x, self.weights["projector.norm"], s.inputs, projector.norm_epsilon)
        first = self._product("projector.linear_1", x.reshape(s.output_tokens, -1))
        middle = kernels.activation(projector.activation, first)
        return narrow(self._product("projector.linear_2", middle))

    def _layer(self, number: int, x: np.ndarray) -> np.ndarray:
        prefix, s = f"vision.layers.{number}.", self.shape
        normed = self._norm(prefix + "attention_norm", x)
        q, k, v = (self._product(prefix + name, normed) for name in ("q", "k", "v"))
        q, k, v = self._heads(q), self._heads(k), to_bf16(v)
        context = np.concatenate(
            [self._attend(*(rows[start : start + count] for rows in (q, k, v))) for start, count in s.segments(number)]
        )
        attended = kernels.residual(x, self._product(prefix + "o", context, s.heads))
        normed = self._norm(prefix + "ffn_norm", attended)
        up = self._product(prefix + "up", normed)
        if s.gated:
            middle = kernels.gated(self._product(prefix + "gate", normed), up)
        else:
            middle = kernels.activation(s.activation, up)
        return kernels.residual(attended, self._product(prefix + "down", middle))

    def _heads(self, x: np.ndarray) -> np.ndarray:
        """Queries or keys (T, H, head), BF16, of FP32 projections (T, hidden); with RoPE rotated and in memory order"""
        s = self.shape
        heads = x.reshape(len(x), s.heads, s.head)
        if s.grid is None:
            return to_bf16(heads)
        rotated = kernels.rope(heads, *s.grid.angles(s.head, s.head)).reshape(len(x), -1)
        padded = pad_heads(rotated, s.heads, s.rotated_head, 1).reshape(len(x), s.heads, -1)
        return np.ascontiguousarray(padded[:, :, pair_order(s.rotated_head, s.inputs)])

    def _attend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
        """Attention of tokens to each other, BF16 (T, hidden), of q and k (T, H, head) and v (T, hidden)."""
        s, context = self.shape, []
        for head in range(s.heads):
            scores = matmul(q[:, head], k[:, head], s.inputs, s.align_bits)
            shares = np.stack([kernels.softmax(row, s.head, s.inputs) for row in scores])
            values = np.ascontiguousarray(v[:, head * s.head : (head + 1) * s.head].T)
            context.append(to_bf16(matmul(shares, values, s.inputs, s.align_bits)))
        return np.concatenate(context, axis=1)

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        s, weight = self.shape, self.weights[name]
        if s.norm == "rms_norm":
            return kernels.rms_norm(x, weight, s.inputs, s.epsilon)
        return kernels.layer_norm(x, weight, self.weights[f"{name}_bias"], s.inputs, s.epsilon)

    def _product(self, name: str, x: np.ndarray, groups: int = 1) -> np.ndarray:
        """x (T, K) times a matrix (M, K), with the bias if there is one: FP32 bit patterns (T, M).

        Each of `groups` equal parts of K fills whole tiles.
        """
        s, weights = self.shape, self.weights[name]
        size = -(-x.shape[1] // (groups * s.inputs)) * s.inputs
        x, weights = pad(x, 1, groups, size), pad(weights, 1, groups, size)
        if f"{name}_bias" in self.weights:
            x = np.concatenate([x, np.tile(one(s.inputs), (len(x), 1))], axis=1)
            weights = with_bias(weights, self.weights[f"{name}_bias"], s.inputs)
        return matmul(x, weights, s.inputs, s.align_bits)
