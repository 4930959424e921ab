"""Changes of the records of one context: pages of clusters, page frames, token counts."""

import numpy as np

from golden.kvmu.command import CommandFault, Fault
from golden.kvmu.config import KvmuConfig
from golden.kvmu.transfer import Tier
from golden.store import NONE, Store, lists
from golden.store.layout import CHAINED, OPEN, RESIDENT, SAVED, STORAGE


class ContextTables:
    """Edits the tables of one context and the page frames of its store.

    Parameters
    ----------
    store, number : the store and the number of the context
    config : sizes and settings
    """

    def __init__(self, store: Store, number: int, config: KvmuConfig) -> None:
        self.store, self.number, self.context, self.config = store, number, store.context(number), config
        self.header, self.pages = self.context.header, self.context.pages

    @property
    def step(self) -> int:
        """Number of the step in progress."""
        return int(self.store.header["step"]) + 1

    def has(self, page: int, flag: int) -> bool:
        """True if a flag of a page is set."""
        return int(self.pages[page]["flags"]) & flag != 0

    def is_resident(self, page: int) -> bool:
        """True if a page has a page frame."""
        return self.has(page, RESIDENT)

    def backing_tier(self, page: int) -> Tier:
        """Tier to which a page is offloaded."""
        return Tier.STORAGE if self.has(page, STORAGE) else Tier.HOST

    def backing_address(self, page: int, head: int, slot: int = 0) -> int:
        """Byte address of a slot of a page in its backing tier: of its block, if keys and values are encoded."""
        return self._slot_address(self.store.backing_base(self.number, self.has(page, STORAGE)), page, head, slot)

    def address(self, page: int, head: int, slot: int = 0) -> tuple[Tier, int]:
        """Tier and byte address of a slot of a page in use: of its block, if keys and values are encoded."""
        if not self.is_resident(page):
            return self.backing_tier(page), self.backing_address(page, head, slot)
        frame = int(self.pages[page]["frame"])
        return Tier.DEVICE, self._slot_address(self.config.page_frames_base, frame, head, slot)

    def _slot_address(self, base: int, number: int, head: int, slot: int) -> int:
        config = self.config
        return base + (number * config.kv_heads + head) * config.head_page_bytes + config.layout.block_offset(slot)

    def change(self, page: int, *, set_flags: int = 0, clear_flags: int = 0) -> None:
        """Set and clear flags of a page."""
        self.pages[page]["flags"] = int(self.pages[page]["flags"]) & ~clear_flags | set_flags

    def is_live(self, page: int, slot: int) -> bool:
        """True if a slot holds a token."""
        return self.context.in_use(page) and slot < 32 and int(self.pages[page]["live"]) >> slot & 1 == 1

    def past(self, page: int) -> int:
        """Used slots of a page before the step in progress."""
        record = self.pages[page]
        return int(record["past"] if int(record["step"]) == self.step else record["used"])

    def is_cluster(self, cluster: int) -> bool:
        """True if the cluster exists."""
        return cluster < int(self.header["clusters"])

    def admit_cluster(self, cluster: int, opened: bool) -> None:
        """Raise CLUSTER if the cluster does not exist, or, if it is to be created, if it is not the next one."""
        clusters = int(self.header["clusters"])
        if cluster >= int(self.header["max_clusters"]) or (cluster != clusters if opened else cluster >= clusters):
            raise CommandFault(Fault.CLUSTER)

    def admit_token(self, cluster: int, opened: bool, source: int = NONE) -> None:
        """Raise NO_PAGE or NO_PAGE_FRAME if there is no slot for the next token of a cluster.

        opened  the cluster is to be created
        source  page that takes no more tokens
        """
        if not opened and self.open_page(cluster) not in (NONE, source):
            return
        if not lists.available(self.header, int(self.header["max_pages"])):
            raise CommandFault(Fault.NO_PAGE)
        if not self.frame_available:
            raise CommandFault(Fault.NO_PAGE_FRAME)

    @property
    def frame_available(self) -> bool:
        """True if a page frame is free."""
        return lists.available(self.store.header, int(self.store.header["page_frames"]))

    def open_page(self, cluster: int) -> int:
        """Page that takes the next token of a cluster; NONE if it needs a new page."""
        last = int(self.context.clusters[cluster]["last_page"])
        return last if last != NONE and self.has(last, OPEN) else NONE

    def create_cluster(self, cluster: int, code: int) -> None:
        """Create the next cluster, without tokens."""
        self.context.clusters[cluster] = (code, self.header["tokens"], 0, 0, NONE, NONE, 0)
        self.context.counts[cluster] = 0
        self.header["clusters"] += 1

    def put(self, cluster: int, token: int) -> tuple[int, int]:
        """Put a token into the next slot of a cluster and return page and slot. The cluster's count stays."""
        page = self.open_page(cluster)
        if page == NONE:
            page = self._create_page(cluster)
        record = self.pages[page]
        slot = int(record["used"])
        if int(record["step"]) != self.step:
            record["step"], record["past"] = self.step, slot
        record["used"] = slot + 1
        record["live"] |= np.uint32(1 << slot)
        if slot + 1 == self.store.page_tokens:
            self.change(page, clear_flags=OPEN)
        self.context.lists[page, slot] = token
        self.store.header["resident_tokens"] += 1
        return page, slot

    def remove(self, page: int, slot: int) -> None:
        """Remove the token of a slot. The cluster's count stays."""
        self.pages[page]["live"] &= np.uint32(~(1 << slot) & NONE)

    def add_count(self, cluster: int, change: int) -> None:
        """Change the token count of a cluster; it stays between 0 and `max_cluster_tokens`."""
        record = self.context.clusters[cluster]
        record["count"] = max(0, min(int(record["count"]) + change, self.config.max_cluster_tokens))
        self.context.counts[cluster] = record["count"]

    def enter(self, page: int) -> None:
        """Give a page a page frame; it becomes the newest resident page."""
        record = self.pages[page]
        record["frame"] = lists.take_frame(self.store, self.number, page, int(record["used"]))
        self.change(page, set_flags=RESIDENT)

    def renew(self, page: int) -> None:
        """Make a resident page the newest one."""
        lists.renew_frame(self.store, int(self.pages[page]["frame"]))

    def leave(self, page: int, *, set_flags: int = 0) -> None:
        """Release the page frame of a page."""
        record = self.pages[page]
        lists.release_frame(self.store, int(record["frame"]), int(record["used"]))
        record["frame"] = NONE
        self.change(page, set_flags=set_flags, clear_flags=RESIDENT | OPEN)

    def offload(self, page: int) -> None:
        """Release the page frame of a page whose backing tier has a copy."""
        self.leave(page, set_flags=SAVED)

    def unlink(self, page: int) -> None:
        """Remove a page from the chain of its cluster, and its tokens from the count."""
        record = self.pages[page]
        cluster = self.context.clusters[int(record["cluster"])]
        following, previous = int(record["next"]), int(record["previous"])
        if previous == NONE:
            cluster["first_page"] = following
        else:
            self.pages[previous]["next"] = following
        if following == NONE:
            cluster["last_page"] = previous
        else:
            self.pages[following]["previous"] = previous
        cluster["pages"] -= 1
        record["next"] = record["previous"] = NONE
        self.change(page, clear_flags=CHAINED | OPEN)
        self.add_count(int(record["cluster"]), -int(record["live"]).bit_count())

    def release(self, page: int) -> None:
        """Unlink a page, release its page frame and its number."""
        if self.has(page, CHAINED):
            self.unlink(page)
        if self.has(page, RESIDENT):
            self.leave(page)
        self.pages[page] = (0, NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        lists.release(self.header, self.pages, "next", page)

    def _create_page(self, cluster: int) -> int:
        """Append an empty resident page to the chain of a cluster."""
        page = lists.take(self.header, self.pages, "next")
        owner = self.context.clusters[cluster]
        last = int(owner["last_page"])
        flags = CHAINED | OPEN | (STORAGE if self.config.offload_to_storage else 0)
        self.pages[page] = (cluster, NONE, last, NONE, 0, 0, 0, flags, 0, 0, 0)
        if last == NONE:
            owner["first_page"] = page
        else:
            self.pages[last]["next"] = page
        owner["last_page"] = page
        owner["pages"] += 1
        self.enter(page)
        return page
