"""Arrivals of frames and questions: periodic cameras, Poisson processes, or a trace file."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sw_model.engine import PS_PER_S
from sw_model.serving.parameters import FRAME, QUESTION, Serving

COLUMNS = ("time_s", "stream", "kind", "answer_tokens")
KIND_OF = {"frame": FRAME, "question": QUESTION}
MAX_SECONDS = 1_000_000  # times in picoseconds fit int64


@dataclass(frozen=True)
class Arrivals:
    """Requests in order of time; requests at the same time in order of stream, frames first.

    time_ps        int64 (n,), picoseconds
    stream         int64 (n,), numbers 0 to `streams` - 1
    kind           int64 (n,), FRAME or QUESTION
    answer_tokens  int64 (n,), tokens of the answer; 0 for a frame
    """

    streams: int
    time_ps: np.ndarray
    stream: np.ndarray
    kind: np.ndarray
    answer_tokens: np.ndarray

    def __len__(self) -> int:
        return len(self.time_ps)

    def of_streams(self, numbers: np.ndarray) -> tuple[Arrivals, np.ndarray]:
        """The requests of some streams, which get the numbers 0, 1, ..., and the positions of these requests."""
        local = np.full(self.streams, -1)
        local[numbers] = np.arange(len(numbers))
        at = np.flatnonzero(local[self.stream] >= 0)
        parts = (self.time_ps[at], local[self.stream[at]], self.kind[at], self.answer_tokens[at])
        return Arrivals(len(numbers), *parts), at

    def tokens_of(self, frame_tokens: int, question_tokens: int) -> np.ndarray:
        """Tokens by which the context of each stream grows when all its requests are served, int64 (streams,)."""
        tokens = np.where(self.kind == FRAME, frame_tokens, question_tokens + np.maximum(0, self.answer_tokens - 1))
        return np.bincount(self.stream, tokens, self.streams).astype(np.int64)

    def frames_of(self) -> np.ndarray:
        """Frames of each stream, int64 (streams,)."""
        return np.bincount(self.stream[self.kind == FRAME], minlength=self.streams)


def ordered(streams: int, time_s: np.ndarray, stream: np.ndarray, kind: np.ndarray, answer: np.ndarray) -> Arrivals:
    """Arrivals from columns in any order."""
    time_ps = np.rint(time_s * PS_PER_S).astype(np.int64)
    order = np.lexsort((kind, stream, time_ps))
    columns = (column[order].astype(np.int64) for column in (time_ps, stream, kind, answer))
    return Arrivals(streams, *columns)


def arrivals_of(serving: Serving) -> Arrivals:
    """The arrivals that the parameters describe: of the trace file, or generated. Raises ValueError for a bad trace."""
    return read_trace(Path(serving.trace), serving) if serving.trace else generate(serving)


def generate(serving: Serving) -> Arrivals:
    """Random arrivals. Each stream has its own generator, so more streams do not change the first ones."""
    parts = []
    for number in range(serving.streams):
        random = np.random.default_rng([serving.seed, number])
        frames = frame_times(serving, random)
        questions = poisson_times(serving.questions_per_minute / 60, serving.seconds, random)
        if serving.answers == "fixed":
            answer = np.full(len(questions), serving.answer_tokens)
        else:
            answer = random.geometric(1 / serving.answer_tokens, len(questions))
        kinds = np.repeat((FRAME, QUESTION), (len(frames), len(questions)))
        answers = np.concatenate([np.zeros(len(frames), np.int64), answer])
        parts.append((np.concatenate([frames, questions]), np.full(len(kinds), number), kinds, answers))
    return ordered(serving.streams, *(np.concatenate(column) for column in zip(*parts, strict=True)))


def frame_times(serving: Serving, random: np.random.Generator) -> np.ndarray:
    """Times of the frames of one camera in seconds."""
    if serving.arrivals == "poisson":
        return poisson_times(serving.fps, serving.seconds, random)
    period = 1 / serving.fps
    starts = np.arange(random.uniform(0, period), serving.seconds, period)
    return starts + random.uniform(0, 1, len(starts)) * serving.jitter * period


def poisson_times(rate: float, seconds: float, random: np.random.Generator) -> np.ndarray:
    """Times of a Poisson process of `rate` events per second in [0, `seconds`)."""
    return np.sort(random.uniform(0, seconds, random.poisson(rate * seconds)))


def read_trace(path: Path, serving: Serving) -> Arrivals:
    """Arrivals of a CSV file with the columns `time_s`, `stream`, `kind` and `answer_tokens`.

    The kind is `frame` or `question`; a frame has no answer tokens. Of the streams those with numbers below
    `serving.streams` are used. Raises ValueError that names the file and the line.
    """
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if tuple(rows.fieldnames or ()) != COLUMNS:
                raise ValueError(f"columns must be {','.join(COLUMNS)}, got {','.join(rows.fieldnames or ())}")
            records = [record_of(row, rows.line_num) for row in rows]
    except OSError as error:
        raise ValueError(f"trace {str(path)!r} must be a CSV file, got {error.strerror}") from None
    except (ValueError, csv.Error) as error:
        raise ValueError(f"trace {str(path)!r}: {error}") from None
    records = [record for record in records if record[1] < serving.streams]
    if not records:
        raise ValueError(f"trace {str(path)!r} must have a request of a stream below {serving.streams}, got none")
    streams = 1 + max(record[1] for record in records)
    return ordered(streams, *(np.array(column) for column in zip(*records, strict=True)))


def record_of(row: dict[str, str], line: int) -> tuple[float, int, int, int]:
    """Time, stream, kind and answer tokens of one row. Raises ValueError that names the line."""
    name, value, valid = "kind", row["kind"], "frame or question"
    try:
        kind = KIND_OF[value]
        name, value, valid = "time_s", row["time_s"], f"0 to {MAX_SECONDS}"
        time_s = float(value)
        if not 0 <= time_s <= MAX_SECONDS:
            raise ValueError
        name, value, valid = "stream", row["stream"], "an integer of at least 0"
        stream = int(value)
        if stream < 0:
            raise ValueError
        name, value = "answer_tokens", row["answer_tokens"] or "0"
        valid = "at least 1 for a question, empty for a frame"
        answer = int(value)
        if (answer < 1) == (kind == QUESTION):
            raise ValueError
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"line {line}: {name} must be {valid}, got {value!r}") from None
    return time_s, stream, kind, answer
