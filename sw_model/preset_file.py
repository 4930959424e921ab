"""TOML preset files: presets by name, own files by path, and one form of error for all of them.

An error names the file, the key, what is valid, and the value.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

from util.files import read_text

PRESETS = Path(__file__).parent / "presets"
SMALLEST, LARGEST = 1e-15, 1e15  # of a number other than zero
T = TypeVar("T")


def names(folder: Path) -> list[str]:
    """Names of the presets in a folder, sorted."""
    return sorted(p.stem for p in folder.glob("*.toml"))


def find(name_or_path: str | Path, folder: Path, what: str) -> Path:
    """The file of a preset's name, or of a path that ends in .toml. Raises ValueError for an unknown name."""
    path = Path(name_or_path)
    if path.suffix == ".toml":
        return path
    preset = folder / f"{name_or_path}.toml"
    if not preset.is_file():
        raise ValueError(f"{what} must be one of {', '.join(names(folder))} or a .toml file, got {str(name_or_path)!r}")
    return preset


def read(path: Path, what: str) -> dict[str, Any]:
    """The parsed TOML of a file. Raises ValueError when the file cannot be read or is not TOML."""
    try:
        return tomllib.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{what} file {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, a number too long, nested too deep
        raise ValueError(f"{what} file {path} is not TOML: {error}") from None


def table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    """The table `key` of a parsed file. Raises ValueError when it is missing or is not a table."""
    value = data.get(key)
    if not isinstance(value, dict):
        raise ValueError(f"{where}: table [{key}] is missing")
    return value


def words(data: Mapping[str, Any], keys: Collection[str], where: str) -> dict[str, Any]:
    """The strings `keys` of a parsed file. Raises ValueError when one is missing or is not a string."""
    for key in keys:
        if not isinstance(data.get(key), str):
            raise ValueError(f"{where}: {key} is missing or not a string")
    return {key: data[key] for key in keys}


def sourced(entries: Mapping[str, Any], where: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and sources of entries `key = { value = 4, source = "..." }`; a plain string needs no source.

    Raises ValueError for a number without a source.
    """
    values, sources = {}, {}
    for key, entry in entries.items():
        if isinstance(entry, dict):
            if set(entry) != {"value", "source"}:
                raise ValueError(f"{where}{key} must have exactly a value and a source, got {', '.join(entry)}")
            values[key], sources[key] = entry["value"], entry["source"]
        elif isinstance(entry, str):
            values[key] = entry
        else:
            raise ValueError(f"{where}{key} must have a value and a source, got {entry!r}")
    return values, sources


def build(kind: type[T], values: Mapping[str, Any], where: str) -> T:
    """A dataclass from its fields. Raises ValueError for a missing, an unknown or an invalid field."""
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {str(error).removeprefix(f'{kind.__name__}.__init__() ')}") from None


def positive(name: str, value: Any, where: str, *, zero: bool = False, whole: bool = False) -> None:
    """Raise ValueError unless `value` is a number above zero, from SMALLEST to LARGEST, so that products are finite.

    zero   zero is valid too
    whole  only whole numbers are valid
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{where}: {name} must be a finite number, got {value!r}")
    if value < 0 or (value == 0 and not zero):
        raise ValueError(f"{where}: {name} must be {'at least 0' if zero else 'positive'}, got {value!r}")
    if value and not SMALLEST <= value <= LARGEST:
        raise ValueError(f"{where}: {name} must be between {SMALLEST:g} and {LARGEST:g}, got {value!r}")
    if whole and not isinstance(value, int):
        raise ValueError(f"{where}: {name} must be a whole number, got {value!r}")
