"""A decoder layer with ReSV attention from commands in memory, against the golden layer, bit for bit."""

import numpy as np
import pytest

from golden import bf16
from golden.clustering import ClusterRule
from golden.hashing import hyperplanes
from golden.hc_table import HcTableConfig
from golden.kvmu_unit import Op, UnitConfig
from golden.kvpu import Kvpu
from golden.layer import Layer, LayerShape, angles, pair_order
from golden.rope import rotate
from golden.selection import RESV
from golden.transformer import attention, causal, silu
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command
from hw.core.layer import LayerCompiler, Region, Sizes, tiles
from tests.hw.core.bench import Bench

CASES = {  # hidden, ffn, largest step, keys of a row
    "tiny": Sizes(hidden=16, ffn=24, tokens=2, keys=64),
    "small": Sizes(hidden=256, ffn=384, tokens=4, keys=512),
}


class LayerBench:
    """A core, its golden twin, and steps that run on both."""

    def __init__(self, preset, rng, *, threshold, capacity, target=19661, staging_units=32):
        self.config = c = Config.preset(preset)
        self.sizes, self.rng, n = CASES[preset], rng, c.dpe_inputs
        self.core = Core.from_config(c)
        word = self.core.machine.word // 8
        unit = self.core.machine.cache.kvpu
        page = unit.kvmu.page_bytes
        # device memory: tables, frames, staging, layer, programs, inputs and outputs of the steps
        place, bases = 0, {}
        for name, size in (
            ("record", unit.table.clusters * 16),
            ("list", unit.table.pages * c.page_tokens * 4),
            ("link", unit.table.pages * 4),
            ("mean", unit.table.clusters * unit.table.dimension * 2),
            ("device", c.kvmu_frames * page),
            ("staging", 2 * staging_units * unit.kvmu.unit_bytes),
        ):
            bases[name] = place
            place += -(-size // word) * word
        self.words = 4 * (1 << 20) // word
        self.region = Region(self.words, place // word)
        self.layer = LayerCompiler(c, self.sizes, self.region, bases["mean"] // word)
        settings = {
            "threshold": threshold,
            "window": 0,
            "count_max": 65535,
            "target": target,
            "refine": RESV.refine_levels,
            "staging_units": staging_units,
            "capacity": capacity,
            "host_base": 0,
            "storage_base": 0,
            **{f"{name}_base": base for name, base in bases.items()},
        }
        self.bench = Bench(
            self.core, bytearray(self.words * word), bytearray(c.kvmu_pages * page), settings, limit=100_000
        )

        shape = LayerShape(self.sizes.hidden, self.sizes.ffn, c.q_heads, c.kv_heads, c.head_dim, c.hash_bits, n)
        weights = {
            name: bf16.encode(rng.standard_normal((rows, columns)) / np.sqrt(columns))
            for name, (rows, columns) in shape.weights().items()
        }
        weights["planes"] = hyperplanes(c.kv_heads * c.head_dim, c.hash_bits).view(np.uint16).T.copy()
        norms = tuple(bf16.encode(1 + rng.standard_normal(self.sizes.hidden) / 8) for _ in range(2))
        table = unit.table
        self.golden = Layer(
            shape,
            weights,
            norms,
            Kvpu(
                ClusterRule(th_hd=threshold, candidates="all", max_candidates=unit.hcu.clusters),
                HcTableConfig(table.clusters, table.pages, table.page_tokens, table.dimension,
                              bases=tuple(bases[name] for name in ("record", "list", "link", "mean"))),
                UnitConfig(c.kv_heads, c.head_dim, c.page_tokens, c.kvmu_pages, c.kvmu_frames, unit.kvmu.clusters,
                           tags=unit.kvmu.tags, bases=(bases["device"], 0, 0, bases["staging"]),
                           staging_units=staging_units, capacity=capacity),
                RESV,
                target,
            ),
        )  # fmt: skip
        order = self.golden.order
        stored = dict(weights)
        for name, heads in (("q", c.q_heads), ("k", c.kv_heads)):
            stored[name] = weights[name].reshape(heads, c.head_dim, -1)[:, order].reshape(weights[name].shape)
        stored["planes"] = self.golden._planes()
        for name, matrix in stored.items():
            self._put(self.layer.weights[name], tiles(matrix, n))
        for place, norm in zip(self.layer.norms, norms, strict=True):
            self._put(place, norm.tobytes())
        for place, image in self.layer.images.items():
            self._put(place, image)
        self.position, self.traces, self.outputs = 0, [], []
        self._run([Command("BEGIN"), Command("END")])

    def _put(self, place, image):
        self.bench.put(place, image)

    def _run(self, program):
        place = self.region.take(len(self.bench.driver.image(program)) // self.bench.word_bytes)
        self.bench.put(place, program)
        self.bench.run(place, len(program))

    def step(self, x):
        """A step of the tokens `x` (T, hidden), BF16 codes."""
        tokens, n = len(x), self.config.dpe_inputs
        trace = self.golden.step(x, range(self.position, self.position + tokens))
        cos, sin = angles(np.arange(self.position, self.position + tokens), self.config.head_dim, 5e5)
        turned = np.stack([cos.reshape(tokens, -1, n), sin.reshape(tokens, -1, n)], axis=2)
        assert self.golden.order.tolist() == pair_order(self.config.head_dim, n).tolist()
        words = self.bench.word_bytes
        copies = []
        for image, target in ((x.tobytes(), self.layer.x), (turned.astype("<u4").tobytes(), self.layer.cosines)):
            source = self.region.take(len(image) // words)
            self._put(source, image)
            copies.append(Command("COPY", {"source": source, "target": target, "words": len(image) // words}))
        self._run([*copies, Command("END")])
        program = self.layer.step(tokens)
        self._run(program)
        size = tokens * self.sizes.hidden * 2
        out = self.region.take(size // words)
        self._run([Command("COPY", {"source": self.layer.out, "target": out, "words": size // words}), Command("END")])
        self.position += tokens
        self.traces.append(trace)
        self.outputs.append((out * words, trace.output))
        return trace

    def memory(self, image, place, count, dtype="<u2"):
        """`count` words of the device memory."""
        at = place * self.bench.word_bytes
        return np.frombuffer(image[at : at + count * self.bench.word_bytes], dtype)

    def check(self, **options):
        """Runs everything on the core; the record."""
        outcomes, record = self.bench.simulate(**options)
        for outcome in outcomes:
            assert outcome.done and not outcome.failed and not outcome.hung, outcome
        for n, (at, output) in enumerate(self.outputs):
            got = np.frombuffer(record.images["device"][at : at + output.nbytes], "<u2").reshape(output.shape)
            np.testing.assert_array_equal(got, output, err_msg=f"step {n}")
        return record


def frames(bench, count, tokens, drift=0.3):
    """Steps of tokens that change slowly from one to the next, as frames of a video do."""
    base = bench.rng.standard_normal((tokens, bench.sizes.hidden))
    for _ in range(count):
        base += drift * bench.rng.standard_normal(base.shape)
        yield bf16.encode(base)


@pytest.mark.parametrize("stall", [0.0, pytest.param(0.3, marks=pytest.mark.heavy)])
def test_layer_at_tiny(stall, rng, seed):
    """Frames, then text tokens one by one."""
    bench = LayerBench("tiny", rng, threshold=4, capacity=16)
    for x in frames(bench, 12, 2):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_layer_at_small(stall, rng, seed):
    """Frames of four tokens, then text; pages leave the device and come back."""
    bench = LayerBench("small", rng, threshold=7, capacity=24)
    for x in frames(bench, 6, 4):
        bench.step(x)
    for _ in range(2):
        bench.step(bf16.encode(rng.standard_normal((1, bench.sizes.hidden))))
    assert any(reply.op == Op.FETCH and reply.transit for trace in bench.traces for reply in trace.replies)
    bench.check(stall=stall, seed=seed)


def test_golden_layer_is_close_to_float64(rng):
    """The first step has no past: plain causal attention of a decoder layer in float64."""
    bench = LayerBench("small", rng, threshold=7, capacity=64)
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
