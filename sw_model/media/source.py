"""Open any source of keys by name: a trace, a video, or the generator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from sw_model.media import generator
from sw_model.media.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.media.stream import Chunk, Geometry
from sw_model.media.trace import Trace
from sw_model.media.video import probe
from util import checks

GENERATOR = "generator"
QUESTION_TOKENS = 25  # of an average COIN session (V-Rex, section III-A)
QUESTION_INTERVAL = 100  # generated frames, or at their end


@dataclass(frozen=True)
class Options:
    """Options of a source; those that do not apply are ignored.

    frames  largest number of frames, with the text between them; None: all of a trace or video, 1000 of the generator
    layers  decoder layers; a trace has its own number
    grid    cells per side of a video frame that become tokens, in addition to the class token
    fps     sampling rate of a video in frames per second; None: every frame
    seed    seed of the front end's weights or of the generator
    """

    frames: int | None = None
    layers: int = 1
    grid: int = 3
    fps: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.frames is not None:
            checks.integer("frames", self.frames, 1)
        checks.integer("layers", self.layers, 1)


@dataclass(frozen=True)
class Source:
    """Chunks that can be read once, and their description.

    tokens_per_frame  tokens of the first frame
    total             number of chunks, 0 if unknown
    about             origin of the stream as plain values
    """

    geometry: Geometry
    chunks: Iterator[Chunk]
    tokens_per_frame: int
    total: int
    about: dict[str, Any]


def open_source(name: Path | str, options: Options | None = None) -> Source:
    """Open the source called `name`: `generator`, a trace (safetensors), or else a video.

    A video has a question at its end, the generator after every hundred frames or at its end. Raises `TraceError` or
    `VideoError` for a damaged file, ValueError for an invalid option.
    """
    options = options or Options()
    if str(name) == GENERATOR:
        return _generated(options)
    return _traced(Path(name), options) if _is_trace(Path(name)) else _filmed(Path(name), options)


def first_keys(name: Path | str, tokens: int, options: Options | None = None) -> np.ndarray:
    """Keys of the first `tokens` tokens of a source's first layer, all KV heads: bfloat16 (tokens, heads * d).

    Fewer when the source ends before; raises what `open_source` raises.
    """
    captured_keys: list[np.ndarray] = []
    for chunk in open_source(name, options).chunks:
        captured_keys.extend(chunk.k[0].reshape(chunk.tokens, -1))
        if len(captured_keys) >= tokens:
            break
    return np.stack(captured_keys[:tokens])


def _is_trace(path: Path) -> bool:
    """True if the name is that of a trace, or the file starts like safetensors: eight bytes of length, then JSON."""
    if path.suffix == ".safetensors" or not path.is_file():
        return path.suffix == ".safetensors"
    with path.open("rb") as file:
        return file.read(9)[8:] == b"{"


def _generated(options: Options) -> Source:
    config = generator.coin(options.layers, options.seed)
    frames = options.frames or 1000
    text_interval = min(frames, QUESTION_INTERVAL)
    chunks = generator.Generator(config).chunks(frames, text_interval=text_interval, text_tokens=QUESTION_TOKENS)
    total = frames + frames // text_interval
    description = {"kind": "generator", "seed": options.seed, "frames": frames}
    return Source(config.geometry, chunks, config.tokens_per_frame, total, description)


def _traced(path: Path, options: Options) -> Source:
    trace = Trace(path)
    frames = [index for index, stage in enumerate(trace.stages) if stage == "frame"]
    is_complete = options.frames is None or options.frames >= len(frames)
    total = len(trace) if is_complete else frames[options.frames or 0]
    first = trace.lengths[frames[0]] if frames else 1
    description = {"kind": "trace", "path": str(path), **trace.source}
    return Source(trace.geometry, islice(trace.chunks(), total), first, total, description)


def _filmed(path: Path, options: Options) -> Source:
    info = probe(path)
    config = FrontEndConfig(geometry=Geometry(layers=options.layers), grid=options.grid, seed=options.seed)
    front_end = FrontEnd(config)
    question = np.random.default_rng(options.seed).integers(0, 1 << 16, QUESTION_TOKENS).tolist()

    def chunks() -> Iterator[Chunk]:
        for _, chunk in video_chunks(path, front_end, fps=options.fps, max_frames=options.frames):
            yield chunk
        yield front_end.text(question)

    total = 0 if options.fps or not info.n_frames else min(info.n_frames, options.frames or info.n_frames) + 1
    description = {"kind": "video", "path": str(path), "codec": info.codec, **front_end.metadata()}
    return Source(config.geometry, chunks(), config.tokens_per_frame, total, description)
