"""Programs from dependencies: each command names what it needs, and its waits follow."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hw.core.isa import BY_NAME, Command, ExecUnit, SyncEvent, all_but


@dataclass(frozen=True)
class CommandRef:
    """A command of a program: the `number`-th of its unit."""

    unit: ExecUnit
    number: int


class Builder:
    """Commands in the order in which the units get them.

    A command waits for exactly those that it names and, because events of a unit come in order, for those before them:
    whatever else is under way goes on beside it.
    """

    def __init__(self) -> None:
        self.commands: list[Command] = []
        self.count = dict.fromkeys(ExecUnit, 0)

    def add(
        self,
        name: str,
        fields: Mapping[str, int],
        *,
        after: Iterable[CommandRef] = (),
        over: Iterable[CommandRef | None] = (),
    ) -> CommandRef:
        """Another command: `after` those whose results it needs, `over` the operands of MULTIPLY commands (if any)."""
        needed = [(SyncEvent(given.unit), given) for given in after]
        needed += [(SyncEvent.OPERANDS, given) for given in over if given is not None]
        waits: dict[SyncEvent, int] = {}
        for event, given in needed:
            wait = all_but(self.count[given.unit] - 1 - given.number)
            waits[event] = min(wait, waits.get(event, wait))
        unit = BY_NAME[name].unit
        assert unit is not None
        self.commands.append(Command(name, fields, waits))
        self.count[unit] += 1
        return CommandRef(unit, self.count[unit] - 1)


class Operands:
    """The operand memory in two halves, weights and activations apart: one is filled while the other is used.

    Parameters
    ----------
    builder : gets the commands ; weight_rows : of each half of the weights ; activation_rows : of all activations
    """

    def __init__(self, builder: Builder, weight_rows: int, activation_rows: int):
        self.builder, self.weight_rows, self.activation_rows = builder, weight_rows, activation_rows
        self.readers: dict[tuple[str, int], CommandRef | None] = {}  # of each half: the last command that reads it
        self.turn = {"weights": 0, "activations": 0}

    def weights(self, name: str, fields: Mapping[str, int], after: Iterable[CommandRef] = ()) -> "LoadedOperands":
        """LOAD or GATHER into the half that is not in use."""
        half = self._next("weights")
        row = half * self.weight_rows
        given = self.builder.add(
            name, {**fields, "target": row}, after=after, over=[self.readers.get(("weights", half))]
        )
        return LoadedOperands(given, row, (("weights", half),))

    def activations(
        self, loads: Iterable[Mapping[str, int]], rows: int, after: Iterable[CommandRef] = ()
    ) -> "LoadedOperands":
        """LOADs of `rows` rows in all, their `target` counted from the first; into one half, if they fit."""
        if rows > self.activation_rows:
            raise ValueError(f"activations of {rows} words: must be at most {self.activation_rows} words")
        half = self._next("activations")
        row, halves = half * (self.activation_rows // 2), [("activations", half)]
        if rows > self.activation_rows // 2:
            row, halves = 0, [("activations", 0), ("activations", 1)]
        for fields in loads:
            given = self.builder.add(
                "LOAD", {**fields, "target": row + fields.get("target", 0), "activations": 1},
                after=after, over=[self.readers.get(half) for half in halves],
            )  # fmt: skip
        return LoadedOperands(given, row, tuple(halves))

    def multiply(
        self, fields: Mapping[str, int], weights: "LoadedOperands", x: "LoadedOperands", tile: int
    ) -> CommandRef:
        """MULTIPLY what has been filled; `fields["activations"]` counts from the first row, `tile`: rows of a tile."""
        fields = {**fields, "weights": weights.row // tile, "activations": x.row + fields.get("activations", 0)}
        given = self.builder.add("MULTIPLY", fields, after=[weights.given, x.given])
        self.readers.update(dict.fromkeys((*weights.halves, *x.halves), given))
        return given

    def _next(self, kind: str) -> int:
        half = self.turn[kind]
        self.turn[kind] = 1 - half
        return half


@dataclass(frozen=True)
class LoadedOperands:
    """Operands: the command that brings the last of them, their first row, the halves that they lie in."""

    given: CommandRef
    row: int
    halves: tuple[tuple[str, int], ...]  # weights or activations, 0 or 1
