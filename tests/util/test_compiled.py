"""Compiled loops where no folder can be written, and after a change of a file that they use."""

import subprocess
import sys
from types import SimpleNamespace

import numba

import util.compiled


def test_compiled_without_cache_folder(monkeypatch):
    def njit(types, *, cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return numba.njit(types, **options)

    monkeypatch.setattr(util.compiled, "numba", SimpleNamespace(njit=njit))
    assert util.compiled.compiled(lambda x: x + 1)(2) == 3
    typed = util.compiled.compiled(lambda x: x + 1, types="int64(int64)")
    assert typed(2) == 3 and len(typed.signatures) == 1


def test_change_of_a_used_file_compiles_again(tmp_path):
    """numba alone would use the old code: it compares only the file of the function."""
    package = tmp_path / "synth"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "user.py").write_text(
        "from synth.used import NUMBER\nfrom util.compiled import compiled\n\n\n"
        "def number():\n    return NUMBER\n\n\nprint(compiled(number)())\n"
    )
    root = util.compiled.__file__.rsplit("/util/", 1)[0]
    results = []
    for number in (1, 2, 2):
        (package / "used.py").write_text(f"NUMBER = {number}\n")
        code = f"import sys; sys.path[:0] = {[str(tmp_path), root]!r}; import synth.user"
        run = [sys.executable, "-B", "-c", code]  # -B: two files of the same size and second have the same bytecode
        done = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path, check=True)
        results.append(int(done.stdout))
    assert results == [1, 2, 2] and len(list(package.glob("__pycache__/*.nbi"))) == 2
