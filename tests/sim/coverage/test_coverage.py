"""Result of a coverage campaign and its reasons, from synthetic groups."""

import json
import signal

import pytest
from coverage import CoverageData
from coverage.exceptions import CoverageWarning

import vrex
from sim.coverage import measure, result
from sim.coverage.explained import Reason, Reasons, context
from sim.coverage.page import page

HCU = (measure.ROOT / "hw/dre/hcu.py").read_text().splitlines()
GROWABLE = "golden/growable_array.py"


def line(text):
    return next(n for n, line in enumerate(HCU, start=1) if text in line)


@pytest.fixture
def folder(tmp_path):
    """Two groups: the second takes an arm of the HCU that the first does not take; neither takes another arm."""
    fault, load = (
        f"hw/dre/hcu.py:{line('with m.If(event.load_fault):')}.9",
        f"hw/dre/hcu.py:{line('with m.If(event.load):')}.9",
    )
    for path, hits in (("tests/hw/dre/test_hcu.py", 0), ("tests/hw/dre/test_kvpu.py", 5)):
        lines = {fault: {"taken": 0, "else": 7}, load: {"taken": hits, "else": 7}, "tests/x.py:3.1": {"taken": 0}}
        unit = {"line": lines, "branch": {}, "toggle": {"hw/dre/hcu.py:9.1": {"code[3] 0->1": 0, "code[2] 0->1": 1}}}
        entry = {"tests": path, "revision": "r", "seconds": 1, "heavy": False, "verilog": {path[-6:-3]: unit}}
        name = measure.TestGroup(path).name
        entry["bins"] = {"hcu": {"mode: one | none": hits, "mode: one | both": 0}}
        (tmp_path / f"{name}.json").write_text(json.dumps(entry))
        data = CoverageData(basename=str(tmp_path / f"{name}.python"))
        data.add_arcs({GROWABLE: [(-1, 1), (1, -1)]})
        data.write()
    return tmp_path


ENTRIES = [
    Reason("verilog", "hw/dre/*.py", r"m\.If\(event\.load_fault\): -> taken", "Nobody loads too much."),
    Reason("toggle", "hw/*", r"^code\[3\]", "Codes are short."),
    Reason("bin", "hcu", r"\| both$", "Nobody stalls."),
    Reason("python", "golden/growable_array.py", "^def |^class ", "Nothing grows."),
    Reason("bin", "wtu", "never", "Out of date."),
]


def test_result_of_one_unit(folder):
    """Only the simulations of the unit count; bins come from all groups."""
    names = ("tests/hw/dre/test_hcu.py", "tests/hw/dre/test_kvpu.py")
    parts = [json.loads((folder / f"{measure.TestGroup(name).name}.json").read_text()) for name in names]
    one = result.unit_result("hcu", parts, Reasons(ENTRIES))
    assert one["counts"]["line"] == {"reached": 2, "total": 4, "explained": 1, "open": 1}
    assert one["counts"]["toggle"] == {"reached": 1, "total": 2, "explained": 1, "open": 0}
    assert one["counts"]["bin"] == {"reached": 1, "total": 2, "explained": 1, "open": 0}
    load = f"hw/dre/hcu.py:{line('with m.If(event.load):')}.9"
    assert {"kind": "line", "where": f"{load} taken", "reason": None} in one["holes"] and len(one["holes"]) == 4
    empty = result.unit_result("vpe", parts, Reasons(ENTRIES))
    assert empty["counts"]["line"]["total"] == 0 and "bin" not in empty["counts"] and not empty["holes"]


def test_result_counts_uncovered_points_and_reasons(folder):
    reasons = Reasons(ENTRIES)
    results = result.gather(folder, reasons)
    assert results["verilog"]["units"]["hcu"]["line"] == {"reached": 2, "elsewhere": 1, "total": 4}
    assert results["verilog"]["total"]["line"] == {"reached": 3, "total": 4, "explained": 1, "open": 0}
    assert results["verilog"]["total"]["toggle"] == {"reached": 1, "total": 2, "explained": 1, "open": 0}
    assert results["bins"]["hcu"]["reached"] == 1 and results["bins"]["hcu"]["open"] == 0
    holes = results["python"]["files"][GROWABLE]["holes"]
    assert len([hole for hole in holes if hole["reason"] == "Nothing grows."]) > 5
    assert "golden" in results["missing"] and not results["stale"]
    assert reasons.stale() == ENTRIES[-1:]
    html = page(folder / "index.html", results).read_text()
    assert "m.If(event.load_fault)" in html and "Nobody loads too much." in html and "code" in html
    assert "hcu" in result.table(results)


def test_complete_campaign_reports_stale_reasons(folder, monkeypatch, capsys):
    """With all groups measured, an entry that matches nothing is an error. One jump of the Python file is uncovered."""
    everything = measure.select_groups(["hcu", "kvpu"])
    monkeypatch.setattr(result, "all_groups", lambda: everything)
    monkeypatch.setattr(Reasons, "read", lambda path: Reasons(ENTRIES))
    data = CoverageData(basename=str(folder / f"{everything[0].name}.python"))
    source = (measure.ROOT / GROWABLE).read_text().splitlines()
    number = 1 + source.index("        if end > len(self._store):")
    data.add_arcs({GROWABLE: [(n, n + 1) for n in range(1, 60)], "golden/__init__.py": [(-1, 1), (1, -1)]})
    data.write()
    results = result.gather(folder, Reasons(ENTRIES))
    assert not results["missing"] and [entry["what"] for entry in results["stale"]] == ["never"]
    holes = [hole for hole in results["python"]["files"][GROWABLE]["holes"] if hole["to"] is not None]
    assert number in {hole["line"] for hole in holes}
    (folder / "parts").mkdir()
    for path in folder.glob("hw-*"):
        path.rename(folder / "parts" / path.name)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main(["coverage", "--report", "--out", str(folder)]) == 1
        runs = []

        def run(group, *_, **options):
            runs.append((group.path, options))
            return len(runs) > 1

        monkeypatch.setattr(measure, "run", run)
        assert vrex.main(["coverage", "hcu", "dma", "--heavy", "--out", str(folder)]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)  # `main` replaces the handler
    options = {"seed": 1, "heavy": True}
    assert runs == [("tests/hw/dre/test_hcu.py", options), ("tests/hw/core/test_dma.py", options)]
    out, err = capsys.readouterr()
    assert (
        "entry matches nothing" in err
        and "test_hcu.py: tests failed, so their coverage is missing" in err
        and "bins of hcu" in out
    )
    html = (folder / "index.html").read_text()
    assert "Not measured" not in html and "This reason matches nothing" in html


def test_run_writes_result_of_passing_group(tmp_path):
    group = measure.TestGroup("tests/golden/test_growable_array.py")
    assert measure.run(group, tmp_path)
    entry = json.loads((tmp_path / f"{group.name}.json").read_text())
    assert (entry["tests"], entry["verilog"], entry["bins"]) == (group.path, {}, {})
    data = CoverageData(basename=str(tmp_path / f"{group.name}.python"))
    data.read()
    assert GROWABLE in data.measured_files() and not group.verilog
    assert not measure.run(measure.TestGroup("tests/nothing.py"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{group.name}.json", f"{group.name}.python"}


def test_pack_and_unpack_are_inverse():
    points = {"hcu": {kind: {("a.py:1.1", kind): 3, ("a.py:1.1", "other"): 0} for kind in ("line", "branch", "toggle")}}
    assert measure.unpack(json.loads(json.dumps(measure.pack(points)))) == points


def test_points_without_reason_are_open(folder):
    results = result.gather(folder, Reasons([]))
    assert results["verilog"]["total"]["line"]["open"] == results["verilog"]["total"]["toggle"]["open"] == 1
    assert results["bins"]["hcu"]["open"] == 1


def test_project_reasons_name_existing_files():
    for entry in Reasons.read(result.REASONS).entries:
        assert entry.kind == "bin" or any(measure.ROOT.glob(entry.where)), entry


@pytest.mark.parametrize(
    "text",
    [
        "[[verilog]]\nwhere = 'x'",
        "[[verilog]",
        "[[bin]]\nwhere='a'\nwhat='b'\nreason='c'",
        "[[other]]\nwhere='a'\nwhat='b'\nreason='c.'",
    ],
)
def test_invalid_reasons_raise_value_error_with_file(text, tmp_path):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match=r"list\.toml"):
        Reasons.read(tmp_path / "list.toml")


def test_context_lists_enclosing_lines(tmp_path):
    (tmp_path / "a.py").write_text("def f(\n    x\n):\n    if x:\n\n        return 1\n    return 2\n")
    assert context(tmp_path / "a.py", 6) == ["return 1", "if x:", "def f("]
    assert context(tmp_path / "a.py", 60) == []


def test_groups_contain_every_test_once():
    files = set((measure.ROOT / "tests").rglob("test_*.py"))
    paths = [
        path
        for group in measure.all_groups()
        if not group.interpreted
        for argument in group.arguments
        for path in sorted(
            (measure.ROOT / argument).rglob("test_*.py")
            if (measure.ROOT / argument).is_dir()
            else [measure.ROOT / argument]
        )
    ]
    assert sorted(paths) == sorted(files)


def test_select_groups_by_unit_file_or_folder():
    assert [group.path for group in measure.select_groups(["hcu", "golden"])] == [
        "tests/hw/dre/test_hcu.py",
        "tests/golden",
    ]
    assert measure.select_groups(["wtu", "wtu_sweep"]) == measure.select_groups(["hw/dre/wtu/test_wtu.py"])
    assert measure.select_groups([]) == measure.all_groups()
    with pytest.raises(ValueError, match=r"tests must be units .* got 'nothing'"):
        measure.select_groups(["nothing"])


def test_empty_folder_raises_value_error(tmp_path):
    with pytest.raises(ValueError, match="must contain coverage results"):
        result.gather(tmp_path, Reasons([]))


def test_older_results_may_name_removed_files(folder):
    """A file that was removed after a group ran is left out with a warning."""
    data = CoverageData(basename=str(folder / "older.python"))
    data.add_arcs({GROWABLE: [(-1, 1), (1, -1)], "golden/removed.py": [(-1, 1), (1, -1)]})
    data.write()
    with pytest.warns(CoverageWarning, match=r"golden/removed\.py"):
        measured = result.python([folder / "older.python"], Reasons(()))
    assert GROWABLE in str(measured) and "removed" not in str(measured)
