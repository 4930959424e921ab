"""A decoder layer with ReSV attention from commands in memory, against the golden layer, bit for bit."""

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
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


def test_matrices_larger_than_the_operand_memory(rng, seed):
    """A row of tiles that half of the weights' memory does not hold comes in parts, whose sums go on."""
    bench = LayerRun(
        "tiny",
        rng,
        sizes=LayerSizes(hidden=16, ffn=200, tokens=1, keys=64, q_heads=4),
        hamming_threshold=4,
        max_resident_tokens=16,
    )
    assert bench.layer.shapes["down"][1] > bench.layer.half
    for x in frames(bench, 2, 1):
        bench.step(x)
    bench.check(stall=0.1, seed=seed)


@pytest.mark.parametrize("mirrored", [False, True])
def test_layer_anywhere_in_memory(mirrored, rng, seed):
    """Everything at addresses of all bits, in both regions, and at the opposite ones."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True, mirrored=mirrored)
    for x in frames(bench, 4, 2):
        bench.step(x)
    bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    slow = {"device": FixedTiming(latency=60, gap=1.5, beat_bytes=8), "host": FixedTiming(latency=200)}
    record = bench.check(stall=0.3, timing=slow, seed=seed)
    assert record.traffic["host"]["beats"]["read"]


def tokens(bench, count):
    """Keys or values of so many tokens: BF16 codes (count, Hkv, d)."""
    return bf16.encode(bench.rng.standard_normal((count, bench.config.kv_heads, bench.config.head_dim)))


def test_steps_of_as_many_tokens_as_there_is_room_for(rng, seed):
    """Those without queries fill all places of a step, those with queries all sums of the matrix engine."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=4, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=5, max_resident_tokens=16, selection_target=45000)
    for x in frames(bench, 4, 4, drift=1.0):
        bench.attend(tokens(bench, 8), tokens(bench, 8))
        bench.step(x)
    assert any(len(pages) > 8 for trace in bench.traces for pages in trace.pages)
    bench.check(stall=0.2, seed=seed)


def test_a_cluster_of_as_many_tokens_as_there_are_places(rng, seed):
    """Every token joins the first one's cluster, whose mean goes on over all of them."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=17, max_resident_tokens=16)
    places = bench.config.max_pages * bench.config.page_tokens
    for _ in range(places // 8):
        bench.attend(tokens(bench, 8), tokens(bench, 8))
    bench.check(stall=0.2, seed=seed)
    assert bench.golden.table.clusters.counts.tolist() == [places]


def test_means_right_behind_a_long_input(rng, seed, monkeypatch):
    """A VECTOR that only reads is still reading when MEANS wants its first mean."""
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
def test_layer_with_the_system_models_memories(rng, seed):
    """LPDDR5 and a PCIe link instead of fixed latencies: the same bytes, later."""
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
    found = spans(record.ports["stat_trace"], bench.programs)
    assert len(found) == sum(command.name != "END" for program in bench.programs for command in program)
    used, counts = busy(found), concurrency(found)
    assert all(used.values()) and sum(used.values()) == sum(n * count for n, count in enumerate(counts))
    assert counts[2:].sum()  # units overlap


@pytest.mark.parametrize("latency", [12, 400])
def test_commands_wait_for_what_they_name(latency, rng, seed):
    """Random waits: no command starts while more of those before it are to come than it allows. On a slow memory up to
    a dozen of each unit are under way."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    step = [
        c for c in bench.layer.step(2) if c.name in ("LOAD", "MULTIPLY", "VECTOR") and not c.fields.get("destination")
    ]
    program = []
    for _ in range(6):
        lead = int(rng.integers(4))  # a slow command, then many of one unit that wait for it, then some of all
        program.append(Command("COPY", {"words": 200}))
        some = [c for c in step if c.name == ("LOAD", "MULTIPLY", "VECTOR", "LOAD")[lead]]
        picked = [*rng.choice(len(some), 20).tolist()]
        program += [Command(some[n].name, some[n].fields, {SyncEvent.COPY: 1}) for n in picked[:10]]
        for _ in range(15):
            waits = {
                event: int(rng.integers(16))
                for event in SyncEvent
                if event is not SyncEvent.RETRIEVAL and rng.random() < 0.4
            }
            one = step[int(rng.integers(len(step)))] if rng.random() < 0.7 else Command("COPY", {"words": 8})
            program.append(Command(one.name, one.fields, waits))
    bench.run([*program, Command("END")])
    timing = {"device": FixedTiming(latency=latency)}
    (outcome,), record = bench.run_on.simulate(seed=seed, timing=timing, ports=["stat_trace"])
    assert outcome.done and not outcome.failed
    found = {span.number: span for span in spans(record.ports["stat_trace"], bench.programs)}
    held = 0
    for number, command in enumerate(program):
        for event, wait in command.waits.items():
            before = [found[n] for n in range(number) if found[n].unit is event.unit]
            if wait and event is not SyncEvent.OPERANDS:
                to_come = sum(span.end > found[number].start for span in before)
                assert to_come < wait, (number, command)
                held += len(before) >= wait
    assert held > 50


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_layer_at_small(stall, rng, seed):
    """Frames of four tokens, then text; pages leave the device and come back."""
    bench = LayerRun("small", rng, hamming_threshold=7, max_resident_tokens=8)
    for x in frames(bench, 5, 4):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


ADDRESSES = {  # fields of commands that always move words, in a step without a past
    "LOAD": lambda f: ["source"] if not f.get("limit") else [],
    "MULTIPLY": lambda f: ["out"] if f.get("last") and not f.get("limit") else [],
    "VECTOR": lambda f: ["code", *["a"] * ("a_beats" in f), *["out"] * ("out_beats" in f)],
    "MEANS": lambda f: ["keys"],
    "STORE": lambda f: ["keys", "values"],
}


def faulty(bench, kind, rng):
    """A step's program with something wrong in it at a random place; cause, source and address it stops with."""
    program = bench.layer.step(2)
    at = int(rng.integers(1, len(program) - 1))
    if kind == "truncated":
        return program[:at], (Cause.TRUNCATED, SEQUENCER, {at})
    if kind == "opcode":
        known = {op.code for op in OPCODES}
        code = int(rng.choice([code for code in range(256) if code not in known]))
        return [*program[:at], bytes([code]) + rng.bytes(63), *program[at:]], (Cause.OPCODE, SEQUENCER, {at})
    if kind == "size":
        where = [n for n, command in enumerate(program) if command.name == "LOAD" and not command.fields.get("limit")]
        places = [(n, "target", 5000) for n in where]
    else:
        places = [
            (n, field, int(rng.integers(bench.words, (1 << WORD_ADDRESS_BITS) - (1 << 12))))
            for n, command in enumerate(program)
            for field in ADDRESSES.get(command.name, lambda f: [])(command.fields)
        ]
    n, field, value = places[int(rng.integers(len(places)))]
    fields = program[n].fields
    program[n] = dataclasses.replace(program[n], fields={**fields, field: value})
    unit = BY_NAME[program[n].name].unit
    if kind == "size":
        return program, (Cause.SIZE, unit, {value})
    # the first row comes first, but for means, whose tokens come cluster by cluster
    rows = {value, value + fields["stride"]} if program[n].name == "MEANS" else {value}
    return program, (Cause.REGION, unit, rows)


@pytest.mark.parametrize("count", [4, pytest.param(80, marks=pytest.mark.heavy)])
def test_goes_on_after_bad_programs(count, rng, seed):
    """Every kind in turn, each while units are at work; after each clear a program passes, in the end the layer runs
    as if nothing had been."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    faults = []
    for n in range(count):
        program, fault = faulty(bench, ("opcode", "truncated", "region", "size")[n % 4], rng)
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


@pytest.mark.parametrize("mirrored", [False, True])
def test_every_engine_tells_where_memory_failed(mirrored, rng, seed):
    """Two failing answers to each reader and writer, at a random beat or burst of it, anywhere in memory."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True, mirrored=mirrored)
    bench.clearing = True
    engines = [("device", False, n, source, 1) for n, (source, _) in enumerate(READ_ENGINES.values())]
    engines += [("device", True, n, source, 1) for n, (source, _) in enumerate(WRITE_ENGINES.values())]
    engines += [("host", write, 0, ExecUnit.COPY, 4) for write in (False, True)]  # pages leave, and come back
    expected, batches = [], []
    for side, write, number, source, steps in 2 * engines:
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
        (failed,) = [outcome for outcome in outcomes[batch] if outcome.failed]
        address = next(addresses[side]) - bench.run_on.bases[side]
        assert (failed.cause, failed.source, failed.address * bench.run_on.word_bytes) == (cause, source, address)
        assert all(outcome.done and not outcome.hung for outcome in outcomes[batch] if outcome is not failed)


@pytest.mark.parametrize("cause", [Cause.REGION, Cause.DECERR])
def test_every_engine_tells_what_it_cannot_reach(cause, rng, seed):
    """One command for each, at a random word beyond the region, or where no memory answers, and at that of the opposite
    bits. Of what lies beyond the region nothing is asked."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    case = bench.run_on
    code, instructions = bench.layer.code["residual"]
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
        place = int(rng.integers(max(words, bench.words), (1 << WORD_ADDRESS_BITS) - max(words, bench.words)))
        for address in (place, place ^ (1 << WORD_ADDRESS_BITS) - 1):
            bench.run([Command(name, {**fields, field: address}), Command("END")], clear=True)
            expected.append((BY_NAME[name].unit, address))
    for address in (place, place ^ (1 << WORD_ADDRESS_BITS) - 1):
        case.run(address, 1, clear=True)
        expected.append((SEQUENCER, address))
    outcomes, record = case.simulate(seed=seed)
    found = [(outcome.source, outcome.address) for outcome in outcomes]
    assert found == expected and all(outcome.cause is cause and outcome.failed for outcome in outcomes)
    assert any(record.traffic[side]["failed"] for side in BASES) == (cause is Cause.DECERR)


def test_jobs_of_all_lengths_that_leave_their_region(rng, seed):
    """Of 3, 7, 15, .. words, the last of which lies beyond: a fault that names the first one."""
    bench, end = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16), 1 << WORD_ADDRESS_BITS
    case, n = bench.run_on, bench.config.dpe_inputs
    code, instructions = bench.layer.code["residual"]
    add = {"code": code, "instructions": instructions, "repeat": 1, "a_beats": 1, "b_beats": 1, "b_used": 1,
           "out_beats": 1, "extra": 1}  # fmt: skip
    jobs = [  # command, its address, its length, bits of a number, which in the length is so much, and so many words
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


def test_pages_inside_a_word(rng, seed):
    """Where they leave to is no whole word: a fault that names it, for any word and that of the opposite bits."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=4, max_resident_tokens=4)
    case, word, expected = bench.run_on, int(rng.integers(1 << WORD_ADDRESS_BITS)), []
    case.script += case.driver.write("host_words", 1 << WORD_ADDRESS_BITS)
    for inside in (1, 2, 4):
        case.script += case.driver.write("host_pages_base", case.word_bytes * word + inside)
        bench.begin()
        bench.run(bench.layer.attention(8, query=False), clear=True)
        expected += [(Cause.NONE, 0, 0), (Cause.REGION, ExecUnit.COPY, word)]
        word ^= (1 << WORD_ADDRESS_BITS) - 1
    outcomes, record = case.simulate(seed=seed)
    assert [(outcome.cause, outcome.source, outcome.address) for outcome in outcomes] == expected
    assert not record.traffic["host"]["beats"]["write"]


def test_places_are_filled_between_transfers(rng, seed):
    """Keys and values come to their places a second time, while pages are fetched: the first time they were others."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4)
    run = bench.run

    def twice(program):
        names = [command.name for command in program]
        if "FETCH" in names:
            place, fetch = names.index("STORE"), names.index("FETCH")
            first = dataclasses.replace(program[place], fields={})
            second = Command("STORE", program[place].fields, {SyncEvent.VECTOR: all_but()})
            program = [*program[:place], first, *program[place + 1 : fetch], second, *program[fetch:]]
        run(program)

    bench.run = twice
    for x in frames(bench, 5, 2):
        bench.step(x)
    record = bench.check(seed=seed, timing={"device": FixedTiming(latency=60), "host": FixedTiming(latency=200)})
    assert record.traffic["host"]["beats"]["read"]


def test_writers_take_turns(rng, seed):
    """While the matrix engine always has a result to write, the table's entries do not wait for all of them."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    results = {"m_blocks": 40, "k_blocks": 1, "vectors": 8, "first": 1, "last": 1, "stride": 40}
    code, instructions = bench.layer.code["hash"]
    codes = {"code": code, "instructions": instructions, "repeat": 8, "a_beats": bench.layer.hashes,
             "destination": Destination.CODES, "extra": 1}  # fmt: skip
    bench.begin()
    multiply = Command("MULTIPLY", {**results, "out": bench.region.allocate(320)})
    bench.run([multiply, Command("VECTOR", codes), Command("CLUSTER"), Command("END")])
    outcomes, record = bench.run_on.simulate(stall=0.5, seed=seed, timing={"device": FixedTiming()})
    assert all(outcome.done for outcome in outcomes)
    writers = [identity for write, identity, *_ in filter(None, record.traffic["device"]["requests"]) if write]
    turns = [list(WRITE_ENGINES)[identity] for identity in writers]
    assert turns.count("matrix") == 320 and turns.count("table") >= 16
    assert "table" not in turns[-100:]


def test_a_fault_while_tables_are_written(rng, seed):
    """What memory has not taken yet of a table's entries is written before all is reset, and the next step runs."""
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


def test_a_program_of_many_commands(rng, seed):
    """Its length and the place of its end in more than a byte: cut short, and whole."""
    bench, count, cut = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16), 8200, 4500
    program = [Command("LOAD")] * count + [Command("END")]
    place = bench.region.allocate(len(program) * 64 // bench.run_on.word_bytes)
    bench.run_on.put(place, program)
    bench.run_on.run(place, cut, clear=True)
    bench.run_on.run(place, count + 1)
    bench.run_on.script += bench.run_on.driver.read("position")
    (short, whole), record = bench.run_on.simulate(seed=seed)
    assert (short.cause, short.source, short.address) == (Cause.TRUNCATED, SEQUENCER, cut)
    assert whole.done and not whole.failed and record.answers[-1] == [count, 0]


def test_counters_say_what_the_ports_show(rng, seed):
    """Every counter after a long program with pauses, against the trace and the handshakes of every cycle."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4)
    for x in frames(bench, 4, 2):
        bench.step(x)
    step = [command for command in bench.layer.step(2) if command.name != "END"]
    code, instructions = bench.layer.code["residual"]
    long = {"code": code, "instructions": instructions, "repeat": 1200, "a_beats": bench.layer.x_piece, "b_used": 1,
            "b_beats": bench.layer.x_piece,
            "out_beats": bench.layer.x_piece, "out": bench.layer.wide["q"], "extra": 1}  # fmt: skip
    bench.run([*4 * step, Command("VECTOR", long), Command("END")])
    for name in COUNTERS:
        bench.run_on.script += bench.run_on.driver.read(name)
    pairs = {"read": ["ar"], "write": ["aw", "w"]}
    wires = [f"{side}__{c}{w}" for side in BASES for way in pairs.values() for c in way for w in ("valid", "ready")]
    _, record = bench.run_on.simulate(stall=0.2, seed=seed, ports=["stat_trace", *wires])
    found = dict(zip(COUNTERS, (value for value, _ in record.answers[-len(COUNTERS) :]), strict=True))
    running = column(record.ports["stat_trace"], "sequencer") != SEQUENCES.index("IDLE")
    begin = np.flatnonzero(running & ~np.roll(running, 1))[-1]  # of the last program; the counters were 0 then
    now = {name: column(record.ports["stat_trace"], name)[begin:] for name in TRACE.members}
    wanted = {"cycles": running[begin:].sum()} | {f"{name}_beats": now[name].sum() for name in ("matrix", "vector")}
    wanted |= {f"done_{unit.name.lower()}": (now["complete"] >> unit & 1).sum() for unit in ExecUnit}
    for side in BASES:
        for way, channels in pairs.items():
            wanted[f"{side}_{way}"] = now[f"{side}_{way}"].sum()
            ports = [[record.ports[f"{side}__{c}{w}"][begin:] for w in ("valid", "ready")] for c in channels]
            wanted[f"{side}_{way}_wait"] = np.any([valid > ready for valid, ready in ports], axis=0).sum()
    assert {name: found[name] for name in wanted} == wanted


def test_counters_of_units_at_work(rng, seed):
    """Programs of one unit's commands alone: in every cycle this unit is at work, or none."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    step, names = bench.layer.step(2), ("cycles", "stalled", *(f"busy_{unit.name.lower()}" for unit in ExecUnit))
    for unit in ExecUnit:
        alone = {ExecUnit.RETRIEVAL: [Command("BEGIN")] * 60, ExecUnit.COPY: [Command("COPY", {"words": 400})] * 5}
        program = alone.get(unit) or [
            Command(c.name, c.fields)
            for c in step
            if BY_NAME[c.name].unit is unit and c.fields.get("destination", 0) in (0, 3)
        ]
        bench.run([*program, Command("END")])
        for name in names:
            bench.run_on.script += bench.run_on.driver.read(name)
    answers = bench.check(seed=seed).answers
    for unit, at in zip(ExecUnit, bench.run_on.runs, strict=True):
        found = [value for value, _ in answers[at + 7 : at + 7 + len(names)]]
        cycles, stalled, *busy = dict(zip(names, found, strict=True)).values()
        assert busy == [(cycles - stalled) * (one is unit) for one in ExecUnit] and cycles > 2 * stalled


@pytest.mark.parametrize("count", [2, pytest.param(80, marks=pytest.mark.heavy)])
def test_goes_on_after_errors_of_memory(count, rng, seed):
    """Errors at random beats of a step, one after the other, each in a program of its own; after each clear a program
    passes, in the end the layer runs as if nothing had been."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    program = bench.layer.step(2)
    for n in range(count):
        bench.begin()
        after = int(rng.integers(0, 100 if n % 2 else 1200))
        bench.run_on.script.append(["fail", "device", bool(n % 2), after, SLVERR if rng.random() < 0.5 else DECERR])
        bench.run(program, clear=True)
    bench.run_on.script.append(["fail", "device", False, -1, SLVERR])  # no more
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=2 * count, seed=seed)
    assert all(begun.done and not begun.failed for begun in bench.outcomes[0 : 2 * count : 2])
    stopped = [outcome for outcome in bench.outcomes if outcome.failed]
    assert len(stopped) > 0.8 * count and not any(outcome.hung for outcome in bench.outcomes)
    found = Counter((outcome.cause.name, outcome.source) for outcome in stopped)
    assert {cause for cause, _ in found} <= {"SLVERR", "DECERR"}
    print(f"{len(stopped)} programs stopped, by cause and source:", dict(found))


@pytest.mark.parametrize("stall", [0.2, pytest.param(0.0, marks=pytest.mark.heavy)])
def test_a_full_table_stops_it(stall, rng, seed):
    """A staging area of one unit, and steps that fetch more; after the clear the tables are empty and it goes on."""
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
def test_reset_in_the_middle(count, rng, seed):
    """Resets at random moments of a step; then steps as if nothing had been."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=16)
    program = bench.layer.step(2)
    place = bench.region.allocate(len(bench.run_on.driver.image(program)) // bench.run_on.word_bytes)
    bench.run_on.put(place, program)
    for cycles in rng.integers(50, 4500, count).tolist():
        bench.run_on.reset_after(place, len(program), cycles)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(seed=seed)


def test_golden_layer_is_close_to_float64(rng):
    """The first step has no past: plain causal attention of a decoder layer in float64."""
    bench = LayerRun("small", rng, hamming_threshold=7, max_resident_tokens=64)
    x = next(frames(bench, 1, 4))
    got = bf16.decode(bench.golden.step(x, range(4)).output)
    s, w = bench.golden.shape, {k: bf16.decode(v) for k, v in bench.golden.weights.items()}
    norms = [bf16.decode(v) for v in bench.golden.norms]

    def normed(v, weight):
        return v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5) * weight

    v = bf16.decode(x)
    h = normed(v, norms[0])
    where = np.arange(4)[:, None]
    q = rotate((h @ w["q"].T).reshape(4, s.q_heads, -1), where)
    k = rotate((h @ w["k"].T).reshape(4, s.kv_heads, -1), where)
    mixed = attention(q, k, (h @ w["v"].T).reshape(4, s.kv_heads, -1), causal(4, 4))
    v = v + mixed.reshape(4, -1) @ w["o"].T
    h = normed(v, norms[1])
    v = v + (silu(h @ w["gate"].T) * (h @ w["up"].T)) @ w["down"].T
    assert np.abs(got - v).max() < 0.03 * np.abs(v).max()
