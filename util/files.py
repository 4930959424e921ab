"""Results on disk: written aside and renamed, so that no reader ever meets half a file."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.metadata
import json
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 512 << 20  # of a text that is read whole
ROOT = Path(__file__).resolve().parent.parent  # of the source tree, or of the installed packages


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write every file (name -> text or bytes) into `folder`, made when missing: all aside first, then all renamed.

    Raises `OSError` (unwritable folder, full disk) without leaving a half-written file.
    """
    temp_paths = {name: folder / f".{name}.{os.getpid()}" for name in files}
    name = next(iter(files), "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            temp_paths[name].write_bytes(content.encode() if isinstance(content, str) else content)
        for name, path in temp_paths.items():
            path.replace(folder / name)
    except OSError as error:  # a full disk's names no file
        raise OSError(error.errno, error.strerror, str(folder / name)) from error
    finally:
        for path in temp_paths.values():
            with contextlib.suppress(OSError):  # a folder that is a file
                path.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Write one file, as `write_all` does."""
    write_all(path.parent, {path.name: content})


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, as `write_all` does."""
    write(path, json.dumps(value, indent=2) + "\n")


def read_text(path: Path) -> str:
    """The text of a file; `OSError` when it cannot be read or is above `MAX_BYTES`, `UnicodeDecodeError`."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)  # a device may have no end
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MiB", str(path))
    return content.decode("utf-8")


def read_json(path: Path, kind: str) -> Any:
    """The value of a JSON file; `ValueError` names `what` and the file when it cannot be read or is not JSON."""
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{kind} {path}: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number too long, too deep
        raise ValueError(f"{kind} {path} is not JSON: {error}") from None


def build_root() -> Path:
    """Where cached results live: `$VREX_BUILD/synth`, else `build/synth` of the current folder."""
    return Path(os.environ.get("VREX_BUILD", "build")).absolute() / "synth"


def digest(*texts: str) -> str:
    """Short content hash of some texts, as cache keys use it."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def git_revision(folder: Path = ROOT) -> str | None:
    """Commit of a source tree (this one), `-dirty` when it was changed since; None outside a repository."""
    if folder == ROOT and not (ROOT / "pyproject.toml").exists():  # installed, perhaps inside another repository
        return None
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty", "--exclude=*"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def version() -> str:
    """Version of this project: of the installed package, or of the source tree that is being run."""
    try:
        return importlib.metadata.version("vrex-rtl")
    except importlib.metadata.PackageNotFoundError:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
