"""Page of docs/measurements about the number formats of stored weights: errors of weights, layers and logits."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

from compiler.checkpoint import WEIGHTS, Checkpoint
from compiler.language_model import PROJECTIONS
from compiler.model_config import model_spec
from compiler.policies import (
    CodecSightPolicy,
    FullPolicy,
    HybridPolicy,
    InfiniGenPPolicy,
    MosaicPolicy,
    OakenPolicy,
    Policy,
    QuickPrefillPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
)
from compiler.random_model import random_tensors
from compiler.runtime import WEIGHTS as MACHINE_FORMATS
from compiler.runtime import Limits, compile_model
from compiler.tensor_table import tensor_table
from compiler.window_session import WindowSession
from docs.markdown import table
from golden import bf16
from golden.weight_formats import FORMATS, WeightFormat
from hw.config import Config
from tests.compiler.checkpoints import config_of
from tests.compiler.codec_streams import FAMILIES, GOP, checkpoint_of, masked_frames

SEED, SIZE = 1, 2048  # of the matrices without a model: outputs and inputs
LANES = 64  # of a core of the preset `paper`
# weights and bits of keys and values in the tables of models
CASES = [*((name, 16) for name in MACHINE_FORMATS), ("bf16", 8), ("bf16", 4), ("int4", 4)]
BF16_ONLY = ("mosaic", "oaken")  # policies that do not run with other bits of the KV cache, or have their own
OWN_REFERENCE = ("hybrid",)  # policies whose errors are those from the same policy in BF16
DEGREES = 3  # of freedom of Student's t, the smallest integer with a variance
FRAMES, SCENE, NOISE, WORDS = 12, 4, 0.4, 8  # frames, frames of a scene, their noise, tokens of the measured text
LARGE = {
    "vocab_size": 256, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


@dataclass(frozen=True)
class Model:
    """A Llama model, its core and its steps.

    changes : of `config.json` of the `run` tests ; preset : of the core ; heavy : heavy-tailed weights
    tokens : of a frame ; budget : tokens or frames that policies with a budget select
    """

    title: str
    changes: Mapping[str, Any]
    preset: str
    heavy: bool
    tokens: int
    budget: int = 4

    @property
    def policies(self) -> dict[str, Policy]:
        """Policies whose selections differ from all tokens in a stream of this length."""
        return {
            "full": FullPolicy(),
            "resv": ResvPolicy(ratio=0.5, hamming_threshold=7),
            "rekv": RekvPolicy(frames=self.budget),
            "mosaic": MosaicPolicy(
                budget=self.budget * self.tokens, top_visual=2, tau_visual=0.3, tau_min=0.2, tau_max=0.5, lambda_=4.0
            ),
            "infinigenp": InfiniGenPPolicy(budget=self.budget * self.tokens, column_share=0.5),
            "quickprefill": QuickPrefillPolicy(group_frames=1),
            "window": WindowPolicy(sink=0, recent=self.budget * self.tokens),
            "oaken": OakenPolicy(),
            "hybrid": HybridPolicy(sink=0, recent=self.budget * self.tokens, states=4),
        }

    def write(self, folder: Path, first: bool = False) -> Checkpoint:
        """A checkpoint of the model; `first`: of its first layer and one that adds zeros. Mosaic needs two layers."""
        rng = np.random.default_rng(SEED)
        config = config_of("llama", self.changes)
        shapes = {entry.name: entry.shape for entry in tensor_table(model_spec(config), ()).values()}
        tensors = random_tensors(shapes, rng)
        for name, shape in shapes.items() if self.heavy else ():
            if "_proj." in name:
                tensors[name] = (heavy_tailed(rng, shape) / np.sqrt(shape[1])).astype(ml_dtypes.bfloat16)
        if first:
            config["num_hidden_layers"] = 2
            for name in ("self_attn.o_proj", "mlp.down_proj"):
                tensors[f"model.layers.1.{name}.weight"][:] = 0
        names = {entry.name for entry in tensor_table(model_spec(config), ()).values()}
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        save_file({name: tensor for name, tensor in tensors.items() if name in names}, folder / WEIGHTS)
        return Checkpoint(folder)


MODELS = (
    Model("Gaussian weights", LARGE, "small", heavy=False, tokens=8),
    Model("Heavy-tailed weights", LARGE, "small", heavy=True, tokens=8),
    Model("Model of the `run` tests", {}, "tiny", heavy=False, tokens=4),
)


def heavy_tailed(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of Student's t with `DEGREES` degrees of freedom, variance 1."""
    return rng.standard_t(DEGREES, shape) / np.sqrt(DEGREES / (DEGREES - 2))


def error(values: np.ndarray, reference: np.ndarray) -> float:
    """Mean over rows of |values - reference| / |reference|, Euclidean."""
    norms = np.linalg.norm(values - reference, axis=1) / np.linalg.norm(reference, axis=1)
    return float(norms.mean())


def weight_errors(weights: np.ndarray, form: WeightFormat, group: int | None = None) -> tuple[float, float]:
    """Errors of BF16 weights (M, K) in a format, and of their products with Gaussian vectors.

    The error of weights is the root of the sum of squares, divided by that of the weights.
    """
    exact, stored = bf16.decode(weights), bf16.decode(form.decode(form.quantise(weights, group)))
    x = np.random.default_rng(SEED).standard_normal((weights.shape[1], 64))
    return float(np.linalg.norm(stored - exact) / np.linalg.norm(exact)), error((stored @ x).T, (exact @ x).T)


def _steps(
    checkpoint: Checkpoint, model: Model, policy: Policy, name: str, kv_bits: int
) -> tuple[np.ndarray, np.ndarray]:
    """What the layers add to the hidden states of all tokens, and the logits of the text, a row for each token."""
    rng = np.random.default_rng(SEED)
    text, size = checkpoint.spec.text, model.tokens
    preset = Config.preset(model.preset).replace(
        weight_bits=16 if name == MACHINE_FORMATS[0] else 4, kv_bits=kv_bits, page_frames=1024, max_candidates=256,
        max_pages=256,
    )  # fmt: skip
    length = 2 + FRAMES * size + WORDS  # a token of InfiniGen is a cluster, which the core limits
    limits = Limits(tokens=length if policy.name == "infinigenp" else 512, step=size)
    session = compile_model(checkpoint, policy.core(preset), limits, policy, weights=name).session()
    machine, embedding = session.machine, bf16.decode(checkpoint.embedding())
    decoder, word = machine.decoder, machine.core.word_bytes
    added, logits = [], []

    def record(before: np.ndarray) -> None:
        after = machine.core.get(decoder.x, len(before) * decoder.words * word).view("<u2")
        added.append(bf16.decode(after.reshape(len(before), -1)) - before)

    tokens = rng.integers(text.vocabulary, size=2 + WORDS).tolist()
    session.prompt(tokens[:2])
    record(embedding[tokens[:2]])
    for frame in range(FRAMES):
        if frame % SCENE == 0:
            scene = rng.standard_normal((size, text.hidden))
        rows = bf16.encode(scene + NOISE * rng.standard_normal(scene.shape))
        session.features(rows)
        record(bf16.decode(rows))
    for token in tokens[2:]:
        session.prompt([token], answer=True)
        record(embedding[[token]])
        logits.append(bf16.decode(session.logits, bf16.FP32))
    return np.concatenate(added), np.stack(logits)


def _model_tables(model: Model, folder: Path) -> Iterator[str]:
    """Errors of a layer and of the logits of a model under every policy."""
    whole, first = model.write(folder / "whole"), model.write(folder / "first", first=True)
    references: dict[str, tuple[np.ndarray, np.ndarray]] = {}  # in BF16
    rows: dict[str, list[list[str]]] = {"layer": [], "logits": []}
    for name, kv_bits in CASES:
        title = name if kv_bits == 16 else f"{name}, KV cache in {kv_bits} bits"
        cells: dict[str, list[str]] = {key: [title] for key in rows}
        for policy_name, policy in model.policies.items():
            print(f"weight-formats: {model.title}, {title}, {policy_name}", file=sys.stderr)
            if kv_bits < 16 and policy_name in BF16_ONLY:
                for row in cells.values():
                    row.append("")
                continue
            layer = _steps(first, model, policy, name, kv_bits)[0]
            logits = _steps(whole, model, policy, name, kv_bits)[1]
            reference = references.setdefault(policy_name if policy_name in OWN_REFERENCE else "full", (layer, logits))
            for key, values, exact in zip(rows, (layer, logits), reference, strict=True):
                cells[key].append(f"{error(values, exact):.4f}")
        for key, row in cells.items():
            rows[key].append(row)
    text = whole.spec.text
    yield f"## {model.title}"
    yield (
        f"{text.layers} layers, hidden size {text.hidden}, feed-forward size {text.ffn}, {text.q_heads} query heads, "
        f"{text.kv_heads} KV heads, core `{model.preset}`. Policies with a budget select {model.budget} of {FRAMES} "
        f"frames of {model.tokens} tokens."
    )
    for title, key in (("Output of the first layer:", "layer"), ("Logits of the whole model:", "logits")):
        yield title
        yield table(("format", *model.policies), rows[key])


def _window_logits(folder: Path, family: str, policy: CodecSightPolicy, name: str, skips: bool) -> np.ndarray:
    """Logits of a question in the last window of a coded stream, a row for each token of the question.

    family : of `FAMILIES` ; name : format of the weights ; skips : patches without motion are skipped
    """
    rng = np.random.default_rng(SEED)
    checkpoint, size = checkpoint_of(folder, family, rng)
    preset = Config.preset("tiny").replace(weight_bits=16 if name == MACHINE_FORMATS[0] else 4)
    height, width = FAMILIES[family][1]
    limits = Limits(tokens=128, step=9, **size)
    session = compile_model(checkpoint, preset, limits, policy, weights=name).session(kind=WindowSession)
    assert session.machine.vision is not None
    timed = checkpoint.spec.text.rope.sections is not None
    tokens = rng.integers(checkpoint.spec.text.vocabulary, size=2 + WORDS).tolist()
    session.prompt(tokens[:2])
    frames = masked_frames(folder, policy, session.machine.vision.shape.group, FRAMES, (width, height))
    for number, (_, picture, kept) in enumerate(frames):
        seconds = number / 2 if timed else None
        session.frame(picture, seconds=seconds, kept=kept if skips else np.ones_like(kept))
    logits = []
    for token in tokens[2:]:
        session.prompt([token], answer=True)
        logits.append(bf16.decode(session.logits, bf16.FP32))
    return np.stack(logits)


def _window_table(folder: Path) -> str:
    """Errors of logits under CodecSight: with all patches and all frames refreshed, and with the policy."""
    whole, policy = CodecSightPolicy(window=4, stride=1, gop=GOP, anchor="all"), CodecSightPolicy(4, 1, GOP)
    rows = []
    references: dict[str, np.ndarray] = {}
    for name in MACHINE_FORMATS:
        row = [name]
        for family in FAMILIES:
            print(f"weight-formats: codecsight, {family}, {name}", file=sys.stderr)
            for each, skips in ((whole, False), (policy, True)):
                (place := folder / f"{family}-{name}-{skips}").mkdir()
                logits = _window_logits(place, family, each, name, skips)
                row.append(f"{error(logits, references.setdefault(family, logits)):.4f}")
        rows.append(row)
    heads = [f"{family}: {what}" for family in FAMILIES for what in ("format alone", "codecsight")]
    return table(("format", *heads), rows)


def _matrices(folder: Path) -> Iterator[tuple[str, list[np.ndarray]]]:
    """BF16 matrices by the title of their weights."""
    rng = np.random.default_rng(SEED)
    yield "Gaussian", [bf16.encode(rng.standard_normal((SIZE, SIZE)))]
    yield "heavy-tailed", [bf16.encode(heavy_tailed(rng, (SIZE, SIZE)))]
    run = MODELS[-1].write(folder / "matrices")
    yield "`run` tests", [run.layer_matrix(n, name) for n in range(run.spec.text.layers) for name in PROJECTIONS]


def weight_formats() -> Iterator[str]:
    """Errors of weights, of a layer and of logits with the projections in each number format."""
    yield (
        "The projections of the decoder layers are stored in a format; all other data are BF16, except keys and values "
        "of `oaken`. An error is the Euclidean norm of the difference from the value in BF16, divided by the norm of "
        "this value. Weights are rounded to the nearest code; those of a group share a scale. Groups have 32 (`mxfp4`) "
        "or 128 (`int4`) inputs, or all (`fp8`). Heavy-tailed weights have the distribution of Student's t with "
        f"{DEGREES} degrees of freedom. All weights are random: this page says nothing about the accuracy of answers. "
        "Definitions: `golden/weight_formats.py`."
    )
    yield "## Weights and products"
    yield (
        f"A matrix of {SIZE:,} outputs and inputs, or all projections of the model of the `run` tests (means). The "
        "error of weights is that of the whole matrix. A product is that of a matrix with a Gaussian vector, mean over "
        f"64 vectors. Bits of a weight include the scales in tiles of {LANES} lanes (`paper`). The tiles of `int4` and "
        f"`fp8` have a scale for each row of {LANES} inputs, so that the groups of {LANES} in the last rows need no "
        "more bits; the compiler does not choose them for BF16 weights. The last column of each kind is the error of "
        "the product divided by the smallest one of the formats with about as many bits: 1.00 is the best one."
    )
    cases: list[tuple[str, int | None]] = [(name, None) for name in FORMATS]
    cases += [("int4", LANES), ("fp8", LANES)]
    columns: dict[str, list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as place:
        for title, matrices in _matrices(Path(place)):
            print(f"weight-formats: {title}", file=sys.stderr)
            columns[title] = [
                tuple(np.mean([weight_errors(matrix, FORMATS[name], group) for matrix in matrices], axis=0))
                for name, group in cases
            ]
        four = [FORMATS[name].bits == 4 for name, _ in cases]
        rows = []
        for at, (name, group) in enumerate(cases):
            row = [f"`{name}`" + (f", groups of {group}" if group else ""), f"{FORMATS[name].tile_words(LANES) / 4:g}"]
            for errors in columns.values():
                best = min(errors[n][1] for n, own in enumerate(four) if own == four[at])
                row += [f"{errors[at][0]:.4f}", f"{errors[at][1]:.4f}", f"{errors[at][1] / best:.2f}"]
            rows.append(row)
        heads = [f"{title}: {what}" for title in columns for what in ("weights", "product", "relative to the best")]
        yield table(("format", "bits", *heads), rows)
        yield "## Models"
        yield (
            "The programs of the machine on the golden machine, whose bits are those of the RTL. A stream has two "
            f"tokens of text, {FRAMES} frames in scenes of {SCENE} (hidden states: a Gaussian vector of each token of "
            f"a scene, and {NOISE} of another one for each frame), and {WORDS} tokens of text, one by one. The output "
            "of a layer is what it adds to the hidden states, mean over all tokens; logits are those of the last "
            f"{WORDS} tokens. The value in BF16 is that of the policy `full`, so that the row `bf16` is the error of "
            "the policy alone. `oaken` stores keys and values in 4 bits, the others in BF16 where the row does not "
            "name other bits (`core.kv_bits`, the formats `bfp8` and `affine4` of `golden/kv_formats.py`). Mosaic "
            "moves tokens between pages, which only pages in BF16 allow. `hybrid` adds a state-space branch, whose "
            "weights are random and which no model was trained with: its errors are those from `hybrid` itself in BF16."
        )
        for number, model in enumerate(MODELS):
            (folder := Path(place) / str(number)).mkdir()
            yield from _model_tables(model, folder)
        yield "## CodecSight"
        yield (
            "CodecSight needs pictures: a coded clip with a moving square through the small models of the tests with "
            f"a vision tower, {FRAMES} frames, windows of 4 frames with a stride of 1, an I-frame every {GOP} frames, "
            f"and {WORDS} tokens of text in the last window. An error is that of their logits from a full prefill of "
            "the window in BF16. *Format alone*: every patch of every frame is computed again in each window. "
            "*codecsight*: patches without motion are skipped, and only I-frames are computed again. Its keys and "
            "values are in no page, so they are BF16."
        )
        (folder := Path(place) / "codecsight").mkdir()
        yield _window_table(folder)
