"""Area of a unit: cells, um2 and NAND2 equivalents of every block; memories are separate."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from hw import yosys
from hw.config import Config
from synth.blocks import Block, partition
from synth.elaborate import rtlil
from synth.library import reader as libraries
from synth.library.reader import Library
from synth.library.technology import Technology
from synth.macros import MIN_BITS, Macro
from synth.mapping import GATED_REGISTERS, Mapped, map_block, period_ps
from util.files import git_revision
from util.text import table

PREDICTIVE = Technology()


@dataclass(frozen=True)
class BlockArea:
    """Area of one instance of a block without its inner blocks; the unit has `count` instances."""

    name: str
    count: int
    cells: int
    flip_flops: int
    clock_gates: int
    area_um2: float
    register_um2: float
    macros: tuple[Macro, ...]

    @property
    def memory_bits(self) -> int:
        return sum(macro.bits for macro in self.macros)

    @property
    def macro_um2(self) -> float:
        """Estimate for the predictive 14 nm-class technology, independent of the library of the logic."""
        return sum(macro.area_um2(PREDICTIVE) for macro in self.macros)


@dataclass(frozen=True)
class Area:
    """Area of a unit.

    Attributes
    ----------
    unit, config : name and sizes of the unit ; point : objective of the mapping: area, balanced or fast
    library : name, tier and files of the library ; nand2_um2 : area of its smallest 2-input NAND
    blocks : the blocks, the unit's top last ; cell_types : number of cells of the unit by library cell
    tools, git : tool versions and git revision
    mapped : the netlist of every block
    """

    unit: str
    config: dict[str, int]
    point: str
    library: dict[str, Any]
    nand2_um2: float
    blocks: tuple[BlockArea, ...]
    cell_types: dict[str, int]
    tools: dict[str, str]
    git: str | None
    mapped: dict[str, Mapped]

    @property
    def cells(self) -> int:
        return sum(block.cells * block.count for block in self.blocks)

    @property
    def flip_flops(self) -> int:
        return sum(block.flip_flops * block.count for block in self.blocks)

    @property
    def clock_gates(self) -> int:
        return sum(block.clock_gates * block.count for block in self.blocks)

    @property
    def area_um2(self) -> float:
        """Cell area of logic and registers, unplaced; memories not included."""
        return sum(block.area_um2 * block.count for block in self.blocks)

    @property
    def register_um2(self) -> float:
        return sum(block.register_um2 * block.count for block in self.blocks)

    @property
    def nand2(self) -> float:
        """Cell area in 2-input NANDs of the same library."""
        return self.area_um2 / self.nand2_um2

    @property
    def memory_bits(self) -> int:
        return sum(block.memory_bits * block.count for block in self.blocks)

    @property
    def macro_um2(self) -> float:
        """Estimated area of the memories, as `BlockArea.macro_um2`."""
        return sum(block.macro_um2 * block.count for block in self.blocks)

    def json(self) -> dict[str, Any]:
        """The report as JSON values."""
        return {
            "unit": self.unit,
            "config": self.config,
            "point": self.point,
            "library": self.library,
            "cells": self.cells,
            "flip_flops": self.flip_flops,
            "clock_gates": self.clock_gates,
            "area_um2": round(self.area_um2, 3),
            "register_um2": round(self.register_um2, 3),
            "nand2": round(self.nand2, 1),
            "memory_bits": self.memory_bits,
            "macro_um2_estimated": round(self.macro_um2, 1),
            "blocks": [
                {
                    "name": block.name,
                    "count": block.count,
                    "cells": block.cells,
                    "flip_flops": block.flip_flops,
                    "clock_gates": block.clock_gates,
                    "area_um2": round(block.area_um2, 3),
                    "register_um2": round(block.register_um2, 3),
                    "memory_bits": block.memory_bits,
                    "macro_um2_estimated": round(block.macro_um2, 1),
                    "macros": [macro.json() for macro in block.macros],
                }
                for block in self.blocks
            ],
            "cell_types": self.cell_types,
            "tools": self.tools,
            "git": self.git,
        }

    def table(self) -> str:
        """The report as text."""
        rows = [
            [
                block.name,
                f"{block.count}",
                f"{block.cells}",
                f"{block.flip_flops}",
                f"{block.clock_gates}",
                f"{block.area_um2:.1f}",
                f"{block.area_um2 / self.nand2_um2:.0f}",
                f"{block.memory_bits}",
                f"{block.macro_um2:.0f}",
            ]
            for block in self.blocks
        ]
        total = [
            f"{self.cells}",
            f"{self.flip_flops}",
            f"{self.clock_gates}",
            f"{self.area_um2:.1f}",
            f"{self.nand2:.0f}",
        ]
        rows.append([f"{self.unit} total", "", *total, f"{self.memory_bits}", f"{self.macro_um2:.0f}"])
        head = ["block", "count", "cells", "flip-flops", "clock gates", "um2", "NAND2", "memory bits", "macros um2*"]
        notes = [
            f"{self.library['name']} ({self.library['tier']}), {self.point} point, {self.tools['yosys']}, unplaced",
            "* estimate for the predictive 14 nm-class technology, not part of um2",
        ]
        return "\n".join([table(head, rows), *notes])


def area(
    unit: str,
    config: Config,
    library: Library | None = None,
    *,
    point: str = "area",
    clock_mhz: float = 800.0,
    tool: str = "yowasp",
    macro_bits: int = MIN_BITS,
    gated: int = GATED_REGISTERS,
) -> Area:
    """Map `unit` in `config` to `library` (the embedded one by default) and measure its area.

    A block that was mapped before with the same content, library, script and tool comes from the cache.

    Raises
    ------
    ValueError
        Unknown unit, point or tool, clock out of range, or an incomplete library (`synth.library.parser.LibraryError`).
    synth.mapping.MappingError
        yosys failed, or a cell has no counterpart in the library.
    """
    return area_of_rtlil(
        rtlil(unit, config),
        unit,
        library,
        config=config.asdict(),
        point=point,
        clock_mhz=clock_mhz,
        tool=tool,
        macro_bits=macro_bits,
        gated=gated,
    )


def area_of_rtlil(
    design: str,
    unit: str,
    library: Library | None = None,
    *,
    config: dict[str, int] | None = None,
    point: str = "area",
    clock_mhz: float = 800.0,
    tool: str = "yowasp",
    macro_bits: int = MIN_BITS,
    gated: int = GATED_REGISTERS,
    isolated: bool = False,
    flat_bytes: int | None = None,
) -> Area:
    """As `area`, for a design as RTLIL text with the top module `unit`.

    Parameters
    ----------
    isolated : as in `map_block`, for the top
    flat_bytes : as in `partition`; None for its default
    """
    library, clock_ps = library or libraries.embedded(), period_ps(clock_mhz)
    limits = {} if flat_bytes is None else {"flat_bytes": flat_bytes}
    blocks = partition(design, unit, **limits)
    by_name = {block.name: block for block in blocks}
    mapped = {
        block.name: map_block(
            block,
            library,
            point=point,
            clock_ps=clock_ps,
            tool=tool,
            macro_bits=macro_bits,
            gated=gated,
            stubs=[by_name[name] for name in block.children],
            inner=block is not blocks[-1],
            isolated=isolated and block is blocks[-1],
        )
        for block in blocks
    }
    types: Counter[str] = Counter()
    for block in blocks:
        types.update({name: count * block.count for name, count in mapped[block.name].cells.items()})
    return Area(
        unit=unit,
        config=config or {},
        point=point,
        library=library.json(),
        nand2_um2=library.nand2.area,
        blocks=tuple(_block_area(block, mapped[block.name], library) for block in blocks),
        cell_types=dict(sorted(types.items())),
        tools={"yosys": yosys.version(tool)},
        git=git_revision(),
        mapped=mapped,
    )


def _block_area(block: Block, mapped: Mapped, library: Library) -> BlockArea:
    registers = {name: n for name, n in mapped.cells.items() if library.cell(name).state is not None}
    return BlockArea(
        name=block.name,
        count=block.count,
        cells=sum(mapped.cells.values()),
        flip_flops=sum(registers.values()),
        clock_gates=sum(n for name, n in mapped.cells.items() if library.cell(name).gate is not None),
        area_um2=sum(library.cell(name).area * count for name, count in mapped.cells.items()),
        register_um2=sum(library.cell(name).area * count for name, count in registers.items()),
        macros=mapped.macros,
    )
