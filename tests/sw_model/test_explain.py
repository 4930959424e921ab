"""Bottlenecks of a run: waits sum to its time, and a changed parameter gives the time in the table."""

from dataclasses import replace

import pytest

from sw_model.explain import UNBOUNDED, bounds_of, explain
from sw_model.request import Request
from sw_model.systems import load_system


@pytest.fixture(scope="module")
def long_context():
    return explain(Request(tokens=40000))


def test_bounds_sum_to_the_time_of_the_run(long_context):
    assert sum(b.seconds for b in long_context.bounds) == pytest.approx(long_context.result.total_s, rel=1e-12)
    by_stage = {}
    for b in long_context.bounds:
        by_stage[b.stage] = by_stage.get(b.stage, 0) + b.seconds
    assert by_stage == pytest.approx({k: v.exposed_s for k, v in long_context.result.stages.items() if v.exposed_s})


def test_long_context_is_bound_by_the_link(long_context):
    first = long_context.bounds[0]
    assert (first.stage, first.resource) == ("fetch", "PCIe")
    parameters = {p.name: p for p in long_context.parameters}
    link = parameters["host link"]
    assert link.doubled_s == Request(tokens=40000, changes={"link.nominal_gbps": 8.0}).run().total_s
    assert link.unbounded_s == Request(tokens=40000, changes={"link.nominal_gbps": 204.8}).run().total_s
    assert link.next_bound.resource == "DRAM"
    assert link.unbounded_s <= link.doubled_s < long_context.result.total_s
    half = Request(tokens=40000, retrieval_ratio=0.327 / 2).run().total_s
    assert parameters["share retrieved"].doubled_s == pytest.approx(half)
    times = [p.doubled_s for p in long_context.parameters]
    assert times == sorted(times)


def test_short_context_is_bound_by_the_weights():
    explanation = explain(Request(tokens=500))
    assert (explanation.bounds[0].stage, explanation.bounds[0].resource) == ("weights", "DRAM")
    assert "host link" not in {p.name for p in explanation.parameters}
    assert explanation.parameters[0].name == "device memory bandwidth"


def test_cores_are_a_parameter_of_an_accelerator(long_context):
    """Twice the cores of the hardware configuration is the run with that many cores."""
    cores = next(p for p in explain(Request(tokens=500)).parameters if p.name == "cores")
    assert cores.setting == "core.cores"
    assert cores.doubled_s == Request(tokens=500, changes={"core.cores": 16}).run().total_s


def test_slower_one_of_drive_and_link_is_the_bound():
    """Clusters are read in 16 KiB, faster than the link transfers them; single tokens waste most of a block."""
    clusters = explain(Request(tokens=40000, link="realistic"))
    assert (clusters.bounds[0].stage, clusters.bounds[0].resource) == ("fetch", "PCIe")
    tokens = explain(Request(policy="infinigenp", tokens=40000, link="realistic"))
    assert (tokens.bounds[0].stage, tokens.bounds[0].resource) == ("fetch", "SSD")
    assert "host link" in tokens.no_effect
    behind = next(p for p in tokens.parameters if p.name == "host memory instead of a drive")
    assert behind.doubled_s < tokens.result.total_s
    without = explain(Request(tokens=40000, link="realistic", changes={"link.behind": "cpu"}))
    assert "host memory instead of a drive" not in {p.name for p in without.parameters}


def test_framework_overhead_is_a_parameter_of_a_gpu():
    explanation = explain(Request("agx-orin", "full", tokens=1000))
    overhead = next(p for p in explanation.parameters if p.name == "framework overhead")
    ops = 32 * 30 + 24 * 16
    overhead_s = ops * load_system("agx-orin").gpu.op_overhead_us * 1e-6
    saved_s = explanation.result.total_s - overhead.unbounded_s
    assert saved_s == pytest.approx(overhead_s * (1 - 1 / UNBOUNDED), rel=0.02)
    assert "share retrieved" in explanation.no_effect  # FlexGen fetches everything


def test_sentences_and_table_name_the_bound(long_context):
    words = long_context.words()
    assert "bound by fetch on the host link" in words
    assert f"{long_context.result.total_s * 1e3:.4g} ms" in words
    assert long_context.table().splitlines()[0].startswith("parameter")
    plain = long_context.json()
    assert plain["bounds"][0]["share"] == pytest.approx(long_context.bounds[0].seconds / long_context.result.total_s)


def test_bounds_of_a_session_count_every_step():
    result = Request(workload="coin", tokens=1000).run()
    assert sum(b.seconds for b in bounds_of(result)) == pytest.approx(result.total_s, rel=1e-12)


def test_host_memory_behind_the_link_is_no_parameter():
    explanation = explain(Request(tokens=1000, changes={"link.behind": "cpu"}))
    names = {p.name for p in explanation.parameters} | set(explanation.no_effect)
    assert "host memory instead of a drive" not in names


def test_sentences_of_one_bound_and_no_parameter(long_context):
    words = replace(long_context, bounds=long_context.bounds[:1], parameters=(), program=None).words()
    assert "Next: " not in words
    assert words.endswith("No single parameter, twice as good, changes it by a thousandth.")
