"""Verilog of the KVPU compared with its golden model on every stream: random steps, and tokens of a real video."""

import dataclasses

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.hashing import hash_codes, hyperplanes
from golden.hc_table import Fault
from golden.kvmu import Descriptor, Op, Reply, Tier, TransferKind
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.page_table import PageTable, PagingConfig
from golden.scores import codes as score_codes
from golden.scores import dots, query_rows
from hw.config import PRESETS, Config
from hw.dre.kvpu import KVPU
from hw.dre.kvpu import Op as HwOp
from hw.dre.wtu.command import KeyOrder, SelectionMode
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from sim.ports import hc_table_config, kvmu_config, kvpu_ports
from sw_model.media.clip import find_clip
from sw_model.media.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.media.stream import Geometry
from tests.hw.dre.test_hcu import codes
from tests.hw.dre.wtu.wtu_rows import KEYS, Settings

TABLE_BASES = {
    "cluster_records": 0x100000,
    "token_lists": 0x200000,
    "list_links": 0x300000,
    "mean_keys": 0x400000,
    "cluster_counts": 0x500000,
}
RATIO = Settings()
KVMU_BASES = {
    "page_frames": 0x1000000,
    "host_pages": 0x100000000,
    "storage_pages": 0x200000000,
    "staging": 0x300000000,
}


class Bench:
    """One unit and its golden model, step by step."""

    def __init__(
        self,
        config,
        *,
        hamming_threshold=7,
        window_tokens=0,
        max_resident_tokens=64,
        staging_head_pages=64,
        max_descriptor_bytes=0,
        offload_to_storage=False,
        selection=RATIO,
        retain=False,
        table_bases=TABLE_BASES,
        kvmu_bases=KVMU_BASES,
    ):
        self.unit = KVPU.from_config(config)
        units, kvmu = self.unit.units, self.unit.kvmu
        rule = ClusterRule(
            hamming_threshold=hamming_threshold,
            window_tokens=window_tokens,
            max_candidates=units["hcu"].max_candidates,
            max_clusters=1 << config.cluster_bits,
        )
        table = hc_table_config(self.unit.table, tuple(table_bases.values()))
        pages = kvmu_config(
            kvmu,
            bases=tuple(kvmu_bases.values()),
            staging_head_pages=staging_head_pages,
            max_resident_tokens=max_resident_tokens,
            offload_to_storage=offload_to_storage,
            max_descriptor_bytes=max_descriptor_bytes or 4096,
        )
        self.selection = selection
        self.golden = Kvpu(rule, table, pages, selection.golden(self.unit.wtu.sizes), selection.target, retain)
        self.settings = {**kvpu_ports(self.golden), **selection.ports()}
        self.compared, self.overflowed, self.overlong, self.opened, self.refused = 0, False, False, 0, []
        self.golden.table.update = self._listing(self.golden.table.update)
        self.beats, self.scores, self.assigned, self.rows, self.replies, self.steps = [], [], [], [], [], 0
        self.again = []

    def _listing(self, update):
        """`update` of the golden table that also records the refusals."""

        def listed(**fields):
            fault = update(**fields)
            self.refused += [fault] * bool(fault)
            return fault

        return listed

    def begin(self, layer=0):
        self.beats.append({"op": HwOp.BEGIN.value, "layer": layer})
        self.opened += len(self.golden.table.entries)
        self.replies += self.golden.begin(layer)

    def step(self, hashes, groups=None):
        """Add a step; `groups` makes its scores from the number of clusters after the tokens are clustered."""
        start = self.golden.clusters.tokens
        assigned, appended = self.golden.cluster(hashes)
        self.compared += int(assigned.compared.sum())
        self.overflowed |= self.golden.clusters.overflowed
        query_groups = groups(len(self.golden.table.entries), assigned) if groups else []
        as_keys, most = KEYS[self.selection.order], self.unit.wtu.sizes.max_row_clusters
        self.overlong |= any(group.keys.shape[1] > most for group in query_groups)
        scores = [HeadScores(group.head, as_keys(group.keys[:, :most])) for group in query_groups]
        rows, selected, moved = self.golden.fetch(scores)
        self.replies += appended + moved
        self.rows += rows
        self.steps += 1
        last = len(hashes) - 1
        for n, code in enumerate(hashes.tolist()):
            self.beats.append({"op": 0, "hash": code, "last": n == last, "query": bool(query_groups)})
            self.assigned.append({"token": start + n, "hash": code, "last": n == last})
            for name in ("cluster", "count", "distance", "opened", "overflow"):
                self.assigned[-1][name] = int(getattr(assigned, name)[n])
        counts = np.array([entry.count for entry in self.golden.table.entries], np.int64)
        for group, results in zip(query_groups, rows, strict=True):
            self.beats.append({"op": HwOp.SELECT.value, "head": group.head})
            for n, keys in enumerate(group.keys):
                self._row(keys, counts, n + 1 < len(group.keys), int(results.passes[n]), int(results.levels[n]))
        if query_groups:
            self.beats.append({"op": HwOp.FETCH.value})
        return selected

    def _row(self, keys, counts, join, passes, levels):
        """The packets of a row: one, or as many as a long row needs."""
        wtu = self.unit.wtu
        lanes, is_long = wtu.sizes.lanes, len(keys) > wtu.sizes.pairs
        packets = wtu.packets(passes, levels) if is_long else 1
        self.again += [int(n + 1 < packets) for n in range(packets)] if is_long else []
        counts = np.pad(counts, (0, max(0, len(keys) - len(counts))))
        for first in [*range(0, len(keys), lanes)] * packets:
            used = min(lanes, len(keys) - first)
            columns = {"words": keys[first : first + used], "counts": counts[first : first + used]}
            padded = {name: np.pad(np.asarray(values, np.int64), (0, lanes - used)) for name, values in columns.items()}
            self.scores.append(
                {**padded, "used": used, "join": join, "long": is_long, "last": first + lanes >= len(keys)}
            )

    def check(self, reset_after=0, **options):
        golden, names = self.golden, ("op", "hash", "layer", "head", "query", "last")
        inputs = {
            "i": {n: np.array([beat.get(n, 0) for beat in self.beats], np.int64) for n in names},
            "i_scores": {n: np.array([beat[n] for beat in self.scores], np.int64) for n in self.scores[0]},
        }
        moved, writes = golden.kvmu.descriptors, golden.table.writes
        outputs = {
            "o_assignment": len(self.assigned),
            "o_again": len(self.again),
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
            reset_after=reset_after,
            **options,
        )
        got = record.outputs
        for name in self.assigned[0]:
            assert got["o_assignment"][name].tolist() == [beat[name] for beat in self.assigned], name
        assert got["o_again"]["again"].tolist() == self.again
        for name in ("cutoff", "passes"):
            assert got["o_row"][name].tolist() == [int(v) for rows in self.rows for v in getattr(rows, name)], name
        for stream, want, kind in (("o", self.replies, Reply), ("o_dma", moved, Descriptor)):
            for field in dataclasses.fields(kind):
                column = [int(getattr(one, field.name)) for one in want]
                assert got[stream][field.name].tolist() == column, (stream, field.name)
        assert got["o_write"]["address"].tolist() == [address for address, _ in writes]
        assert [int(v) for v in got["o_write"]["data"]] == [int.from_bytes(value, "little") for _, value in writes]
        assert got["o_complete"]["tag"].tolist() == [reply.tag for reply in self.replies if reply.tagged]
        assert not any(got["o_complete"]["error"])
        # from the end of the last reset to where counters are read, 8 after the last beat
        begin = 2 + bool(reset_after) * (reset_after + 1)
        end = max(cycles[-1] for cycles in record.cycles.values() if len(cycles)) + 8
        self._check_counters(record.status, int(end - begin))
        return record

    def _check_counters(self, status, cycles):
        """Compare the counters; `cycles` are those from the reset to the read of the counters."""
        golden, replies, moved = self.golden, self.replies, self.golden.kvmu.descriptors
        units = [reply for reply in replies if reply.op == Op.FETCH and not reply.last]
        appended = sum(reply.op == Op.APPEND and not reply.fault for reply in replies)
        want = {
            "clusters": len(golden.table.entries),
            "stat_steps": self.steps,
            "stat_hcu_tokens": len(self.assigned),
            "stat_hcu_opened": sum(beat["opened"] for beat in self.assigned),
            "stat_hcu_compared": self.compared,
            "stat_hcu_overflow": self.overflowed,
            "stat_hcu_fault": 0,
            "stat_hc_table_tokens": len(self.assigned) - len(self.refused),
            "stat_hc_table_refused": len(self.refused),
            "stat_hc_table_faults": sum(1 << fault for fault in set(self.refused)),
            "stat_hc_table_opened": self.opened + len(golden.table.entries),
            "stat_hc_table_writes": len(golden.table.writes),
            "stat_wtu_fault": self.overlong,
            "stat_wtu_rows": sum(len(rows.cutoff) for rows in self.rows),
            "stat_wtu_clusters": sum(rows.selected.size for rows in self.rows),
            "stat_wtu_passes": sum(int(rows.passes.sum()) for rows in self.rows),
            "stat_wtu_selected": sum(int(rows.selected.sum()) for rows in self.rows),
            "stat_kvmu_appended": appended,
            "stat_kvmu_opened": sum(reply.op == Op.APPEND and not reply.fault and not reply.slot for reply in replies),
            "stat_kvmu_moved": 0,
            "stat_kvmu_freed": 0,
            "stat_kvmu_offloaded": sum(reply.op == Op.STEP and not reply.last for reply in replies),
            "stat_kvmu_hits": sum(not unit.transit for unit in units),
            "stat_kvmu_fetched": sum(unit.transit for unit in units),
            "stat_kvmu_extents": len(golden.kvmu.extents),
            "stat_kvmu_descriptors": len(moved),
            "stat_kvmu_bytes": sum(d.bytes for d in moved),
            "stat_kvmu_resident": golden.kvmu.resident_tokens,
            "stat_kvmu_faults": sum(1 << int(cause) for cause in {r.fault for r in replies} if cause),
        }
        assert {name: status[name] for name in want} == want
        # the last cycle comes too late to be read
        for unit, kinds in (
            ("hcu", ("busy", "blocked", "starved")),
            ("wtu", ("busy", "blocked", "waiting", "starved")),
        ):
            assert sum(status[f"stat_{unit}_{kind}"] for kind in kinds) == cycles - 1


def growth(record, unit):
    """Increment of each counter of `unit` in each cycle: name -> int64 (cycles,)."""
    names = (name for name in record.ports if name.startswith("stat_") and len(getattr(unit, name)) == 32)
    values = {name: record.ports[name].astype(np.int64) @ (1 << np.arange(32)) for name in names}
    return {name: np.diff(value, prepend=0) for name, value in values.items()}


def random_scores(rng, heads, order):
    """Scores of one or more rows for each of some KV heads, in random order, each row of a random kind."""

    def row(clusters):
        low, high = ((0x3C00, 0x3F81), (0, 0x7F80))[rng.integers(2)]
        some = rng.integers(low, high, clusters)
        words = (some, rng.choice(some, clusters), np.full(clusters, some[0]), some * (some == some[0]))[
            rng.integers(4)
        ]
        return words | (rng.integers(0, 2, clusters) << 15 if order is KeyOrder.SIGNED else 0)

    def groups(clusters, _):
        picked = rng.permutation(heads)[: rng.integers(1, heads + 1)].tolist()
        return [HeadScores(head, np.array([row(clusters) for _ in range(rng.integers(1, 4))])) for head in picked]

    return groups


def random_steps(bench, rng, config, steps, begin_at=()):
    scores = random_scores(rng, config.kv_heads, bench.selection.order)
    for step in range(steps):
        if step in begin_at:
            bench.begin(layer=int(rng.integers(bench.unit.kvmu.layers)))
        hashes = codes(rng, int(rng.integers(1, 12)), config.hash_bits, centers=4)
        bench.step(hashes, scores if rng.random() < 0.7 else None)


def anywhere(rng):
    """Base addresses of all regions, far apart in the address space."""
    tables, pages = (rng.integers(0, (1 << 48) - (1 << 24), len(areas)).tolist() for areas in (TABLE_BASES, KVMU_BASES))
    return {
        "table_bases": {name: base & ~15 for name, base in zip(TABLE_BASES, tables, strict=True)},
        "kvmu_bases": dict(zip(KVMU_BASES, pages, strict=True)),
    }


CASES = {  # stall, settings
    "streaming": (0.0, {}),
    "stalled, retaining": (InTurns(0.4, 512), {"retain": True, "selection": Settings(target=40000, refine=3)}),
    "budget, storage": (
        InTurns(0.4, 512),
        {"selection": Settings(SelectionMode.BUDGET, KeyOrder.SIGNED, 30, 3), "offload_to_storage": True},
    ),
    "count of the smallest": (
        InTurns(0.4, 512),
        {"selection": Settings(SelectionMode.COUNT, KeyOrder.REVERSED, 5), "max_descriptor_bytes": 100},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_random_steps(name, rng, seed):
    config, (stall, settings) = Config.preset("tiny"), CASES[name]
    bench = Bench(
        config,
        hamming_threshold=5,
        window_tokens=40,
        max_resident_tokens=24,
        staging_head_pages=20,
        **settings,
        **anywhere(rng),
    )
    bench.begin(layer=int(rng.integers(bench.unit.kvmu.layers)))
    random_steps(bench, rng, config, 90, begin_at=(*range(3, 30, 3), 45, 60))
    record = bench.check(stall=stall, seed=seed)
    kinds = {TransferKind.RETAIN if settings.get("retain") else TransferKind.FETCH, TransferKind.OFFLOAD}
    assert {d.kind for d in bench.golden.kvmu.descriptors} == kinds
    inside = [record.status[f"stat_{name}"] for name in ("clustering", "selecting", "fetching")]
    assert all(inside) and sum(inside) < max(cycles[-1] for cycles in record.cycles.values() if len(cycles))


def test_counters_grow_event_by_event(rng, seed):
    """In every cycle each counter stays or grows by one event; counters of waits agree with the handshake."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=24)
    bench.begin()
    random_steps(bench, rng, config, 8, begin_at=(4,))
    record = bench.check(stall=0.4, seed=seed, record_ports=True)
    grown = growth(record, bench.unit)
    many = ("hcu_compared", "kvmu_bytes", "wtu_clusters", "wtu_passes", "wtu_selected")
    most = {f"stat_{name}": 1 << 12 for name in many}
    for name, events in grown.items():
        assert events.min() >= 0 and events.max() <= most.get(name, 1), name
    shown = {name: value[:, 0].astype(bool) for name, value in record.ports.items() if value.shape[1]}
    for name, port in (("kvmu_blocked_dma", "o_dma"), ("hc_table_blocked_write", "o_write")):
        waits = shown[f"{port}__valid"] & ~shown[f"{port}__ready"]
        assert grown[f"stat_{name}"].sum() == waits.sum() > 0, name


@pytest.mark.parametrize("retain", [False, True])
def test_small_steps(retain, rng, seed):
    """Steps of one or two tokens of few clusters, layer after layer."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=12, retain=retain)
    scores, few = random_scores(rng, config.kv_heads, KeyOrder.PLAIN), rng.integers(0, 1 << config.hash_bits, 3)
    for step in range(80):
        if step % 8 == 0:
            bench.begin(layer=step // 8 % bench.unit.kvmu.layers)
        bench.step(rng.choice(few, rng.integers(1, 3)), scores if rng.random() < 0.5 else None)
    bench.check(stall=InTurns(0.4, 128), seed=seed)


def test_more_clusters_than_there_is_room_for(rng, seed):
    """Nearly every token opens a cluster; refused updates and rows that are too long are counted with their causes."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=1, window_tokens=12, max_resident_tokens=60)
    scores = random_scores(rng, config.kv_heads, KeyOrder.PLAIN)
    for step in range(40):
        if step % 10 == 0:
            bench.begin()
        bench.step(rng.integers(0, 1 << config.hash_bits, 11), scores if step % 10 == 3 else None)

    def beyond(clusters, _):
        return [HeadScores(0, rng.integers(0x3C00, 0x3F81, (1, clusters + 1)))]

    bench.step(rng.integers(0, 1 << config.hash_bits, 1), beyond)
    assert set(bench.refused) == {Fault.CLUSTER} and len(bench.golden.table.entries) == bench.unit.table.max_clusters
    bench.check(seed=seed)


def test_over_a_thousand_tokens(rng, seed):
    """Few clusters of many tokens, layer after layer."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=17, max_resident_tokens=60)
    scores = random_scores(rng, config.kv_heads, KeyOrder.PLAIN)
    for step in range(140):
        if step % 10 == 0:
            bench.begin(layer=step // 10 % bench.unit.kvmu.layers)
        bench.step(codes(rng, 11, config.hash_bits, centers=4), scores if step % 10 == 3 else None)
    record = bench.check(seed=seed)
    assert record.status["stat_kvmu_appended"] > 1024


def everything(head):
    """Equal scores for this head: every cluster is selected."""
    return lambda clusters, _: [HeadScores(head, np.full((1, clusters), 0x3F80))]


def test_full_device_memory(seed):
    """All page frames are full with tokens of one cluster, and all tokens stay in device memory."""
    config = Config.preset("tiny")
    room = config.page_frames * config.page_tokens
    bench = Bench(config, hamming_threshold=17, max_resident_tokens=room)
    for _ in range(room // 8):
        bench.step(np.zeros(8, np.int64), everything(1))
    assert bench.golden.kvmu.resident_tokens == room
    bench.check(seed=seed)


def test_many_lists(rng, seed):
    """A dozen short lists in a step, heads in any order, while the KVMU waits to tell of places: until no more of them
    fit before it; each list's clusters are marked for its own head."""
    config = Config.preset("tiny")
    bench, few = (
        Bench(config, hamming_threshold=1, max_resident_tokens=4, staging_head_pages=128),
        rng.integers(0, 1 << config.hash_bits, 4),
    )

    def lists(clusters, _):
        heads = rng.integers(config.kv_heads, size=12).tolist()
        return [HeadScores(head, rng.integers(0x3C00, 0x3F81, (1, clusters))) for head in heads]

    for _ in range(12):
        bench.step(rng.choice(few, 3), lists)
    bench.check(stall={"o": 0.997}, seed=seed)


def test_thousands_of_transfers_and_of_waits(rng, seed):
    """Every step fetches a head page of every page while replies wait long; all descriptors are compared."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=4, staging_head_pages=128)
    while len(bench.golden.kvmu.extents) <= 1 << 12:
        if bench.golden.clusters.tokens > 200:
            bench.begin()
        bench.step(codes(rng, 5, config.hash_bits, centers=4), everything(0))
    record = bench.check(stall={"o": 0.9}, seed=seed)
    assert (
        1 << 14
        < record.status["stat_kvmu_blocked_reply"]
        < max(cycles[-1] for cycles in record.cycles.values() if len(cycles))
    )


def test_cycles_are_those_recorded():
    """Recorded cycles to the last beat and of each phase, with and without pauses, detect changes of the timing."""
    config, totals = Config.preset("tiny"), []
    for n, stall in enumerate((0.0, 0.3)):
        rng = np.random.default_rng(n)
        bench = Bench(config, hamming_threshold=5, window_tokens=40, max_resident_tokens=24, staging_head_pages=20)
        bench.begin()
        random_steps(bench, rng, config, 40, begin_at=(7, 20))
        record = bench.check(stall=stall, seed=n)
        phases = [record.status[f"stat_{name}"] for name in ("clustering", "selecting", "fetching", "kvmu_waiting")]
        totals.append((max(int(cycles[-1]) for cycles in record.cycles.values() if len(cycles)), *phases))
    assert totals == [(10548, 5274, 3398, 1727, 0), (8528, 4431, 2642, 1291, 18)]


def test_reset_in_mid_flight(rng, seed):
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, window_tokens=40, max_resident_tokens=24)
    random_steps(bench, rng, config, 15)
    bench.check(stall=0.3, seed=seed, reset_after=700)


def video(bench, config, frames, rng):
    """Tokens of a real video: every frame is a step; every 25th and the last frame select with two queries."""
    geometry = Geometry(layers=1, q_heads=2 * config.kv_heads, kv_heads=config.kv_heads, head_dim=config.head_dim)
    front_end = FrontEnd(FrontEndConfig(geometry=geometry, grid=5))
    dimension = config.kv_heads * config.head_dim
    planes, means = hyperplanes(dimension, config.hash_bits), MeanKeys(dimension)
    pages = PageTable(PagingConfig(config.page_tokens, 1024), config.kv_heads, config.head_dim)
    owner, selections = np.empty(0, np.int64), 0
    for n, (_, chunk) in enumerate(video_chunks(find_clip().path, front_end, max_frames=frames)):
        keys = chunk.k[0].reshape(chunk.tokens, dimension)

        def groups(clusters, assigned, n=n, chunk=chunk, keys=keys):
            means.update(keys, assigned.cluster, bench.golden.clusters.counts)
            if n % 25 and n + 1 != frames:
                return []
            scores = []
            for head, rows in enumerate(query_rows(chunk.q[0][:2].astype(np.float64), config.kv_heads)):
                part = means.means[:, head * config.head_dim : (head + 1) * config.head_dim]
                scores.append(HeadScores(head, score_codes(dots(rows, part), config.head_dim)))
            return scores

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
            starts = np.array([p.source - KVMU_BASES["host_pages"] for p in moves], np.int64)
            assert set(wanted.extents[:, 0].tolist()) <= set(starts.tolist())
        pages.append(owner[-chunk.tokens :])
    return len(owner), selections


@pytest.mark.heavy
def test_a_real_video_of_five_thousand_tokens(rng, seed):
    """All streams pause at random. More accumulators and lanes shorten the search and do not change the result."""
    config = Config.preset("paper").replace(kv_heads=2, head_dim=64, hcu_lanes=32, hcu_accumulators=16)
    bench = Bench(config, window_tokens=4096, max_resident_tokens=1024, staging_head_pages=4096)
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


def test_tables_emptied_while_an_entry_waits(rng, seed):
    """Steps of one token, followed directly by BEGIN, while `o_write` stalls for a long time."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=4, max_resident_tokens=16)
    for _ in range(20):
        for _ in range(3):
            bench.step(rng.integers(0, 1 << config.hash_bits, 1))
        bench.begin()
    bench.step(rng.integers(0, 1 << config.hash_bits, 1), everything(0))
    bench.check(stall={"o_write": 0.95}, seed=seed)
