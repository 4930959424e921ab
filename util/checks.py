"""Checks of arguments.

Every function returns the checked value in a normal form (int, float, NumPy array) or raises an error of the form
`<name> must be <what is valid>, got <value>`.
"""

from collections.abc import Collection
from numbers import Integral, Real

import numpy as np


class ArgumentTypeError(TypeError, ValueError):
    """Wrong type or dtype of an argument. Handlers of TypeError and of ValueError both catch it."""


def integer(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Check that `value` is an integer in [low, high] and return it as int.

    Parameters
    ----------
    name : name of the argument in the error message
    value : Python or NumPy integer; bool is not accepted
    low, high : inclusive bounds; None: no bound

    Raises
    ------
    ArgumentTypeError
        `value` is not an integer.
    ValueError
        `value` is outside the bounds.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ArgumentTypeError(f"{name} must be an integer, got {value!r}")
    result = int(value)
    if (low is not None and result < low) or (high is not None and result > high):
        raise ValueError(f"{name} must be {_range_text(low, high)}, got {result}")
    return result


def real(name: str, value: object, low: float | None = None, high: float | None = None) -> float:
    """Check that `value` is a finite real number in [low, high] and return it as float.

    Parameters and errors as for `integer`; integers are accepted. NaN and infinities raise ValueError.
    """
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ArgumentTypeError(f"{name} must be a number, got {value!r}")
    result = float(value)
    if not np.isfinite(result) or (low is not None and result < low) or (high is not None and result > high):
        limits = "" if low is None and high is None else f" and {_range_text(low, high)}"
        raise ValueError(f"{name} must be finite{limits}, got {result}")
    return result


def flag(name: str, value: object) -> bool:
    """Check that `value` is True or False and return it; ArgumentTypeError otherwise (0 and 1 are not accepted)."""
    if not isinstance(value, bool):
        raise ArgumentTypeError(f"{name} must be True or False, got {value!r}")
    return value


def one_of(name: str, value: str, options: Collection[str]) -> str:
    """Check that `value` is one of `options` and return it; ValueError otherwise."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(sorted(options))}, got {value!r}")
    return value


def reals(name: str, value: object, *shape: int | None) -> np.ndarray:
    """Check an array of finite real numbers and return it as float64.

    Parameters
    ----------
    name : name of the argument in the error message
    value : anything that NumPy converts to an array of numbers
    shape : required extent of every axis, None for any extent; without it, any shape is accepted

    Raises
    ------
    ArgumentTypeError
        `value` is not numeric.
    ValueError
        The shape is wrong, or an element is a NaN or an infinity. The message gives the index of the element.
    """
    try:
        array = np.asarray(value).astype(np.float64)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(f"{name} must be an array of real numbers, got {type(value).__name__}") from error
    _check_shape(name, array, shape)
    if not np.isfinite(array).all():
        index = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} must be finite, got {array[index]} at index {index}")
    return array


def integers(
    name: str, value: object, *shape: int | None, low: int | None = None, high: int | None = None
) -> np.ndarray:
    """Check an array of integers in [low, high] and return it as int64.

    Parameters as for `reals` and `integer`. An empty array of any dtype is accepted.

    Raises
    ------
    ArgumentTypeError
        The dtype is not an integer type.
    ValueError
        The shape is wrong, or an element is outside the bounds. The message gives the index of the element.
    """
    array = np.asarray(value)
    if array.size == 0:
        array = array.astype(np.int64)
    if not np.issubdtype(array.dtype, np.integer):
        raise ArgumentTypeError(f"{name} must be an array of integers, got dtype {array.dtype}")
    array = array.astype(np.int64)
    _check_shape(name, array, shape)
    invalid = np.zeros(array.shape, bool)
    if low is not None:
        invalid |= array < low
    if high is not None:
        invalid |= array > high
    if invalid.any():
        index = tuple(int(i) for i in np.argwhere(invalid)[0])
        raise ValueError(f"{name} must be {_range_text(low, high)}, got {array[index]} at index {index}")
    return array


def _check_shape(name: str, array: np.ndarray, shape: tuple[int | None, ...]) -> None:
    if not shape:
        return
    matches = array.ndim == len(shape) and all(
        expected is None or expected == actual for expected, actual in zip(shape, array.shape, strict=True)
    )
    if not matches:
        expected_text = ", ".join("any" if extent is None else str(extent) for extent in shape)
        raise ValueError(f"{name} must have shape ({expected_text}), got {array.shape}")


def _range_text(low: float | None, high: float | None) -> str:
    if high is None:
        return f"at least {low}"
    return f"at most {high}" if low is None else f"between {low} and {high}"
