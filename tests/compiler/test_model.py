"""Several layers and streams on one core: steps and the store in memory equal the golden model, also after faults."""

import numpy as np
import pytest

from compiler.layer import LayerSizes, model_step
from golden import bf16
from golden.kvmu import Op
from golden.store import Store, check
from hw.axi.ports import Cause
from hw.core.isa import Command, ExecUnit
from hw.core.processor import READ_ENGINES, WRITE_ENGINES
from sim.bench.axi import SLVERR, FixedTiming
from sim.bench.layer_run import LayerRun, frames


def interleave(bench, steps, layers=4, streams=3):
    """Steps of random streams, of one or two tokens each."""
    sources = [frames(bench, steps, 2) for _ in range(streams)]
    for _ in range(steps):
        stream = int(bench.rng.integers(streams))
        x = next(sources[stream])
        bench.step(x[: int(bench.rng.integers(1, 3))], stream)


@pytest.mark.parametrize("storage", [pytest.param(False, marks=pytest.mark.heavy), True], ids=["host", "storage"])
def test_layers_and_streams_interleaved_at_random(storage, rng, seed):
    """Four layers of three streams; most pages are offloaded and fetched again."""
    bench = LayerRun(
        "tiny", rng, layers=4, streams=3, hamming_threshold=4, max_resident_tokens=8, storage=storage,
        selection_target=45000, limit=400_000,
    )  # fmt: skip
    interleave(bench, 18)
    bench.check(stall=0.1, seed=seed)
    check(bench.store)
    assert all(int(header["tokens"]) for header in bench.store.contexts[:12])
    kinds = {descriptor.kind.name for descriptor in bench.golden.table.kvmu.descriptors}
    assert kinds == {"FETCH", "OFFLOAD"}


SLOW = {"device": FixedTiming(latency=40, gap=1.0, beat_bytes=8), "host": FixedTiming(latency=900, gap=4.0)}


@pytest.mark.parametrize(
    "layers, step, stall, timing", [(2, 2, 0.3, None), (3, 2, 0.1, SLOW), (3, 9, 0.1, None)],
    ids=["pauses", "slow memories", "pieces"],
)  # fmt: skip
def test_layers_that_select_for_the_next_layer(layers, step, stall, timing, rng, seed):
    """Two streams; the first step finds no clusters in the layers after the first one. A step of 9 has two pieces."""
    sizes = LayerSizes(hidden=16, ffn=24, tokens=step, keys=96, q_heads=4)
    bench = LayerRun(
        "tiny", rng, sizes=sizes, layers=layers, streams=2, hamming_threshold=4, max_resident_tokens=4,
        selection_target=45000, limit=400_000, prefetch="next_layer",
    )  # fmt: skip
    assert (step > bench.config.max_step_tokens) == (step == 9)
    sources = [frames(bench, 4, step) for _ in range(2)]
    for number in range(5 if step == 2 else 3):
        x = next(sources[number % 2])
        bench.step(x[: int(rng.integers(1, 3))] if step == 2 else x, number % 2)
    bench.check(stall=stall, timing=timing, seed=seed)
    check(bench.store)
    assert any(reply.op == Op.SELECT and reply.transit for trace in bench.traces[-1:] for reply in trace.replies)


def tokens(rng, count, config):
    """Random keys or values in memory order, BF16 codes (count, Hkv, d)."""
    return bf16.encode(rng.standard_normal((count, config.kv_heads, config.head_dim)))


def test_stream_starts_with_past_tokens(rng, seed):
    """Memory contains the store and the pages of past tokens; steps retrieve from device and host memory."""
    bench = LayerRun(
        "tiny", rng, hamming_threshold=4, max_resident_tokens=12, selection_target=45000, staging_head_pages=64
    )
    bench.preload(tokens(rng, 30, bench.config), tokens(rng, 30, bench.config))
    for x in frames(bench, 3, 2):
        bench.step(x)
    bench.check(stall=0.1, seed=seed)
    assert any(len(attended) > 8 for attended in bench.traces[-1].attended)
    assert any(descriptor.kind.name == "FETCH" for descriptor in bench.golden.table.kvmu.descriptors)


@pytest.mark.heavy
def test_layers_and_streams_at_small(rng, seed):
    """Four layers of three streams at `small`."""
    bench = LayerRun(
        "small", rng, layers=4, streams=3, hamming_threshold=11, max_resident_tokens=40, selection_target=45000,
        limit=4_000_000, device_bytes=64 << 20,
    )  # fmt: skip
    interleave(bench, 12)
    bench.check(stall=0.1, seed=seed)
    check(bench.store)
    assert {descriptor.kind.name for descriptor in bench.golden.table.kvmu.descriptors} == {"FETCH", "OFFLOAD"}


def small(rng, **options):
    """Two layers of two streams, each with some steps."""
    bench = LayerRun(
        "tiny", rng, layers=2, streams=2, hamming_threshold=4, max_resident_tokens=6, selection_target=45000,
        limit=60_000, **options,
    )  # fmt: skip
    interleave(bench, 6, layers=2, streams=2)
    return bench


def interrupted(bench, x):
    """Put a step of the first layer of the first stream into memory; return its address and its length."""
    bench.fill(bench.inputs(x))
    program = model_step([bench.layer.for_context(bench.contexts[0])], len(x))
    address = bench.region.allocate(len(bench.run_on.driver.image(program)) // bench.run_on.word_bytes)
    bench.run_on.put(address, program)
    return address, len(program)


def stores(bench, x):
    """The golden store before and after the step, as memory images without undo log and mean keys."""
    before = bench.memory.copy()
    bench.golden.step(x, range(bench.positions[0], bench.positions[0] + len(x)))
    images = [without_log(bench, image) for image in (before, bench.memory)]
    bench.memory[:] = before
    return images


def without_log(bench, image):
    """A copy without the undo log, the number of the step and the mean keys of clusters that do not exist."""
    image = np.frombuffer(bytes(image), np.uint8).copy()
    store = Store(image, bench.store_base, bench.store_base)
    store.log[:] = 0
    for number in range(len(store.contexts)):
        context = store.context(number)
        context.mean_keys[int(context.header["clusters"]) :] = 0
    store.header["step"] = 0
    return image


def recovered(bench, record):
    """The store in memory after a recovery, which must be valid, as `without_log` gives it."""
    start, size = bench.store_base, len(bench.memory)
    actual = np.frombuffer(bytes(record.images["device"][start : start + size]), np.uint8).copy()
    check(Store(actual, start, start))
    return without_log(bench, actual)


def check_recovered(bench, record, images):
    """The store in memory is that before or after the step. Returns whether the step was committed."""
    same = [np.array_equal(recovered(bench, record), image) for image in images]
    assert sum(same) == 1, f"equal to the store before, after the step: {same}"
    return same[1]


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.heavy) for part in (1, 2)), 3])
def test_store_is_old_or_new_after_reset(part, rng, seed):
    """A reset at a random moment of a step, then recovery: the store is that before or after the step."""
    bench = small(rng)
    x = next(frames(bench, 1, 2))
    address, commands = interrupted(bench, x)
    images = stores(bench, x)
    bench.run_on.reset_after(address, commands, int(rng.integers(part * 1200, (part + 1) * 1200)))
    bench.run_on.script.append(["recover", "device", bench.store_base, len(bench.memory)])
    outcomes, record = bench.run_on.simulate(stall=0.1, seed=seed)
    assert all(outcome.done for outcome in outcomes)
    check_recovered(bench, record, images)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("after", [0, pytest.param(3, marks=pytest.mark.heavy), 20])
def test_memory_error_of_the_store_leaves_old_or_new_store(write, after, rng, seed):
    """An error while a context is brought in or written back: its cause, the store before or after the step."""
    bench = small(rng)
    x = next(frames(bench, 1, 2))
    address, commands = interrupted(bench, x)
    images = stores(bench, x)
    number = list(WRITE_ENGINES if write else READ_ENGINES).index("store")
    bench.run_on.script.append(["fail", "device", write, after, SLVERR, number])
    bench.run_on.run(address, commands, clear=True)
    bench.run_on.script.append(["recover", "device", bench.store_base, len(bench.memory)])
    outcomes, record = bench.run_on.simulate(stall=0.1, seed=seed)
    assert (outcomes[-1].cause, outcomes[-1].source) == (Cause.SLVERR, ExecUnit.RETRIEVAL)
    assert all(outcome.done for outcome in outcomes[:-1])
    assert not check_recovered(bench, record, images)


@pytest.mark.parametrize("cause", ["reset", "read", "write"])
def test_next_step_is_right_after_recovery(cause, rng, seed):
    """A step is interrupted by a reset or a memory error; after the recovery, steps of another stream are right."""
    bench = small(rng)
    x = next(frames(bench, 1, 2))
    address, commands = interrupted(bench, x)
    stores(bench, x)
    if cause == "reset":
        bench.run_on.reset_after(address, commands, int(rng.integers(4000)))
    else:
        number = list(WRITE_ENGINES if cause == "write" else READ_ENGINES).index("store")
        bench.run_on.script.append(["fail", "device", cause == "write", int(rng.integers(20)), SLVERR, number])
        bench.run_on.run(address, commands, clear=True)
        bench.run_on.script.append(["fail", "device", cause == "write", -1, SLVERR])  # no further failure
    before = len(bench.outputs)
    bench.run_on.script.append(["recover", "device", bench.store_base, len(bench.memory)])
    for x in frames(bench, 2, 2):
        bench.step(x, stream=1)
    outcomes, record = bench.run_on.simulate(stall=0.1, seed=seed)
    assert [outcome.cause for outcome in outcomes if outcome.failed] == [Cause.SLVERR] * (cause != "reset")
    assert len(bench.outputs) == before + 2
    for at, output in bench.outputs:
        actual = np.frombuffer(record.images["device"][at : at + output.nbytes], "<u2").reshape(output.shape)
        np.testing.assert_array_equal(actual, output)


@pytest.mark.parametrize("limit", ["frames", "log"])
def test_full_table_leaves_the_store_before_the_step(limit, rng, seed):
    """No page frame is free, or the undo log is full: a fault, and the recovered store is that before the step."""
    options = {"frames": {"page_frames": 4, "max_resident_tokens": 64}, "log": {"log_entries": 24}}[limit]
    options = {"max_resident_tokens": 6} | options
    sizes = LayerSizes(hidden=16, ffn=24, tokens=2, keys=64, fill=8, q_heads=4)
    bench = LayerRun("tiny", rng, sizes=sizes, hamming_threshold=1, **options)
    bench.begin()
    before = bench.memory.copy()
    bench.fill({bench.layer.rotated["k"]: tokens(rng, 8, bench.config).tobytes()})
    bench.run(bench.layer.attention(8, query=False), clear=True)
    bench.run_on.script.append(["recover", "device", bench.store_base, len(bench.memory)])
    outcomes, record = bench.run_on.simulate(stall=0.1, seed=seed)
    assert (outcomes[-1].cause, outcomes[-1].source) == (Cause.TABLE, ExecUnit.RETRIEVAL)
    assert np.array_equal(recovered(bench, record), without_log(bench, before))


def test_absent_context_raises_fault(rng, seed):
    """OPEN of a context that does not exist raises a fault; the next step is correct."""
    bench = LayerRun("tiny", rng, layers=2, hamming_threshold=4, max_resident_tokens=6)
    bench.run([Command("OPEN", {"context": 3}), Command("END")], clear=True)
    bench.run([Command("OPEN", {"context": 60}), Command("END")], clear=True)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=2, seed=seed)
    for outcome in bench.outcomes[:2]:  # OPEN is the last command, but the program is not done
        assert (outcome.cause, outcome.source, outcome.done) == (Cause.TABLE, ExecUnit.RETRIEVAL, False)


def test_command_that_completes_after_its_fault_ends_no_program(rng, seed):
    """FETCH without an open context is refused, and completes a cycle later; the program has failed and is not done."""
    bench = LayerRun("tiny", rng, layers=2, hamming_threshold=4, max_resident_tokens=6)
    bench.run([Command("FETCH"), Command("END")], clear=True)
    for x in frames(bench, 2, 2):
        bench.step(x)
    bench.check(failed=1, seed=seed)
    refused = bench.outcomes[0]
    assert (refused.cause, refused.source) == (Cause.TABLE, ExecUnit.RETRIEVAL)
    assert refused.failed and not refused.done
