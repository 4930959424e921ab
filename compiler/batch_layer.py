"""Decoder layers that serve several streams in one step: the weights are read once for the tokens of all streams.

Projections and the feed-forward part are those of one step with the tokens of all streams. Each stream has its own
context, which the core opens for its tokens. Streams take turns: while one attends, the next one is clustered and
stored, and its pages are fetched into the page lists that the attention does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.builder import CommandRef, Operands
from compiler.layer import Context, LayerCompiler
from compiler.memory import row_words
from compiler.retrieval_attention import Selected
from hw.core.isa import LIST_SETS


@dataclass(frozen=True)
class Part:
    """The tokens of one stream in a step of several.

    context : state of the layer of this stream ; first : row of its first token in the step ; tokens : their number
    """

    context: Context
    first: int
    tokens: int


@dataclass(frozen=True)
class Ahead:
    """What a layer selects for the following one: its queries select for all streams, the first one is done.

    selected : selection of the first stream
    queries : word address of the queries of all streams ; written : commands that write them
    """

    selected: Selected
    queries: int
    written: Sequence[CommandRef]


class BatchLayer(LayerCompiler):
    """A layer whose steps can serve several streams.

    Raises ValueError for a policy whose selection or branch has one buffer for a step.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        table = self.table
        if table.by_frames or table.partitions or table.partial or self.prunes or self.branch is not None:
            raise ValueError(f"batch must be 1 for policy {self.policy.name}")
        queries = [self.rotated["q"]]
        if self.prefetches:  # a layer writes its queries while those of the layer before still select
            queries.append(self.region.allocate(self.sizes.tokens * self.q))
        self.queries = queries

    @property
    def normed_row(self) -> int:
        """Rows of all streams are loaded again for every block of results: they begin in different channels."""
        return row_words(self.x_words, self.width)

    def of_part(self, part: Part, queries: int) -> BatchLayer:
        """The same layer for the rows of one stream; `queries` : word address of the queries of all streams."""
        other = self.for_context(part.context)
        assert isinstance(other, BatchLayer)
        row = {"q": self.q, "k": self.kv, "v": self.kv}
        at = {**self.rotated, "q": queries}
        other.rotated = {name: at[name] + part.first * words for name, words in row.items()}
        other.plain = dict(other.rotated)
        if self.table.hashes:
            other.projected += part.first * self.hashes
        other.retrieval = self.retrieval.from_token(part.first, other.rotated)
        return other

    def add_batch(
        self,
        p: Operands,
        parts: Sequence[Part],
        after: Sequence[CommandRef] = (),
        ahead: Ahead | None = None,
        following: tuple[BatchLayer, Part] | None = None,
    ) -> tuple[list[CommandRef], Ahead | None]:
        """Append the commands of a step of several streams, which follow the commands `after`.

        `ahead` : selection by the layer before; without it the layer selects itself
        `following` : the next layer and its first part, for which the queries of this layer select

        Returns the last commands, and the selection for the next layer.
        """
        t, w, meet = sum(part.tokens for part in parts), self.wide, p.builder.meet
        self._check(t)
        own = next(word for word in self.queries if ahead is None or word != ahead.queries)
        streams = [self.of_part(part, own) for part in parts]
        opened = [] if ahead else streams[0].open(p)
        x = self._normed(p, t, after)
        k_blocks, q_blocks = (self.matrices[name].m_blocks for name in "kq")
        q_share, v_share = p.builder.share.balanced_with(k_blocks), p.builder.share.balanced_with(k_blocks + q_blocks)
        k = meet(self._rope(p, "k", t, meet(self._multiply(p, "k", t, x, w["k"], wide=True))))
        q = meet(self._multiply(p, "q", t, x, w["q"], wide=True, share=q_share))
        v = meet(self._multiply(p, "v", t, x, self.rotated["v"], wide=False, share=v_share))
        hashed = self._hash(p, t, k)  # its activations replace `x` in the operand memory
        q = meet(self._rotate(p, "q", t, q, w["q"], own))

        def retrieve(number: int, lists: int, free: Sequence[CommandRef]) -> tuple[Selected, list[CommandRef]]:
            """Select and store for a stream; returns the selection and the commands that store its tokens.

            `lists` : page lists, which nothing uses after the commands `free`
            """
            stream, tokens = streams[number], parts[number].tokens
            selected = ahead.selected if ahead and not number else None
            ready = opened if not number else meet(stream.open(p, lists, free))
            if ahead and not selected:
                earlier = self.of_part(parts[number], ahead.queries)
                selected = earlier._select(p, tokens, stream, ready, ahead.written, lists=lists)
            ready, written = [*hashed, *ready, *(selected.fetched if selected else ())], list[CommandRef]()
            for piece in self._pieces(tokens, True):
                clustered = p.builder.lead("CLUSTER", after=stream._codes(p, piece, [*ready, *written]))
                means = stream._means(p, piece, clustered)
                written = [*means, *stream._store_kv(p, piece, [*clustered, *v])]
            if selected is None:
                written = meet(written)
                selected = stream._select(p, tokens, stream, written[:1], q, lists=lists, written=written)
            self._end_step(p, written)
            return selected, written

        upcoming: list[Selected] = []

        def overlapped() -> None:
            """During the attention of a stream: what the next one needs, or the first one in the next layer."""
            lists = (selected.lists + 1) % LIST_SETS
            if number + 1 < len(parts):
                selection, stored = retrieve(number + 1, lists, free)
                upcoming.append(selection)
                context.extend(stored)  # the next layer overwrites keys and values
            elif following is not None:
                layer, part = following
                target = layer.of_part(part, own)
                clusters = meet(target.open(p, lists, free))
                upcoming.append(streams[0]._select(p, part.tokens, target, clusters, q, lists=lists))

        (selected, context), free = retrieve(0, 0, []), list[CommandRef]()
        for number, stream in enumerate(streams):
            attended = stream.retrieval.attend(p, parts[number].tokens, selected, [*q, *v], overlapped)
            free = meet(attended) if number + 1 < len(parts) else attended
            context += free
            selected = upcoming.pop() if upcoming else selected
        last = self._finish(p, t, context)
        return last, Ahead(selected, own, q) if following is not None else None


def add_batch_layers(
    p: Operands,
    layers: Sequence[BatchLayer],
    parts: Sequence[Sequence[Part]],
    after: Sequence[CommandRef] = (),
) -> list[CommandRef]:
    """Append the commands of a step of several streams through `layers`, and return the last ones.

    `parts` : for each layer, those of the streams
    """
    ahead, last = None, list(after)
    for number, layer in enumerate(layers):
        following = None
        if layer.prefetches and number + 1 < len(layers):
            following = layers[number + 1], parts[number + 1][0]
        last, ahead = layer.add_batch(p, parts[number], last, ahead, following)
    return last
