"""The configuration: presets, derivation, and one-line complaints."""

import dataclasses

import pytest

from hw.config import PRESETS, Config


def test_paper_preset_is_the_paper():
    paper = Config.preset("paper")
    assert (paper.dpe_trees, paper.dpe_inputs, paper.vpe_lanes) == (64, 64, 64)
    assert (paper.hcu_accumulators, paper.hcu_lanes, paper.wtu_lanes) == (1, 16, 16)
    # section VI-F: 20.125 KB of DRE memory = scores and counts of a row, cluster bits, bits of the current step
    scores_counts = paper.max_row_clusters * (16 + paper.count_bits)
    bits = scores_counts + (paper.max_candidates + paper.max_step_tokens) * paper.hash_bits
    assert bits / 8 / 1024 == 20.125


def test_replace_derives_and_leaves_the_original():
    changed = PRESETS["tiny"].replace(hcu_lanes=4)
    assert changed.hcu_lanes == 4 and PRESETS["tiny"].hcu_lanes == 8
    assert changed.asdict() == {**PRESETS["tiny"].asdict(), "hcu_lanes": 4}


def test_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PRESETS["tiny"].hcu_lanes = 4


def test_unknown_names():
    with pytest.raises(ValueError, match=r"unknown preset 'huge': choose one of tiny, small, paper"):
        Config.preset("huge")
    with pytest.raises(ValueError, match=r"unknown parameter 'lanes'"):
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
        {"q_heads": 12},
        {"max_window_tokens": 1 << 31},
        {"token_bits": 40},
    ],
    ids=str,
)
def test_impossible_values(change):
    name, value = next(iter(change.items()))
    with pytest.raises(ValueError, match=f"^{name} = {value}: must be"):
        Config().replace(**change)


@pytest.mark.parametrize("value", [1.5, "16", True, None])
def test_wrong_types(value):
    with pytest.raises(TypeError, match="hcu_lanes"):
        Config().replace(hcu_lanes=value)
