"""Steps of many tokens, which the core clusters and stores in pieces, equal the golden layer bit for bit."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from compiler import builder
from compiler.layer import Context, LayerCompiler, LayerSizes
from compiler.memory import Region
from golden.kvmu import Op, TransferKind
from golden.store import check
from hw.config import Config
from hw.core.isa import COUNT, MAX_STEP, Destination, SyncEvent
from sim.bench.axi import FixedTiming
from sim.bench.layer_run import LayerRun, frames
from tests.compiler.machines import check_outputs, golden_machine
from tests.compiler.test_layer import tokens
from tests.compiler.test_model import check_recovered, interrupted, stores

TINY = Config.preset("tiny")
PIECE = TINY.max_step_tokens
SIZES = LayerSizes(hidden=16, ffn=24, tokens=40, keys=256, q_heads=4)
OPTIONS = {"hamming_threshold": 9, "max_resident_tokens": 8, "staging_head_pages": 64, "log_entries": 2048,
           "limit": 2_000_000}  # fmt: skip


def steps(bench, counts, stream=0):
    """Steps of the first tokens of slowly changing frames."""
    for count, x in zip(counts, frames(bench, len(counts), max(counts)), strict=True):
        bench.step(x[:count], stream)


@pytest.mark.parametrize("stall", [0.2, pytest.param(0.0, marks=pytest.mark.heavy)])
@pytest.mark.parametrize(
    "counts",
    [pytest.param((1, 9, 2, 16, 3, 8, 4, 7, 2), marks=pytest.mark.heavy), (5, 23, 2, 40, 6, 17, 1)],
    ids=lambda counts: f"up to {max(counts)}",
)
def test_steps_of_several_pieces(counts, stall, rng, seed):
    """Steps of several pieces, the last one shorter, between frames; pages are offloaded and fetched."""
    bench = LayerRun("tiny", rng, sizes=SIZES, **OPTIONS)
    steps(bench, counts)
    assert any(reply.op == Op.SELECT and reply.transit for trace in bench.traces for reply in trace.replies)
    assert any(descriptor.kind == TransferKind.OFFLOAD for descriptor in bench.golden.table.kvmu.descriptors)
    bench.check(stall=stall, seed=seed, timing={"host": FixedTiming(latency=600)})
    check(bench.store)


def test_fills_of_several_pieces(rng, seed):
    """Steps without queries, some of several pieces, between steps with queries that attend to their tokens."""
    sizes = replace(SIZES, tokens=10, fill=40)
    bench = LayerRun("tiny", rng, sizes=sizes, **OPTIONS)
    for count, x in zip((40, 1, 9, 23), frames(bench, 4, 10), strict=True):
        bench.attend(tokens(bench, count), tokens(bench, count))
        bench.step(x)
    assert any(len(past) > 40 for trace in bench.traces for past in trace.attended)
    bench.check(stall=0.2, seed=seed)


def test_contexts_with_steps_of_several_pieces(rng, seed):
    """Two layers of two streams; long steps and frames alternate between the streams."""
    bench = LayerRun("tiny", rng, sizes=SIZES, layers=2, streams=2, **OPTIONS)
    for stream, counts in ((0, (12,)), (1, (17, 2)), (0, (2, 9)), (1, (3,))):
        steps(bench, counts, stream)
    bench.check(stall=0.1, seed=seed)
    check(bench.store)


def test_codes_wait_for_the_slots_of_the_piece_before(rng, seed):
    """Without the waits of the program, the RETRIEVAL unit holds the codes back until the piece before is stored."""
    sizes = replace(SIZES, tokens=2, fill=40)
    bench = LayerRun("tiny", rng, sizes=sizes, **OPTIONS)
    attention = bench.layer.attention

    def unordered(*args, **options):
        program, later = attention(*args, **options), False
        for command in program:
            is_codes = command.fields.get("destination") == Destination.CODES
            yield replace(command, waits={}) if is_codes and later else command
            later |= is_codes

    bench.layer.attention = lambda *args, **options: list(unordered(*args, **options))
    for count in (23, 9):
        bench.attend(tokens(bench, count), tokens(bench, count))
        bench.attend(tokens(bench, 2), tokens(bench, 2), tokens(bench, 4).reshape(2, 4, -1))
    bench.check(stall=0.3, seed=seed, timing={"device": FixedTiming(latency=120)})


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.heavy), 2])
def test_store_is_old_or_new_after_reset_in_a_piece(part, rng, seed):
    """A reset at a random moment of a step of three pieces, then recovery: the store is that before or after it."""
    bench = LayerRun("tiny", rng, sizes=SIZES, layers=2, **OPTIONS)
    steps(bench, (20, 3))
    x = next(frames(bench, 1, 20))
    address, commands = interrupted(bench, x)
    images = stores(bench, x)
    bench.run_on.reset_after(address, commands, int(rng.integers(part * 4000, (part + 1) * 4000)))
    bench.run_on.script.append(["recover", "device", bench.store_base, len(bench.memory)])
    outcomes, record = bench.run_on.simulate(stall=0.1, seed=seed)
    assert all(outcome.done for outcome in outcomes)
    check_recovered(bench, record, images)


@pytest.mark.parametrize("count", [1, PIECE, PIECE + 1, 2 * PIECE, 23, 40])
def test_program_has_one_cluster_command_for_each_piece(count):
    """The codes of a piece wait for MEANS and STORE of the piece before; only the last piece is followed by queries."""
    program = LayerCompiler(TINY, SIZES, Region(1 << 20), Context(0, 0, 0)).step(count)
    pieces = -(-count // PIECE)
    numbers = Counter(command.name for command in program)
    assert [numbers[name] for name in ("CLUSTER", "MEANS", "STORE", "OFFLOAD", "OPEN")] == [pieces] * 3 + [1] * 2
    codes = [command for command in program if command.fields.get("destination") == Destination.CODES]
    assert [command.fields["repeat"] for command in codes] == [PIECE] * (pieces - 1) + [count - PIECE * (pieces - 1)]
    assert [command.fields["flag"] for command in codes] == [False] * (pieces - 1) + [True]
    assert all(command.waits[event] == 1 for command in codes[1:] for event in (SyncEvent.VECTOR, SyncEvent.COPY))
    for name, field in (("MEANS", "keys"), ("STORE", "values")):
        words = [command.fields[field] for command in program if command.name == name]
        assert words == list(range(words[0], words[0] + pieces * PIECE * 4, PIECE * 4))


def test_vector_commands_are_split_at_the_largest_repetition():
    """1,024 tokens with 64 query heads for each KV head are one row of cluster scores more than a VECTOR repeats."""
    sizes = LayerSizes(hidden=16, ffn=16, tokens=MAX_STEP, keys=64, q_heads=64 * TINY.kv_heads)
    program = LayerCompiler(TINY, sizes, Region(1 << 32), Context(0, 0, 0)).step(MAX_STEP)
    vectors = [command.fields for command in program if command.name == "VECTOR"]
    split = [number for number, fields in enumerate(vectors) if fields["repeat"] == (1 << COUNT) - 1]
    assert len(split) == TINY.kv_heads
    for first, last in ((vectors[number], vectors[number + 1]) for number in split):
        assert last["repeat"] == MAX_STEP * 64 - first["repeat"]
        for row in ("a", "out"):
            assert last[row] == first[row] + first["repeat"] * first[f"{row}_stride"]
    b"".join(command.encode() for command in program)


def test_program_longer_than_the_core_counts_is_refused(monkeypatch):
    monkeypatch.setattr(builder, "MAX_COMMANDS", 500)
    layer = LayerCompiler(TINY, SIZES, Region(1 << 20), Context(0, 0, 0))
    assert len(layer.step(8)) <= 501
    with pytest.raises(ValueError, match="commands of a program must be at most 500; use fewer tokens or keys"):
        layer.step(40)


LARGE = {  # preset, tokens of the first step
    "tiny 40": ("tiny", 40, 12, ()),
    "small 256": ("small", 256, 14, pytest.mark.heavy),
    "paper 1024": ("paper", MAX_STEP, 14, pytest.mark.heavy),
}


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks) for name, (*_, marks) in LARGE.items()])
def test_interpreter_executes_large_steps(name, rng):
    """A long step, then a frame that attends to its tokens: outputs, stored tokens and mean keys are those of the
    golden layer, which clusters the whole step at once."""
    preset, count, threshold, _ = LARGE[name]
    config = Config.preset(preset)
    width = config.dpe_inputs
    sizes = LayerSizes(hidden=2 * width, ffn=2 * width, tokens=count, keys=count + width, q_heads=config.kv_heads)
    bench = LayerRun(preset, rng, sizes=sizes, hamming_threshold=threshold, max_resident_tokens=2 * count,
                     device_bytes=1 << 31 if preset == "paper" else 1 << 25)  # fmt: skip
    machine, executed = golden_machine(bench), 0
    for x in (next(frames(bench, 1, count)), next(frames(bench, 1, 3))):
        trace = bench.step(x)
        for program in bench.commands()[executed:]:
            machine.run(program)
        executed = len(bench.programs)
        check_outputs(bench)
        context = machine.table.context
        np.testing.assert_array_equal(context.mean_keys, bench.golden.table.context.mean_keys)
    assert all(len(past) > count // 4 for past in trace.attended)
    print(f"{name}: {len(bench.golden.table.clusters)} clusters, {len(bench.programs[bench.steps[0]])} commands")
