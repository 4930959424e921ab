"""The KVPU's Verilog against its golden twin on every stream: random steps, and a real video's tokens and queries."""

import dataclasses

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.hashing import hash_codes, hyperplanes
from golden.hc_table import HcTableConfig
from golden.kvmu import Kvmu, KvmuConfig
from golden.kvmu_unit import Descriptor, Kind, Op, Reply, Tier, UnitConfig
from golden.kvpu import Kvpu, Scores
from golden.representative import Representatives
from golden.scores import codes as score_codes
from golden.scores import dots, query_rows
from golden.selection import RESV
from hw.config import PRESETS, Config
from hw.dre.kvpu import KVPU
from hw.dre.kvpu import Op as HwOp
from hw.emit import to_rtlil
from sim.run import simulate
from sw_model.frontend.clip import find_clip
from sw_model.frontend.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.frontend.stream import Geometry
from tests.hw.dre.test_hcu import codes

TABLE_BASES = {"record": 0x100000, "list": 0x200000, "link": 0x300000, "mean": 0x400000}
KVMU_BASES = {"device": 0x1000000, "host": 0x100000000, "storage": 0x200000000, "staging": 0x300000000}


class Bench:
    """One unit and its golden twin, step by step."""

    def __init__(self, config, *, threshold=7, window=0, capacity=64, staging_units=64, target=19661, retain=False):
        self.unit = KVPU.from_config(config)
        units, kvmu = self.unit.units, self.unit.kvmu
        rule = ClusterRule(
            th_hd=threshold,
            candidates="recent" if window else "all",
            recent_capacity_tokens=window or 1,
            max_candidates=units["hcu"].clusters,
            max_clusters=1 << config.cluster_bits,
        )
        names = ("clusters", "pages", "page_tokens", "dimension")
        table = HcTableConfig(**{n: getattr(self.unit.table, n) for n in names}, bases=tuple(TABLE_BASES.values()))
        names = ("kv_heads", "head_dim", "page_tokens", "pages", "frames", "clusters", "tags", "address_bits")
        pages = UnitConfig(
            **{n: getattr(kvmu, n) for n in names},
            bases=tuple(KVMU_BASES.values()),
            staging_units=staging_units,
            capacity=capacity,
        )
        self.golden = Kvpu(rule, table, pages, RESV, target, retain)
        self.settings = {
            "cfg_threshold": threshold,
            "cfg_window": window,
            "cfg_count_max": rule.tc_max,
            "cfg_target": target,
            "cfg_refine": RESV.refine_levels,
            "cfg_staging_units": staging_units,
            "cfg_capacity": capacity,
            "cfg_retain": int(retain),
            **{f"cfg_{name}_base": base for name, base in (TABLE_BASES | KVMU_BASES).items()},
        }
        self.beats, self.scores, self.assigned, self.rows, self.replies, self.steps = [], [], [], [], [], 0

    def begin(self, layer=0):
        self.beats.append({"op": HwOp.BEGIN.value, "layer": layer})
        self.replies += self.golden.begin(layer)

    def step(self, hashes, groups=None):
        """`groups` makes the scores when the step's tokens have been clustered, from the number of clusters."""
        start = self.golden.clusters.tokens
        assigned, placed = self.golden.cluster(hashes)
        found = groups(len(self.golden.table.entries), assigned) if groups else []
        rows, selected, moved = self.golden.fetch(found)
        self.replies += placed + moved
        self.rows += rows
        self.steps += 1
        last = len(hashes) - 1
        for n, code in enumerate(hashes.tolist()):
            self.beats.append({"op": 0, "hash": code, "last": n == last, "query": bool(found)})
            self.assigned.append({"token": start + n, "hash": code, "last": n == last})
            for name in ("cluster", "count", "distance", "opened", "overflow"):
                self.assigned[-1][name] = int(getattr(assigned, name)[n])
        for at, group in enumerate(found):
            for n, keys in enumerate(group.keys):
                end = n + 1 == len(group.keys)
                self._row(keys, group.head, join=not end, final=end and at + 1 == len(found))
        return selected

    def _row(self, keys, head, join, final):
        lanes = self.unit.wtu.sizes.lanes
        for first in range(0, len(keys), lanes):
            words = np.zeros(lanes, np.int64)
            part = keys[first : first + lanes]
            words[: len(part)] = part
            beat = {"words": words, "used": len(part), "join": join, "head": head, "final": final}
            self.scores.append({**beat, "last": first + lanes >= len(keys)})

    def check(self, **options):
        golden, names = self.golden, ("op", "hash", "layer", "query", "last")
        inputs = {
            "i": {n: np.array([beat.get(n, 0) for beat in self.beats], np.int64) for n in names},
            "i_scores": {n: np.array([beat[n] for beat in self.scores], np.int64) for n in self.scores[0]},
        }
        moved, writes = golden.kvmu.descriptors, golden.table.writes
        outputs = {
            "o_assign": len(self.assigned),
            "o_row": sum(len(rows.cutoff) for rows in self.rows),
            "o": len(self.replies),
            "o_write": len(writes),
            "o_dma": len(moved),
            "o_complete": sum(reply.tagged for reply in self.replies),
        }
        record = simulate(
            self.unit,
            "kvpu",
            inputs,
            outputs,
            config=self.settings,
            echo={"i_done": "o_dma"},
            timeout_cycles=100_000_000,
            **options,
        )
        got = record.outputs
        for name in self.assigned[0]:
            assert got["o_assign"][name].tolist() == [beat[name] for beat in self.assigned], name
        for name in ("cutoff", "passes"):
            assert got["o_row"][name].tolist() == [int(v) for rows in self.rows for v in getattr(rows, name)], name
        for stream, want, kind in (("o", self.replies, Reply), ("o_dma", moved, Descriptor)):
            for field in dataclasses.fields(kind):
                column = [int(getattr(one, field.name)) for one in want]
                assert got[stream][field.name].tolist() == column, (stream, field.name)
        assert got["o_write"]["address"].tolist() == [address for address, _ in writes]
        assert [int(v) for v in got["o_write"]["data"]] == [int.from_bytes(value, "little") for _, value in writes]
        status = record.status
        assert status["size"] == len(golden.table.entries)
        assert status["stat_steps"] == self.steps
        assert status["stat_hcu_tokens"] == status["stat_hc_table_listed"] + status["stat_hc_table_refused"]
        assert status["stat_kvmu_bytes"] == sum(d.bytes for d in moved)
        assert status["stat_wtu_fault"] == status["stat_hcu_fault"] == 0
        return record


def random_scores(rng, heads):
    """Scores of one or several rows for each of some KV heads, in random order."""

    def groups(clusters, _):
        picked = rng.permutation(heads)[: rng.integers(1, heads + 1)].tolist()
        shape = rng.integers(1, 4)
        return [Scores(head, rng.integers(0x3C00, 0x3F81, (shape, clusters))) for head in picked]

    return groups


def random_steps(bench, rng, config, steps, begin_at=()):
    for step in range(steps):
        if step in begin_at:
            bench.begin(layer=int(rng.integers(3)))
        hashes = codes(rng, int(rng.integers(1, 12)), config.hash_bits, centers=4)
        bench.step(hashes, random_scores(rng, config.kv_heads) if rng.random() < 0.7 else None)


@pytest.mark.parametrize("stall, retain", [(0.0, False), (0.4, True)], ids=["streaming", "stalled, retaining"])
def test_random_steps(stall, retain, rng, seed):
    config = Config.preset("tiny")
    bench = Bench(config, threshold=5, window=40, capacity=24, staging_units=20, retain=retain)
    random_steps(bench, rng, config, 60, begin_at=(20, 45))
    record = bench.check(stall=stall, seed=seed)
    assert {d.kind for d in bench.golden.kvmu.descriptors} == {Kind.RETAIN if retain else Kind.FETCH, Kind.OFFLOAD}
    inside = sum(record.status[f"stat_{name}"] for name in ("clustering", "selecting", "fetching"))
    assert 0 < inside < max(cycles[-1] for cycles in record.cycles.values())


def test_reset_in_mid_flight(rng, seed):
    config = Config.preset("tiny")
    bench = Bench(config, threshold=5, window=40, capacity=24)
    random_steps(bench, rng, config, 15)
    bench.check(stall=0.3, seed=seed, reset_after=700)


def video(bench, config, frames, rng):
    """Tokens of a real video: every frame is a step, every 25th and the last ask with two of their tokens' queries."""
    geometry = Geometry(layers=1, q_heads=config.q_heads, kv_heads=config.kv_heads, head_dim=config.head_dim)
    front_end = FrontEnd(FrontEndConfig(geometry=geometry, grid=5))
    dimension = config.kv_heads * config.head_dim
    planes, means = hyperplanes(dimension, config.hash_bits), Representatives(dimension)
    pages = Kvmu(KvmuConfig(config.page_tokens, 1024), config.kv_heads, config.head_dim)
    owner, selections = np.empty(0, np.int64), 0
    for n, (_, chunk) in enumerate(video_chunks(find_clip().path, front_end, max_frames=frames)):
        keys = chunk.k[0].reshape(chunk.tokens, dimension)

        def groups(clusters, assigned, n=n, chunk=chunk, keys=keys):
            means.update(keys, assigned.cluster, bench.golden.clusters.counts)
            if n % 25 and n + 1 != frames:
                return []
            found = []
            for head, rows in enumerate(query_rows(chunk.q[0][:2].astype(np.float64), config.kv_heads)):
                part = means.means[:, head * config.head_dim : (head + 1) * config.head_dim]
                found.append(Scores(head, score_codes(dots(rows, part), config.head_dim)))
            return found

        before = len(bench.golden.kvmu.extents)
        selected = bench.step(hash_codes(keys, planes), groups)
        owner = np.concatenate([owner, [beat["cluster"] for beat in bench.assigned[-chunk.tokens :]]])
        # the page table without a chip's limits fetches the same bytes, read for read
        if selected:
            selections += 1
            past = owner[: -chunk.tokens]
            wanted = pages.fetch([np.flatnonzero(chosen[past]) for chosen in selected])
            moves = [p for p in bench.golden.kvmu.extents[before:] if p.source_tier == Tier.HOST]
            assert sum(p.nbytes for p in moves) == wanted.nbytes
            starts = np.array([p.source - KVMU_BASES["host"] for p in moves], np.int64)
            assert set(wanted.extents[:, 0].tolist()) <= set(starts.tolist())
        pages.append(owner[-chunk.tokens :])
    return len(owner), selections


@pytest.mark.heavy
def test_a_real_video_of_five_thousand_tokens(rng, seed):
    """All streams pause at random. More accumulators and lanes only shorten the search."""
    config = Config.preset("paper").replace(kv_heads=2, q_heads=4, head_dim=64, hcu_lanes=32, hcu_accumulators=16)
    bench = Bench(config, window=4096, capacity=1024, staging_units=4096)
    tokens, selections = video(bench, config, 200, rng)
    assert tokens >= 5000 and selections >= 9
    fetched = sum(r.transit for r in bench.replies if r.op == Op.FETCH)
    assert fetched > 100 and not any(r.fault for r in bench.replies)
    record = bench.check(stall=0.3, seed=seed)
    print(tokens, "tokens", selections, "selections", fetched, "units", record.status)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    unit = KVPU.from_config(Config.preset(preset))
    assert to_rtlil(unit, "kvpu") and unit.timing["kvmu"]
