"""Quality of retrieval policies on a model and a video: answers to questions compared with those of the full cache.

Every policy streams the video once. A question is asked at its time and is removed from the cache afterwards, so that
it does not change later answers. The results of a question are stored in a folder as soon as they exist, and the state
of the session with them: a comparison that was killed continues there.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from sw_model.huggingface.cache import RetrievalLayer, policy_class
from sw_model.huggingface.frames import FrameStep, steps
from sw_model.huggingface.session import StreamingSession
from sw_model.huggingface.state import StateError
from sw_model.media import capture, video
from sw_model.policies import Selection
from util import checks, files, text
from util.progress import Progress, no_progress

REFERENCE = "full"
SESSION = "session-"  # name of a saved session, followed by the number of its frames


@dataclass(frozen=True)
class Question:
    """A question and the time in the video at which it is asked, in seconds; infinity: after the video.

    The model has seen all steps of the stream that end at this time or before.
    """

    time_s: float
    text: str


@dataclass(frozen=True)
class Settings:
    """What a comparison computes; a folder holds the results of one of these.

    model             folder of a checkpoint, or its name on the hub
    video, questions  paths
    prompt            text before the video, for instance a system prompt
    answer_tokens     largest number of tokens of an answer
    fps, size         sampling rate in frames per second; pixels per side of a frame
    frames            largest number of frames; None: all
    device_tokens     newest tokens in device memory; without effect on the results
    budget_frames     frames that a policy may retrieve or keep; None: as published
    random_weights    draw the weights from `seed`; the bytes of a text are its tokens
    """

    model: str
    video: str
    questions: str
    prompt: str = ""
    answer_tokens: int = 32
    fps: float = 2.0
    size: int = 224
    frames: int | None = None
    device_tokens: int = 4096
    budget_frames: int | None = None
    random_weights: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        checks.integer("answer_tokens", self.answer_tokens, 1)
        checks.integer("device_tokens", self.device_tokens, 0)
        for name in ("frames", "budget_frames"):
            if getattr(self, name) is not None:
                checks.integer(name, getattr(self, name), 1)


@dataclass(frozen=True)
class Result:
    """One question under one policy, compared with the full cache.

    answer      text of the policy's own answer; `tokens`: its token ids
    same        the answer has the tokens of the answer with the full cache
    agreement   share of the tokens of that answer that the policy gives after the same tokens before, 0 to 1
    divergence  Kullback-Leibler divergence of the policy's next-token distribution from that of the full cache, mean
                over the same tokens, in nats
    recall      share of the weight of full attention on the tokens that the policy attends to, mean over question and
                answer tokens, layers and heads, 0 to 1; None: the question is the start of the stream
    ratio       share of the past tokens that the policy retrieves, likewise
    """

    policy: str
    question: int
    answer: str
    tokens: list[int]
    same: bool
    agreement: float
    divergence: float
    recall: float | None
    ratio: float | None


@dataclass(frozen=True)
class Row:
    """Means of one policy over the questions; `reason` why the model does not allow the policy, else empty."""

    policy: str
    questions: int
    same: float | None
    agreement: float | None
    divergence: float | None
    recall: float | None
    ratio: float | None
    reason: str = ""


def read_questions(path: Path | str) -> list[Question]:
    """The questions of a file, in the order of their times.

    One question in each line: the question alone, which is asked after the video, or the time in seconds, a tab and the
    question. `\\n` in a question is a line break. Empty lines and lines that start with # are ignored.
    """
    try:
        lines = files.read_text(Path(path)).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"questions {path}: {getattr(error, 'strerror', None) or error}") from None
    questions = []
    for number, line in enumerate(lines, start=1):
        if not line.strip() or line.startswith("#"):
            continue
        time, tab, question = line.partition("\t")
        if not tab:
            time, question = "inf", line
        try:
            seconds = float(time)
        except ValueError:
            seconds = math.nan
        if not seconds >= 0:
            raise ValueError(f"questions {path}, line {number}: time must be a number of seconds, got {time!r}")
        if not question.strip():
            raise ValueError(f"questions {path}, line {number}: question must not be empty")
        questions.append(Question(seconds, question.strip().replace("\\n", "\n")))
    if not questions:
        raise ValueError(f"questions {path} must hold at least one question, got none")
    return sorted(questions, key=lambda question: question.time_s)


class _Recorder:
    """Attention recall and retrieved share of every step while a question is answered."""

    def __init__(self) -> None:
        self.recalls: list[float] = []
        self.ratios: list[float] = []

    def __call__(self, layer: RetrievalLayer, queries: torch.Tensor, selection: Selection, scaling: float) -> None:
        assert layer.store is not None
        tokens, past = queries.shape[1], layer.store.length - queries.shape[1]
        if not past:
            return
        keys = layer.store.rows[:, :, 0].float()  # (N + T, Hkv, d)
        kv_heads = keys.shape[1]
        rows = queries.detach().to("cpu", torch.float32).reshape(kv_heads, -1, queries.shape[2])
        scores = torch.matmul(rows, keys.permute(1, 2, 0)) * scaling  # (Hkv, group * T, N + T)
        later = torch.ones((tokens, tokens), dtype=torch.bool, device="cpu").triu(1).repeat(rows.shape[1] // tokens, 1)
        scores[:, :, past:].masked_fill_(later, -torch.inf)
        weights = scores.softmax(dim=-1)
        attended = weights[:, :, past:].sum(dim=-1)
        for head, ids in enumerate(selection.tokens):
            selected = weights[head].index_select(1, torch.from_numpy(ids))
            if selection.allowed is not None:
                # rows are ordered by token, then by query head; here by query head, then by token
                allowed = torch.from_numpy(selection.allowed[head]).view(tokens, -1, len(ids))
                selected = selected * allowed.transpose(0, 1).reshape(-1, len(ids))
            attended[head] += selected.sum(dim=-1)
        self.recalls.append(float(attended.mean()))
        self.ratios.append(sum(map(len, selection.tokens)) / kv_heads / past)


class Comparison:
    """A comparison of policies with the full cache, with its results in a folder.

    Raises ValueError for a folder with results of other settings, CaptureError for a model that cannot be used, and
    VideoError for a video that cannot be read.
    """

    def __init__(
        self, settings: Settings, folder: Path | str, *, device: str = "cpu", progress: Progress = no_progress
    ) -> None:
        self.settings, self.folder, self.progress = settings, Path(folder), progress
        self.questions = read_questions(settings.questions)
        video.probe(settings.video)
        self._check_folder()
        model = capture.load_model(settings.model, random_weights=settings.random_weights, seed=settings.seed)
        self.model = model.to(device)
        self.frame_tokens = next(self._frames()).inputs["input_ids"].shape[1]
        self.tokenizer = None if settings.random_weights else capture.tokenizer(settings.model)
        files.write_json(self.folder / "settings.json", self._identity())

    def run(self, policies: Iterable[str]) -> list[Row]:
        """Compute the results that are missing; the rows of the full cache and of the policies."""
        names = [REFERENCE, *(name for name in policies if name != REFERENCE)]
        rows = []
        for label, name in {policy_class(name).name: name for name in names}.items():
            reason = ""
            try:
                self._stream(label, name)
            except UnsuitablePolicy as error:
                reason = str(error)
            rows.append(summary(label, [] if reason else self.results(label), reason))
        return rows

    def results(self, policy: str) -> list[Result]:
        """The stored results of a policy."""
        paths = [self._path(policy, number) for number in range(len(self.questions))]
        return [Result(**json.loads(path.read_text())) for path in paths if path.exists()]

    def _identity(self) -> dict[str, Any]:
        """The settings, and the content of the questions: what the results depend on."""
        stamp = Path(self.settings.video).stat()
        return {
            **asdict(self.settings),
            "video_bytes": stamp.st_size,
            "question_list": [[repr(question.time_s), question.text] for question in self.questions],
        }

    def _check_folder(self) -> None:
        path, settings = self.folder / "settings.json", self._identity()
        if not path.exists():
            return
        stored = files.read_json(path, "settings")
        for name, value in settings.items():
            if name not in stored or stored[name] != value:
                raise ValueError(
                    f"output folder {self.folder} must be new or have results of the same settings: {name} is "
                    f"{stored.get(name) if isinstance(stored, dict) else stored!r}, got {value}"
                )

    def _path(self, policy: str, number: int) -> Path:
        return self.folder / policy / f"question{number}.json"

    def _frames(self) -> Iterator[FrameStep]:
        s = self.settings
        return steps(self.model, s.model, s.video, fps=s.fps, size=s.size, max_frames=s.frames)

    def _ids(self, sentence: str) -> list[int]:
        return capture.token_ids(self.model, self.settings.model, sentence, self.settings.random_weights)

    def _open(self, label: str, name: str) -> tuple[StreamingSession, int]:
        """The session of a policy and the number of its frames: the saved one, or a new one after the prompt."""
        saved = sorted((self.folder / label).glob(f"{SESSION}*"), key=lambda path: int(path.name[len(SESSION) :]))
        for path in reversed(saved):
            try:
                session = StreamingSession.resume(self.model, path, tokenizer=self.tokenizer)
            except StateError:
                continue
            return session, int(path.name[len(SESSION) :])
        s = self.settings
        session = StreamingSession(
            self.model, tokenizer=self.tokenizer, policy=name, device_tokens=s.device_tokens,
            frame_tokens=self.frame_tokens, budget_frames=s.budget_frames,
        )  # fmt: skip
        if s.prompt:
            self._first_step(session, lambda: session.tell(self._ids(s.prompt)))
        return session, 0

    def _first_step(self, session: StreamingSession, step: Any) -> None:
        """Run a step; a policy that does not fit the model raises `UnsuitablePolicy`."""
        try:
            step()
        except ValueError as error:
            if session.cache.policy is not None:
                raise
            raise UnsuitablePolicy(str(error)) from None

    def _stream(self, label: str, name: str) -> None:
        """Compute the missing results of a policy."""
        missing = [i for i in range(len(self.questions)) if not self._path(label, i).exists()]
        if not missing:
            return
        session, done = self._open(label, name)
        start = len(self._ids(self.settings.prompt)) if self.settings.prompt else 0
        for number, step in enumerate(self._frames()):
            if number >= done:
                while missing and self.questions[missing[0]].time_s < step.time_s:
                    self._answer(session, label, missing.pop(0), number)
                inputs = dict(step.inputs)
                if "position_ids" in inputs:
                    inputs["position_ids"] = inputs["position_ids"] + start
                self._first_step(session, lambda inputs=inputs: session.frame(**inputs))
                self.progress(f"{label}: frames", number + 1, 0)
                done = number + 1
        for number in missing:
            self._answer(session, label, number, done)
        for path in (self.folder / label).glob(f"{SESSION}*"):
            shutil.rmtree(path, ignore_errors=True)

    def _answer(self, session: StreamingSession, label: str, number: int, frames: int) -> None:
        """Answer a question, store the result and the state of the session."""
        self.progress(f"{label}: questions", number + 1, len(self.questions))
        ids, limit = self._ids(self.questions[number].text), self.settings.answer_tokens
        reference = self.folder / REFERENCE / f"logits{number}.safetensors"
        collected: list[torch.Tensor] = []
        recorder = _Recorder()

        def largest(logits: torch.Tensor) -> int:
            collected.append(logits.detach().float().cpu())
            return int(logits.argmax())

        def next_token(logits: torch.Tensor) -> int:
            collected.append(logits.detach().float().cpu())
            return tokens[len(collected) - 1]

        if label == REFERENCE:
            session.cache.observer = recorder
            answer = session.ask(ids, max_new_tokens=limit, choose=largest, keep=False)
            logits = expected = torch.stack(collected)
            tokens = answer.tokens
            reference.parent.mkdir(parents=True, exist_ok=True)
            temporary = reference.with_suffix(".tmp")
            save_file({"logits": logits, "tokens": torch.tensor(tokens, device="cpu")}, temporary)
            temporary.replace(reference)
        else:
            stored = load_file(reference)
            expected, tokens = stored["logits"], stored["tokens"].tolist()
            answer = session.ask(ids, max_new_tokens=limit, keep=False)
            session.cache.observer = recorder
            session.ask(ids, max_new_tokens=len(tokens), choose=next_token, end=[], keep=False)
            logits = torch.stack(collected)
        session.cache.observer = None
        p, q = (x.double().log_softmax(dim=-1) for x in (expected, logits))
        result = Result(
            label, number, answer.text or " ".join(map(str, answer.tokens)), answer.tokens, answer.tokens == tokens,
            float((logits.argmax(dim=-1) == torch.tensor(tokens, device="cpu")).double().mean()),
            max(0.0, float((p.exp() * (p - q)).sum(dim=-1).mean())), mean(recorder.recalls), mean(recorder.ratios),
        )  # fmt: skip
        path = self.folder / label / f"{SESSION}{frames}"
        if number + 1 < len(self.questions) and not path.exists():
            session.save(path)
        files.write_json(self._path(label, number), asdict(result))
        for old in (self.folder / label).glob(f"{SESSION}*"):
            if old != path:
                shutil.rmtree(old, ignore_errors=True)


class UnsuitablePolicy(ValueError):
    """A policy does not work with the model. The message is one line."""


def mean(values: Iterable[float | None]) -> float | None:
    """Mean of the values that exist; None without any."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


def summary(policy: str, results: Sequence[Result], reason: str = "") -> Row:
    """The means of one policy."""
    names = ("same", "agreement", "divergence", "recall", "ratio")
    means = {name: mean(getattr(result, name) for result in results) for name in names}
    return Row(policy, len(results), **means, reason=reason)


def as_text(rows: Sequence[Row]) -> str:
    """The rows as a table of text, and the reasons of policies that the model does not allow."""
    head = ("policy", "questions", "same answer %", "token agreement %", "divergence", "recall %", "retrieved %")

    def percent(value: float | None) -> str:
        return "-" if value is None else f"{100 * value:.1f}"

    body = [
        (
            row.policy, str(row.questions), percent(row.same), percent(row.agreement),
            "-" if row.divergence is None else f"{row.divergence:.4f}", percent(row.recall), percent(row.ratio),
        )
        for row in rows
    ]  # fmt: skip
    reasons = [f"{row.policy}: {row.reason}" for row in rows if row.reason]
    return "\n".join([text.table(head, body), *reasons])


def plot(rows: Sequence[Row]) -> bytes:
    """Token agreement, attention recall and retrieved share of every policy as bars, divergence in its label; SVG."""
    from util.report.charts import paired_bars

    shown = [row for row in rows if not row.reason]
    names = {"token agreement": "agreement", "attention recall": "recall", "retrieved": "ratio"}
    series = {
        label: [None if (value := getattr(row, name)) is None else 100 * value for row in shown]
        for label, name in names.items()
    }
    labels = [f"{row.policy}\ndivergence {row.divergence:.4f}" for row in shown]
    return paired_bars(labels, series, unit="%").content
