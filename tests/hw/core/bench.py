"""Runs of programs on a simulated core: memories, register accesses, and what comes of them."""

from dataclasses import dataclass, field

from hw.core.axi import Cause
from hw.core.core import Core
from hw.core.dma import BURST
from hw.core.driver import Driver
from sim.axi import FixedTiming
from sim.axi_run import Image, simulate

BASES = {"device": 0x8000_0000, "host": 0x40_0000_0000}
LIMIT = 200_000  # cycles after which a program is said to hang


@dataclass
class Outcome:
    """How one program ended."""

    done: bool
    failed: bool
    hung: bool
    cause: Cause
    source: int
    address: int


@dataclass
class Bench:
    """A core with its memories; `run` adds a program, `simulate` performs everything in one simulation."""

    core: Core
    device: bytearray
    host: bytearray
    settings: dict[str, int] = field(default_factory=dict)
    limit: int = LIMIT
    script: list = field(default_factory=list)
    runs: list[int] = field(default_factory=list)  # where in the script each program's outcome begins

    def __post_init__(self) -> None:
        self.word_bytes = self.core.machine.word // 8
        self.driver = Driver(self.core.map, self.word_bytes)
        self.set_up()

    def set_up(self) -> None:
        """Write the regions and settings, as after power-on."""
        words = {"device_words": len(self.device) // self.word_bytes, "host_words": len(self.host) // self.word_bytes}
        bases = {f"{side}_start": base for side, base in BASES.items()}
        self.script += self.driver.setup(**bases, **words, **self.settings)

    def put(self, place, program):
        """A program, list of commands or bytes, into the device memory at word `place`."""
        code = program if isinstance(program, bytes) else self.driver.image(program)
        self.device[place * self.word_bytes : place * self.word_bytes + len(code)] = code

    def run(self, place, commands, *, clear=False):
        """Start the program at `place`, wait for its end; `clear` a fault afterwards."""
        self.script += self.driver.start(place, commands)
        self.runs.append(len(self.script))
        self.script += self.driver.finish(self.limit)
        if clear:
            self.script += self.driver.clear()

    def reset_after(self, place, commands, cycles):
        """Start a program and reset the core in the middle of it."""
        self.script += [*self.driver.start(place, commands), ["wait", cycles], ["reset"]]
        self.set_up()

    def simulate(self, *, stall=0.0, timing=None, failures=None, outstanding=64, **options):
        """Everything; outcomes of the programs, and the record."""
        memories = {
            side: Image(
                bytes(getattr(self, side)),
                start=base,
                timing=(timing or {}).get(side, FixedTiming(latency=12)),
                stall=stall,
                failures=(failures or {}).get(side, ()),
                longest=BURST,
                outstanding=outstanding,
            )
            for side, base in BASES.items()
        }
        record = simulate(
            self.core,
            "core",
            memories,
            script=self.script,
            lite="registers",
            stall=stall,
            timeout_cycles=(len(self.runs) + 1) * (self.limit + 1000),
            **options,
        )
        outcomes = []
        for at in self.runs:
            interrupt, (events, _), (_, _), (cause, _), (address, _) = record.answers[at : at + 5]
            outcomes.append(
                Outcome(bool(events & 1), bool(events & 2), interrupt < 0, Cause(cause & 15), cause >> 4, address)
            )
        return outcomes, record
