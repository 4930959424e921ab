"""A decoder layer with ReSV attention from commands in memory, against the golden layer, bit for bit."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from golden import bf16
from golden.kvmu_unit import Op
from golden.rope import rotate
from golden.transformer import attention, causal, silu
from hw.core.axi import Cause
from hw.core.isa import OPCODES
from sim.axi import DECERR, SLVERR
from sim.layer_run import LayerRun, frames
from sim.timeline import busy, spans, together
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory


@pytest.mark.parametrize("stall", [0.0, pytest.param(0.3, marks=pytest.mark.heavy)])
def test_layer_at_tiny(stall, rng, seed):
    """Frames, then text tokens one by one."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=16)
    for x in frames(bench, 12, 2):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


@pytest.mark.heavy
def test_layer_with_the_system_models_memories(rng, seed):
    """LPDDR5 and a PCIe link instead of fixed latencies: the same bytes, later."""
    cycles = []
    for timing in (None, {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}):
        bench = LayerRun("tiny", np.random.default_rng(seed), threshold=4, capacity=4)
        for x in frames(bench, 6, 2):
            bench.step(x)
        record = bench.check(seed=seed, timing=timing)
        assert record.traffic["host"]["beats"]["read"]
        cycles.append(record.cycles)
    assert cycles[1] > cycles[0]


def test_timeline(rng, seed):
    """Every command of a step has its span in the trace, and units overlap."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=16)
    for x in frames(bench, 2, 2):
        bench.step(x)
    record = bench.check(seed=seed, ports=["stat_trace"])
    found = spans(record.ports["stat_trace"], bench.programs)
    assert len(found) == sum(command.name != "END" for program in bench.programs for command in program)
    used, counts = busy(found), together(found)
    assert all(used.values()) and sum(used.values()) == sum(n * count for n, count in enumerate(counts))
    assert counts[2:].sum()  # units overlap


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_layer_at_small(stall, rng, seed):
    """Frames of four tokens, then text; pages leave the device and come back."""
    bench = LayerRun("small", rng, threshold=7, capacity=8)
    for x in frames(bench, 5, 4):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


ADDRESSES = {  # fields of commands that always move words, in a step without a past
    "LOAD": lambda f: ["source"] if not f.get("vary") else [],
    "MULTIPLY": lambda f: ["out"] if f.get("last") and not f.get("vary") else [],
    "VECTOR": lambda f: ["code", *["a"] * ("a_beats" in f), *["out"] * ("out_beats" in f)],
    "MEANS": lambda f: ["keys"],
    "PLACE": lambda f: ["keys", "values"],
}


def faulty(bench, kind, rng):
    """A step's program with something wrong in it at a random place, and the cause it stops with."""
    program = bench.layer.step(2)
    at = int(rng.integers(1, len(program) - 1))
    if kind == "truncated":
        return program[:at], Cause.TRUNCATED
    if kind == "opcode":
        known = {op.code for op in OPCODES}
        code = int(rng.choice([code for code in range(256) if code not in known]))
        return [*program[:at], bytes([code]) + rng.bytes(63), *program[at:]], Cause.OPCODE
    if kind == "size":
        where = [n for n, command in enumerate(program) if command.name == "LOAD" and not command.fields.get("vary")]
        places = [(n, "to", 5000) for n in where]
    else:
        places = [
            (n, field, bench.words + int(rng.integers(0, 1 << 20)))
            for n, command in enumerate(program)
            for field in ADDRESSES.get(command.name, lambda f: [])(command.fields)
        ]
    n, field, value = places[int(rng.integers(len(places)))]
    program[n] = dataclasses.replace(program[n], fields={**program[n].fields, field: value})
    return program, {"size": Cause.SIZE, "region": Cause.REGION}[kind]


@pytest.mark.parametrize("count", [4, pytest.param(80, marks=pytest.mark.heavy)])
def test_goes_on_after_bad_programs(count, rng, seed):
    """Every kind in turn, each while units are at work; after each clear a program passes, in the end the layer runs
    as if nothing had been."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=16)
    causes = []
    for n in range(count):
        program, cause = faulty(bench, ("opcode", "truncated", "region", "size")[n % 4], rng)
        bench.begin()
        bench.run(program, clear=True)
        causes.append(cause)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=2 * count, seed=seed)
    for begun, stopped, cause in zip(*(bench.outcomes[k : 2 * count : 2] for k in (0, 1)), causes, strict=True):
        assert begun.done and not begun.failed and not begun.hung
        assert stopped.failed and not stopped.done and not stopped.hung and stopped.cause is cause
    print(f"{count} bad programs")


@pytest.mark.parametrize("count", [2, pytest.param(80, marks=pytest.mark.heavy)])
def test_goes_on_after_errors_of_memory(count, rng, seed):
    """Errors at random beats of a step, one after the other, each in a program of its own; after each clear a program
    passes, in the end the layer runs as if nothing had been."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=16)
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


@pytest.mark.heavy
def test_a_full_table_stops_it(rng, seed):
    """A staging area of one unit, and steps that fetch more; after the clear the tables are empty and it goes on."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=4, staging_units=1)
    bench.clearing = True
    bench.begin()
    for x in frames(bench, 7, 2):
        bench.give(x)
    outcomes, _ = bench.run_on.simulate(seed=seed)
    failed = [outcome for outcome in outcomes if outcome.failed]
    assert failed and all(outcome.cause is Cause.TABLE for outcome in failed)
    assert not any(outcome.hung for outcome in outcomes) and outcomes[-1].done


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.heavy)])
def test_reset_in_the_middle(count, rng, seed):
    """Resets at random moments of a step; then steps as if nothing had been."""
    bench = LayerRun("tiny", rng, threshold=4, capacity=16)
    program = bench.layer.step(2)
    place = bench.region.take(len(bench.run_on.driver.image(program)) // bench.run_on.word_bytes)
    bench.run_on.put(place, program)
    for cycles in rng.integers(50, 4500, count).tolist():
        bench.run_on.reset_after(place, len(program), cycles)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(seed=seed)


def test_golden_layer_is_close_to_float64(rng):
    """The first step has no past: plain causal attention of a decoder layer in float64."""
    bench = LayerRun("small", rng, threshold=7, capacity=64)
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
