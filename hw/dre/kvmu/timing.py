"""Cycles of KVMU commands, exact while no stream stalls and no command waits for transfers in flight."""

from dataclasses import dataclass

READ, WRITE = 2, 1  # hits in the cache; a write to a line that was changed before
COMMAND = 3  # acceptance, check, last beat
COMPONENT = 2  # states IDLE and ANSWER of a component
LAST_BEAT = 1


@dataclass(frozen=True)
class KvmuTiming:
    """Cycles from the transfer of a command on `i` to the first cycle in which the next one can be accepted.

    The methods of commands hold if all lines are in the cache and have changed before; `fill` and `log` give the
    further cycles of a line that is not there, and of the first change of a clean line.

    line_words : memory words of a line of the cache
    """

    line_words: int

    def fill(self, latency: int) -> int:
        """A miss whose victim is clean; `latency`: cycles from the job to the first word, at least 1."""
        return 1 + latency + self.line_words

    def log(self) -> int:
        """The first change of a clean line."""
        return 2 + 2 * self.line_words

    def refused(self) -> int:
        """A command that is refused before a component starts."""
        return COMMAND + LAST_BEAT

    def _command(self, cycles: int) -> int:
        return COMMAND + LAST_BEAT + COMPONENT + cycles

    def append(
        self,
        *,
        opens: bool = False,
        opened: bool = False,
        first: bool = False,
        page_reused: bool = False,
        frame_reused: bool = False,
        only_frame: bool = False,
    ) -> int:
        """APPEND.

        opens : the token opens a page; then `first`: the cluster has no page yet; `page_reused`, `frame_reused`: they
            are from the free lists; `only_frame`: no other page is resident
        opened : the cluster is new
        """
        cycles = 1 + (0 if opened else READ) + 3 * WRITE  # start, chain; token, chain, count
        if not opens:
            return self._command(cycles + READ + WRITE)
        page = 2 + READ * page_reused
        frame = 2 + READ * frame_reused + WRITE + WRITE * (not only_frame)
        last_page = 0 if first else READ + WRITE  # read, link
        return self._command(cycles + last_page + 1 + page + frame + WRITE)

    def lookup(self) -> int:
        """LOOKUP."""
        return self._command(READ + 1)

    def find(self, pages: int) -> int:
        """FIND; `pages`: pages of the cluster up to the page that holds the token."""
        return self._command(READ + pages * (READ + 1) + (pages - 1))

    def seal(self) -> int:
        """SEAL."""
        return self._command(READ + 1 + WRITE)

    def hold(self) -> int:
        """HOLD."""
        return self.seal()

    def mark(self, heads: int) -> int:
        """MARK of a resident page with tokens from before the step for `heads` KV heads."""
        return self._command(self._page(heads))

    def select(self, pages: int, heads: int) -> int:
        """SELECT of `pages` resident pages with tokens from before the step for `heads` KV heads each."""
        return self._command(READ + pages * self._page(heads))

    def renew(self, *, oldest: bool = False, newest: bool = False) -> int:
        """Further cycles of SELECT and MARK with `retain` for a resident page, which becomes the newest one."""
        if newest:
            return 1 + READ + 1
        return 1 + READ + 1 + WRITE * (not oldest) + 1 + 3 * WRITE + 1  # record, links of the neighbours, own links

    def fetch(self) -> int:
        """FETCH of resident pages only."""
        return COMMAND + LAST_BEAT + 1

    @staticmethod
    def _page(heads: int) -> int:
        """A page: its record, the decision, the beats (or nothing), the next page."""
        return READ + 1 + (1 + heads if heads else 0) + 1

    def formulas(self) -> dict[str, object]:
        """The cycle formulas as text, for the JSON of the generated unit; the methods give exact values."""
        longest = self.append(opens=True, page_reused=True, frame_reused=True)
        return {
            "cycles_append": f"{self.append()}, or at most {longest} when a page opens",
            "cycles_select": f"{self.select(0, 1)} + pages * ({self._page(0) + 1} + heads), resident pages",
            "cycles_find": f"{self.find(1) - 4} + 4 * pages walked",
            "cycles_lookup": self.lookup(),
            "cycles_seal": self.seal(),
            "cycles_hold": self.hold(),
            "cycles_mark": f"{self.mark(0) + 1} + heads, resident page",
            "cycles_renew": f"{self.renew()} for each resident page with retain, less if it is the oldest or newest",
            "cycles_fetch": f"{self.fetch()}, or as long as descriptors are sent",
            "cycles_line_fill": f"{self.fill(0)} + latency of memory",
            "cycles_line_log": self.log(),
        }
