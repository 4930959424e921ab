"""KV prediction unit: one step of one layer through HCU, WTU and KVMU (V-Rex, Fig. 9 and 10).

A step clusters its tokens, stores them in pages, selects clusters by the scores of its queries, fetches their pages and
offloads the oldest pages. Inputs (hash codes, BF16 scores) and outputs are integers; the RTL gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.kvmu import Command, Kvmu, KvmuConfig, Op, Reply
from golden.selection import QUICKPREFILL, reversed_keys
from golden.store import Context
from golden.wicsum import RowSelections, WtuConfig, select
from util import checks


@dataclass(frozen=True)
class HeadScores:
    """Score rows of one KV head whose selections are united: uint16 keys (R, C), one column per cluster.

    `counts` : tokens of each cluster as the WTU counts them (C,); None: those of the context
    """

    head: int
    keys: np.ndarray
    counts: np.ndarray | None = None


@dataclass(frozen=True)
class KvpuStep:
    """Result of one step.

    assignment  clusters of the new tokens
    rows        for each group of scores, the results of the WTU
    selected    for each group, bool (C,): clusters that any row selects
    replies     replies of the KVMU
    """

    assignment: Assignment
    rows: list[RowSelections]
    selected: list[np.ndarray]
    replies: list[Reply]


class Kvpu:
    """Executes steps on the contexts of one store. `kvmu.descriptors` collects the transfers.

    rule    parameters of the clustering; they replace `window_tokens` and `max_cluster_tokens` of `kvmu`
    kvmu    sizes and settings of the KVMU
    memory  image of device memory from byte address `origin` on, with a store at byte address `base`
    wtu     parameters of the WTU
    target  stop value of the selection, as in `golden.wicsum.select`
    retain  True: fetched pages become resident, and selected pages the newest ones
    """

    def __init__(
        self,
        rule: ClusterRule,
        kvmu: KvmuConfig,
        memory: np.ndarray,
        base: int,
        wtu: WtuConfig,
        target: int,
        retain: bool = False,
        origin: int = 0,
    ) -> None:
        self.rule, self.wtu, self.target, self.retain = rule, wtu, target, retain
        config = replace(kvmu, window_tokens=rule.window_tokens, max_cluster_tokens=rule.max_cluster_tokens)
        self.kvmu = Kvmu(config, memory, base, origin)
        self.clusters = ClusterTable(rule)
        self._bank = 0

    @property
    def context(self) -> Context:
        """Tables of the open context."""
        return self.kvmu.tables.context

    def open(self, number: int) -> list[Reply]:
        """Open a context. A context that is open already, without a step in progress, stays as it is."""
        replies = self.kvmu.execute(Command(Op.OPEN, context=number))
        if opened := self.kvmu.opened:
            records = self.context.clusters[: int(self.context.header["clusters"])]
            self.clusters = ClusterTable.restore(
                self.rule,
                tokens=opened.tokens,
                first_candidate=opened.cluster,
                codes=records["hash"],
                counts=records["count"],
                first_token=records["first_token"],
            )
        return replies

    def cluster(self, codes: np.ndarray) -> tuple[Assignment, list[Reply]]:
        """First half of a step: cluster tokens by their hash codes, uint32 (T,), and store them in pages"""
        assigned, replies = self.clusters.assign(codes), []
        for n, code in enumerate(checks.integers("codes", codes, None, low=0).tolist()):
            append = {"cluster": int(assigned.cluster[n]), "opened": int(assigned.opened[n]), "hash": code}
            replies += self.kvmu.execute(Command(Op.APPEND, **append))
        return assigned, replies

    def fetch(self, groups: Sequence[HeadScores]) -> tuple[list[RowSelections], list[np.ndarray], list[Reply]]:
        """Second half of a step: select by the scores of all clusters of the context, fetch, offload."""
        rows, selected, replies = self.retrieve(groups) if groups else ([], [], [])
        return rows, selected, replies + self.commit()

    def retrieve(self, groups: Sequence[HeadScores]) -> tuple[list[RowSelections], list[np.ndarray], list[Reply]]:
        """Select by the scores of all clusters of the context, and fetch.

        It is part of a step, or precedes a step: then the clusters are those of the step before.
        """
        counts = self.context.counts[: int(self.context.header["clusters"])].astype(np.int64)
        rows, selected, replies = [], [], []
        for group in groups:
            sizes = counts if group.counts is None else group.counts
            rows.append(select(group.keys, sizes, self.target, self.wtu))
            selected.append(np.logical_or.reduce(rows[-1].selected, axis=0))
            options = {"heads": 1 << group.head, "retain": int(self.retain), "bank": self._bank}
            for cluster in np.flatnonzero(selected[-1]).tolist():
                replies += self.kvmu.execute(Command(Op.SELECT, cluster=cluster, **options))
        replies += self.kvmu.execute(Command(Op.FETCH))
        self._bank ^= 1
        return rows, selected, replies

    def keep(self, norms: np.ndarray, count: int) -> RowSelections:
        """The `count` tokens of the step with the smallest norms, BF16 bit patterns (T,); the lowest index wins ties.

        It changes nothing in the tables: the caller stores only these tokens.
        """
        rule = replace(QUICKPREFILL, buckets=self.wtu.buckets)
        return select(reversed_keys(norms)[None], np.ones((1, len(norms)), np.int64), count, rule)

    def move(self, token: int, cluster: int, code: int) -> list[Reply]:
        """Move a token of the context to a cluster; the next cluster is created with the hash code `code`.

        The HCU learns of it when another context has been opened and this one is opened again.
        """
        slot = self.kvmu.token_slot(token)
        page, number = (-1, 0) if slot is None else slot
        opened = int(cluster == int(self.context.header["clusters"]))
        return self.kvmu.execute(
            Command(Op.MOVE, page=page, slot=number, cluster=cluster, opened=opened, hash=code * opened)
        )

    def commit(self) -> list[Reply]:
        """End of a step: offload the oldest pages, and commit."""
        return self.kvmu.execute(Command(Op.STEP))

    def step(self, codes: np.ndarray, groups: Sequence[HeadScores] = ()) -> KvpuStep:
        """Both halves. `groups` must score the clusters that exist after the first half."""
        assigned, append_replies = self.cluster(codes)
        rows, selected, fetch_replies = self.fetch(groups)
        return KvpuStep(assigned, rows, selected, append_replies + fetch_replies)
