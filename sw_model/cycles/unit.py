"""What the units of a core have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sw_model.cycles.state import CoreState


class UnitModel(ABC):
    """A unit of the core."""

    def __init__(self, core: CoreState):
        self.core, self.clock = core, core.clock

    @abstractmethod
    def begin(self) -> None:
        """Start its processes."""


def part(total: int, start: int, most: int) -> int:
    """How many of `total` things there are from number `start` on, at most `most`."""
    return min(max(total - start, 0), most)
