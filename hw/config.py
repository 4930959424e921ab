"""Configuration of the hardware: the sizes of every unit, with the presets `tiny`, `small` and `paper`."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Config:
    """Sizes of one accelerator core, and the number of cores. Instances are frozen; `replace` derives another one.

    The comment of each field gives its meaning, its unit and the paper's symbol in brackets. The preset `paper` is the
    design point of V-Rex (arXiv 2512.12284): section VI-A for the arrays, section VI-F for the memories.

    Raises
    ------
    TypeError
        When a value is not an integer.
    ValueError
        When a value is outside the range that the hardware supports. The message gives the parameter, what is valid,
        and the value.
    """

    # Language model, the part that one core stores and retrieves.
    kv_heads: int = 8  # KV heads
    head_dim: int = 128  # elements of the key (or value) of one KV head
    kv_bits: int = 16  # bits of a stored key or value element: 16 (BF16), 8 or 4 (KV codec)
    weight_bits: int = 16  # least bits of a stored weight: 16 (BF16 only) or 4 (also MXFP4, INT4 and FP8)
    # LXE: matrix engine (DPE), vector engine (VPE) and their memory.
    dpe_trees: int = 64  # MAC trees of the DPE, which is rows of a weight tile [N_DPE-h]
    dpe_inputs: int = 64  # products of one MAC tree; BF16 elements of one memory word [N_DPE-w]
    dpe_load_rows: int = 8  # rows of a weight tile that are loaded per cycle
    dpe_accumulators: int = 64  # FP32 accumulators of one MAC tree: activation rows that share a weight tile
    align_bits: int = 24  # bits to which the products of a MAC tree are aligned before they are added
    vpe_lanes: int = 64  # FP32 lanes of the VPE
    vpe_rows: int = 64  # rows of the VPE's vector memory; a row has one FP32 number per lane
    lxe_memory_bytes: int = 384 * 1024  # bytes of all on-chip memories of the LXE
    # DRE: hash clustering unit (HCU).
    hash_bits: int = 32  # bits of one hash code, which is the number of hyperplanes [N_hp]
    hcu_accumulators: int = 1  # XOR accumulators: clusters that are compared at the same time [N_HCU-h]
    hcu_lanes: int = 16  # bits that one XOR accumulator compares per cycle [N_HCU-w]
    max_candidates: int = 1024  # clusters whose hash codes are on chip
    max_step_tokens: int = 32  # tokens of a step that are clustered together, whose hash codes are on chip
    max_window_tokens: int = 4096  # largest age in tokens up to which a cluster accepts new tokens
    # DRE: weighted cumulative-sum threshold unit (WTU).
    wtu_lanes: int = 16  # scores that the WTU of one core processes per cycle [N_WTU-w]
    wtu_pairs: int = 2048  # (key, token count) pairs in the memory of the WTU; longer rows are read again from memory
    max_row_clusters: int = 32768  # clusters of the longest score row
    wtu_buckets: int = 16  # buckets per refinement level
    # DRE: KV cache management unit (KVMU). Its state is in device memory; these numbers are limits, not memories.
    max_clusters: int = 32768  # clusters of one context
    page_tokens: int = 32  # tokens of one page
    max_pages: int = 65536  # pages of one context: 1 M tokens, if every cluster has a page that is not full
    page_frames: int = 262144  # page frames: pages of all contexts that fit into device memory
    max_contexts: int = 8192  # contexts of one store: layers times streams
    cache_lines: int = 8  # lines of the store on chip; a line is one memory word, at least 32 bytes
    # DRE: all units.
    dre_counters: int = 1  # 1: the counters `stat_*` count events; 0: they read 0 and need no area
    # Several cores on one memory.
    cores: int = 8  # cores of the unit `multicore`
    device_ports: int = 4  # its ports to the device memory, at most one for each core
    # Widths of numbers, in bits.
    token_bits: int = 32  # token index, counted from the start of the stream
    cluster_bits: int = 16  # cluster number
    count_bits: int = 16  # token count of a cluster, which saturates

    def __post_init__(self) -> None:
        for name, value in self.asdict().items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            if name == "dre_counters":
                self._check(name, value in (0, 1), "0 or 1")
            else:
                self._check(name, value >= 1, "at least 1")
        for name in POWERS_OF_TWO:
            self._check(name, is_power_of_two(getattr(self, name)), "a power of two")
        self._check("kv_bits", self.kv_bits in (4, 8, 16), "4, 8 or 16")
        self._check("kv_bits", self.kv_bits != 8 or self.dpe_inputs >= 4, "4 or 16 with dpe_inputs below 4")
        self._check("weight_bits", self.weight_bits in (4, 16), "4 or 16")
        self._check("weight_bits", self.weight_bits == 16 or self.dpe_inputs >= 4, "16 with dpe_inputs below 4")
        self._check("align_bits", 16 <= self.align_bits <= 30, "16 to 30")
        self._check(
            "dpe_load_rows", self.dpe_trees % self.dpe_load_rows == 0, f"a divisor of dpe_trees = {self.dpe_trees}"
        )
        self._check("hash_bits", self.hash_bits <= 32, "1 to 32")
        self._check("hcu_lanes", self.hcu_lanes <= self.hash_bits, f"1 to hash_bits = {self.hash_bits}")
        self._check("max_candidates", self.max_candidates >= 2 * self.hcu_accumulators, "at least 2 * hcu_accumulators")
        self._check("max_candidates", self.max_candidates <= 1 << self.cluster_bits, "at most 2**cluster_bits")
        self._check("token_bits", self.token_bits <= 32, "1 to 32")
        self._check(
            "max_window_tokens", self.max_window_tokens < 1 << (self.token_bits - 1), "below 2**(token_bits - 1)"
        )

    def _check(self, name: str, is_valid: bool, valid: str) -> None:
        if not is_valid:
            raise ValueError(f"{name} must be {valid}, got {getattr(self, name)}")

    @classmethod
    def preset(cls, name: str) -> Config:
        """The preset `name`. Raises `ValueError` for an unknown name."""
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {', '.join(PRESETS)}, got {name!r}")
        return PRESETS[name]

    def replace(self, **changes: Any) -> Config:
        """A copy with the values in `changes`. Raises `ValueError` for an unknown parameter."""
        parameter_names = [field.name for field in dataclasses.fields(self)]
        for name in changes:
            if name not in parameter_names:
                raise ValueError(f"parameter must be one of {', '.join(parameter_names)}, got {name!r}")
        return dataclasses.replace(self, **changes)

    def asdict(self) -> dict[str, int]:
        """Value of each parameter, by name. The JSON file of a generated unit contains it."""
        return dataclasses.asdict(self)


def is_power_of_two(value: int) -> bool:
    """Whether `value` is 1, 2, 4, ..."""
    return value > 0 and value & (value - 1) == 0


POWERS_OF_TWO = (
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
)

PRESETS = {
    "tiny": Config(
        kv_heads=2,
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
        wtu_pairs=32,
        max_row_clusters=64,
        max_clusters=64,
        page_tokens=4,
        max_pages=64,
        page_frames=16,
        max_contexts=64,
        cache_lines=4,
        cores=2,
        device_ports=2,
    ),
    "small": Config(
        kv_heads=2,
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
        wtu_pairs=256,
        max_row_clusters=512,
        max_clusters=512,
        page_tokens=16,
        max_pages=512,
        page_frames=128,
        max_contexts=1024,
        cache_lines=16,
        cores=2,
        device_ports=2,
    ),
    "paper": Config(),
}
