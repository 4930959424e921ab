"""The cycle model of a core: the sequencer and the models of all units on one shared state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hw.config import Config
from hw.core.isa import BY_NAME, COMMAND_BYTES, Command, SyncEvent
from hw.lxe.microcode import Instruction
from sw_model.cycles.copy_unit import CopyUnitModel
from sw_model.cycles.load_unit import LoadUnitModel
from sw_model.cycles.matrix_unit import MatrixUnitModel
from sw_model.cycles.processes import Process
from sw_model.cycles.retrieval_unit import RetrievalUnitModel
from sw_model.cycles.state import CoreState, StepData
from sw_model.cycles.vector_unit import VectorUnitModel
from util.timing import MemoryTiming


class CoreModel(CoreState):
    """Core of a configuration with two memories; `run` executes programs one after the other.

    mean_keys_word  word address of the mean keys
    instructions    vector programs by word address
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        mean_keys_word: int,
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        super().__init__(config, timing, bases, mean_keys_word, instructions)
        for unit in (
            LoadUnitModel(self),
            MatrixUnitModel(self),
            VectorUnitModel(self),
            RetrievalUnitModel(self),
            CopyUnitModel(self),
        ):
            unit.begin()

    def run(self, word_address: int, program: Sequence[Command], data: StepData | None = None) -> int:
        """Cycles in which the core executes the program at `word_address`. RuntimeError if it has no END command."""
        self.data = data or StepData()
        self.pieces += -(-len(self.data.opened) // self.data.piece_tokens)
        self.past = [sum(count for _, count in of) for of in self.data.pages] or [0] * self.config.kv_heads
        start, self.end = self.clock.now, -1
        self.clock.start(self._sequence(word_address, program))
        self.clock.run()
        if self.end < 0:
            raise RuntimeError(f"a program of {len(program)} commands does not end")
        self.clock.now = self.end
        return self.end - start

    def _sequence(self, word_address: int, program: Sequence[Command]) -> Process:
        word = self.word_bytes
        words = max(1, COMMAND_BYTES // word)
        per_word = max(1, word // COMMAND_BYTES)
        yield 1  # ASK
        yield from self.readers["program"].request(word_address, -(-len(program) // per_word) * words)
        for number, command in enumerate(program):
            if number % per_word == 0:
                for _ in range(words):
                    yield 1
                    yield from self.readers["program"].word()
            yield 1
            unit = BY_NAME[command.name].unit
            if unit is None:
                break
            waits = {event: self.issued[event.unit] - (wait - 1) for event, wait in command.waits.items() if wait}
            yield from self.queues[unit].put((command, waits))
            self.issued[unit] += 1
        else:
            return
        yield 2  # DRAIN, FINISH
        for event in SyncEvent:
            yield from self.done[event].reach(self.issued[event.unit])
        self.end = self.clock.now + 1
