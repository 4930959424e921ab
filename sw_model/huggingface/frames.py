"""Frames of a video as inputs of a vision-language model.

The families are Qwen2-VL, LLaVA-OneVision, LLaVA-NeXT-Video and InternVL.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from sw_model.media import capture, video

# model type -> input with the pixels, function that makes its features, attributes with the token of one feature
PICTURE_INPUTS = {
    "internvl": ("pixel_values", "get_image_features", ("image_token_id",)),
    "llava_next_video": ("pixel_values_videos", "get_video_features", ("video_token_id", "video_token_index")),
    "llava_onevision": ("pixel_values_videos", "get_video_features", ("video_token_id", "video_token_index")),
}


class FrameStep(NamedTuple):
    """One step of a stream: inputs of the model, and the time in the video up to which they show it, in seconds."""

    time_s: float
    inputs: dict[str, Any]


def steps(
    model: Any, folder: Path | str, path: Path | str, *, fps: float, size: int, max_frames: int | None = None
) -> Iterator[FrameStep]:
    """The frames of a video, sampled at `fps`, as steps of a stream.

    folder  folder of the model; its preprocessor configuration states mean and deviation of the pixels
    size    pixels per side of a frame for the Qwen2-VL family; the other families have one size

    Raises CaptureError for a model of another family.
    """
    kind = model.config.model_type
    if kind in PICTURE_INPUTS:
        yield from _picture_steps(model, folder, path, fps, max_frames)
    elif hasattr(model.model, "get_rope_index") and hasattr(model.config, "video_token_id"):
        calls = capture.video_calls(model, folder, path, fps=fps, size=size, max_frames=max_frames)
        frames_of_a_step = model.config.vision_config.temporal_patch_size
        for number, call in enumerate(calls, start=1):
            yield FrameStep(number * frames_of_a_step / fps, call.inputs)
    else:
        families = ", ".join(["qwen2_5_vl and relatives", *PICTURE_INPUTS])
        raise capture.CaptureError(
            f"model {str(folder)!r} must be of a family that takes video ({families}), got {kind}"
        )


def _picture_steps(
    model: Any, folder: Path | str, path: Path | str, fps: float, max_frames: int | None
) -> Iterator[FrameStep]:
    """One frame in each step: pixels of the size of the vision tower, and one token for each of its features."""
    name, method, token_names = PICTURE_INPUTS[model.config.model_type]
    token = next(getattr(model.config, x) for x in token_names if hasattr(model.config, x))
    size = model.config.vision_config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    mean, deviation = capture.normalisation(Path(folder))
    frames = islice(video.sample(video.decode(path), fps), max_frames)
    ids = None
    for number, frame in enumerate(frames, start=1):
        scaled = ((frame.rgb(width, height) / 255 - np.asarray(mean)) / np.asarray(deviation)).astype(np.float32)
        pixels = torch.from_numpy(scaled.transpose(2, 0, 1).copy())[None].to(model.device, model.dtype)
        if name == "pixel_values_videos":
            pixels = pixels[None]
        if ids is None:
            with torch.inference_mode():
                features = getattr(model.model, method)(pixels)
            features = getattr(features, "pooler_output", features)
            ids = torch.full((1, sum(x.shape[:-1].numel() for x in features)), token, device="cpu")
        yield FrameStep(number / fps, {"input_ids": ids, name: pixels})
