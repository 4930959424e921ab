"""One step for several sessions: frames of some, texts of others. The machine reads its weights once for all of them.

machine = compile_model(checkpoint, config, Limits(streams=2, batch=2))
first, second = machine.session(), machine.session()
serve(machine, [Frame(first, picture), Text(second, "What happens?", answer=True)])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.runtime import Machine, Session, SessionTokens, run_step
from compiler.sampling import Sampler, Sampling
from golden.bf16 import FP32, decode


@dataclass(frozen=True)
class Frame:
    """A frame of a session, see `Session.frame`.

    pictures : uint8 (height, width, 3) each, as many as the tower has in a patch, or one that is repeated
    seconds : time of a frame of a video, for models that have tokens_per_second; None: a picture alone
    """

    session: Session
    pictures: Sequence[np.ndarray]
    seconds: float | None = None


@dataclass(frozen=True)
class Text:
    """A text of a session, or its token IDs, see `Session.prompt`; with `answer` the most probable next token follows.

    It is one step: at most `Machine.step` tokens, together with those of the other sessions.
    """

    session: Session
    tokens: str | Sequence[int]
    answer: bool = False


def serve(machine: Machine, requests: Sequence[Frame | Text]) -> list[int | None]:
    """Execute one step for all requests, each of another session; returns the token of each one that is answered.

    Every session gets the results that it gets in a step of its own, in every bit. A refused request changes nothing.

    Raises ValueError for more requests than `Limits.batch` or more tokens than `Machine.step`, for two requests of one
    session, and for what `Session.frame` and `Session.prompt` refuse.
    """
    sessions = [request.session for request in requests]
    if not 1 <= len(requests) <= machine.limits.batch:
        raise ValueError(f"requests of a step must be 1 to batch = {machine.limits.batch}, got {len(requests)}")
    if len(set(map(id, sessions))) < len(sessions) or any(session.machine is not machine for session in sessions):
        raise ValueError("sessions of a step must be different sessions of one machine")
    for request in requests:
        if isinstance(request, Frame) and machine.vision is None:
            raise ValueError(f"model of family {machine.spec.family} has no vision tower, got a frame")
    texts = {n: each.session.embeddings(each.tokens) for n, each in enumerate(requests) if isinstance(each, Text)}
    placed = [
        each.session.place_frame(each.seconds, each.session.positions)
        if isinstance(each, Frame)
        else each.session.positions.text(len(texts[n]))
        for n, each in enumerate(requests)
    ]
    tokens = sum(len(positions) for positions, _ in placed)
    if tokens > machine.step:
        raise ValueError(f"tokens of a step of all sessions must be at most {machine.step}, got {tokens}")
    for each, where in zip(requests, placed, strict=True):
        each.session.check(len(where[0]), where, frame=isinstance(each, Frame))
    frames = {n: each.pictures for n, each in enumerate(requests) if isinstance(each, Frame)}
    seen, commands = machine.see(list(frames.values())) if frames else ([], 0)
    rows = {**texts, **dict(zip(frames, seen, strict=True))}
    parts = [
        SessionTokens(each.session, rows[n], placed[n], isinstance(each, Text) and each.answer, isinstance(each, Frame))
        for n, each in enumerate(requests)
    ]
    return run_step(machine, parts, commands)


def prompt(
    machine: Machine, sessions: Sequence[Session], texts: Sequence[str | Sequence[int]], *, answer: bool = False
) -> list[int | None]:
    """A text for each session, or its token IDs, see `Session.prompt`; long texts take several steps.

    The texts that are not complete share the tokens of a step evenly. With `answer`, returns the next token of each
    session. A text that a session refuses changes nothing.
    """
    left = {n: _ids(session, text) for n, (session, text) in enumerate(zip(sessions, texts, strict=True))}
    for n, session in enumerate(sessions):  # all steps, before the first one
        count = len(session.embeddings(left[n]))
        session.check(count, session.positions.text(count))
    choices: list[int | None] = [None] * len(left)
    while left:
        size, step = machine.step // len(left), dict[int, Text]()
        for n, tokens in left.items():
            step[n] = Text(sessions[n], tokens[:size], answer and len(tokens) <= size)
        for n, choice in zip(step, serve(machine, list(step.values())), strict=True):
            choices[n] = choice
        left = {n: tokens[size:] for n, tokens in left.items() if len(tokens) > size}
    return choices


def ask(
    machine: Machine,
    sessions: Sequence[Session],
    questions: Sequence[str | Sequence[int]],
    *,
    count: int = 32,
    sampling: Sampling | None = None,
) -> Iterator[list[int | None]]:
    """Answers to a question of each session, side by side: for every step a token of each session, at most `count`.

    A session whose answer is complete has None and takes no part in the steps. `sampling` : see `Session.ask`; the
    draws of each session are those of a session alone.
    """
    samplers = [Sampler(sampling) for _ in sessions] if sampling else []
    running: list[tuple[int, str | Sequence[int]]] = list(enumerate(questions))
    for _ in range(count):
        if not running:
            return
        choices = prompt(machine, [sessions[n] for n, _ in running], [text for _, text in running], answer=True)
        tokens: list[int | None] = [None] * len(sessions)
        for (n, _), choice in zip(running, choices, strict=True):
            tokens[n] = samplers[n].draw(decode(sessions[n].logits, FP32)) if samplers else choice
        yield tokens
        ended = {None, *machine.spec.eos_ids}
        running = [(n, [token]) for n, token in enumerate(tokens) if token is not None and token not in ended]


def _ids(session: Session, text: str | Sequence[int]) -> list[int]:
    if not isinstance(text, str):
        return list(text)
    return session.machine.tokenizer.encode(text, begin=not session.position)
