"""Micro-instructions of the vector engine: what one of them says, and its layout as a word.

One instruction streams `rows` rows of `beats` beats through all lanes. For every element

    v = pre(a, b)       p = v * times       f = function(p)       and over the row       post(f)

All numbers are FP32 codes; a BF16 number is an FP32 code whose lower half is 0.
"""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

import dataclasses
from dataclasses import dataclass

from amaranth import unsigned
from amaranth.lib import data, enum

SCALARS = 8  # scalar registers


class Pre(enum.Enum, shape=unsigned(3)):
    """First step, on the operands a and b."""

    A = 0  # a, bit for bit
    ADD = 1  # a + b
    SUB = 2  # a - b
    RSUB = 3  # b - a
    MAX = 4  # the larger one; NaN if one is NaN; subnormals are zero, -0 < +0
    GREATER = 5  # 1 where a > b, else 0; NaN is greater than nothing, nor less


class Times(enum.Enum, shape=unsigned(2)):
    """Second step: what the result is multiplied by."""

    ONE = 0  # nothing: passes bit for bit
    B = 1  # operand b
    C = 2  # scalar c
    SELF = 3  # itself


class Function(enum.Enum, shape=unsigned(3)):
    """Third step; results of all but NONE are BF16 numbers."""

    NONE = 0
    EXP = 1  # 2 ** (-floor(p) / 256)
    RECIPROCAL = 2  # 1 / p, p rounded to BF16 first
    RSQRT = 3  # 1 / sqrt(p), p rounded to BF16 first
    SILU = 4  # p / (1 + exp(-p)), p rounded to BF16 first
    DIVIDE = 5  # p / c, rounded once


class Post(enum.Enum, shape=unsigned(3)):
    """Fourth step. SUM, MAX, LAST and PACK reduce a row to one scalar."""

    NONE = 0
    SUM = 1  # every lane over the beats in order; then lane i + lane i + n/2, n = lanes, lanes / 2, .. 2
    MAX = 2  # as Pre.MAX
    LAST = 3  # lane 0 of the last beat
    PACK = 4  # bit j = element j > 0, at most 32 elements
    ROTATE = 5  # pairs of beats (x, y) with b = (cos, sin): (x cos - y sin, y cos + x sin)


class Source(enum.Enum, shape=unsigned(2)):
    """Where an operand comes from; the last two are the same in every lane."""

    STREAM = 0  # the next beat of the input stream; operand a only
    MEMORY = 1  # row `a_row` or `b_row` and the following ones
    SCALAR = 2  # scalar register `a_row` or `b_row`
    IMMEDIATE = 3  # the instruction's constant


REDUCTIONS = (Post.SUM, Post.MAX, Post.LAST, Post.PACK)


def instruction_layout(row_bits: int) -> data.StructLayout:
    """Layout of an instruction for a vector memory of 2**row_bits rows (at least as many as scalar registers)."""
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
    a, b : sources of the operands; a_row, b_row : their first memory row or scalar register. Operand b starts again at
        `b_row` with every row of the instruction, operand a goes on
    c, c_immediate : scalar register of factor or divisor, or the immediate instead
    to_memory, to_row : whether the elements go to the vector memory, and its first row (goes on over all rows)
    to_stream : whether results leave: the elements, or of a reduction one beat per row with the scalar in lane 0
    to_scalar : register that a reduction's result goes to
    round : results are rounded to BF16 on their way to memory, stream and register
    wait : starts after everything before has reached memory, stream and registers
    beats, rows : beats per row (even for ROTATE), rows
    tail : elements of a row's last beat that take part in reductions; 0: all lanes
    immediate : FP32 code
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
            raise ValueError("b = STREAM: must be MEMORY, SCALAR or IMMEDIATE")
        steps = self.pre, self.times, self.function
        if self.post is Post.ROTATE and steps != (Pre.A, Times.B, Function.NONE):
            raise ValueError(f"steps {', '.join(s.name for s in steps)}: ROTATE needs A, B, NONE")
        if self.post is Post.ROTATE and self.beats % 2:
            raise ValueError(f"beats = {self.beats}: ROTATE needs pairs")
        if self.beats < 1 or self.rows < 1:
            raise ValueError(f"beats = {self.beats}, rows = {self.rows}: must be at least 1")

    def fields(self) -> dict[str, int]:
        """Every field as an integer, for packing into a word of `instruction_layout`."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: int(getattr(value, "value", value)) for name, value in values.items()}

    @property
    def results(self) -> int:
        """Beats that leave on the output stream."""
        return self.to_stream * self.rows * (1 if self.post in REDUCTIONS else self.beats)
