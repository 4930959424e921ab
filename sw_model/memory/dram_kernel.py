"""Compiled kernel of the DRAM model: one controller per channel, clock by clock (see `sw_model.memory.dram`).

What several kernels or several calls share is a function of its own, because LLVM needs more than a minute for a kernel
with several copies of the controller; parts that are called once, and small ones, are inlined. All are in one file,
because numba's cache of a function does not notice changes in another file.

State is stored in small integer arrays. Per bank: the open row and the earliest activate, precharge, read and write.
Per bank group and rank: the earliest clock of each command that they limit. Requests to one row of one bank form a
chain and are served in order, so that the scheduler examines only the first request of each chain. A queue lists these,
oldest first.
"""

import numpy as np

from util.compiled import compiled, inlined, unowned

FAR = 1 << 60
# the parameter vector
(CL, CWL, BL, BL_MAX, RCD_RD, RCD_WR, RP, RP_ALL, RAS, RC, WR, RTP, CCD_S, CCD_L, WTR_S, WTR_L, RRD_S, RRD_L, FAW,
 RFC, REFI, RFC_BANK, REFI_BANK, PBR_PBR, PBR_ACT, AAD, PPD, CS, READ_Q, WRITE_Q, RANKS, GROUPS, BANKS, LPDDR, HBM,
 ACT_CLOCKS, REFRESH, WCK, ROW_HIT, POSTED, N_PARAMETERS) = range(41)  # fmt: skip
# bank, bank group, rank (of a pseudo-channel), channel
B_ROW, B_ACT, B_PRE, B_RD, B_WR, N_BANK = range(6)
G_ACT, G_RD, G_WR, N_GROUP = range(4)
S_ACT, S_RD, S_WR, S_PRE, S_REF, S_OLDEST, S_SYNC, S_WINDOW, N_RANK = 0, 1, 2, 3, 4, 5, 6, 7, 11
(C_ACT2, C_ACT2_ROW, C_ACT2_LAST, C_BUS, C_DRAIN, C_IDLE, C_REFS, C_REF_AT, C_REF_NEXT, C_STAMP, C_FREE, C_ARRIVED,
 C_WAKE, C_FIRST, C_LAST, C_NEXT, C_APPENDED, N_CHANNEL) = range(18)  # fmt: skip
CLOSED, HALF_OPEN = -1, -2
ANSWERED = -1  # clock of a request whose data wait for their port
READS, WRITES, ACTIVE, FREE = range(4)
# request: number in order of arrival, next request of its chain, and, for the first one, the last of the chain
Q_REQUEST, Q_BANK, Q_GROUP, Q_RANK, Q_ROW, Q_WRITE, Q_NUMBER, Q_NEXT, Q_LAST, N_ENTRY = range(10)
NONE, ACTIVATE, ACTIVATE_2, PRECHARGE = range(4)
N_ACT, N_PRE, N_RD, N_WR, N_REF, N_REF_BANK, N_STATS = range(7)


@compiled
def decode_bursts(address, per, burst_bytes, digit, radix, weight, n_digit, ranks, groups, banks, ch, bank, row):
    """Channel, bank (numbered over pseudo-channels, ranks and groups) and row of every burst of every request.
    Digits are numbered ch, pc, ra, bg, ba, ro, co."""
    value = np.zeros(7, np.int64)
    for r in range(len(address)):
        base = address[r] // burst_bytes
        for k in range(per):
            leaf = base + k
            value[:] = 0
            for d in range(n_digit):
                value[digit[d]] += leaf % radix[d] * weight[d]
                leaf //= radix[d]
            i = r * per + k
            ch[i] = value[0]
            bank[i] = ((value[1] * ranks + value[2]) * groups + value[3]) * banks + value[4]
            row[i] = value[5]


@inlined
def _scan(tm, now, channel, bank, group, rank, chan, slots, queue, n, space, mark):
    """Oldest ready column command and oldest ready row command of one queue.

    Returns their positions, the kind of the row command, and the clock at which a command becomes ready if none is.
    """
    column, row, kind, next_ready = -1, -1, NONE, FAR
    column_at, row_at = FAR, FAR
    stamp = chan[C_STAMP]
    shared_bus = tm[HBM] == 0
    for i in range(n):
        e = queue[i]
        b = slots[e, Q_BANK]
        opened = bank[b, B_ROW]
        if channel == ACTIVE:
            mark[b, 1] = stamp
        else:
            # an older request with the same command for this bank becomes ready at the same time and is first
            same = 2 if opened == slots[e, Q_ROW] else 3
            if mark[b, same] == stamp:
                continue
            mark[b, same] = stamp
        g, r = slots[e, Q_GROUP], slots[e, Q_RANK]
        if opened == slots[e, Q_ROW]:
            mark[b, 0] = stamp
            if slots[e, Q_WRITE]:
                ready = max(bank[b, B_WR], group[g, G_WR], rank[r, S_WR])
            else:
                ready = max(bank[b, B_RD], group[g, G_RD], rank[r, S_RD])
            if ready > now:
                next_ready = min(next_ready, ready)
            elif slots[e, Q_NUMBER] < column_at:
                column, column_at = i, slots[e, Q_NUMBER]
        else:
            if opened == HALF_OPEN:
                if channel != ACTIVE:
                    continue
                ready, command = now, ACTIVATE_2
            elif opened == CLOSED:
                if not space or chan[C_ACT2] >= 0:
                    continue
                window = rank[r, S_WINDOW + rank[r, S_OLDEST]] + tm[FAW]
                ready = max(bank[b, B_ACT], group[g, G_ACT], rank[r, S_ACT], window, chan[C_BUS])
                command = ACTIVATE
            else:
                if mark[b, 1] == stamp or (tm[ROW_HIT] and mark[b, 0] == stamp):
                    continue
                ready, command = max(bank[b, B_PRE], rank[r, S_PRE], chan[C_BUS]), PRECHARGE
            if ready > now:
                next_ready = min(next_ready, ready)
            elif slots[e, Q_NUMBER] < row_at:
                row, row_at, kind = i, slots[e, Q_NUMBER], command
        # queues are in order of arrival; the list of activated requests is not
        if channel != ACTIVE and ((shared_bus and (column >= 0 or row >= 0)) or (column >= 0 and row >= 0)):
            break
    return column, row, kind, next_ready


@inlined
def _enter(slots, queue, heads, channel, slot):
    """Append a request to the chain of its row, or start a new chain at the end of the queue."""
    for i in range(heads[channel] - 1, -1, -1):
        head = queue[channel, i]
        if slots[head, Q_BANK] == slots[slot, Q_BANK] and slots[head, Q_ROW] == slots[slot, Q_ROW]:
            slots[slots[head, Q_LAST], Q_NEXT] = slot
            slots[head, Q_LAST] = slot
            return
    slots[slot, Q_LAST] = slot
    queue[channel, heads[channel]] = slot
    heads[channel] += 1


@inlined
def _leave(slots, queue, heads, channel, i):
    """Remove the first request of chain i. Returns its slot, and the position up to which other chains moved."""
    slot, last = queue[channel, i], heads[channel] - 1
    next_slot = slots[slot, Q_NEXT]
    j = i
    while j < last and (next_slot < 0 or slots[queue[channel, j + 1], Q_NUMBER] < slots[next_slot, Q_NUMBER]):
        queue[channel, j] = queue[channel, j + 1]
        j += 1
    if next_slot < 0:
        heads[channel] -= 1
    else:
        queue[channel, j] = next_slot
        slots[next_slot, Q_LAST] = slots[slot, Q_LAST]
        slots[slot, Q_NEXT] = -1
    return slot, j


@inlined
def _after_column(tm, slots, e, now, bank, group, rank):
    """Timing after a read or write."""
    b, g, r, write = slots[e, Q_BANK], slots[e, Q_GROUP], slots[e, Q_RANK], slots[e, Q_WRITE]
    cl, cwl, bl = tm[CL], tm[CWL], tm[BL]
    turnaround = now + cl + bl + 2 - cwl
    if write:
        bank[b, B_PRE] = max(bank[b, B_PRE], now + cwl + bl + tm[WR])
        group[g, G_WR] = max(group[g, G_WR], now + tm[CCD_L])
        group[g, G_RD] = max(group[g, G_RD], now + cwl + tm[BL_MAX] + tm[WTR_L])
        rank[r, S_WR] = max(rank[r, S_WR], now + tm[CCD_S])
        rank[r, S_RD] = max(rank[r, S_RD], now + cwl + bl + tm[WTR_S])
    else:
        bank[b, B_PRE] = max(bank[b, B_PRE], now + tm[RTP])
        group[g, G_RD] = max(group[g, G_RD], now + tm[CCD_L])
        rank[r, S_RD] = max(rank[r, S_RD], now + tm[CCD_S])
        rank[r, S_WR] = max(rank[r, S_WR], turnaround)
    rank[r, S_SYNC] = now + (cwl if write else cl) + bl + tm[WCK]
    first = r // tm[RANKS] * tm[RANKS]
    for other in range(first, first + tm[RANKS]):
        if other != r and write:
            rank[other, S_WR] = max(rank[other, S_WR], now + bl)
            rank[other, S_RD] = max(rank[other, S_RD], now + cwl + bl + tm[CS] - cl)
        elif other != r:
            rank[other, S_RD] = max(rank[other, S_RD], now + bl + tm[CS])
            rank[other, S_WR] = max(rank[other, S_WR], turnaround)


@inlined
def _refresh(tm, now, bank, rank, chan, slots, queue, active, stats):
    """Try the oldest due refresh: (issued, earliest clock of the next try). It waits for requests to open rows."""
    per_rank = tm[GROUPS] * tm[BANKS]
    all_bank = tm[REFRESH] == 1
    target = chan[C_REF_NEXT]
    r = target if all_bank else target // per_rank
    lo, hi = (target * per_rank, (target + 1) * per_rank) if all_bank else (target, target + 1)
    is_open, pre_from, act_from = False, rank[r, S_PRE], rank[r, S_REF]
    for b in range(lo, hi):
        is_open |= bank[b, B_ROW] != CLOSED
        pre_from = max(pre_from, bank[b, B_PRE])
        act_from = max(act_from, bank[b, B_ACT] + tm[ACT_CLOCKS] - 1)
    if is_open:
        if chan[C_ACT2] >= 0:
            return False, FAR
        for i in range(active):
            if lo <= slots[queue[ACTIVE, i], Q_BANK] < hi:
                return False, FAR
        if pre_from > now:
            return False, pre_from
        for b in range(lo, hi):
            bank[b, B_ROW] = CLOSED
            bank[b, B_ACT] = max(bank[b, B_ACT], now + tm[RP_ALL if all_bank else RP])
        rank[r, S_PRE] = now + tm[PPD]
        stats[N_PRE] += 1
        return True, now + 1
    if act_from > now:
        return False, act_from
    for b in range(lo, hi):
        bank[b, B_ACT] = now + tm[RFC if all_bank else RFC_BANK]
    chan[C_REFS] -= 1
    if all_bank:
        chan[C_REF_NEXT] = (target + 1) % rank.shape[0]
        stats[N_REF] += 1
    else:
        chan[C_REF_NEXT] = (target + 1) % bank.shape[0]
        rank[r, S_REF] = now + tm[PBR_PBR]
        rank[r, S_ACT] = max(rank[r, S_ACT], now + tm[PBR_ACT])
        stats[N_REF_BANK] += 1
    return True, now + 1


@inlined
def _row_command(tm, now, kind, slots, e, bank, group, rank, chan, stats):
    b, g, r = slots[e, Q_BANK], slots[e, Q_GROUP], slots[e, Q_RANK]
    if kind == PRECHARGE:
        bank[b, B_ROW] = CLOSED
        bank[b, B_ACT] = max(bank[b, B_ACT], now + tm[RP])
        rank[r, S_PRE] = now + tm[PPD]
        stats[N_PRE] += 1
    elif kind == ACTIVATE_2:
        bank[b, B_ROW] = chan[C_ACT2_ROW]
        chan[C_ACT2] = -1
    else:
        rank[r, S_ACT] = max(rank[r, S_ACT], now + tm[RRD_S])
        group[g, G_ACT] = max(group[g, G_ACT], now + tm[RRD_L])
        rank[r, S_WINDOW + rank[r, S_OLDEST]] = now
        rank[r, S_OLDEST] = (rank[r, S_OLDEST] + 1) % 4
        bank[b, B_ACT], bank[b, B_PRE] = now + tm[RC], now + tm[RAS]
        bank[b, B_RD], bank[b, B_WR] = now + tm[RCD_RD], now + tm[RCD_WR]
        bank[b, B_ROW] = slots[e, Q_ROW]
        if tm[LPDDR]:
            bank[b, B_ROW] = HALF_OPEN
            chan[C_ACT2], chan[C_ACT2_ROW], chan[C_ACT2_LAST] = b, slots[e, Q_ROW], now + tm[AAD]
        chan[C_BUS] = now + tm[ACT_CLOCKS]
        stats[N_ACT] += 1


@inlined
def _end(done, tail, side, request, clock):
    """A burst of a request, a read or a write, is done at a clock."""
    k = tail[side]
    done[side, k, 0], done[side, k, 1] = clock, request
    tail[side] = k + 1 if k + 1 < done.shape[1] else 0


@unowned
def _tick(tm, now, bank, group, rank, chan, slots, queue, heads, length, mark, done, tail, stats):
    """Simulate one clock of one channel. Returns the next clock at which the channel has work."""
    hbm = tm[HBM] == 1
    chan[C_STAMP] += 1
    space = heads[ACTIVE] < max(tm[READ_Q], tm[WRITE_Q])
    column_q, row_q = ACTIVE, ACTIVE
    column, row, kind, next_ready = _scan(
        tm, now, ACTIVE, bank, group, rank, chan, slots, queue[ACTIVE], heads[ACTIVE], True, mark
    )
    half = kind == ACTIVATE_2
    refreshed = False
    if chan[C_REFS] > 0:
        if row < 0 and (hbm or column < 0):
            refreshed, retry = _refresh(tm, now, bank, rank, chan, slots, queue, heads[ACTIVE], stats)
            next_ready = min(next_ready, retry)
    elif hbm or (column < 0 and (row < 0 or half)):
        idle_expired = chan[C_IDLE] >= 0 and now > chan[C_IDLE] + 1
        if length[READS] == 0 or idle_expired or length[WRITES] * 10 > tm[WRITE_Q] * 8:
            chan[C_DRAIN] = 1
        if chan[C_DRAIN] and length[READS] > 0 and length[WRITES] * 10 < tm[WRITE_Q] * 2:
            chan[C_DRAIN] = 0
        side = WRITES if chan[C_DRAIN] else READS
        more, more_row, more_kind, soon = _scan(
            tm, now, side, bank, group, rank, chan, slots, queue[side], heads[side], space, mark
        )
        next_ready = min(next_ready, soon)
        if column < 0:
            column, column_q = more, side
        if row < 0 or (half and more_row >= 0 and now < chan[C_ACT2_LAST]):
            row, row_q, kind = more_row, side, more_kind
    chan[C_IDLE] = now if length[READS] == 0 else -1
    if not hbm and column >= 0 and row >= 0:
        # one command bus; the second half of an activate takes the first free slot, or the last possible one
        if kind == ACTIVATE_2:
            e = queue[column_q, column]
            starts_clock = tm[WCK] >= 0 and now >= rank[slots[e, Q_RANK], S_SYNC]
            column_first = now + starts_clock < chan[C_ACT2_LAST]
        else:
            column_first = slots[queue[column_q, column], Q_NUMBER] < slots[queue[row_q, row], Q_NUMBER]
        if column_first:
            row = -1
        else:
            column = -1

    if row >= 0:
        e = queue[row_q, row]
        _row_command(tm, now, kind, slots, e, bank, group, rank, chan, stats)
        if kind == ACTIVATE and row_q != ACTIVE:
            _, queue_moved = _leave(slots, queue, heads, row_q, row)
            length[row_q] -= 1
            queue[ACTIVE, heads[ACTIVE]] = e
            heads[ACTIVE] += 1
            if column_q == row_q and row < column <= queue_moved:
                column -= 1
    if column >= 0:
        e = queue[column_q, column]
        write, r = slots[e, Q_WRITE], slots[e, Q_RANK]
        if tm[WCK] >= 0 and now >= rank[r, S_SYNC]:
            # the data clock of LPDDR5 has stopped: one command starts it
            rank[r, S_SYNC] = now + (tm[CWL] if write else tm[CL]) + tm[BL] + tm[WCK]
        else:
            _after_column(tm, slots, e, now, bank, group, rank)
            if not (write and tm[POSTED]):
                _end(done, tail, write, slots[e, Q_REQUEST], now if write else now + tm[CL] + tm[BL])
            stats[N_WR if write else N_RD] += 1
            chan[C_FREE] -= 1
            _leave(slots, queue, heads, column_q, column)
            queue[FREE, chan[C_FREE]] = e
            if column_q != ACTIVE:
                length[column_q] -= 1
    return now + 1 if refreshed or row >= 0 or column >= 0 else max(next_ready, now + 1)


@inlined
def _step(tm, now, per, b_bank, b_row, write, next_burst, bank, group, rank, chan, slots, queue, heads, length, mark,
          done, tail, stats):  # fmt: skip
    """Simulate one clock of one channel: up to four bursts enter the queues, refresh becomes due, one command issues.

    Request and write flag of burst k are k // per and write[k // per]. Returns the next clock in which the channel has
    work.
    """
    for _ in range(4):
        k = chan[C_FIRST]
        if k < 0:
            break
        side = WRITES if write[k // per] else READS
        if length[side] >= tm[WRITE_Q if side == WRITES else READ_Q]:
            break
        slot = queue[FREE, chan[C_FREE]]
        chan[C_FREE] += 1
        slots[slot, Q_REQUEST], slots[slot, Q_WRITE] = k // per, side
        slots[slot, Q_BANK], slots[slot, Q_ROW] = b_bank[k], b_row[k]
        slots[slot, Q_NUMBER], slots[slot, Q_NEXT] = chan[C_ARRIVED], -1
        chan[C_ARRIVED] += 1
        slots[slot, Q_GROUP] = b_bank[k] // tm[BANKS]
        slots[slot, Q_RANK] = slots[slot, Q_GROUP] // tm[GROUPS]
        _enter(slots, queue, heads, side, slot)
        length[side] += 1
        if side == WRITES and tm[POSTED]:
            _end(done, tail, WRITES, k // per, now)
        chan[C_FIRST] = next_burst[k]
        chan[C_WAKE] = now
    if now >= chan[C_REF_AT]:
        all_bank = tm[REFRESH] == 1
        chan[C_REFS] += rank.shape[0] if all_bank else 1
        chan[C_REF_AT] += tm[REFI if all_bank else REFI_BANK]
        chan[C_WAKE] = now
    if chan[C_WAKE] <= now:
        chan[C_WAKE] = _tick(tm, now, bank, group, rank, chan, slots, queue, heads, length, mark, done, tail, stats)
    k = chan[C_FIRST]
    if k >= 0:
        side = WRITES if write[k // per] else READS
        if length[side] < tm[WRITE_Q if side == WRITES else READ_Q]:
            return now + 1
    return min(chan[C_WAKE], chan[C_REF_AT])


@inlined
def _append(chan, next_burst, k):
    """Append burst k to the bursts of a channel that have not entered its queues."""
    if chan[C_FIRST] < 0:
        chan[C_FIRST] = k
    else:
        next_burst[chan[C_LAST]] = k
    chan[C_LAST] = k


@inlined
def _release(t, ports, count, blocked):
    """Count the requests as answered whose data have passed their port before clock t. Returns the next such clock."""
    _, _, _, _, head, _, _, following, release_at, owner, _, held = ports
    next_time = FAR
    for p in range(len(head)):
        while head[p] >= 0 and release_at[head[p]] <= t:
            blocked[owner[head[p]]] -= 1
            held[owner[head[p]]] -= count[head[p]]
            head[p] = following[head[p]]
        if head[p] >= 0:
            next_time = min(next_time, release_at[head[p]])
    return next_time


@inlined
def _take_port(s, t, write, count, order, cursor, ports):
    """The answered reads of stream s take their port when it is free, in the order of their issue."""
    number, transfer, pause, _, head, tail, free, following, release_at, owner, served, _ = ports
    while served[s] < cursor[s]:
        req, p = order[served[s]], number[s]
        if not write[req]:
            if release_at[req] != ANSWERED:
                break
            free[p] = max(free[p], np.float64(t)) + count[req] * transfer
            release_at[req], owner[req], following[req] = np.int64(np.ceil(free[p] + pause)), s, -1
            if head[p] < 0:
                head[p] = req
            else:
                following[tail[p]] = req
            tail[p] = req
        served[s] += 1


@unowned
def _run(tm, per, bursts, requests, outcome, state, done, counters, ports):
    """Replay all requests. Returns the clocks from the first issue to the last completion."""
    b_ch, b_bank, b_row, next_burst = bursts
    write, count, stream, order, first, arrival, qd = requests
    latency, stats = outcome
    bank, group, rank, chan, slots, queue, heads, length, mark = state
    accepted, tail, remaining, issued, blocked, cursor = counters
    number, _, _, buffer, _, _, _, _, release_at, _, _, held = ports
    n_req, n_ch = len(latency), len(chan)
    finished, start, end, t = 0, -1, 0, 0
    while True:
        for d in range(2):
            k = accepted[d]
            while k != tail[d] and done[d, k, 0] <= t:
                at, req = done[d, k, 0], done[d, k, 1]
                remaining[req] -= 1
                if remaining[req] == 0:
                    latency[req] = at - issued[req]
                    end = max(end, at)
                    if len(number) == 0:
                        blocked[stream[req]] -= 1
                    elif not write[req]:
                        release_at[req] = ANSWERED
                        _take_port(stream[req], t, write, count, order, cursor, ports)
                    finished += 1
                k = k + 1 if k + 1 < done.shape[1] else 0
            accepted[d] = k
        if finished == n_req:
            return end - start
        next_time = _release(t, ports, count, blocked)
        for s in range(len(qd)):
            while cursor[s] < first[s + 1] and blocked[s] < qd[s]:
                req = order[cursor[s]]
                if arrival[req] > t:
                    next_time = min(next_time, arrival[req])
                    break
                posted = len(number) and write[req]  # a write through a port
                if len(number) and not posted:
                    if held[s] + count[req] > buffer:
                        break
                    held[s] += count[req]
                if start < 0:
                    start = t
                issued[req] = t
                cursor[s] += 1
                blocked[s] += not posted
                for k in range(req * per, req * per + count[req]):
                    _append(chan[b_ch[k]], next_burst, k)
                    chan[b_ch[k], C_NEXT] = 0
        now = t + 1
        for c in range(n_ch):
            if chan[c, C_NEXT] <= now:
                chan[c, C_NEXT] = _step(
                    tm, now, per, b_bank, b_row, write, next_burst, bank[c], group[c], rank[c], chan[c], slots[c],
                    queue[c], heads[c], length[c], mark[c], done, tail, stats,
                )  # fmt: skip
            next_time = min(next_time, chan[c, C_NEXT] - 1)
        for d in range(2):
            if accepted[d] != tail[d]:
                next_time = min(next_time, done[d, accepted[d], 0])
        t = max(next_time, now)


def new_state(tm, n_ch, n_pc):
    """State of all channels before the first clock, as arrays with one row per channel."""
    n_rank = n_pc * tm[RANKS]
    n_group = n_rank * tm[GROUPS]
    n_bank = n_group * tm[BANKS]
    bank = np.zeros((n_ch, n_bank, N_BANK), np.int64)
    bank[:, :, B_ROW] = CLOSED
    group = np.zeros((n_ch, n_group, N_GROUP), np.int64)
    rank = np.full((n_ch, n_rank, N_RANK), -FAR, np.int64)
    rank[:, :, S_OLDEST] = 0
    chan = np.zeros((n_ch, N_CHANNEL), np.int64)
    chan[:, C_ACT2] = chan[:, C_FIRST] = -1
    chan[:, C_WAKE] = chan[:, C_REF_AT] = FAR
    if tm[REFRESH]:
        chan[:, C_REF_AT] = tm[REFI if tm[REFRESH] == 1 else REFI_BANK]
    chan[:, C_NEXT] = chan[:, C_REF_AT]
    # requests are stored in slots; queues hold slot numbers; the used part of the free list is C_FREE long
    cap = max(tm[READ_Q], tm[WRITE_Q])
    slots = np.zeros((n_ch, tm[READ_Q] + tm[WRITE_Q] + cap, N_ENTRY), np.int64)
    queue = np.zeros((n_ch, 4, slots.shape[1]), np.int64)
    queue[:, FREE] = np.arange(slots.shape[1])
    heads = np.zeros((n_ch, 3), np.int64)
    length = np.zeros((n_ch, 2), np.int64)  # requests in the read and the write queue
    mark = np.zeros((n_ch, n_bank, 4), np.int64)
    return bank, group, rank, chan, slots, queue, heads, length, mark


def new_pool(size):
    """Storage of bursts that are not done: bank, row, write flag, next burst of the channel, transfer, free list."""
    kinds = (np.int32, np.int32, np.uint8, np.int32, np.int64)
    return (*(np.zeros(size, kind) for kind in kinds), np.arange(size), np.array([size]))


def larger_pool(pool, count):
    """Copy of a pool with at least `count` free places."""
    *arrays, free, free_count = pool
    size, used = len(free), int(free_count[0])
    more = max(count, size, 1024)
    larger = [np.concatenate([array, np.zeros(more, array.dtype)]) for array in arrays]
    places = np.concatenate([free[:used], np.arange(size, size + more), np.zeros(size - used, np.int64)])
    return (*larger, places, np.array([used + more]))


def new_transfers(size, n_ch):
    """State of the last transfers: number, open bursts, end; open bursts and last position for every channel."""
    number, remaining, end = (np.zeros(size, np.int64) for _ in range(3))
    return number, remaining, end, np.zeros((size, n_ch), np.int32), np.zeros((size, n_ch), np.int64)


def replay_kernel(
    tm, n_ch, n_pc, per, b_ch, b_bank, b_row, write, count, stream, order, first, arrival, qd, port, transfer, pause,
    buffer, latency, stats,
):  # fmt: skip
    """Per clock, streams issue, channels take up to four bursts each, controllers tick; idle clocks are skipped.

    A request has `per` bursts in the arrays, of which it uses the first `count` ones. Returns the clocks from the first
    issue to the last completion.
    """
    # completions in flight, one list for reads and one for writes, each in order of time
    done = np.zeros((2, n_ch * (tm[CL] + tm[BL] + 4), 2), np.int64)
    accepted = np.zeros(2, np.int64)
    tail = np.zeros(2, np.int64)
    remaining = count.copy()
    issued = np.zeros(len(latency), np.int64)
    blocked = np.zeros(len(qd), np.int64)
    bursts = (b_ch, b_bank, b_row, np.full(len(b_ch), -1, np.int32))
    requests = (write, count, stream, order, first, arrival, qd)
    counters = (accepted, tail, remaining, issued, blocked, first[:-1].copy())
    # for each port: first and last request of its queue, and the clock at which it is free
    # for each request: the next one in the queue, the clock at which its stream counts it as answered, its stream
    # for each stream: the first request outside a queue, and the DRAM bursts of its outstanding reads
    n_port, n_req = max(port) + 1 if len(port) else 0, len(latency) if len(port) else 0
    passed = (np.full(n_port, -1), np.zeros(n_port, np.int64), np.zeros(n_port))
    lists = (np.zeros(n_req, np.int64), np.full(n_req, FAR), np.zeros(n_req, np.int64))
    ports = (port, transfer, pause, buffer, *passed, *lists, first[:-1].copy(), np.zeros(len(qd), np.int64))
    outcome, state = (latency, stats), new_state(tm, n_ch, n_pc)
    return _run(tm, per, bursts, requests, outcome, state, done, counters, ports)


@inlined
def _copy_row(target, source):
    for i in range(len(source)):
        target[i] = source[i]


@inlined
def _copy(target, source):
    for i in range(len(source)):
        _copy_row(target[i], source[i])


@inlined
def _first_place(number, digits):
    """Set the digits of a DRAM burst, and the coordinates that they make up."""
    digit, radix, weight, count, value = digits
    for d in range(len(value)):
        value[d] = 0
    for d in range(len(digit)):
        count[d] = number % radix[d]
        value[digit[d]] += count[d] * weight[d]
        number //= radix[d]


@inlined
def _next_place(digits):
    """Set the digits and coordinates of the next DRAM burst."""
    digit, radix, weight, count, value = digits
    for d in range(len(digit)):
        count[d] += 1
        if count[d] < radix[d]:
            value[digit[d]] += weight[d]
            break
        count[d] = 0
        value[digit[d]] -= (radix[d] - 1) * weight[d]


@unowned
def _simulate_until(tm, t, c, state, pool, transfers, done, tail, stats):
    """Simulate channel c up to clock t and record the bursts that are done or will be done without another command."""
    bank, group, rank, chan, slots, queue, heads, length, mark = state
    b_bank, b_row, b_write, next_burst, owner, free, free_count = pool
    number, remaining, end, left, _ = transfers
    while chan[c, C_NEXT] <= t:
        chan[c, C_NEXT] = _step(
            tm, chan[c, C_NEXT], 1, b_bank, b_row, b_write, next_burst, bank[c], group[c], rank[c], chan[c], slots[c],
            queue[c], heads[c], length[c], mark[c], done, tail, stats,
        )  # fmt: skip
        for d in range(2):
            for j in range(tail[d]):
                k = done[d, j, 1]
                i = owner[k] % len(number)
                if number[i] == owner[k]:
                    remaining[i] -= 1
                    left[i, c] -= 1
                    end[i] = max(end[i], done[d, j, 0])
                free[free_count[0]] = k
                free_count[0] += 1
            tail[d] = 0


@unowned
def _look_ahead(tm, t, c, i, exact, state, ahead, pool, transfers, done, tail, stats):
    """Clock at which the bursts of transfer i in channel c are done if no others arrive after clock t.

    With `exact` false, the result is a lower bound while more bursts than a queue holds are in front of them.
    """
    bank, group, rank, chan, slots, queue, heads, length, mark = state
    bank_a, group_a, rank_a, chan_a, slots_a, queue_a, heads_a, length_a, mark_a = ahead
    b_bank, b_row, b_write, next_burst, owner, _, _ = pool
    number, _, _, left, sequence = transfers
    in_front = sequence[i, c] - chan[c, C_ARRIVED]
    if tm[POSTED]:  # a write has to enter its queue, not to leave it
        in_front -= tm[READ_Q] + tm[WRITE_Q]
    if not exact and in_front > tm[READ_Q]:
        return t + in_front * tm[BL] * tm[RANKS] // len(rank_a)
    _copy(bank_a, bank[c])
    _copy(group_a, group[c])
    _copy(rank_a, rank[c])
    _copy(mark_a, mark[c])
    _copy_row(queue_a[FREE], queue[c, FREE])
    for q in range(FREE):  # of the slots, those with a request
        for j in range(heads[c, q]):
            slot = queue[c, q, j]
            queue_a[q, j] = slot
            while slot >= 0:
                _copy_row(slots_a[slot], slots[c, slot])
                slot = slots[c, slot, Q_NEXT]
    _copy_row(chan_a, chan[c])
    _copy_row(heads_a, heads[c])
    _copy_row(length_a, length[c])
    remaining_here, finish = left[i, c], t
    while remaining_here > 0:
        chan_a[C_NEXT] = _step(
            tm, chan_a[C_NEXT], 1, b_bank, b_row, b_write, next_burst, bank_a, group_a, rank_a, chan_a, slots_a,
            queue_a, heads_a, length_a, mark_a, done, tail, stats,
        )  # fmt: skip
        for d in range(2):
            for j in range(tail[d]):
                if owner[done[d, j, 1]] == number[i]:
                    remaining_here -= 1
                    finish = max(finish, done[d, j, 0])
            tail[d] = 0
    return finish


@inlined
def _enter_transfer(tm, first, count, write, t, digits, state, pool, transfers, counter, scratch):
    """DRAM bursts `first` to `first + count - 1` arrive together at clock t, as one transfer; returns its place.

    The channels that they use are simulated up to clock t.
    """
    chan = state[3]
    b_bank, b_row, b_write, next_burst, owner, free, free_count = pool
    number, remaining, end, left, sequence = transfers
    done, tail, stats = scratch
    counter[0] += 1
    i = counter[0] % len(number)
    number[i], remaining[i], end[i] = counter[0], count, t
    for c in range(len(chan)):
        left[i, c] = 0
    value = digits[4]
    _first_place(first, digits)
    for burst in range(count):
        if burst:
            _next_place(digits)
        c, row = value[0], value[5]
        bank = ((value[1] * tm[RANKS] + value[2]) * tm[GROUPS] + value[3]) * tm[BANKS] + value[4]
        if left[i, c] == 0 and chan[c, C_NEXT] <= t:
            _simulate_until(tm, t, c, state, pool, transfers, done, tail, stats)
        free_count[0] -= 1
        k = free[free_count[0]]
        b_bank[k], b_row[k], b_write[k], next_burst[k], owner[k] = bank, row, write, -1, counter[0]
        _append(chan[c], next_burst, k)
        chan[c, C_NEXT] = t + 1
        chan[c, C_APPENDED] += 1
        left[i, c] += 1
        sequence[i, c] = chan[c, C_APPENDED]
    return i


@inlined
def enter(tm, first, count, write, t, digits, state, pool, transfers, counter, scratch):
    """A transfer arrives at clock t. Returns a clock before which no memory answers it; see `confirm`."""
    _enter_transfer(tm, first, count, write, t, digits, state, pool, transfers, counter, scratch)
    return t + 1 if write else t + 1 + tm[CL] + tm[BL]


@inlined
def arrive(tm, first, count, write, t, exact, digits, state, ahead, pool, transfers, counter, scratch):
    """A transfer of DRAM bursts `first` to `first + count - 1` arrives at clock t.

    Returns the clock at which it is done if no others arrive; see `_look_ahead`.
    """
    i = _enter_transfer(tm, first, count, write, t, digits, state, pool, transfers, counter, scratch)
    left, (done, tail, stats), finish = transfers[3], scratch, t
    for c in range(len(state[3])):
        if left[i, c]:
            finish = max(finish, _look_ahead(tm, t, c, i, exact, state, ahead, pool, transfers, done, tail, stats))
    return finish


@inlined
def confirm(tm, transfer, t, look_ahead, write, state, ahead, pool, transfers, scratch):
    """Clock at which a transfer is done, after the arrivals up to clock t are known; see `_look_ahead`.

    Without `look_ahead`, the result is a lower bound while commands of the transfer have not been issued.
    """
    chan = state[3]
    number, remaining, end, left, _ = transfers
    done, tail, stats = scratch
    i = transfer % len(number)
    finish = t
    if number[i] == transfer:
        if remaining[i]:
            for c in range(len(chan)):
                if left[i, c] and chan[c, C_NEXT] <= t:
                    _simulate_until(tm, t, c, state, pool, transfers, done, tail, stats)
        finish = end[i]
        if remaining[i]:
            for c in range(len(chan)):
                if left[i, c]:
                    if look_ahead:
                        last = _look_ahead(tm, t, c, i, False, state, ahead, pool, transfers, done, tail, stats)
                    elif write and tm[POSTED]:  # four bursts enter the queues per clock
                        last = chan[c, C_NEXT] + (left[i, c] - 1) // 4
                    else:  # one column command per clock, the first one when the channel works next
                        last = chan[c, C_NEXT] + left[i, c] - 1 + (0 if write else tm[CL] + tm[BL])
                    finish = max(finish, last)
    return finish


@unowned
def arrive_kernel(tm, first, count, write, t, exact, digits, state, ahead, pool, transfers, counter, scratch):
    """See `arrive`."""
    return arrive(tm, first, count, write, t, exact, digits, state, ahead, pool, transfers, counter, scratch)


@unowned
def confirm_kernel(tm, transfer, t, state, ahead, pool, transfers, scratch):
    """See `confirm`."""
    return confirm(tm, transfer, t, True, False, state, ahead, pool, transfers, scratch)
