"""A drive behind a simulated PCIe link, burst by burst: flash of `sw_model.memory.ssd`, with the same compiled steps.

Later bursts can delay a burst, because they share chips and channels. `arrive` therefore returns a lower bound, and the
port calls `confirm` in that cycle, see `util.timing.MemoryTiming`.
"""

from __future__ import annotations

from collections import defaultdict
from math import ceil, floor

import numpy as np

from sw_model.memory import ssd
from sw_model.memory.live import PcieTiming
from util import checks


class DriveTiming:
    """Flash reads of a drive: from the arrival of a burst until its data are in the drive's buffer. Times in ns.

    Bursts of one flash page share its read until the transfer of the data starts; their bytes are added up. The page
    stays in the register of its plane until the plane reads another one, and a burst of it needs a transfer only. The
    translation layer has written the pages in the order of their first access.

    drive : its parameters
    ends : bursts whose data are in the buffer, with their times
    """

    READS = 1 << 12  # page reads at once

    def __init__(self, drive: ssd.Ssd):
        self.drive, self.flash = drive, ssd.new_flash(drive, self.READS)
        self.bursts = self.page_requests = 0
        self.ends: dict[int, float] = {}
        self._owners, self._times = np.zeros(self.READS, np.int64), np.zeros(self.READS, np.int64)
        self._bursts_of = defaultdict[int, list[int]](list)  # of a page read
        self._remaining_pages: dict[int, int] = {}  # of a burst
        self._last_read: dict[int, tuple[int, int]] = {}  # of a page: place and order of arrival
        self._rows: dict[int, int] = {}
        self._rows_of_plane = defaultdict[int, int](int)

    def arrive(self, now: float, address: int, nbytes: int) -> int:
        """A burst arrives; returns its number, from 1 on. Calls are in the order of time.

        Raises ValueError for bytes outside the drive, RuntimeError if more than `READS` page reads are not done.
        """
        drive, at = self.drive, ceil(now)
        checks.integer("nbytes", nbytes, 1)
        checks.integer("address", address, 0, drive.capacity_bytes - nbytes)
        self.advance(at)
        pages = range(address // drive.page_bytes, (address + nbytes - 1) // drive.page_bytes + 1)
        if (reads := len(self._bursts_of) + len(pages)) > self.READS:
            raise RuntimeError(f"page reads of a drive at once must be at most {self.READS}, got {reads}")
        self.bursts += 1
        self._remaining_pages[self.bursts] = len(pages)
        for page in pages:
            size = min(address + nbytes, (page + 1) * drive.page_bytes) - max(address, page * drive.page_bytes)
            k, order = self._last_read.get(page, (ssd.NONE, ssd.NONE))
            self.page_requests += 1
            k, order, owner = ssd.request_page(self.flash, page, self._row(page), size, self.page_requests, k, order)
            self._last_read[page] = k, order
            self._bursts_of[owner].append(self.bursts)
        ssd.start_idle(self.flash, at)
        return self.bursts

    def advance(self, now: float) -> None:
        """Simulate up to a time; the bursts that are done are in `ends`."""
        done = ssd.advance(self.flash, floor(now), self._owners, self._times)
        for owner, end in zip(self._owners[:done].tolist(), self._times[:done].tolist(), strict=True):
            for burst in self._bursts_of.pop(owner):
                self._remaining_pages[burst] -= 1
                if not self._remaining_pages[burst]:
                    del self._remaining_pages[burst]
                    self.ends[burst] = end

    def next_event(self) -> float:
        """Time of the next change of the flash."""
        return float(self.flash[ssd.F_ENDS].min())

    def _row(self, page: int) -> int:
        """Row of a page in its plane."""
        if page not in self._rows:
            plane = page % self.drive.planes
            self._rows[page] = self._rows_of_plane[plane] % self.drive.pages_per_block
            self._rows_of_plane[plane] += 1
        return self._rows[page]


class PcieDriveTiming:
    """Host memory and, from address `drive_at` on, a drive behind one PCIe link. The drive buffers writes.

    The flash of the drive starts when a burst arrives at the port. Then the data take the link as those of host memory
    do, with its round trip and its tags, which do not limit the page reads in flight.
    """

    def __init__(self, link: PcieTiming, drive: DriveTiming, drive_at: int):
        checks.integer("drive_at", drive_at, 0)
        self.link, self.drive, self.drive_at = link, drive, drive_at
        self._requests: dict[int, tuple[int, int]] = {}  # bursts of the drive: address, bytes
        self._ends: dict[int, int] = {}  # bursts on the link: cycle of the answer

    def arrive(self, cycle: int, address: int, nbytes: int, write: bool) -> tuple[int, int]:
        """Earliest cycle of the answer to a burst, and its number, which is 0 if the cycle is final."""
        if write or address < self.drive_at:
            return self.link.ready(cycle, address, nbytes, write), 0
        number = self.drive.arrive(self._ns(cycle), address - self.drive_at, nbytes)
        self._requests[number] = address, nbytes
        return max(cycle + 1, self.link.cycle(self.drive.next_event())), number

    def confirm(self, number: int, cycle: int) -> int:
        """Cycle of the answer to a burst after all arrivals up to `cycle`; `cycle` if it is answered now.

        Raises KeyError for a burst that is not open.
        """
        if number == 0:
            return cycle
        if number not in self._ends:
            request = self._requests[number]
            self.drive.advance(self._ns(cycle))
            if number not in self.drive.ends:
                return max(cycle + 1, self.link.cycle(self.drive.next_event()))
            del self._requests[number]
            self._ends[number] = self.link.cycle(self.link.read(self.drive.ends.pop(number), *request))
        if self._ends[number] > cycle:
            return self._ends[number]
        del self._ends[number]
        return cycle

    def _ns(self, cycle: int) -> float:
        return cycle * 1000 / self.link.clock_mhz
