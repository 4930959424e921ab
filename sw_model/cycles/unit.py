"""Base class of the models of execution units."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sw_model.cycles.state import CoreState


class UnitModel(ABC):
    """Model of one execution unit."""

    def __init__(self, core: CoreState):
        self.core, self.clock = core, core.clock

    @abstractmethod
    def begin(self) -> None:
        """Start the processes of the unit."""


def remaining(total: int, start: int, limit: int) -> int:
    """Number of items of `total` from number `start` on, at most `limit`."""
    return min(max(total - start, 0), limit)
