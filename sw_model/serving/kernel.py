"""The compiled event loop of one device: queues of the streams, choice of a batch, steps one after the other.

The state is in arrays, so that the loop can stop at a step whose time is not in the table, and continue after the
caller has computed it. Times are integer picoseconds.
"""

from __future__ import annotations

import numpy as np

from sw_model.serving.parameters import FRAME, QUESTION, TOKEN
from util.compiled import compiled, inlined

DONE, MISSING = 0, 1  # results of `advance`
WAITING, REFUSED = -1, -2  # values of `finish_ps` before a request ends
# fields of `clock`
NOW, NEXT, STEPS, LOGGED = range(4)
# fields of `limits`
MAX_BATCH, QUEUE_FRAMES, QUEUE_QUESTIONS, PRIORITY, FRAME_TOKENS, QUESTION_TOKENS, LOG_EVERY = range(7)
OLDEST, FRAMES_FIRST = 0, 1  # values of PRIORITY; 2: answers first


@inlined
def below(grid, x):
    """Index of the last entry of `grid` that is at most `x`, without the last entry."""
    return min(max(np.searchsorted(grid, x, side="right") - 1, 0), len(grid) - 2)


def interpolated(table, batches, contexts, fetches, batch, context, fetch, missing):
    """The time of a step by linear interpolation; -1, with the cell in `missing`, if a cell is not computed."""
    i, j, k = below(batches, batch), below(contexts, context), below(fetches, fetch)
    u = (batch - batches[i]) / (batches[i + 1] - batches[i])
    v = (context - contexts[j]) / (contexts[j + 1] - contexts[j])
    w = (fetch - fetches[k]) / (fetches[k + 1] - fetches[k])
    total = 0.0
    for a in range(2):
        for b in range(2):
            for c in range(2):
                weight = (u if a else 1 - u) * (v if b else 1 - v) * (w if c else 1 - w)
                if weight > 0:
                    value = table[i + a, j + b, k + c]
                    if value < 0:
                        missing[1], missing[2], missing[3] = i + a, j + b, k + c
                        return -1
                    total += weight * value
    return int(np.rint(total))


compiled_interpolated = compiled(interpolated)


@inlined
def fetch_at(fetched, spacing, context):
    """Bytes that a stream fetches per layer: `fetched` has a value for every `spacing` tokens of context."""
    i = min(context // spacing, len(fetched) - 2)
    u = (context - i * spacing) / spacing
    return fetched[i] * (1 - u) + fetched[i + 1] * u


@inlined
def push(ring, head, length, kind, stream):
    """Add a stream to the ring of streams that have a request of a kind."""
    ring[kind, (head[kind] + length[kind]) % ring.shape[1]] = stream
    length[kind] += 1


def advance(
    arrival_ps, stream, kind, answer_tokens, limits, table, batches, contexts, fetches, fetched, spacing,
    clock, context, waiting, first, count, ring, head, length, answering, remaining, ready_ps,
    first_token_ps, finish_ps, served, busy_ps, steps, members, missing, log, log_contexts,
):  # fmt: skip
    """Run until all requests have ended (DONE), or until the time of a step is missing (MISSING).

    `sw_model.serving.simulate.DeviceRun` describes the arrays. A stream is in the ring of a kind if it has a request of
    this kind that can start: a waiting frame; a waiting question and no answer in progress; an answer in progress. Each
    step takes streams from the head of one ring, so no stream is twice in a batch. A stream that still has such a
    request goes to the end of the ring.
    """
    while True:
        while clock[NEXT] < len(arrival_ps) and arrival_ps[clock[NEXT]] <= clock[NOW]:
            i = clock[NEXT]
            s, k = stream[i], kind[i]
            clock[NEXT] += 1
            if count[k, s] == limits[QUEUE_FRAMES if k == FRAME else QUEUE_QUESTIONS]:
                finish_ps[i] = REFUSED
                continue
            waiting[k, s, (first[k, s] + count[k, s]) % waiting.shape[2]] = i
            count[k, s] += 1
            if count[k, s] == 1 and (k == FRAME or answering[s] < 0):
                push(ring, head, length, k, s)

        chosen, oldest = -1, np.int64(0)
        for p in range(3):
            k = p if limits[PRIORITY] <= FRAMES_FIRST else 2 - p
            if not length[k]:
                continue
            s = ring[k, head[k]]
            since = ready_ps[s] if k == TOKEN else arrival_ps[waiting[k, s, first[k, s]]]
            if chosen < 0 or (limits[PRIORITY] == OLDEST and since < oldest):
                chosen, oldest = k, since
        if chosen < 0:
            if clock[NEXT] == len(arrival_ps):
                return DONE
            clock[NOW] = arrival_ps[clock[NEXT]]
            continue

        k = chosen
        batch = min(length[k], limits[MAX_BATCH])
        tokens, fetch = 0, 0.0
        for j in range(batch):
            c = context[ring[k, (head[k] + j) % ring.shape[1]]]
            tokens += c
            fetch += fetch_at(fetched[k], spacing, c)
        duration = compiled_interpolated(table[k], batches, contexts, fetches, batch, tokens / batch, fetch, missing)
        if duration < 0:
            missing[0] = k
            return MISSING

        if clock[STEPS] % limits[LOG_EVERY] == 0:
            slot = clock[LOGGED] % len(log)
            log[slot, 0], log[slot, 1], log[slot, 2] = k, batch, duration
            for j in range(batch):
                log_contexts[slot, j] = context[ring[k, (head[k] + j) % ring.shape[1]]]
            clock[LOGGED] += 1
        clock[STEPS] += 1
        end = clock[NOW] + duration
        for _ in range(batch):
            s = ring[k, head[k]]
            head[k] = (head[k] + 1) % ring.shape[1]
            length[k] -= 1
            if k == TOKEN:
                context[s] += 1
                remaining[s] -= 1
            else:
                i = waiting[k, s, first[k, s]]
                first[k, s] = (first[k, s] + 1) % waiting.shape[2]
                count[k, s] -= 1
                if k == FRAME:
                    context[s] += limits[FRAME_TOKENS]
                    finish_ps[i] = end
                    served[i] += 1
                    if count[k, s]:
                        push(ring, head, length, k, s)
                    continue
                context[s] += limits[QUESTION_TOKENS]
                first_token_ps[i] = end
                answering[s], remaining[s] = i, answer_tokens[i] - 1
            ready_ps[s] = end
            if remaining[s]:
                push(ring, head, length, TOKEN, s)
                continue
            finish_ps[answering[s]] = end
            served[answering[s]] += 1
            answering[s] = -1
            if count[QUESTION, s]:
                push(ring, head, length, QUESTION, s)
        busy_ps[k] += duration
        steps[k] += 1
        members[k] += batch
        clock[NOW] = end


compiled_advance = compiled(advance)
