"""Mutation campaigns: scores of weak and strong tests, equivalence proofs, stored results, and errors."""

import re

import pytest

from sim.mutation.campaign import CampaignError, Result, _Store, run
from sim.mutation.equivalence import BATCH_SIZE, _Netlist, equivalents
from sim.mutation.netlist import SELECT, Mutant, insert_mutants
from tests.sim.mutation.mutant_cases import Around, Outer, Sums

CASES = "tests/sim/mutation/mutant_cases.py"
COUNT = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("mutants")


def campaign(root, test, **options):
    return run("sums", Sums(), [f"{CASES}::{test}"], COUNT, root=root, **options)


def test_weak_test_leaves_survivors_and_strong_test_kills_them(root):
    weak, strong = campaign(root, "test_sums"), campaign(root, "test_sums_and_counter")
    assert weak.killed + len(weak.equivalent) + len(weak.survivors) == len(weak.mutants) == COUNT
    for mutant, result in weak.survivors:
        assert "stat_words" in mutant.wire or mutant.sources[-1].startswith(CASES), mutant
        assert result.how.startswith("can differ from cycle")
    assert weak.survivors and weak.score < 1
    assert not strong.survivors and strong.score == 1
    # where two equal registers are compared, a fault that hides a difference is none
    assert strong.equivalent and strong.equivalent == weak.equivalent
    assert {mutant.mode for mutant, _ in strong.equivalent} == {"const0"}


def test_killed_mutants_are_not_proved_equivalent(root, tmp_path):
    killed = {r.mutant for r in campaign(root, "test_sums_and_counter").results if r.killed}
    design = insert_mutants(Sums(), "sums", COUNT, tmp_path)
    sample = [mutant for mutant in design.mutants if mutant.number in killed][:BATCH_SIZE]
    assert not any(same for _, _, same in equivalents(design, sample))


def test_interrupted_campaign_continues(root):
    first = campaign(root, "test_sums_and_counter")
    file = max(root.glob("*/results.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join(rows[:26]) + rows[26][:9])
    again = campaign(root, "test_sums_and_counter")
    assert [(r.mutant, r.killed) for r in again.results] == [(r.mutant, r.killed) for r in first.results]
    assert file.read_text().startswith("".join(rows[:26]))


def test_inner_units_get_no_faults(tmp_path):
    """Faults go into the logic around inner units and into the wires to them."""
    design = insert_mutants(Around(), "around", COUNT, tmp_path)
    ports = {mutant.port for mutant in design.mutants if mutant.cell == "inner"}
    assert ports and "clk" not in ports
    assert not any("inner." in mutant.cell for mutant in design.mutants)
    assert re.findall(r"^module (\w+)", design.verilog, re.MULTILINE) == ["around"]
    deeper = insert_mutants(Outer(), "outer", COUNT, tmp_path / "outer")
    assert not any("inner." in mutant.cell for mutant in deeper.mutants)


def test_faults_visible_to_an_inner_unit_are_not_equivalent(root):
    """A test that checks no word kills only mutants that block the stream. Mutants of the data to and from the inner
    unit survive and are not proved equivalent."""
    weak = run("outer", Outer(), [f"{CASES}::test_number_of_words"], COUNT, root=root)
    ports = {mutant.port for mutant, _ in weak.survivors}
    assert {"i__payload", "o__payload"} <= ports and not weak.equivalent


def test_faults_go_into_the_simulated_configuration(root):
    """The campaign was requested for another size than the tests simulate."""
    campaign_result = run("sums", Sums(4), [f"{CASES}::test_sums"], COUNT, root=root)
    assert campaign_result.mutants == campaign(root, "test_sums").mutants


def test_high_counter_bits_are_unreached(root, tmp_path, monkeypatch):
    default = campaign(root, "test_sums_and_counter")
    monkeypatch.setattr("sim.mutation.campaign.EVENTS", 16)
    result = campaign(tmp_path, "test_sums_and_counter")
    assert result.unreached and all(mutant.events >= 16 for mutant, _ in result.unreached)
    assert result.killed < default.killed


def test_events_until_counter_fault_shows():
    def events(mode, bit, control=None, wire="", port="Q", source=""):
        return Mutant(1, mode, "cell", port, bit, control, wire, (source,)).events

    assert events("const0", 20, wire="stat_rows[20]") == 1 << 20
    assert events("const0", 3, wire="kvmu.stat_rows[23]") == 1 << 23  # a slice of it
    assert events("cnot1", 3, 25, wire="counter_cycles[3]") == 1 << 25
    assert events("const0", 9, port="stat_rows") == 1 << 9
    assert events("const0", 9, source="hw/common/counters.py:14") == 1 << 9
    assert events("const0", 27, wire="input_busy_load[27]") == 1 << 27  # a register that shows one
    assert events("cnot1", 2, 27, wire="file.input_host_read_wait[2]") == 1 << 27
    for mode in ("const1", "inv", "cnot0"):  # a bit that is 0 shows it
        assert events(mode, 20, 21, wire="stat_rows[20]") == events(mode, 20, 21, wire="input_done_copy[20]") == 1
    for other in ("stat_bytes", "total", "input_fault_address", "input_position", "value_device_start"):
        assert events("const0", 20, wire=f"{other}[20]") == 1


def test_rejects_invalid_campaigns(tmp_path):
    with pytest.raises(CampaignError, match="test_that_fails fails without a mutant: KeyError"):
        campaign(tmp_path, "test_that_fails")
    with pytest.raises(CampaignError, match="no test simulates it"):
        campaign(tmp_path, "test_of_another_component")
    with pytest.raises(ValueError, match="mutants must be 1 to 65535, got 0"):
        run("sums", Sums(), [CASES], 0, root=tmp_path)


def test_interrupt_and_pytest_error_end_the_campaign(root, monkeypatch):
    for status, error in (
        (pytest.ExitCode.INTERRUPTED, KeyboardInterrupt),
        (pytest.ExitCode.USAGE_ERROR, CampaignError),
    ):
        monkeypatch.setattr("sim.mutation.campaign.pytest.main", lambda arguments, plugins, status=status: status)
        with pytest.raises(error):
            campaign(root, "test_sums")


def test_results_of_other_code_need_keep(tmp_path):
    for mutant, killed in ((1, "a test"), (2, None)):
        _Store(tmp_path / "results.jsonl", "old", False).add(Result(mutant, killed, "how"), 1.0)
    assert _Store(tmp_path / "results.jsonl", "new", False).results == {}
    assert set(_Store(tmp_path / "results.jsonl", "new", True).results) == {1}


def test_observed_nets_of_memories_and_buses():
    """An address is observed while its port is enabled, a data bit if something reads it, a bus field while its channel
    is valid."""
    bits = iter(range(2, 99))

    def new_bits(count):
        return [next(bits) for _ in range(count)]

    names = {"axi__wvalid": 1, "axi__wdata": 2, "axi__araddr": 2, "axi__arvalid": 1, "stat_x": 1}
    ports = {name: {"direction": "output", "bits": new_bits(count)} for name, count in names.items()}
    sizes = {"ABITS": "10", "WIDTH": "10", "RD_PORTS": "1", "WR_PORTS": "1"}
    widths = {
        "RD_DATA": 2,
        "RD_EN": 1,
        "RD_ADDR": 2,
        "RD_ARST": 1,
        "RD_SRST": 1,
        "WR_EN": 2,
        "WR_DATA": 2,
        "WR_ADDR": 2,
    }
    pins = {name: new_bits(count) for name, count in widths.items()}
    ports["stat_x"]["bits"] = pins["RD_DATA"][:1]  # nothing reads the other bit
    cells = {"memory": {"type": "$mem_v2", "parameters": sizes, "connections": pins}}
    ports[SELECT] = {"direction": "input", "bits": []}
    netlist = _Netlist({"unit": {"ports": ports, "cells": cells, "netnames": {}}}, "unit")
    assert netlist.inputs == pins["RD_DATA"]
    valid = {name: ports[f"axi__{name}valid"]["bits"][0] for name in ("w", "ar")}
    assert netlist.observed[:5] == [
        *(("1", ports["axi__wvalid"]["bits"]), (valid["w"], ports["axi__wdata"]["bits"])),
        *((valid["ar"], ports["axi__araddr"]["bits"]), ("1", ports["axi__arvalid"]["bits"])),
        ("1", ports["stat_x"]["bits"]),
    ]
    (read,), (first, second) = pins["RD_EN"], pins["WR_EN"]
    assert (read, pins["RD_ADDR"]) in netlist.observed and ("1", [first]) in netlist.observed
    data, address = pins["WR_DATA"], pins["WR_ADDR"]
    written = [(enable, nets) for enable, nets in netlist.observed if enable in (first, second)]
    assert written == [(first, data[:1]), (first, address)] and ("1", [second]) not in netlist.observed
    values = {}
    netlist.evaluate(None, values, [98])  # nothing drives it
    assert values == {98: 0}
    with pytest.raises(ValueError, match=r"cell \$mul has no model"):
        other = {"c": {"type": "$mul", "connections": {}}}
        _Netlist({"unit": {"ports": ports, "cells": other, "netnames": {}}}, "unit")
