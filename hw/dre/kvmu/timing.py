"""Cycles of every KVMU command, exact while no stream stalls and no command waits for transfers in flight."""

from collections.abc import Sequence
from dataclasses import dataclass


class _Clock:
    """Cycle of the present command, and the cycle in which the splitter has finished its last extent.

    `cuts` holds the number of descriptors of each extent. The first piece of extent n sends extent n - 1 to the
    splitter and waits until the splitter has sent the last descriptor of extent n - 2.
    """

    def __init__(self, cuts: Sequence[int]):
        self.cuts, self.cycle, self.splitter, self.extent = cuts, 0, 0, -1

    def states(self, count: int) -> None:
        self.cycle += count

    def piece(self, extent: int) -> None:
        if extent != self.extent:
            self._hand_over()
            self.extent = extent
        self.cycle += 1

    def end(self) -> int:
        """States FINISH, DRAIN and ANSWER; returns the cycle in which the next command can be accepted."""
        if self.extent < 0:
            return self.cycle + 2
        self._hand_over()
        return self.splitter + 3

    def _hand_over(self) -> None:
        if self.extent >= 0:
            self.cycle = max(self.cycle, self.splitter)
            self.splitter = self.cycle + self.cuts[self.extent]


@dataclass(frozen=True)
class KvmuTiming:
    """Cycles from the transfer of a command on `i` to the first cycle in which the next one can be accepted.

    For commands that copy, `units` gives for each head page the number of its extent, counted from 0, or None for a
    head page that is not copied; `cuts` gives the number of descriptors of every extent.

    kv_heads : KV heads ; group : pages per word of marks ; clear_rows : rows that BEGIN clears
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
        """`pages`: pages of the cluster up to the page that holds the token."""
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
        """`last`: the page has no further references."""
        return 8 if last else 3

    def evict(self, pages: int, kept_pages: int) -> int:
        """`pages`: pages that are removed from the chain; `kept_pages`: pages at its start that stay."""
        return 4 + kept_pages + 5 * pages if pages else 3

    def step(self, units: Sequence[Sequence[int | None]], cuts: Sequence[int]) -> int:
        """`units`: one list for each page that is offloaded."""
        clock = _Clock(cuts)
        clock.states(1)
        for page in units:
            clock.states(4)
            self._copy(clock, [extent for extent in page if extent is not None])
        clock.states(1)
        return clock.end()

    def fetch(self, used: int, units: dict[int, Sequence[int | None]], cuts: Sequence[int]) -> int:
        """`used`: page numbers that were ever used; `units`: one list for each marked page, by page number."""
        clock = _Clock(cuts)
        clock.states(2)
        for row in range(max(1, -(-used // self.group))):
            for page in sorted(page for page in units if page // self.group == row):
                clock.states(2)
                self._copy(clock, units[page])
            clock.states(1)
        return clock.end()

    def move(self, *, opens: bool, empties: bool, extents: Sequence[int], cuts: Sequence[int]) -> int:
        """`extents`: of each head, like `units`; `empties`: the source page holds no other token and is freed."""
        clock = _Clock(cuts)
        clock.states(5 if opens else 4)
        self._copy(clock, extents)
        clock.states(5 if empties else 1)
        return clock.end()

    def migrate(self, extents: Sequence[int], cuts: Sequence[int]) -> int:
        """`extents`: of each head, like `units`; empty if nothing is copied."""
        clock = _Clock(cuts)
        clock.states(2)
        self._copy(clock, extents)
        return clock.end()

    @staticmethod
    def _copy(clock: _Clock, extents: Sequence[int | None]) -> None:
        for extent in extents:
            if extent is None:
                clock.states(1)
            else:
                clock.piece(extent)

    def formulas(self) -> dict[str, object]:
        """The cycle formulas as text, for the JSON of the generated unit; the methods give exact values."""
        copies = "one per head page, but at least one per descriptor; 3 to drain"
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
            "cycles_free": "8, or 3 if the page has further references",
            "cycles_evict": "4 + kept first pages + 5 per removed page, or 3 if none is removed",
            "cycles_fetch": f"4 + ceil(pages in use / {self.group}) + 2 per marked page + copies",
            "cycles_step": "4 + 4 per page + copies",
            "cycles_move": "5 + copies, 1 more when a page opens, 4 more when one is freed",
            "cycles_migrate": "2 + copies",
            "copies": copies,
        }
