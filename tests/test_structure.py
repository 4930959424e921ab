"""The layering of the project: imports point downwards only, and golden stays plain NumPy."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# each folder and what it may import of the project
ALLOWED = {
    "golden": set(),
    "hw": set(),
    "sim": {"hw", "golden"},
    "synth": {"sim", "hw", "golden"},
    "sw_model": {"synth", "sim", "hw", "golden"},
}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


@pytest.mark.parametrize("folder", ALLOWED)
def test_imports_point_downwards(folder):
    for path in sorted((ROOT / folder).rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            if top in ALLOWED and top != folder:
                assert top in ALLOWED[folder], f"{path.relative_to(ROOT)} imports {name}"


def test_golden_is_plain_numpy():
    for path in sorted((ROOT / "golden").rglob("*.py")):
        for name in imports(path):
            top = name.split(".")[0]
            known = top in {"numpy", "ml_dtypes", "golden"} or top in sys.stdlib_module_names
            assert known, f"{path.relative_to(ROOT)} imports {name}"
