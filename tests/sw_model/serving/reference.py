"""An event loop of one device in plain Python, written from the rules in the README of `sw_model.serving`."""

from collections import deque
from collections.abc import Callable

from sw_model.serving.arrivals import Arrivals
from sw_model.serving.parameters import FRAME, QUESTION, TOKEN, Serving

ORDER = {"oldest": (0, 1, 2), "frames": (0, 1, 2), "answers": (2, 1, 0)}


def serve(
    arrivals: Arrivals, serving: Serving, context: int, batch: int, new_tokens: tuple[int, int, int],
    step_ps: Callable[[int, list[int]], int],
) -> tuple[dict[int, int], dict[int, int], set[int]]:  # fmt: skip
    """End of the first step, and of the last step, of each served request; and the refused requests."""
    columns = (arrivals.time_ps, arrivals.stream, arrivals.kind, arrivals.answer_tokens)
    requests = deque(enumerate(zip(*(column.tolist() for column in columns), strict=True)))
    contexts = dict.fromkeys(range(arrivals.streams), context)
    queues = {(k, s): deque() for k in (FRAME, QUESTION) for s in contexts}
    limits = {FRAME: serving.queue_frames, QUESTION: serving.queue_questions}
    can_start = {kind: deque() for kind in (FRAME, QUESTION, TOKEN)}  # streams
    answers: dict[int, list[int]] = {}  # stream -> question, remaining tokens, end of the last token
    first, last, refused, now = {}, {}, set(), 0

    def since(kind: int) -> int:
        stream = can_start[kind][0]
        return answers[stream][2] if kind == TOKEN else queues[kind, stream][0][1]

    while True:
        while requests and requests[0][1][0] <= now:
            number, (time, stream, kind, answer) = requests.popleft()
            queue = queues[kind, stream]
            if len(queue) == limits[kind]:
                refused.add(number)
                continue
            queue.append((number, time, answer))
            if stream not in can_start[kind] and (kind == FRAME or stream not in answers):
                can_start[kind].append(stream)
        ready = [kind for kind in ORDER[serving.priority] if can_start[kind]]
        if not ready:
            if not requests:
                return first, last, refused
            now = requests[0][1][0]
            continue
        kind = min(ready, key=since) if serving.priority == "oldest" else ready[0]
        chosen = [can_start[kind].popleft() for _ in range(min(batch, len(can_start[kind])))]
        now += step_ps(kind, [contexts[stream] for stream in chosen])
        for stream in chosen:
            contexts[stream] += new_tokens[kind]
            if kind == FRAME:
                last[queues[kind, stream].popleft()[0]] = now
                if queues[kind, stream]:
                    can_start[kind].append(stream)
                continue
            if kind == QUESTION:
                number, _, tokens = queues[kind, stream].popleft()
                first[number] = now
                answers[stream] = [number, tokens, now]
            answers[stream][1] -= 1
            answers[stream][2] = now
            if answers[stream][1]:
                can_start[TOKEN].append(stream)
            else:
                last[answers.pop(stream)[0]] = now
                if queues[QUESTION, stream]:
                    can_start[QUESTION].append(stream)
