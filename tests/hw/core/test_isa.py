"""Assembler, disassembler and document of the instruction set."""

import re

import pytest

from hw.core import isa
from hw.core.isa import BY_NAME, COMMAND_BYTES, HEADER_BITS, MAX_WAIT, AssemblyError, Command, SyncEvent, all_but


def random_command(rng):
    op = isa.OPCODES[int(rng.integers(len(isa.OPCODES)))]
    fields = {f.name: int(rng.integers(0, 1 << f.bits)) for f in op.fields if rng.random() < 0.8}
    waits = {event: int(rng.integers(1, MAX_WAIT + 1)) for event in SyncEvent if rng.random() < 0.4}
    return Command(op.name, {k: v for k, v in fields.items() if v}, waits)


def test_every_way_back(rng):
    """Command, bytes, command; command, text, command."""
    program = [random_command(rng) for _ in range(300)]
    code = isa.encode(program)
    parts = [code[n : n + COMMAND_BYTES] for n in range(0, len(code), COMMAND_BYTES)]
    assert [isa.decode(part) for part in parts] == program
    assert isa.assemble(isa.disassemble(program)) == program


def test_text():
    text = """
    # a copy, then a second copy that waits for it
    COPY source=0x10 target=32 words=4
    COPY source=32 target=0 words=4 to_host=1 after COPY LOAD-1 OPERANDS-14
    END
    """
    first, second, last = isa.assemble(text)
    assert first == Command("COPY", {"source": 16, "target": 32, "words": 4})
    assert second.waits == {SyncEvent.COPY: all_but(), SyncEvent.LOAD: all_but(1), SyncEvent.OPERANDS: all_but(14)}
    assert last == Command("END")


@pytest.mark.parametrize(
    "line, message",
    [
        (
            "JUMP",
            "line 1: command must be one of END, COPY, STORE, LOAD, GATHER, COUNT, MULTIPLY, VECTOR, MEANS, OPEN, "
            "KEEP, CLUSTER, SELECT, FETCH, RELEASE, MOVE, OFFLOAD, BARRIER, got 'JUMP'",
        ),
        ("COPY sauce=1", "line 1: fields of COPY must be of source, target, words, from_host, to_host, got 'sauce'"),
        ("COPY source=4294967296", "line 1: COPY source must be 0 to 4294967295, got 4294967296"),
        ("COPY source=x", "line 1: source must be a number, got 'x'"),
        ("COPY words", "line 1: argument must be field=value or after, got 'words'"),
        (
            "END after NOBODY",
            "line 1: wait must be one of LOAD, MATRIX, VECTOR, RETRIEVAL, COPY, SYNC, OPERANDS, optionally with "
            "-1 to -14, got 'NOBODY'",
        ),
        ("END after COPY-15", "optionally with -1 to -14, got 'COPY-15'"),
    ],
)
def test_refuses(line, message):
    with pytest.raises(AssemblyError, match=re.escape(message)):
        isa.assemble(line)


def test_unknown_opcode():
    with pytest.raises(AssemblyError, match=r"opcode must be one of .*, got 0xee"):
        isa.decode(b"\xee" + bytes(63))


def test_opcodes_are_distinct_and_documented():
    assert len(isa.BY_CODE) == len(BY_NAME) == len(isa.OPCODES)
    text = isa.markdown()
    for op in isa.OPCODES:
        assert f"| `{op.name}` | {op.code:#04x} |" in text
        bit = HEADER_BITS
        for f in op.fields:
            assert f"| {bit + f.bits - 1}:{bit} | `{f.name}` |" in text
            bit += f.bits
