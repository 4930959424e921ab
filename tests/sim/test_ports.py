"""Settings of units against golden configurations: every port has a value, and every name agrees."""

from dataclasses import replace

import numpy as np
import pytest

from golden.clustering import ClusterRule
from golden.kvpu import Kvpu
from golden.selection import MOSAIC, RESV, TOP_K
from hw.config import Config
from hw.core.core import Core
from hw.dre.kvpu import KVPU
from hw.dre.wtu.command import KeyOrder, SelectionMode
from sim.ports import PREFIX
from sim.ports.hcu import cluster_rule, hcu_ports
from sim.ports.kvmu import kvmu_config, kvmu_ports
from sim.ports.kvpu import core_settings, kvpu_ports
from sim.ports.wtu import wtu_ports

CONFIG = Config.preset("tiny")


def settings_of(unit):
    return {name for name in unit.signature.members if name.startswith(PREFIX)}


@pytest.fixture
def unit():
    return KVPU.from_config(CONFIG)


@pytest.fixture
def golden(unit):
    bases = {"page_frames_base": 5, "staging_base": 8}
    pages = kvmu_config(unit.kvmu, **bases, staging_head_pages=9, max_resident_tokens=10)
    rule = cluster_rule(unit.hcu, hamming_threshold=11, window_tokens=0)
    return Kvpu(rule, pages, np.zeros(256, np.uint8), 128, RESV, 12, retain=True)


def test_every_port_of_every_unit_has_a_value(unit, golden):
    assert hcu_ports(golden.rule).keys() == settings_of(unit.hcu)
    assert wtu_ports(RESV, 1).keys() == settings_of(unit.wtu)
    assert kvmu_ports(golden.kvmu.config, golden.kvmu.base).keys() == settings_of(unit.kvmu)
    assert kvpu_ports(golden).keys() == settings_of(unit)


def test_values_of_kvpu_ports(golden):
    assert kvpu_ports(golden, KeyOrder.SIGNED) == {
        "cfg_hamming_threshold": 11,
        "cfg_hamming_inclusive": 0,
        "cfg_first_match": 0,
        "cfg_window_tokens": 0,
        "cfg_max_cluster_tokens": 65535,
        "cfg_selection_mode": SelectionMode.RATIO.value,
        "cfg_key_order": KeyOrder.SIGNED.value,
        "cfg_selection_target": 12,
        "cfg_refine_levels": 1,
        "cfg_store_base": 128,
        "cfg_page_frames_base": 5,
        "cfg_staging_base": 8,
        "cfg_staging_head_pages": 9,
        "cfg_max_resident_tokens": 10,
        "cfg_offload_to_storage": 0,
        "cfg_max_descriptor_bytes": 0,
        "cfg_retain_fetched": 1,
    }


@pytest.mark.parametrize(
    "config, mode", [(RESV, SelectionMode.RATIO), (MOSAIC, SelectionMode.BUDGET), (TOP_K, SelectionMode.COUNT)]
)
def test_selection_modes(config, mode):
    assert wtu_ports(config, 1)["cfg_selection_mode"] == mode.value


def test_rejects_selection_without_mode():
    with pytest.raises(ValueError, match=r"weight/stop_rule must be one of .*one/count, got score_x_tc/count"):
        wtu_ports(replace(RESV, stop_rule="count"), 1)


def test_cluster_rule_has_limits_of_unit(unit):
    assert cluster_rule(unit.hcu) == ClusterRule(
        max_candidates=unit.hcu.max_candidates, max_clusters=1 << unit.hcu.cluster_bits
    )


def test_core_settings_are_registers(golden):
    registers = {register.name for register in Core.from_config(CONFIG).map.registers}
    settings = core_settings(golden)
    assert settings.keys() <= registers
    assert "retain_fetched" in settings and "key_order" not in settings  # the latter is 0, its value after reset
