"""Processes on a common clock: waits for cycles, bells, queues with latency and depth, counters."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from sw_model.cycles.layout import DEPTH, HEAP, VARIABLES, WHEEL, Bell, Machine

Wait = Generator[int, None, Any]
Process = Callable[..., Wait]
BELLS_OF_CORE = 1 << 12  # bells are numbered core by core
ORDER_BITS = 22  # of a key of the heap, below the cycle: order in which processes were scheduled
END, OUTSIDE = -(1 << 60), -(1 << 61)  # instead of a wait: the process has ended; it asks a memory timing model


def schedule(k: Machine, p: int, delay: int) -> None:
    """Resume process p after `delay` cycles, after those that are scheduled for that cycle already."""
    if delay < WHEEL:
        enter(k, p, (k.now + delay) & (WHEEL - 1))
        return
    k.heap_count += 1
    i = k.heap_size
    k.heap_size += 1
    if k.heap_size > HEAP - 1:
        k.overflow = 1
        k.heap_size -= 1
        return
    key = ((k.now + delay) << ORDER_BITS) + (k.heap_count & ((1 << ORDER_BITS) - 1))
    while i > 0 and k.heap[(i - 1) // 2, 0] > key:
        k.heap[i, 0] = k.heap[(i - 1) // 2, 0]
        k.heap[i, 1] = k.heap[(i - 1) // 2, 1]
        i = (i - 1) // 2
    k.heap[i, 0] = key
    k.heap[i, 1] = p


def enter(k: Machine, p: int, place: int) -> None:
    """Append a process to the list of a cycle."""
    k.next[p] = -1
    if k.first[place] < 0:
        k.first[place] = p
    else:
        k.next[k.last[place]] = p
    k.last[place] = p
    k.waiting += 1


def leave_heap(k: Machine) -> int:
    """Remove the first process of the heap."""
    p = k.heap[0, 1]
    k.heap_size -= 1
    n = k.heap_size
    key, moved = k.heap[n, 0], k.heap[n, 1]
    i = 0
    while 2 * i + 1 < n:
        j = 2 * i + 1
        if j + 1 < n and k.heap[j + 1, 0] < k.heap[j, 0]:
            j += 1
        if k.heap[j, 0] >= key:
            break
        k.heap[i, 0] = k.heap[j, 0]
        k.heap[i, 1] = k.heap[j, 1]
        i = j
    k.heap[i, 0] = key
    k.heap[i, 1] = moved
    return p


def following(k: Machine) -> int:
    """Advance to the next cycle with a process and remove the process; -1: nothing is scheduled."""
    while k.first[k.now & (WHEEL - 1)] < 0:
        if k.waiting:
            k.now += 1
        elif k.heap_size:
            k.now = k.heap[0, 0] >> ORDER_BITS
        else:
            return -1
        # before processes that are scheduled later for the same cycle
        while k.heap_size and k.heap[0, 0] >> ORDER_BITS < k.now + WHEEL:
            cycle = k.heap[0, 0] >> ORDER_BITS
            enter(k, leave_heap(k), cycle & (WHEEL - 1))
    place = k.now & (WHEEL - 1)
    p = k.first[place]
    k.first[place] = k.next[p]
    k.waiting -= 1
    return p


def release(k: Machine, p: int) -> None:
    """Free the frame of a process that has ended."""
    k.next[p] = k.free
    k.free = p


def start(
    k: Machine, c: int, process: Process | int, delay: int, w: int = 0, x: int = 0, y: int = 0, z: int = 0
) -> None:
    """Start a process of a core with up to four arguments after `delay` cycles."""
    p = k.free
    if k.next[p] < 0:
        k.overflow = 1
        return
    k.free = k.next[p]
    k.frame[p, 0] = 0  # state
    k.frame[p, 1] = process
    k.frame[p, 2] = c
    k.frame[p, VARIABLES] = w
    k.frame[p, VARIABLES + 1] = x
    k.frame[p, VARIABLES + 2] = y
    k.frame[p, VARIABLES + 3] = z
    schedule(k, p, delay)


def bell(c: int, number: int) -> int:
    """Value that a process yields to wait for a bell."""
    return -1 - (c * BELLS_OF_CORE + number)


def wait_for(k: Machine, number: int, p: int) -> None:
    """Let process p wait for a bell."""
    c, n = number // BELLS_OF_CORE, number % BELLS_OF_CORE
    k.next[p] = -1
    if k.bell_first[c, n] < 0:
        k.bell_first[c, n] = p
    else:
        k.next[k.bell_last[c, n]] = p
    k.bell_last[c, n] = p


def ring(k: Machine, c: int, n: int) -> None:
    """Resume all processes that wait for a bell in this cycle."""
    p = k.bell_first[c, n]
    k.bell_first[c, n] = -1
    while p >= 0:
        q = k.next[p]
        enter(k, p, k.now & (WHEEL - 1))
        p = q


def ring_bell(k: Machine, c: int, n: int) -> Wait:
    """Process: ring a bell."""
    ring(k, c, n)
    return
    yield


def until(k: Machine, cycle: int) -> Wait:
    """Wait for a cycle; no wait if it has passed."""
    if cycle > k.now:
        yield cycle - k.now


def push(k: Machine, c: int, q: int, delay: int, w: int, x: int, y: int, z: int) -> None:
    """Append an entry to a queue without waiting; it arrives `delay` cycles later than one that is put now."""
    if k.count[c, q] >= DEPTH:
        k.overflow = 1
        return
    i = (k.head[c, q] + k.count[c, q]) & (DEPTH - 1)
    k.count[c, q] += 1
    k.at[c, q, i] = k.now + delay + k.latency[c, q]
    k.item[c, q, i, 0] = w
    k.item[c, q, i, 1] = x
    k.item[c, q, i, 2] = y
    k.item[c, q, i, 3] = z
    ring(k, c, Bell.PUT + q)


def put(k: Machine, c: int, q: int, w: int, x: int, y: int, z: int) -> Wait:
    """Wait for space, then append an entry."""
    while k.count[c, q] >= k.depth[c, q]:
        yield bell(c, Bell.GET + q)
    push(k, c, q, 0, w, x, y, z)


def put_late(k: Machine, c: int, q: int, delay: int) -> Wait:
    """Wait for space, then append an entry without content."""
    while k.count[c, q] >= k.depth[c, q]:
        yield bell(c, Bell.GET + q)
    push(k, c, q, delay, 0, 0, 0, 0)


def head(k: Machine, c: int, q: int) -> Wait:
    """Wait until an entry is available, without removing it."""
    while k.count[c, q] == 0:
        yield bell(c, Bell.PUT + q)
    if k.at[c, q, k.head[c, q]] > k.now:
        yield k.at[c, q, k.head[c, q]] - k.now


def item(k: Machine, c: int, q: int, n: int) -> int:
    """A number of the entry that `head` has waited for."""
    return k.item[c, q, k.head[c, q], n]


def pop(k: Machine, c: int, q: int) -> None:
    """Remove the first entry; processes that wait for space resume in the next cycle."""
    drop(k, c, q)
    if k.bell_first[c, Bell.GET + q] >= 0:
        start(k, c, ring_bell, 1, Bell.GET + q)


def drop(k: Machine, c: int, q: int) -> None:
    """Remove the first entry."""
    k.head[c, q] = (k.head[c, q] + 1) & (DEPTH - 1)
    k.count[c, q] -= 1


def get(k: Machine, c: int, q: int) -> Wait:
    """Wait for an entry and remove it."""
    yield from head(k, c, q)
    pop(k, c, q)


def take(k: Machine, c: int, q: int) -> Wait:
    """Wait for an entry, remove it and return its first number."""
    yield from head(k, c, q)
    first = item(k, c, q, 0)
    pop(k, c, q)
    return first


def add(k: Machine, c: int, n: int, change: int) -> None:
    """Change a counter."""
    k.value[c, n] += change
    ring(k, c, Bell.COUNT + n)


def add_later(k: Machine, c: int, n: int) -> Wait:
    """Process: count one."""
    add(k, c, n, 1)
    return
    yield


def reach(k: Machine, c: int, n: int, value: int) -> Wait:
    """Wait until a counter is at least `value`."""
    while k.value[c, n] < value:
        yield bell(c, Bell.COUNT + n)
