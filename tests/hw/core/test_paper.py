"""ReSV attention of one layer at the paper's sizes, from commands: queries, keys and values of a real video."""

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.hashing import hyperplanes
from golden.hc_table import HcTableConfig
from golden.kvmu_unit import Op, UnitConfig
from golden.kvpu import Kvpu
from golden.layer import Layer, LayerShape
from golden.selection import RESV
from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command
from hw.core.layer import LayerCompiler, Region, Sizes, tiles
from sw_model.frontend.clip import find_clip
from sw_model.frontend.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.frontend.stream import Geometry
from tests.hw.core.bench import Bench

TOKENS = 10  # of a step
COUNTERS = ("cycles", "matrix_beats", "vector_beats", "device_read", "device_write", "host_read", "host_write")


def video(config, tokens):
    """Queries, keys and values of a video's tokens, BF16 codes (tokens, heads, head_dim)."""
    geometry = Geometry(layers=1, q_heads=config.q_heads, kv_heads=config.kv_heads, head_dim=config.head_dim)
    found = []
    front_end = FrontEnd(FrontEndConfig(geometry=geometry, grid=5))
    for _, chunk in video_chunks(find_clip().path, front_end, max_frames=-(-tokens // 25)):
        found.append([np.asarray(part[0]).view(np.uint16) for part in (chunk.q, chunk.k, chunk.v)])
    return [np.concatenate(parts)[:tokens] for parts in zip(*found, strict=True)]


class PaperBench:
    """A core with a layer's tables and nothing of the layer but its attention."""

    def __init__(self, config, past, *, capacity, pages):
        self.config = c = config
        self.core = Core.from_config(c)
        unit, word = self.core.machine.cache.kvpu, self.core.machine.word // 8
        place, bases, staging_units = 0, {}, 128
        for name, size in (
            ("record", unit.table.clusters * 16),
            ("list", unit.table.pages * c.page_tokens * 4),
            ("link", unit.table.pages * 4),
            ("mean", unit.table.clusters * unit.table.dimension * 2),
            ("staging", 2 * staging_units * unit.kvmu.unit_bytes),
            ("device", pages * unit.kvmu.page_bytes),  # only so many of the frames are ever used
        ):
            bases[name] = place
            place += -(-size // word) * word
        self.word = word
        words = place // word + 300_000
        self.region = Region(words, place // word)
        narrow = c.dpe_inputs
        self.layer = LayerCompiler(
            c, Sizes(hidden=narrow, ffn=narrow, tokens=TOKENS, keys=4096), self.region, bases["mean"] // word
        )
        settings = {
            "threshold": 7, "window": c.window_tokens, "count_max": 65535, "target": 19661,
            "refine": RESV.refine_levels, "staging_units": staging_units, "capacity": capacity, "host_base": 0,
            "storage_base": 0, **{f"{name}_base": base for name, base in bases.items()},
        }  # fmt: skip
        self.bench = Bench(
            self.core, bytearray(words * word), bytearray(pages * unit.kvmu.page_bytes), settings, limit=2_000_000
        )
        shape = LayerShape(narrow, narrow, c.q_heads, c.kv_heads, c.head_dim, c.hash_bits, narrow)
        weights = {name: np.zeros(size, np.uint16) for name, size in shape.weights().items()}
        weights["planes"] = hyperplanes(c.kv_heads * c.head_dim, c.hash_bits).view(np.uint16).T.copy()
        table, kvmu = unit.table, unit.kvmu
        rule = ClusterRule(
            th_hd=7, recent_capacity_tokens=c.window_tokens, max_candidates=unit.hcu.clusters, max_clusters=1 << 16
        )
        self.golden = Layer(
            shape, weights, (np.zeros(narrow, np.uint16),) * 2,
            Kvpu(
                rule,
                HcTableConfig(table.clusters, table.pages, table.page_tokens, table.dimension,
                              bases=tuple(bases[name] for name in ("record", "list", "link", "mean"))),
                UnitConfig(c.kv_heads, c.head_dim, c.page_tokens, c.kvmu_pages, c.kvmu_frames, kvmu.clusters,
                           tags=kvmu.tags, bases=(bases["device"], 0, 0, bases["staging"]),
                           staging_units=staging_units, capacity=capacity),
                RESV, 19661,
            ),
        )  # fmt: skip
        self.bench.put(self.layer.weights["planes"], tiles(self.golden._planes(), narrow))
        for at, image in self.layer.images.items():
            self.bench.put(at, image)
        self.programs = {query: [*self.layer.attention(TOKENS, query=query), Command("END")] for query in (False, True)}
        self.places = {query: self._program(program) for query, program in self.programs.items()}
        self._run([Command("BEGIN"), Command("END")])
        del past

    def _program(self, program):
        place = self.region.take(-(-len(program) * 64 // self.word))
        self.bench.put(place, program)
        return place

    def _run(self, program):
        self.bench.run(self._program(program), len(program))

    def step(self, q, k, v, *, query):
        """Ten tokens, placed or asking; gives the golden trace of those that ask."""
        copies = []
        for name, values in (("q", q), ("k", k), ("v", v)):
            place = self.region.take(values.nbytes // self.word)
            self.bench.put(place, values.astype("<u2").tobytes())
            copies.append(
                Command("COPY", {"source": place, "target": self.layer.turned[name],
                                 "words": values.nbytes // self.word})
            )  # fmt: skip
        self._run([*copies, Command("END")])
        if query:
            self.bench.script += self.bench.driver.write("clear_counters", 1)
        self.bench.run(self.places[query], len(self.programs[query]))
        if not query:
            self.golden.fill(k, v)
            return None
        self.counters = len(self.bench.script)
        for name in COUNTERS:
            self.bench.script += self.bench.driver.read(name)
        return self.golden.attend(q, k, v)[1]


@pytest.mark.heavy
def test_attention_at_paper(seed):
    config, past = Config.preset("paper"), 1030
    bench = PaperBench(config, past, capacity=512, pages=256)
    q, k, v = video(config, past + TOKENS)
    for start in range(0, past, TOKENS):
        part = slice(start, start + TOKENS)
        bench.step(q[part], k[part], v[part], query=False)
    trace = bench.step(q[past:], k[past:], v[past:], query=True)
    assert len(bench.golden.keys) == past + TOKENS
    outcomes, record = bench.bench.simulate(seed=seed)
    assert all(outcome.done and not outcome.failed for outcome in outcomes), outcomes[-1]
    counts = dict(zip(COUNTERS, (value for value, _ in record.answers[bench.counters :]), strict=True))
    fetched = sum(reply.transit for reply in trace.replies if reply.op == Op.FETCH)
    print([len(tokens) for tokens in trace.attended], len(bench.golden.table.table.entries), fetched, counts)
    print({name: counts[name] / counts["cycles"] for name in COUNTERS})
    group = config.q_heads // config.kv_heads
    for h in range(config.kv_heads):
        want = trace.context[:, h].reshape(TOKENS * group, -1)
        at = bench.layer.context[h] * bench.word
        got = np.frombuffer(record.images["device"][at : at + want.nbytes], "<u2").reshape(want.shape)
        np.testing.assert_array_equal(got, want, err_msg=f"head {h}")
