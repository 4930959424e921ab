"""What the units of a core have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sw_model.cycles.core import CoreModel


class UnitModel(ABC):
    """A unit of the core."""

    def __init__(self, core: CoreModel):
        self.core, self.clock = core, core.clock

    @abstractmethod
    def begin(self) -> None:
        """Start its processes."""


def part(total: int, start: int, most: int) -> int:
    """How many of `total` things there are from number `start` on, at most `most`."""
    return min(max(total - start, 0), most)
