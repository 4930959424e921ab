"""Products with matrices whose result blocks have a gap or whose tiles are those of several cores in turn."""

import numpy as np
import pytest

from compiler import memory as layout
from compiler.blocks import Activations, Columns
from compiler.builder import Share
from compiler.machine.interpreter import FastInterpreter
from compiler.memory import (
    GAP_BYTES,
    INTERLEAVE_BYTES,
    block_words,
    gap_tiles,
    matrix_words,
    row_words,
    tile_numbers,
    tiles,
)
from compiler.products import Matrix, Products, divide
from compiler.vision_parts import multiply
from golden import bf16
from golden.dot import matmul
from hw.config import Config
from hw.lxe.operand_memory import OperandMemory
from sw_model.memory.dram import decode
from sw_model.memory.spec import load_memory

CONFIG = Config.preset("small")
WORD = 2 * CONFIG.dpe_inputs
X, OUT, SIZE = 1 << 14, 3 << 13, 1 << 20  # word addresses of activations and results, bytes of the memory


def run(program, memory):
    operands = OperandMemory.from_config(CONFIG)
    machine = FastInterpreter(
        [memory, bytearray(64)], inputs=CONFIG.dpe_inputs, weight_rows=operands.weight_rows,
        activation_rows=operands.activation_rows, slots=CONFIG.dpe_accumulators, vector_rows=CONFIG.vpe_rows,
        head_words=CONFIG.head_dim // CONFIG.dpe_inputs, align_bits=CONFIG.align_bits, programs={},
    )  # fmt: skip
    for command in program:
        if command.name != "BARRIER":
            machine.execute(command)


@pytest.mark.parametrize(("cores", "stored"), [(1, 1), (3, 1), (3, 3), (1, 4), (7, 3)])
@pytest.mark.parametrize(
    ("m_blocks", "k_blocks", "tokens"), [(5, 32, 2), (5, 32, 10), (4, 40, 10), (7, 64, 3), (3, 6, 4)]
)
def test_product_equals_golden(m_blocks, k_blocks, tokens, cores, stored, rng):
    """Results of all cores; 32 and 64 blocks have a gap, and ten tokens take several pieces of the activations.

    `stored` : cores for which the tiles are stored in turn. Any other number of cores has the same results.
    """
    n, products = CONFIG.dpe_inputs, Products(CONFIG)
    weights = bf16.encode(rng.standard_normal((m_blocks * n, k_blocks * n)))
    x = bf16.encode(rng.standard_normal((tokens, k_blocks * n)))
    memory = bytearray(SIZE)
    image = tiles(weights, n, stored)
    assert len(image) == matrix_words(m_blocks, k_blocks, n, stored) * WORD <= X * WORD
    memory[: len(image)] = image
    memory[X * WORD : X * WORD + x.nbytes] = x.tobytes()
    for core in range(cores):
        p = products.program(Share(core, cores))
        share = Share(core, cores).balanced_with(m_blocks)  # the share of a second product that runs meanwhile
        matrix, columns = Matrix(0, m_blocks, k_blocks, cores=stored), Activations([Columns(X, k_blocks)], [])
        products.multiply(p, matrix, tokens, columns, OUT, wide=True, share=share)
        run(p.builder.commands, memory)
    result = np.frombuffer(bytes(memory), np.uint32, tokens * m_blocks * n, OUT * WORD).reshape(tokens, -1)
    np.testing.assert_array_equal(result, matmul(x, weights, n, CONFIG.align_bits))


@pytest.mark.parametrize(("cores", "stored"), [(3, 3), (1, 2), (7, 3)])
@pytest.mark.parametrize(("m_blocks", "k_blocks", "tokens"), [(6, 32, 10), (7, 32, 3)])
def test_product_of_a_matrix_with_gaps_equals_golden(m_blocks, k_blocks, tokens, cores, stored, rng, monkeypatch):
    n = CONFIG.dpe_inputs
    monkeypatch.setattr(layout, "BANKS_BYTES", stored * k_blocks * n * WORD)
    monkeypatch.setattr(layout, "BANK_GAP_BYTES", n * n * 2 * 3)
    assert gap_tiles(m_blocks, k_blocks, n, stored) == 3
    test_product_equals_golden(m_blocks, k_blocks, tokens, cores, stored, rng)


@pytest.mark.parametrize("k_blocks", [6, 24])  # the weights of a result block fit a half of the operand memory, or not
@pytest.mark.parametrize(("m_blocks", "tokens", "cores"), [(3, 40, 1), (3, 40, 5), (2, 37, 7), (5, 3, 8), (1, 40, 48)])
def test_product_of_divided_tokens_equals_golden(m_blocks, tokens, cores, k_blocks, rng):
    """Every result of every token is written by one core; memory behind and between the rows keeps its content."""
    n, products, stride = CONFIG.dpe_inputs, Products(CONFIG), 2 * m_blocks + 1
    weights = bf16.encode(rng.standard_normal((m_blocks * n, k_blocks * n)))
    x = bf16.encode(rng.standard_normal((tokens, k_blocks * n)))
    memory, image, written = bytearray(b"\xff" * SIZE), tiles(weights, n), []
    memory[: len(image)] = image
    memory[X * WORD : X * WORD + x.nbytes] = x.tobytes()
    for core in range(cores):
        p = products.program(Share(core, cores))
        multiply(products, p, Matrix(0, m_blocks, k_blocks), tokens, [Columns(X, k_blocks)], [], OUT, stride=stride)
        run(p.builder.commands, memory)
        written += [
            (command.fields["out"] + vector * stride + 2 * m)
            for command in p.builder.commands
            if command.name == "MULTIPLY" and command.fields["last"]
            for vector in range(command.fields["vectors"])
            for m in range(command.fields["m_blocks"])
        ]
    assert sorted(written) == [OUT + token * stride + 2 * m for token in range(tokens) for m in range(m_blocks)]
    size = (tokens + 1) * stride * n
    result = np.frombuffer(bytes(memory), "<u4", size // 2, OUT * WORD).reshape(-1, stride * n // 2)
    np.testing.assert_array_equal(result[:tokens, : m_blocks * n], matmul(x, weights, n, CONFIG.align_bits))
    assert (result[:tokens, m_blocks * n :] == 0xFFFFFFFF).all() and (result[tokens:] == 0xFFFFFFFF).all()


@pytest.mark.parametrize("cores", [1, 5, 8, 48])
@pytest.mark.parametrize(("m_blocks", "k_blocks"), [(16, 17), (16, 65), (64, 17), (1, 1)])  # of SigLIP-L, and one tile
def test_grid_of_cores_is_at_least_as_fast_as_result_blocks_alone(m_blocks, k_blocks, cores):
    products, tokens = Products(Config.preset("paper")), 576
    size, groups = divide(products, m_blocks, k_blocks, tokens, cores)
    assert size * groups <= cores
    words = products.loaded_words(-(-m_blocks // size), k_blocks, -(-tokens // groups))
    alone = products.loaded_words(-(-m_blocks // cores), k_blocks, tokens)
    assert words <= alone and (words < alone / 1.8 if (m_blocks, cores) == (16, 48) else True)


def test_weights_of_a_result_block_are_loaded_once_for_all_tokens():
    """Both halves of the operand memory keep them; each block of tokens is loaded for each result block."""
    products, m_blocks, k_blocks, tokens = Products(CONFIG), 3, 24, 40
    assert products.half < k_blocks <= 2 * products.half and products.block(tokens, k_blocks) == tokens
    p = products.program()
    products.multiply(p, Matrix(0, m_blocks, k_blocks), tokens, Activations([Columns(X, k_blocks)], []), OUT, wide=True)
    loads = [command.fields for command in p.builder.commands if command.name == "LOAD"]
    weights = [fields["source"] for fields in loads if not fields.get("activations")]
    words = sum(fields["rows"] * fields["beats"] for fields in loads if fields.get("activations"))
    assert weights == [address[0] for m in range(m_blocks) for address in [Matrix(0, 3, 24).tile_addresses(m, 16)]]
    assert words == m_blocks * tokens * k_blocks
    assert products.loaded_words(m_blocks, k_blocks, tokens) == words + m_blocks * k_blocks * products.width


def test_result_blocks_at_the_interleave_have_a_gap():
    n = CONFIG.dpe_inputs
    whole = INTERLEAVE_BYTES // (WORD * n)  # tiles of a block that is as large as the interleave
    assert block_words(whole, n) * WORD == INTERLEAVE_BYTES + GAP_BYTES
    assert block_words(whole - 1, n) == (whole - 1) * n
    image = np.frombuffer(tiles(np.ones((2 * n, whole * n), np.uint16), n), np.uint16)
    first, second = image.reshape(2, -1)
    assert np.array_equal(first, second) and first.sum() == whole * n * n
    assert not first[whole * n * n :].any()


@pytest.mark.parametrize("cores", [1, 2, 5, 8, 48])
@pytest.mark.parametrize(("m_blocks", "k_blocks"), [(64, 3), (224, 2), (7, 4), (1, 1), (96, 1)])
def test_cores_read_neighbouring_tiles_at_the_same_time(m_blocks, k_blocks, cores):
    """In the n-th step every core reads a tile; those of all cores that have one follow each other, without a gap."""
    parts = [Share(core, cores).part(m_blocks) for core in range(cores)]
    end = 0
    for block in range(max(len(part) for part in parts)):
        for k in range(k_blocks):
            tile = [
                tile_numbers(part[block], m_blocks, k_blocks, CONFIG.dpe_inputs, cores)[k]
                for part in parts
                if block < len(part)
            ]
            assert tile == list(range(end, end + len(tile)))
            end += len(tile)
    assert end == m_blocks * k_blocks


def test_long_result_blocks_begin_in_all_banks():
    """The n-th blocks of eight cores, in the feed-forward part of Llama-3-8B on V-Rex8; others have no gap."""
    memory, n, cores = load_memory("lpddr5-6400-256b"), 64, 8
    m_blocks, k_blocks = 4096 // n, 14336 // n
    gap = gap_tiles(m_blocks, k_blocks, n, cores)
    starts = [tile_numbers(block, m_blocks, k_blocks, n, cores).start for block in range(m_blocks // cores)]
    for numbers, banks in ((starts, 4), (range(0, m_blocks * k_blocks, cores * k_blocks), 1)):
        places = decode(memory, "A", np.array(numbers) * n * 128 // memory.burst_bytes)
        assert len(set(places["ba"].tolist())) == banks
    last = tile_numbers(m_blocks - 1, m_blocks, k_blocks, n, cores)
    assert last[-1] < matrix_words(m_blocks, k_blocks, n, cores) / n <= last[-1] + 1 + gap
    assert not gap_tiles(2 * m_blocks, 4096 // n, n, cores)  # shorter
    assert not gap_tiles(m_blocks, k_blocks - 1, n, cores)
    assert not gap_tiles(m_blocks, k_blocks, n, 48)  # most cores have one block


def test_pieces_of_rows_use_all_channels():
    """The pieces of 256 bytes at the same place of consecutive rows are in different channels of V-Rex8's memory."""
    memory, words = load_memory("lpddr5-6400-256b"), 2 * 512  # FP32 scores of 32,768 clusters
    rows = np.arange(memory.channels)
    for n, stride in ((64, row_words(words, 64)), (64, words)):
        channels = set(decode(memory, "A", rows * stride * 2 * n // memory.burst_bytes)["ch"].tolist())
        assert len(channels) == (memory.channels if stride > words else 1)
    assert row_words(words - 2, 64) == words - 2
    middle = 14336 // 64  # words of a row between the products of Llama-3-8B's feed-forward part
    channels = decode(memory, "A", rows * row_words(middle, 64) * 128 // memory.burst_bytes)["ch"]
    assert len(set(channels.tolist())) == memory.channels


def test_activations_come_before_the_weights_of_the_next_step():
    """A MULTIPLY waits for no load of a later step, and the weights of the next step do not wait for the MULTIPLY."""
    products = Products(Config.preset("paper"))
    p = products.program(Share(0, 8))
    products.multiply(p, Matrix(0, 64, 224), 10, Activations([Columns(1 << 20, 224)], []), 1 << 21, wide=True)
    order = ["x" if command.fields.get("activations") == 1 else command.name for command in p.builder.commands]
    assert order[:9] == ["LOAD", "LOAD", "x", "MULTIPLY", "x", "LOAD", "MULTIPLY", "x", "LOAD"]


def test_groups_of_result_blocks_have_the_same_size():
    """Activations are loaded in pieces. The accumulators hold six result blocks of ten tokens; eight are four twice.

    On V-Rex8 six and two take 561,273 cycles, four twice 544,857 (cycle model).
    """
    products = Products(Config.preset("paper"))
    steps = products.plan(range(8), 224, 10)
    groups = {(step.results, step.inputs) for step in steps}
    assert groups == {(4, 3), (4, 2)}
    assert sum(step.results * step.inputs for step in steps) == 8 * 224
