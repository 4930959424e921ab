"""Translation of processes into state machines that numba compiles.

A process is a Python generator that yields a number of cycles to wait or a bell. numba cannot store generators of
different kinds in one list, so each process is turned into a function with a state number, as in an RTL state machine:
a state ends at a `yield`. Variables of a process are numbers in its frame, a part of the array of the machine.

The subset: a process or helper has the machine `k` as its first parameter; all values are integers; helpers that
wait are called with `yield from` and become part of their caller; other helpers are compiled as functions; `for` loops
go over `range`. `k.name` and `k.name[i, j]` are a number and an array of the machine, see `layout.py`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sw_model.cycles.layout import FRAME, FRAME_AT, VARIABLES, index_of

Function = Callable[..., Any]
Scope = dict[str, ast.expr]  # parameters and variables, and what stands for them
ARGUMENTS = 4  # of a process, besides machine and core
BUILTINS = {"min", "max", "abs", "range"}
NATIVE = {"arrive_native", "confirm_native", "number_native"}  # with the native memory model


def tree_of(function: Function) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def body_of(tree: ast.FunctionDef) -> list[ast.stmt]:
    """Statements without the docstring."""
    return tree.body[1:] if ast.get_docstring(tree) else tree.body


def expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def assigned(statements: Sequence[ast.stmt]) -> list[str]:
    """Names that statements assign, in order."""
    names: dict[str, None] = {}
    for statement in statements:
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] = None
    return list(names)


def changes_flow(node: ast.AST, in_loop: bool = False) -> bool:
    """Whether a statement waits, or leaves the statements around it."""
    if isinstance(node, ast.Yield | ast.YieldFrom | ast.Return):
        return True
    if isinstance(node, ast.Break | ast.Continue):
        return not in_loop
    inside = in_loop or isinstance(node, ast.For | ast.While)
    return any(changes_flow(child, inside) for child in ast.iter_child_nodes(node))


class Rewriter(ast.NodeTransformer):
    """Replaces variables, constants, and arrays of the machine in an expression or statement."""

    def __init__(self, module: Module, values: dict[str, Any], scope: Scope):
        self.module, self.values, self.scope, self.temporary = module, values, scope, 0

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self.scope:
            return self.scope[node.id]
        if node.id in BUILTINS:
            return node
        return self.constant(node)

    def constant(self, node: ast.expr) -> ast.expr:
        value = eval(ast.unparse(node), self.values)
        if value in self.module.processes:
            value = self.module.processes.index(value)
        if not isinstance(value, int):
            raise TypeError(f"{ast.unparse(node)} must be an integer, got {value!r}")
        return ast.Constant(int(value))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "k":
            return expression(index_of(node.attr, []))
        return self.constant(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        assert isinstance(node.value, ast.Attribute) and ast.unparse(node.value.value) == "k", ast.unparse(node)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return expression(index_of(node.value.attr, [ast.unparse(self.visit(part)) for part in parts]))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name), ast.unparse(node)
        if node.func.id in BUILTINS:
            return ast.Call(node.func, [self.visit(a) for a in node.args], [])
        name, arguments = node.func.id, [ast.unparse(self.visit(a)) for a in node.args if ast.unparse(a) != "k"]
        if name == "start":
            arguments += ["0"] * (3 + ARGUMENTS - len(arguments))
        if name in NATIVE:
            self.module.native = True
            return expression(f"{name}({', '.join(['t', *arguments])})")
        self.module.function(self.values[name])
        return expression(f"{name}({', '.join(['m', 'd', *arguments])})")

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        self.temporary += 1
        name = ast.Name(f"i{self.temporary}")
        first = ast.Assign([self.visit(node.target)], name, lineno=0)
        body = [item for statement in node.body for item in self.list_of(statement)]
        return [ast.For(name, self.visit(node.iter), [first, *body], [], lineno=0)]

    def list_of(self, statement: ast.stmt) -> list[ast.stmt]:
        result = self.visit(statement)
        return result if isinstance(result, list) else [result]


@dataclass
class End:
    """End of a state: jump, choice (`test`), wait (`value`), or, without a following state, the end of the process."""

    to: list[int] = field(default_factory=list)
    test: str = ""
    value: str | None = None

    @property
    def is_jump(self) -> bool:
        """Whether it only goes to another state."""
        return len(self.to) == 1 and self.value is None

    def source(self) -> list[str]:
        if not self.to:
            return ["return END"]
        if self.value is not None:
            return [f"m[b] = {self.to[0]}", f"return {self.value}"]
        return [f"s = {self.to[0]} if {self.test} else {self.to[1]}" if self.test else f"s = {self.to[0]}"]


class Process:
    """States of one process: the lines of each, and the way to the next one."""

    def __init__(self, module: Module, function: Function):
        self.module, tree = module, tree_of(function)
        self.name, self.slots, self.temporaries = function.__name__, VARIABLES, 0
        self.states: list[list[ast.stmt]] = []
        self.ends: list[End | None] = []
        module.native = False
        scope: Scope = {"c": ast.Name("c")}
        arguments = [a.arg for a in tree.args.args[2:]]
        if len(arguments) > ARGUMENTS:
            raise ValueError(f"arguments of process {self.name} must be at most {ARGUMENTS}, got {len(arguments)}")
        for name in [*arguments, *assigned(tree.body)]:
            scope.setdefault(name, self.slot())
        self.now = self.state()
        self.statements(body_of(tree), scope, function.__globals__, None, None)
        self.ends[self.now] = End()
        if self.slots > FRAME:
            raise ValueError(f"variables of process {self.name} must be at most {FRAME}, got {self.slots}")
        self.native = module.native

    def slot(self) -> ast.expr:
        self.slots += 1
        return expression(f"m[b + {self.slots - 1}]")

    def state(self) -> int:
        self.states.append([])
        self.ends.append(None)
        return len(self.states) - 1

    def statements(
        self,
        statements: Sequence[ast.stmt],
        scope: Scope,
        values: dict[str, Any],
        loop: tuple[int, int] | None,
        exit: tuple[int, list[ast.expr]] | None,
    ) -> None:
        """`loop`: states of break and continue; `exit`: state and results of a return, of helpers."""
        for statement in statements:
            rewriter = Rewriter(self.module, values, scope)
            if isinstance(statement, _Given):
                self.states[self.now] += statement.statements
            elif not changes_flow(statement):
                self.states[self.now] += rewriter.list_of(statement)
            elif isinstance(statement, ast.If):
                test, first = ast.unparse(rewriter.visit(statement.test)), self.now
                then = self.now = self.state()
                self.statements(statement.body, scope, values, loop, exit)
                last, otherwise = self.now, self.state()
                self.now = otherwise
                self.statements(statement.orelse, scope, values, loop, exit)
                end = self.state()
                self.ends[first] = End([then, otherwise], test)
                self.ends[last], self.ends[self.now] = End([end]), End([end])
                self.now = end
            elif isinstance(statement, ast.While):
                self.loop(statement.body, rewriter.visit(statement.test), None, scope, values, exit)
            elif isinstance(statement, ast.For):
                self.count(statement, rewriter, scope, values, exit)
            elif isinstance(statement, ast.Break | ast.Continue):
                assert loop
                self.leave(End([loop[isinstance(statement, ast.Continue)]]))
            elif isinstance(statement, ast.Return):
                self.give_back(statement, rewriter, exit)
                return  # a `yield` after it only makes the function a generator
            else:
                self.wait(statement, rewriter)

    def leave(self, end: End) -> None:
        self.ends[self.now] = end
        self.now = self.state()

    def loop(
        self,
        body: Sequence[ast.stmt],
        test: ast.expr,
        step: list[ast.stmt] | None,
        scope: Scope,
        values: dict[str, Any],
        exit: tuple[int, list[ast.expr]] | None,
    ) -> None:
        head, first, following, end = self.state(), self.state(), self.state(), self.state()
        self.ends[self.now] = End([head])
        always = isinstance(test, ast.Constant) and test.value
        self.ends[head] = End([first]) if always else End([first, end], ast.unparse(test))
        self.now = first
        self.statements(body, scope, values, (end, following), exit)
        self.ends[self.now] = End([following])
        self.states[following], self.ends[following] = step or [], End([head])
        self.now = end

    def count(self, node: ast.For, rewriter: Rewriter, scope: Scope, values: dict[str, Any], exit: Any) -> None:
        """Loop over a range."""
        assert isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)
        limits = [rewriter.visit(a) for a in node.iter.args]
        first, limit = limits if len(limits) == 2 else [ast.Constant(0), limits[0]]
        if not isinstance(limit, ast.Constant):
            slot = self.slot()
            self.states[self.now].append(ast.Assign([slot], limit, lineno=0))
            limit = slot
        counter, variable = self.slot(), ast.unparse(scope[node.target.id])
        self.states[self.now].append(ast.Assign([counter], first, lineno=0))
        name = ast.unparse(counter)
        body = [*ast.parse(f"{variable} = {name}").body]
        test = expression(f"{name} < {ast.unparse(limit)}")
        self.loop([_Given(body), *node.body], test, ast.parse(f"{name} += 1").body, scope, values, exit)

    def give_back(self, node: ast.Return, rewriter: Rewriter, exit: tuple[int, list[ast.expr]] | None) -> None:
        if exit is None:
            self.leave(End())
            return
        state, results = exit
        if node.value is not None and results:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for slot, part in zip(results, parts, strict=True):
                self.states[self.now].append(ast.Assign([slot], rewriter.visit(part), lineno=0))
        self.leave(End([state]))

    def wait(self, statement: ast.stmt, rewriter: Rewriter) -> None:
        """A yield, or a helper that waits."""
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            (target,) = statement.targets
            parts = target.elts if isinstance(target, ast.Tuple) else [target]
            targets = [rewriter.visit(part) for part in parts]
        assert isinstance(statement, ast.Expr | ast.Assign), ast.unparse(statement)
        value = statement.value
        if isinstance(value, ast.Yield):
            assert value.value is not None
            following = self.state()
            self.ends[self.now] = End([following], value=ast.unparse(rewriter.visit(value.value)))
            self.now = following
            return
        assert isinstance(value, ast.YieldFrom) and isinstance(value.value, ast.Call)
        assert isinstance(value.value.func, ast.Name)
        helper: Function = rewriter.values[value.value.func.id]
        tree, scope = tree_of(helper), Scope()
        changed = assigned(tree.body)
        for parameter, argument in zip(tree.args.args, value.value.args, strict=True):
            if parameter.arg == "k":
                continue
            given = rewriter.visit(argument)
            is_slot = any(ast.unparse(given) == ast.unparse(v) for v in rewriter.scope.values())
            if parameter.arg in changed or not (isinstance(given, ast.Constant) or is_slot):
                slot = self.slot()
                self.states[self.now].append(ast.Assign([slot], given, lineno=0))
                given = slot
            scope[parameter.arg] = given
        for name in changed:
            if name not in scope:
                scope[name] = self.slot()
        end = self.state()
        self.statements(body_of(tree), scope, helper.__globals__, None, (end, targets))
        self.ends[self.now] = End([end])
        self.now = end

    def simplify(self) -> dict[int, tuple[list[ast.stmt], End]]:
        """States that are reached; those that follow exactly one other are part of it."""
        ends = [end or End() for end in self.ends]

        def skip(state: int) -> int:
            """First state from this one on that does something."""
            while not self.states[state] and ends[state].is_jump and ends[state].to[0] != state:
                (state,) = ends[state].to
            return state

        for end in ends:
            end.to = [skip(state) for state in end.to]
        first = skip(0)
        reached, open_states, before = {first}, [first], Counter([first, first])
        while open_states:
            end = ends[open_states.pop()]
            before.update([*end.to, *([] if end.value is None else end.to)])
            open_states += [state for state in dict.fromkeys(end.to) if state not in reached]
            reached.update(end.to)
        for state in sorted(reached):
            while state in reached and ends[state].is_jump and before[following := ends[state].to[0]] == 1:
                self.states[state] += self.states[following]
                ends[state] = ends[following]
                reached.discard(following)
        order = [first, *sorted(reached - {first})]
        for state in order:
            ends[state].to = [order.index(following) for following in ends[state].to]
        return {n: (self.states[state], ends[state]) for n, state in enumerate(order)}

    def source(self) -> str:
        """Function of the process: runs it from its state to its next wait."""
        lines = [
            f"def {self.name}(m, d, {'t, ' * self.native}b):",
            "    c = m[b + 2]",
            "    s = m[b]",
            "    while True:",
        ]
        for number, (statements, end) in self.simplify().items():
            lines.append(f"        {'el' * (number > 0)}if s == {number}:")
            for statement in statements:
                lines += textwrap.indent(ast.unparse(ast.fix_missing_locations(statement)), " " * 12).splitlines()
            lines += [" " * 12 + line for line in end.source()]
        types = "" if self.native else "int64(int64[::1], int64[::1], int64)"
        return "\n".join([decorator(types), *lines])


def decorator(types: str) -> str:
    """Decorator of a compiled function. Given types avoid a version for every constant; those of `t` have no name."""
    return f'@partial(unowned, types="{types}")' if types else "@unowned"


class _Given(ast.Expr):
    """Statements that are already translated."""

    def __init__(self, statements: list[ast.stmt]):
        super().__init__(ast.Constant(0))
        self.statements = statements


class Module:
    """Source of a module with all processes and the functions that they call."""

    def __init__(self, processes: Sequence[Function], functions: Sequence[Function]):
        self.processes = list(processes)
        self.functions: dict[str, str] = {}
        self.native = False
        for function in functions:
            self.function(function)
        self.translated = [Process(self, function) for function in processes]

    def function(self, function: Function) -> None:
        """Translate a function that does not wait, and before it those that it calls."""
        name = function.__name__
        if name in self.functions:
            return
        self.functions[name] = ""
        tree = tree_of(function)
        arguments = [a.arg for a in tree.args.args if a.arg != "k"]
        scope: Scope = {a: ast.Name(a) for a in [*arguments, *assigned(tree.body)]}
        rewriter = Rewriter(self, function.__globals__, scope)
        body = [item for statement in body_of(tree) for item in rewriter.list_of(statement)]
        text = "\n".join(ast.unparse(ast.fix_missing_locations(item)) for item in body)
        head = f"def {name}({', '.join(['m', 'd', *arguments])}):"
        del self.functions[name]  # functions that it calls come before it
        returns = any(isinstance(node, ast.Return) and node.value for node in ast.walk(tree))
        types = f"{'int64' if returns else 'void'}(int64[::1], int64[::1]{', int64' * len(arguments)})"
        self.functions[name] = "\n".join([decorator(types), head, textwrap.indent(text, "    ")])

    def source(self) -> str:
        """Module with all that does not call the native memory model."""
        texts = [process.source() for process in self.translated if not process.native]
        return "\n\n\n".join([HEADER, *self.functions.values(), *texts]) + "\n"

    def native_source(self, name: str) -> str:
        """Module with the others and `run(m, d, t, p)`; `name`: of the first module."""
        lines = ["def execute(m, d, t, b):", "    kind = m[b + 1]"]
        for number, process in enumerate(self.translated):
            lines += [f"    if kind == {number}:", f"        return {process.name}(m, d, {'t, ' * process.native}b)"]
        lines.append("    return END")
        names = [*self.functions, *(process.name for process in self.translated if not process.native)]
        imports = [
            "from sw_model.cycles.native import arrive_native, confirm_native, number_native",
            f"from {name} import {', '.join(names)}",
        ]
        texts = [process.source() for process in self.translated if process.native]
        head = "\n".join([HEADER, *imports])
        return "\n\n\n".join([head, *texts, "\n".join(["@inlined", *lines]), RUN]) + "\n"


HEADER = '''"""Generated from the processes of sw_model/cycles by translate.py."""

from functools import partial

from util.compiled import inlined, unowned

END, OUTSIDE = -(1 << 60), -(1 << 61)'''
RUN = f'''@unowned
def run(m, d, t, p):
    """Run process p, or the next one if it is -1, until nothing is left (0) or a call outside is needed (1)."""
    while True:
        if p < 0:
            p = following(m, d)
            if p < 0:
                return 0
        wait = execute(m, d, t, {FRAME_AT} + p * {FRAME})
        if wait >= 0:
            schedule(m, d, p, wait)
        elif wait == END:
            release(m, d, p)
        elif wait == OUTSIDE:
            {index_of("resumed", [])} = p
            return 1
        else:
            wait_for(m, d, -1 - wait, p)
        p = -1'''
