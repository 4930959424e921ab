"""Speed of the cycle model: a frame of Llama-3-8B on the cores of V-Rex8, and the model before.

python -m tests.sw_model.bench_frame [past tokens] [layers] simulates a frame; by default 40,000 tokens and 32 layers.
python -m tests.sw_model.bench_frame --before COMMIT compares the processes in Python of a commit up to 09824d2 with the
compiled ones: the same commands of one core, with the device memory of V-Rex8.
"""

import pickle
import subprocess
import sys
import tarfile
import tempfile
import time
from io import BytesIO
from pathlib import Path

from hw.core.isa import Command
from sw_model.cycles.core import CoreModel
from sw_model.cycles.frame import BASES, Programs, compile_step
from sw_model.cycles.workload_step import workload_step
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from sw_model.papers.program_runs import step_numbers, timing
from sw_model.papers.programs import Point
from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B
from util.files import ROOT

SYSTEM = "vrex8"
COMMANDS = 60  # of the first core, for the comparison
OLD = """
import pickle, sys, time
sys.path.insert(0, sys.argv[1])
from sw_model.cycles.core import CoreModel
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
timing = {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}
config, address, program, instructions, bases = pickle.load(open(sys.argv[2], "rb"))
model = CoreModel(config, timing, bases, instructions)
start = time.process_time()
print(model.run(address, program), time.process_time() - start)
"""


def memories() -> dict[str, DramTiming | PcieTiming]:
    """Device memory and host link of V-Rex8."""
    return {"device": DramTiming(load_memory("lpddr5-6400-256b")), "host": PcieTiming(PcieLink(3, 4))}


def frame(past: int, layers: int) -> Programs:
    """Programs of the layers of a frame on V-Rex8."""
    core, numbers = load_system(SYSTEM).core, step_numbers(Point(SYSTEM, "frame", past))
    assert core
    step = workload_step(core.config, numbers)
    return compile_step(core.config, LLAMA3_8B, step, tokens=numbers.tokens, past=past, layers=layers)


def simulate(past: int, layers: int) -> None:
    """Print the cycles of a frame, those predicted from its first, second and last layer, and the time."""
    start = time.process_time()
    programs = frame(past, layers)
    print(f"{layers} layers, {past} past tokens: {sum(map(len, programs.programs))} commands", flush=True)
    compiled = time.process_time()
    run = programs.run(timing(load_system(SYSTEM)))
    end = time.process_time()
    bursts = int(run.model.native[6][0])
    print(f"programs {compiled - start:.1f} s, simulation {end - compiled:.1f} s: {run.cycles} cycles, {bursts} bursts")
    print(f"{run.cycles / (end - compiled):.0f} cycles/s of all {len(programs.programs)} cores")
    first, last = run.ends[0], run.cycles - run.ends[-2]
    predicted = first + (layers - 2) * run.repeated + last
    print(f"first {first}, second {run.repeated}, last {last}: {predicted} cycles, {predicted / run.cycles - 1:+.4%}")


def compare(commit: str) -> None:
    """Print cycles and times of the model of a commit and of this one for the same commands."""
    programs = frame(1000, 1)
    commands = [Command(c.name, c.fields) for c in programs.programs[0] if c.name in ("LOAD", "MULTIPLY", "VECTOR")]
    program, address = [*commands[:COMMANDS], Command("END")], programs.word_addresses[0]
    new = CoreModel(programs.config, memories(), BASES, programs.instructions)
    start = time.process_time()
    cycles, seconds = new.run(address, program), time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        tar = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(tar)) as archive:
            archive.extractall(folder, filter="data")
        job = Path(folder) / "job.pickle"
        job.write_bytes(pickle.dumps((programs.config, address, program, programs.instructions, BASES)))
        command = [sys.executable, "-c", OLD, folder, str(job)]
        old = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    for name, of, taken in ((commit, int(old[0]), float(old[1])), ("now", cycles, seconds)):
        print(f"{name:12} {of:9} cycles {taken:8.2f} s {of / taken:10.0f} cycles/s")


def main(*arguments: str) -> None:
    if arguments[:1] == ("--before",):
        compare(arguments[1])
    else:
        past, layers = [int(a) for a in arguments] + [40_000, LLAMA3_8B.layers][len(arguments) :]
        simulate(past, layers)


if __name__ == "__main__":
    main(*sys.argv[1:])
