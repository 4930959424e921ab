"""What the report of the main job shows, section by section."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cli.demo import overlay, retrieval
from cli.demo.steps import RtlRun, VideoRun
from cli.pages.system import breakdown
from sw_model.media.statistics import Row
from sw_model.papers.figures import FrameRow
from sw_model.quality import Quality
from synth.area import Area
from synth.generate import Generated
from util.report import Column, Fact, Marked, Section, Table, charts

# V-Rex, Table III
HCU_MM2_PAPER, HCU_MW_PAPER = 0.01, 2.99


@dataclass(frozen=True)
class Results:
    """Everything the main job found out, and the seconds each step took."""

    video: VideoRun
    rtl: RtlRun
    generated: Generated
    area: Area
    generator: list[Row]
    retrieval: dict[str, list[Quality]]  # by stream
    frames: dict[str, list[FrameRow]]  # by link preset
    seconds: dict[str, float]


def sections(results: Results) -> list[Section]:
    """The page, top to bottom."""
    return [
        _overview(results),
        _video(results),
        _clusters(results),
        _rtl(results),
        _area(results),
        _generator(results),
        retrieval.section(results.retrieval),
        _system(results),
        _time(results),
    ]


def _overview(results: Results) -> Section:
    video, rtl = results.video, results.rtl
    edge = {row.kv_tokens: row for row in results.frames["paper"] if row.system == "vrex8"}[40000]
    return Section(
        "Overview",
        "A video became keys, the keys became clusters, and the same tokens went through the RTL of the hash "
        "clustering unit in a simulator. Every output bit and every cycle agreed with the golden model. The numbers "
        "below carry their origin.",
        facts=[
            Fact("tokens through the RTL", rtl.tokens, "", "measured from RTL"),
            Fact("beats that differ from golden", sum(rtl.mismatches.values()), "", "measured from RTL"),
            Fact("cycles per token and candidate", rtl.busy_cycles / max(1, rtl.compared), "", "measured from RTL"),
            Fact(
                "tokens per cluster",
                float(np.mean([len(v.codes) / len(v.table) for v in video.layers])),
                "",
                "measured on golden",
            ),
            Fact("logic of the unit", results.area.area_um2, "um2", "computed"),
            Fact("V-Rex8 frame at 40K tokens", edge.model_ms, "ms", "computed"),
            Fact("the paper's", edge.paper_ms, "ms", "paper"),
        ],
    )


def _video(results: Results) -> Section:
    video = results.video
    info, per_frame = video.info, video.front_end.config.tokens_per_frame
    clusters = video.layers[0].assignment.cluster
    gallery = [
        overlay.frame_clusters(
            picture.rgb,
            clusters[picture.first_token : picture.first_token + per_frame],
            caption=f"frame {picture.index}, {picture.time_s:.2f} s",
        )
        for picture in video.pictures
    ]
    return Section(
        "Video",
        [
            f"{video.clip.name}: {info.codec} in {info.container}, {info.width} x {info.height} pixels, "
            f"{video.frames} frames. Origin: {video.clip.origin}; licence: {video.clip.licence}.",
            f"Each frame gives {per_frame} tokens: the class token (left bar) and a grid of cells. A cell's colour and "
            "number are its cluster in the first layer; a place that stands still keeps its colour. The projections "
            f"are {video.front_end.metadata()['weights']}.",
        ],
        gallery=gallery,
        images=[
            overlay.cluster_timeline(clusters, per_frame, caption="every token of the video, coloured by its cluster")
        ],
    )


def _clusters(results: Results) -> Section:
    video = results.video
    names = [f"layer {index}" for index in range(len(video.layers))]
    rows = [
        [
            name,
            len(layer.codes),
            len(layer.table),
            len(layer.codes) / len(layer.table),
            int(layer.table.counts.max()),
            int(layer.assignment.compared.max()),
        ]
        for name, layer in zip(names, video.layers, strict=True)
    ]
    return Section(
        "Clusters",
        f"Keys of one place in adjacent frames have a mean cosine of {video.adjacent_cosine:.3f}. "
        "Tokens join the nearest leader below the Hamming threshold among the clusters of the recent window.",
        images=[
            charts.cluster_sizes(
                {name: layer.table.counts for name, layer in zip(names, video.layers, strict=True)},
                caption="tokens per cluster",
            ),
            charts.cluster_growth(
                {name: layer.assignment.opened for name, layer in zip(names, video.layers, strict=True)},
                caption="clusters opened as tokens arrive",
            ),
        ],
        tables=[
            Table(
                [
                    "layer",
                    Column("tokens", origin="measured on golden"),
                    Column("clusters", origin="measured on golden"),
                    Column("tokens per cluster", origin="measured on golden"),
                    Column("largest", "tokens", origin="measured on golden"),
                    Column("most candidates", origin="measured on golden"),
                ],
                rows,
            )
        ],
    )


def _rtl(results: Results) -> Section:
    rtl = results.rtl
    return Section(
        "RTL",
        f"The codes of all layers went through the HCU's Verilog in {rtl.simulator}, one table after the other, with "
        f"pauses of probability {rtl.stall} on both sides.",
        tables=[
            Table(
                ["output", Column("beats", origin="measured from RTL"), Column("differ", origin="measured from RTL")],
                [[name, rtl.tokens, count] for name, count in rtl.mismatches.items()],
                "every field of every output beat against the golden model",
            ),
            Table(
                ["cycles", Column("value", "cycles")],
                [
                    ["scanning", Marked(rtl.busy_cycles, "measured from RTL")],
                    ["the formula's", Marked(rtl.formula_cycles, "computed")],
                    ["(token, candidate) pairs", Marked(rtl.compared, "measured from RTL")],
                    ["time at 800 MHz, us", Marked(rtl.busy_cycles / 800.0, "computed")],
                ],
                f"formula: {rtl.unit.slices} cycles per (token, candidate)",
            ),
        ],
    )


def _area(results: Results) -> Section:
    area = results.area
    lane = area.area_um2 / (results.rtl.unit.lanes * results.rtl.unit.accumulators)
    return Section(
        "Area",
        f"{area.library['name']} ({area.library['tier']}), {area.point} point, {area.tools['yosys']}, unplaced. "
        "Memories are counted in bits and estimated as macros; they are not part of the logic's area.",
        images=[
            charts.paired_bars(
                ["HCU"],
                {
                    "logic": [area.area_um2],
                    "logic and memories": [area.area_um2 + area.macro_um2],
                    "paper, 14 nm": [HCU_MM2_PAPER * 1e6],
                },
                unit="um2",
            )
        ],
        tables=[
            Table(
                [
                    "block",
                    "count",
                    "cells",
                    "flip-flops",
                    Column("area", "um2"),
                    Column("area", "NAND2"),
                    Column("memory", "bits"),
                    Column("macros, estimated", "um2"),
                ],
                [
                    [
                        block.name,
                        block.count,
                        block.cells,
                        block.flip_flops,
                        block.area_um2,
                        block.area_um2 / area.nand2_um2,
                        block.memory_bits,
                        block.macro_um2,
                    ]
                    for block in area.blocks
                ],
                f"{lane:.0f} um2 of logic per lane",
            ),
            Table(
                ["file", "what"],
                [[f"hcu/{name}", KINDS.get(name.rsplit(".", 1)[-1], "")] for name in results.generated.files],
                "generated beside this report",
            ),
        ],
    )


KINDS = {
    "v": "Verilog",
    "json": "configuration, ports, timing",
    "sdc": "constraints",
    "f": "file list",
    "core": "FuseSoC core",
}


def _generator(results: Results) -> Section:
    rows = [[row.name, row.mean, Marked(row.paper or None, "paper"), row.where] for row in results.generator]
    return Section(
        "Generator beside the paper",
        "The synthetic stream that stands in for a trained model's keys, 10,000 tokens of one layer.",
        tables=[Table(["statistic", Column("generator", origin="measured on golden"), "paper", "where"], rows)],
    )


def _system(results: Results) -> Section:
    images, tables = [], []
    for system, title in (("vrex8", "V-Rex8"), ("vrex48", "V-Rex48")):
        by_link = {link: [row for row in rows if row.system == system] for link, rows in results.frames.items()}
        paper = by_link["paper"]
        images.append(
            breakdown(
                [(f"{row.kv_tokens // 1000}K", row.result) for row in paper],
                f"{title}: one frame, where the time goes (bars: model, marks: V-Rex Fig. 13)",
                [row.paper_ms for row in paper],
            )
        )
        tables.append(
            Table(
                [
                    Column("past", "tokens"),
                    Column("model, paper's link", "ms", ".1f", "computed"),
                    Column("model, realistic link", "ms", ".1f", "computed"),
                    Column("Fig. 13", "ms", ".0f", "paper"),
                    Column("residual", "%", "+.0f", "computed"),
                ],
                [
                    [a.kv_tokens, a.model_ms, b.model_ms, a.paper_ms, None if a.residual is None else 100 * a.residual]
                    for a, b in zip(by_link["paper"], by_link["realistic"], strict=True)
                ],
                title,
            )
        )
    facts = results.frames["paper"][-1].result.facts
    tables.append(
        Table(
            ["number", "value", "unit", "source"],
            [[fact.name, Marked(fact.value, fact.origin), fact.unit, fact.source] for fact in facts],
            "what the model stands on (V-Rex48, 40K tokens)",
        )
    )
    return Section(
        "System model",
        "One frame of a video with 1K to 40K tokens in the cache: weights, KV, attention, prediction and fetch from "
        "first principles. Nothing is fitted to the figure, so the residual is the model's own.",
        images=images,
        tables=tables,
    )


def _time(results: Results) -> Section:
    total = sum(results.seconds.values())
    rows = [[name, value] for name, value in results.seconds.items()]
    return Section("Time of this run", tables=[Table(["step", Column("time", "s", ".1f")], [*rows, ["total", total]])])
