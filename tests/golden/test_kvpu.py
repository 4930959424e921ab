"""KV prediction unit compared with its units used separately, and with a page table without limits."""

import numpy as np
import pytest

from golden.clustering import ClusterRule, ClusterTable
from golden.hc_table import HcTableConfig
from golden.kvmu import KvmuConfig, Op, TransferKind
from golden.kvpu import HeadScores, Kvpu
from golden.page_table import PageTable, PagingConfig
from golden.selection import RESV
from golden.wicsum import exact, fixed_point

RULE = ClusterRule(hamming_threshold=5, window_tokens=60)
TABLE = HcTableConfig(max_clusters=256, max_list_pages=256, list_page_tokens=4, key_dim=16)
PAGES = KvmuConfig(
    2,
    8,
    4,
    max_pages=256,
    page_frames=256,
    max_clusters=256,
    staging_head_pages=512,
    max_resident_tokens=30,
    bases=(0, 1 << 20, 2 << 20, 3 << 20, 4 << 20),
)
TARGET = 19661


@pytest.mark.parametrize("retain", [False, True])
def test_step_equals_separate_units(retain, rng):
    chain = Kvpu(RULE, TABLE, PAGES, RESV, TARGET, retain)
    clusters, pages = ClusterTable(RULE), PageTable(PagingConfig(4, 30, retain_fetched=retain), 2, 8)
    owner = np.empty(0, np.int64)
    for _ in range(25):
        codes = (rng.integers(0, 2**16, 6)[rng.integers(0, 6, 10)] ^ (1 << rng.integers(0, 16, 10))).astype(np.uint32)
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
        owner = np.concatenate([owner, assigned.cluster])
        pages.append(assigned.cluster)
        assert [r.op for r in appended] == [Op.APPEND] * 10
        assert not any(r.fault for r in appended + moved)
        if not retain:  # a retained page is selected for every head
            assert sum(d.bytes for d in fetched) == wanted.nbytes
    assert len(chain.kvmu.descriptors) > 100 and chain.table.counts(4).sum() == 250
    assert chain.begin(0)[-1].fault == 0 and not chain.table.entries
