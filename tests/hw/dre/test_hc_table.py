"""Verilog of the HC table compared with its golden model and with its cycle formulas."""

import numpy as np
import pytest

from golden.clustering import ClusterRule, ClusterTable
from golden.hc_table import ClusterEntry
from golden.hc_table import Fault as GoldenFault
from golden.hc_table import HcTable as GoldenTable
from hw.config import PRESETS, Config
from hw.dre.hc_table import Fault, HcTable, Op
from hw.emit import to_rtlil
from sim.bench.run import InTurns, simulate
from sim.ports import TABLE_AREAS, hc_table_config, hc_table_ports
from tests.hw.dre.test_hcu import codes

GOOD = {
    "max_clusters": 32,
    "max_list_pages": 64,
    "list_page_tokens": 4,
    "lanes": 4,
    "key_dim": 16,
    "hash_bits": 16,
    "cluster_bits": 8,
    "address_bits": 20,
}
BASES = (0xA5A5_C3C0_0040, 0x5A5A_3CF0_1000, 0x0F0F_F0F0_3010, 0xF0F0_0F00_8000, 0x3C3C_A5A5_4000)
FLIPPED = tuple(base ^ 0xFFFF_FFFF_FFFF for base in BASES)
NEEDS = {  # fields that an operation reads besides `opened`; the others are random
    Op.UPDATE: {"token", "cluster", "hash", "count"},
    Op.BEGIN: {"first"},
    Op.LOAD: {"hash", "token", "count", "first", "newest"},
    Op.LINK: {"first", "newest"},
    Op.READ: {"cluster"},
    Op.LIST: {"cluster"},
    Op.COUNTS: set(),
}


class Bench:
    """One unit and its golden model: commands and the expected outputs."""

    def __init__(self, bases=BASES, unit=None):
        self.unit = unit or HcTable.from_config(Config.preset("tiny"))
        config = hc_table_config(self.unit, tuple(bases))
        self.golden, self.config = GoldenTable(config), hc_table_ports(config)
        self.commands, self.replies, self.beats, self.faults, self.cycles = [], [], [], [], []

    def do(self, op, **fields):
        golden, command = self.golden, {"op": op.value if isinstance(op, Op) else op, **fields}
        fault, cycles = GoldenFault.NONE, 2
        field = {"token": 0, "cluster": 0, "hash": 0, "count": 0, "opened": 0, "first": 0, "newest": 0, **fields}
        if op == Op.UPDATE:
            writes = len(golden.writes)
            fault = golden.update(**{name: field[name] for name in ("token", "cluster", "hash", "count", "opened")})
            cycles += len(golden.writes) - writes
        elif op == Op.BEGIN:
            fault = golden.begin(field["first"])
        elif op == Op.LOAD:
            fault = golden.load(ClusterEntry(*(field[name] for name in ("hash", "token", "count", "first", "newest"))))
        elif op == Op.LINK:
            fault = golden.link(field["first"], field["newest"])
        elif op in (Op.READ, Op.LIST):
            fault = golden.cluster_fault(field["cluster"])
            if fault:
                self.replies.append({"op": op.value, "fault": fault, "last": 1})
            elif op == Op.READ:
                entry = golden.entries[field["cluster"]]
                values = {n: getattr(entry, n) for n in ("hash", "count", "first_token", "first", "newest")}
                address = golden.mean_key_address(field["cluster"])
                self.replies.append({"op": op.value, **values, "address": address, "last": 1})
            else:
                pages = golden.pages(field["cluster"])
                cycles += 2 * len(pages)
                self.replies += [{"op": op.value, "address": a, "count": n, "last": 0} for a, n in pages]
                self.replies[-1]["last"] = 1
        elif op == Op.COUNTS:
            fault = GoldenFault.REGION if golden.config.region_bad else fault
            if not fault:
                rows, size = golden.counts(self.unit.lanes), len(golden.entries)
                used = [min(self.unit.lanes, size - n * self.unit.lanes) for n in range(len(rows))]
                last = len(rows) - 1
                self.beats += [(row.tolist(), u, n == last) for n, (row, u) in enumerate(zip(rows, used, strict=True))]
                cycles += len(rows)
        else:
            fault = Fault.OP.value
        self.commands.append(command)
        self.faults.append(int(fault))
        self.cycles.append(cycles)
        return fault

    def tokens(self, stream, start=0):
        """Updates in the form of the assignments of the HCU."""
        table = ClusterTable(ClusterRule(hamming_threshold=4))
        assigned = table.assign(stream)
        for n in range(len(stream)):
            yield {
                "token": start + n,
                "cluster": int(assigned.cluster[n]),
                "hash": int(stream[n]),
                "count": int(assigned.count[n]),
                "opened": int(assigned.opened[n]),
            }

    def run(self, **options):
        columns = {}
        for name, field in self.unit.command:
            unused = {
                op.value: 0 if name in {"opened", *needs} else (1 << field.width) - 1 for op, needs in NEEDS.items()
            }
            columns[name] = np.array([c.get(name, unused.get(c["op"], 0)) for c in self.commands], np.int64)
        outputs = {"o": len(self.replies), "o_counts": len(self.beats), "o_write": len(self.golden.writes)}
        return simulate(self.unit, "hc_table", {"i": columns}, outputs, config=self.config, **options)

    def check(self, **options):
        record, writes = self.run(**options), self.golden.writes
        got = record.outputs
        for reply, n in zip(self.replies, range(len(self.replies)), strict=True):
            for name, value in reply.items():
                assert got["o"][name][n] == value, (n, name, reply)
        assert got["o_counts"]["counts"].tolist() == [row for row, _, _ in self.beats]
        assert got["o_counts"]["used"].tolist() == [used for _, used, _ in self.beats]
        assert got["o_counts"]["last"].tolist() == [last for _, _, last in self.beats]
        assert got["o_write"]["address"].tolist() == [address for address, _ in writes]
        assert got["o_write"]["bytes"].tolist() == [len(value) for _, value in writes]
        assert [int(v) for v in got["o_write"]["data"]] == [int.from_bytes(value, "little") for _, value in writes]
        assert record.status["clusters"] == len(self.golden.entries)
        assert record.status["stat_faults"] == sum(1 << fault for fault in {*self.faults} - {0})
        assert record.status["stat_refused"] == sum(fault > 0 for fault in self.faults)
        assert record.status["stat_writes"] == len(writes)
        updates = [
            c for c, fault in zip(self.commands, self.faults, strict=True) if c["op"] == Op.UPDATE.value and not fault
        ]
        assert record.status["stat_tokens"] == len(updates)
        assert record.status["stat_opened"] == sum(c.get("opened", 0) for c in updates)
        # one cycle of a command is idle; blocked cycles are added
        blocked = record.status["stat_blocked_write"] + record.status["stat_blocked_reply"]
        assert record.status["stat_busy"] == sum(self.cycles) - len(self.cycles) + blocked
        return record


def mixed(bench, rng, count=500):
    """Updates mixed with other commands, some of them invalid."""
    updates = bench.tokens(codes(rng, count, bench.unit.hash_bits, centers=14, flip=0.05))
    for update in updates:
        bench.do(Op.UPDATE, **update)
        cluster = int(rng.integers(len(bench.golden.entries) + 2))
        match int(rng.integers(12)):
            case 0:
                bench.do(Op.READ, cluster=cluster)
            case 1:
                bench.do(Op.LIST, cluster=cluster)
            case 2:
                bench.do(Op.COUNTS)
            case 3:
                bench.do(Op.UPDATE, **{**update, "count": int(rng.integers(6)), "cluster": cluster})
            case 4:
                bench.do(7)


def test_fault_codes_equal_golden():
    assert {f.name: f.value for f in GoldenFault} == {f.name: f.value for f in Fault if f is not Fault.OP}


@pytest.mark.parametrize("stall, bases", [(0.0, BASES), (InTurns(0.5, 32), FLIPPED)], ids=["streaming", "stalled"])
def test_matches_golden(stall, bases, rng, seed):
    bench = Bench(bases)
    mixed(bench, rng)
    assert {GoldenFault.CLUSTER, GoldenFault.COUNT, GoldenFault.NO_PAGE} <= {*bench.faults}
    record = bench.check(stall=stall, seed=seed)
    if not stall:
        assert np.diff(record.cycles["i"]).tolist() == bench.cycles[:-1]
        assert record.status["stat_blocked_write"] == record.status["stat_blocked_reply"] == 0


@pytest.mark.parametrize("full, stall", [(False, 0.0), (True, InTurns(0.5, 16))], ids=["part", "full"])
def test_empty_and_restored_table(full, stall, seed):
    unit = HcTable(**GOOD) if full else HcTable.from_config(Config.preset("tiny"))
    bench = Bench(unit=unit, bases=[base % 2**20 for base in BASES] if full else BASES)
    for op in (Op.BEGIN, Op.COUNTS, Op.READ, Op.LIST) * 10:
        bench.do(op)
    last = unit.max_clusters - 1 if full else 39
    for cluster in range(last + 1 + full):
        bench.do(Op.UPDATE, token=cluster, cluster=cluster, hash=cluster, count=1, opened=1)
    for op in (Op.COUNTS, Op.LIST) * 6:
        bench.do(op, cluster=last)
    for count in range(2, 14):  # a list of four pages, so that there are links to restore
        bench.do(Op.UPDATE, token=last + 8 + count, cluster=last, count=count)
    saved, used, links = list(bench.golden.entries), bench.golden.used, dict(bench.golden.links)
    bench.do(Op.BEGIN)
    bench.do(Op.COUNTS)
    bench.do(Op.UPDATE, token=0, cluster=0, hash=9, count=1, opened=1)
    bench.do(Op.BEGIN, first=used)
    for entry in saved:
        bench.do(
            Op.LOAD, hash=entry.hash, token=entry.first_token, count=entry.count, first=entry.first, newest=entry.newest
        )
    assert len(links) == 3
    for first, newest in list(links.items()) * 8:
        bench.do(Op.LINK, first=first, newest=newest)
    if full:
        for _ in range(20):
            assert bench.do(Op.LOAD) == GoldenFault.CLUSTER
    bench.do(Op.UPDATE, token=last + 28, cluster=last, count=14)
    for cluster in (0, last, last + 1) * 6:
        bench.do(Op.LIST, cluster=cluster)
        bench.do(Op.READ, cluster=cluster)
    bench.do(Op.COUNTS)
    bench.check(stall=stall, seed=seed)


def test_large_numbers_match_golden(rng, seed):
    """Loaded entries with large numbers, whose high bits a stream reaches after hours."""
    bench = Bench()
    bench.do(Op.BEGIN, first=40)
    for _ in range(bench.unit.max_clusters):
        hash, token, count = (int(rng.integers(1 << width)) for width in (16, 32, 16))
        count = min(count, 0xFFFE)
        bench.do(
            Op.LOAD, hash=hash, token=token, count=count, first=int(rng.integers(64)), newest=int(rng.integers(64))
        )
    assert bench.do(Op.LOAD) == GoldenFault.CLUSTER
    bench.do(Op.COUNTS)
    for cluster, entry in enumerate(list(bench.golden.entries)):
        bench.do(Op.READ, cluster=cluster)
        bench.do(Op.UPDATE, token=int(rng.integers(1 << 32)), cluster=cluster, count=entry.count + 1)
        bench.do(Op.READ, cluster=cluster)
        bench.do(Op.UPDATE, token=int(rng.integers(1 << 32)), cluster=cluster, count=entry.count ^ 1 << cluster % 16)
    bench.check(stall=0.3, seed=seed)


def test_list_of_many_pages(seed):
    """More than half of the largest token count, on list pages that form a circle."""
    bench = Bench()
    bench.do(Op.BEGIN, first=3)
    for first, newest in ((0, 1), (1, 2), (2, 0)):
        bench.do(Op.LINK, first=first, newest=newest)
    for cluster, count in enumerate([0x8003, *((1 << k) + 9 for k in range(4, 13))]):
        bench.do(Op.LOAD, count=count, newest=1)
        bench.do(Op.LIST, cluster=cluster)
    assert len(bench.replies) > 10_000
    bench.check(seed=seed)


@pytest.mark.parametrize("region", TABLE_AREAS)
def test_region_beyond_address_space_raises_fault(region, seed):
    """The last byte of a region has the largest address, or is one byte beyond it."""
    unit = Bench().unit
    sizes = (
        unit.max_clusters * 16,
        unit.max_list_pages * unit.list_page_tokens * 4,
        unit.max_list_pages * 4,
        unit.max_clusters * unit.key_dim * 2,
        unit.max_clusters * 2,
    )
    at = TABLE_AREAS.index(region)
    for beyond in (0, 1):
        bases = [0] * len(TABLE_AREAS)
        bases[at] = (1 << unit.address_bits) - sizes[at] + beyond
        bench = Bench(bases=tuple(bases))
        update = {"token": 0, "cluster": 0, "hash": 1, "count": 1, "opened": 1}
        for op, fields in ((Op.BEGIN, {}), (Op.UPDATE, update), (Op.READ, {}), (Op.COUNTS, {})):
            assert bench.do(op, **fields) == (GoldenFault.REGION if beyond else GoldenFault.NONE)
        for op in list(Op) * 6 * beyond:
            assert bench.do(op) == GoldenFault.REGION
        bench.check(stall=InTurns(0.5, 8) if beyond else 0.0, seed=seed)


def test_stat_clear_clears_counters(rng):
    bench = Bench()
    mixed(bench, rng, 20)
    bench.config["stat_clear"] = 1
    status = bench.run().status
    assert status.pop("clusters") == len(bench.golden.entries) > 0
    assert status and not any(status.values())


def test_reset_restores_initial_state(rng, seed):
    bench = Bench()
    mixed(bench, rng, 60)
    bench.check(stall=0.3, seed=seed, reset_after=150)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset(preset, rng, seed):
    """A stream of tokens through the unit of every preset."""
    bench = Bench(unit=HcTable.from_config(Config.preset(preset)), bases=(0, 0x100000, 0x200000, 0x300000, 0x400000))
    for update in bench.tokens(codes(rng, 200, bench.unit.hash_bits, centers=6, flip=0.02)):
        bench.do(Op.UPDATE, **update)
    bench.do(Op.COUNTS)
    for cluster in range(len(bench.golden.entries)):
        bench.do(Op.LIST, cluster=cluster)
    bench.check(stall=0.2, seed=seed)
    assert bench.unit.memory_bits["counts"] == bench.unit.max_clusters * 16


def test_invalid_sizes_raise_value_error():
    for name, value in (
        ("max_clusters", 30),
        ("max_clusters", 4),
        ("max_clusters", 512),
        ("max_list_pages", 1),
        ("list_page_tokens", 3),
        ("lanes", 1),
        ("key_dim", 0),
        ("count_bits", 17),
    ):
        with pytest.raises(ValueError, match=f"{name} must be .*, got {value}"):
            to_rtlil(HcTable(**{**GOOD, name: value}), "hc_table")
