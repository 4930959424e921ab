"""One run as plain values: what `vrex model` is asked, what a row of a sweep is, and what a result file repeats.

Values that a row may set: `system`, `policy`, `workload`, `tokens`, `batch`, `link`, `ratio`, `memory_detail`, any
field of the assumptions as `assume.NAME`, and any number of the system as `PART.NAME` (`link.nominal_gbps`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sw_model import workloads
from sw_model.assumptions import LINKS, Assumptions
from sw_model.model import run
from sw_model.policies import DEFAULT, load
from sw_model.result import Result
from sw_model.systems import TABLES, System, load_system
from sw_model.workloads import Workload
from util import checks, text
from util.files import read_json

WORKLOADS = {
    "frame": workloads.frame,
    "text": workloads.text,
    "coin": workloads.coin_session,
    "stream": lambda tokens, batch: workloads.stream(math.ceil(tokens / workloads.LLAMA3_8B.tokens_per_frame), batch),
}
_known_system = lru_cache(maxsize=64)(load_system)


@dataclass(frozen=True)
class Request:
    """A run to be made.

    workload  `frame`: one frame on `tokens` of context; `text`: one generated token; `coin`: the mean COIN session
              on top of `tokens`; `stream`: frames from an empty context up to `tokens`
    ratio     share of the context retrieved; None: published
    changes   `assume.NAME` and `PART.NAME` with their values

    Raises ValueError, on construction, naming a value that no run can have.
    """

    system: str = "vrex8"
    policy: str = DEFAULT
    workload: str = "frame"
    tokens: int = 40000
    batch: int = 1
    link: str = "paper"
    ratio: float | None = None
    memory_detail: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.one_of("workload", self.workload, tuple(WORKLOADS))
        checks.one_of("link", self.link, LINKS)
        checks.integer("tokens", self.tokens, 1)
        checks.integer("batch", self.batch, 1)
        if self.ratio is not None:
            checks.real("ratio", self.ratio, 0, 1)
        if not isinstance(self.memory_detail, bool):
            raise ValueError(f"memory_detail must be true or false, got {self.memory_detail!r}")
        load(self.policy)
        self.assumptions()
        self.machine()

    def replace(self, **values: Any) -> Request:
        """A copy with some values changed; `changes` are added to those there are."""
        changes = {**self.changes, **values.pop("changes", {})}
        return replace(self, changes=changes, **values)

    def assumptions(self) -> Assumptions:
        given = {key.removeprefix("assume."): v for key, v in self.changes.items() if key.startswith("assume.")}
        known = {f.name for f in fields(Assumptions)}
        if unknown := set(given) - known:
            raise ValueError(f"assume.{min(unknown)} is not an assumption: one of {', '.join(sorted(known))}")
        return Assumptions(**given)

    def machine(self) -> System:
        """The system with the changes made, checked for physics."""
        system = _known_system(self.system)
        parts: dict[str, dict[str, Any]] = {}
        for key, value in self.changes.items():
            part, _, name = key.partition(".")
            if part != "assume":
                if part not in TABLES or not name:
                    raise ValueError(f"{key!r} cannot be set: assume.NAME, or NAME of one of {', '.join(TABLES)}")
                if getattr(system, part) is None:
                    raise ValueError(f"{key!r} cannot be set: {system.name} has no {part}")
                parts.setdefault(part, {})[name] = value
        return system.replace(**parts) if parts else system

    def load(self) -> Workload:
        return WORKLOADS[self.workload](self.tokens, self.batch)

    def run(self) -> Result:
        return run(
            self.machine(),
            self.policy,
            self.load(),
            link=self.link,
            assume=self.assumptions(),
            ratio=self.ratio,
            memory_detail=self.memory_detail,
        )

    def json(self) -> dict[str, Any]:
        """Plain values from which `parse` makes the request again."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "changes"}
        return plain | dict(self.changes)


def parse(values: Mapping[str, Any]) -> Request:
    """A request from plain values; a key with a dot is a change. Raises ValueError for an unknown key."""
    names = {f.name for f in fields(Request)} - {"changes"}
    changes = {key: value for key, value in values.items() if "." in key}
    plain = {key: value for key, value in values.items() if "." not in key}
    if unknown := set(plain) - names:
        known = ", ".join(sorted(names))
        raise ValueError(f"unknown key {min(unknown)!r}: one of {known}, assume.NAME or PART.NAME")
    for key in ("system", "policy", "workload", "link"):
        if not isinstance(plain.get(key, ""), str):
            raise ValueError(f"{key} must be a name, got {plain[key]!r}")
    try:
        return Request(**plain, changes=changes)
    except TypeError as error:
        raise ValueError(str(error)) from None


def value_of(pair: str) -> tuple[str, Any]:
    """`name=value` as a change. Raises ValueError if it is not of that form."""
    name, found, said = pair.partition("=")
    if not found or "." not in name:
        raise ValueError(f"--set {pair!r}: must be assume.NAME=VALUE or PART.NAME=VALUE")
    for kind in (int, float):
        try:
            return name, kind(said)
        except ValueError:
            continue
    return name, said


UNIT_POWER = {
    "dpe": "dpe_mw",
    "vpe": "vpe_mw",
    "hcu": "hcu_mw",
    "wtu": "wtu_mw",
    "wtu_sweep": "wtu_mw",
    "kvmu": "kvmu_mw",
}


def synthesised_power(path: Path) -> dict[str, float]:
    """Changes that replace Table III's powers by those of a synthesis report (`vrex synth --power --json`): for each of
    its units the largest over its stimuli, estimated memories included. Raises ValueError if it has none."""
    told = read_json(path, "power report")
    try:
        units = [(unit["unit"], unit["power"]) for unit in told if unit["unit"] in UNIT_POWER and unit.get("power")]
        powers = {name: max(p["total_mw"] + p["memories_mw_estimated"] for p in runs) for name, runs in units}
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"power report {path} is not what `vrex synth --power --json` prints: {error}") from None
    if not powers:
        raise ValueError(f"power report {path} has no power of {', '.join(UNIT_POWER)}")
    return {f"power.{UNIT_POWER[name]}": value for name, value in powers.items()}


def recall(path: Path, row: int = 0) -> Request:
    """The request of a result file: of a run, or of a row of a sweep. Raises ValueError if it has none."""
    told = read_json(path, "run file")
    rows = told.get("table") if isinstance(told, dict) else told
    if isinstance(told, dict) and isinstance(told.get("request"), dict):
        asked = told["request"]
    elif not isinstance(rows, list) or not all(isinstance(one, dict) for one in rows):
        raise ValueError(f"run file {path} holds neither a run nor a sweep")
    elif not 0 <= row < len(rows):
        raise ValueError(f"row {row} must lie in 0..{len(rows) - 1}: {path} has {len(rows)} rows")
    else:
        names = {f.name for f in fields(Request)}
        beginnings = ("assume.", *(part + "." for part in TABLES))
        asked = {key: value for key, value in rows[row].items() if key in names or key.startswith(beginnings)}
    try:
        return parse(asked)
    except ValueError as error:
        raise ValueError(f"run file {path}: {error}") from None


def figures(result: Result) -> dict[str, float | int | bool | str]:
    """What a run gave as one flat row: latency, rates, energy, memory, and per stage and resource."""
    row: dict[str, float | int | bool | str] = {
        "total_ms": result.total_s * 1e3,
        "fps": result.fps,
        "energy_j": result.total_j,
        "flops": result.flops,
        "memory_bytes": result.memory_bytes,
        "fits": result.fits,
    }
    row |= {f"exposed_ms.{stage}": t.exposed_s * 1e3 for stage, t in result.stages.items()}
    row |= {f"bytes.{name}": count for name, count in result.bytes_moved.items()}
    row |= {f"utilisation.{name}": share for name, share in result.utilisation.items()}
    return row | {f"energy_j.{part}": joules for part, joules in result.energy_j.items()}


def as_text(request: Request, result: Result) -> str:
    """A run as a table of stages, with what it moves and draws."""
    total = result.total_s
    rows = [
        (stage, f"{t.exposed_s * 1e3:.3f}", f"{100 * t.exposed_s / total:.1f}", f"{t.busy_s * 1e3:.3f}")
        for stage, t in result.stages.items()
    ]
    rows.append(("total", f"{total * 1e3:.3f}", "100.0", ""))
    moved = ", ".join(f"{name} {count / 1e9:.3f} GB" for name, count in result.bytes_moved.items())
    used = ", ".join(f"{name} {share:.0%}" for name, share in result.utilisation.items())
    drawn = ", ".join(f"{part} {joules:.3f} J" for part, joules in result.energy_j.items())
    fits = "" if result.fits else f", more than the {request.machine().device_memory.capacity_gb:g} GB there are"
    return "\n".join(
        [
            f"{result.policy} on {result.system}, {result.workload}, {result.link} link: {result.fps:.2f} steps/s",
            text.table(("stage", "waited ms", "%", "busy ms"), rows),
            f"moved   {moved}",
            f"busy    {used}",
            f"energy  {result.total_j:.3f} J: {drawn}",
            f"memory  {result.memory_bytes / 1e9:.1f} GB{fits}",
        ]
    )


def report(request: Request, result: Result) -> dict[str, Any]:
    """A run as JSON: the request, its figures and the numbers it stands on."""
    facts = [{"name": f.name, "value": f.value, "unit": f.unit, "origin": f.origin, "source": f.source}
             for f in result.facts]  # fmt: skip
    return {"request": request.json(), "figures": figures(result), "facts": facts}
