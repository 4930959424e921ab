"""The memories' timing one burst at a time, for simulated AXI ports: when the answer to a burst begins.

`DramTiming` keeps the open row of every bank and the load of every channel's data bus with the memory's own parameters,
without refresh; the bank-level controller of `sw_model.memory.dram` schedules every command. `PcieTiming` is the
link of `sw_model.memory.pcie` request by request: round trip, wire, tags. Both count in cycles of the core's clock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sw_model.memory.dram import decode
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import Memory


@dataclass
class DramTiming:
    """A DRAM behind an AXI port; `fixed_ns` is what controller, PHY and interconnect add to every burst."""

    memory: Memory
    clock_mhz: float = 800.0
    mapping: str = "A"
    fixed_ns: float = 0.0
    rows: dict[tuple[int, ...], int] = field(default_factory=dict)  # open row of a bank
    ready_at: dict[tuple[int, ...], float] = field(default_factory=dict)  # next command to a bank, in its clocks
    closes_at: dict[tuple[int, ...], float] = field(default_factory=dict)  # earliest precharge
    bus_free: dict[tuple[int, ...], float] = field(default_factory=dict)

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`: its last piece has been moved."""
        m, t = self.memory, self.memory.timing
        scale = 1e6 / self.clock_mhz / m.clock_ps  # memory clocks of a cycle
        now = cycle * scale
        address %= m.capacity_bytes
        first, last = address // m.burst_bytes, (address + nbytes - 1) // m.burst_bytes
        where = decode(m, self.mapping, np.arange(first, last + 1) % (m.capacity_bytes // m.burst_bytes))
        end = now
        for k in range(last - first + 1):
            at = {digit: int(values[k]) for digit, values in where.items()}
            channel = (at["ch"], at["pc"])
            bank = (*channel, at["ra"], at["bg"], at["ba"])
            command = max(now, self.ready_at.get(bank, 0.0))
            if self.rows.get(bank) != at["ro"]:
                if bank in self.rows:
                    command = max(command, self.closes_at[bank]) + t["rp"]
                self.closes_at[bank] = command + t["ras"]
                command += t["rcd_write" if write else "rcd_read"]
                self.rows[bank] = at["ro"]
            # the data bus is taken for one burst after the other, but a burst whose row opens late holds up no other
            latency = t["cwl" if write else "cl"]
            self.bus_free[channel] = max(self.bus_free.get(channel, 0.0), now) + m.burst_clocks
            done = max(command + latency + m.burst_clocks, self.bus_free[channel])
            self.ready_at[bank] = command + t["ccd_l"]
            self.closes_at[bank] = max(self.closes_at[bank], done + t["wr"] if write else command + t["rtp"])
            end = max(end, done)
        return int(np.ceil(end / scale + self.fixed_ns * self.clock_mhz / 1000))


@dataclass
class PcieTiming:
    """Host memory behind a PCIe link; a burst is one or more requests, each holding a tag until its data have come."""

    link: PcieLink
    clock_mhz: float = 800.0
    up_free: float = 0.0  # ns
    down_free: float = 0.0
    arrivals: deque[float] = field(default_factory=deque)

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`; writes are posted."""
        link, now = self.link, cycle * 1000 / self.clock_mhz
        if write:
            self.up_free = max(self.up_free, now) + link.write_wire_bytes(nbytes) / link.packet_gbps
            return int(np.ceil(self.up_free * self.clock_mhz / 1000))
        left, end = nbytes, now
        while left:
            size = min(left, link.max_read_request)
            left -= size
            issue = now
            if len(self.arrivals) == link.tags:
                issue = max(issue, self.arrivals.popleft())
            wire = link.read_wire_bytes(size) / link.packet_gbps
            self.down_free = max(self.down_free, issue + link.round_trip_ns - wire) + wire
            self.arrivals.append(self.down_free)
            end = self.down_free
        return int(np.ceil(end * self.clock_mhz / 1000))
