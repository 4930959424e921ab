"""System presets: the paper's arithmetic, sources, and physics checks."""

import tomllib

import pytest

from hw.config import Config
from sw_model.assumptions import Assumptions
from sw_model.model import run
from sw_model.preset_file import PRESETS
from sw_model.request import Request
from sw_model.systems import SIZES, load_system, parse_system, preset_names
from sw_model.workloads import LLAMA3_8B, coin_session, frame, stream


@pytest.mark.parametrize("name", preset_names())
def test_every_number_has_a_source(name):
    system = load_system(name)
    parts = [p for p in (system.core, system.gpu, system.device_memory, system.link, system.power) if p]
    numbers = sum(isinstance(v, int | float) and v != 0 for p in parts for v in vars(p).values())
    assert numbers <= len(system.sources)
    assert all(system.sources.values())


@pytest.mark.parametrize("name", preset_names())
def test_preset_repeats_no_size_of_the_hardware_configuration(name):
    """`[core]` names a preset of `hw.Config` and sets only what differs from it."""
    table = tomllib.loads((PRESETS / f"{name}.toml").read_text()).get("core", {})
    if table:
        config = Config.preset(table.pop("config")["value"])
        sizes = {key: entry["value"] for key, entry in table.items() if key in SIZES}
        assert set(table) - set(sizes) == {"clock_mhz"}
        assert all(getattr(config, key) != value for key, value in sizes.items())
        assert load_system(name).core.config == config.replace(**sizes)


def test_peak_matches_table_1():
    assert load_system("vrex8").peak_tflops == pytest.approx(53.248)
    assert load_system("vrex48").peak_tflops == pytest.approx(319.488)


@pytest.mark.parametrize("name", ["vrex8", "vrex48"])
def test_plus_differs_in_formats_and_residency_only(name):
    """Memory, link, clock, number of cores and powers of units are the published ones."""
    published, plus = load_system(name), load_system(f"{name}-plus")
    assert plus.core.config == published.core.config.replace(kv_bits=4, weight_bits=4, page_frames=1 << 20)
    assert (plus.memory, plus.device_memory, plus.link) == (published.memory, published.device_memory, published.link)
    assert plus.core.clock_mhz == published.core.clock_mhz
    codecs = {"kv_codec_mw": 0.0, "weight_codec_mw": 0.0}
    assert vars(plus.power) | codecs == vars(published.power) and plus.power.kv_codec_mw > 0
    assert plus.assumptions == Assumptions(kv_bits=4.5, weight_bits=4.5, residency="whole", retained_hit=0)
    assert published.assumptions == Assumptions()


def test_assumptions_of_a_system_are_defaults():
    """A run and a request take them; a change of a request replaces one."""
    plus, load = load_system("vrex8-plus"), frame(40_000)
    own = run(plus, "resv", load)
    assert own.total_s == run(plus, "resv", load, assume=plus.assumptions).total_s
    assert own.total_s < run(plus, "resv", load, assume=Assumptions()).total_s
    assert Request("vrex8-plus").run().total_s == own.total_s
    changed = Request("vrex8-plus", changes={"assume.residency": "recent"})
    assert changed.assumptions() == Assumptions(kv_bits=4.5, weight_bits=4.5, retained_hit=0)
    assert changed.machine().replace(link={"nominal_gbps": 8}).assume == plus.assume


def test_energy_of_codecs():
    """The codecs of all cores work while the device memory transfers and draw the idle share of their power else."""
    result = Request("vrex8-plus", tokens=1000).run()
    busy, power = result.utilisation["DRAM"], load_system("vrex8-plus").power
    watts = 8 * (power.kv_codec_mw + power.weight_codec_mw) / 1e3
    assert result.energy_j["codecs"] == pytest.approx(watts * result.total_s * (busy + 0.255 * (1 - busy)))
    assert "codecs" not in Request("vrex8", tokens=1000).run().energy_j


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kv_bits": {"value": 17, "source": "x"}}, r"mine: \[assume\]: kv_bits must be finite and between 1 and 16"),
        ({"wheels": {"value": 4, "source": "x"}}, r"mine: \[assume\]: .*wheels"),
        ({"kv_bits": 4}, "mine: assume.kv_bits must have a value and a source, got 4"),
    ],
)
def test_assumptions_of_a_system_are_checked(table, message):
    data = tomllib.loads((PRESETS / "vrex8.toml").read_text()) | {"assume": table}
    with pytest.raises(ValueError, match=message):
        parse_system(data, "mine")


def test_model_sizes_match_the_paper():
    assert LLAMA3_8B.params == pytest.approx(8.03e9, rel=0.001)
    assert LLAMA3_8B.kv_bytes_per_token == 131072
    assert LLAMA3_8B.vision.params == pytest.approx(0.33e9, rel=0.05)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("link", {"nominal_gbps": 0}, "link.nominal_gbps"),
        ("link", {"nominal_gbps": 500}, "must be at most device_memory.peak_gbps = 204.8, got 500"),
        ("link", {"generation": 9}, "generation"),
        ("link", {"lanes": 3}, "lanes"),
        ("device_memory", {"peak_gbps": -1}, "peak_gbps"),
        ("device_memory", {"capacity_gb": float("nan")}, "capacity_gb"),
        ("device_memory", {"capacity_gb": 0.001}, "core.lxe_memory_bytes must be at most 125000"),
        ("core", {"cores": 0}, "cores"),
        ("core", {"cores": 2.5}, "core.cores.*2.5"),
        (
            "core",
            {"wheels": 4},
            "key of system: core must be one of cores, .*, weight_reads, got 'wheels'",
        ),
        ("core", {"wtu_lanes": 12}, "core.wtu_lanes.*12.*power of two|core.wtu_lanes must be a power of two"),
        ("core", {"wtu_design": "magic"}, "core.wtu_design must be one of sweep, histogram, got 'magic'"),
        ("core", {"retrieval": "two"}, "core.retrieval must be one of all, one, got 'two'"),
        ("core", {"weight_reads": "twice"}, "core.weight_reads must be one of once, blocks, got 'twice'"),
        ("core", {"clock_mhz": "800"}, "core.clock_mhz must be a finite number, got '800'"),
        ("power", {"board_w": -35}, "board_w"),
        ("link", {"behind": "tape"}, "link.behind must be one of ssd, cpu, got 'tape'"),
        (
            "wheels",
            {"count": 4},
            "table of system V-Rex8 must be one of core, device_memory, link, power, got 'wheels'",
        ),
    ],
)
def test_unphysical_systems_are_rejected(part, change, message):
    with pytest.raises(ValueError, match=message):
        load_system("vrex8").replace(**{part: change})


def test_gemm_efficiency_is_at_most_one():
    with pytest.raises(ValueError, match=r"gpu.gemm_efficiency must be at most 1, got 1.5"):
        load_system("a100").replace(gpu={"gemm_efficiency": 1.5})


def test_unknown_kind_of_system_is_rejected():
    with pytest.raises(ValueError, match="kind must be one of vrex, gpu, got 'tpu'"):
        parse_system({"name": "x", "kind": "tpu", "memory": "m"})


@pytest.mark.parametrize(("name", "other"), [("vrex8", "gpu"), ("agx-orin", "core")])
def test_table_of_the_other_kind_is_rejected(name, other):
    data = tomllib.loads((PRESETS / f"{name}.toml").read_text())
    parse_system(data)
    data = tomllib.loads((PRESETS / f"{name}.toml").read_text()) | {other: {}}
    with pytest.raises(ValueError, match=rf"system: table of kind {data['kind']} must be one of .*, got \[{other}\]"):
        parse_system(data)


def test_number_without_a_source_is_rejected():
    bare = {"name": "x", "kind": "vrex", "memory": "m"}
    bare |= {part: {"peak_gbps": 3} for part in ("core", "device_memory", "link", "power")}
    with pytest.raises(ValueError, match=r"system: core\.peak_gbps must have a value and a source, got 3"):
        parse_system(bare)


def test_phases_of_workloads():
    session = coin_session(1000)
    assert sum(p.count * p.frames for p in session.phases) == 26
    assert sum(p.count * p.new_tokens for p in session.phases) == 26 * 10 + 25 + 39
    long = stream(1000)
    assert sum(p.count for p in long.phases) == 1000 and len(long.phases) == 32
    with pytest.raises(ValueError, match="batch"):
        frame(1000, batch=0)
    with pytest.raises(ValueError, match="kv_tokens must be at least 0, got -1"):
        frame(-1)
    with pytest.raises(ValueError, match="frames must be at least 1, got 0"):
        stream(0)
