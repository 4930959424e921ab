"""Compilation of plain Python loops over arrays, with numba."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], *, types: str = "", **options: Any) -> Callable[..., Any]:
    """Compile with numba's cache on disk, or without it where the cache folder is not writable.

    `types`: the function's types, such as `void(int64[::1], int64)`; without it they are those of the first call.
    """
    try:
        return numba.njit(types or None, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        return numba.njit(types or None, error_model="numpy", **options)(function)


def unowned(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function that allocates no arrays, without reference counts of its arguments.

    Reference counts cost three to five times the time of a short loop. numba has no public option that removes them:
    `_nrt=False` switches off its run-time library NRT. `tests/test_library_internals.py` checks that it still does.
    """
    return compiled(function, _nrt=False, **options)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function whose code is inserted at every call from another compiled function."""
    return numba.njit(inline="always")(function)
