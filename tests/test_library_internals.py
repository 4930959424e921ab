"""Private parts of libraries: where the project uses one, and whether the installed version still has it.

A library may change a private name in any release. Each test here fails with the name and version of the library, so
that an update shows the cause at once.
"""

import ast
import importlib.metadata
import inspect

import numba
import numpy as np
from amaranth import tracer
from amaranth.back import rtlil
from amaranth.hdl import _nir

from util.compiled import unowned
from util.files import ROOT

# (file, private name) -> why there is no public way
ALLOWED = {
    ("sim/coverage/source_map.py", "amaranth.hdl._nir"): "Amaranth drops the source of If and Case before RTLIL",
    ("sim/coverage/source_map.py", "sys._getframe"): "documented function of CPython",
    ("sim/bench/serve.py", "os._exit"): "documented function of the standard library",
    ("docs/pages.py", "argparse._SubParsersAction"): "argparse has no public way to list the commands of a parser",
    (
        "tests/test_refusals.py",
        "argparse._SubParsersAction",
    ): "argparse has no public way to list the commands of a parser",
    ("tests/test_library_internals.py", "amaranth.hdl._nir"): "this test",
}
FOLDERS = {"cli", "compiler", "docs", "golden", "hw", "sim", "sw_model", "synth", "tests", "util"}
OURS = {*FOLDERS, "vrex", "__future__"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_uses(tree: ast.AST) -> set[str]:
    """Private names of imported libraries: modules, imported names, and attributes of an imported name."""
    imported: dict[str, str] = {}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = {alias.asname or alias.name.split(".")[0]: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            paths = {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        else:
            continue
        paths = {name: path for name, path in paths.items() if path.split(".")[0] not in OURS}
        imported |= paths
        found |= {path for path in paths.values() if any(map(is_private, path.split(".")))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imported:
            found |= {f"{imported[node.value.id]}.{node.attr}"} if is_private(node.attr) else set()
    return found


def test_private_names_of_libraries_are_used_in_one_place():
    uses = {
        (str(file.relative_to(ROOT)), name)
        for folder in sorted(FOLDERS)
        for file in (ROOT / folder).rglob("*.py")
        for name in private_uses(ast.parse(file.read_text()))
    }
    assert uses - ALLOWED.keys() == set(), "use a public interface of the library, or add an entry with the reason"
    assert ALLOWED.keys() - uses == set(), "these entries are not needed any more"


def signature(function: object) -> list[str]:
    return list(inspect.signature(function).parameters)


def test_amaranth_internals_of_source_map():
    """`sim.coverage.source_map` records the source of a case in `Matches` and adds marks in `Process.emit`."""
    version = f"amaranth {importlib.metadata.version('amaranth')}: update sim/coverage/source_map.py"
    for function, parameters in {
        _nir.Matches.__init__: ["self", "module_idx", "value", "patterns", "src_loc"],
        rtlil.Process.emit: ["self", "line"],
        rtlil.Assignment: ["lhs", "rhs"],
        tracer.get_src_loc: ["src_loc_at"],
    }.items():
        assert signature(function) == parameters, f"{version}: {function} has {signature(function)}"
    switch = rtlil.Switch("\\sel")
    case = switch.case(("1",))
    assert switch.cases == [case] and case.patterns == ("1",) and case.contents == [], version
    assert switch.default().patterns == (), version


def test_numba_option_without_reference_counts():
    """`util.compiled.unowned` relies on `_nrt=False`."""

    def total(values):
        result = 0.0
        for k in range(len(values)):
            result += values[1:][k - 1] if k else values[0]
        return result

    values, version = np.array([1.0, 2.0, 3.0]), f"numba {numba.__version__}: update util/compiled.py"
    assert unowned(total)(values) == 6.0, version
    counted, uncounted = numba.njit(total), numba.njit(_nrt=False)(total)
    assert counted(values) == uncounted(values) == 6.0, version
    assert any("@NRT_decref" in code for code in counted.inspect_llvm().values()), version
    assert not any("@NRT_decref" in code for code in uncounted.inspect_llvm().values()), version
