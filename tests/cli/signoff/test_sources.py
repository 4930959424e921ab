"""Hashes of sources: what changes them and what does not."""

import pytest

from cli.signoff import sources
from cli.signoff.kinds import KINDS
from hw.registry import UNITS, RegisteredUnit

FILES = {
    "hw/config.py": "SIZE = 1\n",
    "hw/dre/a.py": '"""A unit."""\nfrom hw.dre.b import f  # an import\n\n\ndef g():\n    return f()\n',
    "hw/dre/b.py": "# comment\ndef f():\n    return 1\n",
    "hw/dre/other.py": "x = 1\n",
    "golden/a.py": "import util.checks\n\nx = 2\n",
    "util/checks.py": "x = 3\n",
    "sim/formal/engine.py": "import sim.formal.specifications.a\nimport sim.formal.specifications.b\n",
    "sim/formal/specifications/a.py": "import sim.formal.specifications.c\n",
    "sim/formal/specifications/b.py": "x = 6\n",
    "sim/formal/specifications/c.py": "x = 7\n",
    "sim/bench/bench.py": "x = 8\n",
    "sim/bench/other.py": "x = 9\n",
    "tests/hw/dre/test_a.py": "def test_a():\n    import golden.a\n    from hw.dre import a\n    'sim.bench.bench'\n",
}
UNIT = RegisteredUnit("a", None, "a unit", "hw.dre.a")


@pytest.fixture
def hashes(tmp_path, monkeypatch):
    """A small project; returns a function that changes a file and returns the hashes of unit, tests and proofs."""
    monkeypatch.setattr(sources, "ROOT", tmp_path)

    def change(name="", old="", new=""):
        for function in (sources.design_hash, sources._hash_of, sources.code, sources.imports, sources._statements):
            function.cache_clear()
        for path, text in FILES.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            assert path != name or old in text
            (tmp_path / path).write_text(text.replace(old, new) if path == name else text)
        proofs = ("sim/formal/engine.py", "sim/formal/specifications/a.py", "sim/formal/specifications/c.py")
        return sources.design_hash(UNIT), sources.check_hash([UNIT.tests]), sources.check_hash(proofs)

    yield change
    change()
    for function in (sources.design_hash, sources._hash_of, sources.code, sources.imports, sources._statements):
        function.cache_clear()


@pytest.mark.parametrize(
    "name, old, new, changed",
    [
        ("hw/dre/a.py", "return f()", "return 2", "design"),
        ("hw/dre/b.py", "return 1", "return 2", "design"),  # imported by the unit
        ("hw/config.py", "1", "2", "design"),
        ("tests/hw/dre/test_a.py", "import a", "import a as b", "tests"),
        ("golden/a.py", "2", "3", "tests"),  # imported inside a test
        ("sim/bench/bench.py", "8", "9", "tests"),  # named in a test, loaded in the simulator
        ("sim/bench/other.py", "9", "8", ""),
        ("sim/formal/engine.py", "specifications.b", "specifications.c", "proofs"),
        ("sim/formal/specifications/c.py", "7", "8", "proofs"),
        ("sim/formal/specifications/b.py", "6", "7", ""),  # of another unit
        ("hw/dre/other.py", "1", "2", ""),
        ("util/checks.py", "3", "4", ""),
        ("hw/dre/a.py", "A unit", "One unit", ""),  # docstring
        ("hw/dre/b.py", "# comment", "# remark", ""),
        ("hw/dre/a.py", "\n\n\n", "\n", ""),
    ],
)
def test_hash_depends_on_code_only(hashes, name, old, new, changed):
    before, after = hashes(), hashes(name, old, new)
    names = ("design", "tests", "proofs")
    assert [n for n, a, b in zip(names, before, after, strict=True) if a != b] == [changed] * bool(changed)


def test_sources_of_a_real_unit():
    files = sources.closure([sources.path(UNITS["hcu"].module)], sources.in_design)
    names = {str(file.relative_to(sources.ROOT)) for file in files}
    assert {"hw/dre/hcu.py", "hw/common/memory.py"} <= names and not any("lxe" in name for name in names)
    tests = sources.closure([sources.ROOT / UNITS["hcu"].tests], lambda file: not sources.in_design(file))
    names = {str(file.relative_to(sources.ROOT)) for file in tests}
    assert {"golden/clustering.py", "sim/bench/stream_bench.py"} <= names
    assert not any(name.startswith(("golden/kvmu", "compiler")) for name in names)


@pytest.mark.parametrize(
    "unit, own, other", [("hcu", "hcu", "kvmu"), ("kvmu", "kvmu", "hcu"), ("multicore", "barrier", "wtu")]
)
def test_proofs_depend_on_specifications_of_their_own_unit(unit, own, other):
    files = KINDS["proofs"].checks(UNITS[unit])
    assert {f"sim/formal/specifications/{name}.py" for name in (own, "common")} <= set(files)
    assert f"sim/formal/specifications/{other}.py" not in files
