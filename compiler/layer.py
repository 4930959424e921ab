"""Compiler of a decoder layer with ReSV attention: memory layout, and the program of a step.

Device memory holds everything that a step needs besides its input: weights as tiles, norm weights, vector programs.
The program of a step depends only on its number of tokens. The core reads the number of clusters and of attended
tokens at run time.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np

from compiler import vector_programs as programs
from compiler.blocks import Activations, Columns, Piece, RowBlock
from compiler.builder import CommandRef, LoadedOperands, Operands
from compiler.memory import Region, tiles
from compiler.products import Matrix, Products
from compiler.vector_code import VectorCode
from golden.decoder_layer import one, pair_order, with_bias
from hw.config import Config
from hw.core.isa import MAX_STEP, Command, Destination, Fit, LengthSource

# Sizes that the compiler supports.
MAX_HIDDEN, MAX_FFN, MAX_Q_HEADS = 8192, 28672, 128
MAX_KEYS, MAX_BLOCKS = 1 << 20, (1 << 16) - 1  # attended keys, and blocks of them


def largest_divisor(value: int, maximum: int) -> int:
    """Largest divisor of `value` that is at most `maximum`."""
    return next(divisor for divisor in range(min(value, maximum), 0, -1) if value % divisor == 0)


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
    number : entry of the table of contexts of the store ; mean_keys_word : word address of its mean keys
    """

    number: int
    mean_keys_word: int


@dataclass
class LayerCompiler:
    """Allocates the memory of a layer and compiles the programs of its steps.

    Parameters
    ----------
    config : configuration of the core ; sizes : sizes of the layer
    region : device memory for the layer ; context : state of the layer that its programs use

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

    Raises
    ------
    ValueError
        A size is not supported; the message names it.
    """

    config: Config
    sizes: LayerSizes
    region: Region
    context: Context

    def __post_init__(self) -> None:
        c, s = self.config, self.sizes
        self.products, self.vectors = Products(c), VectorCode(c, self.region)
        self.width = n = self.products.width
        self.half, self.rows, self.accumulators = self.products.half, self.products.rows, self.products.accumulators
        self.head = c.head_dim // n  # words of one head's vector
        if s.q_heads < 1 or s.q_heads % c.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {c.kv_heads}, got {s.q_heads}")
        self.group = s.q_heads // c.kv_heads
        self.kv, self.q, self.x_words, self.ffn = (
            c.kv_heads * self.head, s.q_heads * self.head, self._words("hidden", s.hidden), self._words("ffn", s.ffn),
        )  # fmt: skip
        self.hashes = -(-c.hash_bits // n)
        self.key_blocks = -(-s.keys // n)
        for name, maximum in (
            ("hidden", MAX_HIDDEN),
            ("ffn", MAX_FFN),
            ("q_heads", MAX_Q_HEADS),
            ("keys", min(MAX_KEYS, MAX_BLOCKS * n)),
            ("tokens", MAX_STEP),
            ("fill", MAX_STEP),
        ):
            if getattr(s, name) > maximum:
                raise ValueError(f"{name} must be at most {maximum}, got {getattr(s, name)}")
        if s.head % 2 or not 0 <= s.head <= c.head_dim:
            raise ValueError(f"head must be even and at most head_dim = {c.head_dim}, got {s.head}")
        head_words = min(self.half, self.accumulators, self.rows)
        if self.head > head_words:
            raise ValueError(
                f"head_dim must be at most {head_words * n} (operand memory and accumulators), got {c.head_dim}"
            )
        self.max_tokens = {True: s.tokens, False: max(s.tokens, s.fill)}  # of a step with queries, and without
        self.qkv_words = self.x_words + s.qkv_bias
        allocate, t = self.region.allocate, s.tokens
        self._allocate_weights()
        self.one = allocate(1) if s.qkv_bias else 0
        self.x, self.out, self.cosines = (
            allocate(t * self.x_words),
            allocate(t * self.x_words),
            allocate(t * self.head * 2),
        )
        self.factors = allocate(2 * t)
        self.normed, self.middle = allocate(t * self.x_words), allocate(t * self.ffn)
        self.wide = {name: allocate(2 * t * width) for name, width in
                     (("q", self.q), ("k", self.kv), ("o", self.x_words), ("gate", self.ffn), ("up", self.ffn),
                      ("down", self.x_words))}  # fmt: skip
        max_tokens = self.max_tokens[False]
        self.rotated = {
            "q": allocate(t * self.q),
            "k": allocate(max_tokens * self.kv),
            "v": allocate(max_tokens * self.kv),
        }
        self.attended, self.projected = allocate(t * self.x_words), allocate(max_tokens * self.hashes)
        rows = t * self.group
        self.cluster_blocks = -(-min(c.max_row_clusters, c.max_clusters) // n)
        self.score_words = 2 * max(self.key_blocks, self.cluster_blocks)
        self.scores = [allocate(rows * self.score_words) for _ in range(c.kv_heads)]
        self.shares = [allocate(rows * self.key_blocks) for _ in range(c.kv_heads)]
        self.outputs = [allocate(rows * self.head) for _ in range(c.kv_heads)]
        self._programs()

    def _allocate_weights(self) -> None:
        shapes = {
            "q": (self.q, self.qkv_words), "k": (self.kv, self.qkv_words), "v": (self.kv, self.qkv_words),
            "o": (self.x_words, self.q), "gate": (self.ffn, self.x_words), "up": (self.ffn, self.x_words),
            "down": (self.x_words, self.ffn), "planes": (self.hashes, self.kv),
        }  # fmt: skip
        self.matrices = {
            name: Matrix(self.region.allocate(m_blocks * k_blocks * self.width), m_blocks, k_blocks)
            for name, (m_blocks, k_blocks) in shapes.items()
        }
        self.norms = [self.region.allocate(self.x_words) for _ in range(2)]

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
        head = s.head or c.head_dim  # elements of the model's head determine the scale of the scores
        varying = {
            "exponentials": programs.exponentials(1, n, head),
            "softmax": programs.softmax(1, n, head),
            "long exponentials": programs.long_exponentials(1, n, head),
            "divide by sum": programs.divide_by_sum(1, n),
        }
        self.vectors.add(fixed)
        self.vectors.add(varying, varying=True)

    def step(self, tokens: int) -> list[Command]:
        """Program of the layer for a step of `tokens` tokens, from `x` to `out`.

        Keys come first: they are rotated while queries are projected, and clustered while values are projected. Keys
        and values are clustered and stored piece by piece; the queries of all tokens follow the last piece. Weights
        are loaded while the activations are still computed. Pages are offloaded concurrently with attention and the
        rest of the layer.
        """
        return model_step([self], tokens)

    def add_step(self, p: Operands, tokens: int, after: Sequence[CommandRef] = ()) -> CommandRef:
        """Append the commands of a step, which follow the commands `after`, and return the last one."""
        self._check(tokens)
        t, w, opened = tokens, self.wide, self._open(p)
        norm = self.norm(p, self.norms[0], self.x, t, after)
        columns = [Columns(self.normed, self.x_words)]
        if self.sizes.qkv_bias:
            columns.append(Columns(self.one, 1, stride=0))
        x = Activations(columns, [norm])
        # x stays in the operand memory only if the keys fit there at the same time
        both_fit = max(t * x.words, t * self.kv) <= self.rows // 2 or not self.products.fits(t, x.words)
        k = self._rope(p, "k", t, self._multiply(p, "k", t, x, w["k"], wide=True))
        q = self._multiply(p, "q", t, x, w["q"], wide=True)
        v = [] if both_fit else [self._multiply(p, "v", t, x, self.rotated["v"], wide=False)]
        hashed, rotated, written = self._hash(p, t, [opened, k]), list[CommandRef](), list[CommandRef]()
        for piece in self._pieces(t, True):
            codes = self._codes(p, piece, [hashed, *written])
            rotated = rotated or [self._rope(p, "q", t, q)]
            clustered = p.builder.add("CLUSTER", {}, after=[codes])
            means = self._means(p, piece, clustered)
            v = v or [self._multiply(p, "v", t, x, self.rotated["v"], wide=False)]
            written = [means, self._store_kv(p, piece, [clustered, *v])]
        context = self._retrieve(p, t, written, [*rotated, *v])
        x = Activations([Columns(address, self.group * self.head) for address in self.outputs], [context])
        attended = self._residual(p, t, self.x, w["o"], self.attended, self._multiply(p, "o", t, x, w["o"], wide=True))
        norm = self.norm(p, self.norms[1], self.attended, t, [attended])
        x = Activations([Columns(self.normed, self.x_words)], [norm])
        self._multiply(p, "gate", t, x, w["gate"], wide=True)
        up = self._multiply(p, "up", t, x, w["up"], wide=True)
        gated = self._vector(
            p, "gated", [up], repeat=t * self.ffn // self.piece, a=w["gate"], a_stride=2 * self.piece,
            a_beats=self.piece, a_wide=1, b=w["up"], b_stride=2 * self.piece, b_beats=self.piece, b_wide=1,
            b_used=1, out=self.middle, out_stride=self.piece, out_beats=self.piece, extra=1,
        )  # fmt: skip
        x = Activations([Columns(self.middle, self.ffn)], [gated])
        down = self._multiply(p, "down", t, x, w["down"], wide=True)
        return self._residual(p, t, self.attended, w["down"], self.out, down)

    def attention(self, tokens: int, *, query: bool = True) -> list[Command]:
        """Program of attention alone, from rotated queries and keys and values to the context of every head.

        Without `query` the tokens are only clustered and stored.
        """
        self._check(tokens, query)
        p = self.program()
        hashed, written = self._hash(p, tokens, [self._open(p)]), list[CommandRef]()
        for piece in self._pieces(tokens, query):
            codes = self._codes(p, piece, [hashed, *written])
            clustered = p.builder.add("CLUSTER", {}, after=[codes])
            written = [self._means(p, piece, clustered), self._store_kv(p, piece, [clustered])]
        if query:
            self._retrieve(p, tokens, written, [])
        else:
            p.builder.add("OFFLOAD", {}, after=written)
        return [*p.builder.commands, Command("END")]

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
        return other

    def images(
        self,
        weights: Mapping[str, np.ndarray],
        norms: Sequence[np.ndarray],
        biases: Mapping[str, np.ndarray] | None = None,
    ) -> dict[int, bytes]:
        """Contents of the device memory for this layer, by word address.

        Weights, norms and biases are BF16 bit patterns in the shapes of `golden.decoder_layer.LayerShape.weights`.
        """
        c, n, images = self.config, self.width, dict(self.vectors.images)
        order = pair_order(c.head_dim, n)
        for name, matrix in weights.items():
            stored = matrix if name not in (biases or {}) else with_bias(matrix, (biases or {})[name], n)
            if name in ("q", "k"):
                stored = stored.reshape(-1, c.head_dim, stored.shape[1])[:, order].reshape(stored.shape)
            if name == "planes":
                stored = stored.reshape(len(stored), -1, c.head_dim)[:, :, order].reshape(stored.shape)
            images[self.matrices[name].address] = tiles(stored, n)
        images |= {address: norm.tobytes() for address, norm in zip(self.norms, norms, strict=True)}
        if self.sizes.qkv_bias:
            images[self.one] = one(n).tobytes()
        return images

    def _check(self, tokens: int, query: bool = True) -> None:
        if not 1 <= tokens <= self.max_tokens[query]:
            raise ValueError(f"tokens must be 1 to {self.max_tokens[query]}, got {tokens}")

    # commands

    def program(self) -> Operands:
        """An empty program."""
        return self.products.program()

    def _open(self, p: Operands) -> CommandRef:
        return p.builder.add("OPEN", {"context": self.context.number})

    def _vector(self, p: Operands, name: str, after: Sequence[CommandRef], *, repeat: int, **fields: int) -> CommandRef:
        return self.vectors.command(p, name, after, repeat=repeat, **fields)

    def _multiply(self, p: Operands, name: str, tokens: int, x: Activations, out: int, wide: bool) -> CommandRef:
        return self.products.multiply(p, self.matrices[name], tokens, x, out, wide=wide)

    def norm(
        self, p: Operands, weights_word: int, source: int, tokens: int, after: Sequence[CommandRef] = ()
    ) -> CommandRef:
        """Append an RMSNorm of rows of hidden states to `normed`; returns the last command."""
        words, piece = self.x_words, self.norm_piece
        weights = {"repeat": 1, "a_beats": piece, "destination": Destination.NONE, "extra": 1}
        self._vector(p, "norm weights", [], a=weights_word, **weights)
        factors = self._vector(p, "norm factors", after, repeat=tokens, a=source, a_stride=words, a_beats=words,
                               out=self.factors, out_stride=2, out_beats=1, out_wide=1, extra=1)  # fmt: skip
        for start in range(0, words, piece):
            if start:
                self._vector(p, "norm weights", [], a=weights_word + start, **weights)
            last = self._vector(p, "norm", [factors], repeat=tokens, a=self.factors, a_stride=2, a_beats=1, a_wide=1,
                                b=source + start, b_stride=words, b_beats=piece, b_used=1, out=self.normed + start,
                                out_stride=words, out_beats=piece, extra=1)  # fmt: skip
        return last

    def _residual(self, p: Operands, tokens: int, x: int, y: int, out: int, after: CommandRef) -> CommandRef:
        piece = self.x_piece
        return self._vector(p, "residual", [after], repeat=tokens * self.x_words // piece, a=x, a_stride=piece,
                            a_beats=piece, b=y, b_stride=2 * piece, b_beats=piece, b_wide=1, b_used=1, out=out,
                            out_stride=piece, out_beats=piece, extra=1)  # fmt: skip

    def _rope(self, p: Operands, name: str, tokens: int, after: CommandRef) -> CommandRef:
        words = {"q": self.q, "k": self.kv}[name]
        return self._vector(p, f"rope {name}", [after], repeat=tokens, a=self.cosines, a_stride=2 * self.head,
                            a_beats=self.head, a_wide=1, b=self.wide[name], b_stride=2 * words, b_beats=words,
                            b_wide=1, b_used=1, out=self.rotated[name], out_stride=words, out_beats=words,
                            extra=1)  # fmt: skip

    def _hash(self, p: Operands, tokens: int, after: Sequence[CommandRef]) -> CommandRef:
        """Products of the keys with the hyperplanes; their signs are the hash codes."""
        x = Activations([Columns(self.rotated["k"], self.kv)], after)
        return self._multiply(p, "planes", tokens, x, self.projected, wide=False)

    def _pieces(self, tokens: int, query: bool) -> list[Piece]:
        """Pieces of a step, which are as large as possible."""
        size = self.config.max_step_tokens
        return [
            Piece(token, min(size, tokens - token), query and token + size >= tokens)
            for token in range(0, tokens, size)
        ]

    def _codes(self, p: Operands, piece: Piece, after: Sequence[CommandRef]) -> CommandRef:
        """Send the hash codes of a piece to be clustered. `after`: also MEANS and STORE of the piece before.

        The core records the clusters and slots of one piece only, and MEANS and STORE read them.
        """
        return self._vector(p, "hash", after, repeat=piece.tokens, a=self.projected + piece.token * self.hashes,
                            a_stride=self.hashes, a_beats=self.hashes, destination=Destination.CODES,
                            flag=piece.query, extra=1)  # fmt: skip

    def _means(self, p: Operands, piece: Piece, clustered: CommandRef) -> CommandRef:
        keys = self.rotated["k"] + piece.token * self.kv
        return p.builder.add("MEANS", {"keys": keys, "stride": self.kv}, after=[clustered])

    def _store_kv(self, p: Operands, piece: Piece, after: Sequence[CommandRef]) -> CommandRef:
        words = piece.token * self.kv
        fields = {
            "keys": self.rotated["k"] + words,
            "values": self.rotated["v"] + words,
            "key_stride": self.kv,
            "value_stride": self.kv,
        }
        return p.builder.add("STORE", fields, after=after)

    def _retrieve(
        self, p: Operands, tokens: int, written: Sequence[CommandRef], after: Sequence[CommandRef]
    ) -> CommandRef:
        """Score, select, fetch and attend; returns the last command. `written`: mean keys, and keys and values.

        The step is committed during the attention, when its mean keys, keys and values are written.

        The keys of a head are gathered and multiplied while the softmax of the previous head runs; its values follow.
        """
        heads = range(self.config.kv_heads)
        scored = [self._score(p, h, tokens, written[0], after) for h in heads]
        fetched = p.builder.add("FETCH", {}, after=scored)
        p.builder.add("OFFLOAD", {}, after=written)
        shares = [self._attend(p, 0, tokens, fetched, after)]
        for h in heads[1:]:
            shares.append(self._attend(p, h, tokens, fetched, after))
            self._mix(p, h - 1, tokens, shares[h - 1])
        return self._mix(p, heads[-1], tokens, shares[-1])

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

    def _queries(self, p: Operands, head: int, block: RowBlock, after: Sequence[CommandRef]) -> LoadedOperands:
        """Query rows of a KV head as activations."""
        source = self.rotated["q"] + block.token * self.q + (head * self.group + block.head) * self.head
        beats = block.heads * self.head
        fields = {"source": source, "stride": self.q, "rows": block.tokens, "beats": beats, "step": beats}
        return p.activations([fields], block.tokens * beats, after)

    def _products(self, head: int, rows: RowBlock, block: int) -> dict[str, int]:
        """Fields of a MULTIPLY of a head's queries with a chunk of keys; the results are FP32 scores."""
        chunk = self.half // self.head
        return {
            "m_stride": self.head, "k_stride": 1, "m_blocks": chunk, "k_blocks": self.head, "x_stride": self.head,
            "vectors": rows.rows, "first": 1, "last": 1,
            "out": self.scores[head] + rows.row * self.score_words + 2 * block, "stride": self.score_words,
            "wide": 1, "limit": 1, "block": block,
        }  # fmt: skip

    def _score(self, p: Operands, head: int, tokens: int, means: CommandRef, after: Sequence[CommandRef]) -> CommandRef:
        """Select clusters for one KV head by the scores of all clusters.

        The exponentials replace the scores in memory: each row is read before its exponentials are written.
        """
        chunk, length_fields = self.half // self.head, {"length": LengthSource.CLUSTERS}
        for rows in self._row_blocks(tokens):
            x = self._queries(p, head, rows, after)
            for block in range(0, self.cluster_blocks, chunk):
                source = self.context.mean_keys_word + head * self.head + block * self.width * self.kv
                keys = p.weights(
                    "LOAD",
                    {"source": source, "stride": self.kv, "rows": chunk * self.width, "beats": self.head, "tiled": 1,
                     "limit": 1, "block": block, **length_fields},
                    [means],
                )  # fmt: skip
                products = p.multiply({**self._products(head, rows, block), **length_fields}, keys, x, self.width)
        count, scores, stride = tokens * self.group, self.scores[head], self.score_words
        fields = {"repeat": count, "a": scores, "a_stride": stride, "a_wide": 1, "out": scores, "out_stride": stride,
                  **length_fields}  # fmt: skip
        if self.cluster_blocks <= self.config.vpe_rows:
            exponentials = self._vector(p, "exponentials", [products], **fields)
        else:
            self._vector(p, "exponentials", [products], fit=Fit.FITS, **fields)
            exponentials = self._vector(p, "long exponentials", [products], fit=Fit.EXCEEDS, a_again=1, **fields)
        rows_in = {"source": scores, "stride": stride, "rows": count, "head": head, **length_fields}
        return p.builder.add("SELECT", rows_in, after=[exponentials])

    def _gather(
        self, p: Operands, head: int, tokens: int, block: int, values: bool, after: Sequence[CommandRef]
    ) -> LoadedOperands:
        """Gather a chunk of the keys or values that a head attends to."""
        step_word = self.rotated["v" if values else "k"] + head * self.head
        fields = {"head": head, "blocks": self.half // self.head, "stride": self.kv, "tokens": tokens,
                  "step_word": step_word, "restart": block == 0, "values": values}  # fmt: skip
        return p.weights("GATHER", fields, after)

    def _attend(
        self, p: Operands, head: int, tokens: int, fetched: CommandRef, after: Sequence[CommandRef]
    ) -> CommandRef:
        """Attention weights of one KV head's queries for its fetched tokens and for the tokens of the step."""
        chunk = self.half // self.head
        length_fields = {"length": LengthSource.TOKENS, "head": head}
        for rows in self._row_blocks(tokens):
            x = self._queries(p, head, rows, after)
            for block in range(0, self.key_blocks, chunk):
                keys = self._gather(p, head, tokens, block, False, [fetched, *after])
                products = p.multiply(
                    {**self._products(head, rows, block), "extra": tokens, **length_fields}, keys, x, self.width
                )
            fields = {
                "repeat": rows.rows, "group": self.group, "pad": tokens - 1 - rows.token, "extra": 1 + rows.token,
                **length_fields,
            }  # fmt: skip
            shares = self._softmax(p, [products], self.scores[head] + rows.row * self.score_words,
                                   self.shares[head] + rows.row * self.key_blocks, fields)  # fmt: skip
        return shares

    def _softmax(
        self, p: Operands, after: Sequence[CommandRef], scores: int, out: int, fields: dict[str, int]
    ) -> CommandRef:
        """Softmax of rows of scores; rows longer than the vector memory take two commands that read each row twice."""
        scores_in = {"a": scores, "a_stride": self.score_words, "a_wide": 1}
        fields = {**fields, "out": out, "out_stride": self.key_blocks}
        if self.key_blocks <= self.config.vpe_rows:
            return self._vector(p, "softmax", after, **scores_in, **fields)
        self._vector(p, "softmax", after, fit=Fit.FITS, **scores_in, **fields)
        exceeds = {"fit": Fit.EXCEEDS, "a_again": 1, **fields}
        weights = self._vector(p, "long exponentials", after, **scores_in, **exceeds)
        return self._vector(p, "divide by sum", [weights], a=out, a_stride=self.key_blocks, **exceeds)

    def _mix(self, p: Operands, head: int, tokens: int, shares: CommandRef) -> CommandRef:
        """Values of one KV head times their attention weights; the accumulators limit the rows of one pass."""
        chunk = self.half // self.head
        length_fields = {"length": LengthSource.TOKENS, "head": head, "extra": tokens}
        pass_rows = min(self.accumulators // self.head, self.rows // chunk)
        for row in range(0, tokens * self.group, pass_rows):
            rows = min(pass_rows, tokens * self.group - row)
            for block in range(0, self.key_blocks, chunk):
                values = self._gather(p, head, tokens, block, True, ())
                fields = {
                    "source": self.shares[head] + row * self.key_blocks + block, "stride": self.key_blocks,
                    "rows": rows, "beats": chunk, "step": chunk, "limit": 2, "block": block, **length_fields,
                }  # fmt: skip
                x = p.activations([fields], rows * chunk, [shares])
                product = p.multiply(
                    {
                        "m_stride": 1, "k_stride": self.head, "m_blocks": self.head, "k_blocks": chunk,
                        "x_stride": chunk, "vectors": rows, "spread": 1, "out": self.outputs[head] + row * self.head,
                        "stride": self.head, "limit": 2, "block": block, **length_fields,
                    },
                    values, x, self.width,
                )  # fmt: skip
        return product


def model_step(layers: Sequence[LayerCompiler], tokens: int) -> list[Command]:
    """Program of a step through `layers`, each of which reads its input where the layer before writes its output."""
    p, last = layers[0].program(), list[CommandRef]()
    for layer in layers:
        last = [layer.add_step(p, tokens, last)]
    return [*p.builder.commands, Command("END")]
