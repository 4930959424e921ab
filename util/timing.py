"""Interface between a simulated memory port and a timing model of the memory."""

from __future__ import annotations

from typing import Protocol


class MemoryTiming(Protocol):
    """Timing model of a memory.

    Simulated AXI ports (`sim.bench.axi`) and the cycle model (`sw_model.cycles`) accept any object of this type.
    `sw_model.memory.live` has models of DRAM and PCIe, `live_drive` one of a drive behind PCIe.
    """

    def arrive(self, cycle: int, address: int, nbytes: int, write: bool) -> tuple[int, int]:
        """Earliest cycle of the answer to a burst, and the number of the burst for `confirm`.

        Callers must call it in the order of arrival.
        """
        ...

    def confirm(self, number: int, cycle: int) -> int:
        """Earliest cycle of the answer to burst `number` when all bursts that arrive up to `cycle` are known.

        The result is `cycle` when the answer can start now; otherwise callers ask again in the resulting cycle.
        """
        ...


class FinalTiming:
    """Base of timing models in which no burst delays an earlier one: `ready` is final."""

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst of `nbytes` at byte `address` that arrives in `cycle`."""
        raise NotImplementedError

    def arrive(self, cycle: int, address: int, nbytes: int, write: bool) -> tuple[int, int]:
        return self.ready(cycle, address, nbytes, write), 0

    def confirm(self, number: int, cycle: int) -> int:
        return cycle
