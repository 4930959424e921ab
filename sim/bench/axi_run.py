"""Simulation of designs with AXI ports as a function: memory images in, memory images out."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from sim.bench.axi import Failure, FixedTiming, Sparse
from sim.bench.build import Build, build
from sim.bench.payload import pack, unpack
from sim.bench.run import run_folder, run_module
from sim.coverage.bins import table as bins
from sim.coverage.bins.cover import Run
from util.timing import MemoryTiming


@dataclass
class Image:
    """A memory before a run: its content from address `start` on, its timing, and its failures.

    longest, outstanding : words of a burst and bursts in flight that the protocol checker allows
    stall : probability of a pause on each channel and cycle
    """

    data: bytes | bytearray | Sparse
    start: int = 0
    timing: MemoryTiming = field(default_factory=FixedTiming)
    stall: float = 0.0
    failures: Sequence[Failure] = ()
    longest: int = 256
    outstanding: int = 4096


@dataclass(frozen=True)
class AxiRecord:
    """Result of one run.

    images : every memory at the end ; outputs : payload columns of output streams ; status : other outputs
    answers : of the script's steps
    traffic : per memory, bursts and beats of each direction, most bursts in flight, addresses of bursts that failed,
    all requests: write, ID, address, words, and None at each reset
    cycles : from the first to the last beat or step ; ports : recorded ports, one integer a cycle
    """

    images: dict[str, bytearray | Sparse]
    outputs: dict[str, Any]
    status: dict[str, int]
    answers: list[Any]
    traffic: dict[str, Any]
    cycles: int
    folder: Path = field(repr=False)
    ports: dict[str, np.ndarray] = field(default_factory=dict, repr=False)


def simulate(
    component: wiring.Component,
    name: str,
    memories: Mapping[str, Image],
    *,
    inputs: Mapping[str, Any] | None = None,
    outputs: Mapping[str, int] | None = None,
    script: Sequence[Sequence[Any]] = (),
    lite: str | None = None,
    config: Mapping[str, int] | None = None,
    stall: float = 0.0,
    seed: int = 0,
    cycles: int = 0,
    timeout_cycles: int = 1_000_000,
    drain_cycles: int = 200,
    ports: Sequence[str] = (),
    waves: bool | None = None,
    made: Build | None = None,
    explain: Callable[[list[Any]], Any] | None = None,
) -> AxiRecord:
    """Run `component` with memories behind its AXI4 ports (port name -> image).

    Ports with the same `Image` object share a memory.

    Parameters
    ----------
    inputs, outputs, config, seed : as `sim.bench.run.simulate` ; stall : probability of pauses of streams and registers
    script, lite : steps as `sim.bench.axi_bench.Script` takes them, and the AXI4-Lite port they go to
    cycles : when not 0, run for this number of cycles instead of waiting for all beats
    drain_cycles : cycles after the end, after which no burst may be in flight
    ports : ports to record in every cycle ; made : the build of `component`, when there is one
    explain : function that decodes the answers, for `sim.coverage.bins`

    Raises
    ------
    SimulatorError
        The build fails, a time-out occurs, or a port violates its protocol.
    """
    members = dict(component.signature.members.items())
    shapes = {
        key: getattr(component, key).payload.shape()
        for key, member in members.items()
        if member.is_signature and isinstance(member.signature, stream.Signature)
    }
    made = made or build(component, name, waves=waves)
    plain = {key: member for key, member in members.items() if member.is_port and Shape.cast(member.shape).width}
    job: dict[str, Any] = {
        "config": {
            **dict.fromkeys((k for k, m in plain.items() if m.flow is wiring.In), 0),
            **(config or {}),
        },
        "outputs": dict(outputs or {}),
        "status": [k for k, m in plain.items() if m.flow is wiring.Out],
        "script": [list(step) for step in script],
        "lite": lite,
        "stall": stall,
        "seed": seed,
        "cycles": cycles,
        "timeout_cycles": timeout_cycles,
        "drain_cycles": drain_cycles,
        "ports": list(ports),
        "memories": {
            port: {
                "start": image.start,
                "stall": image.stall,
                "seed": seed,
                "failures": [[f.write, f.at, f.response] for f in image.failures],
                "longest": image.longest,
                "outstanding": image.outstanding,
            }
            for port, image in memories.items()
        },
    }
    folder = run_folder(name)
    try:
        data = {id(i): i.data if isinstance(i.data, Sparse) else bytearray(i.data) for i in memories.values()}
        given = {port: (data[id(image)], image.timing) for port, image in memories.items()}
        (folder / "memories.pickle").write_bytes(pickle.dumps(given))  # one pickle keeps what ports share
        stimulus: dict[str, Any] = {key: pack(shapes[key], columns) for key, columns in (inputs or {}).items()}
        np.savez(folder / "stimulus.npz", **stimulus)
        (folder / "job.json").write_text(json.dumps(job))
        run_module(made, "sim.bench.axi_bench", folder, environment={"BENCH_FOLDER": str(folder)})
        with np.load(folder / "record.npz") as record:
            found = AxiRecord(
                images=pickle.loads((folder / "images.pickle").read_bytes()),
                outputs={key: unpack(shapes[key], record[f"words.{key}"]) for key in job["outputs"]},
                status={key: int(str(record[f"status.{key}"])) for key in job["status"]},
                answers=json.loads(str(record["answers"])),
                traffic={port: json.loads(str(record[f"traffic.{port}"])) for port in memories},
                cycles=int(record["span"][1] - record["span"][0]),
                folder=folder,
                ports={
                    key: np.array([int.from_bytes(row.tobytes(), "little") for row in record[f"ports.{key}"]], object)
                    for key in ports
                },
            )
        if made.coverage:
            pauses = bool(stall) or any(image.stall for image in memories.values())
            bins.write(
                name,
                Run(
                    component=component,
                    config=config or {},
                    inputs=inputs or {},
                    outputs=found.outputs,
                    status=found.status,
                    reset=int(["reset"] in job["script"]),
                    pauses=frozenset(("source", "sink") if pauses else ()),
                    more=explain(found.answers) if explain else None,
                ),
                folder,
            )
        return found
    finally:
        if not made.waves and not made.coverage and (folder / "record.npz").exists():
            shutil.rmtree(folder)
