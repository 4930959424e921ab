"""AXI4-Lite router: one manager, several subordinates."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Response, axi4_lite


class LiteRouter(wiring.Component):
    """Routes each access to the subordinate whose number is in the upper address bits.

    An address above the last subordinate gets the response DECERR. Address and data of a write can arrive in any order.

    Timing: one access of each direction at a time; one cycle more than the subordinate.

    Parameters
    ----------
    count : number of subordinates
    address_bits : address bits of each subordinate

    Members
    -------
    axi : AXI4-Lite subordinate port for the manager
    ports : AXI4-Lite manager ports to the subordinates

    Raises
    ------
    ValueError
        When there is no subordinate.
    """

    def __init__(self, *, count: int, address_bits: int):
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.count, self.port_address_bits = count, address_bits
        self.address_bits = address_bits + (count - 1).bit_length()
        super().__init__(
            {
                "axi": In(axi4_lite(address_bits=self.address_bits)),
                "ports": Out(axi4_lite(address_bits=address_bits)).array(count),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        write, write_valid = self._hold(m, "aw", ("addr",))
        data, data_valid = self._hold(m, "w", ("data", "strb"))
        read, read_valid = self._hold(m, "ar", ("addr",))
        write_target, write_done = self._respond(m, "b", ("resp",), write["addr"], write_valid & data_valid)
        self._forward(m, "aw", write, write_target, write_done)
        self._forward(m, "w", data, write_target, write_done)
        read_target, read_done = self._respond(m, "r", ("data", "resp"), read["addr"], read_valid)
        self._forward(m, "ar", read, read_target, read_done)
        with m.If(write_done):
            m.d.sync += [write_valid.eq(0), data_valid.eq(0)]
        with m.If(read_done):
            m.d.sync += read_valid.eq(0)
        return m

    def _hold(self, m: Module, channel: str, fields: tuple[str, ...]) -> tuple[dict[str, Signal], Signal]:
        """Register for one beat of a channel of the manager: its fields, and whether it holds a beat."""
        values = {field: getattr(self.axi, f"{channel}{field}") for field in fields}
        registers = {field: Signal.like(value, name=f"{channel}_{field}") for field, value in values.items()}
        valid = Signal(name=f"{channel}_valid")
        m.d.comb += getattr(self.axi, f"{channel}ready").eq(~valid)
        with m.If(getattr(self.axi, f"{channel}valid") & ~valid):
            m.d.sync += [valid.eq(1), *(registers[field].eq(value) for field, value in values.items())]
        return registers, valid

    def _respond(
        self, m: Module, channel: str, fields: tuple[str, ...], address: Signal, request: Value
    ) -> tuple[list[Signal], Signal]:
        """Response of the selected subordinate, or DECERR. Returns: one-hot selection; the access ends."""
        axi, selected = self.axi, [Signal(name=f"{channel}_select{k}") for k in range(self.count)]
        valid, done = getattr(axi, f"{channel}valid"), Signal(name=f"{channel}_done")
        ready, responses = getattr(axi, f"{channel}ready"), []
        for k, hit in enumerate(selected):
            port = self.ports[k]
            responses.append(hit & getattr(port, f"{channel}valid"))
            m.d.comb += hit.eq(request & (address[self.port_address_bits :] == k))
            m.d.comb += getattr(port, f"{channel}ready").eq(hit & ready)
            with m.If(hit):
                m.d.comb += [getattr(axi, f"{channel}{f}").eq(getattr(port, f"{channel}{f}")) for f in fields]
        m.d.comb += [valid.eq(Cat(*responses).any()), done.eq(valid & ready)]
        with m.If(request & ~Cat(*selected).any()):
            m.d.comb += [valid.eq(1), getattr(axi, f"{channel}resp").eq(Response.DECERR)]
        return selected, done

    def _forward(
        self, m: Module, channel: str, values: dict[str, Signal], selected: list[Signal], done: Signal
    ) -> None:
        """Offers a beat to the selected subordinate until it accepts it."""
        forwarded = Signal(name=f"{channel}_sent")
        for k, hit in enumerate(selected):
            port = self.ports[k]
            valid, ready = getattr(port, f"{channel}valid"), getattr(port, f"{channel}ready")
            m.d.comb += valid.eq(hit & ~forwarded)
            m.d.comb += [getattr(port, f"{channel}{field}").eq(value) for field, value in values.items()]
            with m.If(valid & ready):
                m.d.sync += forwarded.eq(1)
        with m.If(done):
            m.d.sync += forwarded.eq(0)
