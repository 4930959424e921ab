"""What bounds a run: the waits add up to it, and turning a knob does what the table says."""

from dataclasses import replace

import pytest

from sw_model.explain import FREE, bounds_of, explain
from sw_model.request import Request
from sw_model.systems import load_system


@pytest.fixture(scope="module")
def fetching():
    return explain(Request(tokens=40000))


def test_waits_add_up(fetching):
    assert sum(b.seconds for b in fetching.bounds) == pytest.approx(fetching.result.total_s, rel=1e-12)
    by_stage = {}
    for b in fetching.bounds:
        by_stage[b.stage] = by_stage.get(b.stage, 0) + b.seconds
    assert by_stage == pytest.approx({k: v.exposed_s for k, v in fetching.result.stages.items() if v.exposed_s})


def test_a_long_context_is_bound_by_the_link(fetching):
    first = fetching.bounds[0]
    assert (first.stage, first.resource) == ("fetch", "PCIe")
    knobs = {knob.name: knob for knob in fetching.knobs}
    link = knobs["host link"]
    assert link.twice_s == Request(tokens=40000, changes={"link.nominal_gbps": 8.0}).run().total_s
    assert link.free_s == Request(tokens=40000, changes={"link.nominal_gbps": 204.8}).run().total_s
    assert link.then.resource == "DRAM" and link.free_s <= link.twice_s < fetching.result.total_s
    half = Request(tokens=40000, ratio=0.327 / 2).run().total_s
    assert knobs["share retrieved"].twice_s == pytest.approx(half)
    assert [k.twice_s for k in fetching.knobs] == sorted(k.twice_s for k in fetching.knobs)


def test_a_short_context_is_bound_by_the_weights():
    told = explain(Request(tokens=500))
    assert (told.bounds[0].stage, told.bounds[0].resource) == ("weights", "DRAM")
    assert "host link" not in {knob.name for knob in told.knobs}
    assert told.idle == ("device memory bandwidth",)  # requests in flight bound it first
    wide = explain(Request(tokens=500, changes={"assume.requests_in_flight": 64}))
    assert wide.knobs[0].name == "device memory bandwidth"


def test_the_slower_of_drive_and_link_is_blamed():
    """Clusters are read in 16 KiB, faster than the link carries them; single tokens in blocks that are mostly thrown
    away."""
    clustered = explain(Request(tokens=40000, link="realistic"))
    assert (clustered.bounds[0].stage, clustered.bounds[0].resource) == ("fetch", "PCIe")
    told = explain(Request(policy="infinigenp", tokens=40000, link="realistic"))
    assert (told.bounds[0].stage, told.bounds[0].resource) == ("fetch", "SSD")
    assert "host link" in told.idle
    behind = next(k for k in told.knobs if k.name == "host memory instead of a drive")
    assert behind.twice_s < told.result.total_s
    without = explain(Request(tokens=40000, link="realistic", changes={"link.behind": "cpu"}))
    assert "host memory instead of a drive" not in {knob.name for knob in without.knobs}


def test_gpu_knobs():
    told = explain(Request("agx-orin", "full", tokens=1000))
    overhead = next(k for k in told.knobs if k.name == "framework overhead")
    ops = 32 * 30 + 24 * 16
    saved = ops * load_system("agx-orin").gpu.op_overhead_us * 1e-6
    assert told.result.total_s - overhead.free_s == pytest.approx(saved * (1 - 1 / FREE), rel=0.02)
    assert "share retrieved" in told.idle  # FlexGen takes everything


def test_words_and_table(fetching):
    said = fetching.words()
    assert "bound by fetch on the host link" in said and f"{fetching.result.total_s * 1e3:.4g} ms" in said
    assert fetching.table().splitlines()[0].startswith("knob")
    told = fetching.json()
    assert told["bounds"][0]["share"] == pytest.approx(fetching.bounds[0].seconds / fetching.result.total_s)


def test_sessions_count_every_step():
    result = Request(workload="coin", tokens=1000).run()
    assert sum(b.seconds for b in bounds_of(result)) == pytest.approx(result.total_s, rel=1e-12)


def test_host_memory_has_no_knob_for_the_drive():
    told = explain(Request(tokens=1000, changes={"link.behind": "cpu"}))
    assert "host memory instead of a drive" not in {knob.name for knob in told.knobs} | set(told.idle)


def test_words_of_one_bound_and_no_knob(fetching):
    said = replace(fetching, bounds=fetching.bounds[:1], knobs=()).words()
    assert "Behind it" not in said and said.endswith("No single knob, turned twice as far, changes it by a thousandth.")
