"""Line cache and undo log of the KVMU against a model of memory with random latency and pauses."""

import numpy as np
import pytest
from amaranth import Module, unsigned
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import JOB
from hw.dre.kvmu.access import REQUEST, Access
from hw.dre.kvmu.line_cache import LineCache
from hw.dre.kvmu.records import BLOCK_BITS
from sim.bench.run import InTurns, simulate

DATA_BYTES, LOG_BASE = 1024, 1024  # data first, then the log
OTHER_BYTES = 256  # of the data; other units change them
STEP = 6  # committed steps


class CacheUnit(wiring.Component):
    """A line cache whose accesses are two streams."""

    def __init__(self, *, word, lines, log_entries):
        self.cache, self.log_entries = LineCache(word=word, lines=lines), log_entries
        super().__init__(
            {
                "i": In(stream.Signature(REQUEST)),
                "o": Out(stream.Signature(unsigned(BLOCK_BITS))),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(word))),
                "write_job": Out(stream.Signature(JOB)),
                "write_words": Out(stream.Signature(write_word_layout(word))),
                "write_done": In(1),
                "log_full": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.cache = cache = self.cache
        wiring.connect(m, wiring.flipped(self.i), cache.memory.request)
        wiring.connect(m, cache.memory.response, wiring.flipped(self.o))
        for name in ("read_job", "write_job", "write_words"):
            wiring.connect(m, getattr(cache, name), wiring.flipped(getattr(self, name)))
        wiring.connect(m, wiring.flipped(self.read_words), cache.read_words)
        m.d.comb += [
            cache.write_done.eq(self.write_done),
            cache.log_base.eq(LOG_BASE // 128),
            cache.log_entries.eq(self.log_entries),
            cache.step.eq(STEP),
            self.log_full.eq(cache.log_full),
        ]
        return m


class Script:
    """Random requests, the expected responses, and the expected memory after the last FLUSH."""

    def __init__(self, rng, count, *, writes=0.5):
        self.initial = rng.integers(0, 256, DATA_BYTES).astype(np.uint8)
        self.content = self.initial.copy()
        self.requests = {name: [] for name in ("op", "address", "strobe")}
        self.data, self.responses = [], []
        for _ in range(count):
            block, kind = int(rng.integers((DATA_BYTES - OTHER_BYTES) // 32)), rng.random()
            if kind < 0.02:
                self._add(Access.FLUSH, 0, 0, bytes(32))
            elif kind > 0.95:
                self._add(
                    Access.LOG, int(rng.integers((DATA_BYTES - OTHER_BYTES) // 32, DATA_BYTES // 32)), 0, bytes(32)
                )
            elif kind < 0.02 + writes:
                self._write(block, int(rng.integers(1, 1 << 16)), rng.bytes(32))
            else:
                self._add(Access.READ, block, 0, bytes(32))
        self._add(Access.FLUSH, 0, 0, bytes(32))

    def _add(self, op, block, strobe, content):
        for name, value in (("op", op.value), ("address", block), ("strobe", strobe)):
            self.requests[name].append(value)
        self.data.append(int.from_bytes(content, "little"))
        if op in (Access.READ, Access.FLUSH):
            read = self.content[32 * block : 32 * block + 32].tobytes()
            self.responses.append(int.from_bytes(read, "little") if op is Access.READ else None)

    def _write(self, block, strobe, content):
        for half in range(16):
            if strobe >> half & 1:
                start = 32 * block + 2 * half
                self.content[start : start + 2] = np.frombuffer(content[2 * half : 2 * half + 2], np.uint8)
        self._add(Access.WRITE, block, strobe, content)

    def run(self, unit, name="line_cache", **options):
        image = np.concatenate([self.initial, np.zeros(1 << 16, np.uint8)])
        inputs = {"i": {**{k: np.array(v) for k, v in self.requests.items()}, "data": np.array(self.data, object)}}
        outputs = {"o": len(self.responses)}
        return simulate(unit, name, inputs, outputs, memory=image, timeout_cycles=400_000, **options)

    def check_responses(self, record):
        for n, (got, want) in enumerate(zip(record.outputs["o"].tolist(), self.responses, strict=True)):
            assert want is None or got == want, n


SHAPES = {"narrow": (64, 4), "one block": (256, 3), "wide": (1024, 2), "many lines": (64, 16)}


@pytest.mark.parametrize("shape", SHAPES)
def test_reads_return_what_was_written(shape, rng, seed):
    word, lines = SHAPES[shape]
    script = Script(rng, 500)
    record = script.run(
        CacheUnit(word=word, lines=lines, log_entries=500), stall=InTurns(0.3), seed=seed, memory_latency=(1, 25)
    )
    script.check_responses(record)
    assert (record.memory["image"][:DATA_BYTES] == script.content).all()
    assert not record.status["log_full"]
    line = max(32, word // 8)
    check_log(record, script, word, line)
    logged = {address // line for address, _ in entries(record.memory["image"], line)}
    operations = zip(script.requests["op"], script.requests["address"], strict=True)
    assert logged > {32 * block // line for op, block in operations if op == Access.LOG.value}


def entries(memory, line):
    """Entries of the undo log: byte address and content of a line."""
    lines = []
    for at in range(LOG_BASE, len(memory), 2 * line):
        address, step = memory[at + line : at + line + 8].view("<u4").tolist()
        if step != STEP + 1:
            break
        lines.append((address * 32, memory[at : at + line].copy()))
    return lines


def restore(memory, line):
    """Undo the entries of the log, last to first; returns their number."""
    log = entries(memory, line)
    for address, content in reversed(log):
        memory[address : address + line] = content
    return len(log)


def check_log(record, script, word, line):
    """After any number of writes, the log restores the initial memory."""
    memory = np.concatenate([script.initial, np.zeros(1 << 16, np.uint8)])
    nbytes, restored = word // 8, 0
    for n, ((address, _, _), content) in enumerate(
        zip(record.memory["written"].tolist(), record.memory["words"], strict=True)
    ):
        memory[address * nbytes : (address + 1) * nbytes] = content
        if n % 7 == 0:
            undone = memory.copy()
            restored = restore(undone, line)
            assert (undone[:DATA_BYTES] == script.initial).all(), n
    assert restored > 10


def test_full_log_keeps_memory_restorable(rng, seed):
    """When the log is full, changed lines are dropped and the log still restores the initial memory."""
    script = Script(rng, 300, writes=0.8)
    record = script.run(
        CacheUnit(word=64, lines=4, log_entries=13), "line_cache_13", stall=0.2, seed=seed, memory_latency=(1, 9)
    )
    assert record.status["log_full"]
    memory = record.memory["image"].copy()
    assert restore(memory, 32) == 13
    assert (memory[:DATA_BYTES] == script.initial).all()


def test_cycles_of_hits():
    """A hit takes 2 cycles for a read and 1 for a write to a dirty line."""
    script = Script(np.random.default_rng(1), 0)
    script.requests = {name: [] for name in script.requests}
    script.data, script.responses = [], []
    for _ in range(10):
        script._write(3, 0xFFFF, bytes(range(32)))
    for _ in range(10):
        script._add(Access.READ, 3, 0, bytes(32))
    record = script.run(CacheUnit(word=64, lines=4, log_entries=500))
    script.check_responses(record)
    gaps = np.diff(record.cycles["i"])
    assert gaps[:10].tolist() == [1] * 10
    assert gaps[10:].tolist() == [2] * 9


def test_too_few_lines_raise_value_error():
    with pytest.raises(ValueError, match="lines must be at least 2, got 1"):
        LineCache(word=64, lines=1)
