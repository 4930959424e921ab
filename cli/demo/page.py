"""Sections of the demo report."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cli.demo import model, overlay, retrieval
from cli.demo.steps import RtlRun, VideoRun
from cli.pages.system import breakdown
from sw_model.media.statistics import Row
from sw_model.papers.figures import FrameRow
from sw_model.quality import Quality
from synth.area import Area
from synth.generate import GeneratedFiles
from util.report import Column, Fact, Marked, Section, Table, charts

# V-Rex, Table III
HCU_MM2_PAPER, HCU_MW_PAPER = 0.01, 2.99


@dataclass(frozen=True)
class Results:
    """Results of the demo, and the seconds of every step."""

    video: VideoRun
    rtl: RtlRun
    model: model.ModelResult
    generated: GeneratedFiles
    area: Area
    generator: list[Row]
    retrieval: dict[str, list[Quality]]  # by stream
    frames: dict[str, list[FrameRow]]  # by link preset
    seconds: dict[str, float]


def sections(results: Results) -> list[Section]:
    """All sections in their order."""
    return [
        _overview(results),
        _video(results),
        _clusters(results),
        _rtl(results),
        model.section(results.model),
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
        "The demo converts a video to keys and groups the keys into clusters with the golden model. A simulator runs "
        "the same tokens through the RTL of the hash clustering unit (HCU). Every output bit and every cycle agrees "
        "with the golden model. Frames of the video and a question then pass through a small model with random weights "
        "on the whole core; its RTL equals the golden machine in every bit. A mark next to each number shows its "
        "origin.",
        facts=[
            Fact("steps of a model through the core", len(results.model.steps), "", "measured from RTL"),
            Fact("tokens through the RTL", rtl.tokens, "", "measured from RTL"),
            Fact("beats that differ from the golden model", sum(rtl.mismatches.values()), "", "measured from RTL"),
            Fact("cycles per token and candidate", rtl.busy_cycles / max(1, rtl.compared), "", "measured from RTL"),
            Fact(
                "tokens per cluster",
                float(np.mean([len(v.codes) / len(v.table) for v in video.layers])),
                "",
                "measured on golden",
            ),
            Fact("logic of the unit", results.area.area_um2, "um2", "computed"),
            Fact("V-Rex8 frame at 40K tokens", edge.model_ms, "ms", "computed"),
            Fact("the same frame in the paper", edge.paper_ms, "ms", "paper"),
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
            f"Each frame has {per_frame} tokens: the class token (bar at the top left) and a grid of cells. The colour "
            "and number of a cell show its cluster in the first layer. Static parts of the video keep their colour. "
            f"The weights of the projections are {video.front_end.metadata()['weights']}.",
        ],
        gallery=gallery,
        images=[
            overlay.cluster_timeline(
                clusters, per_frame, caption="all tokens of the video (column: frame, row: token), colour: cluster"
            )
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
        f"Keys at the same position of adjacent frames have a mean cosine similarity of {video.adjacent_cosine:.3f}. "
        "A token joins the nearest cluster of the recent window whose Hamming distance is below the threshold.",
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
                    Column("maximum of candidates", origin="measured on golden"),
                ],
                rows,
            )
        ],
    )


def _rtl(results: Results) -> Section:
    rtl = results.rtl
    return Section(
        "RTL",
        f"{rtl.simulator} simulates the Verilog of the HCU with the hash codes of all layers, one table per layer. "
        f"Inputs and outputs pause in a cycle with probability {rtl.stall}.",
        tables=[
            Table(
                [
                    "output",
                    Column("beats", origin="measured from RTL"),
                    Column("different", origin="measured from RTL"),
                ],
                [[name, rtl.tokens, count] for name, count in rtl.mismatches.items()],
                "fields of all output beats, compared with the golden model",
            ),
            Table(
                ["quantity", "value"],
                [
                    ["simulated cycles", Marked(rtl.busy_cycles, "measured from RTL")],
                    ["cycles of the formula", Marked(rtl.formula_cycles, "computed")],
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
        f"{area.library['name']} ({area.library['tier']}), {area.point} point, {area.tools['yosys']}, without "
        "placement. Memories are given in bits and as estimated macros; the area of the logic does not contain them.",
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
                ["file", "contents"],
                [[f"hcu/{name}", KINDS.get(name.rsplit(".", 1)[-1], "")] for name in results.generated.files],
                "generated files in the folder of this report",
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
        "Generator compared with the paper",
        "The generator is a synthetic stream of keys that replaces those of a trained model. The table shows 10,000 "
        "tokens of one layer.",
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
                f"{title}: time of one frame by stage (bars: model, marks: V-Rex Fig. 13)",
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
            "inputs of the model (V-Rex48, 40K tokens)",
        )
    )
    return Section(
        "System model",
        "Time of one frame with 1K to 40K past tokens in the KV cache. The model computes weights, KV cache, "
        "attention, prediction and fetch from first principles. No parameter is fitted to the figure.",
        images=images,
        tables=tables,
    )


def _time(results: Results) -> Section:
    total = sum(results.seconds.values())
    rows = [[name, value] for name, value in results.seconds.items()]
    return Section("Time of this run", tables=[Table(["step", Column("time", "s", ".1f")], [*rows, ["total", total]])])
