"""A decoder layer with ReSV attention, compiled to commands in memory, equals the golden layer bit for bit."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from compiler.layer import LayerSizes
from golden import bf16
from golden.kvmu import Op
from golden.reference_decoder import attention, causal, silu
from golden.rope import rotate
from hw.axi.ports import WORD_ADDRESS_BITS, Cause
from hw.config import PRESETS
from hw.core.core import TRACE
from hw.core.isa import BY_NAME, COMMAND_BYTES, OPCODES, Command, Destination, ExecUnit, SyncEvent, all_but
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from hw.core.register_map import COUNTERS, SEQUENCER
from hw.core.sequencer import PROGRAM_BITS
from hw.core.sequencer import STATES as SEQUENCES
from hw.core.vector.command import assemble
from hw.lxe.microcode import Instruction
from sim.bench.axi import DECERR, SLVERR, FixedTiming
from sim.bench.core_run import BASES
from sim.bench.layer_run import LayerRun, frames
from sim.bench.timeline import busy, column, concurrency, spans
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory


@pytest.mark.parametrize("stall", [0.0, pytest.param(0.3, marks=pytest.mark.heavy)])
def test_layer_at_tiny(stall, rng, seed):
    """Frames, then text tokens one by one."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    for x in frames(bench, 12, 2):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.SELECT and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


def test_matrices_larger_than_the_operand_memory(rng, seed):
    """A row of tiles larger than half of the weight memory is loaded in pieces whose sums accumulate."""
    bench = LayerRun(
        "tiny",
        rng,
        sizes=LayerSizes(hidden=16, ffn=200, tokens=1, keys=64, q_heads=4),
        hamming_threshold=4,
        max_resident_tokens=16,
    )
    assert bench.layer.matrices["down"].k_blocks > bench.layer.products.half
    for x in frames(bench, 2, 1):
        bench.step(x)
    bench.check(stall=0.1, seed=seed)


@pytest.mark.parametrize("mirrored", [False, True])
def test_layer_uses_all_address_bits(mirrored, rng, seed):
    """All data at random addresses of both regions; `mirrored` inverts the upper address bits."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True, mirrored=mirrored)
    for x in frames(bench, 4, 2):
        bench.step(x)
    bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    slow = {"device": FixedTiming(latency=60, gap=1.5, beat_bytes=8), "host": FixedTiming(latency=200)}
    record = bench.check(stall=0.3, timing=slow, seed=seed)
    assert record.traffic["host"]["beats"]["read"]


def tokens(bench, count):
    """Keys or values of `count` tokens: BF16 codes (count, Hkv, d)."""
    return bf16.encode(bench.rng.standard_normal((count, bench.config.kv_heads, bench.config.head_dim)))


def test_steps_with_maximum_number_of_tokens(rng, seed):
    """Steps without queries have the maximum number of tokens; steps with queries use all accumulators."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=4, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=5, max_resident_tokens=16, selection_target=45000)
    for x in frames(bench, 4, 4, drift=1.0):
        bench.attend(tokens(bench, 8), tokens(bench, 8))
        bench.step(x)
    assert any(len(pages) > 8 for trace in bench.traces for pages in trace.pages)
    bench.check(stall=0.2, seed=seed)


def test_cluster_with_maximum_number_of_tokens(rng, seed):
    """Every token joins the first cluster; its mean covers all tokens."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=17, max_resident_tokens=16)
    capacity = bench.config.max_pages * bench.config.page_tokens
    for _ in range(capacity // 8):
        bench.attend(tokens(bench, 8), tokens(bench, 8))
    bench.check(stall=0.2, seed=seed)
    assert bench.golden.table.clusters.counts.tolist() == [capacity]


def test_means_after_a_long_vector_input(rng, seed, monkeypatch):
    """MEANS starts while an earlier VECTOR command is still reading its input."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    code, step = bench.region.allocate(2), bench.layer.step
    bench.run_on.put(code, assemble([Instruction(beats=200)], bench.config.vpe_rows))
    reads = {"code": code, "instructions": 1, "repeat": 1, "a_beats": 200, "destination": Destination.NONE, "extra": 1}

    def delayed(tokens):
        for command in step(tokens):
            yield from [Command("VECTOR", reads, command.waits)] * (command.name == "MEANS")
            yield command

    monkeypatch.setattr(bench.layer, "step", lambda tokens: list(delayed(tokens)))
    for x in frames(bench, 5, 2):
        bench.step(x)
    bench.check(seed=seed)


@pytest.mark.heavy
def test_layer_with_memories_of_the_system_model(rng, seed):
    """LPDDR5 and a PCIe link instead of fixed latencies: equal results after more cycles."""
    cycles = []
    for timing in (None, {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}):
        bench = LayerRun("tiny", np.random.default_rng(seed), hamming_threshold=4, max_resident_tokens=4)
        for x in frames(bench, 6, 2):
            bench.step(x)
        record = bench.check(seed=seed, timing=timing)
        assert record.traffic["host"]["beats"]["read"]
        cycles.append(record.cycles)
    assert cycles[1] > cycles[0]


def test_timeline(rng, seed):
    """Every command of a step has its span in the trace, and units overlap."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    for x in frames(bench, 2, 2):
        bench.step(x)
    record = bench.check(seed=seed, ports=["stat_trace"])
    timeline = spans(record.ports["stat_trace"], bench.programs)
    assert len(timeline) == sum(command.name != "END" for program in bench.programs for command in program)
    cycles, counts = busy(timeline), concurrency(timeline)
    assert all(count for unit, count in cycles.items() if unit is not ExecUnit.SYNC)  # no BARRIER on one core
    assert sum(cycles.values()) == sum(n * count for n, count in enumerate(counts))
    assert counts[2:].sum()  # units overlap


@pytest.mark.parametrize("latency", [12, 400])
def test_commands_start_when_their_waits_allow(latency, rng, seed):
    """Random waits: no command starts while more earlier commands are pending than its wait allows. With a slow memory
    up to a dozen commands of each unit are pending."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    step = [
        c for c in bench.layer.step(2) if c.name in ("LOAD", "MULTIPLY", "VECTOR") and not c.fields.get("destination")
    ]
    program = []
    for _ in range(6):
        lead = int(
            rng.integers(4)
        )  # a slow command, many commands of one unit that wait for it, then commands of all units
        program.append(Command("COPY", {"words": 200}))
        commands = [c for c in step if c.name == ("LOAD", "MULTIPLY", "VECTOR", "LOAD")[lead]]
        picked = [*rng.choice(len(commands), 20).tolist()]
        program += [Command(commands[n].name, commands[n].fields, {SyncEvent.COPY: 1}) for n in picked[:10]]
        for _ in range(15):
            waits = {
                event: int(rng.integers(16))
                for event in SyncEvent
                if event is not SyncEvent.RETRIEVAL and rng.random() < 0.4
            }
            command = step[int(rng.integers(len(step)))] if rng.random() < 0.7 else Command("COPY", {"words": 8})
            program.append(Command(command.name, command.fields, waits))
    bench.run([*program, Command("END")])
    timing = {"device": FixedTiming(latency=latency)}
    (outcome,), record = bench.run_on.simulate(seed=seed, timing=timing, ports=["stat_trace"])
    assert outcome.done and not outcome.failed
    span_of = {span.number: span for span in spans(record.ports["stat_trace"], bench.programs)}
    blocked = 0
    for number, command in enumerate(program):
        for event, wait in command.waits.items():
            earlier = [span_of[n] for n in range(number) if span_of[n].unit is event.unit]
            if wait and event is not SyncEvent.OPERANDS:
                pending = sum(span.end > span_of[number].start for span in earlier)
                assert pending < wait, (number, command)
                blocked += len(earlier) >= wait
    assert blocked > 50


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_layer_at_small(stall, rng, seed):
    """Frames of four tokens, then text; pages are offloaded and fetched."""
    bench = LayerRun("small", rng, hamming_threshold=7, max_resident_tokens=8)
    for x in frames(bench, 5, 4):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.SELECT and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


ADDRESSES = {  # address fields of commands that always transfer words, in a step without earlier tokens
    "LOAD": lambda f: ["source"] if not f.get("limit") else [],
    "MULTIPLY": lambda f: ["out"] if f.get("last") and not f.get("limit") else [],
    "VECTOR": lambda f: ["code", *["a"] * ("a_beats" in f), *["out"] * ("out_beats" in f)],
    "MEANS": lambda f: ["keys"],
    "STORE": lambda f: ["keys", "values"],
}


def faulty_program(bench, kind, rng):
    """Program of a step with one fault at a random command; returns the expected cause, source and addresses."""
    program = bench.layer.step(2)
    at = int(rng.integers(1, len(program) - 1))
    if kind == "truncated":
        return program[:at], (Cause.TRUNCATED, SEQUENCER, {at})
    if kind == "opcode":
        opcodes = {op.code for op in OPCODES}
        code = int(rng.choice([code for code in range(256) if code not in opcodes]))
        return [*program[:at], bytes([code]) + rng.bytes(63), *program[at:]], (Cause.OPCODE, SEQUENCER, {at})
    if kind == "size":
        loads = [n for n, command in enumerate(program) if command.name == "LOAD" and not command.fields.get("limit")]
        candidates = [(n, "target", 5000) for n in loads]
    else:
        candidates = [
            (n, field, int(rng.integers(bench.words, (1 << WORD_ADDRESS_BITS) - (1 << 12))))
            for n, command in enumerate(program)
            for field in ADDRESSES.get(command.name, lambda f: [])(command.fields)
        ]
    n, field, value = candidates[int(rng.integers(len(candidates)))]
    fields = program[n].fields
    program[n] = dataclasses.replace(program[n], fields={**fields, field: value})
    unit = BY_NAME[program[n].name].unit
    if kind == "size":
        return program, (Cause.SIZE, unit, {value})
    # the first row fails first, except for MEANS, which reads the tokens in the order of clusters
    rows = {value, value + fields["stride"]} if program[n].name == "MEANS" else {value}
    return program, (Cause.REGION, unit, rows)


@pytest.mark.parametrize("count", [4, pytest.param(80, marks=pytest.mark.heavy)])
def test_core_recovers_from_faulty_programs(count, rng, seed):
    """Each kind of fault occurs while units are busy. After each clear a program passes; at the end the layer runs
    correctly."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    faults = []
    for n in range(count):
        program, fault = faulty_program(bench, ("opcode", "truncated", "region", "size")[n % 4], rng)
        bench.begin()
        bench.run(program, clear=True)
        faults.append(fault)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=2 * count, stall=0.2, seed=seed)
    pairs = zip(*(bench.outcomes[k : 2 * count : 2] for k in (0, 1)), faults, strict=True)
    for begun, stopped, (cause, source, addresses) in pairs:
        assert begun.done and not begun.failed and not begun.hung
        assert stopped.failed and not stopped.done and not stopped.hung
        assert (stopped.cause, stopped.source) == (cause, source) and stopped.address in addresses, (cause, source)
    print(f"{count} bad programs")


@pytest.mark.parametrize("mirrored", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_every_engine_reports_address_of_memory_error(mirrored, rng, seed):
    """An error response to each reader and writer, at a random beat or burst and address.

    The core executes the next program. Later steps on the store, which is not recovered, can have any end; a reset ends
    them.
    """
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True, mirrored=mirrored)
    bench.clearing, bench.run_on.limit = True, 20_000  # steps on a damaged store can hang
    # page lists of the first step are empty; the engines of score rows and token counts read few words in a step
    steps_of = {"pages": 8, "scores": 2, "counts": 2}
    engines = [
        ("device", write, n, source, steps_of.get(name, 1))
        for write, kinds in ((False, READ_ENGINES), (True, WRITE_ENGINES))
        for n, (name, (source, _)) in enumerate(kinds.items())
    ]
    engines += [("host", write, 0, ExecUnit.COPY, 8) for write in (False, True)]  # pages are offloaded and fetched
    expected, batches = [], []
    for side, write, number, source, steps in engines:
        if bench.programs:
            bench.run_on.script.append(["reset"])
            bench.run_on.set_up()
        first, cause = len(bench.programs), rng.choice([Cause.SLVERR, Cause.DECERR])
        bench.begin()
        response, after = SLVERR if cause is Cause.SLVERR else DECERR, int(rng.integers(2 if write else 12))
        bench.run_on.script.append(["fail", side, write, after, response, number])
        for x in frames(bench, steps, 2):
            bench.run_step(x)
        batches.append(slice(first, len(bench.programs)))
        expected.append((side, cause, source))
    outcomes, record = bench.run_on.simulate(stall=0.2 * mirrored, seed=seed)
    addresses = {side: iter(record.traffic[side]["failed"]) for side in BASES}
    for batch, (side, cause, source) in zip(batches, expected, strict=True):
        failures = [n for n in range(batch.start, batch.stop) if outcomes[n].failed]
        assert failures, (side, source)
        failed = outcomes[failures[0]]
        address = next(addresses[side]) - bench.run_on.bases[side]
        assert (failed.cause, failed.source, failed.address * bench.run_on.word_bytes) == (cause, source, address)
        others = [*outcomes[batch.start : failures[0]], outcomes[failures[0] + 1]]
        assert all(outcome.done and not outcome.hung for outcome in others)


@pytest.mark.parametrize("cause", [Cause.REGION, Cause.DECERR])
def test_every_engine_reports_invalid_address(cause, rng, seed):
    """One command per engine at a random word outside the region, or without memory, and at the inverted address. No
    request leaves the region."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    case = bench.run_on
    code, instructions = bench.layer.vectors.addresses["residual"]
    words, piece = len(case.host) // case.word_bytes, bench.layer.x_piece
    add = {"code": code, "instructions": instructions, "repeat": 1, "a_beats": piece, "b_beats": piece, "b_used": 1,
           "out_beats": piece, "extra": 1}  # fmt: skip
    commands = [
        ("LOAD", "source", {"rows": 1, "beats": 1}),
        ("MULTIPLY", "out", dict.fromkeys(("m_blocks", "k_blocks", "vectors", "first", "last"), 1)),
        *(("VECTOR", name, add) for name in ("code", "a", "b", "out")),
        *(("COPY", name, {"words": 1, side: 1}) for name in ("source", "target") for side in ("from_host", "to_host")),
    ]
    if cause is Cause.DECERR:
        for side in BASES:
            case.script += case.driver.write(f"{side}_words", 1 << WORD_ADDRESS_BITS)
    expected = []
    for name, field, fields in commands:
        base = int(rng.integers(max(words, bench.words), (1 << WORD_ADDRESS_BITS) - max(words, bench.words)))
        for address in (base, base ^ (1 << WORD_ADDRESS_BITS) - 1):
            bench.run([Command(name, {**fields, field: address}), Command("END")], clear=True)
            expected.append((BY_NAME[name].unit, address))
    for address in (base, base ^ (1 << WORD_ADDRESS_BITS) - 1):
        case.run(address, 1, clear=True)
        expected.append((SEQUENCER, address))
    outcomes, record = case.simulate(seed=seed)
    faults = [(outcome.source, outcome.address) for outcome in outcomes]
    assert faults == expected and all(outcome.cause is cause and outcome.failed for outcome in outcomes)
    assert any(record.traffic[side]["failed"] for side in BASES) == (cause is Cause.DECERR)


def test_jobs_of_all_lengths_outside_their_region(rng, seed):
    """Jobs of 3, 7, 15, .. words whose last word is outside the region raise a fault with the first address."""
    bench, end = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16), 1 << WORD_ADDRESS_BITS
    case, n = bench.run_on, bench.config.dpe_inputs
    code, instructions = bench.layer.vectors.addresses["residual"]
    add = {"code": code, "instructions": instructions, "repeat": 1, "a_beats": 1, "b_beats": 1, "b_used": 1,
           "out_beats": 1, "extra": 1}  # fmt: skip
    jobs = [  # command, address field, length field, bits and factor of the length, words per unit, other fields
        ("LOAD", "source", "beats", 16, 1, 1, {"rows": 1}),
        ("LOAD", "source", "extra", 14, n, 1, {"rows": 1, "beats": (1 << 16) - 1, "limit": 2}),
        *(("VECTOR", name, f"{name}_beats", 16, 1, 1, add) for name in ("a", "b", "out")),
        ("VECTOR", "code", "instructions", 8, 1, 16 // case.word_bytes, add),
        *(("COPY", f, "words", 24, 1, 1, {to: 1}) for f in ("source", "target") for to in ("from_host", "to_host")),
    ]
    for side in BASES:
        case.script += case.driver.write(f"{side}_words", end)
    expected = []
    for name, field, length, bits, factor, size, fields in jobs:
        for number in ((1 << k + 1) - 1 for k in range(size == 1, bits)):
            address = end + 1 - number * size
            command = Command(name, {**fields, field: address, length: number * factor})
            bench.run([command, Command("END")], clear=True)
            expected.append((BY_NAME[name].unit, address))
    for commands in ((1 << k + 1) - 1 for k in range(PROGRAM_BITS)):
        address = end + 1 - commands * COMMAND_BYTES // case.word_bytes
        case.run(address, commands, clear=True)
        expected.append((SEQUENCER, address))
    outcomes, record = case.simulate(seed=seed)
    assert [(outcome.source, outcome.address) for outcome in outcomes] == expected
    assert all(outcome.cause is Cause.REGION and outcome.failed for outcome in outcomes)
    assert not any(record.traffic[side]["failed"] for side in BASES)


def test_unaligned_page_base_raises_fault(rng, seed):
    """An offload from a page frame that starts inside a word raises a fault with the word of its target."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=4, max_resident_tokens=4)
    case, base, expected = bench.run_on, bench.golden.table.kvmu.config.page_frames_base, []
    host_page = int(rng.integers(1 << 22))  # in units of 4,096 bytes
    bench.store.contexts["host_pages_base"][0] = host_page
    bench.initial = bench.memory.tobytes()
    case.put(bench.store_base // case.word_bytes, bench.initial)
    case.script += case.driver.write("host_words", 1 << WORD_ADDRESS_BITS)
    for inside in (1, 2, 4):
        case.script += case.driver.write("page_frames_base", base + inside)
        bench.begin()
        bench.run(bench.layer.attention(8, query=False), clear=True)
        expected += [(Cause.NONE, 0, 0), (Cause.REGION, ExecUnit.COPY, 4096 * host_page // case.word_bytes)]
    outcomes, record = case.simulate(seed=seed)
    assert [(outcome.cause, outcome.source, outcome.address) for outcome in outcomes] == expected
    assert not record.traffic["host"]["beats"]["write"]


def test_transfer_buffers_are_refilled_during_fetch(rng, seed):
    """Keys and values are stored a second time with other data while pages are fetched."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4)
    run = bench.run

    def repeat_store(program):
        names = [command.name for command in program]
        if "FETCH" in names:
            store, fetch = names.index("STORE"), names.index("FETCH")
            first = dataclasses.replace(program[store], fields={})
            second = Command("STORE", program[store].fields, {SyncEvent.VECTOR: all_but()})
            program = [*program[:store], first, *program[store + 1 : fetch], second, *program[fetch:]]
        run(program)

    bench.run = repeat_store
    for x in frames(bench, 5, 2):
        bench.step(x)
    record = bench.check(seed=seed, timing={"device": FixedTiming(latency=60), "host": FixedTiming(latency=200)})
    assert record.traffic["host"]["beats"]["read"]


def test_writers_share_memory_fairly(rng, seed):
    """Table entries are written while the matrix engine always has a result to write."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    results = {"m_blocks": 120, "k_blocks": 1, "vectors": 8, "first": 1, "last": 1, "stride": 120}
    code, instructions = bench.layer.vectors.addresses["hash"]
    codes = {"code": code, "instructions": instructions, "repeat": 8, "a_beats": bench.layer.hashes,
             "destination": Destination.CODES, "extra": 1}  # fmt: skip
    bench.begin()
    multiply = Command("MULTIPLY", {**results, "out": bench.region.allocate(960)})
    bench.run([multiply, Command("VECTOR", codes), Command("CLUSTER"), Command("END")])
    outcomes, record = bench.run_on.simulate(stall=0.5, seed=seed, timing={"device": FixedTiming()})
    assert all(outcome.done for outcome in outcomes)
    writers = [identity for write, identity, *_ in filter(None, record.traffic["device"]["requests"]) if write]
    order = [list(WRITE_ENGINES)[identity] for identity in writers]
    assert order.count("matrix") == 960 and order.count("store") >= 16
    assert "store" not in order[-100:]


def test_fault_during_table_writes(rng, seed):
    """Pending table entries are written before the reset, and the next step runs."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=4, max_resident_tokens=16)
    program = bench.layer.attention(8, query=False)
    clustered = next(n for n, command in enumerate(program) if command.name == "CLUSTER")
    beyond = Command("LOAD", {"source": bench.words, "rows": 1, "beats": 1}, {SyncEvent.RETRIEVAL: all_but()})
    bench.begin()
    bench.run([*program[: clustered + 1], beyond, Command("END")], clear=True)
    bench.attend(tokens(bench, 8), tokens(bench, 8))
    bench.check(failed=2, stall=0.8, seed=seed)
    assert bench.outcomes[1].cause is Cause.REGION


def test_program_with_many_commands(rng, seed):
    """A program whose length needs more than one byte, truncated and complete."""
    bench, count, cut = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16), 8200, 4500
    program = [Command("LOAD")] * count + [Command("END")]
    address = bench.region.allocate(len(program) * 64 // bench.run_on.word_bytes)
    bench.run_on.put(address, program)
    bench.run_on.run(address, cut, clear=True)
    bench.run_on.run(address, count + 1)
    bench.run_on.script += bench.run_on.driver.read("position")
    (short, complete), record = bench.run_on.simulate(seed=seed)
    assert (short.cause, short.source, short.address) == (Cause.TRUNCATED, SEQUENCER, cut)
    assert complete.done and not complete.failed and record.answers[-1] == [count, 0]


def test_counters_agree_with_ports(rng, seed):
    """Every counter after a long program with pauses equals the count in the trace and the handshakes."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4)
    for x in frames(bench, 4, 2):
        bench.step(x)
    step = [command for command in bench.layer.step(2) if command.name != "END"]
    code, instructions = bench.layer.vectors.addresses["residual"]
    long = {"code": code, "instructions": instructions, "repeat": 1200, "a_beats": bench.layer.x_piece, "b_used": 1,
            "b_beats": bench.layer.x_piece,
            "out_beats": bench.layer.x_piece, "out": bench.layer.wide["q"], "extra": 1}  # fmt: skip
    bench.run([*4 * step, Command("VECTOR", long), Command("END")])
    for name in COUNTERS:
        bench.run_on.script += bench.run_on.driver.read(name)
    pairs = {"read": ["ar"], "write": ["aw", "w"]}
    wires = [f"{side}__{c}{w}" for side in BASES for way in pairs.values() for c in way for w in ("valid", "ready")]
    _, record = bench.run_on.simulate(stall=0.2, seed=seed, ports=["stat_trace", *wires])
    counters = dict(zip(COUNTERS, (value for value, _ in record.answers[-len(COUNTERS) :]), strict=True))
    running = column(record.ports["stat_trace"], "sequencer") != SEQUENCES.index("IDLE")
    begin = np.flatnonzero(running & ~np.roll(running, 1))[-1]  # start of the last program, which resets the counters
    now = {name: column(record.ports["stat_trace"], name)[begin:] for name in TRACE.members}
    expected = {"cycles": running[begin:].sum()} | {f"{name}_beats": now[name].sum() for name in ("matrix", "vector")}
    expected |= {f"done_{unit.name.lower()}": (now["complete"] >> unit & 1).sum() for unit in ExecUnit}
    for side in BASES:
        for way, channels in pairs.items():
            expected[f"{side}_{way}"] = now[f"{side}_{way}"].sum()
            ports = [[record.ports[f"{side}__{c}{w}"][begin:] for w in ("valid", "ready")] for c in channels]
            expected[f"{side}_{way}_wait"] = np.any([valid > ready for valid, ready in ports], axis=0).sum()
    assert {name: counters[name] for name in expected} == expected


def test_busy_counters_of_units(rng, seed):
    """Programs with commands of one unit: in every cycle this unit is busy, or no unit."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    step, names = bench.layer.step(2), ("cycles", "stalled", *(f"busy_{unit.name.lower()}" for unit in ExecUnit))
    bench.begin()  # MEANS needs an open context
    for unit in ExecUnit:
        alone = {
            ExecUnit.RETRIEVAL: [Command("OPEN", {"context": n % 2}) for n in range(60)],
            ExecUnit.COPY: [Command("COPY", {"words": 400})] * 5,
            ExecUnit.SYNC: [Command("BARRIER", {"cores": 1})] * 60,
        }
        program = alone.get(unit) or [
            Command(c.name, c.fields)
            for c in step
            if BY_NAME[c.name].unit is unit and c.fields.get("destination", 0) in (0, 3)
        ]
        bench.run([*program, Command("END")])
        for name in names:
            bench.run_on.script += bench.run_on.driver.read(name)
    outcomes, record = bench.run_on.simulate(seed=seed)
    assert all(outcome.done and not outcome.failed for outcome in outcomes)
    answers = record.answers
    for unit, at in zip(ExecUnit, bench.run_on.runs[1:], strict=True):
        values = [value for value, _ in answers[at + 7 : at + 7 + len(names)]]
        cycles, stalled, *busy = dict(zip(names, values, strict=True)).values()
        assert busy == [(cycles - stalled) * (other is unit) for other in ExecUnit]
        # a BARRIER of one core is shorter than the read of the next command
        assert cycles > (1 if unit is ExecUnit.SYNC else 2) * stalled


@pytest.mark.parametrize("count", [2, pytest.param(80, marks=pytest.mark.heavy)])
def test_core_recovers_from_memory_errors(count, rng, seed):
    """Error responses at random beats of a step, one per program. After each clear a program passes; at the end the
    layer runs correctly."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    program = bench.layer.step(2)
    for n in range(count):
        bench.begin()
        after = int(rng.integers(0, 100 if n % 2 else 1200))
        bench.run_on.script.append(["fail", "device", bool(n % 2), after, SLVERR if rng.random() < 0.5 else DECERR])
        bench.run(program, clear=True)
    bench.run_on.script.append(["fail", "device", False, -1, SLVERR])  # no further failure
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=2 * count, seed=seed)
    assert all(begun.done and not begun.failed for begun in bench.outcomes[0 : 2 * count : 2])
    stopped = [outcome for outcome in bench.outcomes if outcome.failed]
    assert len(stopped) > 0.8 * count and not any(outcome.hung for outcome in bench.outcomes)
    causes = Counter((outcome.cause.name, outcome.source) for outcome in stopped)
    assert {cause for cause, _ in causes} <= {"SLVERR", "DECERR"}
    print(f"{len(stopped)} programs stopped, by cause and source:", dict(causes))


@pytest.mark.parametrize("stall", [0.2, pytest.param(0.0, marks=pytest.mark.heavy)])
def test_full_table_raises_fault(stall, rng, seed):
    """Steps fetch more than the staging area of one head page. After the clear the tables are empty and steps pass."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, staging_head_pages=1)
    bench.clearing = True
    bench.begin()
    for x in frames(bench, 7, 2):
        bench.run_step(x)
    outcomes, _ = bench.run_on.simulate(stall=stall, seed=seed)
    failed = [outcome for outcome in outcomes if outcome.failed]
    assert failed and {(outcome.cause, outcome.source) for outcome in failed} == {(Cause.TABLE, ExecUnit.RETRIEVAL)}
    assert not any(outcome.hung for outcome in outcomes) and outcomes[-1].done


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.heavy)])
def test_reset_during_a_step(count, rng, seed):
    """Resets at random cycles of a step; later steps are correct."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    program = bench.layer.step(2)
    address = bench.region.allocate(len(bench.run_on.driver.image(program)) // bench.run_on.word_bytes)
    bench.run_on.put(address, program)
    for cycles in rng.integers(50, 4500, count).tolist():
        bench.run_on.reset_after(address, len(program), cycles)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(seed=seed)


def test_golden_layer_is_close_to_float64(rng):
    """The first step has no earlier tokens: it equals causal attention of a decoder layer in float64."""
    bench = LayerRun("small", rng, hamming_threshold=7, max_resident_tokens=64)
    x = next(frames(bench, 1, 4))
    actual = bf16.decode(bench.golden.step(x, range(4)).output)
    s, w = bench.golden.shape, {k: bf16.decode(v) for k, v in bench.golden.weights.items()}
    norms = [bf16.decode(v) for v in bench.golden.norms]

    def normed(v, weight):
        return v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5) * weight

    v = bf16.decode(x)
    h = normed(v, norms[0])
    positions = np.arange(4)[:, None]
    q = rotate((h @ w["q"].T).reshape(4, s.q_heads, -1), positions)
    k = rotate((h @ w["k"].T).reshape(4, s.kv_heads, -1), positions)
    mixed = attention(q, k, (h @ w["v"].T).reshape(4, s.kv_heads, -1), causal(4, 4))
    v = v + mixed.reshape(4, -1) @ w["o"].T
    h = normed(v, norms[1])
    v = v + (silu(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T
    assert np.abs(actual - v).max() < 0.03 * np.abs(v).max()


SHAPES = {  # sizes of a layer at `tiny`, which has 8 accumulators, 64 rows of activations, and 16 rows of vector memory
    "norm in pieces": LayerSizes(hidden=200, ffn=24, tokens=2, keys=64, q_heads=4),
    "activations in pieces": LayerSizes(hidden=64, ffn=240, tokens=5, keys=64, q_heads=4),
    "more tokens than accumulators fit": LayerSizes(hidden=32, ffn=24, tokens=8, keys=64, q_heads=8),
    "more query heads than accumulators": LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, q_heads=20),
    "padded heads": LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, head=6, q_heads=4),
}


@pytest.mark.parametrize("name", SHAPES)
def test_layer_shapes(name, rng, seed):
    """Sizes that the operand memory, the accumulators or the vector memory do not hold at once."""
    sizes = SHAPES[name]
    resident = PRESETS["tiny"].page_frames - sizes.tokens  # if each token has a page of its own
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=4, max_resident_tokens=resident)
    for x in frames(bench, 3, sizes.tokens):
        bench.step(x)
    bench.step(bf16.encode(rng.standard_normal((1, sizes.hidden))))
    bench.check(stall=0.1, seed=seed)


def test_rows_longer_than_the_vector_memory(rng, seed):
    """A head attends to more keys than the vector memory holds; the same program runs with short rows first."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=4, keys=160, fill=8, q_heads=4)
    bench = LayerRun(
        "tiny", rng, sizes=sizes, hamming_threshold=9, max_resident_tokens=16, selection_target=65535,
        staging_head_pages=64,
    )  # fmt: skip
    for x in frames(bench, 5, 4, drift=1.0):
        for _ in range(2):
            bench.attend(tokens(bench, 8), tokens(bench, 8))
        bench.step(x)
    longest = [max(len(past) for past in trace.attended) for trace in bench.traces]
    capacity = bench.config.vpe_rows * bench.config.vpe_lanes
    assert longest[0] < capacity - 8 and longest[-1] > capacity
    bench.check(stall=0.1, seed=seed)
