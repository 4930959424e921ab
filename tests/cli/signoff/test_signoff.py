"""Sign-off from small record files: states, stages, gaps, invalid files, and the evidence of a real unit."""

import datetime
import json
import re
import signal
from dataclasses import replace

import pytest

import vrex
from cli.pages import signoff as pages
from cli.signoff import records, stages
from cli.signoff.kinds import KINDS
from cli.signoff.records import Gap, record
from cli.signoff.stages import STAGES, GapReasons, assess
from hw.registry import UNITS
from tests.browser import browser
from util.files import ROOT

HCU = UNITS["hcu"]
COVERED = {f"{kind} {name}": value for kind in ("line", "branch", "bin")
           for name, value in (("reached", 96), ("total", 100), ("explained", 4), ("open", 0))}  # fmt: skip
FIGURES = {
    **{kind: {"tests": 9, "passed": 9, "heavy": True} for kind in ("simulation", "reset", "gates", "four_state")},
    "proofs": {"claims": 4, "proved": 4},
    "coverage": COVERED,
    "mutation": {"faults": 200, "score": 0.97},
    "equivalence": {"cells": 100},
    "layout": {"cells": 100},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Empty folders of records, and an empty file of reasons."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VREX_EVIDENCE", str(tmp_path / "built"))
    monkeypatch.setattr(records, "KEPT", tmp_path / "kept")
    monkeypatch.setattr(stages, "REASONS", tmp_path / "gaps.toml")
    (tmp_path / "gaps.toml").write_text("")
    return tmp_path


def add(kind, result="passed", gaps=(), unit="hcu", figures=None, **changes):
    """Write a record file and return the record."""
    made = record(unit, kind, result, FIGURES[kind] | (figures or {}), gaps, command=KINDS[kind].command_of(unit))
    made = replace(made, **changes)
    path = records.file(records.built(), unit, kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made.json()))
    return made


def hcu(reasons=()):
    return assess(HCU, GapReasons(reasons))


def run(*words):
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return vrex.main(["signoff", *words])
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_states_of_records(folder, capsys):
    """A current, a stale and a failing record; the others are missing."""
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1, hours=1)
    add("simulation", date=yesterday.isoformat(), commit="0123456789ab")
    add("proofs", design="0" * 16)
    add("coverage", checks="0" * 16)
    add("mutation", "failed", [Gap("survivor 7: inv at $1.Y[0]")], figures={"score": 0.5})
    cells = hcu().cells
    expected = {"documents": "passed", "simulation": "passed", "proofs": "stale", "coverage": "stale"}
    assert {kind: cell.state for kind, cell in cells.items()} == {
        kind: expected.get(kind, "failed" if kind == "mutation" else "missing") for kind in KINDS
    }
    assert run("hcu") == 0
    out = capsys.readouterr().out
    assert out.startswith("hcu: stage V1\n") and "[x] All tests of the unit pass on the RTL" in out
    assert "[ ] All claims without a slow proof are proved (stale)" in out
    assert "[ ] The tests detect 90 % of at least 100 faults (failed)" in out
    assert "[ ] The tests that reset the unit during a run pass (missing)" in out
    assert "commit 0123456789ab: tests 9" in out
    assert "mutation: survivor 7: inv at $1.Y[0]: open: no reason is recorded" in out
    assert run("--out", "page.html") == 0
    out, page = capsys.readouterr().out, (folder / "page.html").read_text()
    row = next(line for line in out.splitlines() if line.startswith("hcu "))
    assert row.split()[:7] == ["hcu", "V1", "3/3", "9/9", "missing", "stale", "4/4"]
    for text in (
        "stale 4/4",
        "failed 50.0%",
        "\N{NO-BREAK SPACE}1\N{NO-BREAK SPACE}d",
        "0123456789ab",
        "vrex mutate hcu",
        "survivor 7",
    ):
        assert text in page, text


def test_gaps_need_evidence(folder, capsys):
    """Without a current record there is nothing in which a gap could show."""
    for changes in (None, {"design": "0" * 16}):
        if changes:
            add("proofs", gaps=[Gap("claim x: proved for 14 cycles only")], **changes)
        assert run("hcu") == 0
        assert "[ ] Every gap has a reason (missing)" in capsys.readouterr().out
    add("proofs", gaps=[Gap("claim x: proved for 14 cycles only")])
    assert run("hcu") == 0
    assert "[ ] Every gap has a reason (1 open)" in capsys.readouterr().out


def test_each_requirement_decides_a_stage(folder):
    for kind in FIGURES:
        add(kind)
    assert hcu().stage == "V3"
    for kind, stage in {"simulation": "V0", "reset": "V1", "proofs": "V1", "coverage": "V1", "mutation": "V1",
                        "gates": "V2", "equivalence": "V2", "four_state": "V2", "layout": "V2"}.items():  # fmt: skip
        for change in ({"result": "failed"}, {"design": "0" * 16}):
            add(kind, **change)
            assert hcu().stage == stage, (kind, change)
        add(kind)


@pytest.mark.parametrize(
    "kind, changes, stage, cause",
    [
        ("coverage", {"figures": {"line reached": 89}}, "V1", "89 of 100 line points reached, 90% needed"),
        ("coverage", {"figures": {"bin explained": 3, "bin open": 1}}, "V2", "1 points without a reason"),
        ("coverage", {"figures": {f"{k} {n}": 0 for k in ("line", "branch", "bin") for n in ("reached", "total")}},
         "V1", "no points"),
        ("mutation", {"figures": {"faults": 99}}, "V1", "99 faults, 100 needed"),
        ("mutation", {"figures": {"score": 0.8995}}, "V1", "score 89.9%, 90% needed"),
        ("mutation", {"figures": {"faults": 199}}, "V2", "199 faults, 200 needed"),
        ("mutation", {"figures": {"score": 0.949}}, "V2", "score 94.9%, 95% needed"),
        ("proofs", {"result": "partial"}, "V2", "a part of the check was left out"),
        ("simulation", {"figures": {"heavy": False}}, "V2", "the tests marked heavy were left out"),
        ("gates", {"gaps": [Gap("test_x skipped")]}, "V2", "1 open"),
    ],
)  # fmt: skip
def test_thresholds_of_stages(folder, kind, changes, stage, cause):
    for name in FIGURES:
        add(name)
    add(kind, **changes)
    assessment = hcu()
    assert assessment.stage == stage
    (unmet,) = next(pairs for each in STAGES if (pairs := assessment.unmet(each)))
    assert unmet[1] == cause


def test_reasons_for_gaps(folder, capsys):
    add("mutation", gaps=[Gap("survivor 7: inv"), Gap("survivor 8: inv"), Gap("unreached 9", "Too many events.")])
    entry = '[[gap]]\nunit = "hcu"\nkind = "mutation"\nwhat = "survivor {}:"\nreason = "A counter."\n'
    (folder / "gaps.toml").write_text(entry.format(7))
    reasons = GapReasons.read(folder / "gaps.toml")
    gaps = [gap.reason for gap in assess(HCU, reasons).cells["mutation"].gaps]
    assert gaps == ["A counter.", None, "Too many events."] and not reasons.stale()
    (folder / "gaps.toml").write_text(entry.format(5))
    assert run("--out", "page.html") == 1
    assert "gaps.toml: entry matches no gap: hcu mutation survivor 5:" in capsys.readouterr().err
    for text, message in {
        entry.format(7).replace("hcu", "gpu"): "unit must be one of dot_tree, ",
        entry.format(7).replace('"mutation"', '"hope"'): "kind must be one of documents, ",
        entry.format("("): "gaps.toml: ",
        "[[gap]]\nwhy = 1": "gaps.toml: ",
        "[[": "gaps.toml: ",
    }.items():
        (folder / "gaps.toml").write_text(text)
        assert run("hcu") == 2
        out, err = capsys.readouterr()
        assert message in err and err.count("vrex: ") == 1 and not out


@pytest.mark.parametrize(
    "change, message",
    [
        ({"unit": "gpu"}, "unit must be one of dot_tree, "),
        ({"kind": "hope"}, "kind must be one of documents, "),
        ({"kind": "reset"}, "path must end in hcu/reset.json, got proofs.json"),
        ({"result": "good"}, "result must be one of passed, failed, partial, got 'good'"),
        ({"figures": [1]}, "figures must be an object, got [1]"),
        ({"commit": 7}, "commit must be text, got 7"),
        ({"date": "yesterday"}, "date must be ISO 8601 with a time zone, got 'yesterday'"),
        ({"date": "2026-01-01"}, "date must be ISO 8601 with a time zone, got '2026-01-01'"),
        ({"gaps": [{"what": 1, "reason": None}]}, "gaps must be a list of objects with what and reason"),
        ({"gaps": None}, "gaps must be a list of objects with what and reason, got None"),
        (None, "must be a JSON object, got list"),
        ("{", "is not JSON"),
    ],
)
def test_invalid_record_is_refused(folder, change, message, capsys):
    made, path = add("proofs"), records.file(records.built(), "hcu", "proofs")
    text = change if isinstance(change, str) else json.dumps([] if change is None else made.json() | change)
    path.write_text(text)
    assert run("hcu") == 2
    out, err = capsys.readouterr()
    (line,) = [line for line in err.splitlines() if line.startswith("vrex: ")]
    assert line.startswith(f"vrex: record {path}") and message in line and not out


def test_latest_record_and_kept_records(folder):
    """Current before stale, complete before partial, then the newest; only current records are kept."""
    old = add("simulation", date="2026-01-01T00:00:00+00:00")
    add("proofs", design="0" * 16)
    assert records.keep() == [records.file(records.KEPT, "hcu", "simulation")]
    assert records.keep() == []
    assert records.latest("hcu", "simulation", [records.KEPT]) == old
    add("simulation", "failed")  # newer
    assert hcu().cells["simulation"].state == "failed"
    add("simulation", "failed", design="0" * 16)
    assert hcu().cells["simulation"].state == "passed"
    add("simulation", "partial")
    assert hcu().cells["simulation"].state == "passed"
    records.save(record("hcu", "proofs", "passed", {"claims": 2}, command=""))
    quick = record("hcu", "proofs", "partial", {"claims": 1}, command="")
    assert records.read(records.save(quick)).figures == {"claims": 2}  # not replaced


def test_real_proofs_reach_the_page(folder, capsys):
    """`vrex formal` writes the record of a real unit, which the sign-off shows."""
    assert vrex.main(["formal", "operand_memory"]) == 0
    assert run("operand_memory", "--json") == 0
    (result,) = json.loads(capsys.readouterr().out.partition("\n[")[2].join(("[", "")))
    proofs = result["evidence"]["proofs"]
    assert proofs["state"] == "passed" and proofs["record"]["figures"]["proved"] == 2
    assert result["stage"] == "V0" and result["evidence"]["documents"]["state"] == "passed"


def test_checked_in_evidence_is_valid():
    """Every record of the repository can be read, and every entry of the reasons is valid."""
    paths = sorted((ROOT / "docs" / "evidence").glob("*/*.json"))
    assert len(paths) > 5
    for path in paths:
        assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", records.read(path).commit), path
    GapReasons.read(ROOT / "docs" / "evidence" / "gaps.toml")


def test_page_explains_the_stages():
    """docs/signoff.md has every stage, requirement and command, and every kind of evidence has a requirement."""
    text = " ".join((ROOT / "docs" / "signoff.md").read_text().split())
    for stage in STAGES:
        assert f"**{stage.name}, {stage.title.lower()}.** {stage.meaning}" in text
        for requirement in stage.requirements:
            command = requirement.command
            assert f"| {requirement.text} | {f'`{command}`' if command else pages.NO_COMMAND} |" in text
    assert {requirement.kind for stage in STAGES for requirement in stage.requirements} == set(KINDS)


def test_page_in_a_browser(folder):
    for kind in FIGURES:
        add(kind, gaps=[Gap(f"gap {number}") for number in range(12)])
    reasons = GapReasons()
    path = pages.page(folder / "page.html", [assess(UNITS[name], reasons) for name in ("hcu", "dot_tree")])
    with browser() as chromium:
        for width in (1280, 390):
            chromium.observe(path, width).check(width)
