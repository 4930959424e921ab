"""Keyframe-parallel video decoding: QuickVideo's QuickCodec (arXiv 2505.16175) on FFmpeg and shared memory.

One pass over the packets finds the time stamps of all frames and keyframes. Intervals that meet at keyframes
(`golden.quickvideo`) are decoded by separate processes, which write each requested frame directly to its target:
shared memory, a file, or a folder of pictures. Frames are those of `sw_model.media.video`, pixel for pixel.

A stream that cannot be cut (stamps missing or out of order, frames that only a decoder from the start can make) is
decoded in one pass instead; the result is the same.

`plan` selects the frames and assigns them to processes, `target` stores them, `decoding` runs the decoders.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from golden import quickvideo
from sw_model.media.quickcodec.decoding import write_frames
from sw_model.media.quickcodec.plan import Plan
from sw_model.media.quickcodec.target import SharedFrames, frame_file, png_folder
from util.progress import Progress, no_progress

__all__ = ["FORMS", "Decoded", "Saved", "decode", "groups", "save"]

FORMS = ("npy", "png", "raw")


@dataclass(frozen=True)
class Decoded:
    """Frames uint8 (n, height, width, 3), RGB, with their time stamps int64 (n,) in units of `time_base`."""

    frames: np.ndarray
    pts: np.ndarray
    time_base: Fraction

    @property
    def time_s(self) -> np.ndarray:
        """Presentation times in seconds, float64 (n,)."""
        return np.array([float(pts * self.time_base) for pts in self.pts.tolist()])


@dataclass(frozen=True)
class Saved:
    """What `save` wrote: frames of `width` x `height` in `form` at `path`, their time stamps in units of `time_base`.

    stream_frames  number of frames in the video
    processes      number of decoding processes; 0: the stream could not be cut and was decoded in one pass
    """

    path: Path
    form: str
    width: int
    height: int
    stream_frames: int
    processes: int
    pts: tuple[int, ...]
    time_base: Fraction

    def json(self) -> dict[str, Any]:
        """The same as plain values, the stamps as seconds."""
        return {
            "output": str(self.path),
            "form": self.form,
            "frames": len(self.pts),
            "width": self.width,
            "height": self.height,
            "stream_frames": self.stream_frames,
            "processes": self.processes,
            "time_s": [float(pts * self.time_base) for pts in self.pts],
        }


def decode(
    path: Path | str,
    *,
    fps: float | Fraction | None = None,
    times_s: Sequence[float] | None = None,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    intervals: int | None = None,
    progress: Progress = no_progress,
) -> Decoded:
    """Decode a video into memory.

    Parameters
    ----------
    fps : frames per second to keep (the first of each period, as `video.sample`); None keeps all
    times_s : instead, the frames shown at these times, in seconds as the file counts them; a frame of several
        times is returned once
    size : (width, height) to scale to; None keeps the coded size
    workers : decoding processes; None takes one per usable core, 1 decodes in this process
    intervals : keyframe intervals to aim at; None takes 4 per worker
    progress : called as progress("frames", frames written, frames requested) after every frame

    Raises `VideoError` for a file that is not a complete video, ValueError for a bad argument, OSError when memory runs
    out, and ChildProcessError when a decoding process is killed. No process and no memory remain after the call.
    """
    plan = Plan.make(Path(path), fps, times_s, size, workers, intervals)
    with SharedFrames(plan.shape) as shared:
        for done, _ in enumerate(write_frames(plan, shared.target), start=1):
            progress("frames", done, len(plan.stamps))
        return Decoded(shared.frames(), np.array(plan.stamps, np.int64), plan.time_base)


def groups(
    path: Path | str,
    group_frames: int = quickvideo.QuickVideoConfig().group_frames,
    *,
    fps: float | Fraction | None = None,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    intervals: int | None = None,
) -> Iterator[np.ndarray]:
    """Groups of frames uint8 (n, height, width, 3) in order, each as soon as it is complete, while decoding goes on.

    Prefill can overlap with decoding: one worker is a process of its own, too. Parameters and errors as `decode`, but
    the intervals are shorter (16 per worker) so that early frames come early, and a stream that turns out to be
    irregular while it is decoded is a `VideoError`.
    """
    if group_frames < 1:
        raise ValueError(f"group_frames must be at least 1, got {group_frames}")
    plan = Plan.make(Path(path), fps, None, size, workers, intervals, per_worker=16)
    return _groups(plan, group_frames)


def _groups(plan: Plan, group_frames: int) -> Iterator[np.ndarray]:
    total = len(plan.stamps)
    missing = [min(group_frames, total - i) for i in range(0, total, group_frames)]
    n_frames = 0
    with SharedFrames(plan.shape) as shared:
        frames = shared.frames()
        for slot in write_frames(plan, shared.target, consumed=True):
            missing[slot // group_frames] -= 1
            while n_frames < len(missing) and missing[n_frames] == 0:
                yield frames[n_frames * group_frames : (n_frames + 1) * group_frames].copy()
                n_frames += 1


def save(
    path: Path | str,
    output: Path | str,
    *,
    form: str | None = None,
    fps: float | Fraction | None = None,
    times_s: Sequence[float] | None = None,
    size: tuple[int, int] | None = None,
    workers: int | None = None,
    intervals: int | None = None,
    progress: Progress = no_progress,
) -> Saved:
    """Decode a video into a file or folder.

    `form` is `npy` (one array, uint8 (n, height, width, 3)), `raw` (the same without a header) or `png` (a new folder
    of pictures with a `frames.json` with their times); None selects the form by the suffix of `output`, `png`
    without one. Memory use does not grow with the video. A temporary file is renamed when it is complete; an existing
    file is replaced, an existing folder is not. Other parameters and errors as `decode`.
    """
    output = Path(output)
    form = form or output.suffix.lstrip(".") or "png"
    if form not in FORMS:
        raise ValueError(f"form must be one of {', '.join(FORMS)}, got {form!r}")
    if form == "png" and output.exists():
        raise ValueError(f"output {str(output)!r} exists already; name a folder that does not")
    plan = Plan.make(Path(path), fps, times_s, size, workers, intervals)
    output.parent.mkdir(parents=True, exist_ok=True)
    temp_path = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        target = png_folder(plan, temp_path) if form == "png" else frame_file(plan, temp_path, header=form == "npy")
        for done, _ in enumerate(write_frames(plan, target), start=1):
            progress("frames", done, len(plan.stamps))
        temp_path.rename(output) if form == "png" else temp_path.replace(output)
    except OSError as error:
        if error.errno is None:  # a process that died, not the disk
            raise
        raise OSError(error.errno, error.strerror, str(output)) from error
    finally:
        if temp_path.is_dir():
            shutil.rmtree(temp_path)
        else:
            temp_path.unlink(missing_ok=True)
    return Saved(output, form, plan.width, plan.height, plan.frames, len(plan.runs), plan.stamps, plan.time_base)
