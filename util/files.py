"""Result files: written under a temporary name and renamed, so that readers never see an incomplete file."""

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

MAX_BYTES = 512 << 20  # largest file that `read_text` reads
ROOT = Path(__file__).resolve().parent.parent  # folder of the source tree, or of the installed packages


def write_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Write all files (name -> text or bytes) into `folder`, or none of them. Creates the folder if it is missing.

    All files are written under temporary names first, then renamed. Raises OSError (unwritable folder, full disk)
    without leaving an incomplete file.
    """
    temp_paths = {name: folder / f".{name}.{os.getpid()}" for name in files}
    name = next(iter(files), "")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            temp_paths[name].write_bytes(content.encode() if isinstance(content, str) else content)
        for name, path in temp_paths.items():
            path.replace(folder / name)
    except OSError as error:  # the error of a full disk has no file name
        raise OSError(error.errno, error.strerror, str(folder / name)) from error
    finally:
        for path in temp_paths.values():
            with contextlib.suppress(OSError):  # `folder` can be a file
                path.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Write one file, as `write_all` does."""
    write_all(path.parent, {path.name: content})


def write_json(path: Path, value: Any) -> None:
    """Write `value` as JSON, as `write_all` does."""
    write(path, json.dumps(value, indent=2) + "\n")


def read_text(path: Path) -> str:
    """Text of a file. OSError if it is unreadable or larger than `MAX_BYTES`, UnicodeDecodeError if not UTF-8."""
    with path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)  # devices can be endless
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MiB", str(path))
    return content.decode("utf-8")


def read_json(path: Path, kind: str) -> Any:
    """Value of a JSON file. ValueError with `kind` and path if the file is unreadable or not JSON."""
    try:
        return json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"{kind} {path}: {error.strerror or error}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # not UTF-8, not JSON, a number with too many digits, too deep nesting
        raise ValueError(f"{kind} {path} is not JSON: {error}") from None


def build_root() -> Path:
    """Folder of cached results: `$VREX_BUILD/synth`, else `build/synth` in the current folder."""
    return Path(os.environ.get("VREX_BUILD", "build")).absolute() / "synth"


def digest(*texts: str) -> str:
    """Hash of texts for cache keys: 16 hexadecimal digits of SHA-256."""
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def git_revision(folder: Path = ROOT) -> str | None:
    """Commit of a source tree (default: this one), with `-dirty` if files have changed; None outside a repository."""
    if (
        folder == ROOT and not (ROOT / "pyproject.toml").exists()
    ):  # an installed package can be inside another repository
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
    """Version of this project, from the installed package or the source tree."""
    try:
        return importlib.metadata.version("vrex-rtl")
    except importlib.metadata.PackageNotFoundError:
        return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])
