"""Compiler of a text decoder: memory layout, and the program of a step from token IDs to the next token.

The embedding and the LM head of a tied model share their tiles. A row of the embedding is copied word by word then.
"""

# mypy: disable-error-code="arg-type"

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Protocol

import numpy as np

from compiler import vector_programs as programs
from compiler.batch_layer import BatchLayer, StreamRows, add_batch_layers
from compiler.blocks import Activations, Columns
from compiler.builder import ALONE, CommandRef, Operands, Share
from compiler.layer import Context, LayerCompiler, LayerSizes, add_layers
from compiler.memory import Region, matrix_words, tiles
from compiler.model_spec import TextSpec
from compiler.policies import Policy
from compiler.policies.base import LayerWidths
from compiler.products import Matrix
from compiler.window_layer import WindowLayer
from golden import bf16
from golden.bf16 import FP32
from golden.decoder_layer import pad_heads
from golden.hashing import hyperplanes
from golden.weight_formats import PackedWeights, WeightFormat
from hw.config import Config
from hw.core.isa import COUNT, Command, Destination

MAX_VOCABULARY = 1 << 24  # ranks are FP32 numbers
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
Words = tuple[int, int]  # word address and number of words


class Weights(Protocol):
    """Tensors of a model by the names of `compiler.tensor_table`."""

    def load(self, key: str) -> np.ndarray:
        """BF16 bit patterns of the tensor `key`, uint16."""

    def packed(self, key: str, form: WeightFormat) -> PackedWeights | None:
        """Codes of the tensor `key` if it is stored in a number format that `form` holds exactly; None: it is not."""


@dataclass(frozen=True)
class LayerWeights:
    """Parameters of a decoder layer, BF16 bit patterns or codes, heads padded to the `head_dim` of the core.

    matrices : by name, shapes as in `golden.decoder_layer.LayerShape.weights` ; norms : of both RMSNorms
    biases : of the projections that have one
    """

    matrices: Mapping[str, np.ndarray | PackedWeights]
    norms: tuple[np.ndarray, np.ndarray]
    biases: Mapping[str, np.ndarray]


def layer_weights(
    weights: Weights, spec: TextSpec, config: Config, layer: int, form: WeightFormat | None = None
) -> LayerWeights:
    """Parameters of one layer of a model, with the hyperplanes that the hash codes of its keys use.

    `form` : projections that this format holds exactly are codes, the others BF16; None: all are BF16
    Raises ValueError if tiles of the core have too few scales for the codes of a projection.
    """
    heads = {"q": spec.q_heads, "k": spec.kv_heads, "v": spec.kv_heads}
    matrices: dict[str, np.ndarray | PackedWeights] = {}
    for name in PROJECTIONS:
        key = f"layers.{layer}.{name}"
        if form is not None and (packed := weights.packed(key, form)) is not None:
            matrices[name] = _padded_codes(packed, form, key, spec, config)
            continue
        matrix = weights.load(key)
        if name in heads:
            matrix = pad_heads(matrix, heads[name], config.head_dim, 0)
        matrices[name] = pad_heads(matrix, spec.q_heads, config.head_dim, 1) if name == "o" else matrix
    planes = hyperplanes(spec.kv_heads * spec.head_dim, config.hash_bits, layer=layer).view(np.uint16).T
    matrices["planes"] = pad_heads(planes, spec.kv_heads, config.head_dim, 1)
    norms = weights.load(f"layers.{layer}.attention_norm"), weights.load(f"layers.{layer}.ffn_norm")
    names = heads if spec.qkv_bias else {}
    biases = {
        name: pad_heads(weights.load(f"layers.{layer}.{name}_bias"), count, config.head_dim, 0)
        for name, count in names.items()
    }
    return LayerWeights(matrices, norms, biases)


def _padded_codes(packed: PackedWeights, form: WeightFormat, key: str, spec: TextSpec, config: Config) -> PackedWeights:
    """Codes of a projection as `pad_heads` pads its numbers, with the scales of the tiles of a core."""
    name, (outputs, inputs) = key.rpartition(".")[2], packed.codes.shape
    columns = np.arange(inputs)
    if name == "o":
        columns = pad_heads(columns + 1, spec.q_heads, config.head_dim, 0) - 1
    try:
        result = form.columns(packed, columns, config.dpe_inputs)
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
    if name in ("q", "k", "v"):
        heads = outputs // spec.head_dim
        codes, entries = (pad_heads(each, heads, config.head_dim, 0) for each in (result.codes, result.entries))
        return PackedWeights(codes, entries, result.group)
    return result


@dataclass(frozen=True)
class StreamTokens:
    """The tokens of one stream in a step.

    rows : for each token, the words of device memory that hold its hidden state, in order
    contexts : states of the layers of the stream
    answer : the logits of the last token and the choice follow ; visual : the tokens are those of frames
    """

    rows: Sequence[Sequence[Words]]
    contexts: Sequence[Context]
    answer: bool = True
    visual: bool = False


class LanguageModelCompiler:
    """Allocates the memory of a text decoder and compiles the programs of its steps.

    Parameters
    ----------
    config : configuration of the core ; spec : the model
    region : device memory for the model ; contexts : state of every layer, of the first stream
    tokens : tokens of the largest step ; keys : keys of the longest attention row
    policy : what the layers do with their tokens
    form : format of the stored weights of the layers' projections; None: BF16
    cores : cores that work on a step, see `LayerCompiler`
    batch : streams that one step can serve

    Attributes
    ----------
    layers : all layers; they share buffers, and each one overwrites its input `x` with its output
    x : word address of the hidden states ; cosines : word address of the RoPE angles of a step
    head : the LM head
    logits : word address of the logits, FP32, a row for each stream that is answered
    choice : word address of the choices, two words each: 2**24 minus the ID of the most probable token, an FP32 number

    Raises
    ------
    ValueError
        A size is not supported; the message names it.
    """

    def __init__(
        self,
        config: Config,
        spec: TextSpec,
        region: Region,
        contexts: Sequence[Context],
        *,
        tokens: int,
        keys: int,
        policy: Policy,
        form: WeightFormat | None = None,
        cores: int = 1,
        batch: int = 1,
    ):
        if spec.kv_heads != config.kv_heads:
            raise ValueError(f"kv_heads of the model must be those of the core, {config.kv_heads}, got {spec.kv_heads}")
        if spec.head_dim > config.head_dim:
            raise ValueError(f"head_dim of the model must be at most {config.head_dim}, got {spec.head_dim}")
        if spec.vocabulary > MAX_VOCABULARY:
            raise ValueError(f"vocabulary must be at most {MAX_VOCABULARY}, got {spec.vocabulary}")
        if batch > 1 and not policy.batches(config, LayerWidths(spec.hidden, spec.q_heads, spec.head_dim)):
            raise ValueError(f"batch must be 1 for policy {policy.name}, got {batch}")
        if len(contexts) != spec.layers:
            raise ValueError(f"contexts must be one for each of {spec.layers} layers, got {len(contexts)}")
        self.config, self.spec, self.form, self.batch = config, spec, form, batch
        sizes = LayerSizes(
            spec.hidden, spec.ffn, tokens, keys, head=spec.head_dim if spec.head_dim < config.head_dim else 0,
            q_heads=spec.q_heads, qkv_bias=spec.qkv_bias, norm_epsilon=spec.norm_epsilon,
        )  # fmt: skip
        kind = WindowLayer if policy.windows else LayerCompiler if batch == 1 else BatchLayer
        first = kind(config, sizes, region, contexts[0], policy, form, cores)
        first.out = first.x
        self.layers = [first, *(first.another(context) for context in contexts[1:])]
        self.x, self.cosines, self.words = first.x, first.cosines, first.x_words
        n = self.width = config.dpe_inputs
        blocks = self.blocks = -(-spec.vocabulary // n)
        if blocks >= 1 << COUNT:
            raise ValueError(f"vocabulary must be at most {((1 << COUNT) - 1) * n}, got {spec.vocabulary}")
        allocate = region.allocate
        self.head = Matrix(allocate(matrix_words(blocks, self.words, n, cores)), blocks, self.words, cores=cores)
        self.embedding = 0 if spec.tied_embeddings else allocate(spec.vocabulary * self.words)
        self.norm, self.logits, self.ranks = allocate(self.words), allocate(2 * blocks * batch), allocate(2 * blocks)
        self.piece = min(config.vpe_rows, blocks)  # beats of the logits that are compared together
        self.pieces = -(-blocks // self.piece)
        self.best, self.choice = allocate(2 * self.pieces * batch), allocate(2 * batch)
        last = spec.vocabulary - (self.pieces - 1) * self.piece * n
        first.vectors.add(
            {
                "maximum": programs.row_maximum(spec.vocabulary, n),
                "ranks": programs.rank_of_maximum(self.piece * n, n),
                "last ranks": programs.rank_of_maximum(last, n),
                "best rank": programs.maximum_of_beats(self.pieces),
            }
        )
        self.vectors = first.vectors

    def images(self, weights: Weights) -> Iterator[dict[int, bytes]]:
        """Contents of the device memory by word address, layer after layer, then embedding and LM head."""
        n, spec = self.width, self.spec
        for number, layer in enumerate(self.layers):
            parameters = layer_weights(weights, spec, self.config, number, self.form)
            images = layer.images(parameters.matrices, parameters.norms, parameters.biases)
            branch = layer.policy.branch_weights(
                self.config, LayerWidths(spec.hidden, spec.q_heads, spec.head_dim), number
            )
            if layer.branch is not None and branch is not None:
                images |= layer.branch.images(branch)
            yield images
        embedding = weights.load("embedding")
        head = embedding if spec.tied_embeddings else weights.load("lm_head")
        yield {self.head.address: tiles(head, n, self.head.cores)}
        if not spec.tied_embeddings:
            yield {self.embedding: embedding.tobytes()}
        ranks = np.zeros(self.blocks * n, np.float32)
        ranks[: spec.vocabulary] = MAX_VOCABULARY - np.arange(spec.vocabulary)
        yield {self.norm: weights.load("final_norm").tobytes(), self.ranks: ranks.tobytes()}

    def embedding_words(self, token: int) -> list[Words]:
        """Words of device memory that hold the embedding of a token, in order."""
        if not 0 <= token < self.spec.vocabulary:
            raise ValueError(f"token must be 0 to {self.spec.vocabulary - 1}, got {token}")
        if not self.spec.tied_embeddings:
            return [(self.embedding + token * self.words, self.words)]
        tiles_of_token = self.head.tile_addresses(token // self.width, self.width)
        return [(tile + token % self.width, 1) for tile in tiles_of_token]

    def angles(self, cosines: np.ndarray, sines: np.ndarray) -> bytes:
        """Image of the RoPE angles of a step, of FP32 bit patterns (T, head_dim / 2) each."""
        pairs = [x.reshape(len(x), -1, self.width) for x in (cosines, sines)]
        return np.stack(pairs, axis=2).astype("<u4").tobytes()

    def step(self, streams: Sequence[StreamTokens], share: Share = ALONE) -> list[Command]:
        """Program of a step with the tokens of one or more streams, of the core with this share.

        The rows of the streams follow each other in `x`, and the logits of the answered ones in `logits`. Raises
        ValueError for more streams than `batch`.
        """
        if not 1 <= len(streams) <= self.batch:
            raise ValueError(f"streams of a step must be 1 to batch = {self.batch}, got {len(streams)}")
        p, copied = self.layers[0].products.program(share), list[CommandRef]()
        rows = list(chain.from_iterable(stream.rows for stream in streams))
        for token in share.part(len(rows)):
            target = self.x + token * self.words
            for source, count in rows[token]:
                copied = [p.builder.add("COPY", {"source": source, "target": target, "words": count})]
                target += count
        last = p.builder.meet(copied)
        if len(streams) == 1:
            (stream,) = streams
            layers = [layer.for_context(at) for layer, at in zip(self.layers, stream.contexts, strict=True)]
            last = add_layers(p, layers, len(rows), last, visual=stream.visual)
        else:
            last = self._add_batch(p, streams, last)
        ends = accumulate(len(stream.rows) for stream in streams)
        answered = [end - 1 for end, stream in zip(ends, streams, strict=True) if stream.answer]
        if answered:
            self._answer(p, answered, last)
        return p.complete()

    def _add_batch(self, p: Operands, streams: Sequence[StreamTokens], after: Sequence[CommandRef]) -> list[CommandRef]:
        """Append the commands of the layers for several streams, and return the last ones."""
        counts = [len(stream.rows) for stream in streams]
        firsts = list(accumulate(counts, initial=0))
        layers = list[BatchLayer]()
        for layer in self.layers:
            assert isinstance(layer, BatchLayer)  # of a machine with batch > 1
            layers.append(layer)
        rows = [
            [StreamRows(stream.contexts[n], firsts[at], counts[at]) for at, stream in enumerate(streams)]
            for n in range(len(layers))
        ]
        return add_batch_layers(p, layers, rows, after)

    def store(
        self,
        tokens: int,
        contexts: Sequence[Context],
        moves: Sequence[Sequence[Mapping[str, int]]],
        share: Share = ALONE,
    ) -> list[Command]:
        """Program that stores the tokens of the last step by their labels, for a policy with partitions.

        Before that, tokens move between clusters. `moves` : for each layer, fields of its MOVE commands
        """
        p = self.layers[0].products.program(share)
        layers = [layer.for_context(context) for layer, context in zip(self.layers, contexts, strict=True)]
        for layer, own in zip(layers, moves, strict=True):
            if own:
                layer.add_moves(p, own)
        if moves[0] and not any(moves[1:]):
            layers[1].open(p)  # the HCU learns of the moves when the context is opened after another one
        for layer in layers:
            layer.add_store(p, tokens)
        return p.complete()

    def _answer(self, p: Operands, tokens: Sequence[int], after: Sequence[CommandRef]) -> None:
        """Final norm, LM head, and the most probable token after each of `tokens`, which are rows of `x`."""
        layer, hidden, count = self.layers[0], self.x + tokens[0] * self.words, len(tokens)
        if count > 1:  # their rows are brought together
            hidden, copied = layer.attended, list[CommandRef]()
            for row in p.builder.share.part(count):
                fields = {"source": self.x + tokens[row] * self.words, "target": hidden + row * self.words}
                copied = [p.builder.add("COPY", {**fields, "words": self.words}, after=after)]
            after = p.builder.meet(copied)
        norm = p.builder.meet(layer.norm(p, self.norm, hidden, count, after))
        x = Activations([Columns(layer.normed, self.words, layer.normed_row)], norm)
        logits = p.builder.meet(
            layer.products.multiply(p, self.head, count, x, self.logits, wide=True, stride=2 * self.blocks)
        )
        for row in range(count) if p.builder.share.leads else ():
            self._choose(p, row, logits)

    def _choose(self, p: Operands, number: int, logits: Sequence[CommandRef]) -> None:
        """The most probable token of row `number` of the logits, on one core."""
        blocks, first, best = self.blocks, self.logits + 2 * number * self.blocks, self.best + 2 * number * self.pieces
        row = {"a": first, "a_wide": 1, "extra": 1}
        self.vectors.command(p, "maximum", logits, repeat=1, **row, a_beats=blocks, destination=Destination.NONE)
        whole, step = self.pieces - 1, self.piece
        ranked: list[CommandRef] = []
        for name, start, count, beats in (
            ("ranks", 0, whole, step),
            ("last ranks", whole * step, 1, blocks - whole * step),
        ):
            if count:
                ranked = self.vectors.command(
                    p, name, logits, repeat=count, a=first + 2 * start, a_stride=2 * step, a_beats=beats,
                    a_wide=1, b=self.ranks + 2 * start, b_stride=2 * step, b_beats=beats, b_wide=1, b_used=1,
                    out=best + 2 * start // step, out_stride=2, out_beats=1, out_wide=1, extra=1,
                )  # fmt: skip
        self.vectors.command(p, "best rank", ranked, repeat=1, a=best, a_beats=self.pieces, a_wide=1,
                             out=self.choice + 2 * number, out_beats=1, out_wide=1, extra=1)  # fmt: skip


def chosen_token(choice: bytes) -> int:
    """Token ID of the FP32 number at `LanguageModelCompiler.choice`."""
    rank = float(bf16.decode(np.frombuffer(choice[:4], "<u4"), FP32)[0])
    return round(MAX_VOCABULARY - rank)
