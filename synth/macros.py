"""Memories as macros: removed from the logic before mapping, with estimated area and energy and a simulation model."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hw.common.memory import LatchRam
from synth.library.technology import Technology

MIN_BITS = 512  # smaller memories become flip-flops, which are smaller than an SRAM of this size
# Share of the bit cells in the area of an SRAM, by bits of one tile; on a log scale in between. From the LEF files of
# the 37 single-port ASAP7 macros in hammer-vlsi 1.2.0, with that process's 6T cell of 0.02916 um2 (Clark et al.,
# Microelectronics Journal 53, 2016): 36 are within 6 %, the other within 14 %. V-Rex's Table III agrees: 0.34 mm2 for
# 384 KB are 0.108 um2 a bit, a share of 0.59 with cells of 0.064 um2.
_SHARE = ((1 << 9, 0.45), (1 << 11, 0.52), (1 << 13, 0.56), (1 << 16, 0.585))
TILE_BITS = 128  # width of the widest of these macros: a wider word is several tiles side by side
# A memory of few rows is an array of latches. Columns of the predictive library's cells: a latch and half of an AOI22
# for each bit; a clock gate and two NAND3 for each row, which select it for a write and for a read.
LATCH_ROWS = LatchRam.MAX_DEPTH
_BIT_COLUMNS, _ROW_COLUMNS = 10 + 5 / 2, 13 + 2 * 4
# Gate fingers that switch in each bit of an access of such an array: both clock edges of the latch of the row and its
# data; in addition, two for each of log2(rows) levels of read gates
_LATCH_FINGERS = 2 * 3.0 + 3.0
# Reading 64 bits: bytes of the memory -> pJ at 45 nm (Horowitz, ISSCC 2014) and at 7 nm (Jouppi et al., Ten Lessons
# From Three Generations Shaped Google's TPUv4i, ISCA 2021, Table 2); between the nodes on a log scale.
_ACCESS_PJ = ((8 << 10, 10.0, 7.5), (32 << 10, 20.0, 8.5), (1 << 20, 100.0, 14.0))
_NODE_SHARE = math.log(14 / 7) / math.log(45 / 7)
_OFF_FINS = 3  # off devices of a 6T cell: one n, one p, one access transistor, a fin each
_LATCH_OFF_FINS = 8 * Technology().fins  # half of the 16 devices of a latch and its read gate
TWO_PORT = 2.0  # area of an 8T cell (one read and one write port) over a 6T cell's


@dataclass(frozen=True)
class Macro:
    """One memory with synchronous ports.

    Attributes
    ----------
    cell : name of the memory in the flattened design ; module : name of the macro's module
    depth, width : words, bits per word ; reads, writes : number of read and write ports
    single_port : the read port and the write port have one address, so that one port of the macro serves both
    transparent : a read of a word that is written returns the new word; latches only
    """

    cell: str
    module: str
    depth: int
    width: int
    reads: int
    writes: int
    address_bits: int
    single_port: bool = False
    transparent: bool = False

    @property
    def bits(self) -> int:
        return self.depth * self.width

    @property
    def is_latches(self) -> bool:
        """Whether the memory is an array of latches and not an SRAM."""
        return self.depth <= LATCH_ROWS

    def area_um2(self, technology: Technology) -> float:
        """Estimate: placed latches, or area of the bit cells over their share of the tiles."""
        if self.is_latches:
            columns = self.bits * _BIT_COLUMNS + self.depth * _ROW_COLUMNS
            return columns * technology.area_um2(1) / technology.utilisation
        tile = math.log(self.depth * min(self.width, TILE_BITS))
        sizes, shares = zip(*_SHARE, strict=True)
        share = float(np.interp(tile, [math.log(size) for size in sizes], shares))
        ports = 1 if self.single_port else self.reads + self.writes
        return self.bits * technology.bit_cell_um2 * (1.0 if ports == 1 else TWO_PORT * (ports / 2)) / share

    @property
    def access_j(self) -> float:
        """Estimate for 14 nm: energy of one read or write of a word.

        In an array of latches, half of C V^2 of the gates that an access switches. In an SRAM, published values are
        interpolated and extrapolated on a log scale. A word of more than 64 bits is in several columns of 64 bits,
        each with the depth of the memory.
        """
        if self.is_latches:
            technology = Technology()
            fingers = self.width * (_LATCH_FINGERS + 2 * math.log2(max(2, self.depth)))
            return fingers * 0.5 * technology.gate_ff * 1e-15 * technology.voltage_v**2
        sizes = [math.log(size) for size, _, _ in _ACCESS_PJ]
        energies = [math.log(new) + _NODE_SHARE * math.log(old / new) for _, old, new in _ACCESS_PJ]
        size = math.log(self.depth * min(self.width, 64) / 8)
        k = 0 if size < sizes[1] else 1
        slope = (energies[k + 1] - energies[k]) / (sizes[k + 1] - sizes[k])
        return math.exp(energies[k] + slope * (size - sizes[k])) * 1e-12 * self.width / 64

    def leakage_w(self, technology: Technology) -> float:
        """Estimate: the leakage of the bit cells or latches with devices of the logic's threshold."""
        fin_um = technology.device_width_um / technology.fins
        off_fins = _LATCH_OFF_FINS if self.is_latches else _OFF_FINS
        return self.bits * off_fins * fin_um * technology.off_na_per_um * 1e-9 * technology.voltage_v

    def json(self) -> dict[str, Any]:
        return {**asdict(self), "bits": self.bits}

    def _ports(self) -> list[tuple[str, str, int]]:
        r, w = self.reads, self.writes
        return [
            ("input", "RD_CLK", r),
            ("input", "RD_EN", r),
            ("input", "RD_ARST", r),
            ("input", "RD_SRST", r),
            ("input", "RD_ADDR", r * self.address_bits),
            ("output", "RD_DATA", r * self.width),
            ("input", "WR_CLK", w),
            ("input", "WR_EN", w * self.width),
            ("input", "WR_ADDR", w * self.address_bits),
            ("input", "WR_DATA", w * self.width),
        ]

    def stub(self) -> str:
        """Verilog declaration of the macro, for mapping around it."""
        ports = self._ports()
        lines = [f"(* blackbox *) module {self.module}({', '.join(name for _, name, _ in ports)});"]
        lines += [f"  {direction} [{width - 1}:0] {name};" for direction, name, width in ports]
        return "\n".join([*lines, "endmodule", ""])

    def model(self) -> str:
        """Verilog model: one-cycle reads. While a word is written they return the old or (transparent) new one."""
        lines = self.stub().replace("(* blackbox *) ", "").split("endmodule", maxsplit=1)[0].splitlines()
        width, bits = self.width, self.address_bits
        lines += [f"  reg [{width - 1}:0] words [0:{self.depth - 1}];", "  integer i;"]
        lines += [f"  initial for (i = 0; i < {self.depth}; i = i + 1) words[i] = {width}'d0;"]
        for port in range(self.reads):
            address = f"RD_ADDR[{port * bits + bits - 1}:{port * bits}]"
            word = f"words[{address}]"
            if self.transparent:
                word = f"{address} == WR_ADDR ? (WR_DATA & WR_EN) | ({word} & ~WR_EN) : {word}"
            lines += [
                f"  reg [{width - 1}:0] q{port} = {width}'d0;",
                f"  assign RD_DATA[{port * width + width - 1}:{port * width}] = q{port};",
                f"  always @(posedge RD_CLK[{port}]) if (RD_EN[{port}]) q{port} <= {word};",
            ]
        for port in range(self.writes):
            lanes = f"{port * width + width - 1}:{port * width}"
            address = f"WR_ADDR[{port * bits + bits - 1}:{port * bits}]"
            lines.append(
                f"  always @(posedge WR_CLK[{port}]) if (|WR_EN[{lanes}]) "
                f"words[{address}] <= (WR_DATA[{lanes}] & WR_EN[{lanes}]) | (words[{address}] & ~WR_EN[{lanes}]);"
            )
        return "\n".join([*lines, "endmodule", ""])


# parameters of yosys's memory cell that its macro does not have
PARAMETERS = [
    *("MEMID", "SIZE", "OFFSET", "ABITS", "WIDTH", "INIT"),
    *("RD_PORTS", "RD_CLK_ENABLE", "RD_CLK_POLARITY", "RD_TRANSPARENCY_MASK", "RD_COLLISION_X_MASK"),
    *("RD_WIDE_CONTINUATION", "RD_CE_OVER_SRST", "RD_ARST_VALUE", "RD_SRST_VALUE", "RD_INIT_VALUE"),
    *("WR_PORTS", "WR_CLK_ENABLE", "WR_CLK_POLARITY", "WR_PRIORITY_MASK", "WR_WIDE_CONTINUATION"),
]
_CELL = re.compile(r"^  cell \$mem_v2 (\S+)\n((?:    .*\n)*)", re.M)


def find(rtlil: str, top: str, min_bits: int = MIN_BITS) -> list[Macro]:
    """The memories of a flattened RTLIL text that can be macros; the others become flip-flops.

    A macro has at least `min_bits`, synchronous ports without reset, and no defined result of a read while the same
    word is written. An array of latches with one write port can also return the new word. A macro has a single port if
    it has one read and one write port with the same address.
    """
    macros: list[Macro] = []
    for match in _CELL.finditer(rtlil):
        values = dict(re.findall(r"    parameter \\(\w+) (\S+)", match.group(2)))
        number = {key: int(values[key]) for key in ("SIZE", "WIDTH", "RD_PORTS", "WR_PORTS", "ABITS", "OFFSET")}
        connects = dict(re.findall(r"    connect \\(\w+) (.*)", match.group(2)))
        synchronous = all(
            set(values[key].split("'")[1]) == {"1"}
            for key in ("RD_CLK_ENABLE", "RD_CLK_POLARITY", "WR_CLK_ENABLE", "WR_CLK_POLARITY")
        )
        masks = set(values["RD_TRANSPARENCY_MASK"].split("'")[1])
        transparent = masks == {"1"} and number["WR_PORTS"] == 1 and number["SIZE"] <= LATCH_ROWS
        plain = (transparent or masks <= {"0"}) and number["OFFSET"] == 0
        resets = {bit for key in ("RD_ARST", "RD_SRST") for bit in connects[key].split("'")[-1]}
        large = number["SIZE"] * number["WIDTH"] >= min_bits and number["RD_PORTS"] and number["WR_PORTS"]
        if large and synchronous and plain and resets <= {"0", "x"}:
            macros.append(
                Macro(
                    match.group(1),
                    f"{top}_macro{len(macros)}",
                    number["SIZE"],
                    number["WIDTH"],
                    number["RD_PORTS"],
                    number["WR_PORTS"],
                    number["ABITS"],
                    number["RD_PORTS"] == number["WR_PORTS"] == 1 and connects["RD_ADDR"] == connects["WR_ADDR"],
                    transparent,
                )
            )
    return macros
