"""AXI4 ports: bursts with the timing of a memory, and the readers and writers that turn jobs into bursts."""

from __future__ import annotations

from hw.core.dma import BURST
from sw_model.cycles.layout import DEPTH, FLIGHT, READERS, Ask, Bell, Count, Engine, Machine, Side
from sw_model.cycles.scheduler import OUTSIDE, Wait, add, add_later, bell, reach, ring, ring_bell, start, until

BUFFERED = 2  # cycles through a buffered FIFO
BURSTS = 16  # bursts that a reader or writer has in flight
CONFIRMED = -1  # number of a burst whose answer has started
BACKLOG = 128  # words that wait for a port: bursts that arrive later wait longer for the port than for the memory
INTERCONNECT = 2  # cycles through the interconnect of several cores


def side_of(e: int) -> int:
    """Memory of an engine."""
    return Side.HOST if e in (Engine.READ_HOST, Engine.WRITE_HOST) else Side.DEVICE


def port_of(k: Machine, c: int, e: int) -> int:
    """Port of an engine of core c."""
    port = 0
    if side_of(e) == Side.DEVICE:
        port = 1 + c % k.device_ports
    return port


# Bursts


def arrive(k: Machine, c: int, e: int, address: int, words: int, write: int) -> Wait:
    """A burst arrives at a memory: earliest cycle of the answer, and its number."""
    side = side_of(e)
    k.moved[side, write] += words
    k.ask[Ask.CONFIRM] = 0
    k.ask[Ask.ADDRESS] = k.base[c, side] + address * k.word_bytes
    k.ask[Ask.BYTES] = words * k.word_bytes
    yield from ask(k, c, e, write)
    return k.ask[Ask.READY], k.ask[Ask.NUMBER]


def confirm(k: Machine, c: int, e: int, number: int, write: int) -> Wait:
    """Cycle of the answer to a burst; this cycle if it is answered now."""
    ready = k.now
    if not k.is_final[side_of(e)]:
        k.ask[Ask.CONFIRM] = 1
        k.ask[Ask.NUMBER] = number
        yield from ask(k, c, e, write)
        ready = k.ask[Ask.READY]
    return ready


def ask(k: Machine, c: int, e: int, write: int) -> Wait:
    """Call the timing model of a memory. The results are READY and, of an arrival, NUMBER."""
    k.ask[Ask.SIDE] = side_of(e)
    k.ask[Ask.CYCLE] = k.now
    k.ask[Ask.WRITE] = write
    k.ask[Ask.LOOK_AHEAD] = k.backlog[port_of(k, c, e)] < BACKLOG
    yield OUTSIDE


def request_read(k: Machine, c: int, r: int, address: int, words: int) -> Wait:
    """Issue a burst of a reader; ends in the cycle in which the master accepts it."""
    first = max(k.now, k.ar_free[c, side_of(r)])
    k.ar_free[c, side_of(r)] = first + 1
    yield from until(k, first)
    start(k, c, read_burst, 2, r, address, words)


def read_burst(k: Machine, c: int, r: int, address: int, words: int) -> Wait:
    """Process: a read burst reaches the memory."""
    port = port_of(k, c, r)
    if k.cores > 1:
        granted = max(k.now, k.request_free[port])
        k.request_free[port] = granted + 1
        yield from until(k, granted + INTERCONNECT)
    ready, number = yield from arrive(k, c, r, address, words, 0)
    if not k.is_ordered[c, r]:
        k.is_ordered[c, r] = 1
        k.order[port, k.ordered[port]] = c * READERS + r
        k.ordered[port] += 1
    i = (k.burst_head[c, r] + k.bursts[c, r]) & (FLIGHT - 1)
    k.bursts[c, r] += 1
    k.burst[c, r, i, 0] = max(ready, k.now)
    k.burst[c, r, i, 1] = number
    k.burst[c, r, i, 2] = words
    k.backlog[port] += words
    ring(k, 0, Bell.ARRIVED + port)


def earliest(k: Machine, port: int) -> int:
    """Reader whose next burst is ready first, as core * READERS + reader; -1: none."""
    found, first = -1, 0
    for n in range(k.ordered[port]):
        c, r = k.order[port, n] // READERS, k.order[port, n] % READERS
        if k.bursts[c, r] and (found < 0 or k.burst[c, r, k.burst_head[c, r], 0] < first):
            found, first = k.order[port, n], k.burst[c, r, k.burst_head[c, r], 0]
    return found


def serve(k: Machine, c: int, port: int) -> Wait:
    """Process: transfer the words of bursts whose data are ready, the earliest ready burst first."""
    while True:
        found = earliest(k, port)
        if found < 0:
            yield bell(0, Bell.ARRIVED + port)
            continue
        o, r = found // READERS, found % READERS
        i = k.burst_head[o, r]
        ready = k.burst[o, r, i, 0]
        if ready > k.now:
            if not k.now < k.wake[port] <= ready:
                k.wake[port] = ready
                start(k, 0, ring_bell, ready - k.now, Bell.ARRIVED + port)
            yield bell(0, Bell.ARRIVED + port)
            continue
        if k.burst[o, r, i, 1] != CONFIRMED:
            ready = yield from confirm(k, o, r, k.burst[o, r, i, 1], 0)
            if ready > k.now:
                k.burst[o, r, i, 0] = ready
                continue
            k.burst[o, r, i, 1] = CONFIRMED
        words = k.burst[o, r, i, 2]
        put_words(k, o, r, words)
        yield words - 1
        k.backlog[port] -= words
        k.burst_head[o, r] = (i + 1) & (FLIGHT - 1)
        k.bursts[o, r] -= 1
        k.in_flight[o, r] -= 1
        ring(k, o, Bell.ANSWER + r)
        yield 1


def put_words(k: Machine, c: int, r: int, words: int) -> None:
    """The words of a burst, one in every cycle from this one on."""
    for n in range(words):
        k.word_at[c, r, (k.word_head[c, r] + k.words[c, r] + n) & (DEPTH - 1)] = k.now + n + BUFFERED
    k.words[c, r] += words
    ring(k, c, Bell.WORD + r)


def request_write(k: Machine, c: int, w: int, address: int, words: int, report: int) -> Wait:
    """Issue a burst of a writer that has all its words."""
    side = side_of(w)
    first = max(k.now, k.aw_free[c, side])
    k.aw_free[c, side] = first + 1
    yield from until(k, first)
    begun = max(first + 2, k.w_free[c, side])
    k.w_free[c, side] = begun + words
    start(k, c, write_burst, begun - first, w, address, words, report)


def write_burst(k: Machine, c: int, w: int, address: int, words: int, report: int) -> Wait:
    """Process: the words of a write burst, its answer."""
    if k.cores > 1:
        port = port_of(k, c, w)
        begun = max(k.now, k.data_free[port])
        k.data_free[port] = begun + words
        yield from until(k, begun)
    for _ in range(words):
        yield 1
        k.used[c, w] -= 1
        ring(k, c, Bell.SPACE + w)
    yield 1
    if k.cores > 1:
        yield INTERCONNECT
    turn = k.bursts[c, w]
    k.bursts[c, w] += 1
    ready, number = yield from arrive(k, c, w, address, words, 1)
    waits = 1
    while waits:
        yield from until(k, ready)
        ready = yield from confirm(k, c, w, number, 1)
        waits = ready > k.now
    yield from reach(k, c, Count.ANSWERED + w - READERS, turn)
    k.last_answer[c, w] = max(k.now, k.last_answer[c, w] + 1)
    yield from until(k, k.last_answer[c, w])
    add(k, c, Count.ANSWERED + w - READERS, 1)
    k.in_flight[c, w] -= 1
    ring(k, c, Bell.ANSWER + w)
    if report:
        start(k, c, add_later, 1, Count.STORED + w - READERS)


# Readers and writers


def request(k: Machine, c: int, e: int, address: int, words: int, last: int) -> Wait:
    """Issue a job; ends in the cycle in which it is accepted: when the bursts of the previous one are issued."""
    while k.active[c, e]:
        yield bell(c, Bell.FREED + e)
    k.active[c, e] = 1
    start(k, c, issue_bursts, 1, e, address, words, last)


def issue_bursts(k: Machine, c: int, e: int, address: int, count: int, last: int) -> Wait:
    """Process: divide a job into bursts."""
    while count:
        words = min(count, BURST - address % BURST)
        while k.in_flight[c, e] >= BURSTS:
            yield bell(c, Bell.ANSWER + e)
        if e < READERS:
            yield from reserve(k, c, e, words)
            yield from request_read(k, c, e, address, words)
        else:
            while k.words[c, e] < words:
                yield bell(c, Bell.WORD + e)
            k.words[c, e] -= words
            yield from request_write(k, c, e, address, words, last and words == count)
        k.in_flight[c, e] += 1
        address += words
        count -= words
        if count:
            yield 1
    k.active[c, e] = 0
    ring(k, c, Bell.FREED + e)


def reserve(k: Machine, c: int, r: int, words: int) -> Wait:
    """Wait until the buffer of a reader has space; that of a word is free in the cycle after its removal."""
    free_released(k, c, r)
    while k.used[c, r] + words > k.size[c, r]:
        missing = k.used[c, r] + words - k.size[c, r]
        if missing > k.released[c, r]:
            yield bell(c, Bell.SPACE + r)
        else:
            yield k.release_at[c, r, (k.release_head[c, r] + missing - 1) & (DEPTH - 1)] - k.now
        free_released(k, c, r)
    k.used[c, r] += words


def free_released(k: Machine, c: int, r: int) -> None:
    """Count the space of words that were removed before this cycle."""
    while k.released[c, r] and k.release_at[c, r, k.release_head[c, r]] <= k.now:
        k.release_head[c, r] = (k.release_head[c, r] + 1) & (DEPTH - 1)
        k.released[c, r] -= 1
        k.used[c, r] -= 1


def next_word(k: Machine, c: int, r: int) -> Wait:
    """Wait for a word, without removing it."""
    while k.words[c, r] == 0:
        yield bell(c, Bell.WORD + r)
    yield from until(k, k.word_at[c, r, k.word_head[c, r]])


def remove_word(k: Machine, c: int, r: int, cycle: int) -> None:
    """Remove a word in a cycle."""
    k.word_head[c, r] = (k.word_head[c, r] + 1) & (DEPTH - 1)
    k.words[c, r] -= 1
    k.release_at[c, r, (k.release_head[c, r] + k.released[c, r]) & (DEPTH - 1)] = cycle + 1
    k.released[c, r] += 1
    ring(k, c, Bell.SPACE + r)


def read_word(k: Machine, c: int, r: int) -> Wait:
    """Wait for a word and remove it."""
    yield from next_word(k, c, r)
    remove_word(k, c, r, k.now)


def read_words(k: Machine, c: int, r: int, words: int) -> Wait:
    """Remove words, one per cycle at most; ends in the cycle in which the last one is removed."""
    cycle = k.now - 1
    remaining = words
    while remaining:
        while k.words[c, r] == 0:
            yield bell(c, Bell.WORD + r)
        while remaining and k.words[c, r]:
            cycle = max(cycle + 1, k.word_at[c, r, k.word_head[c, r]])
            remove_word(k, c, r, cycle)
            remaining -= 1
    yield from until(k, cycle)


def write_word(k: Machine, c: int, w: int) -> Wait:
    """Write a word; ends in the cycle in which it is accepted."""
    while k.used[c, w] >= k.size[c, w]:
        yield bell(c, Bell.SPACE + w)
    k.used[c, w] += 1
    start(k, c, count_word, 1, w)


def count_word(k: Machine, c: int, w: int) -> Wait:
    """Process: a word can become part of a burst."""
    k.words[c, w] += 1
    ring(k, c, Bell.WORD + w)
    return
    yield
