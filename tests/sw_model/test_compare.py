"""Comparison of policies: rows equal single runs, winners have the smallest value, the front is a Pareto front."""

from dataclasses import replace

import pytest

from sw_model import workloads
from sw_model.compare import (
    MEASURES,
    SYSTEM_HEAD,
    Side,
    as_text,
    compare,
    measure,
    system_cells,
    system_table,
    trade,
    winners,
)
from sw_model.media.generator import Generator, small
from sw_model.model import run
from sw_model.papers.programs import Point, program_cost
from sw_model.policies import COMPARED
from sw_model.quality import Quality
from sw_model.request import Request
from sw_model.systems import load_system
from util.report.charts import pareto_front


@pytest.fixture(scope="module")
def sides():
    return compare(Request(), contexts=(1000, 40000))


def test_rows_equal_single_runs(sides):
    assert [(s.tokens, s.policy) for s in sides] == [(n, p) for n in (1000, 40000) for p in COMPARED]
    result = Request(policy="mosaic", tokens=40000).run()
    row = next(s for s in sides if (s.policy, s.tokens) == ("mosaic", 40000))
    assert row.source == "formula"
    assert row.latency_ms == result.total_s * 1e3 and row.energy_j == result.total_j
    assert row.link_gb == result.bytes_moved["PCIe"] / 1e9


def test_cost_of_a_fixed_budget_does_not_grow(sides):
    """A window and a block budget cost the same at any length; a share of the context does not."""
    table = {(s.policy, s.tokens): s for s in sides}
    for name in ("hybrid", "codecsight"):
        assert table[name, 40000].latency_ms == pytest.approx(table[name, 1000].latency_ms, rel=0.01)
        assert table[name, 40000].link_gb == 0
    assert table["mosaic", 40000].latency_ms < table["resv", 40000].latency_ms / 2
    assert table["resv", 40000].link_gb < table["quickprefill", 40000].link_gb


def test_winners_have_the_smallest_value(sides):
    for tokens, best in winners(sides).items():
        here = {s.policy: s for s in sides if s.tokens == tokens}
        for name, value in MEASURES.items():
            least = min(map(value, here.values()))
            assert value(here[best[name][0]]) == least
            assert set(best[name]) == {p for p, s in here.items() if value(s) <= 1.01 * least}
    assert "hybrid" in as_text(sides)


def test_pareto_front_of_latency_and_error():
    points = {"a": (1.0, 5.0), "b": (2.0, 3.0), "c": (2.0, 4.0), "d": (3.0, 3.0), "e": (4.0, 1.0)}
    assert pareto_front(points) == ["a", "b", "e"]
    sides = [Side("a", 100, 1.0, 0, 0, 0), Side("b", 100, 2.0, 0, 0, 0), Side("a", 200, 9.0, 0, 0, 0)]
    quality = [Quality("a", "frame", 1, 1, 1, 0.5, 0), Quality("a", "text", 1, 1, 1, 0.1, 0)]
    quality.append(Quality("b", "frame", 1, 1, 1, 0.7, 0))
    assert trade(sides, quality, 100, "frame") == ({"a": (1.0, 0.5), "b": (2.0, 0.7)}, ["a"])


def test_quality_on_a_stream(seed):
    config = small(seed)
    rows, length = measure(
        Generator(config).chunks(12, text_interval=6, text_tokens=4), config.geometry, config.tokens_per_frame,
        ("full", "resv"), 2,
    )  # fmt: skip
    assert {row.policy for row in rows} == {"full", "resv"}
    assert length == 12 * config.tokens_per_frame + 2 * 4


def test_a_recorded_program_replaces_the_formula():
    """The tower is that of the formula; a changed machine has no recorded program."""
    (side,) = compare(Request(), ("full",), (10_000,))
    (text,) = compare(Request(workload="text"), ("full",), (10_000,))
    program = program_cost(Point("vrex8", "frame", 10_000, "full"))
    whole = Request(policy="full", tokens=10_000).run()
    load = workloads.frame(10_000)
    bare = replace(load, phases=tuple(replace(phase, frames=0) for phase in load.phases))
    rest = run(load_system("vrex8"), "full", bare)
    assert side.source == text.source == "program" and program.source == "program"
    assert side.latency_ms == pytest.approx(1e3 * (program.total_s + whole.total_s - rest.total_s))
    assert text.latency_ms == pytest.approx(1e3 * program_cost(Point("vrex8", "text", 10_000, "full")).total_s)
    (changed,) = compare(Request(changes={"link.nominal_gbps": 8}), ("full",), (10_000,))
    assert changed.source == "formula"


def test_table_of_all_systems():
    quality = [Quality("hybrid", "frame", 1, 1, 0.75, 0.5, 0), Quality("full", "text", 1, 1, 1, 0.1, 0)]
    rows = system_table(quality, (10_000,))
    assert {row.policy for row in rows} >= {"resv", "full", "rekv", "mosaic", "quickprefill", "codecsight", "hybrid"}
    cells = {row.policy: dict(zip(SYSTEM_HEAD, system_cells(row), strict=True)) for row in rows}
    assert cells["hybrid"]["recall %"] == cells["window"]["recall %"] == "75.0" and cells["full"]["recall %"] == ""
    assert cells["full"]["source of frame"] == "program" and cells["infinigenp"]["source of frame"] == "program"
    assert float(cells["full"]["link MB"]) > float(cells["window"]["link MB"])


def test_unknown_policy_raises_value_error():
    with pytest.raises(ValueError, match="policy must be one of"):
        compare(Request(), ("resv", "luck"), (1000,))
