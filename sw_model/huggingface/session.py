"""`StreamingSession`: frames and text go in, questions in between are answered, device memory stays bounded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from sw_model.huggingface import state
from sw_model.huggingface.attention import prepare
from sw_model.huggingface.cache import RetrievalCache
from util import checks


@dataclass(frozen=True)
class Answer:
    """Token ids of an answer, without the question, and its text (empty without a tokenizer)."""

    tokens: list[int]
    text: str


class StreamingSession:
    """A stream of frames and text for one model.

    session = StreamingSession(model, policy="resv", device_tokens=4096)
    session.frame(inputs_embeds=embeddings)
    print(session.ask(question_ids, max_new_tokens=32).tokens)

    model      a causal or vision-language model of transformers; its attention function is set (`prepare`)
    tokenizer  callable that gives `input_ids` of a text, with `decode`; None: questions are token ids
    policy     policy of the cache; `options` are the other arguments of `RetrievalCache`

    Positions continue from step to step. A step with its own `position_ids` (models with several position axes) states
    absolute positions; the next step starts after the largest one.
    """

    def __init__(self, model: PreTrainedModel, *, tokenizer: Any = None, policy: Any = "resv", **options: Any) -> None:
        self.model, self.tokenizer = prepare(model), tokenizer
        self.cache = RetrievalCache(policy, **options)
        self.next_position = 0

    @torch.inference_mode()
    def frame(self, **inputs: Any) -> None:
        """One video frame or another unit of the stream: inputs of the model, for instance `input_ids` (1, T),
        `inputs_embeds` (1, T, hidden), or `input_ids` with `pixel_values`."""
        self._step("frame", inputs)

    @torch.inference_mode()
    def tell(self, text: Any) -> None:
        """Text without an answer, for instance a system prompt: a string, or token ids."""
        self._step("text", {"input_ids": self._ids(text)})

    @torch.inference_mode()
    def ask(
        self,
        question: Any,
        *,
        max_new_tokens: int = 64,
        end: Sequence[int] | int | None = None,
        choose: Callable[[torch.Tensor], int] | None = None,
        keep: bool = True,
    ) -> Answer:
        """Answer a question: a string, or token ids.

        max_new_tokens  largest number of tokens of the answer
        end             token ids that end the answer; None: those of the model's generation configuration
        choose          selects the next token from the logits (vocabulary,); None: the largest one
        keep            False: question and answer are removed from the cache afterwards
        """
        checks.integer("max_new_tokens", max_new_tokens, 1)
        ids = self._ids(question)
        ends = self._ends(end)
        start = (self.cache.snapshot(), self.next_position) if not keep else None
        tokens: list[int] = []
        try:
            logits = self._step("text", {"input_ids": ids})
            while True:
                tokens.append(int(logits.argmax()) if choose is None else choose(logits))
                if tokens[-1] in ends or len(tokens) == max_new_tokens:
                    break
                logits = self._step("text", {"input_ids": self._ids(tokens[-1:])})
            if keep:  # the last token is part of the conversation
                self._step("text", {"input_ids": self._ids(tokens[-1:])})
        finally:
            if start is not None:
                self.cache.rewind(start[0])
                self.next_position = start[1]
        text = "" if self.tokenizer is None else self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Answer(tokens, text)

    def save(self, folder: Path | str) -> Path:
        """Write the session to a folder, or leave what is there. `resume` continues from it."""
        return state.save(self.cache, folder, {"next_position": self.next_position})

    @classmethod
    def resume(
        cls, model: PreTrainedModel, folder: Path | str, *, tokenizer: Any = None, rows_folder: Path | str | None = None
    ) -> StreamingSession:
        """The session of a folder, for the same model. Raises `state.StateError` for an incomplete folder."""
        cache, extra = state.load(folder, model.device, rows_folder)
        session = cls(model, tokenizer=tokenizer, policy=cache.policy_name)
        session.cache, session.next_position = cache, extra["next_position"]
        return session

    def _step(self, stage: str, inputs: dict[str, Any]) -> torch.Tensor:
        """Run one forward pass; logits (vocabulary,) of its last token."""
        ids = inputs["input_ids"] if inputs.get("input_ids") is not None else inputs["inputs_embeds"]
        positions = inputs.get("position_ids")
        if positions is None:
            positions = self.next_position + torch.arange(ids.shape[1], device="cpu")[None]
        inputs = {**inputs, "position_ids": positions}
        inputs = {name: x.to(self.model.device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
        before, self.cache.stage, self.cache.step_positions = self.cache.stage, stage, positions
        try:
            output = self.model(**inputs, cache=self.cache, use_cache=True, logits_to_keep=1)
        finally:
            self.cache.stage, self.cache.step_positions = before, None
        self.next_position = int(positions.max()) + 1
        return output.logits[0, -1]

    def _ids(self, text: Any) -> torch.Tensor:
        """Token ids (1, T) of a string, a sequence of integers, or a tensor."""
        if isinstance(text, str):
            if self.tokenizer is None:
                raise ValueError("question must be token ids without a tokenizer, got a string")
            text = self.tokenizer(text)["input_ids"]
        ids = torch.as_tensor(text, dtype=torch.long, device="cpu").reshape(1, -1)
        if not ids.shape[1]:
            raise ValueError("question must hold at least one token, got none")
        return ids

    def _ends(self, end: Sequence[int] | int | None) -> set[int]:
        if end is None:
            configuration = getattr(self.model, "generation_config", None)
            end = getattr(configuration, "eos_token_id", None)
        if end is None:
            return set()
        return {end} if isinstance(end, int) else set(end)
