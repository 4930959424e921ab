"""The table of deviations of the embedded library."""

from hw.config import Config
from synth.library import accuracy
from synth.library.liberty import library_text
from synth.library.reader import Library
from synth.library.technology import Technology


def test_equal_libraries_have_no_deviation(predictive):
    """The reference libraries are one with a wire load and one without."""
    bare = Library([("bare", library_text(Technology(wire_pitches=0.0)))], "user")
    lines = accuracy.compare(["hcu"], Config.preset("tiny"), [predictive, bare], "area").splitlines()
    assert len(lines) == 5 and all(line.count("+0.0%") == 2 for line in lines[2:4])
    assert lines[4] == "0 of 4 figures deviate by more than 10% in area or 15% in delay; area point"


def test_libraries_of_the_command_line(predictive, tmp_path, monkeypatch, capsys):
    path = tmp_path / "some.lib"
    path.write_text(predictive.text)
    monkeypatch.setattr(accuracy, "compare", lambda units, config, others, point: (units, [o.tier for o in others]))
    monkeypatch.setattr(accuracy, "OSU018", tmp_path / "nothing")
    monkeypatch.setattr("sys.argv", ["accuracy", "--liberty", str(path)])
    accuracy.main()
    assert capsys.readouterr().out == "(['hcu', 'dot_tree'], ['user'])\n"
