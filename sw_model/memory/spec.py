"""Memories as TOML presets: organisation, timing in clocks, controller, address mappings."""

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
    """One memory. `style` fixes the command rules; `timing` is in clocks; `mapping[name]` lists (digit,
    radix) of (byte address // burst_bytes), least significant first. With `row_hit_first` a precharge waits
    for older requests to the open row; LPDDR5's data clock runs through pauses unless `data_clock_stops`."""

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
        """Clocks of data per burst at full rate."""
        return self.timing["bl_min"] if self.style == "lpddr5" else self.timing["bl"]

    @property
    def peak_gbps(self) -> float:
        return self.channels * self.pseudo_channels * self.burst_bytes / (self.burst_clocks * self.clock_ps) * 1000

    @property
    def capacity_bytes(self) -> int:
        banks = self.channels * self.pseudo_channels * self.ranks * self.bank_groups * self.banks_per_group
        return banks * self.rows * self.bursts_per_row * self.burst_bytes

    @property
    def stream_share(self) -> float:
        """Share of the peak that long sequential reads keep: everything but the all-bank refresh and the row
        closing and opening around it."""
        t = self.timing
        if self.refresh != "all-bank":
            return 1.0
        return 1 - (t["rtp"] + t["rp"] + t["rfc"] + t["rcd_read"]) / t["refi"]


def memory_names() -> list[str]:
    return preset_file.names(PRESETS)


def load_memory(name_or_path: str | Path) -> Memory:
    """The memory of a preset's name or of a TOML file. Raises ValueError naming what is wrong."""
    path = preset_file.find(name_or_path, PRESETS, "memory")
    return parse_memory(preset_file.read(path, "memory"), str(path))


def parse_memory(data: dict[str, Any], where: str = "memory") -> Memory:
    """A checked memory from the parsed TOML, whose numbers all come from its one `source`."""
    parts = {"organisation", "timing_clocks", "controller", "mapping"}
    if unknown := set(data) - {"name", "style", "source", *parts}:
        raise ValueError(f"{where}: unknown key {min(unknown)!r}")
    known = preset_file.words(data, ("name", "style", "source"), where)
    del known["source"]
    organisation, timing, control, maps = (
        preset_file.table(data, part, where) for part in ("organisation", "timing_clocks", "controller", "mapping")
    )
    try:
        mapping = {name: tuple((digit, radix) for digit, radix in digits) for name, digits in maps.items()}
    except (TypeError, ValueError):
        raise ValueError(f"{where}: a mapping must be a list of [digit, radix], got {maps!r}") from None
    values = {**known, "timing": timing, "mapping": mapping, **organisation, **control}
    memory = preset_file.build(Memory, values, where)
    check(memory, where)
    return memory


def check(memory: Memory, where: str) -> None:
    """Raise ValueError when the description is not a possible memory."""
    if memory.style not in STYLES:
        raise ValueError(f"{where}: style {memory.style!r} is not one of {', '.join(STYLES)}")
    if memory.refresh not in REFRESH:
        raise ValueError(f"{where}: refresh {memory.refresh!r} is not one of {', '.join(REFRESH)}")
    counts = ["channels", "pseudo_channels", "ranks", "bank_groups", "banks_per_group", "rows"]
    counts += ["bursts_per_row", "burst_bytes", "clock_ps", "read_queue", "write_queue"]
    for key in counts:
        preset_file.positive(key, getattr(memory, key), where, whole=True)
    wanted = {"cl", "cwl", "rcd_read", "rcd_write", "rp", "rp_all", "ras", "rc", "wr", "rtp"}
    wanted |= {"ccd_s", "ccd_l", "wtr_s", "wtr_l", "rrd_s", "rrd_l", "faw", "rfc", "refi"}
    wanted |= {"bl_min", "bl_max", "aad"} if memory.style == "lpddr5" else {"bl"}
    if memory.refresh == "per-bank":
        wanted |= {"rfc_bank", "refi_bank"}
    if missing := wanted - set(memory.timing):
        raise ValueError(f"{where}: timing {sorted(missing)[0]} is missing")
    for key, clocks in memory.timing.items():
        preset_file.positive(f"timing {key}", clocks, where, zero=True, whole=True)
    if memory.timing["refi"] <= memory.timing["rfc"]:
        raise ValueError(f"{where}: refresh takes longer ({memory.timing['rfc']}) than its interval")
    fields = [memory.channels, memory.pseudo_channels, memory.ranks, memory.bank_groups]
    fields += [memory.banks_per_group, memory.rows, memory.bursts_per_row]
    sizes = dict(zip(DIGITS, fields, strict=True))
    for name, digits in memory.mapping.items():
        product = dict.fromkeys(DIGITS, 1)
        for digit, radix in digits:
            if digit not in DIGITS or not isinstance(radix, int) or radix < 1:
                raise ValueError(f"{where}: mapping {name} has the digit ({digit!r}, {radix!r})")
            product[digit] *= radix
        for digit, size in sizes.items():
            if product[digit] != size:
                raise ValueError(f"{where}: mapping {name} covers {product[digit]} of {size} values of {digit!r}")
