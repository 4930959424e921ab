"""Programs for a decoder layer with ReSV attention: what lies where in memory, and the commands of a step.

Everything a step needs besides its input lies in device memory: weights as tiles, norms, vector code. A step's
program depends only on how many tokens it has; how many clusters there are and how many tokens a head attends to the
core finds out by itself.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from compiler import vector_programs as programs
from compiler.builder import Builder, CommandRef, LoadedOperands, Operands
from hw.config import Config
from hw.core.isa import Command, Destination, LengthSource
from hw.core.vector.vector_unit import CODE_BYTES, assemble
from hw.lxe.lane import STAGES
from hw.lxe.memory import OperandMemory
from hw.lxe.microcode import Instruction, Pre, Source


def residual(n: int, lanes: int) -> list[Instruction]:
    """x + y, BF16. In: x, y. Out: the sum."""
    shape = programs.extent(n, lanes)
    wait = shape["beats"] < STAGES
    return [
        Instruction(to_memory=True, **shape),
        Instruction(b=Source.MEMORY, pre=Pre.ADD, round=True, to_stream=True, wait=wait, **shape),
    ]


def tiles(matrix: np.ndarray, width: int) -> bytes:
    """A matrix of BF16 codes, uint16 (M, K), as it lies in memory: tiles of `width` rows and columns, zeros behind M
    and K; the tiles of `width` rows follow each other."""
    rows, columns = (-(-size // width) for size in matrix.shape)
    padded = np.zeros((rows * width, columns * width), "<u2")
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded.reshape(rows, width, columns, width).swapaxes(1, 2).tobytes()


@dataclass
class Region:
    """Hands out words of a region, from `next` on."""

    words: int
    next: int = 0

    def take(self, count: int) -> int:
        """The first of `count` words; ValueError when the region is full."""
        place = self.next
        self.next += count
        if self.next > self.words:
            raise ValueError(f"{count} words at {place}: the region has {self.words}")
        return place


@dataclass(frozen=True)
class Sizes:
    """Sizes of one layer that the hardware does not determine.

    Attributes
    ----------
    hidden, ffn : hidden and feed-forward width ; q_heads : query heads, a multiple of the KV heads
    tokens : tokens of the largest step ; keys : keys of the longest attention row
    fill : tokens of the largest step without queries, when it is larger than `tokens`
    """

    hidden: int
    ffn: int
    tokens: int
    keys: int
    fill: int = 0
    q_heads: int = field(kw_only=True)


@dataclass
class LayerCompiler:
    """Places a layer in memory and writes the programs of its steps.

    Parameters
    ----------
    config, sizes : of the core and of the layer ; region : device memory that may be used
    mean_keys_word : word of the representative keys

    Attributes
    ----------
    weights : place of each matrix, tile after tile: q, k, v, o, gate, up, down, planes
    norms : places of the two norms' weights ; x, out : the step's input and output, row after row
    cosines : angles of the step, pairs of FP32 words (cosines, sines) ; code : place and length of each vector program
    images, instructions : by place, the vector programs as bytes and as they were written

    Raises
    ------
    ValueError
        When a row, a tile or a step is larger than the memory for it.
    """

    config: Config
    sizes: Sizes
    region: Region
    mean_keys_word: int
    weights: dict[str, int] = field(default_factory=dict)
    code: dict[str, tuple[int, int]] = field(default_factory=dict)
    images: dict[int, bytes] = field(default_factory=dict)
    instructions: dict[int, list[Instruction]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c, s = self.config, self.sizes
        self.width = n = c.dpe_inputs
        memory = OperandMemory.from_config(c)
        self.half = memory.weight_rows // n // 2  # tiles of each half of the weights
        self.rows = memory.activation_rows
        self.head = c.head_dim // n  # words of a head's vector
        if s.q_heads < 1 or s.q_heads % c.kv_heads:
            raise ValueError(f"q_heads must be a multiple of kv_heads = {c.kv_heads}, got {s.q_heads}")
        self.group = s.q_heads // c.kv_heads
        self.kv, self.q, self.x_words, self.ffn = (
            c.kv_heads * self.head, s.q_heads * self.head, self._whole("hidden", s.hidden), self._whole("ffn", s.ffn),
        )  # fmt: skip
        self.hashes = -(-c.hash_bits // n)
        self.key_blocks = -(-s.keys // n)
        rooms = {
            "tokens": (s.tokens * self.group, c.dpe_accumulators, "rows of a head"),
            "hidden": (2 * self.x_words, c.vpe_rows, "words of a norm"),
            "keys": (self.key_blocks, c.vpe_rows, "words of a row of scores"),
        }
        for name, (value, most, what) in rooms.items():
            if value > most:
                raise ValueError(f"{name} = {getattr(s, name)}: {value} {what}, must be at most {most}")
        for name, tokens in (("tokens", s.tokens), ("fill", s.fill)):
            if tokens > min(c.max_step_tokens, c.dpe_accumulators):
                limits = f"max_step_tokens = {c.max_step_tokens}, and dpe_accumulators = {c.dpe_accumulators}"
                raise ValueError(f"{name} = {tokens}: must be at most {limits}")
        self.most = {True: s.tokens, False: max(s.tokens, s.fill)}  # tokens of a step with queries, and without
        self.shapes = {
            "q": (self.q, self.x_words), "k": (self.kv, self.x_words), "v": (self.kv, self.x_words),
            "o": (self.x_words, self.q), "gate": (self.ffn, self.x_words), "up": (self.ffn, self.x_words),
            "down": (self.x_words, self.ffn), "planes": (self.hashes, self.kv),
        }  # fmt: skip
        take, t = self.region.take, s.tokens
        for name, (m_blocks, k_blocks) in self.shapes.items():
            self.weights[name] = take(m_blocks * k_blocks * n)
        self.norms = [take(self.x_words) for _ in range(2)]
        self.x, self.out, self.cosines = take(t * self.x_words), take(t * self.x_words), take(t * self.head * 2)
        self.normed, self.middle = take(t * self.x_words), take(t * self.ffn)
        self.wide = {name: take(2 * t * width) for name, width in
                     (("q", self.q), ("k", self.kv), ("o", self.x_words), ("gate", self.ffn), ("up", self.ffn),
                      ("down", self.x_words))}  # fmt: skip
        most = self.most[False]
        self.turned = {"q": take(t * self.q), "k": take(most * self.kv), "v": take(most * self.kv)}
        self.attended, self.projected = take(t * self.x_words), take(most * self.hashes)
        rows = t * self.group
        self.score_words = 2 * max(self.key_blocks, -(-c.max_row_clusters // n))
        self.scores = [take(rows * self.score_words) for _ in range(c.kv_heads)]
        self.shares = [take(rows * self.key_blocks) for _ in range(c.kv_heads)]
        self.context = [take(rows * self.head) for _ in range(c.kv_heads)]
        self._programs()

    def _whole(self, name: str, value: int) -> int:
        if value < self.width or value % self.width:
            raise ValueError(f"{name} = {value}: must be a multiple of {self.width}")
        return value // self.width

    def _programs(self) -> None:
        c, n, s = self.config, self.width, self.sizes
        norm = programs.rms_norm(s.hidden, n)
        prologue = len(programs.rms_norm(s.hidden, n, 0))
        self.piece = next(p for p in range(min(self.ffn, c.vpe_rows), 0, -1) if self.ffn % p == 0)
        self.x_piece = next(p for p in range(min(self.x_words, c.vpe_rows), 0, -1) if self.x_words % p == 0)
        fixed = {
            "norm weights": norm[:prologue],
            "norm": norm[prologue:],
            "rope q": programs.rope(c.head_dim, n, s.q_heads),
            "rope k": programs.rope(c.head_dim, n, c.kv_heads),
            "hash": programs.hash_bits(c.hash_bits, n),
            "gated": programs.gated(self.piece * n, n),
            "residual": residual(self.x_piece * n, n),
        }
        varying = {
            "exponentials": programs.exponentials(1, n, c.head_dim),
            "softmax": programs.softmax(1, n, c.head_dim),
        }
        for name, program in (fixed | varying).items():
            image = assemble(program, c.vpe_rows, varies=name in varying)
            place = self.region.take(-(-len(image) * 8 // (16 * n)))
            self.code[name] = place, len(image) // CODE_BYTES
            self.images[place], self.instructions[place] = image, program

    def step(self, tokens: int) -> list[Command]:
        """The layer for a step of `tokens` tokens, from `x` to `out`.

        Keys come first: they are turned while queries are projected, clustered while values are. Weights are loaded
        while what they will meet is still computed. Pages leave the device memory beside attention and the rest.
        """
        self._check(tokens)
        t, w, p = tokens, self.wide, self._program()
        norm = self._norm(p, 0, self.x, t)
        x = self._rows(p, self.normed, t, self.x_words, [norm])
        beside = t * self.x_words <= self.rows // 2  # there is room for the keys while x stays
        k = self._rope(p, "k", t, self._multiply(p, "k", t, x, w["k"], wide=True))
        q = self._multiply(p, "q", t, x, w["q"], wide=True)
        v = None if beside else self._multiply(p, "v", t, x, self.turned["v"], wide=False)
        codes = self._hash(p, t, True, [k])
        q = self._rope(p, "q", t, q)
        clustered = p.builder.add("CLUSTER", {}, after=[codes])
        means = self._means(p, clustered)
        v = v or self._multiply(p, "v", t, x, self.turned["v"], wide=False)
        self._place(p, clustered, [v])
        context = self._retrieve(p, t, means, [q, v])
        per_head = self.group * self.head
        heads = [
            {"source": self.context[h], "stride": per_head, "rows": t, "beats": per_head, "target": h * per_head,
             "step": self.q}
            for h in range(self.config.kv_heads)
        ]  # fmt: skip
        x = cache(lambda: p.activations(heads, t * self.q, [context]))
        attended = self._residual(p, t, self.x, w["o"], self.attended, self._multiply(p, "o", t, x, w["o"], wide=True))
        norm = self._norm(p, 1, self.attended, t, [attended])
        x = self._rows(p, self.normed, t, self.x_words, [norm])
        self._multiply(p, "gate", t, x, w["gate"], wide=True)
        up = self._multiply(p, "up", t, x, w["up"], wide=True)
        gated = self._vector(
            p, "gated", [up], repeat=t * self.ffn // self.piece, a=w["gate"], a_stride=2 * self.piece,
            a_beats=self.piece, a_wide=1, b=w["up"], b_stride=2 * self.piece, b_beats=self.piece, b_wide=1,
            b_used=1, out=self.middle, out_stride=self.piece, out_beats=self.piece, extra=1,
        )  # fmt: skip
        x = self._rows(p, self.middle, t, self.ffn, [gated])
        self._residual(p, t, self.attended, w["down"], self.out, self._multiply(p, "down", t, x, w["down"], wide=True))
        return [*p.builder.commands, Command("OFFLOAD"), Command("END")]

    def attention(self, tokens: int, *, query: bool = True) -> list[Command]:
        """The six steps alone, from turned queries and keys and values to the context of every head.

        Without `query` the tokens are only clustered and placed.
        """
        self._check(tokens, query)
        p = self._program()
        clustered = p.builder.add("CLUSTER", {}, after=[self._hash(p, tokens, query, [])])
        means = self._means(p, clustered)
        self._place(p, clustered, [])
        if query:
            self._retrieve(p, tokens, means, [])
        return [*p.builder.commands, Command("OFFLOAD"), Command("END")]

    def _check(self, tokens: int, query: bool = True) -> None:
        if not 1 <= tokens <= self.most[query]:
            raise ValueError(f"tokens = {tokens}: must be 1 to {self.most[query]}")

    # commands

    def _program(self) -> Operands:
        return Operands(Builder(), self.half * self.width, self.rows)

    def _vector(self, p: Operands, name: str, after: Sequence[CommandRef], **fields: int) -> CommandRef:
        code, instructions = self.code[name]
        return p.builder.add("VECTOR", {"code": code, "instructions": instructions, **fields}, after=after)

    def _rows(
        self, p: Operands, place: int, tokens: int, words: int, after: Sequence[CommandRef]
    ) -> Callable[[], LoadedOperands]:
        """Rows of `words` words, one after the other, as activations: loaded when they are used first."""
        fields = {"source": place, "stride": words, "rows": tokens, "beats": words, "step": words}
        return cache(lambda: p.activations([fields], tokens * words, after))

    def _multiply(
        self, p: Operands, name: str, tokens: int, x: Callable[[], LoadedOperands], out: int, wide: bool
    ) -> CommandRef:
        """A matrix with the activations `x`, to `out`, a row for each token.

        Loads start in order: both halves of the weights come before the activations, which have more to wait for.
        """
        m_blocks, k_blocks = self.shapes[name]
        steps: list[tuple[int, int, int, int]] = []  # results, inputs, first block of each
        if k_blocks <= self.half:
            most = self.half // k_blocks
            steps += [(min(most, m_blocks - m), k_blocks, m, 0) for m in range(0, m_blocks, most)]
        else:
            for m in range(m_blocks):
                steps += [(1, min(self.half, k_blocks - k), m, k) for k in range(0, k_blocks, self.half)]
        n, parts = self.width, 1 + wide

        def bring(results: int, inputs: int, m: int, k: int) -> LoadedOperands:
            source = self.weights[name] + (m * k_blocks + k) * n
            return p.weights("LOAD", {"source": source, "rows": 1, "beats": results * inputs * n})

        weights = [bring(*step) for step in steps[:2]]
        for at, (results, inputs, m, k) in enumerate(steps):
            given = p.multiply(
                {
                    "m_stride": inputs, "k_stride": 1, "m_blocks": results, "k_blocks": inputs,
                    "activations": k, "x_stride": k_blocks, "vectors": tokens,
                    "first": k == 0, "last": k + inputs == k_blocks,
                    "out": out + m * parts, "stride": m_blocks * parts, "wide": wide,
                },
                weights[at], x(), n,
            )  # fmt: skip
            weights += [bring(*step) for step in steps[at + 2 : at + 3]]
        return given

    def _norm(self, p: Operands, number: int, source: int, tokens: int, after: Sequence[CommandRef] = ()) -> CommandRef:
        words = self.x_words
        self._vector(
            p, "norm weights", [], repeat=1, a=self.norms[number], a_beats=words, destination=Destination.NONE, extra=1
        )
        return self._vector(p, "norm", after, repeat=tokens, a=source, a_stride=words, a_beats=words, out=self.normed,
                            out_stride=words, out_beats=words, extra=1)  # fmt: skip

    def _residual(self, p: Operands, tokens: int, x: int, y: int, out: int, after: CommandRef) -> CommandRef:
        piece = self.x_piece
        return self._vector(p, "residual", [after], repeat=tokens * self.x_words // piece, a=x, a_stride=piece,
                            a_beats=piece, b=y, b_stride=2 * piece, b_beats=piece, b_wide=1, b_used=1, out=out,
                            out_stride=piece, out_beats=piece, extra=1)  # fmt: skip

    def _rope(self, p: Operands, name: str, tokens: int, after: CommandRef) -> CommandRef:
        words = {"q": self.q, "k": self.kv}[name]
        return self._vector(p, f"rope {name}", [after], repeat=tokens, a=self.cosines, a_stride=2 * self.head,
                            a_beats=self.head, a_wide=1, b=self.wide[name], b_stride=2 * words, b_beats=words,
                            b_wide=1, b_used=1, out=self.turned[name], out_stride=words, out_beats=words,
                            extra=1)  # fmt: skip

    def _hash(self, p: Operands, tokens: int, query: bool, after: Sequence[CommandRef]) -> CommandRef:
        """Keys by the hyperplanes, to hash codes."""
        x = self._rows(p, self.turned["k"], tokens, self.kv, after)
        projected = self._multiply(p, "planes", tokens, x, self.projected, wide=False)
        return self._vector(p, "hash", [projected], repeat=tokens, a=self.projected, a_stride=self.hashes,
                            a_beats=self.hashes, destination=Destination.CODES, flag=query, extra=1)  # fmt: skip

    def _means(self, p: Operands, clustered: CommandRef) -> CommandRef:
        return p.builder.add("MEANS", {"keys": self.turned["k"], "stride": self.kv}, after=[clustered])

    def _place(self, p: Operands, clustered: CommandRef, after: Sequence[CommandRef]) -> CommandRef:
        fields = {"keys": self.turned["k"], "values": self.turned["v"], "key_stride": self.kv, "value_stride": self.kv}
        return p.builder.add("STORE", fields, after=[clustered, *after])

    def _retrieve(self, p: Operands, tokens: int, means: CommandRef, after: Sequence[CommandRef]) -> CommandRef:
        """Score, threshold, fetch, attend: a head's keys are gathered and multiplied while the softmax of the one
        before runs, its values afterwards."""
        heads = range(self.config.kv_heads)
        scored = [self._score(p, h, tokens, means, after) for h in heads]
        fetched = p.builder.add("FETCH", {}, after=scored)
        shares = [self._attend(p, 0, tokens, fetched, after)]
        for h in heads[1:]:
            shares.append(self._attend(p, h, tokens, fetched, after))
            self._mix(p, h - 1, tokens, shares[h - 1])
        return self._mix(p, heads[-1], tokens, shares[-1])

    def _queries(self, p: Operands, head: int, tokens: int, after: Sequence[CommandRef]) -> LoadedOperands:
        """The rows of a KV head: token by token, its query heads within."""
        beats = self.group * self.head
        fields = {"source": self.turned["q"] + head * beats, "stride": self.q, "rows": tokens, "beats": beats,
                  "step": beats}  # fmt: skip
        return p.activations([fields], tokens * beats, after)

    def _products(self, head: int, rows: int, block: int) -> dict[str, int]:
        """Of a head's queries with a chunk of keys: FP32 scores."""
        chunk = self.half // self.head
        return {
            "m_stride": self.head, "k_stride": 1, "m_blocks": chunk, "k_blocks": self.head, "x_stride": self.head,
            "vectors": rows, "first": 1, "last": 1, "out": self.scores[head] + 2 * block, "stride": self.score_words,
            "wide": 1, "limit": 1, "block": block,
        }  # fmt: skip

    def _score(self, p: Operands, head: int, tokens: int, means: CommandRef, after: Sequence[CommandRef]) -> CommandRef:
        """Scores of all clusters for one KV head, to the threshold unit."""
        c, rows, chunk = self.config, tokens * self.group, self.half // self.head
        known = {"length": LengthSource.CLUSTERS}
        x = self._queries(p, head, tokens, after)
        for block in range(0, -(-c.max_row_clusters // self.width), chunk):
            source = self.mean_keys_word + head * self.head + block * self.width * self.kv
            keys = p.weights(
                "LOAD",
                {"source": source, "stride": self.kv, "rows": chunk * self.width, "beats": self.head, "tiled": 1,
                 "limit": 1, "block": block, **known},
                [means],
            )  # fmt: skip
            products = p.multiply({**self._products(head, rows, block), **known}, keys, x, self.width)
        return self._vector(
            p, "exponentials", [products], repeat=rows, a=self.scores[head], a_stride=self.score_words, a_wide=1,
            destination=Destination.SCORES, flag=head == c.kv_heads - 1, head=head, **known,
        )  # fmt: skip

    def _gather(
        self, p: Operands, head: int, tokens: int, block: int, values: bool, after: Sequence[CommandRef]
    ) -> LoadedOperands:
        """A chunk of the keys or values that a head attends to."""
        own = self.turned["v" if values else "k"] + head * self.head
        fields = {"head": head, "blocks": self.half // self.head, "stride": self.kv, "tokens": tokens, "step_word": own,
                  "restart": block == 0, "values": values}  # fmt: skip
        return p.weights("GATHER", fields, after)

    def _attend(
        self, p: Operands, head: int, tokens: int, fetched: CommandRef, after: Sequence[CommandRef]
    ) -> CommandRef:
        """Shares of one KV head's queries in the tokens that were fetched for it, and in the step's own."""
        rows, chunk = tokens * self.group, self.half // self.head
        known = {"length": LengthSource.TOKENS, "head": head}
        x = self._queries(p, head, tokens, after)
        for block in range(0, self.key_blocks, chunk):
            keys = self._gather(p, head, tokens, block, False, [fetched, *after])
            products = p.multiply({**self._products(head, rows, block), "extra": tokens, **known}, keys, x, self.width)
        return self._vector(
            p, "softmax", [products], repeat=rows, group=self.group, a=self.scores[head], a_stride=self.score_words,
            a_wide=1, out=self.shares[head], out_stride=self.key_blocks, pad=tokens - 1, extra=1, **known,
        )  # fmt: skip

    def _mix(self, p: Operands, head: int, tokens: int, shares: CommandRef) -> CommandRef:
        """The values of one KV head by their shares, as many tokens at a time as there are sums for."""
        chunk = self.half // self.head
        known = {"length": LengthSource.TOKENS, "head": head, "extra": tokens}
        most = min(self.config.dpe_accumulators // (self.group * self.head), self.rows // (chunk * self.group))
        for start in range(0, tokens, most):
            some, row = min(most, tokens - start) * self.group, start * self.group
            for block in range(0, self.key_blocks, chunk):
                values = self._gather(p, head, tokens, block, True, ())
                fields = {
                    "source": self.shares[head] + row * self.key_blocks + block, "stride": self.key_blocks,
                    "rows": some, "beats": chunk, "step": chunk, "limit": 2, "block": block, **known,
                }  # fmt: skip
                x = p.activations([fields], some * chunk, [shares])
                given = p.multiply(
                    {
                        "m_stride": 1, "k_stride": self.head, "m_blocks": self.head, "k_blocks": chunk,
                        "x_stride": chunk, "vectors": some, "spread": 1, "out": self.context[head] + row * self.head,
                        "stride": self.head, "limit": 2, "block": block, **known,
                    },
                    values, x, self.width,
                )  # fmt: skip
        return given
