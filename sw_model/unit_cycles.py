"""Cycles of the accelerator's units for whole matrices and rows, from the system's hardware configuration.

Each function evaluates the `cycles` method of a hardware unit; the tests of the RTL hold those formulas exactly.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import ceil

from compiler import vector_programs as programs
from compiler.blocks import Product
from compiler.builder import Share
from compiler.products import Products, divide
from hw.config import Config
from hw.core.dma import BURST
from hw.core.vector.command import INSTRUCTION_BYTES
from hw.dre.hcu import HCU
from hw.dre.kvmu.records import BLOCK_BYTES, HEADER_BLOCKS
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.lxe.dpe import DPE
from hw.lxe.vpe import VPE
from sw_model.policies.base import BF16_BYTES
from sw_model.systems import Core
from sw_model.workloads import LLAMA3_8B

LEVELS = 2  # the WTU divides the bucket that crosses the threshold once
# SELECT of a cluster with one page: acceptance and check 2, a read of the cluster's and of the page's record 2 each,
# five other states, a reply 1, end 2 (`hw/dre/kvmu`, `sw_model.cycles.store_commands`)
SELECT_CYCLES = 14
# CLUSTER of a token: acceptance and check 2, the cluster's and the page's record 2 each, states 5, reply 1, end 2
PLACE_CYCLES = 14
PORT_CYCLES = 10  # of a read besides the latency of the memory: request 2, buffers 2 x 2, interconnect 2, word, use
SCORES = 4096  # scores of a long softmax row
EPSILON = 1e-6  # of a layer norm; the cycles do not depend on it
VECTORS = 8  # vectors that share one load of weights or angles
# elements and vector program of one row of each kind; other kinds take one cycle per beat
_PROGRAMS = {
    "softmax": lambda lanes: (SCORES, programs.softmax(SCORES, lanes, LLAMA3_8B.head_dim)),
    "norm": lambda lanes: (
        VECTORS * LLAMA3_8B.hidden,
        [
            *programs.rms_factor(LLAMA3_8B.hidden, lanes) * VECTORS,
            *programs.rms_scale(LLAMA3_8B.hidden, lanes, vectors=VECTORS),
        ],
    ),
    "layer_norm": lambda lanes: (
        LLAMA3_8B.vision.hidden,
        [
            *programs.layer_factors(LLAMA3_8B.vision.hidden, lanes, EPSILON),
            *programs.layer_scale(LLAMA3_8B.vision.hidden, lanes),
        ],
    ),
    "rope": lambda lanes: (
        VECTORS * LLAMA3_8B.head_dim, programs.rope(LLAMA3_8B.head_dim, lanes, vectors=VECTORS),
    ),
    "silu_mul": lambda lanes: (LLAMA3_8B.ffn, programs.gated(LLAMA3_8B.ffn, lanes)),
    # GELU takes the steps of SiLU with another constant
    "gelu": lambda lanes: (LLAMA3_8B.vision.ffn, programs.gated(LLAMA3_8B.vision.ffn, lanes)),
}  # fmt: skip


# vector programs of a row: number of instructions, and the share of the vector memory that a row has for each of them
_CODE = {
    "softmax": lambda lanes: [(programs.softmax(SCORES, lanes, LLAMA3_8B.head_dim), 1)],
    "exponentials": lambda lanes: [(programs.exponentials(SCORES, lanes, LLAMA3_8B.head_dim), 1)],
    "norm": lambda lanes: [(programs.rms_factor(lanes, lanes), 0), (programs.rms_scale(lanes, lanes), 2)],
    "layer_norm": lambda lanes: [
        (programs.layer_factors(lanes, lanes, EPSILON), 0), (programs.layer_scale(lanes, lanes), 3)
    ],
    "rope": lambda lanes: [(programs.rope(2 * lanes, lanes), 0)],
    "add": lambda lanes: [(programs.residual(lanes, lanes), 1)],
    "silu_mul": lambda lanes: [(programs.gated(lanes, lanes), 1)],
    "gelu": lambda lanes: [(programs.activation("gelu", lanes, lanes), 2)],
}  # fmt: skip


@lru_cache
def _dpe(config: Config) -> DPE:
    return DPE.from_config(config)


@lru_cache
def _products(config: Config, keeps: bool) -> Products:
    return Products(config, keeps=keeps)


@lru_cache
def _hcu(config: Config) -> HCU:
    return HCU.from_config(config)


@lru_cache
def _wtu(config: Config, design: str) -> WTU:
    return WTU.from_config(config, WtuDesign(design))


@lru_cache
def vpe_passes(kind: str, config: Config) -> float:
    """Cycles per beat of `vpe_lanes` elements: those of the vector program of `kind` on a long row, or 1."""
    if kind not in _PROGRAMS:
        return 1.0
    elements, program = _PROGRAMS[kind](config.vpe_lanes)
    return VPE.from_config(config).cycles(program) * config.vpe_lanes / elements


@lru_cache
def code_words(kind: str, elements: float, config: Config) -> int:
    """Words of instructions that a core reads for a row of `elements` elements; they are read again for each row.

    A row that exceeds its share of the vector memory takes several repetitions.
    """
    lanes, per_word = config.vpe_lanes, max(1, BF16_BYTES * config.dpe_inputs // INSTRUCTION_BYTES)
    words = 0
    for program, share in _CODE.get(kind, lambda lanes: [])(lanes):
        pieces = ceil(elements / lanes / (config.vpe_rows // share)) if share else 1
        words += pieces * ceil(len(program) / per_word)
    return words


def hcu_cycles(pairs: float, core: Core) -> int:
    """Cycles of `pairs` comparisons of a token's hash code with a cluster's, split over the retrieving cores."""
    config = core.config
    return ceil(pairs / (core.retrieving * config.hcu_accumulators)) * _hcu(config).slices


def wtu_cycles(rows: float, entries: float, passes: float, core: Core, levels: float = LEVELS) -> int:
    """Cycles of the selection in `rows` rows of `entries` scores, split over the WTUs of the retrieving cores.

    A row loads while the row before it is selected, except rows that do not fit the memory of the WTU. `passes` is a
    mean number of buckets per row; it can be a fraction, because the unit's formula is linear in it.
    """
    if not rows:
        return 0
    config, size = core.config, ceil(entries)
    unit = _wtu(config, core.wtu_design)
    is_long = size > config.wtu_pairs
    cycles_of = unit.long_row_cycles if is_long else unit.cycles
    first = cycles_of(size, 1, round(levels))
    further = cycles_of(size, 2, round(levels)) - first
    load = 0 if is_long else ceil(entries / config.wtu_lanes)
    return ceil(load + ceil(rows / core.retrieving) * (first + (passes - 1) * further))


def wtu_reads(entries: float, passes: float, core: Core, levels: float = LEVELS) -> int:
    """How often the selection reads a row of `entries` scores from memory; 0: the row fits the memory of the WTU."""
    if entries <= core.config.wtu_pairs:
        return 0
    return _wtu(core.config, core.wtu_design).packets(ceil(passes), round(levels))


def listed_share(entries: float, core: Core) -> float:
    """Share of the clusters of a row that are looked up after the WTU has begun with the next row.

    The last beats of the selection wait in its list memory.
    """
    config = core.config
    return min(1.0, _wtu(config, core.wtu_design).sizes.list_beats * config.wtu_lanes / entries) if entries else 1.0


def wtu_read_cycles(entries: float, latency: float, core: Core) -> float:
    """Cycles of one read of a row of `entries` scores and token counts.

    The buffers of scores and counts hold a burst each (`hw.core.processor.READ_ENGINES`), so that the next bursts are
    requested when the WTU has taken these; of short rows they hold several. The counts pass the port after the scores.
    `latency` : cycles from the request of a burst to its data
    """
    config = core.config
    words = ceil(entries / config.dpe_inputs)
    bursts, taken = ceil(words / BURST), entries * (2 / config.dpe_inputs + 1 / config.wtu_lanes)
    return bursts * (latency + PORT_CYCLES + min(BURST, words)) / max(1, BURST // words) + taken


def select_cycles(selects: float, clusters: float, latency: float, core: Core) -> float:
    """Cycles of the KVMU for `selects` of `clusters` clusters that are selected in ascending order, each with one page.

    A line of its cache has several records; the lines of the selected clusters and of their pages are read from memory,
    with `latency` cycles and those of the port. The selected clusters are assumed to be spread evenly.
    """
    records = max(1, 2 * core.config.dpe_inputs // BLOCK_BYTES)
    lines = 2 * clusters / records * (1 - (1 - min(1.0, selects / clusters)) ** records)
    return selects * SELECT_CYCLES + lines * (latency + PORT_CYCLES)


def place_cycles(tokens: float, latency: float, core: Core) -> float:
    """Cycles in which the retrieving cores give slots to tokens of all KV heads.

    latency  cycles of a read of a record: each token reads that of its cluster and of its page
    """
    return tokens * core.config.kv_heads * (PLACE_CYCLES + 2 * (latency + PORT_CYCLES)) / core.retrieving


def open_cycles(candidates: float, latency: float, core: Core) -> float:
    """Cycles that the KVMU takes after the tokens of a layer, before it selects for the next layer.

    The end of the old step writes its changes and then its number, each until memory has them. The new one reads the
    headers of store and context, then `candidates` records for the HCU, one in a cycle.
    """
    headers = 2 * ceil(HEADER_BLOCKS * BLOCK_BYTES / (2 * core.config.dpe_inputs))
    return (2 + headers + (candidates > 0)) * (latency + PORT_CYCLES) + candidates


def copy_cycles(tokens: float, latency: float, core: Core) -> float:
    """Cycles in which the retrieving cores copy the keys and values of new tokens to their slots.

    latency  cycles of a read of a key; two copies are in flight (`hw.core.dma`)
    """
    return tokens * core.config.kv_heads * (latency + PORT_CYCLES) / core.retrieving


def dpe_cycles(vectors: float, inputs: float, outputs: float, core: Core, times: float = 1) -> int:
    """Cycles of `times` products (vectors x inputs) by (inputs x outputs), weight tiles split over the cores.

    A weight tile serves at most as many vectors as a tree has accumulators; more vectors load the tiles again.
    """
    config = core.config
    unit = _dpe(config)
    tiles = ceil(times * ceil(inputs / config.dpe_inputs) * ceil(outputs / config.dpe_trees) / config.cores)
    loads = ceil(vectors / config.dpe_accumulators)
    return unit.cycles(tiles * loads, ceil(vectors / loads)) if tiles else 0


@dataclass(frozen=True)
class ProductLoads:
    """What the cores load for a product.

    Attributes
    ----------
    steps : largest number of steps of a core
    activations : bytes of activations that all cores load
    weights : how often each weight is loaded
    groups : groups of cores; each multiplies other vectors, and loads all weights
    piece_rows, piece_bytes, piece_tiles : of activations that do not fit the operand memory: rows of a piece, bytes of
        each, and tiles of weights that a core loads for a piece, on average. 0: all activations are loaded first
    """

    steps: int
    activations: int
    weights: float
    groups: int
    piece_rows: int = 0
    piece_bytes: int = 0
    piece_tiles: float = 0.0


@lru_cache(maxsize=256)
def product_loads(vectors: float, inputs: float, outputs: float, core: Core) -> ProductLoads:
    """Loads of a product, as `compiler.products.Products` and `compiler.vision_parts.multiply` plan them.

    A step loads weights into one half of the operand memory while the step before is multiplied. Activations that fit
    the operand memory are loaded once by every core; others are loaded in pieces, again for each group of result
    blocks. Blocks of more vectors than accumulators share the weights that stay in the operand memory and load all
    others, unless `core.weight_reads` is `once`: then they share all loads.
    """
    # where blocks share all loads of weights, none have to stay in the operand memory
    products, config, count = _products(core.config, core.weight_reads == "blocks"), core.config, ceil(vectors)
    width = config.dpe_inputs
    k_blocks, m_blocks = ceil(inputs / width), ceil(outputs / width)
    many = count > products.accumulators
    size, groups = divide(products, m_blocks, k_blocks, count, config.cores) if many else (config.cores, 1)
    steps, words, tiles = 0, 0, 0
    pieces = list[Product]()
    for group, number in product(range(groups), range(size)):
        part, tokens = Share(number, size).part(m_blocks), len(Share(group, groups).part(count))
        own = 0
        for length, times in products.blocks(tokens, k_blocks) if many else [(tokens, 1)]:
            plan = products.plan(part, k_blocks, length)
            own += times * len(plan)
            tiles += times * products.weight_tiles(plan)
            words += times * products.activation_words(plan, k_blocks, length)
            pieces += [] if products.fits(length, k_blocks) else times * products.pieces(plan)
        steps = max(steps, own)
    rows = sum(step.tokens for step in pieces)
    piece = (0, 0, 0.0)
    if pieces:
        row_bytes = 2 * width * round(sum(step.tokens * step.inputs for step in pieces) / rows)
        piece = max(step.tokens for step in pieces), row_bytes, tiles / len(pieces)
    if core.weight_reads == "once":
        return ProductLoads(steps, 2 * width * words, 1.0, 1, *piece)
    return ProductLoads(steps, 2 * width * words, tiles / (m_blocks * k_blocks), groups, *piece)


def vision_attention_bytes(patches: int, head_dim: int, core: Core) -> tuple[int, int]:
    """Bytes that a core reads and writes for a head of the vision tower, whose patches all attend to each other.

    Scores are FP32 and softmax weights BF16, both in device memory. Keys and values are loaded as weights are.
    """
    scores, blocks = patches**2, 1
    if core.weight_reads == "blocks":
        blocks = ceil(patches / core.config.dpe_accumulators)
    return (4 + BF16_BYTES) * scores + 2 * BF16_BYTES * blocks * patches * head_dim, (4 + BF16_BYTES) * scores


def vpe_cycles(elements: float, kind: str, core: Core) -> int:
    """Cycles of one kind of element-wise work on `elements` elements, split over the cores."""
    config = core.config
    return ceil(ceil(elements / (config.vpe_lanes * config.cores)) * vpe_passes(kind, config))


def attention_passes(rows: float, core: Core) -> tuple[int, int]:
    """How often the attention of one KV head with `rows` query rows reads its keys, and its values.

    A pass has as many rows as a MAC tree has accumulators: one result of a row for the keys, one of every word of the
    head for the values.
    """
    config = core.config
    words = ceil(config.head_dim / config.dpe_inputs)
    return ceil(rows / config.dpe_accumulators), ceil(rows / (config.dpe_accumulators // words))


def value_readers(passes: int, core: Core) -> tuple[tuple[int, ...], int]:
    """The cores that read the values of one stream, and the words of a value that each reads.

    The cores of a KV head split the words of a value, then the passes, as `compiler.retrieval_attention` does.
    """
    config = core.config
    words, team = ceil(config.head_dim / config.dpe_inputs), max(1, config.cores // config.kv_heads)
    splits = min(team // words, passes)
    readers = splits * words or min(team, words)
    heads = min(config.kv_heads, config.cores)
    return tuple(head * team + n for head in range(heads) for n in range(readers)), ceil(words / min(team, words))


def index_readers(entries: float, core: Core) -> tuple[int, ...]:
    """The cores that read the vectors of candidates: those of a KV head read chunks of half an operand memory each."""
    config = core.config
    words, team = ceil(config.head_dim / config.dpe_inputs), max(1, config.cores // config.kv_heads)
    chunk = _products(config, True).half // words * config.dpe_inputs
    heads, readers = min(config.kv_heads, config.cores), min(team, ceil(entries / chunk))
    return tuple(head * team + n for head in range(heads) for n in range(readers))


def attention_bytes(keys: int, core: Core) -> tuple[int, tuple[int, int], int]:
    """Bytes of device memory that a score takes: its product, its softmax (read, written), its product with the values.

    The matrix engine writes FP32 scores. The softmax reads them and writes BF16 weights, which the matrix engine reads.
    A row that exceeds the vector memory is read twice, for its maximum and for its exponentials, and the exponentials
    are read twice, for their sum and for the division.
    """
    fits = keys <= core.config.vpe_rows * core.config.vpe_lanes
    return 4, (4, 2) if fits else (2 * 4 + 2 * 2, 2 * 2), 2
