"""Result files: written aside and renamed, so that none is ever half there."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any


def write_bytes(path: Path | str, content: bytes) -> None:
    """Raises OSError naming `path`; what was there before then still is."""
    path = Path(path)
    aside = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(content)
        aside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def write_json(path: Path | str, value: Any) -> None:
    write_bytes(path, json.dumps(value, indent=1).encode() + b"\n")
