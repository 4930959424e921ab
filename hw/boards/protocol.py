"""Serial protocol of a unit: its streams and settings with their message codes, and test vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from amaranth.hdl import Shape
from amaranth.lib import stream, wiring

from hw.boards.message_codes import FIRST, RESULT


@dataclass(frozen=True)
class Channel:
    """A stream of the unit: name, message code, and bits of a beat."""

    name: str
    code: int
    width: int

    @property
    def bytes(self) -> int:
        """Bytes of a beat in a message."""
        return -(-self.width // 8)


@dataclass(frozen=True)
class Protocol:
    """Input streams, output streams, and widths of the settings in the order of the message."""

    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    settings: dict[str, int]

    @property
    def settings_bytes(self) -> int:
        """Bytes of all settings in a message."""
        return -(-sum(self.settings.values()) // 8)

    def json(self) -> dict[str, Any]:
        """The protocol as JSON values, for the host."""
        return asdict(self)


def protocol(unit: wiring.Component) -> Protocol:
    """The protocol of a unit, with streams and `cfg_*` ports in the order of its signature."""
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
    return Protocol(tuple(inputs), tuple(outputs), settings)


@dataclass(frozen=True)
class Vectors:
    """Test vectors of a unit: settings, input beats, and expected output beats.

    Attributes
    ----------
    settings : values of `cfg_*` ports; a missing port is 0
    inputs, outputs : payload words of each stream
    echo : input streams that answer an output stream beat by beat, by name of the input stream; the answer has the
        fields of the output beat with the same names
    """

    settings: Mapping[str, int]
    inputs: Mapping[str, list[int]]
    outputs: Mapping[str, list[int]]
    echo: Mapping[str, str]


def echo_fields(unit: wiring.Component, answer: str, request: str) -> list[tuple[int, int, int]]:
    """Fields that the streams `request` and `answer` have in common: (lowest bit in request, in answer, width)."""
    source, target = (dict(iter(getattr(unit, name).payload.shape())) for name in (request, answer))
    return [(source[name].offset, field.offset, field.width) for name, field in target.items() if name in source]
