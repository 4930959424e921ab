"""Waits of commands: each command starts in the cycle after its last dependency ends, from every queue entry."""

from collections import Counter
from dataclasses import dataclass

from hw.config import Config
from hw.core.core import Core
from hw.core.isa import BY_NAME, HEADER_BITS, MAX_WAIT, Command, ExecUnit, SyncEvent, all_but
from hw.core.sequencer import QUEUE_DEPTHS
from hw.core.vector.command import assemble
from hw.lxe.microcode import Instruction
from sim.bench.axi import FixedTiming
from sim.bench.core_run import BASES, CoreRun
from sim.bench.timeline import spans

DEEPEST = max(QUEUE_DEPTHS.values())
WORDS = 1 << 16  # of the device memory: programs and, at its end, their data
CODE, NEAR, FAR = (
    WORDS - 8,
    WORDS - 6,
    WORDS - 4,
)  # a vector program, words with a short latency, words with a long latency
BUSY = {  # commands of each unit that memory latency delays, as many as can be in flight
    ExecUnit.LOAD: [Command("LOAD", {"source": FAR, "rows": 1, "beats": 1})] * 9,
    ExecUnit.MATRIX: [Command("MULTIPLY", {"m_blocks": 1, "k_blocks": 1, "vectors": 1, "first": 1, "last": 1,
                                       "out": FAR})] * 10,
    ExecUnit.VECTOR: [Command("VECTOR", {"code": CODE, "instructions": 1, "repeat": 1, "a": NEAR, "a_beats": 1,
                                     "out": FAR, "out_beats": 1, "extra": 4})] * 11,
    ExecUnit.RETRIEVAL: [Command("SELECT", {}, {SyncEvent.COPY: all_but(n)})
                         for n in reversed(range(QUEUE_DEPTHS[ExecUnit.RETRIEVAL]))],
    ExecUnit.COPY: [Command("COPY", {"source": NEAR, "target": FAR, "words": 1})] * MAX_WAIT,
    ExecUnit.SYNC: [Command("BARRIER", {"cores": 1}, {SyncEvent.COPY: all_but(n)})
                    for n in reversed(range(QUEUE_DEPTHS[ExecUnit.SYNC]))],
}  # fmt: skip
DELAYED_BY_COPIES = SyncEvent.RETRIEVAL, SyncEvent.SYNC  # their commands wait for copies instead of the memory
READ = [  # and the matrix engine with many operands
    Command("MULTIPLY", {"m_blocks": blocks, "k_blocks": 1, "vectors": 8, "first": 1}) for blocks in (40, *[2] * 5)
]
IDLE = {  # commands with minimal work
    ExecUnit.LOAD: Command("LOAD"),
    ExecUnit.MATRIX: Command("MULTIPLY"),
    ExecUnit.VECTOR: Command("VECTOR", {"extra": 1}),
    ExecUnit.RETRIEVAL: Command("SELECT"),  # of no rows, because no context is open
    ExecUnit.COPY: Command("COPY", {"source": NEAR, "target": NEAR + 1, "words": 1}),
    ExecUnit.SYNC: Command("BARRIER", {"cores": 1}),
}


@dataclass
class Far(FixedTiming):
    """Memory timing: words from `FAR` on have the configured latency, the others four cycles."""

    def ready(self, cycle: int, address: int, nbytes: int, write: bool) -> int:
        near = address < BASES["device"] + 8 * FAR
        return cycle + 4 if near else super().ready(cycle, address, nbytes, write)


def after(command, waits):
    return Command(command.name, command.fields, waits)


def program(event):
    """Program that fills the unit of the event with commands. Each entry of the other queues, then of its own queue,
    waits for all but some of these commands. The next such program starts one queue entry later."""
    busy, own = READ if event is SyncEvent.OPERANDS else BUSY[event.unit], event.unit
    commands = [BUSY[ExecUnit.COPY][0]] * len(busy) if event in DELAYED_BY_COPIES else []
    commands += busy
    for n in range(DEEPEST):
        for unit in ExecUnit:
            if unit is not own and n < QUEUE_DEPTHS[unit]:
                # commands are decoded while the first busy ones end; entries of a deep queue wait for later ones
                ahead = min(len(busy), -(-len(busy) * (n + 1) // min(8, QUEUE_DEPTHS[unit])))
                commands.append(after(IDLE[unit], {event: all_but(len(busy) - ahead)}))
    commands += [after(IDLE[own], {event: all_but()})] * QUEUE_DEPTHS[own]
    counts = Counter(BY_NAME[command.name].unit for command in commands)
    first = [IDLE[unit] for unit in ExecUnit for _ in range((1 - counts[unit]) % QUEUE_DEPTHS[unit])]
    return [*first, *commands, Command("END")]


def image(commands, rng):
    """Memory image of the commands, with random bits after the fields."""
    code = b""
    for command in commands:
        used = HEADER_BITS + sum(field.bits for field in BY_NAME[command.name].fields)
        rest = int.from_bytes(rng.bytes(64), "little") >> used << used
        code += (int.from_bytes(command.encode(), "little") | rest).to_bytes(64, "little")
    return code


def test_every_wait(rng, seed):
    """A wait for every event, in every entry of every queue, with the maximum number of earlier commands."""
    core = Core.from_config(Config.preset("tiny"))
    case = CoreRun(core, bytearray(8 * WORDS), bytearray(8))
    case.put(CODE, assemble([Instruction(beats=1, to_stream=True)], core.config.vpe_rows))
    programs = [program(event) for event in SyncEvent for _ in range(DEEPEST)]
    address = 0
    for commands in programs:
        case.put(address, image(commands, rng))
        case.run(address, len(commands))
        address += 8 * len(commands)
    outcomes, record = case.simulate(
        seed=seed, timing={"device": Far(latency=300, gap=40, beat_bytes=8)}, ports=["stat_trace"]
    )
    assert all(outcome.done and not outcome.failed for outcome in outcomes)
    measured = {(span.program, span.number): span for span in spans(record.ports["stat_trace"], programs)}
    for which, commands in enumerate(programs):
        read = {}  # start cycle of the commands that wait for a MULTIPLY's operands
        select_end = 0  # of the SELECT before, because fewer events than entries of its queue can share an event
        for number, command in enumerate(commands):
            for event, wait in command.waits.items():
                before = [n for n in range(number) if BY_NAME[commands[n].name].unit is event.unit]
                last, start = measured[which, before[-wait]], measured[which, number].start
                if event is SyncEvent.OPERANDS and command.name == "SELECT" and start == select_end:
                    assert read[last.number] < start
                elif event is SyncEvent.OPERANDS:
                    assert last.start < start < last.end and read.setdefault(last.number, start) == start
                else:
                    free = select_end if command.name == "SELECT" else 0
                    assert start == max(last.end, free), (which, number, command)
            if command.name == "SELECT":
                select_end = measured[which, number].end
