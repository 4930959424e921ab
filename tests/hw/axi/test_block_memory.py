"""`BlockMemory`: bursts of both directions and direct accesses at the same time, against an array of words."""

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.block_memory import BlockMemory, direct_access
from sim.bench.run import simulate

WORDS, WORD, IDS, ADDRESS_BITS = 64, 32, 3, 12
OKAY, DECERR = 0, 3
ADDRESS = {"id": IDS, "addr": ADDRESS_BITS, "len": 8}
INPUTS = {"aw": ADDRESS, "ar": ADDRESS, "w": {"data": WORD, "strb": WORD // 8, "last": 1}}
OUTPUTS = {"r": {"id": IDS, "data": WORD, "resp": 2, "last": 1}, "b": {"id": IDS, "resp": 2}}


class Streams(wiring.Component):
    """The memory with its AXI channels as streams; the word of each direct read is a beat of `read`.

    A beat of `aw`, `ar` or `direct` waits until `after` bursts and direct accesses are complete.
    """

    def __init__(self):
        ports = {name: Out(stream.Signature(data.StructLayout(fields))) for name, fields in OUTPUTS.items()}
        access = {name: field.shape for name, field in direct_access(WORDS, WORD)}
        for name, fields in {**INPUTS, "direct": access}.items():
            layout = data.StructLayout(fields if name == "w" else {**fields, "after": 16})
            ports[name] = In(stream.Signature(layout))
        super().__init__({**ports, "read": Out(stream.Signature(WORD))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.memory = memory = BlockMemory(words=WORDS, word=WORD, address_bits=ADDRESS_BITS, id_bits=IDS)
        axi, complete = memory.axi, Signal(16)
        for name, fields in INPUTS.items():
            port, may = getattr(self, name), 1
            if name != "w":
                may = complete >= port.payload.after
            m.d.comb += [getattr(axi, f"{name}{field}").eq(port.payload[field]) for field in fields]
            m.d.comb += getattr(axi, f"{name}valid").eq(port.valid & may)
            m.d.comb += port.ready.eq(getattr(axi, f"{name}ready") & may)
        for name, fields in OUTPUTS.items():
            port = getattr(self, name)
            m.d.comb += [port.payload[field].eq(getattr(axi, f"{name}{field}")) for field in fields]
            m.d.comb += [port.valid.eq(getattr(axi, f"{name}valid")), getattr(axi, f"{name}ready").eq(port.ready)]
        direct, word, fresh = self.direct.payload, Signal(WORD), Signal()
        may = (complete >= direct.after) & (direct.write | ~(self.read.valid | fresh))
        accepted = self.direct.valid & self.direct.ready
        m.d.comb += [
            *(memory.direct.payload[name].eq(direct[name]) for name in ("address", "write", "data")),
            memory.direct.valid.eq(self.direct.valid & may),
            self.direct.ready.eq(memory.direct.ready & may),
            self.read.payload.eq(word),
        ]
        m.d.sync += fresh.eq(accepted & ~direct.write)
        with m.If(fresh):
            m.d.sync += [self.read.valid.eq(1), word.eq(memory.read)]
        with m.Elif(self.read.ready):
            m.d.sync += self.read.valid.eq(0)
        done = (self.b.valid & self.b.ready) + (self.r.valid & self.r.ready & self.r.payload.last)
        m.d.sync += complete.eq(complete + done + accepted)
        return m


def bursts(rng, count, first, end):
    """Random bursts of up to eight words from `first` to `end`: identifier, first word, number of words."""
    sizes = rng.integers(1, 9, count)
    return [(int(rng.integers(1 << IDS)), int(rng.integers(first, end - size + 1)), int(size)) for size in sizes]


def address_beats(each):
    """Beats of an address channel: (identifier, word, number of words, bursts and accesses to wait for)."""
    identifiers, words, sizes, after = np.array(each).reshape(-1, 4).T
    return {"id": identifiers, "addr": words * (WORD // 8), "len": sizes - 1, "after": after}


def direct_beats(each):
    """Beats of direct accesses: (word, whether it writes, content, bursts and accesses to wait for)."""
    columns = zip(*each, strict=True)
    return dict(zip(("address", "write", "data", "after"), map(np.array, columns), strict=True))


def run(aw, w, ar, direct, **options):
    """Record of bursts and direct accesses."""
    inputs = {
        "aw": address_beats(aw), "ar": address_beats(ar), "direct": direct_beats(direct),
        "w": dict(zip(("data", "strb", "last"), map(np.array, zip(*w, strict=True)), strict=True)),
    }  # fmt: skip
    outputs = {"b": len(aw), "r": sum(size for _, _, size, _ in ar), "read": sum(1 - write for _, write, *_ in direct)}
    return simulate(Streams(), "streams", inputs, outputs, timeout_cycles=20_000, **options)


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_bursts_and_direct_accesses(stall, rng, seed):
    """Everything is written; then bursts write the lower half, bursts read the third quarter, and direct accesses use
    the last quarter at the same time; then bursts and direct accesses read everything."""
    half, last = WORDS // 2, WORDS * 3 // 4
    image = rng.integers(1 << WORD, size=WORDS, dtype=np.uint64)
    direct = [(at, 1, int(image[at]), 0) for at in range(WORDS)]
    aw, w, ar, expected, expected_reads = [], [], [], [], []
    for identifier, start, size in bursts(rng, 12, 0, half):
        aw.append((identifier, start, size, WORDS))
        for k in range(size):
            word, strobe = int(rng.integers(1 << WORD)), int(rng.integers(1 << WORD // 8))
            mask = sum(255 << 8 * byte for byte in range(WORD // 8) if strobe >> byte & 1)
            image[start + k] = int(image[start + k]) & ~mask | word & mask
            w.append((word, strobe, k == size - 1))
    for identifier, start, size in bursts(rng, 12, half, last):
        ar.append((identifier, start, size, WORDS))
        expected += [(identifier, image[start + k], OKAY, k == size - 1) for k in range(size)]
    for _ in range(40):
        at, writes, word = int(rng.integers(last, WORDS)), int(rng.integers(2)), int(rng.integers(1 << WORD))
        direct.append((at, writes, word, WORDS))
        if writes:
            image[at] = word
        else:
            expected_reads.append(int(image[at]))
    end = WORDS + len(aw) + len(ar) + 40
    for start in range(0, WORDS, 16):
        ar.append((start // 16, start, 16, end))
        expected += [(start // 16, image[start + k], OKAY, k == 15) for k in range(16)]
    direct += [(at, 0, 0, end) for at in range(WORDS)]
    record = run(aw, w, ar, direct, stall=stall, seed=seed)
    assert record.outputs["b"]["id"].tolist() == [identifier for identifier, *_ in aw]
    assert not record.outputs["b"]["resp"].any()
    columns = [record.outputs["r"][name].tolist() for name in ("id", "data", "resp", "last")]
    assert list(zip(*columns, strict=True)) == expected
    assert record.outputs["read"].tolist() == [*expected_reads, *image.tolist()]
    if not stall:  # a word per cycle within a burst
        at = record.cycles["r"][-16:]
        assert at[-1] - at[0] == 15
        assert at[0] - record.cycles["ar"][-1] == 2


def test_burst_behind_the_memory(seed):
    """It gets DECERR and changes nothing; the next burst is good."""
    aw = [(1, WORDS, 2, 2), (2, 1, 1, 2)]
    w = [(5, 15, 0), (6, 15, 1), (7, 15, 1)]
    ar = [(3, WORDS + 4, 2, 4), (4, 0, 2, 4)]
    record = run(aw, w, ar, [(0, 1, 10, 0), (1, 1, 11, 0)], seed=seed)
    assert record.outputs["b"]["resp"].tolist() == [DECERR, OKAY]
    assert record.outputs["r"]["resp"].tolist() == [DECERR, DECERR, OKAY, OKAY]
    assert record.outputs["r"]["data"][2:].tolist() == [10, 7]


@pytest.mark.parametrize(
    "words, address_bits, message",
    [
        (48, 12, "words must be a power of two, at least 2, got 48"),
        (1, 12, "words must be a power of two, at least 2, got 1"),
        (64, 7, "address_bits must be enough for 256 bytes, got 7"),
    ],
)
def test_refused_sizes(words, address_bits, message):
    with pytest.raises(ValueError, match=message):
        BlockMemory(words=words, word=32, address_bits=address_bits, id_bits=1)
