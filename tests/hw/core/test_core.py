"""The core's Verilog runs programs: copies with their waits, every fault, and the next program after a fault."""

import subprocess
from dataclasses import dataclass

import numpy as np
import pytest

from hw.axi.ports import WORD_ADDRESS_BITS, Cause
from hw.axi.registers import Access
from hw.config import PRESETS, Config
from hw.core import core, isa, sequencer
from hw.core.core import Core
from hw.core.dma import BURST
from hw.core.isa import COUNT, ROW, Command, ExecUnit, SyncEvent, all_but
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.register_map import SEQUENCER, VERSION
from hw.emit import to_rtlil
from sim.bench.axi import DECERR, EXOKAY, SLVERR, Failure, FixedTiming, Sparse
from sim.bench.core_run import CoreRun
from sim.bench.timeline import column
from synth.generate import generate

SIZE = 1 << 15  # bytes of each memory
PLACE = SIZE // 16  # word of the first program: the upper half of the device memory
DATA = PLACE  # words in which copies happen
FLYING = 16  # bursts of an engine in flight, at most
END = Command("END")


def bench(rng, **options):
    memories = [bytearray(rng.integers(0, 256, SIZE, np.uint8).tobytes()) for _ in range(2)]
    return CoreRun(Core.from_config(Config.preset("tiny")), *memories, **options)


def copies(rng, count, longest=40):
    """Random copies; one that touches words of an earlier one waits for it."""
    program, touched = [], []  # touched: since the last wait
    for _ in range(count):
        words = int(rng.integers(1, longest))
        source, target = (int(rng.integers(0, DATA - words)) for _ in range(2))
        sides = rng.integers(0, 2, 2).tolist()
        reads, writes = (
            {(side, n + at) for n in range(words)} for side, at in zip(sides, (source, target), strict=True)
        )
        waits = {}
        if any(reads & w or writes & w or writes & r for r, w in touched) or reads & writes:
            waits, touched = {SyncEvent.COPY: all_but()}, []
        touched.append((reads, writes))
        fields = {"source": source, "target": target, "words": words, "from_host": sides[0], "to_host": sides[1]}
        program.append(Command("COPY", fields, waits))
    return program


def disjoint(program):
    """Remove copies whose source and target overlap; their result depends on the order of words."""
    keep = []
    for command in program:
        f = command.fields
        apart = f["from_host"] != f["to_host"] or abs(f["source"] - f["target"]) >= f["words"]
        keep += [command] * apart
    return keep


def execute(program, memories):
    """The copies one after the other, on words of eight bytes."""
    for command in program:
        f = command.fields
        data = memories[f["from_host"]][8 * f["source"] : 8 * (f["source"] + f["words"])]
        memories[f["to_host"]][8 * f["target"] : 8 * (f["target"] + f["words"])] = data


def succeeded(outcome):
    return outcome.done and not outcome.failed and not outcome.hung and outcome.cause is Cause.NONE


@pytest.mark.parametrize("stall", [0.3, pytest.param(0.0, marks=pytest.mark.heavy)])
def test_programs_of_copies(stall, rng, seed):
    """Three programs, one after the other."""
    case = bench(rng)
    wanted = []
    for n in range(3):
        program = disjoint(copies(rng, 25))
        case.put(PLACE + n * 256, [*program, END])
        case.run(PLACE + n * 256, len(program) + 1)
        wanted.append(program)
    memories = [bytearray(case.device), bytearray(case.host)]
    for program in wanted:
        execute(program, memories)
    outcomes, record = case.simulate(stall=stall, seed=seed)
    assert all(map(succeeded, outcomes))
    assert record.images == {"device": bytes(memories[0]), "host": bytes(memories[1])}
    assert record.traffic["device"]["most"]["read"] > 1


def test_waiting_is_what_orders_them(rng, seed):
    """A chain of copies, each from where the last one went: all wait, and the word arrives."""
    case, hops = bench(rng), 12
    chain = [
        Command("COPY", {"source": 64 * n, "target": 64 * (n + 1), "words": 3}, {SyncEvent.COPY: all_but()})
        for n in range(hops)
    ]
    case.put(PLACE, [*chain, END])
    case.run(PLACE, hops + 1)
    first = bytes(case.device[:24])
    outcomes, record = case.simulate(seed=seed)
    assert succeeded(outcomes[0])
    assert record.images["device"][512 * hops : 512 * hops + 24] == first


@dataclass
class LateWrites(FixedTiming):
    """Memory timing: write responses come `late` cycles later than read responses."""

    late: int = 420

    def ready(self, cycle, address, nbytes, write):
        return super().ready(cycle, address, nbytes, write) + self.late * write


@pytest.mark.parametrize("to_host", [0, 1])
def test_a_reader_that_is_almost_full(to_host, rng, seed):
    """While writes get no response, the words of a copy stay in its writer and its reader. The reader does not request
    the words of the next copy if one or two of them do not fit."""
    case = bench(rng)
    # words of the bursts in flight and of the queue behind them
    buffered = BURST * FLYING + WRITE_ENGINES["copy"][1]
    room = READ_ENGINES["copy"][1]
    program, ends = [], {"from_host": 1 - to_host, "to_host": to_host}
    for n, words in enumerate(range(room - BURST + 1, room, 3)):
        first = {"source": 0, "target": 1024, "words": buffered + words, **ends}
        rest = {"source": 1024 + 32 * n, "target": 16 * n, "words": room + 1 + n % 2 - words, **ends}
        program += [Command("COPY", first, {SyncEvent.COPY: all_but()}), Command("COPY", rest)]
    case.put(PLACE, [*program, END])
    case.run(PLACE, len(program) + 1)
    memories = [bytearray(case.device), bytearray(case.host)]
    execute(program, memories)
    outcomes, record = case.simulate(seed=seed, timing={("device", "host")[to_host]: LateWrites()})
    assert succeeded(outcomes[0])
    assert record.images == {"device": bytes(memories[0]), "host": bytes(memories[1])}
    assert record.traffic[("device", "host")[to_host]]["most"]["write"] == FLYING


def faulty(rng, kind):
    """A program that stops with a fault: commands or bytes, their number, cause, source and address."""
    good = disjoint(copies(rng, 6))
    beyond = {"source": 2 * PLACE - 4, "target": 0, "words": 8}
    if kind == "opcode":
        return [*good, b"\xee" + bytes(63), END], len(good) + 2, Cause.OPCODE, SEQUENCER, len(good)
    if kind == "truncated":
        return good, len(good), Cause.TRUNCATED, SEQUENCER, len(good)
    if kind == "empty":
        return [], 0, Cause.TRUNCATED, SEQUENCER, 0
    if kind == "read beyond":
        return [*good, Command("COPY", beyond), END], len(good) + 2, Cause.REGION, ExecUnit.COPY, 2 * PLACE - 4
    if kind == "write beyond":
        wrong = {"source": 0, "target": 5 << 20, "words": 8, "to_host": 1}
        return [*good, Command("COPY", wrong), END], len(good) + 2, Cause.REGION, ExecUnit.COPY, 5 << 20
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind",
    [
        "opcode",
        *(pytest.param(k, marks=pytest.mark.heavy) for k in ("truncated", "empty", "read beyond")),
        "write beyond",
    ],
)
def test_faults_of_programs(kind, rng, seed):
    """A fault stops the core with cause, source and address until it is cleared; then the next program runs."""
    case = bench(rng)
    program, count, cause, source, address = faulty(rng, kind)
    code = b"".join(part if isinstance(part, bytes) else part.encode() for part in program)
    case.put(PLACE, code)
    case.put(PLACE + 512, [Command("COPY", {"source": PLACE, "target": 8, "words": 4}), END])
    case.run(PLACE, count)
    case.script += case.driver.start(PLACE + 512, 2)  # ignored
    case.script.append(["wait", 300])
    case.script += case.driver.read("status")
    at = len(case.script) - 1
    case.script += case.driver.clear()
    case.run(PLACE + 512, 2)
    outcomes, record = case.simulate(seed=seed)
    first, second = outcomes
    assert first.failed and not first.done and not first.hung
    assert (first.cause, first.source, first.address) == (cause, source, address)
    assert record.answers[at] == [4, 0]  # stopped
    assert succeeded(second)
    assert record.images["device"][64:96] == bytes(case.device[8 * PLACE : 8 * PLACE + 32])


def test_the_trace_shows_states(rng, seed):
    """The trace shows all states of sequencer and core for a good program and for each kind of fault."""
    case = bench(rng)
    copy, address = Command("COPY", {"words": 3, "target": 50}), PLACE
    for code, count in (([copy, END], 8), ([copy, b"\xff" * 64], 2), ([copy, copy], 2), ([copy, END], 0)):
        case.put(address, b"".join(part if isinstance(part, bytes) else part.encode() for part in code))
        case.run(address, count, clear=True)
        address += 64
    _, record = case.simulate(seed=seed, ports=["stat_trace"])
    trace = record.ports["stat_trace"]
    passed = {}
    for name, states in (("sequencer", sequencer.STATES), ("core", core.STATES)):
        now = [states[number] for number in column(trace, name)]
        passed[name] = [state for state, before in zip(now, ["", *now], strict=False) if state != before]
    run, stop = ["IDLE", "REQUEST", "RUN"], ["READY", "HALT", "RESET", "STOPPED"]
    assert passed == {
        "sequencer": [*run, "DRAIN", "FINISH", *run, "OPCODE", *run, "TRUNCATED", "IDLE", "TRUNCATED", "IDLE"],
        "core": [*stop, *stop, *stop, "READY"],
    }


def test_status_in_every_cycle_of_a_fault(seed, rng):
    """A program without commands is busy, then stopping, then stopped; each run reads the status a cycle later."""
    case, reads = bench(rng), []
    for cycles in range(12):
        case.script += case.driver.start(PLACE, 0)
        case.script += [["wait", cycles]] * bool(cycles)
        case.script += case.driver.read("status")
        reads.append(len(case.script) - 1)
        case.script += [["wait", 20], *case.driver.clear()]
    _, record = case.simulate(seed=seed)
    status = [record.answers[at][0] for at in reads]
    busy, stopping, stopped = status.count(1), status.count(2), status.count(4)
    assert status == [1] * busy + [2] * stopping + [4] * stopped and busy and stopping and stopped


@pytest.mark.parametrize("response", [SLVERR, pytest.param(DECERR, marks=pytest.mark.heavy)])
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("side", ["device", pytest.param("host", marks=pytest.mark.heavy)])
def test_errors_of_memory(side, write, response, rng, seed):
    """One error response at a random beat stops the program; the same program then passes."""
    case = bench(rng)
    program = disjoint(copies(rng, 25))
    case.put(PLACE, [*program, END])
    case.run(PLACE, len(program) + 1, clear=True)
    case.run(PLACE, len(program) + 1)
    failure = Failure(write, int(rng.integers(0, 15)), response)
    outcomes, _ = case.simulate(seed=seed, failures={side: [failure]})
    first, second = outcomes
    assert first.failed and not first.done and not first.hung
    assert first.cause.name == {SLVERR: "SLVERR", DECERR: "DECERR"}[response]
    assert first.source in (ExecUnit.COPY, SEQUENCER)
    assert succeeded(second)


def test_answers_that_are_no_errors(rng, seed):
    """The core accepts EXOKAY responses, although it sends no exclusive accesses."""
    case = bench(rng)
    program = disjoint(copies(rng, 12))
    case.put(PLACE, [*program, END])
    case.run(PLACE, len(program) + 1)
    failures = [Failure(write, at, EXOKAY) for write in (False, True) for at in range(1000)]
    outcomes, record = case.simulate(seed=seed, failures={"device": failures, "host": failures})
    assert succeeded(outcomes[0]) and all(record.traffic[side]["failed"] for side in case.bases)


@pytest.mark.parametrize("stall", [0.3, pytest.param(0.0, marks=pytest.mark.heavy)])
def test_reset_in_every_state(stall, rng, seed):
    """Resets in many cycles of a program do not affect a later run of the program."""
    case = bench(rng)
    program = [c for c in disjoint(copies(rng, 30)) if not c.fields["to_host"]]
    memory = [bytearray(case.device), bytearray(case.host)]
    case.put(PLACE, [*program, END])
    for cycles in [*range(1, 40, 3), *rng.integers(40, 500, 8).tolist()]:
        case.reset_after(PLACE, len(program) + 1, int(cycles))
    # a copy from the upper half of the host memory restores the data that the interrupted runs changed
    case.host[8 * DATA :] = memory[1][8 * DATA :] = case.device[: 8 * DATA]
    case.put(PLACE + 1024, [Command("COPY", {"source": DATA, "target": 0, "words": DATA, "from_host": 1}), END])
    case.run(PLACE + 1024, 2)
    case.run(PLACE, len(program) + 1)
    outcomes, record = case.simulate(stall=stall, seed=seed)
    assert all(map(succeeded, outcomes))
    execute(program, memory)
    assert record.images["device"][: 8 * DATA] == bytes(memory[0][: 8 * DATA])


@pytest.mark.heavy
def test_reset_in_every_state_of_the_sequencer(rng, seed):
    """Good and bad programs are reset after 0, 1, .. cycles, in every state of sequencer and core; a later program
    passes."""
    case = bench(rng)
    program = [c for c in disjoint(copies(rng, 5, 10)) if not c.fields["to_host"]]
    bad = b"".join(c.encode() for c in program) + b"\xee" + bytes(63)
    memory = [bytearray(case.device), bytearray(case.host)]
    case.put(PLACE, [*program, END])
    case.put(PLACE + 256, bad)
    resets = 0
    for address, count in ((PLACE, len(program) + 1), (PLACE + 256, len(program) + 1), (PLACE, len(program))):
        for cycles in range(140):
            case.reset_after(address, count, cycles)
            resets += 1
    case.host[8 * DATA :] = memory[1][8 * DATA :] = case.device[: 8 * DATA]
    case.put(PLACE + 1024, [Command("COPY", {"source": DATA, "target": 0, "words": DATA, "from_host": 1}), END])
    case.run(PLACE + 1024, 2)
    case.run(PLACE, len(program) + 1)
    outcomes, record = case.simulate(seed=seed, ports=["stat_trace", "rst"])
    assert all(map(succeeded, outcomes))
    execute(program, memory)
    assert record.images["device"][: 8 * DATA] == bytes(memory[0][: 8 * DATA])
    rst = record.ports["rst"].astype(bool)
    begins = np.flatnonzero(rst[1:] & ~rst[:-1]) + 1  # the edge that resets still sees the state
    met = {name: np.bincount(column(record.ports["stat_trace"], name)[begins]) for name in ("sequencer", "core")}
    assert len(begins) == resets
    for name, states in (("sequencer", sequencer.STATES), ("core", core.STATES)):
        print(name, dict(zip(states, met[name].tolist(), strict=True)))
        assert len(met[name]) == len(states) and met[name].all()


def test_counters(rng, seed):
    case = bench(rng)
    program = disjoint(copies(rng, 10))
    case.put(PLACE, [*program, END])
    case.run(PLACE, len(program) + 1)
    names = ("done_copy", "device_read", "device_write", "host_read", "host_write", "cycles", "busy_copy", "stalled")
    reads = [step for name in names for step in case.driver.read(name)]
    case.script += [*reads, ["wait", 1], *reads]
    _, record = case.simulate(seed=seed)
    values = dict(zip(names, (value for value, _ in record.answers[-len(names) :]), strict=True))
    assert (
        record.answers[-2 * len(names) - 1 : -len(names) - 1] == record.answers[-len(names) :]
    )  # the counters keep their values
    assert values["done_copy"] == len(program)
    words = {s: [sum(c.fields["words"] for c in program if c.fields[f"{d}_host"] == s) for d in ("from", "to")]
             for s in (0, 1)}  # fmt: skip
    assert values["device_read"] == words[0][0] + 8 * (len(program) + 1)
    assert values["device_write"] == words[0][1]
    assert [values["host_read"], values["host_write"]] == words[1]
    assert values["busy_copy"] + values["stalled"] == values["cycles"] > 100


def test_counters_while_units_are_at_work(rng, seed):
    """The busy counter of a unit counts the cycles in which its command waits, equally for all units."""
    case, reads = bench(rng), []
    slow = Command("COPY", {"source": 0, "target": 64, "words": 1})
    for name in ("LOAD", "MULTIPLY", "VECTOR", "OFFLOAD"):
        case.put(PLACE + 64 * len(reads), [slow, Command(name, {}, {SyncEvent.COPY: all_but()}), END])
        case.script += [*case.driver.write("clear_counters", 1), *case.driver.start(PLACE + 64 * len(reads), 3)]
        case.script.append(["wait", 500])
        reads.append(len(case.script))
        case.script += case.driver.read(f"busy_{isa.BY_NAME[name].unit.name.lower()}") + case.driver.read("status")
        case.script += case.driver.finish(2000)
    _, record = case.simulate(seed=seed, timing={"device": FixedTiming(latency=400)})
    cycles, status = zip(*(record.answers[at : at + 2] for at in reads), strict=True)
    assert len(set(map(tuple, cycles))) == 1 and cycles[0][0] > 50
    assert status == ([1, 0],) * len(reads)  # busy


def test_registers_keep_what_is_written(rng, seed):
    """Both halves of every writable register keep their value; read-only registers show the expected values."""
    case = bench(rng)
    case.script.clear()
    writable = [r for r in case.core.map.registers if r.access is Access.RW]
    values = {r.name: int.from_bytes(rng.bytes(8), "little") % (1 << r.width) for r in writable}
    read_only = {"version": VERSION | 64 << 16, "control": 0, "status": 0, "events": 0, "cause": 0, "fault_address": 0}
    for written in (values, {r.name: values[r.name] ^ (1 << r.width) - 1 for r in writable}):
        for name, value in written.items():
            case.script += case.driver.write(name, value)
        at = len(case.script)
        reads = written | read_only
        for name in reads:
            case.script += case.driver.read(name)
        _, record = case.simulate(seed=seed)
        answers = iter(record.answers[at:])
        for name in reads:
            words = next(r.words for r in case.core.map.registers if r.name == name)
            value = sum(part << 32 * n for n, (part, _) in enumerate(next(answers) for _ in range(words)))
            assert value == reads[name], name


def test_rows_beyond_the_operand_memory(rng, seed):
    """The first row beyond the memory raises a fault with its number; the last valid row does not."""
    case, expected = bench(rng), []
    memory = case.core.processor.matrix_unit.memory

    def load(row, most, **fields):
        start = PLACE + 16 * len(expected)
        case.put(start, [Command("LOAD", {"rows": 1, "beats": 1, **fields}), END])
        case.run(start, 2, clear=True)
        expected.append((Cause.NONE, 0, 0) if row < most else (Cause.SIZE, ExecUnit.LOAD, row))

    for activations, most in enumerate((memory.weight_rows, memory.activation_rows)):
        for row in (most - 1, most, *((1 << k) - 1 for k in range(most.bit_length() + 1, ROW + 1))):
            for fields in ({"target": row}, {"step": row, "rows": 2}):
                load(row, most, activations=activations, **fields)
    outcomes, _ = case.simulate(seed=seed)
    assert [(o.cause, o.source, o.address) for o in outcomes] == expected


def test_rows_of_all_lengths(rng, seed):
    """LOAD reads the rows that its fields or its length set; rows without words end at once."""
    case = bench(rng, limit=20_000)
    program, wanted = [Command("LOAD", {"rows": (1 << COUNT) - 1})], []
    for k in range(1, 12):
        some, more = 1 << k, (1 << k) + 1
        least = {"block": 3, "extra": more + 3 * case.core.config.dpe_inputs, "limit": 1}
        program.append(Command("LOAD", {"stride": 1, "rows": some, "beats": 1}))
        program.append(Command("LOAD", {"stride": 1, "rows": (1 << COUNT) - 1, "beats": 1, **least}))
        wanted += [*range(some), *range(more)]
    case.put(PLACE, [*program, END])
    case.run(PLACE, len(program) + 1)
    (outcome,), record = case.simulate(seed=seed)
    assert succeeded(outcome)
    requests = [
        r[2:] for r in record.traffic["device"]["requests"] if r and r[:2] == [0, list(READ_ENGINES).index("load")]
    ]
    assert [(at - case.bases["device"]) // 8 + n for at, words in requests for n in range(words)] == wanted


@pytest.mark.parametrize("side", ["device", "host"])
def test_the_end_of_a_region(side, rng, seed):
    """A copy up to the end of a region passes, and one more word raises a fault; region sizes up to the maximum."""
    memories = {name: Sparse(8 << WORD_ADDRESS_BITS) for name in ("device", "host")}
    case = CoreRun(Core.from_config(Config.preset("tiny")), **memories)
    expected, copied = [], []
    most = 1 << WORD_ADDRESS_BITS
    sizes = [most, most - 4096, *(int(rng.integers(1 << 17, 1 << bits)) for bits in (20, 24, 28, 31, 32))]
    for n, words in enumerate(sizes):
        for write in (False, True):
            # a command cannot have an address after the largest region
            base, length = 4096 * n + 2048 * write, int(rng.integers(2, 40))
            for more in (0, 1):
                end, here = words - length + more, base + 256
                source, target = (here, end) if write else (end, here)
                ends = {"from_host": int(side == "host" and not write), "to_host": int(side == "host" and write)}
                if not more:
                    data = rng.bytes(8 * length)
                    memories["device" if write else side][8 * source : 8 * (source + length)] = data
                    copied.append((side if write else "device", target, data))
                command = Command("COPY", {"source": source, "target": target, "words": length, **ends})
                case.put(base + 512 * more, [command, END])
                case.script += case.driver.write(f"{side}_words", words)
                case.run(base + 512 * more, 2, clear=bool(more))
                expected.append((Cause.REGION, ExecUnit.COPY, end) if more else (Cause.NONE, 0, 0))
    outcomes, record = case.simulate(seed=seed)
    assert [(o.cause, o.source, o.address) for o in outcomes] == expected
    for name, target, data in copied:
        assert record.images[name][8 * target : 8 * target + len(data)] == data


def test_documents():
    """The generated documents list every register and every command."""
    unit = Core.from_config(Config.preset("tiny"))
    documents = unit.documents
    for name, offset in unit.map.offsets.items():
        assert f"| 0x{offset:03x} | `{name}` |" in documents["core_registers.md"]
        assert f"#define VREX_{name.upper()} 0x{offset:03x}u" in documents["core_registers.h"]
    for op in isa.OPCODES:
        assert f"| `{op.name}` |" in documents["core_commands.md"]


@pytest.mark.heavy
def test_documents_go_with_the_verilog(tmp_path):
    """`vrex generate core` writes the documents, and a C compiler accepts the header."""
    config = Config.preset("tiny")
    generated = generate("core", config, tmp_path)
    for name, text in Core.from_config(config).documents.items():
        assert name in generated.files and (tmp_path / name).read_text() == text
    use = '#include "core_registers.h"\nunsigned start(void) { return VREX_CONTROL | VREX_CONTROL_START_MASK; }\n'
    (tmp_path / "use.c").write_text(use)
    subprocess.run(["cc", "-Wall", "-Werror", "-c", "use.c", "-o", "use.o"], cwd=tmp_path, check=True)


@pytest.mark.heavy
@pytest.mark.parametrize("preset", [p for p in PRESETS if p != "tiny"])  # which the others build
def test_every_preset_elaborates(preset):
    unit = Core.from_config(Config.preset(preset))
    assert to_rtlil(unit, "core") and unit.timing["bytes_per_word"] == 2 * unit.config.dpe_inputs
