"""Several AXI4 managers on one memory port."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.master import round_robin, select
from hw.axi.ports import axi4

ADDRESS = ("id", "addr", "len", "size", "burst")


class Interconnect(wiring.Component):
    """Puts the bursts of several managers on one port; the manager's number becomes the upper part of the ID.

    Requests are served in turn, burst by burst: a manager that asks waits for at most one burst of every other one, so
    none starves, however many bursts the others have. Words of a write follow their address and are not mixed. A
    manager that does not take its answers holds up those behind them on the port.

    Timing: AW, W and AR are registers, one cycle; a request per cycle on each channel. R and B pass straight through:
    combinational paths from `memory` to `managers`, and of their ready signals back.

    Parameters
    ----------
    managers : their number ; address_bits, data_bits, id_bits : of each ; order : write bursts whose words are to come

    Members
    -------
    managers : AXI4 of each ; memory : AXI4, with IDs as much wider as the number of managers needs
    """

    def __init__(self, *, managers: int, address_bits: int, data_bits: int, id_bits: int, order: int = 8):
        for name, value in (("managers", managers), ("order", order)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        self.count, self.id_bits, self.order = managers, id_bits, order
        self.number_bits = max(1, (managers - 1).bit_length())
        sizes = {"address_bits": address_bits, "data_bits": data_bits}
        super().__init__(
            {
                "managers": In(axi4(**sizes, id_bits=id_bits)).array(managers),
                "memory": Out(axi4(**sizes, id_bits=id_bits + self.number_bits)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        memory, managers = self.memory, [self.managers[k] for k in range(self.count)]

        def ask(channel: str, room: Value | int) -> tuple[Signal, Signal]:
            """A register for one of the requests; gives the choice, and whether it is taken now."""
            free, taken = Signal(name=f"{channel}_free"), Signal(name=f"{channel}_taken")
            requests = Signal(self.count, name=f"{channel}_requests")
            valid, ready = getattr(memory, f"{channel}valid"), getattr(memory, f"{channel}ready")
            m.d.comb += [
                requests.eq(Cat(getattr(one, f"{channel}valid") for one in managers)),
                free.eq((~valid | ready) & room),
                taken.eq(free & requests.any()),
            ]
            chosen = round_robin(m, channel, requests, free)
            m.d.comb += [getattr(one, f"{channel}ready").eq(free & chosen[k]) for k, one in enumerate(managers)]
            with m.If(~valid | ready):
                m.d.sync += valid.eq(taken)
            with m.If(taken):
                for name in ADDRESS:
                    asked = [getattr(one, f"{channel}{name}") for one in managers]
                    if name == "id":
                        asked = [Cat(one, Const(k, self.number_bits)) for k, one in enumerate(asked)]
                    m.d.sync += getattr(memory, f"{channel}{name}").eq(select(chosen, asked))
            return chosen, taken

        ask("ar", 1)
        for channel, fields in (("r", ("data", "resp", "last")), ("b", ("resp",))):
            number = getattr(memory, f"{channel}id")[self.id_bits :]
            ready = [getattr(one, f"{channel}ready") for one in managers]
            m.d.comb += getattr(memory, f"{channel}ready").eq(Array(ready)[number])
            for k, one in enumerate(managers):
                m.d.comb += [
                    getattr(one, f"{channel}valid").eq(getattr(memory, f"{channel}valid") & (number == k)),
                    getattr(one, f"{channel}id").eq(getattr(memory, f"{channel}id")[: self.id_bits]),
                    *(getattr(one, f"{channel}{f}").eq(getattr(memory, f"{channel}{f}")) for f in fields),
                ]

        # words follow in the order of the requests, each burst's after its address
        m.submodules.turns = turns = SyncFIFOBuffered(width=self.count, depth=self.order)
        chosen, taken = ask("aw", turns.w_rdy)
        known, open_, given, free = Signal(range(self.order + 2)), Signal(), Signal(), Signal()
        now = turns.r_data
        last = (now & Cat(one.wlast for one in managers)).any()
        m.d.comb += [
            turns.w_data.eq(chosen),
            turns.w_en.eq(taken),
            free.eq(~memory.wvalid | memory.wready),
            open_.eq(turns.r_rdy & (known != 0) & free),
            given.eq(open_ & (now & Cat(one.wvalid for one in managers)).any()),
            *(one.wready.eq(open_ & now[k]) for k, one in enumerate(managers)),
            turns.r_en.eq(given & last),
        ]
        m.d.sync += known.eq((known + (memory.awvalid & memory.awready) - turns.r_en)[: len(known)])
        with m.If(free):
            m.d.sync += memory.wvalid.eq(given)
        with m.If(given):
            for name in ("data", "strb", "last"):
                values = [getattr(one, f"w{name}") for one in managers]
                m.d.sync += getattr(memory, f"w{name}").eq(select(now, values))
        return m
