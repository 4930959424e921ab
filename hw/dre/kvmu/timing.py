"""Cycles of every KVMU command, exact while no stream stalls and no command waits for transfers in flight."""

from collections.abc import Sequence
from dataclasses import dataclass


class _Clock:
    """The cycle a command is in, beside the splitter that works on its extents.

    `cuts` has the number of descriptors of each extent. A piece that starts extent n hands extent n - 1 to the
    splitter, and waits until that has put out the last descriptor of extent n - 2.
    """

    def __init__(self, cuts: Sequence[int]):
        self.cuts, self.now, self.splitter, self.extent = cuts, 0, 0, -1

    def states(self, count: int) -> None:
        self.now += count

    def piece(self, extent: int) -> None:
        if extent != self.extent:
            self._hand_over()
            self.extent = extent
        self.now += 1

    def finish(self) -> int:
        """States FINISH, DRAIN and ANSWER; returns the cycle in which the next command can be taken."""
        if self.extent < 0:
            return self.now + 2
        self._hand_over()
        return self.splitter + 3

    def _hand_over(self) -> None:
        if self.extent >= 0:
            self.now = max(self.now, self.splitter)
            self.splitter = self.now + self.cuts[self.extent]


@dataclass(frozen=True)
class KvmuTiming:
    """Cycles from the transfer of a command on `i` to the first cycle in which the next one can be taken.

    Where a command copies, `units` gives for each (page, head) unit the number of its extent, counted from 0, or None
    for one that needs no copy; `cuts` gives the number of descriptors of every extent.

    kv_heads, group, clear_rows : KV heads, pages per word of marks, rows that BEGIN clears
    """

    kv_heads: int
    group: int
    clear_rows: int

    def begin(self) -> int:
        return self.clear_rows + 4

    def append(self, *, opens: bool) -> int:
        return 5 if opens else 4

    def select(self, pages: int) -> int:
        return 3 + pages

    def find(self, pages: int) -> int:
        """`pages`: pages of the cluster up to the one that holds the token."""
        return 3 + pages

    def lookup(self) -> int:
        return 3

    def seal(self) -> int:
        return 3

    def sync(self) -> int:
        return 3

    def hold(self) -> int:
        return 3

    def mark(self) -> int:
        return 4

    def free(self, *, last: bool) -> int:
        """`last`: nobody else holds the page."""
        return 8 if last else 3

    def evict(self, pages: int, stay: int) -> int:
        """`pages` leave the chain, the first `stay` of it do not."""
        return 4 + stay + 5 * pages if pages else 3

    def step(self, units: Sequence[Sequence[int | None]], cuts: Sequence[int]) -> int:
        """`units`: one list for each page that leaves."""
        clock = _Clock(cuts)
        clock.states(1)
        for page in units:
            clock.states(4)
            self._copy(clock, [extent for extent in page if extent is not None])
        clock.states(1)
        return clock.finish()

    def fetch(self, used: int, units: dict[int, Sequence[int | None]], cuts: Sequence[int]) -> int:
        """`used`: page numbers ever used; `units`: one list for each marked page, by page number."""
        clock = _Clock(cuts)
        clock.states(2)
        for row in range(max(1, -(-used // self.group))):
            for page in sorted(page for page in units if page // self.group == row):
                clock.states(2)
                self._copy(clock, units[page])
            clock.states(1)
        return clock.finish()

    def move(self, *, opens: bool, empties: bool, extents: Sequence[int], cuts: Sequence[int]) -> int:
        """`extents`: of each head, as `units`; `empties`: the source page has no other token and is freed."""
        clock = _Clock(cuts)
        clock.states(5 if opens else 4)
        self._copy(clock, extents)
        clock.states(5 if empties else 1)
        return clock.finish()

    def migrate(self, extents: Sequence[int], cuts: Sequence[int]) -> int:
        """`extents`: of each head, as `units`; empty when there is nothing to copy."""
        clock = _Clock(cuts)
        clock.states(2)
        self._copy(clock, extents)
        return clock.finish()

    @staticmethod
    def _copy(clock: _Clock, extents: Sequence[int | None]) -> None:
        for extent in extents:
            if extent is None:
                clock.states(1)
            else:
                clock.piece(extent)

    def formulas(self) -> dict[str, object]:
        """The rules as text, for the unit's JSON; exact values from the methods."""
        copies = "one per (page, head) unit, but at least one per descriptor; 3 to drain"
        return {
            "cycles_begin": self.begin(),
            "cycles_append": "4, or 5 when a page opens",
            "cycles_select": "3 + pages",
            "cycles_find": "3 + pages walked",
            "cycles_lookup": self.lookup(),
            "cycles_seal": self.seal(),
            "cycles_sync": self.sync(),
            "cycles_hold": self.hold(),
            "cycles_mark": self.mark(),
            "cycles_free": "8, or 3 when others still hold the page",
            "cycles_evict": "4 + first pages that stay + 5 per page that leaves, or 3 when none does",
            "cycles_fetch": f"4 + ceil(pages in use / {self.group}) + 2 per marked page + copies",
            "cycles_step": "4 + 4 per page + copies",
            "cycles_move": "5 + copies, 1 more when a page opens, 4 more when one is freed",
            "cycles_migrate": "2 + copies",
            "copies": copies,
        }
