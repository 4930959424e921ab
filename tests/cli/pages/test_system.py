"""Sections about the system model: their numbers are those of the runs."""

from dataclasses import replace

import pytest

from cli.pages import system
from sw_model import compare
from sw_model.explain import explain
from sw_model.papers.claims import CLAIMS, ClaimResult
from sw_model.papers.reproduce import reproduce
from sw_model.quality import Quality
from sw_model.request import Request
from util.report import charts, run_metadata, write
from util.report.page import Column


@pytest.fixture(scope="module")
def explanation():
    return explain(Request(tokens=20000))


def test_run_section(explanation):
    section = system.run_section(explanation)
    assert section.facts[0].value == explanation.result.total_s * 1e3
    waits = section.tables[0].rows
    assert sum(row[2] for row in waits) == pytest.approx(explanation.result.total_s * 1e3)
    assert sum(row[3] for row in waits) == pytest.approx(100)
    assert len(section.images) == 3 and all(image.content.startswith(b"<?xml") for image in section.images)


def test_timeline_shows_three_layers(explanation, monkeypatch):
    tasks = {}
    monkeypatch.setattr(charts, "timeline", lambda lanes, caption: tasks.update(lanes))
    system.timeline(explanation.result)
    assert list(tasks) == [lane for lane in system.LANES if lane in explanation.result.utilisation]
    end = max(start + length for tasks in tasks.values() for start, length, _ in tasks)
    assert end == pytest.approx(explanation.result.total_s * 1e3 * 3 / 32, rel=0.35)
    assert all(start >= 0 for tasks in tasks.values() for start, _, _ in tasks)


def test_roofline_point_is_below_the_roof(explanation):
    result, machine = explanation.result, explanation.request.machine()
    intensity, rate = result.flops / result.bytes_moved["DRAM"], result.flops / result.total_s / 1e12
    assert rate <= min(machine.peak_tflops, intensity * machine.device_memory.peak_gbps / 1e3)


def test_comparison_section():
    sides = compare.compare(Request(), ("resv", "hybrid"), (1000, 20000))
    quality = [Quality("resv", "frame", 1, 0.3, 0.6, 0.4, 0), Quality("hybrid", "frame", 1, 0.1, 0.2, 0.5, 0)]
    slower = [replace(side, latency_ms=side.latency_ms + 1e3 * (side.policy == "hybrid")) for side in sides]
    section = system.comparison_section(slower, quality, "frame", 900)
    assert "On the Pareto front of latency and quality: resv." in section.paragraphs[0]
    assert [image.caption for image in section.images][-1].startswith("latency at 1,000 tokens")
    assert len(section.tables) == 3
    assert len(system.comparison_section(sides).tables) == 2
    still = [replace(side, link_gb=0.0) for side in sides]
    assert len(system.comparison_section(still).images) + 1 == len(system.comparison_section(sides).images)


def test_page(explanation, tmp_path):
    results = [ClaimResult(CLAIMS[0], {"paper": 9.0, "realistic": 8.0})]
    reproduction = reproduce("vrex.fig13.fps")
    sections = [
        system.run_section(explanation),
        system.reproduction_section(reproduction),
        system.claims_section(results),
        system.programs_section(reproduction.programs),
    ]
    assert all(isinstance(c, Column | str) for section in sections[2:] for t in section.tables for c in t.columns)
    assert [row[3] for row in sections[3].tables[0].rows] == [row.point.past for row in reproduction.programs]
    path = write(tmp_path / "p.html", "System", sections, run_metadata(explanation.request.json()))
    page = path.read_text()
    assert "vrex.fig13.fps" in page and "8.3" in page and "fetch" in page and "program / bound" in page


def test_close_labels_are_spread():
    assert charts._spread_labels([0.5, 0.52, 0.1], 0.05) == pytest.approx([0.5, 0.55, 0.1])


def test_reproduction_section_counts_each_kind_of_figure():
    section = system.reproduction_section(reproduce("hybrid.t2.cache"))
    assert section.paragraphs[0] == "Figures of kind arith: 1 of 1 with a verdict are inside the tolerance, 1 in all."
    assert [len(table.rows) for table in section.tables] == [1, 8, 2]
