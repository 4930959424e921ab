"""One simulation: arrivals, admission, the event loop of every device, and the result.

Devices share nothing: each has its memory and its host link, as the preset of the system describes them. So the event
loop runs for one device after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from sw_model.serving import kernel
from sw_model.serving.admission import Admission, Device, admit
from sw_model.serving.arrivals import Arrivals, arrivals_of
from sw_model.serving.parameters import FRAME, KINDS, PRIORITIES, QUESTION, Serving
from sw_model.serving.result import LoggedStep, ServingResult
from sw_model.serving.step_times import BATCHES, CONTEXTS, FETCH_POINTS, FETCHES, StepTimes
from util import checks

LOGGED_STEPS = 64  # of one device


@dataclass
class DeviceRun:
    """The state of one device. Arrays of n streams, of m requests, and of the three kinds of step.

    context                 (n,) tokens of each stream
    waiting, first, count   queues of requests of each stream: ring buffers of their numbers (2, n, depth), the position
                            of the oldest (2, n), and the number of entries (2, n)
    ring, head, length      streams with a request that can start: ring buffer for each kind (3, n), its head and length
    answering, remaining    (n,) question whose answer is in progress (-1: none), and remaining tokens of the answer
    ready_ps                (n,) end of the last token
    first_token_ps          (m,) end of the step of a question
    finish_ps               (m,) end of the last step of a request, or `kernel.REFUSED`
    served                  (m,) how often a request ended
    busy_ps, steps, members (3,) time, steps, and streams in these steps
    log, log_contexts       some of the steps: kind, batch, time; and the contexts of the batch
    """

    device: Device
    arrivals: Arrivals
    times: StepTimes
    batch: int
    serving: Serving
    clock: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        n, m, serving = self.arrivals.streams, len(self.arrivals), self.serving
        depth = max(serving.queue_frames, serving.queue_questions)
        self.clock = np.zeros(4, np.int64)
        self.waiting = np.zeros((2, n, depth), np.int64)
        self.first, self.count = np.zeros((2, 2, n), np.int64)
        self.ring, self.head, self.length = np.zeros((3, n), np.int64), np.zeros(3, np.int64), np.zeros(3, np.int64)
        self.answering, self.remaining, self.ready_ps = np.full(n, -1), np.zeros(n, np.int64), np.zeros(n, np.int64)
        self.first_token_ps, self.finish_ps = np.full(m, kernel.WAITING), np.full(m, kernel.WAITING)
        self.served = np.zeros(m, np.int64)
        self.busy_ps, self.steps, self.members = np.zeros((3, 3), np.int64)
        self.log, self.log_contexts = np.zeros((LOGGED_STEPS, 3), np.int64), np.zeros((LOGGED_STEPS, self.batch), int)

    def run(self, context: int) -> None:
        """Serve all requests; every stream starts with `context` tokens."""
        arrivals, serving, times = self.arrivals, self.serving, self.times
        frame_tokens, question_tokens, _ = times.new_tokens
        longest = context + int(arrivals.tokens_of(frame_tokens, question_tokens).max(initial=0))
        spacing = max(16, -(-longest // FETCH_POINTS))
        points = np.arange(0, longest + 2 * spacing, spacing)
        fetched = times.fetched_bytes(points, self.device.resident_tokens)
        every = max(1, len(arrivals) // (8 * LOGGED_STEPS))
        limits = np.array(
            [self.batch, serving.queue_frames, serving.queue_questions, PRIORITIES.index(serving.priority),
             frame_tokens, question_tokens, every]
        )  # fmt: skip
        self.context = np.full(arrivals.streams, context)
        missing = np.zeros(4, np.int64)
        state = (
            self.clock, self.context, self.waiting, self.first, self.count, self.ring, self.head, self.length,
            self.answering, self.remaining, self.ready_ps, self.first_token_ps, self.finish_ps, self.served,
            self.busy_ps, self.steps, self.members, missing, self.log, self.log_contexts,
        )  # fmt: skip
        columns = (arrivals.time_ps, arrivals.stream, arrivals.kind, arrivals.answer_tokens)
        axes = (BATCHES, CONTEXTS, FETCHES, fetched, spacing)
        while kernel.compiled_advance(*columns, limits, times.table, *axes, *state) == kernel.MISSING:
            times.fill(*map(int, missing))

    def logged(self) -> list[LoggedStep]:
        """Some steps of the run."""
        count = min(int(self.clock[kernel.LOGGED]), LOGGED_STEPS)
        return [
            LoggedStep(int(k), self.log_contexts[i, :b].tolist(), self.device.resident_tokens, int(ps))
            for i, (k, b, ps) in enumerate(self.log[:count].tolist())
        ]


def simulate(serving: Serving, times: StepTimes, context: int, batch: int) -> ServingResult:
    """Serve the streams of `serving`.

    times    times of steps of the system and the policy, for questions of `serving.question_tokens` tokens
    context  tokens in the cache of every stream at the start, at least 0
    batch    largest number of streams in one step, 1 to 64

    Raises ValueError for a value outside its range, and for a trace file that cannot be read.
    """
    checks.integer("tokens", context, 0)
    checks.integer("batch", batch, 1, int(BATCHES[-1]))
    arrivals = arrivals_of(serving)
    growth = arrivals.tokens_of(times.new_tokens[FRAME], times.new_tokens[QUESTION])
    checks.integer("context at the end of the run in tokens", context + growth.max(), 0, int(CONTEXTS[-1]))
    admission = admit(serving, arrivals, times, context, batch)
    return serve(serving, times, context, batch, arrivals, admission)


def serve(
    serving: Serving, times: StepTimes, context: int, batch: int, arrivals: Arrivals, admission: Admission
) -> ServingResult:
    """Serve admitted streams on their devices."""
    first_token, finish = np.full(len(arrivals), kernel.WAITING), np.full(len(arrivals), kernel.REFUSED)
    served = np.zeros(len(arrivals), np.int64)
    busy, steps, members = np.zeros((3, len(admission.devices), len(KINDS)), np.int64)
    end_ps, log = 0, []
    for number, device in enumerate(admission.devices):
        own, at = arrivals.of_streams(device.streams)
        if not len(own):
            continue
        run = DeviceRun(device, own, times, batch, serving)
        run.run(context)
        first_token[at], finish[at], served[at] = run.first_token_ps, run.finish_ps, run.served
        busy[number], steps[number], members[number] = run.busy_ps, run.steps, run.members
        end_ps = max(end_ps, int(run.clock[kernel.NOW]))
        log += run.logged()
    return ServingResult(
        serving, arrivals, admission, first_token, finish, served, busy, steps, members, end_ps, tuple(log)
    )
