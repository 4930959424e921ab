"""Interface between a simulated memory port and a timing model of the memory."""

from __future__ import annotations

from typing import Protocol


class MemoryTiming(Protocol):
    """Timing model of a memory.

    Simulated AXI ports (`sim.bench.axi`) and the cycle model (`sw_model.cycles`) accept any object of this type.
    `sw_model.memory.live` has models of DRAM, PCIe and SSD.
    """

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First clock cycle of the answer to a burst of `nbytes` at byte `address` that arrives in `cycle`.

        Callers must call it in the order of arrival.
        """
        ...
