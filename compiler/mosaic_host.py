"""Host of the policy `mosaic`: assigns the tokens of a step to clusters, decides splits, writes inputs of selections.

A cluster of `golden.mosaic` has a number in the tables of the core, which is also the hash code of its tokens. Number 0
is the text. A split replaces a cluster by two others: all its tokens move to clusters that are empty or new. The number
of an empty cluster is used again from the next step on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.policies import MosaicPolicy
from golden import bf16
from golden.mosaic import MosaicCache, SemanticIndex
from golden.store import Store
from golden.store.layout import RESIDENT
from golden.two_stage import FENCE_TOKENS


class MosaicHost:
    """State of the host for one session.

    Attributes
    ----------
    cache : clusters of all layers; None before the first frame
    numbers : for each layer, number of each cluster of `cache`
    labels, moves : of the last step, for each layer: numbers of its tokens, (token, number) of each move
    """

    def __init__(self, session: Any):  # a `Session` of the runtime, which imports this module
        self.session, machine = session, session.machine
        self.machine, self.layers = machine, machine.decoder.layers
        policy = machine.policy
        if not isinstance(policy, MosaicPolicy):
            raise ValueError(f"policy with partitions must be of MosaicPolicy, got {policy.name}")
        self.rule = policy.rule
        count = len(self.layers)
        if count < 2:
            raise ValueError(f"layers of a model for policy mosaic must be at least 2, got {count}")
        self.cache: MosaicCache | None = None
        self.numbers: list[dict[int, int]] = [{} for _ in range(count)]
        self.free: list[list[int]] = [[] for _ in range(count)]
        self.used = [1] * count  # numbers below this one exist, when the session has text
        self.labels: list[list[int]] = [[] for _ in range(count)]
        self.moves: list[list[tuple[int, int]]] = [[] for _ in range(count)]
        self._starts: list[int] = []  # first token of each frame
        self._embedding = np.zeros(0)
        self._images: dict[int, bytes] = {}

    def before(self, frame: np.ndarray | None) -> None:
        """Write the rows of all clusters. `frame` : visual tokens of the step (T, hidden), float64; None: text."""
        if frame is not None:
            self._embedding = frame.mean(axis=0)
        partitions = len(self.cache.means) if self.cache else 0
        number = min(self.rule.top_visual, partitions)
        for layer in self.layers:
            assert layer.retrieval.two_stage is not None
            layer.retrieval.two_stage.partitions = number
        for layer, rows in zip(self.layers, self.rows(), strict=True):
            at, size = layer.clusters, layer.kv
            for table, vectors in ((at.representatives, rows[0]), (at.centroids, rows[1])):
                self._write({table + n * size: row.astype("<u2").tobytes() for n, row in enumerate(vectors)})
            word = 2 * self.machine.config.dpe_inputs
            counts = rows[2].astype("<u2").tobytes()
            self._write({at.counts: counts.ljust(-(-len(counts) // word) * word, b"\0")})

    def rows(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """For each layer: representatives, centroids (C, Hkv * d) as BF16 bit patterns, token counts (C,)."""
        config, result = self.machine.config, list[tuple[np.ndarray, np.ndarray, np.ndarray]]()
        size = config.kv_heads * config.head_dim
        for layer, numbers in enumerate(self.numbers):
            vectors, counts = np.zeros((2, self.used[layer], size)), np.zeros(self.used[layer], np.int64)
            counts[0] = FENCE_TOKENS
            if self.cache is not None:
                index = self.cache.layers[layer]
                units = {p: _unit(index.representative(p)) for p, ids in index.partitions.items() if ids}
                vectors[0] = next(iter(units.values()))  # also of empty clusters; the text is never marked by it
                for cluster, number in numbers.items():
                    own = index.clusters[cluster]
                    vectors[0][number], vectors[1][number] = units[own.partition], _unit(own.mean)
                    counts[number] = own.size
            result.append((bf16.encode(vectors[0]), bf16.encode(vectors[1]), counts))
        return result

    def after(self, start: int, count: int, is_frame: bool) -> list[list[Mapping[str, int]]]:
        """Assign the tokens of the step, write their labels; returns the fields of the MOVE commands of each layer."""
        before = [{t: n for c, n in own.items() for t in self._tokens(layer, c)}
                  for layer, own in enumerate(self.numbers)]  # fmt: skip
        places = [self._places(layer) for layer in range(len(self.layers))]
        if self.cache is not None:
            for layer, index in enumerate(self.cache.layers):
                self._follow(index, self.numbers[layer], places[layer])
        if is_frame:
            self._append(start, count)
        fields: list[list[Mapping[str, int]]] = []
        for layer in range(len(self.layers)):
            fields.append(self._number(layer, start, count, is_frame, before[layer], places[layer]))
            own = self.layers[layer]
            image = b"".join(own.label_image(number) for number in self.labels[layer])
            self.machine.core.put({own.projected: image})
        return fields

    def _append(self, start: int, count: int) -> None:
        config = self.machine.config
        keys = np.stack([
            bf16.decode(self.machine.core.host_get(
                layer.rotated["k"], 2 * count * config.kv_heads * config.head_dim).view("<u2"))
            for layer in self.layers
        ]).reshape(len(self.layers), count, config.kv_heads, config.head_dim)  # fmt: skip
        if self.cache is None:
            self.cache = MosaicCache(len(self.layers), config.kv_heads, config.head_dim, count, self.rule)
        self._starts.append(start)
        self.cache.append(self._embedding, keys, np.broadcast_to(0.0, keys.shape))

    def _follow(self, index: SemanticIndex, numbers: Mapping[int, int], places: Mapping[int, list]) -> None:
        """Let the clusters be where their pages are: those that came back were retrieved, and can be split.

        A cluster is in device memory when all its pages are, and those of the entries that wait for its split.
        """
        for cluster, number in list(numbers.items()):
            if cluster not in index.clusters:
                continue  # it was merged into one that came back
            waiting = [numbers[other] for other in _waiting(index, cluster)]
            here = all(resident for own in (number, *waiting) for *_, resident in places[own])
            if here and not index.resident(cluster):
                index.retrieve(cluster)
            elif not here and index.resident(cluster):
                index.offload(cluster)

    def _number(
        self, layer: int, start: int, count: int, is_frame: bool, before: Mapping[int, int], places: Mapping[int, list]
    ) -> list[Mapping[str, int]]:
        """Give new clusters numbers; sets labels and moves of a layer and returns the fields of its MOVEs."""
        numbers, free = self.numbers[layer], self.free[layer]
        ids = self.cache.layers[layer].clusters if self.cache else {}
        tokens = {cluster: self._tokens(layer, cluster) for cluster in ids}
        closed = [numbers.pop(cluster) for cluster in list(numbers) if cluster not in ids]
        new = [cluster for cluster in ids if cluster not in numbers]
        moves, fields, labels = list[tuple[int, int]](), list[Mapping[str, int]](), [0] * count
        slots = {token: (page, slot) for own in places.values() for token, page, slot, _ in own}
        for cluster in sorted(new, key=lambda c: (tokens[c][0] >= start, tokens[c][0])):  # in the order of opening
            number, opened = (free.pop(0), 0) if free else (self.used[layer], 1)
            if number == self.machine.plan.clusters:
                raise ValueError(f"clusters of a layer of policy mosaic must be at most {number}, got {number + 1}")
            self.used[layer] += opened
            numbers[cluster] = number
            for token in (t for t in tokens[cluster] if t < start):
                assert before[token] != number
                page, slot = slots[token]
                fields.append(
                    {"page": page, "slot": slot, "cluster": number, "opened": opened, "hash": number * opened}
                )
                moves.append((token, number))
                opened = 0
        for cluster, own in tokens.items():
            for token in (t for t in own if t >= start) if is_frame else ():
                labels[token - start] = numbers[cluster]
        free.extend(closed)
        self.labels[layer], self.moves[layer] = labels, moves
        return fields

    def _tokens(self, layer: int, cluster: int) -> list[int]:
        """Tokens of the session in a cluster."""
        assert self.cache is not None
        size = self.cache.tokens_per_frame
        return [self._starts[t // size] + t % size for t in self.cache.layers[layer].tokens(cluster).tolist()]

    def _places(self, layer: int) -> dict[int, list[tuple[int, int, int, bool]]]:
        """For each number, its tokens in the core's tables: token, page, slot, and whether the page is resident.

        The host reads the headers, the records of all clusters, and records and token lists of their pages.
        """
        core = self.machine.core
        store = Store(np.frombuffer(core.device, np.uint8), core.table.kvmu.base)
        context = store.context(self.session.contexts[layer].number)
        places: dict[int, list[tuple[int, int, int, bool]]] = {}
        for number in range(int(context.header["clusters"])):
            places[number] = [
                (int(context.lists[page, slot]), page, slot, bool(int(context.pages[page]["flags"]) & RESIDENT))
                for page in context.chain(number)
                for slot in range(32)
                if int(context.pages[page]["live"]) >> slot & 1
            ]
        pages = sum(len(context.chain(number)) for number in places)
        core.read += store.header.nbytes + context.header.nbytes + context.clusters[: len(places)].nbytes
        core.read += pages * (context.pages[0].nbytes + context.lists[0].nbytes)
        return places

    def _write(self, images: Mapping[int, bytes]) -> None:
        """Write the images that have changed."""
        changed = {word: image for word, image in images.items() if self._images.get(word) != image}
        self._images |= changed
        if changed:
            self.machine.core.put(changed)


def _waiting(index: SemanticIndex, cluster: int) -> list[int]:
    """Clusters of the entries that wait for the split of a cluster."""
    own = index.clusters[cluster].buffer
    return [*own, *(other for each in own for other in _waiting(index, each))]


def _unit(x: np.ndarray) -> np.ndarray:
    """Vector of length 1 in the direction of `x`; zeros stay."""
    return x / (np.linalg.norm(x) or 1)
