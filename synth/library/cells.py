"""The cells of the predictive library, built from transistors: width, stages of every path, function.

The width is one gate pitch per finger (of an n and a p device), one for the break between cells, and one more in cells
with two separate diffusions. The rule gives the widths of the NanGate 45 nm library: INV 2, NAND2 3, AND2 4,
XOR2 6, MUX2 7, HA 10, FA 16, DFF 17, DFFR 20 pitches.

A path is a chain of inverting stages. The resistance of a stage depends on its stack height, its load on the gates that
it drives. Neighbouring fingers share their drain, so two parallel devices load the output like one, three or four like
two.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Stage:
    """One inverting stage: stack heights of the pull-up and pull-down, fingers per device, drains on its output
    (in drains of one finger pair), gate fingers that it drives inside the cell."""

    up: int = 1
    down: int = 1
    fingers: int = 1
    drains: float = 1.0
    load: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes
    ----------
    columns : width in gate pitches
    stacked : columns whose devices stand in stacks
    inputs : gate fingers on every input pin
    functions : Liberty function of every output pin
    paths : (input, output) -> chains of stages from one to the other; the slowest decides
    senses : timing sense of the paths
    hidden : gate fingers that an output transition switches inside, in addition to those on the path
    sequential : Liberty `ff`, `latch` or `gate` (clock gate) attributes, empty for logic
    """

    name: str
    columns: int
    inputs: dict[str, int]
    functions: dict[str, str]
    paths: dict[tuple[str, str], tuple[tuple[Stage, ...], ...]]
    senses: dict[tuple[str, str], str] = field(default_factory=dict)
    stacked: int = 0
    hidden: float = 0.0
    sequential: dict[str, str] = field(default_factory=dict)


def _simple(name: str, pins: str, function: str, stage: tuple[int, int, float], drive: int) -> Cell:
    """A single inverting stage over `pins`, each with `drive` fingers."""
    up, down, drains = stage
    inverting_stage = Stage(up, down, drive, drains * drive)
    names = pins.split()
    return Cell(
        f"{name}_X{drive}",
        len(names) * drive + 1,
        dict.fromkeys(names, drive),
        {"Y": function},
        {(pin, "Y"): ((inverting_stage,),) for pin in names},
        {(pin, "Y"): "negative_unate" for pin in names},
        stacked=len(names) * drive if max(up, down) > 1 else 0,
    )


def _buffered(name: str, pins: str, function: str, first: tuple[int, int, float], drive: int) -> Cell:
    """A stage over `pins` and an output inverter of `drive` fingers."""
    up, down, drains = first
    names = pins.split()
    fingers = max(1, drive // 4)  # the first stage of a strong buffer is larger
    chain = (Stage(up, down, fingers, drains * fingers, drive), Stage(1, 1, drive, drive))
    return Cell(
        f"{name}_X{drive}",
        len(names) * fingers + drive + 1,
        dict.fromkeys(names, fingers),
        {"Y": function},
        {(pin, "Y"): (chain,) for pin in names},
        {(pin, "Y"): "positive_unate" for pin in names},
        stacked=len(names) * fingers if max(up, down) > 1 else 0,
    )


def _out(drive: int) -> Stage:
    return Stage(1, 1, drive, drive)


def _exclusive() -> list[Cell]:
    """XOR2 and XNOR2 of ten transistors: a NOR2 and an AOI21, or their duals."""
    cells = []
    for name, function, first, second in (
        ("XOR2", "(A * !B) + (!A * B)", (2, 1), (2, 2)),
        ("XNOR2", "(A * B) + (!A * !B)", (1, 2), (2, 2)),
    ):
        for drive in (1, 2):
            last = Stage(*second, drive, drive)
            inner = Stage(*first, 1, 1, drive)
            cells.append(
                Cell(
                    f"{name}_X{drive}",
                    2 + 3 * drive + 1,
                    {"A": 1 + drive, "B": 1 + drive},
                    {"Y": function},
                    {(pin, "Y"): ((last,), (inner, last)) for pin in "AB"},
                    {(pin, "Y"): "non_unate" for pin in "AB"},
                    stacked=2 + 3 * drive,
                    hidden=1,
                )
            )
    return cells


def _mux() -> list[Cell]:
    """MUX2 of twelve transistors: inverter of the select, AOI22, output inverter."""
    cells = []
    for drive in (1, 2):
        choose = Stage(2, 2, 1, 1, drive)
        data = ((choose, _out(drive)),)
        select = ((choose, _out(drive)), (Stage(load=1), choose, _out(drive)))
        cells.append(
            Cell(
                f"MUX2_X{drive}",
                1 + 4 + drive + 1,
                {"A": 1, "B": 1, "S": 2},
                {"Y": "(A * !S) + (B * S)"},
                {("A", "Y"): data, ("B", "Y"): data, ("S", "Y"): select},
                {("A", "Y"): "positive_unate", ("B", "Y"): "positive_unate", ("S", "Y"): "non_unate"},
                stacked=4,
            )
        )
    return cells


def _adders() -> list[Cell]:
    """Half adder (XOR2 and AND2) and the 28-transistor mirror full adder."""
    last, inner = Stage(2, 2, 1, 1), Stage(2, 1, 1, 1, 1)
    half = Cell(
        "HA_X1",
        5 + 3 + 2,
        {"A": 3, "B": 3},
        {"S": "(A * !B) + (!A * B)", "CO": "A * B"},
        {(pin, "S"): ((last,), (inner, last)) for pin in "AB"}
        | {(pin, "CO"): ((Stage(1, 2, 1, 1, 1), _out(1)),) for pin in "AB"},
        {(pin, "S"): "non_unate" for pin in "AB"} | {(pin, "CO"): "positive_unate" for pin in "AB"},
        stacked=7,
        hidden=1,
    )
    carry = Stage(2, 2, 1, 2, 1 + 2)  # its output also feeds the sum stage
    total = Stage(3, 3, 1, 2, 1)
    pins = ("A", "B", "CI")
    full = Cell(
        "FA_X1",
        12 + 2 + 2,
        {"A": 4, "B": 4, "CI": 3},
        {"S": "A ^ B ^ CI", "CO": "(A * B) + (A * CI) + (B * CI)"},
        {(pin, "CO"): ((carry, _out(1)),) for pin in pins}
        | {(pin, "S"): ((total, _out(1)), (carry, total, _out(1))) for pin in pins},
        {(pin, "CO"): "positive_unate" for pin in pins} | {(pin, "S"): "non_unate" for pin in pins},
        stacked=12,
        hidden=2,
    )
    return [half, full]


# clock to output of a transmission-gate master-slave flip-flop: clock inverter, slave gate, slave inverter, output
CLOCK_INVERTER = Stage(load=2)
_SLAVE = (Stage(2, 2, 1, 1, 1.5), Stage(load=1))
# from the data pin to the master's storage node: input inverter, transmission gate, master inverter
SETUP_PATH = (Stage(load=0.5), Stage(2, 2, 1, 1, 1.5), Stage(load=1))
CLOCK_FINGERS = 6.0  # gate fingers on the internal clock nodes of a flip-flop, switched by every clock edge
GATE_CLOCK_FINGERS = 3.0  # the same for the one latch of a clock gate
DATA_FINGERS = 3.0  # gate fingers that a data transition switches inside while the master is open


def _registers() -> list[Cell]:
    def flop(name: str, columns: int, drive: int, inputs: dict[str, int], next_state: str, extra: dict[str, str]):
        return Cell(
            f"{name}_X{drive}",
            columns + drive - 1,
            {"CK": 1, **inputs},
            {"Q": "IQ"},
            {("CK", "Q"): ((CLOCK_INVERTER, *_SLAVE, _out(drive)),)},
            stacked=columns // 2,
            hidden=2,
            sequential={"kind": "ff", "clocked_on": "CK", "next_state": next_state, **extra},
        )

    cells = [flop("DFF", 17, drive, {"D": 1}, "D", {}) for drive in (1, 2)]
    # the enable is a multiplexer in front of the flip-flop without its output inverter and break
    cells.append(flop("DFFE", 17 + 5, 1, {"D": 1, "E": 2}, "(D * E) + (IQ * !E)", {}))
    cells.append(flop("DFFR", 20, 1, {"D": 1, "RN": 2}, "D", {"clear": "!RN"}))
    cells.append(flop("DFFS", 20, 1, {"D": 1, "SN": 2}, "D", {"preset": "!SN"}))
    latch = Cell(
        "LATCH_X1",
        10,
        {"G": 1, "D": 1},
        {"Q": "IQ"},
        {("G", "Q"): ((CLOCK_INVERTER, *_SLAVE, _out(1)),), ("D", "Q"): ((*SETUP_PATH, _out(1)),)},
        {("D", "Q"): "positive_unate"},
        stacked=5,
        hidden=1,
        sequential={"kind": "latch", "enable": "G", "data_in": "D"},
    )
    # a clock gate is a latch and an AND2 in one cell; the widths of NanGate 45 nm's are 13 and 14 pitches
    gates = [
        Cell(
            f"CLKGATE_X{drive}",
            latch.columns + 2 + drive,
            {"CK": 2, "E": 1},
            {"GCK": "CK * IQ"},
            {("CK", "GCK"): ((Stage(1, 2, 1, 1, drive), _out(drive)),)},
            stacked=7,
            hidden=1,
            sequential={"kind": "gate"},
        )
        for drive in (1, 2)
    ]
    return [*cells, latch, *gates]


def cells() -> list[Cell]:
    """Every cell of the library."""
    found = [_simple("INV", "A", "!A", (1, 1, 1), drive) for drive in (1, 2, 4, 8)]
    stage: tuple[int, int, float]
    found += [_buffered("BUF", "A", "A", (1, 1, 1), drive) for drive in (1, 2, 4, 8)]
    for name, pins, function, stage in (
        ("NAND2", "A B", "!(A * B)", (1, 2, 1)),
        ("NOR2", "A B", "!(A + B)", (2, 1, 1)),
        ("AOI21", "A B C", "!((A * B) + C)", (2, 2, 1)),
        ("OAI21", "A B C", "!((A + B) * C)", (2, 2, 1)),
    ):
        found += [_simple(name, pins, function, stage, drive) for drive in (1, 2, 4)]
    for name, pins, function, stage in (
        ("NAND3", "A B C", "!(A * B * C)", (1, 3, 1.5)),
        ("NOR3", "A B C", "!(A + B + C)", (3, 1, 1.5)),
        ("AOI22", "A B C D", "!((A * B) + (C * D))", (2, 2, 1)),
        ("OAI22", "A B C D", "!((A + B) * (C + D))", (2, 2, 1)),
    ):
        found += [_simple(name, pins, function, stage, drive) for drive in (1, 2)]
    for name, pins, function, stage in (
        ("NAND4", "A B C D", "!(A * B * C * D)", (1, 4, 1.5)),
        ("NOR4", "A B C D", "!(A + B + C + D)", (4, 1, 1.5)),
        ("AOI211", "A B C D", "!((A * B) + C + D)", (3, 2, 1.5)),
        ("OAI211", "A B C D", "!((A + B) * C * D)", (2, 3, 1.5)),
    ):
        found.append(_simple(name, pins, function, stage, 1))
    for name, pins, function, stage in (
        ("AND2", "A B", "A * B", (1, 2, 1)),
        ("OR2", "A B", "A + B", (2, 1, 1)),
        ("AND3", "A B C", "A * B * C", (1, 3, 1.5)),
        ("OR3", "A B C", "A + B + C", (3, 1, 1.5)),
    ):
        found += [_buffered(name, pins, function, stage, drive) for drive in (1, 2)]
    return [*found, *_exclusive(), *_mux(), *_adders(), *_registers()]
