"""C code of Python expressions and statements, against Python."""

import ast
import ctypes
import subprocess

import pytest

from sw_model.cycles import c_source
from util.c_library import CompilerError, c_library

EXPRESSIONS = [
    "a // b", "a % b", "-a // b", "a % 8", "a // 8", "a - b * c", "a << 3", "a >> 2", "a & b | c ^ ~a", "abs(a)",
    "min(a, b, c)", "max(a, b)", "a and b", "a or b", "a and b and c", "a or b and c", "not a", "a < b <= c", "a == b",
    "b if a > c else a", "a in (0, 3, b)", "(1 << 40) + a", "a & (1 << 32) - 1", "-(1 << 60) + a", "+a - -b",
    "1 << (a & 63 if a & 63 < 60 else 3)", "(a == b) << 40", "(not a) << 40", "2147483647 + (a < b)", "-(1 - 3) + a",
    "(a < b or a < c) << 33", "a - -1", "min(a == b, b == c) << 35", "(a < b if c else b < c) << 34",
]  # fmt: skip
FUNCTION = """
def function(a, b, c):
    x, y = a, b
    x, y = y, x
    total = 0
    for n in range(3):
        for k in range(n, c):
            if k == a:
                continue
            total += k * n
    while total > 50:
        total -= 7
        if total % 5 == 0:
            break
    else_ = total if x else y
    if x > y:
        pass
    elif x == y:
        return else_ - 1
    return else_ + 10 * x
"""


def library(functions, folder):
    """Functions of `a`, `b` and `c` from C code."""
    code = [f"i64 f{n}(i64 a, i64 b, i64 c) {{\n{body}\n}}" for n, body in enumerate(functions)]
    compiled = c_library("\n".join([c_source.HEADER, *code]), folder)
    result = [getattr(compiled, f"f{n}") for n in range(len(functions))]
    for function in result:
        function.argtypes, function.restype = [ctypes.c_int64] * 3, ctypes.c_int64
    return result


def values(rng):
    return [rng.choice([0, 1, -1, 3, 8, rng.integers(-40, 40), rng.integers(-(2**30), 2**30)]).item() for _ in range(3)]


def test_expressions_have_the_values_of_python(tmp_path, rng):
    trees = [ast.parse(text, mode="eval").body for text in EXPRESSIONS]
    functions = library([f"return {c_source.c_expression(tree)};" for tree in trees], tmp_path)
    for text, function in zip(EXPRESSIONS, functions, strict=True):
        for _ in range(200):
            a, b, c = values(rng)
            b = b or 5  # a divisor
            assert function(a, b, c) == eval(text, {}, {"a": a, "b": b, "c": c}), (text, a, b, c)


def test_statements_have_the_result_of_python(tmp_path, rng):
    tree, scope = ast.parse(FUNCTION).body[0], {}
    exec(FUNCTION, scope)
    variables = "i64 x, y, total, else_;"
    (function,) = library(["\n".join([variables, *c_source.statements(tree.body, "    ")])], tmp_path)
    for _ in range(200):
        arguments = rng.integers(-3, 12, 3).tolist()
        assert function(*arguments) == scope["function"](*arguments), arguments


@pytest.mark.parametrize("text", ["f(a) < g(b) < c", "f(a) in (1, 2)"])
def test_calls_are_evaluated_once(text):
    with pytest.raises(TypeError, match="a call that is evaluated twice"):
        c_source.c_expression(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize("text", ["a / b", "a ** 2", "'text'", "[a]", "a.b", "a in b", "lambda: a", "1.5", "f(a, b=1)"])
def test_unknown_expressions_are_refused(text):
    with pytest.raises(TypeError, match="a process cannot have"):
        c_source.c_expression(ast.parse(text, mode="eval").body)


@pytest.mark.parametrize(
    "text", ["del a", "for x in y: pass", "for x in range(1, 9, 2): pass", "import os", "a: int", "a = b = 1"]
)
def test_unknown_statements_are_refused(text):
    with pytest.raises(TypeError, match="a process cannot have the statement"):
        c_source.statements(ast.parse(text).body, "")


def test_library_is_compiled_once(tmp_path, monkeypatch):
    (first,) = library(["return a;"], tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    (second,) = library(["return a;"], tmp_path)
    assert first(7, 0, 0) == second(7, 0, 0) == 7
    assert [path.suffix for path in tmp_path.iterdir()] == [".so"]


def test_folder_that_is_not_writable(tmp_path):
    """The library is compiled for this process only."""
    (tmp_path / "file").write_text("")
    (function,) = library(["return b;"], tmp_path / "file" / "folder")
    assert function(0, 4, 0) == 4 and [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("compiler", ["no-such-compiler -O1", __file__])
def test_no_compiler(tmp_path, monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(CompilerError, match=f"C compiler {compiler} is not installed"):
        library(["return a;"], tmp_path)


def test_refused_code(tmp_path, monkeypatch):
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(CompilerError, match=r"C compiler cc failed: .*error"):
        library(["return unknown;"], tmp_path)
    assert not list(tmp_path.iterdir())
