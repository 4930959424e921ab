"""Program builder: derives the waits of every command from the commands whose results it needs.

Several cores can work on one step. Each core has its own program, and computes its `Share` of the results. The results
go to device memory, and the cores meet at barriers before they use the results of the others.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hw.core.isa import BY_NAME, Command, ExecUnit, SyncEvent, all_but
from hw.core.sequencer import PROGRAM_BITS

MAX_COMMANDS = (1 << PROGRAM_BITS) - 2  # of a program, without END


@dataclass(frozen=True)
class CommandRef:
    """Reference to a command of a program: its unit and its number among the commands of that unit."""

    unit: ExecUnit
    number: int


@dataclass(frozen=True)
class Share:
    """The share of the work that one of several cores does.

    Attributes
    ----------
    number, count : number of the core, and of cores
    """

    number: int = 0
    count: int = 1

    @property
    def leads(self) -> bool:
        """Whether this is the core that clusters and selects for all cores."""
        return self.number == 0

    def part(self, items: int) -> range:
        """Range of the items of this core. If `items` is not a multiple of `count`, the last cores have one item more.

        Neighbouring cores have different memory ports, so that these items are spread over as many ports as possible.
        """
        items_per_core, remainder = divmod(items, self.count)
        first_longer = self.count - remainder  # number of the first core with one item more
        first = self.number * items_per_core + max(0, self.number - first_longer)
        return range(first, first + items_per_core + (self.number >= first_longer))

    def balanced_with(self, items: int) -> "Share":
        """Share for other work that runs at the same time as `items` items.

        The cores that have one item more in the other work follow those of these items, so that the sums of all cores
        differ by 1 at most.
        """
        return Share((self.number + items) % self.count, self.count)

    def groups(self, count: int) -> tuple[list[int | None], "Share"]:
        """The groups of items that it works on, of `count` independent ones, and its share of each.

        The list has the same length on all cores; None stands for no group. With more cores than groups, as many cores
        as possible share each group.
        """
        cores = max(1, self.count // count)  # that share a group
        team, teams = self.number // cores, self.count // cores
        groups = range(team, team + count, teams)
        return [n if n < count and team < teams else None for n in groups], Share(self.number % cores, cores)


ALONE = Share()  # of a core that works alone


class ProgramBuilder:
    """A program under construction; commands are in issue order.

    A command waits for the commands that it names and, because a unit signals its events in order, for the earlier
    commands of the same units. Other commands run concurrently.

    Parameters
    ----------
    share : share of the core that executes the program
    """

    def __init__(self, share: Share = ALONE) -> None:
        self.share = share
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
        """Append a command.

        It waits for the commands `after`, whose results it needs, and for the MULTIPLY commands `over`, whose operands
        it overwrites. Raises `ValueError` when the program is too long for the core.
        """
        if len(self.commands) == MAX_COMMANDS:
            raise ValueError(f"commands of a program must be at most {MAX_COMMANDS}; use fewer tokens or keys")
        dependencies = [(SyncEvent(command.unit), command) for command in after]
        dependencies += [(SyncEvent.OPERANDS, command) for command in over if command is not None]
        waits: dict[SyncEvent, int] = {}
        for event, command in dependencies:
            wait = all_but(self.count[command.unit] - 1 - command.number)
            waits[event] = min(wait, waits.get(event, wait))
        unit = BY_NAME[name].unit
        assert unit is not None
        self.commands.append(Command(name, fields, waits))
        self.count[unit] += 1
        return CommandRef(unit, self.count[unit] - 1)

    def meet(self, after: Sequence[CommandRef]) -> list[CommandRef]:
        """Commands after which the results of the commands `after` of all cores are in memory.

        With several cores this is a BARRIER, which all programs need in the same order.
        """
        if self.share.count == 1:
            return list(after)
        return [self.add("BARRIER", {"cores": self.share.count}, after=after)]

    def lead(
        self, name: str, fields: Mapping[str, int] | None = None, *, after: Iterable[CommandRef] = ()
    ) -> list[CommandRef]:
        """Append a command that core 0 executes for all cores. Programs of other cores do not have it."""
        return [self.add(name, fields or {}, after=after)] if self.share.leads else []


class Operands:
    """A program under construction, and the operand memory that its LOADs and MULTIPLYs use.

    The operand memory is double-buffered: one half of the weights and of the activations is loaded while the other is
    used.

    Parameters
    ----------
    builder : program to which the commands are appended
    weight_rows : rows of each half of the weights
    activation_rows : rows of both halves of the activations
    """

    def __init__(self, builder: ProgramBuilder, weight_rows: int, activation_rows: int):
        self.builder, self.weight_rows, self.activation_rows = builder, weight_rows, activation_rows
        self.readers: dict[tuple[str, int], CommandRef | None] = {}  # last command that reads each half
        self.count_readers = list[
            CommandRef
        ]()  # commands after which the number of the last COUNT is not used any more
        self.next_half = {"weights": 0, "activations": 0}

    def complete(self) -> list[Command]:
        """The commands of the program, with END."""
        return [*self.builder.commands, Command("END")]

    def weights(
        self,
        name: str,
        fields: Mapping[str, int],
        after: Iterable[CommandRef] = (),
        more: Iterable[Mapping[str, int]] = (),
        *,
        both: bool = False,
    ) -> "LoadedOperands":
        """Append a LOAD or GATHER into the weight half that is not in use, or into `both` halves.

        `more` : fields of further LOADs into this half; their `target` counts from its first row
        """
        halves = [("weights", half) for half in ((0, 1) if both else (self._next("weights"),))]
        row = halves[0][1] * self.weight_rows
        over = [self.readers.get(half) for half in halves]
        command = self.builder.add(name, {**fields, "target": row}, after=after, over=over)
        for each in more:
            command = self.builder.add("LOAD", {**each, "target": row + each["target"]}, after=after, over=over)
        return LoadedOperands(command, row, tuple(halves))

    def activations(
        self, loads: Iterable[Mapping[str, int]], rows: int, after: Iterable[CommandRef] = ()
    ) -> "LoadedOperands":
        """Append LOADs of `rows` rows in total, into one half if they fit; `target` counts from the first row."""
        if rows > self.activation_rows:
            raise ValueError(f"activations must be at most {self.activation_rows} words, got {rows}")
        half = self._next("activations")
        row, halves = half * (self.activation_rows // 2), [("activations", half)]
        if rows > self.activation_rows // 2:
            row, halves = 0, [("activations", 0), ("activations", 1)]
        for fields in loads:
            command = self.builder.add(
                "LOAD", {**fields, "target": row + fields.get("target", 0), "activations": 1},
                after=after, over=[self.readers.get(half) for half in halves],
            )  # fmt: skip
        return LoadedOperands(command, row, tuple(halves))

    def count(self, word: int) -> CommandRef:
        """Append a COUNT of the number of clusters at `word`."""
        return self.builder.add("COUNT", {"header": word}, after=self.count_readers)

    def multiply(
        self, fields: Mapping[str, int], weights: "LoadedOperands", x: "LoadedOperands", tile: int
    ) -> CommandRef:
        """Append a MULTIPLY; `fields["activations"]` counts from the first row of `x`, a tile has `tile` rows."""
        fields = {**fields, "weights": weights.row // tile, "activations": x.row + fields.get("activations", 0)}
        command = self.builder.add("MULTIPLY", fields, after=[weights.command, x.command])
        self.readers.update(dict.fromkeys((*weights.halves, *x.halves), command))
        return command

    def _next(self, kind: str) -> int:
        half = self.next_half[kind]
        self.next_half[kind] = 1 - half
        return half


@dataclass(frozen=True)
class LoadedOperands:
    """Operands in the operand memory: the command that loads the last of them, their first row, and their halves."""

    command: CommandRef
    row: int
    halves: tuple[tuple[str, int], ...]  # ("weights" or "activations", 0 or 1)
