"""A layer in the core's RTL with the model's memory timing: results of a run, and invalid options."""

import json
import signal
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import numpy as np
import pytest

import cli.rtl
import vrex
from cli.pages.system import rtl_section
from cli.rtl import run, timings
from hw.axi.ports import Cause
from hw.core.core import TRACE
from hw.core.isa import ExecUnit
from sim.bench.core_run import BASES, Outcome
from sim.bench.layer_run import LayerRun
from sw_model.cycles.core import CoreModel
from sw_model.cycles.step_data import record_steps
from sw_model.systems import load_system
from tests.sw_model.memory.test_live_drive import answer
from util.report import run_metadata, write


def replace_rtl_by_model(monkeypatch):
    """Replace the simulation by the cycle model, which gives a trace and cycles but no outputs."""
    data = []

    def record(*arguments):
        data.append(record_steps(*arguments))
        return data[-1]

    def check(layer, *, timing, **options):
        model = CoreModel(layer.config, timing, BASES, layer.instructions)
        steps = dict(zip(layer.steps, data, strict=True))
        layer.outcomes = [
            Outcome(True, False, False, Cause.NONE, 0, 0, model.run(place, program, steps.get(number, ())))
            for number, (place, program) in enumerate(zip(layer.program_addresses, layer.commands(), strict=True))
        ]
        trace = np.zeros(model.now + 1, object)
        for unit, _, start, end in model.spans:
            trace[start] |= 1 << unit << TRACE["started"].offset
            trace[end - 1] |= 1 << unit << TRACE["complete"].offset
        return SimpleNamespace(ports={"stat_trace": trace})

    monkeypatch.setattr(cli.rtl, "record_steps", record)
    monkeypatch.setattr(LayerRun, "check", check)


@pytest.mark.parametrize("rtl", [pytest.param(True, marks=pytest.mark.heavy), False], ids=["RTL", "model"])
def test_run_reports_cycles_of_units(rtl, tmp_path, seed, monkeypatch):
    if not rtl:
        replace_rtl_by_model(monkeypatch)
    result = run("tiny", frames=3, seed=seed)
    assert len(result.steps) == 4 and [step["tokens"] for step in result.steps] == [2, 2, 2, 1]
    off = 0.06 if rtl else 0
    assert all(abs(step["predicted"] / step["cycles"] - 1) <= off for step in result.steps)
    # spans are inside the step; a unit has at most as many busy cycles as the step has cycles
    assert min(span.start for span in result.spans) == 0 and result.cycles <= result.steps[-1]["cycles"]
    units = result.units()
    assert set(units) >= {unit.name for unit in ExecUnit} and all(0 <= unit["share"] <= 1 for unit in units.values())
    assert sum(result.overlap()) == pytest.approx(1) and sum(result.overlap()[2:]) > 0.2
    assert sum(kind["count"] for kind in result.commands().values()) == len(result.spans)
    # picture and trace contain every command
    picture = ElementTree.fromstring(result.svg())
    assert len([title for title in picture.iter() if title.tag.endswith("title")]) == len(result.spans) + 1
    events = result.trace_events()["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == len(result.spans)
    json.dumps(result.json())
    write(tmp_path / "page.html", "Core in RTL", [rtl_section(result)], run_metadata({}))
    assert "data:image/svg+xml" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    "options, message",
    [
        ({"preset": "paper"}, "preset must be one of tiny, small, got 'paper'"),
        ({"preset": "tiny", "wics_ratio": 0.0}, "wics_ratio must be above 0 and at most 1, got 0.0"),
        ({"preset": "tiny", "frames": 0}, "frames must be at least 1, got 0"),
        ({"preset": "tiny", "system": "nowhere"}, "nowhere"),
        ({"preset": "tiny", "system": "a100"}, "which has no core"),
    ],
)
def test_invalid_option_raises(options, message):
    with pytest.raises(ValueError, match=message):
        run(**options)


def test_drive_adds_latency_to_link():
    """V-Rex8: host memory needs a round trip of the link, the drive also the read of a page."""
    layer = LayerRun("tiny", np.random.default_rng(0), hamming_threshold=4, max_resident_tokens=8, storage=True)
    host = timings(load_system("vrex8"), layer.storage_at)["host"]
    near, far = answer(host, 0, BASES["host"], 64), answer(host, 0, layer.storage_at, 64)
    assert 640 <= near < 700 and 40_000 < far < 42_000
    headers, page = layer.store.contexts, layer.core.processor.retrieval_unit.kvpu.kvmu.sizes.page_bytes
    host_end = max(4096 * int(header["host_pages_base"]) + int(header["max_pages"]) * page for header in headers)
    storage = min(4096 * int(header["storage_pages_base"]) for header in headers)
    assert layer.storage_at - BASES["host"] == storage >= host_end
    assert 20 < timings(load_system("vrex8"), 0)["device"].ready(0, 0, 64, False) < 60
    without = timings(load_system("vrex8").replace(link={"behind": "cpu"}), layer.storage_at)["host"]
    assert answer(without, 0, layer.storage_at, 64) == near


def test_command_prints_table(monkeypatch, capsys):
    replace_rtl_by_model(monkeypatch)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main(["model", "--rtl", "tiny", "--frames", "1"]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "share of cycles with 0, 1, 2, ... busy units" in capsys.readouterr().out


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_command_writes_files(form, tmp_path, monkeypatch, capsys):
    replace_rtl_by_model(monkeypatch)
    out, trace, page = (tmp_path / name for name in ("out.json", "trace.json", "page.html"))
    line = ["model", "--rtl", "tiny", "--frames", "1", *form]
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main([*line, "--out", str(out), "--trace", str(trace), "--report", str(page)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)  # `main` takes it over
    result = capsys.readouterr().out
    assert (
        json.loads(result) == json.loads(out.read_text())
        if form
        else "share of cycles with 0, 1, 2, ... busy units" in result
    )
    assert json.loads(trace.read_text())["traceEvents"] and "Core in RTL" in page.read_text()
