"""Memories as macros: removed from the logic before mapping, with estimated area and energy and a simulation model."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from synth.library.technology import Technology

MIN_BITS = 512  # smaller memories become flip-flops, which are smaller than an SRAM of this size
# The share of bit cells in a macro's area grows with its size: about 0.3 at 1 kbit and 0.6 from 1 Mbit on. V-Rex's
# Table III gives 0.34 mm2 for 384 KB, 0.108 um2 a bit: a share of 0.59 with single-port cells of 0.064 um2.
_SHARE = ((1 << 10, 0.3), (1 << 20, 0.6))
# Reading 64 bits: bytes of the memory -> pJ at 45 nm (Horowitz, ISSCC 2014) and at 7 nm (Jouppi et al., Ten Lessons
# From Three Generations Shaped Google's TPUv4i, ISCA 2021, Table 2); between the nodes on a log scale.
_ACCESS_PJ = ((8 << 10, 10.0, 7.5), (32 << 10, 20.0, 8.5), (1 << 20, 100.0, 14.0))
_NODE_SHARE = math.log(14 / 7) / math.log(45 / 7)
_OFF_FINS = 3  # off devices of a 6T cell: one n, one p, one access transistor, a fin each
TWO_PORT = 2.0  # area of an 8T cell (one read and one write port) over a 6T cell's


@dataclass(frozen=True)
class Macro:
    """One memory with synchronous ports.

    Attributes
    ----------
    cell : name of the memory in the flattened design ; module : name of the macro's module
    depth, width : words, bits per word ; reads, writes : number of read and write ports
    single_port : the read port and the write port have one address, so that one port of the macro serves both
    """

    cell: str
    module: str
    depth: int
    width: int
    reads: int
    writes: int
    address_bits: int
    single_port: bool = False

    @property
    def bits(self) -> int:
        return self.depth * self.width

    def area_um2(self, technology: Technology) -> float:
        """Estimate: area of the bit cells over their share of the macro."""
        (low_bits, low), (high_bits, high) = _SHARE
        position = (self.bits.bit_length() - low_bits.bit_length()) / (high_bits.bit_length() - low_bits.bit_length())
        share = low + (high - low) * min(1.0, max(0.0, position))
        ports = 1 if self.single_port else self.reads + self.writes
        return self.bits * technology.bit_cell_um2 * (1.0 if ports == 1 else TWO_PORT * (ports / 2)) / share

    @property
    def access_j(self) -> float:
        """Estimate for 14 nm: energy of one read or write of a word.

        Published values are interpolated and extrapolated on a log scale. A word of more than 64 bits is in several
        columns of 64 bits, each with the depth of the memory.
        """
        sizes = [math.log(size) for size, _, _ in _ACCESS_PJ]
        energies = [math.log(new) + _NODE_SHARE * math.log(old / new) for _, old, new in _ACCESS_PJ]
        size = math.log(self.depth * min(self.width, 64) / 8)
        k = 0 if size < sizes[1] else 1
        slope = (energies[k + 1] - energies[k]) / (sizes[k + 1] - sizes[k])
        return math.exp(energies[k] + slope * (size - sizes[k])) * 1e-12 * self.width / 64

    def leakage_w(self, technology: Technology) -> float:
        """Estimate: the bit cells' leakage with devices of the logic's threshold."""
        fin_um = technology.device_width_um / technology.fins
        return self.bits * _OFF_FINS * fin_um * technology.off_na_per_um * 1e-9 * technology.voltage_v

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
        """Verilog model: one-cycle reads that return the old word when the same word is written."""
        lines = self.stub().replace("(* blackbox *) ", "").split("endmodule", maxsplit=1)[0].splitlines()
        width, bits = self.width, self.address_bits
        lines += [f"  reg [{width - 1}:0] words [0:{self.depth - 1}];", "  integer i;"]
        lines += [f"  initial for (i = 0; i < {self.depth}; i = i + 1) words[i] = {width}'d0;"]
        for port in range(self.reads):
            address = f"RD_ADDR[{port * bits + bits - 1}:{port * bits}]"
            lines += [
                f"  reg [{width - 1}:0] q{port} = {width}'d0;",
                f"  assign RD_DATA[{port * width + width - 1}:{port * width}] = q{port};",
                f"  always @(posedge RD_CLK[{port}]) if (RD_EN[{port}]) q{port} <= words[{address}];",
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
    word is written. It has a single port if it has one read and one write port with the same address.
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
        plain = set(values["RD_TRANSPARENCY_MASK"].split("'")[1]) <= {"0"} and number["OFFSET"] == 0
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
                )
            )
    return macros
