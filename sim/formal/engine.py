"""Proof engine: properties of a component for all inputs, in a number of cycles or in all cycles.

A specification is a component that contains the unit under proof. It states properties with Amaranth's `Assert` and
assumptions with `Assume`. Its output ports `cover_*` name events that must be reachable, which shows that the proof is
not vacuous. Reset is a free input, so a property also holds across resets.

The engine is abc, which is part of yosys: `pdr` (property-directed reachability) for all time, which finds its own
inductive invariant; `ind` for all time, where the properties are inductive (k-induction); `bmc3` for a number of cycles
and for covers. `sim.formal.claims` lists the claims of each unit.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from amaranth.lib import wiring

from hw import yosys
from hw.emit import to_rtlil
from sim.formal.claims import claims
from sim.formal.specifications.common import StreamContract
from util.progress import Progress, no_progress

COVER = "cover_"
SLOW_TIMEOUT_S = 1500
# memories as registers, or as free inputs on every read
_MEMORIES = {False: ("memory_map",), True: ("memory_nordff", "cutpoint t:$mem_v2")}
_GATES = (
    *("async2sync", "chformal -lower", "opt -full", "setundef -undriven -anyseq", "techmap", "opt -fast"),
    *("dffunmap", "simplemap", "aigmap", "opt_clean"),
)
_UNROLLED = "frames -i -F {};orpos;ifraig;sat -C 2000000"
_NOTHING = "module nothing(input a, input b, output y); assign y = a & b; endmodule"


class FormalError(RuntimeError):
    """A property fails or is undecided, or a cover is not reached; the message names it."""


@dataclass(frozen=True)
class Proof:
    """Result of one proof.

    Attributes
    ----------
    name : name of the specification
    claim : the first line of its docstring
    depth : every property holds in the first `depth` cycles, for all inputs; None: in all cycles
    covers : first cycle of every cover
    seconds : run time
    """

    name: str
    claim: str
    depth: int | None
    covers: dict[str, int]
    seconds: float

    @property
    def kind(self) -> str:
        """`induction` or `bounded`."""
        return "induction" if self.depth is None else "bounded"


def prove(
    component: wiring.Component,
    name: str,
    *,
    depth: int | None = None,
    steps: int | None = None,
    unroll: bool = False,
    cover_depth: int = 50,
    any_memory: bool = False,
    timeout_s: int = 600,
    tool: str = "yowasp",
    progress: Progress = no_progress,
) -> Proof:
    """Prove every `Assert` of `component`, and that each of its outputs `cover_*` can become 1.

    Parameters
    ----------
    depth : cycles of a bounded proof; None: for all time
    steps : (for all time) k of a k-induction: the properties themselves are its invariant; None: abc finds one
    unroll : (with `depth`) for comparisons with a specification: all cycles become one combinational circuit, in which
        equal nodes are merged before its last outputs are proved; no time limit
    cover_depth : cycles within which every cover must be reached; of a bounded proof those of the proof
    any_memory : whatever memories give when they are read, be it what the unit would never write; also for the covers
    timeout_s : longest time for each of these
    tool : yosys build, as `hw.yosys.run` takes it

    Raises
    ------
    ValueError
        When `depth` is not positive.
    FormalError
        When a property fails or is not decided, or a cover is not reached; the inputs of a counterexample stay in
        `build/formal/NAME.txt`.
    """
    if depth is not None and depth < 1:
        raise ValueError(f"depth must be at least 1, got {depth}")
    start = time.monotonic()
    covers = [port for port in component.signature.members if port.startswith(COVER)]
    with tempfile.TemporaryDirectory(prefix="formal-") as text:
        engine = _Engine(Path(text), name, timeout_s, tool)
        (engine.folder / "design.il").write_text(to_rtlil(component, name))
        progress(f"{name}: gates", 0, 3)
        engine.graphs(covers, any_memory)
        progress(f"{name}: properties", 1, 3)
        bound, within = depth or steps, depth or cover_depth
        verdict, cycle = "snl_UNK", 0
        if unroll:
            ((verdict, _),) = solve([engine.folder / "asserts"], _UNROLLED.format(depth), tool=tool)
        if verdict != "snl_UNSAT":
            ((verdict, cycle),) = engine.solve(["asserts"], f"bmc3 -F {bound}" if bound else "pdr")
        held = verdict == "snl_UNSAT" or (bound is not None and verdict == "snl_UNK" and cycle >= bound - 1)
        if held and steps:
            ((verdict, cycle),) = engine.solve(["asserts"], f"ind -C 0 -F {steps}")
            held = verdict == "snl_UNSAT"
        if not held:
            why = f"fails in cycle {cycle}" if verdict == "snl_SAT" else f"is not decided within {timeout_s} s"
            raise FormalError(f"{name}: a property {why}{engine.counterexample('asserts')}")
        reached: dict[str, int] = {}
        progress(f"{name}: covers", 2, 3)
        for port, (verdict, cycle) in zip(covers, engine.solve(covers, f"bmc3 -F {within}"), strict=True):
            if verdict != "snl_SAT":
                raise FormalError(f"{name}: {port} is not reached within {within} cycles")
            reached[port.removeprefix(COVER)] = cycle
        progress(name, 3, 3)
    claim = (component.__doc__ or "").partition("\n")[0]
    return Proof(name, claim, depth, reached, time.monotonic() - start)


def prove_unit(
    name: str, *, quick: bool = False, tool: str = "yowasp", progress: Progress = no_progress
) -> Iterator[Proof]:
    """Prove what `sim.formal.claims` claims of the unit called `name`, one after the other.

    Parameters
    ----------
    quick : leave out the claims that take minutes
    tool : yosys build, as `hw.yosys.run` takes it

    Raises
    ------
    ValueError
        For an unknown unit, with the valid names.
    FormalError
        As `prove` does; also when a stream's valid or payload depends on a ready without a register between.
    """
    selected = [claim for claim in claims(name) if not (quick and claim.slow)]
    for n, claim in enumerate(selected):
        progress(f"{name}: {claim.name}", n, len(selected))
        spec = claim.build()
        if isinstance(spec, StreamContract):
            no_loops(spec.unit, name, tool=tool)
        yield prove(
            spec,
            f"{name}_{claim.name}",
            depth=claim.depth,
            steps=claim.steps,
            unroll=claim.unroll,
            any_memory=claim.any_memory,
            timeout_s=SLOW_TIMEOUT_S,
            tool=tool,
        )
    progress(name, len(selected), len(selected))


def no_loops(component: wiring.Component, name: str, *, tool: str = "yowasp") -> None:
    """Check that no output stream's valid or payload depends on any ready within a cycle.

    Then units can be connected in any way without a combinational loop. Raises `FormalError` that names the two.
    """
    with tempfile.TemporaryDirectory(prefix="formal-") as text:
        engine = _Engine(Path(text), name, SLOW_TIMEOUT_S, tool)
        (engine.folder / "design.il").write_text(to_rtlil(component, name))
        for out, sources in engine.sources().items():
            if out.endswith(("__valid", "__payload")) and (bad := [s for s in sources if s.endswith("__ready")]):
                raise FormalError(f"{name}: {out} depends on {bad[0]} within a cycle")


@dataclass(frozen=True)
class _Engine:
    """abc on the design in `folder`."""

    folder: Path
    name: str
    timeout_s: int
    tool: str

    def graphs(self, covers: Sequence[str], any_memory: bool) -> None:
        """Write and-inverter graphs: `asserts`, and one for each cover."""
        asserts = ["delete -output o:*", *_MEMORIES[any_memory], "opt_clean", *_GATES, self._write("asserts", "-B")]
        reach = ["chformal -assert -remove", f"delete -output o:* o:{COVER}* %d", *_MEMORIES[any_memory], *_GATES]
        each = []
        for port in covers:
            each += ["design -load reach", f"delete -output o:* o:{port} %d", "opt_clean", self._write(port)]
        split = ["design -save flat", *asserts, "design -load flat", *reach, "design -save reach", *each]
        yosys.run([*self._load(), *(split if covers else asserts)], tool=self.tool)

    def sources(self) -> dict[str, set[str]]:
        """For each output the inputs that reach it without a register."""
        target = self.folder / "all"
        commands = [
            *self._load(),
            *_MEMORIES[False],
            *_GATES,
            f"write_aiger -I -ascii -zinit -map {target}.aim {target}",
        ]
        yosys.run(commands, tool=self.tool)
        lines = target.read_text().splitlines()
        _, inputs, latches, outputs, gates = map(int, lines[0].split()[1:6])
        rows = [[int(word) for word in line.split()] for line in lines[1 : 1 + inputs + latches + outputs + gates]]
        names: dict[str, dict[int, str]] = {"input": {}, "output": {}}
        for words in map(str.split, Path(f"{target}.aim").read_text().splitlines()):
            if words[0] in names:
                names[words[0]][int(words[1])] = words[3]
        reach: dict[int, set[str]] = {row[0] >> 1: {names["input"].get(n, "")} for n, row in enumerate(rows[:inputs])}
        for gate, *ends in rows[inputs + latches + outputs :]:  # in topological order
            reach[gate >> 1] = set().union(*(reach.get(end >> 1, set()) for end in ends))
        result: dict[str, set[str]] = {}
        for n, (end,) in enumerate(rows[inputs + latches : inputs + latches + outputs]):
            if n in names["output"]:
                result.setdefault(names["output"][n], set()).update(reach.get(end >> 1, set()))
        return result

    def _load(self) -> list[str]:
        return [f"read_rtlil {self.folder}/design.il", "techmap t:$fa", f"prep -flatten -top {self.name}"]

    def _write(self, file: str, options: str = "") -> str:
        graph = self.folder / file
        return f"write_aiger -I {options} -zinit -map {graph}.aim {graph}.aig"

    def solve(self, files: Sequence[str], command: str) -> list[tuple[str, int]]:
        return solve([self.folder / file for file in files], f"{command} -T {self.timeout_s}", tool=self.tool)

    def counterexample(self, file: str) -> str:
        """Write down the inputs that break a property, cycle by cycle; where, for a message."""
        trace = self.folder / f"{file}.aiw"
        if not trace.exists():
            return ""
        bits = [line.split() for line in (self.folder / f"{file}.aim").read_text().splitlines()]
        inputs = {int(at): (name, int(bit)) for at, bit, name in (b[1:] for b in bits if b[0] == "input")}
        lines = []
        rows = [line for line in trace.read_text().splitlines()[1:] if not line.startswith("#")]  # after the registers
        for cycle, row in enumerate(rows):
            values = {name: 0 for name, _ in inputs.values() if name != "clk"}
            for at, value in enumerate(row):
                name, bit = inputs.get(at, ("", 0))
                if value == "1" and name in values:
                    values[name] |= 1 << bit
            lines.append(f"{cycle:4} " + " ".join(f"{name}={value}" for name, value in values.items()))
        target = Path("build/formal").absolute() / f"{self.name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines) + "\n")
        return f" (inputs: {target})"


def solve(graphs: Sequence[Path], command: str, *, tool: str) -> list[tuple[str, int]]:
    """abc's verdict on each graph (a path without its `.aig`), and the cycle that belongs to it, -1 for none."""
    if not graphs:
        return []
    nothing = graphs[0].with_name("nothing.v")
    nothing.write_text(_NOTHING)
    script = "+backup"
    for graph in graphs:
        script += f";read_aiger {graph}.aig;fold;orpos;{command}"
        script += f";write_status {graph}.status;write_cex -a {graph}.aiw"
    # abc works on the graphs instead of the network that yosys passes; the network is returned unchanged
    script = f"{script};restore".replace(" ", ",")
    yosys.run([f"read_verilog {nothing}", "techmap", f"abc -script {script}"], tool=tool)
    result = []
    for graph in graphs:
        words = graph.with_suffix(".status").read_text().split("\n")[0].split()
        cycle = words[-1] if words[0] == "snl_SAT" else words[1]
        result.append((words[0], -1 if cycle == "unknown" else int(cycle)))
    return result
