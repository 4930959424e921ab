"""A second opinion on the core's AXI ports: the public package cocotbext-axi in place of our own bench."""

import json

import numpy as np

from hw.config import Config
from hw.core.core import Core
from hw.core.isa import Command, SyncEvent, all_but
from sim.bench.build import build_settings
from sim.bench.core_run import CoreRun, built
from sim.bench.run import run_folder, run_module

SIZE = 1 << 15  # bytes of each memory
WORD = 8  # bytes
PROGRAM = SIZE // 2 // WORD  # word address of the program
COPIES = (  # source, target, words, from host, to host
    (0, 900, 300, 0, 1),
    (1000, 400, 33, 1, 0),
    (405, 1400, 7, 0, 0),
    (1399, 64, 129, 1, 1),
    (60, 1801, 200, 1, 0),
)
# Names of cocotb 1 that cocotbext-axi 0.1.28 still uses. In its simulation every other warning is an error.
DEPRECATED = (
    "The data field will be removed",
    "`task.kill()` is deprecated",
    "Use `handle.set(Immediate(...))`",
    "Use `signal.value_change` instead",
)
WARNINGS = ",".join(["error", *(f"ignore:{text}:DeprecationWarning" for text in DEPRECATED)])


def test_core_gives_same_results_with_cocotbext_axi(rng, seed):
    """Copies between both memories: cocotbext-axi, our bench and the same copies in NumPy agree on every byte."""
    memories = {side: rng.integers(0, 256, SIZE, np.uint8).tobytes() for side in ("device", "host")}
    core = Core.from_config(Config.preset("tiny"))
    case = CoreRun(core, bytearray(memories["device"]), bytearray(memories["host"]))
    names = ("source", "target", "words", "from_host", "to_host")
    program = [
        Command("COPY", dict(zip(names, copy, strict=True)), {SyncEvent.COPY: all_but()} if n else {})
        for n, copy in enumerate(COPIES)
    ]
    case.put(PROGRAM, [*program, Command("END")])
    case.run(PROGRAM, len(program) + 1)
    expected = [np.frombuffer(bytes(image), np.uint64).copy() for image in (case.device, case.host)]
    for source, target, words, from_host, to_host in COPIES:
        expected[to_host][target : target + words] = expected[from_host][source : source + words]

    folder = run_folder("cocotbext")
    for side in memories:
        (folder / f"{side}.image").write_bytes(bytes(getattr(case, side)))
    job = {"script": case.script, "memories": list(memories), "seed": seed, "stall": 0.3}
    (folder / "job.json").write_text(json.dumps(job))
    environment = {"BENCH_FOLDER": str(folder), "PYTHONWARNINGS": WARNINGS}
    simulator = built(core.config, build_settings())
    run_module(simulator, "tests.sim.bench.cocotbext_bench", folder, environment=environment)
    (outcome,) = case.outcomes(json.loads((folder / "answers.json").read_text()))
    (ours,), record = case.simulate(stall=0.3, seed=seed)
    assert outcome.done and not outcome.failed and not outcome.hung
    assert (outcome.cause, outcome.source, outcome.address) == (ours.cause, ours.source, ours.address)
    for side, image in zip(memories, expected, strict=True):
        assert (folder / f"{side}.result").read_bytes() == record.images[side] == image.tobytes(), side
