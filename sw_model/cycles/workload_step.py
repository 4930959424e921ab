"""Data of a step with given numbers: selected and fetched clusters of every KV head, or all stored tokens.

The golden KVMU executes the history and the step, so that the addresses, the resident pages and the accesses to the
store are those of a stream with these numbers. Only the choice of clusters, and of the tokens that a policy keeps, is
random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import floor

import numpy as np

from compiler.policies import FullPolicy, InfiniGenPolicy, MosaicPolicy, Selection
from compiler.policies.base import MAX_CLUSTER_TOKENS
from golden import bf16
from golden.clustering import ClusterRule
from golden.kvmu import Command, KvmuConfig, Op
from golden.kvpu import HeadScores, Kvpu
from golden.quickvideo import kept_count
from golden.selection import RESV, TOP_K, covering_row, sortable
from golden.store import ContextSizes, Store, StoreSizes, create_context, create_store, store_bytes
from golden.store.layout import RESIDENT, SAVED
from golden.two_stage import FAR, FENCE, FENCE_TOKENS
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
    levels : of buckets of a row

    Raises ValueError for numbers that contradict each other.
    """

    past: int
    tokens: int
    cluster_tokens: int
    selected: int
    fetched: int
    rows: int
    passes: float
    levels: int = LEVELS

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
        """Tokens in device memory: all, or a share of the past that is that of the selected clusters."""
        return self.past + self.tokens if not self.fetched else round(self.past * (1 - self.fetched / self.selected))


@dataclass(frozen=True)
class StoredNumbers:
    """Numbers of a step of a policy that attends to all tokens that it stores.

    past : tokens that were stored before the step, those that the policy releases included ; tokens : of the step
    resident : tokens in device memory, at least 1 ; visual : the tokens of the step are those of a frame
    """

    past: int
    tokens: int
    resident: int
    visual: bool

    def __post_init__(self) -> None:
        for name in ("past", "tokens", "resident"):
            checks.integer(name, getattr(self, name), 1)


@dataclass(frozen=True)
class WorkloadStep:
    """The data of a step, and the device memory of its context.

    first : data if the layer selects for itself ; later : data if the layer before selected for it
    store_bytes : of the store ; frame_bytes : of the page frames after it
    staging_bytes : of the staging area after the page frames
    stored : data of the program that stores the tokens after the step, for a policy with partitions
    """

    first: StepData
    later: StepData
    store_bytes: int
    frame_bytes: int
    staging_bytes: int
    stored: StepData | None = None


class _Stream:
    """A stream of one context in a store of its own. Context 1 is empty: OPEN reads context 0 again after it."""

    def __init__(
        self,
        config: Config,
        rule: ClusterRule,
        selection: Selection,
        *,
        max_clusters: int,
        pages: int,
        resident: int,
        staged: int,
        retain: bool = False,
    ):
        c = config
        sizes = ContextSizes(max_clusters=max_clusters, max_pages=pages)
        key_bytes = 2 * c.head_dim * c.kv_heads
        shared = StoreSizes(2, pages, c.page_tokens, key_bytes, LOG_ENTRIES, max(32, 2 * c.dpe_inputs))
        self.store_bytes = -(-store_bytes(shared, [sizes] * 2) // PAGE_ALIGNMENT) * PAGE_ALIGNMENT
        kvmu = KvmuConfig(
            kv_heads=c.kv_heads, head_dim=c.head_dim, page_tokens=c.page_tokens, page_frames_base=self.store_bytes,
            max_resident_tokens=resident, lanes=c.dpe_inputs, kv_bits=c.kv_bits,
        )  # fmt: skip
        self.frame_bytes = pages * kvmu.page_bytes
        kvmu = replace(kvmu, staging_base=self.store_bytes + self.frame_bytes, staging_head_pages=staged)
        self.staging_bytes = 2 * staged * kvmu.head_page_bytes
        memory = np.zeros(self.store_bytes, np.uint8)
        self.store = create_store(memory, 0, shared)
        for n in range(2):
            create_context(self.store, n, sizes, shared.nbytes + n * sizes.nbytes(shared))
        self.table = Kvpu(rule, kvmu, memory, 0, selection.wtu, selection.target, retain)
        self.table.open(0)

    def fill(self, numbers: StepNumbers, codes: np.ndarray, progress: Progress) -> None:
        """Execute the history: cluster after cluster, whose tokens have the hash codes `codes` (C,)."""
        size = numbers.cluster_tokens
        for start in range(0, numbers.past, size):
            progress(f"history of {numbers.past} tokens", start, numbers.past)
            self.table.cluster(np.full(min(size, numbers.past - start), codes[start // size]))
            self.table.commit()
        for number in (1, 0):  # as before every step of a stream: old clusters leave the window of candidates
            self.table.open(number)
        self.table.commit()
        self.table.open(1)

    def workload_step(self, first: StepData, later: StepData, stored: StepData | None = None) -> WorkloadStep:
        """The step with these data."""
        return WorkloadStep(first, later, self.store_bytes, self.frame_bytes, self.staging_bytes, stored)


def workload_step(
    config: Config, numbers: StepNumbers, *, by_frames: bool = False, seed: int = 0, progress: Progress = no_progress
) -> WorkloadStep:
    """Execute the history of a stream and a step with these numbers on the golden KVMU.

    `by_frames` : clusters are frames, the first one is text, and all KV heads select the same ones before the step;
    otherwise clusters have similar hash codes, and every head selects its own after the tokens of the step are
    clustered
    """
    random, heads = np.random.default_rng(seed), config.kv_heads
    size, clusters = numbers.cluster_tokens, numbers.clusters
    used = min(size, config.page_tokens)  # tokens of a page
    pages = (numbers.past + numbers.tokens) // used + 2
    max_clusters = 1 << pages.bit_length()
    near = ClusterRule(hamming_threshold=1, window_tokens=0) if by_frames else ClusterRule()
    rule = replace(near, max_candidates=config.max_candidates, max_clusters=max_clusters)
    selection = Selection(TOP_K, numbers.selected, signed=True) if by_frames else Selection(RESV, 0)
    stream = _Stream(
        config, rule, selection, max_clusters=max_clusters, pages=pages, resident=max(1, numbers.resident_tokens),
        staged=heads * numbers.fetched,
    )  # fmt: skip
    table = stream.table
    codes = (
        np.arange(clusters + numbers.tokens, dtype=np.uint32)
        if by_frames
        else _codes(clusters + numbers.tokens, rule, size, random)
    )
    stream.fill(numbers, codes, progress)
    chosen = _choice(stream.store, numbers, 1 if by_frames else heads, random)
    with recording(table) as steps:
        table.open(0)
        if by_frames:
            scores = np.zeros((1, clusters), np.float32)
            scores[:, chosen[0]] = 1 + random.random(numbers.selected)
            keys = sortable(bf16.encode(scores))
            table.retrieve([HeadScores(head, keys) for head in range(heads)])
        else:
            for head, selected in enumerate(chosen):
                for cluster in selected:
                    table.kvmu.execute(Command(Op.SELECT, cluster=cluster, heads=1 << head))
            table.kvmu.execute(Command(Op.FETCH))
        joined = np.arange(numbers.past, numbers.past + numbers.tokens) // size
        table.cluster(codes[joined])
        table.commit()
    (later,) = steps
    first = later
    if not by_frames:
        later.scored, later.rows = clusters, [_rows(numbers)] * heads
        first = replace(later, scored=clusters + sum(later.opened))
    _check_fetched(later, numbers, heads)
    return stream.workload_step(first, later)


def token_step(
    config: Config, policy: InfiniGenPolicy, numbers: StepNumbers, *, seed: int = 0, progress: Progress = no_progress
) -> WorkloadStep:
    """Execute the history of a stream and a step of a policy whose clusters are tokens on the golden KVMU.

    The layer before selects some tokens for every KV head. The first layer selects all tokens, those of the step
    included, by rows of which each marks others.
    """
    random, heads, keys = np.random.default_rng(seed), config.kv_heads, numbers.past + numbers.tokens
    sizes, codes = policy.sizes(config, keys, numbers.tokens), np.zeros(keys, np.uint32)

    def filled(staged: int) -> _Stream:
        stream = _Stream(
            config, policy.clustering(config), policy.selection(), max_clusters=sizes.clusters, pages=sizes.pages,
            resident=max(1, numbers.resident_tokens), staged=heads * staged,
        )  # fmt: skip
        stream.fill(numbers, codes, progress)
        return stream

    stream = filled(numbers.past)
    row, stride = covering_row(keys, policy.budget, config.dpe_inputs)
    covering = np.stack([row[start : start + keys] for start in range(0, len(row) - keys + 1, stride)])
    with recording(stream.table) as steps:
        stream.table.open(0)
        stream.table.cluster(codes[: numbers.tokens])
        stream.table.retrieve([HeadScores(head, sortable(covering)) for head in range(heads)])
        stream.table.commit()
    (first,) = steps
    stream = filled(numbers.past)
    chosen = _choice(stream.store, numbers, heads, random)
    with recording(stream.table) as steps:
        stream.table.open(0)
        for head, selected in enumerate(chosen):
            for token in selected:
                stream.table.kvmu.execute(Command(Op.SELECT, cluster=token, heads=1 << head))
        stream.table.kvmu.execute(Command(Op.FETCH))
        stream.table.cluster(codes[: numbers.tokens])
        stream.table.commit()
    (later,) = steps
    later.scored, later.rows = numbers.clusters, [_rows(numbers)] * heads
    _check_fetched(later, numbers, heads)
    return stream.workload_step(first, later)


def partition_step(
    config: Config, policy: MosaicPolicy, numbers: StepNumbers, *, seed: int = 0, progress: Progress = no_progress
) -> WorkloadStep:
    """Execute the history of a stream and a step of a policy with partitions on the golden KVMU.

    Cluster 0 is the text, which is always selected. The other clusters that are selected are those of the best
    partitions with the largest scores, the same ones for all KV heads; `policy.budget` is the number of their tokens.
    The tokens of the step join the newest cluster, or open one.
    """
    random, heads, size = np.random.default_rng(seed), config.kv_heads, numbers.cluster_tokens
    clusters, pages = numbers.clusters, (numbers.past + numbers.tokens) // size + 2
    most = policy.sizes(config, numbers.past + numbers.tokens, numbers.tokens).clusters
    stream = _Stream(
        config, replace(policy.clustering(config), max_clusters=most), policy.selection(), max_clusters=most,
        pages=pages, resident=max(1, numbers.resident_tokens), staged=0, retain=True,
    )  # fmt: skip
    codes = np.arange(clusters + numbers.tokens, dtype=np.uint32)
    stream.fill(numbers, codes, progress)
    if numbers.fetched:
        _save_all(stream, clusters)
    (chosen,) = _choice(stream.store, numbers, 1, random, always=(0,))
    scores, counts = np.full(clusters, -FAR), np.full(clusters, size)
    scores[chosen] = 1 + random.random(len(chosen))
    scores[0], counts[0] = -FENCE, FENCE_TOKENS
    keys = sortable(bf16.encode(np.stack([scores, np.arange(clusters) == 0])))
    with recording(stream.table) as steps:
        stream.table.open(0)
        stream.table.retrieve([HeadScores(head, keys, counts) for head in range(heads)])
        stream.table.commit()
        stream.table.open(1)
        stream.table.open(0)
        stream.table.cluster(codes[np.arange(numbers.past, numbers.past + numbers.tokens) // size])
        stream.table.commit()
    attended, _, stored = steps
    _check_fetched(attended, numbers, heads)
    return stream.workload_step(attended, attended, stored)


def _save_all(stream: _Stream, clusters: int) -> None:
    """Fetch clusters until every page but the newest one has left device memory once, as in a long stream.

    Such a page leaves again without a copy.
    """
    table = stream.table
    table.open(0)
    while True:
        records = table.context.clusters[: clusters - 1]
        flags = table.context.pages["flags"][records["last_page"]]
        if np.all(flags & SAVED):
            break
        absent = np.flatnonzero(flags & RESIDENT == 0)
        for cluster in absent[: max(1, len(absent) // 2)].tolist():
            table.kvmu.execute(Command(Op.SELECT, cluster=cluster, heads=1, retain=1))
        table.kvmu.execute(Command(Op.FETCH))
        table.commit()
    table.open(1)


def _check_fetched(data: StepData, numbers: StepNumbers, heads: int) -> None:
    if len(data.fetched) != heads * numbers.fetched:
        fetched = len(data.fetched)
        raise ValueError(f"fetched must be the head pages outside device memory, {fetched}, got {numbers.fetched}")


def stored_step(
    config: Config, policy: FullPolicy, numbers: StoredNumbers, *, seed: int = 0, progress: Progress = no_progress
) -> WorkloadStep:
    """Execute the history of a stream and a step of a policy that attends to all stored tokens on the golden KVMU.

    The tokens of a frame of which the policy keeps a share have random norms.
    """
    random, size, layer = np.random.default_rng(seed), config.page_tokens, policy.table(config)
    pages = (numbers.past + numbers.tokens) // size + 2
    clusters = (numbers.past + numbers.tokens) // MAX_CLUSTER_TOKENS + 2
    staged = config.kv_heads * max(0, -(-(numbers.past - numbers.resident) // size) + 1)
    rule = replace(policy.clustering(config), max_clusters=clusters)
    stream = _Stream(
        config, rule, policy.selection(), max_clusters=clusters, pages=pages, resident=numbers.resident, staged=staged
    )
    table = stream.table

    def release() -> None:
        if layer.kept_pages is not None:
            first, last = layer.kept_pages
            table.kvmu.execute(Command(Op.EVICT, cluster=0, index=first, page=last))

    for start in range(0, numbers.past, size):
        progress(f"history of {numbers.past} tokens", start, numbers.past)
        table.cluster(np.zeros(min(size, numbers.past - start), np.uint32))
        release()
        table.commit()
    before = int(table.context.header["clusters"])
    table.open(1)
    with recording(table) as steps:
        table.open(0)
        kept = kept_count(numbers.tokens, layer.rho) if numbers.visual else numbers.tokens
        if kept < numbers.tokens:
            table.keep(bf16.encode(random.random(numbers.tokens, np.float32)), kept)
        table.cluster(np.zeros(kept, np.uint32))
        row = np.array(layer.score_row, np.uint16)[None, : int(table.context.header["clusters"])]
        table.retrieve([HeadScores(head, row) for head in range(config.kv_heads)])
        release()
        table.commit()
    (data,) = steps
    return stream.workload_step(data, replace(data, scored=before))


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


def _choice(
    store: Store, numbers: StepNumbers, heads: int, random: np.random.Generator, always: Sequence[int] = ()
) -> list[list[int]]:
    """Clusters that each KV head selects, ascending: some of the resident ones, and some of the others.

    `always` : clusters that all heads select
    """
    context = store.context(0)
    full = np.arange(numbers.past // numbers.cluster_tokens)  # clusters that do not get a token of the step
    last = context.clusters["last_page"][full]
    resident = context.pages["flags"][last] & RESIDENT != 0
    parts = ((full[resident], numbers.selected - numbers.fetched), (full[~resident], numbers.fetched))

    def some(clusters: np.ndarray, count: int) -> list[int]:
        present = [n for n in always if n in clusters]
        others = np.setdiff1d(clusters, present)
        return [*present, *random.choice(others, count - len(present), replace=False).tolist()]

    return [sorted(n for clusters, count in parts for n in some(clusters, count)) for _ in range(heads)]


def _rows(numbers: StepNumbers) -> list[tuple[int, int]]:
    """Buckets and levels of every score row of a KV head; the buckets have the mean of `numbers.passes`."""
    ends = [floor(numbers.passes * n) for n in range(numbers.rows + 1)]
    return [(b - a, numbers.levels) for a, b in pairwise(ends)]
