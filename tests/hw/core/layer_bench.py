"""A layer on a simulated core and on its golden twin."""

import numpy as np

from golden import bf16
from golden.clustering import ClusterRule
from golden.hashing import hyperplanes
from golden.hc_table import HcTableConfig
from golden.kvmu_unit import UnitConfig
from golden.kvpu import Kvpu
from golden.layer import Layer, LayerShape, angles
from golden.selection import RESV
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
        self.position, self.traces, self.outputs, self.programs = 0, [], [], []
        self.clearing = False  # faults are expected anywhere

    def begin(self):
        """Empty tables."""
        self.run([Command("BEGIN"), Command("END")])

    def _put(self, place, image):
        self.bench.put(place, image)

    def run(self, program, clear=None):
        """Another program of commands, or of 64 bytes as they are; `clear` a fault afterwards."""
        code = b"".join(part if isinstance(part, bytes) else part.encode() for part in program)
        place = self.region.take(-(-len(code) // self.bench.word_bytes))
        self.bench.put(place, code)
        self.bench.run(place, len(program), clear=self.clearing if clear is None else clear)
        self.programs.append(program)

    def step(self, x):
        """A step of the tokens `x` (T, hidden), BF16 codes, on both; the golden trace."""
        if not self.traces:
            self.begin()
        trace = self.golden.step(x, range(self.position, self.position + len(x)))
        self.traces.append(trace)
        self.outputs.append((self.give(x), trace.output))
        return trace

    def give(self, x):
        """A step on the core; the byte address of its output."""
        tokens, n = len(x), self.config.dpe_inputs
        cos, sin = angles(np.arange(self.position, self.position + tokens), self.config.head_dim, 5e5)
        turned = np.stack([cos.reshape(tokens, -1, n), sin.reshape(tokens, -1, n)], axis=2)
        words = self.bench.word_bytes
        copies = []
        for image, target in ((x.tobytes(), self.layer.x), (turned.astype("<u4").tobytes(), self.layer.cosines)):
            source = self.region.take(len(image) // words)
            self._put(source, image)
            copies.append(Command("COPY", {"source": source, "target": target, "words": len(image) // words}))
        self.run([*copies, Command("END")])
        self.run(self.layer.step(tokens))
        size = tokens * self.sizes.hidden * 2
        out = self.region.take(size // words)
        self.run([Command("COPY", {"source": self.layer.out, "target": out, "words": size // words}), Command("END")])
        self.position += tokens
        return out * words

    def memory(self, image, place, count, dtype="<u2"):
        """`count` words of the device memory."""
        at = place * self.bench.word_bytes
        return np.frombuffer(image[at : at + count * self.bench.word_bytes], dtype)

    def check(self, failed=0, **options):
        """Runs everything on the core, the first `failed` programs of which may end as they like; the record."""
        outcomes, record = self.bench.simulate(**options)
        self.outcomes = outcomes
        for outcome in outcomes[failed:]:
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
