"""Programs of the vector engine.

Each function returns the instructions for vectors of a given length on an engine with `lanes` lanes. A vector of n
elements takes ceil(n / lanes) beats; unused elements of the last beat are ignored. Constants are FP32 codes in the
instructions.
"""

# mypy: disable-error-code="arg-type"
# (to mypy, members of Amaranth's enumerations are integers)

import math
import struct

from golden.vector_kernels import ACTIVATIONS, GELU_TERMS, QUICK_GELU
from hw.lxe.microcode import Function, Instruction, Post, Pre, Source, Times
from hw.lxe.vpe_lane import STAGES
from util import checks

Program = list[Instruction]
MEMORY, SCALAR, IMMEDIATE = Source.MEMORY, Source.SCALAR, Source.IMMEDIATE
TOTAL, ESTIMATE = 1, 2  # scalar registers of the softmax programs: sum of a row and its reciprocal
SQUARES = 0  # scalar register of the norms: sum of squares


def code(value: float) -> int:
    """FP32 code nearest to a number."""
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


def extent(n: int, lanes: int) -> dict[str, int]:
    """Beats and tail of a vector of `n` elements."""
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    return {"beats": -(-n // lanes), "tail": n % lanes}


def exponentials(n: int, lanes: int, head_dim: int) -> Program:
    """exp((S - max) / sqrt(head_dim)) of a row of n scores, BF16. In: the row. Out: the row."""
    shape = extent(n, lanes)
    return [*_load_with_maximum(shape), _exponential(shape, head_dim, to_stream=True)]


def softmax(n: int, lanes: int, head_dim: int) -> Program:
    """softmax(S / sqrt(head_dim)) of a row of n scores, BF16. In: the row. Out: the row.

    The reciprocal of the sum comes from a table and is refined by one Newton step, r (2 - s r).
    """
    shape = extent(n, lanes)
    return [
        *_load_with_maximum(shape),
        _exponential(shape, head_dim, to_memory=True, post=Post.SUM, to_scalar=TOTAL),
        *_reciprocal_of_sum(),
        Instruction(a=MEMORY, times=Times.C, c=ESTIMATE, round=True, to_stream=True, wait=True, **shape),
    ]


def long_exponentials(n: int, lanes: int, head_dim: int) -> Program:
    """As `exponentials`, for rows of any length. In: the row twice. Out: the row."""
    shape = extent(n, lanes)
    return [
        Instruction(post=Post.MAX, to_scalar=0, **shape),
        _exponential(shape, head_dim, a=Source.STREAM, to_stream=True),
    ]


def divide_by_sum(n: int, lanes: int) -> Program:
    """x / sum(x), BF16: the softmax of a row of any length, of its exponentials. In: the row twice. Out: the row."""
    shape = extent(n, lanes)
    return [
        Instruction(post=Post.SUM, to_scalar=TOTAL, **shape),
        *_reciprocal_of_sum(),
        Instruction(times=Times.C, c=ESTIMATE, round=True, to_stream=True, wait=True, **shape),
    ]


def first_row(n: int, lanes: int) -> Program:
    """Load a row of FP32 numbers for `add_row`. In: the row. Out: nothing."""
    return [Instruction(to_memory=True, **extent(n, lanes))]


def add_row(n: int, lanes: int) -> Program:
    """Add a row of FP32 numbers to that of `first_row`. In: the row. Out: nothing."""
    return [Instruction(pre=Pre.ADD, b=MEMORY, to_memory=True, wait=True, **extent(n, lanes))]


def times_row(n: int, lanes: int) -> Program:
    """Product with the row of `first_row`, element by element, BF16. In: a row. Out: the row."""
    return [Instruction(b=MEMORY, times=Times.B, round=True, to_stream=True, wait=True, **extent(n, lanes))]


def sum_of_rows(n: int, lanes: int, wide: bool = False) -> Program:
    """The sum of the rows of `first_row` and `add_row`, and of one more, BF16 or `wide`: FP32. In: the row. Out: it."""
    return [Instruction(pre=Pre.ADD, b=MEMORY, round=not wide, to_stream=True, wait=True, **extent(n, lanes))]


def marks(n: int, lanes: int, sharpness: float) -> Program:
    """exp2((x - max) * sharpness / 256) of a row, BF16: 1 for its largest elements, 0 for elements that are smaller by
    127 * 256 / sharpness or more. In: the row twice. Out: the row."""
    shape = extent(n, lanes)
    return [
        Instruction(post=Post.MAX, to_scalar=0, **shape),
        Instruction(pre=Pre.RSUB, b=SCALAR, times=Times.C, c_immediate=True, immediate=code(sharpness),
                    function=Function.EXP, to_stream=True, wait=True, **shape),
    ]  # fmt: skip


def add_multiple(n: int, lanes: int, factor: float) -> Program:
    """factor * x + y, FP32. In: x, y. Out: the sum."""
    shape = extent(n, lanes)
    return [
        Instruction(times=Times.C, c_immediate=True, immediate=code(factor), to_memory=True, **shape),
        Instruction(pre=Pre.ADD, b=MEMORY, to_stream=True, wait=True, **shape),
    ]


def difference_from(n: int, lanes: int, value: float) -> Program:
    """Load value - x of a row of FP32 numbers for `add_row`. In: the row. Out: nothing."""
    return [Instruction(pre=Pre.RSUB, immediate=code(value), to_memory=True, **extent(n, lanes))]


def rms_factor(n: int, lanes: int, epsilon: float = 1e-5) -> Program:
    """1 / sqrt(mean(x**2) + epsilon) of a vector. In: the vector. Out: a beat with the FP32 number in lane 0.

    The vector can be longer than the vector memory. The reciprocal square root comes from a table and is refined by one
    Newton step, r (3 - m r r) / 2.
    """
    return [
        Instruction(times=Times.SELF, post=Post.SUM, to_scalar=SQUARES, **extent(n, lanes)),
        *_rsqrt_of_mean(n, epsilon),
    ]


def layer_factors(n: int, lanes: int, epsilon: float) -> Program:
    """Mean of a vector and 1 / sqrt(mean((x - mean)**2) + epsilon).

    In: the vector twice. Out: a beat with the mean and a beat with the factor, FP32 numbers in lane 0.

    The vector can be longer than the vector memory. The reciprocal square root is that of `rms_factor`.
    """
    shape, share, mean = extent(n, lanes), 5, 6
    return [
        Instruction(post=Post.SUM, to_scalar=mean, **shape),
        _constant(1 / n, share),
        _scalar(mean, mean, times=Times.C, c=share, to_stream=True),
        Instruction(
            b=SCALAR, b_row=mean, pre=Pre.SUB, times=Times.SELF, post=Post.SUM, to_scalar=SQUARES, wait=True, **shape
        ),
        *_rsqrt_of_mean(n, epsilon),
    ]


def rms_scale(n: int, lanes: int, vectors: int = 1) -> Program:
    """x * weight * factor, BF16: with the factors of `rms_factor` the RMSNorm of vectors or of pieces of them.

    In: the weights, then for each vector a beat with its factor in lane 0 and the vector. Out: the vectors.
    """
    shape = extent(n, lanes)
    product_row, factor, wait = shape["beats"], 0, shape["beats"] < STAGES
    program = [Instruction(to_memory=True, **shape)]
    for _ in range(vectors):
        program += [
            Instruction(post=Post.LAST, to_scalar=factor),
            Instruction(b=MEMORY, times=Times.B, to_memory=True, to_row=product_row, wait=wait, **shape),
            Instruction(
                a=MEMORY, a_row=product_row, times=Times.C, c=factor, round=True, to_stream=True, wait=wait, **shape
            ),
        ]
    return program


def layer_parameters(n: int, lanes: int) -> Program:
    """Load weights and biases of a LayerNorm for `layer_scale`. In: the weights, the biases. Out: nothing."""
    shape = extent(n, lanes)
    return [Instruction(to_memory=True, **shape), Instruction(to_memory=True, to_row=shape["beats"], **shape)]


def layer_scale(n: int, lanes: int) -> Program:
    """(x - mean) * factor * weight + bias, BF16: with the numbers of `layer_factors` the LayerNorm of a vector or of a
    piece of it, whose weights and biases `layer_parameters` has loaded.

    In: a beat with the mean and a beat with the factor, in lane 0; the vector. Out: the vector.
    """
    shape, mean, factor = extent(n, lanes), 0, 1
    bias_row, row, wait = shape["beats"], 2 * shape["beats"], shape["beats"] < STAGES
    return [
        Instruction(post=Post.LAST, to_scalar=mean),
        Instruction(post=Post.LAST, to_scalar=factor),
        Instruction(
            b=SCALAR, b_row=mean, pre=Pre.SUB, times=Times.C, c=factor, to_memory=True, to_row=row, wait=True, **shape
        ),
        Instruction(a=MEMORY, a_row=row, b=MEMORY, times=Times.B, to_memory=True, to_row=row, wait=wait, **shape),
        Instruction(
            a=MEMORY, a_row=row, b=MEMORY, b_row=bias_row, pre=Pre.ADD, round=True, to_stream=True, wait=wait, **shape
        ),
    ]


def rope(head_dim: int, lanes: int, vectors: int = 1) -> Program:
    """RoPE rotation of vectors, BF16. The angles of a position difference re-rotate keys in place.

    In: pairs of beats (cosines, sines), then vectors as pairs of beats (elements of the lower half, elements of the
    upper half); each half fills whole beats. Out: vectors in the same order.
    """
    if head_dim % 2 or (head_dim // 2) % lanes:
        raise ValueError(f"head_dim must be a multiple of {2 * lanes} (two beats of {lanes} lanes), got {head_dim}")
    beats = head_dim // lanes
    return [
        Instruction(to_memory=True, beats=beats),
        Instruction(
            b=MEMORY, times=Times.B, post=Post.ROTATE, round=True, to_stream=True, wait=True, beats=beats, rows=vectors
        ),
    ]


def hash_bits(bits: int, lanes: int, tokens: int = 1) -> Program:
    """Hash codes of tokens: bit j says whether projection j is positive. In: projections. Out: a code per token."""
    return [Instruction(post=Post.PACK, to_stream=True, rows=tokens, **extent(bits, lanes))]


def key_norms(n: int, lanes: int, tokens: int = 1) -> Program:
    """Squared norms of keys of n elements, BF16. In: the keys. Out: a number per key."""
    return [Instruction(times=Times.SELF, post=Post.SUM, round=True, to_stream=True, rows=tokens, **extent(n, lanes))]


def running_mean(n: int, lanes: int, old_count: int, members: int) -> Program:
    """Mean of a cluster after `members` more, BF16: (mean * old_count + member + ..) / new_count, one rounding to BF16.

    In: the mean (zeros for a new cluster), then the members in order of arrival. Out: the new mean.
    """
    if old_count < 0 or members < 1:
        raise ValueError(f"old_count and members must be at least 0 and 1, got {old_count} and {members}")
    shape = extent(n, lanes)
    wait = shape["beats"] < STAGES
    add = Instruction(pre=Pre.ADD, b=MEMORY, to_memory=True, wait=wait, **shape)
    return [
        Instruction(times=Times.C, c_immediate=True, immediate=code(old_count), to_memory=True, **shape),
        *[add] * members,
        Instruction(
            a=MEMORY,
            function=Function.DIVIDE,
            c_immediate=True,
            immediate=code(old_count + members),
            to_stream=True,
            wait=wait,
            **shape,
        ),
    ]


def gated(n: int, lanes: int) -> Program:
    """SiLU(gate) * up, BF16, the middle of a SwiGLU block. In: gate, up. Out: the product."""
    shape = extent(n, lanes)
    return [
        Instruction(function=Function.SILU, to_memory=True, **shape),
        Instruction(b=MEMORY, times=Times.B, round=True, to_stream=True, wait=shape["beats"] < STAGES, **shape),
    ]


def activation(name: str, n: int, lanes: int) -> Program:
    """Activation function `name` of `golden.vector_kernels.ACTIVATIONS`, BF16. In: the vector. Out: the vector.

    quick_gelu(x) = SiLU(1.702 x) / 1.702. The other two are SiLU(x w) / w with w = a + b x**2.
    """
    checks.one_of("activation", name, ACTIVATIONS)
    shape = extent(n, lanes)
    wait = shape["beats"] < STAGES
    if name == "quick_gelu":
        scale = {"times": Times.C, "c_immediate": True}
        return [
            Instruction(function=Function.SILU, immediate=code(QUICK_GELU), to_memory=True, **scale, **shape),
            Instruction(
                a=MEMORY, immediate=code(1 / QUICK_GELU), round=True, to_stream=True, wait=wait, **scale, **shape
            ),
        ]
    (a, b), factor, w = GELU_TERMS[name], 0, shape["beats"]  # x is in row 0, w in row `w`
    to_w = {"to_memory": True, "to_row": w, "wait": wait, **shape}
    return [
        _constant(b, factor),
        Instruction(to_memory=True, **shape),
        Instruction(a=MEMORY, times=Times.SELF, **to_w),
        Instruction(a=MEMORY, a_row=w, pre=Pre.ADD, immediate=code(a / b), times=Times.C, c=factor, **to_w),
        Instruction(a=MEMORY, b=MEMORY, b_row=w, times=Times.B, function=Function.SILU, to_memory=True, wait=wait,
                    **shape),
        Instruction(a=MEMORY, a_row=w, function=Function.RECIPROCAL, **to_w),
        Instruction(a=MEMORY, b=MEMORY, b_row=w, times=Times.B, round=True, to_stream=True, wait=wait, **shape),
    ]  # fmt: skip


def _load_with_maximum(shape: dict[str, int]) -> Program:
    """Load the row from the stream into memory and its maximum into scalar 0."""
    return [Instruction(post=Post.MAX, to_scalar=0, to_memory=True, **shape)]


def _exponential(shape: dict[str, int], head_dim: int, **changes: object) -> Instruction:
    """Exponentials of a row minus scalar 0; the row is in memory unless `changes` name another source."""
    if head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    return Instruction(
        pre=Pre.RSUB,
        b=SCALAR,
        times=Times.C,
        c_immediate=True,
        immediate=code(math.log2(math.e) * 256 / math.sqrt(head_dim)),
        function=Function.EXP,
        wait=True,
        **shape,
        **({"a": MEMORY} | changes),
    )


def _reciprocal_of_sum() -> Program:
    """Reciprocal of scalar `TOTAL` in scalar `ESTIMATE`."""
    product = 3
    return [
        _scalar(TOTAL, ESTIMATE, function=Function.RECIPROCAL),
        _scalar(TOTAL, product, times=Times.C, c=ESTIMATE),
        _scalar(product, ESTIMATE, pre=Pre.RSUB, immediate=code(2), times=Times.C, c=ESTIMATE),
    ]


def _rsqrt_of_mean(n: int, epsilon: float) -> Program:
    """1 / sqrt(scalar `SQUARES` / n + epsilon) to the output stream; one Newton step r (3 - m r r) / 2."""
    mean, estimate, work, share, half = SQUARES, 1, 2, 3, 4
    return [
        _constant(1 / n, share),
        _constant(0.5, half),
        _scalar(mean, mean, pre=Pre.ADD, immediate=code(n * epsilon), times=Times.C, c=share),
        _scalar(mean, estimate, function=Function.RSQRT),
        _scalar(estimate, work, times=Times.SELF),
        _scalar(work, work, times=Times.C, c=mean),
        _scalar(work, work, pre=Pre.RSUB, immediate=code(3), times=Times.C, c=estimate),
        _scalar(work, estimate, times=Times.C, c=half, to_stream=True),
    ]


def _scalar(source: int, target: int, **steps: object) -> Instruction:
    """One step on a scalar register."""
    return Instruction(a=SCALAR, a_row=source, post=Post.LAST, to_scalar=target, wait=True, **steps)


def _constant(value: float, target: int) -> Instruction:
    return Instruction(a=IMMEDIATE, immediate=code(value), post=Post.LAST, to_scalar=target)


def residual(n: int, lanes: int) -> list[Instruction]:
    """x + y, BF16. In: x, y. Out: the sum."""
    shape = extent(n, lanes)
    wait = shape["beats"] < STAGES
    return [
        Instruction(to_memory=True, **shape),
        Instruction(b=Source.MEMORY, pre=Pre.ADD, round=True, to_stream=True, wait=wait, **shape),
    ]


def row_maximum(n: int, lanes: int) -> Program:
    """Maximum of a row of n elements of any length, in scalar 0. In: the row."""
    return [Instruction(post=Post.MAX, to_scalar=0, **extent(n, lanes))]


def rank_of_maximum(n: int, lanes: int) -> Program:
    """The largest rank among the elements that equal scalar 0; the elements are at most scalar 0, the ranks positive.

    In: the elements, then their ranks. Out: a beat with the rank in lane 0; it is negative if no element is equal.
    An element that is smaller by less than 2**-102 counts as equal.
    """
    shape = extent(n, lanes)
    penalty = {"times": Times.C, "c_immediate": True, "immediate": code(2.0**126)}
    return [
        Instruction(pre=Pre.SUB, b=SCALAR, to_memory=True, wait=True, **penalty, **shape),
        Instruction(pre=Pre.ADD, b=MEMORY, post=Post.MAX, to_scalar=1, to_stream=True, wait=True, **shape),
    ]


def maximum_of_beats(beats: int) -> Program:
    """Maximum of all elements of `beats` beats. In: the beats. Out: a beat with the maximum in lane 0."""
    return [Instruction(post=Post.MAX, to_scalar=0, to_stream=True, beats=beats)]


def average(n: int, lanes: int) -> Program:
    """Sum / count, BF16, rounded once. In: a beat with the count in lane 0, the sums. Out: the averages.

    The vector can be longer than the vector memory.
    """
    count = 0
    return [
        Instruction(post=Post.LAST, to_scalar=count),
        Instruction(function=Function.DIVIDE, c=count, to_stream=True, wait=True, **extent(n, lanes)),
    ]


def copy() -> Program:
    """A beat, unchanged. In: the beat. Out: the beat."""
    return [Instruction(to_stream=True)]
