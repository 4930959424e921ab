"""Programs of the vector engine for the state-space branch; the numerics are those of `golden.state_space`.

A program keeps its constants and its state in the vector memory from one repetition to the next, as the norms do with
their weights. A program that loads them comes first, on the same core. Sizes are in beats of one word each.
"""

# mypy: disable-error-code="arg-type"

from compiler.vector_programs import IMMEDIATE, MEMORY, Program, code
from golden.state_space import LOG1P, LOG2_STEPS, LOWEST, SQUARINGS
from hw.lxe.microcode import Function, Instruction, Post, Pre, Times
from hw.lxe.vpe_lane import STAGES

HALF = 0  # scalar register of the scan
STEP_TERMS = 3  # beats of a token and channel word that the scan reads: step, scaled input, path around the scan


def rows_of_convolution(piece: int, width: int) -> int:
    """Rows of the vector memory that the convolution of `piece` words uses."""
    return (3 * width + 1) * piece


def rows_of_steps(piece: int) -> int:
    """Rows of the vector memory that `steps` uses."""
    return 6 * piece


def rows_of_scan(states: int) -> int:
    """Rows of the vector memory that the scan uses."""
    return 3 * states + STEP_TERMS


def load(beats: int, row: int = 0) -> Program:
    """Load rows into the vector memory. In: the rows. Out: nothing."""
    return [Instruction(to_memory=True, to_row=row, beats=beats)]


def push(piece: int, width: int) -> Program:
    """Advance the window of the convolution by one token. In: its inputs. Out: nothing."""
    window = (width + 1) * piece
    kept = [] if width == 1 else [_from(window + piece, (width - 1) * piece, to_memory=True, to_row=window, wait=True)]
    return [*kept, Instruction(to_memory=True, to_row=window + (width - 1) * piece, beats=piece)]


def convolution(piece: int, width: int) -> Program:
    """SiLU of the causal convolution of a token, BF16. `load` has loaded the taps, the oldest first, and the bias.

    In: inputs of the token. Out: the result.
    """
    bias, window, products = width * piece, (width + 1) * piece, (2 * width + 1) * piece
    size = width * piece
    return [
        *push(piece, width),
        _from(window, size, b=MEMORY, b_row=0, times=Times.B, to_memory=True, to_row=products, wait=True),
        *_fold(products, width, piece),
        _from(products, piece, pre=Pre.ADD, b=MEMORY, b_row=bias, function=Function.SILU, to_stream=True, wait=True),
    ]


def steps(piece: int) -> Program:
    """Terms of the scan for one token: step, step * input, skip * input of one channel word after the other, FP32.

    `load` has loaded the weights `skip`. In: step projections with bias, inputs. Out: the terms.
    """
    raw, positive, total, u, x = (k * piece for k in range(1, 6))

    def work(row: int, to_row: int, **fields: object) -> Instruction:
        return _from(row, piece, to_memory=True, to_row=to_row, wait=True, **fields)

    def by(factor: float) -> dict[str, object]:
        return {"times": Times.C, "c_immediate": True, "immediate": code(factor)}

    series = [work(u, total, **by(LOG1P[3]))]
    for coefficient in LOG1P[2::-1]:
        series += [
            work(total, total, pre=Pre.ADD, immediate=code(coefficient)),
            work(total, total, times=Times.B, b=MEMORY, b_row=u),
        ]
    step, scaled, around = raw, u, total
    return [
        Instruction(to_memory=True, to_row=raw, beats=piece),
        Instruction(to_memory=True, to_row=x, beats=piece),
        work(raw, positive, pre=Pre.MAX, immediate=code(0)),
        work(raw, total, **by(-1)),
        work(raw, u, pre=Pre.MAX, b=MEMORY, b_row=total, function=Function.EXP, **by(LOG2_STEPS)),
        *series,
        work(total, step, pre=Pre.ADD, b=MEMORY, b_row=positive),
        work(x, scaled, times=Times.B, b=MEMORY, b_row=step),
        work(x, around, times=Times.B, b=MEMORY, b_row=0),
        *[
            _from(row + word, 1, to_stream=True, wait=row + word == step)
            for word in range(piece)
            for row in (step, scaled, around)
        ],
    ]


def scan(states: int) -> Program:
    """Advance the state of one channel word by one token.

    `load` has loaded the scaled decay rates and the state. In: the terms of `steps`; B and C of the token, one beat per
    state. Out: h c + skip * input, FP32.
    """
    decay, state, work, terms = 0, states, 2 * states, 3 * states
    wait = states < STAGES

    def to_work(**fields: object) -> Instruction:
        return _from(work, states, to_memory=True, to_row=work, wait=wait, **fields)

    return [
        Instruction(a=IMMEDIATE, immediate=code(0.5), post=Post.LAST, to_scalar=HALF),
        Instruction(to_memory=True, to_row=terms, beats=STEP_TERMS),
        Instruction(a=MEMORY, a_row=decay, rows=states, b=MEMORY, b_row=terms, times=Times.B, to_memory=True,
                    to_row=work, wait=True),
        to_work(pre=Pre.MAX, immediate=code(LOWEST)),
        to_work(pre=Pre.ADD, immediate=code(1), times=Times.SELF),
        to_work(pre=Pre.ADD, immediate=code(1), times=Times.C, c=HALF),
        *[to_work(times=Times.SELF)] * SQUARINGS,
        _from(state, states, b=MEMORY, b_row=work, times=Times.B, to_memory=True, to_row=state, wait=True),
        Instruction(rows=states, b=MEMORY, b_row=terms + 1, times=Times.B, to_memory=True, to_row=work),
        _from(state, states, pre=Pre.ADD, b=MEMORY, b_row=work, to_memory=True, to_row=state, wait=True),
        Instruction(beats=states, b=MEMORY, b_row=state, times=Times.B, to_memory=True, to_row=work, wait=True),
        *_fold(work, states, 1),
        _from(work, 1, pre=Pre.ADD, b=MEMORY, b_row=terms + 2, to_stream=True, wait=True),
    ]  # fmt: skip


def state_of_scan(states: int) -> Program:
    """The state of a channel word, FP32. In: a beat, which is ignored. Out: the state."""
    return [Instruction(), _from(states, states, to_stream=True, wait=True)]


def running_sum() -> Program:
    """Sum of all tokens so far, FP32. `load` has loaded the sum before. In: a beat of the token. Out: the sum."""
    return [Instruction(pre=Pre.ADD, b=MEMORY, to_memory=True, to_stream=True, wait=True)]


def _from(row: int, beats: int, **fields: object) -> Instruction:
    """An instruction on rows of the vector memory."""
    return Instruction(a=MEMORY, a_row=row, beats=beats, **fields)


def _fold(first: int, rows: int, piece: int) -> Program:
    """Sum of `rows` rows of `piece` beats, in the first one: as `golden.state_space.fold_rows`."""
    program: Program = []
    while rows > 1:
        half = rows // 2
        program.append(
            _from(first, half * piece, pre=Pre.ADD, b=MEMORY, b_row=first + (rows - half) * piece, to_memory=True,
                  to_row=first, wait=True)
        )  # fmt: skip
        rows -= half
    return program
