"""A run as plain values: the options of `vrex model`, a row of a sweep, and the request in a result file.

Keys of a request are `system`, `policy`, `workload`, `tokens`, `batch`, `link`, `retrieval_ratio`, `memory_detail`,
each field of the assumptions as `assume.NAME`, each parameter of a serving simulation as `serve.NAME`, and each number
of the system as `TABLE.NAME` (`link.nominal_gbps`, `core.cores`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from sw_model import workloads
from sw_model.assumptions import LINKS, Assumptions
from sw_model.model import run
from sw_model.policies import DEFAULT, load
from sw_model.result import Result
from sw_model.serving.capacity import Capacity, capacity
from sw_model.serving.parameters import Serving
from sw_model.serving.result import ServingResult
from sw_model.serving.simulate import simulate
from sw_model.serving.step_times import StepTimes, step_times
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
# workloads of many streams
SIMULATIONS: dict[str, Callable[..., ServingResult | Capacity]] = {"serve": simulate, "capacity": capacity}
_cached_system = lru_cache(maxsize=64)(load_system)


@dataclass(frozen=True)
class Request:
    """The description of one run.

    system         name of a system preset, or path of a TOML file
    policy         name of a policy, or path of a Python file
    workload       `frame`: one frame after `tokens` of context; `text`: one generated token; `coin`: the mean COIN
                   session after `tokens` of context; `stream`: frames from an empty context up to `tokens`; `serve`:
                   a serving simulation; `capacity`: the number of streams that hold a limit of the latency
    tokens         context length in tokens; of a serving simulation, of every stream at the start
    batch          streams at once; of a serving simulation, the largest number in one step
    link           `paper` or `realistic` (`sw_model.rates.rates_of`)
    retrieval_ratio  share of the past tokens that the policy retrieves, 0 to 1; None: published
    memory_detail  the reads of KV are replayed bank by bank
    changes        values of `assume.NAME`, `serve.NAME` and `TABLE.NAME`

    Raises ValueError, on construction, for a value that no run can have.
    """

    system: str = "vrex8"
    policy: str = DEFAULT
    workload: str = "frame"
    tokens: int = 40000
    batch: int = 1
    link: str = "paper"
    retrieval_ratio: float | None = None
    memory_detail: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checks.one_of("workload", self.workload, (*WORKLOADS, *SIMULATIONS))
        checks.one_of("link", self.link, LINKS)
        checks.integer("tokens", self.tokens, 1)
        checks.integer("batch", self.batch, 1)
        if self.retrieval_ratio is not None:
            checks.real("retrieval_ratio", self.retrieval_ratio, 0, 1)
        if not isinstance(self.memory_detail, bool):
            raise ValueError(f"memory_detail must be true or false, got {self.memory_detail!r}")
        load(self.policy)
        self.assumptions()
        self.serving()
        self.machine()

    def replace(self, **values: Any) -> Request:
        """A copy with other values; `changes` are added to the changes of this request."""
        changes = {**self.changes, **values.pop("changes", {})}
        return replace(self, changes=changes, **values)

    def assumptions(self) -> Assumptions:
        """The assumptions of the system with their changes. Raises ValueError for an unknown or invalid one."""
        return Assumptions(**(_cached_system(self.system).assume | self._values("assume", Assumptions)))

    def serving(self) -> Serving:
        """The parameters of a serving simulation. Raises ValueError for an unknown or invalid one."""
        return Serving(**self._values("serve", Serving))

    def _values(self, table: str, kind: type[Assumptions] | type[Serving]) -> dict[str, Any]:
        """The changes of a table by name. Raises ValueError for a name that is no field of `kind`."""
        values = {key.removeprefix(f"{table}."): v for key, v in self.changes.items() if key.startswith(f"{table}.")}
        valid = {f.name for f in fields(kind)}
        if unknown := set(values) - valid:
            raise ValueError(f"{table}.NAME must be one of {', '.join(sorted(valid))}, got {min(unknown)!r}")
        return values

    def machine(self) -> System:
        """The system with its changes, checked for physics. Raises ValueError for an unknown or invalid one."""
        system = _cached_system(self.system)
        tables: dict[str, dict[str, Any]] = {}
        for key, value in self.changes.items():
            table, _, name = key.partition(".")
            if table not in ("assume", "serve"):
                if table not in TABLES or not name:
                    valid = f"assume.NAME, serve.NAME or NAME in {', '.join(TABLES)}"
                    raise ValueError(f"key of a change must be {valid}, got {key!r}")
                tables.setdefault(table, {})[name] = value
        return system.replace(**tables) if tables else system

    def load(self) -> Workload:
        """The workload. Raises ValueError for a serving simulation, which is no sequence of phases."""
        if self.workload in SIMULATIONS:
            raise ValueError(f"workload of one run must be one of {', '.join(WORKLOADS)}, got {self.workload!r}")
        return WORKLOADS[self.workload](self.tokens, self.batch)

    def run(self) -> Result:
        """The result of the run."""
        return run(
            self.machine(),
            self.policy,
            self.load(),
            link=self.link,
            assume=self.assumptions(),
            ratio=self.retrieval_ratio,
            memory_detail=self.memory_detail,
        )

    def figures(self) -> dict[str, Any]:
        """The result of the run, or of the serving simulation, as one flat row."""
        if self.workload not in SIMULATIONS:
            return figures(self.run())
        return SIMULATIONS[self.workload](self.serving(), self.step_times(), self.tokens, self.batch).figures()

    def step_times(self) -> StepTimes:
        """The times of the steps of a serving simulation; equal requests of one process share them."""
        return step_times(
            self.machine(), self.policy, self.serving().question_tokens, self.link, self.assumptions(),
            self.retrieval_ratio, self.memory_detail,
        )  # fmt: skip

    def json(self) -> dict[str, Any]:
        """Plain values from which `parse` makes the same request."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "changes"}
        return plain | dict(self.changes)


def parse(values: Mapping[str, Any]) -> Request:
    """A request from plain values; a key with a dot is a change. Raises ValueError for an invalid key or value."""
    names = {f.name for f in fields(Request)} - {"changes"}
    changes = {key: value for key, value in values.items() if "." in key}
    plain = {key: value for key, value in values.items() if "." not in key}
    if unknown := set(plain) - names:
        valid = ", ".join(sorted(names))
        raise ValueError(f"key must be one of {valid}, assume.NAME, serve.NAME or TABLE.NAME, got {min(unknown)!r}")
    for key in ("system", "policy", "workload", "link"):
        if not isinstance(plain.get(key, ""), str):
            raise ValueError(f"{key} must be a name, got {plain[key]!r}")
    try:
        return Request(**plain, changes=changes)
    except TypeError as error:
        raise ValueError(str(error)) from None


def value_of(pair: str) -> tuple[str, Any]:
    """The key and value of `NAME=VALUE`. Raises ValueError for another form."""
    name, equals, value = pair.partition("=")
    if not equals or "." not in name:
        raise ValueError(f"--set must be assume.NAME=VALUE, serve.NAME=VALUE or TABLE.NAME=VALUE, got {pair!r}")
    for kind in (int, float):
        try:
            return name, kind(value)
        except ValueError:
            continue
    return name, value


UNIT_POWER = {
    "dpe": "dpe_mw",
    "vpe": "vpe_mw",
    "hcu": "hcu_mw",
    "wtu": "wtu_mw",
    "wtu_sweep": "wtu_mw",
    "kvmu": "kvmu_mw",
}


def synthesised_power(path: Path) -> dict[str, float]:
    """Changes that replace the unit powers of V-Rex Table III by those of a report of `vrex synth --power --json`.

    The power of a unit is the largest one of its stimuli, estimated memories included. Units that the report does not
    have keep the power of Table III. Raises ValueError for a file that is no such report.
    """
    report = read_json(path, "power report")
    try:
        units = [(unit["unit"], unit["power"]) for unit in report if unit["unit"] in UNIT_POWER and unit.get("power")]
        powers = {name: max(p["total_mw"] + p["memories_mw_estimated"] for p in runs) for name, runs in units}
    except (AttributeError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"power report {path} is not what `vrex synth --power --json` prints: {error}") from None
    if not powers:
        raise ValueError(f"power report {path} has no power of {', '.join(UNIT_POWER)}")
    return {f"power.{UNIT_POWER[name]}": value for name, value in powers.items()}


def recall(path: Path, row: int = 0) -> Request:
    """The request in a result file: that of a run, or of one row of a sweep. Raises ValueError when there is none."""
    content = read_json(path, "run file")
    rows = content.get("table") if isinstance(content, dict) else content
    if isinstance(content, dict) and isinstance(content.get("request"), dict):
        values = content["request"]
    elif not isinstance(rows, list) or not all(isinstance(entry, dict) for entry in rows):
        raise ValueError(f"run file {path} holds neither a run nor a sweep")
    elif not 0 <= row < len(rows):
        raise ValueError(f"row must be between 0 and {len(rows) - 1} in {path}, got {row}")
    else:
        names = {f.name for f in fields(Request)}
        prefixes = ("assume.", "serve.", *(table + "." for table in TABLES))
        values = {key: value for key, value in rows[row].items() if key in names or key.startswith(prefixes)}
    try:
        return parse(values)
    except ValueError as error:
        raise ValueError(f"run file {path}: {error}") from None


def figures(result: Result) -> dict[str, float | int | bool | str]:
    """A result as one flat row: latency, rates, energy, memory, and values per stage and resource."""
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
    return row | {f"energy_j.{consumer}": joules for consumer, joules in result.energy_j.items()}


def as_text(request: Request, result: Result) -> str:
    """A result as a table of stages, then bytes, utilisation, energy and memory."""
    total = result.total_s
    rows = [
        (stage, f"{t.exposed_s * 1e3:.3f}", f"{100 * t.exposed_s / total:.1f}", f"{t.busy_s * 1e3:.3f}")
        for stage, t in result.stages.items()
    ]
    rows.append(("total", f"{total * 1e3:.3f}", "100.0", ""))
    traffic = ", ".join(f"{name} {count / 1e9:.3f} GB" for name, count in result.bytes_moved.items())
    busy = ", ".join(f"{name} {share:.0%}" for name, share in result.utilisation.items())
    energy = ", ".join(f"{consumer} {joules:.3f} J" for consumer, joules in result.energy_j.items())
    capacity_gb = request.machine().device_memory.capacity_gb
    limit = "" if result.fits else f", more than the device memory of {capacity_gb:g} GB"
    return "\n".join(
        [
            f"{result.policy} on {result.system}, {result.workload}, {result.link} link: {result.fps:.2f} steps/s",
            text.table(("stage", "waited ms", "%", "busy ms"), rows),
            f"moved   {traffic}",
            f"busy    {busy}",
            f"energy  {result.total_j:.3f} J: {energy}",
            f"memory  {result.memory_bytes / 1e9:.1f} GB{limit}",
        ]
    )


def report(request: Request, result: Result) -> dict[str, Any]:
    """A run as JSON: the request, its figures, and the numbers behind them."""
    facts = [{"name": f.name, "value": f.value, "unit": f.unit, "origin": f.origin, "source": f.source}
             for f in result.facts]  # fmt: skip
    return {"request": request.json(), "figures": figures(result), "facts": facts}
