"""Callback type with which long-running functions report progress."""

from collections.abc import Callable

Progress = Callable[[str, int, int], None]
"""Called as `progress(what, done, total)`: description of the work, items done, items in all (0: unknown)."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the report. Default of every `progress` parameter."""
