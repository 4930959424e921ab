"""A unit on an FPGA board: vectors for its self-test, bitstream, timing and utilisation (`vrex board`)."""

from __future__ import annotations

from typing import Any

from amaranth.lib import wiring

from hw.boards.protocol import Vectors, echoed, table
from sim.payload import pack
from synth.stimulus import Stimulus


def vectors(unit: wiring.Component, stimulus: Stimulus) -> Vectors:
    """The beats of a stimulus and of the golden model's answers to it as words.

    Raises `ValueError` when the stimulus has no answers.
    """
    if set(stimulus.answers) != set(stimulus.outputs):
        raise ValueError(f"unit {type(unit).__name__}: its stimulus {stimulus.name!r} comes without golden answers")

    def words(columns: Any) -> dict[str, list[int]]:
        return {
            name: [int.from_bytes(row.tobytes(), "little") for row in pack(getattr(unit, name).payload.shape(), column)]
            for name, column in columns.items()
        }

    return Vectors(stimulus.config, words(stimulus.inputs), words(stimulus.answers), stimulus.echo)


def description(unit: wiring.Component, given: Vectors, baud: int) -> dict[str, Any]:
    """What the host needs to know, as JSON values (see `hw.boards.host`)."""
    return {
        "table": table(unit).json(),
        "settings": dict(given.settings),
        "inputs": dict(given.inputs),
        "outputs": dict(given.outputs),
        "echo": [
            {"answer": answer, "asked": asked, "fields": echoed(unit, answer, asked)}
            for answer, asked in given.echo.items()
        ],
        "baud": baud,
    }
