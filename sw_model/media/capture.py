"""Capture traces from Hugging Face models: queries, keys and values of the attention of every layer.

Works with models whose attention uses `AttentionInterface` of transformers (Llama, Qwen2.5-VL and most others). PyTorch
and transformers are an optional extra of this project, `pip install 'vrex-rtl[capture]'`.

The context arrives in blocks, as in a stream: a block of prompt tokens, or, with a video-language model, the visual
tokens of two frames. Its chunks have stage `frame`. Chunks of the question and of each answer token have stage `text`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sw_model.media import video
from sw_model.media.stream import BF16, Chunk, Geometry
from sw_model.media.trace import TraceWriter
from util import checks
from util.progress import Progress, no_progress

IMPLEMENTATION = "vrex_capture"
# of the images that CLIP was trained on; used where the model's folder states no other
PIXEL_MEAN, PIXEL_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


class CaptureError(ValueError):
    """A model cannot be captured. The message is one line and names the model."""


def libraries() -> tuple[Any, Any]:
    """PyTorch and transformers. Raises CaptureError with one line if they are not installed."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise CaptureError(
            f"capture needs PyTorch and transformers: pip install 'vrex-rtl[capture]' ({error})"
        ) from None
    return torch, transformers


def load_model(name: Path | str, *, random_weights: bool = False, seed: int = 0) -> Any:
    """Load a causal language model or vision-language model from a local folder or by name.

    `random_weights` needs only the config.json of the folder and draws the weights with `seed`. Raises `CaptureError`
    if the model does not exist or cannot be loaded.
    """
    torch, transformers = libraries()
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        kind = (
            transformers.AutoModelForImageTextToText
            if getattr(config, "vision_config", None) is not None
            else transformers.AutoModelForCausalLM
        )
        if random_weights:
            torch.manual_seed(seed)
            return kind.from_config(config, attn_implementation="sdpa").eval()
        return kind.from_pretrained(name, dtype="auto", attn_implementation="sdpa").eval()
    except (OSError, ValueError, KeyError) as error:
        raise CaptureError(f"model {str(name)!r} cannot be loaded: {_first_line(error)}") from None


def geometry_of(model: Any) -> Geometry:
    """Shapes of a model's decoder, from its configuration."""
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    heads = config.num_attention_heads
    return Geometry(
        layers=config.num_hidden_layers,
        q_heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        theta=float(rope.get("rope_theta", 10000.0)),
    )


@dataclass
class Recorder:
    """Inputs of the decoder's attention layers in the last forward pass."""

    layers: int
    tokens: int = 0
    parts: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=dict)

    def note(self, layer: int, query: Any, key: Any, value: Any) -> None:
        """Store the new tokens of a layer: query (1, Hq, T, d), key and value (1, Hkv, N + T, d)."""
        new = query.shape[2]
        self.parts[layer] = _array(query), _array(key[:, :, -new:]), _array(value[:, :, -new:])

    def chunk(self, stage: str) -> Chunk:
        """Chunk of the last forward pass. Positions count tokens from the start of the stream."""
        if sorted(self.parts) != list(range(self.layers)):
            called = f"got calls from {sorted(self.parts)}"
            raise CaptureError(f"model must use the attention interface in all of its {self.layers} layers, {called}")
        q, k, v = (
            np.stack([self.parts[layer][tensor_index] for layer in range(self.layers)]) for tensor_index in range(3)
        )
        positions = self.tokens + np.arange(q.shape[1])
        self.tokens += q.shape[1]
        self.parts.clear()
        return Chunk(stage, positions, q, k, v)


def _array(tensor: Any) -> np.ndarray:
    """(1, heads, T, d) of any float type as bfloat16 (T, heads, d)."""
    import torch

    if tensor.shape[0] != 1:
        raise CaptureError(f"batch must be 1, got {tensor.shape[0]}")
    bits = tensor[0].transpose(0, 1).detach().to("cpu", torch.bfloat16).contiguous().view(torch.int16)
    return bits.numpy().view(BF16)


@contextmanager
def recording(model: Any) -> Iterator[Recorder]:
    """Context manager: every forward pass of `model` stores Q, K and V of its decoder in the recorder."""
    libraries()
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    recorder = Recorder(geometry_of(model).layers)
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any) -> Any:
        # a vision tower's layers are neither causal nor numbered
        if getattr(module, "is_causal", False) and getattr(module, "layer_idx", None) is not None:
            recorder.note(module.layer_idx, query, key, value)
        return plain(module, query, key, value, attention_mask, **options)

    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield recorder
    finally:
        model.set_attn_implementation("sdpa")


@dataclass(frozen=True)
class Call:
    """One forward pass: its inputs and the stage of its tokens."""

    stage: str
    inputs: dict[str, Any]


def prompt_calls(token_ids: Sequence[int], block: int) -> Iterator[Call]:
    """A prompt in blocks of `block` tokens."""
    import torch

    checks.integer("block", block, 1)
    ids = checks.integers("token_ids", token_ids, None, low=0)
    if not len(ids):
        raise ValueError("token_ids must not be empty")
    for start in range(0, len(ids), block):
        yield Call("frame", {"input_ids": torch.tensor(ids[None, start : start + block])})


def patch_rows(
    pictures: np.ndarray, patch: int, merge: int, mean: Sequence[float], deviation: Sequence[float]
) -> np.ndarray:
    """Pixels as the patch embedding of the Qwen2-VL family reads them.

    pictures   uint8 (frames, height, width, 3): the frames of one temporal patch; sides multiples of patch * merge
    Returns float32 (patches, 3 * frames * patch * patch): patches of one merged token beside each other, inside a
    row colour, then frame, then pixels.
    """
    frames, height, width, _ = pictures.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    scaled = (pictures / 255 - np.asarray(mean)) / np.asarray(deviation)
    cells = scaled.astype(np.float32).reshape(frames, rows, merge, patch, columns, merge, patch, 3)
    ordered = cells.transpose(1, 4, 2, 5, 7, 0, 3, 6)
    return np.ascontiguousarray(ordered.reshape(rows * columns * merge * merge, -1))


def video_calls(
    model: Any, name: Path | str, path: Path | str, *, fps: float, size: int, max_frames: int | None
) -> Iterator[Call]:
    """The frames of a video for a model of the Qwen2-VL family, one temporal patch (two frames) per call."""
    import torch

    config, vision = model.config, model.config.vision_config
    step = vision.patch_size * vision.spatial_merge_size
    if size % step or size < step:
        raise ValueError(f"size must be a multiple of {step} pixels for this model, got {size}")
    grid = size // vision.patch_size
    tokens = (size // step) ** 2
    mean, deviation = normalisation(Path(name))
    ids = [config.vision_start_token_id, *[config.video_token_id] * tokens, config.vision_end_token_id]
    kinds = [0, *[2] * tokens, 0]
    input_ids, thw = torch.tensor([ids]), torch.tensor([[1, grid, grid]])
    position_ids, _ = model.model.get_rope_index(input_ids, torch.tensor([kinds]), video_grid_thw=thw)
    offset = 0
    pictures = (frame.rgb(size, size) for frame in islice(video.sample(video.decode(path), fps), max_frames))
    while picture_group := list(islice(pictures, vision.temporal_patch_size)):
        picture_group += picture_group[-1:] * (
            vision.temporal_patch_size - len(picture_group)
        )  # the last frame stands for what is missing
        rows = patch_rows(np.stack(picture_group), vision.patch_size, vision.spatial_merge_size, mean, deviation)
        pixels = torch.from_numpy(rows).to(model.dtype)
        inputs = {"input_ids": input_ids, "pixel_values_videos": pixels, "video_grid_thw": thw}
        yield Call("frame", {**inputs, "position_ids": position_ids + offset})
        offset += int(position_ids.max()) + 1


def token_ids(model: Any, name: Path | str, text: str, random_weights: bool) -> list[int]:
    """Token numbers of a text. With random weights and no tokenizer, the bytes of the text."""
    if random_weights:
        size = model.config.get_text_config().vocab_size
        return [byte % size for byte in text.encode()]
    return list(tokenizer(name)(text)["input_ids"])


def tokenizer(name: Path | str) -> Any:
    """The tokenizer of a model. Raises CaptureError if there is none."""
    _, transformers = libraries()
    try:
        return transformers.AutoTokenizer.from_pretrained(name)
    except (OSError, ValueError, KeyError) as error:
        raise CaptureError(f"model {str(name)!r} has no tokenizer that loads: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def normalisation(folder: Path) -> tuple[Sequence[float], Sequence[float]]:
    for file in (folder / "video_preprocessor_config.json", folder / "preprocessor_config.json"):
        if file.is_file():
            model_config = json.loads(file.read_text())
            return model_config.get("image_mean", PIXEL_MEAN), model_config.get("image_std", PIXEL_DEVIATION)
    return PIXEL_MEAN, PIXEL_DEVIATION


def run(
    model: Any,
    context: Iterator[Call],
    path: Path | str,
    source: dict[str, Any],
    *,
    question: Sequence[int] = (),
    answer_tokens: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """Run the context, then the whole question, then greedy answer tokens. Every pass becomes a chunk of the trace."""
    import torch
    from transformers import DynamicCache

    checks.integer("answer_tokens", answer_tokens, 0)
    ids = checks.integers("question", question, None, low=0)
    cache = DynamicCache(config=model.config)
    next_position = 0  # the next text token's position
    done = 0
    with torch.inference_mode(), recording(model) as recorder, TraceWriter(path, geometry_of(model), source) as writer:

        def feed(call: Call) -> Any:
            nonlocal next_position, done
            position_ids = call.inputs.get("position_ids")
            if position_ids is None:
                position_ids = next_position + torch.arange(call.inputs["input_ids"].shape[1])[None]
            next_position = int(position_ids.max()) + 1
            inputs = {**call.inputs, "position_ids": position_ids.to(model.device)}
            inputs = {name: value.to(model.device) for name, value in inputs.items()}
            logits = model(**inputs, cache=cache, use_cache=True, logits_to_keep=1).logits
            writer.append(recorder.chunk(call.stage))
            done += 1
            progress("chunks", done, 0)
            return logits[0, -1]

        last: Any = None
        for call in context:
            last = feed(call)
        if len(ids):
            last = feed(Call("text", {"input_ids": torch.tensor(ids[None])}))
        for _ in range(answer_tokens if last is not None else 0):
            last = feed(Call("text", {"input_ids": last.argmax()[None, None]}))
    return Path(path)


def capture(
    name: Path | str,
    path: Path | str,
    *,
    video_path: Path | str | None = None,
    prompt: str | None = None,
    question: str | None = None,
    block: int = 10,
    answer_tokens: int = 8,
    fps: float = 2.0,
    size: int = 224,
    max_frames: int | None = None,
    random_weights: bool = False,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Path:
    """Run the model called `name` on a video (vision-language models) or a prompt and write its trace to `path`.

    Parameters
    ----------
    name : folder of a checkpoint, or its name on the hub
    video_path, prompt : the context; one of the two
    question : asked after the context
    block : prompt tokens per chunk
    fps, size, max_frames : frames taken from the video, and their side in pixels
    random_weights : needs the folder's config.json alone: weights are drawn from `seed`, a text's bytes are its tokens

    Raises
    ------
    CaptureError
        The model cannot be loaded, does not fit the context, or does not use the attention interface.
    VideoError
        The video is missing, damaged or holds no frames.
    """
    if (video_path is None) == (prompt is None):
        raise ValueError(f"give either a video or a prompt as context, got {video_path!r} and {prompt!r}")
    if max_frames is not None:
        checks.integer("max_frames", max_frames, 1)
    checks.integer("block", block, 1)
    checks.integer("answer_tokens", answer_tokens, 0)
    if video_path is not None:
        video.probe(video_path)
    model = load_model(name, random_weights=random_weights, seed=seed)
    question_ids = token_ids(model, name, question, random_weights) if question else []
    if video_path is None:
        context = prompt_calls(token_ids(model, name, prompt or "", random_weights), block)
    elif hasattr(model.model, "get_rope_index") and hasattr(model.config, "video_token_id"):
        context = video_calls(model, name, video_path, fps=fps, size=size, max_frames=max_frames)
    else:
        raise CaptureError(f"model {str(name)!r} takes no video the way Qwen2-VL does: give it a prompt instead")
    source = {
        "model": str(name),
        "type": model.config.model_type,
        "weights": f"random, seed {seed}" if random_weights else "checkpoint",
        "context": f"video {video_path}" if video_path is not None else "prompt",
    }
    return run(model, context, path, source, question=question_ids, answer_tokens=answer_tokens, progress=progress)
