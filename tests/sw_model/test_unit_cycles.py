"""Unit cycles of the system model: the hardware units' own formulas, with the sizes of the system's configuration."""

from dataclasses import replace

import numpy as np
import pytest

from compiler import vector_programs as programs
from compiler import vision_parts
from compiler.blocks import Activations, Columns
from compiler.builder import Share
from compiler.products import Matrix, Products
from hw.config import PRESETS, Config
from hw.dre.hcu import HCU
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.lxe.dpe import DPE
from hw.lxe.vpe import VPE
from sw_model.core_ports import Reads, product_s, read_latency_s, streams_bytes_per_s
from sw_model.request import Request
from sw_model.systems import SIZES, Core, load_system
from sw_model.unit_cycles import (
    PORT_CYCLES,
    ProductLoads,
    code_words,
    copy_cycles,
    dpe_cycles,
    hcu_cycles,
    index_readers,
    open_cycles,
    place_cycles,
    product_loads,
    select_cycles,
    value_readers,
    vpe_cycles,
    wtu_cycles,
    wtu_read_cycles,
    wtu_reads,
)

CORE = load_system("vrex8").core
CONFIG = CORE.config
HISTOGRAM = replace(CORE, wtu_design="histogram")


@pytest.mark.parametrize("design", WtuDesign)
def test_wtu_rows_load_while_the_row_before_is_selected(design):
    wtu, core = WTU.from_config(CONFIG, design), replace(CORE, wtu_design=design.value)
    for clusters, passes in ((16, 3), (1250, 12), (2048, 2)):
        expected = -(-clusters // CONFIG.wtu_lanes) + 8 * wtu.cycles(clusters, passes, 2)
        assert wtu_cycles(8 * CONFIG.cores, clusters, passes, core) == expected
    assert wtu_cycles(0, 4096, 2, core) == 0


@pytest.mark.parametrize("design", WtuDesign)
def test_long_rows_do_not_overlap(design):
    config = CONFIG
    wtu, core = WTU.from_config(config, design), replace(CORE, wtu_design=design.value)
    for clusters, passes in ((2049, 1), (32768, 7)):
        assert wtu_cycles(8 * config.cores, clusters, passes, core) == 8 * wtu.long_row_cycles(clusters, passes, 2)


def test_one_core_retrieves_for_all():
    one = replace(CORE, retrieval="one")
    assert wtu_cycles(320, 1000, 10, one) / wtu_cycles(320, 1000, 10, CORE) == pytest.approx(CONFIG.cores, rel=0.01)
    assert hcu_cycles(6400, one) == CONFIG.cores * hcu_cycles(6400, CORE)
    for cycles in (place_cycles, copy_cycles):
        assert cycles(10, 54, one) == CONFIG.cores * cycles(10, 54, CORE)
    wtu = WTU.from_config(CONFIG, WtuDesign.HISTOGRAM)
    assert wtu_reads(2048, 9, HISTOGRAM, 4) == 0 and wtu_reads(2049, 9, HISTOGRAM, 4) == wtu.packets(9, 4)


def test_tables_are_opened_in_the_cycles_of_the_model_of_a_core():
    """OFFLOAD and OPEN of a stream after 10,000 tokens, one of eight on V-Rex48, take 621 cycles or more."""
    core = load_system("vrex48").core
    latency = read_latency_s("hbm2e-3024-5120b", 128) * 800e6
    assert open_cycles(10_000 / 32, latency, core) == pytest.approx(621, rel=0.15)
    assert open_cycles(0, latency, core) == pytest.approx(4 * (latency + PORT_CYCLES))


def test_reads_of_a_long_row_and_look_ups_take_the_cycles_of_the_model_of_a_core():
    """40 rows of 10,000 tokens, of which 64 are selected, take 476,297 cycles in the idle memory of V-Rex8; all of
    1,000 tokens, in rows that fit the memory of the WTU, 40,489, and 508 of them 43,886 (`sw_model.cycles`)."""
    latency = [read_latency_s("lpddr5-6400-256b", size) * 800e6 for size in (2048, 128)]
    rows = 40 * wtu_reads(10_000, 16, HISTOGRAM, 4) * wtu_read_cycles(10_000, latency[0], CORE)
    assert rows + select_cycles(64, 10_000, latency[1], CORE) == pytest.approx(476_297, rel=0.15)
    selected = 40 * WTU.from_config(CONFIG).cycles(1000, 16, 4)
    assert select_cycles(1000, 1000, latency[1], CORE) == pytest.approx(40_489, rel=0.15)
    assert selected + select_cycles(508, 1000, latency[1], CORE) == pytest.approx(43_886, rel=0.2)


def test_lines_of_the_selected_clusters():
    """The mean number of lines of four records that some of 4,000 records are in, without cycles of the port."""
    random, clusters = np.random.default_rng(1), 4000
    for count in (40, 400, 2000):
        lines = np.mean([len(set(random.choice(clusters, count, replace=False) // 4)) for _ in range(20)])
        more, less = (select_cycles(count, clusters, latency, CORE) for latency in (100, 0))
        assert (more - less) / 100 == pytest.approx(2 * lines, rel=0.02)


def test_hcu_comparisons_take_the_cycles_of_one_token():
    assert hcu_cycles(128 * CONFIG.cores, CORE) == HCU.from_config(CONFIG).token_cycles(0, 128)
    slow = CORE.replace({"hcu_lanes": 8}, "core")
    assert hcu_cycles(128 * CONFIG.cores, slow) == 2 * hcu_cycles(128 * CONFIG.cores, CORE)


def test_dpe_tiles_are_split_over_the_cores():
    dpe = DPE.from_config(CONFIG)
    assert dpe_cycles(10, 4096, 6144, CORE) == dpe.cycles(64 * 96 // 8, 10)
    assert dpe_cycles(576, 1024, 1024, CORE) == dpe.cycles(9 * 16 * 16 // 8, 64)  # nine loads of each tile


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(10, 4096, 4096), (10, 14336, 4096), (1, 14336, 128)])
def test_steps_and_activations_of_a_product_are_those_of_its_program(tokens, inputs, outputs):
    """MULTIPLY commands of a core, and words that the LOADs of all cores read into the activations."""
    products, n, multiplied, words = Products(CONFIG), CONFIG.dpe_inputs, 0, 0
    for number in range(CONFIG.cores):
        p, x = products.program(Share(number, CONFIG.cores)), Activations([Columns(0, inputs // n)], [])
        products.multiply(p, Matrix(0, outputs // n, inputs // n), tokens, x, 0, wide=True)
        fields = [command.fields for command in p.builder.commands if command.fields.get("activations") == 1]
        words += sum(f["rows"] * f["beats"] for f in fields if "m_blocks" not in f)
        multiplied = max(multiplied, sum(command.name == "MULTIPLY" for command in p.builder.commands))
    loads = product_loads(tokens, inputs, outputs, CORE)
    assert replace(loads, piece_rows=0, piece_bytes=0, piece_tiles=0.0) == ProductLoads(multiplied, words * 2 * n, 1, 1)
    if products.fits(tokens, inputs // n):
        assert loads.piece_rows == 0
    else:  # pieces of all tokens, one before each group of tiles
        pieces = inputs * outputs / n**2 / loads.piece_tiles
        assert loads.piece_rows == tokens
        assert loads.piece_rows * loads.piece_bytes * pieces == pytest.approx(loads.activations, rel=0.2)


@pytest.mark.parametrize(
    ("patches", "inputs", "outputs", "kept"),
    [(576, 1024, 1024, True), (576, 4096, 1024, False), (130, 768, 1024, False)],
)
def test_loads_of_many_vectors_are_those_of_the_program_of_a_vision_tower(patches, inputs, outputs, kept):
    """`kept` : the weights of a result block stay in the operand memory."""
    products, n, multiplied, words, tiles = Products(CONFIG), CONFIG.dpe_inputs, 0, 0, 0
    for number in range(CONFIG.cores):
        p, columns = products.program(Share(number, CONFIG.cores)), [Columns(0, inputs // n)]
        vision_parts.multiply(products, p, Matrix(0, outputs // n, inputs // n), patches, columns, [], 0)
        for command in p.builder.commands:
            fields = command.fields
            if command.name == "MULTIPLY":
                multiplied += number == 0
            elif fields.get("activations"):
                words += fields["rows"] * fields["beats"]
            elif command.name == "LOAD":
                tiles += fields["rows"] * fields["beats"] // n
    blocks = product_loads(patches, inputs, outputs, replace(CORE, weight_reads="blocks"))
    assert (blocks.steps, blocks.activations) == (multiplied, words * 2 * n)
    assert blocks.weights == tiles / (inputs * outputs / n**2)
    assert blocks.weights == 1 if kept else blocks.weights > 2
    assert product_loads(patches, inputs, outputs, CORE).weights == 1


def test_vpe_rows_take_the_cycles_of_their_programs():
    vpe, lanes = VPE.from_config(CONFIG), CONFIG.vpe_lanes
    for n in (4096, 8192):
        cycles = vpe_cycles(n * CONFIG.cores, "softmax", CORE)
        assert cycles >= vpe.cycles(programs.softmax(n, lanes, CONFIG.head_dim)) > 3 * n // lanes
    assert vpe_cycles(14336 * CONFIG.cores, "silu_mul", CORE) == vpe.cycles(programs.gated(14336, lanes))


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_of_the_hardware_is_a_core(preset):
    core = Core(Config.preset(preset), 800.0)
    fast = core.replace({"cores": 4 * core.config.cores}, "core")
    for cycles in (
        dpe_cycles(10, 1024, 1024, core) / dpe_cycles(10, 1024, 1024, fast),
        hcu_cycles(10_000, core) / hcu_cycles(10_000, fast),
        wtu_cycles(320, 1000, 10, core) / wtu_cycles(320, 1000, 10, fast),
        vpe_cycles(10**6, "softmax", core) / vpe_cycles(10**6, "softmax", fast),
    ):
        assert 3 < cycles <= 4


# another value of each size that alone is a valid configuration
OTHER = {
    "cores": 16, "dpe_trees": 32, "dpe_inputs": 32, "dpe_load_rows": 4, "dpe_accumulators": 4, "vpe_lanes": 32,
    "lxe_memory_bytes": 1 << 20, "hash_bits": 16, "hcu_accumulators": 2, "hcu_lanes": 8,
    "wtu_lanes": 8, "wtu_buckets": 32, "page_frames": 1 << 20, "device_ports": 1, "kv_bits": 4, "weight_bits": 4,
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_size_can_be_set_by_its_name_in_the_configuration(name):
    plain = Request(tokens=40_000, changes={"core.wtu_design": "histogram"})
    request = plain.replace(changes={f"core.{name}": OTHER[name]})
    assert getattr(request.machine().core.config, name) == OTHER[name] != getattr(CONFIG, name)
    assert request.machine().core.config == CONFIG.replace(**{name: OTHER[name]})
    # the codecs of a core: how many bits the formulas count is an assumption; page frames bound `whole` memory only
    assert (request.run() == plain.run()) == (name in ("kv_bits", "weight_bits", "page_frames"))


def test_weights_take_the_time_of_the_bytes_and_of_the_cores_with_more_blocks():
    """V-Rex8 divides the 96 result blocks evenly; of 65 blocks, one core reads the last one alone."""
    system = load_system("vrex8")
    peak, block = system.device_memory.peak_gbps * 1e9, 64 * 4096 * 2
    loads = ProductLoads(1, 0, 1.0, 1)
    even = product_s(system, 1, 4096, (4096, 1024, 1024), loads)
    assert 96 * block / peak < even < 1.15 * 96 * block / peak
    assert product_s(system, 1, 4096, (1024, 4096, 1024), loads) == even  # the order does not matter
    one = product_s(system, 1, 4096, (64 * 65,), loads) - product_s(system, 1, 4096, (64 * 64,), loads)
    assert one > 2.5 * block / peak  # a core reads less than a word in a cycle


def test_activations_in_pieces_take_time_of_a_product():
    system = load_system("vrex48")
    loads = product_loads(10, 14336, 4096, system.core)
    assert loads.piece_rows == 10
    alone = product_s(system, 10, 14336, (4096,), replace(loads, piece_rows=0))
    peak = system.device_memory.peak_gbps * 1e9
    assert product_s(system, 10, 14336, (4096,), loads) > alone + loads.activations / peak


def test_readers_of_values_and_candidates_are_those_of_the_program():
    """V-Rex48: six cores share a KV head, with two words of a value and two passes. V-Rex8: one core for each head."""
    core = load_system("vrex48").core
    readers, words = value_readers(2, core)
    assert words == 1 and readers[:5] == (0, 1, 2, 3, 6) and len(readers) == 32
    assert len(value_readers(1, core)[0]) == 16
    assert value_readers(2, CORE) == (tuple(range(8)), 2)
    assert len(index_readers(300, core)) == 8 < len(index_readers(1000, core)) <= 48


def test_vector_instructions_are_read_for_each_row():
    """A word has eight instructions; the factors of an RMS norm have nine, and half a vector memory scales 2,048."""
    assert code_words("softmax", 576, CONFIG) == code_words("rope", 4096, CONFIG) == 1
    assert code_words("norm", 4096, CONFIG) == 2 + 2
    assert code_words("silu_mul", 14336, CONFIG) == 4
    assert code_words("op", 4096, CONFIG) == 0


def test_cores_that_read_neighbouring_tiles_use_more_of_the_device_memory():
    for name in ("vrex8", "vrex48"):
        system = load_system(name)
        cores, peak = tuple(range(system.core.config.cores)), system.device_memory.peak_gbps * 1e9
        apart, tiles = (streams_bytes_per_s(system, cores, Reads(2048, 64, tile=tile)) / peak for tile in (0, 8192))
        assert apart < tiles < 0.93, name


def test_ports_limit_the_rate_of_reads():
    """One core reads at most a word in a cycle, and half of its buffer at a time takes more than half the rate away."""
    system = load_system("vrex8")
    word_rate = 128 * system.core.clock_mhz * 1e6
    whole, half = (streams_bytes_per_s(system, (0,), Reads(2048, words)) for words in (64, 32))
    assert half < 0.7 * whole < whole < word_rate


def test_words_can_be_shorter_than_bursts_of_the_memory():
    changes = dict.fromkeys(("core.dpe_inputs", "core.dpe_trees", "core.vpe_lanes", "core.wtu_lanes"), 8)
    assert Request(tokens=2000, changes=changes).run().total_s > Request(tokens=2000).run().total_s
