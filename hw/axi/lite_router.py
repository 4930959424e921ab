"""Router from one AXI4-Lite manager to several subordinates."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.axi.ports import Response, axi4_lite


class LiteRouter(wiring.Component):
    """One AXI4-Lite manager, several subordinates: the upper bits of the address are their number.

    A number that nobody has answers DECERR. Address and data of a write may come in any order.

    Timing: one access of each direction at a time; one cycle more than the subordinate's.

    Members
    -------
    axi : of the manager ; ports : of the subordinates, `address_bits` each
    """

    def __init__(self, *, count: int, address_bits: int):
        if count < 1:
            raise ValueError(f"count = {count}: must be at least 1")
        self.count, self.inner = count, address_bits
        self.address_bits = address_bits + (count - 1).bit_length()
        super().__init__(
            {
                "axi": In(axi4_lite(address_bits=self.address_bits)),
                "ports": Out(axi4_lite(address_bits=address_bits)).array(count),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi, ports = self.axi, [self.ports[k] for k in range(self.count)]

        def route(address: Signal, whole: Signal, answer: str) -> tuple[Signal, list[Signal]]:
            """Gives the answer of the port that is meant; its end, and which port is meant."""
            meant = [Signal(name=f"{answer}_for{k}") for k in range(self.count)]
            fields = {"b": ("resp",), "r": ("data", "resp")}[answer]
            valid, ended = getattr(axi, f"{answer}valid"), Signal(name=f"{answer}_ended")
            m.d.comb += [hit.eq(whole & (address[self.inner :] == k)) for k, hit in enumerate(meant)]
            m.d.comb += [
                valid.eq(
                    Cat(hit & getattr(port, f"{answer}valid") for hit, port in zip(meant, ports, strict=True)).any()
                ),
                ended.eq(valid & getattr(axi, f"{answer}ready")),
            ]
            with m.If(whole & ~Cat(*meant).any()):
                m.d.comb += [valid.eq(1), getattr(axi, f"{answer}resp").eq(Response.DECERR)]
            for hit, port in zip(meant, ports, strict=True):
                m.d.comb += getattr(port, f"{answer}ready").eq(hit & getattr(axi, f"{answer}ready"))
                with m.If(hit):
                    m.d.comb += [getattr(axi, f"{answer}{f}").eq(getattr(port, f"{answer}{f}")) for f in fields]
            return ended, meant

        def ask(channel: str, payload: dict[str, Signal], meant: list[Signal], ended: Signal) -> None:
            """Offers a channel's payload to the port that is meant, until it has been taken."""
            sent = Signal(name=f"{channel}_sent")
            for hit, port in zip(meant, ports, strict=True):
                m.d.comb += getattr(port, f"{channel}valid").eq(hit & ~sent)
                m.d.comb += [getattr(port, f"{channel}{f}").eq(value) for f, value in payload.items()]
                with m.If(getattr(port, f"{channel}valid") & getattr(port, f"{channel}ready")):
                    m.d.sync += sent.eq(1)
            with m.If(ended):
                m.d.sync += sent.eq(0)

        held = {name: Signal.like(getattr(axi, name)) for name in ("awaddr", "wdata", "wstrb", "araddr")}
        have = {name: Signal(name=f"have_{name}") for name in ("aw", "w", "ar")}
        for channel, kept in (("aw", ("awaddr",)), ("w", ("wdata", "wstrb")), ("ar", ("araddr",))):
            m.d.comb += getattr(axi, f"{channel}ready").eq(~have[channel])
            with m.If(getattr(axi, f"{channel}valid") & ~have[channel]):
                m.d.sync += [have[channel].eq(1), *(held[name].eq(getattr(axi, name)) for name in kept)]
        written, target = route(held["awaddr"], have["aw"] & have["w"], "b")
        ask("aw", {"addr": held["awaddr"]}, target, written)
        ask("w", {"data": held["wdata"], "strb": held["wstrb"]}, target, written)
        read, target = route(held["araddr"], have["ar"], "r")
        ask("ar", {"addr": held["araddr"]}, target, read)
        with m.If(written):
            m.d.sync += [have["aw"].eq(0), have["w"].eq(0)]
        with m.If(read):
            m.d.sync += have["ar"].eq(0)
        return m
