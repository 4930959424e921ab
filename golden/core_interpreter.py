"""Interpreter of core programs: executes commands one after the other, with the memory results of the core, bit exact.

It models the instruction set (hw/core/isa.py) without queues, waits or time. It executes the commands that move data
and compute: COPY, STORE, LOAD, GATHER, MULTIPLY, VECTOR and MEANS. The KV prediction unit is modelled by `kvpu`; its
results that other commands depend on (number of clusters, pages that each head attends to, clusters and slots of new
tokens) are set from outside in `clusters`, `pages` and `new_tokens`.

A command is any object with a `name` and a mapping `fields`; a missing field is 0. A memory word holds `inputs` BF16
numbers.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ml_dtypes import bfloat16

from golden import bf16
from golden.bf16 import FP32
from golden.dot import dot, to_bf16
from golden.mean_keys import MeanKeys
from golden.page_layout import PageLayout
from golden.store.layout import COUNT_BYTE
from golden.vpe import VectorEngine, widen
from golden.weight_formats import BF16_BITS, BY_NUMBER, WeightFormat
from util import checks

NUMBERS = 1 << 16  # modulus of row and tile numbers of the operand memories
LENGTHS = 1 << 24  # modulus of lengths
INSTRUCTION_BYTES = 16  # of the vector engine
SIZES = ("CONSTANT", "CLUSTERS", "TOKENS", "COUNTED")
LOADS = ("NOTHING", "ROWS", "WORDS", "ENCODED")
PRODUCTS = ("NOTHING", "RESULTS", "INPUTS")
FITS = ("ANY", "FITS", "EXCEEDS")
DESTINATIONS = ("MEMORY", "CODES", "NONE")


@dataclass(frozen=True)
class NewToken:
    """Result of clustering and storing a token.

    cluster, opened  its cluster; the token opened it
    count            tokens of the cluster after the token joined
    slots            for each KV head, first word of its slot, or of the block of its slot
    slot             number of its slot in the page
    """

    cluster: int
    opened: bool
    count: int
    slots: Sequence[int]
    slot: int = 0


class CoreInterpreter:
    """Operand memories, accumulators and vector engine of a core that works on two memories.

    Parameters
    ----------
    memories : device memory and the memory behind the host link; bytes are read and written by slices
    inputs : products of a tile, rows of a tile, and lanes of the vector engine
    weight_rows, activation_rows : rows of the two operand memories
    slots : accumulators of each row of a tile
    vector_rows : rows of the vector memory
    head_words : memory words of the key of one head
    align_bits : bits of an aligned product
    layout : of a head page with encoded keys and values; None: they are in BF16
    weight_bits : least bits of a stored weight; 16: LOAD ignores the format of encoded rows
    programs : by address (first word), a function (beats, elements of the last beat; 0: all) -> vector program

    Attributes
    ----------
    clusters : clusters of the open context ; counted : clusters of the context of the last COUNT
    pages : page lists: the pages that every KV head attends to as (first word, tokens), and those of the second lists
    new_tokens : tokens whose hash codes are not computed yet, in order; the codes of a piece take as many of them
    mean_keys_word : first word of the mean keys
    kept : whether the next tokens of the step are kept, those that STORE has passed are removed; None: all are
    reads, writes : for every unit, its accesses in order as (memory, first word, words)
    products : products of a tile with an activation row, that is, beats of the matrix engine

    Raises
    ------
    ValueError
        A row is outside an operand memory, or an accumulation continues a sum that was not started.
    """

    def __init__(
        self,
        memories: Sequence[MutableSequence[int]],
        *,
        inputs: int,
        weight_rows: int,
        activation_rows: int,
        slots: int,
        vector_rows: int,
        head_words: int,
        align_bits: int = 24,
        layout: PageLayout | None = None,
        weight_bits: int = BF16_BITS,
        programs: Mapping[int, Callable[[int, int], Sequence[Any]]],
    ):
        self.memories, self.inputs, self.align_bits = memories, checks.integer("inputs", inputs, 2), align_bits
        self.head_words, self.programs = head_words, programs
        self.formats = BY_NUMBER if weight_bits != BF16_BITS else {}
        self.layout = layout if layout is not None and layout.is_encoded else None
        self.weights = np.zeros((weight_rows, inputs), np.uint16)
        self.activations = np.zeros((activation_rows, inputs), np.uint16)
        self.sums: list[np.ndarray | None] = [None] * slots
        self.engine = VectorEngine(inputs, vector_rows)
        self.clusters, self.counted, self.pages = 0, 0, list[list[tuple[int, int]]]()
        self.new_tokens, self.mean_keys_word = list[NewToken](), 0
        self.piece = list[NewToken]()  # tokens of the last hash codes
        self.kept: deque[bool] | None = None
        self.key_word, self.value_word = 0, 0  # next token of STORE
        self.gather_position, self.step_word = 0, 0  # tokens that GATHER has read; word of the next token of the step
        self.reads: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.writes: defaultdict[str, list[tuple[int, int, int]]] = defaultdict(list)
        self.products = 0

    def execute(self, command: Any) -> None:
        """Execute one command. Commands of the sequencer and of the KV prediction unit have no effect."""
        run = getattr(self, f"_{command.name.lower()}", None)
        if run is not None:
            run(_Fields(command.fields))

    # memory

    def _read(self, unit: str, word_address: int, words: int, side: int = 0) -> bytes:
        size = 2 * self.inputs
        self.reads[unit].append((side, word_address, words))
        return bytes(self.memories[side][word_address * size : (word_address + words) * size])

    def _write(self, unit: str, word_address: int, data: bytes, side: int = 0) -> None:
        size = 2 * self.inputs
        self.writes[unit].append((side, word_address, len(data) // size))
        self.memories[side][size * word_address : size * word_address + len(data)] = data

    def _write_bytes(self, unit: str, address: int, data: bytes) -> None:
        """Write bytes of the device memory from byte `address` on, parts of words with strobes."""
        size = 2 * self.inputs
        self.writes[unit].append((0, address // size, -(-(address + len(data)) // size) - address // size))
        self.memories[0][address : address + len(data)] = data

    def _rows(self, unit: str, word_address: int, words: int) -> np.ndarray:
        """Read words as BF16 bit patterns (words, inputs)."""
        return np.frombuffer(self._read(unit, word_address, words), "<u2").reshape(words, self.inputs)

    # lengths

    def _length(self, f: "_Fields") -> int:
        known = {"CONSTANT": 0, "CLUSTERS": self.clusters, "COUNTED": self.counted}.get(SIZES[f.length])
        return ((self.past(f.head) if known is None else known) + f.extra) % LENGTHS

    def past(self, head: int) -> int:
        """Tokens of a page list, from before the step."""
        return sum(tokens for _, tokens in self.pages[head])

    def _blocks(self, elements: int) -> int:
        return -(-elements // self.inputs)

    # commands

    def _copy(self, f: "_Fields") -> None:
        self._write("copy", f.target, self._read("copy", f.source, f.words, f.from_host), f.to_host)

    def _store(self, f: "_Fields") -> None:
        words = self.head_words
        if not f.resume:
            self.key_word, self.value_word = f.keys, f.values
        for new in self.piece:
            while self.kept is not None and not self.kept.popleft():
                self._next_token(f)
            for head, slot in enumerate(new.slots):
                for value, source in enumerate((self.key_word, self.value_word)):
                    data = self._read("copy", source + head * words, words)
                    if self.layout is None:
                        self._write("copy", slot + value * words, data)
                    else:
                        first = slot * 2 * self.inputs + self.layout.offset(new.slot % self.layout.block_tokens, value)
                        stored = self.layout.encode(np.frombuffer(data, "<u2").reshape(1, -1))
                        self._write_bytes("copy", first, stored.tobytes())
            self._next_token(f)

    def _next_token(self, f: "_Fields") -> None:
        self.key_word, self.value_word = self.key_word + f.key_stride, self.value_word + f.value_stride

    def _means(self, f: "_Fields") -> None:
        """Update the mean keys of the clusters of a piece; without a piece nothing changes."""
        if not self.piece:
            return
        words = self.head_words * len(self.piece[0].slots)
        touched, target = np.unique([new.cluster for new in self.piece], return_inverse=True)
        opened = {new.cluster for new in self.piece if new.opened}
        means = MeanKeys(words * self.inputs)
        old = [self._rows("vector", self.mean_keys_word + int(cluster) * words, words) for cluster in touched]
        means.means = np.reshape(old, (len(touched), -1)).view(bfloat16)
        means.means[[cluster in opened for cluster in touched.tolist()]] = 0
        keys = [self._rows("vector", f.keys + token * f.stride, words) for token in range(len(self.piece))]
        counts = dict(zip(target.tolist(), (new.count for new in self.piece), strict=True))
        means.update(
            np.reshape(keys, (len(keys), -1)).view(bfloat16), target, np.array([counts[n] for n in range(len(touched))])
        )
        for cluster, mean in zip(touched.tolist(), means.means, strict=True):
            self._write("vector", self.mean_keys_word + cluster * words, mean.tobytes())

    def _load(self, f: "_Fields") -> None:
        rows, beats, vary, length = f.rows, f.beats, LOADS[f.limit], self._length(f)
        if vary == "ROWS":
            rows = _remaining(length, f.block * self.inputs, rows)
        if vary == "WORDS":
            beats = _remaining(self._blocks(length), f.block, beats)
        if form := self._format(f):  # rows of whole tiles
            tiles = beats // self.inputs
            words = tiles * form.tile_words(self.inputs)
            read = [self._rows("load", f.source + row * f.stride, words) for row in range(rows if tiles else 0)]
            data = [form.decode_tiles(encoded) for encoded in read]
        else:
            data = [self._rows("load", f.source + row * f.stride, beats) for row in range(rows)]
        self._write_operands(self.activations if f.activations else self.weights, data, f.target, f.step, f.tiled)

    def _count(self, f: "_Fields") -> None:
        word = self._read("load", f.header, 1)
        at = COUNT_BYTE % len(word)
        self.counted = int.from_bytes(word[at : at + 4], "little") % LENGTHS

    def _format(self, f: "_Fields") -> WeightFormat | None:
        """Format of the rows of a LOAD; None: BF16."""
        return self.formats.get(f.block & 3) if LOADS[f.limit] == "ENCODED" else None

    def _write_operands(self, memory: np.ndarray, data: Sequence[np.ndarray], to: int, step: int, tiled: int) -> None:
        """Write rows of words to an operand memory: `step` rows apart, or as tiles, tiles of one row first."""
        n = self.inputs
        for row, words in enumerate(data):
            for beat, codes in enumerate(words):
                at = to + row // n * n * len(words) + n * beat + row % n if tiled else to + row * step + beat
                if at % NUMBERS >= len(memory):
                    raise ValueError(f"row must be below {len(memory)}, got {at % NUMBERS}")
                memory[at % NUMBERS] = codes

    def _gather(self, f: "_Fields") -> None:
        n, words = self.inputs, self.head_words
        beats = f.words if 0 < f.words < words else words
        if f.restart:
            self.gather_position, self.step_word = 0, f.step_word + f.word
        past = [(page, slot) for page, tokens in self.pages[f.head] for slot in range(tokens)]
        data, total = list[np.ndarray](), len(past) + f.tokens
        skipped = _remaining(total, self.gather_position, f.skip * n)
        self.step_word += f.stride * max(0, skipped - max(0, len(past) - self.gather_position))
        self.gather_position += skipped
        end = self.gather_position + _remaining(total, self.gather_position, f.blocks * n)
        while self.gather_position < end:
            if self.gather_position < len(past):
                rows = self._past_rows(past[self.gather_position : end], f, beats)
            else:
                rows = [self._rows("load", self.step_word, beats)]
                self.step_word += f.stride
            data += rows
            self.gather_position += len(rows)
        if f.values:  # a block of tokens becomes columns; missing tokens are zero
            stacked = np.zeros((-(-len(data) // n) * n, beats * n), np.uint16)
            stacked[: len(data)] = np.reshape(data, (len(data), beats * n))
            transposed = stacked.reshape(-1, n, beats * n).swapaxes(1, 2).reshape(-1, 1, n)
            self._write_operands(self.weights, list(transposed), f.target, 1, 0)
        else:
            self._write_operands(self.weights, data, f.target, 0, 1)

    def _past_rows(self, past: Sequence[tuple[int, int]], f: "_Fields", beats: int) -> list[np.ndarray]:
        """Keys or values of the first of these tokens, or of the first ones that are encoded in the same block."""
        (page, slot), words = past[0], self.head_words
        if self.layout is None:
            return [self._rows("load", page + (2 * slot + f.values) * words + f.word, beats)]
        size, block = 2 * self.inputs, self.layout.block_tokens
        same = (n for n, (other, its) in enumerate(past) if other != page or its // block != slot // block)
        count = next(same, len(past))
        first = self.layout.offset(slot, f.values)
        end = first + count * self.layout.key_bytes
        read = self._read("load", page + first // size, -(-end // size) - first // size)
        stored = np.frombuffer(read, np.uint8)[first % size :][: end - first]
        decoded = self.layout.decode(stored.reshape(count, -1)).reshape(count, words, self.inputs)
        return list(decoded[:, f.word : f.word + beats])

    def _multiply(self, f: "_Fields") -> None:
        n, vary, total = self.inputs, PRODUCTS[f.limit], self._blocks(self._length(f))
        m_blocks, k_blocks, first, last = f.m_blocks, f.k_blocks, f.first, f.last
        if vary == "RESULTS":
            m_blocks = _remaining(total, f.block, m_blocks)
        if vary == "INPUTS":
            k_blocks = _remaining(total, f.block, k_blocks)
            first, last = f.block == 0, f.block + f.k_blocks >= total
        if not k_blocks:
            return
        for mb in range(m_blocks):
            base = mb * f.vectors if f.spread else 0
            for kb in range(k_blocks):
                tile = (f.weights + mb * f.m_stride + kb * f.k_stride) % NUMBERS * n
                weights = self.weights[tile : tile + n]
                if len(weights) < n:
                    raise ValueError(f"tile must be below {len(self.weights) // n}, got {tile // n}")
                for t in range(f.vectors):
                    row, slot = (f.activations + t * f.x_stride) % NUMBERS + kb, (base + t) % len(self.sums)
                    if row >= len(self.activations):
                        raise ValueError(f"row must be below {len(self.activations)}, got {row}")
                    self.products += 1
                    product, so_far = dot(self.activations[row], weights, self.align_bits), self.sums[slot]
                    if not (first and kb == 0):
                        if so_far is None:
                            raise ValueError(f"sum {slot} must be started before it is continued")
                        product = bf16.add(so_far, product, FP32)
                    self.sums[slot] = product
                    if last and kb == k_blocks - 1:
                        self.sums[slot] = None
                        y = product.astype("<u4") if f.wide else to_bf16(product).astype("<u2")
                        self._write("matrix", f.out + t * f.stride + mb * (1 + f.wide), y.tobytes())

    def _vector(self, f: "_Fields") -> None:
        """Run a vector program on every row. Hash codes are discarded; they start the next piece of the step."""
        if DESTINATIONS[f.destination] == "CODES":
            self.piece, self.new_tokens = self.new_tokens[: f.repeat], self.new_tokens[f.repeat :]
        length = self._length(f)
        padded_elements = self._blocks(length + f.pad) * self.inputs  # elements of a row with its trailing zeros
        fits = padded_elements <= self.engine.rows * self.inputs
        meets = {"ANY": True, "FITS": fits, "EXCEEDS": not fits}[FITS[f.fit]]
        for row in range(f.repeat if length and meets else 0):
            elements = length + (row // f.group if f.group else 0)
            beats = self._blocks(elements)
            self._read("code", f.code, -(-f.instructions * INSTRUCTION_BYTES // (2 * self.inputs)))
            stream = [self._input(f.a + row * f.a_stride, f.a_beats or beats, f.a_wide) for _ in range(1 + f.a_again)]
            if f.b_used:
                stream.append(self._input(f.b + row * f.b_stride, f.b_beats or beats, f.b_wide))
            out = self.engine.run(self.programs[f.code](beats, elements % self.inputs), np.concatenate(stream))
            if DESTINATIONS[f.destination] == "MEMORY":
                codes = out.reshape(-1)
                if not f.out_beats:
                    codes = np.concatenate([codes[:elements], np.zeros(padded_elements - elements, np.uint32)])
                codes = codes if f.out_wide else (codes >> 16).astype("<u2")
                self._write("vector", f.out + row * f.out_stride, codes.tobytes())

    def _input(self, word_address: int, beats: int, wide: int) -> np.ndarray:
        """Read beats as FP32 bit patterns (beats, lanes); BF16 words are widened."""
        if wide:
            return np.frombuffer(self._read("vector", word_address, 2 * beats), "<u4").reshape(beats, self.inputs)
        return widen(self._rows("vector", word_address, beats))


class _Fields:
    """Fields of a command as attributes; missing fields are 0."""

    def __init__(self, fields: Mapping[str, int]):
        self.fields = fields

    def __getattr__(self, name: str) -> int:
        return self.fields.get(name, 0)


def _remaining(total: int, start: int, limit: int) -> int:
    """Number of items of `total` from number `start` on, at most `limit`."""
    return min(max(total - start % LENGTHS, 0), limit % LENGTHS)
