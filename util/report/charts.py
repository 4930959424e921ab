"""Charts of a report as SVG in one style, readable on the width of a telephone."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from util.report.page import Image, show
from util.report.treemap import PALETTE

INK, SOFT, LINE = "#1d2733", "#5b6875", "#dde3e9"
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Helvetica Neue", "Arial"],
    "font.size": 9,
    "svg.fonttype": "path",
    "svg.hashsalt": "vrex",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
SIZE = (5.6, 3.3)  # inches


def _svg(draw: Callable[[Axes], None], alt: str, caption: str, size: tuple[float, float] = SIZE) -> Image:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.add_subplot())
        stream = io.BytesIO()
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return Image(stream.getvalue(), alt, caption)


def _same_length(**series: Sequence[object]) -> int:
    lengths = {name: len(values) for name, values in series.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"series must have the same length, got {lengths}")
    return next(iter(lengths.values()))


def cluster_sizes(counts: Mapping[str, np.ndarray], *, caption: str = "") -> Image:
    """Histogram of tokens per cluster, one outline per layer: `counts[name]` are the tokens of each cluster."""
    largest = max((int(np.max(values)) for values in counts.values() if len(values)), default=1)
    edges = np.unique(np.round(np.geomspace(1, largest + 1, 22)).astype(int))

    def draw(axes: Axes) -> None:
        for (name, values), color in zip(counts.items(), _colors(len(counts)), strict=True):
            share = np.histogram(values, np.append(edges, largest + 2))[0]
            label = f"{name} (mean {np.mean(values):.1f})" if len(values) else name
            axes.stairs(share, np.append(edges, largest + 2), color=color, linewidth=1.6, label=label)
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("tokens in a cluster")
        axes.set_ylabel("clusters")
        axes.legend()

    return _svg(draw, "Histogram of cluster sizes by layer", caption)


def cluster_growth(opened: Mapping[str, np.ndarray], *, limit: int | None = None, caption: str = "") -> Image:
    """Clusters over tokens: `opened[name]` is True where a token opened a cluster; `limit` marks a capacity."""

    def draw(axes: Axes) -> None:
        for (name, flags), color in zip(opened.items(), _colors(len(opened)), strict=True):
            total = np.cumsum(flags)
            at = np.unique(np.linspace(0, len(total) - 1, 400).astype(int)) if len(total) else np.zeros(0, int)
            axes.plot(at + 1, total[at], color=color, linewidth=1.6, label=f"{name} ({total[-1] if len(total) else 0})")
        if limit is not None:
            axes.axhline(limit, color=INK, linewidth=1, linestyle="--", label=f"table on chip ({limit})")
        axes.set_xlabel("tokens")
        axes.set_ylabel("clusters")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.legend()

    return _svg(draw, "Clusters in the table over the tokens seen, by layer", caption)


def stacked_bars(
    labels: Sequence[str],
    series: Mapping[str, Sequence[float]],
    *,
    unit: str,
    reference: Sequence[float | None] | None = None,
    reference_name: str = "paper",
    caption: str = "",
) -> Image:
    """Horizontal bars stacked from `series`, with a marker where `reference` has a value (None: no marker)."""
    for name, values in {**series, **({reference_name: reference} if reference else {})}.items():
        _same_length(**{"labels": labels, name: values})
    visible = {name: np.asarray(values, float) for name, values in series.items() if np.any(np.asarray(values) > 0)}
    total = np.sum(list(visible.values()), axis=0) if visible else np.zeros(len(labels))

    def draw(axes: Axes) -> None:
        at, left = np.arange(len(labels)), np.zeros(len(labels))
        for (name, values), color in zip(visible.items(), _colors(len(visible)), strict=True):
            axes.barh(at, values, left=left, height=0.62, color=color, label=name)
            left = left + values
        axis_maximum = max([*total, *(value for value in reference or () if value is not None)], default=0.0) or 1.0
        for y, value in enumerate(total):
            reference_value = reference[y] if reference else None
            end = max(value, reference_value if reference_value is not None else 0.0)
            label_text = (
                show(value) if reference_value is None else f"{show(value)}, {reference_name} {show(reference_value)}"
            )
            axes.text(end + 0.02 * axis_maximum, y, label_text, va="center", fontsize=8.5, color=INK)
        marked = [(y, value) for y, value in enumerate(reference or ()) if value is not None]
        if marked:
            axes.plot(
                [v for _, v in marked],
                [y for y, _ in marked],
                "|",
                color=INK,
                markersize=17,
                markeredgewidth=2.2,
                label=reference_name,
            )
        axes.set_yticks(at, labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, (1.4 if marked else 1.13) * axis_maximum)
        axes.set_xlabel(unit)
        handles, names = axes.get_legend_handles_labels()
        order = sorted(range(len(names)), key=lambda i: names[i] == reference_name)  # the marker last
        axes.figure.legend(
            [handles[i] for i in order],
            [names[i] for i in order],
            loc="outside upper left",
            ncols=4,
            handlelength=1,
            columnspacing=1.2,
        )

    size = (SIZE[0], 1.25 + 0.36 * max(4, len(labels)))
    return _svg(draw, f"Bars of {', '.join(visible)} in {unit} for {', '.join(labels)}", caption, size)


def paired_bars(
    labels: Sequence[str], series: Mapping[str, Sequence[float | None]], *, unit: str, caption: str = ""
) -> Image:
    """Grouped horizontal bars, one colour per series (for instance this design and the paper's)."""
    for name, values in series.items():
        _same_length(**{"labels": labels, name: values})

    def draw(axes: Axes) -> None:
        height = 0.75 / max(1, len(series))
        axis_maximum = max((v for values in series.values() for v in values if v is not None), default=1.0)
        for index, ((name, values), color) in enumerate(zip(series.items(), _colors(len(series)), strict=True)):
            at = np.arange(len(labels)) + (index - (len(series) - 1) / 2) * height
            axes.barh(at, [v or 0 for v in values], height=0.9 * height, color=color, label=name)
            for y, value in zip(at, values, strict=True):
                axes.text((value or 0) + 0.015 * axis_maximum, y, show(value), va="center", fontsize=8, color=INK)
        axes.set_yticks(np.arange(len(labels)), labels)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, 1.14 * axis_maximum)
        axes.set_xlabel(unit)
        axes.figure.legend(loc="outside upper left", ncols=3, handlelength=1, columnspacing=1.2)

    size = (SIZE[0], 1.1 + 0.24 * max(1, len(series)) * len(labels))
    return _svg(draw, f"Bars of {', '.join(series)} in {unit} for {', '.join(labels)}", caption, size)


def _logarithmic(axes: Axes, *names: str) -> None:
    """Set logarithmic scales with plain numbers at the decades only."""
    for name in names:
        getattr(axes, f"set_{name}scale")("log")
        axis = getattr(axes, f"{name}axis")
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())


def _spread_labels(values: Sequence[float], minimum_gap: float) -> list[float]:
    """The values, each moved up where necessary to at least `minimum_gap` above the next lower one."""
    out, last = [0.0] * len(values), -np.inf
    for index in sorted(range(len(values)), key=lambda i: values[i]):
        out[index] = last = max(values[index], last + minimum_gap)
    return out


def lines(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    alt: str,
    caption: str = "",
    limits: Sequence[float] = (),
) -> Image:
    """Curves over two logarithmic axes, each named at its right end; names that would overlap are spread.

    `limits` are values of `y` with a dashed line.
    """

    values = [*limits, *(value for points in series.values() for _, value in points)]
    low, high = min(values) / 1.15, max(values) * 1.15

    def draw(axes: Axes) -> None:
        colors = _colors(len(series))
        ends = [np.log(points[-1][1] / low) / np.log(high / low) for points in series.values()]
        for points, color in zip(series.values(), colors, strict=True):
            axes.plot(*zip(*points, strict=True), color=color, linewidth=1.6, marker="o", markersize=3)
        for name, at, color in zip(series, _spread_labels(ends, 0.055), colors, strict=True):
            axes.annotate(name, (1.02, at), xycoords="axes fraction", color=color, va="center", fontsize=8.5)
        for limit in limits:
            axes.axhline(limit, color=SOFT, linewidth=1, linestyle="--")
        _logarithmic(axes, "x", "y")
        axes.set_ylim(low, high)
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return _svg(draw, alt, caption)


def curves(
    series: Mapping[str, Sequence[tuple[float, float]]], *, x: str, y: str, alt: str, caption: str = ""
) -> Image:
    """Curves over two linear axes from zero, with a legend."""

    def draw(axes: Axes) -> None:
        for (name, points), color in zip(series.items(), _colors(len(series)), strict=True):
            axes.plot(*zip(*points, strict=True), color=color, linewidth=1.6, label=name)
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend()

    return _svg(draw, alt, caption)


def roofline(
    points: Mapping[str, tuple[float, float]], *, peak_tflops: float, memory_gbps: float, caption: str = ""
) -> Image:
    """Operations per byte and TFLOPS of some runs, below the limits of the machine."""

    def draw(axes: Axes) -> None:
        low = min([intensity for intensity, _ in points.values()], default=1.0) / 3
        ridge = peak_tflops * 1e3 / memory_gbps
        high = max([3 * ridge, *(3 * intensity for intensity, _ in points.values())])
        at = np.array([low, ridge, high])
        axes.plot(at, np.minimum(peak_tflops, at * memory_gbps / 1e3), color=INK, linewidth=1.4)
        for (name, (intensity, rate)), color in zip(points.items(), _colors(len(points)), strict=True):
            axes.plot(intensity, rate, "o", color=color, markersize=6, label=name)
        _logarithmic(axes, "x", "y")
        axes.set_xlabel("operations per byte of device memory")
        axes.set_ylabel("TFLOPS")
        axes.legend(loc="lower right")

    roof = f"{peak_tflops:g} TFLOPS and {memory_gbps:g} GB/s"
    return _svg(draw, f"Roofline of {roof} with {', '.join(points)}", caption)


def timeline(lanes: Mapping[str, Sequence[tuple[float, float, str]]], *, caption: str = "") -> Image:
    """Activity of each lane over time: `lanes[name]` are (start, length, category), times in milliseconds."""
    kinds = list(dict.fromkeys(category for tasks in lanes.values() for _, _, category in tasks))
    color = dict(zip(kinds, _colors(len(kinds)), strict=True))

    def draw(axes: Axes) -> None:
        for y, tasks in enumerate(lanes.values()):
            for kind in kinds:
                spans = [(start, length) for start, length, category in tasks if category == kind]
                axes.broken_barh(spans, (y - 0.36, 0.72), color=color[kind], linewidth=0, label=kind)
        axes.set_yticks(range(len(lanes)), list(lanes))
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("ms")
        handles, names = axes.get_legend_handles_labels()
        first = {name: handle for handle, name in reversed(list(zip(handles, names, strict=True)))}
        visible = {kind: first[kind] for kind in kinds}
        axes.figure.legend(visible.values(), visible, loc="outside upper left", ncols=4, handlelength=1)

    size = (SIZE[0], 1.2 + 0.34 * max(3, len(lanes)))
    return _svg(draw, f"Timeline of {', '.join(lanes)} over {', '.join(kinds)}", caption, size)


def pareto(points: Mapping[str, tuple[float, float]], *, x: str, y: str, caption: str = "") -> Image:
    """Points for which less is better on both axes; a line joins the Pareto front."""
    front = pareto_front(points)

    def draw(axes: Axes) -> None:
        axes.step(*zip(*(points[name] for name in front), strict=True), where="post", color=LINE, linewidth=2, zorder=1)
        span = max(value for _, value in points.values()) - min(value for _, value in points.values())
        label_positions = _spread_labels([value for _, value in points.values()], 0.06 * span)
        for (name, (at, value)), label in zip(points.items(), label_positions, strict=True):
            axes.plot(at, value, "o", color=PALETTE[0] if name in front else SOFT, markersize=6, zorder=2)
            axes.annotate(name, (at, label), (7, 0), textcoords="offset points", va="center", fontsize=8.5)
        _logarithmic(axes, "x")
        axes.margins(x=0.15, y=0.1)
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return _svg(draw, f"{y} over {x} of {', '.join(points)}; best: {', '.join(front)}", caption)


def pareto_front(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names of the points that no other point equals or beats in both coordinates, sorted by the first coordinate."""
    front: list[str] = []
    for name, (_, value) in sorted(points.items(), key=lambda item: item[1]):
        if not front or value < points[front[-1]][1]:
            front.append(name)
    return front


def _colors(count: int) -> list[str]:
    return [PALETTE[index % len(PALETTE)] for index in range(count)]
