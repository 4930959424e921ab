"""A small model with random weights on frames of the video: golden machine, and the same programs in the core's RTL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from compiler.checkpoint import Checkpoint
from compiler.policies import ResvPolicy
from compiler.random_model import write_random_model
from compiler.runtime import Limits, Machine, Session, compile_model
from hw.config import Config
from sim.bench.model_run import ModelRun
from util.progress import Progress
from util.report import Column, Fact, Section, Table, charts

PRESET = "tiny"
# LLaVA with the sizes of preset tiny: pictures of 12 x 12 pixels in patches of 4 x 4, a token each
CONFIG: dict[str, Any] = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "image_token_index": 47,
    "text_config": {
        "model_type": "llama",
        "vocab_size": 48,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
    },
    "vision_config": {
        "model_type": "clip_vision_model",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 12,
        "patch_size": 4,
    },
}
LIMITS = Limits(tokens=128, step=9, resident=6)  # page frames of preset tiny: 16
RETRIEVAL = ResvPolicy(ratio=0.1, hamming_threshold=3)
QUESTION = (1, 5, 17, 4)  # token IDs
MAX_ANSWER = 32


@dataclass(frozen=True)
class Step:
    """A step of the session.

    kind : frame, question or answer ; tokens, commands : of the step ; past : tokens before it
    shares : for each layer, mean share of the past tokens that a KV head attends to; empty without past tokens
    fetched_bytes : from host memory ; tower_cycles, decoder_cycles : of the RTL
    """

    kind: str
    tokens: int
    commands: int
    past: int
    shares: list[float]
    fetched_bytes: int
    tower_cycles: int
    decoder_cycles: int


@dataclass
class ModelSession:
    """A finished session on the golden machine, whose programs the core's RTL can repeat.

    groups : for each step, its kind and the number of its programs ; answer : token IDs
    """

    machine: Machine
    session: Session
    run: ModelRun
    groups: list[tuple[str, int]] = field(default_factory=list)
    answer: list[int] = field(default_factory=list)

    def measure(self, kind: str, step: Callable[[], Any]) -> Any:
        """Run one step and count its programs."""
        done = self.run.recorded
        result = step()
        self.groups.append((kind, self.run.recorded - done))
        return result


@dataclass(frozen=True)
class ModelResult:
    """The session after its programs were repeated in the RTL with equal results in every bit.

    frames, programs : of the session ; answer : token IDs ; logits, store_bytes : number of compared values
    """

    frames: int
    answer: list[int]
    steps: list[Step]
    programs: int
    logits: int
    store_bytes: int


def golden_session(
    pictures: Sequence[np.ndarray], *, answer_tokens: int, seed: int, progress: Progress
) -> ModelSession:
    """Frames, uint8 (height, width, 3), and a question through the model on the golden machine.

    `answer_tokens`, 1 to `MAX_ANSWER`, is the largest answer.
    """
    with TemporaryDirectory() as name:
        write_random_model(Path(name), CONFIG, np.random.default_rng(seed))
        machine = compile_model(Checkpoint(name), Config.preset(PRESET), LIMITS, RETRIEVAL)
    made = ModelSession(machine, machine.session(), ModelRun(machine))
    for number, picture in enumerate(pictures):
        progress("frames through the model", number, len(pictures))
        made.measure("frame", partial(made.session.frame, picture))
    tokens, kind = made.session.ask(QUESTION, count=answer_tokens), "question"
    for _ in range(answer_tokens):
        token = made.measure(kind, lambda: next(tokens))
        made.answer.append(token)
        if token in machine.spec.eos_ids:
            break
        kind = "answer"
    return made


def through_core(made: ModelSession, *, seed: int) -> ModelResult:
    """Repeat the programs of a session in the core's RTL.

    Raises ArithmeticError when an output of a program or a byte of the store differs from the golden machine.
    """
    try:
        made.run.check(seed=seed)
    except AssertionError as error:
        raise ArithmeticError(f"the RTL of the core differs from the golden machine: {error}") from None
    steps, cycles = [], iter(made.run.cycles)
    for (kind, programs), step in zip(made.groups, made.session.steps, strict=True):
        done, past = step.retrieved, step.retrieved.past[0]
        *tower, decoder = (next(cycles) for _ in range(programs))  # a frame passes the vision tower first
        shares = [float(np.mean(heads)) / past for heads in done.attended] if past else []
        steps.append(Step(kind, step.tokens, step.commands, past, shares, sum(done.fetched), sum(tower), decoder))
    kvmu = made.machine.core.table.kvmu
    return ModelResult(
        frames=sum(step.kind == "frame" for step in steps),
        answer=made.answer,
        steps=steps,
        programs=made.run.recorded,
        logits=len(made.answer) * made.machine.spec.text.vocabulary,
        store_bytes=len(kvmu.memory) - kvmu.tables.store.log.size,  # the undo log may differ
    )


def section(result: ModelResult) -> Section:
    """The session as a section of the report."""
    golden, rtl = "measured on golden", "measured from RTL"
    names = [f"{number}: {step.kind}" for number, step in enumerate(result.steps, 1)]
    layers = len(result.steps[-1].shares)
    words = CONFIG["text_config"]
    return Section(
        "A model on the machine",
        [
            f"{result.frames} frames of the video pass through a vision tower, a projector and {layers} decoder "
            f"layers with retrieval; then the model gets a question of {len(QUESTION)} tokens and answers. It is a "
            f"LLaVA model of hidden size {words['hidden_size']} with {words['vocab_size']} words in its vocabulary. "
            "The weights are random, so the tokens of the answer mean nothing.",
            "The compiler turns every step into programs of the core. The golden machine executes them, and a "
            f"simulator repeats them in the Verilog of the core of preset {PRESET}. Visual tokens, hidden states, "
            "logits, chosen tokens and the whole store are equal in every bit. At most "
            f"{LIMITS.resident} tokens of all layers together stay in device memory after a step; older pages go to "
            "host memory and come back when they are selected.",
            f"Answer (token IDs): {', '.join(map(str, result.answer))}.",
        ],
        facts=[
            Fact("programs in the RTL", result.programs, "", rtl),
            Fact("logits equal in every bit", result.logits, "", rtl),
            Fact("bytes of the store equal", result.store_bytes, "", rtl),
            Fact("cycles", sum(step.tower_cycles + step.decoder_cycles for step in result.steps), "", rtl),
            Fact("from host memory", sum(step.fetched_bytes for step in result.steps), "bytes", golden),
        ],
        images=[
            charts.curves(
                {
                    f"layer {layer}": [(n, 100 * s.shares[layer]) for n, s in enumerate(result.steps, 1) if s.shares]
                    for layer in range(layers)
                },
                x="step", y="% of the past tokens", alt="Retrieved share over the steps, by layer",
                caption="retrieved share of every step that has past tokens",
            ),
            charts.stacked_bars(
                names,
                {
                    "vision tower": [step.tower_cycles for step in result.steps],
                    "decoder": [step.decoder_cycles for step in result.steps],
                },
                unit="cycles", caption="cycles of every step in the RTL",
            ),
        ],
        tables=[
            Table(
                [
                    "step", "tokens", "commands", "past tokens", Column("retrieved", "%", ".1f", golden),
                    Column("fetched", "bytes", "", golden), Column("cycles", "", "", rtl),
                ],
                [
                    [name, s.tokens, s.commands, s.past, 100 * float(np.mean(s.shares)) if s.shares else None,
                     s.fetched_bytes, s.tower_cycles + s.decoder_cycles]
                    for name, s in zip(names, result.steps, strict=True)
                ],
                "retrieved: share of the past tokens, mean of layers and KV heads; fetched: from host memory; the step "
                "of the question also chooses the first token of the answer",
            )
        ],
    )  # fmt: skip
