"""Invariants of a store: every list, chain and count agrees with every other one."""

from itertools import pairwise

import numpy as np

from golden.store.create import regions
from golden.store.layout import CHAINED, NONE, OPEN, RESIDENT, Context, Store, StoreError
from golden.store.share import sharing


def check(store: Store, *, max_cluster_tokens: int = 65535, complete: bool = True) -> None:
    """Check all invariants of a store. Raises StoreError that names the first table, entry and value that is wrong.

    max_cluster_tokens  token count at which a cluster is saturated; its count may then be below its live slots
    complete            True: no page was released, so every token number has exactly one slot
    """
    spans = sorted((start, end, name) for name, (start, end) in regions(store).items())
    for (_, end, name), (start, _, other) in pairwise(spans):
        _expect(end <= start, name, "must not overlap", other)
    numbers = [n for n in range(len(store.contexts)) if store.present(n)]
    _check_frames(store)
    for number in numbers:
        _check_context(store, store.context(number), max_cluster_tokens, complete)


def _expect(holds: bool, item: str, text: str, value: object) -> None:
    if not holds:
        raise StoreError(f"{item} {text}, got {value}")


def _free_numbers(item: str, header: np.void, records: np.ndarray, link: str) -> list[int]:
    """Numbers of a free list, in order; checks its ends and its length."""
    out: list[int] = []
    count, number = int(header["free_count"]), int(header["free_first"])
    _expect(int(header["never_used"]) <= len(records), item, "never_used must be in the table", header["never_used"])
    while number != NONE:
        _expect(number < int(header["never_used"]), item, "free list must contain used numbers", number)
        _expect(len(out) < count, item, f"free list must have {count} entries", "more")
        out.append(number)
        number = int(records[number][link])
    _expect(len(out) == count, item, f"free list must have {count} entries", len(out))
    last = out[-1] if out else NONE
    _expect(int(header["free_last"]) == last, item, f"free_last must be {last}", header["free_last"])
    return out


def _check_frames(store: Store) -> None:
    header, frames = store.header, store.frames
    free = _free_numbers("page frames:", header, frames, "newer")
    used: list[int] = []
    frame, older, tokens = int(header["oldest"]), NONE, 0
    while frame != NONE:
        item = f"page frame {frame}:"
        _expect(frame < int(header["never_used"]), item, "number must be below never_used", frame)
        _expect(len(used) < int(header["resident_pages"]), item, "age list must have resident_pages entries", "more")
        record = frames[frame]
        _expect(int(record["older"]) == older, item, f"older must be {older}", record["older"])
        number, page = int(record["context"]), int(record["page"])
        _expect(store.present(number), item, "context must be present", number)
        context = store.context(number)
        _expect(page < len(context.pages) and context.in_use(page), item, "page must be in use", page)
        owner = context.pages[page]
        _expect(int(owner["flags"]) & RESIDENT != 0, item, "page must be resident", page)
        _expect(int(owner["frame"]) == frame, item, "page must have this frame", owner["frame"])
        tokens += int(owner["used"])
        used.append(frame)
        older, frame = frame, int(record["newer"])
    _expect(int(header["newest"]) == older, "page frames:", f"newest must be {older}", header["newest"])
    for name, value in (("resident_pages", len(used)), ("resident_tokens", tokens)):
        _expect(int(header[name]) == value, "store header:", f"{name} must be {value}", header[name])
    every = sorted(free + used)
    _expect(every == list(range(int(header["never_used"]))), "page frames:", "must be free or used once", every)
    for frame in free:
        record = frames[frame].item()
        _expect(record[:3] == (NONE, 0, NONE), f"page frame {frame}:", "must have the record of a free one", record)


def _check_context(store: Store, context: Context, max_cluster_tokens: int, complete: bool) -> None:
    header, pages, item = context.header, context.pages, f"context {context.number}:"
    clusters, tokens = int(header["clusters"]), int(header["tokens"])
    _expect(clusters <= len(context.clusters), item, "clusters must be in the table", clusters)
    _expect(int(header["first_candidate"]) <= clusters, item, "first_candidate must be a cluster", clusters)
    free = _free_numbers(f"{item} pages:", header, pages, "next")
    for page in free:
        record = pages[page].copy()
        record["next"] = 0
        _expect(record.tobytes() == bytes(record.nbytes), f"{item} page {page}:", "must be a free record", record)
    chained: dict[int, int] = {}
    for cluster in range(clusters):
        _check_cluster(context, cluster, chained, max_cluster_tokens)
    first_tokens = context.clusters["first_token"][:clusters].astype(np.int64)
    _expect(bool((np.diff(first_tokens) >= 0).all()), item, "first tokens must ascend", first_tokens)
    _expect(not context.counts[clusters:].any(), item, "counts behind the last cluster must be 0", "others")
    live: list[int] = []
    used_pages = sorted(set(range(int(header["never_used"]))) - set(free))
    for page in used_pages:
        _check_page(store, context, page, chained)
        slots = [k for k in range(store.page_tokens) if int(pages[page]["live"]) >> k & 1]
        live += context.lists[page, slots].tolist()
    _expect(set(chained) <= set(used_pages), item, "chains must contain pages in use", sorted(chained))
    _expect(len(set(live)) == len(live), item, "every token must have one slot", "several")
    _expect(all(token < tokens for token in live), item, f"tokens must be below {tokens}", max(live, default=0))
    if complete:
        _expect(len(live) == tokens, item, f"{tokens} tokens must have a slot", len(live))


def _check_cluster(context: Context, cluster: int, chained: dict[int, int], max_cluster_tokens: int) -> None:
    record, pages = context.clusters[cluster], context.pages
    item = f"context {context.number}: cluster {cluster}:"
    page, previous, length, live = int(record["first_page"]), NONE, 0, 0
    while page != NONE:
        _expect(page < int(context.header["never_used"]), item, "page must be below never_used", page)
        _expect(page not in chained, item, "page must be in one chain", page)
        chained[page] = cluster
        entry = pages[page]
        _expect(int(entry["previous"]) == previous, item, f"previous of page {page} must be {previous}", entry)
        _expect(int(entry["cluster"]) == cluster, item, f"page {page} must have its number", entry["cluster"])
        is_open, is_last = int(entry["flags"]) & OPEN, int(entry["next"]) == NONE
        _expect(not is_open or is_last, item, "only the last page may be open", page)
        length, live = length + 1, live + int(entry["live"]).bit_count()
        previous, page = page, int(entry["next"])
    _expect(int(record["last_page"]) == previous, item, f"last_page must be {previous}", record["last_page"])
    _expect(int(record["pages"]) == length, item, f"pages must be {length}", record["pages"])
    count = int(record["count"])
    saturable = live >= max_cluster_tokens or max_cluster_tokens < 65535
    exact = count == live or (saturable and count <= min(live, max_cluster_tokens))
    _expect(exact, item, f"count must be {min(live, max_cluster_tokens)}", count)
    _expect(int(context.counts[cluster]) == count, item, f"entry of counts must be {count}", context.counts[cluster])
    _expect(not record["reserved"].any(), item, "reserved words must be 0", record["reserved"])


def _check_page(store: Store, context: Context, page: int, chained: dict[int, int]) -> None:
    record, item = context.pages[page], f"context {context.number}: page {page}:"
    used, flags, live = int(record["used"]), int(record["flags"]), int(record["live"])
    _expect(1 <= used <= store.page_tokens, item, f"used must be between 1 and {store.page_tokens}", used)
    _expect(live >> used == 0, item, "live slots must be used", hex(live))
    _expect(bool(flags & CHAINED) == (page in chained), item, "flag `chained` must agree with the chains", flags)
    _expect(bool(flags & CHAINED) or int(record["references"]) > 0, item, "must have a reference", 0)
    _expect(
        not flags & OPEN or (flags & RESIDENT != 0 and used < store.page_tokens),
        item,
        "open page must have room",
        used,
    )
    _expect(not flags & OPEN or not int(record["references"]), item, "open page must have no reference", flags)
    if not flags & CHAINED:
        ends = int(record["next"]), int(record["previous"])
        _expect(ends == (NONE, NONE), item, "page without a chain must have no neighbour", ends)
    frame = int(record["frame"])
    _expect(flags & RESIDENT != 0 or frame == NONE, item, "page that is not resident must have no frame", frame)
    if flags & RESIDENT:
        owner = store.frames[frame].item() if frame < len(store.frames) else None
        references = int(record["references"])
        # a page that a command holds has references too, so a shared page has at least those of the other contexts
        owned = owner is not None and (owner[:2] == (context.number, page) or (references > 0 and owner[0] != NONE))
        _expect(owned, item, f"must own or share page frame {frame}", owner)
        others = len(sharing(store, frame)) - 1 if references else 0
        _expect(references >= others, item, f"must have at least {others} references", references)
    past = int(record["past"])
    _expect(past < used, item, "past must be below used", past)
    _expect(int(record["step"]) <= int(store.header["step"]) + 1, item, "step must not be later", record["step"])
    _expect(not int(record["reserved"]), item, "reserved byte must be 0", record["reserved"])
