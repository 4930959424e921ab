"""Pairs of the fast interpreter and the golden interpreter with equal memories, and random commands for them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compiler.machine.interpreter import FastInterpreter
from golden import bf16
from golden.bf16 import FP32
from golden.core_interpreter import CoreInterpreter, NewToken
from hw.lxe.microcode import Function, Instruction, Post, Pre, Source, Times
from tests.golden.dot_cases import adversarial

SPECIAL = np.array(
    [0, 0x80000000, 1, 0x807FFFFF, 0x00800000, 0x80800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345,
     0x7F812345, 0x3F800000, 0xBF800000, 0x007FFFFF, 0x00800001, 0x3F808000, 0x3F818000, 0x7F7F8000],
    np.uint32,
)  # fmt: skip


@dataclass
class Command:
    name: str
    fields: dict[str, int] = field(default_factory=dict)


class Pair:
    """A fast and a golden interpreter with the same programs and copies of the same memories."""

    def __init__(self, memory: bytes, *, threads: int = 1, host: bytes = bytes(4096), **sizes: Any):
        self.n = sizes["inputs"]
        self.golden = CoreInterpreter([bytearray(memory), bytearray(host)], **sizes)
        self.fast = FastInterpreter([bytearray(memory), bytearray(host)], threads=threads, **sizes)

    def set(self, name: str, value: Any) -> None:
        """Set an attribute of both interpreters."""
        for machine in (self.golden, self.fast):
            setattr(machine, name, list(value) if isinstance(value, list) else value)

    def execute(self, command: Any) -> str:
        """Execute on both and return the message of the error, or an empty string. Both must have the same error."""
        errors = []
        for machine in (self.golden, self.fast):
            try:
                machine.execute(command)
                errors.append("")
            except ValueError as error:
                errors.append(str(error))
        assert errors[0] == errors[1], command
        return errors[0]

    def check(self, note: Any = "") -> None:
        """Assert that all state is equal."""
        golden, fast = self.golden, self.fast
        for side, (expected, got) in enumerate(zip(golden.memories, fast.memories, strict=True)):
            if expected != got:
                different = np.flatnonzero(np.frombuffer(expected, np.uint8) != np.frombuffer(got, np.uint8))
                raise AssertionError(f"memory {side} differs in {len(different)} bytes from {different[0]} on: {note}")
        for name in ("weights", "activations"):
            np.testing.assert_array_equal(getattr(fast, name), getattr(golden, name), err_msg=f"{name} {note}")
        np.testing.assert_array_equal(fast.engine.memory, golden.engine.memory, err_msg=f"vector memory {note}")
        np.testing.assert_array_equal(fast.engine.scalars, golden.engine.scalars, err_msg=f"scalars {note}")
        for slot, (expected, got) in enumerate(zip(golden.sums, fast.sums, strict=True)):
            assert (expected is None) == (got is None), f"sum {slot} {note}"
            if expected is not None:
                np.testing.assert_array_equal(got, expected, err_msg=f"sum {slot} {note}")
        for name in ("products", "gather_position", "step_word", "piece", "new_tokens"):
            assert getattr(fast, name) == getattr(golden, name), (name, note)


def fp32_codes(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """FP32 codes: ordinary numbers, any bits, numbers with one of few exponents, and specials."""
    ordinary = bf16.encode(rng.standard_normal(shape) * 4, FP32)
    bits = rng.integers(0, 1 << 32, shape, dtype=np.uint32)
    near = bits & np.uint32(0x80FFFFFF) | np.uint32(rng.choice([0, 1, 63, 64, 127, 190, 254]) << 23)
    kind = rng.choice(4, shape, p=[0.7, 0.1, 0.15, 0.05])
    return np.choose(kind, [ordinary, bits, near, rng.choice(SPECIAL, shape)]).astype(np.uint32)


def bf16_codes(rng: np.random.Generator, rows: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of rows (rows, n) of BF16 codes, each of a random adversarial case."""
    cases = list(adversarial(rng, n, rows).values())
    kind = rng.integers(0, len(cases), rows)
    first, second = (np.stack([cases[k][side][row] for row, k in enumerate(kind)]) for side in (0, 1))
    return first, second


def instruction(rng: np.random.Generator, rows: int, room: int, stream: bool) -> Instruction:
    """A random instruction for a vector memory of `rows` rows, of at most `room` beats."""

    def pick(kind: Any) -> Any:
        return list(kind)[rng.integers(len(kind))]

    beats = int(rng.integers(1, min(room, 5) + 1))
    count = int(rng.integers(1, room // beats + 1))
    post = pick(Post) if rng.random() < 0.6 else Post.NONE
    steps = {"pre": pick(Pre), "times": pick(Times), "function": pick(Function)}
    if post is Post.ROTATE:
        beats, steps = beats + beats % 2, {"pre": Pre.A, "times": Times.B, "function": Function.NONE}
    b = pick([Source.MEMORY, Source.SCALAR, Source.IMMEDIATE])
    a = Source.STREAM if stream else pick([Source.MEMORY, Source.SCALAR, Source.IMMEDIATE])
    row_of = {Source.MEMORY: rows, Source.SCALAR: 8, Source.IMMEDIATE: 1, Source.STREAM: 1}
    return Instruction(
        **steps, post=post, a=a, b=b, a_row=int(rng.integers(row_of[a])), b_row=int(rng.integers(row_of[b])),
        to_row=int(rng.integers(rows)), c=int(rng.integers(8)), c_immediate=bool(rng.integers(2)),
        to_scalar=int(rng.integers(8)), to_memory=bool(rng.integers(2)), to_stream=bool(rng.integers(2)),
        round=bool(rng.integers(2)), beats=beats, rows=count, tail=int(rng.integers(0, 5)),
        immediate=int(fp32_codes(rng, 1)[0]),
    )  # fmt: skip


def new_tokens(rng: np.random.Generator, tokens: int, heads: int, slots: list[int]) -> list[NewToken]:
    """Tokens of few clusters with counts as clustering gives them; `slots`: first words of free slots."""
    counts: dict[int, int] = {}
    result = []
    for token in range(tokens):
        cluster = int(rng.integers(0, 4))
        counts[cluster] = counts.get(cluster, 0) + 1
        places = slots[token * heads : (token + 1) * heads]
        result.append(NewToken(cluster, counts[cluster] == 1, counts[cluster], places))
    return result
