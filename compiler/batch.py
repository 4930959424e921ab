"""A step that serves several sessions. Each session contributes one frame or one text; the weights are read once.

machine = compile_model(checkpoint, config, Limits(streams=2, batch=2))
first, second = machine.session(), machine.session()
serve(machine, [Frame(first, [picture]), Text(second, "What happens?", answer=True)])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compiler.runtime import Machine, Placement, Session, SessionTokens, run_step
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

    def placement(self) -> Placement:
        """Positions of its tokens, and those after them."""
        if self.session.machine.vision is None:
            family = self.session.machine.spec.family
            raise ValueError(f"model of family {family} has no vision tower, got a frame")
        return self.session.place_frame(self.seconds, self.session.positions)


@dataclass(frozen=True)
class Text:
    """A text of a session, or its token IDs, see `Session.prompt`; with `answer` the most probable next token follows.

    It is one step: at most `Machine.step` tokens, together with those of the other sessions.
    """

    session: Session
    tokens: str | Sequence[int]
    answer: bool = False

    def placement(self) -> Placement:
        """Positions of its tokens, and those after them."""
        return self.session.positions.text(len(self.session.embeddings(self.tokens)))


def serve(machine: Machine, requests: Sequence[Frame | Text]) -> list[int | None]:
    """Execute one step for all requests, each of another session; returns the token of each one that is answered.

    The results have the same bits as those of separate steps. A refused request changes nothing.

    Raises ValueError for more requests than `Limits.batch` or more tokens than `Machine.step`, for two requests of one
    session, for a policy with windows, and for what `Session.frame` and `Session.prompt` refuse.
    """
    sessions = [request.session for request in requests]
    if not 1 <= len(requests) <= machine.limits.batch:
        raise ValueError(f"requests of a step must be 1 to batch = {machine.limits.batch}, got {len(requests)}")
    if machine.windows is not None:
        raise ValueError(f"policy of a step of several sessions must have no windows, got {machine.policy.name}")
    if any(session.machine is not machine for session in sessions):
        raise ValueError("sessions of a step must be of its machine, got one of another machine")
    if len(set(map(id, sessions))) < len(sessions):
        raise ValueError("sessions of a step must be different, got one twice")
    placements = [request.placement() for request in requests]
    tokens = sum(len(positions) for positions, _ in placements)
    if tokens > machine.step:
        raise ValueError(f"tokens of a step of all sessions must be at most {machine.step}, got {tokens}")
    for request, placement in zip(requests, placements, strict=True):
        request.session.check(len(placement[0]), placement, frame=isinstance(request, Frame))
    pictures = [request.pictures for request in requests if isinstance(request, Frame)]
    seen, commands = machine.see(pictures) if pictures else ([], 0)
    frames = iter(seen)
    steps = [
        SessionTokens(request.session, next(frames), placement, answer=False, frame=True)
        if isinstance(request, Frame)
        else SessionTokens(
            request.session, request.session.embeddings(request.tokens), placement, answer=request.answer, frame=False
        )
        for request, placement in zip(requests, placements, strict=True)
    ]
    return run_step(machine, steps, commands)


def prompt(
    machine: Machine, sessions: Sequence[Session], texts: Sequence[str | Sequence[int]], *, answer: bool = False
) -> list[int | None]:
    """A text for each session, or its token IDs, see `Session.prompt`; long texts take several steps.

    The texts that are not complete share the tokens of a step evenly. With `answer`, returns the next token of each
    session. A text that a session refuses changes nothing.
    """
    remaining = _ids(sessions, texts)
    for n, session in enumerate(sessions):  # all steps, before the first one
        count = len(session.embeddings(remaining[n]))
        session.check(count, session.positions.text(count))
    choices: list[int | None] = [None] * len(sessions)
    while remaining:
        size = machine.step // len(remaining)
        step = {n: Text(sessions[n], ids[:size], answer and len(ids) <= size) for n, ids in remaining.items()}
        for n, choice in zip(step, serve(machine, list(step.values())), strict=True):
            choices[n] = choice
        remaining = {n: ids[size:] for n, ids in remaining.items() if len(ids) > size}
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

    Raises ValueError unless every session has tokens left for its question and `count` tokens.
    """
    running = _ids(sessions, questions)
    most = machine.limits.tokens
    for n, session in enumerate(sessions):
        needed = session.position + len(running[n]) + count - 1
        if needed > most:
            raise ValueError(f"tokens must be at least {needed} for the question and its answer, got {most}")
    samplers = [Sampler(sampling) for _ in sessions] if sampling else []
    for _ in range(count):
        if not running:
            return
        choices = prompt(machine, [sessions[n] for n in running], list(running.values()), answer=True)
        tokens: list[int | None] = [None] * len(sessions)
        for n, choice in zip(running, choices, strict=True):
            tokens[n] = samplers[n].draw(decode(sessions[n].logits, FP32)) if samplers else choice
        yield tokens
        ended = {None, *machine.spec.eos_ids}
        running = {n: [token] for n, token in enumerate(tokens) if token is not None and token not in ended}


def _ids(sessions: Sequence[Session], texts: Sequence[str | Sequence[int]]) -> dict[int, list[int]]:
    """Token IDs of the text of each session, by its number."""
    if len(texts) != len(sessions):
        raise ValueError(f"texts must be one for each of {len(sessions)} sessions, got {len(texts)}")
    return {n: session.token_ids(text) for n, (session, text) in enumerate(zip(sessions, texts, strict=True))}
