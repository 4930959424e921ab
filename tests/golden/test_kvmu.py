"""Golden KVMU: invariants under random commands, an independent page table, every fault, fetches, several contexts."""

from itertools import pairwise

import numpy as np
import pytest

from golden.kvmu import Command, Fault, Op, Tier, TransferKind
from golden.kvmu.command import CommandFault
from golden.page_table import PageTable, PagingConfig
from golden.store import NONE, ContextSizes, StoreSizes
from golden.store.layout import RESIDENT, SAVED
from tests.golden.store_bench import CONTEXT_SIZES, SIZES, StoreBench

VARIANTS = {
    "tight": {},
    "roomy": {
        "max_resident_tokens": 60,
        "sizes": StoreSizes(5, page_frames=32, page_tokens=4, key_bytes=32, log_entries=64),
        "context_sizes": ContextSizes(max_clusters=20, max_pages=64),
        "staging_head_pages": 200,
        "max_cluster_tokens": 65535,
    },
    "storage": {"offload_to_storage": True, "max_resident_tokens": 5, "max_descriptor_bytes": 4096},
    "short pages": {
        "page_tokens": 1,
        "max_resident_tokens": 5,
        "sizes": StoreSizes(5, page_frames=12, page_tokens=1, key_bytes=32, log_entries=64),
        "context_sizes": ContextSizes(max_clusters=4, max_pages=24),
    },
}


def step(bench, context, clusters):
    """One step: open a context, append tokens; a cluster that does not exist is created. Returns the APPEND replies."""
    assert bench.do(Op.OPEN, context=context)[-1].fault == 0
    replies = []
    for cluster in clusters:
        opened = cluster == int(bench.kvmu.tables.header["clusters"])
        replies += bench.do(Op.APPEND, cluster=cluster, opened=opened, hash=100 * cluster + context)
    bench.do(Op.STEP)
    return replies


def fault(replies):
    return replies[-1].fault


@pytest.mark.parametrize("variant", VARIANTS)
def test_random_commands_keep_the_invariants(variant, rng):
    """After every command the lists agree and every token is in its slot; a refused command changes no byte."""
    bench = StoreBench(rng=rng, **VARIANTS[variant])
    wanted = {Fault.NONE, Fault.OP, Fault.CLUSTER, Fault.ADDRESS, Fault.FETCHING, Fault.UNCOMMITTED}
    faults, owners = set(), set()
    for number in range(20_000):  # until all cases have occurred, 800 or more
        if number >= 800 and wanted <= faults and owners:
            break
        command = bench.random_command(rng)
        before = bench.memory.copy()
        replies = bench.execute(command)
        assert [reply.last for reply in replies] == [0] * (len(replies) - 1) + [1]
        if replies[-1].fault and command.op not in (Op.SELECT, Op.MARK, Op.FETCH):
            assert (bench.memory == before).all() and len(replies) == 1
        if command.op == Op.STEP and not replies[-1].fault:
            header = bench.store.header
            assert int(header["resident_tokens"]) <= bench.config.max_resident_tokens or header["resident_pages"] == 1
            owners |= {bench.kvmu.context} if len(replies) > 1 else set()
        bench.check()
        faults.add(Fault(replies[-1].fault))
    assert wanted <= faults and owners


@pytest.mark.parametrize("retain", [False, True])
def test_pages_equal_the_page_table(retain, rng):
    """Appends, moves, fetches and offloads of one context give pages, frames and bytes of the independent table."""
    bench = StoreBench(
        contexts=(0,),
        sizes=StoreSizes(1, page_frames=400, page_tokens=4, key_bytes=32, log_entries=1),  # a frame for each page
        context_sizes=ContextSizes(max_clusters=30, max_pages=400),
        max_resident_tokens=25,
        max_cluster_tokens=65535,
        staging_head_pages=400,
    )
    table = PageTable(PagingConfig(4, 25, retain_fetched=retain), 2, 8)
    bench.do(Op.OPEN, context=0)
    tables, owner, moved = bench.kvmu.tables, np.empty(0, np.int64), 0
    for _ in range(60):
        clusters = int(tables.header["clusters"])
        expected_bytes, done = 0, len(bench.kvmu.extents)
        for cluster in np.flatnonzero(rng.random(clusters) < 0.3).tolist():
            tokens = np.flatnonzero(owner == cluster)
            expected_bytes += table.fetch([tokens, tokens]).nbytes
            assert not fault(bench.do(Op.SELECT, cluster=cluster, heads=3, retain=retain))
        bench.do(Op.FETCH)
        assert sum(extent.nbytes for extent in bench.kvmu.extents[done:]) == expected_bytes
        for token in rng.integers(0, len(owner), 3 * (len(owner) > 0 and not retain)).tolist():
            page, slot = table._page_of[token], table._slot_of[token]
            if table.pages[page].frame is not None:
                target = int(rng.integers(len(tables.context.clusters)))
                target = min(target, int(tables.header["clusters"]))
                opened = target == int(tables.header["clusters"])
                reply = bench.do(Op.MOVE, page=page, slot=slot, cluster=target, opened=opened)[-1]
                assert (reply.page, reply.slot) == tuple(table.move([token], [target])[0, 2:].tolist())
                owner[token], moved = target, moved + 1
        new = rng.integers(0, min(20, int(tables.header["clusters"]) + 1), rng.integers(1, 8)).tolist()
        new = [min(cluster, int(tables.header["clusters"]) + n) for n, cluster in enumerate(sorted(new))]
        for cluster in new:
            opened = cluster == int(tables.header["clusters"])
            assert not fault(bench.do(Op.APPEND, cluster=cluster, opened=opened))
        bench.do(Op.STEP)
        table.append(new)
        owner = np.append(owner, new)
        bench.check()
        assert pages_of(bench, 0) == {
            number: (page.cluster, page.tokens, page.frame, page.on_host)
            for number, page in enumerate(table.pages)
            if page is not None
        }
        assert [page for _, page in ages(bench)] == list(table.resident)
        slots = [bench.kvmu.token_slot(token) for token in range(table.tokens)]
        assert slots == list(zip(table._page_of, table._slot_of, strict=True))
        assert bench.kvmu.resident_tokens == table.resident_tokens
    assert len(table.pages) > 50 and (moved > 20) != retain


def walk(context):
    """Page and slot of every token: walks the chains of all clusters, and the pages that only references keep."""
    chained = [page for cluster in range(int(context.header["clusters"])) for page in context.chain(cluster)]
    held = [
        page for page in range(len(context.pages)) if int(context.pages[page]["references"]) and page not in chained
    ]
    out = {}
    for page in chained + held:
        for slot, token in enumerate(context.tokens(page)):
            if int(context.pages[page]["live"]) & 1 << slot:
                assert token not in out
                out[token] = (page, slot)
    return out


@pytest.mark.parametrize("variant", VARIANTS)
def test_token_slot_equals_a_walk_of_the_lists(variant, rng):
    """After each of 400 or more random commands, for every token of the open context, those without a page included."""
    bench = StoreBench(rng=rng, **VARIANTS[variant])
    needed, accepted = {"APPEND", "STEP", "SELECT", "FETCH", "MOVE", "FREE", "HOLD"}, set()
    released, moved, previous = 0, 0, {}
    for number in range(8000):
        if number >= 400 and needed <= accepted and released and moved:
            break
        command = bench.random_command(rng, wild=0.05)
        if not bench.execute(command)[-1].fault:
            accepted.add(Op(command.op).name)
        if bench.kvmu.context is None:
            continue
        tokens, expected = int(bench.kvmu.tables.header["tokens"]), walk(bench.kvmu.tables.context)
        before = bench.memory.copy()
        assert {token: bench.kvmu.token_slot(token) for token in range(tokens)} == {
            token: expected.get(token) for token in range(tokens)
        }
        assert (bench.memory == before).all()
        released += tokens - len(expected)
        moved += command.op == Op.MOVE and any(expected[token] != previous.get(token) for token in expected)
        previous = expected
    assert needed <= accepted and released and moved


def test_token_slot_refuses_unknown_tokens():
    bench = StoreBench()
    with pytest.raises(CommandFault, match="CONTEXT"):
        bench.kvmu.token_slot(0)
    step(bench, 0, [0, 0])
    assert bench.kvmu.token_slot(1) == (0, 1)
    for token in (-1, 2):
        with pytest.raises(ValueError, match=f"token must be between 0 and 1, got {token}"):
            bench.kvmu.token_slot(token)


def pages_of(bench, number):
    """Pages in use of a context: cluster, tokens by slot (-1: the token moved), frame (None: offloaded), saved."""
    context, out = bench.store.context(number), {}
    for page in filter(context.in_use, range(len(context.pages))):
        record = context.pages[page]
        live, flags = int(record["live"]), int(record["flags"])
        tokens = [token if live >> slot & 1 else -1 for slot, token in enumerate(context.tokens(page))]
        frame = int(record["frame"]) if flags & RESIDENT else None
        out[page] = (int(record["cluster"]), tokens, frame, flags & SAVED != 0)
    return out


def ages(bench):
    """Resident pages (context, page), the oldest first."""
    out, frame = [], int(bench.store.header["oldest"])
    while frame != NONE:
        record = bench.store.frames[frame]
        out.append((int(record["context"]), int(record["page"])))
        frame = int(record["newer"])
    return out


def test_offload_takes_the_oldest_pages_of_all_contexts():
    bench = StoreBench(max_resident_tokens=8)
    step(bench, 0, [0, 0, 1])
    step(bench, 3, [0, 0, 0])
    step(bench, 0, [1, 1])
    assert ages(bench) == [(0, 0), (0, 1), (3, 0)]
    step(bench, 1, [0, 0, 0])  # 11 tokens: pages 0 and 1 of context 0 leave, the oldest first
    assert ages(bench) == [(3, 0), (1, 0)]
    assert pages_of(bench, 0) == {0: (0, [0, 1], None, True), 1: (1, [2, 3, 4], None, True)}
    step(bench, 1, [0, 1, 1])
    assert ages(bench) == [(1, 0), (1, 1)]
    assert [(d.kind, d.source_tier, d.target_tier) for d in bench.kvmu.descriptors] == [
        (TransferKind.OFFLOAD, Tier.DEVICE, Tier.HOST)
    ] * len(bench.kvmu.descriptors)
    bench.check()
    step(bench, 0, [1])  # a page that was offloaded takes no more tokens
    assert pages_of(bench, 0)[2] == (1, [5], 1, False)
    bench.check()


def test_tokens_of_the_step_are_not_selected():
    bench = StoreBench()
    step(bench, 0, [0, 0])
    bench.do(Op.OPEN, context=0)
    bench.do(Op.APPEND, cluster=0)
    bench.do(Op.APPEND, cluster=1, opened=1)
    first, last = bench.do(Op.SELECT, cluster=0, heads=2)
    assert (first.page, first.head, first.count, first.transit, last.count) == (0, 1, 2, 0, 1)
    assert [(r.count, r.last) for r in bench.do(Op.SELECT, cluster=1, heads=3)] == [(1, 1)]
    assert bench.do(Op.FETCH)[-1].count == 1
    bench.do(Op.STEP)
    assert [r.count for r in bench.do(Op.SELECT, cluster=0, heads=1)] == [3, 1]
    assert [(r.page, r.count) for r in bench.do(Op.SELECT, cluster=1, heads=1)] == [(1, 1), (0, 1)]
    assert bench.do(Op.FETCH)[-1].count == 2


def test_fetch_copies_used_slots_to_staging():
    bench = StoreBench(max_resident_tokens=1)
    step(bench, 0, [0] * 6 + [1])
    bench.do(Op.OPEN, context=0)
    done = len(bench.kvmu.descriptors)
    staging, unit = bench.config.staging_base, bench.config.head_page_bytes
    beats = bench.do(Op.SELECT, cluster=0, heads=3, bank=1) + bench.do(Op.SELECT, cluster=1, heads=2)
    assert [(r.page, r.head, r.address, r.count, r.transit, r.last) for r in beats] == [
        (0, 0, staging + 12 * unit, 4, 1, 0),
        (0, 1, staging + 13 * unit, 4, 1, 0),
        (1, 0, staging + 14 * unit, 2, 1, 0),
        (1, 1, staging + 15 * unit, 2, 1, 0),
        (0, 0, 0, 2, 0, 1),
        (2, 1, bench.config.page_frames_base + 2 * bench.kvmu.tables.store.page_bytes + unit, 1, 0, 0),
        (0, 0, 0, 1, 0, 1),
    ]
    assert len(bench.kvmu.descriptors) == done  # the joiner waits for the end of the fetch
    last = bench.do(Op.FETCH)[-1]
    assert (last.count, last.tagged, last.tag) == (5, 1, beats[0].tag)
    extents = bench.kvmu.extents[-2:]
    assert [extent.nbytes for extent in extents] == [2 * 4 * 32 + 2 * 32, 2 * 32]
    for page, head, address in ((0, 0, 12), (0, 1, 13), (1, 0, 14), (1, 1, 15)):
        for slot, token in enumerate(bench.kvmu.tables.context.tokens(page)):
            at = staging + address * unit + slot * 32
            assert (bench.memory[at : at + 32] == bench.value(0, token, head)).all()
    assert not bench.kvmu.uncommitted
    beats = bench.do(Op.MARK, page=1, heads=1)
    assert beats[0].address == staging and beats[0].tag == (last.tag + 1) % bench.config.tags


def test_encoded_pages_are_copied_in_blocks():
    """A block of 48 bytes has two tokens; a head page has two blocks. MOVE does not exist."""
    bench = StoreBench(max_resident_tokens=1, lanes=4, kv_bits=4)
    kvmu, size = bench.kvmu, bench.config.head_page_bytes
    kvmu.execute(Command(int(Op.OPEN), context=0))
    replies = [kvmu.execute(Command(int(Op.APPEND), opened=not token))[-1] for token in range(5)]
    blocks = [(reply.address - bench.config.page_frames_base) // 48 for reply in replies]
    assert size == 2 * 48 and blocks == [0, 0, 1, 1, 4]  # KV head 1 of page 0 is between
    assert fault(kvmu.execute(Command(int(Op.MOVE), page=0, slot=0, cluster=0))) == Fault.OP
    kvmu.execute(Command(int(Op.STEP)))
    assert [extent.nbytes for extent in kvmu.extents] == [2 * size]  # page 0 of both heads
    kvmu.execute(Command(int(Op.APPEND), opened=1, cluster=1))
    kvmu.execute(Command(int(Op.STEP)))
    assert [extent.nbytes for extent in kvmu.extents[1:]] == [48, 48]  # one token of page 1
    kvmu.execute(Command(int(Op.SELECT), cluster=0, heads=2))
    kvmu.execute(Command(int(Op.FETCH)))
    assert sum(extent.nbytes for extent in kvmu.extents[3:]) == size + 48


def test_retained_page_becomes_the_newest():
    bench = StoreBench(max_resident_tokens=2)
    step(bench, 1, [0] * 5 + [1, 1])
    assert ages(bench) == [(1, 2)]
    bench.do(Op.OPEN, context=1)
    beats = bench.do(Op.SELECT, cluster=0, heads=2, retain=1)
    assert [(r.page, r.head, r.transit) for r in beats] == [(0, 1, 1), (1, 1, 1), (0, 0, 0)]
    assert bench.kvmu.uncommitted and ages(bench) == [(1, 2), (1, 0), (1, 1)]
    beats = bench.do(Op.SELECT, cluster=0, heads=1)  # settings of the first command hold
    assert [(r.page, r.head, r.transit) for r in beats] == [(0, 0, 0), (1, 0, 0), (0, 0, 0)]
    assert bench.do(Op.FETCH)[-1].count == 4
    kinds = {d.kind for d in bench.kvmu.descriptors if d.target_tier == Tier.DEVICE}
    assert kinds == {TransferKind.RETAIN}
    bench.check()
    done = len(bench.kvmu.descriptors)
    replies = bench.do(Op.STEP)  # the copies in host memory are still valid
    assert [(r.page, r.transit) for r in replies[:-1]] == [(2, 1), (0, 0)]
    assert {d.kind for d in bench.kvmu.descriptors[done:]} == {TransferKind.OFFLOAD} and not bench.kvmu.uncommitted
    bench.check()


def test_pages_that_were_not_selected_leave_first():
    """Three full pages fit; a fourth one displaces the page that was not selected for the longest time."""
    bench = StoreBench(max_resident_tokens=12)
    step(bench, 0, [cluster for cluster in range(3) for _ in range(4)])
    assert ages(bench) == [(0, 0), (0, 1), (0, 2)]
    bench.do(Op.OPEN, context=0)
    bench.do(Op.SELECT, cluster=0, heads=3)
    bench.do(Op.FETCH)
    assert ages(bench) == [(0, 0), (0, 1), (0, 2)] and not bench.kvmu.uncommitted
    bench.do(Op.SELECT, cluster=1, heads=0, retain=1)  # reports nothing
    bench.do(Op.SELECT, cluster=0, heads=3, retain=1)
    bench.do(Op.SELECT, cluster=2, heads=1)
    bench.do(Op.SELECT, cluster=2, heads=2)  # already the newest
    bench.do(Op.FETCH)
    assert ages(bench) == [(0, 1), (0, 0), (0, 2)] and bench.kvmu.uncommitted
    bench.check()
    for opened in (1, 0, 0, 0):
        bench.do(Op.APPEND, cluster=3, opened=opened)
    bench.do(Op.STEP)
    assert ages(bench) == [(0, 0), (0, 2), (0, 3)]
    bench.check()


@pytest.mark.parametrize(("retain", "cause"), [(0, Fault.STAGING), (1, Fault.NO_PAGE_FRAME)])
def test_failed_fetch_refuses_until_its_end(retain, cause):
    sizes = StoreSizes(5, page_frames=3, page_tokens=4, key_bytes=32, log_entries=64)
    bench = StoreBench(max_resident_tokens=1, staging_head_pages=2, sizes=sizes)
    for _ in range(4):
        step(bench, 0, [0] * 4)
    bench.do(Op.OPEN, context=0)
    beats = bench.do(Op.SELECT, cluster=0, heads=1, retain=retain)
    assert [(r.page, r.transit, r.fault) for r in beats[:-1]] == [(0, 1, 0), (1, 1, 0)]
    assert (beats[-1].fault, beats[-1].count) == (cause, 4)
    for op, fields in ((Op.SELECT, {"cluster": 9}), (Op.MARK, {"page": 3}), (Op.SELECT, {"cluster": 0, "heads": 1})):
        assert [(r.fault, r.count) for r in bench.do(op, **fields)] == [(cause, 0)]
    for op in (Op.OPEN, Op.STEP, Op.SYNC, Op.APPEND, Op.LOOKUP, Op.FIND):
        assert fault(bench.do(op)) == Fault.FETCHING
    last = bench.do(Op.FETCH)[-1]
    assert (last.fault, last.count, last.tagged) == (cause, 2, 1)
    assert [(r.fault, r.count) for r in bench.do(Op.FETCH)] == [(0, 0)]
    assert fault(bench.do(Op.SELECT, cluster=0, heads=0)) == 0
    bench.do(Op.FETCH)
    bench.check()


def test_open_checks_context_and_step_in_progress():
    bench = StoreBench()
    for op in Op:
        expected = Fault.NONE if op in (Op.SYNC, Op.OPEN) else Fault.CONTEXT
        assert fault(bench.do(op)) == expected, op
        bench.kvmu._tables = None
    assert fault(bench.do(15)) == Fault.OP
    for number in (2, 4, 5, 1 << 20):
        assert fault(bench.do(Op.OPEN, context=number)) == Fault.CONTEXT
        assert bench.kvmu.context is None
    bench.do(Op.OPEN, context=0)
    bench.do(Op.APPEND, cluster=0, opened=1)
    for number in (0, 1, 2):
        assert fault(bench.do(Op.OPEN, context=number)) == Fault.UNCOMMITTED and bench.kvmu.context == 0
    bench.do(Op.STEP)
    for name, value in (("magic", 5), ("version", 2), ("state", 0)):
        old = int(bench.store.contexts[1][name])
        bench.store.contexts[1][name] = value
        assert fault(bench.do(Op.OPEN, context=1)) == Fault.CONTEXT and bench.kvmu.context is None
        bench.store.contexts[1][name] = old
    bench.store.header["version"] = 2
    assert fault(bench.do(Op.OPEN, context=1)) == Fault.CONTEXT
    bench.store.header["version"] = 1
    assert fault(bench.do(Op.OPEN, context=1)) == 0
    for settings, expected in (
        ({"max_clusters": 5}, Fault.CONTEXT),
        ({"max_pages": 15}, Fault.CONTEXT),
        ({"page_frames": 7}, Fault.CONTEXT),
        ({"max_clusters": 6, "max_pages": 16, "page_frames": 8, "address_bits": 15}, Fault.NONE),
        ({"address_bits": 13}, Fault.REGION),
    ):
        assert fault(StoreBench(**settings).do(Op.OPEN, context=3)) == expected, settings
    other = StoreBench(sizes=StoreSizes(5, 8, page_tokens=8, key_bytes=32, log_entries=64))
    with pytest.raises(ValueError, match="page_tokens of the store must be 4, got 8"):
        other.do(Op.OPEN, context=0)


def test_open_sends_the_candidates_in_the_window():
    bench = StoreBench(window_tokens=6, max_resident_tokens=100)
    step(bench, 0, [0, 1, 1, 2, 2, 2, 3])
    step(bench, 1, [0])
    bench.do(Op.OPEN, context=0)
    opened = bench.kvmu.opened
    assert (opened.tokens, opened.cluster) == (7, 1)
    entries = [(c.cluster, c.hash, c.first_token, c.count) for c in opened.candidates]
    assert entries == [(1, 100, 1, 2), (2, 200, 3, 3), (3, 300, 6, 1)]
    assert int(bench.kvmu.tables.header["first_candidate"]) == 0
    bench.do(Op.OPEN, context=0)
    assert bench.kvmu.opened is None
    bench.do(Op.STEP)
    assert int(bench.kvmu.tables.header["first_candidate"]) == 1
    step(bench, 1, [0] * 9)
    bench.do(Op.OPEN, context=0)
    bench.do(Op.OPEN, context=1)
    assert bench.kvmu.opened.candidates == () and (bench.kvmu.opened.tokens, bench.kvmu.opened.cluster) == (10, 1)
    everything = StoreBench(window_tokens=0)
    step(everything, 0, [0] * 9 + [1])
    everything.do(Op.OPEN, context=1)
    everything.do(Op.OPEN, context=0)
    assert [c.cluster for c in everything.kvmu.opened.candidates] == [0, 1]


def test_cluster_numbers_are_checked():
    bench = StoreBench(context_sizes=ContextSizes(max_clusters=2, max_pages=16))
    bench.do(Op.OPEN, context=0)
    for fields in ({"cluster": 0}, {"cluster": 1, "opened": 1}):
        assert fault(bench.do(Op.APPEND, **fields)) == Fault.CLUSTER
    assert not fault(bench.do(Op.APPEND, cluster=0, opened=1, hash=7))
    assert not fault(bench.do(Op.APPEND, cluster=1, opened=1, hash=9))
    for fields in ({"cluster": 2, "opened": 1}, {"cluster": 1, "opened": 1}, {"cluster": 2}):
        assert fault(bench.do(Op.APPEND, **fields)) == Fault.CLUSTER
        assert fault(bench.do(Op.MOVE, **fields)) == Fault.CLUSTER
    for op in (Op.SELECT, Op.FIND, Op.EVICT):
        assert fault(bench.do(op, cluster=2)) == Fault.CLUSTER
    records = bench.kvmu.tables.context.clusters
    assert [tuple(record)[:4] for record in records] == [(7, 0, 1, 1), (9, 1, 1, 1)]
    bench.check()


def test_counts_follow_moves_and_released_pages():
    bench = StoreBench(max_cluster_tokens=5, max_resident_tokens=100)
    step(bench, 0, [0] * 7 + [1])
    counts = bench.kvmu.tables.context.counts
    assert counts.tolist() == [5, 1, 0, 0, 0, 0]  # cluster 0 is saturated
    bench.do(Op.MOVE, page=0, slot=1, cluster=1)
    bench.do(Op.MOVE, page=0, slot=0, cluster=2, opened=1, hash=77)
    assert counts.tolist() == [3, 2, 1, 0, 0, 0]
    assert tuple(bench.kvmu.tables.context.clusters[2])[:3] == (77, 8, 1)
    assert bench.kvmu.tables.context.tokens(3) == [0] and bench.kvmu.tables.context.tokens(2) == [7, 1]
    bench.do(Op.FREE, page=0)
    assert counts.tolist() == [1, 2, 1, 0, 0, 0]
    bench.do(Op.MOVE, page=1, slot=0, cluster=0)  # the page is sealed; the token gets a new page of its own cluster
    assert counts.tolist() == [1, 2, 1, 0, 0, 0] and bench.kvmu.tables.context.chain(0) == [1, 0]
    bench.do(Op.FREE, page=1)
    assert counts.tolist() == [0, 2, 1, 0, 0, 0] and bench.kvmu.tables.context.chain(0) == [0]
    bench.do(Op.EVICT, cluster=0)
    assert counts.tolist() == [0, 2, 1, 0, 0, 0]
    bench.check()


def test_full_tables_refuse_tokens():
    """NO_PAGE_FRAME while all frames are in use, NO_PAGE when the page numbers of the context are used."""
    bench = StoreBench(max_resident_tokens=1)
    bench.do(Op.OPEN, context=0)
    for cluster in range(6):
        bench.do(Op.APPEND, cluster=cluster, opened=1)
        bench.do(Op.SEAL, page=cluster)
    for _ in range(2):
        page = bench.do(Op.APPEND, cluster=0)[-1].page
        bench.do(Op.SEAL, page=page)
    for op in (Op.APPEND, Op.MOVE):
        assert fault(bench.do(op, cluster=1)) == Fault.NO_PAGE_FRAME
    assert bench.kvmu.tables.has(5, RESIDENT)
    for _ in range(8):
        bench.do(Op.STEP)
        assert not fault(bench.do(Op.APPEND, cluster=3))
        bench.do(Op.SEAL, page=int(bench.kvmu.tables.header["never_used"]) - 1)
    bench.do(Op.STEP)
    assert fault(bench.do(Op.APPEND, cluster=2)) == Fault.NO_PAGE
    bench.do(Op.OPEN, context=1)
    assert not fault(bench.do(Op.APPEND, cluster=0, opened=1))
    bench.do(Op.STEP)
    bench.do(Op.OPEN, context=0)
    assert bench.do(Op.FREE, page=7)[-1].count == 0 and fault(bench.do(Op.FREE, page=7)) == Fault.ADDRESS
    assert bench.do(Op.APPEND, cluster=2)[-1].page == 7
    bench.complete = False
    bench.check()


def test_references_keep_a_page():
    bench = StoreBench(max_resident_tokens=100)
    step(bench, 0, [0, 0, 1])
    for expected in (2, 3, 4):
        assert bench.do(Op.HOLD, page=0)[-1].count == expected
    assert fault(bench.do(Op.HOLD, page=0)) == Fault.HELD
    assert fault(bench.do(Op.MOVE, page=0, slot=0, cluster=1)) == Fault.HELD
    assert bench.do(Op.APPEND, cluster=0)[-1].page == 2  # a held page takes no more tokens
    evicted = bench.do(Op.EVICT, cluster=0, page=1)
    assert [(r.page, r.count) for r in evicted] == [(0, 2), (0, 1)]
    assert bench.kvmu.tables.context.chain(0) == [2] and bench.kvmu.tables.context.in_use(0)
    assert [r.page for r in bench.do(Op.MARK, page=0, heads=1)[:-1]] == [0]
    bench.do(Op.FETCH)
    assert [bench.do(Op.FREE, page=0)[-1].count for _ in range(3)] == [2, 1, 0]
    for op in (Op.FREE, Op.SEAL, Op.HOLD, Op.MARK, Op.MIGRATE, Op.LOOKUP):
        assert fault(bench.do(op, page=0, tier=1)) == Fault.ADDRESS
    bench.check()


def test_migrated_page_is_copied_once():
    bench = StoreBench(max_resident_tokens=1)
    step(bench, 0, [0] * 4 + [1])
    for tier in (Tier.STORAGE, Tier.STORAGE, Tier.HOST):
        done = len(bench.kvmu.descriptors)
        bench.do(Op.MIGRATE, page=0, tier=tier)
        bench.check()
        copies = {(d.source_tier, d.target_tier) for d in bench.kvmu.descriptors[done:]}
        assert all(target == tier and source == 3 - tier for source, target in copies)
    assert bench.do(Op.LOOKUP, page=0, slot=3, head=1)[-1].tier == Tier.HOST
    assert fault(bench.do(Op.MIGRATE, page=0, tier=0)) == fault(bench.do(Op.MIGRATE, page=0, tier=3)) == Fault.ADDRESS
    bench.do(Op.MIGRATE, page=1, tier=Tier.STORAGE)  # resident: nothing to copy yet
    bench.do(Op.STEP)
    step(bench, 0, [0])
    assert bench.do(Op.LOOKUP, page=1, slot=0)[-1].tier == Tier.STORAGE
    assert fault(bench.do(Op.MOVE, page=1, slot=0, cluster=0)) == Fault.NOT_RESIDENT
    bench.check()


def test_lookup_of_missing_kv_head_returns_address_fault():
    bench = StoreBench()
    step(bench, 0, [0, 0])
    for op in (Op.LOOKUP, Op.FIND):
        for head, expected in ((1, Fault.NONE), (2, Fault.ADDRESS)):
            assert fault(bench.do(op, cluster=0, head=head)) == expected
    assert bench.do(Op.FIND, cluster=0, index=1)[-1].slot == 1
    assert fault(bench.do(Op.FIND, cluster=0, index=2)) == Fault.ADDRESS
    assert fault(bench.do(Op.LOOKUP, page=0, slot=2)) == Fault.ADDRESS


def test_every_step_is_counted():
    bench = StoreBench()
    for expected in range(4):
        assert int(bench.store.header["step"]) == expected
        step(bench, expected % 2, [0])
    steps = [int(bench.store.context(n).pages[0]["step"]) for n in (0, 1)]
    pasts = [int(bench.store.context(n).pages[0]["past"]) for n in (0, 1)]
    assert (steps, pasts) == ([3, 4], [1, 1])
    assert all(a.tag <= 3 for a, _ in pairwise(bench.kvmu.descriptors)) and SIZES.contexts == 5
    assert CONTEXT_SIZES.max_pages == len(bench.kvmu.tables.pages)
