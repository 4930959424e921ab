"""A model on a simulated core: the programs of a session of the runtime, compared with the golden machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from compiler.golden_machine import Retrieved
from compiler.runtime import Machine
from golden.store.layout import TABLE_UNIT
from hw.core.core import Core
from hw.core.isa import Command
from hw.core.retrieval.page_lists import ENTRY_BYTES
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import CoreRun
from sim.ports import core_settings

LIMIT = 1_000_000  # cycles of a program


class ModelRun:
    """Records what the runtime does with the golden machine of `machine`, and repeats it on the core's RTL.

    Everything that the runtime writes and every program is stored behind the memory of the machine. A program of the
    simulation first copies the inputs to their places, and at the end saves logits and choice.

    Attributes
    ----------
    outputs : for each program, byte address and bytes of its saved outputs
    """

    def __init__(self, machine: Machine, *, extra_bytes: int = 1 << 22):
        self.machine, core = machine, machine.core
        self.core = Core.from_config(machine.config)
        self.word = core.word_bytes
        self.free = len(core.device) // self.word
        device = bytearray(core.device) + bytearray(extra_bytes)
        table = core.table
        lists = self._allocate(machine.config.kv_heads * machine.config.max_pages * ENTRY_BYTES)
        settings = core_settings(table) | {"page_lists_base": lists * self.word}
        host = bytearray(max(len(core.host), self.word))
        self.run_on = CoreRun(self.core, device, host, settings, limit=LIMIT)
        self.inputs: list[Command] = []
        self.programs: list[list[Command]] = []
        self.outputs: list[tuple[int, bytes]] = []
        self._put, self._run = core.put, core.run
        core.put, core.run = self.put, self.run  # type: ignore[method-assign]

    def _allocate(self, nbytes: int) -> int:
        address, self.free = self.free, self.free + -(-nbytes // self.word)
        return address

    def put(self, images: Mapping[int, bytes]) -> None:
        """Write images to the golden machine, and in the simulation before the next program."""
        self._put(images)
        for target, image in images.items():
            source = self._allocate(len(image))
            self.run_on.put(source, image)
            words = -(-len(image) // self.word)
            self.inputs.append(Command("COPY", {"source": source, "target": target, "words": words}))

    def run(self, program: Iterable[Command], progress: Callable[[int], Any] | None = None) -> Retrieved:
        """Run a program on the golden machine, and append it to those of the simulation."""
        program = list(program)
        retrieved = self._run(program, progress)
        decoder = self.machine.decoder
        source, words = decoder.logits, decoder.choice + 2 - decoder.logits
        saved = self._allocate(words * self.word)
        copy = Command("COPY", {"source": source, "target": saved, "words": words})
        for commands in ([*self.inputs, Command("END")], program, [copy, Command("END")]):
            code = b"".join(command.encode() for command in commands)
            address = self._allocate(len(code))
            self.run_on.put(address, code)
            self.run_on.run(address, len(commands))
            self.programs.append(commands)
        self.inputs = []
        self.outputs.append((saved * self.word, self.machine.core.get(source, words * self.word).tobytes()))
        return retrieved

    def check(self, **options: Any) -> AxiRecord:
        """Simulate all programs. AssertionError if one fails, or an output or the store differs from golden."""
        outcomes, record = self.run_on.simulate(**options)
        for outcome in outcomes:
            assert outcome.done and not outcome.failed and not outcome.hung, outcome
        device = record.images["device"]
        for number, (at, expected) in enumerate(self.outputs):
            assert bytes(device[at : at + len(expected)]) == expected, f"logits of step {number} differ"
        table = self.machine.core.table
        base, want = table.kvmu.base, table.kvmu.memory.copy()
        got = np.frombuffer(bytes(device[base : base + len(want)]), np.uint8).copy()
        store = table.kvmu.tables.store
        log = int(store.header["log_base"]) * TABLE_UNIT - base
        want[log : log + store.log.size] = got[log : log + store.log.size] = 0
        assert np.array_equal(got, want), "store differs"
        self.cycles = [outcome.cycles for outcome in outcomes[1::3]]
        return record
