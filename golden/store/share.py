"""Pages that several contexts share, by reference count.

The page records of all contexts that share a page name the same page frame. The field `references` of each one is the
number of the other contexts. The KVMU does not release a page with references, so it needs no further rule: it reads
the page frame that a page record names. The record of the page frame names one of the contexts.

Software shares pages and deletes contexts between steps. Shared pages are complete and stay in device memory.
"""

from collections.abc import Iterator

import numpy as np

from golden.store import lists
from golden.store.layout import CHAINED, NONE, RESIDENT, Context, Store, StoreError

MAX_REFERENCES = 255


def share_pages(store: Store, source: int, target: int, pages: int) -> None:
    """Give an empty context the first pages of the only cluster of another one.

    source, target  numbers of the contexts; the target has no tokens
    pages           number of pages, which hold the first pages * page_tokens tokens of the source

    Raises StoreError, and changes nothing, if the target is not empty, if the source has several clusters, or if these
    tokens are not in complete pages in device memory.
    """
    old, new = store.context(source), store.context(target)
    if int(new.header["tokens"]):
        raise StoreError(f"context {target} must be empty, got {int(new.header['tokens'])} tokens")
    if int(old.header["clusters"]) != 1:
        raise StoreError(f"context {source} must have one cluster, got {int(old.header['clusters'])}")
    if pages > len(new.pages):
        raise StoreError(f"pages must be at most {len(new.pages)} of context {target}, got {pages}")
    chain, tokens, size = old.chain(0), pages * store.page_tokens, store.page_tokens
    first = chain[:pages]
    if len(first) < pages or old.lists[first].ravel().tolist() != list(range(tokens)):
        raise StoreError(f"pages of context {source} must have the first {tokens} tokens")
    for page in first:
        record = old.pages[page]
        if not int(record["flags"]) & RESIDENT or int(record["live"]) != (1 << size) - 1:
            raise StoreError(f"page {page} of context {source} must be complete and in device memory")
        others = len(sharing(store, int(record["frame"]))) - 1
        if int(record["references"]) != others or others == MAX_REFERENCES:
            held = int(record["references"])
            raise StoreError(
                f"references of page {page} of context {source} must be those of contexts that share it, at most "
                f"{MAX_REFERENCES - 1}, got {held}"
            )
    for number, page in enumerate(first):
        for record in sharing(store, int(old.pages[page]["frame"])):
            record["references"] += 1
        copy = old.pages[page].copy()
        copy["cluster"], copy["flags"], copy["step"], copy["past"] = 0, CHAINED | RESIDENT, 0, 0
        copy["previous"], copy["next"] = number - 1 if number else NONE, number + 1 if number + 1 < pages else NONE
        new.pages[number] = copy
        new.lists[number] = old.lists[page]
    cluster = old.clusters[0].copy()
    cluster["count"], cluster["pages"], cluster["first_page"], cluster["last_page"] = tokens, pages, 0, pages - 1
    new.clusters[0], new.counts[0] = cluster, tokens
    for name, value in (("tokens", tokens), ("clusters", 1), ("never_used", pages)):
        new.header[name] = value


def drop_page(store: Store, context: Context, page: int) -> None:
    """Remove a reference to a page frame, that of a context which is deleted; the last one releases the page frame.

    A page that another context has already removed from its chain, and that has no references any more, is released.
    """
    record = context.pages[page]
    frame, used = int(record["frame"]), int(record["used"])
    record["frame"] = NONE
    record["flags"] = int(record["flags"]) & ~RESIDENT
    others = sharing(store, frame) if int(record["references"]) else []
    if not others:
        lists.release_frame(store, frame, used)
        return
    for other in others:
        other["references"] -= 1
    number, own = next(_pages_of(store, frame))
    store.frames[frame]["context"], store.frames[frame]["page"] = number, own
    last = others[0]
    if len(others) == 1 and not int(last["flags"]) & CHAINED:
        lists.release_frame(store, frame, used)
        owner = store.context(number)
        owner.pages[own] = (0, NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0)
        lists.release(owner.header, owner.pages, "next", own)


def sharing(store: Store, frame: int) -> list[np.void]:
    """Page records of all contexts that name a page frame."""
    return [store.context(number).pages[page] for number, page in _pages_of(store, frame)]


def _pages_of(store: Store, frame: int) -> Iterator[tuple[int, int]]:
    """Contexts and pages whose records name a page frame."""
    for number in np.flatnonzero(store.all_present()).tolist():
        context = store.context(number)
        pages = context.pages[: int(context.header["never_used"])]
        resident = (pages["used"] > 0) & (pages["flags"] & RESIDENT != 0)
        for page in np.flatnonzero(resident & (pages["frame"] == frame)).tolist():
            yield number, page
