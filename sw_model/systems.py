"""Systems from TOML presets. Each number has its unit in its name and its source in the file.

A number is written `key = { value = 4, source = "..." }`. `load_system` takes a preset's name or the path of
an own file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from hw.config import Config
from hw.dre.wtu.wtu import WtuDesign
from sw_model import preset_file
from sw_model.memory.spec import PRESETS as MEMORIES
from sw_model.preset_file import PRESETS

# sizes of a hardware configuration that the system model reads: `[core]` and `core.NAME` can set them
SIZES = (
    "cores", "dpe_trees", "dpe_inputs", "dpe_load_rows", "dpe_accumulators", "vpe_lanes", "lxe_memory_bytes",
    "hash_bits", "hcu_accumulators", "hcu_lanes", "wtu_lanes", "wtu_buckets",
)  # fmt: skip


@dataclass(frozen=True)
class Core:
    """The cores of an accelerator (kind `vrex`).

    config     sizes of one core, and the number of cores
    clock_mhz  clock of every core
    wtu_design design of the WTU: `sweep`, as V-Rex Fig. 12 shows it, or `histogram`
    """

    config: Config
    clock_mhz: float
    wtu_design: str = "sweep"

    @property
    def peak_tflops(self) -> float:
        """Multiply and add of the matrix and the vector engines, as V-Rex Table I counts it."""
        c = self.config
        per_cycle = 2 * (c.dpe_trees * c.dpe_inputs + c.vpe_lanes)
        return c.cores * per_cycle * self.clock_mhz * 1e6 / 1e12

    def replace(self, values: Mapping[str, Any], where: str) -> "Core":
        """A copy with other sizes (`SIZES`), clock or WTU design. Raises ValueError for an unknown or invalid one."""
        own = {name: value for name, value in values.items() if name not in SIZES}
        sizes = {name: value for name, value in values.items() if name in SIZES}
        valid = [*SIZES, "clock_mhz", "wtu_design"]
        if unknown := own.keys() - set(valid):
            raise ValueError(f"{where}.{min(unknown)} must be one of {', '.join(valid)}")
        try:
            return replace(self, config=self.config.replace(**sizes), **own)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}.{error}") from None


@dataclass(frozen=True)
class Gpu:
    """A GPU as a roofline with measured losses (kind `gpu`).

    gemm_efficiency  share of the peak that large matrix products reach
    op_overhead_us   time that a framework needs to start one operation
    """

    peak_tflops: float
    gemm_efficiency: float
    op_overhead_us: float


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of the accelerator or GPU."""

    capacity_gb: float
    peak_gbps: float


@dataclass(frozen=True)
class Link:
    """The host link (PCIe); `behind` is what answers it: `ssd`, or `cpu` for host DRAM."""

    nominal_gbps: float
    generation: int
    lanes: int
    behind: str


@dataclass(frozen=True)
class Power:
    """Watts, milliwatts and picojoules. The powers of units are those of one core, and zero on a GPU."""

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
    """One machine. Exactly one of `core` and `gpu` is set, by `kind`.

    memory   name or path of a memory preset
    sources  source of each number by `table.key`
    """

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
        """Peak arithmetic rate in 10**12 operations per second."""
        processor = self.core or self.gpu
        assert processor is not None
        return processor.peak_tflops

    def replace(self, **changes: Mapping[str, Any]) -> "System":
        """A checked copy with other values in some tables: `replace(link={"nominal_gbps": 8})`.

        Raises ValueError for a table or key that the system does not have, and for an invalid value.
        """
        tables: dict[str, Any] = {}
        for name, values in changes.items():
            table = getattr(self, name) if name in TABLES else None
            if table is None:
                valid = ", ".join(one for one in TABLES if getattr(self, one) is not None)
                raise ValueError(f"table of system {self.name} must be one of {valid}, got {name!r}")
            if isinstance(table, Core):
                tables[name] = table.replace(values, f"system: {name}")
                continue
            known = [one.name for one in fields(table)]
            if unknown := values.keys() - set(known):
                raise ValueError(f"key of {name} in system {self.name} must be one of {', '.join(known)}, "
                                 f"got {min(unknown)!r}")  # fmt: skip
            tables[name] = replace(table, **values)
        result = replace(self, **tables)
        check(result)
        return result


TABLES: dict[str, type] = {
    "core": Core,
    "gpu": Gpu,
    "device_memory": DeviceMemory,
    "link": Link,
    "power": Power,
}
_CAN_BE_ZERO = {
    "dram_pj_per_bit", "storage_w", "dpe_mw", "vpe_mw", "lxe_memory_mw", "hcu_mw", "wtu_mw", "kvmu_mw",
    "op_overhead_us", "pcie_w_per_lane",
}  # fmt: skip
_COUNTS = {"generation", "lanes"}


def preset_names() -> list[str]:
    """Names of the system presets."""
    return preset_file.names(PRESETS)


def load_system(name_or_path: str | Path) -> System:
    """The system of a preset's name or of a TOML file. Raises ValueError that names the file and the key."""
    path = preset_file.find(name_or_path, PRESETS, "system")
    return parse_system(preset_file.read(path, "system"), str(path))


def parse_system(data: dict[str, Any], where: str = "system") -> System:
    """A checked system from parsed TOML."""
    names = ("name", "kind", "memory")
    if unknown := set(data) - {*names, *TABLES}:
        raise ValueError(f"{where}: key must be one of {', '.join([*names, *TABLES])}, got {min(unknown)!r}")
    head = preset_file.words(data, names, where)
    kind = head["kind"]
    if kind not in ("vrex", "gpu"):
        raise ValueError(f"{where}: kind must be one of vrex, gpu, got {kind!r}")
    sources: dict[str, str] = {}
    tables: dict[str, Any] = {}
    for name in ("core" if kind == "vrex" else "gpu", "device_memory", "link", "power"):
        values, origins = preset_file.sourced(preset_file.table(data, name, where), f"{where}: {name}.")
        sources |= {f"{name}.{key}": origin for key, origin in origins.items()}
        if name == "core":
            tables[name] = parse_core(values, f"{where}: core")
        else:
            tables[name] = preset_file.build(TABLES[name], values, f"{where}: [{name}]")
    try:
        preset_file.find(head["memory"], MEMORIES, "memory")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    system = System(**head, sources=sources, **tables)
    check(system, where)
    return system


def parse_core(values: dict[str, Any], where: str) -> Core:
    """The cores of a table `[core]`: a preset of `hw.Config` under `config`, and the values that differ from it."""
    for name in ("config", "clock_mhz"):
        if name not in values:
            raise ValueError(f"{where}.{name} is missing")
    try:
        config = Config.preset(values.pop("config"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}.config: {error}") from None
    return Core(config, values.pop("clock_mhz")).replace(values, where)


def check(system: System, where: str = "system") -> None:
    """Raise ValueError when a number is not physical."""
    for name in TABLES:
        table = getattr(system, name)
        if table is None:
            continue
        for one in fields(table):
            key, value = one.name, getattr(table, one.name)
            if one.type in (int, float):
                zero, whole = key in _CAN_BE_ZERO, key in _COUNTS
                preset_file.positive(f"{name}.{key}", value, where, zero=zero, whole=whole)
    link, memory, core = system.link, system.device_memory, system.core
    _check_choice(f"{where}: link.generation", link.generation, range(1, 6))
    _check_choice(f"{where}: link.lanes", link.lanes, (1, 2, 4, 8, 16))
    _check_choice(f"{where}: link.behind", link.behind, ("ssd", "cpu"))
    if link.nominal_gbps > memory.peak_gbps:
        raise ValueError(
            f"{where}: link.nominal_gbps must be at most device_memory.peak_gbps = {memory.peak_gbps}, "
            f"got {link.nominal_gbps}"
        )
    if core:
        _check_choice(f"{where}: core.wtu_design", core.wtu_design, tuple(WtuDesign))
        limit = memory.capacity_gb * 1e9 / core.config.cores
        if core.config.lxe_memory_bytes > limit:
            raise ValueError(
                f"{where}: core.lxe_memory_bytes must be at most {limit:.0f}, the device memory of "
                f"{memory.capacity_gb} GB over {core.config.cores} cores, got {core.config.lxe_memory_bytes}"
            )
    if system.gpu and system.gpu.gemm_efficiency > 1:
        raise ValueError(f"{where}: gpu.gemm_efficiency must be at most 1, got {system.gpu.gemm_efficiency}")


def _check_choice(name: str, value: Any, valid: Any) -> None:
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(map(str, valid))}, got {value!r}")
