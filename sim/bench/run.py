"""RTL as a function: payload columns in, payload columns out, through cocotb and a real simulator."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from sim.bench.build import Build, SimulatorError, build, build_root
from sim.bench.override import current_simulator_override
from sim.bench.payload import pack, unpack
from sim.coverage.bins import table as bins
from sim.coverage.bins.cover import Run
from util.files import ROOT

_SIMULATOR_ENVIRONMENT = {
    "PYTHONWARNINGS": "",
    # With assertion rewriting, pytest reads the nearest pyproject.toml above the run folder and puts its `pythonpath`
    # first: a run folder in another checkout would import that checkout's bench. Without it a run starts 1 s faster.
    "COCOTB_REWRITE_ASSERTION_FILES": "",
}


@dataclass(frozen=True)
class Record:
    """What one run produced.

    Attributes
    ----------
    outputs : unpacked payload columns of every output stream
    cycles : clock cycle of each transfer, for every stream
    status : value of every other output port (`stat_*`) at the end
    folder : where logs and waveforms are
    ports : with `record_ports`, every port but the clock: uint8 (cycles, width), the bits that each clock edge of the
        run met, from the reset on
    """

    outputs: dict[str, Any]
    cycles: dict[str, np.ndarray]
    status: dict[str, int]
    folder: Path = field(repr=False)
    ports: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class InTurns:
    """Pauses that change sides: so many cycles nobody, the inputs, the outputs, all; the seed says who starts.

    Half of the outputs' pauses begin before the beat is offered, however long that takes, so that it meets them.
    """

    probability: float
    cycles: int = 64


def simulate(
    component: wiring.Component,
    name: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, int],
    *,
    config: Mapping[str, int] | None = None,
    stall: float | InTurns | Mapping[str, float] = 0.0,
    seed: int = 0,
    simulator: str | None = None,
    waves: bool | None = None,
    coverage: bool | None = None,
    timeout_cycles: int = 10_000_000,
    drain_cycles: int = 8,
    reset_after: int | Sequence[int] = 0,
    echo: Mapping[str, str] | None = None,
    record_ports: bool = False,
) -> Record:
    """Run `component` in a simulator: send `inputs`, take exactly `outputs[stream]` beats from each output stream.

    Parameters
    ----------
    inputs : for every input stream, its payload columns as `sim.bench.payload.pack` takes them
    outputs : number of beats expected from every output stream; one more is an error
    config : values of the `cfg_*` ports, constant through the run; 0 where not given
    stall : probability that a cycle pauses a stream, for all streams or by stream, or for the sides in turns
    seed : of the random pauses
    timeout_cycles, drain_cycles : longest run; cycles after the last beat in which none may follow
    echo : input streams that answer an output stream, beat for beat, with the fields of the same names
    reset_after : when not 0, everything runs that many cycles first, is reset in mid-flight and starts over; with
        several, that often, and the beats before a reset have to come again, with every bit of their payloads
    record_ports : also record every port in every cycle

    Raises
    ------
    SimulatorError
        When the build fails, beats are missing or too many, or the stream protocol is broken.
    """
    members = dict(component.signature.members.items())
    streams = {k: m for k, m in members.items() if m.is_signature and isinstance(m.signature, stream.Signature)}
    echo = dict(echo or {})
    resets = [reset_after] * bool(reset_after) if isinstance(reset_after, int) else list(reset_after)
    for given, flow in (((*inputs, *echo), wiring.In), (outputs, wiring.Out)):
        ports = {key for key, member in streams.items() if member.flow is flow}
        if set(given) != ports:
            raise ValueError(f"streams given {sorted(given)}: must be {sorted(ports)}")
    shapes = {key: getattr(component, key).payload.shape() for key in streams}
    widths = {**_ports(component), "rst": 1}
    settings = dict(config or {})
    if unknown := settings.keys() - members.keys():
        raise ValueError(f"config names {sorted(unknown)}, which {name} has not")
    made = build(component, name, simulator=simulator, waves=waves, coverage=coverage)
    pauses = (stall.probability, stall.cycles, seed % 4) if isinstance(stall, InTurns) else stall
    job: dict[str, Any] = {
        "config": {
            **dict.fromkeys((k for k, m in members.items() if m.is_port and m.flow is wiring.In), 0),
            **settings,
        },
        "outputs": dict(outputs),
        "status": [k for k, m in members.items() if m.is_port and m.flow is wiring.Out],
        "stall": dict(stall) if isinstance(stall, Mapping) else dict.fromkeys(streams, pauses),
        "seed": seed,
        "timeout_cycles": timeout_cycles,
        "drain_cycles": drain_cycles,
        "reset_after": resets,
        "repeats": not isinstance(reset_after, int),
        "ports": [*_ports(component), "rst"] if record_ports else [],
        "echo": {answer: [asked, _common_fields(shapes[asked], shapes[answer])] for answer, asked in echo.items()},
    }
    folder = run_folder(name)
    try:
        stimulus: dict[str, Any] = {key: pack(shapes[key], columns) for key, columns in inputs.items()}
        np.savez(folder / "stimulus.npz", **stimulus)
        (folder / "job.json").write_text(json.dumps(job))
        run_module(made, "sim.bench.stream_bench", folder, environment={"BENCH_FOLDER": str(folder)})
        with np.load(folder / "record.npz") as record:
            found = Record(
                outputs={key: unpack(shapes[key], record[f"words.{key}"]) for key in outputs},
                cycles={key: record[f"cycles.{key}"] for key in streams},
                status={key: int(record[f"status.{key}"]) for key in job["status"]},
                folder=folder,
                ports={
                    key: np.unpackbits(record[f"ports.{key}"], axis=1, bitorder="little", count=widths[key])
                    for key in job["ports"]
                },
            )
        if made.coverage:
            bins.write(
                name,
                Run(
                    component=component,
                    config=settings,
                    inputs=inputs,
                    outputs=found.outputs,
                    status=found.status,
                    cycles=found.cycles,
                    stall=job["stall"],
                    reset=sum(resets),
                ),
                folder,
            )
        return found
    finally:
        if not made.waves and not made.coverage and (folder / "record.npz").exists():
            shutil.rmtree(folder)


def _common_fields(asked: Any, answer: Any) -> list[tuple[int, int, int]]:
    """(offset, offset, width) of the fields that two layouts share."""
    return [(asked[n].offset, f.offset, f.width) for n, f in answer if n in dict(iter(asked))]


def _ports(component: wiring.Component) -> dict[str, int]:
    """Width of every port by its name in Verilog; a port without bits is none."""
    flat = component.signature.flatten(component)
    widths = {"__".join(map(str, path)): Shape.cast(member.shape).width for path, member, _ in flat}
    return {name: width for name, width in widths.items() if width}


def run_folder(name: str) -> Path:
    """A fresh folder for one run, in `$VREX_RUNS` or among the builds; it stays only when it is worth a look."""
    root = Path(os.environ.get("VREX_RUNS") or build_root() / "runs")
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))


def run_module(made: Build, module: str, folder: Path, *, environment: Mapping[str, str] | None = None) -> None:
    """Run every cocotb test of Python module `module` on the build; raises `SimulatorError` when one fails."""
    (current_simulator_override() or run_process)(made, module, folder, environment or {})


def run_process(made: Build, module: str, folder: Path, environment: Mapping[str, str]) -> None:
    """As `run_module`, in a simulator process of its own."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    made.runner.build_dir = made.folder
    try:
        results = made.runner.test(
            hdl_toplevel=made.name,
            hdl_toplevel_lang="verilog",
            test_module=module,
            build_dir=made.folder,
            test_dir=folder,
            waves=made.waves,
            plusargs=[f"+dumpfile_path={folder / 'dump.fst'}"] if made.simulator == "icarus" else [],
            extra_env={**_SIMULATOR_ENVIRONMENT, "PYTHONPATH": path, **environment},
            results_xml=str(folder / "results.xml"),
            log_file=folder / "run.log",
        )
    except (SystemExit, RuntimeError) as error:
        raise SimulatorError(f"{made.name}: the simulation did not finish\n{_tail(folder)}") from error
    cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    if failed or not cases:
        raise SimulatorError(f"{made.name}: failed {failed or 'to run a test'} in {folder}\n{_tail(folder)}")


def _tail(folder: Path, lines: int = 25) -> str:
    log = folder / "run.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else f"no log in {folder}"
