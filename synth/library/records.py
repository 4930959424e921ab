"""Records of a cell library: lookup tables, timing arcs, energies, pins and cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from synth.library.boolean import truth_table
from synth.library.parser import LibertyGroup


@dataclass(frozen=True)
class LookupTable:
    """A one- or two-dimensional table with linear interpolation and extrapolation, as in Liberty."""

    axes: tuple[np.ndarray, ...]
    values: np.ndarray
    load_first: bool = False

    def __call__(self, slew: ArrayLike, load: ArrayLike) -> np.ndarray:
        """Values at input slews and output loads in the library's units.

        For a constraint table the arguments are the slews of the constrained pin and of the clock.
        """
        slew, load = np.broadcast_arrays(np.asarray(slew, float), np.asarray(load, float))
        points = (load, slew) if self.load_first else (slew, load)
        corners: list[tuple[tuple[np.ndarray, ...], np.ndarray]] = [((), np.ones(slew.shape))]
        for axis, x in zip(self.axes, points, strict=False):
            if len(axis) == 1:
                corners = [((*at, np.zeros(x.shape, int)), weight) for at, weight in corners]
                continue
            k = np.clip(np.searchsorted(axis, x) - 1, 0, len(axis) - 2)
            fraction = (x - axis[k]) / (axis[k + 1] - axis[k])
            corners = [
                ((*at, k + step), weight * share)
                for at, weight in corners
                for step, share in ((0, 1 - fraction), (1, fraction))
            ]
        return sum((self.values[at] * weight for at, weight in corners), start=np.zeros(slew.shape))


@dataclass(frozen=True)
class Arc:
    """Timing from pin `related` to the pin of the arc; tables by Liberty name (`cell_rise`, `setup` ...)."""

    related: str
    kind: str
    sense: str
    tables: dict[str, LookupTable]


@dataclass(frozen=True)
class Energy:
    """Energy inside a cell per transition of a pin; `related` is another pin of the cell or empty."""

    related: str
    rise: LookupTable
    fall: LookupTable


@dataclass(frozen=True)
class Pin:
    """One pin of a cell.

    `capacitance` is the nominal value, `largest_capacitance` that of the worst edge and range, both in library units.
    """

    name: str
    direction: str
    capacitance: float
    largest_capacitance: float
    function: str
    clock: bool
    arcs: tuple[Arc, ...]
    energies: tuple[Energy, ...]


@dataclass(frozen=True)
class ClockGate:
    """Pins of an integrated clock-gating cell: a latch that is open while `clock` is 0, and an AND with `clock`.

    A pulse of `clock` reaches `output` if `enable` or a `test` pin is 1 at the rising edge.
    """

    clock: str
    enable: str
    output: str
    test: tuple[str, ...]


@dataclass(frozen=True)
class LibraryCell:
    """One cell: area in um2, leakage in W, pins, its `ff` or `latch` group and its clock gate, if any."""

    name: str
    area: float
    leakage_w: float
    pins: dict[str, Pin]
    state: LibertyGroup | None
    dont_use: bool
    gate: ClockGate | None = None

    @property
    def is_logic(self) -> bool:
        """Whether the cell is neither a register nor a clock gate."""
        return self.state is None and self.gate is None

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(pin.name for pin in self.pins.values() if pin.direction == "input")

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(pin.name for pin in self.pins.values() if pin.direction == "output")

    def is_function(self, function: str, inputs: int) -> bool:
        """Whether this is a one-output gate with `function`, a function of a, b, c ..., of its inputs."""
        if not self.is_logic or len(self.outputs) != 1 or len(self.inputs) != inputs:
            return False
        return self.table(self.outputs[0]) == truth_table(function, tuple("abcdefgh"[:inputs]))

    def table(self, output: str) -> int | None:
        """Truth table of an output over the inputs; None if the output depends on other nodes."""
        try:
            return truth_table(self.pins[output].function, self.inputs)
        except ValueError:
            return None
