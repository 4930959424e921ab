"""The cycle model of a core: the sequencer and the models of all units on one shared state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from hw.config import Config
from hw.core.isa import BY_NAME, COMMAND_BYTES, Command, SyncEvent
from hw.lxe.microcode import Instruction
from sw_model.cycles.copy_unit import CopyUnitModel
from sw_model.cycles.load_unit import LoadUnitModel
from sw_model.cycles.matrix_unit import MatrixUnitModel
from sw_model.cycles.processes import Process
from sw_model.cycles.retrieval_unit import RetrievalUnitModel
from sw_model.cycles.state import CoreState, IssuedCommand
from sw_model.cycles.step_data import StepData
from sw_model.cycles.vector_unit import VectorUnitModel
from util.timing import MemoryTiming


class CoreModel(CoreState):
    """Core of a configuration with two memories; `run` executes programs one after the other.

    instructions    vector programs by word address
    """

    def __init__(
        self,
        config: Config,
        timing: Mapping[str, MemoryTiming],
        bases: Mapping[str, int],
        instructions: Mapping[int, Sequence[Instruction]],
    ):
        super().__init__(config, timing, bases, instructions)
        for unit in (
            LoadUnitModel(self),
            MatrixUnitModel(self),
            VectorUnitModel(self),
            RetrievalUnitModel(self),
            CopyUnitModel(self),
        ):
            unit.begin()

    def run(self, word_address: int, program: Sequence[Command], steps: Sequence[StepData] = ()) -> int:
        """Cycles in which the core executes the program at `word_address`.

        `steps` has the data of each OPEN command of the program and of the commands after it. Raises RuntimeError if
        the program has no END command.
        """
        start, self.end = self.clock.now, -1
        self.clock.start(self._sequence(word_address, program, steps))
        self.clock.run()
        if self.end < 0:
            raise RuntimeError(f"a program of {len(program)} commands does not end")
        self.clock.now = self.end
        return self.end - start

    def _sequence(self, word_address: int, program: Sequence[Command], steps: Sequence[StepData]) -> Process:
        word, data, following = self.word_bytes, StepData(), iter(steps)
        pieces = Counter[str]()  # commands of each kind since OPEN
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
            if command.name == "OPEN":
                data, pieces = next(following, StepData()), Counter[str]()
            pieces[command.name] += 1
            tokens = data.tokens_of_piece(pieces[command.name] - 1, self.config.max_step_tokens)
            yield from self.queues[unit].put(IssuedCommand(command.name, command.fields, waits, data, tokens))
            self.issued[unit] += 1
        else:
            return
        yield 2  # DRAIN, FINISH
        for event in SyncEvent:
            yield from self.done[event].reach(self.issued[event.unit])
        self.end = self.clock.now + 1
