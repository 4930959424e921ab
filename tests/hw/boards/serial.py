"""A session of the host program with the Verilog of a board's top level."""

import json

from hw.boards.serial_host import SerialHost
from sim.bench.build import build
from sim.bench.run import run_folder, run_module
from synth.board import description

DIVISOR, PATIENCE = 4, 4000


def talk(unit, on_board, on_host, *, patience=PATIENCE, **job):
    """Beats by output stream and the error message, with the vectors `on_board` and `on_host` at the two ends.

    `job` changes the job of `uart_bench`.
    """
    program = build(SerialHost(unit, on_board, divisor=DIVISOR, patience=patience), "hosted")
    folder = run_folder("hosted")
    host_description = description(unit, on_host, baud=0)
    settings = {"divisor": DIVISOR, "patience": patience, "limit_cycles": 3_000_000, "interrupt": "", "broken": 0}
    (folder / "job.json").write_text(json.dumps({"description": host_description, **settings, **job}))
    run_module(program, "tests.hw.boards.uart_bench", folder, environment={"BENCH_JOB": str(folder / "job.json")})
    result = json.loads((folder / "result.json").read_text())
    return result["beats"], result["problem"]
