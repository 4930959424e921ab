"""Systems from TOML presets. The file states the source of each number.

A number is written `key = { value = 4, source = "..." }`. `load_system` takes the name of a preset or the path of a
user's TOML file. The suffix of a name is the unit of the number: `_gb` 10**9 bytes, `_gbps` 10**9 bytes per second.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from hw.config import Config
from hw.dre.wtu.wtu import WtuDesign
from sw_model import preset_file
from sw_model.assumptions import Assumptions
from sw_model.memory.spec import PRESETS as MEMORIES
from sw_model.memory.spec import Memory, load_memory
from sw_model.preset_file import PRESETS

# fields of `hw.Config` that the system model uses; the table `[core]` of a file and `System.replace` can set them
SIZES = (
    "cores", "dpe_trees", "dpe_inputs", "dpe_load_rows", "dpe_accumulators", "vpe_lanes", "lxe_memory_bytes",
    "hash_bits", "hcu_accumulators", "hcu_lanes", "wtu_lanes", "wtu_buckets", "page_frames", "device_ports", "kv_bits",
    "weight_bits",
)  # fmt: skip
RETRIEVALS = ("all", "one")
WEIGHT_READS = ("once", "blocks")


@dataclass(frozen=True)
class Core:
    """All cores of an accelerator (kind `vrex`); they are equal.

    config     sizes of one core, and the number of cores
    clock_mhz  clock of every core
    wtu_design design of the WTU: `sweep` (V-Rex, Fig. 12) or `histogram`; same results, different cycles
    retrieval  cores whose units cluster, select and look up pages: `all`, each a share (V-Rex, Fig. 9), or `one`, which
               does it for all, as in the programs of this project
    weight_reads  reads of a weight in a product of more vectors than a MAC tree has accumulators, such as those of a
                  vision tower: `once` (V-Rex does not say how), or `blocks`, again for each block of vectors where the
                  weights do not stay in the operand memory, as in the programs of this project
    """

    config: Config
    clock_mhz: float
    wtu_design: str = "sweep"
    retrieval: str = "all"
    weight_reads: str = "once"

    @property
    def retrieving(self) -> int:
        """Number of cores that retrieve."""
        return self.config.cores if self.retrieval == "all" else 1

    @property
    def peak_tflops(self) -> float:
        """Peak rate of the matrix and vector engines of all cores.

        One multiply-add counts as two operations, as in V-Rex Table I.
        """
        c = self.config
        per_cycle = 2 * (c.dpe_trees * c.dpe_inputs + c.vpe_lanes)
        return c.cores * per_cycle * self.clock_mhz * 1e6 / 1e12

    def replace(self, values: Mapping[str, Any], where: str) -> "Core":
        """Return a copy with changed sizes (`SIZES`), clock, WTU design or schedule.

        `where` is the first part of error messages. Raises ValueError for an unknown name or an invalid value.
        """
        other_values = {name: value for name, value in values.items() if name not in SIZES}
        sizes = {name: value for name, value in values.items() if name in SIZES}
        valid = [*SIZES, "clock_mhz", "wtu_design", "retrieval", "weight_reads"]
        if unknown := other_values.keys() - set(valid):
            raise ValueError(f"key of {where} must be one of {', '.join(valid)}, got {min(unknown)!r}")
        try:
            return replace(self, config=self.config.replace(**sizes), **other_values)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{where}.{error}") from None  # the text of the error starts with the name of the field


@dataclass(frozen=True)
class Gpu:
    """A GPU (kind `gpu`): peak rate, and losses that reduce it.

    gemm_efficiency  share of the peak that large matrix products reach
    op_overhead_us   time that a framework needs to start one operation
    """

    peak_tflops: float
    gemm_efficiency: float
    op_overhead_us: float


@dataclass(frozen=True)
class DeviceMemory:
    """Size and peak rate of the memory of the accelerator or GPU. `System.memory` names the model of its timing."""

    capacity_gb: float
    peak_gbps: float


@dataclass(frozen=True)
class Link:
    """The host link (PCIe).

    generation  PCIe generation
    lanes       PCIe lanes
    behind      memory at the other end of the link: `ssd`, or `cpu` for host DRAM
    """

    nominal_gbps: float
    generation: int
    lanes: int
    behind: str


@dataclass(frozen=True)
class Power:
    """Constants of the energy model.

    board_w          power of a GPU board; not used for kind `vrex`
    pcie_w_per_lane  power of one lane of the host link; not used for a GPU
    dram_pj_per_bit  energy of a bit that the device memory reads or writes; not used for a GPU
    storage_w        power of the storage while the host link transfers data
    dpe_mw ... kvmu_mw  power of the units of one core; zero on a GPU
    kv_codec_mw, weight_codec_mw  power of the codecs of one core; zero without them
    """

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
    kv_codec_mw: float = 0.0
    weight_codec_mw: float = 0.0


@dataclass(frozen=True)
class System:
    """One machine. `core` is set for kind `vrex`, `gpu` for kind `gpu`; the other is None.

    memory   name or path of a memory preset, which models the timing of the device memory
    assume   values of `Assumptions` that differ from their defaults on this machine, by name
    sources  maps `table.key` to the source of the number
    """

    name: str
    kind: str
    memory: str
    device_memory: DeviceMemory
    link: Link
    power: Power
    core: Core | None = None
    gpu: Gpu | None = None
    assume: dict[str, Any] = field(default_factory=dict, hash=False)
    sources: dict[str, str] = field(default_factory=dict, compare=False)

    @property
    def peak_tflops(self) -> float:
        """Peak arithmetic rate in 10**12 operations per second."""
        processor = self.core or self.gpu
        assert processor is not None
        return processor.peak_tflops

    @property
    def assumptions(self) -> Assumptions:
        """The assumptions of this machine."""
        return Assumptions(**self.assume)

    def replace(self, **changes: Mapping[str, Any]) -> "System":
        """Return a copy with changed values, and check it: `replace(link={"nominal_gbps": 8})`.

        Raises ValueError for a table or key that the system does not have, and for an invalid value.
        """
        tables: dict[str, Any] = {}
        for name, values in changes.items():
            table = getattr(self, name) if name in TABLES else None
            if table is None:
                valid = ", ".join(key for key in TABLES if getattr(self, key) is not None)
                raise ValueError(f"table of system {self.name} must be one of {valid}, got {name!r}")
            if isinstance(table, Core):
                tables[name] = table.replace(values, f"system: {name}")
                continue
            valid_keys = [key.name for key in fields(table)]
            if unknown := values.keys() - set(valid_keys):
                raise ValueError(f"key of {name} in system {self.name} must be one of {', '.join(valid_keys)}, "
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
    "kv_codec_mw", "weight_codec_mw", "op_overhead_us", "pcie_w_per_lane",
}  # fmt: skip
_INTEGERS = {"generation", "lanes"}


@lru_cache
def memory_model(name: str) -> Memory:
    """Timing of the device memory of a system with cores, by the name in `System.memory`.

    Its controller answers a write when the write enters its queue, as those of DRAMsim3 and gem5. That of Ramulator 2,
    which the memory models are compared with, lets the few writes of a fetch wait until the reads pause.
    """
    return replace(load_memory(name), posted_writes=True)


def preset_names() -> list[str]:
    """Names of the system presets."""
    return preset_file.names(PRESETS)


def load_system(name_or_path: str | Path) -> System:
    """Load a system from a preset (by name) or from a TOML file. Raises ValueError that names the file and the key."""
    path = preset_file.find(name_or_path, PRESETS, "system")
    return parse_system(preset_file.read(path, "system"), str(path))


def parse_system(data: dict[str, Any], where: str = "system") -> System:
    """Build a system from parsed TOML, and check it. `where` is the first part of error messages.

    Raises ValueError for an unknown, missing or invalid key, and for a table of the other kind.
    """
    names = ("name", "kind", "memory")
    if unknown := set(data) - (valid := {*names, *TABLES, "assume"}):
        raise ValueError(f"{where}: key must be one of {', '.join(sorted(valid))}, got {min(unknown)!r}")
    head = preset_file.words(data, names, where)
    kind = head["kind"]
    if kind not in ("vrex", "gpu"):
        raise ValueError(f"{where}: kind must be one of vrex, gpu, got {kind!r}")
    sources: dict[str, str] = {}
    tables: dict[str, Any] = {}
    processor_table, other_table = ("core", "gpu") if kind == "vrex" else ("gpu", "core")
    required = (processor_table, "device_memory", "link", "power")
    if other_table in data:
        raise ValueError(f"{where}: table of kind {kind} must be one of {', '.join(required)}, got [{other_table}]")
    for name in required:
        values, origins = preset_file.sourced(preset_file.table(data, name, where), f"{where}: {name}.")
        sources |= {f"{name}.{key}": origin for key, origin in origins.items()}
        if name == "core":
            tables[name] = parse_core(values, f"{where}: core")
        else:
            tables[name] = preset_file.build(TABLES[name], values, f"{where}: [{name}]")
    if "assume" in data:
        values, origins = preset_file.sourced(preset_file.table(data, "assume", where), f"{where}: assume.")
        sources |= {f"assume.{key}": origin for key, origin in origins.items()}
        preset_file.build(Assumptions, values, f"{where}: [assume]")
        tables["assume"] = values
    try:
        preset_file.find(head["memory"], MEMORIES, "memory")
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    system = System(**head, sources=sources, **tables)
    check(system, where)
    return system


def parse_core(values: dict[str, Any], where: str) -> Core:
    """Build the cores from a table `[core]`: `config` names a preset of `hw.Config`, the other keys change its values.

    Removes `config` and `clock_mhz` from `values`. `where` is the first part of error messages.
    """
    for name in ("config", "clock_mhz"):
        if name not in values:
            raise ValueError(f"{where}.{name} is missing")
    try:
        config = Config.preset(values.pop("config"))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}.config: {error}") from None
    return Core(config, values.pop("clock_mhz")).replace(values, where)


def check(system: System, where: str = "system") -> None:
    """Raise ValueError for a number out of range, an unknown choice, or sizes that contradict each other."""
    for name in TABLES:
        table = getattr(system, name)
        if table is None:
            continue
        for item in fields(table):
            key, value = item.name, getattr(table, item.name)
            if item.type in (int, float):  # needs types, not strings: no `from __future__ import annotations` here
                zero, whole = key in _CAN_BE_ZERO, key in _INTEGERS
                preset_file.positive(f"{name}.{key}", value, where, zero=zero, whole=whole)
    link, memory, core = system.link, system.device_memory, system.core
    _check_choice(f"{where}: link.generation", link.generation, range(1, 6))
    _check_choice(f"{where}: link.lanes", link.lanes, (1, 2, 4, 8, 16))
    _check_choice(f"{where}: link.behind", link.behind, ("ssd", "cpu"))
    # plausibility check: a fetch writes into the device memory what the link delivers
    if link.nominal_gbps > memory.peak_gbps:
        raise ValueError(
            f"{where}: link.nominal_gbps must be at most device_memory.peak_gbps = {memory.peak_gbps}, "
            f"got {link.nominal_gbps}"
        )
    if core:
        _check_choice(f"{where}: core.wtu_design", core.wtu_design, tuple(WtuDesign))
        _check_choice(f"{where}: core.retrieval", core.retrieval, RETRIEVALS)
        _check_choice(f"{where}: core.weight_reads", core.weight_reads, WEIGHT_READS)
        # plausibility check: on-chip memory is smaller than device memory
        limit = memory.capacity_gb * 1e9 / core.config.cores
        if core.config.lxe_memory_bytes > limit:
            raise ValueError(
                f"{where}: core.lxe_memory_bytes must be at most {limit:.0f}, which is the device memory "
                f"({memory.capacity_gb} GB) divided by {core.config.cores} cores, got {core.config.lxe_memory_bytes}"
            )
    if system.gpu and system.gpu.gemm_efficiency > 1:
        raise ValueError(f"{where}: gpu.gemm_efficiency must be at most 1, got {system.gpu.gemm_efficiency}")


def _check_choice(name: str, value: Any, valid: Any) -> None:
    if value not in valid:
        raise ValueError(f"{name} must be one of {', '.join(map(str, valid))}, got {value!r}")
