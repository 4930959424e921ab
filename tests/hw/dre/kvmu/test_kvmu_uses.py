"""Other uses of the KVMU: a block table with shared prefixes, compaction of a pruned cache, splits of clusters."""

import numpy as np

from golden.hybrid import BlockPool, BlockTable, HybridConfig
from golden.kvmu import Fault, Op, TransferKind
from golden.mosaic.index import SemanticIndex
from golden.mosaic.statistics import MosaicConfig, unit_rows
from golden.page_table import compaction
from golden.quickvideo import top_tokens
from tests.hw.dre.kvmu.kvmu_bench import LARGE, KvmuBench


class Clusters:
    """Names for the clusters of a context, which the unit numbers in the order in which they open."""

    def __init__(self, bench):
        self.bench, self.numbers = bench, {}

    def put(self, op, name, **fields):
        """APPEND or MOVE to the cluster `name`; returns the last reply."""
        opened = name not in self.numbers
        number = self.numbers.setdefault(name, len(self.numbers))
        reply = self.bench.do(op, cluster=number, opened=int(opened), hash=opened * number, **fields)[-1]
        assert reply.fault == Fault.NONE
        return reply

    def pages(self, name):
        """Pages of the cluster `name`."""
        context = self.bench.kvmu.tables.context
        return context.chain(self.numbers[name]) if name in self.numbers else []

    def evict(self, name, **fields):
        """EVICT; returns the pages that leave."""
        if name not in self.numbers:
            return []
        return [reply.page for reply in self.bench.do(Op.EVICT, cluster=self.numbers[name], **fields)[:-1]]


class Stream:
    """Block table of one stream: shared pages, then the page chain of its own cluster."""

    def __init__(self, bench, clusters, name, config):
        self.bench, self.clusters, self.name, self.config = bench, clusters, name, config
        self.shared, self.own, self.tokens, self.seen = [], [], {}, 0

    @property
    def pages(self):
        return [*self.shared, *self.own]

    def append(self, count):
        for _ in range(count):
            page = self.clusters.put(Op.APPEND, self.name).page
            if not self.own or self.own[-1] != page:
                self.own.append(page)
                self.tokens[page] = []
            self.tokens[page].append(self.seen)
            self.seen += 1
        sink, recent = self.config.sink_blocks, self.config.recent_blocks
        stored = sum(len(self.tokens[page]) for page in self.pages)
        if stored < self.config.max_tokens or len(self.pages) <= sink + recent:
            return
        end = len(self.pages) - recent
        evicted = self.clusters.evict(self.name, index=max(0, sink - len(self.shared)), page=recent)
        assert evicted == self.pages[max(sink, len(self.shared)) : end]
        for page in self.shared[sink:end]:
            self.bench.do(Op.FREE, page=page)
        stay = self.pages[:sink] + self.pages[end:]
        self.shared, self.own = [p for p in self.shared if p in stay], [p for p in self.own if p in stay]

    def fork(self, name):
        other = Stream(self.bench, self.clusters, name, self.config)
        other.shared, other.tokens, other.seen = self.pages, {p: self.tokens[p] for p in self.pages}, self.seen
        for page in self.pages:
            assert self.bench.do(Op.HOLD, page=page)[-1].fault == Fault.NONE
        return other

    def close(self):
        for page in self.shared:
            self.bench.do(Op.FREE, page=page)
        self.clusters.evict(self.name)


def pages_in_use(bench):
    context = bench.kvmu.tables.context
    return sum(context.in_use(page) for page in range(LARGE["max_pages"]))


def block_table(bench, rng):
    """Streams that share blocks of a prefix and evict between sink and recent blocks, compared with `BlockTable`."""
    config = HybridConfig(block=4, sink_blocks=2, recent_blocks=3, max_tokens=24)
    pool, clusters = BlockPool(LARGE["max_pages"]), Clusters(bench)
    tables, streams, names = [BlockTable(pool, config)], [Stream(bench, clusters, 0, config)], 1
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
            if full and len(tables) < 4 and names < 64:
                tables.append(tables[n].fork())
                streams.append(streams[n].fork(names))
                names, forks = names + 1, forks + 1
        for table, stream in zip(tables, streams, strict=True):
            assert [stream.tokens[page] for page in stream.pages] == table.tokens
        assert pages_in_use(bench) == LARGE["max_pages"] - pool.free
    assert forks > 3
    bench.do(Op.STEP)
    pages = sorted({page for stream in streams for page in stream.pages})
    for page in pages:
        assert len(bench.do(Op.MARK, page=page, heads=3)) == 3
    assert bench.do(Op.FETCH)[-1].count == 2 * len(pages)
    for stream in streams:
        stream.close()
    assert pages_in_use(bench) == 0


def kept_sets(bench, rng):
    """Groups of new tokens, pruned to their keys of small norm, are appended to the tokens of earlier groups."""
    clusters, stay, first = Clusters(bench), [], 0
    tables = bench.kvmu.tables
    for _ in range(4):
        count = int(rng.integers(12, 30))
        replies = [clusters.put(Op.APPEND, "group") for _ in range(count)]
        keys = rng.standard_normal((count, 2, 8))
        keep = top_tokens(-np.linalg.norm(keys.reshape(count, -1), axis=1), 0.5)
        for n in keep.tolist():
            clusters.put(Op.MOVE, "chain", page=replies[n].page, slot=replies[n].slot)
        for page in dict.fromkeys(reply.page for reply in replies):
            if page in clusters.pages("group"):
                bench.do(Op.FREE, page=page)
        stay += (first + keep).tolist()
        first += count
        assert not clusters.pages("group")
    # the chain equals a compaction by copies: entry n is in the n-th slot
    layout = np.arange(first)
    for source, target, size in compaction(np.array(stay)).tolist():
        layout[target : target + size] = layout[source : source + size].copy()
    assert layout[: len(stay)].tolist() == stay
    page_of = clusters.pages("chain")
    assert [int(tables.pages[p]["used"]) for p in page_of[:-1]] == [4] * (len(page_of) - 1)
    chain = clusters.numbers["chain"]
    for n in range(len(stay)):
        reply = bench.do(Op.FIND, cluster=chain, index=n)[-1]
        assert (reply.page, reply.slot) == (page_of[n // 4], n % 4)
    assert bench.do(Op.FIND, cluster=chain, index=len(stay))[-1].fault == Fault.ADDRESS
    clusters.evict("chain")


def splits(bench, rng):
    """A semantic index grows and splits; after every entry the chains hold exactly the tokens of its clusters."""
    index, clusters = SemanticIndex(MosaicConfig(tau_min=0.3, tau_max=0.5)), Clusters(bench)
    tables = bench.kvmu.tables
    numbers, locations, owner, seen = {}, {}, {}, 0
    centres = unit_rows("centres", rng.standard_normal((6, 16)))
    for token in range(90):
        entry = unit_rows("entry", (centres[token % 6] + 0.25 * rng.standard_normal(16))[None])[0]
        index.add(0, entry, np.array([token]))
        now = {int(t): c for c in index.clusters for t in index.tokens(c)}
        numbers = {c: numbers[c] for c in index.clusters if c in numbers}
        for cluster in index.clusters:
            used = {*numbers.values(), *owner.values()}
            numbers.setdefault(cluster, min(set(range(LARGE["max_clusters"])) - used))
        for t in sorted(now):
            target = numbers[now[t]]
            if t not in owner:
                reply = clusters.put(Op.APPEND, target)
            elif owner[t] != target:
                reply = clusters.put(Op.MOVE, target, page=locations[t][0], slot=locations[t][1])
                seen += 1
            else:
                continue
            locations[t], owner[t] = (reply.page, reply.slot), target
        for cluster in index.clusters:
            pages = clusters.pages(numbers[cluster])
            stored = {(page, slot) for page in pages for slot in range(4) if tables.is_live(page, slot)}
            assert stored == {locations[int(t)] for t in index.tokens(cluster)}
    assert index.splits > 3 and seen > 20


def test_three_more_uses(rng, seed):
    bench = KvmuBench(
        **LARGE,
        max_page_references=7,
        contexts=(0, 1, 2),
        max_resident_tokens=256,
        staging_head_pages=64,
        max_descriptor_bytes=4096,
        log_entries=16384,
        window_tokens=0,
    )
    for context, script in enumerate((block_table, kept_sets, splits)):
        bench.do(Op.OPEN, context=context)
        script(bench, rng)
        bench.do(Op.STEP)
    assert {d.kind for d in bench.kvmu.descriptors} == {TransferKind.MOVE}
    bench.check_run(stall=0.2, seed=seed, memory_latency=(1, 5))
