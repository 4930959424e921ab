"""HC table compared with the clustering, read back from the memory that it wrote."""

import numpy as np
import pytest

from golden.clustering import ClusterRule, ClusterTable
from golden.hc_table import ClusterEntry, Fault, HcTable, HcTableConfig

CONFIG = HcTableConfig(
    max_clusters=64, max_list_pages=128, list_page_tokens=4, key_dim=16, bases=(0, 0x1000, 0x4000, 0x8000, 0xC000)
)


def filled(rng, tokens=300, config=CONFIG):
    """A table that received the results of a clustering, and that clustering."""
    codes = (rng.integers(0, 2**16, 9)[rng.integers(0, 9, tokens)] ^ (1 << rng.integers(0, 16, tokens))).astype(
        np.uint32
    )
    clusters = ClusterTable(ClusterRule(hamming_threshold=4))
    assigned, table = clusters.assign(codes), HcTable(config)
    for n, code in enumerate(codes.tolist()):
        step = {
            "cluster": int(assigned.cluster[n]),
            "count": int(assigned.count[n]),
            "opened": bool(assigned.opened[n]),
        }
        assert table.update(token=n, hash=code, **step) == Fault.NONE
    return table, clusters, assigned


def image(table):
    """Memory after the writes, at most one page further than any write."""
    memory = np.zeros(1 << 16, np.uint8)
    for address, value in table.writes:
        memory[address : address + len(value)] = np.frombuffer(value, np.uint8)
    return memory


def test_memory_holds_every_cluster_and_every_token(rng):
    table, clusters, assigned = filled(rng)
    memory = image(table)
    indices, links = memory[0x1000:0x4000].view("<u4").reshape(-1, 4), memory[0x4000:0x4200].view("<u4")
    for cluster in range(len(clusters)):
        record = memory[16 * cluster : 16 * cluster + 16]
        code, first_token = record[:8].view("<u4").tolist()
        count, page, newest, zero = record[8:].view("<u2").tolist()
        assert (code, first_token, count, zero) == (
            clusters.codes[cluster],
            clusters.first_token[cluster],
            clusters.counts[cluster],
            0,
        )
        tokens = []
        while len(tokens) < count:
            tokens += indices[page, : count - len(tokens)].tolist()
            last, page = page, int(links[page])
        assert last == newest
        assert tokens == np.flatnonzero(assigned.cluster == cluster).tolist()
        where = [((address - 0x1000) // 16, size) for address, size in table.pages(cluster)]
        assert [t for page, size in where for t in indices[page, :size].tolist()] == tokens
    assert table.counts(8).ravel()[: len(clusters)].tolist() == clusters.counts.tolist()
    assert not table.counts(8).ravel()[len(clusters) :].any()
    assert table.mean_key_address(3) == 0x8000 + 3 * 32


def test_table_reloads_from_memory(rng):
    table, clusters, _ = filled(rng)
    other = HcTable(CONFIG)
    assert other.begin(table.used) == Fault.NONE
    memory = image(table)
    for cluster in range(len(clusters)):
        code, first_token = memory[16 * cluster :][:8].view("<u4").tolist()
        count, first, newest, _ = memory[16 * cluster + 8 :][:8].view("<u2").tolist()
        assert other.load(ClusterEntry(code, first_token, count, first, newest)) == Fault.NONE
    for page, following in table.links.items():
        assert other.link(page, following) == Fault.NONE
    assert (other.entries, other.links, other.used) == (table.entries, table.links, table.used)


def test_rejected_commands_change_nothing():
    table = HcTable(HcTableConfig(max_clusters=2, max_list_pages=2, list_page_tokens=2, key_dim=1))
    step = {"token": 0, "hash": 5, "count": 1}
    assert table.update(cluster=1, opened=True, **step) == Fault.CLUSTER  # not the next cluster
    assert table.update(cluster=0, opened=False, **step) == Fault.CLUSTER
    assert table.update(cluster=0, opened=True, **step) == Fault.NONE
    assert table.update(cluster=0, opened=False, token=1, hash=5, count=1) == Fault.COUNT  # saturated
    assert table.update(cluster=0, opened=False, token=1, hash=5, count=3) == Fault.COUNT
    assert table.update(cluster=1, opened=True, **step) == Fault.NONE
    assert table.update(cluster=2, opened=True, **step) == Fault.CLUSTER  # full
    assert table.load(table.entries[0]) == Fault.CLUSTER
    assert table.update(cluster=0, opened=False, token=1, hash=5, count=2) == Fault.NONE
    before = list(table.entries), list(table.writes)
    assert table.update(cluster=0, opened=False, token=2, hash=5, count=3) == Fault.NO_PAGE
    assert (table.entries, table.writes) == before
    high = HcTable(
        HcTableConfig(
            max_clusters=2, max_list_pages=2, list_page_tokens=2, key_dim=1, bases=(0, 0, 0, 61, 0), address_bits=6
        )
    )
    assert high.begin() == high.cluster_fault(0) == Fault.REGION
    with pytest.raises(ValueError, match="clusters must be at least 1, got 0"):
        HcTableConfig(max_clusters=0, max_list_pages=2, list_page_tokens=2, key_dim=1)
