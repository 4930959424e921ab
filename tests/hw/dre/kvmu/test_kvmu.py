"""Verilog of the KVMU compared with the golden model, an oracle of dictionaries, and its cycle formulas."""

import dataclasses
import itertools

import numpy as np
import pytest

from golden.kvmu import Command, Fault, Kvmu, Op, TransferKind
from hw.config import PRESETS, Config
from hw.dre.kvmu.command import Fault as HwFault
from hw.dre.kvmu.command import Op as HwOp
from hw.dre.kvmu.kvmu import KVMU
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from sim.ports import kvmu_config, kvmu_ports
from tests.hw.dre.kvmu.kvmu_oracle import replay

SMALL = {
    "kv_heads": 2,
    "head_dim": 8,
    "page_tokens": 4,
    "max_pages": 16,
    "page_frames": 8,
    "max_clusters": 6,
    "cluster_bits": 4,
    "layers": 4,
    "address_bits": 18,
    "reference_bits": 2,
}
BASES = (0x1000, 0x8000, 0x18000, 0x2E010)
MIX = {
    "APPEND": 10,
    "STEP": 1.5,
    "SELECT": 3,
    "FETCH": 1,
    "LOOKUP": 1,
    "FIND": 1,
    "MOVE": 2,
    "SEAL": 0.3,
    "FREE": 0.9,
    "MIGRATE": 0.5,
    "SYNC": 0.2,
    "HOLD": 0.5,
    "MARK": 0.5,
    "EVICT": 0.3,
    "BEGIN": 0.01,
}


def somewhere(rng):
    """Random base addresses of regions that fit and do not overlap for any layer."""
    ends = (0x6000, 0x14000, 0x2A000, 0x3F000)
    return tuple(int(rng.integers(start, end)) for start, end in zip((0, 0x8000, 0x18000, 0x2E000), ends, strict=True))


def columns(objects, kind):
    names = [f.name for f in dataclasses.fields(kind)]
    return {n: np.array([int(getattr(o, n)) for o in objects], np.int64) for n in names}


def rows(columns):
    names = list(columns)
    return [dict(zip(names, values, strict=True)) for values in zip(*(columns[n].tolist() for n in names), strict=True)]


class Bench:
    """One unit, its golden model and their common settings."""

    def __init__(
        self,
        *,
        staging_head_pages=12,
        max_resident_tokens=14,
        offload_to_storage=False,
        max_descriptor_bytes=96,
        bases=BASES,
        **sizes,
    ):
        self.unit = KVMU(**{**SMALL, **sizes})
        self.config = kvmu_config(
            self.unit,
            bases=bases,
            staging_head_pages=staging_head_pages,
            max_resident_tokens=max_resident_tokens,
            offload_to_storage=offload_to_storage,
            max_descriptor_bytes=max_descriptor_bytes or 4096,
            max_page_references=(1 << self.unit.reference_bits) - 1,
        )
        self.settings = kvmu_ports(self.config)
        self.golden = Kvmu(self.config)
        self.commands, self.replies = [], []

    def do(self, op, **fields):
        """Add a command; returns the golden replies."""
        command = Command(int(op), **fields)
        answer = self.golden.execute(command)
        self.commands.append(command)
        self.replies += answer
        return answer

    def random(self, rng, count, mix=MIX, wild=0.15):
        """Add random commands, a share `wild` of them with random arguments."""
        names, weight = list(mix), np.array(list(mix.values()))
        for name in rng.choice(names, count, p=weight / weight.sum()).tolist():
            table, unit = self.golden.table, self.unit
            fields = {
                "cluster": int(rng.integers(unit.max_clusters)),
                "page": int(rng.integers(unit.max_pages)),
                "slot": int(rng.integers(unit.page_tokens)),
                "head": int(rng.integers(unit.kv_heads)),
                "heads": int(rng.integers(1 << unit.kv_heads)),
                "index": int(rng.integers(3 * unit.page_tokens)),
                "tier": int(rng.integers(1, 3)),
                "layer": int(rng.integers(unit.layers)),
                "retain": int(rng.random() < 0.3),
                "bank": int(rng.integers(2)),
            }
            op = int(Op[name])
            if name == "EVICT":
                fields["index"], fields["page"] = rng.integers(3, size=2).tolist()
                self.do(op, **fields)
                continue
            if rng.random() < wild:
                fields["cluster"] = int(rng.integers(unit.max_clusters + 2))
                fields["tier"] = int(rng.integers(4))
                op = 15 if rng.random() < 0.1 else op
            elif pages := [n for n, page in enumerate(table.pages) if page]:
                fields["page"] = int(rng.choice(pages))
                fields["slot"] = int(rng.integers(len(table.pages[fields["page"]].tokens)))
            self.do(op, **fields)

    def run(self, **options):
        tags = sum(reply.tagged for reply in self.replies)
        outputs = {"o": len(self.replies), "o_dma": len(self.golden.descriptors), "o_complete": tags}
        config = {**self.settings, **options.pop("config", {})}
        inputs = {"i": columns(self.commands, Command)}
        options.setdefault("timeout_cycles", 2000 + 200 * len(self.commands))
        return simulate(self.unit, "kvmu", inputs, outputs, config=config, echo={"i_done": "o_dma"}, **options)

    def check(self, **options):
        """Simulate, compare with the golden model, replay through the oracle."""
        record = self.run(**options)
        for name, want in (("o", self.replies), ("o_dma", self.golden.descriptors)):
            if want:
                for field, column in columns(want, type(want[0])).items():
                    assert record.outputs[name][field].astype(int).tolist() == column.tolist(), (name, field)
        assert not record.outputs["o_complete"]["error"].any()
        self._check_order(record)
        replies, descriptors = (rows(record.outputs[name]) for name in ("o", "o_dma"))
        replay(self.unit, self.settings, rows(columns(self.commands, Command)), replies, descriptors)
        causes = {reply.fault for reply in self.replies if reply.fault}
        assert record.status["stat_faults"] == sum(1 << int(cause) for cause in causes)
        assert record.status["stat_resident"] == self.golden.resident_tokens
        units = [r for r in self.replies if r.op == Op.FETCH and not r.last]
        done = [r.op for r in self.replies if r.last and not r.fault]
        for name, count in (
            ("appended", done.count(Op.APPEND)),
            ("moved", done.count(Op.MOVE)),
            ("offloaded", sum(r.op == Op.STEP and not r.last for r in self.replies)),
            ("hits", sum(not r.transit for r in units)),
            ("fetched", sum(r.transit for r in units)),
            ("extents", len(self.golden.extents)),
            ("descriptors", len(self.golden.descriptors)),
            ("bytes", sum(d.bytes for d in self.golden.descriptors)),
        ):
            assert record.status[f"stat_{name}"] == count, name
        return record

    def _check_order(self, record):
        """No tag is done before its descriptors; transfers of different kinds are never in flight together."""
        sent, done, ended = (record.cycles[name] for name in ("o_dma", "i_done", "o_complete"))
        descriptors = self.golden.descriptors
        kind = np.array([d.kind for d in descriptors])
        other = np.flatnonzero(np.diff(kind)) + 1
        assert (np.searchsorted(done, sent[other]) == other).all()
        ends = np.flatnonzero([d.last for d in descriptors])
        sizes = {tag: [] for tag in range(self.unit.tags)}
        for end, size in zip(ends, np.diff(ends, prepend=-1), strict=True):
            sizes[descriptors[end].tag].append(size)
        reported = np.cumsum([sizes[tag].pop(0) for tag in record.outputs["o_complete"]["tag"].tolist()])
        assert (np.searchsorted(done, ended) >= reported).all()


def test_codes_equal_golden():
    assert {op.name: op.value for op in HwOp} == {op.name: op.value for op in Op}
    shared = {cause.name: cause.value for cause in HwFault if cause.name not in ("STRAY", "TRANSFER")}
    assert shared == {cause.name: cause.value for cause in Fault}


VARIANTS = {
    "tight": (InTurns(0.4), {}),
    "roomy": (
        0.0,
        {
            "max_resident_tokens": 128,
            "max_pages": 64,
            "page_frames": 16,
            "staging_head_pages": 32,
            "page_tokens": 16,
            "head_dim": 64,
        }
        | {"address_bits": 23, "bases": (0, 0x80000, 0x280000, 0x480010)},
    ),
    "storage": (InTurns(0.6), {"offload_to_storage": True, "max_resident_tokens": 5, "max_descriptor_bytes": 0}),
    "odd bursts": (0.2, {"max_descriptor_bytes": 7, "max_resident_tokens": 3, "staging_head_pages": 5}),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_commands(variant, rng, seed):
    stall, settings = VARIANTS[variant]
    bench = Bench(**{"bases": somewhere(rng), **settings})
    bench.do(Op.BEGIN, layer=list(VARIANTS).index(variant))
    bench.random(rng, 800)
    bench.check(stall=stall, seed=seed)


@pytest.mark.heavy
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_a_hundred_thousand_commands(stall, rng, seed):
    """Random commands: no token is lost, aliased, fetched twice or outside its region."""
    bench = Bench(
        max_pages=64,
        page_frames=32,
        max_clusters=20,
        cluster_bits=6,
        max_resident_tokens=70,
        staging_head_pages=48,
        bases=(0, 0x8000, 0x18000, 0x28010),
    )
    bench.random(rng, 50_000, {**MIX, "FREE": 1.2})
    bench.check(stall=stall, seed=seed)


def test_reset_in_mid_flight(rng, seed):
    bench = Bench()
    bench.random(rng, 150)
    bench.check(stall=0.2, seed=seed, reset_after=900)


@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_counters(stall, rng, seed):
    bench = Bench(max_resident_tokens=9)
    bench.random(rng, 300, {name: MIX[name] for name in MIX if name != "BEGIN"})
    record = bench.check(stall=stall, seed=seed, record_ports=True)
    status = record.status
    assert status["stat_opened"] - status["stat_freed"] == sum(p is not None for p in bench.golden.table.pages)
    assert bool(status["stat_waiting"]) == bool(status["stat_blocked_reply"]) == bool(stall)
    ports = {name: values[record.ports["rst"][:, 0] == 0, 0] for name, values in record.ports.items()}
    assert status["stat_blocked_dma"] == (ports["o_dma__valid"] & ~ports["o_dma__ready"] & 1).sum()
    # the last two cycles come too late to be read
    assert status["stat_busy"] == (ports["i__ready"][:-2] == 0).sum()


def test_counters_can_be_held_at_zero(rng, seed):
    """`stat_clear` holds all counters but the number of resident tokens at zero while the unit works."""
    bench = Bench()
    bench.random(rng, 100)
    record = bench.run(config={"stat_clear": 1}, seed=seed)
    assert record.outputs["o"]["fault"].tolist() == [reply.fault for reply in bench.replies]
    assert record.status.pop("stat_resident") == bench.golden.resident_tokens
    assert any(reply.fault for reply in bench.replies) and not any(record.status.values())


def full_tables(bench):
    """Use every page frame, then every page; cause each refusal twice; then continue."""
    for token in range(8):
        bench.do(Op.APPEND, cluster=token % 6)
        bench.do(Op.SEAL, page=token)
    for cluster in (0, 5):
        assert bench.do(Op.APPEND, cluster=cluster)[-1].fault == Fault.NO_PAGE_FRAME
        assert bench.do(Op.MOVE, page=cluster, slot=0, cluster=1)[-1].fault == Fault.NO_PAGE_FRAME
    for _ in range(8):
        bench.do(Op.STEP)
        bench.do(Op.APPEND, cluster=3)
        bench.do(Op.SEAL, page=len(bench.golden.table.pages) - 1)
    bench.do(Op.STEP)
    assert bench.do(Op.APPEND, cluster=2)[-1].fault == Fault.NO_PAGE
    assert bench.do(Op.APPEND, cluster=2)[-1].fault == Fault.NO_PAGE
    assert bench.do(Op.APPEND, cluster=6)[-1].fault == Fault.CLUSTER
    for cluster in range(6):
        bench.do(Op.SELECT, cluster=cluster, heads=3)
    assert bench.do(Op.FETCH)[-1].fault == Fault.STAGING
    assert bench.do(Op.FETCH)[-1].count == 0
    for cluster in range(6):
        bench.do(Op.SELECT, cluster=cluster, heads=3)
    assert bench.do(Op.FETCH, retain=1)[-1].fault == Fault.NO_PAGE_FRAME
    bench.do(Op.STEP)
    for page in range(16):
        bench.do(Op.FREE, page=page)
        assert bench.do(Op.FREE, page=page)[-1].fault == Fault.ADDRESS
    for token in range(9):
        bench.do(Op.APPEND, cluster=token % 6)


def selections_of_nothing(bench):
    bench.do(Op.FETCH)
    bench.do(Op.STEP)
    assert bench.do(Op.SELECT, cluster=1, heads=3)[-1].count == 0
    bench.do(Op.APPEND, cluster=1)
    bench.do(Op.SELECT, cluster=1, heads=0)
    assert [len(bench.do(Op.FETCH, retain=retain)) for retain in (0, 1)] == [1, 1]
    bench.do(Op.SELECT, cluster=1, heads=3)
    bench.do(Op.FREE, page=0)  # a freed page is not fetched
    assert len(bench.do(Op.FETCH)) == 1


def a_page_selected_twice_is_fetched_once(bench):
    before = len(bench.golden.descriptors)
    for cluster in (0, 0, 0, 0, 0, 1, 2):
        bench.do(Op.APPEND, cluster=cluster)
    bench.do(Op.STEP)
    for heads in (1, 3, 1):
        bench.do(Op.SELECT, cluster=0, heads=heads)
    assert [(r.page, r.head, r.transit) for r in bench.do(Op.FETCH)[:-1]] == [
        (0, 0, 1),
        (0, 1, 1),
        (1, 0, 1),
        (1, 1, 1),
    ]
    moved = sum(d.bytes for d in bench.golden.descriptors[before:] if d.kind == TransferKind.FETCH)
    assert moved == 2 * 32 * (4 + 1)
    bench.do(Op.MARK, page=0, heads=2)
    bench.do(Op.SELECT, cluster=0, heads=2)
    assert [(r.page, r.head) for r in bench.do(Op.FETCH)[:-1]] == [(0, 1), (1, 1)]
    assert len(bench.do(Op.FETCH)) == 1


def a_held_page_stays_until_its_last_holder_lets_go(bench):
    for _ in range(6):
        bench.do(Op.APPEND, cluster=2)
    assert [bench.do(Op.HOLD, page=0)[-1].count for _ in range(3)] == [2, 3, 4]
    assert bench.do(Op.HOLD, page=0)[-1].fault == Fault.HELD
    assert bench.do(Op.MOVE, page=0, slot=1, cluster=3)[-1].fault == Fault.HELD
    assert [r.page for r in bench.do(Op.EVICT, cluster=2)[:-1]] == [0, 1]
    assert bench.do(Op.SELECT, cluster=2, heads=3)[-1].count == 0
    assert bench.do(Op.LOOKUP, page=1)[-1].fault == Fault.ADDRESS
    bench.do(Op.APPEND, cluster=2)  # page 1 again: a chain of its own
    assert [bench.do(Op.FREE, page=0)[-1].count for _ in range(3)] == [2, 1, 0]
    assert bench.do(Op.FREE, page=0)[-1].fault == Fault.ADDRESS


def every_token_of_a_long_chain_is_found(bench):
    for token in range(60):
        bench.do(Op.APPEND, cluster=5)
        if token % 4 == 3:
            bench.do(Op.STEP)
    for token in range(64):
        assert (bench.do(Op.FIND, cluster=5, index=token, head=token % 2)[-1].fault == Fault.NONE) == (token < 60)


def many_descriptors_are_in_flight(bench):
    for _ in range(2):
        for token in range(24):
            bench.do(Op.APPEND, cluster=token % 2)
        bench.do(Op.STEP)
        for cluster in (0, 1):
            bench.do(Op.SELECT, cluster=cluster, heads=2 - cluster)
        bench.do(Op.FETCH)


def a_page_empties_in_any_order(bench):
    for *first, second, last in itertools.permutations(range(4)):
        page = [bench.do(Op.APPEND, cluster=0) for _ in range(4)][-1][-1].page
        for slot in (*first, second):
            bench.do(Op.MOVE, page=page, slot=slot, cluster=1)
        assert bench.do(Op.LOOKUP, page=page, slot=last)[-1].fault == Fault.NONE
        bench.do(Op.MOVE, page=page, slot=last, cluster=1)
        assert bench.do(Op.LOOKUP, page=page, slot=last)[-1].fault == Fault.ADDRESS
        bench.do(Op.BEGIN)


def many_pages_leave_as_one(bench):
    before = len(bench.golden.extents)
    for cluster in [0] * 24 + [1]:
        bench.do(Op.APPEND, cluster=cluster)
    bench.do(Op.STEP)
    assert [extent.nbytes for extent in bench.golden.extents[before:]] == [6 * 256]
    bench.do(Op.SELECT, cluster=0, heads=3)
    bench.do(Op.FETCH)


def refusals(bench):
    """Clusters and pages that do not exist, a page with too many references, selections of resident pages."""
    for op in (Op.APPEND, Op.SELECT, Op.FIND, Op.MOVE, Op.EVICT):
        assert bench.do(op, cluster=6)[-1].fault == Fault.CLUSTER
    for op in (Op.LOOKUP, Op.MOVE, Op.SEAL, Op.FREE, Op.MIGRATE, Op.HOLD, Op.MARK):
        assert bench.do(op, page=15, tier=1)[-1].fault == Fault.ADDRESS
    page = bench.do(Op.APPEND, cluster=0)[-1].page
    bench.do(Op.SELECT, cluster=0, heads=3)
    assert [reply.transit for reply in bench.do(Op.FETCH)] == [0, 0, 0]
    for _ in range(4):
        answer = bench.do(Op.HOLD, page=page)
    assert answer[-1].fault == Fault.HELD
    for _ in range(4):
        bench.do(Op.FREE, page=page)


def begins_while_pages_leave(bench):
    for cluster in (0, 1, 2):
        bench.do(Op.APPEND, cluster=cluster)
    assert bench.do(Op.STEP)[-1].count


DIRECTED = (
    every_token_of_a_long_chain_is_found,
    full_tables,
    refusals,
    begins_while_pages_leave,
    selections_of_nothing,
    a_page_selected_twice_is_fetched_once,
    a_held_page_stays_until_its_last_holder_lets_go,
    a_page_empties_in_any_order,
    many_pages_leave_as_one,
)
SLOW = {  # slow side, longest burst
    "nobody": (0.0, 96),
    "replies and completions": ({"o": 0.9, "o_complete": 0.97}, 421),
    "replies and transfers": ({"o": 0.9, "i_done": 0.9}, 0),
}


@pytest.mark.parametrize("who", SLOW)
def test_boundaries(who, seed):
    """Several scripts, each on empty tables, in one simulation."""
    stall, max_descriptor_bytes = SLOW[who]
    bench = Bench(max_resident_tokens=0, max_descriptor_bytes=max_descriptor_bytes)
    for script in DIRECTED:
        script(bench)
        bench.do(Op.BEGIN)
    bench.check(stall=stall, seed=seed)


def test_refusals_under_pauses(seed):
    bench = Bench(bases=(*BASES[:3], 0x37F10))
    for _ in range(12):
        refusals(bench)
        bench.do(Op.BEGIN)
    bench.check(stall=InTurns(0.5, 32), seed=seed)


def test_extents_longer_than_the_boundary(seed):
    """Extents of both heads of a full page, which only the boundary splits."""
    bench = Bench(**{**VARIANTS["roomy"][1], "max_resident_tokens": 0, "max_descriptor_bytes": 0})
    for _ in range(16):
        bench.do(Op.APPEND, cluster=0)
    bench.do(Op.APPEND, cluster=1)  # one page stays
    bench.do(Op.STEP)
    assert [extent.nbytes for extent in bench.golden.extents] == [8192]
    bench.check(seed=seed)


def test_many_descriptors_in_flight(seed):
    bench = Bench(max_resident_tokens=0, max_descriptor_bytes=1)
    many_descriptors_are_in_flight(bench)
    record = bench.check(stall={"i_done": 0.6}, seed=seed, timeout_cycles=100_000)
    sent, done = record.cycles["o_dma"], record.cycles["i_done"]
    assert (np.searchsorted(sent, done) - np.arange(len(done))).max() > 512


def test_stray_and_failed_completions_are_reported():
    """Completions without a descriptor or with an error are reported, and the unit continues."""
    bench = Bench(max_resident_tokens=0)
    wrong = [1, 0, 1, 1, 1, 1, 0, 0]  # tags in turn, twice
    for _ in wrong:
        for _ in range(5):
            bench.do(Op.APPEND, cluster=1)
        bench.do(Op.STEP)  # a full page leaves
        assert bench.do(Op.APPEND, cluster=2)[-1].fault == Fault.NONE  # opens a page, so it waits for the completions
        bench.do(Op.BEGIN)
    sent = bench.golden.descriptors
    assert [d.tag for d in sent if d.last] == [n % bench.unit.tags for n in range(len(wrong))]
    # one after the other, far more than there are descriptors: early and late ones are strays
    answers = {"tag": np.repeat(np.arange(len(wrong)) % bench.unit.tags, 80), "error": np.repeat(wrong, 80)}
    inputs = {"i": columns(bench.commands, Command), "i_done": answers}
    outputs = {"o": len(bench.replies), "o_dma": len(sent), "o_complete": len(wrong)}
    record = simulate(bench.unit, "kvmu", inputs, outputs, config=bench.settings, stall={"i_done": 0.8})
    assert record.status["stat_faults"] == 1 << HwFault.STRAY.value | 1 << HwFault.TRANSFER.value
    assert record.outputs["o_complete"]["error"].tolist() == wrong
    assert record.outputs["o"]["fault"].tolist() == [reply.fault for reply in bench.replies]


def test_regions_that_do_not_fit(seed):
    bench = Bench(bases=(0, 0x8000, 0x18000, 0x3FF00), staging_head_pages=2)
    for op in [*Op] * 12:
        assert bench.do(op)[-1].fault == Fault.REGION
    record = bench.run(stall=InTurns(0.5, 16), seed=seed)
    assert record.status["stat_faults"] == 1 << Fault.REGION
    assert record.outputs["o"]["fault"].tolist() == [Fault.REGION] * len(bench.commands)


def test_cycle_formulas(rng):
    """Every command takes exactly the cycles of its formula."""
    bench = Bench(max_resident_tokens=20, page_frames=16, staging_head_pages=32, max_descriptor_bytes=40)
    want = []
    for _ in range(800):
        before = _Before(bench)
        bench.random(rng, 1, wild=0.0)
        want.append(before.cycles())
    record = bench.check()
    got = np.diff(record.cycles["i"])
    for n, (cycles, expected) in enumerate(zip(got.tolist(), want[:-1], strict=True)):
        assert expected is None or cycles == expected, (bench.commands[n], cycles, expected)
    seen = {Op(c.op).name for c, expected in zip(bench.commands, want, strict=True) if expected is not None}
    assert seen >= MIX.keys() - {"BEGIN", "SYNC"}


class _Before:
    """State of the golden model before a command, for the cycle formula after it."""

    def __init__(self, bench):
        golden = bench.golden
        self.bench, self.extents, self.descriptors = bench, len(golden.extents), len(golden.descriptors)
        self.replies, self.pages = len(bench.replies), [page is not None for page in golden.table.pages]
        self.used = len(golden.table.pages)

    def cycles(self):
        """Cycles of the command, None if it was refused."""
        bench = self.bench
        golden, timing, command = bench.golden, bench.unit.cycles, bench.commands[-1]
        replies = bench.replies[self.replies :]
        if replies[-1].fault:
            return None
        cuts, ends = self._cuts()
        name = Op(command.op).name.lower()
        if name == "evict":
            return timing.evict(replies[-1].count, command.index)
        if name == "free":
            return timing.free(last=not replies[-1].count)
        opens = replies[-1].page >= len(self.pages) or not self.pages[replies[-1].page]
        if name == "append":
            return timing.append(opens=opens)
        if name == "select":
            return timing.select(replies[-1].count)
        if name == "find":
            return timing.find(golden.table.chains[command.cluster].index(replies[-1].page) + 1)
        if name == "step":
            copied = iter(self._units(ends))
            pages = [[next(copied) for _ in range(2)] if r.transit else [] for r in replies[:-1]]
            return timing.step(pages, cuts)
        if name == "fetch":
            copied, pages = iter(self._units(ends)), {}
            for reply in replies[:-1]:
                pages.setdefault(reply.page, []).append(next(copied) if reply.transit else None)
            return timing.fetch(self.used, pages, cuts)
        if name == "move":
            return timing.move(opens=opens, empties=golden.table.pages[command.page] is None, extents=[0, 1], cuts=cuts)
        if name == "migrate":
            return timing.migrate(self._units(ends), cuts)
        return getattr(timing, name)()

    def _cuts(self):
        """Descriptors and bytes of each extent of the command."""
        golden = self.bench.golden
        sizes = iter(d.bytes for d in golden.descriptors[self.descriptors :])
        cuts, extents = [], golden.extents[self.extents :]
        for extent in extents:
            remaining, count = extent.nbytes, 0
            while remaining:
                remaining, count = remaining - next(sizes), count + 1
            cuts.append(count)
        return cuts, extents

    def _units(self, extents):
        """Number of the extent of each head page: full head pages that are contiguous continue an extent."""
        size = self.bench.unit.head_page_bytes
        return [n for n, extent in enumerate(extents) for _ in range(-(-extent.nbytes // size))]


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_elaborates(preset):
    unit = KVMU.from_config(Config.preset(preset))
    assert to_rtlil(unit, "kvmu") and unit.memory_bits["pages"] > 0


def test_invalid_sizes_raise_value_error():
    for name, value in (
        ("max_pages", 12),
        ("page_frames", 1),
        ("page_tokens", 0),
        ("max_clusters", 1),
        ("kv_heads", 0),
        ("layers", 0),
        ("reference_bits", 0),
        ("tags", 3),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
            to_rtlil(KVMU(**{**SMALL, name: value}), "kvmu")
    with pytest.raises(ValueError, match="page_frames must be at most max_pages = 16, got 32"):
        KVMU(**{**SMALL, "page_frames": 32})
    with pytest.raises(ValueError, match=r"address_bits must be at least \d+, got 12"):
        KVMU(**{**SMALL, "address_bits": 12})
