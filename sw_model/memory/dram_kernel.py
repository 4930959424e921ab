"""Compiled kernel of the DRAM model: one controller per channel, clock by clock (see `sw_model.memory.dram`).

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
 RFC, REFI, RFC_BANK, REFI_BANK, PBR_PBR, PBR_ACT, AAD, CS, READ_Q, WRITE_Q, RANKS, GROUPS, BANKS, LPDDR, HBM, REFRESH,
 WCK, ROW_HIT, N_PARAMETERS) = range(38)  # fmt: skip
# bank, bank group, rank (of a pseudo-channel), channel
B_ROW, B_ACT, B_PRE, B_RD, B_WR, N_BANK = range(6)
G_ACT, G_RD, G_WR, N_GROUP = range(4)
S_ACT, S_RD, S_WR, S_TURNAROUND, S_SYNC, S_WINDOW, N_RANK = 0, 1, 2, 3, 4, 5, 9
(C_ACT2, C_ACT2_ROW, C_ACT2_FROM, C_BUS, C_DRAIN, C_IDLE, C_REFS, C_REF_NEXT, C_REF_FROM, C_STAMP, C_FREE, C_ARRIVED,
 N_CHANNEL) = range(13)  # fmt: skip
CLOSED, HALF_OPEN = -1, -2
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
                ready, command = chan[C_ACT2_FROM], ACTIVATE_2
            elif opened == CLOSED:
                if not space or chan[C_ACT2] >= 0:
                    continue
                window = rank[r, S_WINDOW + rank[r, S_TURNAROUND]] + tm[FAW]
                ready = max(bank[b, B_ACT], group[g, G_ACT], rank[r, S_ACT], window, chan[C_BUS])
                command = ACTIVATE
            else:
                if mark[b, 1] == stamp or (tm[ROW_HIT] and mark[b, 0] == stamp):
                    continue
                ready, command = max(bank[b, B_PRE], chan[C_BUS]), PRECHARGE
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
    channel = chan[C_REF_NEXT]
    lo, hi = (channel * per_rank, (channel + 1) * per_rank) if all_bank else (channel, channel + 1)
    is_open, pre_from, act_from = False, 0, chan[C_REF_FROM]
    for b in range(lo, hi):
        is_open |= bank[b, B_ROW] != CLOSED
        pre_from = max(pre_from, bank[b, B_PRE])
        act_from = max(act_from, bank[b, B_ACT])
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
        stats[N_PRE] += 1
        return True, now + 1
    if act_from > now:
        return False, act_from
    for b in range(lo, hi):
        bank[b, B_ACT] = now + tm[RFC if all_bank else RFC_BANK]
    chan[C_REFS] -= 1
    if all_bank:
        chan[C_REF_NEXT] = (channel + 1) % rank.shape[0]
        stats[N_REF] += 1
    else:
        chan[C_REF_NEXT] = (channel + 1) % bank.shape[0]
        chan[C_REF_FROM] = now + tm[PBR_PBR]
        for r in range(rank.shape[0]):
            rank[r, S_ACT] = max(rank[r, S_ACT], now + tm[PBR_ACT])
        stats[N_REF_BANK] += 1
    return True, now + 1


@inlined
def _row_command(tm, now, kind, slots, e, bank, group, rank, chan, stats):
    b, g, r = slots[e, Q_BANK], slots[e, Q_GROUP], slots[e, Q_RANK]
    if kind == PRECHARGE:
        bank[b, B_ROW] = CLOSED
        bank[b, B_ACT] = max(bank[b, B_ACT], now + tm[RP])
        stats[N_PRE] += 1
    elif kind == ACTIVATE_2:
        bank[b, B_ROW] = chan[C_ACT2_ROW]
        chan[C_ACT2] = -1
    else:
        rank[r, S_ACT] = max(rank[r, S_ACT], now + tm[RRD_S])
        group[g, G_ACT] = max(group[g, G_ACT], now + tm[RRD_L])
        rank[r, S_WINDOW + rank[r, S_TURNAROUND]] = now
        rank[r, S_TURNAROUND] = (rank[r, S_TURNAROUND] + 1) % 4
        bank[b, B_ACT], bank[b, B_PRE] = now + tm[RC], now + tm[RAS]
        bank[b, B_RD], bank[b, B_WR] = now + tm[RCD_RD], now + tm[RCD_WR]
        bank[b, B_ROW] = slots[e, Q_ROW]
        if tm[LPDDR]:
            bank[b, B_ROW] = HALF_OPEN
            chan[C_ACT2], chan[C_ACT2_ROW], chan[C_ACT2_FROM] = b, slots[e, Q_ROW], now + 1
        if tm[HBM]:
            chan[C_BUS] = now + 2
        stats[N_ACT] += 1


@inlined
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
        if row < 0 or (half and more_row >= 0 and now < chan[C_ACT2_FROM] + tm[AAD] - 2):
            row, row_q, kind = more_row, side, more_kind
    chan[C_IDLE] = now if length[READS] == 0 else -1
    if not hbm and column >= 0 and row >= 0:
        # one command bus; the second half of an activate takes the first free slot, or the last possible one
        if kind == ACTIVATE_2:
            column_first = now < chan[C_ACT2_FROM] + tm[AAD] - 2
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
        if tm[WCK] >= 0 and now > rank[r, S_SYNC]:
            # the data clock of LPDDR5 has stopped: one command starts it
            rank[r, S_SYNC] = now + (tm[CWL] if write else tm[CL]) + tm[BL] + tm[WCK]
        else:
            _after_column(tm, slots, e, now, bank, group, rank)
            k = tail[write]
            done[write, k, 0] = now if write else now + tm[CL] + tm[BL]
            done[write, k, 1] = slots[e, Q_REQUEST]
            tail[write] = k + 1 if k + 1 < done.shape[1] else 0
            stats[N_WR if write else N_RD] += 1
            chan[C_FREE] -= 1
            _leave(slots, queue, heads, column_q, column)
            queue[FREE, chan[C_FREE]] = e
            if column_q != ACTIVE:
                length[column_q] -= 1
    return now + 1 if refreshed or row >= 0 or column >= 0 else max(next_ready, now + 1)


@unowned
def _run(tm, per, bursts, requests, outcome, state):
    b_ch, b_bank, b_row, next_slot = bursts
    write, stream, order, first, arrival, qd = requests
    latency, stats = outcome
    (bank, group, rank, chan, slots, queue, heads, length, mark, group_of, rank_of, head, head_req, last, wake, done,
     accepted, tail, remaining, issued, blocked, cursor) = state  # fmt: skip
    n_req, n_rank, n_ch = len(latency), rank.shape[1], len(wake)
    period = FAR
    if tm[REFRESH] > 0:
        period = tm[REFI if tm[REFRESH] == 1 else REFI_BANK]
    next_refresh = period
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
                    blocked[stream[req]] -= 1
                    finished += 1
                k = k + 1 if k + 1 < done.shape[1] else 0
            accepted[d] = k
        if finished == n_req:
            return end - start
        next_time = next_refresh - 1
        for s in range(len(qd)):
            while cursor[s] < first[s + 1] and blocked[s] < qd[s]:
                req = order[cursor[s]]
                if arrival[req] > t:
                    next_time = min(next_time, arrival[req])
                    break
                if start < 0:
                    start = t
                issued[req] = t
                blocked[s] += 1
                cursor[s] += 1
                for k in range(req * per, (req + 1) * per):
                    c = b_ch[k]
                    if head[c] < 0:
                        head[c], head_req[c] = k, req
                    else:
                        next_slot[last[c]] = k
                    last[c] = k
        now = t + 1
        refresh_due = now >= next_refresh
        if refresh_due:
            next_refresh += period
        for c in range(n_ch):
            for _ in range(4):
                k = head[c]
                if k < 0:
                    break
                side = WRITES if write[head_req[c]] else READS
                if length[c, side] >= tm[WRITE_Q if side == WRITES else READ_Q]:
                    break
                slot = queue[c, FREE, chan[c, C_FREE]]
                chan[c, C_FREE] += 1
                slots[c, slot, Q_REQUEST], slots[c, slot, Q_WRITE] = head_req[c], side
                slots[c, slot, Q_BANK], slots[c, slot, Q_ROW] = b_bank[k], b_row[k]
                slots[c, slot, Q_NUMBER], slots[c, slot, Q_NEXT] = chan[c, C_ARRIVED], -1
                chan[c, C_ARRIVED] += 1
                slots[c, slot, Q_GROUP], slots[c, slot, Q_RANK] = group_of[b_bank[k]], rank_of[b_bank[k]]
                _enter(slots[c], queue[c], heads[c], side, slot)
                length[c, side] += 1
                head[c] = next_slot[k]
                if head[c] >= 0:
                    head_req[c] = head[c] // per
                wake[c] = now
            if refresh_due:
                chan[c, C_REFS] += n_rank if tm[REFRESH] == 1 else 1
                wake[c] = now
            if wake[c] <= now:
                wake[c] = _tick(
                    tm, now, bank[c], group[c], rank[c], chan[c], slots[c], queue[c], heads[c], length[c], mark[c],
                    done, tail, stats,
                )  # fmt: skip
            next_time = min(next_time, wake[c] - 1)
            if head[c] >= 0:
                side = WRITES if write[head_req[c]] else READS
                if length[c, side] < tm[WRITE_Q if side == WRITES else READ_Q]:
                    next_time = now
        for d in range(2):
            if accepted[d] != tail[d]:
                next_time = min(next_time, done[d, accepted[d], 0])
        t = max(next_time, now)


def replay_kernel(tm, n_ch, n_pc, per, b_ch, b_bank, b_row, write, stream, order, first, arrival, qd, latency, stats):
    """Per clock, streams issue, channels take up to four bursts each, controllers tick; idle clocks are skipped.
    Returns the clocks from the first issue to the last completion."""
    n_rank = n_pc * tm[RANKS]
    n_group = n_rank * tm[GROUPS]
    n_bank = n_group * tm[BANKS]
    bank = np.zeros((n_ch, n_bank, N_BANK), np.int64)
    bank[:, :, B_ROW] = CLOSED
    group = np.zeros((n_ch, n_group, N_GROUP), np.int64)
    rank = np.full((n_ch, n_rank, N_RANK), -FAR, np.int64)
    rank[:, :, S_TURNAROUND] = 0
    chan = np.zeros((n_ch, N_CHANNEL), np.int64)
    chan[:, C_ACT2] = -1
    # requests are stored in slots; queues hold slot numbers; the used part of the free list is C_FREE long
    cap = max(tm[READ_Q], tm[WRITE_Q])
    slots = np.zeros((n_ch, tm[READ_Q] + tm[WRITE_Q] + cap, N_ENTRY), np.int64)
    queue = np.zeros((n_ch, 4, slots.shape[1]), np.int64)
    queue[:, FREE] = np.arange(slots.shape[1])
    heads = np.zeros((n_ch, 3), np.int64)
    length = np.zeros((n_ch, 2), np.int64)  # requests in the read and the write queue
    mark = np.zeros((n_ch, n_bank, 4), np.int64)
    group_of = np.arange(n_bank) // tm[BANKS]
    rank_of = group_of // tm[GROUPS]
    head = np.full(n_ch, -1, np.int64)
    head_req = np.zeros(n_ch, np.int64)
    last = np.full(n_ch, -1, np.int64)
    next_slot = np.full(len(b_ch), -1, np.int32)
    wake = np.full(n_ch, FAR, np.int64)
    # completions in flight, one list for reads and one for writes, each in order of time
    done = np.zeros((2, n_ch * (tm[CL] + tm[BL] + 4), 2), np.int64)
    accepted = np.zeros(2, np.int64)
    tail = np.zeros(2, np.int64)
    remaining = np.full(len(latency), per, np.int64)
    issued = np.zeros(len(latency), np.int64)
    blocked = np.zeros(len(qd), np.int64)
    cursor = first[:-1].copy()
    bursts, requests = (b_ch, b_bank, b_row, next_slot), (write, stream, order, first, arrival, qd)
    state = (
        bank, group, rank, chan, slots, queue, heads, length, mark, group_of, rank_of, head, head_req, last, wake, done,
        accepted, tail, remaining, issued, blocked, cursor,
    )  # fmt: skip
    return _run(tm, per, bursts, requests, (latency, stats), state)
