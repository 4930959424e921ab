"""Data of a step with given numbers: clusters of one size, and selected and fetched clusters of every KV head.

The golden KVMU executes the history and the step, so that the addresses, the resident pages and the accesses to the
store are those of a stream with these numbers. Only the choice of clusters is random.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor

import numpy as np

from golden.clustering import ClusterRule
from golden.kvmu import Command, KvmuConfig, Op
from golden.kvpu import Kvpu
from golden.selection import RESV
from golden.store import ContextSizes, Store, StoreSizes, create_context, create_store, store_bytes
from golden.store.layout import RESIDENT
from hw.config import Config
from sw_model.cycles.step_data import StepData, recording
from util import checks
from util.progress import Progress, no_progress

LEVELS = 2  # levels of buckets of a row of the WTU, as in `sw_model.unit_cycles`
LOG_ENTRIES = 512
PAGE_ALIGNMENT = 16384  # bytes; a copy is divided at multiples of 4 KiB of its source and of its target


@dataclass(frozen=True)
class StepNumbers:
    """Numbers of a step of one layer of one stream.

    past, tokens : tokens before the step, and of the step ; cluster_tokens : tokens of a cluster
    selected : clusters that a KV head retrieves ; fetched : how many of them are not in device memory
    rows : score rows of a KV head ; passes : buckets that the WTU examines in a row, mean

    Raises ValueError for numbers that contradict each other.
    """

    past: int
    tokens: int
    cluster_tokens: int
    selected: int
    fetched: int
    rows: int
    passes: float

    def __post_init__(self) -> None:
        for name in ("past", "tokens", "cluster_tokens"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("selected", self.selected, 0, self.past // self.cluster_tokens)
        checks.integer("fetched", self.fetched, 0, self.selected)

    @property
    def clusters(self) -> int:
        """Clusters before the step."""
        return -(-self.past // self.cluster_tokens)

    @property
    def resident_tokens(self) -> int:
        """Tokens in device memory; their share of the past is that of the selected clusters."""
        return self.past if not self.fetched else round(self.past * (1 - self.fetched / self.selected))


@dataclass(frozen=True)
class WorkloadStep:
    """The data of a step, and the device memory of its context.

    first : data if the layer selects for itself ; later : data if the layer before selected for it
    store_bytes : of the store ; frame_bytes : of the page frames after it
    staging_bytes : of the staging area after the page frames
    """

    first: StepData
    later: StepData
    store_bytes: int
    frame_bytes: int
    staging_bytes: int


def workload_step(
    config: Config, numbers: StepNumbers, *, seed: int = 0, progress: Progress = no_progress
) -> WorkloadStep:
    """Execute the history of a stream and a step with these numbers on the golden KVMU."""
    random, c = np.random.default_rng(seed), config
    size, clusters = numbers.cluster_tokens, numbers.clusters
    pages = (numbers.past + numbers.tokens) // size + 2
    sizes = ContextSizes(max_clusters=1 << pages.bit_length(), max_pages=pages)
    key_bytes = 2 * c.head_dim * c.kv_heads
    shared = StoreSizes(2, pages, c.page_tokens, key_bytes, LOG_ENTRIES, max(32, 2 * c.dpe_inputs))
    nbytes = -(-store_bytes(shared, [sizes] * 2) // PAGE_ALIGNMENT) * PAGE_ALIGNMENT
    kvmu = KvmuConfig(
        kv_heads=c.kv_heads, head_dim=c.head_dim, page_tokens=c.page_tokens, page_frames_base=nbytes,
        max_resident_tokens=max(1, numbers.resident_tokens),
    )  # fmt: skip
    staging = nbytes + pages * kvmu.page_bytes
    kvmu = replace(kvmu, staging_base=staging, staging_head_pages=c.kv_heads * numbers.fetched)
    memory = np.zeros(nbytes, np.uint8)
    store = create_store(memory, 0, shared)
    for n in range(2):
        create_context(store, n, sizes, shared.nbytes + n * sizes.nbytes(shared))
    rule = ClusterRule(max_candidates=c.max_candidates, max_clusters=sizes.max_clusters)
    table = Kvpu(rule, kvmu, memory, 0, RESV, 0)
    codes = _codes(clusters + numbers.tokens, rule, size, random)
    table.open(0)
    for start in range(0, numbers.past, size):
        progress(f"history of {numbers.past} tokens", start, numbers.past)
        table.cluster(np.full(min(size, numbers.past - start), codes[start // size]))
        table.commit()
    table.open(1)
    chosen = _choice(store, numbers, c.kv_heads, random)
    with recording(table) as steps:
        table.open(0)
        for head, selected in enumerate(chosen):
            for cluster in selected:
                table.kvmu.execute(Command(Op.SELECT, cluster=cluster, heads=1 << head))
        table.kvmu.execute(Command(Op.FETCH))
        joined = np.arange(numbers.past, numbers.past + numbers.tokens) // size
        table.cluster(codes[joined])
        table.commit()
    (later,) = steps
    later.scored, later.rows = clusters, [_rows(numbers)] * c.kv_heads
    first = replace(later, scored=clusters + sum(later.opened))
    fetched = len(later.fetched)
    if fetched != c.kv_heads * numbers.fetched:
        raise ValueError(f"fetched must be the head pages outside device memory, {fetched}, got {numbers.fetched}")
    return WorkloadStep(first, later, nbytes, staging - nbytes, 2 * kvmu.staging_head_pages * kvmu.head_page_bytes)


def _codes(count: int, rule: ClusterRule, cluster_tokens: int, random: np.random.Generator) -> np.ndarray:
    """Hash codes of clusters that no token of another cluster joins, uint32 (count,)."""
    codes, near = np.zeros(count, np.uint32), rule.window_tokens // cluster_tokens + 2
    for n in range(count):
        while True:
            code = np.uint32(random.integers(1 << 32))
            if np.all(np.bitwise_count(codes[max(0, n - near) : n] ^ code) >= rule.limit):
                codes[n] = code
                break
    return codes


def _choice(store: Store, numbers: StepNumbers, heads: int, random: np.random.Generator) -> list[list[int]]:
    """Clusters that each KV head selects, ascending: some of the resident ones, and some of the others."""
    context = store.context(0)
    full = np.arange(numbers.past // numbers.cluster_tokens)  # clusters that do not get a token of the step
    last = context.clusters["last_page"][full]
    resident = context.pages["flags"][last] & RESIDENT != 0
    parts = ((full[resident], numbers.selected - numbers.fetched), (full[~resident], numbers.fetched))
    return [
        sorted(int(n) for clusters, count in parts for n in random.choice(clusters, count, replace=False))
        for _ in range(heads)
    ]


def _rows(numbers: StepNumbers) -> list[tuple[int, int]]:
    """Buckets and levels of every score row of a KV head; the buckets have the mean of `numbers.passes`."""
    ends = [floor(numbers.passes * n) for n in range(numbers.rows + 1)]
    return [(b - a, LEVELS) for a, b in pairwise(ends)]
