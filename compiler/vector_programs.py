"""Programs of the vector engine.

Each function returns the instructions for vectors of a given length on an engine with `lanes` lanes. A vector of n
elements takes ceil(n / lanes) beats; unused elements of the last beat are ignored. Constants are FP32 codes in the
instructions.
"""

# mypy: disable-error-code="arg-type"
# (to mypy, members of Amaranth's enumerations are integers)

import math
import struct

from hw.lxe.microcode import Function, Instruction, Post, Pre, Source, Times
from hw.lxe.vpe_lane import STAGES

Program = list[Instruction]
MEMORY, SCALAR, IMMEDIATE = Source.MEMORY, Source.SCALAR, Source.IMMEDIATE


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
    total, estimate, product = 1, 2, 3
    return [
        *_load_with_maximum(shape),
        _exponential(shape, head_dim, to_memory=True, post=Post.SUM, to_scalar=total),
        _scalar(total, estimate, function=Function.RECIPROCAL),
        _scalar(total, product, times=Times.C, c=estimate),
        _scalar(product, estimate, pre=Pre.RSUB, immediate=code(2), times=Times.C, c=estimate),
        Instruction(a=MEMORY, times=Times.C, c=estimate, round=True, to_stream=True, wait=True, **shape),
    ]


def rms_norm(n: int, lanes: int, vectors: int = 1, epsilon: float = 1e-5) -> Program:
    """x / sqrt(mean(x**2) + epsilon) * weight, BF16. In: the weights, then the vectors. Out: the vectors.

    The reciprocal square root comes from a table and is refined by one Newton step, r (3 - m r r) / 2.
    """
    shape = extent(n, lanes)
    x_row = shape["beats"]
    mean, estimate, work, share, half = 0, 1, 2, 3, 4
    program = [
        Instruction(to_memory=True, **shape),
        _constant(1 / n, share),
        _constant(0.5, half),
    ]
    for _ in range(vectors):
        program += [
            Instruction(to_memory=True, to_row=x_row, **shape),
            Instruction(
                a=MEMORY,
                a_row=x_row,
                times=Times.SELF,
                post=Post.SUM,
                to_scalar=mean,
                wait=shape["beats"] < STAGES,
                **shape,
            ),
            Instruction(
                a=MEMORY, a_row=x_row, b=MEMORY, times=Times.B, to_memory=True, to_row=x_row, **shape
            ),  # times the weights
            _scalar(mean, mean, pre=Pre.ADD, immediate=code(n * epsilon), times=Times.C, c=share),
            _scalar(mean, estimate, function=Function.RSQRT),
            _scalar(estimate, work, times=Times.SELF),
            _scalar(work, work, times=Times.C, c=mean),
            _scalar(work, work, pre=Pre.RSUB, immediate=code(3), times=Times.C, c=estimate),
            _scalar(work, estimate, times=Times.C, c=half),
            Instruction(
                a=MEMORY, a_row=x_row, times=Times.C, c=estimate, round=True, to_stream=True, wait=True, **shape
            ),
        ]
    return program


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


def _load_with_maximum(shape: dict[str, int]) -> Program:
    """Load the row from the stream into memory and its maximum into scalar 0."""
    return [Instruction(post=Post.MAX, to_scalar=0, to_memory=True, **shape)]


def _exponential(shape: dict[str, int], head_dim: int, **changes: object) -> Instruction:
    """Exponentials of the row in memory minus scalar 0."""
    if head_dim < 1:
        raise ValueError(f"head_dim must be at least 1, got {head_dim}")
    return Instruction(
        pre=Pre.RSUB,
        a=MEMORY,
        b=SCALAR,
        times=Times.C,
        c_immediate=True,
        immediate=code(math.log2(math.e) * 256 / math.sqrt(head_dim)),
        function=Function.EXP,
        wait=True,
        **shape,
        **changes,
    )


def _scalar(source: int, target: int, **steps: object) -> Instruction:
    """One step on a scalar register."""
    return Instruction(a=SCALAR, a_row=source, post=Post.LAST, to_scalar=target, wait=True, **steps)


def _constant(value: float, target: int) -> Instruction:
    return Instruction(a=IMMEDIATE, immediate=code(value), post=Post.LAST, to_scalar=target)
