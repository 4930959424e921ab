"""A store with several contexts, a golden KVMU on it, and random commands."""

from dataclasses import replace

import numpy as np

from golden.kvmu import Command, Kvmu, KvmuConfig, Op, Tier
from golden.store import ContextSizes, StoreSizes, check, create_context, create_store
from golden.store.layout import BACKING_UNIT, RESIDENT, STORAGE, TABLE_UNIT

CONFIG = KvmuConfig(
    kv_heads=2,
    head_dim=8,
    page_tokens=4,
    staging_head_pages=12,
    max_resident_tokens=14,
    max_cluster_tokens=9,
    window_tokens=30,
    max_descriptor_bytes=96,
    max_page_references=3,
)
SIZES = StoreSizes(contexts=5, page_frames=8, page_tokens=4, key_bytes=32, log_entries=64)
CONTEXT_SIZES = ContextSizes(max_clusters=6, max_pages=16)
MIX = {
    "APPEND": 12,
    "STEP": 2,
    "SELECT": 3,
    "FETCH": 2,
    "LOOKUP": 1,
    "FIND": 1,
    "MOVE": 2,
    "SEAL": 0.3,
    "FREE": 1.5,
    "MIGRATE": 0.5,
    "SYNC": 0.2,
    "HOLD": 0.5,
    "MARK": 0.5,
    "EVICT": 0.3,
    "OPEN": 2.5,
}


class StoreBench:
    """Memory image with a store, page frames and a staging area, and the golden KVMU.

    Parameters
    ----------
    contexts : numbers of the contexts to create
    rng : content of the memory before the store is created; None: zeros
    sizes, context_sizes : sizes of the store
    spare : bytes of device memory after everything else
    settings : changed fields of `CONFIG`
    """

    BASE = 0x400

    def __init__(self, contexts=(0, 1, 3), rng=None, sizes=SIZES, context_sizes=CONTEXT_SIZES, spare=0, **settings):
        self.config = replace(CONFIG, **settings)
        self.sizes, self.context_sizes = sizes, context_sizes
        page_bytes = self.config.head_page_bytes * self.config.kv_heads
        tables = self.BASE + sizes.nbytes
        frames = tables + len(contexts) * context_sizes.nbytes(sizes)
        staging = frames + sizes.page_frames * page_bytes
        end = staging + 2 * self.config.staging_head_pages * self.config.head_page_bytes
        self.config = replace(self.config, page_frames_base=frames, staging_base=staging)
        self.spare = -(-end // TABLE_UNIT) * TABLE_UNIT  # address of the spare bytes
        size = self.spare + spare
        self.memory = np.zeros(size, np.uint8) if rng is None else rng.integers(0, 256, size).astype(np.uint8)
        self.store = create_store(self.memory, self.BASE, sizes)
        stride = -(-context_sizes.max_pages * page_bytes // BACKING_UNIT) * BACKING_UNIT
        for n, number in enumerate(contexts):
            create_context(
                self.store,
                number,
                context_sizes,
                tables + n * context_sizes.nbytes(sizes),
                host_base=n * stride,
                storage_base=(n + 1) * stride,
            )
        backing = (len(contexts) + 1) * stride + 4 * spare
        self.tiers = {Tier.DEVICE: self.memory, **{t: np.zeros(backing, np.uint8) for t in (Tier.HOST, Tier.STORAGE)}}
        self.contexts = contexts
        self.kvmu = Kvmu(self.config, self.memory, self.BASE)
        self.complete = True  # no token was released
        self.labels = {}  # number in the values of the tokens of a context, if it is not that of the context

    def do(self, op, **fields):
        """Execute a command and return its replies."""
        return self.execute(Command(int(op), **fields))

    def execute(self, command):
        """Execute a command and its transfers; APPEND stores the token's keys and values. Returns the replies."""
        done = len(self.kvmu.descriptors)
        replies = self.kvmu.execute(command)
        for d in self.kvmu.descriptors[done:]:
            data = self.tiers[d.source_tier][d.source : d.source + d.bytes]
            self.tiers[d.target_tier][d.target : d.target + d.bytes] = data
        if command.op == Op.APPEND and not replies[-1].fault:
            token = int(self.kvmu.tables.header["tokens"]) - 1
            for head in range(self.config.kv_heads):
                start = replies[-1].address + head * self.config.head_page_bytes
                value = self.value(self.kvmu.context, token, head)
                self.memory[start : start + len(value)] = value
        self.complete &= command.op not in (Op.FREE, Op.EVICT) or replies[-1].fault != 0
        return replies

    def value(self, context, token, head):
        """Keys and values of one head of a token, uint8 (slot bytes,)."""
        label = self.labels.get(context, context)
        words = np.full(self.config.head_dim, ((label * 1009 + token) * 16 + head + 1) % 2**32, "<u4")
        return words.view(np.uint8)

    def slot(self, context, page, head, slot):
        """Bytes of a slot of a page in use, computed from the records."""
        config, record = self.config, context.pages[page]
        if int(record["flags"]) & RESIDENT:
            tier, base, number = Tier.DEVICE, config.page_frames_base, int(record["frame"])
        else:
            storage = int(record["flags"]) & STORAGE != 0
            tier, number = Tier.STORAGE if storage else Tier.HOST, page
            base = int(context.header["storage_pages_base" if storage else "host_pages_base"]) * BACKING_UNIT
        start = base + ((number * config.kv_heads + head) * config.page_tokens + slot) * 4 * config.head_dim
        return self.tiers[tier][start : start + 4 * config.head_dim]

    def check(self):
        """Check the invariants of the store, and, unless copies are due, the keys and values of every token."""
        check(self.store, max_cluster_tokens=self.config.max_cluster_tokens, complete=self.complete)
        if self.kvmu.fetching:
            return
        for number in self.contexts:
            context = self.store.context(number)
            for page in filter(context.in_use, range(len(context.pages))):
                for slot in range(self.config.page_tokens):
                    if int(context.pages[page]["live"]) >> slot & 1:
                        token = int(context.lists[page, slot])
                        for head in range(self.config.kv_heads):
                            data = self.slot(context, page, head, slot)
                            assert (data == self.value(number, token, head)).all(), (number, page, slot, head)

    def random_command(self, rng, mix=MIX, wild=0.15):
        """A random command; a share `wild` has random arguments."""
        names, weights = list(mix), np.array(list(mix.values()))
        name = str(rng.choice(names, p=weights / weights.sum()))
        kvmu, tables = self.kvmu, None
        if kvmu.fetching and rng.random() > wild:
            name = str(rng.choice(["SELECT", "MARK", "FETCH"]))
        elif kvmu.context is None and rng.random() > wild:
            name = "OPEN"
        elif name == "OPEN" and kvmu.uncommitted and rng.random() > wild:
            name = "STEP"
        elif name == "FETCH" and not kvmu.fetching:
            name = "SELECT"
        if kvmu.context is not None:
            tables = kvmu.tables
        clusters = int(tables.header["clusters"]) if tables else 0
        opened = int(name in ("APPEND", "MOVE") and rng.random() < 1.5 / (1 + clusters))
        fields = {
            "context": int(rng.choice(self.contexts)),
            "cluster": clusters if opened else int(rng.integers(max(1, clusters))),
            "opened": opened,
            "hash": int(rng.integers(1 << 32)) if opened else 0,
            "page": int(rng.integers(self.context_sizes.max_pages)),
            "slot": int(rng.integers(self.config.page_tokens)),
            "head": int(rng.integers(self.config.kv_heads)),
            "heads": int(rng.integers(1 << self.config.kv_heads)),
            "index": int(rng.integers(3 * self.config.page_tokens)),
            "tier": int(rng.integers(1, 3)),
            "retain": int(rng.random() < 0.3),
            "bank": int(rng.integers(2)),
        }
        if name == "EVICT":
            fields["index"], fields["page"] = rng.integers(3, size=2).tolist()
        elif rng.random() < wild:
            fields["context"] = int(rng.integers(self.sizes.contexts + 2))
            fields["cluster"] = int(rng.integers(self.context_sizes.max_clusters + 2))
            fields["tier"] = int(rng.integers(4))
            if rng.random() < 0.1:
                return Command(15, **fields)
        elif tables and (pages := [n for n in range(len(tables.pages)) if tables.context.in_use(n)]):
            fields["page"] = int(rng.choice(pages))
            fields["slot"] = int(rng.integers(int(tables.pages[fields["page"]]["used"])))
        return Command(int(Op[name]), **fields)
