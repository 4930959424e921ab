"""Systems as TOML presets: every number with its unit in the name and its source beside it, checked for
physics.

A number is written `key = { value = 4, source = "..." }`. `load_system` takes a preset's name or the path of
a user's own file.
"""

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hw.dre.wtu.wtu import Point
from sw_model import preset_file
from sw_model.memory.spec import PRESETS as MEMORIES
from sw_model.preset_file import PRESETS


@dataclass(frozen=True)
class Core:
    """The accelerator's cores (kind `vrex`). `wtu_point`: `sweep`, as V-Rex Fig. 12 draws it, or `fast`."""

    cores: int
    clock_mhz: float
    dpe_rows: int
    dpe_cols: int
    vpe_lanes: int
    hcu_lanes: int
    wtu_lanes: int
    on_chip_kib: float
    wtu_point: str = "sweep"

    @property
    def peak_tflops(self) -> float:
        """Multiply and add of the matrix and the vector engine, as V-Rex Table I counts it."""
        per_cycle = 2 * (self.dpe_rows * self.dpe_cols + self.vpe_lanes)
        return self.cores * per_cycle * self.clock_mhz * 1e6 / 1e12


@dataclass(frozen=True)
class Gpu:
    """A GPU as a roofline with measured losses (kind `gpu`)."""

    peak_tflops: float
    gemm_efficiency: float
    op_overhead_us: float


@dataclass(frozen=True)
class DeviceMemory:
    capacity_gb: float
    peak_gbps: float


@dataclass(frozen=True)
class Link:
    """The host link; `behind` says what answers it: `ssd` or `cpu` (host DRAM)."""

    nominal_gbps: float
    generation: int
    lanes: int
    behind: str


@dataclass(frozen=True)
class Power:
    """Watts and picojoules; the unit powers are those of one core and zero on a GPU."""

    board_w: float
    pcie_w_per_lane: float
    dram_pj_per_bit: float
    storage_w: float
    dpe_mw: float = 0.0
    vpe_mw: float = 0.0
    lxe_memory_mw: float = 0.0
    hcu_mw: float = 0.0
    wtu_mw: float = 0.0
    kvmu_mw: float = 0.0


@dataclass(frozen=True)
class System:
    """One machine. Exactly one of `core` and `gpu` is set, by `kind`."""

    name: str
    kind: str
    memory: str
    device_memory: DeviceMemory
    link: Link
    power: Power
    core: Core | None = None
    gpu: Gpu | None = None
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def peak_tflops(self) -> float:
        part = self.core or self.gpu
        assert part is not None
        return part.peak_tflops

    def replace(self, **parts: Any) -> "System":
        """A copy with fields of a part changed: `replace(link={"nominal_gbps": 8})`; checked again."""
        changed = {}
        for key, value in parts.items():
            old = getattr(self, key) if key in _PARTS else None
            if old is None:
                raise ValueError(f"system: {self.name} has no part {key!r}")
            known = [one.name for one in fields(old)]
            if unknown := value.keys() - set(known):
                raise ValueError(f"system: {self.name} has no {key}.{min(unknown)}: {', '.join(known)}")
            changed[key] = replace(old, **value)
        new = replace(self, **changed)
        check(new)
        return new


_PARTS: dict[str, type] = {
    "core": Core,
    "gpu": Gpu,
    "device_memory": DeviceMemory,
    "link": Link,
    "power": Power,
}
_MAY_BE_ZERO = {
    "dram_pj_per_bit", "storage_w", "dpe_mw", "vpe_mw", "lxe_memory_mw", "hcu_mw", "wtu_mw", "kvmu_mw",
    "op_overhead_us", "pcie_w_per_lane",
}  # fmt: skip
_COUNTS = {"cores", "dpe_rows", "dpe_cols", "vpe_lanes", "hcu_lanes", "wtu_lanes", "generation", "lanes"}


def preset_names() -> list[str]:
    return preset_file.names(PRESETS)


def load_system(name_or_path: str | Path) -> System:
    """The system of a preset's name or of a TOML file. Raises ValueError naming what is wrong."""
    path = preset_file.find(name_or_path, PRESETS, "system")
    return parse_system(preset_file.read(path, "system"), str(path))


def parse_system(data: dict[str, Any], where: str = "system") -> System:
    """A checked system from the parsed TOML."""
    named = ("name", "kind", "memory")
    if unknown := set(data) - {*named, *_PARTS}:
        raise ValueError(f"{where}: unknown key {min(unknown)!r}")
    known = preset_file.words(data, named, where)
    kind = known["kind"]
    if kind not in ("vrex", "gpu"):
        raise ValueError(f"{where}: kind {kind!r} is neither 'vrex' nor 'gpu'")
    sources: dict[str, str] = {}
    parts: dict[str, Any] = {}
    for part in ("core" if kind == "vrex" else "gpu", "device_memory", "link", "power"):
        table = preset_file.table(data, part, where)
        values, origins = preset_file.sourced(table, f"{where}: {part}.")
        sources |= {f"{part}.{key}": origin for key, origin in origins.items()}
        parts[part] = preset_file.build(_PARTS[part], values, f"{where}: [{part}]")
    try:
        preset_file.find(known["memory"], MEMORIES, "memory")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    system = System(**known, sources=sources, **parts)
    check(system, where)
    return system


def check(system: System, where: str = "system") -> None:
    """Raise ValueError when a number is not physical."""
    for part in _PARTS:
        table = getattr(system, part)
        if table is None:
            continue
        for one in fields(table):
            key, value = one.name, getattr(table, one.name)
            if one.type is not str:
                zero, whole = key in _MAY_BE_ZERO, key in _COUNTS
                preset_file.positive(f"{part}.{key}", value, where, zero=zero, whole=whole)
    link, memory = system.link, system.device_memory
    if link.generation not in range(1, 6):
        raise ValueError(f"{where}: link.generation = {link.generation} is not a PCIe generation (1 to 5)")
    if link.lanes not in (1, 2, 4, 8, 16):
        raise ValueError(f"{where}: link.lanes = {link.lanes} is not one of 1, 2, 4, 8, 16")
    if link.behind not in ("ssd", "cpu"):
        raise ValueError(f"{where}: link.behind = {link.behind!r} is neither 'ssd' nor 'cpu'")
    if link.nominal_gbps > memory.peak_gbps:
        raise ValueError(
            f"{where}: link.nominal_gbps = {link.nominal_gbps} exceeds the device memory's {memory.peak_gbps}"
        )
    if system.core and system.core.cores * system.core.on_chip_kib * 1024 > memory.capacity_gb * 1e9:
        raise ValueError(
            f"{where}: core.on_chip_kib = {system.core.on_chip_kib} on {system.core.cores} cores is"
            f" larger than the device memory of {memory.capacity_gb} GB"
        )
    if system.core and system.core.wtu_lanes.bit_count() != 1:
        raise ValueError(f"{where}: core.wtu_lanes = {system.core.wtu_lanes} is not a power of two")
    if system.core and system.core.wtu_point not in tuple(Point):
        points = ", ".join(Point)
        raise ValueError(f"{where}: core.wtu_point = {system.core.wtu_point!r} is not one of {points}")
    if system.gpu and system.gpu.gemm_efficiency > 1:
        raise ValueError(f"{where}: gpu.gemm_efficiency = {system.gpu.gemm_efficiency} exceeds 1")
