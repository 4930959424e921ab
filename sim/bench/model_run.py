"""A model on a simulated core: the programs of a session of the runtime, compared with the golden machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from compiler.runtime import Machine
from golden.store import Store
from golden.store.layout import TABLE_UNIT
from hw.core.core import Core
from hw.core.isa import LIST_SETS, Command, encode
from hw.core.retrieval.page_lists import ENTRY_BYTES
from hw.dre.wtu.command import KeyOrder
from sim.bench.axi import Sparse
from sim.bench.axi_run import AxiRecord
from sim.bench.core_run import CoreRun, Outcome
from sim.bench.multicore_run import MultiCoreRun
from sim.ports.kvpu import core_settings

LIMIT = 1_000_000  # cycles of a program


class ModelMismatch(AssertionError):
    """The core's RTL and the golden machine differ. The message is one line and names the first difference."""


@dataclass(frozen=True)
class Output:
    """A saved output of a program: its name, its address and number of words, dtype of an element."""

    name: str
    word: int
    words: int
    dtype: str


class ModelRun:
    """Records what the runtime does with the golden machine of `machine`, and repeats it on the core's RTL.

    Create it after the session, which may be a resumed one, and before the first step. Everything that the runtime
    writes and every program is stored behind the memory of the machine. A program of the simulation first copies the
    inputs to their places, and at the end saves the outputs: visual tokens, hidden states, logits, choice, and the
    states of state-space branches.

    Attributes
    ----------
    device, host : contents of the memories at the start
    cycles : of each recorded program, after `check`
    """

    def __init__(self, machine: Machine):
        self.machine, core = machine, machine.core
        self.word = core.word_bytes
        self.device, self.host = bytearray(core.device), bytearray(core.host)
        self.cycles: list[int] = []
        self._free = len(core.device) // self.word
        self._lists = self._allocate(LIST_SETS * machine.config.kv_heads * machine.config.max_pages * ENTRY_BYTES)
        self._stored: list[tuple[int, bytes]] = []
        self._inputs: list[Command] = []
        self._programs: list[list[tuple[int, int]]] = []  # word address and number of commands, for each core
        self._expected: list[list[tuple[Output, int, bytes]]] = []
        decoder, vision = machine.decoder, machine.vision
        self._outputs = [
            Output("hidden states", decoder.x, machine.step * decoder.words, "<u2"),
            Output("logits", decoder.logits, 2 * decoder.blocks * decoder.batch, "<u4"),
            Output("choice", decoder.choice, 2 * decoder.batch, "<u4"),
        ]
        if vision is not None:
            tokens = vision.frames * vision.shape.output_tokens * vision.out_words
            self._outputs.insert(0, Output("visual tokens", vision.out, tokens, "<u2"))
        if machine.state_words:
            states = len(machine.contexts) * machine.state_words
            self._outputs.append(Output("states of the branches", machine.contexts[0].state_word, states, "<u2"))
        core.observers.append(self)

    @property
    def recorded(self) -> int:
        """Number of recorded programs."""
        return len(self._expected)

    def _allocate(self, nbytes: int) -> int:
        address, self._free = self._free, self._free + -(-nbytes // self.word)
        return address

    def _store(self, data: bytes) -> int:
        address = self._allocate(len(data))
        self._stored.append((address, data))
        return address

    def wrote(self, images: Mapping[int, bytes]) -> None:
        """Write the images in the simulation, before the next program."""
        for target, image in images.items():
            words = -(-len(image) // self.word)
            self._inputs.append(Command("COPY", {"source": self._store(image), "target": target, "words": words}))

    @contextmanager
    def running(self, programs: list[list[Command]]) -> Iterator[None]:
        """Append a program of each core to those of the simulation, with its outputs on the golden machine."""
        yield
        saved = [(output, self._allocate(output.words * self.word)) for output in self._outputs]
        copies = [
            Command("COPY", {"source": output.word, "target": target, "words": output.words})
            for output, target in saved
        ]
        for group in ([[*self._inputs, Command("END")]], programs, [[*copies, Command("END")]]):
            stored = [(self._store(encode(commands)), len(commands)) for commands in group]
            self._programs.append(stored)
        self._inputs = []
        get = self.machine.core.get
        self._expected.append(
            [(output, at, get(output.word, output.words * self.word).tobytes()) for output, at in saved]
        )

    def check(self, **options: Any) -> AxiRecord:
        """Simulate all programs; `options` as those of `CoreRun.simulate`.

        Raises `ModelMismatch` if a program fails, or an output or the store differs from the golden machine.
        """
        device = self.device + bytes(self._free * self.word - len(self.device))
        host = self.host.ljust(self.word, b"\0")
        order: Any = KeyOrder.SIGNED if self.machine.core.signed else KeyOrder.PLAIN
        settings = core_settings(self.machine.core.table, order) | {"page_lists_base": self._lists * self.word}
        outcomes, record = self._simulate(device, host, settings, **options)
        self.cycles = [max(outcome.cycles for outcome in step) for step in outcomes[1::3]]
        self._compare(outcomes, record.images["device"])
        return record

    def _simulate(
        self, device: bytearray, host: bytearray, settings: Mapping[str, int], **options: Any
    ) -> tuple[list[list[Outcome]], AxiRecord]:
        """Outcomes of the programs of each core, and the record."""
        config, cores = self.machine.config, len(self.machine.shares)
        if cores > 1:
            multicore = MultiCoreRun(config.replace(cores=cores), device, host, settings, limit=LIMIT)
            for address, data in self._stored:
                multicore.put(address, data)
            for programs in self._programs:
                multicore.run(*programs)
            return multicore.simulate(**options)
        core = CoreRun(Core.from_config(config), device, host, settings, limit=LIMIT)
        for address, data in self._stored:
            core.put(address, data)
        for ((address, commands),) in self._programs:
            core.run(address, commands)
        outcomes, record = core.simulate(**options)
        return [[outcome] for outcome in outcomes], record

    def _compare(self, outcomes: list[list[Outcome]], device: bytearray | Sparse) -> None:
        for number, expected in enumerate(self._expected):
            for outcome in chain(*outcomes[3 * number : 3 * number + 3]):
                if not outcome.done or outcome.failed or outcome.hung:
                    raise ModelMismatch(f"program {number} must be complete, got {outcome}")
            for output, word, want in expected:
                got = bytes(device[word * self.word : word * self.word + len(want)])
                _compare(f"{output.name} of program {number}", want, got, output.dtype)
        kvmu = self.machine.core.table.kvmu
        base = kvmu.base
        store = Store(kvmu.memory, base, kvmu.origin)
        golden, simulated = kvmu.memory.copy(), np.frombuffer(bytearray(device[base : base + kvmu.memory.nbytes]), "u1")
        log = int(store.header["log_base"]) * TABLE_UNIT - base
        # the undo log depends on when lines leave the cache
        golden[log : log + store.log.size] = simulated[log : log + store.log.size] = 0
        _compare("store", golden.tobytes(), simulated.tobytes(), "u1")


def _compare(name: str, want: bytes, got: bytes, dtype: str) -> None:
    if want != got:
        expected, simulated = np.frombuffer(want, dtype), np.frombuffer(got, dtype)
        at = int(np.flatnonzero(expected != simulated)[0])
        raise ModelMismatch(f"element {at} of the {name} must be {expected[at]:#x}, got {simulated[at]:#x}")
