"""Formal proofs: properties of a component that hold for all inputs, in a number of cycles or for all time.

A specification is a component that contains the unit under proof and states properties with Amaranth's `Assert` and
what it relies on with `Assume`. Its output ports `cover_*` say what must be able to happen, so that no proof is
empty. Reset is an input like any other: a property holds across resets too.

The engine is abc, which is part of yosys: `pdr` (property-directed reachability) for all time, which finds its own
inductive invariant, and `bmc3` for a number of cycles and for what must be reached.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from amaranth.back import rtlil
from amaranth.lib import wiring

from hw import yosys

Progress = Callable[[str, int, int], None]  # what, done, total (0: unknown)
COVER = "cover_"
# one flat module, memories as registers; then gates, asserts or else outputs as what must not happen
_FLAT = ("flatten", "memory_map", "async2sync", "chformal -lower", "opt -full")
_GATES = ("setundef -undriven -anyseq", "techmap", "opt -fast", "dffunmap", "simplemap", "aigmap", "opt_clean")
_NOTHING = "module nothing(input a, input b, output y); assign y = a & b; endmodule"


class FormalError(RuntimeError):
    """A property does not hold, or something that must be able to happen cannot; the message says which."""


@dataclass(frozen=True)
class Proof:
    """What was shown.

    Attributes
    ----------
    name : of the specification
    depth : every property holds in the first `depth` cycles, for all inputs; None: in all cycles
    covers : what can happen, with the cycle in which it first does
    seconds : time taken
    """

    name: str
    depth: int | None
    covers: dict[str, int]
    seconds: float


def prove(
    component: wiring.Component,
    name: str,
    *,
    depth: int | None = None,
    cover_depth: int = 50,
    timeout_s: int = 600,
    tool: str = "yowasp",
    progress: Progress | None = None,
) -> Proof:
    """Prove every `Assert` of `component`, and that each of its outputs `cover_*` can become 1.

    Parameters
    ----------
    depth : cycles of a bounded proof; None: for all time
    cover_depth : cycles within which every cover must be reached
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
        raise ValueError(f"depth = {depth}: must be at least 1")
    start = time.monotonic()
    report = progress or (lambda what, done, total: None)
    covers = [port for port in component.signature.members if port.startswith(COVER)]
    with tempfile.TemporaryDirectory(prefix="formal-") as text:
        engine = _Engine(Path(text), name, timeout_s, tool)
        (engine.folder / "design.il").write_text(rtlil.convert(component, name=name, platform="formal", emit_src=False))
        report(f"{name}: properties", 0, 1 + len(covers))
        engine.graph("asserts", ["delete -output o:*"], "-B")
        verdict, cycle = engine.run("asserts", "pdr" if depth is None else f"bmc3 -F {depth}")
        held = verdict == "snl_UNSAT" or (depth is not None and verdict == "snl_UNK" and cycle >= depth - 1)
        if not held:
            why = f"fails in cycle {cycle}" if verdict == "snl_SAT" else f"is not decided within {timeout_s} s"
            raise FormalError(f"{name}: a property {why}{engine.counterexample('asserts')}")
        bound, reached = None if verdict == "snl_UNSAT" else depth, {}
        for n, port in enumerate(covers):
            report(f"{name}: {port}", 1 + n, 1 + len(covers))
            engine.graph(port, ["delete t:$assert", f"delete -output o:* o:{port} %d"])
            verdict, cycle = engine.run(port, f"bmc3 -F {cover_depth}")
            if verdict != "snl_SAT":
                raise FormalError(f"{name}: {port} is not reached within {cover_depth} cycles")
            reached[port.removeprefix(COVER)] = cycle
        report(name, 1 + len(covers), 1 + len(covers))
    return Proof(name, bound, reached, time.monotonic() - start)


@dataclass(frozen=True)
class _Engine:
    """abc on the design in `folder`."""

    folder: Path
    name: str
    timeout_s: int
    tool: str

    def graph(self, file: str, commands: list[str], options: str = "") -> None:
        """Write the design after `commands` as an and-inverter graph."""
        load = [f"read_rtlil {self.folder}/design.il", f"prep -top {self.name}", *_FLAT, "delete t:$cover"]
        out = f"write_aiger -I {options} -zinit -map {self.folder}/{file}.aim {self.folder}/{file}.aig"
        yosys.run([*load, *commands, "opt_clean", *_GATES, out], tool=self.tool)

    def run(self, file: str, solve: str) -> tuple[str, int]:
        """abc's verdict, and the cycle that belongs to it."""
        (self.folder / "nothing.v").write_text(_NOTHING)
        status, trace = self.folder / f"{file}.status", self.folder / f"{file}.aiw"
        commands = ("read_aiger %s.aig", "fold", "orpos", f"{solve} -T {self.timeout_s}", "write_status %s.status")
        script = ";".join(command.replace("%s", str(self.folder / file)) for command in commands)
        # abc works on the graph in place of the network that yosys hands it, and gives that back untouched
        script = f"+backup;{script};write_cex -a {trace};restore".replace(" ", ",")
        yosys.run([f"read_verilog {self.folder}/nothing.v", "techmap", f"abc -script {script}"], tool=self.tool)
        words = status.read_text().split("\n")[0].split()
        return words[0], int(words[-1] if words[0] == "snl_SAT" else words[1])

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
