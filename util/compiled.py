"""Compilation of plain Python loops over arrays, with numba."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

PACKAGES = ("compiler", "golden", "hw", "sim", "sw_model", "synth", "util")


def compiled(function: Callable[..., Any], *, types: str = "", **options: Any) -> Callable[..., Any]:
    """Compile with numba's cache on disk, or without it where the cache folder is not writable.

    `types`: the function's types, such as `void(int64[::1], int64)`; without it they are those of the first call.

    numba compiles again if the file of the function has changed. The name in the cache contains a digest, so that a
    change in a file that this file uses, for example of a constant, does the same.
    """
    function.__qualname__ += f"_{_digest(function.__module__)}"
    try:
        return numba.njit(types or None, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        return numba.njit(types or None, error_model="numpy", **options)(function)


def _digest(name: str) -> str:
    """Digest of the module `name` and of the modules of the project that it imports, and that these import."""
    contents, names = dict[str, bytes](), {name}
    while names:
        name = names.pop()
        contents[name], imported = _module(name)
        names |= imported - contents.keys()
    return hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:16]


@cache
def _module(name: str) -> tuple[bytes, frozenset[str]]:
    """Content of the file of a loaded module, and the modules of the project that it imports."""
    path = getattr(sys.modules.get(name), "__file__", None)
    if path is None or name.split(".")[0] not in PACKAGES:
        return b"", frozenset()
    content, names = Path(path).read_bytes(), set[str]()
    for node in ast.walk(ast.parse(content)):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return content, frozenset(name for name in names if name in sys.modules and name.split(".")[0] in PACKAGES)


def unowned(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function that allocates no arrays, without reference counts of its arguments.

    Reference counts cost three to five times the time of a short loop. numba has no public option that removes them:
    `_nrt=False` switches off its run-time library NRT. `tests/test_library_internals.py` checks that it still does.
    """
    return compiled(function, _nrt=False, **options)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose code is inserted at every call from another compiled function."""
    return numba.njit(inline="always")(function)
