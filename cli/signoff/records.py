"""Records of evidence: one JSON file for each unit and kind of evidence.

Commands write records to `build/evidence`. `vrex signoff --keep` copies them to
`docs/evidence`, which is part of the repository.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cli.signoff.kinds import KINDS, sources
from hw.registry import UNITS
from util.files import ROOT, git_revision, read_json, write_json

KEPT = ROOT / "docs" / "evidence"
PASSED, FAILED, PARTIAL = RESULTS = ("passed", "failed", "partial")


@dataclass(frozen=True)
class Gap:
    """Something that the evidence does not show.

    what : the gap in words, with its number of points where there are several
    reason : why it is acceptable; None: no reason is known, the gap is open
    """

    what: str
    reason: str | None = None


@dataclass(frozen=True)
class Record:
    """Result of one check of one unit.

    Attributes
    ----------
    unit, kind : name of the unit in hw/registry.py; a name of `KINDS`
    result : `passed`; `failed`; `partial`: all that ran passed, but a part of the check was left out
    figures : numbers of the result
    gaps : what the check does not show
    date : time of the run in UTC, ISO 8601
    commit : revision of the source tree, with `-dirty` if files had changed
    command : command line that repeats the run
    design, checks : hashes of the sources of the unit and of the check (`cli.signoff.sources`)
    """

    unit: str
    kind: str
    result: str
    figures: Mapping[str, Any]
    gaps: tuple[Gap, ...]
    date: str
    commit: str
    command: str
    design: str
    checks: str
    path: Path | None = field(default=None, compare=False)

    @property
    def stale(self) -> bool:
        """True if the unit or the check has changed since the run."""
        return (self.design, self.checks) != sources(self.unit, self.kind)

    @property
    def time(self) -> datetime.datetime:
        return datetime.datetime.fromisoformat(self.date)

    @property
    def age_days(self) -> int:
        """Whole days since the run."""
        return max(0, (datetime.datetime.now(datetime.UTC) - self.time).days)

    def json(self) -> dict[str, Any]:
        values = {key: value for key, value in asdict(self).items() if key != "path"}
        return {**values, "gaps": [asdict(gap) for gap in self.gaps]}


def record(
    unit: str, kind: str, result: str, figures: Mapping[str, Any], gaps: Iterable[Gap] = (), *, command: str
) -> Record:
    """A record of a run that has just ended."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    design, checks = sources(unit, kind)
    revision = git_revision() or "unknown"
    return Record(unit, kind, result, dict(figures), tuple(gaps), now, revision, command, design, checks)


def in_source_tree() -> bool:
    """False for an installed package, which has no tests and keeps no evidence."""
    return (ROOT / "tests").is_dir()


def built() -> Path:
    """Folder of the records that commands write: `$VREX_EVIDENCE`, else `evidence` in the build folder."""
    build = Path(os.environ.get("VREX_BUILD", "build"))
    return Path(os.environ.get("VREX_EVIDENCE") or build / "evidence").absolute()


def file(folder: Path, unit: str, kind: str) -> Path:
    """File of a record in a folder of records."""
    return folder / unit / f"{kind}.json"


def save(new: Record, folder: Path | None = None) -> Path:
    """Write a record to a folder (default `built()`). A partial result does not replace a complete current one."""
    target = file(folder or built(), new.unit, new.kind)
    if new.result == PARTIAL and target.exists():
        old = read(target)
        if old.result != PARTIAL and not old.stale:
            return target
    write_json(target, new.json())
    return target


def read(path: Path) -> Record:
    """Read a record. ValueError that names the file and the key if it is not a valid record."""
    value = read_json(path, "record")
    if not isinstance(value, dict):
        raise ValueError(f"record {path}: must be a JSON object, got {type(value).__name__}")
    texts = ("unit", "kind", "result", "date", "commit", "command", "design", "checks")
    for key, kind, name in (*((key, str, "text") for key in texts), ("figures", dict, "an object")):
        if not isinstance(value.get(key), kind):
            raise ValueError(f"record {path}: {key} must be {name}, got {value.get(key)!r}")
    for key, known in (("unit", UNITS), ("kind", KINDS), ("result", RESULTS)):
        if value[key] not in known:
            raise ValueError(f"record {path}: {key} must be one of {', '.join(known)}, got {value[key]!r}")
    if (path.parent.name, path.stem) != (value["unit"], value["kind"]):
        raise ValueError(f"record {path}: path must end in {value['unit']}/{value['kind']}.json, got {path.name}")
    try:
        aware = datetime.datetime.fromisoformat(value["date"]).tzinfo is not None
    except ValueError:
        aware = False
    if not aware:
        raise ValueError(f"record {path}: date must be ISO 8601 with a time zone, got {value['date']!r}")
    gaps = value.get("gaps")
    if not isinstance(gaps, list) or not all(_is_gap(gap) for gap in gaps):
        raise ValueError(f"record {path}: gaps must be a list of objects with what and reason, got {gaps!r}")
    known_gaps = tuple(Gap(gap["what"], gap["reason"]) for gap in gaps)
    return Record(**{key: value[key] for key in texts}, figures=value["figures"], gaps=known_gaps, path=path)


def _is_gap(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"what", "reason"}:
        return False
    return isinstance(value["what"], str) and isinstance(value["reason"], str | None)


def latest(unit: str, kind: str, folders: Iterable[Path] | None = None) -> Record | None:
    """The record to show: one that is not stale before one that is, complete before partial, then the newest."""
    places = (built(), KEPT) if folders is None else tuple(folders)
    found = [read(path) for folder in places if (path := file(folder, unit, kind)).exists()]
    return max(found, key=lambda r: (not r.stale, r.result != PARTIAL, r.time), default=None)


def keep(folders: tuple[Path, Path] | None = None) -> list[Path]:
    """Copy the records of `built()` that are not stale, and not older than the kept ones, to `KEPT`."""
    source, target = folders or (built(), KEPT)
    copied = []
    for unit in UNITS:
        for kind in KINDS:
            new, old = latest(unit, kind, [source]), latest(unit, kind, [target])
            if new and not new.stale and new == latest(unit, kind, [source, target]) and new != old:
                copied.append(save(new, target))
    return copied
