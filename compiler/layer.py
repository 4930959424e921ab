"""Compiler of a decoder layer with attention to retrieved tokens: memory layout, and the program of a step.

Device memory holds everything that a step needs besides its input: weights as tiles, norm weights, vector programs.
The program of a step depends only on its number of tokens. The core reads the number of clusters and of attended
tokens at run time.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import ClassVar

import numpy as np

from compiler import vector_programs as programs
from compiler.blocks import Activations, Columns, Piece
from compiler.builder import ALONE, CommandRef, Operands, Share
from compiler.memory import Region, block_words, encoded_tiles, matrix_words, row_words, tiles
from compiler.policies import Policy, ResvPolicy
from compiler.products import Matrix, Products
from compiler.retrieval_attention import RetrievalAttention, Selected, SelectionInputs
from compiler.state_space import BranchStep, StateSpaceCompiler, branch_compiler
from compiler.two_stage import NO_CLUSTERS, ClusterTables
from compiler.vector_code import VectorCode, largest_divisor
from golden.bf16 import BF16_ONE
from golden.decoder_layer import one, pair_order, with_bias
from golden.quickvideo import kept_count
from golden.weight_formats import PackedWeights, WeightFormat
from hw.config import Config
from hw.core.isa import LIST_SETS, MAX_STEP, Command, Destination

# Sizes that the compiler supports.
MAX_HIDDEN, MAX_FFN, MAX_Q_HEADS = 8192, 28672, 128
MAX_KEYS, MAX_BLOCKS = 1 << 20, (1 << 16) - 1  # attended keys, and blocks of them


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one layer that the hardware does not determine.

    Attributes
    ----------
    hidden, ffn : hidden and feed-forward width ; q_heads : query heads, a multiple of the KV heads
    tokens : tokens of the largest step ; keys : keys of the longest attention row
    fill : tokens of the largest step without queries, when it is larger than `tokens`
    head : elements of a head of the model, when they are fewer than `head_dim`; zeros pad each half of a head
    qkv_bias : the projections of queries, keys and values have a bias
    norm_epsilon : constant that the RMSNorms add to the mean square
    """

    hidden: int
    ffn: int
    tokens: int
    keys: int
    fill: int = 0
    head: int = 0
    q_heads: int = field(kw_only=True)
    qkv_bias: bool = False
    norm_epsilon: float = 1e-5


@dataclass(frozen=True)
class Context:
    """State of one layer of one stream.

    Attributes
    ----------
    number : entry of the table of contexts of the store
    count_word, mean_keys_word : word addresses of its number of clusters, which is part of its header, and of its mean
        keys
    state_word : word address of the state of its state-space branch, if the policy has one
    columns_word : word address of a row of ones and zeros (Hq * d), the columns of its partial scores, likewise
    """

    number: int
    count_word: int
    mean_keys_word: int
    state_word: int = 0
    columns_word: int = 0


@dataclass(frozen=True)
class ScoredLayer:
    """Scores of the clusters of a layer, before its pages are selected.

    layer : that layer ; scorer : the layer whose queries score ; inputs : of the selection
    scores : commands after which the scores are in memory, see `Scored`
    """

    layer: "LayerCompiler"
    scorer: "LayerCompiler"
    inputs: SelectionInputs
    scores: list[list[CommandRef]]

    def select(self, p: Operands, after: Sequence[CommandRef] = ()) -> Selected:
        """Open the context of the layer and select its pages. `after` : commands that use the page lists"""
        opened = self.layer.open(p, self.inputs.lists, after)
        inputs = replace(self.inputs, clusters=opened, count_word=None)
        return self.scorer.policy.select(self.scorer.retrieval, p, inputs, self.scores)


@dataclass
class LayerCompiler:
    """Allocates the memory of a layer and compiles the programs of its steps.

    Parameters
    ----------
    config : configuration of the core ; sizes : sizes of the layer
    region : device memory for the layer ; context : state of the layer that its programs use
    policy : what the layer does with its tokens
    form : format of the stored weights of the projections; None: BF16
    cores : cores that work on a step; more or fewer get the same results, but read the weights more slowly

    Attributes
    ----------
    matrices : each matrix (q, k, v, o, gate, up, down, planes)
    norms : word addresses of the weights of the two norms
    x, out : word addresses of the step's input and output, row after row
    factors : word address of the factors of a norm, one FP32 beat per token
    normed : word address of the output of `norm`
    cosines : word address of the RoPE angles of the step, pairs of FP32 words (cosines, sines)
    rotated : word addresses of queries, keys (both after RoPE) and values of the step
    products, vectors : compilers of products and of vector programs
    table : how the layer uses its tables ; branch : state-space branch; None: the policy has none
    clusters : for a policy with partitions, what the host writes for the clusters of this layer

    Raises
    ------
    ValueError
        A size is not supported; the message names it.
    """

    config: Config
    sizes: LayerSizes
    region: Region
    context: Context
    policy: Policy = field(default_factory=ResvPolicy)
    form: WeightFormat | None = None
    cores: int = 1
    attention_kind: ClassVar[type[RetrievalAttention]] = RetrievalAttention

    def __post_init__(self) -> None:
        c, s = self.config, self.sizes
        self.table = self.policy.table(c)
        if self.form is not None and c.weight_bits != 4:
            raise ValueError(f"weight_bits must be 4 for weights in {self.form.name}, got {c.weight_bits}")
        self.products, self.vectors = Products(c, self.cores), VectorCode(c, self.region)
        self.width = n = self.products.width
        self.rows = self.products.rows
        self.head = c.head_dim // n  # words of one head's vector
        if s.q_heads < 1 or s.q_heads % c.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {c.kv_heads}, got {s.q_heads}")
        self.group = s.q_heads // c.kv_heads  # query heads of a KV head
        self.kv, self.q, self.x_words, self.ffn = (
            c.kv_heads * self.head, s.q_heads * self.head, self._words("hidden", s.hidden), self._words("ffn", s.ffn),
        )  # fmt: skip
        self.hashes = -(-c.hash_bits // n)
        for name, maximum in (
            ("hidden", MAX_HIDDEN), ("ffn", MAX_FFN), ("q_heads", MAX_Q_HEADS), ("keys", min(MAX_KEYS, MAX_BLOCKS * n)),
            ("tokens", MAX_STEP), ("fill", MAX_STEP),
        ):  # fmt: skip
            if getattr(s, name) > maximum:
                raise ValueError(f"{name} must be at most {maximum}, got {getattr(s, name)}")
        if s.head % 2 or not 0 <= s.head <= c.head_dim:
            raise ValueError(f"head must be even and at most head_dim = {c.head_dim}, got {s.head}")
        head_words = min(self.products.half, self.products.accumulators, self.rows)
        if self.head > head_words:
            raise ValueError(
                f"head_dim must be at most {head_words * n} (operand memory and accumulators), got {c.head_dim}"
            )
        self.max_tokens = {True: s.tokens, False: max(s.tokens, s.fill)}  # of a step with queries, and without
        self.qkv_words = self.x_words + s.qkv_bias
        allocate, t = self.region.allocate, s.tokens
        self._allocate_weights()
        self.one = allocate(1) if s.qkv_bias else 0
        self.x, self.out = allocate(t * self.x_words), allocate(t * self.x_words)
        self.cosines = allocate(t * self.head * 2)
        self.factors = allocate(2 * t)
        self.middle_row = row_words(self.ffn, n)
        self.normed, self.middle = allocate(t * self.normed_row), allocate(t * self.middle_row)
        row = self.products.result_row
        self.wide = {name: allocate(t * row(width)) for name, width in
                     (("q", self.q), ("k", self.kv), ("o", self.x_words), ("gate", self.ffn), ("up", self.ffn),
                      ("down", self.x_words))}  # fmt: skip
        max_tokens = self.max_tokens[False]
        self.rotated = {
            "q": allocate(t * self.q), "k": allocate(max_tokens * self.kv), "v": allocate(max_tokens * self.kv),
        }  # fmt: skip
        self.plain = dict(self.rotated)  # queries and keys that score clusters
        if self.table.by_frames:
            self.plain |= {"q": allocate(t * self.q), "k": allocate(t * self.kv)}
            self.no_angles = allocate(2 * self.head)
        if self.table.partial:
            self.plain["q"], self.wide["speculated"] = allocate(t * self.q), allocate(t * row(self.q))
        self.prunes = self.table.rho != 1
        if self.prunes:
            blocks = -(-t // self.width)
            self.norm_beats, self.key_norms, self.unit = allocate(blocks * self.width), allocate(blocks), allocate(1)
        self.attended = allocate(t * self.x_words)
        # projections of the keys on the hyperplanes; without hash codes one row, the label of the step
        self.projected = allocate((max_tokens if self.table.hashes else 1) * self.hashes)
        self._allocate_clusters()
        self.retrieval = self.attention_kind(
            c, self.region, self.products, self.vectors, self.rotated, q_heads=s.q_heads,
            model_head=s.head or c.head_dim, tokens=s.tokens, keys=s.keys, prefetches=self.prefetches,
            table=self.table, scoring=self.plain["q"],
        )  # fmt: skip
        self.branch: StateSpaceCompiler | None = branch_compiler(
            self.policy, (s.hidden, s.q_heads, s.head or c.head_dim), t, self.products, self.vectors, self.region
        )
        self._programs()

    def _allocate_clusters(self) -> None:
        """Tables, and labels of the tokens of a step, for a policy with partitions."""
        self.clusters = NO_CLUSTERS
        if self.table.partitions:
            self.clusters = ClusterTables.allocate(self.region, self.config, self.max_tokens[False])
            self.projected = self.clusters.labels

    def _allocate_weights(self) -> None:
        shapes = {
            "q": (self.q, self.qkv_words), "k": (self.kv, self.qkv_words), "v": (self.kv, self.qkv_words),
            "o": (self.x_words, self.q), "gate": (self.ffn, self.x_words), "up": (self.ffn, self.x_words),
            "down": (self.x_words, self.ffn), **({"planes": (self.hashes, self.kv)} if self.table.hashes else {}),
        }  # fmt: skip
        self.matrices = {name: self._allocate_matrix(name, *shape) for name, shape in shapes.items()}
        self.norms = [self.region.allocate(self.x_words) for _ in range(2)]

    def _allocate_matrix(self, name: str, m_blocks: int, k_blocks: int) -> Matrix:
        """Memory of a matrix; the hyperplanes and the biases are BF16."""
        n, form, allocate = self.width, None if name == "planes" else self.form, self.region.allocate
        if form is None:
            cores = 1 if name == "planes" else self.cores  # core 0 multiplies with the hyperplanes
            return Matrix(allocate(matrix_words(m_blocks, k_blocks, n, cores)), m_blocks, k_blocks, cores=cores)
        has_bias = self.sizes.qkv_bias and name in ("q", "k", "v")
        address = allocate(m_blocks * block_words(k_blocks - has_bias, n, form))
        bias = allocate(matrix_words(m_blocks, 1, n)) if has_bias else None
        return Matrix(address, m_blocks, k_blocks, form=form, bias=bias)

    @property
    def normed_row(self) -> int:
        """Words from one row of the output of `norm` to the next."""
        return self.x_words

    @property
    def prefetches(self) -> bool:
        """Whether a layer selects for the next one."""
        return self.policy.prefetch == "next_layer"

    def _words(self, name: str, value: int) -> int:
        if value < self.width or value % self.width:
            raise ValueError(f"{name} must be a multiple of {self.width}, got {value}")
        return value // self.width

    def _programs(self) -> None:
        c, n, s = self.config, self.width, self.sizes
        self.piece = largest_divisor(self.ffn, c.vpe_rows)
        self.x_piece = largest_divisor(self.x_words, c.vpe_rows)
        self.norm_piece = largest_divisor(self.x_words, c.vpe_rows // 2)  # the weights and the products of a piece
        norm = programs.rms_scale(self.norm_piece * n, n)
        prologue = len(programs.rms_scale(self.norm_piece * n, n, 0))
        fixed = {
            "norm factors": programs.rms_factor(s.hidden, n, s.norm_epsilon),
            "norm weights": norm[:prologue],
            "norm": norm[prologue:],
            "rope q": programs.rope(c.head_dim, n, s.q_heads),
            "rope k": programs.rope(c.head_dim, n, c.kv_heads),
            "hash": programs.hash_bits(c.hash_bits, n),
            "gated": programs.gated(self.piece * n, n),
            "residual": programs.residual(self.x_piece * n, n),
        }
        if self.prunes:
            fixed["key norms"] = programs.key_norms(self.kv * n, n)
        if self.table.partial:
            self.q_piece = largest_divisor(self.q, c.vpe_rows)
            fixed["columns"] = programs.first_row(self.q_piece * n, n)
            fixed["partial"] = programs.times_row(self.q_piece * n, n)
        self.vectors.add(fixed)
        self.retrieval.add_programs()

    def step(self, tokens: int, share: Share = ALONE, *, visual: bool = False) -> list[Command]:
        """Program of the layer for a step of `tokens` tokens, from `x` to `out`, for the core with this share.

        Keys come first: they are rotated while queries are projected, and clustered while values are projected. Keys
        and values are clustered and stored piece by piece; the queries of all tokens follow the last piece. Weights
        are loaded while the activations are still computed. Pages are offloaded concurrently with attention and the
        rest of the layer.
        """
        return model_step([self], tokens, share, visual=visual)

    def add_step(
        self,
        p: Operands,
        tokens: int,
        after: Sequence[CommandRef] = (),
        selected: Selected | None = None,
        following: "LayerCompiler | None" = None,
        visual: bool = False,
    ) -> tuple[list[CommandRef], Selected | None]:
        """Append the commands of a step, which follow the commands `after`.

        `selected` : selection of the layer before for this one; without it the layer selects itself
        `following` : layer for which the queries select; its pages are fetched during the attention and the rest
        `visual` : the tokens are those of frames

        Returns the last commands, and the selection for `following`.

        With several cores, every core computes some columns of a product, some rows of a vector operation, and some KV
        heads or parts of them. The cores meet after each of these, so that all results are in memory.
        """
        self._check(tokens)
        t, w, meet = tokens, self.wide, p.builder.meet
        opened = [] if selected else self.open(p)
        x = self._normed(p, t, after)
        # x stays in the operand memory only if the keys fit there at the same time, and no queries are loaded
        both_fit = max(t * x.words, t * self.kv) <= self.rows // 2 or not self.products.fits(t, x.words)
        ahead = following is not None and selected is not None  # queries are loaded before the values are projected
        both_fit &= not (self.table.by_frames or self.table.partitions or ahead)
        k_blocks, q_blocks = (self.matrices[name].m_blocks for name in "kq")
        q_share, v_share = p.builder.share.balanced_with(k_blocks), p.builder.share.balanced_with(k_blocks + q_blocks)
        k_products = meet(self._multiply(p, "k", t, x, w["k"], wide=True))
        k = meet(self._rope(p, "k", t, k_products))
        q = meet(self._multiply(p, "q", t, x, w["q"], wide=True, share=q_share))
        speculated = self._speculate(p, t, x, following, visual)
        v = [] if both_fit else meet(self._multiply(p, "v", t, x, self.rotated["v"], wide=False, share=v_share))
        plain = self._without_rope(p, t, k_products, q)
        if self.table.by_frames and not selected:  # before the tokens of the step are clustered
            selected = self._select(p, t, p.builder.meet(opened), plain)

        def score_following(queries: Sequence[CommandRef]) -> ScoredLayer | None:
            lists = (selected.lists + 1 if selected else 1) % LIST_SETS
            if following is None:
                return None
            return self._score_for(p, t, following, speculated or queries, lists, bool(speculated))

        if self.table.partitions:
            rotated = meet(self._rope(p, "q", t, q))  # the tokens are stored by a later program
            selected = selected or self._select(p, t, meet(opened), rotated)
            scored = score_following(rotated)
            context, prefetched = self._attention(p, t, [], [*rotated, *k, *v], selected, lambda: scored)
            return self._finish(p, t, context), prefetched
        hashed, rotated, written = self._hash(p, t, [*opened, *k]), list[CommandRef](), list[CommandRef]()
        if selected:  # the clusters do not change before the end of the fetch, which can be late
            rotated, hashed = meet(self._rope(p, "q", t, q)), [*hashed, *selected.fetched]
            scored = score_following(rotated)  # before the hash codes, which wait for the fetch
        kept = kept_count(t, self.table.rho) if visual else t
        if kept < t:
            hashed = [*hashed, *self._keep(p, t, kept, k)]
        for piece in self._pieces(kept, True):
            codes = self._codes(p, piece, [*hashed, *written])
            rotated = rotated or meet(self._rope(p, "q", t, q))
            clustered = p.builder.lead("CLUSTER", after=codes)
            means = self._means(p, piece, [*clustered, *plain])
            v = v or meet(self._multiply(p, "v", t, x, self.rotated["v"], wide=False, share=v_share))
            written = [*means, *self._store_kv(p, piece, [*clustered, *v], pruned=kept < t)]
        score = (lambda: scored) if selected else partial(score_following, rotated)
        context, prefetched = self._attention(p, t, written, [*rotated, *v], selected, score)
        if selected:  # before the tokens of the step were stored; the next layer overwrites their keys and values
            context = [*context, *written]
        return self._finish(p, t, context), prefetched

    def _normed(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> Activations:
        """The input of the projections: the norm of the step's input, with the column of the biases if there are any"""
        norm = p.builder.meet(self.norm(p, self.norms[0], self.x, tokens, after))
        bias = [Columns(self.one, 1, stride=0)] * self.sizes.qkv_bias
        return Activations([Columns(self.normed, self.x_words, self.normed_row), *bias], norm)

    def _finish(self, p: Operands, tokens: int, context: Sequence[CommandRef]) -> list[CommandRef]:
        """The layer after the attention: output projection and feed-forward part; returns the last commands."""
        t, w, meet = tokens, self.wide, p.builder.meet
        columns = [Columns(address, self.group * self.head) for address in self.retrieval.outputs]
        if self.branch is not None:
            source = self.rotated["q"] if self.branch.query else self.normed
            step = BranchStep(t, self.context.state_word, source, meet(context))
            context, columns = self.branch.add_to(p, step, self.retrieval.outputs), [Columns(self.branch.fused, self.q)]
        x = Activations(columns, meet(context))
        o = meet(self._multiply(p, "o", t, x, w["o"], wide=True))
        attended = meet(self._residual(p, t, self.x, w["o"], self.attended, o))
        norm = meet(self.norm(p, self.norms[1], self.attended, t, attended))
        x = Activations([Columns(self.normed, self.x_words, self.normed_row)], norm)
        self._multiply(p, "gate", t, x, w["gate"], wide=True)
        up_share = p.builder.share.balanced_with(self.matrices["gate"].m_blocks)
        up = meet(self._multiply(p, "up", t, x, w["up"], wide=True, share=up_share))
        x = Activations([Columns(self.middle, self.ffn, self.middle_row)], meet(self._gated(p, t, up)))
        down = meet(self._multiply(p, "down", t, x, w["down"], wide=True))
        return meet(self._residual(p, t, self.attended, w["down"], self.out, down))

    def _attention(
        self,
        p: Operands,
        tokens: int,
        written: Sequence[CommandRef],
        after: Sequence[CommandRef],
        selected: Selected | None = None,
        score: "Callable[[], ScoredLayer | None]" = lambda: None,
    ) -> tuple[list[CommandRef], Selected | None]:
        """Select, fetch and attend; `selected` and the result are those of `add_step`.

        The step is committed during the attention, when its mean keys, keys and values are `written`. Then the context
        of the following layer is opened, with the page lists that the attention does not use.
        `score` : appends the scores of the clusters of the following layer, unless they exist; None: there is no such
            layer
        """
        if selected is None:
            written = p.builder.meet(written)
            selected = self._select(p, tokens, written[:1], after, written=written)
        self._end_step(p, written)  # the retrieval unit executes its commands in order, FETCH before these
        scored, prefetched = score(), list[Selected]()

        def select() -> None:
            if scored is not None:
                prefetched.append(scored.select(p))

        context = self.retrieval.attend(p, tokens, selected, after, select)
        # here, so that core 0 attends before the command queue of the retrieval unit has room for one more command
        return context, self.retrieval.fetch(p, prefetched[0]) if prefetched else None

    def _select(
        self,
        p: Operands,
        tokens: int,
        opened: Sequence[CommandRef],
        queries: Sequence[CommandRef],
        *,
        lists: int = 0,
        written: Sequence[CommandRef] = (),
    ) -> Selected:
        """Select and fetch pages of this layer, whose context is open, with its own queries.

        `written` : commands before the end of the fetch
        """
        inputs = SelectionInputs(tokens, self.context.mean_keys_word, opened, queries, lists, tables=self.clusters)
        scored = self.policy.score(self.retrieval, p, inputs)
        return self.retrieval.fetch(p, self.policy.select(self.retrieval, p, inputs, scored), written)

    def _score_for(
        self,
        p: Operands,
        tokens: int,
        layer: "LayerCompiler",
        queries: Sequence[CommandRef],
        lists: int,
        speculated: bool = False,
    ) -> "ScoredLayer":
        """Score the clusters of another layer, whose context is not open yet, with the queries of this one.

        `lists` : page lists that the selection will fill ; `speculated` : the queries are speculated
        """
        at = layer.context
        inputs = SelectionInputs(
            tokens, at.mean_keys_word, [], queries, lists, at.count_word, layer.clusters, speculated
        )
        return ScoredLayer(layer, self, inputs, [list(done) for done in self.policy.score(self.retrieval, p, inputs)])

    def attention(self, tokens: int, *, query: bool = True) -> list[Command]:
        """Program of attention alone, from rotated queries and keys and values to the context of every head.

        Without `query` the tokens are only clustered and stored.
        """
        self._check(tokens, query)
        p = self.products.program()
        hashed, written = self._hash(p, tokens, self.open(p)), list[CommandRef]()
        for piece in self._pieces(tokens, query):
            codes = self._codes(p, piece, [*hashed, *written])
            clustered = p.builder.lead("CLUSTER", after=codes)
            written = [*self._means(p, piece, clustered), *self._store_kv(p, piece, clustered)]
        if query:
            self._attention(p, tokens, written, [])
        else:
            self._end_step(p, written)
        return p.complete()

    def add_store(self, p: Operands, tokens: int) -> None:
        """Append the commands that store the tokens of the last step in the clusters of their labels."""
        stored = self.open(p)
        for piece in self._pieces(tokens, False):
            clustered = p.builder.lead("CLUSTER", after=self._codes(p, piece, stored))
            stored = self._store_kv(p, piece, clustered)
        p.builder.lead("OFFLOAD", after=stored)

    def add_moves(self, p: Operands, moves: Sequence[Mapping[str, int]]) -> None:
        """Append MOVE commands with these fields, as a step of their own."""
        self.open(p)
        for fields in moves:
            p.builder.lead("MOVE", fields)
        p.builder.lead("OFFLOAD")

    def _end_step(self, p: Operands, after: Sequence[CommandRef]) -> None:
        """Release the pages that the policy does not keep, and commit the step."""
        if self.table.kept_pages is not None:
            first, last = self.table.kept_pages
            p.builder.lead("RELEASE", {"cluster": 0, "first": first, "last": last}, after=after)
        p.builder.lead("OFFLOAD", after=after)

    def for_context(self, context: Context, x: int | None = None, cosines: int | None = None) -> "LayerCompiler":
        """The same layer and buffers with the state `context`, and optionally with another input or RoPE angles."""
        other = copy(self)
        other.context = context
        other.x, other.cosines = self.x if x is None else x, self.cosines if cosines is None else cosines
        return other

    def another(self, context: Context) -> "LayerCompiler":
        """Another layer of the same sizes: its own weights and state, the same buffers and vector programs."""
        other = self.for_context(context)
        other._allocate_weights()
        if self.table.partitions:  # keys and values stay until they are stored, after the step
            other._allocate_clusters()
            own = {name: self.region.allocate(self.max_tokens[False] * self.kv) for name in ("k", "v")}
            other.rotated = {**self.rotated, **own}
            other.retrieval = copy(self.retrieval)
            other.retrieval.rotated = other.rotated
        if self.table.partial:  # the host reads the queries of all layers after the first step
            other.rotated = {**self.rotated, "q": self.region.allocate(self.sizes.tokens * self.q)}
            other.retrieval = copy(self.retrieval)
            other.retrieval.rotated = other.rotated
        other.branch = self.branch and self.branch.another()
        return other

    def images(
        self,
        weights: Mapping[str, np.ndarray | PackedWeights],
        norms: Sequence[np.ndarray],
        biases: Mapping[str, np.ndarray] | None = None,
    ) -> dict[int, bytes]:
        """Contents of the device memory for this layer, by word address.

        Weights, norms and biases are BF16 bit patterns in the shapes of `golden.decoder_layer.LayerShape.weights`.
        Weights can also be codes of the format of the layer, which are stored as they are.
        """
        c, n, images = self.config, self.width, {**self.vectors.images, **self.retrieval.images}
        if not (self.table.hashes or self.table.partitions):
            images[self.projected] = self.label_image(0)
        if self.table.by_frames:
            pairs = np.repeat(np.array([[1, 0]], "<f4"), n, axis=1)  # a beat of cosines, a beat of sines
            images[self.no_angles] = np.tile(pairs, (c.head_dim // (2 * n), 1)).tobytes()
        if self.prunes:
            images[self.unit] = one(n).tobytes()
        order = pair_order(c.head_dim, n)
        for name, target in self.matrices.items():
            stored, bias = weights[name], (biases or {}).get(name)
            if bias is not None and target.form is None:
                stored = with_bias(stored, bias, n)
            if name in ("q", "k"):
                rows = np.arange(len(stored)).reshape(-1, c.head_dim)[:, order].ravel()
                stored, bias = stored[rows], None if bias is None else bias[rows]
            if name == "planes" and isinstance(stored, np.ndarray):
                stored = stored.reshape(len(stored), -1, c.head_dim)[:, :, order].reshape(stored.shape)
            if target.bias is not None:
                images[target.bias] = tiles(with_bias(np.empty((len(stored), 0), np.uint16), bias, n), n)
            if target.form is None:
                images[target.address] = tiles(stored, n, target.cores)
            else:
                images[target.address] = encoded_tiles(stored, n, target.form)
        images |= {address: norm.tobytes() for address, norm in zip(self.norms, norms, strict=True)}
        if self.sizes.qkv_bias:
            images[self.one] = one(n).tobytes()
        return images

    def label_image(self, label: int) -> bytes:
        """Image of the row `projected` for a step whose tokens all have the hash code `label`."""
        bits = self.config.hash_bits
        if not 0 <= label < 1 << bits:
            raise ValueError(f"label must be 0 to {(1 << bits) - 1}, got {label}")
        row = np.zeros(self.hashes * self.width, "<u2")
        row[:bits] = [BF16_ONE * (label >> bit & 1) for bit in range(bits)]
        return row.tobytes()

    def _check(self, tokens: int, query: bool = True) -> None:
        if not 1 <= tokens <= self.max_tokens[query]:
            raise ValueError(f"tokens must be 1 to {self.max_tokens[query]}, got {tokens}")

    # commands

    def open(self, p: Operands, lists: int = 0, after: Sequence[CommandRef] = ()) -> list[CommandRef]:
        """Append the command that opens the context; `lists` : page lists, which the commands `after` use."""
        return p.builder.lead("OPEN", {"context": self.context.number, "lists": lists}, after=after)

    def _vector(
        self, p: Operands, name: str, after: Sequence[CommandRef], *, repeat: int | range, **fields: int
    ) -> list[CommandRef]:
        return self.vectors.command(p, name, after, repeat=repeat, **fields)

    def _multiply(
        self, p: Operands, name: str, tokens: int, x: Activations, out: int, wide: bool, share: Share | None = None
    ) -> list[CommandRef]:
        return self.products.multiply(p, self.matrices[name], tokens, x, out, wide=wide, share=share)

    def norm(
        self, p: Operands, weights_word: int, source: int, tokens: int, after: Sequence[CommandRef] = ()
    ) -> list[CommandRef]:
        """Append an RMSNorm of rows of hidden states to `normed`; returns the last command."""
        words, piece, rows = self.x_words, self.norm_piece, p.builder.share.part(tokens)
        weights = {"a_beats": piece, "destination": Destination.NONE, "extra": 1}
        last = list[CommandRef]()
        if not rows:
            return last
        self._vector(p, "norm weights", [], repeat=1, a=weights_word, **weights)
        factors = self._vector(p, "norm factors", after, repeat=rows, a=source, a_stride=words, a_beats=words,
                               out=self.factors, out_stride=2, out_beats=1, out_wide=1, extra=1)  # fmt: skip
        for start in range(0, words, piece):
            if start:
                self._vector(p, "norm weights", [], repeat=1, a=weights_word + start, **weights)
            last = self._vector(p, "norm", factors, repeat=rows, a=self.factors, a_stride=2, a_beats=1, a_wide=1,
                                b=source + start, b_stride=words, b_beats=piece, b_used=1, out=self.normed + start,
                                out_stride=self.normed_row, out_beats=piece, extra=1)  # fmt: skip
        return last

    def _residual(
        self, p: Operands, tokens: int, x: int, y: int, out: int, after: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """Sum of the rows `x` and the products `y`; a core has consecutive pieces, see `_columns`."""
        piece, words, last = self.x_piece, self.x_words, list[CommandRef]()
        for start, rows in self._columns(p, tokens, words, piece):
            last = self._vector(
                p, "residual", after, repeat=rows, a=x + start, a_stride=words, a_beats=piece,
                b=y + 2 * start, b_stride=self.products.result_row(words), b_beats=piece, b_wide=1, b_used=1,
                out=out + start, out_stride=words, out_beats=piece, extra=1,
            ) or last  # fmt: skip
        return last

    def _gated(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """SiLU of the gates times the products `up`."""
        piece, stride, last = self.piece, self.products.result_row(self.ffn), list[CommandRef]()
        for start, rows in self._columns(p, tokens, self.ffn, piece):
            last = self._vector(
                p, "gated", after, repeat=rows, a=self.wide["gate"] + 2 * start, a_stride=stride, a_beats=piece,
                a_wide=1, b=self.wide["up"] + 2 * start, b_stride=stride, b_beats=piece, b_wide=1, b_used=1,
                out=self.middle + start, out_stride=self.middle_row, out_beats=piece, extra=1,
            ) or last  # fmt: skip
        return last

    @staticmethod
    def _columns(p: Operands, tokens: int, words: int, piece: int) -> Iterator[tuple[int, range]]:
        """First word of each piece of rows of `words` words, and the tokens whose piece this core computes.

        A core has consecutive pieces, those of all tokens in turn.
        """
        part = p.builder.share.part(tokens * words // piece)
        for column in range(words // piece):
            first = column * tokens
            yield column * piece, range(max(part.start - first, 0), min(part.stop - first, tokens))

    def _rope(self, p: Operands, name: str, tokens: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        return self._rotate(p, name, tokens, after, self.wide[name], self.rotated[name])

    def _rotate(
        self,
        p: Operands,
        name: str,
        tokens: int,
        after: Sequence[CommandRef],
        source: int,
        out: int,
        *,
        plain: bool = False,
    ) -> list[CommandRef]:
        """Rotate queries or keys, FP32 at `source`, by the angles of the step; `plain`: by angles of 0."""
        words, rows = {"q": self.q, "k": self.kv}[name], p.builder.share.part(tokens)
        row = self.products.result_row(words)
        angles, stride = (self.no_angles, 0) if plain else (self.cosines, 2 * self.head)
        return self._vector(p, f"rope {name}", after, repeat=rows, a=angles, a_stride=stride, a_beats=self.head,
                            a_wide=1, b=source, b_stride=row, b_beats=words, b_wide=1, b_used=1,
                            out=out, out_stride=words, out_beats=words, extra=1)  # fmt: skip

    def _without_rope(
        self, p: Operands, tokens: int, k: Sequence[CommandRef], q: Sequence[CommandRef]
    ) -> list[CommandRef]:
        """Queries and keys before RoPE, if they score clusters: rotated by angles of 0."""
        if not self.table.by_frames:
            return []
        keys = self._rotate(p, "k", tokens, k, self.wide["k"], self.plain["k"], plain=True)
        queries = self._rotate(p, "q", tokens, q, self.wide["q"], self.plain["q"], plain=True)
        return p.builder.meet([*keys, *queries])

    def _speculate(
        self, p: Operands, tokens: int, x: Activations, following: "LayerCompiler | None", visual: bool
    ) -> list[CommandRef]:
        """Partial queries of the following layer from the input of the projections of this one, if they select.

        They are 0 outside the columns of that layer.
        """
        if following is None or self.table.partial is None or not self.table.partial.selects(tokens, visual):
            return []
        meet, words, out = p.builder.meet, self.q_piece, self.plain["q"]
        wide = self.wide["speculated"]
        products = meet(self.products.multiply(p, following.matrices["q"], tokens, x, wide, wide=True))
        rotated = last = self._rotate(p, "q", tokens, products, wide, out)
        rows = p.builder.share.part(tokens)
        for start in range(0, self.q, words) if rows else ():
            columns = following.context.columns_word + start
            self._vector(p, "columns", [], repeat=1, a=columns, a_beats=words, destination=Destination.NONE, extra=1)
            last = self._vector(p, "partial", rotated, repeat=rows, a=out + start, a_stride=self.q, a_beats=words,
                                out=out + start, out_stride=self.q, out_beats=words, extra=1)  # fmt: skip
        return meet(last)

    def _hash(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Products of the keys with the hyperplanes, on core 0; their signs are the hash codes."""
        if not self.table.hashes:
            return list(after)
        x = Activations([Columns(self.rotated["k"], self.kv)], after)
        leads = p.builder.share.leads
        return self._multiply(p, "planes", tokens, x, self.projected, wide=False, share=ALONE) if leads else []

    def _pieces(self, tokens: int, query: bool) -> list[Piece]:
        """Pieces of a step, which are as large as possible."""
        size = self.config.max_step_tokens
        return [
            Piece(token, min(size, tokens - token), query and token + size >= tokens)
            for token in range(0, tokens, size)
        ]

    def _codes(self, p: Operands, piece: Piece, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Send the hash codes of a piece to be clustered. `after`: also MEANS and STORE of the piece before.

        The core records the clusters and slots of one piece only, and MEANS and STORE read them.
        """
        rows, stride = (
            piece.tokens if p.builder.share.leads else 0,
            self.hashes if self.table.hashes or self.table.partitions else 0,
        )
        return self._vector(p, "hash", after, repeat=rows, a=self.projected + piece.token * stride,
                            a_stride=stride, a_beats=self.hashes, destination=Destination.CODES,
                            flag=piece.query, extra=1)  # fmt: skip

    def _means(self, p: Operands, piece: Piece, after: Sequence[CommandRef]) -> list[CommandRef]:
        if not self.table.mean_keys:
            return list(after)
        keys = self.plain["k"] + piece.token * self.kv
        return p.builder.lead("MEANS", {"keys": keys, "stride": self.kv}, after=after)

    def _keep(self, p: Operands, tokens: int, count: int, k: Sequence[CommandRef]) -> list[CommandRef]:
        """Keep the `count` tokens of a step with the smallest key norms, after the rotated keys `k`.

        The vector engine writes each norm to the first element of a word. The product of these words with the word
        (1, 0, .., 0) is the row of norms.
        """
        beats = self._vector(p, "key norms", k, repeat=p.builder.share.part(tokens), a=self.rotated["k"],
                             a_stride=self.kv, a_beats=self.kv, out=self.norm_beats, out_stride=1, out_beats=1,
                             extra=1)  # fmt: skip
        beats = p.builder.meet(beats)
        if not p.builder.share.leads:
            return []
        row = Matrix(self.norm_beats, -(-tokens // self.width), 1, stride=1)
        x = Activations([Columns(self.unit, 1)], [])
        norms = self.products.multiply(p, row, 1, x, self.key_norms, wide=False, after=beats, share=ALONE)
        return p.builder.lead("KEEP", {"source": self.key_norms, "tokens": tokens, "count": count}, after=norms)

    def _store_kv(
        self, p: Operands, piece: Piece, after: Sequence[CommandRef], pruned: bool = False
    ) -> list[CommandRef]:
        if pruned and piece.token:  # at the token after those of the piece before
            fields = {"resume": 1, "key_stride": self.kv, "value_stride": self.kv}
            return p.builder.lead("STORE", fields, after=after)
        words = piece.token * self.kv
        fields = {
            "keys": self.rotated["k"] + words,
            "values": self.rotated["v"] + words,
            "key_stride": self.kv,
            "value_stride": self.kv,
        }
        return p.builder.lead("STORE", fields, after=after)


def model_step(
    layers: Sequence[LayerCompiler], tokens: int, share: Share = ALONE, *, visual: bool = False
) -> list[Command]:
    """Program of a step through `layers`, each of which reads its input where the layer before writes its output.

    It is the program of the core with this share. The layers must be of one stream. `visual` : the tokens are those of
    frames.
    """
    p = layers[0].products.program(share)
    add_layers(p, layers, tokens, visual=visual)
    return p.complete()


def add_layers(
    p: Operands,
    layers: Sequence[LayerCompiler],
    tokens: int,
    after: Sequence[CommandRef] = (),
    *,
    visual: bool = False,
) -> list[CommandRef]:
    """Append the commands of a step through `layers`, which follow the commands `after`, and return the last ones.

    `visual` : the tokens are those of frames. With `prefetch` = `next_layer`, every layer selects for the next one.
    """
    selected, last = None, list(after)
    for layer, following in zip_longest(layers, layers[1:] if layers[0].prefetches else ()):
        last, selected = layer.add_step(p, tokens, last, selected, following, visual)
    return last
