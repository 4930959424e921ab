"""Memory timing burst by burst for simulated AXI ports: cycle in which the answer to a burst starts.

`DramTiming` models the open row of every bank and the data bus of every channel with the parameters of the memory,
without refresh; the bank-level controller of `sw_model.memory.dram` schedules every command. `PcieTiming` models the
link of `sw_model.memory.pcie` request by request: round trip, wire, tags. `DriveTiming` models the drive of
`sw_model.memory.ssd`: chips, their page registers, channels. All count cycles of the core's clock.
"""

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from sw_model.memory.dram import decode
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import Memory
from sw_model.memory.ssd import Ssd


@dataclass
class DramTiming:
    """DRAM behind an AXI port. `fixed_ns` is the delay of controller, PHY and interconnect, added to every burst."""

    memory: Memory
    clock_mhz: float = 800.0
    mapping: str = "A"
    fixed_ns: float = 0.0
    rows: dict[tuple[int, ...], int] = field(default_factory=dict)  # open row of a bank
    ready_at: dict[tuple[int, ...], float] = field(default_factory=dict)  # next command to a bank, in its clocks
    closes_at: dict[tuple[int, ...], float] = field(default_factory=dict)  # earliest precharge
    bus_free: dict[tuple[int, ...], float] = field(default_factory=dict)

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`: all its data have been transferred."""
        m, t = self.memory, self.memory.timing
        scale = 1e6 / self.clock_mhz / m.clock_ps  # memory clocks of a cycle
        now = cycle * scale
        address %= m.capacity_bytes
        first, last = address // m.burst_bytes, (address + nbytes - 1) // m.burst_bytes
        coordinates = decode(m, self.mapping, np.arange(first, last + 1) % (m.capacity_bytes // m.burst_bytes))
        end = now
        for k in range(last - first + 1):
            at = {digit: int(values[k]) for digit, values in coordinates.items()}
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
class DriveTiming:
    """Read time of a drive in ns. A flash page stays in the register of its chip until another page is read."""

    drive: Ssd
    registers: dict[int, int] = field(default_factory=dict)  # page in the register of a chip
    chip_free: dict[int, float] = field(default_factory=dict)  # ns
    channel_free: dict[int, float] = field(default_factory=dict)

    def read_ns(self, now: float, address: int, nbytes: int) -> float:
        """Time at which the data of a burst requested at `now` are in the buffer of the drive, ns."""
        d, end = self.drive, now
        for page in range(address // d.page_bytes, (address + nbytes - 1) // d.page_bytes + 1):
            chip, channel = page % d.chips, page % d.channels
            ready = max(now + d.command_us * 1e3, self.chip_free.get(chip, 0.0))
            if self.registers.get(chip) != page:
                ready += d.read_us * 1e3
                self.registers[chip] = page
            size = min(address + nbytes, (page + 1) * d.page_bytes) - max(address, page * d.page_bytes)
            transfer_end = max(ready, self.channel_free.get(channel, 0.0)) + size / d.channel_gbps
            self.chip_free[chip] = self.channel_free[channel] = transfer_end
            end = max(end, transfer_end)
        return end


@dataclass
class PcieTiming:
    """Host memory behind a PCIe link. A burst is one or more requests; each occupies a tag until its data arrive.

    With a `drive`, addresses from `drive_at` on belong to the drive behind the same link; it buffers writes.
    """

    link: PcieLink
    clock_mhz: float = 800.0
    drive: DriveTiming | None = None
    drive_at: int = 0
    up_free: float = 0.0  # ns
    down_free: float = 0.0
    arrivals: deque[float] = field(default_factory=deque)

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst that arrives in `cycle`. Writes are posted."""
        link, now = self.link, cycle * 1000 / self.clock_mhz
        if write:
            self.up_free = max(self.up_free, now) + link.write_wire_bytes(nbytes) / link.packet_gbps
            return int(np.ceil(self.up_free * self.clock_mhz / 1000))
        if self.drive and address >= self.drive_at:
            now = self.drive.read_ns(now, address - self.drive_at, nbytes)
        remaining_bytes, end = nbytes, now
        while remaining_bytes:
            size = min(remaining_bytes, link.max_read_request)
            remaining_bytes -= size
            issue = now
            if len(self.arrivals) == link.tags:
                issue = max(issue, self.arrivals.popleft())
            wire = link.read_wire_bytes(size) / link.packet_gbps
            self.down_free = max(self.down_free, issue + link.round_trip_ns - wire) + wire
            self.arrivals.append(self.down_free)
            end = self.down_free
        return int(np.ceil(end * self.clock_mhz / 1000))
