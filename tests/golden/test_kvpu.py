"""KV prediction unit compared with its units used separately, and with a page table without limits."""

import numpy as np
import pytest

from golden.clustering import ClusterRule, ClusterTable
from golden.kvmu import Fault, KvmuConfig, Op, TransferKind
from golden.kvpu import HeadScores, Kvpu
from golden.page_table import PageTable, PagingConfig
from golden.selection import RESV
from golden.store import ContextSizes, StoreSizes, check, create_context, create_store
from golden.wicsum import exact, fixed_point

RULE = ClusterRule(hamming_threshold=5, window_tokens=60)
SIZES = StoreSizes(contexts=4, page_frames=256, page_tokens=4, key_bytes=32, log_entries=8)
CONTEXT = ContextSizes(max_clusters=256, max_pages=256)
PAGES = KvmuConfig(2, 8, 4, page_frames_base=1 << 20, staging_base=3 << 20, staging_head_pages=512)
TARGET = 19661


def chain_of(contexts, retain=False, max_resident_tokens=30):
    """A KV prediction unit on a store with `contexts` contexts."""
    size = CONTEXT.nbytes(SIZES)
    memory = np.zeros(SIZES.nbytes + contexts * size, np.uint8)
    store = create_store(memory, 0, SIZES)
    for n in range(contexts):
        create_context(store, n, CONTEXT, SIZES.nbytes + n * size, host_base=n << 20)
    config = KvmuConfig(**{**vars(PAGES), "max_resident_tokens": max_resident_tokens})
    return Kvpu(RULE, config, memory, 0, RESV, TARGET, retain), store


def random_codes(rng):
    """Hash codes of ten tokens around six centres."""
    return (rng.integers(0, 2**16, 6)[rng.integers(0, 6, 10)] ^ (1 << rng.integers(0, 16, 10))).astype(np.uint32)


def past_tokens(chain, replies, head):
    """Tokens of the head pages that SELECT reported for one KV head, in order."""
    return [
        token
        for reply in replies
        if reply.op == Op.SELECT and not reply.last and reply.head == head
        for token in chain.context.lists[reply.page, : reply.count].tolist()
    ]


@pytest.mark.parametrize("retain", [False, True])
def test_step_equals_separate_units(retain, rng):
    chain, store = chain_of(1, retain)
    clusters, pages = ClusterTable(RULE), PageTable(PagingConfig(4, 30, retain_fetched=retain), 2, 8)
    owner = np.empty(0, np.int64)
    assert chain.open(0)[-1].fault == 0
    for _ in range(25):
        codes = random_codes(rng)
        scores = {}
        assigned, appended = chain.cluster(codes)
        assert assigned.cluster.tolist() == clusters.assign(codes).cluster.tolist()
        count = len(clusters)
        groups = [HeadScores(head, rng.integers(0x3C00, 0x3F81, (3, count))) for head in range(2)]
        before = len(chain.kvmu.descriptors)
        rows, selected, moved = chain.fetch(groups)
        for group, result, chosen in zip(groups, rows, selected, strict=True):
            at_least = exact(fixed_point(group.keys).astype(float), clusters.counts, TARGET / 65536)
            assert (result.selected | ~at_least).all()
            assert (chosen == result.selected.any(axis=0)).all()
            scores[group.head] = chosen
        wanted = pages.fetch([np.flatnonzero(scores[head][owner]) for head in range(2)])
        fetched = [d for d in chain.kvmu.descriptors[before:] if d.kind in (TransferKind.FETCH, TransferKind.RETAIN)]
        for head in range(2):
            assert sorted(past_tokens(chain, moved, head)) == np.flatnonzero(scores[head][owner]).tolist()
        owner = np.concatenate([owner, assigned.cluster])
        pages.append(assigned.cluster)
        assert [r.op for r in appended] == [Op.APPEND] * 10
        assert not any(r.fault for r in appended + moved)
        if not retain:  # a retained page is fetched for every head
            assert sum(d.bytes for d in fetched) == wanted.nbytes
        check(store)
    assert len(chain.kvmu.descriptors) > 100 and chain.context.counts.sum() == 250


def test_interleaved_contexts_equal_separate_contexts(rng):
    """Steps of three contexts in random order: same clusters, selections and tokens as three units used alone."""
    shared, store = chain_of(3, max_resident_tokens=50)
    alone = [chain_of(1)[0] for _ in range(3)]
    for chain in alone:
        chain.open(0)
    # the tokens of the last three steps are still in device memory at the end: one step of each context
    for number in [*rng.integers(3, size=37).tolist(), *rng.permutation(3).tolist()]:
        codes = random_codes(rng)
        assert shared.open(number)[-1].fault == 0
        halves = []
        for chain in (shared, alone[number]):
            assigned, _ = chain.cluster(codes)
            keys = np.random.default_rng(len(chain.clusters)).integers(0x3C00, 0x3F81, (3, len(chain.clusters)))
            _, selected, replies = chain.fetch([HeadScores(1, keys)])
            tokens = past_tokens(chain, replies, 1)
            halves.append((assigned.cluster.tolist(), assigned.count.tolist(), selected[0].tolist(), tokens))
            assert not any(reply.fault for reply in replies)
        assert halves[0] == halves[1]
        check(store)
    pages = {int(frame["context"]) for frame in store.frames}
    assert {0, 1, 2} <= pages and any(d.kind == TransferKind.OFFLOAD for d in shared.kvmu.descriptors)


def test_open_context_stays_as_it_is():
    chain, _ = chain_of(2)
    assert chain.open(3)[-1].fault == Fault.CONTEXT
    chain.open(1)
    chain.cluster(np.array([5], np.uint32))
    assert chain.open(1)[-1].fault == chain.open(0)[-1].fault == Fault.UNCOMMITTED
    chain.fetch([])
    table = chain.clusters
    assert chain.open(1)[-1].fault == 0 and chain.clusters is table
    assert chain.open(0)[-1].fault == 0 and len(chain.clusters) == 0
    chain.open(1)
    assert chain.clusters is not table and chain.clusters.codes.tolist() == [5] and chain.clusters.tokens == 1


def test_restored_cluster_table_continues(rng):
    codes = np.concatenate([random_codes(rng) for _ in range(30)])
    one, table = ClusterTable(RULE), ClusterTable(RULE)
    expected = one.assign(codes)
    for start in range(0, 300, 50):
        assigned = table.assign(codes[start : start + 50])
        assert assigned.cluster.tolist() == expected.cluster[start : start + 50].tolist()
        assert assigned.compared.tolist() == expected.compared[start : start + 50].tolist()
        saved = {name: getattr(table, name).copy() for name in ("codes", "counts", "first_token")}
        table = ClusterTable.restore(RULE, tokens=table.tokens, first_candidate=table.first_candidate, **saved)
        assert not table.dropped
    some = {name: np.arange(20) for name in saved}
    full = ClusterTable.restore(ClusterRule(max_candidates=16), tokens=20, first_candidate=3, **some)
    assert full.dropped and len(full) == 19 and full.first_candidate == 3
    with pytest.raises(ValueError, match="cluster_hash must be leader, got 'majority'"):
        ClusterTable.restore(ClusterRule(cluster_hash="majority"), tokens=0, first_candidate=0, **saved)
    with pytest.raises(ValueError, match="first_candidate must be between 0 and"):
        ClusterTable.restore(RULE, tokens=300, first_candidate=len(saved["codes"]) + 1, **saved)


def test_moved_tokens_belong_to_their_new_cluster(rng):
    """Tokens of each cluster and candidates of the next step, after random moves, the first one to a new cluster."""
    rule = ClusterRule(hamming_threshold=5)
    chain, store = chain_of(2, max_resident_tokens=1000)
    chain = Kvpu(rule, chain.kvmu.config, chain.kvmu.memory, 0, RESV, TARGET)
    owner, moved = np.empty(0, np.int64), False
    for _ in range(8):
        chain.open(0)
        assigned, _ = chain.cluster(random_codes(rng))
        chain.commit()
        owner = np.concatenate([owner, assigned.cluster])
        for token in rng.permutation(len(owner))[:6].tolist():
            clusters = int(chain.context.header["clusters"])
            target = int(rng.integers(clusters + 1)) if moved else clusters
            assert not chain.move(token, target, 0x1000 + target)[-1].fault
            owner[token], moved = target, True
        chain.commit()
        chain.open(1)
        chain.open(0)
        counts = np.bincount(owner, minlength=int(chain.context.header["clusters"]))
        assert chain.clusters.counts.tolist() == chain.context.counts[: len(counts)].tolist() == counts.tolist()
        for cluster in range(len(counts)):
            slots = [(p, s) for p in chain.context.chain(cluster) for s in range(4) if chain.kvmu.tables.is_live(p, s)]
            assert sorted(chain.context.lists[slot] for slot in slots) == np.flatnonzero(owner == cluster).tolist()
        check(store)
