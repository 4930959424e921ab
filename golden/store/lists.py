"""Linked lists in the store: free pages, free page frames, and the age list of the page frames in use.

Free numbers are used again in the order of their release. A free number is preferred to one that was never used.
"""

import numpy as np

from golden.store.layout import NONE, Store


def available(header: np.void, limit: int) -> bool:
    """True if a number below `limit` is free. `header` is that of a context (pages) or of the store (page frames)."""
    return int(header["free_count"]) > 0 or int(header["never_used"]) < limit


def take(header: np.void, records: np.ndarray, link: str) -> int:
    """Remove the number to use next. The field `link` of a free record is the next free number."""
    if not int(header["free_count"]):
        number = int(header["never_used"])
        header["never_used"] = number + 1
        return number
    number = int(header["free_first"])
    header["free_first"] = records[number][link]
    header["free_count"] -= 1
    if not int(header["free_count"]):
        header["free_last"] = NONE
    return number


def release(header: np.void, records: np.ndarray, link: str, number: int) -> None:
    """Append a number whose record is that of a free one, with NONE in `link`."""
    if int(header["free_count"]):
        records[int(header["free_last"])][link] = number
    else:
        header["free_first"] = number
    header["free_last"] = number
    header["free_count"] += 1


def free_all_frames(store: Store) -> None:
    """Put the page frames that were never used on the free list.

    Then a frame that is released is used again after all frames that were free before it.
    """
    header, frames = store.header, store.frames
    for frame in range(int(header["never_used"]), len(frames)):
        header["never_used"] += 1
        frames[frame] = (NONE, 0, NONE, NONE)
        release(header, frames, "newer", frame)


def take_frame(store: Store, context: int, page: int, used: int) -> int:
    """Take a page frame for a page with `used` slots; it becomes the newest."""
    header, frames = store.header, store.frames
    frame = take(header, frames, "newer")
    newest = int(header["newest"])
    frames[frame] = (context, page, newest, NONE)
    if newest == NONE:
        header["oldest"] = frame
    else:
        frames[newest]["newer"] = frame
    header["newest"] = frame
    header["resident_pages"] += 1
    header["resident_tokens"] += used
    return frame


def renew_frame(store: Store, frame: int) -> None:
    """Make a page frame in use the newest one."""
    header, frames = store.header, store.frames
    older, newer = int(frames[frame]["older"]), int(frames[frame]["newer"])
    if newer == NONE:
        return
    if older == NONE:
        header["oldest"] = newer
    else:
        frames[older]["newer"] = newer
    frames[newer]["older"] = older
    newest = int(header["newest"])
    frames[newest]["newer"] = frame
    frames[frame]["older"], frames[frame]["newer"] = newest, NONE
    header["newest"] = frame


def release_frame(store: Store, frame: int, used: int) -> None:
    """Release the page frame of a page with `used` slots."""
    header, frames = store.header, store.frames
    older, newer = int(frames[frame]["older"]), int(frames[frame]["newer"])
    if older == NONE:
        header["oldest"] = newer
    else:
        frames[older]["newer"] = newer
    if newer == NONE:
        header["newest"] = older
    else:
        frames[newer]["older"] = older
    frames[frame] = (NONE, 0, NONE, NONE)
    release(header, frames, "newer", frame)
    header["resident_pages"] -= 1
    header["resident_tokens"] -= used
