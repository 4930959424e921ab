"""C code of Python expressions and statements whose values are all 64-bit integers.

Results are those of Python if all values fit into 64 bits, shifts are by 0 to 63, and no divisor is 0: `//` and `%`
round down, `and` and `or` return one of their operands, `min` and `max` take any number of values. Arguments of a call
have no order of evaluation in C. What would be evaluated twice must not have a call.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

HEADER = """/* Generated from the processes of sw_model/cycles by translate.py. */
#include <stdint.h>

typedef int64_t i64;

static inline i64 min(i64 a, i64 b) { return a < b ? a : b; }
static inline i64 max(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 absolute(i64 a) { return a < 0 ? -a : a; }
static inline i64 quotient(i64 a, i64 b) { return a / b - ((a % b != 0) & ((a ^ b) < 0)); }
static inline i64 modulo(i64 a, i64 b) { return a - quotient(a, b) * b; }"""
INFIX: dict[type, str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.LShift: "<<", ast.RShift: ">>", ast.BitAnd: "&", ast.BitOr: "|",
    ast.BitXor: "^", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
FUNCTION_OF: dict[type, str] = {ast.FloorDiv: "quotient", ast.Mod: "modulo"}
PREFIX: dict[type, str] = {ast.USub: "-", ast.Invert: "~", ast.Not: "!", ast.UAdd: "+"}


def c_expression(node: ast.expr) -> str:
    """C expression. Raises TypeError for what has no translation."""
    if not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
        return _constant(node)
    match node:
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=ast.Name(id=array), slice=index):
            return f"{array}[{c_expression(index)}]"
        case ast.UnaryOp(op=op, operand=operand):
            return f"({PREFIX[type(op)]}{_operand(operand)})"
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, _operand(left), _operand(right))
        case ast.Compare(left=value, ops=[ast.In()], comparators=[ast.Tuple(elts=values)]):
            text = _repeatable(value)
            return f"({' || '.join(_binary(ast.Eq(), text, c_expression(other)) for other in values)})"
        case ast.Compare(left=left, ops=ops, comparators=values):
            operands = [c_expression(left), *map(_repeatable, values[:-1]), c_expression(values[-1])]
            parts = [_binary(op, *operands[n : n + 2]) for n, op in enumerate(ops)]
            return parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"
        case ast.BoolOp(op=ast.And(), values=values):
            *tests, result = map(_operand, values)
            for test in reversed(tests):
                result = f"({test} ? {result} : 0)"
            return result
        case ast.BoolOp(op=ast.Or(), values=values):
            return f"({' ?: '.join(map(_operand, values))})"  # of GCC and Clang: the first operand that is not 0
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"({c_expression(test)} ? {_operand(body)} : {_operand(orelse)})"
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others], keywords=[]):
            result = c_expression(first)
            for other in others:
                result = f"{name}({result}, {c_expression(other)})"
            return result
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
            return f"{'absolute' if name == 'abs' else name}({', '.join(map(c_expression, arguments))})"
    raise _refused(node)


def _constant(node: ast.expr) -> str:
    value = eval(ast.unparse(node), {})
    if not isinstance(value, int):
        raise _refused(node)
    return f"{int(value)}LL" if value >= 0 else f"({int(value)}LL)"


def _operand(node: ast.expr) -> str:
    """An expression with 64 bits; comparisons have 32 in C."""
    text = c_expression(node)
    return f"(i64) {text}" if isinstance(node, ast.Compare) or text.startswith("(!") else text


def _repeatable(node: ast.expr) -> str:
    """An expression that can be evaluated twice."""
    if any(isinstance(part, ast.Call) for part in ast.walk(node)):
        raise TypeError(f"a process cannot have a call that is evaluated twice, got {ast.unparse(node)}")
    return c_expression(node)


def _refused(node: ast.expr) -> TypeError:
    return TypeError(f"a process cannot have the expression {ast.unparse(node)}")


def _binary(op: ast.operator | ast.cmpop, left: str, right: str) -> str:
    if type(op) in FUNCTION_OF:
        return f"{FUNCTION_OF[type(op)]}({left}, {right})"
    if type(op) not in INFIX:
        raise TypeError(f"a process cannot have the operator {type(op).__name__}")
    return f"({left} {INFIX[type(op)]} {right})"


def statements(nodes: Sequence[ast.stmt], indent: str) -> list[str]:
    """C lines of statements. Raises TypeError for what has no translation."""
    return [indent + line for node in nodes for line in _statement(node)]


def _block(head: str, nodes: Sequence[ast.stmt]) -> list[str]:
    return [f"{head} {{", *statements(nodes, "    "), "}"]


def _statement(node: ast.stmt) -> list[str]:
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
            new = [f"i64 new{n} = {c_expression(value)};" for n, value in enumerate(values)]
            return ["{", *new, *(f"{c_expression(target)} = new{n};" for n, target in enumerate(targets)), "}"]
        case ast.Assign(targets=[target], value=value):
            return [f"{c_expression(target)} = {c_expression(value)};"]
        case ast.AugAssign(target=target, op=op, value=value):
            return [f"{_repeatable(target)} = {_binary(op, _repeatable(target), _operand(value))};"]
        case ast.Expr(value=value):
            return [f"{c_expression(value)};"]
        case ast.If(test=test, body=body, orelse=orelse):
            return [*_block(f"if ({c_expression(test)})", body), *(_block("else", orelse) if orelse else [])]
        case ast.While(test=test, body=body, orelse=[]):
            return _block(f"while ({c_expression(test)})", body)
        case ast.For(
            target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=limits), body=body, orelse=[]
        ):
            *first, end = map(c_expression, limits)
            if len(first) < 2:
                start = first[0] if first else "0"
                return _block(f"for (i64 {name} = {start}, {name}_end = {end}; {name} < {name}_end; {name}++)", body)
        case ast.Return(value=value):
            return [f"return {c_expression(value)};" if value else "return;"]
        case ast.Break():
            return ["break;"]
        case ast.Continue():
            return ["continue;"]
        case ast.Pass():
            return []
    raise TypeError(f"a process cannot have the statement {ast.unparse(node)}")
