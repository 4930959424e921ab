"""The table that shows the embedded library beside others."""

from hw.config import Config
from synth.library import accuracy as honesty
from synth.library.liberty import library_text
from synth.library.reader import Library
from synth.library.technology import Technology


def test_a_library_beside_itself_is_not_off(predictive):
    """With its wire load and without, as the other one is."""
    bare = Library([("bare", library_text(Technology(wire_pitches=0.0)))], "user")
    told = honesty.compare(["hcu"], Config.preset("tiny"), [predictive, bare], "area").splitlines()
    assert len(told) == 5 and all(line.count("+0.0%") == 2 for line in told[2:4])
    assert told[4] == "0 of 4 figures lie outside 10% of area and 15% of delay; area point"


def test_libraries_of_the_command_line(predictive, tmp_path, monkeypatch, capsys):
    path = tmp_path / "some.lib"
    path.write_text(predictive.text)
    monkeypatch.setattr(honesty, "compare", lambda units, config, others, point: (units, [o.tier for o in others]))
    monkeypatch.setattr(honesty, "OSU018", tmp_path / "nothing")
    monkeypatch.setattr("sys.argv", ["honesty", "--liberty", str(path)])
    honesty.main()
    assert capsys.readouterr().out == "(['hcu', 'dot_tree'], ['user'])\n"
