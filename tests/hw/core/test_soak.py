"""Many random programs in sequence: good, random, corrupted, reset, with memory errors and pauses.

After each program a good program passes and writes the expected data; at the end a layer step runs correctly.
"""

from collections import Counter

import numpy as np
import pytest

from hw.axi.ports import Cause
from hw.core import isa
from hw.core.isa import COMMAND_BYTES, Command, SyncEvent, all_but
from sim.bench.axi import DECERR, SLVERR
from sim.bench.layer_run import LayerRun, frames
from tests.hw.core.test_core import END, copies, disjoint, execute, succeeded
from tests.hw.core.test_isa import random_command

WORD = 8  # bytes
ROOM = 128  # words reserved for a bad program
PARTS, PART = 4, 16  # a good program writes PARTS slices of PART words on each side
SOURCES = 256  # words on each side that good programs read and no program writes
PATIENCE = 4000  # cycles after which a program counts as hung; a good program takes a tenth
KINDS = ("noise", "wild", "tame", "bent", "cut")
LARGEST = {32: 256, 24: 8, 16: 8, 8: 4}  # in a tame command, by the bits of the field
MEMORY = {Cause.SLVERR, Cause.DECERR}


def tame(rng: np.random.Generator) -> Command:
    """A random command whose addresses and lengths are far below the end of the memory."""
    op = isa.OPCODES[int(rng.integers(1, len(isa.OPCODES)))]
    fields = {f.name: int(rng.integers(0, LARGEST.get(f.bits, 1 << f.bits))) for f in op.fields}
    return Command(op.name, fields, {event: int(rng.integers(0, 3)) for event in SyncEvent})


def bad_program(rng: np.random.Generator, kind: str) -> tuple[bytes, int]:
    """Bytes of a bad program, and the number of commands that the core is started with."""
    if kind == "noise":
        count = int(rng.integers(1, 8))
        return rng.bytes(COMMAND_BYTES * count), count
    if kind in ("wild", "tame"):
        program = [(random_command if kind == "wild" else tame)(rng) for _ in range(rng.integers(1, 5))]
        return isa.encode([*program, END]), len(program) + 1
    program = disjoint(copies(rng, 6, 20))
    code = bytearray(isa.encode([*program, END]))
    if kind == "cut":
        return bytes(code), int(rng.integers(0, len(program) + 1))
    for _ in range(3):
        code[int(rng.integers(len(code)))] ^= 1 << int(rng.integers(8))
    return bytes(code), len(program) + 1


def outlives_its_program(code: bytes) -> bool:
    """Whether a command counts as complete before it can fail: VECTOR without output."""
    parts = [code[n : n + COMMAND_BYTES] for n in range(0, len(code), COMMAND_BYTES)]
    commands = [isa.decode(part) for part in parts if part[0] in isa.BY_CODE]
    return any(
        command.name == "VECTOR" and command.fields.get("destination") == isa.Destination.NONE for command in commands
    )


def good_program(rng: np.random.Generator, targets: list[int], sources: list[int]) -> list[Command]:
    """Program that fills slices at `targets`, by side, from `sources` or, after a wait, from an earlier slice."""
    program: list[Command] = []
    for part in range(PARTS):
        words, earlier = int(rng.integers(1, PART + 1)), int(rng.integers(-PARTS, part)) if part else -1
        sides = rng.integers(0, 2, 2).tolist()
        if earlier >= 0:
            sides[0] = program[earlier].fields["to_host"]
            source = targets[sides[0]] + PART * earlier
        else:
            source = sources[sides[0]] + int(rng.integers(SOURCES - PART))
        fields = {"source": source, "target": targets[sides[1]] + PART * part, "words": words}
        fields |= {"from_host": sides[0], "to_host": sides[1]}
        program.append(Command("COPY", fields, {SyncEvent.COPY: all_but()} if earlier >= 0 else {}))
    return program


def soak(rng, seed, programs, *, reset, failing=0.0):
    """Run each program, then `reset` or a clear of its fault, then a good program; returns the outcomes of `programs`.

    Bad programs run in a separate region, the upper halves of the memories. With the probability `failing`, one memory
    response before a program is an error; only then may a good program fail. The writes of the others are compared.
    """
    pages = 64 + SOURCES // 32 + 2 * len(programs)  # pages of the layer, and pages that good programs read and write
    streams = 2 * pages // 64  # contexts that do not exist in the programs make the host memory larger
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16, streams=streams)
    case = bench.run_on
    memories = [case.device, case.host]
    words = [len(memory) // WORD for memory in memories]
    upper = [count // 2 for count in words]
    sources = [bench.region.allocate(SOURCES + PARTS * PART * len(programs)), 64 * 32]
    for memory, address in zip(memories, sources, strict=True):
        memory[address * WORD : (address + SOURCES) * WORD] = rng.bytes(SOURCES * WORD)
    for memory, address in zip(memories, upper, strict=True):
        memory[address * WORD :] = rng.bytes(len(memory) - address * WORD)

    def see(first):
        for side, start, count in zip(case.bases, first, words, strict=True):
            case.script += case.driver.write(f"{side}_start", case.bases[side] + start * WORD)
            case.script += case.driver.write(f"{side}_words", count - start)

    good, failures, stall = [], 0, float(rng.uniform(0, 0.4))
    for number, (code, count) in enumerate(programs):
        if rng.random() < failing:
            failures += 1
            side, response = list(case.bases)[int(rng.integers(2))], int(rng.choice([SLVERR, DECERR]))
            case.script.append(["fail", side, bool(rng.integers(2)), int(rng.integers(40)), response])
        at = ROOM * (64 + number)  # above what tame programs write
        case.put(upper[0] + at, code)
        see(upper)
        case.run(at, count, clear=True)
        if reset:
            case.script.append(["reset"])
            case.set_up()
        see([0, 0])
        targets = [address + SOURCES + PARTS * PART * number for address in sources]
        good.append(good_program(rng, targets, sources))
        bench.run([*good[-1], END], clear=True)
        if rng.random() < 0.2:
            case.reset_after(bench.program_addresses[-1], PARTS + 1, int(rng.integers(0, 150)))
    case.script += [["fail", side, False, -1, SLVERR] for side in case.bases]  # no more
    case.limit = 100_000
    for x in frames(bench, 1, 2):
        bench.step(x)

    expected = [bytearray(memory) for memory in memories]
    for program in good:
        execute(program, expected)
    outcomes, record = case.simulate(stall=stall, seed=seed)
    bad, passed = outcomes[: 2 * len(programs) : 2], outcomes[1 : 2 * len(programs) : 2]
    for number, outcome in enumerate(passed):
        failed = outcome.failed and not outcome.done and outcome.cause in MEMORY
        assert succeeded(outcome) or failed, (number, outcome, bad[number])
        for side, address, wanted in zip(case.bases, sources, expected, strict=True):
            at = (address + SOURCES + PARTS * PART * number) * WORD
            written = slice(at, at + PARTS * PART * WORD)
            assert failed or record.images[side][written] == wanted[written], (number, side, bad[number])
    assert sum(outcome.cause in MEMORY for outcome in outcomes) <= failures
    bench.verify(outcomes, record.images["device"], failed=2 * len(programs))
    print(f"stall {stall:.2f}, {failures} failing answers,", end=" ")
    return bad


@pytest.mark.parametrize("count, rounds", [(6, 1), pytest.param(100, 2, marks=pytest.mark.heavy)])
def test_soak(count, rounds, rng, seed):
    """Programs with a reset after each, some of which may hang; then the others again with only a fault clear."""
    for n in range(rounds):
        kinds = [KINDS[k % len(KINDS)] for k in range(count)]
        programs = [bad_program(rng, kind) for kind in kinds]
        ends = soak(rng, seed + n, programs, reset=True)
        hung = Counter(kind for kind, end in zip(kinds, ends, strict=True) if end.hung)
        print("causes", dict(Counter(end.cause.name for end in ends)), "hung", dict(hung))
        assert "cut" not in hung
        ended = []
        for program, end in zip(programs, ends, strict=True):
            if not end.hung:
                late = outlives_its_program(program[0])
                assert end.done != end.failed and (end.failed == (end.cause is not Cause.NONE) or late), end
                ended += [program] * (not late)
        again = soak(rng, seed + n, ended, reset=False, failing=0.2)
        causes = Counter(end.cause.name for end in again)
        print("cleared only: causes", dict(causes), "hung", sum(end.hung for end in again))
        for end in again:
            assert end.hung or (end.done != end.failed and end.failed == (end.cause is not Cause.NONE)), end
        assert len(causes) > 2
