"""The hardware configuration: presets, derived configurations, effect of every field, error messages."""

import dataclasses
from functools import cache

import pytest

from hw.config import PRESETS, Config
from hw.core.processor import Processor
from hw.emit import to_rtlil
from hw.registry import UNITS

TINY = PRESETS["tiny"]
# a valid value other than that of `tiny` for each field, and a unit whose RTL depends on the field
CHANGES = {
    "kv_heads": (4, "kvmu"),
    "head_dim": (16, "kvmu"),
    "dpe_trees": (8, "dpe"),
    "dpe_inputs": (8, "dot_tree"),
    "dpe_load_rows": (4, "operand_memory"),
    "dpe_accumulators": (16, "operand_memory"),
    "align_bits": (20, "dot_tree"),
    "vpe_lanes": (8, "vpe"),
    "vpe_rows": (32, "vpe"),
    "lxe_memory_bytes": (8 * 1024, "operand_memory"),
    "hash_bits": (32, "hcu"),
    "hcu_accumulators": (2, "hcu"),
    "hcu_lanes": (4, "hcu"),
    "max_candidates": (32, "hcu"),
    "max_step_tokens": (16, "hcu"),
    "max_window_tokens": (128, "hcu"),
    "wtu_lanes": (8, "wtu"),
    "wtu_pairs": (16, "wtu"),
    "max_row_clusters": (128, "wtu"),
    "wtu_buckets": (32, "wtu"),
    "max_clusters": (128, "kvmu"),
    "page_tokens": (8, "kvmu"),
    "max_pages": (128, "kvmu"),
    "page_frames": (32, "kvmu"),
    "max_contexts": (32, "kvmu"),
    "cache_lines": (8, "kvmu"),
    "dre_counters": (0, "hcu"),
    "cores": (3, "multicore"),
    "device_ports": (1, "multicore"),
    "token_bits": (24, "hcu"),
    "cluster_bits": (12, "hcu"),
    "count_bits": (12, "hcu"),
    "kv_bits": (4, "kvmu"),
    "weight_bits": (4, "load_unit"),
}


@cache  # the RTL at TINY serves many fields
def rtl(unit, config):
    """Ports and RTL of `unit`, or of the core's load unit; only the ports of `multicore`, whose RTL takes 10 s."""
    component = Processor(config).load_unit if unit == "load_unit" else UNITS[unit].build(config)
    return component.signature, "" if unit == "multicore" else to_rtlil(component, unit)


def test_paper_preset_has_the_published_sizes():
    paper = Config.preset("paper")
    assert (paper.dpe_trees, paper.dpe_inputs, paper.vpe_lanes) == (64, 64, 64)
    assert (paper.hcu_accumulators, paper.hcu_lanes, paper.wtu_lanes) == (1, 16, 16)
    # section VI-F: 20.125 KB of DRE memory = scores and counts of 4096 clusters, cluster bits, bits of the current step
    scores_counts = 4096 * (16 + paper.count_bits)
    bits = scores_counts + (paper.max_candidates + paper.max_step_tokens) * paper.hash_bits
    assert bits / 8 / 1024 == 20.125
    # the WTU holds fewer pairs of score and count, and reads longer rows again from memory
    assert (paper.wtu_pairs, paper.max_row_clusters) == (2048, 32768)


def test_replace_does_not_change_the_original():
    changed = TINY.replace(hcu_lanes=4)
    assert changed.hcu_lanes == 4 and TINY.hcu_lanes == 8
    assert changed.asdict() == {**TINY.asdict(), "hcu_lanes": 4}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Config)])
def test_every_field_changes_the_rtl(field):
    value, unit = CHANGES[field]
    assert getattr(TINY, field) != value
    assert rtl(unit, TINY.replace(**{field: value})) != rtl(unit, TINY)


def test_fields_are_read_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TINY.hcu_lanes = 4


def test_unknown_preset_or_parameter_raises_value_error():
    with pytest.raises(ValueError, match="preset must be one of tiny, small, paper, got 'huge'"):
        Config.preset("huge")
    with pytest.raises(ValueError, match=r"parameter must be one of kv_heads, .*, got 'lanes'"):
        Config().replace(lanes=3)


@pytest.mark.parametrize(
    "change",
    [
        {"hash_bits": 0},
        {"hash_bits": -4},
        {"hash_bits": 33},
        {"hcu_lanes": 33},
        {"max_candidates": 1000},
        {"align_bits": 15},
        {"align_bits": 31},
        {"dpe_load_rows": 48},
        {"max_candidates": 1 << 17},
        {"max_window_tokens": 1 << 31},
        {"token_bits": 40},
        {"kv_bits": 5},
        {"kv_bits": 8, "dpe_inputs": 2},
    ],
    ids=str,
)
def test_invalid_value_raises_value_error(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"^{name} must be .*, got {value}$"):
        Config().replace(**change)


@pytest.mark.parametrize("value", [1.5, "16", True, None])
def test_wrong_type_raises_type_error(value):
    with pytest.raises(TypeError, match=f"^hcu_lanes must be an integer, got {value!r}$"):
        Config().replace(hcu_lanes=value)
