"""The AXI4 master: several read and write engines on one AXI4 port."""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Mapping

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.arbiter import round_robin, select
from hw.axi.ports import INCR, axi4, check_burst, read_port, request_layout, write_port
from hw.common.counters import count


class Master(wiring.Component):
    """Puts the bursts of its engines on one AXI4 port.

    Each read engine and each write engine uses its number as ID, so its bursts keep their order, and responses are
    routed by ID. Requests are granted round robin, one burst at a time. Write data follow their address; data of
    different bursts are not interleaved.

    ```
    read[k].request ──> round robin ──> AR register ──> AXI
    read[k].response <── by ID <── R
    write[k].request ──> round robin ──> AW register ──> AXI
                              └──> write order ──> W register ──> AXI
    write[k].response <── by ID <── B
    ```

    Timing: AR, AW and W are registers: one cycle from a request to the bus, one request per cycle and channel. R and B
    are always ready.

    Parameters
    ----------
    word : bits of the data bus
    burst : words of the longest burst
    readers, writers : number of read and of write engines
    address_bits : bits of an address
    order : write bursts whose address is granted and whose data are not sent

    Members
    -------
    axi : AXI4 manager port
    read, write : ports of the engines
    base : byte address of word 0, a multiple of 4 KiB
    stat_read, stat_write : transferred words
    stat_read_wait : cycles in which AR waits
    stat_write_wait : cycles in which AW or W waits
    stat_clear : resets the counters

    Raises
    ------
    ValueError
        When a size is out of range.
    """

    def __init__(self, *, word: int, burst: int, readers: int, writers: int, address_bits: int = 48, order: int = 8):
        check_burst(burst, word)
        for name, value in (("readers", readers), ("writers", writers), ("order", order)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        self.word, self.burst, self.readers, self.writers = word, burst, readers, writers
        self.address_bits, self.order = address_bits, order
        self.id_bits = max(1, (max(readers, writers) - 1).bit_length())
        super().__init__(
            {
                "axi": Out(axi4(address_bits=address_bits, data_bits=word, id_bits=self.id_bits)),
                "read": In(read_port(word, burst)).array(readers),
                "write": In(write_port(word, burst)).array(writers),
                "base": In(address_bits),
                "stat_clear": In(1),
                **{f"stat_{name}": Out(32) for name in ("read", "write", "read_wait", "write_wait")},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        axi = self.axi
        readers, writers = [self.read[k] for k in range(self.readers)], [self.write[k] for k in range(self.writers)]
        self._address_channel(m, "ar", readers, 1)
        for k, port in enumerate(readers):
            m.d.comb += [
                port.response.valid.eq(axi.rvalid & (axi.rid == k)),
                port.response.payload.data.eq(axi.rdata),
                port.response.payload.resp.eq(axi.rresp),
                port.response.payload.last.eq(axi.rlast),
            ]
        m.d.comb += [axi.rready.eq(1), axi.bready.eq(1)]
        for k, port in enumerate(writers):
            m.d.comb += [port.response.valid.eq(axi.bvalid & (axi.bid == k)), port.response.payload.eq(axi.bresp)]
        self._write_channels(m, writers)
        count(m, self, self._events())
        return m

    def _events(self) -> Mapping[str, Value]:
        """Events of the counters."""
        axi = self.axi
        return {
            "read": axi.rvalid,
            "write": axi.wvalid & axi.wready,
            "read_wait": axi.arvalid & ~axi.arready,
            "write_wait": (axi.awvalid & ~axi.awready) | (axi.wvalid & ~axi.wready),
        }

    def _address_channel(self, m: Module, name: str, ports: list, has_room: Value | int) -> tuple[Signal, Signal]:
        """Register of AR or AW. Returns: one-hot grant; a request is accepted in this cycle."""
        layout = data.StructLayout({"id": self.id_bits, "request": request_layout(self.burst)})
        register, valid = Signal(layout, name=name), Signal(name=f"{name}_valid")
        free, accepted = Signal(name=f"{name}_free"), Signal(name=f"{name}_accepted")
        requests = Signal(len(ports), name=f"{name}_requests")
        ready, size = getattr(self.axi, f"{name}ready"), (self.word // 8).bit_length() - 1
        m.d.comb += [
            requests.eq(Cat(port.request.valid for port in ports)),
            free.eq((~valid | ready) & has_room),
            accepted.eq(free & requests.any()),
        ]
        grant = round_robin(m, name, requests, free)
        m.d.comb += [port.request.ready.eq(free & grant[k]) for k, port in enumerate(ports)]
        with m.If(~valid | ready):
            m.d.sync += valid.eq(accepted)
        with m.If(accepted):
            m.d.sync += [
                register.request.eq(select(grant, [port.request.payload for port in ports])),
                register.id.eq(select(grant, [Const(k, self.id_bits) for k in range(len(ports))])),
            ]
        address = Value.cast(register.request.address) << size
        values = {
            "valid": valid,
            "id": register.id,
            "addr": (self.base + address)[: self.address_bits],
            "len": register.request.length,
            "size": size,
            "burst": INCR,
        }
        m.d.comb += [getattr(self.axi, f"{name}{key}").eq(value) for key, value in values.items()]
        return grant, accepted

    def _write_channels(self, m: Module, writers: list) -> None:
        """AW, and W with the data of each burst in the order of the addresses, each after its address."""
        axi = self.axi
        m.submodules.write_order = write_order = SyncFIFOBuffered(width=self.writers, depth=self.order)
        grant, accepted = self._address_channel(m, "aw", writers, write_order.w_rdy)
        owner, free, transfer, has_address = write_order.r_data, Signal(), Signal(), Signal()
        open_bursts = Signal(range(self.order + 2))  # bursts whose address is on the bus and whose data are not sent
        beat = Signal(writers[0].data.payload.shape())
        m.d.comb += [
            write_order.w_data.eq(grant),
            write_order.w_en.eq(accepted),
            free.eq(~axi.wvalid | axi.wready),
            has_address.eq(write_order.r_rdy & (open_bursts != 0) & free),
            transfer.eq(has_address & (owner & Cat(port.data.valid for port in writers)).any()),
            *(port.data.ready.eq(has_address & owner[k]) for k, port in enumerate(writers)),
            Value.cast(beat).eq(select(owner, [port.data.payload for port in writers])),
            write_order.r_en.eq(transfer & beat.last),
        ]
        address_sent = axi.awvalid & axi.awready
        m.d.sync += open_bursts.eq((open_bursts + address_sent - write_order.r_en)[: len(open_bursts)])
        with m.If(free):
            m.d.sync += axi.wvalid.eq(transfer)
        with m.If(transfer):
            m.d.sync += [axi.wdata.eq(beat.data), axi.wstrb.eq(beat.strobe), axi.wlast.eq(beat.last)]
