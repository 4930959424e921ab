"""Runs as plain values: requests as JSON, errors that name an invalid value, figures and reports of results."""

import json

import pytest

from sw_model.assumptions import Assumptions
from sw_model.model import run
from sw_model.request import Request, as_text, figures, parse, recall, report, synthesised_power, value_of
from sw_model.systems import load_system
from sw_model.workloads import coin_session, frame


def test_request_survives_json():
    request = Request("vrex48", "mosaic", "coin", 5000, 2, "realistic", 0.1, changes={"link.nominal_gbps": 16})
    assert parse(json.loads(json.dumps(request.json()))) == request
    assert request.machine().link.nominal_gbps == 16
    assert request.replace(tokens=7, changes={"core.cores": 96}).changes == {"link.nominal_gbps": 16, "core.cores": 96}


def test_request_runs_its_workload():
    request = Request("vrex8", "resv", "frame", 20000, 4, changes={"assume.retained_hit": 0.5})
    want = run(load_system("vrex8"), "resv", frame(20000, 4), assume=Assumptions(retained_hit=0.5))
    assert request.run() == want
    assert Request(workload="coin", tokens=1000).load() == coin_session(1000)
    assert sum(p.count for p in Request(workload="stream", tokens=995).load().phases) == 100


def test_figures_sum_to_their_totals():
    request = Request(workload="coin", tokens=5000)
    result = request.run()
    row = figures(result)
    assert sum(v for k, v in row.items() if k.startswith("exposed_ms.")) == pytest.approx(row["total_ms"])
    assert sum(v for k, v in row.items() if k.startswith("energy_j.")) == pytest.approx(row["energy_j"])
    assert row["bytes.PCIe"] == result.bytes_moved["PCIe"] and row["fits"] is True
    content = report(request, result)
    assert content["figures"] == row and parse(content["request"]) == request
    assert {fact["name"] for fact in content["facts"]} >= {"host link", "WTU per layer"}
    shown = as_text(request, result)
    assert f"{row['total_ms']:.3f}" in shown and "fetch" in shown


def test_text_names_an_exceeded_memory():
    request = Request("vrex8", "oaken", tokens=400_000, batch=4, changes={"assume.resident_tokens": 10**9})
    result = request.run()
    assert not result.fits and "more than the device memory of 32 GB" in as_text(request, result)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"system": "tpu"}, "system must be one of .*got 'tpu'"),
        ({"system": 8}, "system must be a name"),
        ({"policy": "magic"}, "policy must be one of"),
        ({"workload": "dance"}, "workload must be one of"),
        ({"tokens": 0}, "tokens must be at least 1"),
        ({"tokens": "many"}, "tokens must be an integer"),
        ({"batch": 2.5}, "batch must be an integer"),
        ({"retrieval_ratio": 2}, "retrieval_ratio must be finite"),
        ({"link": "dream"}, "link must be one of"),
        ({"memory_detail": 1}, "memory_detail must be true or false"),
        ({"colour": "red"}, "key must be one of .*got 'colour'"),
        ({"assume.luck": 1}, "assume.NAME must be one of .*got 'luck'"),
        ({"assume.chunks": 2.5}, "chunks must be an integer"),
        ({"assume.idle_share": -3}, "idle_share"),
        ({"link.nominal_gbps": 0}, "link.nominal_gbps must be positive, got 0"),
        ({"core.lxe_memory_bytes": 10**12}, "core.lxe_memory_bytes must be at most 4000000000"),
        ({"core.wheels": 4}, "wheels"),
        ({"wheel.size": 4}, "key of a change must be .*got 'wheel.size'"),
        ({"system": "a100", "core.cores": 4}, "table of system A100 must be one of gpu, .*got 'core'"),
    ],
)
def test_invalid_values_raise_value_error(values, message):
    with pytest.raises(ValueError, match=message) as error:
        parse(values)
    assert "\n" not in str(error.value)


def test_value_of_a_setting():
    assert value_of("core.cores=4") == ("core.cores", 4) and value_of("assume.retained_hit=.5")[1] == 0.5
    assert value_of("link.behind=cpu") == ("link.behind", "cpu")
    for bad in ("cores", "cores=3"):
        with pytest.raises(ValueError, match=f"--set must be .*got '{bad}'"):
            value_of(bad)


def test_power_of_a_synthesis_report(tmp_path):
    """Units in the report have its power, the others that of V-Rex Table III."""
    path = tmp_path / "power.json"
    runs = [{"stimulus": s, "total_mw": t, "memories_mw_estimated": 0.5} for s, t in (("idle", 1.0), ("random", 40.0))]
    path.write_text(json.dumps([{"unit": "vpe", "power": runs}, {"unit": "hcu"}, {"unit": "other", "power": runs}]))
    assert synthesised_power(path) == {"power.vpe_mw": 40.5}
    ours = Request(changes=synthesised_power(path)).run()
    table = Request().run()
    assert ours.energy_j["VPE"] == pytest.approx(table.energy_j["VPE"] * 40.5 / 122.06)
    assert ours.energy_j["LXE"] == table.energy_j["LXE"]
    for content, message in (("[]", "has no power of dpe"), ("{", "is not JSON"), ('[{"power": 1}]', "is not what")):
        path.write_text(content)
        with pytest.raises(ValueError, match=message):
            synthesised_power(path)
    with pytest.raises(ValueError, match="No such file"):
        synthesised_power(tmp_path / "none.json")


def test_recall_of_a_run_and_of_a_row(tmp_path):
    request = Request(tokens=3000, changes={"core.cores": 4})
    path = tmp_path / "run.json"
    path.write_text(json.dumps(report(request, request.run())))
    assert recall(path) == request
    path.write_text(json.dumps([{"run": 0, **request.json(), **figures(request.run())}]))
    assert recall(path, 0) == request
    with pytest.raises(ValueError, match=r"row must be between 0 and 0 in .*run\.json, got 1"):
        recall(path, 1)
    path.write_text("{}")
    with pytest.raises(ValueError, match="neither a run nor a sweep"):
        recall(path)
    path.write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        recall(path)
    with pytest.raises(ValueError, match="No such file"):
        recall(tmp_path / "none.json")
