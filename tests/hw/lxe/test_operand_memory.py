"""The matrix engine's operand memory against arrays, and the account of all memories."""

import numpy as np
import pytest

from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.lxe.dpe import DPE
from hw.lxe.operand_memory import OperandMemory, memories
from sim.bench.run import InTurns, simulate

SIZES = ["tiny", *(pytest.param(name, marks=pytest.mark.heavy) for name in ("small", "paper"))]
STREAMS = ("i_weights", "i_activations")
GOOD = {"inputs": 4, "load_rows": 2, "weight_rows": 12, "tile_rows": 4, "activation_rows": 5, "accumulators": 4}


def spread(rows):
    """The first and last rows, and rows that differ from these in one bit."""
    bits = [1 << k for k in range((rows - 1).bit_length())]
    return sorted({0, rows - 1, *bits, *(row for bit in bits if (row := rows - 1 ^ bit) < rows)})


def check(unit, rng, count, **options):
    """Writes and reads at the same time, in few rows: a read finds all writes before its own cycle, and no half is read
    and written in one cycle. Rows that nothing was written to may hold anything.

    Returns the record, and of each access whether it is to the second half: name of the stream -> bool (count,).
    """
    groups = unit.weight_rows // unit.load_rows
    weight_rows = rng.choice(spread(unit.weight_rows), count)
    rows = rng.choice(spread(unit.activation_rows), count)
    kind = rng.integers(0, 2, count)
    write = {
        "row": np.where(kind, rows, weight_rows),
        "activations": kind,
        "codes": rng.integers(0, 1 << 16, (count, unit.inputs), dtype=np.uint16),
    }
    places = rng.choice(spread(groups), count)
    flags = {name: rng.integers(0, 2, count) for name in ("first", "last", "release")}
    along = {"accumulator": rng.integers(0, unit.accumulators, count), **flags}
    read = {"row": rng.permutation(rows), **along}
    inputs = {"i_write": write, "i_weights": places, "i_activations": read}
    outputs = {"o_weights": count, "o_activations": count}
    record = simulate(unit, "operand_memory", inputs, outputs, **options)

    contents = np.zeros((2, max(unit.weight_rows, unit.activation_rows), unit.inputs), np.uint16)
    known = np.zeros(contents.shape[:2], bool)
    done = 0
    reads = [(cycle, kind, k) for kind in (0, 1) for k, cycle in enumerate(record.cycles[STREAMS[kind]])]
    for cycle, kind, k in sorted(reads):
        while done < count and record.cycles["i_write"][done] < cycle:
            at = write["activations"][done], write["row"][done]
            contents[at], known[at] = write["codes"][done], True
            done += 1
        if kind:
            got = {name: record.outputs["o_activations"][name][k] for name in ("x", *along)}
            result, at = got.pop("x")[None], np.array([read["row"][k]])
            assert got == {name: values[k] for name, values in along.items()}
        else:
            result, at = record.outputs["o_weights"][k], places[k] * unit.load_rows + np.arange(unit.load_rows)
        valid = known[kind, at]
        np.testing.assert_array_equal(result[valid], contents[kind, at[valid]], err_msg=f"read {k}")
    assert known.sum() > 3
    kinds = write["activations"].astype(bool)
    seconds = {
        "i_write": write["row"] >= np.where(kinds, unit.activation_half, unit.weight_half),
        "i_weights": places * unit.load_rows >= unit.weight_half,
        "i_activations": read["row"] >= unit.activation_half,
    }
    for kind, name in enumerate(STREAMS):
        assert not busy(record, seconds, "i_write", kinds == kind) & busy(record, seconds, name), name
    return record, kinds, seconds


def busy(record, seconds, name, which=...):
    """Cycles and halves of the accesses of a stream."""
    return set(zip(record.cycles[name][which].tolist(), seconds[name][which].tolist(), strict=True))


def first_free(cycle, second, taken):
    """The first cycle from `cycle` on in which the half is not `taken`."""
    while (cycle, second) in taken:
        cycle += 1
    return cycle


@pytest.mark.parametrize("preset", SIZES)
def test_reads_what_was_written(rng, seed, preset):
    """With pauses between the reads of weights, in which writes are possible, and with pauses of all streams."""
    unit = OperandMemory.from_config(Config.preset(preset))
    cycles = check(unit, rng, 300, stall={"i_weights": 0.5}, seed=seed)[0].cycles
    for name in STREAMS:
        assert np.all(cycles[name.replace("i_", "o_")] - cycles[name] == unit.latency)
    check(unit, rng, 300, stall=InTurns(0.5), seed=seed)


@pytest.mark.parametrize("paused", [("i_write", *STREAMS), ("o_weights", "o_activations")], ids=["inputs", "outputs"])
def test_reads_what_was_written_while_one_side_pauses(paused, rng, seed):
    check(OperandMemory.from_config(Config.preset("tiny")), rng, 200, stall=dict.fromkeys(paused, 0.3), seed=seed)


def test_nothing_waits_without_cause(rng, seed):
    """A read is accepted as the result before it leaves, even if its own result then meets a pause. Only a read of
    activations waits for writes, and only a write of weights waits for reads, of the same half."""
    unit = OperandMemory.from_config(Config.preset("tiny"))
    waited = np.zeros(3, bool)  # a result for its output, a read for a write, a write for a read
    while not waited.all():
        stall = {"o_weights": 0.5, "o_activations": 0.5}
        record, activations, seconds = check(unit, rng, 60, stall=stall, seed=seed)
        cycles, start = record.cycles, min(record.cycles[name][0] for name in ("i_write", *STREAMS))
        free = {name: [start, *cycles[name.replace("i_", "o_")][:-1].tolist()] for name in STREAMS}
        written, read = busy(record, seconds, "i_write", activations), busy(record, seconds, "i_weights")
        ready = [start, *(cycles["i_write"][:-1] + 1).tolist()]
        assert cycles["i_weights"].tolist() == free["i_weights"]
        assert cycles["i_activations"].tolist() == [
            first_free(cycle, second, written)
            for cycle, second in zip(free["i_activations"], seconds["i_activations"], strict=True)
        ]
        assert cycles["i_write"].tolist() == [
            cycle if kind else first_free(cycle, second, read)
            for cycle, second, kind in zip(ready, seconds["i_write"], activations, strict=True)
        ]
        for name in STREAMS:
            waited[0] |= (cycles[name.replace("i_", "o_")] > cycles[name] + unit.latency).any()
        waited[1] |= (cycles["i_activations"] > free["i_activations"]).any()
        waited[2] |= (cycles["i_write"] > ready).any()
        seed += 1


@pytest.mark.parametrize("cycles", [9, 10, 11])
def test_reset_in_mid_flight(cycles, rng):
    """A reset finds something in each output, which has to go."""
    stall = {"o_weights": 0.9, "o_activations": 0.9, "i_weights": 0.1, "i_activations": 0.1}
    check(OperandMemory.from_config(Config.preset("tiny")), rng, 40, stall=stall, reset_after=cycles)


@pytest.mark.parametrize("preset", PRESETS)
def test_account_of_the_memories(preset):
    """The elaborated memories equal the memory account, and their sizes equal the configuration."""
    config = Config.preset(preset)
    account = {memory.name: memory for memory in memories(config)}
    spare = 8 * config.lxe_memory_bytes - sum(memory.bits for memory in account.values())
    assert 0 <= spare < 16 * config.dpe_inputs
    unit = OperandMemory.from_config(config)
    row = 16 * unit.inputs
    assert account["weights"].bits == unit.weight_rows * row
    assert account["activations"].bits == unit.activation_rows * row
    assert account["accumulators"].bits == DPE.from_config(config).accumulator_memory.bits


def test_two_halves_for_each_row_of_a_load_and_for_activations():
    unit = OperandMemory.from_config(Config.preset("small"))
    assert to_rtlil(unit, "operand_memory").count("  memory width") == 2 * (unit.load_rows + 1)


def test_paper_has_384_kib():
    config = Config.preset("paper")
    assert sum(memory.bits for memory in memories(config)) == 384 * 1024 * 8
    assert OperandMemory.from_config(config).activation_rows >= 10 * 4096 // 64  # ten tokens of a hidden size of 4096


def test_no_room_for_operands():
    with pytest.raises(ValueError, match=r"^lxe_memory_bytes must be above 640 .*, got 640$"):
        memories(Config.preset("tiny").replace(lxe_memory_bytes=640))


@pytest.mark.parametrize(
    "change",
    [
        {"inputs": 0},
        {"load_rows": 0},
        {"weight_rows": 3},
        {"tile_rows": 3},
        {"activation_rows": 0},
        {"accumulators": 0},
    ],
    ids=str,
)
def test_rejects_bad_parameters(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {value}$"):
        OperandMemory(**{**GOOD, name: value})
