"""KVPU: a step of one layer through clustering, table, selection and pages, as one machine (V-Rex, Fig. 9 and 10).

Integers in (hash codes and BF16 scores), integers out; the RTL gives the same on every stream. A step clusters its
tokens, places them, selects by the scores of its queries, fetches what they need and offloads the oldest pages.
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
    """Rows of one KV head, united into one selection: uint16 keys (R, C), one per cluster."""

    head: int
    keys: np.ndarray


@dataclass(frozen=True)
class KvpuStep:
    """What one step gave.

    assignment  of its tokens to clusters
    rows        per group of scores, what the WTU says of each row
    selected    per group, bool (C,): clusters that any of its rows selects
    replies     of the KVMU, but for SELECT
    """

    assignment: Assignment
    rows: list[RowSelections]
    selected: list[np.ndarray]
    replies: list[Reply]


class Kvpu:
    """One layer's tables. `kvmu.descriptors` and `table.writes` gather what leaves.

    rule, table, kvmu, wtu   how tokens join clusters; the other units' sizes and settings
    target                   what stops a selection, as `golden.wicsum.select` takes it
    retain                   fetched pages become resident
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
        """Empty tables for `layer`."""
        self.clusters = ClusterTable(self.rule)
        self.table.begin()
        return self.kvmu.execute(Command(Op.BEGIN, layer=layer))

    def cluster(self, codes: np.ndarray) -> tuple[Assignment, list[Reply]]:
        """The first half of a step: assign, list and place tokens of these hash codes, uint32 (T,)."""
        token = self.clusters.tokens
        assigned, replies = self.clusters.assign(codes), []
        for n, code in enumerate(checks.integers("codes", codes, None, low=0).tolist()):
            cluster, count = int(assigned.cluster[n]), int(assigned.count[n])
            self.table.update(token=token + n, cluster=cluster, hash=code, count=count, opened=bool(assigned.opened[n]))
            replies += self.kvmu.execute(Command(Op.APPEND, cluster=cluster))
        return assigned, replies

    def fetch(self, groups: Sequence[HeadScores]) -> tuple[list[RowSelections], list[np.ndarray], list[Reply]]:
        """The second half: select by the scores of every cluster in the table, fetch, offload."""
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
        """Both halves; `groups` must score the clusters that there are after the first."""
        assigned, append_replies = self.cluster(codes)
        rows, selected, fetch_replies = self.fetch(groups)
        return KvpuStep(assigned, rows, selected, append_replies + fetch_replies)
