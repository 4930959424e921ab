"""AXI4-Lite registers from one table: hardware, Markdown, C header and SystemRDL."""

# mypy: disable-error-code="assignment,arg-type"

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from amaranth import Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Response, axi4_lite

# reserved words of SystemRDL 2.0; as identifiers they need a backslash
_KEYWORDS = frozenset([
    "abstract", "accesstype", "addressingtype", "addrmap", "alias", "all", "bit", "boolean", "bothedge", "compact",
    "component", "componentwidth", "constraint", "default", "encode", "enum", "external", "false", "field",
    "fullalign", "hw", "inside", "internal", "level", "longint", "mem", "na", "negedge", "nonsticky", "number",
    "onreadtype", "onwritetype", "posedge", "property", "r", "rclr", "ref", "reg", "regalign", "regfile", "rset",
    "ruser", "rw", "rw1", "signal", "string", "struct", "sw", "this", "true", "type", "unsigned", "w", "w1", "wclr",
    "woclr", "woset", "wot", "wr", "wset", "wuser", "wzc", "wzs", "wzt"
])  # fmt: skip


class Access(enum.StrEnum):
    """Accesses of software to a register."""

    RW = "read, write"
    RO = "read"
    PULSE = "write: each 1 acts once; reads 0"
    CLEAR = "read; writing 1 clears a bit"


@dataclass(frozen=True)
class Register:
    """One register of up to 64 bits; more than 32 take two addresses, the lower half first.

    name, width, access, reset : identifier, bits, accesses of software, value after reset
    text : one-line description
    bits : bit fields of the register, if it has any: (name, lowest bit, width, description) of each
    """

    name: str
    width: int
    access: Access
    text: str
    reset: int = 0
    bits: tuple[tuple[str, int, int, str], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.width <= 64:
            raise ValueError(f"width of register {self.name} must be 1 to 64, got {self.width}")

    @property
    def words(self) -> int:
        return -(-self.width // 32)


@dataclass(frozen=True)
class RegisterMap:
    """Registers at ascending addresses, four bytes per word.

    Raises
    ------
    ValueError
        Two registers have the same name.
    """

    name: str
    registers: Sequence[Register]
    offsets: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        offsets: dict[str, int] = {}
        offset = 0
        for register in self.registers:
            if register.name in offsets:
                raise ValueError(f"register names must be unique, got {register.name} twice")
            offsets[register.name] = offset
            offset += 4 * register.words
        object.__setattr__(self, "offsets", offsets)

    @property
    def address_bits(self) -> int:
        last = self.registers[-1]
        return (self.offsets[last.name] + 4 * last.words - 1).bit_length()

    def markdown(self) -> str:
        """A table of all registers."""
        lines = ["| offset | register | bits | access | reset | description |", "|---|---|---|---|---|---|"]
        for r in self.registers:
            head = f"| 0x{self.offsets[r.name]:03x} | `{r.name}` | {r.width} | {r.access.value} | {r.reset:#x} |"
            bit_fields = [f"{low + width - 1}:{low} `{name}` {text}" for name, low, width, text in r.bits]
            lines.append(f"{head} {'; '.join([r.text, *bit_fields])} |")
        return "\n".join(lines) + "\n"

    def c_header(self) -> str:
        """Offsets, shifts and masks as macros."""
        prefix = self.name.upper()
        lines = [f"#ifndef {prefix}_REGISTERS_H", f"#define {prefix}_REGISTERS_H", ""]
        for r in self.registers:
            name = f"{prefix}_{r.name.upper()}"
            lines.append(f"#define {name} 0x{self.offsets[r.name]:03x}u /* {r.text} */")
            for bit_field, low, width, _ in r.bits:
                lines.append(f"#define {name}_{bit_field.upper()}_SHIFT {low}")
                lines.append(f"#define {name}_{bit_field.upper()}_MASK 0x{(1 << width) - 1:x}u")
        return "\n".join([*lines, "", "#endif", ""])

    def to_systemrdl(self) -> str:
        """The map as SystemRDL 2.0 text: an `addrmap` with one `reg` per register.

        A register without bit fields has one field `value`. A register of more than 32 bits has a `regwidth` of 64 and
        an `accesswidth` of 32. Fields that hardware drives have no reset value.
        """
        lines = [f"addrmap {_identifier(self.name)} {{", f'  name = "{self.name} registers";', "  littleendian;"]
        lines += ["  default regwidth = 32;", "  default accesswidth = 32;"]
        for r in self.registers:
            lines += ["", "  reg {", f"    desc = {_string(r.text)};"]
            lines += [f"    regwidth = {32 * r.words};"] if r.words > 1 else []
            for name, low, width, text in r.bits or (("value", 0, r.width, r.text),):
                properties = [f"desc = {_string(text)};", _PROPERTIES[r.access]]
                if r.access is Access.PULSE and width == 1:
                    properties.append("singlepulse;")
                if r.access is not Access.RO:
                    properties.append(f"reset = {width}'h{r.reset >> low & (1 << width) - 1:x};")
                lines.append(f"    field {{ {' '.join(properties)} }} {_identifier(name)}[{low + width - 1}:{low}];")
            lines.append(f"  }} {_identifier(r.name)} @ 0x{self.offsets[r.name]:x};")
        return "\n".join([*lines, "};", ""])


# accesses of software and hardware to a field in SystemRDL
_PROPERTIES = {
    Access.RW: "sw = rw; hw = r;",
    Access.RO: "sw = r; hw = w;",
    Access.PULSE: "sw = w; hw = r;",
    Access.CLEAR: "sw = rw; onwrite = woclr; hw = rw;",
}


def _identifier(name: str) -> str:
    return f"\\{name}" if name in _KEYWORDS else name


def _string(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


class RegisterFile(wiring.Component):
    """AXI4-Lite subordinate with the registers of a map.

    An access without a register, and a write to a read-only register, get the response SLVERR and change nothing. Bytes
    whose strobe is 0 keep their value. The halves of a register of more than 32 bits are accessed separately.

    Timing: one access of each direction at a time, two cycles without waits; `pulse_*` are high for one cycle.

    Parameters
    ----------
    table : the registers

    Members
    -------
    axi : AXI4-Lite subordinate port
    value_NAME : value of each RW and CLEAR register
    pulse_NAME : for each PULSE register, the bits that are written as 1
    input_NAME : value that each RO register reads
    set_NAME : for each CLEAR register, the bits that become 1
    """

    def __init__(self, table: RegisterMap):
        self.table = table
        ports: dict[str, wiring.Member] = {}
        for r in table.registers:
            if r.access is Access.RW:
                ports[f"value_{r.name}"] = Out(r.width)
            elif r.access is Access.RO:
                ports[f"input_{r.name}"] = In(r.width)
            elif r.access is Access.PULSE:
                ports[f"pulse_{r.name}"] = Out(r.width)
            else:
                ports |= {f"set_{r.name}": In(r.width), f"value_{r.name}": Out(r.width)}
        super().__init__({"axi": In(axi4_lite(address_bits=table.address_bits)), **ports})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        storage = {
            r.name: Signal(r.width, name=r.name, init=r.reset)
            for r in self.table.registers
            if r.access in (Access.RW, Access.CLEAR)
        }
        for r in self.table.registers:
            if r.access is Access.PULSE:
                m.d.sync += getattr(self, f"pulse_{r.name}").eq(0)
            elif r.access is Access.CLEAR:
                m.d.comb += getattr(self, f"value_{r.name}").eq(storage[r.name])
                m.d.sync += storage[r.name].eq(storage[r.name] | getattr(self, f"set_{r.name}"))
            elif r.access is Access.RW:
                m.d.comb += getattr(self, f"value_{r.name}").eq(storage[r.name])
        self._accept_writes(m, storage)
        self._accept_reads(m, storage)
        return m

    def _accept_writes(self, m: Module, storage: dict[str, Signal]) -> None:
        """Write channels; address and data can arrive in any order."""
        axi = self.axi
        address, word, strobe = Signal.like(axi.awaddr), Signal(32), Signal(4)
        address_valid, word_valid = Signal(), Signal()
        m.d.comb += [axi.awready.eq(~address_valid), axi.wready.eq(~word_valid)]
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += [address.eq(axi.awaddr), address_valid.eq(1)]
        with m.If(axi.wvalid & axi.wready):
            m.d.sync += [word.eq(axi.wdata), strobe.eq(axi.wstrb), word_valid.eq(1)]
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        with m.If(address_valid & word_valid & ~axi.bvalid):
            m.d.sync += [address_valid.eq(0), word_valid.eq(0), axi.bvalid.eq(1), axi.bresp.eq(Response.SLVERR)]
            with m.Switch(address[2:]):
                for r in self.table.registers:
                    for half in range(r.words if r.access is not Access.RO else 0):
                        with m.Case((self.table.offsets[r.name] >> 2) + half):
                            m.d.sync += axi.bresp.eq(Response.OKAY)
                            self._write(m, r, half, word, strobe, storage)

    def _write(
        self, m: Module, r: Register, half: int, word: Signal, strobe: Signal, storage: dict[str, Signal]
    ) -> None:
        """Effect of a write to one word of a register, byte by byte."""
        for byte in range(4):
            low = 32 * half + 8 * byte
            high = min(low + 8, r.width)
            if low >= high:
                continue
            bits = word[8 * byte : 8 * byte + high - low]
            with m.If(strobe[byte]):
                if r.access is Access.PULSE:
                    m.d.sync += getattr(self, f"pulse_{r.name}")[low:high].eq(bits)
                elif r.access is Access.RW:
                    m.d.sync += storage[r.name][low:high].eq(bits)
                else:
                    set_bits = getattr(self, f"set_{r.name}")[low:high]
                    m.d.sync += storage[r.name][low:high].eq((storage[r.name][low:high] & ~bits) | set_bits)

    def _accept_reads(self, m: Module, storage: dict[str, Signal]) -> None:
        """Read channels."""
        axi = self.axi
        with m.If(axi.rvalid & axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        m.d.comb += axi.arready.eq(~axi.rvalid)
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += [axi.rvalid.eq(1), axi.rdata.eq(0), axi.rresp.eq(Response.SLVERR)]
            with m.Switch(axi.araddr[2:]):
                for r in self.table.registers:
                    for half in range(r.words):
                        with m.Case((self.table.offsets[r.name] >> 2) + half):
                            m.d.sync += axi.rresp.eq(Response.OKAY)
                            if r.access is not Access.PULSE:
                                value = self._read_value(r, storage)
                                m.d.sync += axi.rdata.eq(value[32 * half : 32 * half + 32])

    def _read_value(self, r: Register, storage: dict[str, Signal]) -> Value:
        """Value that a register reads."""
        return getattr(self, f"input_{r.name}") if r.access is Access.RO else storage[r.name]
