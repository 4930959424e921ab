"""AXI4 subordinate with a block memory, for boards."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Response, axi4
from hw.common.memory import Ram


def direct_access(words: int, word: int) -> data.StructLayout:
    """An access past the AXI port: word address, whether it writes, and the word to write."""
    return data.StructLayout({"address": range(words), "write": 1, "data": word})


class BlockMemory(wiring.Component):
    """Memory with an AXI4 port, and a port for single words past AXI.

    Bursts are INCR and transfer whole words, of which a write may omit bytes. A burst that starts behind the last word
    gets the response DECERR, and its data are ignored. The memory is 0 after power-up.

    Timing: one burst of each direction at a time, in order; a word per cycle. The first word of a read is valid two
    cycles after its address is accepted. A direct access waits until no burst of its direction is in progress and
    precedes the next one; `read` is valid in the cycle after a read is accepted, and keeps its value until the next
    read of any kind.

    Parameters
    ----------
    words : words of the memory, a power of two
    word : bits of a word
    address_bits, id_bits : of the AXI port

    Members
    -------
    axi : AXI4 subordinate port; byte 0 of the memory has the address 0
    direct : stream of direct accesses
    read : word of the last direct read

    Raises
    ------
    ValueError
        When `words` is not a power of two, or the addresses are too short for it.
    """

    def __init__(self, *, words: int, word: int, address_bits: int, id_bits: int):
        if words < 2 or words & (words - 1):
            raise ValueError(f"words must be a power of two, at least 2, got {words}")
        if words * (word // 8) > 1 << address_bits:
            raise ValueError(f"address_bits must be enough for {words * (word // 8)} bytes, got {address_bits}")
        self.words, self.word = words, word
        super().__init__(
            {
                "axi": In(axi4(address_bits=address_bits, data_bits=word, id_bits=id_bits)),
                "direct": In(stream.Signature(direct_access(words, word))),
                "read": Out(word),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.array = array = Ram(depth=self.words, width=8, words=self.word // 8, bypass=False)
        m.d.comb += self.read.eq(array.r_data)
        direct, ready = self.direct.payload, Signal()
        write_idle, read_idle = self._write(m, array), self._read(m, array)
        m.d.comb += [ready.eq(Mux(direct.write, write_idle, read_idle)), self.direct.ready.eq(ready)]
        with m.If(self.direct.valid & ready):
            with m.If(direct.write):
                m.d.comb += [array.w_addr.eq(direct.address), array.w_data.eq(direct.data), array.w_mask.eq(-1)]
            with m.Else():
                m.d.comb += [array.r_addr.eq(direct.address), array.r_en.eq(1)]
        return m

    def _start(self, m: Module, channel: str, idle: Value) -> tuple[Signal, Signal, Signal]:
        """Accept the address of a burst while idle. Returns its word address, identifier, and error."""
        axi, low = self.axi, (self.word // 8 - 1).bit_length()
        address = getattr(axi, f"{channel}addr")[low:]
        at, identifier = Signal(range(self.words)), Signal.like(getattr(axi, f"{channel}id"))
        failed = Signal(name=f"{channel}_failed")
        # a direct access of this direction has priority
        waits = self.direct.valid & (self.direct.payload.write == int(channel == "aw"))
        m.d.comb += getattr(axi, f"{channel}ready").eq(idle & ~waits)
        with m.If(getattr(axi, f"{channel}valid") & getattr(axi, f"{channel}ready")):
            m.d.sync += [
                at.eq(address),
                identifier.eq(getattr(axi, f"{channel}id")),
                failed.eq(address >> len(at) != 0),
            ]
        return at, identifier, failed

    def _write(self, m: Module, array: Ram) -> Signal:
        """Write channels. Returns whether no burst is in progress."""
        axi, busy, idle = self.axi, Signal(name="writing"), Signal(name="write_idle")
        at, identifier, failed = self._start(m, "aw", idle)
        m.d.comb += [
            idle.eq(~busy & ~axi.bvalid),
            axi.wready.eq(busy),
            axi.bid.eq(identifier),
            axi.bresp.eq(Mux(failed, Response.DECERR, Response.OKAY)),
        ]
        with m.If(axi.awvalid & axi.awready):
            m.d.sync += busy.eq(1)
        with m.If(busy & axi.wvalid):
            m.d.comb += [
                array.w_addr.eq(at),
                array.w_data.eq(axi.wdata),
                array.w_mask.eq(Mux(failed, 0, axi.wstrb)),
            ]
            m.d.sync += at.eq(at + 1)
            with m.If(axi.wlast):
                m.d.sync += [busy.eq(0), axi.bvalid.eq(1)]
        with m.If(axi.bvalid & axi.bready):
            m.d.sync += axi.bvalid.eq(0)
        return idle

    def _read(self, m: Module, array: Ram) -> Signal:
        """Read channels. Returns whether no burst is in progress."""
        axi, idle, fetch = self.axi, Signal(name="read_idle"), Signal()
        remaining = Signal(9)  # words that are not read yet
        at, identifier, failed = self._start(m, "ar", idle)
        m.d.comb += [
            idle.eq((remaining == 0) & ~axi.rvalid),
            fetch.eq((remaining != 0) & (~axi.rvalid | axi.rready)),
            axi.rid.eq(identifier),
            axi.rresp.eq(Mux(failed, Response.DECERR, Response.OKAY)),
            axi.rdata.eq(array.r_data),
        ]
        with m.If(axi.arvalid & axi.arready):
            m.d.sync += remaining.eq(axi.arlen + 1)
        with m.If(axi.rready):
            m.d.sync += axi.rvalid.eq(0)
        with m.If(fetch):
            m.d.comb += [array.r_addr.eq(at), array.r_en.eq(1)]
            m.d.sync += [
                Cat(axi.rvalid, axi.rlast).eq(Cat(1, remaining == 1)),
                at.eq(at + 1),
                remaining.eq(remaining - 1),
            ]
        return idle
