"""Micro-instructions of the vector engine: their fields and their layout as a word.

An instruction passes `rows` rows of `beats` beats through all lanes. It computes for each element

    v = pre(a, b)       p = v * times       f = function(p)

and for each row `post(f)`. All numbers are FP32 codes. A BF16 number is an FP32 code whose lower 16 bits are 0.
"""

# mypy: disable-error-code="assignment"
# (mypy takes members of Amaranth's enumerations for integers)

import dataclasses
from dataclasses import dataclass

from amaranth import unsigned
from amaranth.lib import data, enum

SCALARS = 8  # scalar registers


class Pre(enum.Enum, shape=unsigned(3)):
    """First step, on the operands a and b."""

    A = 0  # a, unchanged
    ADD = 1  # a + b
    SUB = 2  # a - b
    RSUB = 3  # b - a
    MAX = 4  # the larger of a and b; NaN if one is NaN; subnormals are zero, -0 < +0
    GREATER = 5  # 1 if a > b, else 0; 0 if one is NaN


class Times(enum.Enum, shape=unsigned(2)):
    """Second step: the factor of the result."""

    ONE = 0  # no multiplication: the result is unchanged
    B = 1  # operand b
    C = 2  # scalar c
    SELF = 3  # the result itself: its square


class Function(enum.Enum, shape=unsigned(3)):
    """Third step. All functions except NONE give BF16 numbers."""

    NONE = 0
    EXP = 1  # 2 ** (-floor(p) / 256)
    RECIPROCAL = 2  # 1 / p, p rounded to BF16 first
    RSQRT = 3  # 1 / sqrt(p), p rounded to BF16 first
    SILU = 4  # p / (1 + exp(-p)), p rounded to BF16 first
    DIVIDE = 5  # p / c, rounded once


class Post(enum.Enum, shape=unsigned(3)):
    """Fourth step. SUM, MAX, LAST and PACK reduce a row to one scalar."""

    NONE = 0
    SUM = 1  # each lane adds its beats in order; then lane i adds lane i + n/2, for n = lanes, lanes / 2, .. 2
    MAX = 2  # as Pre.MAX
    LAST = 3  # element of lane 0 in the last beat
    PACK = 4  # bit j is 1 if element j > 0; at most 32 elements
    ROTATE = 5  # pairs of beats (x, y) with b = (cos, sin): (x cos - y sin, y cos + x sin)


class Source(enum.Enum, shape=unsigned(2)):
    """Source of an operand. SCALAR and IMMEDIATE give all lanes the same number."""

    STREAM = 0  # the next beat of the input stream; operand a only
    MEMORY = 1  # rows of the vector memory from `a_row` or `b_row` on
    SCALAR = 2  # scalar register `a_row` or `b_row`
    IMMEDIATE = 3  # the constant of the instruction


REDUCTIONS = (Post.SUM, Post.MAX, Post.LAST, Post.PACK)


def instruction_layout(row_bits: int) -> data.StructLayout:
    """Layout of an instruction for a vector memory of 2**row_bits rows, at least `SCALARS` rows."""
    return data.StructLayout(
        {
            "pre": Pre,
            "times": Times,
            "function": Function,
            "post": Post,
            "a": Source,
            "b": Source,
            "a_row": row_bits,
            "b_row": row_bits,
            "to_row": row_bits,
            "c": range(SCALARS),
            "c_immediate": 1,
            "to_scalar": range(SCALARS),
            "to_memory": 1,
            "to_stream": 1,
            "round": 1,
            "wait": 1,
            "beats": 16,
            "rows": 16,
            "tail": 16,
            "immediate": 32,
        }
    )


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One micro-instruction.

    Attributes
    ----------
    pre, times, function, post : the four steps
    a, b : sources of the operands
    a_row, b_row : first memory row or scalar register of the operands. Operand b starts again at `b_row` with each row
        of the instruction; operand a continues
    c, c_immediate : scalar register that is factor or divisor; the immediate replaces it if `c_immediate`
    to_memory, to_row : the elements go to the vector memory; its first row, which continues over all rows
    to_stream : results go to the output stream: the elements, or for a reduction one beat per row with the scalar in
        lane 0
    to_scalar : register for the result of a reduction
    round : results are rounded to BF16 for memory, stream and register
    wait : the instruction starts when all results before it are in memory, stream and registers
    beats, rows : beats per row (even for ROTATE), rows
    tail : elements of the last beat of a row that take part in reductions; 0: all lanes
    immediate : FP32 code

    Raises
    ------
    ValueError
        For a combination of fields that the vector engine does not support.
    """

    pre: Pre = Pre.A
    times: Times = Times.ONE
    function: Function = Function.NONE
    post: Post = Post.NONE
    a: Source = Source.STREAM
    b: Source = Source.IMMEDIATE
    a_row: int = 0
    b_row: int = 0
    to_row: int = 0
    c: int = 0
    c_immediate: bool = False
    to_scalar: int = 0
    to_memory: bool = False
    to_stream: bool = False
    round: bool = False
    wait: bool = False
    beats: int = 1
    rows: int = 1
    tail: int = 0
    immediate: int = 0

    def __post_init__(self) -> None:
        if self.b is Source.STREAM:
            raise ValueError("b must be MEMORY, SCALAR or IMMEDIATE, got STREAM")
        steps = self.pre, self.times, self.function
        if self.post is Post.ROTATE and steps != (Pre.A, Times.B, Function.NONE):
            raise ValueError(
                f"pre, times, function of ROTATE must be A, B, NONE, got {', '.join(s.name for s in steps)}"
            )
        if self.post is Post.ROTATE and self.beats % 2:
            raise ValueError(f"beats of ROTATE must be even, got {self.beats}")
        for name in ("beats", "rows"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def fields(self) -> dict[str, int]:
        """Value of each field as an integer, for a word of `instruction_layout`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: int(getattr(value, "value", value)) for name, value in values.items()}

    @property
    def results(self) -> int:
        """Beats of the output stream."""
        return self.to_stream * self.rows * (1 if self.post in REDUCTIONS else self.beats)
