"""A drive behind a simulated PCIe link, burst by burst: flash of `sw_model.memory.ssd`, with the same compiled steps.

The time of a burst depends on bursts that arrive later, because chips and channels serve them too. So the first answer
is a cycle before which nothing can happen, and the port asks again, see `util.timing.MemoryTiming`.
"""

from __future__ import annotations

from collections import defaultdict
from copy import deepcopy
from math import ceil, floor

import numpy as np

from sw_model.memory import ssd
from sw_model.memory.live import PcieTiming
from util import checks


class DriveTiming:
    """Reads of a drive, up to its buffer. Times in ns.

    Bursts of one flash page become one page read as long as its data are not transferred. The page stays in the
    register of its plane until the plane reads another one; a burst of it needs a transfer only. The translation layer
    has put the pages into blocks in the order of their first access.

    drive : its parameters
    ends : bursts whose data are in the buffer, with their times
    """

    READS = 1 << 12  # page reads at once

    def __init__(self, drive: ssd.Ssd):
        self.drive, self.flash = drive, ssd.new_flash(drive, self.READS)
        self.bursts = self.page_reads = 0
        self.ends: dict[int, float] = {}
        self._owners, self._times = np.zeros(self.READS, np.int64), np.zeros(self.READS, np.int64)
        self._bursts_of = defaultdict[int, list[int]](list)  # of a page read
        self._pages_left: dict[int, int] = {}  # of a burst
        self._last_read: dict[int, tuple[int, int]] = {}  # of a page: place and order of arrival
        self._rows: dict[int, int] = {}
        self._rows_of_plane = defaultdict[int, int](int)

    def arrive(self, now: float, address: int, nbytes: int) -> int:
        """A burst arrives; returns its number, from 1 on. Calls are in the order of time.

        Raises RuntimeError if more than `READS` page reads are not done.
        """
        drive, at = self.drive, ceil(now)
        self._advance(at)
        self.bursts += 1
        pages = range(address // drive.page_bytes, (address + nbytes - 1) // drive.page_bytes + 1)
        if len(self._bursts_of) + len(pages) > self.READS:
            raise RuntimeError(f"page reads of a drive at once must be at most {self.READS}")
        self._pages_left[self.bursts] = len(pages)
        for page in pages:
            size = min(address + nbytes, (page + 1) * drive.page_bytes) - max(address, page * drive.page_bytes)
            k, order = self._last_read.get(page, (ssd.NONE, ssd.NONE))
            self.page_reads += 1
            *last, owner = ssd.request_page(self.flash, page, self._row(page), size, self.page_reads, k, order)
            self._last_read[page] = last[0], last[1]
            self._bursts_of[owner].append(self.bursts)
        ssd.start_idle(self.flash, at)
        return self.bursts

    def ask(self, number: int, now: float) -> float:
        """Time at which the data of a burst are in the buffer, if it is at most `now`; else a time to ask again."""
        self._advance(floor(now))
        return self.ends[number] if number in self.ends else self.next_event()

    def next_event(self) -> float:
        """Time of the next change of the flash."""
        return float(self.flash[9].min())

    def _advance(self, until: int) -> None:
        done = ssd.advance(self.flash, until, self._owners, self._times)
        for owner, end in zip(self._owners[:done].tolist(), self._times[:done].tolist(), strict=True):
            for burst in self._bursts_of.pop(owner):
                self._pages_left[burst] -= 1
                if not self._pages_left[burst]:
                    del self._pages_left[burst]
                    self.ends[burst] = end

    def _row(self, page: int) -> int:
        """Row of a page in its plane."""
        if page not in self._rows:
            plane = page % self.drive.planes
            self._rows[page] = self._rows_of_plane[plane] % self.drive.pages_per_block
            self._rows_of_plane[plane] += 1
        return self._rows[page]


class PcieDriveTiming:
    """Host memory and, from address `drive_at` on, a drive behind one PCIe link. The drive buffers writes."""

    def __init__(self, link: PcieTiming, drive: DriveTiming, drive_at: int):
        checks.integer("drive_at", drive_at, 0)
        self.link, self.drive, self.drive_at = link, drive, drive_at
        self._asked: dict[int, tuple[int, int]] = {}  # bursts of the drive: address, bytes
        self._ends: dict[int, int] = {}  # of bursts that are on the link

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        """First cycle of the answer to a burst, if no other bursts arrive before the answer."""
        alone, revised = deepcopy(self), -1
        ready, number = alone.arrive(cycle, address, nbytes, write)
        while revised != ready:
            ready, revised = alone.confirm(number, ready), ready
        return ready

    def arrive(self, cycle: int, address: int, nbytes: int, write: bool) -> tuple[int, int]:
        """Earliest cycle of the answer to a burst, and its number, which is 0 if the cycle is final."""
        if write or address < self.drive_at:
            return self.link.ready(cycle, address, nbytes, write), 0
        number = self.drive.arrive(self._ns(cycle), address - self.drive_at, nbytes)
        self._asked[number] = address, nbytes
        return max(cycle + 1, self.link.cycle(self.drive.next_event())), number

    def confirm(self, number: int, cycle: int) -> int:
        """Cycle of the answer to a burst after all arrivals up to `cycle`; `cycle` if it is answered now."""
        if number == 0:
            return cycle
        if number not in self._ends:
            end = self.drive.ask(number, self._ns(cycle))
            if number not in self.drive.ends:
                return max(cycle + 1, self.link.cycle(end))
            del self.drive.ends[number]
            self._ends[number] = self.link.cycle(self.link.read(end, *self._asked.pop(number)))
        if self._ends[number] > cycle:
            return self._ends[number]
        del self._ends[number]
        return cycle

    def _ns(self, cycle: int) -> float:
        return cycle * 1000 / self.link.clock_mhz
