"""A fetch: the head pages that SELECT and MARK report and copy until FETCH."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from golden.kvmu.command import CommandFault, Fault, Reply
from golden.kvmu.config import KvmuConfig
from golden.kvmu.tables import ContextTables
from golden.kvmu.transfer import Piece, Tier


@dataclass
class Fetch:
    """A fetch in progress.

    config        sizes and settings
    tag           DMA tag of its transfers
    retain, bank  settings of its first command
    pieces        memory to copy
    staged        head pages in the staging area
    beats         head pages reported
    retained      pages that became the newest ones in device memory
    fault         cause of its failure
    """

    config: KvmuConfig
    tag: int = 0
    retain: bool = False
    bank: int = 0
    pieces: list[Piece] = field(default_factory=list)
    staged: int = 0
    beats: int = 0
    retained: int = 0
    fault: Fault = Fault.NONE

    def report(self, op: int, tables: ContextTables, pages: Sequence[int], heads: Sequence[int]) -> Iterator[Reply]:
        """Report the head pages of `pages` and copy those that are not resident. A failure sets `fault`.

        With `retain`, reported pages become the newest ones: so the pages that were not used for the longest time leave
        device memory first.
        """
        try:
            for page in pages if heads else ():
                if past := tables.past(page):
                    for reply in self._report_page(op, tables, page, heads, past):
                        self.beats += 1
                        yield reply
        except CommandFault as failure:
            self.fault = failure.fault

    def _report_page(
        self, op: int, tables: ContextTables, page: int, heads: Sequence[int], past: int
    ) -> Iterator[Reply]:
        hit, tier = tables.is_resident(page), tables.backing_tier(page)
        nbytes = self.config.layout.used_bytes(int(tables.pages[page]["used"]))
        retains = self.retain and not hit
        if retains:
            if not tables.frame_available:
                raise CommandFault(Fault.NO_PAGE_FRAME)
            tables.enter(page)
        elif self.retain:
            tables.renew(page)
        self.retained += self.retain
        for head in self.config.heads if retains else heads:
            target = tables.address(page, head)[1] if hit or retains else self._stage()
            if not hit:
                self.pieces.append(Piece(tables.backing_address(page, head), target, tier, Tier.DEVICE, nbytes))
            if head in heads:
                tag = 0 if hit else self.tag
                yield Reply(op, page=page, head=head, address=target, count=past, transit=not hit, tag=tag)

    def _stage(self) -> int:
        """Byte address of the next head page of the staging area."""
        size = self.config.staging_head_pages
        if self.staged == size:
            raise CommandFault(Fault.STAGING)
        self.staged += 1
        return self.config.staging_base + (self.bank * size + self.staged - 1) * self.config.head_page_bytes
