"""Compiled loops where no folder can be written."""

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
