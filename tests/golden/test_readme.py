"""The page about the golden models: the modules it names are there, and its example runs."""

import re
from pathlib import Path

import golden

FOLDER = Path(golden.__file__).parent
TEXT = (FOLDER / "README.md").read_text()


def test_named_modules_exist():
    modules = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/__init__.py")}
    named = {name for row in re.findall(r"^\| (`[^|]*) \|", TEXT, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert len(named) > 25 and named <= modules


def test_example_runs(capsys):
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    exec(code, {})
    ratio, shape = capsys.readouterr().out.split(" ", 1)
    assert 0 < float(ratio) <= 1 and shape == "(10, 8, 64)\n"
