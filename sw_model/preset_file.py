"""Descriptions in TOML: presets by name, files by path, and one style of error for all of them.

An error names the file, then the key, its value and what would be valid.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from util.files import read_text

PRESETS = Path(__file__).parent / "presets"
T = TypeVar("T")


def names(folder: Path) -> list[str]:
    """The presets of a folder."""
    return sorted(p.stem for p in folder.glob("*.toml"))


def find(name_or_path: str | Path, folder: Path, what: str) -> Path:
    """The file of a preset's name or, when it ends in .toml, of a path. Raises ValueError for an unknown name."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    preset = folder / f"{name_or_path}.toml"
    if not preset.is_file():
        raise ValueError(f"unknown {what} {str(name_or_path)!r}: one of {', '.join(names(folder))}")
    return preset


def read(path: Path, what: str) -> dict[str, Any]:
    """A TOML file. Raises ValueError when it cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{what} file {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number too long, too deep
        raise ValueError(f"{what} file {path} is not TOML: {error}") from None


def table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The table `key` of a description. Raises ValueError when there is none."""
    if not isinstance(found := data.get(key), dict):
        raise ValueError(f"{where}: table [{key}] is missing")
    return found


def words(data: Mapping[str, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """The strings `keys` of a description. Raises ValueError when one is missing or something else."""
    for key in keys:
        if not isinstance(data.get(key), str):
            raise ValueError(f"{where}: {key} is missing or not a string")
    return {key: data[key] for key in keys}


def sourced(entries: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and sources of entries `key = { value = 4, source = "..." }`; a plain string needs no source. Raises
    ValueError for a number without one."""
    values, sources = {}, {}
    for key, entry in entries.items():
        if isinstance(entry, dict):
            if set(entry) != {"value", "source"}:
                raise ValueError(f"{where}{key} needs exactly a value and a source")
            values[key], sources[key] = entry["value"], entry["source"]
        elif isinstance(entry, str):
            values[key] = entry
        else:
            raise ValueError(f"{where}{key} = {entry!r} has no source beside it")
    return values, sources


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass from its fields. Raises ValueError for a missing or an unknown one, or one that it refuses."""
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}") from None


def positive(name: str, value: Any, where: str, *, zero: bool = False, whole: bool = False) -> None:
    """Raise ValueError unless `value` is a finite number above zero (or zero), whole if it has to be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}: {name} = {value!r} is not a finite number")
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{where}: {name} = {value!r} must {'not be negative' if zero else 'be positive'}")
    if whole and not isinstance(value, int):
        raise ValueError(f"{where}: {name} = {value!r} must be a whole number")
