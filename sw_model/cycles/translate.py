"""Translation of processes into state machines in C.

A process is a Python generator that yields a number of cycles to wait or a bell. It becomes a C function with a state
number, as in an RTL state machine: a state ends at a `yield`. Variables of a process are numbers in its frame, a part
of the array of the machine.

The subset: a process or helper has the machine `k` as its first parameter; all values are integers; helpers that
wait are called with `yield from` and become part of their caller; other helpers are compiled as functions; `for` loops
go over `range` with one or two arguments; loops have no `else`; calls have no keywords; an assignment has one target
or a tuple. `k.name` and `k.name[i, j]` are a number and an array of the machine, see `layout.py`.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from sw_model.cycles import c_source
from sw_model.cycles.layout import FRAME, FRAME_AT, VARIABLES, index_of
from sw_model.cycles.scheduler import END, OUTSIDE

Function = Callable[..., Any]
Scope = dict[str, ast.expr]  # parameters and variables, and what stands for them
ARGUMENTS = 4  # of a process, besides machine and core
BUILTINS = {"min", "max", "abs", "range"}


def tree_of(function: Function) -> ast.FunctionDef:
    """Syntax tree of a function. Raises TypeError if it is outside the subset."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    for node in ast.walk(tree):
        match node:
            case ast.For(iter=ast.Call(func=ast.Name(id="range"), args=[_] | [_, _], keywords=[]), orelse=[]):
                continue
            case ast.For():
                fault = "a loop must be `while` or `for ... in range(first, end)`, without `else`"
            case ast.While(orelse=[_, *_]):
                fault = "a loop must not have `else`"
            case ast.Call(keywords=[_, *_]):
                fault = "a call must not have keywords"
            case ast.Assign(targets=[_, _, *_]):
                fault = "an assignment must have one target"
            case ast.Name(id="k", ctx=ast.Store()):
                fault = "k must not be assigned"
            case ast.Subscript() if not ast.unparse(node.value).startswith("k."):
                fault = "only arrays of the machine `k` can be indexed"
            case _:
                continue
        raise TypeError(f"{function.__name__}: {fault}, got {ast.unparse(node).splitlines()[0]}")
    return tree


def body_of(tree: ast.FunctionDef) -> list[ast.stmt]:
    """Statements without the docstring."""
    return tree.body[1:] if ast.get_docstring(tree) else tree.body


def parsed(text: str) -> ast.expr:
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
        if callable(value):
            raise TypeError(f"process {value.__name__} must be in PROCESS_KINDS of machine.py")
        if not isinstance(value, int):
            raise TypeError(f"{ast.unparse(node)} must be an integer, got {value!r}")
        return ast.Constant(int(value))

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if isinstance(node.value, ast.Name) and node.value.id == "k":
            return parsed(index_of(node.attr, []))
        return self.constant(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        assert isinstance(node.value, ast.Attribute)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return parsed(index_of(node.value.attr, [ast.unparse(self.visit(part)) for part in parts]))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name), ast.unparse(node)
        if node.func.id in BUILTINS:
            return ast.Call(node.func, [self.visit(a) for a in node.args], [])
        name, arguments = node.func.id, [ast.unparse(self.visit(a)) for a in node.args if ast.unparse(a) != "k"]
        if name == "start":
            arguments += ["0"] * (3 + ARGUMENTS - len(arguments))
        self.module.function(self.values[name])
        return parsed(f"{name}({', '.join(['m', 'd', *arguments])})")

    def visit_For(self, node: ast.For) -> list[ast.stmt]:
        self.temporary += 1
        name = ast.Name(f"loop{self.temporary}")
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
    test: ast.expr | None = None
    value: ast.expr | None = None

    @property
    def is_jump(self) -> bool:
        """Whether it only goes to another state."""
        return len(self.to) == 1 and self.value is None

    def source(self) -> list[str]:
        if not self.to:
            return [f"return {END};"]
        if self.value is not None:
            return [f"m[b] = {self.to[0]};", f"return {c_source.c_expression(self.value)};"]
        if self.test is None:
            return [f"goto state_{self.to[0]};"]
        return [f"if ({c_source.c_expression(self.test)}) goto state_{self.to[0]};", f"goto state_{self.to[1]};"]


class Process:
    """States of one process: the lines of each, and the way to the next one."""

    def __init__(self, module: Module, function: Function):
        self.module, tree = module, tree_of(function)
        self.name, self.slots, self.temporaries = function.__name__, VARIABLES, 0
        self.states: list[list[ast.stmt]] = []
        self.ends: list[End | None] = []
        scope: Scope = {"c": ast.Name("c")}
        arguments = [a.arg for a in tree.args.args[2:]]
        if "c" in assigned(tree.body):
            raise TypeError(f"{self.name}: the core c must not be assigned in a process")
        if len(arguments) > ARGUMENTS:
            raise ValueError(f"arguments of process {self.name} must be at most {ARGUMENTS}, got {len(arguments)}")
        for name in [*arguments, *assigned(tree.body)]:
            scope.setdefault(name, self.slot())
        self.now = self.state()
        self.statements(body_of(tree), scope, function.__globals__, None, None)
        self.ends[self.now] = End()
        if self.slots > FRAME:
            raise ValueError(f"variables of process {self.name} must be at most {FRAME}, got {self.slots}")

    def slot(self) -> ast.expr:
        self.slots += 1
        return parsed(f"m[b + {self.slots - 1}]")

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
            if isinstance(statement, _Translated):
                self.states[self.now] += statement.statements
            elif not changes_flow(statement):
                self.states[self.now] += rewriter.list_of(statement)
            elif isinstance(statement, ast.If):
                test, first = rewriter.visit(statement.test), self.now
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
        self.ends[head] = End([first]) if always else End([first, end], test)
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
        test = parsed(f"{name} < {ast.unparse(limit)}")
        self.loop([_Translated(body), *node.body], test, ast.parse(f"{name} += 1").body, scope, values, exit)

    def give_back(self, node: ast.Return, rewriter: Rewriter, exit: tuple[int, list[ast.expr]] | None) -> None:
        if exit is None:
            self.leave(End())
            return
        state, results = exit
        if node.value is not None and results:
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            if len(parts) != len(results):
                raise TypeError(f"{self.name}: results must be {len(results)}, got {ast.unparse(node)}")
            values = ast.Tuple([rewriter.visit(part) for part in parts])
            self.states[self.now].append(ast.Assign([ast.Tuple(results)], values, lineno=0))
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
            self.ends[self.now] = End([following], value=rewriter.visit(value.value))
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
            value_of = rewriter.visit(argument)
            is_slot = any(ast.unparse(value_of) == ast.unparse(v) for v in rewriter.scope.values())
            if parameter.arg in changed or not (isinstance(value_of, ast.Constant) or is_slot):
                slot = self.slot()
                self.states[self.now].append(ast.Assign([slot], value_of, lineno=0))
                value_of = slot
            scope[parameter.arg] = value_of
        for name in changed:
            if name not in scope:
                scope[name] = self.slot()
        end = self.state()
        self.statements(body_of(tree), scope, helper.__globals__, None, (end, targets))
        self.ends[self.now] = End([end])
        self.now = end

    def simplify(self) -> dict[int, tuple[list[ast.stmt], End]]:
        """Reachable states; a state with one predecessor that only jumps to it is merged into that predecessor."""
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
        states = self.simplify()
        jumps = [f"    case {number}: goto state_{number};" for number in states]
        lines = [
            f"static i64 {self.name}(i64 *m, i64 *d, i64 b) {{",
            "i64 c = m[b + 2];",
            "switch (m[b]) {",
            *jumps,
            "}",
        ]
        for number, (statements, end) in states.items():
            lines += [f"state_{number}:;", *c_source.statements(statements, "    ")]
            lines += ["    " + line for line in end.source()]
        return "\n".join([*lines, "}"])


class _Translated(ast.Expr):
    """Statements that are already translated."""

    def __init__(self, statements: list[ast.stmt]):
        super().__init__(ast.Constant(0))
        self.statements = statements


class Module:
    """C code of all processes and of the functions that they call."""

    def __init__(self, processes: Sequence[Function], functions: Sequence[Function]):
        self.processes = list(processes)
        self.functions: dict[str, str] = {}
        self.translated_functions: dict[str, Function] = {}
        for function in functions:
            self.function(function)
        self.translated = [Process(self, function) for function in processes]

    def function(self, function: Function) -> None:
        """Translate a function that does not wait, and before it those that it calls."""
        name = function.__name__
        if self.translated_functions.setdefault(name, function) is not function:
            raise TypeError(f"functions of processes must have different names, got two of {name}")
        if name in self.functions:
            return
        self.functions[name] = ""
        tree = tree_of(function)
        arguments = [a.arg for a in tree.args.args if a.arg != "k"]
        variables = [name for name in assigned(tree.body) if name not in arguments]
        scope: Scope = {a: ast.Name(f"v_{a}") for a in [*arguments, *variables]}
        rewriter = Rewriter(self, function.__globals__, scope)
        body = [item for statement in body_of(tree) for item in rewriter.list_of(statement)]
        del self.functions[name]  # functions that it calls come before it
        returns = any(isinstance(node, ast.Return) and node.value for node in ast.walk(tree))
        parameters = ", ".join(["i64 *m", "i64 *d", *(f"i64 v_{argument}" for argument in arguments)])
        lines = [f"static {'i64' if returns else 'void'} {name}({parameters}) {{"]
        lines += [f"    i64 {', '.join(f'v_{variable} = 0' for variable in variables)};"] if variables else []
        self.functions[name] = "\n".join([*lines, *c_source.statements(body, "    "), "}"])

    def source(self) -> str:
        """C code with `vrex_start` (see `scheduler.start`) and `vrex_proceed`."""
        cases = [f"    case {n}: return {process.name}(m, d, b);" for n, process in enumerate(self.translated)]
        head = "static i64 execute(i64 *m, i64 *d, i64 b) {"
        execute = "\n".join([head, "    switch (m[b + 1]) {", *cases, "    }", f"    return {END};", "}"])
        texts = [process.source() for process in self.translated]
        return "\n\n".join([c_source.HEADER, *self.functions.values(), *texts, execute, EXPORTED]) + "\n"


EXPORTED = f"""/* Start with the process whose memory call was answered. Returns 0 when no process is scheduled, 1 when
   a process calls a memory model. */
i64 vrex_proceed(i64 *m, i64 *d) {{
    i64 p = {index_of("resumed", [])};
    for (;;) {{
        if (p < 0) p = following(m, d);
        if (p < 0) return 0;
        i64 wait = execute(m, d, {FRAME_AT} + p * {FRAME});
        if (wait >= 0) schedule(m, d, p, wait);
        else if (wait == {END}) release(m, d, p);
        else if (wait == {OUTSIDE}) {{ {index_of("resumed", [])} = p; return 1; }}
        else wait_for(m, d, -1 - wait, p);
        p = -1;
    }}
}}

void vrex_start(i64 *m, i64 *d, i64 c, i64 process, i64 delay, i64 w, i64 x, i64 y, i64 z) {{
    start(m, d, c, process, delay, w, x, y, z);
}}"""
