"""Verilog of the KVPU compared with its golden model on every stream and in memory: random steps of many contexts."""

import dataclasses
from functools import cache

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.hashing import hash_codes, hyperplanes
from golden.kvmu import Command, Descriptor, Fault, Op, Reply, Tier, TransferKind
from golden.kvpu import HeadScores, Kvpu
from golden.mean_keys import MeanKeys
from golden.page_table import PageTable, PagingConfig
from golden.scores import codes as score_codes
from golden.scores import dots, query_rows
from golden.store import ContextSizes, check, create_context, create_store, store_bytes
from golden.store.layout import RESIDENT
from hw.config import PRESETS, Config
from hw.dre.kvmu.command import Fault as HwFault
from hw.dre.kvpu import KVPU
from hw.dre.kvpu import Op as HwOp
from hw.dre.wtu.command import KeyOrder, SelectionMode
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from sim.ports.kvmu import kvmu_config, store_sizes
from sim.ports.kvpu import kvpu_ports
from sw_model.media.clip import find_clip
from sw_model.media.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.media.stream import Geometry
from tests.hw.dre.test_hcu import codes
from tests.hw.dre.wtu.wtu_rows import KEYS, Row, Settings, packets

RATIO = Settings()
FRAMES, STAGING, HOST, STORAGE = 0x1000000, 0x300000000, 0x100000000, 0x200000000
BASE = 0x1000  # of the store
COMMAND = (
    "op", "hash", "query", "last", "context", "head", "cluster", "first_pages", "last_pages", "count", "page", "slot",
    "opened",
)  # fmt: skip


unit_of = cache(KVPU.from_config)  # a unit is elaborated once


class Bench:
    """One unit and its golden model, step by step, on a store with some contexts."""

    def __init__(
        self,
        config,
        *,
        contexts=3,
        hamming_threshold=7,
        window_tokens=0,
        max_cluster_tokens=65535,
        max_resident_tokens=64,
        staging_head_pages=64,
        max_descriptor_bytes=0,
        offload_to_storage=False,
        selection=RATIO,
        retain=False,
        sizes=None,
        log_entries=512,
    ):
        self.config, self.unit, self.selection = config, unit_of(config), selection
        kvmu = self.unit.kvmu
        shared = store_sizes(kvmu, contexts=contexts + 1, page_frames=config.page_frames, log_entries=log_entries)
        each = sizes or ContextSizes(max_clusters=config.max_clusters, max_pages=config.max_pages)
        self.memory = np.zeros(BASE + store_bytes(shared, [each] * contexts), np.uint8)
        self.store = create_store(self.memory, BASE, shared)
        stride = -(-each.max_pages * kvmu.sizes.page_bytes // 4096) * 4096
        base = BASE + shared.nbytes
        for n in range(contexts):  # the last entry of the table of contexts is absent
            backing = {"host_base": HOST + n * stride, "storage_base": STORAGE + n * stride}
            create_context(self.store, n, each, base + n * each.nbytes(shared), **backing)
        self.before = self.memory.copy()
        rule = ClusterRule(
            hamming_threshold=hamming_threshold,
            window_tokens=window_tokens,
            max_cluster_tokens=max_cluster_tokens,
            max_candidates=self.unit.hcu.max_candidates,
            max_clusters=1 << config.cluster_bits,
        )
        pages = kvmu_config(
            kvmu,
            page_frames_base=FRAMES,
            staging_base=STAGING,
            staging_head_pages=staging_head_pages,
            max_resident_tokens=max_resident_tokens,
            offload_to_storage=offload_to_storage,
            max_descriptor_bytes=max_descriptor_bytes or 4096,
        )
        wtu = selection.golden(self.unit.wtu.sizes)
        self.golden = Kvpu(rule, pages, self.memory, BASE, wtu, selection.target, retain)
        self.settings = {**kvpu_ports(self.golden), **selection.ports()}
        self.compared, self.overflowed, self.dropped = 0, False, False
        self.beats, self.rows, self.assigned, self.results, self.replies, self.steps = [], [], [], [], [], 0
        self.kept = []  # bitmap of each KEEP, with its position in the rows
        self.freed = 0  # pages that a MOVE has left without tokens

    @property
    def clusters(self):
        """Clusters of the open context."""
        return int(self.golden.context.header["clusters"])

    def open(self, number):
        self.beats.append({"op": HwOp.OPEN.value, "context": number})
        self.replies += self.golden.open(number)
        self.dropped |= self.golden.clusters.dropped
        return self.replies[-1]

    def step(self, hashes, groups=None, release=None, norms=None, moves=None):
        """Add a step; `groups` makes its scores from the number of clusters after the tokens are clustered.

        `release` makes the cluster and the numbers of its first and last pages that remain after the step, likewise.
        `norms` are those of all tokens of the step, of which as many are kept as there are hash codes.
        `moves` makes the fields of one MOVE after the other from the open context; they follow `release`.
        """
        if norms is not None:
            kept, lanes = self.golden.keep(norms, len(hashes)), self.unit.wtu.sizes.lanes
            self.beats.append({"op": HwOp.KEEP.value, "count": len(hashes)})
            self.kept.append((len(self.rows), np.pad(kept.selected[0], (0, -len(norms) % lanes)).reshape(-1, lanes)))
            self.rows.append(Row(norms, np.full(len(norms), self.golden.rule.max_cluster_tokens)))  # must not matter
            self.results.append(kept)
        start = self.golden.clusters.tokens
        assigned, appended = self.golden.cluster(hashes)
        self.compared += int(assigned.compared.sum())
        self.overflowed |= self.golden.clusters.overflowed
        query_groups = groups(self.clusters, assigned) if groups else []
        last = len(hashes) - 1
        for n, code in enumerate(hashes.tolist()):
            query = bool(query_groups)
            self.beats.append({"op": HwOp.CODE.value, "hash": code, "last": n == last, "query": query})
            self.assigned.append({"token": start + n, "hash": code, "last": n == last})
            for name in ("cluster", "count", "distance", "opened", "overflow"):
                self.assigned[-1][name] = int(getattr(assigned, name)[n])
        self.replies += appended
        if query_groups:
            self.replies.append(Reply(Op.SYNC, last=1))
        as_keys = KEYS[self.selection.order]
        counts = self.golden.context.counts[: self.clusters].copy()
        for group in query_groups:
            self.beats.append({"op": HwOp.SELECT.value, "head": group.head})
            self.rows += [Row(keys, counts, n + 1 < len(group.keys)) for n, keys in enumerate(group.keys)]
        scores = [HeadScores(group.head, as_keys(group.keys)) for group in query_groups]
        if query_groups:
            self.beats.append({"op": HwOp.FETCH.value})
        rows, selected, moved = self.golden.retrieve(scores) if scores else ([], [], [])
        self.replies += moved
        if release:
            cluster, first, last = release(self.clusters)
            pages = {"first_pages": first, "last_pages": last}
            self.beats.append({"op": HwOp.RELEASE.value, "cluster": cluster, **pages})
            self.replies += self.golden.kvmu.execute(Command(Op.EVICT, cluster=cluster, index=first, page=last))
        for fields in moves(self.golden.context) if moves else ():
            self.move(fields)
        self.beats.append({"op": HwOp.STEP.value})
        self.replies += self.golden.commit()
        self.results += rows
        self.steps += 1
        return selected

    def move(self, fields):
        """Add a MOVE with these fields."""
        header = self.golden.context.header
        before = int(header["free_count"])
        self.beats.append({"op": HwOp.MOVE.value, **fields})
        (reply,) = self.golden.kvmu.execute(Command(Op.MOVE, **fields))
        self.replies.append(reply)
        if not reply.fault:  # a token that opens a page takes a free one
            self.freed += int(header["free_count"]) - before + (not reply.slot and before > 0)

    def longest(self, clusters):
        """Fields of a RELEASE of all pages of the cluster that has most."""
        return max(range(clusters), key=lambda cluster: len(self.golden.context.chain(cluster))), 0, 0

    def packets(self):
        """Packets of each score row: a row that does not fit the memory of the WTU is read again."""
        wtu = self.unit.wtu
        passes, levels = (
            [int(value) for rows in self.results for value in getattr(rows, name)] for name in ("passes", "levels")
        )
        return [
            wtu.packets(*read) if len(row.words) > wtu.sizes.pairs else 1
            for row, *read in zip(self.rows, passes, levels, strict=True)
        ]

    def outputs(self):
        """Beats of each output stream."""
        return {
            "o_again": sum(times for times in self.packets() if times > 1),
            "o_assignment": len(self.assigned),
            "o_row": sum(len(rows.cutoff) for rows in self.results),
            "o_kept": sum(len(masks) for _, masks in self.kept),
            "o": len(self.replies),
            "o_dma": len(self.golden.kvmu.descriptors),
            "o_complete": sum(reply.tagged for reply in self.replies),
        }

    def simulate(self, **options):
        """Run the unit on all beats."""
        repeats = self.packets() or [1]
        scores = packets(self.unit.wtu.sizes, self.rows or [Row(np.zeros(1), np.zeros(1))], repeats)
        row_of_beat = np.repeat(np.arange(len(repeats)), repeats)[np.cumsum(scores["last"]) - scores["last"]]
        inputs = {
            "i": {n: np.array([beat.get(n, 0) for beat in self.beats], np.int64) for n in COMMAND},
            "i_scores": scores | {"keep": np.isin(row_of_beat, [row for row, _ in self.kept]).astype(np.int64)},
        }
        if not self.rows:
            inputs["i_scores"] = {name: column[:0] for name, column in inputs["i_scores"].items()}
        options.setdefault("memory", self.before)
        options.setdefault("timeout_cycles", 200_000)
        outputs = options.pop("outputs", self.outputs())
        return simulate(self.unit, "kvpu", inputs, outputs, config=self.settings, echo={"i_done": "o_dma"}, **options)

    def check(self, **options):
        record = self.simulate(**options)
        got, moved = record.outputs, self.golden.kvmu.descriptors
        for name in self.assigned[0] if self.assigned else ():
            assert got["o_assignment"][name].tolist() == [beat[name] for beat in self.assigned], name
        for name in ("cutoff", "passes"):
            assert got["o_row"][name].tolist() == [int(v) for rows in self.results for v in getattr(rows, name)], name
        for stream, want, kind in (("o", self.replies, Reply), ("o_dma", moved, Descriptor)):
            for field in dataclasses.fields(kind):
                column = [int(getattr(one, field.name)) for one in want]
                if field.name == "fault":
                    column = [HwFault[Fault(cause).name].value for cause in column]
                assert got[stream][field.name].tolist() == column, (stream, field.name)
        masks = np.concatenate([masks for _, masks in self.kept] or [np.zeros((0, self.unit.wtu.sizes.lanes), bool)])
        bits = got["o_kept"]["mask"].astype(np.int64)[:, None] >> np.arange(masks.shape[1]) & 1
        assert np.array_equal(bits, masks)
        assert got["o_kept"]["last"].tolist() == [n + 1 == len(own) for _, own in self.kept for n in range(len(own))]
        assert got["o_complete"]["tag"].tolist() == [reply.tag for reply in self.replies if reply.tagged]
        self.compare(record.memory["image"])
        self._check_counters(record.status)
        return record

    def compare(self, image):
        """The store in memory equals that of the golden model, except the undo log."""
        want, got = self.memory.copy(), image.copy()
        start = int(self.store.header["log_base"]) * 128
        want[start : start + self.store.log.size] = got[start : start + self.store.log.size] = 0
        difference = np.flatnonzero(want != got)
        assert not len(difference), f"memory differs from byte {difference[0]:#x} on, in {len(difference)} bytes"
        released = any(reply.op == Op.EVICT and not reply.last for reply in self.replies)
        check(self.store, max_cluster_tokens=self.golden.rule.max_cluster_tokens, complete=not released)

    def _check_counters(self, status):
        """Compare the counters."""
        golden, replies, moved = self.golden, self.replies, self.golden.kvmu.descriptors
        units = [reply for reply in replies if reply.op == Op.SELECT and not reply.last]
        stored, moved_tokens = (
            [reply for reply in replies if reply.op == op and not reply.fault] for op in (Op.APPEND, Op.MOVE)
        )
        want = {
            "clusters": self.clusters,
            "stat_steps": self.steps,
            "stat_hcu_tokens": len(self.assigned),
            "stat_hcu_opened": sum(beat["opened"] for beat in self.assigned),
            "stat_hcu_compared": self.compared,
            "stat_hcu_overflow": self.overflowed,
            "stat_hcu_fault": self.dropped,
            "stat_wtu_fault": 0,
            "stat_wtu_rows": sum(len(rows.cutoff) for rows in self.results),
            "stat_wtu_clusters": sum(rows.selected.size for rows in self.results),
            "stat_wtu_passes": sum(int(rows.passes.sum()) for rows in self.results),
            "stat_wtu_selected": sum(int(rows.selected.sum()) for rows in self.results),
            "stat_kvmu_appended": len(stored),
            "stat_kvmu_opened": sum(not reply.slot for reply in [*stored, *moved_tokens]),
            "stat_kvmu_moved": len(moved_tokens),
            "stat_kvmu_freed": self.freed + sum(reply.op == Op.EVICT and not reply.last for reply in replies),
            "stat_kvmu_offloaded": sum(reply.op == Op.STEP and not reply.last for reply in replies),
            "stat_kvmu_hits": sum(not unit.transit for unit in units),
            "stat_kvmu_fetched": sum(unit.transit for unit in units),
            "stat_kvmu_extents": len(golden.kvmu.extents),
            "stat_kvmu_descriptors": len(moved),
            "stat_kvmu_bytes": sum(d.bytes for d in moved),
            "stat_kvmu_resident": golden.kvmu.resident_tokens,
            "stat_kvmu_faults": sum(
                1 << HwFault[Fault(cause).name].value for cause in {r.fault for r in replies} if cause
            ),
        }
        assert {name: status[name] for name in want} == want


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


def random_norms(rng, kept):
    """Norms of up to 20 tokens more than are kept, often with equal ones."""
    norms = rng.integers(0, 0x7F80, kept + rng.integers(21))
    return rng.choice(norms[: 1 + len(norms) // 4], len(norms)) if rng.random() < 0.5 else norms


def random_moves(rng, config):
    """Up to three MOVEs of tokens of random pages, also of those that cannot be moved, to old and new clusters."""

    def moves(context):
        for _ in range(rng.integers(1, 4)):
            clusters, pages = (int(context.header[name]) for name in ("clusters", "never_used"))
            resident = np.flatnonzero(context.pages["flags"][:pages] & RESIDENT)
            page = int(rng.choice(resident) if len(resident) and rng.random() < 0.8 else rng.integers(pages + 1))
            live = [slot for slot in range(config.page_tokens) if int(context.pages[page]["live"]) >> slot & 1]
            slot = int(rng.choice(live) if live and rng.random() < 0.9 else rng.integers(config.page_tokens))
            opened = int(rng.random() < 0.3 and clusters < config.max_candidates)
            cluster = clusters if opened else int(rng.integers(clusters + 1))
            code = int(rng.integers(1 << config.hash_bits)) * opened
            yield {"page": page, "slot": slot, "cluster": cluster, "opened": opened, "hash": code}

    return moves


def random_steps(bench, rng, config, steps, contexts=(), most=12, moves=None):
    """Random steps, each in a random context. Half of them call `moves`; then another context follows."""
    scores = random_scores(rng, config.kv_heads, bench.selection.order)

    def release(clusters):
        return int(rng.integers(clusters)), *rng.integers(2, size=2).tolist()

    context, moved = -1, False
    for _ in range(steps):
        if len(contexts):
            # the HCU learns of moves when another context is opened
            context = int(rng.choice([n for n in contexts if n != context] if moved else contexts))
            bench.open(context)
        hashes = codes(rng, int(rng.integers(1, most)), config.hash_bits, centers=4)
        some, others = scores if rng.random() < 0.7 else None, release if rng.random() < 0.3 else None
        norms = random_norms(rng, len(hashes)) if rng.random() < 0.3 else None
        moved = moves is not None and rng.random() < 0.5
        bench.step(hashes, some, others, norms, moves if moved else None)


CASES = {  # stall, settings
    "streaming": (0.0, {}),
    "stalled, retaining": (0.3, {"retain": True, "selection": Settings(target=40000, refine=3)}),
    "budget, storage": (
        0.3,
        {"selection": Settings(SelectionMode.BUDGET, KeyOrder.SIGNED, 30, 3), "offload_to_storage": True},
    ),
    "count of the smallest": (
        0.3,
        {"selection": Settings(SelectionMode.COUNT, KeyOrder.REVERSED, 5), "max_descriptor_bytes": 100},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_random_steps_of_three_contexts(name, rng, seed):
    config, (stall, settings) = Config.preset("tiny"), CASES[name]
    bench = Bench(
        config,
        hamming_threshold=5,
        window_tokens=40,
        max_resident_tokens=24,
        staging_head_pages=24,
        **settings,
    )
    random_steps(bench, rng, config, 60, contexts=range(3))
    bench.step(codes(rng, 1, config.hash_bits), release=bench.longest)  # random releases may meet no page
    record = bench.check(stall=stall, seed=seed, memory_latency=(1, 20))
    kinds = {TransferKind.RETAIN if settings.get("retain") else TransferKind.FETCH, TransferKind.OFFLOAD}
    assert {d.kind for d in bench.golden.kvmu.descriptors} == kinds
    assert any(reply.op == Op.EVICT and not reply.last for reply in bench.replies)
    phases = [record.status[f"stat_{name}"] for name in ("opening", "clustering", "selecting", "ending")]
    assert all(phases)


def test_clusters_that_the_table_of_the_hcu_cannot_hold(seed):
    """After refused APPENDs a context has fewer tokens than the HCU has clustered. Its window can then contain more
    clusters than the HCU holds; OPEN loads the oldest ones, and `stat_hcu_fault` is 1."""
    config, rng = Config.preset("tiny"), np.random.default_rng(408461403)  # of steps that lead there
    bench = Bench(config, hamming_threshold=5, window_tokens=40, max_resident_tokens=24, staging_head_pages=24)
    random_steps(bench, rng, config, 21, contexts=range(3))
    assert bench.dropped
    bench.check(stall=0.3, seed=seed, memory_latency=(1, 20))


@pytest.mark.parametrize("name", [pytest.param("streaming", marks=pytest.mark.heavy), "stalled, retaining"])
def test_random_moves(name, rng, seed):
    """Tokens move between clusters, to new ones too, in steps with and without fetches. All clusters are candidates."""
    config, (stall, settings) = Config.preset("tiny"), CASES[name]
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=24, staging_head_pages=24, **settings)
    random_steps(bench, rng, config, 40, contexts=range(3), moves=random_moves(rng, config))
    bench.check(stall=stall, seed=seed, memory_latency=(1, 20))
    assert TransferKind.MOVE in {d.kind for d in bench.golden.kvmu.descriptors}
    faults = {Fault(reply.fault) for reply in bench.replies if reply.op == Op.MOVE}
    assert Fault.NONE in faults and len(faults) > 1 and bench.freed


def everything(head):
    """Equal scores for this head: every cluster is selected."""
    return lambda clusters, _: [HeadScores(head, np.full((1, clusters), 0x3F80))]


def growth(record, unit):
    """Increment of each counter of `unit` in each cycle: name -> int64 (cycles,)."""
    names = (name for name in record.ports if name.startswith("stat_") and len(getattr(unit, name)) == 32)
    values = {name: record.ports[name].astype(np.int64) @ (1 << np.arange(32)) for name in names}
    return {name: np.diff(value, prepend=0) for name, value in values.items() if name != "stat_kvmu_resident"}


def test_counters_grow_event_by_event(rng, seed):
    """In every cycle each counter stays or grows by one event; the counter of waits agrees with the handshake."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=4)
    random_steps(bench, rng, config, 8, contexts=range(2))
    bench.step(codes(rng, 11, config.hash_bits, centers=4), everything(0))  # at least three pages leave
    assert len(bench.golden.kvmu.descriptors) >= 6
    streams = [name for name, member in bench.unit.signature.members.items() if member.is_signature]
    record = bench.check(stall=dict.fromkeys(streams, 0.4) | {"o_dma": 0.9}, seed=seed, record_ports=True)
    grown = growth(record, bench.unit)
    many = ("hcu_compared", "kvmu_bytes", "wtu_clusters", "wtu_passes", "wtu_selected")
    most = {f"stat_{name}": 1 << 12 for name in many}
    for name, events in grown.items():
        assert events.min() >= 0 and events.max() <= most.get(name, 1), name
    shown = {name: value[:, 0].astype(bool) for name, value in record.ports.items() if value.shape[1]}
    waits = shown["o_dma__valid"] & ~shown["o_dma__ready"]
    assert grown["stat_kvmu_blocked_dma"].sum() == waits.sum() > 0


@pytest.mark.parametrize("retain", [False, True])
def test_small_steps(retain, rng, seed):
    """Steps of one or two tokens of few clusters, context after context."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=8, retain=retain)
    scores, few = random_scores(rng, config.kv_heads, KeyOrder.PLAIN), rng.integers(0, 1 << config.hash_bits, 3)
    for step in range(60):
        if step % 6 == 0:
            bench.open(step // 6 % 3)
        bench.step(rng.choice(few, rng.integers(1, 3)), scores if rng.random() < 0.5 else None)
    bench.check(stall=InTurns(0.4, 128), seed=seed)


def test_over_a_thousand_tokens(rng, seed):
    """Few clusters of many tokens in six contexts."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=17, max_resident_tokens=32, contexts=6)
    scores = random_scores(rng, config.kv_heads, KeyOrder.PLAIN)
    for step in range(100):
        if step % 5 == 0:
            bench.open(step // 5 % 6)
        bench.step(codes(rng, 11, config.hash_bits, centers=4), scores if step % 10 == 3 else None)
    record = bench.check(seed=seed)
    assert record.status["stat_kvmu_appended"] + record.status["stat_kvmu_faults"] > 1000


def test_many_lists(rng, seed):
    """A dozen short lists in a step, heads in any order, while the replies of the KVMU wait long."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=1, max_resident_tokens=4, staging_head_pages=128)
    few = rng.integers(0, 1 << config.hash_bits, 4)

    def lists(clusters, _):
        heads = rng.integers(config.kv_heads, size=12).tolist()
        return [HeadScores(head, rng.integers(0x3C00, 0x3F81, (1, clusters))) for head in heads]

    bench.open(0)
    for _ in range(12):
        bench.step(rng.choice(few, 3), lists)
    bench.check(stall={"o": 0.997}, seed=seed)


def test_thousands_of_transfers_and_of_waits(rng, seed):
    """Every step fetches a head page of every page while replies wait long; all descriptors are compared."""
    config = Config.preset("tiny")
    bench = Bench(config, contexts=40, hamming_threshold=5, max_resident_tokens=4, staging_head_pages=128)
    context = -1
    while len(bench.golden.kvmu.extents) <= 1 << 12:
        if context < 0 or bench.golden.clusters.tokens > 200:
            context += 1
            bench.open(context)
        bench.step(codes(rng, 5, config.hash_bits, centers=4), everything(0))
    record = bench.check(stall={"o": 0.97}, seed=seed, timeout_cycles=2_000_000)
    ends = [cycles[-1] for cycles in record.cycles.values() if len(cycles)]
    assert 1 << 14 < record.status["stat_kvmu_blocked_reply"] < max(ends)


def test_cycles_are_those_recorded():
    """Recorded cycles to the last beat and of each phase, with and without pauses, detect changes of the timing."""
    config, totals = Config.preset("tiny"), []
    for n, stall in enumerate((0.0, 0.3)):
        rng = np.random.default_rng(n)
        bench = Bench(config, hamming_threshold=5, window_tokens=40, max_resident_tokens=24, staging_head_pages=24)
        random_steps(bench, rng, config, 40, contexts=range(3))
        record = bench.check(stall=stall, seed=n)
        phases = [record.status[f"stat_{name}"] for name in ("opening", "clustering", "selecting", "ending")]
        totals.append((max(int(cycles[-1]) for cycles in record.cycles.values() if len(cycles)), *phases))
    assert totals == [(63407, 20984, 19103, 17337, 23098), (40988, 15874, 11412, 8255, 14899)]


def test_kept_tokens_of_long_steps(rng, seed):
    """Steps with more norms than the memory of the WTU holds, one after another and before score rows."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=24)
    pairs, longest = bench.unit.wtu.sizes.pairs, bench.unit.wtu.sizes.max_row_clusters
    scores = random_scores(rng, config.kv_heads, KeyOrder.PLAIN)
    bench.open(0)
    for length, some in ((pairs + 1, None), (longest, scores), (5, scores), (2 * pairs, None), (pairs, scores)):
        norms = rng.choice(rng.integers(0, 0x7F80, 8), length)
        bench.step(codes(rng, 5, config.hash_bits, centers=4), some, norms=norms)
    assert bench.outputs()["o_again"] > 3
    bench.check(stall=0.3, seed=seed)


def test_full_device_memory(seed):
    """All page frames are full with tokens of one cluster, and all tokens stay in device memory."""
    config = Config.preset("tiny")
    room = config.page_frames * config.page_tokens
    bench = Bench(config, hamming_threshold=17, max_resident_tokens=room)
    bench.open(0)
    for _ in range(room // 8):
        bench.step(np.zeros(8, np.int64), everything(1))
    assert bench.golden.kvmu.resident_tokens == room
    bench.check(seed=seed)


def test_full_page_frames_and_pages_are_refused(rng, seed):
    """Tokens that open more pages than there are page frames or pages are refused with the cause of the KVMU."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=0, max_resident_tokens=4, sizes=ContextSizes(64, 24))
    bench.open(1)
    for first in range(0, 40, 5):
        bench.step(np.arange(first, first + 5) * 0x0101)
    bench.open(2)
    bench.step(np.arange(20) * 0x0101)
    causes = {Fault(reply.fault).name for reply in bench.replies if reply.fault}
    assert causes == {"NO_PAGE", "NO_PAGE_FRAME", "CLUSTER"} or causes == {"NO_PAGE", "NO_PAGE_FRAME"}
    bench.check(stall=0.2, seed=seed)


def test_absent_context_is_refused(rng, seed):
    """OPEN of an absent context leaves no context open; the next OPEN of a present one succeeds."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, max_resident_tokens=24)
    random_steps(bench, rng, config, 3, contexts=range(3))
    assert bench.open(3).fault == Fault.CONTEXT and bench.open(40).fault == Fault.CONTEXT
    random_steps(bench, rng, config, 6, contexts=range(3))
    bench.check(stall=0.3, seed=seed)


def test_reset_in_mid_flight(rng, seed):
    """After a reset and with the initial store in memory, the same commands give the same results."""
    config = Config.preset("tiny")
    bench = Bench(config, hamming_threshold=5, window_tokens=40, max_resident_tokens=24)
    random_steps(bench, rng, config, 15, contexts=range(3))
    bench.check(stall=0.3, seed=seed, reset_after=700)


def video(bench, config, frames):
    """Tokens of a real video: every frame is a step; every 25th and the last frame select with two queries."""
    geometry = Geometry(layers=1, q_heads=2 * config.kv_heads, kv_heads=config.kv_heads, head_dim=config.head_dim)
    front_end = FrontEnd(FrontEndConfig(geometry=geometry, grid=5))
    dimension = config.kv_heads * config.head_dim
    planes, means = hyperplanes(dimension, config.hash_bits), MeanKeys(dimension)
    pages = PageTable(PagingConfig(config.page_tokens, 1024), config.kv_heads, config.head_dim)
    owner, selections = np.empty(0, np.int64), 0
    bench.open(0)
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
            extents = [extent for extent in bench.golden.kvmu.extents[before:] if extent.source_tier == Tier.HOST]
            assert sum(extent.nbytes for extent in extents) == wanted.nbytes
            starts = np.array([extent.source - HOST for extent in extents], np.int64)
            assert set(wanted.extents[:, 0].tolist()) <= set(starts.tolist())
        pages.append(owner[-chunk.tokens :])
    return len(owner), selections


@pytest.mark.heavy
def test_a_real_video_of_five_thousand_tokens(seed):
    """All streams pause at random. More accumulators and lanes shorten the search and do not change the result."""
    config = Config.preset("paper").replace(kv_heads=2, head_dim=64, hcu_lanes=32, hcu_accumulators=16)
    config = config.replace(page_frames=512)
    bench = Bench(
        config, contexts=1, window_tokens=4096, max_resident_tokens=1024, staging_head_pages=4096, log_entries=4096,
        sizes=ContextSizes(4096, 4096),
    )  # fmt: skip
    tokens, selections = video(bench, config, 200)
    assert tokens >= 5000 and selections >= 9
    fetched = sum(reply.transit for reply in bench.replies if reply.op == Op.SELECT)
    assert fetched > 100 and not any(reply.fault for reply in bench.replies)
    record = bench.check(stall=0.3, seed=seed, timeout_cycles=10_000_000)
    print(tokens, "tokens", selections, "selections", fetched, "head pages", record.status)


@pytest.mark.parametrize("preset", [pytest.param(p, marks=[pytest.mark.heavy] * (p == "paper")) for p in PRESETS])
def test_every_preset_elaborates(preset):
    unit = KVPU.from_config(Config.preset(preset))
    assert to_rtlil(unit, "kvpu") and unit.timing["kvmu"]
