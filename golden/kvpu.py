"""KV prediction unit: one step of one layer through HCU, HC table, WTU and KVMU (V-Rex, Fig. 9 and 10).

A step clusters its tokens, stores them in pages, selects clusters by the scores of its queries, fetches their pages and
offloads the oldest pages. Inputs (hash codes, BF16 scores) and outputs are integers; the RTL gives the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.hc_table import HcTable, HcTableConfig
from golden.kvmu import Command, Kvmu, KvmuConfig, Op, Reply
from golden.wicsum import RowSelections, WtuConfig, select
from util import checks


@dataclass(frozen=True)
class HeadScores:
    """Score rows of one KV head whose selections are united: uint16 keys (R, C), one column per cluster."""

    head: int
    keys: np.ndarray


@dataclass(frozen=True)
class KvpuStep:
    """Result of one step.

    assignment  clusters of the new tokens
    rows        for each group of scores, the results of the WTU
    selected    for each group, bool (C,): clusters that any row selects
    replies     replies of the KVMU, except to SELECT
    """

    assignment: Assignment
    rows: list[RowSelections]
    selected: list[np.ndarray]
    replies: list[Reply]


class Kvpu:
    """Tables of one layer. `kvmu.descriptors` and `table.writes` collect the transfers and writes.

    rule    parameters of the clustering
    table   sizes of the HC table
    kvmu    sizes and settings of the KVMU
    wtu     parameters of the WTU
    target  stop value of the selection, as in `golden.wicsum.select`
    retain  True: fetched pages become resident
    """

    def __init__(
        self,
        rule: ClusterRule,
        table: HcTableConfig,
        kvmu: KvmuConfig,
        wtu: WtuConfig,
        target: int,
        retain: bool = False,
    ) -> None:
        self.rule, self.wtu, self.target, self.retain = rule, wtu, target, retain
        self.table, self.kvmu = HcTable(table), Kvmu(kvmu)
        self.clusters = ClusterTable(rule)
        self._bank = 0

    def begin(self, layer: int) -> list[Reply]:
        """Empty all tables for `layer`."""
        self.clusters = ClusterTable(self.rule)
        self.table.begin()
        return self.kvmu.execute(Command(Op.BEGIN, layer=layer))

    def cluster(self, codes: np.ndarray) -> tuple[Assignment, list[Reply]]:
        """First half of a step: cluster tokens by their hash codes, uint32 (T,), and store them in lists and pages"""
        token = self.clusters.tokens
        assigned, replies = self.clusters.assign(codes), []
        for n, code in enumerate(checks.integers("codes", codes, None, low=0).tolist()):
            cluster, count = int(assigned.cluster[n]), int(assigned.count[n])
            self.table.update(token=token + n, cluster=cluster, hash=code, count=count, opened=bool(assigned.opened[n]))
            replies += self.kvmu.execute(Command(Op.APPEND, cluster=cluster))
        return assigned, replies

    def fetch(self, groups: Sequence[HeadScores]) -> tuple[list[RowSelections], list[np.ndarray], list[Reply]]:
        """Second half of a step: select by the scores of all clusters in the table, fetch, offload."""
        counts = np.array([entry.count for entry in self.table.entries], np.int64)
        rows, selected, replies = [], [], []
        for group in groups:
            rows.append(select(group.keys, counts, self.target, self.wtu))
            selected.append(np.logical_or.reduce(rows[-1].selected, axis=0))
            for cluster in np.flatnonzero(selected[-1]).tolist():
                self.kvmu.execute(Command(Op.SELECT, cluster=cluster, heads=1 << group.head))
        if groups:
            replies += self.kvmu.execute(Command(Op.FETCH, retain=self.retain, bank=self._bank))
            self._bank ^= 1
        replies += self.kvmu.execute(Command(Op.STEP))
        return rows, selected, replies

    def step(self, codes: np.ndarray, groups: Sequence[HeadScores] = ()) -> KvpuStep:
        """Both halves. `groups` must score the clusters that exist after the first half."""
        assigned, append_replies = self.cluster(codes)
        rows, selected, fetch_replies = self.fetch(groups)
        return KvpuStep(assigned, rows, selected, append_replies + fetch_replies)
