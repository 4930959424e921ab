"""Tests of the transfer engine's Verilog between two timed memories, against copies executed in order."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from golden.kvmu import Descriptor, Tier
from hw.axi.engines import ReadEngine, WriteEngine
from hw.axi.master import Master
from hw.axi.ports import Cause, check_burst
from hw.config import PRESETS, Config
from hw.core.dma import BURST, Dma
from hw.emit import to_rtlil
from sim.bench.axi import DECERR, SLVERR, BatchTiming, Failure, FixedTiming
from sim.bench.axi_run import Image, simulate

SIZE = 1 << 16
BASES = {"device": 0xA5A5_8000_0000, "host": 0x5A40_0000_0000}
COMPLEMENTS = {port: (1 << 48) - SIZE - base for port, base in BASES.items()}  # every address bit of a base is inverted
SEEN = ("arvalid", "arready", "rvalid", "rlast", "awvalid", "awready", "bvalid")


@cache
def tiny() -> Dma:
    """The unit of most tests, elaborated once."""
    return Dma.from_config(Config.preset("tiny"))


def copies(rng, word, count, longest=2048):
    """Descriptors of complete words, independent of their order; lengths from one word to `longest`.

    The first one is as long as a descriptor can be, and ends where the sources end. Bit 1 of a tag is the target.
    """
    half, out, starts = SIZE // 2, [], {Tier.DEVICE: SIZE // 2, Tier.HOST: SIZE // 2}
    for n in range(count):
        source, target = rng.choice([Tier.DEVICE, Tier.HOST], 2)
        nbytes = int(rng.integers(1, longest // word + 1)) * word if n else 4096
        if starts[target] + nbytes > SIZE:
            break
        where = int(rng.integers(0, (half - nbytes) // word)) * word if n else half - nbytes
        out.append(Descriptor(where, starts[target], int(source), int(target), nbytes, 0, 2 * int(target) + n % 2, 0))
        starts[target] += nbytes
    return out


def images(rng, *, bases=BASES, **options):
    data = {port: rng.integers(0, 256, SIZE, np.uint8).tobytes() for port in bases}
    shared = {"longest": BURST, "outstanding": 16, **options}
    return {port: Image(data[port], start=bases[port], **shared) for port in bases}


def expected(memories, moved):
    data = [bytearray(memories[port].data) for port in BASES]
    for d in moved:
        data[d.target_tier][d.target : d.target + d.bytes] = data[d.source_tier][d.source : d.source + d.bytes]
    return dict(zip(BASES, map(bytes, data), strict=True))


def far(rng):
    """Offset of each memory in its region: any multiple of 4 KiB that a word address can express."""
    return dict(zip(BASES, (rng.integers(0, ((1 << 35) - SIZE) // 4096, 2) * 4096).tolist(), strict=True))


def tags(completions, tier):
    """Tags of the copies to `tier`, in the order of their completion."""
    return [tag for tag in completions if tag >> 1 == tier]


def run(unit, memories, moved, offsets=None, done=None, end=SIZE, **options):
    """Simulate copies.

    offsets : bytes of each region before its memory ; end : bytes of each memory that belong to its region
    done : copies that end, by default all
    """
    names = ("source", "target", "source_tier", "target_tier", "bytes", "tag")
    offsets = offsets or dict.fromkeys(BASES, 0)
    starts = np.array(list(offsets.values()))
    columns = {n: np.array([int(getattr(d, n)) for d in moved], np.int64) for n in names}
    columns["source"] += starts[columns["source_tier"]]
    columns["target"] += starts[columns["target_tier"]]
    return simulate(
        unit,
        "dma",
        memories,
        inputs={"i_dma": columns},
        outputs={"o_done": len(moved) if done is None else done},
        config={
            **{f"cfg_{port}_base": (image.start - offsets[port]) % (1 << 48) for port, image in memories.items()},
            **{f"cfg_{port}_words": (offsets[port] + end) * 8 // unit.word for port in BASES},
        },
        **options,
    )


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_moves_every_byte(stall, rng, seed):
    unit = tiny()
    moved = copies(rng, unit.word // 8, 50)
    memories = images(rng, stall=stall, timing=FixedTiming(latency=20))
    ports = ["stat_idle", *(f"{port}__{name}" for port in BASES for name in SEEN)]
    record = run(unit, memories, moved, far(rng), stall=stall, seed=seed, ports=ports)
    assert record.images == expected(memories, moved)
    assert len(moved) > 25
    for tier in (Tier.DEVICE, Tier.HOST):
        assert tags(record.outputs["o_done"]["tag"].tolist(), tier) == tags([d.tag for d in moved], tier)
    assert record.status["stat_fault"] == 0 and record.status["stat_idle"] == 1
    assert sum(t["beats"]["write"] for t in record.traffic.values()) == sum(d.bytes for d in moved) * 8 // unit.word
    assert np.array_equal(record.ports["stat_idle"] == 1, ~in_flight(record.ports))


def in_flight(ports):
    """Mask of the cycles in which a requested burst has no response yet."""
    busy = np.zeros(len(ports["stat_idle"]), bool)
    for port in BASES:
        seen = {name: ports[f"{port}__{name}"].astype(bool) for name in SEEN}
        for asks, begins, ends in (
            (seen["arvalid"], seen["arready"], seen["rvalid"] & seen["rlast"]),
            (seen["awvalid"], seen["awready"], seen["bvalid"]),
        ):
            pending = np.cumsum((asks & begins).astype(int) - ends)
            busy |= asks | (np.r_[0, pending[:-1]] > 0)
    return busy


def test_complement_of_the_base_addresses(rng, seed):
    """With the base addresses of the other tests, every address bit above the memory's size has both values."""
    unit = tiny()
    moved = [Descriptor(512 * n, SIZE // 2 + 512 * n, n % 2, n // 2, 512, 0, 0, 0) for n in range(4)]
    memories = images(rng, bases=COMPLEMENTS)
    assert run(unit, memories, moved, far(rng), seed=seed).images == expected(memories, moved)


def test_completions_of_both_sides_in_the_same_cycles(rng):
    """Completions of the host side wait while the device side completes one copy per cycle, and keep their order."""
    unit, group = tiny(), 12  # two groups of copies can be in flight
    moved = []
    for n in range(6 * group):
        target, tag = 1 - n // group % 2, int(rng.integers(2))
        moved.append(Descriptor(8 * n, SIZE // 2 + 8 * n, 1 - target, target, 8, 0, 2 * target + tag, 0))
    memories = images(rng, timing=BatchTiming(256))
    record = run(unit, memories, moved, ports=[f"{port}__bvalid" for port in BASES])
    assert record.images == expected(memories, moved)
    assert np.count_nonzero(record.ports["device__bvalid"] & record.ports["host__bvalid"]) >= 2 * group
    for tier in (Tier.DEVICE, Tier.HOST):
        assert tags(record.outputs["o_done"]["tag"].tolist(), tier) == tags([d.tag for d in moved], tier)


@pytest.mark.parametrize("port", BASES)
def test_reads_run_ahead_by_the_depth(port, rng):
    """The read engine requests words until its buffer is reserved, before the first word arrives."""
    unit = tiny()
    side = list(BASES).index(port)
    moved = [Descriptor(4096 * n, 4096 * n, side, 1 - side, 4096, 0, 0, 0) for n in range(2)]
    record = run(unit, images(rng, timing=FixedTiming(latency=100)), moved, ports=[f"{port}__{n}" for n in SEEN])
    request = (record.ports[f"{port}__arvalid"] & record.ports[f"{port}__arready"]).astype(bool)
    first_word = np.flatnonzero(record.ports[f"{port}__rvalid"])[0]
    assert np.count_nonzero(request[:first_word]) == unit.depth // BURST


@pytest.mark.parametrize("port", BASES)
@pytest.mark.parametrize("latency", [4, 1200], ids=["fast responses", "late responses"])
def test_no_burst_before_its_words(port, latency, rng, seed):
    """A burst is requested when all its words are in the buffer, also after late responses filled the buffer."""
    unit = tiny()
    word, target = unit.word // 8, list(BASES).index(port)
    source = list(BASES)[1 - target]
    moved, at = [], 0
    for nbytes in (4096, *((1 + n % 2) * word for n in range(40))):
        moved.append(Descriptor(at, SIZE // 2 + at, 1 - target, target, nbytes, 0, 0, 0))
        at += nbytes
    memories = images(rng)
    memories[port].timing, memories[source].stall = FixedTiming(latency=latency), 0.6
    names = [f"{source}__rvalid", *(f"{port}__aw{name}" for name in ("valid", "ready", "len"))]
    record = run(unit, memories, moved, seed=seed, ports=names)
    assert record.images == expected(memories, moved)
    received, valid, ready, length = (record.ports[name].astype(int) for name in names)
    assert np.all(np.cumsum((valid & ready) * (length + 1)) <= np.cumsum(received))
    assert latency == 4 or record.traffic[port]["most"]["write"] == 16  # the responses are late enough


def test_words_after_the_address_of_their_burst(rng, seed):
    """Words of one-word bursts never precede their address, although each channel pauses on its own."""
    unit = tiny()
    moved = [Descriptor(8 * n, SIZE // 2 + 8 * n, n % 2, 1 - n % 2, 8, 0, n % 4, 0) for n in range(200)]
    memories = images(rng, stall=0.6)
    assert run(unit, memories, moved, seed=seed).images == expected(memories, moved)


@pytest.mark.parametrize("port", BASES)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_region_fault_in_the_cycle_of_a_response(port, write, rng, seed):
    """A response without an error does not hide the fault of a later copy that leaves the region."""
    unit = tiny()
    word, side, offsets = unit.word // 8, list(BASES).index(port), far(rng)
    addresses, wrong = ((0, SIZE // 2), (0, SIZE)) if write else ((0, SIZE // 2), (SIZE, 0))
    tiers = (1 - side, side) if write else (side, 1 - side)
    moved = [Descriptor(*addresses, *tiers, 256 * word, 0, 0, 0), Descriptor(*wrong, *tiers, word, 0, 0, 0)]
    memories = images(rng, timing=BatchTiming(260))  # the last burst is requested after about 260 cycles
    response = f"{port}__{'b' if write else 'r'}valid"
    record = run(unit, memories, moved, offsets, seed=seed, cycles=600, ports=["stat_fault", response])
    assert record.status["stat_fault"] == (offsets[port] + SIZE) // word << 4 | Cause.REGION.value
    assert record.ports[response][np.flatnonzero(record.ports["stat_fault"])[0] - 1]
    assert record.status["stat_idle"] == 1


@pytest.mark.parametrize("source", [Tier.DEVICE, Tier.HOST], ids=["device", "host"])
def test_copy_of_zero_words_requests_no_burst(source, rng):
    unit = tiny()
    moved = [Descriptor(0, 0, int(source), 1 - int(source), 0, 0, 0, 0)]
    record = run(unit, images(rng), moved, done=0, cycles=100)
    assert record.status["stat_fault"] == 0 and record.status["stat_idle"] == 1
    assert not any(number for t in record.traffic.values() for number in t["bursts"].values())


def test_a_side_that_answers_late(rng, seed):
    """The number of bursts in flight reaches its limit."""
    unit = tiny()
    moved = [Descriptor(8 * n, SIZE // 2 + 8 * n, n // 50, 1 - n // 50, 8, 0, n % 4, 0) for n in range(100)]
    memories = images(rng)
    memories["host"].timing = FixedTiming(latency=150)
    record = run(unit, memories, moved, seed=seed)
    assert record.images == expected(memories, moved)
    assert record.traffic["host"]["most"]["write"] == 16


@pytest.mark.parametrize("slow", BASES)
def test_a_side_that_takes_words_slowly(slow, rng, seed):
    """Words from the fast side fill the on-chip buffer completely."""
    unit = tiny()
    target = list(BASES).index(slow)
    moved = []
    while len(moved) <= 15:  # enough words for the buffer
        moved = [replace(d, source_tier=1 - target) for d in copies(rng, 8, 50, longest=400) if d.target_tier == target]
    memories = images(rng)
    memories[slow].stall = 0.8
    record = run(unit, memories, moved, seed=seed)
    assert record.images == expected(memories, moved)


def test_errors_one_after_the_other(rng, seed):
    """Each error stops the unit with the address of its burst, until a reset."""
    unit, offsets, rounds = tiny(), far(rng), 24
    ports = [f"{port}__a{kind}{name}" for port in BASES for kind in "rw" for name in ("valid", "ready", "addr", "len")]
    failing = [(str(rng.choice(list(BASES))), bool(rng.integers(2)), int(rng.integers(8))) for _ in range(rounds)]
    script: list[list] = []
    clear = [["fail", port, False, -1, SLVERR] for port in BASES]  # a failure that did not occur must not stop the unit
    for fail in failing:
        script += [["fail", *fail, SLVERR], ["wait", 200], *clear, ["reset"]]
    moved = [d for _ in range(rounds // 4) for d in copies(rng, 8, 40, longest=300)[1:]]
    ports += ["rst", "stat_fault"]
    record = run(unit, images(rng, stall=0.1), moved, offsets, done=0, seed=seed, script=script, ports=ports)
    seen = {name: np.array(values) for name, values in record.ports.items()}
    resets = np.flatnonzero(np.diff(seen["rst"].astype(int)) == 1) + 1
    faults = seen["stat_fault"][resets - 1]
    assert len(resets) == rounds and np.count_nonzero(faults) > rounds * 3 // 4  # the others had too little to do
    for begin, end, fault, (port, write, after) in zip([0, *resets[:-1]], resets, faults, failing, strict=True):
        kind = "aw" if write else "ar"
        now = {name: seen[f"{port}__{kind}{name}"][begin:end] for name in ("valid", "ready", "addr", "len")}
        # a burst that is offered in the first cycle of a reset is lost
        accepted = np.flatnonzero(now["valid"] & now["ready"] & (seen["rst"][begin:end] == 0))
        words = [1] * len(accepted) if write else (now["len"][accepted] + 1).tolist()
        if fault:
            burst = accepted[np.searchsorted(np.cumsum(words), after, side="right")]
            word = (int(now["addr"][burst]) - BASES[port] + offsets[port]) // 8
            assert fault == word << 4 | Cause.SLVERR.value, (port, write, after)


def test_reset_in_mid_flight(rng, seed):
    """After a reset the unit starts again, whatever was in flight.

    The copies follow each other again and again, and no target is a source, so that the last ones complete each target.
    """
    unit, rounds = tiny(), 12
    moved = copies(rng, 8, 20, longest=300)[1:]
    script = [step for wait in rng.integers(5, 150, rounds).tolist() for step in (["wait", wait], ["reset"])]
    script += [["wait", 40 * sum(d.bytes for d in moved) * 8 // unit.word]]
    memories = images(rng, stall=0.2, timing=FixedTiming(latency=15))
    ports = ["rst", "stat_idle"]
    record = run(unit, memories, moved * (rounds + 2), done=0, seed=seed, script=script, ports=ports, stall=0.2)
    resets = np.flatnonzero(np.diff(np.array(record.ports["rst"]).astype(int)) == 1)
    assert len(resets) == rounds and not np.array(record.ports["stat_idle"])[resets].all()  # some were in mid flight
    assert record.images == expected(memories, moved)
    assert record.status["stat_fault"] == 0 and record.status["stat_idle"] == 1


def test_refuses_parts_of_words_and_one_word_too_much(rng):
    """Unaligned and out-of-range copies raise faults on both sides, as source and as target; a reset clears each.

    The second round complements the offsets, so every bit of a fault's address has both values. Its regions end at any
    word.
    """
    unit, offsets = tiny(), far(rng)
    complements = {port: (1 << 35) - 4096 - offset for port, offset in offsets.items()}
    for offset, end in ((offsets, SIZE), (complements, SIZE - 8 * int(rng.integers(1, 512)))):
        moved, faults = faulty_copies(rng, unit.word // 8, offset, end)
        script = [["wait", 12], ["reset"]] * len(moved)
        memories = images(rng, timing=FixedTiming(latency=60))
        record = run(unit, memories, moved, offset, done=0, end=end, script=script, ports=["stat_fault"])
        reported = [int(value) for value in record.ports["stat_fault"] if value]
        assert [value for n, value in enumerate(reported) if not n or value != reported[n - 1]] == faults
        assert record.images == {port: image.data for port, image in memories.items()}


def faulty_copies(rng, word, offsets, end):
    """Copies with an unaligned part or one word beyond a region that ends at byte `end`, and the fault of each."""
    moved, faults, words = [], [], iter(rng.permutation(end // word - 4).tolist())
    for k in range(word.bit_length() - 1):
        for parts in np.eye(3, dtype=int) << k:
            source, target, nbytes = (word * np.array([next(words), next(words), 2]) + parts).tolist()
            moved += [Descriptor(source, target, 0, 1, nbytes, 0, 0, 0)] * 4  # a reset may swallow some
            faults.append((offsets["host"] + target) // word << 4 | Cause.REGION.value)
    for k in range((4096 // word).bit_length()):
        nbytes, address = word << k, end - (word << k) + word
        for target in (False, True):
            for side in (Tier.DEVICE, Tier.HOST):
                addresses = (
                    (0, address, int(Tier.HOST), int(side)) if target else (address, 0, int(side), int(Tier.HOST))
                )
                moved += [Descriptor(*addresses, nbytes, 0, 0, 0)] * 4
                faults.append((offsets[list(BASES)[side]] + address) // word << 4 | Cause.REGION.value)
    return moved, faults


@pytest.mark.parametrize("end", [SIZE, SIZE - 8], ids=["whole pages", "one word less"])
def test_copies_up_to_the_end_of_a_region(end, rng, seed):
    """The last words of both regions can be read and written."""
    unit, at = tiny(), end - 256
    ways = [(source, target) for source in range(2) for target in range(2)]
    moved = [Descriptor(at, 512 * n, *way, 256, 0, 0, 0) for n, way in enumerate(ways)]
    moved += [Descriptor(512 * n, at, *way, 256, 0, 0, 0) for n, way in enumerate(ways[1:3], start=4)]
    memories = images(rng)
    record = run(unit, memories, moved, far(rng), end=end, seed=seed)
    assert record.images == expected(memories, moved) and record.status["stat_fault"] == 0


def test_a_word_per_cycle(rng):
    """Long copies from device to host read and write one word a cycle after the start."""
    unit = tiny()
    moved = [Descriptor(4096 * n, 4096 * n, 0, 1, 4096, 0, 0, 0) for n in range(8)]
    record = run(unit, images(rng, timing=FixedTiming(latency=16)), moved)
    words = sum(d.bytes for d in moved) * 8 // unit.word
    assert words <= record.cycles < words + 120


@pytest.mark.parametrize("port", BASES)
@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
@pytest.mark.parametrize("response", [SLVERR, pytest.param(DECERR, marks=pytest.mark.heavy)])
def test_errors_stop_it(port, write, response, rng, seed):
    """After an error no request is issued, bursts in flight end, and the address is that of the failed burst."""
    unit = tiny()
    moved = copies(rng, unit.word // 8, 40, longest=1024)
    at = int(rng.integers(0, 20))
    memories = images(rng, timing=FixedTiming(latency=10))
    memories[port].failures = [Failure(write, at, response)]
    offsets = far(rng)
    ports = ["stat_fault", *(f"{port}__{name}" for port in BASES for name in ("arvalid", "awvalid"))]
    record = run(unit, memories, moved, offsets, seed=seed, cycles=1500, ports=ports)
    stopped = np.flatnonzero(record.ports.pop("stat_fault"))[0] + 2  # an earlier request is still in a register
    assert not any(valid[stopped:].any() for valid in record.ports.values())
    fault, side = record.status["stat_fault"], list(BASES).index(port)
    assert fault & 15 == {SLVERR: Cause.SLVERR, DECERR: Cause.DECERR}[response].value
    word, before = unit.word // 8, offsets[port] // (unit.word // 8)
    # bursts in order: cut at multiples of the longest one
    bursts = []
    for d in moved:
        if (d.target_tier if write else d.source_tier) != side:
            continue
        address, end = (d.target, d.target + d.bytes) if write else (d.source, d.source + d.bytes)
        while address < end:
            stop = min(end, (address // (BURST * word) + 1) * BURST * word)
            bursts.append((address // word, (stop - address) // word))
            address = stop
    if write:
        assert fault >> 4 == before + bursts[at][0]
    else:
        ends = np.cumsum([words for _, words in bursts])
        assert fault >> 4 == before + bursts[int(np.searchsorted(ends, at, side="right"))][0]
    assert record.status["stat_idle"] == 1
    assert len(record.outputs["o_done"]["tag"]) < len(moved)


@pytest.mark.parametrize(
    "source, target, nbytes",
    [(SIZE - 8, 0, 16), (0, SIZE, 8), (4, 0, 8), (0, 12, 8), (0, 0, 20), (1 << 34, 0, 8)],
    ids=["read beyond", "write beyond", "source inside a word", "target inside a word", "half a word", "far beyond"],
)
@pytest.mark.heavy
def test_refuses_what_is_outside(source, target, nbytes, rng):
    unit = tiny()
    memories = images(rng)
    record = run(unit, memories, [Descriptor(source, target, 0, 1, nbytes, 0, 0, 0)], cycles=200)
    assert record.status["stat_fault"] & 15 == Cause.REGION.value
    assert record.images == {port: image.data for port, image in memories.items()}
    assert not any(t["bursts"]["read" if "target" in str(source) else "write"] for t in record.traffic.values())


def test_rejects_bad_parameters():
    for burst, word in ((3, 64), (512, 64), (64, 1024), (0, 64)):
        with pytest.raises(ValueError, match="burst must be"):
            check_burst(burst, word)
    with pytest.raises(ValueError, match=r"data_bits must be 8, 16, 32, .. 1024, got 48"):
        check_burst(1, 48)
    for engine in (ReadEngine, WriteEngine):
        with pytest.raises(ValueError, match=r"depth must be at least .*, got 8"):
            engine(word=64, burst=16, depth=8)
        with pytest.raises(ValueError, match="bursts must be at least 1, got 0"):
            engine(word=64, bursts=0)
    with pytest.raises(ValueError, match="readers must be at least 1, got 0"):
        Master(word=64, burst=16, readers=0, writers=1)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    unit = Dma.from_config(Config.preset(preset))
    assert to_rtlil(unit, "dma") and unit.timing["words_per_cycle"] == 1


@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_every_length_on_every_way(stall, rng, seed):
    unit = tiny()
    word, at = unit.word // 8, [SIZE // 2, SIZE // 2]
    moved = []
    for n, words in enumerate([1, BURST, 3 * BURST] * 4):
        moved.append(Descriptor(n * word, at[n // 6], n // 3 % 2, n // 6, words * word, 0, n % 4, 0))
        at[n // 6] += words * word
    memories = images(rng, stall=stall)
    assert run(unit, memories, moved, stall=stall, seed=seed).images == expected(memories, moved)


@pytest.mark.parametrize("write", [False, True], ids=["read", "write"])
def test_memory_that_ends_within_its_region(write, rng, seed):
    """Words beyond the end of the memory get the response DECERR."""
    unit = tiny()
    memories = images(rng)
    memories["host"].data = memories["host"].data[: SIZE // 2]
    sides = (Tier.DEVICE, Tier.HOST) if write else (Tier.HOST, Tier.DEVICE)
    moved = [Descriptor(at, at, *map(int, sides), unit.word, 0, 0, 0) for at in (0, SIZE // 2)]
    record = run(unit, memories, moved, done=1, seed=seed, cycles=500)
    fault = record.status["stat_fault"]
    assert fault & 15 == Cause.DECERR.value and fault >> 4 == SIZE // 2 * 8 // unit.word


@pytest.mark.parametrize("cause", [Cause.SLVERR, Cause.DECERR, Cause.REGION])
def test_faults_under_pauses(cause, rng, seed):
    unit = tiny()
    memories = images(rng, stall=0.3)
    if cause is not Cause.REGION:
        memories["host"].failures = [Failure(True, 0, {Cause.SLVERR: SLVERR, Cause.DECERR: DECERR}[cause])]
    moved = [Descriptor(0, SIZE * (cause is Cause.REGION), 0, 1, 64, 0, 0, 0)]
    assert run(unit, memories, moved, seed=seed, cycles=300).status["stat_fault"] & 15 == cause.value
