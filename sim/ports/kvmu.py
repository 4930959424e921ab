"""Golden configurations, store sizes and the port values of the KVMU."""

from __future__ import annotations

from typing import Any

from golden.kvmu import KvmuConfig
from golden.store import StoreSizes
from hw.dre.kvmu.kvmu import KVMU
from sim.ports import PREFIX

MAX_DESCRIPTOR_BYTES = 4096  # a port value of 0 stands for it


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
