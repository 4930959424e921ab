"""Attention of a decoder layer to the tokens that it retrieves: scores, selection, softmax, weighted values."""

# mypy: disable-error-code="arg-type"

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np

from compiler import vector_programs as programs
from compiler.blocks import RowBlock
from compiler.builder import ALONE, CommandRef, LoadedOperands, Operands, Share
from compiler.memory import Region, row_words
from compiler.products import Products
from compiler.two_stage import NO_CLUSTERS, ClusterTables, TwoStage
from compiler.vector_code import VectorCode
from golden.decoder_layer import TEXT_SCORE, LayerPolicy
from golden.selection import covering_row
from hw.config import Config
from hw.core.isa import LIST_SETS, Destination, Fit, LengthSource


@dataclass(frozen=True)
class Selected:
    """Selection of the pages of a layer.

    Attributes
    ----------
    lists : page lists that name the pages: 0 the first, 1 the second
    fetched : command after which the pages are in device memory; empty on cores that do not lead. Before `fetch`: the
        commands before the fetch
    before : keys in front of those of the step's tokens that are in no page, see `compiler.window_layer`
    """

    lists: int
    fetched: list[CommandRef]
    before: int = 0

    def page_list(self, head: int, kv_heads: int) -> int:
        """Number of the page list of a KV head."""
        return head + self.lists * kv_heads


@dataclass(frozen=True)
class SelectionInputs:
    """Inputs of the selection that the queries of a step make for a layer.

    tokens          tokens of the step
    mean_keys_word  word address of the mean keys of that layer
    clusters        commands before the use of its number of clusters and of its mean keys
    queries         commands before the use of the queries
    lists           page lists that the selection fills: 0 the first, 1 the second
    count_word      word address of its number of clusters, for scores before the context is open; None: it is open
    tables          tables of the clusters of that layer, for a selection in two stages
    speculated      the queries are speculated, for a policy with partial scores; False: all past tokens are selected
    """

    tokens: int
    mean_keys_word: int
    clusters: Sequence[CommandRef]
    queries: Sequence[CommandRef]
    lists: int
    count_word: int | None = None
    tables: ClusterTables = NO_CLUSTERS
    speculated: bool = False

    @property
    def length(self) -> LengthSource:
        """Source of the number of clusters."""
        return LengthSource.CLUSTERS if self.count_word is None else LengthSource.COUNTED

    def count(self, p: Operands) -> "SelectionInputs":
        """Append the command that reads the number of clusters, if the context is not open."""
        if self.count_word is None:
            return self
        return replace(self, clusters=[*self.clusters, p.count(self.count_word)])


# For each KV head of a core, or once for all heads: the commands after which the scores are in memory. A generator
# appends these commands while it is iterated.
Scored = Iterable[Sequence[CommandRef]]


class RetrievalAttention:
    """Allocates the intermediate results of the attention of a layer, and appends its commands to a program.

    With several cores, each KV head is one core's. With more cores than KV heads, the cores of a head split the scores
    by keys, the softmax by rows, and the weighted values by words. So every number is computed by one core.

    Parameters
    ----------
    config : configuration of the core ; region : device memory for the layer
    q_heads : query heads ; model_head : elements of a head of the model, which determine the scale of the scores
    tokens : tokens of the largest step ; keys : keys of the longest attention row
    prefetches : the queries can select for another layer while this one attends
    table : what the layer does with its tokens ; scoring : word address of the queries that score clusters
    products, vectors : compilers of products and of vector programs
    rotated : word addresses of queries, keys (both after RoPE) and values of the step, one row per token

    Attributes
    ----------
    outputs : for each KV head, word address of its result: rows of `group` query heads, token after token
    images : constants in memory by word address
    two_stage : the selection of a policy with partitions, else None
    """

    def __init__(
        self,
        config: Config,
        region: Region,
        products: Products,
        vectors: VectorCode,
        rotated: Mapping[str, int],
        *,
        q_heads: int,
        model_head: int,
        tokens: int,
        keys: int,
        prefetches: bool,
        table: LayerPolicy,
        scoring: int,
    ):
        self.config, self.products, self.vectors, self.rotated = config, products, vectors, rotated
        self.width, self.half, self.rows, self.accumulators = (
            products.width, products.half, products.rows, products.accumulators,
        )  # fmt: skip
        self.model_head = model_head
        self.head, self.group = config.head_dim // self.width, q_heads // config.kv_heads
        self.q, self.kv = q_heads * self.head, config.kv_heads * self.head
        self.key_blocks = -(-keys // self.width)
        self.cluster_blocks = -(-min(config.max_row_clusters, config.max_clusters) // self.width)
        self.score_words = row_words(2 * max(self.key_blocks, self.cluster_blocks), self.width)
        rows, heads = tokens * self.group, range(config.kv_heads)
        self.scores = [region.allocate(rows * self.score_words) for _ in heads]
        # scores of the clusters for both page lists: SELECT can read them while those for the next layer are computed
        self.cluster_scores = [self.scores] * LIST_SETS
        if prefetches:
            self.cluster_scores = [
                [region.allocate(rows * self.score_words) for _ in heads] for _ in self.cluster_scores
            ]
        self.shares = [region.allocate(rows * self.key_blocks) for _ in heads]
        self.outputs = [region.allocate(rows * self.head) for _ in heads]
        shared = np.array(table.score_row or (), "<u2")
        if table.by_frames:
            shared = np.zeros(self.cluster_blocks * self.width, "<f4")
            shared[0] = TEXT_SCORE
        self.partial = table.partial
        if table.partial is not None:
            row, stride = covering_row(keys, table.partial.budget, self.width)
            self.covering = {"stride": stride // self.width, "rows": -(-keys // stride)}
            shared = row.astype("<u2")
        # scores that all queries share, or what is added to the sum of their scores, or rows that cover all tokens
        self.shared_scores = region.allocate(-(-shared.nbytes // (2 * self.width)))
        self.images = {self.shared_scores: shared.tobytes()} if len(shared) else {}
        self.by_frames, self.scoring = table.by_frames, scoring
        self.summed_scores = [region.allocate(self.cluster_blocks if table.by_frames else 0) for _ in range(LIST_SETS)]
        self.two_stage = TwoStage(config, region, rows, self.score_words) if table.partitions else None
        if self.two_stage:
            self.cluster_blocks = self.two_stage.blocks
            self.images |= self.two_stage.images

    def from_token(self, first: int, rotated: Mapping[str, int]) -> "RetrievalAttention":
        """The same for the tokens of a step from token `first` on; `rotated` : word addresses of their rows."""
        other, row = copy(self), first * self.group
        other.rotated, other.scoring = rotated, rotated["q"]
        other.scores = [word + row * self.score_words for word in self.scores]
        other.cluster_scores = [[word + row * self.score_words for word in words] for words in self.cluster_scores]
        other.shares = [word + row * self.key_blocks for word in self.shares]
        other.outputs = [word + row * self.head for word in self.outputs]
        return other

    def add_programs(self) -> None:
        """Add the vector programs."""
        n, head = self.width, self.model_head
        varying = {
            "exponentials": programs.exponentials(1, n, head),
            "softmax": programs.softmax(1, n, head),
            "long exponentials": programs.long_exponentials(1, n, head),
            "divide by sum": programs.divide_by_sum(1, n),
        }
        if self.by_frames:
            varying |= {
                "first row": programs.first_row(1, n),
                "add row": programs.add_row(1, n),
                "sum of rows": programs.sum_of_rows(1, n),
            }
        self.vectors.add(varying, varying=True)
        if self.two_stage:
            self.two_stage.add_programs(self.vectors, n)

    def cluster_rows(self, p: Operands, inputs: SelectionInputs) -> Iterator[list[CommandRef]]:
        """Score the mean keys of the clusters.

        Yields once for each KV head of this core: the commands after which the scores of the heads that all cores work
        on are in memory.
        """
        heads, team = p.builder.share.groups(self.config.kv_heads)
        inputs = inputs.count(p)
        for h in heads:
            p.count_readers = p.builder.meet(self._score(p, h, team, inputs))
            yield p.count_readers

    def select(self, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select clusters by their scores, which `cluster_rows` has computed."""
        share = p.builder.share
        teams, selected = share.count // share.groups(self.config.kv_heads)[1].count, list[CommandRef]()
        for number, done in enumerate(scored):
            for head in range(number * teams, min((number + 1) * teams, self.config.kv_heads)):
                selected += self._select(p, head, inputs, done)
        return Selected(inputs.lists, selected)

    def select_by_row(self, p: Operands, inputs: SelectionInputs) -> Selected:
        """Select clusters by the row of scores that all queries share."""
        return self._select_all_heads(p, {"source": self.shared_scores, "rows": 1}, inputs, [])

    def select_tokens(self, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select clusters of one token by partial scores, or all of them."""
        if inputs.speculated:
            return self.select(p, inputs, scored)
        return self._select_all_heads(p, {"source": self.shared_scores, **self.covering}, inputs, [])

    def frame_row(self, p: Operands, inputs: SelectionInputs) -> Iterator[list[CommandRef]]:
        """One row of scores of the frames, the sum of those of all query rows and KV heads.

        The sum begins with the first row of the first head; core 0 computes it.
        """
        heads, team = p.builder.share.groups(self.config.kv_heads)
        scored, scores, inputs = list[CommandRef](), self.cluster_scores[inputs.lists], inputs.count(p)
        for h in heads:
            scored += self.mean_key_products(p, h, team, inputs, inputs.mean_keys_word, scores)
        scored = [*p.builder.meet(scored), *inputs.clusters]
        if p.builder.share.leads:
            rows, stride = inputs.tokens * self.group, self.score_words
            row = {"a_stride": stride, "a_wide": 1, "length": inputs.length, "destination": Destination.NONE}
            self.vectors.command(p, "first row", scored, repeat=1, a=scores[0], **row)
            for head, word in enumerate(scores):
                self.vectors.command(p, "add row", scored, repeat=range(int(head == 0), rows), a=word, **row)
            out = self.summed_scores[inputs.lists]
            row |= {"a": self.shared_scores, "out": out, "destination": Destination.MEMORY}
            scored = self.vectors.command(p, "sum of rows", scored, repeat=1, **row)
        p.count_readers = scored
        yield scored

    def select_frames(self, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select by the row of scores of `frame_row`."""
        (summed,) = scored
        return self._select_all_heads(p, {"source": self.summed_scores[inputs.lists], "rows": 1}, inputs, summed)

    def stage_rows(self, p: Operands, inputs: SelectionInputs) -> Iterator[list[CommandRef]]:
        """Row of keys of the clusters of a selection in two stages."""
        stage, scored = self.two_stage, list(inputs.clusters)
        assert stage is not None
        if stage.partitions:
            heads, team = p.builder.share.groups(self.config.kv_heads)
            scores, inputs = self.cluster_scores[inputs.lists], inputs.count(p)
            for h in heads:
                scored += self.mean_key_products(p, h, team, inputs, inputs.tables.representatives, stage.scores)
                scored += self.mean_key_products(p, h, team, inputs, inputs.tables.centroids, scores)
            scored = [*p.builder.meet(scored), *inputs.clusters]
            if p.builder.share.leads:
                scored = stage.rank(
                    p, self.vectors, inputs.tokens * self.group, self.score_words, scores, scored,
                    length=inputs.length, keys=stage.keys[inputs.lists],
                )  # fmt: skip
        p.count_readers = scored
        yield scored

    def select_in_two_stages(self, p: Operands, inputs: SelectionInputs, scored: Scored) -> Selected:
        """Select by the row of keys of `stage_rows`, and the text by another, for every KV head."""
        stage, (ranked,) = self.two_stage, scored
        assert stage is not None
        keys = stage.keys[inputs.lists]
        rows, first = (2, keys) if stage.partitions else (1, keys + stage.blocks)
        fields = {"source": first, "stride": stage.blocks, "rows": rows, "counts": inputs.tables.counts}
        return self._select_all_heads(p, fields, inputs, ranked)

    def _select_all_heads(
        self, p: Operands, fields: Mapping[str, int], inputs: SelectionInputs, after: Sequence[CommandRef]
    ) -> Selected:
        """Select for every KV head by the same rows of scores. `fields` : of SELECT"""
        selected, common = list[CommandRef](), {"stride": 0, "length": LengthSource.CLUSTERS, **fields}
        for head in range(self.config.kv_heads):
            selected += p.builder.lead("SELECT", common | {"head": head}, after=[*inputs.clusters, *after])
        return Selected(inputs.lists, selected)

    @staticmethod
    def fetch(p: Operands, selected: Selected, after: Sequence[CommandRef] = ()) -> Selected:
        """Fetch the pages of the selected clusters; the fetch ends after the commands `after`."""
        return replace(selected, fetched=p.builder.lead("FETCH", after=[*selected.fetched, *after]))

    def attend(
        self,
        p: Operands,
        tokens: int,
        selected: Selected,
        after: Sequence[CommandRef],
        fetched: Callable[[], None] = lambda: None,
        overlapped: Callable[[], None] = lambda: None,
    ) -> list[CommandRef]:
        """Attend to the selected pages and to the tokens of the step; returns the last commands.

        The keys of a head are gathered and multiplied while the softmax of the previous head runs; its values follow.
        `fetched`, `overlapped` append other commands: after the fetch, and after the keys of the first head
        """
        heads, team = p.builder.share.groups(self.config.kv_heads)
        selected = replace(selected, fetched=p.builder.meet(selected.fetched))
        fetched()
        shares = [self._attend(p, heads[0], team, tokens, selected, after)]
        overlapped()
        for number, h in enumerate(heads[1:]):
            shares.append(self._attend(p, h, team, tokens, selected, after))
            self._mix(p, heads[number], team, tokens, selected, shares[number])
        return self._mix(p, heads[-1], team, tokens, selected, shares[-1])

    def _attended_blocks(self, tokens: int, selected: Selected) -> int:
        """Largest number of blocks of keys that a step of `tokens` tokens attends to."""
        return self.key_blocks

    def _past(self, selected: Selected, head: int) -> dict[str, int]:
        """Fields of a command whose length includes the past tokens that a KV head attends to."""
        return {"length": LengthSource.TOKENS, "head": selected.page_list(head, self.config.kv_heads)}

    def _row_blocks(self, tokens: int) -> list[RowBlock]:
        """Blocks of the query rows of a KV head."""
        rows, group = min(self.accumulators, self.rows // self.head), self.group
        if group > rows:
            return [
                RowBlock(token, 1, head, min(rows, group - head), token * group + head)
                for token in range(tokens)
                for head in range(0, group, rows)
            ]
        size = rows // group
        return [RowBlock(token, min(size, tokens - token), 0, group, token * group) for token in range(0, tokens, size)]

    def _queries(
        self, p: Operands, head: int, block: RowBlock, after: Sequence[CommandRef], queries: int
    ) -> LoadedOperands:
        """Query rows of a KV head as activations; `queries` : word address of all queries."""
        source = queries + block.token * self.q + (head * self.group + block.head) * self.head
        beats = block.heads * self.head
        fields = {"source": source, "stride": self.q, "rows": block.tokens, "beats": beats, "step": beats}
        return p.activations([fields], block.tokens * beats, after)

    def _products(self, scores: int, rows: RowBlock, block: int, wide: bool = True) -> dict[str, int]:
        """Fields of a MULTIPLY of a head's queries with a chunk of keys; the results are scores at `scores`."""
        chunk = self.half // self.head
        return {
            "m_stride": self.head, "k_stride": 1, "m_blocks": chunk, "k_blocks": self.head, "x_stride": self.head,
            "vectors": rows.rows, "first": 1, "last": 1,
            "out": scores + rows.row * self.score_words + (1 + wide) * block, "stride": self.score_words,
            "wide": wide, "limit": 1, "block": block,
        }  # fmt: skip

    def _score(self, p: Operands, head: int | None, team: Share, inputs: SelectionInputs) -> list[CommandRef]:
        """Exponentials of the scores of all clusters for one KV head; its cores split the clusters, then the rows.

        Partial scores are BF16 and have no exponentials. The exponentials replace the scores in memory: each row is
        read before its exponentials are written. Without a head, the core only meets the others.
        """
        length_fields, wide = {"length": inputs.length}, self.partial is None
        out = self.cluster_scores[inputs.lists]
        products = self.mean_key_products(p, head, team, inputs, inputs.mean_keys_word, out, wide)
        if not wide:
            return products
        if team.count > 1:
            products = p.builder.meet(products)
        if head is None:
            return []
        products = [*products, *inputs.clusters]  # a core can have rows of exponentials, but no products
        scores, stride = out[head], self.score_words
        fields = {"a": scores, "a_stride": stride, "a_wide": 1, "out": scores, "out_stride": stride, **length_fields}
        part = team.part(inputs.tokens * self.group)
        if self.cluster_blocks <= self.config.vpe_rows:
            return self.vectors.command(p, "exponentials", products, repeat=part, **fields)
        self.vectors.command(p, "exponentials", products, repeat=part, fit=Fit.FITS, **fields)
        return self.vectors.command(p, "long exponentials", products, repeat=part, fit=Fit.EXCEEDS, a_again=1, **fields)

    def mean_key_products(
        self,
        p: Operands,
        head: int | None,
        team: Share,
        inputs: SelectionInputs,
        word: int,
        out: Sequence[int],
        wide: bool = True,
    ) -> list[CommandRef]:
        """Scores of all clusters for one KV head, FP32 if `wide`, else BF16; its cores split the clusters.

        `word` : word address of a vector for each cluster ; `out` : of the scores of each KV head
        """
        chunk, length_fields = self.half // self.head, {"length": inputs.length}
        products = list[CommandRef]()
        for rows in self._row_blocks(inputs.tokens):
            if head is None:
                break
            x = self._queries(p, head, rows, inputs.queries, self.scoring)
            for block in range(team.number * chunk, self.cluster_blocks, team.count * chunk):
                source = word + head * self.head + block * self.width * self.kv
                keys = p.weights(
                    "LOAD",
                    {"source": source, "stride": self.kv, "rows": chunk * self.width, "beats": self.head, "tiled": 1,
                     "limit": 1, "block": block, **length_fields},
                    inputs.clusters,
                )  # fmt: skip
                fields = {**self._products(out[head], rows, block, wide), **length_fields}
                products = [p.multiply(fields, keys, x, self.width)]
        return products

    def _select(
        self, p: Operands, head: int, inputs: SelectionInputs, scored: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """Select clusters for one KV head by its scores."""
        fields = {"source": self.cluster_scores[inputs.lists][head], "stride": self.score_words,
                  "rows": inputs.tokens * self.group, "head": head, "length": LengthSource.CLUSTERS}  # fmt: skip
        return p.builder.lead("SELECT", fields, after=[*inputs.clusters, *scored])

    def _gather(
        self,
        p: Operands,
        head: int,
        tokens: int,
        selected: Selected,
        block: int,
        team: Share,
        *,
        after: Sequence[CommandRef] = (),
        values: range | None = None,
    ) -> LoadedOperands:
        """Gather the chunk of the keys that a head attends to, or of some words of the values, from block `block` on.

        The cores of a `team` gather chunks in turn, each one in ascending order.
        """
        first = team.number * (self.half // self.head)
        restart = block == first
        skip = first if restart else (team.count - 1) * (self.half // self.head)
        step_word = self.rotated["k" if values is None else "v"] + head * self.head
        page_list = selected.page_list(head, self.config.kv_heads)
        fields = {"head": page_list, "blocks": self.half // self.head, "stride": self.kv, "tokens": tokens,
                  "skip": skip, "step_word": step_word, "restart": restart, "values": values is not None}  # fmt: skip
        if values is not None and len(values) < self.head:
            fields |= {"word": values.start, "words": len(values)}
        return p.weights("GATHER", fields, [*selected.fetched, *after])

    def _attend(
        self,
        p: Operands,
        head: int | None,
        team: Share,
        tokens: int,
        selected: Selected,
        after: Sequence[CommandRef],
    ) -> list[CommandRef]:
        """Attention weights of one KV head's queries for its fetched tokens and for the tokens of the step.

        The cores of the head split the keys, then the rows. Without a head, the core only meets the others.
        """
        meet = p.builder.meet if team.count > 1 else list
        chunk, weights = self.half // self.head, list[CommandRef]()
        for rows in self._row_blocks(tokens):
            products = list[CommandRef]()
            if head is not None:
                x, first = self._queries(p, head, rows, after, self.rotated["q"]), team.number * chunk
                for block in range(first, self._attended_blocks(tokens, selected), team.count * chunk):
                    keys = self._gather(p, head, tokens, selected, block, team, after=after)
                    fields = self._products(self.scores[head], rows, block) | self._past(selected, head)
                    products = [p.multiply(fields | {"extra": selected.before + tokens}, keys, x, self.width)]
            products = meet(products)
            for part in rows.part(team.part(rows.rows)) if head is not None else []:
                weights = self._softmax(p, products, head, tokens, selected, part)
        return meet(weights)

    def _softmax(
        self, p: Operands, after: Sequence[CommandRef], head: int, tokens: int, selected: Selected, rows: RowBlock
    ) -> list[CommandRef]:
        """Softmax of rows of scores; rows longer than the vector memory take two commands that read each row twice."""
        out = self.shares[head] + rows.row * self.key_blocks
        scores_in = {"a": self.scores[head] + rows.row * self.score_words, "a_stride": self.score_words, "a_wide": 1}
        fields: dict[str, int] = {
            "repeat": rows.rows, "group": self.group, "pad": tokens - 1 - rows.token,
            "extra": 1 + selected.before + rows.token,
            "out": out, "out_stride": self.key_blocks, **self._past(selected, head),
        }  # fmt: skip
        if self.key_blocks <= self.config.vpe_rows:
            return self.vectors.command(p, "softmax", after, **scores_in, **fields)
        self.vectors.command(p, "softmax", after, fit=Fit.FITS, **scores_in, **fields)
        exceeds = {"fit": Fit.EXCEEDS, "a_again": 1, **fields}
        weights = self.vectors.command(p, "long exponentials", after, **scores_in, **exceeds)
        return self.vectors.command(p, "divide by sum", weights, a=out, a_stride=self.key_blocks, **exceeds)

    def _mix(
        self,
        p: Operands,
        head: int | None,
        team: Share,
        tokens: int,
        selected: Selected,
        weights: Sequence[CommandRef],
    ) -> list[CommandRef]:
        """Values of one KV head times their attention weights; the accumulators limit the rows of one pass.

        The cores of the head split the words of a value, then the rows if they need several passes.
        """
        chunk, product, every = self.half // self.head, list[CommandRef](), tokens * self.group
        pass_rows = min(self.accumulators // self.head, self.rows // chunk)
        words, part = team.part(self.head), range(every)
        if splits := min(team.count // self.head, -(-every // pass_rows)):
            split, word = divmod(team.number, self.head)
            words, part = range(word, word + 1), Share(split, splits).part(every) if split < splits else range(0)
        if head is None or not words:
            return product
        length_fields = self._past(selected, head) | {"extra": selected.before + tokens}
        for row in part[::pass_rows]:
            rows = min(pass_rows, part.stop - row)
            for block in range(0, self._attended_blocks(tokens, selected), chunk):
                values = self._gather(p, head, tokens, selected, block, ALONE, values=words)
                fields = {
                    "source": self.shares[head] + row * self.key_blocks + block, "stride": self.key_blocks,
                    "rows": rows, "beats": chunk, "step": chunk, "limit": 2, "block": block, **length_fields,
                }  # fmt: skip
                x = p.activations([fields], rows * chunk, weights)
                out = self.outputs[head] + row * self.head + words.start
                product = [p.multiply(
                    {
                        "m_stride": 1, "k_stride": len(words), "m_blocks": len(words), "k_blocks": chunk,
                        "x_stride": chunk, "vectors": rows, "spread": 1, "out": out, "stride": self.head, "limit": 2,
                        "block": block, **length_fields,
                    },
                    values, x, self.width,
                )]  # fmt: skip
        return product
