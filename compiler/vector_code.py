"""Vector programs in device memory, and the VECTOR commands that run them."""

# mypy: disable-error-code="arg-type"

from collections.abc import Mapping, Sequence

from compiler.builder import CommandRef, Operands
from compiler.memory import Region
from hw.config import Config
from hw.core.isa import COUNT
from hw.core.vector.command import INSTRUCTION_BYTES, assemble
from hw.lxe.microcode import Instruction

MAX_REPEAT = (1 << COUNT) - 1  # repetitions of a VECTOR


def largest_divisor(words: int, maximum: int) -> int:
    """Words of the equal pieces of a row: the largest divisor of `words` up to `maximum`; 0 if `maximum` is 0."""
    return next((divisor for divisor in range(min(words, maximum), 0, -1) if words % divisor == 0), 0)


class VectorCode:
    """The vector programs of one compiler.

    Attributes
    ----------
    addresses : word address and number of instructions of each vector program
    images, instructions : vector programs by word address, as bytes and as instructions
    varying : word addresses of the vector programs whose instructions take the length of a row
    """

    def __init__(self, config: Config, region: Region):
        self.config, self.region = config, region
        self.addresses: dict[str, tuple[int, int]] = {}
        self.images: dict[int, bytes] = {}
        self.instructions: dict[int, list[Instruction]] = {}
        self.varying: set[int] = set()

    def add(self, programs: Mapping[str, list[Instruction]], *, varying: bool = False) -> None:
        """Allocate memory for programs by name; those that are `varying` take the length of a row."""
        for name, program in programs.items():
            image = assemble(program, self.config.vpe_rows, varies=varying)
            address = self.region.allocate(-(-len(image) * 8 // (16 * self.config.dpe_inputs)))
            self.addresses[name] = address, len(image) // INSTRUCTION_BYTES
            self.images[address], self.instructions[address] = image, program
            if varying:
                self.varying.add(address)

    def command(
        self, p: Operands, name: str, after: Sequence[CommandRef], *, repeat: int | range, **fields: int
    ) -> list[CommandRef]:
        """Append a VECTOR, or several ones if there are more repetitions than one holds; returns the last one.

        `repeat` : number of repetitions; a range: those with these numbers. Nothing is appended for an empty range.
        """
        numbers = range(repeat) if isinstance(repeat, int) else repeat
        code, instructions = self.addresses[name]
        rows, last = [row for row in ("a", "b", "out") if row in fields], list[CommandRef]()
        for start in numbers[::MAX_REPEAT]:
            moved: dict[str, int] = {row: fields[row] + start * fields.get(f"{row}_stride", 0) for row in rows}
            count = min(MAX_REPEAT, numbers.stop - start)
            command = {"code": code, "instructions": instructions, "repeat": count, **fields, **moved}
            last = [p.builder.add("VECTOR", command, after=after)]
        return last
