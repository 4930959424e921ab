"""The core's RTL behind the model's memories: what a run tells, and what it refuses."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from hw.core.isa import Unit
from sim.core_run import BASES
from sim.layer_run import LayerRun
from sw_model.report import run_metadata, write
from sw_model.report.system import rtl_section
from sw_model.rtl import run, timings
from sw_model.systems import load_system


@pytest.mark.heavy
def test_a_run_tells_where_its_cycles_went(tmp_path, seed):
    told = run("tiny", steps=3, seed=seed)
    assert len(told.steps) == 4 and [step["tokens"] for step in told.steps] == [2, 2, 2, 1]
    assert all(abs(step["predicted"] / step["cycles"] - 1) < 0.06 for step in told.steps)
    # spans lie in the step, the units' cycles are theirs, and beats are not more than cycles
    assert min(span.start for span in told.spans) == 0 and told.cycles <= told.steps[-1]["cycles"]
    units = told.units()
    assert set(units) >= {unit.name for unit in Unit} and all(0 <= unit["share"] <= 1 for unit in units.values())
    assert sum(told.overlap()) == pytest.approx(1) and sum(told.overlap()[2:]) > 0.2
    assert sum(kind["count"] for kind in told.commands().values()) == len(told.spans)
    # the picture and the trace have every command
    drawn = ElementTree.fromstring(told.svg())
    assert len([title for title in drawn.iter() if title.tag.endswith("title")]) == len(told.spans) + 1
    events = told.trace_events()["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == len(told.spans)
    json.dumps(told.json())
    write(tmp_path / "page.html", "Core in RTL", [rtl_section(told)], run_metadata({}))
    assert "data:image/svg+xml" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"preset": "paper"}, "preset 'paper': choose one of tiny, small"),
        ({"preset": "tiny", "ratio": 0.0}, "ratio = 0.0"),
        ({"preset": "tiny", "steps": 0}, "steps = 0"),
        ({"preset": "tiny", "system": "nowhere"}, "nowhere"),
        ({"preset": "tiny", "system": "a100"}, "has no core"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_the_drive_lies_behind_the_link():
    """Of V-Rex8: what lies in host memory comes after a round trip, what lies on the drive after its page, too."""
    layer = LayerRun("tiny", np.random.default_rng(0), threshold=4, capacity=8, storage=True)
    host = timings(load_system("vrex8"), layer.storage_at)["host"]
    near, far = host.ready(0, BASES["host"], 64, False), host.ready(0, layer.storage_at, 64, False)
    assert 640 <= near < 700 and 40_000 < far < 42_000
    assert layer.storage_at - BASES["host"] == len(layer.run_on.host) // 2
    assert 20 < timings(load_system("vrex8"), 0)["device"].ready(0, 0, 64, False) < 60
