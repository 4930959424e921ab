"""The one configuration of the hardware: sizes of every unit, with presets `tiny`, `small` and `paper`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of the accelerator core. Frozen; derive another with `.replace()`.

    The `paper` preset is V-Rex (arXiv 2512.12284): section VI-A for the arrays, section VI-F for the memories.

    Raises
    ------
    TypeError, ValueError
        When a value has the wrong type or lies outside what the hardware can be built for; the message
        names the parameter, the value and what is valid.
    """

    # model shape
    kv_heads: int = 8  # KV heads of the language model
    q_heads: int = 32  # query heads; each group of q_heads / kv_heads shares one KV head
    head_dim: int = 128  # dimension of one head
    # LXE: matrix (DPE) and vector (VPE) engine
    dpe_trees: int = 64  # MAC trees N_h
    dpe_inputs: int = 64  # inputs of one tree N_w
    dpe_load_rows: int = 8  # rows of a weight tile that one beat loads
    dpe_accumulators: int = 64  # accumulators of one tree: activation rows that share a tile
    align_bits: int = 24  # alignment width W of the fused dot product
    vpe_lanes: int = 64  # vector lanes
    vpe_rows: int = 64  # rows of one FP32 number per lane that the VPE's memory holds
    lxe_memory_bytes: int = 384 * 1024  # on-chip memory of the LXE
    # DRE: HCU
    hash_bits: int = 32  # hash bits per key N_hp
    hcu_accumulators: int = 1  # XOR accumulators N_HCU-h
    hcu_lanes: int = 16  # bits each accumulator compares per cycle N_HCU-w
    max_candidates: int = 1024  # clusters whose hash bits are held on chip
    max_step_tokens: int = 32  # hash codes of the current step held on chip
    max_window_tokens: int = 4096  # largest recent window that can be configured
    # DRE: WTU
    wtu_lanes: int = 16  # lanes of one core N_WTU-w
    max_row_clusters: int = 4096  # longest row of scores, one score per cluster
    wtu_buckets: int = 16  # buckets per level
    # DRE: cluster table and KVMU
    max_clusters: int = 4096  # cluster numbers of one layer
    page_tokens: int = 32  # token slots of one page
    max_pages: int = 4096  # pages of one layer
    page_frames: int = 512  # pages of one layer that the device memory holds
    # multi-core
    cores: int = 8  # cores of the unit `multicore`
    # widths of indices
    token_bits: int = 32  # global token index
    cluster_bits: int = 16  # cluster index
    count_bits: int = 16  # tokens of one cluster; saturates

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{field.name} = {value!r}: must be an integer")
            if value <= 0:
                raise ValueError(f"{field.name} = {value}: must be at least 1")
        for name in (
            "dpe_inputs",
            "vpe_lanes",
            "vpe_rows",
            "hcu_accumulators",
            "max_candidates",
            "max_step_tokens",
            "wtu_lanes",
            "wtu_buckets",
            "page_tokens",
            "max_pages",
            "page_frames",
        ):
            self._check(name, is_power_of_two(getattr(self, name)), "a power of two")
        self._check("align_bits", 16 <= self.align_bits <= 30, "16 to 30")
        self._check("dpe_load_rows", self.dpe_trees % self.dpe_load_rows == 0, f"a divisor of {self.dpe_trees}")
        self._check("hash_bits", self.hash_bits <= 32, "1 to 32")
        self._check("hcu_lanes", self.hcu_lanes <= self.hash_bits, f"1 to hash_bits = {self.hash_bits}")
        self._check("max_candidates", self.max_candidates >= 2 * self.hcu_accumulators, "at least 2 * hcu_accumulators")
        self._check("max_candidates", self.max_candidates <= 1 << self.cluster_bits, "at most 2**cluster_bits")
        self._check("page_frames", self.page_frames <= self.max_pages, f"at most max_pages = {self.max_pages}")
        self._check("q_heads", self.q_heads % self.kv_heads == 0, f"a multiple of kv_heads = {self.kv_heads}")
        self._check("token_bits", self.token_bits <= 32, "1 to 32")
        self._check(
            "max_window_tokens", self.max_window_tokens < 1 << (self.token_bits - 1), "below 2**(token_bits - 1)"
        )

    def _check(self, name: str, ok: bool, valid: str) -> None:
        if not ok:
            raise ValueError(f"{name} = {getattr(self, name)}: must be {valid}")

    @classmethod
    def preset(cls, name: str) -> Config:
        """The configuration called `name`; raises `ValueError` that lists the valid names."""
        if name not in PRESETS:
            raise ValueError(f"unknown preset {name!r}: choose one of {', '.join(PRESETS)}")
        return PRESETS[name]

    def replace(self, **changes: Any) -> Config:
        """This configuration with some values changed; raises `ValueError` for an unknown name."""
        known = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in known:
                raise ValueError(f"unknown parameter {name!r}: choose one of {', '.join(known)}")
        return dataclasses.replace(self, **changes)

    def asdict(self) -> dict[str, int]:
        """Every parameter by name, as written into a generated unit's JSON."""
        return dataclasses.asdict(self)


def is_power_of_two(value: int) -> bool:
    return value > 0 and value & (value - 1) == 0


PRESETS = {
    "tiny": Config(
        kv_heads=2,
        q_heads=4,
        head_dim=8,
        dpe_trees=4,
        dpe_inputs=4,
        dpe_load_rows=2,
        dpe_accumulators=8,
        vpe_lanes=4,
        vpe_rows=16,
        lxe_memory_bytes=4 * 1024,
        hash_bits=16,
        hcu_lanes=8,
        max_candidates=16,
        max_step_tokens=8,
        max_window_tokens=64,
        wtu_lanes=4,
        max_row_clusters=64,
        max_clusters=64,
        page_tokens=4,
        max_pages=64,
        page_frames=16,
        cores=2,
    ),
    "small": Config(
        kv_heads=2,
        q_heads=4,
        head_dim=64,
        dpe_trees=16,
        dpe_inputs=16,
        dpe_load_rows=4,
        dpe_accumulators=32,
        vpe_lanes=16,
        vpe_rows=32,
        lxe_memory_bytes=32 * 1024,
        max_candidates=256,
        max_window_tokens=1024,
        wtu_lanes=8,
        max_row_clusters=512,
        max_clusters=512,
        page_tokens=16,
        max_pages=512,
        page_frames=128,
        cores=2,
    ),
    "paper": Config(),
}
