"""AXI4 interconnect: several managers on one memory port."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Const, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.arbiter import round_robin, select
from hw.axi.ports import axi4

ADDRESS_FIELDS = ("id", "addr", "len", "size", "burst")


class Interconnect(wiring.Component):
    """Puts the bursts of several managers on one port; the number of the manager becomes the upper part of the ID.

    Requests are granted round robin, one burst at a time: a manager waits for at most one burst of every other manager.
    Write data follow their address; data of different bursts are not interleaved. A manager that does not accept a
    response stalls the responses behind it on the port.

    Timing: AW, W and AR are registers: one cycle, one request per cycle and channel. R and B are combinational from
    `memory` to `managers`, and their ready signals in the other direction.

    Parameters
    ----------
    managers : number of managers
    address_bits, data_bits, id_bits : widths of each manager's port
    order : write bursts whose address is granted and whose data are not sent

    Members
    -------
    managers : AXI4 subordinate port for each manager
    memory : AXI4 manager port; its IDs are wider by the number of the manager

    Raises
    ------
    ValueError
        When a size is out of range.
    """

    def __init__(self, *, managers: int, address_bits: int, data_bits: int, id_bits: int, order: int = 8):
        for name, value in (("managers", managers), ("order", order)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
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
        managers = [self.managers[k] for k in range(self.count)]
        self._address_channel(m, "ar", managers, 1)
        self._response_channel(m, "r", managers, ("data", "resp", "last"))
        self._response_channel(m, "b", managers, ("resp",))
        self._write_channels(m, managers)
        return m

    def _address_channel(self, m: Module, channel: str, managers: list, has_room: Value | int) -> tuple[Signal, Signal]:
        """Register of AR or AW. Returns: one-hot grant; a request is accepted in this cycle."""
        free, accepted = Signal(name=f"{channel}_free"), Signal(name=f"{channel}_accepted")
        requests = Signal(self.count, name=f"{channel}_requests")
        valid, ready = getattr(self.memory, f"{channel}valid"), getattr(self.memory, f"{channel}ready")
        m.d.comb += [
            requests.eq(Cat(getattr(manager, f"{channel}valid") for manager in managers)),
            free.eq((~valid | ready) & has_room),
            accepted.eq(free & requests.any()),
        ]
        grant = round_robin(m, channel, requests, free)
        m.d.comb += [getattr(manager, f"{channel}ready").eq(free & grant[k]) for k, manager in enumerate(managers)]
        with m.If(~valid | ready):
            m.d.sync += valid.eq(accepted)
        with m.If(accepted):
            for name in ADDRESS_FIELDS:
                values = [getattr(manager, f"{channel}{name}") for manager in managers]
                if name == "id":
                    values = [Cat(value, Const(k, self.number_bits)) for k, value in enumerate(values)]
                m.d.sync += getattr(self.memory, f"{channel}{name}").eq(select(grant, values))
        return grant, accepted

    def _response_channel(self, m: Module, channel: str, managers: list, fields: tuple[str, ...]) -> None:
        """R or B to the manager whose number is in the ID."""
        memory = self.memory
        number = getattr(memory, f"{channel}id")[self.id_bits :]
        ready = [getattr(manager, f"{channel}ready") for manager in managers]
        m.d.comb += getattr(memory, f"{channel}ready").eq(Array(ready)[number])
        for k, manager in enumerate(managers):
            m.d.comb += [
                getattr(manager, f"{channel}valid").eq(getattr(memory, f"{channel}valid") & (number == k)),
                getattr(manager, f"{channel}id").eq(getattr(memory, f"{channel}id")[: self.id_bits]),
                *(getattr(manager, f"{channel}{f}").eq(getattr(memory, f"{channel}{f}")) for f in fields),
            ]

    def _write_channels(self, m: Module, managers: list) -> None:
        """AW, and W with the data of each burst in the order of the addresses, each after its address."""
        memory = self.memory
        m.submodules.write_order = write_order = SyncFIFOBuffered(width=self.count, depth=self.order)
        grant, accepted = self._address_channel(m, "aw", managers, write_order.w_rdy)
        owner, free, transfer, has_address = write_order.r_data, Signal(), Signal(), Signal()
        open_bursts = Signal(range(self.order + 2))  # bursts whose address is on the bus and whose data are not sent
        last = (owner & Cat(manager.wlast for manager in managers)).any()
        m.d.comb += [
            write_order.w_data.eq(grant),
            write_order.w_en.eq(accepted),
            free.eq(~memory.wvalid | memory.wready),
            has_address.eq(write_order.r_rdy & (open_bursts != 0) & free),
            transfer.eq(has_address & (owner & Cat(manager.wvalid for manager in managers)).any()),
            *(manager.wready.eq(has_address & owner[k]) for k, manager in enumerate(managers)),
            write_order.r_en.eq(transfer & last),
        ]
        address_sent = memory.awvalid & memory.awready
        m.d.sync += open_bursts.eq((open_bursts + address_sent - write_order.r_en)[: len(open_bursts)])
        with m.If(free):
            m.d.sync += memory.wvalid.eq(transfer)
        with m.If(transfer):
            for name in ("data", "strb", "last"):
                values = [getattr(manager, f"w{name}") for manager in managers]
                m.d.sync += getattr(memory, f"w{name}").eq(select(owner, values))
