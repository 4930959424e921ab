"""Commands of the VECTOR unit with their run-time length, and the helpers that the three engines of the unit share."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Sequence

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream

from hw.axi.ports import WORD_ADDRESS_BITS
from hw.core.isa import BY_NAME, STRIDE
from hw.core.lengths import LENGTH_BITS
from hw.lxe.microcode import Instruction, Source, instruction_layout

INSTRUCTION_BYTES = 16  # size of one instruction in memory

# A VECTOR or MEANS command whose length is resolved.
VECTOR_COMMAND = data.StructLayout(
    {
        **{f.name: f.bits for f in BY_NAME["VECTOR"].fields},
        "is_means": 1,  # the command is MEANS, the fields of VECTOR are not valid
        "keys": WORD_ADDRESS_BITS,  # MEANS: word address of the first token's key
        "key_stride": STRIDE,  # MEANS: words from one token's key to the next
        "elements": LENGTH_BITS,  # elements of the first row
        "padded_beats": LENGTH_BITS,  # beats of an output row with its zero padding
    }
)


def assemble(program: Sequence[Instruction], rows: int, *, varies: bool = False) -> bytes:
    """Machine code of a program for the vector engine.

    Parameters
    ----------
    program : instructions in order
    rows : rows of the vector memory
    varies : True: instructions that read the input stream or the vector memory take the length of the command's row;
        they are encoded with 0 beats
    """
    layout = instruction_layout((rows - 1).bit_length())
    code = b""
    for op in program:
        word = layout.const(op.fields()).as_bits()
        if varies and op.a in (Source.STREAM, Source.MEMORY):
            for name in ("beats", "tail"):
                word &= ~(0xFFFF << layout[name].offset)
        code += word.to_bytes(INSTRUCTION_BYTES, "little")
    return code


def to_fp32(m: Module, name: str, count: Value) -> Signal:
    """FP32 code of an unsigned integer."""
    code = Signal(32, name=name)
    width = len(count)
    m.d.comb += code.eq(0)
    for top in range(width):
        with m.If(count[top]):
            m.d.comb += code.eq(Cat(Const(0, 23 - top), count[:top], Const(127 + top, 8)))
    return code


def hold_command(m: Module, source: stream.Interface) -> tuple[data.View, Signal, Signal]:
    """Register for the current command of an engine.

    Returns the command, `busy` (the engine executes it; the engine clears this register) and `start` (the next command
    is accepted in this cycle).
    """
    command, busy, start = Signal(VECTOR_COMMAND, name="command_register"), Signal(name="busy"), Signal(name="start")
    m.d.comb += [source.ready.eq(~busy), start.eq(source.valid & source.ready)]
    with m.If(start):
        m.d.sync += [command.eq(source.payload), busy.eq(1)]
    return command, busy, start


def row_length(m: Module, command: data.View, start: Value, row_done: Value, width: int) -> tuple[Value, Value]:
    """Length of the current row: its beats, and the elements of its last beat (0: all lanes).

    `row_done` advances to the next row. With the field `group` the row grows by one element every `group` rows.
    """
    row_in_group, beats = Signal(8, name="row_in_group"), Signal(LENGTH_BITS, name="row_beats")
    grows, shift = Signal(), width.bit_length() - 1
    m.d.comb += [
        beats.eq((command.elements + (width - 1)) >> shift),
        grows.eq(row_done & (command.group != 0) & (row_in_group + 1 == command.group)),
    ]
    with m.If(start | grows):
        m.d.sync += row_in_group.eq(0)
    with m.Elif(row_done):
        m.d.sync += row_in_group.eq(row_in_group + 1)
    with m.If(grows):
        m.d.sync += command.elements.eq(command.elements + 1)
    return beats, command.elements[:shift]
