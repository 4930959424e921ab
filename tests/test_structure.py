"""The structure of the project: layers import downwards only, golden is plain NumPy, no modules import in a circle."""

import ast
import re
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# each folder and the folders of the project that it may import
ALLOWED = {
    "util": set(),
    "golden": {"util"},
    "hw": {"util"},
    "compiler": {"hw", "golden", "util"},
    "sim": {"compiler", "hw", "golden", "util"},
    "synth": {"sim", "compiler", "hw", "golden", "util"},
    "sw_model": {"compiler", "hw", "golden", "util"},
    "cli": {"sw_model", "synth", "sim", "compiler", "hw", "golden", "util"},
}


@cache
def modules() -> dict[str, Path]:
    """Every module of the layers by its dotted name."""
    paths = (path for folder in ALLOWED for path in sorted((ROOT / folder).rglob("*.py")))
    return {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imports(path: Path) -> set[str]:
    """Modules that a file imports anywhere in its text; `from package import module` is an import of the module."""
    known = modules()
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if name in known else node.module for name in full}
    return names


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_downwards(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            if top in ALLOWED and top != folder:
                assert top in ALLOWED[folder], f"{path.relative_to(ROOT)} imports {name}"


def test_golden_is_plain_numpy():
    """The golden models import NumPy, ml_dtypes and the argument checks, which import NumPy only."""
    for path in [*sorted((ROOT / "golden").rglob("*.py")), ROOT / "util" / "checks.py"]:
        for name in imports(path):
            top = name.split(".")[0]
            known = top in {"numpy", "ml_dtypes", "golden"} or top in sys.stdlib_module_names
            assert known or name == "util.checks", f"{path.relative_to(ROOT)} imports {name}"


def test_no_import_circle():
    """Imports of modules, those inside functions and `TYPE_CHECKING` included, have a topological order."""
    known = modules()
    graph = {name: {other for other in imports(path) if other in known} - {name} for name, path in known.items()}
    done: set[str] = set()

    def visit(name: str, chain: list[str]) -> None:
        assert name not in chain, f"import circle: {' -> '.join([*chain[chain.index(name) :], name])}"
        if name not in done:
            for other in sorted(graph[name]):
                visit(other, [*chain, name])
            done.add(name)

    for name in graph:
        visit(name, [])


def test_tests_mirror_the_layers():
    """Every folder of tests has the name of a folder that it tests."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("test_*.py")}
    for folder in sorted(folders - {Path()}):
        assert (ROOT / folder).is_dir(), f"tests/{folder} tests no folder of the project"


def test_hardware_fits_two_screens():
    """No function or method in hw, which includes every `elaborate`, is longer than 100 lines."""
    for path in sorted((ROOT / "hw").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 100, f"{path.relative_to(ROOT)}: {node.name} has {lines} lines"


def test_seed_of_tests_comes_from_one_fixture():
    """`--seeded` selects the tests that use the fixture `seed`; no other test may depend on the option."""
    reads = re.compile(r"""getoption\(["']--seed["']\)""")
    readers = {path for path in (ROOT / "tests").rglob("*.py") if reads.search(path.read_text())}
    assert readers == {ROOT / "tests" / "conftest.py"}
