"""Instruction set of the core: one table for decoder, assembler, disassembler and documentation.

A command has 64 bytes. The header (bits 0 to 39) is the same for all commands: the opcode in bits 0 to 7, then one
wait field of four bits per event. A wait field names the earlier commands that must have signalled the event before
this command starts: 0 none, 1 all of them, n all except the newest n - 1. From bit 40 on come the fields of the opcode,
packed, the first one lowest.

Addresses, strides and lengths in memory count words; a word has as many BF16 elements as the matrix engine has inputs.
Commands of one unit start in order. Commands of different units are ordered by waits only. Commands of different cores
are ordered by BARRIER only.

A step of up to `MAX_STEP` tokens is clustered and stored in pieces of consecutive tokens, see `RetrievalUnit`.
"""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

COMMAND_BYTES = 64
HEADER_BITS = 40
OPCODE_BITS = 8
WAIT_BITS = 4
MAX_WAIT = (1 << WAIT_BITS) - 1


class ExecUnit(enum.IntEnum):
    """Unit that executes a command."""

    LOAD = 0  # device memory to operand memory
    MATRIX = 1  # matrix engine
    VECTOR = 2  # vector engine
    RETRIEVAL = 3  # KV prediction unit
    COPY = 4  # memory to memory
    SYNC = 5  # barriers between cores


class SyncEvent(enum.IntEnum):
    """Event that commands can wait for; the value is the position of its wait field.

    A unit signals its own event when a command is complete: memory has acknowledged everything that it wrote.
    """

    LOAD = ExecUnit.LOAD
    MATRIX = ExecUnit.MATRIX
    VECTOR = ExecUnit.VECTOR
    RETRIEVAL = ExecUnit.RETRIEVAL
    COPY = ExecUnit.COPY
    SYNC = ExecUnit.SYNC
    OPERANDS = 6  # a command of MATRIX has read its operands; their rows can be overwritten

    @property
    def unit(self) -> ExecUnit:
        """Unit that signals this event."""
        return ExecUnit.MATRIX if self is SyncEvent.OPERANDS else ExecUnit(self)


def all_but(newest: int = 0) -> int:
    """Wait field for all earlier commands that signal an event, except the `newest` ones.

    The field holds at most 14 exceptions; a larger `newest` gives the field for 14, so the command waits for more.
    """
    return min(1 + newest, MAX_WAIT)


class LengthSource(enum.IntEnum):
    """Run-time length of a command; the field `extra` is added to it."""

    CONSTANT = 0  # 0
    CLUSTERS = 1  # clusters of the open context
    TOKENS = 2  # past tokens of the page list of the field `head`
    COUNTED = 3  # clusters of another context, as the last COUNT has read them


class Fit(enum.IntEnum):
    """Condition of a VECTOR command on the padded length of its rows; the command has no effect when it is not met."""

    ANY = 0
    FITS = 1  # the row fits the vector memory
    EXCEEDS = 2  # it does not


class Destination(enum.IntEnum):
    """Destination of the results of a VECTOR command."""

    MEMORY = 0
    CODES = 1  # hash codes of a piece: element 0 of each row, to be clustered
    NONE = 2


@dataclass(frozen=True)
class Field:
    """One field of a command.

    Attributes
    ----------
    name, bits, text : name, width and description
    """

    name: str
    bits: int
    text: str


@dataclass(frozen=True)
class Opcode:
    """One kind of command.

    Attributes
    ----------
    name, code, text : mnemonic, number and description
    unit : the unit that executes it; None: the sequencer
    fields : in the order of their bits
    """

    name: str
    code: int
    unit: ExecUnit | None
    text: str
    fields: tuple[Field, ...] = ()

    def __post_init__(self) -> None:
        bits = HEADER_BITS + sum(f.bits for f in self.fields)
        if bits > 8 * COMMAND_BYTES:
            raise ValueError(f"bits of opcode {self.name} must be at most {8 * COMMAND_BYTES}, got {bits}")


ADDRESS, STRIDE, COUNT, ROW = 32, 24, 16, 16  # widths of fields
MAX_STEP = 1024  # tokens of the largest step
MAX_CORES = 64  # that work on one step
LIST_SETS = 2  # page lists of a KV head
SCORE_ROWS = (128 * MAX_STEP).bit_length()  # width of a number of score rows: a step with 128 query heads
_LENGTH = (
    Field(
        "length", 2, "run-time length: 0 constant, 1 clusters, 2 past tokens of the page list `head`, 3 that of COUNT"
    ),
    Field("head", 8, "page list: KV head; for the second lists plus the number of KV heads"),
    Field("extra", 24, "added to the run-time length; the length itself when `length` is 0"),
)

OPCODES = (
    Opcode("END", 0x01, None, "End of the program; the program is complete when all its commands are."),
    Opcode(
        "COPY",
        0x10,
        ExecUnit.COPY,
        "Copy words within device memory, or between device memory and the host link.",
        (
            Field("source", ADDRESS, "first source word"),
            Field("target", ADDRESS, "first target word"),
            Field("words", STRIDE, "number of words, at least 1"),
            Field("from_host", 1, "the source is behind the host link"),
            Field("to_host", 1, "the target is behind the host link"),
        ),
    ),
    Opcode(
        "STORE",
        0x11,
        ExecUnit.COPY,
        "Copy keys and values of a piece of the step to their slots in the KV cache.",
        (
            Field("keys", ADDRESS, "first word of the key of the first token of the piece"),
            Field("values", ADDRESS, "first word of the value of the first token of the piece"),
            Field("key_stride", STRIDE, "words from one token's key to the next"),
            Field("value_stride", STRIDE, "words from one token's value to the next"),
            Field(
                "resume", 1, "1: continue after the last token of the STORE before; `keys` and `values` are not used"
            ),
        ),
    ),
    Opcode(
        "LOAD",
        0x20,
        ExecUnit.LOAD,
        "Copy rows from device memory to the operand memory.",
        (
            Field("source", ADDRESS, "first word of the first row"),
            Field("stride", STRIDE, "words from one row to the next"),
            Field("rows", COUNT, "number of rows; an upper bound with `limit` 1"),
            Field("beats", COUNT, "words of a row; an upper bound with `limit` 2"),
            Field("target", ROW, "first row of the operand memory"),
            Field("step", ROW, "operand rows from one row to the next, unless `tiled`"),
            Field("activations", 1, "target: 0 weights, 1 activations"),
            Field("tiled", 1, "store as tiles: the words of a row lie one tile apart"),
            Field(
                "limit",
                2,
                "what the length limits, counted from `block`: 0 nothing, 1 rows, 2 words of a row; 3: nothing, and "
                "the rows are encoded tiles, if `weight_bits` is 4",
            ),
            Field("block", COUNT, "first block of the length that is used; with `limit` 3: 1 MXFP4, 2 INT4, 3 FP8"),
            *_LENGTH,
        ),
    ),
    Opcode(
        "GATHER",
        0x21,
        ExecUnit.LOAD,
        "Copy keys or values to the weights: the past tokens that a KV head attends to, then the tokens of the step.",
        (
            Field("head", 8, "page list: KV head; for the second lists plus the number of KV heads"),
            Field("values", 1, "0 keys, 1 values, transposed"),
            Field("restart", 1, "1 start with the first token, 0 continue after the last GATHER"),
            Field("blocks", COUNT, "largest number of blocks of tokens"),
            Field("target", ROW, "first row of the weights"),
            Field("skip", COUNT, "blocks of tokens to skip before the first one"),
            Field("word", 8, "first word of each key or value"),
            Field("words", 8, "words of each key or value; 0: all of them"),
            Field("step_word", ADDRESS, "first word of the key or value of the step's first token"),
            Field("stride", STRIDE, "words from one token of the step to the next"),
            Field("tokens", MAX_STEP.bit_length(), "tokens of the step"),
        ),
    ),
    Opcode(
        "COUNT",
        0x22,
        ExecUnit.LOAD,
        "Read the number of clusters of a context from its header: the length of commands with `length` 3, which wait "
        "for this command. The context is not open, and no command of a step of it has begun.",
        (Field("header", ADDRESS, "word of the header that holds the number"),),
    ),
    Opcode(
        "MULTIPLY",
        0x30,
        ExecUnit.MATRIX,
        "Multiply weight tiles by activation vectors and accumulate; write the sums to device memory.",
        (
            Field("weights", ROW, "first tile"),
            Field("m_stride", ROW, "tiles from one result block to the next"),
            Field("k_stride", ROW, "tiles from one input block to the next"),
            Field("m_blocks", COUNT, "result blocks; an upper bound with `limit` 1"),
            Field("k_blocks", COUNT, "input blocks; an upper bound with `limit` 2"),
            Field("activations", ROW, "first row of the activations"),
            Field("x_stride", ROW, "rows from one activation vector to the next"),
            Field("vectors", 8, "activation vectors"),
            Field("first", 1, "start new sums"),
            Field("last", 1, "write the sums to memory"),
            Field("spread", 1, "every result block has its own accumulators"),
            Field("out", ADDRESS, "first word of the results"),
            Field("stride", STRIDE, "words from the results of one vector to those of the next"),
            Field("wide", 1, "results are FP32 (two words per block), else BF16"),
            Field("limit", 2, "what the length limits: 0 nothing, 1 results, 2 inputs (sets `first` and `last`)"),
            Field("block", COUNT, "first block of the length that is used"),
            *_LENGTH,
        ),
    ),
    Opcode(
        "VECTOR",
        0x40,
        ExecUnit.VECTOR,
        "Repeat a program of the vector engine, with input from device memory and output to `destination`.",
        (
            Field("code", ADDRESS, "first word of the program, 16 bytes per instruction"),
            Field("instructions", 8, "number of instructions; those of 0 beats take the length"),
            Field("repeat", COUNT, "number of repetitions"),
            Field("a", ADDRESS, "first word of input row a"),
            Field("a_stride", STRIDE, "words from row a of one repetition to the next"),
            Field("a_beats", COUNT, "beats of row a; 0: the length"),
            Field("a_wide", 1, "row a is FP32 (two words per beat), else BF16"),
            Field("a_again", 1, "row a is read a second time, before row b"),
            Field("b", ADDRESS, "first word of input row b, which follows row a"),
            Field("b_stride", STRIDE, "words from row b of one repetition to the next"),
            Field("b_beats", COUNT, "beats of row b; 0: the length"),
            Field("b_wide", 1, "row b is FP32 (two words per beat), else BF16"),
            Field("b_used", 1, "there is a row b"),
            Field("destination", 2, "0 memory, 1 hash codes, 2 none"),
            Field("out", ADDRESS, "first word of the output"),
            Field("out_stride", STRIDE, "words from the output of one repetition to the next"),
            Field("out_beats", COUNT, "beats of an output row; 0: the length, with zeros up to `pad` more elements"),
            Field("out_wide", 1, "output is FP32 (two words per beat), else BF16"),
            Field("pad", (MAX_STEP - 1).bit_length(), "zero padding in elements, see `out_beats`"),
            Field("flag", 1, "hash codes: this is the last piece of a step with queries"),
            Field("group", 8, "the row length grows by 1 every `group` repetitions (causal mask); 0: it is constant"),
            Field("fit", 2, "condition on the padded row: 0 none, 1 it fits the vector memory, 2 it does not fit"),
            *_LENGTH,
        ),
    ),
    Opcode(
        "MEANS",
        0x41,
        ExecUnit.VECTOR,
        "Update the mean keys of the clusters that the tokens of a piece joined.",
        (
            Field("keys", ADDRESS, "first word of the key of the first token of the piece"),
            Field("stride", STRIDE, "words from one token's key to the next"),
        ),
    ),
    Opcode(
        "OPEN",
        0x50,
        ExecUnit.RETRIEVAL,
        "Open a context: the state of one layer of one stream.",
        (
            Field("context", 16, "number of the context"),
            Field("lists", 1, "page lists that SELECT and FETCH write until the next OPEN: 0 the first, 1 the second"),
        ),
    ),
    Opcode(
        "KEEP",
        0x56,
        ExecUnit.RETRIEVAL,
        "Keep the tokens of the step with the smallest scores, of equal ones the first; STORE skips the others.",
        (
            Field("source", ADDRESS, "first word of the row of scores, one BF16 number of at least 0 per token"),
            Field("tokens", MAX_STEP.bit_length(), "tokens of the step, at least 1"),
            Field("count", MAX_STEP.bit_length(), "number of tokens to keep, at least 1"),
        ),
    ),
    Opcode("CLUSTER", 0x51, ExecUnit.RETRIEVAL, "Wait until all tokens of a piece have a cluster and a slot."),
    Opcode(
        "SELECT",
        0x54,
        ExecUnit.RETRIEVAL,
        "Select clusters for KV head `head` by rows of scores in device memory, and unite the selections of all rows.",
        (
            Field("source", ADDRESS, "first word of the first row, one BF16 score per cluster"),
            Field("stride", STRIDE, "words from one row to the next"),
            Field("rows", SCORE_ROWS, "number of rows"),
            Field("counts", ADDRESS, "first word of a row of token counts, 16 bits each; 0: those of the context"),
            *_LENGTH,
        ),
    ),
    Opcode(
        "FETCH",
        0x52,
        ExecUnit.RETRIEVAL,
        "Fetch the pages of the selected clusters of the step; complete when they are in device memory.",
    ),
    Opcode(
        "RELEASE",
        0x55,
        ExecUnit.RETRIEVAL,
        "Release the pages of a cluster, except the first and the last ones.",
        (
            Field("cluster", COUNT, "number of the cluster"),
            Field("first", COUNT, "number of the first pages that remain"),
            Field("last", COUNT, "number of the last pages that remain"),
        ),
    ),
    Opcode(
        "MOVE",
        0x57,
        ExecUnit.RETRIEVAL,
        "Move a token to another cluster; complete when its key and value are copied.",
        (
            Field("page", COUNT, "page of the token, which must be in device memory and takes no more tokens"),
            Field("slot", 5, "its slot in the page"),
            Field("cluster", COUNT, "number of the other cluster"),
            Field("opened", 1, "the cluster is new"),
            Field("hash", 32, "hash code of a new cluster"),
        ),
    ),
    Opcode(
        "OFFLOAD",
        0x53,
        ExecUnit.RETRIEVAL,
        "Write the pages that leave device memory, and commit the step.",
    ),
    Opcode(
        "BARRIER",
        0x60,
        ExecUnit.SYNC,
        "Wait until all cores of the step have started the same BARRIER, counted from the start of their programs.",
        (Field("cores", MAX_CORES.bit_length(), "number of cores of the step, which are cores 0 to `cores` - 1"),),
    ),
)
BY_NAME = {op.name: op for op in OPCODES}
BY_CODE = {op.code: op for op in OPCODES}


class AssemblyError(ValueError):
    """An unknown command or field, or a value that does not fit its field."""


@dataclass(frozen=True)
class Command:
    """One command.

    Attributes
    ----------
    name : mnemonic of its opcode
    fields : values by field name; a missing field is 0
    waits : wait fields by event, see `all_but`; a missing one is 0
    """

    name: str
    fields: Mapping[str, int] = field(default_factory=dict)
    waits: Mapping[SyncEvent, int] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The 64 bytes. Raises `AssemblyError` that names the invalid field."""
        if self.name not in BY_NAME:
            raise AssemblyError(f"command must be one of {', '.join(BY_NAME)}, got {self.name!r}")
        op = BY_NAME[self.name]
        if unknown := set(self.fields) - {f.name for f in op.fields}:
            field_names = ", ".join(f.name for f in op.fields) or "none"
            raise AssemblyError(f"fields of {self.name} must be of {field_names}, got {sorted(unknown)[0]!r}")
        word, offset = op.code, HEADER_BITS
        for event, wait in self.waits.items():
            if not 0 <= wait <= MAX_WAIT:
                raise AssemblyError(f"{self.name} after {event.name}: wait must be 0 to {MAX_WAIT}, got {wait}")
            word |= wait << OPCODE_BITS + WAIT_BITS * event
        for f in op.fields:
            value = int(self.fields.get(f.name, 0))
            if not 0 <= value < 1 << f.bits:
                raise AssemblyError(f"{self.name} {f.name} must be 0 to {(1 << f.bits) - 1}, got {value}")
            word |= value << offset
            offset += f.bits
        return word.to_bytes(COMMAND_BYTES, "little")


def decode(code: bytes) -> Command:
    """The command that 64 bytes encode. Raises `AssemblyError` for another length or an unknown opcode."""
    if len(code) != COMMAND_BYTES:
        raise AssemblyError(f"bytes of a command must be {COMMAND_BYTES}, got {len(code)}")
    word = int.from_bytes(code, "little")
    op = BY_CODE.get(word & (1 << OPCODE_BITS) - 1)
    if op is None:
        raise AssemblyError(f"opcode must be one of {', '.join(f'{o.code:#04x}' for o in OPCODES)}, got {code[0]:#04x}")
    fields, offset = {}, HEADER_BITS
    for f in op.fields:
        if value := word >> offset & (1 << f.bits) - 1:
            fields[f.name] = value
        offset += f.bits
    waits = {event: word >> OPCODE_BITS + WAIT_BITS * event & MAX_WAIT for event in SyncEvent}
    return Command(op.name, fields, {event: wait for event, wait in waits.items() if wait})


def encode(program: Iterable[Command]) -> bytes:
    """A program as its bytes in memory."""
    return b"".join(command.encode() for command in program)


def assemble(text: str) -> list[Command]:
    """Commands from lines `NAME field=value .. after EVENT[-newest] ..`; `#` starts a comment.

    Raises `AssemblyError` with the line number.
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
    name, *arguments = words
    fields: dict[str, int] = {}
    waits: dict[SyncEvent, int] = {}
    in_waits = False
    for word in arguments:
        if word == "after":
            in_waits = True
        elif in_waits:
            event, _, newest = word.partition("-")
            if event not in SyncEvent.__members__ or newest not in ("", *map(str, range(1, MAX_WAIT))):
                events = ", ".join(SyncEvent.__members__)
                raise AssemblyError(
                    f"wait must be one of {events}, optionally with -1 to -{MAX_WAIT - 1}, got {word!r}"
                )
            waits[SyncEvent[event]] = all_but(int(newest or 0))
        else:
            key, equal, value = word.partition("=")
            if not equal:
                raise AssemblyError(f"argument must be field=value or after, got {word!r}")
            try:
                fields[key] = int(value, 0)
            except ValueError:
                raise AssemblyError(f"{key} must be a number, got {value!r}") from None
    return Command(name, fields, waits)


def disassemble(program: Iterable[Command]) -> str:
    """Lines that `assemble` accepts."""
    lines = []
    for command in program:
        words = [command.name, *(f"{key}={value}" for key, value in command.fields.items() if value)]
        waits = [event.name + (f"-{w - 1}" if w > 1 else "") for event, w in sorted(command.waits.items()) if w]
        lines.append(" ".join([*words, *(["after", *waits] if waits else [])]))
    return "\n".join(lines) + "\n" if lines else ""


def markdown() -> str:
    """Documentation of the instruction set: a table of the commands, and one of the fields for each."""
    lines = ["| command | opcode | unit | description |", "|---|---|---|---|"]
    units = {op: "-" if op.unit is None else op.unit.name for op in OPCODES}
    lines += [f"| `{op.name}` | {op.code:#04x} | {units[op]} | {op.text} |" for op in OPCODES]
    for op in OPCODES:
        if not op.fields:
            continue
        lines += ["", f"`{op.name}`", "", "| bits | field | description |", "|---|---|---|"]
        offset = HEADER_BITS
        for f in op.fields:
            lines.append(f"| {offset + f.bits - 1}:{offset} | `{f.name}` | {f.text} |")
            offset += f.bits
    return "\n".join(lines) + "\n"
