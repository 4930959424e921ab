"""Other uses of the KVMU: a block table with shared prefixes, compaction of a pruned cache, splits of clusters."""

import numpy as np

from golden.hybrid import BlockPool, BlockTable, HybridConfig
from golden.kvmu import Fault, Op
from golden.mosaic.index import SemanticIndex
from golden.mosaic.statistics import MosaicConfig, unit_rows
from golden.page_table import compaction
from golden.quickvideo import top_tokens
from tests.hw.dre.kvmu.test_kvmu import Bench

SIZES = {
    "max_pages": 64,
    "page_frames": 64,
    "page_tokens": 4,
    "max_clusters": 64,
    "cluster_bits": 7,
    "reference_bits": 3,
}
BASES = (0, 0x8000, 0x18000, 0x28010)


class Stream:
    """Block table of one stream: shared pages, then the page chain of its own cluster."""

    def __init__(self, bench, cluster, config):
        self.bench, self.cluster, self.config = bench, cluster, config
        self.shared, self.own, self.tokens, self.seen = [], [], {}, 0

    @property
    def pages(self):
        return [*self.shared, *self.own]

    def append(self, count):
        for _ in range(count):
            page = self.bench.do(Op.APPEND, cluster=self.cluster)[-1].page
            if not self.own or self.own[-1] != page:
                self.own.append(page)
                self.tokens[page] = []
            self.tokens[page].append(self.seen)
            self.seen += 1
        sink, recent = self.config.sink_blocks, self.config.recent_blocks
        held = sum(len(self.tokens[page]) for page in self.pages)
        if held < self.config.max_tokens or len(self.pages) <= sink + recent:
            return
        end = len(self.pages) - recent
        gone = self.bench.do(Op.EVICT, cluster=self.cluster, index=max(0, sink - len(self.shared)), page=recent)
        assert [r.page for r in gone[:-1]] == self.pages[max(sink, len(self.shared)) : end]
        for page in self.shared[sink:end]:
            self.bench.do(Op.FREE, page=page)
        stay = self.pages[:sink] + self.pages[end:]
        self.shared, self.own = [p for p in self.shared if p in stay], [p for p in self.own if p in stay]

    def fork(self, cluster):
        other = Stream(self.bench, cluster, self.config)
        other.shared, other.tokens, other.seen = self.pages, {p: self.tokens[p] for p in self.pages}, self.seen
        for page in self.pages:
            assert self.bench.do(Op.HOLD, page=page)[-1].fault == Fault.NONE
        return other

    def close(self):
        for page in self.shared:
            self.bench.do(Op.FREE, page=page)
        self.bench.do(Op.EVICT, cluster=self.cluster)


def block_table(bench, rng):
    """Streams that share blocks of a prefix and evict between sink and recent blocks, compared with `BlockTable`."""
    config = HybridConfig(block=4, sink_blocks=2, recent_blocks=3, max_tokens=24)
    pool = BlockPool(SIZES["max_pages"])
    tables, streams, clusters = [BlockTable(pool, config)], [Stream(bench, 0, config)], 1
    forks = 0
    for _ in range(90):
        n = int(rng.integers(len(tables)))
        if len(tables) > 1 and rng.random() < 0.15:
            tables.pop(n).close()
            streams.pop(n).close()
        else:
            count = int(rng.integers(9))
            tables[n].append(count)
            streams[n].append(count)
            full = tables[n].blocks and len(tables[n].tokens[-1]) == config.block
            if full and len(tables) < 4 and clusters < 64:
                tables.append(tables[n].fork())
                streams.append(streams[n].fork(clusters))
                clusters, forks = clusters + 1, forks + 1
        for table, stream in zip(tables, streams, strict=True):
            assert [stream.tokens[page] for page in stream.pages] == table.tokens
        assert sum(page is not None for page in bench.golden.table.pages) == SIZES["max_pages"] - pool.free
    assert forks > 3
    for stream in streams:
        for page in stream.pages:
            bench.do(Op.MARK, page=page, heads=3)
    assert len(bench.do(Op.FETCH)) == 1 + 2 * len({page for stream in streams for page in stream.pages})


def kept_sets(bench, rng):
    """Groups of new tokens, pruned to their keys of small norm, are appended to the tokens of earlier groups."""
    group, chain, stay, first = 1, 0, [], 0
    for _ in range(4):
        count = int(rng.integers(12, 30))
        replies = [bench.do(Op.APPEND, cluster=group)[-1] for _ in range(count)]
        keys = rng.standard_normal((count, 2, 8))
        keep = top_tokens(-np.linalg.norm(keys.reshape(count, -1), axis=1), 0.5)
        for n in keep.tolist():
            moved = bench.do(Op.MOVE, page=replies[n].page, slot=replies[n].slot, cluster=chain)[-1]
            assert moved.fault == Fault.NONE
        for page in dict.fromkeys(reply.page for reply in replies):
            if page in bench.golden.table.chains.get(group, []):
                bench.do(Op.FREE, page=page)
        stay += (first + keep).tolist()
        first += count
        assert not bench.golden.table.chains[group]
    # the chain equals a compaction by copies: entry n is in the n-th slot
    layout = np.arange(first)
    for source, target, size in compaction(np.array(stay)).tolist():
        layout[target : target + size] = layout[source : source + size].copy()
    assert layout[: len(stay)].tolist() == stay
    page_of = bench.golden.table.chains[chain]
    assert [len(bench.golden.table.page(p).tokens) for p in page_of[:-1]] == [4] * (len(page_of) - 1)
    for n in range(len(stay)):
        reply = bench.do(Op.FIND, cluster=chain, index=n)[-1]
        assert (reply.page, reply.slot) == (page_of[n // 4], n % 4)
    assert bench.do(Op.FIND, cluster=chain, index=len(stay))[-1].fault == Fault.ADDRESS


def splits(bench, rng):
    """A semantic index grows and splits; after every entry the chains hold exactly the tokens of its clusters."""
    index = SemanticIndex(MosaicConfig(tau_min=0.3, tau_max=0.5))
    numbers, locations, owner, seen = {}, {}, {}, 0
    centres = unit_rows("centres", rng.standard_normal((6, 16)))
    for token in range(90):
        entry = unit_rows("entry", (centres[token % 6] + 0.25 * rng.standard_normal(16))[None])[0]
        index.add(0, entry, np.array([token]))
        now = {int(t): c for c in index.clusters for t in index.tokens(c)}
        numbers = {c: numbers[c] for c in index.clusters if c in numbers}
        for cluster in index.clusters:
            used = {*numbers.values(), *owner.values()}
            numbers.setdefault(cluster, min(set(range(SIZES["max_clusters"])) - used))
        for t in sorted(now):
            target = numbers[now[t]]
            if t not in owner:
                reply = bench.do(Op.APPEND, cluster=target)[-1]
            elif owner[t] != target:
                reply = bench.do(Op.MOVE, page=locations[t][0], slot=locations[t][1], cluster=target)[-1]
                seen += 1
            else:
                continue
            assert reply.fault == Fault.NONE
            locations[t], owner[t] = (reply.page, reply.slot), target
        table = bench.golden.table
        for cluster in index.clusters:
            pages = table.chains[numbers[cluster]]
            stored = {(page, slot) for page in pages for slot in range(4) if table.alive(page, slot)}
            assert stored == {locations[int(t)] for t in index.tokens(cluster)}
    assert index.splits > 3 and seen > 20


def test_three_more_uses(rng, seed):
    bench = Bench(**SIZES, max_resident_tokens=256, staging_head_pages=64, max_descriptor_bytes=0, bases=BASES)
    for script in (block_table, kept_sets, splits):
        script(bench, rng)
        bench.do(Op.BEGIN)
    kinds = {d.kind for d in bench.golden.descriptors}
    assert kinds == {3}
    bench.check(stall=0.2, seed=seed)
