"""The instruction set of the core. From this one table come decoder, assembler, disassembler and document.

A command is 64 bytes. Its first 32 bits are the same in all: opcode, and for every event which of the commands before
this one must have had it when this one starts. The rest are the fields of the opcode, packed from bit 32 on, lowest
first. Addresses and lengths in memory are words: as many BF16 numbers as the matrix engine has
inputs. Commands of one unit run in order; those of different units only wait where they say so.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

COMMAND_BYTES = 64
HEADER_BITS = 32
OPCODE_BITS = 8
WAIT_BITS = 4


class ExecUnit(enum.IntEnum):
    """What executes commands."""

    LOAD = 0  # memory to operand memory
    MATRIX = 1  # the matrix engine
    VECTOR = 2  # the vector engine
    RETRIEVAL = 3  # the KV prediction unit
    COPY = 4  # memory to memory


class SyncEvent(enum.IntEnum):
    """What commands wait for; the number is its place among the waits.

    A unit's own event is that a command of it is complete: memory has acknowledged everything that it wrote.
    """

    LOAD = ExecUnit.LOAD
    MATRIX = ExecUnit.MATRIX
    VECTOR = ExecUnit.VECTOR
    RETRIEVAL = ExecUnit.RETRIEVAL
    COPY = ExecUnit.COPY
    OPERANDS = 5  # a command of MATRIX has read its operands: others may take their places

    @property
    def unit(self) -> ExecUnit:
        """Whose commands have it."""
        return ExecUnit.MATRIX if self is SyncEvent.OPERANDS else ExecUnit(self)


MAX_WAIT = (1 << WAIT_BITS) - 1


def all_but(newest: int = 0) -> int:
    """The wait for all earlier commands with an event, but for the `newest` ones; 0 waits for nothing.

    No more than 14 can be left out: with a larger number the command waits for some of them, too.
    """
    return min(1 + newest, MAX_WAIT)


class LengthSource(enum.IntEnum):
    """Where a length comes from that the program does not know; the field `extra` is added to it."""

    CONSTANT = 0
    CLUSTERS = 1  # clusters in the HC table
    TOKENS = 2  # past tokens that the KV head of the field `head` attends to


class Destination(enum.IntEnum):
    """Where the results of a vector command go."""

    MEMORY = 0
    CODES = 1  # element 0 of each row: hash codes of tokens, to be clustered
    SCORES = 2  # rows of keys, one per cluster, to be thresholded
    NONE = 3


@dataclass(frozen=True)
class Field:
    """A number in a command."""

    name: str
    bits: int
    text: str


@dataclass(frozen=True)
class Opcode:
    """One command: `unit` executes it, None: the sequencer itself."""

    name: str
    code: int
    unit: ExecUnit | None
    text: str
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        bits = HEADER_BITS + sum(f.bits for f in self.fields)
        if bits > 8 * COMMAND_BYTES:
            raise ValueError(f"opcode {self.name} has {bits} bits: must be at most {8 * COMMAND_BYTES}")


ADDRESS, STRIDE, COUNT, ROW = 32, 24, 16, 16
_SIZE = (
    Field("length", 2, "what gives the length that is not known: 0 nothing, 1 CLUSTERS, 2 TOKENS of `head`"),
    Field("head", 8, "KV head"),
    Field("extra", 16, "added to it; the length itself when `length` is 0"),
)

OPCODES = (
    Opcode("END", 0x01, None, "The program is complete when every command before is."),
    Opcode(
        "COPY",
        0x10,
        ExecUnit.COPY,
        "Copy words inside the device memory, or from and to the host link.",
        (
            Field("source", ADDRESS, "first word"),
            Field("target", ADDRESS, "first word"),
            Field("words", STRIDE, "how many, at least 1"),
            Field("from_host", 1, "the source is behind the host link"),
            Field("to_host", 1, "the target is behind the host link"),
        ),
    ),
    Opcode(
        "STORE",
        0x11,
        ExecUnit.COPY,
        "Copy the step's keys and values to their places in the cache.",
        (
            Field("keys", ADDRESS, "key of the first token"),
            Field("values", ADDRESS, "its value"),
            Field("key_stride", STRIDE, "words to the key of the next"),
            Field("value_stride", STRIDE, "words to the value of the next"),
        ),
    ),
    Opcode(
        "LOAD",
        0x20,
        ExecUnit.LOAD,
        "Rows from device memory to the operand memory.",
        (
            Field("source", ADDRESS, "first word"),
            Field("stride", STRIDE, "words from one row to the next"),
            Field("rows", COUNT, "rows, at most"),
            Field("beats", COUNT, "words of a row, at most"),
            Field("target", ROW, "first row of the operand memory"),
            Field("step", ROW, "operand rows from one row to the next, unless `tiled`"),
            Field("activations", 1, "into the activations, else the weights"),
            Field("tiled", 1, "as tiles: the words of a row lie a tile apart"),
            Field("limit", 2, "what the length limits, in blocks from `block` on: 0 nothing, 1 rows, 2 words of a row"),
            Field("block", COUNT, "blocks of the length that are left out"),
            *_SIZE,
        ),
    ),
    Opcode(
        "GATHER",
        0x21,
        ExecUnit.LOAD,
        "Keys or values of the past tokens that a KV head attends to, then of the step's own, to the weights.",
        (
            Field("head", 8, "KV head"),
            Field("values", 1, "values, transposed, instead of keys"),
            Field("restart", 1, "from the first token on, else where the last one stopped"),
            Field("blocks", COUNT, "blocks of tokens, at most"),
            Field("target", ROW, "first row of the weights"),
            Field("step_word", ADDRESS, "key or value of the step's first token"),
            Field("stride", STRIDE, "words to that of the next"),
            Field("tokens", 8, "tokens of the step"),
        ),
    ),
    Opcode(
        "MULTIPLY",
        0x30,
        ExecUnit.MATRIX,
        "Tiles of weights with rows of activations; sums to device memory.",
        (
            Field("weights", ROW, "first tile"),
            Field("m_stride", ROW, "tiles from one block of results to the next"),
            Field("k_stride", ROW, "tiles from one block of inputs to the next"),
            Field("m_blocks", COUNT, "blocks of results, at most"),
            Field("k_blocks", COUNT, "blocks of inputs, at most"),
            Field("activations", ROW, "first row"),
            Field("x_stride", ROW, "rows from one activation vector to the next"),
            Field("vectors", 8, "activation vectors"),
            Field("first", 1, "start the sums"),
            Field("last", 1, "send the sums"),
            Field("spread", 1, "each block of results has sums of its own"),
            Field("out", ADDRESS, "where the first result goes"),
            Field("stride", STRIDE, "words from the results of one vector to those of the next"),
            Field("wide", 1, "results are FP32, two words a block, instead of BF16"),
            Field("limit", 2, "what the length limits: 0 nothing, 1 results, 2 inputs (then `first`, `last` follow)"),
            Field("block", COUNT, "blocks of the length that are left out"),
            *_SIZE,
        ),
    ),
    Opcode(
        "VECTOR",
        0x40,
        ExecUnit.VECTOR,
        "A program of the vector engine, repeated; its input from and its output to device memory or the KV unit.",
        (
            Field("code", ADDRESS, "first word of the instructions, 16 bytes each"),
            Field("instructions", 8, "how many; those of 0 beats get the length"),
            Field("repeat", COUNT, "how often"),
            Field("a", ADDRESS, "input of the first repetition"),
            Field("a_stride", STRIDE, "words to that of the next"),
            Field("a_beats", COUNT, "beats of it; 0: as long as the length"),
            Field("a_wide", 1, "FP32, two words a beat"),
            Field("b", ADDRESS, "more input, behind it"),
            Field("b_stride", STRIDE, "words to that of the next repetition"),
            Field("b_beats", COUNT, "beats of it; 0: as long as the length"),
            Field("b_wide", 1, "FP32"),
            Field("b_used", 1, "there is more input"),
            Field("destination", 2, "0 memory, 1 hash codes, 2 scores, 3 there is no output"),
            Field("out", ADDRESS, "output of the first repetition"),
            Field("out_stride", STRIDE, "words to that of the next"),
            Field("out_beats", COUNT, "beats of it; 0: the length, and zeros up to `pad` elements more"),
            Field("out_wide", 1, "FP32"),
            Field("pad", 8, "see `out_beats`"),
            Field("flag", 1, "of codes: queries follow; of scores: this is the step's last head"),
            Field("group", 8, "repetitions after which the length grows by one, as causal rows do; 0: it stays"),
            *_SIZE,
        ),
    ),
    Opcode(
        "MEANS",
        0x41,
        ExecUnit.VECTOR,
        "Representative keys of the clusters that the step's tokens joined.",
        (Field("keys", ADDRESS, "key of the first token"), Field("stride", STRIDE, "words to that of the next")),
    ),
    Opcode("BEGIN", 0x50, ExecUnit.RETRIEVAL, "Empty tables for a layer.", (Field("layer", 8, "layer"),)),
    Opcode(
        "CLUSTER", 0x51, ExecUnit.RETRIEVAL, "Wait until the step's tokens have been clustered and have their places."
    ),
    Opcode("FETCH", 0x52, ExecUnit.RETRIEVAL, "Wait until what the step selected has been fetched."),
    Opcode("OFFLOAD", 0x53, ExecUnit.RETRIEVAL, "Wait until what the step sends out of the device memory has left."),
)
BY_NAME = {op.name: op for op in OPCODES}
BY_CODE = {op.code: op for op in OPCODES}


class AssemblyError(ValueError):
    """A command that does not exist, or a field that does not or does not fit."""


@dataclass(frozen=True)
class Command:
    """One command: its opcode's name, the fields that are not 0, and what it waits for."""

    name: str
    fields: Mapping[str, int] = field(default_factory=dict)
    waits: Mapping[SyncEvent, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The 64 bytes; `AssemblyError` names what is wrong."""
        if self.name not in BY_NAME:
            raise AssemblyError(f"unknown command {self.name!r}: choose one of {', '.join(BY_NAME)}")
        op = BY_NAME[self.name]
        if unknown := set(self.fields) - {f.name for f in op.fields}:
            known = ", ".join(f.name for f in op.fields) or "none"
            raise AssemblyError(f"{self.name} has no field {sorted(unknown)[0]!r}: choose of {known}")
        word, place = op.code, HEADER_BITS
        for event, wait in self.waits.items():
            if not 0 <= wait <= MAX_WAIT:
                raise AssemblyError(f"{self.name} after {event.name}: wait = {wait}: must be 0 to {MAX_WAIT}")
            word |= wait << OPCODE_BITS + WAIT_BITS * event
        for f in op.fields:
            value = int(self.fields.get(f.name, 0))
            if not 0 <= value < 1 << f.bits:
                raise AssemblyError(f"{self.name} {f.name} = {value}: must be 0 to {(1 << f.bits) - 1}")
            word |= value << place
            place += f.bits
        return word.to_bytes(COMMAND_BYTES, "little")


def decode(code: bytes) -> Command:
    """The command in 64 bytes; `AssemblyError` for another number of bytes, or an opcode that does not exist."""
    if len(code) != COMMAND_BYTES:
        raise AssemblyError(f"command of {len(code)} bytes: must be {COMMAND_BYTES}")
    word = int.from_bytes(code, "little")
    op = BY_CODE.get(word & (1 << OPCODE_BITS) - 1)
    if op is None:
        raise AssemblyError(f"opcode {code[0]:#04x}: choose one of {', '.join(f'{o.code:#04x}' for o in OPCODES)}")
    fields, place = {}, HEADER_BITS
    for f in op.fields:
        if value := word >> place & (1 << f.bits) - 1:
            fields[f.name] = value
        place += f.bits
    waits = {event: word >> OPCODE_BITS + WAIT_BITS * event & MAX_WAIT for event in SyncEvent}
    return Command(op.name, fields, {event: wait for event, wait in waits.items() if wait})


def encode(program: Iterable[Command]) -> bytes:
    """A program as it stands in memory."""
    return b"".join(command.encode() for command in program)


def assemble(text: str) -> list[Command]:
    """Commands from lines `NAME field=value .. after EVENT[-newest] ..`; `#` starts a comment.

    `AssemblyError` names the line.
    """
    program = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            command = _parse(words)
            command.encode()
        except ValueError as error:
            raise AssemblyError(f"line {number}: {error}") from None
        program.append(command)
    return program


def _parse(words: Sequence[str]) -> Command:
    name, *rest = words
    fields: dict[str, int] = {}
    waits: dict[SyncEvent, int] = {}
    waiting = False
    for word in rest:
        if word == "after":
            waiting = True
        elif waiting:
            event, _, newest = word.partition("-")
            if event not in SyncEvent.__members__ or newest not in ("", *map(str, range(1, MAX_WAIT))):
                known = ", ".join(SyncEvent.__members__)
                raise AssemblyError(f"wait {word!r}: must be {known}, with -1 to -{MAX_WAIT - 1} behind")
            waits[SyncEvent[event]] = all_but(int(newest or 0))
        else:
            key, equal, value = word.partition("=")
            if not equal:
                raise AssemblyError(f"{word!r}: must be field=value or after")
            try:
                fields[key] = int(value, 0)
            except ValueError:
                raise AssemblyError(f"{key} = {value!r}: must be a number") from None
    return Command(name, fields, waits)


def disassemble(program: Iterable[Command]) -> str:
    """The lines that `assemble` takes."""
    lines = []
    for command in program:
        words = [command.name, *(f"{key}={value}" for key, value in command.fields.items() if value)]
        waits = [event.name + (f"-{w - 1}" if w > 1 else "") for event, w in sorted(command.waits.items()) if w]
        lines.append(" ".join([*words, *(["after", *waits] if waits else [])]))
    return "\n".join(lines) + "\n" if lines else ""


def markdown() -> str:
    """The document of the instruction set: a table of commands and one of fields for each."""
    lines = ["| command | opcode | unit | does |", "|---|---|---|---|"]
    units = {op: "-" if op.unit is None else op.unit.name for op in OPCODES}
    lines += [f"| `{op.name}` | {op.code:#04x} | {units[op]} | {op.text} |" for op in OPCODES]
    for op in OPCODES:
        if not op.fields:
            continue
        lines += ["", f"`{op.name}`", "", "| bits | field | what |", "|---|---|---|"]
        place = HEADER_BITS
        for f in op.fields:
            lines.append(f"| {place + f.bits - 1}:{place} | `{f.name}` | {f.text} |")
            place += f.bits
    return "\n".join(lines) + "\n"
