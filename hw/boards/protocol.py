"""What a unit behind a serial port has to say and to hear: one table, from which the hardware and the host are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from hw.boards.codes import FIRST, RESULT


@dataclass(frozen=True)
class Channel:
    """A stream of the unit: its name, its code, bits of a beat."""

    name: str
    code: int
    width: int

    @property
    def bytes(self) -> int:
        return -(-self.width // 8)


@dataclass(frozen=True)
class Table:
    """What a unit has: streams to it and from it, and its settings with their widths, in order."""

    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    settings: dict[str, int]

    @property
    def settings_bytes(self) -> int:
        return -(-sum(self.settings.values()) // 8)

    def json(self) -> dict[str, Any]:
        """For the host's side."""
        return asdict(self)


def table(unit: wiring.Component) -> Table:
    """The table of a unit: streams and `cfg_*` ports in the order of its signature."""
    inputs: list[Channel] = []
    outputs: list[Channel] = []
    settings: dict[str, int] = {}
    for name, member in unit.signature.members.items():
        if member.is_signature and isinstance(member.signature, stream.Signature):
            width = Shape.cast(getattr(unit, name).payload.shape()).width
            if member.flow is wiring.In:
                inputs.append(Channel(name, FIRST + len(inputs), width))
            else:
                outputs.append(Channel(name, RESULT + len(outputs), width))
        elif name.startswith("cfg_"):
            settings[name] = Shape.cast(member.shape).width
    return Table(tuple(inputs), tuple(outputs), settings)


@dataclass(frozen=True)
class Vectors:
    """A run of a unit: settings, beats into every input stream, beats that every output stream must answer.

    Attributes
    ----------
    settings : `cfg_*` port -> value; 0 where not given
    inputs, outputs : stream -> payload words
    echo : input stream -> output stream that it answers beat for beat with the fields of the same names
    """

    settings: Mapping[str, int]
    inputs: Mapping[str, list[int]]
    outputs: Mapping[str, list[int]]
    echo: Mapping[str, str]


def echoed(unit: wiring.Component, answer: str, asked: str) -> list[tuple[int, int, int]]:
    """The fields that two streams share: (lowest bit in what is asked, in the answer, width)."""
    source, target = (dict(iter(getattr(unit, name).payload.shape())) for name in (asked, answer))
    return [(source[name].offset, field.offset, field.width) for name, field in target.items() if name in source]
