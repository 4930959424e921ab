"""Memory timing burst by burst for simulated AXI ports: cycle in which the answer to a burst starts.

`DramTiming` runs the controller of `sw_model.memory.dram`, with the same compiled step of a channel. `PcieTiming`
models the link of `sw_model.memory.pcie` request by request: round trip, wire, tags. `live_drive.py` has the drive
behind the link. All count cycles of the core's clock.
"""

from collections import deque
from dataclasses import dataclass, field
from math import ceil, floor, inf

import numpy as np

from sw_model.memory import dram_kernel as k
from sw_model.memory.dram import digits_of, parameters
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import DIGITS, Memory
from util import checks
from util.timing import FinalTiming


class DramTiming:
    """DRAM behind an AXI port: the controller of `sw_model.memory.dram`, with bursts that arrive one after the other.

    Parameters
    ----------
    memory : description of the DRAM
    clock_mhz : clock of the port
    mapping : address mapping of the memory
    fixed_ns : delay of interconnect and PHY, added to every burst

    Raises ValueError for an unknown mapping, a clock of 0 or less and a negative delay.
    """

    OPEN = 1 << 12  # transfers whose state is kept

    def __init__(self, memory: Memory, clock_mhz: float = 800.0, mapping: str = "A", fixed_ns: float = 0.0):
        checks.one_of("mapping", mapping, memory.mapping)
        if not 0 < clock_mhz < inf:
            raise ValueError(f"clock_mhz must be positive, got {clock_mhz}")
        if not 0 <= fixed_ns < inf:
            raise ValueError(f"fixed_ns must be at least 0, got {fixed_ns}")
        self.memory, self.clock_mhz, self.mapping, self.fixed_ns = memory, clock_mhz, mapping, fixed_ns
        self.clocks_per_cycle = 1e6 / clock_mhz / memory.clock_ps
        self.fixed_cycles = fixed_ns * clock_mhz / 1000
        self.bursts = memory.capacity_bytes // memory.burst_bytes
        self.parameters = parameters(memory)
        digit, radix, weight = digits_of(memory, mapping)
        self.digits = (digit, radix, weight, np.zeros(len(digit), np.int64), np.zeros(len(DIGITS), np.int64))
        self.state = k.new_state(self.parameters, memory.channels, memory.pseudo_channels)
        self.ahead = tuple(array[0].copy() for array in self.state)
        self.pool = k.new_pool(0)
        self.transfers = k.new_transfers(self.OPEN, memory.channels)
        self.counter = np.zeros(1, np.int64)
        # bursts that are done in a clock: up to four posted writes enter their queue, and a command issues
        self.scratch = (np.zeros((2, 8, 2), np.int64), np.zeros(2, np.int64), np.zeros(k.N_STATS, np.int64))

    def _arrive(self, cycle: int, address: int, nbytes: int, write: bool, exact: bool) -> int:
        if nbytes < 1:
            raise ValueError(f"nbytes must be at least 1, got {nbytes}")
        if address < 0:
            raise ValueError(f"address must be at least 0, got {address}")
        burst_bytes = self.memory.burst_bytes
        first, last = address // burst_bytes, (address + nbytes - 1) // burst_bytes
        count = last - first + 1
        if self.pool[-1][0] < count:
            self.pool = k.larger_pool(self.pool, count)
        end = k.arrive_kernel(
            self.parameters, first % self.bursts, count, write, floor(cycle * self.clocks_per_cycle), exact,
            self.digits, self.state, self.ahead, self.pool, self.transfers, self.counter, self.scratch,
        )  # fmt: skip
        return self._cycle(end)

    def _cycle(self, clock: int) -> int:
        return ceil(clock / self.clocks_per_cycle + self.fixed_cycles)

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`, if no other bursts arrive before the answer."""
        return self._arrive(cycle, address, nbytes, write, True)

    def arrive(self, cycle: int, address: int, nbytes: int, write: bool) -> tuple[int, int]:
        """Earliest cycle of the answer to a burst, and the number of the burst for `confirm`."""
        return self._arrive(cycle, address, nbytes, write, False), int(self.counter[0])

    def confirm(self, number: int, cycle: int) -> int:
        """Cycle of the answer to a burst, after all arrivals up to `cycle` are known; `cycle` if it is answered now."""
        clock = floor((cycle - self.fixed_cycles) * self.clocks_per_cycle)
        end = k.confirm_kernel(
            self.parameters, number, clock, self.state, self.ahead, self.pool, self.transfers, self.scratch
        )
        return max(cycle, self._cycle(end))


@dataclass
class PcieTiming(FinalTiming):
    """Host memory behind a PCIe link. A burst is one or more requests; each occupies a tag until its data arrive."""

    link: PcieLink
    clock_mhz: float = 800.0
    up_free: float = 0.0  # ns
    down_free: float = 0.0
    arrivals: deque[float] = field(default_factory=deque)

    def __post_init__(self) -> None:
        if not 0 < self.clock_mhz < inf:
            raise ValueError(f"clock_mhz must be positive, got {self.clock_mhz}")

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`. Writes are posted."""
        now = cycle * 1000 / self.clock_mhz
        if write:
            self.up_free = max(self.up_free, now) + self.link.write_wire_bytes(nbytes, address) / self.link.packet_gbps
            return self.cycle(self.up_free)
        return self.cycle(self.read(now, address, nbytes))

    def read(self, now: float, address: int, nbytes: int) -> float:
        """Time in ns at which the data of a read that is issued at `now` have arrived."""
        link, end = self.link, now
        for start, size in link.requests(nbytes, address):
            issue = now
            if len(self.arrivals) == link.tags:
                issue = max(issue, self.arrivals.popleft())
            wire = link.read_wire_bytes(size, start) / link.packet_gbps
            self.down_free = max(self.down_free, issue + link.round_trip_ns - wire) + wire
            self.arrivals.append(self.down_free)
            end = self.down_free
        return end

    def cycle(self, ns: float) -> int:
        """First cycle at or after a time."""
        return ceil(ns * self.clock_mhz / 1000)
