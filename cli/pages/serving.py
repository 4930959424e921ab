"""Sections of report pages about many streams: latency over the number of streams, refused frames, capacity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sw_model.serving.parameters import Serving
from sw_model.serving.table import devices_of, name_of, refused_share
from util.report import charts
from util.report.page import Column, Image, Section, Table

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]


def sections(simulations: Sequence[Row], searches: Sequence[Row]) -> list[Section]:
    """A section for each system and number of devices, then the capacities."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in simulations:
        groups.setdefault((row["system"], devices_of(row)), []).append(row)
    limits = sorted({row["serve.limit_ms"] for row in searches})
    pages = [latency_section(title(*key), rows, limits) for key, rows in groups.items()]
    return pages + ([capacity_section(searches)] if searches else [])


def title(system: str, devices: int) -> str:
    """The title of a system with a number of devices."""
    return system if devices == 1 else f"{devices} x {system}"


def latency_section(name: str, rows: Sequence[Row], limits: Sequence[float] = ()) -> Section:
    """Latencies of one system over the number of streams, for every policy."""
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    images: list[Image] = []
    if len(policies) > 1:
        series = {policy: curve(rows, policy, "frame_p99_ms") for policy in policies}
        images += chart(series, f"{name}: p99 frame latency of the policies", limits)
    for policy in policies:
        frames = {f"p{share}": curve(rows, policy, f"frame_p{share}_ms") for share in (50, 95, 99)}
        images += chart(frames, f"{name}, {policy}: frame latency", limits)
        answers = {
            f"{label} p{share}": curve(rows, policy, f"{key}_p{share}_ms")
            for key, label in (("first_token", "TTFT"), ("per_token", "TPOT"))
            for share in (50, 99)
        }
        images += chart(answers, f"{name}, {policy}: time to first token and time per output token of answers")
    return Section(
        name,
        "Latency of a frame: end of its step less its arrival. A frame that arrives at a full queue is refused, and "
        "its latency is not counted. A stream that does not fit into the device memory is refused with its requests. "
        f"Dashed lines are limits. A run holds its limit if {100 * attainment(rows):g} % of the offered frames are "
        "served within it.",
        images=images,
        tables=[frame_table(rows), answer_table(rows)],
    )


def attainment(rows: Sequence[Row]) -> float:
    """Share of the frames that must be within the limit."""
    return rows[0].get("serve.attainment", Serving.attainment)


def curve(rows: Sequence[Row], policy: str, key: str) -> Points:
    """A figure of a policy over the number of offered streams, where it exists."""
    return [(row["streams"], row[key]) for row in rows if row["policy"] == policy and row[key]]


def chart(series: Mapping[str, Points], caption: str, limits: Sequence[float] = ()) -> list[Image]:
    """A chart of milliseconds over streams; none without points."""
    present = {name: points for name, points in series.items() if points}
    if not present:
        return []
    alt = f"{caption} in ms over the number of streams"
    return [charts.lines(present, x="streams", y="ms", alt=alt, caption=caption, limits=limits)]


def frame_table(rows: Sequence[Row]) -> Table:
    """Frames and streams of the simulations of one system."""
    return Table(
        ["policy", Column("streams"), Column("refused streams"), *percentiles("frame"),
         Column("refused frames", "%", ".1f"), Column("within the limit", "%", ".1f"), "holds"],
        [
            [row["policy"], row["streams"], row["refused_streams"], *values(row, "frame"), 100 * refused_share(row),
             100 * row["frame_attained"], row["holds"]]
            for row in rows
        ],
        f"frames; the limit is {rows[0].get('serve.limit_ms', Serving.limit_ms):g} ms",
    )  # fmt: skip


def answer_table(rows: Sequence[Row]) -> Table:
    """Answers and devices of the simulations of one system."""
    return Table(
        ["policy", Column("streams"), *percentiles("TTFT"), *percentiles("TPOT"), Column("busy", "%", ".0f"),
         Column("frames in a step", "", ".1f"), Column("resident tokens"), Column("memory", "GB", ".1f")],
        [
            [row["policy"], row["streams"], *values(row, "first_token"), *values(row, "per_token"),
             100 * row["busy_mean"], row["batch.frame"], row["resident_tokens"], row["memory_gb"]]
            for row in rows
        ],
        "answers and devices; resident tokens and memory of the device with the fewest tokens, or the most memory",
    )  # fmt: skip


def percentiles(name: str) -> list[Column]:
    """Columns of the percentiles of a latency."""
    return [Column(f"{name} p{share}" if share == 50 else f"p{share}", "ms") for share in (50, 95, 99)]


def values(row: Row, key: str) -> list[float | None]:
    """The percentiles of a latency."""
    return [row[f"{key}_p{share}_ms"] for share in (50, 95, 99)]


def capacity_section(searches: Sequence[Row]) -> Section:
    """Capacity of every system, policy and number of devices at every limit."""
    limits = sorted({row["serve.limit_ms"] for row in searches})
    by_name: dict[tuple[str, int], dict[float, Row]] = {}
    for row in searches:
        by_name.setdefault((name_of(row), devices_of(row)), {})[row["serve.limit_ms"]] = row
    return Section(
        "Capacity",
        "The largest number of streams for which enough frames are served within the limit. One stream more is limited "
        "by the device memory, or by the latency of frames, first tokens or tokens.",
        tables=[
            Table(
                ["system, policy", Column("devices"),
                 *(Column(f"{ms:g} ms", "streams", "", "computed") for ms in limits), "limited by"],
                [
                    [name, devices, *(by_limit[ms]["capacity_streams"] if ms in by_limit else None for ms in limits),
                     ", ".join(dict.fromkeys(row["limited_by"] for row in by_limit.values()))]
                    for (name, devices), by_limit in by_name.items()
                ],
                "streams at the limits of the frame latency",
            )
        ],
    )  # fmt: skip
