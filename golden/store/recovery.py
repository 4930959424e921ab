"""Undo log: restores the state before an interrupted step.

An entry holds the old content of a line and a tag with the line's address and the number of the step in progress. It is
written before the line changes in memory. A line of a mean key is logged whenever its cluster gets a token; the oldest
entry is restored last. The entries of a committed step are not valid, because the number of the step
in progress differs.
"""

import numpy as np

from golden.store.layout import LOG_TAG, Store, StoreError

LOG_ADDRESS_UNIT = 32
# writes of lines, which are logged each time if the cache keeps no line; SEAL, HOLD and MIGRATE, not counted, write one
APPEND_LINES = 7  # cluster, count, page, previous page, token list, page frame, older page frame
PAGE_LINES = 4  # page frame, two neighbours in the lists of page frames, and the page or the newest page frame
MOVE_LINES = APPEND_LINES + 4  # source: page, twice, cluster, count
FREE_LINES = 10  # page, its neighbours, cluster, count, page frame, its neighbours, last free page and page frame
HEADER_LINES = 8  # headers of the store and of the context


def log_entries(tokens: int, pages: int, *, key_bytes: int, line_bytes: int, moved: int = 0, freed: int = 0) -> int:
    """Entries of the undo log that suffice for a step that appends `tokens` tokens.

    pages                  times that the step offloads a page, makes it resident or makes it the newest one
    key_bytes, line_bytes  as in `StoreSizes`
    moved, freed           tokens that MOVE moves; pages that a command frees
    """
    mean_lines = key_bytes // line_bytes if key_bytes % line_bytes == 0 else key_bytes // line_bytes + 2
    lines = (APPEND_LINES + mean_lines) * tokens + PAGE_LINES * pages + HEADER_LINES
    return lines + MOVE_LINES * moved + FREE_LINES * freed


def interrupted(store: Store) -> bool:
    """True if a step is in progress, or was interrupted and not undone."""
    return int(_tag(store.log[0])["step"]) == (int(store.header["step"]) + 1) & 0xFFFFFFFF


def _tag(entry: np.ndarray) -> np.void:
    return entry[1, : LOG_TAG.itemsize].view(LOG_TAG)[0]


def recover(memory: np.ndarray, base: int, origin: int = 0) -> int:
    """Undo the changes of an interrupted step. Returns the number of restored lines; 0: no step was interrupted.

    The store must not be in use by hardware. Afterwards it is in the state of the last committed step, except that
    `step` is one higher if lines were restored. The log does not cover keys and values.
    """
    store = Store(memory, base, origin)
    step, lines = int(store.header["step"]) + 1, []
    for entry in store.log:
        tag = _tag(entry)
        if int(tag["step"]) != step & 0xFFFFFFFF:
            break
        address = int(tag["address"]) * LOG_ADDRESS_UNIT
        if not store.contains(address, store.line_bytes):
            raise StoreError(f"address of a log entry must be inside the memory, got {address:#x}")
        lines.append((address, entry[0]))
    for address, data in reversed(lines):
        store.bytes(address, store.line_bytes)[:] = data
    if lines:
        store.header["step"] = step
    return len(lines)
