"""Clustering of tokens by the hash bits of their keys, as the HCU does it (V-Rex, Section IV-B, Fig. 8).

Tokens arrive in order. A token joins the cluster whose hash code (that of its first token, the leader) has the smallest
Hamming distance below the threshold. A token without such a cluster opens one. All operations are on integers, so that
the RTL matches bit for bit.
"""

from dataclasses import dataclass

import numpy as np

from util import checks

FAR = 63  # distance larger than that of any two codes
SEARCH_TOKENS = 512  # tokens that are searched at once


@dataclass(frozen=True)
class ClusterRule:
    """Parameters of the clustering.

    hamming_threshold   Hamming distance in bits below which a token joins a cluster (Th_hd in the paper)
    hamming_inclusive   True: a token also joins at a distance equal to the threshold
    first_match         True: a token joins the matching cluster with the lowest number; False: the nearest one, and the
                        lowest number on ties
    window_tokens       candidates are clusters whose first token is at most this many tokens old; 0: no limit
    max_cluster_tokens  token count at which a cluster takes no more tokens (1 to 65535)
    cluster_hash        `leader`: the code of a cluster is that of its first token; `majority`: each bit is the majority
                        of its tokens
    max_candidates      candidates whose hash codes fit on chip; None: no limit
    max_clusters        clusters of one layer; None: no limit
    """

    hamming_threshold: int = 7
    hamming_inclusive: bool = False
    first_match: bool = False
    window_tokens: int = 4096
    max_cluster_tokens: int = 65535
    cluster_hash: str = "leader"
    max_candidates: int | None = None
    max_clusters: int | None = None

    def __post_init__(self) -> None:
        checks.integer("hamming_threshold", self.hamming_threshold, 0, 33)
        checks.flag("hamming_inclusive", self.hamming_inclusive)
        checks.flag("first_match", self.first_match)
        checks.integer("window_tokens", self.window_tokens, 0)
        checks.integer("max_cluster_tokens", self.max_cluster_tokens, 1, 65535)
        checks.one_of("cluster_hash", self.cluster_hash, ("leader", "majority"))
        for name in ("max_candidates", "max_clusters"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 1)

    @property
    def limit(self) -> int:
        """Smallest Hamming distance at which a token does not match."""
        return self.hamming_threshold + self.hamming_inclusive


@dataclass(frozen=True)
class Assignment:
    """Result of clustering T tokens, arrays of length T.

    cluster   int32, number of the cluster that the token joined
    opened    bool, the token opened this cluster
    count     int32, tokens of the cluster after the token joined
    distance  int32, Hamming distance to the cluster's code; 0 for a token that opened a cluster
    overflow  bool, the token matched no cluster, but the table was full; it joined the preferred candidate
    compared  int64, candidates inside the window, saturated clusters included: comparisons of the hardware
    """

    cluster: np.ndarray
    opened: np.ndarray
    count: np.ndarray
    distance: np.ndarray
    overflow: np.ndarray
    compared: np.ndarray


class ClusterTable:
    """Clusters of one layer. `codes`, `counts` and `first_token` are arrays of length C, indexed by cluster number."""

    def __init__(self, rule: ClusterRule | None = None):
        self.rule = rule or ClusterRule()
        self.tokens = 0  # tokens clustered so far
        self.overflowed = False
        self.dropped = False  # `restore` has left out clusters that exceed `max_candidates`
        self._size = 0
        self._first = 0  # first cluster inside the window
        self._codes = np.zeros(64, np.uint32)
        self._counts = np.zeros(64, np.int32)
        self._born = np.zeros(64, np.int64)
        self._ones = np.zeros((64, 32), np.int32) if self.rule.cluster_hash == "majority" else None

    @classmethod
    def restore(
        cls,
        rule: ClusterRule,
        *,
        tokens: int,
        first_candidate: int,
        codes: np.ndarray,
        counts: np.ndarray,
        first_token: np.ndarray,
    ) -> "ClusterTable":
        """The table of a layer that was saved after `tokens` tokens. Arrays have one entry per cluster.

        If the window has more clusters than `max_candidates`, the newest ones are left out (`dropped`). A table that
        was saved after a complete step has no more.

        Raises
        ------
        ValueError
            The rule is not `leader`, or the arrays differ in length.
        """
        if rule.cluster_hash != "leader":
            raise ValueError(f"cluster_hash must be leader, got {rule.cluster_hash!r}")
        table = cls(rule)
        codes = checks.integers("codes", codes, None, low=0, high=2**32 - 1)
        born = checks.integers("first_token", first_token, len(codes), low=0, high=tokens)
        sizes = checks.integers("counts", counts, len(codes), low=0)
        table._first = checks.integer("first_candidate", first_candidate, 0, len(codes))
        kept = len(codes) if rule.max_candidates is None else min(len(codes), table._first + rule.max_candidates)
        table.dropped = kept < len(codes)
        table._open(codes[:kept], born[:kept])
        table._counts[:kept] = sizes[:kept]
        table.tokens = checks.integer("tokens", tokens, 0)
        return table

    def __len__(self) -> int:
        return self._size

    @property
    def codes(self) -> np.ndarray:
        """uint32 (C,): hash code of each cluster."""
        return self._codes[: self._size]

    @property
    def counts(self) -> np.ndarray:
        """int32 (C,): tokens of each cluster."""
        return self._counts[: self._size]

    @property
    def first_token(self) -> np.ndarray:
        """int64 (C,): number of the first token of each cluster, strictly ascending."""
        return self._born[: self._size]

    @property
    def first_candidate(self) -> int:
        """Lowest cluster number that the next token may join. All later clusters are candidates too."""
        self._age(self.tokens)
        return self._first

    def rehash(self, clusters: np.ndarray, codes: np.ndarray) -> None:
        """Replace the hash codes of clusters (for `cluster_hash` = `rehash_mean` of `golden.resv`)."""
        ids = checks.integers("clusters", clusters, None, low=0, high=self._size - 1)
        self._codes[ids] = checks.integers("codes", codes, len(ids), low=0, high=2**32 - 1)

    def assign(self, codes: np.ndarray) -> Assignment:
        """Cluster tokens in order. `codes` are their hash codes, uint32 (T,)."""
        wanted = checks.integers("codes", codes, None, low=0, high=2**32 - 1).astype(np.uint32)
        blocks = []
        block = min(SEARCH_TOKENS, self.rule.window_tokens or SEARCH_TOKENS)
        for start in range(0, len(wanted), block):
            block_codes = wanted[start : start + block]
            if self._plain(len(block_codes)):
                blocks.append(self._assign_block(block_codes))
            else:
                blocks += [self._assign_token(code) for code in block_codes]
        if not blocks:
            blocks = [(np.zeros(0, np.int32),) * 6]
        columns = [np.concatenate(column) for column in zip(*blocks, strict=True)]
        kinds = (np.int32, bool, np.int32, np.int32, bool, np.int64)
        return Assignment(*(column.astype(kind) for column, kind in zip(columns, kinds, strict=True)))

    def _age(self, token: int) -> None:
        """Advance the window to `token`."""
        if self.rule.window_tokens:
            oldest = token - self.rule.window_tokens
            self._first = max(self._first, int(np.searchsorted(self.first_token, oldest)))

    def _plain(self, tokens: int) -> bool:
        """True if no limit of the table can be reached within `tokens` more tokens."""
        self._age(self.tokens)
        rule, live = self.rule, self._size - self._first
        return (
            rule.cluster_hash == "leader"
            and (rule.max_candidates is None or live + tokens <= rule.max_candidates)
            and (rule.max_clusters is None or self._size + tokens <= rule.max_clusters)
            and (live == 0 or int(self._counts[self._first : self._size].max()) + tokens < rule.max_cluster_tokens)
            and tokens < rule.max_cluster_tokens
        )

    def _open(self, codes: np.ndarray, tokens: np.ndarray) -> None:
        """Append empty clusters with these hash codes and first tokens."""
        start, self._size = self._size, self._size + len(codes)
        while self._size > len(self._codes):
            for name in ("_codes", "_counts", "_born", "_ones"):
                old = getattr(self, name)
                if old is not None:
                    setattr(self, name, np.concatenate([old, np.zeros_like(old)]))
        self._codes[start : self._size], self._born[start : self._size] = codes, tokens

    def _assign_token(self, code: np.uint32) -> tuple[np.ndarray, ...]:
        """Cluster one token by the rules of the paper, one after the other."""
        rule, token = self.rule, self.tokens
        self._age(token)
        live = slice(self._first, self._size)
        compared = self._size - self._first
        distances = np.bitwise_count(self._codes[live] ^ code).astype(np.int32)
        distances[self._counts[live] >= rule.max_cluster_tokens] = FAR
        matches = distances < rule.limit
        best = -1
        if matches.any():
            best = int(np.argmax(matches)) if rule.first_match else int(np.argmin(distances))
        full = compared == rule.max_candidates or self._size == rule.max_clusters
        opened = best < 0 and not full
        overflow = best < 0 and full
        distance = 0
        if opened:
            cluster = self._size
            self._open(np.array([code]), np.array([token]))
        else:
            nearest = int(np.argmin(distances)) if compared else -1
            joined = best if best >= 0 else nearest
            if overflow and (joined < 0 or distances[joined] == FAR):
                cluster = self._size - 1  # all candidates are saturated
            else:
                cluster, distance = self._first + joined, int(distances[joined])
        self._counts[cluster] = min(int(self._counts[cluster]) + 1, rule.max_cluster_tokens)
        if self._ones is not None:
            self._ones[cluster] += (code >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
            majority = 2 * self._ones[cluster] > self._counts[cluster]
            self._codes[cluster] = (majority * (np.uint32(1) << np.arange(32, dtype=np.uint32))).sum(dtype=np.uint32)
        self.overflowed |= overflow
        self.tokens += 1
        return tuple(np.array([v]) for v in (cluster, opened, self._counts[cluster], distance, overflow, compared))

    def _preferred(self, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Preferred cluster of each token and its distance. `distances` is (clusters, tokens)."""
        rank = distances >= self.rule.limit if self.rule.first_match else distances
        # one word holds six bits of rank and the cluster number: the smallest word has the lowest number on ties
        bits = 10 if len(rank) <= 1024 else 26
        kind = np.dtype(np.uint16 if bits == 10 else np.uint32)
        words = rank.astype(kind) << bits | np.arange(len(rank), dtype=kind)[:, None]
        best = words.min(axis=0).astype(np.int64) & (1 << bits) - 1
        return best, distances[best, np.arange(len(best))]

    def _assign_block(self, codes: np.ndarray) -> tuple[np.ndarray, ...]:
        """Cluster many tokens at once; valid only while no limit can be reached (`_plain`).

        First computes all distances to the existing clusters. Tokens without a match then find the new leaders among
        themselves. Last, every token moves to an earlier new leader if this one is preferred.
        """
        rule, start, n = self.rule, self.tokens, len(codes)
        base, old = self._first, self._size
        tokens = start + np.arange(n)
        first = np.full(n, base)
        if rule.window_tokens:
            first = np.maximum(base, np.searchsorted(self.first_token, tokens - rule.window_tokens))
        best, distance = np.full(n, -1, np.int64), np.full(n, FAR, np.uint8)
        if old > base:
            table = np.bitwise_count(self._codes[base:old, None] ^ codes)
            expired = int(first[-1]) - base  # clusters that age out within the block
            if expired:
                table[:expired][np.arange(base, base + expired)[:, None] < first] = FAR
            best, distance = self._preferred(table)
            best += base
        # a token without a match that matches no earlier new leader becomes a leader
        free = np.flatnonzero(distance >= rule.limit)
        near = np.bitwise_count(codes[free, None] ^ codes[free]) < rule.limit
        suited = np.zeros(len(free), bool)
        leads = np.zeros(len(free), bool)
        for i in range(len(free)):
            if not suited[i]:
                leads[i] = True
                suited |= near[i]
        leaders = free[leads]
        opened = np.zeros(n, bool)
        opened[leaders] = True
        if len(leaders):
            self._open(codes[leaders], start + leaders)
            table = np.bitwise_count(codes[leaders, None] ^ codes)
            is_causal = leaders[:, None] >= np.arange(n)  # a token can join earlier leaders only
            np.maximum(table, is_causal * np.uint8(FAR), out=table)
            match_index, closest = self._preferred(table)
            moves = (distance >= rule.limit) if rule.first_match else closest < distance
            moves &= closest < rule.limit
            best[moves], distance[moves] = old + match_index[moves], closest[moves]
            best[leaders], distance[leaders] = old + np.arange(len(leaders)), 0
        # the k-th token of a cluster within the block sees k - 1 more tokens than before the block
        relative_index = best - base
        order = np.argsort(relative_index.astype(np.min_scalar_type(self._size)), kind="stable")  # 16 bits: radix sort
        sizes = np.bincount(relative_index)
        rank = np.empty(n, np.int64)
        rank[order] = np.arange(n) - (np.cumsum(sizes) - sizes)[relative_index[order]]
        counts = self._counts[best] + rank + 1
        self._counts[base : base + len(sizes)] += sizes.astype(np.int32)
        self.tokens += n
        compared = old + np.cumsum(opened) - opened - first
        return best, opened, counts, distance, np.zeros(n, bool), compared
