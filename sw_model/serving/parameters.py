"""The parameters of a serving simulation: keys `serve.NAME` of a run."""

from __future__ import annotations

from dataclasses import dataclass

from util import checks

ARRIVALS = ("periodic", "poisson")
ANSWERS = ("fixed", "geometric")
PRIORITIES = ("oldest", "frames", "answers")
ASSIGNMENTS = ("least_loaded", "hash")
KINDS = ("frame", "question", "token")  # kinds of step, by number
FRAME, QUESTION, TOKEN = range(3)
MAX_BATCH = 64
PS_PER_MS = 10**9


@dataclass(frozen=True)
class Serving:
    """What arrives, and how the devices serve it.

    streams               cameras
    max_streams           largest number of streams that a search of the capacity tries
    devices               equal devices, each with its own memory and host link
    fps                   frames per second of one camera
    seconds               time in which requests arrive; all admitted requests are served after it
    arrivals              `periodic`: a camera has a random phase, and a frame is late by up to `jitter` of a period;
                          `poisson`: independent gaps
    jitter                share of a period, 0 to 1
    trace                 CSV file of arrivals (`sw_model.serving.arrivals.read_trace`); replaces all generated arrivals
    questions_per_minute  mean rate of questions of one stream, Poisson
    question_tokens       tokens of a question
    answer_tokens         mean tokens of an answer
    answers               `fixed`: every answer has `answer_tokens`; `geometric`: at least 1, with this mean
    priority              kind of the next step: `oldest` request first, `frames` first, or `answers` first
    queue_frames          frames of one stream that can wait; a frame that arrives at a full queue is refused
    queue_questions       the same for questions
    assignment            device of a stream: `least_loaded` (fewest frames) or `hash` of its number
    limit_ms              limit of the frame latency (service level objective, SLO)
    first_token_limit_ms  limit of the time to first token (TTFT) of questions; 0: none
    per_token_limit_ms    limit of the time per output token (TPOT) of answers; 0: none
    attainment            share of the offered frames, and of the offered questions, that must be within their limits
    seed                  seed of all random numbers; a stream's arrivals do not depend on the other streams

    Raises ValueError for a value outside its range.
    """

    streams: int = 4
    max_streams: int = 1024
    devices: int = 1
    fps: float = 2.0
    seconds: float = 60.0
    arrivals: str = "periodic"
    jitter: float = 0.1
    trace: str = ""
    questions_per_minute: float = 1.0
    question_tokens: int = 25
    answer_tokens: int = 39
    answers: str = "geometric"
    priority: str = "oldest"
    queue_frames: int = 4
    queue_questions: int = 4
    assignment: str = "least_loaded"
    limit_ms: float = 500.0
    first_token_limit_ms: float = 0.0
    per_token_limit_ms: float = 0.0
    attainment: float = 0.99
    seed: int = 0

    def __post_init__(self) -> None:
        try:
            for name in ("streams", "max_streams"):
                checks.integer(f"serve.{name}", getattr(self, name), 1, 100_000)
            checks.integer("serve.devices", self.devices, 1, 1024)
            for name in ("question_tokens", "answer_tokens", "queue_frames", "queue_questions"):
                checks.integer(f"serve.{name}", getattr(self, name), 1, 100_000)
            checks.integer("serve.seed", self.seed, 0)
            for name in ("fps", "seconds", "limit_ms"):
                checks.real(f"serve.{name}", getattr(self, name), 1e-3, 1e6)
            for name in ("questions_per_minute", "first_token_limit_ms", "per_token_limit_ms"):
                checks.real(f"serve.{name}", getattr(self, name), 0, 1e6)
            for name in ("jitter", "attainment"):
                checks.real(f"serve.{name}", getattr(self, name), 0, 1)
            for name, options in (("arrivals", ARRIVALS), ("answers", ANSWERS), ("priority", PRIORITIES),
                                  ("assignment", ASSIGNMENTS)):  # fmt: skip
                checks.one_of(f"serve.{name}", getattr(self, name), options)
            if not isinstance(self.trace, str):
                raise ValueError(f"serve.trace must be a path, got {self.trace!r}")
        except TypeError as error:
            raise ValueError(str(error)) from None
