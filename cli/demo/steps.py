"""Steps of the demo: cluster a video with the golden model, and run the same tokens through the RTL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golden.clustering import Assignment, ClusterRule, ClusterTable
from golden.hashing import hash_codes, hyperplanes
from golden.mean_keys import MeanKeys
from hw.dre.hcu import HCU, Op
from sim.bench.build import default_simulator
from sim.bench.run import simulate
from sim.ports.hcu import hcu_ports
from sw_model.media.clip import Clip
from sw_model.media.keys import FrontEnd, FrontEndConfig, video_chunks
from sw_model.media.stream import Geometry
from sw_model.media.video import VideoInfo, probe
from util.progress import Progress

PICTURES = 8  # frames shown in the report
PICTURE_WIDTH = 320


@dataclass(frozen=True)
class Picture:
    """A frame that the report shows, and its first token."""

    index: int
    time_s: float
    rgb: np.ndarray  # uint8 (height, width, 3)
    first_token: int


@dataclass(frozen=True)
class Layer:
    """Clustering of one decoder layer: hash codes, assignment of every token, final table."""

    codes: np.ndarray
    assignment: Assignment
    table: ClusterTable
    mean_keys: MeanKeys


@dataclass(frozen=True)
class VideoRun:
    """The tokens of a video in the golden clusters of every layer."""

    clip: Clip
    info: VideoInfo
    front_end: FrontEnd
    frames: int
    pictures: list[Picture]
    layers: list[Layer]
    adjacent_cosine: float  # mean cosine of a position's keys in adjacent frames

    @property
    def tokens(self) -> int:
        return len(self.layers[0].codes)


@dataclass(frozen=True)
class RtlRun:
    """Result of the same tokens in the simulated HCU."""

    unit: HCU
    tokens: int
    mismatches: dict[str, int]  # beats that differ from the golden model, by field
    busy_cycles: int
    formula_cycles: int
    compared: int
    stall: float
    simulator: str


def cluster_video(
    clip: Clip,
    *,
    hash_bits: int = 32,
    layers: int = 4,
    grid: int = 3,
    fps: float | None = None,
    max_frames: int | None = None,
    rule: ClusterRule | None = None,
    seed: int = 0,
    progress: Progress,
) -> VideoRun:
    """Decode `clip`, convert every frame to keys, and cluster their hash codes in every layer.

    `grid` gives `1 + grid**2` tokens per frame. Raises `VideoError` for an unreadable or truncated video.
    """
    info = probe(clip.path)
    config = FrontEndConfig(geometry=Geometry(layers=layers), grid=grid, seed=seed)
    front_end = FrontEnd(config)
    dimension = config.geometry.kv_heads * config.geometry.head_dim
    planes = [hyperplanes(dimension, hash_bits, seed=seed, layer=layer) for layer in range(layers)]
    tables = [ClusterTable(rule) for _ in range(layers)]
    means = [MeanKeys(dimension) for _ in range(layers)]
    codes: list[list[np.ndarray]] = [[] for _ in range(layers)]
    steps: list[list[Assignment]] = [[] for _ in range(layers)]
    expected = min(filter(None, (info.n_frames, max_frames)), default=0)
    pictures: list[Picture] = []
    spacing = max(1, (expected or 240) // PICTURES)
    cosines, previous = [], None
    frames = tokens = 0
    for frame, chunk in video_chunks(clip.path, front_end, fps=fps, max_frames=max_frames):
        if frames % spacing == 0 and len(pictures) < PICTURES:
            height = max(1, round(PICTURE_WIDTH * info.height / info.width))
            pictures.append(Picture(frames, frame.time_s, frame.rgb(PICTURE_WIDTH, height), tokens))
        flat = chunk.k.reshape(layers, chunk.tokens, dimension)
        for layer in range(layers):
            step = hash_codes(flat[layer], planes[layer])
            codes[layer].append(step)
            steps[layer].append(tables[layer].assign(step))
            means[layer].update(flat[layer], steps[layer][-1].cluster, tables[layer].counts)
        now = flat[0].astype(np.float32)
        if previous is not None:
            norms = np.linalg.norm(now, axis=1) * np.linalg.norm(previous, axis=1)
            cosines.append(float(((now * previous).sum(1) / norms).mean()))
        previous = now
        frames += 1
        tokens += chunk.tokens
        progress("frames", frames, expected)
    return VideoRun(
        clip=clip,
        info=info,
        front_end=front_end,
        frames=frames,
        pictures=pictures,
        layers=[Layer(np.concatenate(codes[n]), _join(steps[n]), tables[n], means[n]) for n in range(layers)],
        adjacent_cosine=float(np.mean(cosines)) if cosines else float("nan"),
    )


def _join(steps: list[Assignment]) -> Assignment:
    names = Assignment.__dataclass_fields__
    return Assignment(**{name: np.concatenate([getattr(step, name) for step in steps]) for name in names})


def through_rtl(
    video: VideoRun, unit: HCU, rule: ClusterRule, *, stall: float = 0.3, seed: int = 1, simulator: str | None = None
) -> RtlRun:
    """Simulate the HCU with the hash codes of every layer, one table per layer, with random back-pressure.

    Raises `ArithmeticError` when a bit differs from the golden model or the cycle count from the formula.
    """
    tokens = video.tokens
    beats: dict[str, list[np.ndarray]] = {"op": [], "hash": [], "last": []}
    last = np.arange(tokens) % video.front_end.config.tokens_per_frame == video.front_end.config.tokens_per_frame - 1
    for layer in video.layers:
        beats["op"] += [np.array([Op.BEGIN.value]), np.full(tokens, Op.TOKEN.value)]
        beats["hash"] += [np.zeros(1, np.uint32), layer.codes]
        beats["last"] += [np.zeros(1, bool), last]
    record = simulate(
        unit,
        "hcu",
        {"i": {name: np.concatenate(column) for name, column in beats.items()}},
        {"o": tokens * len(video.layers)},
        config=hcu_ports(rule),
        stall=stall,
        seed=seed,
        simulator=simulator,
        timeout_cycles=1_000_000_000,
    )
    output = record.outputs["o"]
    golden = [layer.assignment for layer in video.layers]
    mismatches = {
        name: int((output[name] != np.concatenate([getattr(a, name) for a in golden]).astype(np.uint64)).sum())
        for name in ("cluster", "opened", "count", "distance", "overflow")
    }
    mismatches["hash"] = int((output["hash"] != np.concatenate([layer.codes for layer in video.layers])).sum())
    mismatches["token"] = int((output["token"] != np.tile(np.arange(tokens), len(video.layers))).sum())
    formula = 0
    for layer in video.layers:
        ends = np.cumsum(layer.assignment.opened) - layer.assignment.opened
        formula += sum(
            unit.token_cycles(int(end - compared), int(end))
            for end, compared in zip(ends, layer.assignment.compared, strict=True)
        )
    busy = record.status["stat_busy"]
    if any(mismatches.values()) or busy != formula:
        raise ArithmeticError(f"the RTL differs from the golden model: {mismatches}, {busy} cycles, formula {formula}")
    return RtlRun(
        unit=unit,
        tokens=len(output["token"]),
        mismatches=mismatches,
        busy_cycles=busy,
        formula_cycles=formula,
        compared=record.status["stat_compared"],
        stall=stall,
        simulator=simulator or default_simulator(),
    )
