"""The command that runs tests under several seeds."""

import pytest

from tests import seeds

RANDOM = "tests/golden/test_growable_array.py"


def test_table_of_seeds(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    assert seeds.main(["2", "--first", "7", RANDOM, "-p", "no:cacheprovider"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines] == [["7", "passed", "1", "passed"], ["8", "passed", "1", "passed"]]
    assert (tmp_path / "seeds.txt").read_text().splitlines() == lines


def test_failure_is_in_the_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    assert seeds.main(["1", "tests/absent.py"]) == 1
    out = capsys.readouterr().out
    assert "failed      0 passed" in out and "not found: tests/absent.py" in out


def test_rejects_zero_seeds(capsys):
    with pytest.raises(SystemExit):
        seeds.main(["0"])
    assert "count must be at least 1, got 0" in capsys.readouterr().err
