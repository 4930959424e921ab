"""Plain Python loops over arrays, compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile with the on-disk cache, or without it where no folder can be written."""
    try:
        return numba.njit(cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        return numba.njit(error_model="numpy", **options)(function)


def unowned(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile what makes no arrays of its own without counting references, which else every slice and every array in
    a call costs: three to five times the time of loops that do little else."""
    return compiled(function, _nrt=False)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """A part of a compiled function, put where it is called."""
    return numba.njit(inline="always")(function)
