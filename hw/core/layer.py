"""Programs for a decoder layer with ReSV attention: what lies where in memory, and the commands of a step.

Everything a step needs besides its input lies in device memory: weights as tiles, norms, vector code. A step's
program depends only on how many tokens it has; how many clusters there are and how many tokens a head attends to the
core finds out by itself.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from hw.config import Config
from hw.core.isa import Command, Size, To, Unit, Wait
from hw.core.vector import CODE_BYTES, assemble
from hw.lxe import programs
from hw.lxe.lane import STAGES
from hw.lxe.memory import OperandMemory
from hw.lxe.microcode import Instruction, Pre, Source

ALL, LOAD, MATRIX, VECTOR, CACHE, COPY = Wait.ALL, Unit.LOAD, Unit.MATRIX, Unit.VECTOR, Unit.CACHE, Unit.COPY


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
    """Of one layer: hidden and feed-forward width, tokens of the largest step, keys of the longest attention row."""

    hidden: int
    ffn: int
    tokens: int
    keys: int


@dataclass
class LayerCompiler:
    """Places a layer in memory and writes the programs of its steps.

    Parameters
    ----------
    config, sizes : of the core and of the layer ; region : device memory that may be used
    mean_word : word of the representative keys

    Attributes
    ----------
    weights : place of each matrix, tile after tile: q, k, v, o, gate, up, down, planes
    norms : places of the two norms' weights ; x, out : the step's input and output, row after row
    cosines : angles of the step, pairs of FP32 words (cosines, sines) ; code : place and bytes of each vector program

    Raises
    ------
    ValueError
        When a row, a tile or a step is larger than the memory for it.
    """

    config: Config
    sizes: Sizes
    region: Region
    mean_word: int
    weights: dict[str, int] = field(default_factory=dict)
    code: dict[str, tuple[int, int]] = field(default_factory=dict)
    images: dict[int, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        c, s = self.config, self.sizes
        self.width = n = c.dpe_inputs
        memory = OperandMemory.from_config(c)
        self.half = memory.weight_rows // n // 2  # tiles of each half of the weights
        self.rows = memory.activation_rows
        self.head = c.head_dim // n  # words of a head's vector
        self.group = c.q_heads // c.kv_heads
        self.kv, self.q, self.x_words, self.ffn = (
            c.kv_heads * self.head, c.q_heads * self.head, self._whole("hidden", s.hidden), self._whole("ffn", s.ffn),
        )  # fmt: skip
        self.hashes = -(-c.hash_bits // n)
        self.key_blocks = -(-s.keys // n)
        limits = {
            "tokens": (s.tokens * self.group, c.dpe_slots, "rows of a head"),
            "hidden": (2 * self.x_words, c.vpe_rows, "words of a norm"),
            "keys": (self.key_blocks, c.vpe_rows, "words of a row of scores"),
        }
        for name, (value, most, what) in limits.items():
            if value > most:
                raise ValueError(f"{name} = {getattr(s, name)}: {value} {what}, must be at most {most}")
        if s.tokens > c.hcu_tokens:
            raise ValueError(f"tokens = {s.tokens}: must be at most hcu_tokens = {c.hcu_tokens}")
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
        self.turned = {"q": take(t * self.q), "k": take(t * self.kv), "v": take(t * self.kv)}
        self.attended, self.projected = take(t * self.x_words), take(t * self.hashes)
        rows = t * self.group
        self.score_words = 2 * max(self.key_blocks, -(-c.wtu_clusters // n))
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
            "rope q": programs.rope(c.head_dim, n, c.q_heads),
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
            self.images[place] = image

    # commands

    def _load(self, waits: Mapping[Unit, Wait], **fields: int) -> Command:
        return Command("LOAD", fields, dict(waits))

    def _vector(self, name: str, waits: Mapping[Unit, Wait], **fields: int) -> Command:
        code, instructions = self.code[name]
        return Command("VECTOR", {"code": code, "instructions": instructions, **fields}, dict(waits))

    def _multiply(self, name: str, tokens: int, load: list[Command], out: int, wide: bool) -> list[Command]:
        """A matrix with the activations that `load` brings, to `out`, a row for each token; the weights in halves."""
        m_blocks, k_blocks = self.shapes[name]
        if tokens * k_blocks > self.rows:
            raise ValueError(f"{tokens} activations of {k_blocks} words: must be at most {self.rows} words")
        steps: list[tuple[int, int, int, int, int]] = []  # first tile, results, inputs, first block of each
        if k_blocks <= self.half:
            most = self.half // k_blocks
            steps += [(m * k_blocks, min(most, m_blocks - m), k_blocks, m, 0) for m in range(0, m_blocks, most)]
        else:
            for m in range(m_blocks):
                deep = range(0, k_blocks, self.half)
                steps += [(m * k_blocks + k, 1, min(self.half, k_blocks - k), m, k) for k in deep]
        program, n, parts = list(load), self.width, 1 + wide
        for at, (_, results, inputs, m, k) in enumerate(steps):
            side = at % 2 * self.half

            def bring(index: int, waits: Mapping[Unit, Wait]) -> Command:
                first, count, depth, *_ = steps[index]
                return self._load(
                    waits,
                    source=self.weights[name] + first * n,
                    rows=1,
                    beats=count * depth * n,
                    to=index % 2 * self.half * n,
                )

            if at == 0:
                program.append(bring(0, {MATRIX: ALL}))
            if at + 1 < len(steps):
                program.append(bring(at + 1, {MATRIX: ALL}))
            fields = {
                "weights": side, "m_stride": inputs, "k_stride": 1, "m_blocks": results, "k_blocks": inputs,
                "activations": k, "x_stride": k_blocks, "vectors": tokens,
                "first": k == 0, "last": k + inputs == k_blocks,
                "out": out + m * parts, "stride": m_blocks * parts, "wide": wide,
            }  # fmt: skip
            wait = ALL if at + 1 == len(steps) else Wait.ALL_BUT_ONE
            program.append(Command("MULTIPLY", fields, {LOAD: wait}))
        return program

    def _activations(self, place: int, tokens: int, words: int, waits: Mapping[Unit, Wait]) -> list[Command]:
        """Rows of `words` words, one after the other, as activations."""
        fields = {"source": place, "stride": words, "rows": tokens, "beats": words, "step": words, "activations": 1}
        return [self._load({MATRIX: ALL, **waits}, **fields)]

    def _norm(self, number: int, source: int, tokens: int) -> list[Command]:
        words = self.x_words
        return [
            self._vector("norm weights", {}, repeat=1, a=self.norms[number], a_beats=words, to=To.NONE, extra=1),
            self._vector(
                "norm", {MATRIX: ALL, VECTOR: Wait.ALL_BUT_ONE}, repeat=tokens, a=source, a_stride=words, a_beats=words,
                out=self.normed, out_stride=words, out_beats=words, extra=1,
            ),
        ]  # fmt: skip

    def attention(self, tokens: int, *, query: bool = True) -> list[Command]:
        """The six steps, from turned queries and keys and values to the context of every head.

        Without `query` the tokens are only clustered and placed.
        """
        t, c = tokens, self.config
        program = [
            *self._multiply("planes", t, self._activations(self.turned["k"], t, self.kv, {VECTOR: ALL}),
                            self.projected, wide=False),
            # hash and cluster
            self._vector("hash", {MATRIX: ALL}, repeat=t, a=self.projected, a_stride=self.hashes, a_beats=self.hashes,
                         to=To.CODES, flag=query, extra=1),
            Command("CLUSTER", {}, {VECTOR: ALL}),
            Command("PLACE", {"keys": self.turned["k"], "values": self.turned["v"], "key_stride": self.kv,
                              "value_stride": self.kv}, {CACHE: ALL}),
            Command("MEANS", {"keys": self.turned["k"], "stride": self.kv}, {CACHE: ALL}),
        ]  # fmt: skip
        if not query:
            return program
        for h in range(c.kv_heads):
            program += self._score(h, t)
        program.append(Command("FETCH", {}, {VECTOR: ALL}))
        for h in range(c.kv_heads):
            program += self._attend(h, t)
        return program

    def _queries(self, head: int, tokens: int, waits: Mapping[Unit, Wait]) -> Command:
        """The rows of a KV head: token by token, its query heads within."""
        beats = self.group * self.head
        return self._load({MATRIX: ALL, **waits}, source=self.turned["q"] + head * beats, stride=self.q, rows=tokens,
                          beats=beats, step=beats, activations=1)  # fmt: skip

    def _score(self, head: int, tokens: int) -> list[Command]:
        """Scores of all clusters for one KV head, to the threshold unit."""
        c, rows, chunk = self.config, tokens * self.group, self.half // self.head
        last = head == c.kv_heads - 1
        known = {"size": Size.CLUSTERS}
        program = [self._queries(head, tokens, {VECTOR: ALL})]
        for at, block in enumerate(range(0, -(-c.wtu_clusters // self.width), chunk)):
            side = at % 2 * self.half
            mean = self.mean_word + head * self.head
            program += [
                self._load({MATRIX: Wait.ALL_BUT_ONE if at else ALL},
                           source=mean + block * self.width * self.kv, stride=self.kv,
                           rows=chunk * self.width, beats=self.head, to=side * self.width, tiled=1, vary=1, block=block,
                           **known),
                Command("MULTIPLY", {
                    "weights": side, "m_stride": self.head, "k_stride": 1, "m_blocks": chunk, "k_blocks": self.head,
                    "x_stride": self.head, "vectors": rows, "first": 1, "last": 1,
                    "out": self.scores[head] + 2 * block, "stride": self.score_words, "wide": 1, "vary": 1,
                    "block": block, **known}, {LOAD: ALL}),
            ]  # fmt: skip
        program.append(
            self._vector("exponentials", {MATRIX: ALL}, repeat=rows, a=self.scores[head], a_stride=self.score_words,
                         a_wide=1, to=To.SCORES, flag=last, head=head, **known)
        )  # fmt: skip
        return program

    def _attend(self, head: int, tokens: int) -> list[Command]:
        """Attention of one KV head to the tokens that were fetched for it, and to the step's own."""
        rows, chunk = tokens * self.group, self.half // self.head
        known = {"size": Size.TOKENS, "head": head}
        blocks = range(0, self.key_blocks, chunk)
        own = {"head": head, "blocks": chunk, "stride": self.kv, "tokens": tokens}
        program = [self._queries(head, tokens, {})]
        for at, block in enumerate(blocks):
            side = at % 2 * self.half
            program += [
                Command("GATHER", {**own, "restart": block == 0, "to": side * self.width,
                                   "own": self.turned["k"] + head * self.head},
                        {MATRIX: Wait.ALL_BUT_ONE if at else ALL, CACHE: ALL}),
                Command("MULTIPLY", {
                    "weights": side, "m_stride": self.head, "k_stride": 1, "m_blocks": chunk, "k_blocks": self.head,
                    "x_stride": self.head, "vectors": rows, "first": 1, "last": 1,
                    "out": self.scores[head] + 2 * block, "stride": self.score_words, "wide": 1, "vary": 1,
                    "block": block, "extra": tokens, **known}, {LOAD: ALL}),
            ]  # fmt: skip
        for t in range(tokens):
            program.append(
                self._vector("softmax", {MATRIX: ALL}, repeat=self.group,
                             a=self.scores[head] + t * self.group * self.score_words, a_stride=self.score_words,
                             a_wide=1, out=self.shares[head] + t * self.group * self.key_blocks,
                             out_stride=self.key_blocks, pad=tokens - 1 - t, extra=t + 1, **known)
            )  # fmt: skip
        # as many tokens at a time as there are sums for
        most = self.config.dpe_slots // (self.group * self.head)
        fit = self.rows // (chunk * self.group)
        for start in range(0, tokens, min(most, fit)):
            some = min(most, fit, tokens - start) * self.group
            row = start * self.group
            for at, block in enumerate(blocks):
                side = at % 2 * self.half
                program += [
                    Command("GATHER", {**own, "values": 1, "restart": block == 0, "to": side * self.width,
                                       "own": self.turned["v"] + head * self.head},
                            {MATRIX: Wait.ALL_BUT_ONE if at else ALL}),
                    self._load({MATRIX: ALL, VECTOR: ALL},
                               source=self.shares[head] + row * self.key_blocks + block, stride=self.key_blocks,
                               rows=some, beats=chunk, step=chunk, activations=1, vary=2, block=block, extra=tokens,
                               **known),
                    Command("MULTIPLY", {
                        "weights": side, "m_stride": 1, "k_stride": self.head, "m_blocks": self.head,
                        "k_blocks": chunk, "x_stride": chunk, "vectors": some, "spread": 1,
                        "out": self.context[head] + row * self.head, "stride": self.head, "vary": 2, "block": block,
                        "extra": tokens, **known}, {LOAD: ALL}),
                ]  # fmt: skip
        return program

    def step(self, tokens: int) -> list[Command]:
        """The layer for a step of `tokens` tokens, from `x` to `out`."""
        if not 1 <= tokens <= self.sizes.tokens:
            raise ValueError(f"tokens = {tokens}: must be 1 to {self.sizes.tokens}")
        t, w = tokens, self.wide
        program = self._norm(0, self.x, t)
        loaded = self._activations(self.normed, t, self.x_words, {VECTOR: ALL})
        for name in ("q", "k"):
            program += self._multiply(name, t, loaded if name == "q" else [], w[name], wide=True)
        program += self._multiply("v", t, [], self.turned["v"], wide=False)
        for name, words in (("q", self.q), ("k", self.kv)):
            program.append(
                self._vector(f"rope {name}", {MATRIX: ALL}, repeat=t, a=self.cosines, a_stride=2 * self.head,
                             a_beats=self.head, a_wide=1, b=w[name], b_stride=2 * words, b_beats=words, b_wide=1,
                             b_used=1, out=self.turned[name], out_stride=words, out_beats=words, extra=1)
            )  # fmt: skip
        program += self.attention(t)
        per_head = self.group * self.head
        heads = [
            self._load({MATRIX: ALL}, source=self.context[h], stride=per_head, rows=t, beats=per_head,
                       to=h * per_head, step=self.q, activations=1)
            for h in range(self.config.kv_heads)
        ]  # fmt: skip
        program += self._multiply("o", t, heads, w["o"], wide=True)
        program.append(self._residual(t, self.x, w["o"], self.attended))
        program += self._norm(1, self.attended, t)
        loaded = self._activations(self.normed, t, self.x_words, {VECTOR: ALL})
        program += self._multiply("gate", t, loaded, w["gate"], wide=True)
        program += self._multiply("up", t, [], w["up"], wide=True)
        pieces = t * self.ffn // self.piece
        program.append(
            self._vector("gated", {MATRIX: ALL}, repeat=pieces, a=w["gate"], a_stride=2 * self.piece,
                         a_beats=self.piece, a_wide=1, b=w["up"], b_stride=2 * self.piece, b_beats=self.piece, b_wide=1,
                         b_used=1, out=self.middle, out_stride=self.piece, out_beats=self.piece, extra=1)
        )  # fmt: skip
        program += self._multiply(
            "down", t, self._activations(self.middle, t, self.ffn, {VECTOR: ALL}), w["down"], wide=True
        )
        program.append(self._residual(t, self.attended, w["down"], self.out))
        return [*program, Command("END")]

    def _residual(self, tokens: int, x: int, y: int, out: int) -> Command:
        piece = self.x_piece
        return self._vector("residual", {MATRIX: ALL, VECTOR: ALL}, repeat=tokens * self.x_words // piece, a=x,
                            a_stride=piece, a_beats=piece, b=y, b_stride=2 * piece, b_beats=piece, b_wide=1, b_used=1,
                            out=out, out_stride=piece, out_beats=piece, extra=1)  # fmt: skip
