"""Predicted cycles of the steps of a session."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from compiler.runtime import Machine
from hw.core.isa import Command
from sw_model.cycles.core import MultiCoreModel
from sw_model.cycles.step_data import recording
from util.timing import MemoryTiming


class SessionModel:
    """Predicts the cycles of all programs that a machine runs from now on, one program for each core.

    Parameters
    ----------
    machine : is observed ; timing, bases : of the memories, see `MultiCoreModel`

    Attributes
    ----------
    cycles : of each step, from the start of its programs to the end of the last one
    """

    def __init__(self, machine: Machine, timing: Mapping[str, MemoryTiming], bases: Mapping[str, int]):
        self.cycles: list[int] = []
        self._core = machine.core
        self._model = MultiCoreModel(
            machine.config, timing, bases, machine.core.instructions, cores=len(machine.shares)
        )
        machine.core.observers.append(self)

    def wrote(self, images: Mapping[int, bytes]) -> None:
        """Writes of the host take no cycles of the cores."""

    @contextmanager
    def running(self, programs: list[list[Command]]) -> Iterator[None]:
        """Predict the cycles of the programs of a step, which are in device memory after the image of the machine."""
        with recording(self._core.table) as steps:
            yield
        address = len(self._core.device) // self._core.word_bytes
        cycles = self._model.run_all([address] * len(programs), programs, [steps] * len(programs))
        self.cycles.append(max(cycles))
