"""The mapping between golden configurations and units: sizes in one direction, values of `cfg_*` ports in the other.

`*_config` and `cluster_rule` return the golden configuration with the sizes of a unit; `*_ports` return the values of a
unit's `cfg_*` ports for a golden configuration, as `sim.bench.run.simulate` takes them; `core_settings` returns them as
values of a core's registers.
"""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from typing import Any

from golden.clustering import ClusterRule
from golden.kvmu import KvmuConfig
from golden.kvpu import Kvpu
from golden.store import StoreSizes
from golden.wicsum import WtuConfig
from hw.dre.hcu import HCU
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.wtu.command import KeyOrder, SelectionMode

PREFIX = "cfg_"
# selection mode of the WTU -> weight and stop rule of the golden configuration
SELECTIONS = {
    SelectionMode.RATIO: ("score_x_tc", "ratio"),
    SelectionMode.BUDGET: ("tc", "budget"),
    SelectionMode.COUNT: ("one", "count"),
}
MAX_DESCRIPTOR_BYTES = 4096  # a port value of 0 stands for it
# registers that a core's driver leaves at 0, their value after reset
_OPTIONAL = ("hamming_inclusive", "first_match", "key_order", "max_descriptor_bytes", "retain_fetched")


def cluster_rule(unit: HCU, **changes: Any) -> ClusterRule:
    """The golden clustering rule with the limits of `unit`; `changes` are its other fields."""
    return ClusterRule(**{"max_candidates": unit.max_candidates, "max_clusters": 1 << unit.cluster_bits, **changes})


def hcu_ports(rule: ClusterRule) -> dict[str, int]:
    """Port values of the HCU."""
    names = ("hamming_threshold", "hamming_inclusive", "first_match", "window_tokens", "max_cluster_tokens")
    return {f"{PREFIX}{name}": int(getattr(rule, name)) for name in names}


def wtu_ports(config: WtuConfig, selection_target: int, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Port values of the WTU."""
    modes = {selection: mode for mode, selection in SELECTIONS.items()}
    if (mode := modes.get((config.weight, config.stop_rule))) is None:
        choices = ", ".join("/".join(selection) for selection in modes)
        raise ValueError(f"weight/stop_rule must be one of {choices}, got {config.weight}/{config.stop_rule}")
    return {
        f"{PREFIX}selection_mode": _number(mode),
        f"{PREFIX}key_order": _number(key_order),
        f"{PREFIX}selection_target": selection_target,
        f"{PREFIX}refine_levels": config.refine_levels,
    }


def kvmu_config(unit: KVMU, **settings: Any) -> KvmuConfig:
    """The golden configuration with the sizes of `unit`; `settings` are its other fields."""
    names = ("kv_heads", "head_dim", "page_tokens", "tags", "kv_bits")
    lanes = unit.sizes.layout.lanes
    return KvmuConfig(**{name: getattr(unit.sizes, name) for name in names}, lanes=lanes, **settings)


def store_sizes(unit: KVMU, **settings: int) -> StoreSizes:
    """The sizes of a store for `unit`; `settings` are the other fields of `StoreSizes`."""
    sizes = unit.sizes
    return StoreSizes(
        page_tokens=sizes.page_tokens,
        key_bytes=2 * sizes.head_dim * sizes.kv_heads,
        line_bytes=sizes.line // 8,
        **settings,
    )


def kvmu_ports(config: KvmuConfig, store_base: int) -> dict[str, int]:
    """Port values of the KVMU with a store at byte address `store_base`."""
    return {
        f"{PREFIX}store_base": store_base,
        f"{PREFIX}page_frames_base": config.page_frames_base,
        f"{PREFIX}staging_base": config.staging_base,
        f"{PREFIX}staging_head_pages": config.staging_head_pages,
        f"{PREFIX}max_resident_tokens": config.max_resident_tokens,
        f"{PREFIX}max_cluster_tokens": config.max_cluster_tokens,
        f"{PREFIX}window_tokens": config.window_tokens,
        f"{PREFIX}offload_to_storage": int(config.offload_to_storage),
        f"{PREFIX}max_descriptor_bytes": config.max_descriptor_bytes % MAX_DESCRIPTOR_BYTES,
    }


def kvpu_ports(golden: Kvpu, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Port values of the KV prediction unit: those of its three units, and whether fetched pages stay resident."""
    return {
        **kvmu_ports(golden.kvmu.config, golden.kvmu.base),
        **hcu_ports(golden.rule),
        **wtu_ports(golden.wtu, golden.target, key_order),
        f"{PREFIX}retain_fetched": int(golden.retain),
    }


def core_settings(golden: Kvpu, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Values of a core's registers for its KV prediction unit; optional settings only if they are not 0."""
    values = {name.removeprefix(PREFIX): value for name, value in kvpu_ports(golden, key_order).items()}
    return {name: value for name, value in values.items() if value or name not in _OPTIONAL}


def _number(member: Any) -> int:
    """Value of an enumeration member; type checkers take Amaranth's members for plain values."""
    return int(member.value)
