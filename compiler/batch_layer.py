"""Decoder layers whose steps serve several streams: the weights are read once for the tokens of all streams.

Projections and feed-forward part are those of one step with the tokens of all streams. Each stream has its own context,
which the core opens for its tokens. The attention parts follow each other: while one stream attends, the tokens of the
next one are clustered and stored, and its pages are fetched into the page lists that the attention does not use.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compiler.builder import CommandRef, Operands
from compiler.layer import Context, LayerCompiler, ScoredLayer
from compiler.memory import row_words
from compiler.retrieval_attention import Selected
from hw.core.isa import LIST_SETS


@dataclass(frozen=True)
class StreamRows:
    """The rows of one stream in a step, one row for each token.

    context : state of the layer of this stream ; first : its first row ; tokens : number of rows
    """

    context: Context
    first: int
    tokens: int


@dataclass(frozen=True)
class Prefetch:
    """Selection that a layer prepares for the next one.

    Only the first stream is selected. The next layer selects for the others with the same queries.

    selected : selection of the first stream
    queries : word address of the queries of all streams ; written : commands that write them
    """

    selected: Selected
    queries: int
    written: Sequence[CommandRef]


class BatchLayer(LayerCompiler):
    """A layer whose steps can serve several streams; its policy has `Policy.batches`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queries = [self.rotated["q"]]
        if self.prefetches:  # a layer writes its queries while those of the layer before still select
            self.queries.append(self.region.allocate(self.sizes.tokens * self.q))

    @property
    def normed_row(self) -> int:
        """Words from one row of the output of `norm` to the next.

        A gap puts consecutive rows in different memory channels, because all rows are loaded again for every block of
        results.
        """
        return row_words(self.x_words, self.width)

    def for_stream(self, rows: StreamRows, queries: int) -> BatchLayer:
        """The same layer for the rows of one stream; `queries` : word address of the queries of all streams."""
        other = self.for_context(rows.context)
        assert isinstance(other, BatchLayer)
        words, first = {"q": self.q, "k": self.kv, "v": self.kv}, {**self.rotated, "q": queries}
        other.rotated = {name: first[name] + rows.first * row for name, row in words.items()}
        other.plain = dict(other.rotated)
        if self.table.hashes:
            other.projected += rows.first * self.hashes
        other.retrieval = self.retrieval.from_token(rows.first, other.rotated)
        return other

    def add_batch(
        self,
        p: Operands,
        rows: Sequence[StreamRows],
        after: Sequence[CommandRef] = (),
        prefetched: Prefetch | None = None,
        following: tuple[BatchLayer, StreamRows] | None = None,
    ) -> tuple[list[CommandRef], Prefetch | None]:
        """Append the commands of a step of several streams, which follow the commands `after`.

        `prefetched` : selection by the layer before; without it the layer selects itself
        `following` : the next layer and the rows of its first stream, for which the queries of this layer select

        Returns the last commands, and the selection for the next layer.
        """
        t, w, meet = sum(each.tokens for each in rows), self.wide, p.builder.meet
        self._check(t)
        queries = next(word for word in self.queries if prefetched is None or word != prefetched.queries)
        streams = [self.for_stream(each, queries) for each in rows]
        opened = [] if prefetched else streams[0].open(p)
        x = self._normed(p, t, after)
        k_blocks, q_blocks = (self.matrices[name].m_blocks for name in "kq")
        q_share, v_share = p.builder.share.balanced_with(k_blocks), p.builder.share.balanced_with(k_blocks + q_blocks)
        k = meet(self._rope(p, "k", t, meet(self._multiply(p, "k", t, x, w["k"], wide=True))))
        q = meet(self._multiply(p, "q", t, x, w["q"], wide=True, share=q_share))
        v = meet(self._multiply(p, "v", t, x, self.rotated["v"], wide=False, share=v_share))
        hashed = self._hash(p, t, k)  # its activations replace `x` in the operand memory
        q = meet(self._rotate(p, "q", t, q, w["q"], queries))
        selections, done = list[Selected](), list[CommandRef]()  # for each stream, then the first one of the next layer

        def score(number: int, lists: int) -> ScoredLayer | None:
            """Scores of a stream by the queries of the layer before, or of the first stream for the next layer."""
            if number < len(rows):
                if prefetched is None:
                    return None
                earlier = self.for_stream(rows[number], prefetched.queries)
                return earlier._score_for(p, rows[number].tokens, streams[number], prefetched.written, lists)
            if following is None:
                return None
            layer, first = following
            return streams[0]._score_for(p, first.tokens, layer.for_stream(first, queries), q, lists)

        def store(number: int, lists: int, clusters: Sequence[CommandRef], selected: Selected | None) -> None:
            """Store the tokens of a stream, after its fetch; without `selected` it selects for itself then."""
            stream, tokens = streams[number], rows[number].tokens
            unchanged = [*hashed, *clusters, *(selected.fetched if selected else ())]  # clusters, up to these commands
            written = list[CommandRef]()
            for piece in self._pieces(tokens, True):
                clustered = p.builder.lead("CLUSTER", after=stream._codes(p, piece, [*unchanged, *written]))
                means = stream._means(p, piece, clustered)
                written = [*means, *stream._store_kv(p, piece, [*clustered, *v])]
            if selected is None:
                written = meet(written)
                selected = stream._select(p, tokens, written[:1], q, lists=lists, written=written)
            self._end_step(p, written)
            selections.append(selected)
            done.extend(written)  # the next layer overwrites keys and values

        store(0, 0, opened, prefetched.selected if prefetched else None)

        def attend(number: int, readers: Sequence[CommandRef]) -> list[CommandRef]:
            """Attend to the pages of a stream, and retrieve for the next one or for the next layer meanwhile.

            `readers` : commands that read the page lists for it
            """
            lists = (selections[number].lists + 1) % LIST_SETS
            scored, chosen = score(number + 1, lists), list[Selected]()

            def select() -> None:
                if scored is not None:
                    chosen.append(scored.select(p, readers))

            def store_next() -> None:
                if number + 1 < len(rows):
                    selected = self.retrieval.fetch(p, chosen.pop()) if chosen else None
                    clusters = [] if selected else meet(streams[number + 1].open(p, lists, readers))
                    store(number + 1, lists, clusters, selected)

            attention, tokens = streams[number].retrieval, rows[number].tokens
            last = attention.attend(p, tokens, selections[number], [*q, *v], select, store_next)
            selections.extend(attention.fetch(p, each) for each in chosen)
            return last

        attended = list[CommandRef]()
        for number in range(len(rows)):
            attended = attend(number, attended)
            if number + 1 < len(rows):
                attended = meet(attended)
            done += attended
        last = self._finish(p, t, done)
        return last, Prefetch(selections[-1], queries, q) if following is not None else None


def add_batch_layers(
    p: Operands,
    layers: Sequence[BatchLayer],
    rows: Sequence[Sequence[StreamRows]],
    after: Sequence[CommandRef] = (),
) -> list[CommandRef]:
    """Append the commands of a step of several streams through `layers`, and return the last ones.

    `rows` : for each layer, those of the streams
    """
    prefetched, last = None, list(after)
    for number, layer in enumerate(layers):
        following = None
        if layer.prefetches and number + 1 < len(layers):
            following = layers[number + 1], rows[number + 1][0]
        last, prefetched = layer.add_batch(p, rows[number], last, prefetched, following)
    return last
