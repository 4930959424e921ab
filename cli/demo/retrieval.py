"""Quality of every retrieval policy on three streams: generated, from the video, and captured from a model."""

from __future__ import annotations

from pathlib import Path

from sw_model.media.clip import Clip
from sw_model.media.source import GENERATOR, Options, open_source
from sw_model.quality import Quality, policies_for, quality_table
from util.report import Column, Section, Table

# `vrex capture` on the synthetic clip: 24 pixels square, 10 frames per second, random weights of seed 0
TRACE = Path(__file__).parents[2] / "sw_model/data" / "tiny-qwen2.5-vl" / "trace.safetensors"
FRAMES, EVERY = 48, 12  # frames of a stream; one of EVERY frames is measured
BUDGET_FRAMES = 12


def compare(clip: Clip, *, grid: int, fps: float | None, frames: int | None, seed: int) -> dict[str, list[Quality]]:
    """Quality of every policy: name of the stream -> rows."""
    short = Options(frames=min(FRAMES, frames or FRAMES), grid=grid, fps=fps, seed=seed)
    streams = {
        "generated": open_source(GENERATOR, short),
        f"video: {clip.name}": open_source(clip.path, short),
        "captured trace": open_source(TRACE),
    }
    tables = {}
    for title, stream in streams.items():
        policies = policies_for(stream.geometry, stream.tokens_per_frame, budget_frames=BUDGET_FRAMES)
        tables[title] = quality_table(stream.chunks, policies, EVERY)
    return tables


def section(tables: dict[str, list[Quality]]) -> Section:
    """The tables as a section of the report."""
    columns: list[Column | str] = [
        "policy",
        "stage",
        Column("retrieved", "%", ".1f", "measured on golden"),
        Column("recall of attention", "%", ".1f", "measured on golden"),
        Column("output error", "", ".4f", "measured on golden"),
        Column("read per step", "MB", ".3f", "measured on golden"),
    ]
    return Section(
        "Retrieval quality",
        "Every policy is compared with full attention on the same keys, values and queries. The generated stream and "
        "the video have one layer; the captured trace has two layers of a tiny model with random weights. Recall is "
        "the share of the attention weight that falls on the attended tokens. The output error is relative to the "
        f"output of full attention. Policies with a frame budget retrieve {BUDGET_FRAMES} of {FRAMES} frames.",
        tables=[
            Table(
                columns,
                [[q.policy, q.stage, 100 * q.ratio, 100 * q.recall, q.output_error, q.read_bytes / 1e6] for q in table],
                title,
            )
            for title, table in tables.items()
        ],
    )
