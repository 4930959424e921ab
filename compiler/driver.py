"""What software does with a core: accesses to its registers, in order. A transport performs them."""

from collections.abc import Sequence

from hw.axi.registers import RegisterMap
from hw.core.isa import COMMAND_BYTES, Command, encode
from hw.core.register_map import CLEAR, DONE, FAILED, START

Step = list  # ["write", address, value], ["read", address], ["interrupt", cycles, bit]: what a transport does


class Driver:
    """Accesses for one core whose register map is `table` and whose memory has words of `word_bytes`; in a cluster it
    has the number `core`."""

    def __init__(self, table: RegisterMap, word_bytes: int, core: int = 0):
        self.table, self.word_bytes, self.core = table, word_bytes, core

    def _offset(self, name: str) -> int:
        return (self.core << self.table.address_bits) + self.table.offsets[name]

    def write(self, name: str, value: int) -> list[Step]:
        """Write a register, both halves of a long one."""
        offset, register = self._offset(name), next(r for r in self.table.registers if r.name == name)
        if not 0 <= value < 1 << register.width:
            raise ValueError(f"{name} = {value}: must be 0 to {(1 << register.width) - 1}")
        return [["write", offset + 4 * k, value >> 32 * k & 0xFFFFFFFF] for k in range(register.words)]

    def read(self, name: str) -> list[Step]:
        """Read a register, the lower half of a long one first."""
        offset, register = self._offset(name), next(r for r in self.table.registers if r.name == name)
        return [["read", offset + 4 * k] for k in range(register.words)]

    def setup(self, **values: int) -> list[Step]:
        """Enable both interrupts and write registers."""
        steps = self.write("events_enable", 1 << DONE | 1 << FAILED)
        for name, value in values.items():
            steps += self.write(name, value)
        return steps

    def image(self, program: Sequence[Command]) -> bytes:
        """A program as it is put into memory: whole words."""
        code = encode(program)
        return code + bytes(-len(code) % max(self.word_bytes, COMMAND_BYTES))

    def start(self, place: int, commands: int) -> list[Step]:
        """Run the program of so many commands at word `place`."""
        return [*self.write("program", place), *self.write("commands", commands), *self.write("control", 1 << START)]

    def finish(self, cycles: int) -> list[Step]:
        """Wait for the interrupt, at most so many cycles; then read events, cause and address; take the events back."""
        steps: list[Step] = [["interrupt", cycles, self.core]]
        for name in ("events", "status", "cause", "fault_address"):
            steps += self.read(name)
        return steps + self.write("events", 1 << DONE | 1 << FAILED)

    def clear(self) -> list[Step]:
        """Go on after a fault."""
        return self.write("control", 1 << CLEAR)
