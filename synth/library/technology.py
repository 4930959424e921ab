"""Constants of a 14 nm-class FinFET technology, each with its source.

The sources are public pages and textbooks; no value comes from a foundry's kit. The resulting library is predictive.
`synth.library.accuracy` measures the deviation of its ratios from real libraries.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

# Delay of a slow process over that of a typical one: FO4 of 500 and 360 ps per um of gate length (Ho, Mai, Horowitz,
# The Future of Wires, Proceedings of the IEEE 89, 2001). Every delay of the predictive library is proportional to FO4.
SLOW_DELAY = 500 / 360


@dataclass(frozen=True, kw_only=True)
class Technology:
    """Geometry in nm, capacitances in fF, times in ps, voltages in V.

    Geometry: 14LPE/14LPP in WikiChip's "14 nm lithography process" table (also the table's bit cells).
    """

    name: str = "predictive14"
    gate_pitch_nm: float = 78.0  # contacted gate pitch (WikiChip)
    metal_pitch_nm: float = 64.0  # tightest metal pitch (WikiChip)
    fin_pitch_nm: float = 48.0  # (WikiChip)
    fin_height_nm: float = 38.0  # (WikiChip)
    fin_width_nm: float = 8.0  # (WikiChip)
    gate_length_nm: float = 27.0  # shortest gate (WikiChip)
    bit_cell_um2: float = 0.064  # high-density 6T SRAM cell (WikiChip)
    tracks: int = 9  # cell height in metal pitches: the middle of the 7.5 to 10.5 track libraries of this generation
    # Fins of one transistor: half of the cell's fin pitches go to the rails and to the gap between n and p, as in the
    # ASAP7 cells (Clark et al., Microelectronics Journal 53, 2016: 6 fins of 10 pitches in a cell).
    fins: int = 4
    voltage_v: float = 0.8  # nominal supply of 14LPP
    temperature_c: float = 25.0
    # Gate capacitance per width: about 1 fF/um in every generation below 65 nm (Weste and Harris, CMOS VLSI Design).
    gate_ff_per_um: float = 1.0
    # Parasitic delay of an inverter over its effort per unit: drain and gate capacitance alike (Sutherland, Sproull,
    # Harris, Logical Effort: p = 1).
    parasitic: float = 1.0
    # Fan-out-of-4 delay per gate length: 360 ps/um typical and 500 ps/um slow (Ho, Mai, Horowitz, The Future of Wires,
    # Proceedings of the IEEE 89, 2001); the middle, as real libraries of 180 to 45 nm measure 520 to 640.
    fo4_ps_per_um: float = 430.0
    # Alpha-power law (Sakurai and Newton, IEEE JSSC 25, 1990): velocity saturation index and threshold voltage of
    # short-channel devices, drain saturation voltage at full gate drive over the supply.
    alpha: float = 1.25
    threshold_v: float = 0.35
    saturation_ratio: float = 0.5
    # Off current per width of a standard-threshold device: logic options of this generation span 0.01 to 100 nA/um.
    off_na_per_um: float = 1.0
    stack_leakage: float = 0.1  # two off devices in series leak about a tenth (Narendra et al., ISLPED 2001)
    # Wires: 0.2 fF/um in every generation (Ho, Mai, Horowitz); length per fan-out in cell pitches, from Rent's rule
    # with p = 0.6 in blocks of 1,000 to 100,000 gates (Donath, IEEE Trans. CAS 26, 1979: 3 to 6).
    wire_ff_per_um: float = 0.2
    wire_pitches: float = 4.0
    utilisation: float = 0.7  # of a placed row area, usual for digital blocks

    @property
    def cell_height_um(self) -> float:
        return self.tracks * self.metal_pitch_nm / 1000

    def area_um2(self, columns: int) -> float:
        """Area of a cell that is `columns` gate pitches wide."""
        return columns * self.gate_pitch_nm / 1000 * self.cell_height_um

    @property
    def device_width_um(self) -> float:
        """Effective width of one finger: both sides and the top of every fin."""
        return self.fins * (2 * self.fin_height_nm + self.fin_width_nm) / 1000

    @property
    def gate_ff(self) -> float:
        """Capacitance of one gate finger over an n and a p device."""
        return 2 * self.device_width_um * self.gate_ff_per_um

    @property
    def drain_ff(self) -> float:
        """Capacitance of the drains of one n and one p device."""
        return self.parasitic * self.gate_ff

    @property
    def fo4_ps(self) -> float:
        return self.fo4_ps_per_um * self.gate_length_nm / 1000

    @property
    def slew_share(self) -> float:
        """Delay per full-swing input transition time (Sakurai and Newton, eq. 19)."""
        return 0.5 - (1 - self.threshold_v / self.voltage_v) / (1 + self.alpha)

    @property
    def slew_gain(self) -> float:
        """Full-swing output transition time per step delay CV/2I (Sakurai and Newton, eq. 20)."""
        ratio = self.saturation_ratio
        return 2 * (0.9 / 0.8 + ratio / 0.8 * math.log(10 * ratio / math.e))

    @property
    def ps_per_ff(self) -> float:
        """Step delay per load of one finger without a stack, such that an inverter has the FO4 delay."""
        step = self.fo4_ps / (1 + self.slew_share * self.slew_gain)
        return step / (self.drain_ff + 4 * self.gate_ff)

    @property
    def wire_ff(self) -> float:
        """Wire capacitance per fan-out: length in pitches of a placed 2-input NAND (3 gate pitches wide)."""
        pitch_um = math.sqrt(self.area_um2(3) / self.utilisation)
        return self.wire_ff_per_um * self.wire_pitches * pitch_um

    def stack_resistance(self, height: int) -> float:
        """Resistance of `height` devices in series over that of one, at the start of the swing.

        The alpha-power law in both regions (Sakurai and Newton, IEEE JSSC 26, 1991): the upper devices see a smaller
        gate voltage, the lower ones stay below saturation. Less than `height`, since a device below saturation drops
        little voltage.
        """
        return _stack_resistance(self.voltage_v, self.threshold_v, self.saturation_ratio, self.alpha, height)

    def leakage_nw(self, fingers: float, stack: int = 1) -> float:
        """Leakage of `fingers` off devices, in series stacks of `stack`."""
        amperes = fingers * self.device_width_um * self.off_na_per_um * 1e-9 * self.stack_leakage ** (stack > 1)
        return amperes * self.voltage_v * 1e9


@cache  # a library asks for the same few stacks thousands of times
def _stack_resistance(
    voltage_v: float, threshold_v: float, saturation_ratio: float, alpha: float, height: int
) -> float:
    """As `Technology.stack_resistance`."""
    full = voltage_v - threshold_v

    def top_current(current: float) -> float:
        """Largest current of the top device when `current` flows through the devices below it."""
        dropped = 0.0
        for _ in range(height - 1):
            drive = max(0.0, (full - dropped) / full)
            share = min(1.0, current / drive**alpha) if drive else 1.0
            saturation = saturation_ratio * voltage_v * drive ** (alpha / 2)
            dropped += saturation * (1 - math.sqrt(1 - share))
        return max(0.0, (full - dropped) / full) ** alpha

    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if top_current(middle) > middle else (low, middle)
    return 1 / high
