"""Driver of a core: sequences of register accesses, which a transport performs in order."""

from collections.abc import Sequence

from hw.axi.registers import RegisterMap
from hw.core.isa import COMMAND_BYTES, Command, encode
from hw.core.register_map import CLEAR, DONE, FAILED, START

Step = list  # one access: ["write", address, value], ["read", address] or ["interrupt", cycles, bit]


class Driver:
    """Register accesses for one core.

    Parameters
    ----------
    table : register map ; word_bytes : bytes of a memory word
    core : number of the core in a multi-core
    """

    def __init__(self, table: RegisterMap, word_bytes: int, core: int = 0):
        self.table, self.word_bytes, self.core = table, word_bytes, core

    def _offset(self, name: str) -> int:
        return (self.core << self.table.address_bits) + self.table.offsets[name]

    def write(self, name: str, value: int) -> list[Step]:
        """Write a register; a register longer than 32 bits takes two accesses."""
        offset, register = self._offset(name), next(r for r in self.table.registers if r.name == name)
        if not 0 <= value < 1 << register.width:
            raise ValueError(f"{name} must be 0 to {(1 << register.width) - 1}, got {value}")
        return [["write", offset + 4 * k, value >> 32 * k & 0xFFFFFFFF] for k in range(register.words)]

    def read(self, name: str) -> list[Step]:
        """Read a register, lower half first."""
        offset, register = self._offset(name), next(r for r in self.table.registers if r.name == name)
        return [["read", offset + 4 * k] for k in range(register.words)]

    def setup(self, **values: int) -> list[Step]:
        """Enable both interrupts and write registers."""
        steps = self.write("events_enable", 1 << DONE | 1 << FAILED)
        for name, value in values.items():
            steps += self.write(name, value)
        return steps

    def image(self, program: Sequence[Command]) -> bytes:
        """Memory image of a program, padded to whole words."""
        code = encode(program)
        return code + bytes(-len(code) % max(self.word_bytes, COMMAND_BYTES))

    def start(self, address: int, commands: int) -> list[Step]:
        """Start the program at word `address` with this number of commands."""
        return [*self.write("program", address), *self.write("commands", commands), *self.write("control", 1 << START)]

    def finish(self, cycles: int) -> list[Step]:
        """Wait at most `cycles` for the interrupt; read events, status, cause and fault address; clear the events."""
        steps: list[Step] = [["interrupt", cycles, self.core]]
        for name in ("events", "status", "cause", "fault_address"):
            steps += self.read(name)
        return steps + self.write("events", 1 << DONE | 1 << FAILED)

    def clear(self) -> list[Step]:
        """Clear the fault, after which the core accepts programs again."""
        return self.write("control", 1 << CLEAR)
