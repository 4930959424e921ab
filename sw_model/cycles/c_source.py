"""C code of Python expressions and statements whose values are all 64-bit integers.

Results are those of Python as long as they fit into 64 bits: `//` and `%` round down, `and` and `or` return one of
their operands, `min` and `max` take any number of values. Arguments of a call have no order of evaluation in C.
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
CALLED: dict[type, str] = {ast.FloorDiv: "quotient", ast.Mod: "modulo"}
PREFIX: dict[type, str] = {ast.USub: "-", ast.Invert: "~", ast.Not: "!", ast.UAdd: "+"}


def expression(node: ast.expr) -> str:
    """C expression. Raises TypeError for what has no translation."""
    match node:
        case ast.Constant(value=int(value)):
            return f"INT64_C({value})" if abs(int(value)) >> 31 else str(int(value))
        case ast.Name(id=name):
            return name
        case ast.Subscript(value=ast.Name(id=array), slice=index):
            return f"{array}[{expression(index)}]"
        case ast.UnaryOp(op=op, operand=operand):
            return f"({PREFIX[type(op)]}{expression(operand)})"
        case ast.BinOp() if not any(isinstance(part, ast.Name | ast.Call) for part in ast.walk(node)):
            return expression(ast.Constant(eval(ast.unparse(node), {})))  # 1 << 40 has 32 bits in C
        case ast.BinOp(left=left, op=op, right=right):
            return _binary(op, expression(left), expression(right))
        case ast.Compare(left=ast.Name() as value, ops=[ast.In()], comparators=[ast.Tuple(elts=values)]):
            return f"({' || '.join(_binary(ast.Eq(), expression(value), expression(other)) for other in values)})"
        case ast.Compare(left=left, ops=ops, comparators=values):
            operands = [expression(value) for value in [left, *values]]
            parts = [_binary(op, *operands[n : n + 2]) for n, op in enumerate(ops)]
            return parts[0] if len(parts) == 1 else f"({' && '.join(parts)})"
        case ast.BoolOp(op=ast.And(), values=values):
            *tests, result = map(expression, values)
            for test in reversed(tests):
                result = f"({test} ? {result} : 0)"
            return result
        case ast.BoolOp(op=ast.Or(), values=values):
            return f"({' ?: '.join(map(expression, values))})"  # of GCC and Clang: the first operand that is not 0
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return f"({expression(test)} ? {expression(body)} : {expression(orelse)})"
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=[first, *others]):
            result = expression(first)
            for other in others:
                result = f"{name}({result}, {expression(other)})"
            return result
        case ast.Call(func=ast.Name(id=name), args=arguments):
            return f"{'absolute' if name == 'abs' else name}({', '.join(map(expression, arguments))})"
    raise TypeError(f"a process cannot have the expression {ast.unparse(node)}")


def _binary(op: ast.operator | ast.cmpop, left: str, right: str) -> str:
    if type(op) in CALLED:
        return f"{CALLED[type(op)]}({left}, {right})"
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
            new = [f"i64 new{n} = {expression(value)};" for n, value in enumerate(values)]
            return ["{", *new, *(f"{expression(target)} = new{n};" for n, target in enumerate(targets)), "}"]
        case ast.Assign(targets=[target], value=value):
            return [f"{expression(target)} = {expression(value)};"]
        case ast.AugAssign(target=target, op=op, value=value):
            return [f"{expression(target)} = {_binary(op, expression(target), expression(value))};"]
        case ast.Expr(value=value):
            return [f"{expression(value)};"]
        case ast.If(test=test, body=body, orelse=orelse):
            return [*_block(f"if ({expression(test)})", body), *(_block("else", orelse) if orelse else [])]
        case ast.While(test=test, body=body, orelse=[]):
            return _block(f"while ({expression(test)})", body)
        case ast.For(target=ast.Name(id=name), iter=ast.Call(func=ast.Name(id="range"), args=limits), body=body):
            *first, end = map(expression, limits)
            if len(first) < 2:
                start = first[0] if first else "0"
                return _block(f"for (i64 {name} = {start}, {name}_end = {end}; {name} < {name}_end; {name}++)", body)
        case ast.Return(value=value):
            return [f"return {expression(value)};" if value else "return;"]
        case ast.Break():
            return ["break;"]
        case ast.Continue():
            return ["continue;"]
        case ast.Pass():
            return []
    raise TypeError(f"a process cannot have the statement {ast.unparse(node)}")
