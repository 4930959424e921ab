"""Speed of the cycle model: a frame of Llama-3-8B on the cores of the preset `paper`, and the model before.

python -m tests.sw_model.bench_frame [past tokens] [layers] simulates a frame; by default 40,000 tokens and 32 layers.
python -m tests.sw_model.bench_frame --before COMMIT compares the processes in Python of a commit up to 8b188da with the
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
from sw_model.cycles.context_cost import BASES
from sw_model.cycles.core import CoreModel
from sw_model.cycles.frame import LAYERS, compile_frame, record
from sw_model.memory.live import DramTiming, PcieTiming
from sw_model.memory.pcie import PcieLink
from sw_model.memory.spec import load_memory
from util.files import ROOT

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


def simulate(past: int, layers: int) -> None:
    """Print the cycles of a frame and the time of their simulation."""
    step = record(past)
    start = time.process_time()
    frame = compile_frame(step, past, layers=layers)
    print(f"{layers} layers, {past} past tokens: {sum(map(len, frame.programs))} commands", flush=True)
    compiled = time.process_time()
    model = frame.model(**memories())
    cycles = model.run_all(frame.word_addresses, frame.programs, frame.steps)
    end = time.process_time()
    bursts = int(model.native[6][0])
    print(
        f"programs {compiled - start:.1f} s, simulation {end - compiled:.1f} s: {max(cycles)} cycles, {bursts} bursts"
    )
    print(f"{max(cycles) / (end - compiled):.0f} cycles/s of all {len(cycles)} cores")


def compare(commit: str) -> None:
    """Print cycles and times of the model of a commit and of this one for the same commands."""
    frame = compile_frame(record(1000), 1000, layers=1)
    commands = [Command(c.name, c.fields) for c in frame.programs[0] if c.name in ("LOAD", "MULTIPLY", "VECTOR")]
    program, address = [*commands[:COMMANDS], Command("END")], frame.word_addresses[0]
    new = CoreModel(frame.config, memories(), BASES, frame.instructions)
    start = time.process_time()
    cycles, seconds = new.run(address, program), time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        tar = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=BytesIO(tar)) as archive:
            archive.extractall(folder, filter="data")
        job = Path(folder) / "job.pickle"
        job.write_bytes(pickle.dumps((frame.config, address, program, frame.instructions, BASES)))
        command = [sys.executable, "-c", OLD, folder, str(job)]
        old = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.split()
    for name, of, taken in ((commit, int(old[0]), float(old[1])), ("now", cycles, seconds)):
        print(f"{name:12} {of:9} cycles {taken:8.2f} s {of / taken:10.0f} cycles/s")


def main(*arguments: str) -> None:
    if arguments[:1] == ("--before",):
        compare(arguments[1])
    else:
        past, layers = [int(a) for a in arguments] + [40_000, LAYERS][len(arguments) :]
        simulate(past, layers)


if __name__ == "__main__":
    main(*sys.argv[1:])
