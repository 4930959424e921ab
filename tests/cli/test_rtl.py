"""The core's RTL behind the model's memories: what a run tells, and what it refuses."""

import json
import signal
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

import vrex
from cli.pages.system import rtl_section
from cli.rtl import run, timings
from hw.axi.ports import Cause
from hw.core.core import TRACE
from hw.core.isa import ExecUnit
from sim.bench.core_run import BASES, Outcome
from sim.bench.layer_run import LayerRun
from sw_model.cycles.core import CoreModel, StepData
from sw_model.systems import load_system
from util.report import run_metadata, write


def modelled(monkeypatch):
    """Put the model in the place of the RTL: a trace of its commands, its cycles, no outputs."""
    data, of = [], StepData.of
    monkeypatch.setattr(StepData, "of", lambda layer, step: data.append(of(layer, step)) or data[-1])

    def check(layer, *, timing, **options):
        model = CoreModel(layer.config, timing, BASES, layer.layer.mean_keys_word, layer.layer.instructions)
        steps = dict(zip(layer.steps, data, strict=True))
        layer.outcomes = [
            Outcome(True, False, False, Cause.NONE, 0, 0, model.run(place, program, steps.get(number)))
            for number, (place, program) in enumerate(zip(layer.program_addresses, layer.commands(), strict=True))
        ]
        trace = np.zeros(model.clock.now + 1, object)
        for unit, _, start, end in model.spans:
            trace[start] |= 1 << unit << TRACE["started"].offset
            trace[end - 1] |= 1 << unit << TRACE["complete"].offset
        return SimpleNamespace(ports={"stat_trace": trace})

    monkeypatch.setattr(LayerRun, "check", check)


@pytest.mark.parametrize("rtl", [pytest.param(True, marks=pytest.mark.heavy), False], ids=["RTL", "model"])
def test_a_run_tells_where_its_cycles_went(rtl, tmp_path, seed, monkeypatch):
    if not rtl:
        modelled(monkeypatch)
    told = run("tiny", steps=3, seed=seed)
    assert len(told.steps) == 4 and [step["tokens"] for step in told.steps] == [2, 2, 2, 1]
    off = 0.06 if rtl else 0
    assert all(abs(step["predicted"] / step["cycles"] - 1) <= off for step in told.steps)
    # spans lie in the step, the units' cycles are theirs, and beats are not more than cycles
    assert min(span.start for span in told.spans) == 0 and told.cycles <= told.steps[-1]["cycles"]
    units = told.units()
    assert set(units) >= {unit.name for unit in ExecUnit} and all(0 <= unit["share"] <= 1 for unit in units.values())
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
    layer = LayerRun("tiny", np.random.default_rng(0), hamming_threshold=4, max_resident_tokens=8, storage=True)
    host = timings(load_system("vrex8"), layer.storage_at)["host"]
    near, far = host.ready(0, BASES["host"], 64, False), host.ready(0, layer.storage_at, 64, False)
    assert 640 <= near < 700 and 40_000 < far < 42_000
    assert layer.storage_at - BASES["host"] == len(layer.run_on.host) // 2
    assert 20 < timings(load_system("vrex8"), 0)["device"].ready(0, 0, 64, False) < 60
    without = timings(load_system("vrex8").replace(link={"behind": "cpu"}), layer.storage_at)["host"]
    assert without.ready(0, layer.storage_at, 64, False) == near


def test_the_command_without_files(monkeypatch, capsys):
    modelled(monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main(["model", "--rtl", "tiny", "--frames", "1"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "cycles with 0, 1, .. units at work" in capsys.readouterr().out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_the_command(form, tmp_path, monkeypatch, capsys):
    modelled(monkeypatch)
    out, trace, page = (tmp_path / name for name in ("out.json", "trace.json", "page.html"))
    line = ["model", "--rtl", "tiny", "--frames", "1", *form]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main([*line, "--out", str(out), "--trace", str(trace), "--report", str(page)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)  # `main` takes it over
    told = capsys.readouterr().out
    assert json.loads(told) == json.loads(out.read_text()) if form else "cycles with 0, 1, .. units at work" in told
    assert json.loads(trace.read_text())["traceEvents"] and "Core in RTL" in page.read_text()
