"""Simulation of a unit as a function: payload columns in, payload columns out, with cocotb and a simulator."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from hw.axi.ports import JOB
from sim.bench.build import Build, SimulatorError, build, build_root
from sim.bench.override import current_simulator_override
from sim.bench.payload import pack, unpack
from sim.coverage.bins import table as bins
from sim.coverage.bins.cover import Run
from util.files import ROOT

MEMORY_STREAMS = ("read_job", "read_words", "write_job", "write_words")
# Verilator delays writes to the end of a time step itself. Otherwise cocotb queues them, and its clock is Python code.
_VERILATOR_ENVIRONMENT = {"COCOTB_TRUST_INERTIAL_WRITES": "1"}
_SIMULATOR_ENVIRONMENT = {
    "PYTHONWARNINGS": "",
    # With assertion rewriting, pytest reads the nearest pyproject.toml above the run folder and puts its `pythonpath`
    # first: a run folder in another checkout would import that checkout's bench. Without it a run starts 1 s faster.
    "COCOTB_REWRITE_ASSERTION_FILES": "",
}


@dataclass(frozen=True)
class Record:
    """Result of one run.

    Attributes
    ----------
    outputs : payload columns of every output stream
    cycles : clock cycle of each transfer of every stream
    status : value of every other output port (`stat_*`) at the end
    folder : folder with logs and waveforms
    ports : with `record_ports`, the recorded ports, never the clock: uint8 (cycles, width), the bits at each clock edge
        from the reset on
    memory : with `memory`, its `image` at the end, and the record of its writes, see `JobMemory`
    """

    outputs: dict[str, Any]
    cycles: dict[str, np.ndarray]
    status: dict[str, int]
    folder: Path = field(repr=False)
    ports: dict[str, np.ndarray] = field(default_factory=dict, repr=False)
    memory: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class InTurns:
    """Pauses in four phases of `cycles` each: none, inputs, outputs, both; the seed selects the first phase.

    Half of the outputs' pauses begin before a beat is offered, so that rare beats also meet a pause.
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
    record_ports: bool | Sequence[str] = False,
    memory: np.ndarray | None = None,
    memory_latency: tuple[int, int] = (1, 1),
) -> Record:
    """Run `component` in a simulator: send `inputs`, receive exactly `outputs[stream]` beats of each output stream.

    Parameters
    ----------
    inputs : payload columns of every input stream, as in `sim.bench.payload.pack`
    outputs : number of beats of every output stream; one more is an error
    config : values of the `cfg_*` ports, constant during the run; default 0
    stall : probability that a cycle pauses a stream, for all streams or by stream, or `InTurns`
    seed : seed of the random pauses
    timeout_cycles, drain_cycles : longest run; cycles after the last beat in which no beat may follow
    echo : input streams that answer each beat of an output stream with the fields of the same names
    reset_after : number of cycles after which the run is reset and starts again; a sequence gives several resets, and
        every beat before a reset must repeat after it with the same payload
    record_ports : record every port in every cycle, or the named ones
    memory : image of the memory behind the jobs of the unit, see `sim.bench.job_memory.JobMemory`
    memory_latency : smallest and largest latency of this memory in cycles

    Raises
    ------
    SimulatorError
        The build fails, the number of beats differs, or a stream violates the protocol.
    """
    members = dict(component.signature.members.items())
    streams = {k: m for k, m in members.items() if m.is_signature and isinstance(m.signature, stream.Signature)}
    echo = dict(echo or {})
    served = () if memory is None else MEMORY_STREAMS
    resets = [reset_after] * bool(reset_after) if isinstance(reset_after, int) else list(reset_after)
    for names, flow in (((*inputs, *echo), wiring.In), (outputs, wiring.Out)):
        ports = {key for key, member in streams.items() if member.flow is flow and key not in served}
        if set(names) != ports:
            raise ValueError(f"streams must be {sorted(ports)}, got {sorted(names)}")
    shapes = {key: getattr(component, key).payload.shape() for key in streams}
    widths = {**_ports(component), "rst": 1}
    settings = dict(config or {})
    if unknown := settings.keys() - members.keys():
        raise ValueError(f"config must name ports of {name}, got {sorted(unknown)}")
    simulator_build = build(component, name, simulator=simulator, waves=waves, coverage=coverage)
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
        "memory_latency": None if memory is None else memory_latency,
        "job_fields": {str(name): (field.offset, field.width) for name, field in JOB},
        "repeats": not isinstance(reset_after, int),
        "ports": list(widths if record_ports is True else record_ports or ()),
        "echo": {answer: [source, _common_fields(shapes[source], shapes[answer])] for answer, source in echo.items()},
    }
    folder = run_folder(name)
    try:
        stimulus: dict[str, Any] = {key: pack(shapes[key], columns) for key, columns in inputs.items()}
        np.savez(folder / "stimulus.npz", **stimulus)
        if memory is not None:
            np.save(folder / "memory.npy", memory)
        (folder / "job.json").write_text(json.dumps(job))
        run_module(simulator_build, "sim.bench.stream_bench", folder, environment={"BENCH_FOLDER": str(folder)})
        with np.load(folder / "record.npz") as record:
            result = Record(
                outputs={key: unpack(shapes[key], record[f"words.{key}"]) for key in outputs},
                cycles={key: record[f"cycles.{key}"] for key in streams if key not in served},
                status={key: int(record[f"status.{key}"]) for key in job["status"]},
                folder=folder,
                ports={
                    key: np.unpackbits(record[f"ports.{key}"], axis=1, bitorder="little", count=widths[key])
                    for key in job["ports"]
                },
                memory={key.removeprefix("memory."): record[key] for key in record if key.startswith("memory.")},
            )
        if simulator_build.coverage:
            bins.write(
                name,
                Run(
                    component=component,
                    config=settings,
                    inputs=inputs,
                    outputs=result.outputs,
                    status=result.status,
                    cycles=result.cycles,
                    stall=job["stall"],
                    reset=sum(resets),
                ),
                folder,
            )
        return result
    finally:
        if not simulator_build.waves and not simulator_build.coverage and (folder / "record.npz").exists():
            shutil.rmtree(folder)


def _common_fields(source: Any, answer: Any) -> list[tuple[int, int, int]]:
    """(offset, offset, width) of the fields that two layouts share."""
    return [(source[n].offset, f.offset, f.width) for n, f in answer if n in dict(iter(source))]


def _ports(component: wiring.Component) -> dict[str, int]:
    """Width of every port with at least one bit, by its name in Verilog."""
    flat = component.signature.flatten(component)
    widths = {"__".join(map(str, path)): Shape.cast(member.shape).width for path, member, _ in flat}
    return {name: width for name, width in widths.items() if width}


def run_folder(name: str) -> Path:
    """New folder of one run, in `$VREX_RUNS` or in the build folder; kept on failure, with waves and with coverage."""
    root = Path(os.environ.get("VREX_RUNS") or build_root() / "runs")
    root.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root))


def run_module(
    simulator_build: Build, module: str, folder: Path, *, environment: Mapping[str, str] | None = None
) -> None:
    """Run every cocotb test of Python module `module` on the build; raises `SimulatorError` if one fails."""
    (current_simulator_override() or run_process)(simulator_build, module, folder, environment or {})


def run_process(simulator_build: Build, module: str, folder: Path, environment: Mapping[str, str]) -> None:
    """As `run_module`, always in a new process. With `VREX_PROGRESS` set, lines of its log are printed on stderr."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    simulator_build.runner.build_dir = simulator_build.folder
    try:
        with _progress(folder / "run.log"):
            results = simulator_build.runner.test(
                hdl_toplevel=simulator_build.name,
                hdl_toplevel_lang="verilog",
                test_module=module,
                build_dir=simulator_build.folder,
                test_dir=folder,
                waves=simulator_build.waves,
                plusargs=[f"+dumpfile_path={folder / 'dump.fst'}"] if simulator_build.simulator == "icarus" else [],
                extra_env={
                    **_SIMULATOR_ENVIRONMENT,
                    **(_VERILATOR_ENVIRONMENT if simulator_build.simulator == "verilator" else {}),
                    "PYTHONPATH": path,
                    **environment,
                },
                results_xml=str(folder / "results.xml"),
                log_file=folder / "run.log",
            )
    except (SystemExit, RuntimeError) as error:
        raise SimulatorError(f"{simulator_build.name}: the simulation did not finish\n{_tail(folder)}") from error
    cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [c.get("name") for c in cases if c.find("failure") is not None or c.find("error") is not None]
    if failed or not cases:
        raise SimulatorError(f"{simulator_build.name}: failed {failed or 'to run a test'} in {folder}\n{_tail(folder)}")


@contextmanager
def _progress(log: Path) -> Iterator[None]:
    """Print on stderr the lines about cycles that a simulator appends to its log, if `VREX_PROGRESS` is set."""
    if not os.environ.get("VREX_PROGRESS"):
        yield
        return
    ended = threading.Event()

    def follow() -> None:
        shown = 0
        while not ended.wait(5):
            lines = [line for line in log.read_text().splitlines() if " cycle " in line] if log.exists() else []
            for line in lines[shown:]:
                print(line[line.index("INFO") + 4 :].split(maxsplit=1)[1], file=sys.stderr, flush=True)
            shown = len(lines)

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        ended.set()
        follower.join()


def _tail(folder: Path, lines: int = 25) -> str:
    log = folder / "run.log"
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else f"no log in {folder}"
