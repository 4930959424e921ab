"""DRAM presets in TOML: organisation, timing in clocks, controller, address mappings."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sw_model import preset_file

PRESETS = preset_file.PRESETS / "memory"
STYLES = ("lpddr5", "hbm", "ddr")
DIGITS = ("ch", "pc", "ra", "bg", "ba", "ro", "co")
REFRESH = ("none", "all-bank", "per-bank")
# timing keys: of every style; of a style; for per-bank refresh; optional ones (default: no restriction)
TIMING = (
    "cl", "cwl", "rcd_read", "rcd_write", "rp", "rp_all", "ras", "rc", "wr", "rtp", "ccd_s", "ccd_l", "wtr_s", "wtr_l",
    "rrd_s", "rrd_l", "faw", "rfc", "refi",
)  # fmt: skip
BURST = {"lpddr5": ("bl_min", "bl_max", "aad"), "hbm": ("bl",), "ddr": ("bl",)}
PER_BANK = {
    "lpddr5": ("rfc_bank", "refi_bank", "pbr_to_pbr", "pbr_to_act"),
    "hbm": ("rfc_bank", "refi_bank", "rrefd"),
    "ddr": (),
}
OPTIONAL = {"lpddr5": {"ppd", "wck_post", "cas", "cs"}, "hbm": {"ppd", "cs"}, "ddr": {"ppd", "cs"}}
NOT_ZERO = ("bl", "bl_min", "bl_max", "refi", "refi_bank")


@dataclass(frozen=True)
class Memory:
    """Description of one DRAM. Raises ValueError for an inconsistent one.

    `style` selects the command rules, `timing` is in memory clocks. `mapping[name]` lists (digit, radix) of (byte
    address // burst_bytes), least significant first. With `row_hit_first`, a precharge waits for older requests to the
    open row. `data_clock_stops`: the data clock of LPDDR5 stops in pauses. `posted_writes`: the controller answers a
    write that enters its queue, as those of DRAMsim3 and gem5; else when its command issues, as that of Ramulator 2.
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
    posted_writes: bool = False

    def __post_init__(self) -> None:
        check(self)

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
    return preset_file.build(Memory, values, source)


def check(memory: Memory) -> None:
    """Raise ValueError if a description is inconsistent."""
    if memory.style not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}, got {memory.style!r}")
    if memory.refresh not in REFRESH:
        raise ValueError(f"refresh must be one of {', '.join(REFRESH)}, got {memory.refresh!r}")
    counts = ["channels", "pseudo_channels", "ranks", "bank_groups", "banks_per_group", "rows"]
    counts += ["bursts_per_row", "burst_bytes", "clock_ps", "read_queue", "write_queue"]
    for key in counts:
        preset_file.positive(key, getattr(memory, key), memory.name, whole=True)
    _check_timing_names(memory)
    _check_timing(memory)
    _check_refresh(memory)
    _check_mapping(memory)


def _check_timing_names(memory: Memory) -> None:
    per_bank = PER_BANK[memory.style]
    if memory.refresh == "per-bank" and not per_bank:
        raise ValueError(f"refresh must be none or all-bank for style {memory.style}, got {memory.refresh!r}")
    required = {*TIMING, *BURST[memory.style], *(per_bank if memory.refresh == "per-bank" else ())}
    if missing := required - set(memory.timing):
        raise ValueError(f"timing {min(missing)} is missing")
    known = required | OPTIONAL[memory.style] | set(per_bank)
    if unknown := set(memory.timing) - known:
        raise ValueError(f"timing must have only keys of style {memory.style} ({', '.join(sorted(known))}), "
                         f"got {min(unknown)!r}")  # fmt: skip
    for key, clocks in memory.timing.items():
        preset_file.positive(f"timing {key}", clocks, memory.name, zero=key not in NOT_ZERO, whole=True)


def _check_timing(memory: Memory) -> None:
    """Distances that contradict each other, or columns closer than their data."""
    t, burst = memory.timing, memory.burst_clocks
    bounds = [
        ("ccd_s", f"the burst of {burst} clocks", burst),
        ("ccd_l", "ccd_s", t["ccd_s"]),
        ("rrd_l", "rrd_s", t["rrd_s"]),
        ("wtr_l", "wtr_s", t["wtr_s"]),
        ("faw", "rrd_s", t["rrd_s"]),
        ("rp_all", "rp", t["rp"]),
        ("ras", "rcd_read", t["rcd_read"]),
        ("rc", f"ras + rp = {t['ras'] + t['rp']}", t["ras"] + t["rp"]),
    ]
    if memory.style == "lpddr5":
        bounds += [("bl_max", "bl_min", t["bl_min"]), ("aad", "1", 1)]
        if t.get("cas", 0) > 1:
            raise ValueError(f"timing cas must be at most 1, got {t['cas']}: the access follows in the next clock")
    for key, what, bound in bounds:
        if t[key] < bound:
            of = what if what.isdigit() or "=" in what or "burst" in what else f"{what} = {bound}"
            raise ValueError(f"timing {key} must be at least {of}, got {t[key]}")


def _check_refresh(memory: Memory) -> None:
    """Refreshes must leave time for an access between them."""
    t = memory.timing
    if t["refi"] <= t["rfc"]:
        raise ValueError(f"refresh must be shorter than its interval of {t['refi']} clocks, got {t['rfc']} clocks")
    access = t["rc"] + t["cwl"] + memory.burst_clocks + t["wr"]  # from an activate to the next, and recovery of a write
    shortest = t["rfc"] + t["rp_all"] + access + memory.ranks * memory.pseudo_channels
    if memory.refresh != "none" and t["refi"] < shortest:
        raise ValueError(f"timing refi must be at least {shortest} (rfc + rp_all + an access), got {t['refi']}")
    if memory.refresh == "per-bank":
        distance = t["rrefd"] if memory.style == "hbm" else max(t["pbr_to_pbr"], t["pbr_to_act"])
        shortest = t["rp"] + access + distance
        if t["refi_bank"] < shortest:
            raise ValueError(f"timing refi_bank must be at least {shortest} (rp + an access + distance to other "
                             f"banks), got {t['refi_bank']}")  # fmt: skip
        banks = memory.pseudo_channels * memory.ranks * memory.bank_groups * memory.banks_per_group
        if t["refi_bank"] * banks < t["rfc_bank"] + access:
            raise ValueError(f"timing rfc_bank must be below {t['refi_bank'] * banks - access}, got {t['rfc_bank']}")


def _check_mapping(memory: Memory) -> None:
    fields = [memory.channels, memory.pseudo_channels, memory.ranks, memory.bank_groups]
    fields += [memory.banks_per_group, memory.rows, memory.bursts_per_row]
    sizes = dict(zip(DIGITS, fields, strict=True))
    for name, digits in memory.mapping.items():
        product = dict.fromkeys(DIGITS, 1)
        for digit, radix in digits:
            if digit not in DIGITS or not isinstance(radix, int) or radix < 1:
                raise ValueError(f"mapping {name} must have valid digits, got ({digit!r}, {radix!r})")
            product[digit] *= radix
        for digit, size in sizes.items():
            if product[digit] != size:
                raise ValueError(f"mapping {name} covers {product[digit]} of {size} values of {digit!r}")
