"""The campaign's result and its reasons, from parts that are made up."""

import json
import signal

import pytest
from coverage import CoverageData

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
    """Two parts: in the first an arm of the HCU is not taken that the second takes, another is taken by none."""
    fault, load = f"hw/dre/hcu.py:{line('with m.If(fault):')}.9", f"hw/dre/hcu.py:{line('with m.If(load):')}.9"
    for part, hits in (("tests/hw/dre/test_hcu.py", 0), ("tests/hw/dre/test_kvpu.py", 5)):
        lines = {fault: {"taken": 0, "else": 7}, load: {"taken": hits, "else": 7}, "tests/x.py:3.1": {"taken": 0}}
        unit = {"line": lines, "branch": {}, "toggle": {"hw/dre/hcu.py:9.1": {"code[3] 0->1": 0, "code[2] 0->1": 1}}}
        told = {"tests": part, "revision": "r", "seconds": 1, "heavy": False, "verilog": {part[-6:-3]: unit}}
        name = measure.Part(part).name
        told["bins"] = {"hcu": {"mode: one | none": hits, "mode: one | both": 0}}
        (tmp_path / f"{name}.json").write_text(json.dumps(told))
        data = CoverageData(basename=str(tmp_path / f"{name}.python"))
        data.add_arcs({GROWABLE: [(-1, 1), (1, -1)]})
        data.write()
    return tmp_path


LISTED = [
    Reason("verilog", "hw/dre/*.py", r"m\.If\(fault\): -> taken", "Nobody loads too much."),
    Reason("toggle", "hw/*", r"^code\[3\]", "Codes are short."),
    Reason("bin", "hcu", r"\| both$", "Nobody stalls."),
    Reason("python", "golden/growable_array.py", "^def |^class ", "Nothing grows."),
    Reason("bin", "wtu", "never", "Out of date."),
]


def test_holes_reasons_and_what_others_reach(folder):
    reasons = Reasons(LISTED)
    found = result.gather(folder, reasons)
    assert found["verilog"]["units"]["hcu"]["line"] == {"reached": 2, "elsewhere": 1, "total": 4}
    assert found["verilog"]["total"]["line"] == {"reached": 3, "total": 4, "explained": 1, "open": 0}
    assert found["verilog"]["total"]["toggle"] == {"reached": 1, "total": 2, "explained": 1, "open": 0}
    assert found["bins"]["hcu"]["reached"] == 1 and found["bins"]["hcu"]["open"] == 0
    holes = found["python"]["files"][GROWABLE]["holes"]
    assert len([hole for hole in holes if hole["reason"] == "Nothing grows."]) > 5
    assert "golden" in found["missing"] and not found["stale"]
    assert reasons.stale() == LISTED[-1:]
    seen = page(folder / "index.html", found).read_text()
    assert "m.If(fault)" in seen and "Nobody loads too much." in seen and "code" in seen
    assert "hcu" in result.table(found)


def test_a_whole_campaign_tells_what_is_stale(folder, monkeypatch, capsys):
    """Everything measured: the entry that explains nothing is an error. Of the Python file only a jump is missing."""
    everything = measure.chosen(["hcu", "kvpu"])
    monkeypatch.setattr(result, "parts", lambda: everything)
    monkeypatch.setattr(Reasons, "read", lambda path: Reasons(LISTED))
    data = CoverageData(basename=str(folder / f"{everything[0].name}.python"))
    source = (measure.ROOT / GROWABLE).read_text().splitlines()
    number = 1 + source.index("        if end > len(self._store):")
    data.add_arcs({GROWABLE: [(n, n + 1) for n in range(1, 60)], "golden/__init__.py": [(-1, 1), (1, -1)]})
    data.write()
    found = result.gather(folder, Reasons(LISTED))
    assert not found["missing"] and [one["what"] for one in found["stale"]] == ["never"]
    holes = [hole for hole in found["python"]["files"][GROWABLE]["holes"] if hole["to"] is not None]
    assert number in {hole["line"] for hole in holes}
    (folder / "parts").mkdir()
    for path in folder.glob("hw-*"):
        path.rename(folder / "parts" / path.name)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert vrex.main(["coverage", "--report", "--out", str(folder)]) == 1
        ran = []

        def run(part, *_, **options):
            ran.append((part.path, options))
            return len(ran) > 1

        monkeypatch.setattr(measure, "run", run)
        assert vrex.main(["coverage", "hcu", "dma", "--heavy", "--out", str(folder)]) == 1
    finally:
        signal.signal(signal.SIGTERM, before)  # `main` takes it over
    options = {"seed": 1, "heavy": True}
    assert ran == [("tests/hw/dre/test_hcu.py", options), ("tests/hw/core/test_dma.py", options)]
    out, err = capsys.readouterr()
    assert "explains nothing" in err and "test_hcu.py: failed, so it is not measured" in err and "bins of hcu" in out
    seen = (folder / "index.html").read_text()
    assert "Not measured" not in seen and "This reason explains nothing" in seen


def test_a_part_is_run_and_kept_when_it_passes(tmp_path):
    part = measure.Part("tests/golden/test_growable_array.py")
    assert measure.run(part, tmp_path)
    told = json.loads((tmp_path / f"{part.name}.json").read_text())
    assert (told["tests"], told["verilog"], told["bins"]) == (part.path, {}, {})
    data = CoverageData(basename=str(tmp_path / f"{part.name}.python"))
    data.read()
    assert GROWABLE in data.measured_files() and not part.verilog
    assert not measure.run(measure.Part("tests/nothing.py"), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"{part.name}.json", f"{part.name}.python"}


def test_points_are_packed():
    points = {"hcu": {kind: {("a.py:1.1", kind): 3, ("a.py:1.1", "other"): 0} for kind in ("line", "branch", "toggle")}}
    assert measure.unpack(json.loads(json.dumps(measure.pack(points)))) == points


def test_without_reasons_everything_is_open(folder):
    found = result.gather(folder, Reasons([]))
    assert found["verilog"]["total"]["line"]["open"] == found["verilog"]["total"]["toggle"]["open"] == 1
    assert found["bins"]["hcu"]["open"] == 1


def test_the_list_of_the_project_can_be_read_and_means_files_that_exist():
    for one in Reasons.read(result.REASONS).listed:
        assert one.kind == "bin" or any(measure.ROOT.glob(one.where)), one


@pytest.mark.parametrize(
    "text",
    [
        "[[verilog]]\nwhere = 'x'",
        "[[verilog]",
        "[[bin]]\nwhere='a'\nwhat='b'\nreason='c'",
        "[[other]]\nwhere='a'\nwhat='b'\nreason='c.'",
    ],
)
def test_a_bad_list_is_named(text, tmp_path):
    (tmp_path / "list.toml").write_text(text)
    with pytest.raises(ValueError, match=r"list\.toml"):
        Reasons.read(tmp_path / "list.toml")


def test_a_line_and_what_it_is_under(tmp_path):
    (tmp_path / "a.py").write_text("def f(\n    x\n):\n    if x:\n\n        return 1\n    return 2\n")
    assert context(tmp_path / "a.py", 6) == ["return 1", "if x:", "def f("]
    assert context(tmp_path / "a.py", 60) == []


def test_parts_are_all_tests_once():
    files = set((measure.ROOT / "tests").rglob("test_*.py"))
    found = [
        path
        for part in measure.parts()
        if not part.interpreted
        for argument in part.arguments
        for path in sorted(
            (measure.ROOT / argument).rglob("test_*.py")
            if (measure.ROOT / argument).is_dir()
            else [measure.ROOT / argument]
        )
    ]
    assert sorted(found) == sorted(files)


def test_chosen_tests():
    assert [part.path for part in measure.chosen(["hcu", "golden"])] == ["tests/hw/dre/test_hcu.py", "tests/golden"]
    assert measure.chosen(["wtu", "wtu_sweep"]) == measure.chosen(["hw/dre/wtu/test_wtu.py"])
    assert measure.chosen([]) == measure.parts()
    with pytest.raises(ValueError, match="'nothing': must be a unit"):
        measure.chosen(["nothing"])


def test_an_empty_folder_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds no measured tests"):
        result.gather(tmp_path, Reasons([]))
