"""Argument checks the golden models share: a complaint names the argument, its value and what is valid."""

from collections.abc import Collection
from numbers import Integral, Real

import numpy as np


class KindError(TypeError, ValueError):
    """An argument of the wrong type or dtype: caught as either."""


def whole(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """`value` as an int in [low, high]. TypeError if it is not an integer, ValueError if out of range."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise KindError(f"{name} must be an integer, got {value!r}")
    number = int(value)
    if (low is not None and number < low) or (high is not None and number > high):
        raise ValueError(f"{name} must be {_span(low, high)}, got {number}")
    return number


def number(name: str, value: object, low: float | None = None, high: float | None = None) -> float:
    """`value` as a finite float in [low, high]. TypeError if it is no number, ValueError if out of range."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise KindError(f"{name} must be a number, got {value!r}")
    result = float(value)
    if not np.isfinite(result) or (low is not None and result < low) or (high is not None and result > high):
        raise ValueError(f"{name} must be finite and {_span(low, high)}, got {result}")
    return result


def flag(name: str, value: object) -> bool:
    """`value`, if it is True or False; TypeError otherwise."""
    if not isinstance(value, bool):
        raise KindError(f"{name} must be True or False, got {value!r}")
    return value


def choice(name: str, value: str, options: Collection[str]) -> str:
    """`value`, if it is one of `options`; ValueError otherwise."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(sorted(options))}, got {value!r}")
    return value


def reals(name: str, value: object, *shape: int | None) -> np.ndarray:
    """`value` as a float64 array of the given shape (None: any extent; no shape: any number of axes).

    Raises TypeError for what is not numeric and ValueError for a wrong shape, a NaN or an infinity.
    """
    try:
        array = np.asarray(value).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise KindError(f"{name} must be an array of real numbers, got {type(value).__name__}") from error
    _shaped(name, array, shape)
    if not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[where]} at index {where}")
    return array


def wholes(name: str, value: object, *shape: int | None, low: int | None = None, high: int | None = None) -> np.ndarray:
    """`value` as an int64 array of the given shape with every element in [low, high].

    Raises TypeError for a non-integer dtype and ValueError for a wrong shape or an element out of range.
    """
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise KindError(f"{name} must be an array of integers, got dtype {array.dtype}")
    array = array.astype(np.int64)
    _shaped(name, array, shape)
    bad = np.zeros(array.shape, bool)
    if low is not None:
        bad |= array < low
    if high is not None:
        bad |= array > high
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(f"{name} must be {_span(low, high)}, got {array[where]} at index {where}")
    return array


def _shaped(name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    if not shape:
        return
    fits = array.ndim == len(shape) and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{name} must have shape ({wanted}), got {array.shape}")


def _span(low: float | None, high: float | None) -> str:
    if low is None and high is None:
        return "any value"
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"between {low} and {high}"
