"""Commands whose fields use all their bits: memory contents equal those of the golden interpreter, bit for bit."""

import copy
from itertools import groupby

import pytest
from amaranth import Signal, Value

from compiler.layer import LayerSizes
from hw.axi.ports import Cause
from hw.core.isa import Command, ExecUnit, LengthSource, SyncEvent, all_but
from hw.core.processor import READ_ENGINES
from hw.dre.kvmu.command import Fault, Op
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import LayerRun, frames
from tests.hw.core.random_commands import Author

NEEDED = {  # waits without which a command would meet operands of another one
    "LOAD": {SyncEvent.OPERANDS: all_but()},
    "GATHER": {SyncEvent.OPERANDS: all_but()},
    "MULTIPLY": {SyncEvent.LOAD: all_but()},
}


def counts(command):
    """Whether it reads the number of a COUNT, or writes it."""
    return command.name == "COUNT" or command.fields.get("length") == LengthSource.COUNTED


def without_waits(command):
    return Command(command.name, command.fields, NEEDED.get(command.name, {}))


def run(steps, count, together, rng, seed, **changes):
    """Run `count` random commands after `steps` layer steps; `together`: each as early as its operands allow."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=64, scattered=True, changes=changes)
    for x in frames(bench, steps, 2):
        bench.step(x)
    author = Author(bench)
    machine = author.machine
    cached = author.see(bench.traces[-1]) if steps else {}
    program = author.write(count)
    if together:
        program = [command if counts(command) else without_waits(command) for command in program]
    for first in range(0, len(program), 100):
        bench.run([*program[first : first + 100], Command("END")])
        bench.run_on.script += bench.run_on.driver.read("matrix_beats")
    machine.memories = copy.deepcopy(machine.memories)
    for address, content in cached.items():
        machine.memories[0][address : address + len(content)] = content
    slow = {"device": FixedTiming(latency=30, gap=1.5, beat_bytes=8)}
    record = bench.check(stall=0.1, seed=seed, timing=slow)
    for command in program:
        machine.execute(command)
    author.compare(record)
    parts = -(-len(program) // 100)
    assert sum(record.answers[at + 7][0] for at in bench.run_on.runs[-parts:]) == machine.products


@pytest.mark.parametrize("steps, count", [(0, 60), (4, 120), pytest.param(4, 1000, marks=pytest.mark.heavy)])
def test_random_commands(steps, count, rng, seed):
    """Random commands after a few layer steps (clusters and token lists exist), or with an empty table."""
    run(steps, count, False, rng, seed)


ENCODED = {  # sizes that differ from `tiny`, where a record with 8 bits is a whole word
    "4 bits": {"kv_bits": 4},
    "8 bits": {"kv_bits": 8, "head_dim": 16, "dpe_trees": 8, "dpe_inputs": 8, "vpe_lanes": 8},
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ENCODED)
def test_random_commands_with_encoded_pages(name, rng, seed):
    """GATHER decodes past tokens from any slot on, in one command or several, and any words of them."""
    run(6, 600, False, rng, seed, **ENCODED[name])


@pytest.mark.heavy
@pytest.mark.parametrize("kv_bits", [16, 4])
def test_random_commands_with_encoded_weights(kv_bits, rng, seed):
    """LOAD decodes tiles of all formats between other commands, also of quantised pages; some have no work."""
    run(4, 400, False, rng, seed, weight_bits=4, kv_bits=kv_bits)


@pytest.mark.heavy
def test_random_commands_with_encoded_weights_at_once(rng, seed):
    run(4, 120, True, rng, seed, weight_bits=4)


@pytest.mark.heavy
@pytest.mark.parametrize("preset, resident, kv_bits", [("tiny", 4, 4), ("small", 16, 4), ("small", 16, 8)])
def test_steps_with_encoded_pages(preset, resident, kv_bits, rng, seed):
    """Steps of a layer whose pages leave device memory and come back, under random pauses."""
    bench = LayerRun(preset, rng, hamming_threshold=6, max_resident_tokens=resident, changes={"kv_bits": kv_bits})
    for x in frames(bench, 8, bench.sizes.tokens):
        bench.step(x)
    assert any(reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=0.2, seed=seed, timing={"device": FixedTiming(latency=20), "host": FixedTiming(latency=60)})


@pytest.mark.heavy
def test_move_is_refused_with_encoded_pages(rng, seed):
    """The core stops with the fault OP of the KVMU; the next program runs."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=64, changes={"kv_bits": 4})
    bench.run([Command("OPEN", {"context": 0}), Command("MOVE"), Command("END")], clear=True)
    bench.run([Command("COPY", {"source": 8, "target": 9, "words": 1}), Command("END")])
    (refused, after), _ = bench.run_on.simulate(seed=seed)
    assert after.done and not after.failed
    assert (refused.cause, refused.source) == (Cause.TABLE, ExecUnit.RETRIEVAL)
    assert refused.address == Fault.OP.value | Op.MOVE.value << len(Value.cast(Signal(Fault)))


def test_random_commands_at_once(rng, seed):
    """Commands that do not depend on earlier commands do not wait for them."""
    run(4, 120, True, rng, seed)


def test_lengths_of_all_bits(rng, seed):
    """Every length field takes powers of two; the core requests these words until it is reset."""
    bench = LayerRun("tiny", rng, hamming_threshold=4, max_resident_tokens=4, scattered=True)
    code, instructions = bench.layer.vectors.addresses["residual"]
    readers, size = list(READ_ENGINES), bench.run_on.word_bytes
    expected = []
    for k in range(16):
        source, a, b, out = (2 * int(start) for start in rng.integers(0, 1 << 29, 4))
        strides = [int(stride) for stride in rng.integers(1, 1 << 12, 3)]
        long, short = 1 << k, 1 << 15 - k
        load = {"source": source, "stride": strides[0], "rows": long, "beats": short}
        vector = {
            "code": code, "instructions": instructions, "repeat": long, "a": a, "a_stride": strides[1],
            "a_beats": short, "b": b, "b_stride": strides[2], "b_beats": long, "b_used": 1, "out": out,
            "out_beats": long, "extra": 1,
        }  # fmt: skip
        program, commands = [Command("LOAD", load), Command("VECTOR", vector), Command("END")], 16 << k
        start = bench.region.allocate(commands * 64 // size)
        bench.run_on.put(start, program)
        bench.run_on.reset_after(start, commands, 250)
        rows = range(min(long, 512))
        both = (((a + row * strides[1], short), (b + row * strides[2], long)) for row in rows)
        jobs = {
            "program": [(start, commands * 64 // size)],
            "load": [(source + row * strides[0], short) for row in rows],
            "code": [(code, -(-instructions * 16 // size)) for _ in rows],
            "vector": [part for parts in both for part in parts],
        }
        expected.append(
            {name: [at + n for at, words in bursts for n in range(min(words, 512))] for name, bursts in jobs.items()}
        )
    bench.begin()
    _, record = bench.run_on.simulate(seed=seed)
    requests = record.traffic["device"]["requests"]
    runs = [list(run) for reset, run in groupby(requests, lambda request: request is None) if not reset]
    for k, (run, parts) in enumerate(zip(runs[:-1], expected, strict=True)):
        for name, words in parts.items():
            requested = [
                (address - bench.run_on.bases["device"]) // size + n
                for write, identity, address, count in run
                if not write and identity == readers.index(name)
                for n in range(count)
            ]
            assert len(requested) >= min(8, len(words)) and requested == words[: len(requested)], (k, name)


def test_places_of_rows_far_apart(rng, seed):
    """STORE requests the correct words for random key and value strides and for their bitwise complements."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=4, max_resident_tokens=64, scattered=True)
    beats, heads, size = bench.layer.head, bench.config.kv_heads, bench.run_on.word_bytes
    wanted, bits = [], (1 << 24) - 1
    strides = rng.integers(1 << 24, size=2).tolist()
    for key_stride, value_stride in (strides, [stride ^ bits for stride in strides]):
        keys, values = rng.integers(1 << 31, size=2).tolist()
        fields = {"keys": keys, "values": values, "key_stride": key_stride, "value_stride": value_stride}
        program = bench.layer.attention(8, query=False)
        if not wanted:
            bench.begin()
        bench.run([Command(c.name, fields if c.name == "STORE" else c.fields, c.waits) for c in program])
        wanted += [
            start + head * beats + n
            for token in range(8)
            for head in range(heads)
            for start in (keys + token * key_stride, values + token * value_stride)
            for n in range(beats)
        ]
    outcomes, record = bench.run_on.simulate(seed=seed)
    assert all(outcome.done and not outcome.failed for outcome in outcomes)
    reader = [0, list(READ_ENGINES).index("copy")]
    requests = [request[2:] for request in record.traffic["device"]["requests"] if request and request[:2] == reader]
    assert [(at - bench.run_on.bases["device"]) // size + n for at, words in requests for n in range(words)] == wanted
