"""The contract between a simulated memory port and a model of the memory behind it."""

from __future__ import annotations

from typing import Protocol


class MemoryTiming(Protocol):
    """When a memory answers a burst.

    Simulated AXI ports (`sim.bench.axi`) and the cycle model (`sw_model.cycles`) accept any object of this kind;
    `sw_model.memory.live` has those of DRAM, PCIe and SSD.
    """

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First clock cycle of the answer to a burst of `nbytes` at byte `address` that arrives in `cycle`.

        Callers must call it in the order of arrival.
        """
        ...
