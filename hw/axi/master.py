"""The AXI4 master: several readers and writers on one port, none of which starves."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.ports import INCR, axi4, check_burst, read_port, request_layout, write_port
from hw.common.counters import count


def round_robin(m: Module, name: str, requests: Value, advance: Value) -> Signal:
    """One-hot choice among `requests`, the one after the last chosen first; `advance` makes a choice the last."""
    count = len(requests)
    last, chosen = Signal(count, name=f"{name}_last", init=1), Signal(count, name=f"{name}_chosen")
    above = Signal(count, name=f"{name}_above")  # requests behind the last one chosen
    mask = ~(last | (last - 1)[:count])
    m.d.comb += above.eq(requests & mask)
    m.d.comb += chosen.eq(Mux(above.any(), above & (~above + 1)[:count], requests & (~requests + 1)[:count]))
    with m.If(advance & requests.any()):
        m.d.sync += last.eq(chosen)
    return chosen


def select(chosen: Value, values: list[Value]) -> Value:
    """The value of the bit that is set."""
    total: Value = Const(0)
    for bit, value in zip(chosen, values, strict=True):
        total = total | (Value.cast(value) & bit.replicate(len(Value.cast(value))))
    return total


class Master(wiring.Component):
    """Puts the bursts of its readers and writers on one AXI4 port.

    Every reader and every writer has an ID of its own, its number, and its bursts keep their order; answers go by ID.
    Requests are served in turn, burst by burst. Words follow their address, and are
    never mixed with those of another burst.

    Timing: AW, W and AR are registers: one cycle from a request to the bus, a request per cycle on each channel.
    R and B are always ready. A request that is on the bus stays until it is taken.

    Parameters
    ----------
    word : bits of the bus ; burst : words of the longest burst ; readers, writers : their numbers
    address_bits : of the bus ; order : write bursts whose words are still to be sent

    Members
    -------
    axi : AXI4 ; read, write : ports of the readers and writers ; base : byte address of word 0, a multiple of 4 KiB
    stat_read, stat_write : words moved ; stat_read_wait, stat_write_wait : cycles in which AR or AW, or W, waited
    stat_clear : zeroes the counters
    """

    def __init__(self, *, word: int, burst: int, readers: int, writers: int, address_bits: int = 48, order: int = 8):
        check_burst(burst, word)
        for name, value in (("readers", readers), ("writers", writers), ("order", order)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
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
        axi, size = self.axi, (self.word // 8).bit_length() - 1
        layout = data.StructLayout({"id": self.id_bits, "request": request_layout(self.burst)})

        def address_channel(name: str, ports: list, room: Value | int) -> tuple[Signal, Signal]:
            """A register for one of the requests; gives the choice, and whether it is taken now."""
            held, valid = Signal(layout, name=name), Signal(name=f"{name}_valid")
            free, taken = Signal(name=f"{name}_free"), Signal(name=f"{name}_taken")
            requests = Signal(len(ports), name=f"{name}_requests")
            m.d.comb += [
                requests.eq(Cat(port.request.valid for port in ports)),
                free.eq((~valid | getattr(axi, f"{name}ready")) & room),
                taken.eq(free & requests.any()),
            ]
            chosen = round_robin(m, name, requests, free)
            m.d.comb += [port.request.ready.eq(free & chosen[k]) for k, port in enumerate(ports)]
            with m.If(~valid | getattr(axi, f"{name}ready")):
                m.d.sync += valid.eq(taken)
            with m.If(taken):
                m.d.sync += [
                    held.request.eq(select(chosen, [port.request.payload for port in ports])),
                    held.id.eq(select(chosen, [Const(k, self.id_bits) for k in range(len(ports))])),
                ]
            address = Value.cast(held.request.address) << size
            values = {
                "valid": valid,
                "id": held.id,
                "addr": (self.base + address)[: self.address_bits],
                "len": held.request.length,
                "size": size,
                "burst": INCR,
            }
            m.d.comb += [getattr(axi, f"{name}{key}").eq(value) for key, value in values.items()]
            return chosen, taken

        readers, writers = [self.read[k] for k in range(self.readers)], [self.write[k] for k in range(self.writers)]
        address_channel("ar", readers, 1)
        for k, port in enumerate(readers):
            m.d.comb += [
                port.answer.valid.eq(axi.rvalid & (axi.rid == k)),
                port.answer.payload.data.eq(axi.rdata),
                port.answer.payload.response.eq(axi.rresp),
                port.answer.payload.last.eq(axi.rlast),
            ]
        m.d.comb += [axi.rready.eq(1), axi.bready.eq(1)]
        for k, port in enumerate(writers):
            m.d.comb += [port.answer.valid.eq(axi.bvalid & (axi.bid == k)), port.answer.payload.eq(axi.bresp)]

        # words follow in the order of the requests, each burst's after its address
        m.submodules.turns = turns = SyncFIFOBuffered(width=self.writers, depth=self.order)
        chosen, taken = address_channel("aw", writers, turns.w_rdy)
        now, free, given, open_ = turns.r_data, Signal(), Signal(), Signal()
        known = Signal(range(self.order + 2))  # bursts whose address has been taken, but not all their words
        beat = Signal(writers[0].data.payload.shape())
        m.d.comb += [
            turns.w_data.eq(chosen),
            turns.w_en.eq(taken),
            free.eq(~axi.wvalid | axi.wready),
            open_.eq(turns.r_rdy & (known != 0) & free),
            given.eq(open_ & (now & Cat(port.data.valid for port in writers)).any()),
            *(port.data.ready.eq(open_ & now[k]) for k, port in enumerate(writers)),
            Value.cast(beat).eq(select(now, [port.data.payload for port in writers])),
            turns.r_en.eq(given & beat.last),
        ]
        m.d.sync += known.eq((known + (axi.awvalid & axi.awready) - turns.r_en)[: len(known)])
        with m.If(free):
            m.d.sync += axi.wvalid.eq(given)
        with m.If(given):
            m.d.sync += [axi.wdata.eq(beat.data), axi.wstrb.eq(beat.strobe), axi.wlast.eq(beat.last)]

        events = {
            "read": axi.rvalid,
            "write": axi.wvalid & axi.wready,
            "read_wait": axi.arvalid & ~axi.arready,
            "write_wait": (axi.awvalid & ~axi.awready) | (axi.wvalid & ~axi.wready),
        }
        count(m, self, events)
        return m
