"""DRAM presets in TOML: organisation, timing in clocks, controller, address mappings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sw_model import preset_file

PRESETS = preset_file.PRESETS / "memory"
STYLES = ("lpddr5", "hbm", "ddr")
DIGITS = ("ch", "pc", "ra", "bg", "ba", "ro", "co")
REFRESH = ("none", "all-bank", "per-bank")


@dataclass(frozen=True)
class Memory:
    """Description of one DRAM.

    `style` selects the command rules, `timing` is in memory clocks. `mapping[name]` lists (digit, radix) of (byte
    address // burst_bytes), least significant first. With `row_hit_first`, a precharge waits for older requests to the
    open row. `data_clock_stops`: the data clock of LPDDR5 stops in pauses.
    """

    name: str
    style: str
    channels: int
    pseudo_channels: int
    ranks: int
    bank_groups: int
    banks_per_group: int
    rows: int
    bursts_per_row: int
    burst_bytes: int
    clock_ps: int
    timing: dict[str, int]
    read_queue: int
    write_queue: int
    refresh: str
    mapping: dict[str, tuple[tuple[str, int], ...]]
    row_hit_first: bool = True
    data_clock_stops: bool = True

    @property
    def burst_clocks(self) -> int:
        """Data clocks of a burst at full rate."""
        return self.timing["bl_min"] if self.style == "lpddr5" else self.timing["bl"]

    @property
    def peak_gbps(self) -> float:
        """Peak bandwidth, GB/s."""
        return self.channels * self.pseudo_channels * self.burst_bytes / (self.burst_clocks * self.clock_ps) * 1000

    @property
    def capacity_bytes(self) -> int:
        """Capacity in bytes."""
        banks = self.channels * self.pseudo_channels * self.ranks * self.bank_groups * self.banks_per_group
        return banks * self.rows * self.bursts_per_row * self.burst_bytes

    @property
    def stream_share(self) -> float:
        """Share of the peak for long sequential reads.

        The rest is the time of all-bank refresh and of closing and opening rows for it.
        """
        t = self.timing
        if self.refresh != "all-bank":
            return 1.0
        return 1 - (t["rtp"] + t["rp"] + t["rfc"] + t["rcd_read"]) / t["refi"]


def memory_names() -> list[str]:
    """Names of the presets."""
    return preset_file.names(PRESETS)


def load_memory(name_or_path: str | Path) -> Memory:
    """Load a memory by preset name or from a TOML file. Raises ValueError that names the invalid entry."""
    path = preset_file.find(name_or_path, PRESETS, "memory")
    return parse_memory(preset_file.read(path, "memory"), str(path))


def parse_memory(data: dict[str, Any], source: str = "memory") -> Memory:
    """Checked memory from parsed TOML. All its numbers have one `source`."""
    sections = {"organisation", "timing_clocks", "controller", "mapping"}
    if unknown := set(data) - {"name", "style", "source", *sections}:
        raise ValueError(f"{source}: unknown key {min(unknown)!r}")
    header = preset_file.words(data, ("name", "style", "source"), source)
    del header["source"]
    organisation, timing, control, maps = (
        preset_file.table(data, section, source)
        for section in ("organisation", "timing_clocks", "controller", "mapping")
    )
    try:
        mapping = {name: tuple((digit, radix) for digit, radix in digits) for name, digits in maps.items()}
    except (TypeError, ValueError):
        raise ValueError(f"{source}: a mapping must be a list of [digit, radix], got {maps!r}") from None
    values = {**header, "timing": timing, "mapping": mapping, **organisation, **control}
    memory = preset_file.build(Memory, values, source)
    check(memory, source)
    return memory


def check(memory: Memory, source: str) -> None:
    """Raise ValueError if the description is inconsistent. `source` names its origin in the message."""
    if memory.style not in STYLES:
        raise ValueError(f"{source}: style must be one of {', '.join(STYLES)}, got {memory.style!r}")
    if memory.refresh not in REFRESH:
        raise ValueError(f"{source}: refresh must be one of {', '.join(REFRESH)}, got {memory.refresh!r}")
    counts = ["channels", "pseudo_channels", "ranks", "bank_groups", "banks_per_group", "rows"]
    counts += ["bursts_per_row", "burst_bytes", "clock_ps", "read_queue", "write_queue"]
    for key in counts:
        preset_file.positive(key, getattr(memory, key), source, whole=True)
    timing_names = {"cl", "cwl", "rcd_read", "rcd_write", "rp", "rp_all", "ras", "rc", "wr", "rtp"}
    timing_names |= {"ccd_s", "ccd_l", "wtr_s", "wtr_l", "rrd_s", "rrd_l", "faw", "rfc", "refi"}
    timing_names |= {"bl_min", "bl_max", "aad"} if memory.style == "lpddr5" else {"bl"}
    if memory.refresh == "per-bank":
        timing_names |= {"rfc_bank", "refi_bank"}
    if missing := timing_names - set(memory.timing):
        raise ValueError(f"{source}: timing {sorted(missing)[0]} is missing")
    for key, clocks in memory.timing.items():
        preset_file.positive(f"timing {key}", clocks, source, zero=True, whole=True)
    if memory.timing["refi"] <= memory.timing["rfc"]:
        raise ValueError(f"{source}: refresh must be shorter than its interval, got {memory.timing['rfc']} clocks")
    fields = [memory.channels, memory.pseudo_channels, memory.ranks, memory.bank_groups]
    fields += [memory.banks_per_group, memory.rows, memory.bursts_per_row]
    sizes = dict(zip(DIGITS, fields, strict=True))
    for name, digits in memory.mapping.items():
        product = dict.fromkeys(DIGITS, 1)
        for digit, radix in digits:
            if digit not in DIGITS or not isinstance(radix, int) or radix < 1:
                raise ValueError(f"{source}: mapping {name} must have valid digits, got ({digit!r}, {radix!r})")
            product[digit] *= radix
        for digit, size in sizes.items():
            if product[digit] != size:
                raise ValueError(f"{source}: mapping {name} covers {product[digit]} of {size} values of {digit!r}")
