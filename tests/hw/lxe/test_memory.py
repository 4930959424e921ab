"""The matrix engine's operand memory against arrays, and the account of all memories."""

import numpy as np
import pytest
from amaranth.sim import Simulator

from hw.config import PRESETS, Config
from hw.emit import to_rtlil
from hw.lxe.dpe import DPE
from hw.lxe.memory import OperandMemory, memories
from sim.payload import pack

GOOD = {"inputs": 4, "load_rows": 2, "weight_rows": 12, "activation_rows": 5, "slots": 4}


def number(layout, values):
    return int.from_bytes(pack(layout, values)[0].tobytes(), "little")


async def send(ctx, source, word):
    ctx.set(source.payload.as_value() if hasattr(source.payload, "as_value") else source.payload, word)
    ctx.set(source.valid, 1)
    await ctx.tick().until(source.ready)
    ctx.set(source.valid, 0)


async def pause(ctx, rng, chance):
    while rng.random() < chance:
        await ctx.tick()


@pytest.mark.parametrize("chance", [0.0, 0.5], ids=["streaming", "stalled"])
def test_reads_what_was_written(rng, chance):
    unit = OperandMemory(**GOOD)
    weights = rng.integers(0, 1 << 16, (unit.weight_rows, unit.inputs), dtype=np.uint16)
    rows = rng.integers(0, 1 << 16, (unit.activation_rows, unit.inputs), dtype=np.uint16)
    places, asked = rng.integers(0, unit.weight_rows // unit.load_rows, 40), rng.integers(0, unit.activation_rows, 40)
    slots = rng.integers(0, unit.slots, 40)
    tiles, beats, cycles = [], [], []

    async def write_then_ask(ctx):
        for activations, table in ((0, weights), (1, rows)):
            for row, codes in enumerate(table):
                values = {"row": [row], "activations": [activations], "codes": codes[None]}
                await send(ctx, unit.i_write, number(unit.write, values))
        await ctx.tick().repeat(2)
        for row, slot in zip(asked, slots, strict=True):
            await pause(ctx, rng, chance)
            fields = {"row": [row], "slot": [slot], "first": [slot & 1], "last": [0], "release": [row & 1]}
            await send(ctx, unit.i_activations, number(unit.read, fields))

    async def ask_weights(ctx):
        await ctx.tick().repeat(len(weights) + len(rows) + 4)
        for place in places:
            await pause(ctx, rng, chance)
            await send(ctx, unit.i_weights, int(place))

    def taker(target, found):
        async def take(ctx):
            cycle = 0
            while len(found) < 40:
                ready = int(rng.random() >= chance)
                ctx.set(target.ready, ready)
                *_, valid, word = await ctx.tick().sample(target.valid, target.payload.as_value())
                cycle += 1
                if valid and ready:
                    found.append(word)
                    cycles.append(cycle)

        return take

    simulator = Simulator(unit)
    simulator.add_clock(1e-6)
    for process in (write_then_ask, ask_weights, taker(unit.o_weights, tiles), taker(unit.o_activations, beats)):
        simulator.add_testbench(process)
    simulator.run()
    grouped = weights.reshape(-1, unit.load_rows, unit.inputs)
    assert tiles == [number(unit.o_weights.payload.shape(), grouped[p][None]) for p in places]
    along = {"slot": slots, "first": slots & 1, "last": 0 * slots, "release": asked & 1}
    for n, beat in enumerate(beats):
        fields = {name: values[n : n + 1] for name, values in along.items()}
        assert beat == number(unit.activations, {"x": rows[asked[n]][None], **fields})
    if not chance:
        assert np.all(np.diff(sorted(cycles))[-60:] <= 1)  # a beat of each stream every cycle


@pytest.mark.parametrize("preset", PRESETS)
def test_account_of_the_memories(preset):
    """The memories that the units really have are those of the account, and fill what the configuration gives."""
    config = Config.preset(preset)
    account = {memory.name: memory for memory in memories(config)}
    spare = 8 * config.lxe_memory_bytes - sum(memory.bits for memory in account.values())
    assert 0 <= spare < 16 * config.dpe_inputs
    unit = OperandMemory.from_config(config)
    row = 16 * unit.inputs
    assert account["weights"].bits == unit.weight_rows * row
    assert account["activations"].bits == unit.activation_rows * row
    assert account["accumulators"].bits == DPE.from_config(config).accumulators.bits


def test_a_bank_for_each_row_of_a_load():
    unit = OperandMemory.from_config(Config.preset("small"))
    assert to_rtlil(unit, "operand_memory").count("  memory width") == unit.load_rows + 1


def test_paper_has_384_kib():
    config = Config.preset("paper")
    assert sum(memory.bits for memory in memories(config)) == 384 * 1024 * 8
    assert OperandMemory.from_config(config).activation_rows >= 10 * 4096 // 64  # ten tokens of a hidden size of 4096


def test_no_room_for_operands():
    with pytest.raises(ValueError, match="lxe_memory_bytes = 640: leaves no room"):
        memories(Config.preset("tiny").replace(lxe_memory_bytes=640))


@pytest.mark.parametrize(
    "change", [{"inputs": 0}, {"load_rows": 0}, {"weight_rows": 3}, {"activation_rows": 0}, {"slots": 0}], ids=str
)
def test_rejects_bad_parameters(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"{name} = {value}"):
        OperandMemory(**{**GOOD, **change})
