"""Records from the results of commands."""

import subprocess
import sys
from dataclasses import asdict

import pytest

from cli.signoff import evidence
from cli.signoff.records import Gap
from hw.registry import UNITS
from sim.formal.engine import Proof
from sim.mutation.campaign import Campaign, Result
from sim.mutation.netlist import Mutant

HCU = UNITS["hcu"]
TESTS = """
import pytest

def test_search(): pass
@pytest.mark.parametrize("preset", [1])
def test_preset(preset): pass
def test_reset_restores_state(): assert {holds}
@pytest.mark.skip
def test_other_simulator(): pass
"""


def run_tests(folder, holds):
    file = folder / HCU.tests
    file.parent.mkdir(parents=True)
    file.write_text(TESTS.format(holds=holds))
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), "--import-mode=importlib"]
    line = [sys.executable, "-m", "pytest", *options, f"--junitxml={folder}/results.xml", HCU.tests]
    subprocess.run(line, cwd=folder, check=False, capture_output=True)
    return evidence.tests_of_junit(folder / "results.xml")


def test_results_of_tests(tmp_path):
    tests = run_tests(tmp_path, holds=True)
    simulation, reset = evidence.of_tests(HCU, "simulation", tests, heavy=False, command="vrex verify hcu")
    assert (simulation.result, reset.result, reset.kind) == ("passed", "passed", "reset")
    assert simulation.figures == {"tests": 4, "passed": 3, "failed": 0, "skipped": 1, "heavy": False}
    assert simulation.gaps == (Gap("test_other_simulator skipped"),)
    assert reset.figures["tests"] == 1 and not reset.gaps and not simulation.stale
    (gates,) = evidence.of_tests(HCU, "gates", tests, heavy=True, command="vrex verify hcu --gates --heavy")
    assert gates.kind == "gates" and gates.figures["heavy"]
    (empty,) = evidence.of_tests(UNITS["vpe"], "simulation", tests, heavy=False, command="vrex verify vpe")
    assert empty.result == "failed" and empty.figures["tests"] == 0


def test_failed_test_is_a_gap(tmp_path):
    tests = run_tests(tmp_path, holds=False)
    simulation, reset = evidence.of_tests(HCU, "simulation", tests, heavy=False, command="vrex verify hcu")
    assert (simulation.result, reset.result) == ("failed", "failed")
    assert reset.gaps == (Gap("test_reset_restores_state failed"),)


def test_results_of_proofs():
    proofs = [
        asdict(Proof("hcu_streams", "a claim", None, {"o": 2}, 1.5)),
        asdict(Proof("hcu_fifo", "b", 14, {}, 2.0)),
    ]
    record = evidence.of_proofs("hcu", proofs, ["streams", "fifo"], None)
    assert (record.result, record.command) == ("passed", "vrex formal hcu")
    assert record.figures == {"claims": 2, "proved": 2, "bounded": 1, "seconds": 3.5}
    assert record.gaps == (Gap("hcu_fifo: proved for the first 14 cycles only"),)
    quick = evidence.of_proofs("hcu", proofs, ["streams", "fifo", "slow"], None)
    assert (quick.result, quick.command) == ("partial", "vrex formal hcu --quick")
    assert Gap("slow: not proved, takes minutes") in quick.gaps
    failed = evidence.of_proofs("hcu", proofs[:1], ["streams", "fifo"], "hcu_fifo: a property fails in cycle 3")
    assert failed.result == "failed" and failed.gaps == (Gap("hcu_fifo: a property fails in cycle 3"),)


def test_results_of_coverage():
    counts = {"line": {"reached": 3, "total": 5, "explained": 1, "open": 1}}
    counts["toggle"] = {"reached": 0, "total": 2, "explained": 0, "open": 2}
    holes = [
        {"kind": "line", "where": "hw/x.py:3 If", "reason": "No input reaches it."},
        {"kind": "line", "where": "hw/x.py:4 If", "reason": None},
        *[{"kind": "toggle", "where": "hw/x.py", "reason": None}] * 2,
    ]
    record = evidence.of_coverage("hcu", {"counts": counts, "holes": holes}, command="vrex coverage hcu")
    assert record.result == "partial" and record.figures["line reached"] == 3 and record.figures["toggle open"] == 2
    assert record.gaps == (
        Gap("line hw/x.py:3 If", "No input reaches it."),
        Gap("line hw/x.py:4 If"),
        Gap("2 toggle points: hw/x.py"),
    )
    counts["line"] |= {"explained": 2, "open": 0}
    assert evidence.of_coverage("hcu", {"counts": counts, "holes": holes}, command="").result == "passed"
    assert evidence.of_coverage("hcu", None, command="").result == "failed"


@pytest.mark.parametrize(("killed", "result"), [(95, "passed"), (90, "passed"), (89, "failed")])
def test_campaign_passes_with_the_score_of_v2(killed, result):
    """Stage V3 asks for more, and reads the score."""
    mutants = tuple(Mutant(n, "inv", "$1", "Y", 0, None, "w", ("hw/x.py:3",)) for n in range(100))
    results = tuple(Result(n, "test" if n < killed else None, "") for n in range(100))
    record = evidence.of_mutation(Campaign("hcu", mutants, results, ("test",), 1.0), command="vrex mutate hcu")
    assert (record.figures["score"], record.result) == (killed / 100, result)


def test_results_of_mutation_and_equivalence():
    mutant = Mutant(1, "inv", "$1", "Y", 0, None, "w", ("hw/x.py:3",))
    late = Mutant(2, "const0", "$2", "Q", 25, None, "stat_tokens[25]", ("hw/x.py:4",))
    dead = Mutant(3, "inv", "$3", "Y", 0, None, "w", ("hw/x.py:5",))
    results = Result(1, None, "left no trace"), Result(2, None, ""), Result(3, "test", "failed")
    record = evidence.of_mutation(
        Campaign("hcu", (mutant, late, dead), results, ("test",), 1.0), command="vrex mutate hcu"
    )
    assert record.result == "failed" and record.figures["score"] == 0.5 and record.figures["unreached"] == 1
    assert record.gaps[0].what.startswith("survivor 1: inv at $1.Y[0]") and record.gaps[0].reason is None
    assert "33,554,432 events" in record.gaps[1].reason
    blocks = [{"count": 5, "outputs": 3, "clock_gates": 2}, {"count": 1, "outputs": 4, "clock_gates": 1}]
    proof = {"blocks": blocks}
    report = {"cells": 10, "nand2": 20.5, "timing": {"fmax_mhz": 812.4}, "equivalence": proof}
    record = evidence.of_equivalence("hcu", report, None, command="vrex synth hcu --equiv")
    assert record.figures == {"blocks": 2, "outputs": 7, "clock_gates": 11, "cells": 10, "nand2": 20.5, "fmax_mhz": 812}
    failed = evidence.of_equivalence("hcu", None, "hcu: the netlist differs from the RTL", command="")
    assert (failed.result, failed.gaps) == ("failed", (Gap("hcu: the netlist differs from the RTL"),))
