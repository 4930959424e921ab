"""Copies between the device memory and the host link, as the KVMU's descriptors say."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine, words_read, words_written
from hw.axi.master import Master
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_BITS, Cause
from hw.common.fork import fork
from hw.config import Config
from hw.dre.transfer import Tier, descriptor_layout

BURST = 16  # words of the longest burst
MAX_OPEN_COPIES = 16  # copies between their first and their last word


class CopyEngine(wiring.Component):
    """Performs copies in order: reads on one port, writes on the same or the other.

    Copies overlap: reads run ahead of writes by what the reader's FIFO holds. Nothing checks that a copy reads what an
    earlier one wrote. A copy that is not made of whole words, or leaves a region, is a fault.

    Timing: a word per cycle; `i.ready` depends on registers.

    Parameters
    ----------
    word, address_bits, own_bits : widths ; waiting : copies between their first and their last word

    Members
    -------
    i : stream of `copy`, addresses and lengths in bytes; `own` is given back
    o : stream of {own}, when a copy has been acknowledged; always ready
    read, write, written : for each side, device then host: jobs and words of a reader and a writer, its `done`
    fault : a copy that is not made of whole words
    idle : no copy under way
    """

    def __init__(self, *, word: int, address_bits: int = 48, own_bits: int = 3, waiting: int = MAX_OPEN_COPIES):
        self.word, self.address_bits, self.own_bits, self.waiting = word, address_bits, own_bits, waiting
        self.copy = data.StructLayout(
            {
                "source": address_bits,
                "target": address_bits,
                "from_host": 1,
                "to_host": 1,
                "bytes": COUNT_BITS + (word // 8).bit_length() - 1,
                "own": own_bits,
            }
        )
        job = Out(stream.Signature(JOB))
        read = {"job": job, "data": In(stream.Signature(words_read(word)))}
        write = {"job": job, "data": Out(stream.Signature(words_written(word))), "done": In(1)}
        super().__init__(
            {
                "i": In(stream.Signature(self.copy)),
                "o": Out(stream.Signature(own_bits, always_ready=True)),
                "read": Out(wiring.Signature(read)).array(2),
                "write": Out(wiring.Signature(write)).array(2),
                "fault": Out(FAULT),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        copy, low = self.i.payload, (self.word // 8).bit_length() - 1
        route = data.StructLayout({"from_host": 1, "to_host": 1})
        m.submodules.routes = routes = SyncFIFOBuffered(width=route.size, depth=self.waiting)
        owners = [SyncFIFOBuffered(width=self.own_bits, depth=self.waiting) for _ in range(2)]
        m.submodules.device_owners, m.submodules.host_owners = owners
        good, room = Signal(), Signal()
        parts = [copy.source[:low], copy.target[:low], copy.bytes[:low]] if low else []
        m.d.comb += [
            good.eq(~Cat(*parts).any() if parts else 1),
            room.eq(routes.w_rdy & owners[0].w_rdy & owners[1].w_rdy),
        ]
        # each copy becomes a read job, a write job, and its route
        given = stream.Signature(self.copy).create(path=("given",))
        reading, writing, noted = (stream.Signature(1).create(path=(n,)) for n in ("reading", "writing", "noted"))
        m.d.comb += [
            given.valid.eq(self.i.valid & good),
            given.payload.eq(copy),
            self.i.ready.eq(Mux(good, given.ready, 1)),
        ]
        m.d.sync += self.fault.eq(0)
        with m.If(self.i.valid & ~good):
            m.d.sync += [self.fault.cause.eq(Cause.REGION), self.fault.address.eq((copy.target >> low)[:WORD_BITS])]
        fork(m, "copy", given, [reading, writing, noted])
        for side, flag in ((0, ~copy.from_host), (1, copy.from_host)):
            job = self.read[side].job
            m.d.comb += [
                job.valid.eq(reading.valid & flag),
                job.payload.address.eq((copy.source >> low)[:WORD_BITS]),
                job.payload.count.eq((copy.bytes >> low)[:COUNT_BITS]),
            ]
        for side, flag in ((0, ~copy.to_host), (1, copy.to_host)):
            job = self.write[side].job
            m.d.comb += [
                job.valid.eq(writing.valid & flag),
                job.payload.address.eq((copy.target >> low)[:WORD_BITS]),
                job.payload.count.eq((copy.bytes >> low)[:COUNT_BITS]),
                job.payload.last.eq(1),
                owners[side].w_data.eq(copy.own),
                owners[side].w_en.eq(noted.valid & noted.ready & flag),
                owners[side].r_en.eq(self.write[side].done),
            ]
        way = Signal(route)
        m.d.comb += [
            reading.ready.eq(Mux(copy.from_host, self.read[1].job.ready, self.read[0].job.ready)),
            writing.ready.eq(Mux(copy.to_host, self.write[1].job.ready, self.write[0].job.ready)),
            noted.ready.eq(room),
            way.from_host.eq(copy.from_host),
            way.to_host.eq(copy.to_host),
            routes.w_data.eq(way),
            routes.w_en.eq(noted.valid & noted.ready),
        ]
        # words follow their route
        now, word, ready = data.View(route, routes.r_data), Signal(self.word + 1), Signal()
        offered = Signal()
        sources = [self.read[side].data for side in range(2)]
        m.d.comb += [
            offered.eq(routes.r_rdy & Mux(now.from_host, sources[1].valid, sources[0].valid)),
            word.eq(Mux(now.from_host, sources[1].payload, sources[0].payload)),
            ready.eq(Mux(now.to_host, self.write[1].data.ready, self.write[0].data.ready)),
            *(sources[side].ready.eq(routes.r_rdy & ready & (now.from_host == side)) for side in range(2)),
            routes.r_en.eq(offered & ready & word[-1]),
        ]
        for side in range(2):
            sink = self.write[side].data
            m.d.comb += [
                sink.valid.eq(offered & (now.to_host == side)),
                sink.payload.data.eq(word[: self.word]),
                sink.payload.strobe.eq(-1),
            ]
        # completions of the two sides share an answer; the host's wait for the device's
        late = SyncFIFOBuffered(width=self.own_bits, depth=2 * self.waiting)
        m.submodules.late = late
        device, host = self.write[0].done, self.write[1].done
        m.d.comb += [
            late.w_data.eq(owners[1].r_data),
            late.w_en.eq(host),
            late.r_en.eq(~device),
            self.o.valid.eq(device | late.r_rdy),
            self.o.payload.eq(Mux(device, owners[0].r_data, late.r_data)),
            self.idle.eq(~Cat(fifo.r_rdy | (fifo.level != 0) for fifo in (*owners, late)).any()),
        ]
        return m


def attach(m: Module, copy_engine: CopyEngine, side: int, reader: ReadEngine, writer: WriteEngine) -> None:
    """Connect one side of a copier."""
    wiring.connect(m, copy_engine.read[side].job, reader.i)
    wiring.connect(m, reader.o, copy_engine.read[side].data)
    wiring.connect(m, copy_engine.write[side].job, writer.i)
    wiring.connect(m, copy_engine.write[side].data, writer.i_data)
    m.d.comb += copy_engine.write[side].done.eq(writer.done)


class Dma(wiring.Component):
    """A copier with its two AXI4 masters: descriptors of the KVMU in, completions out.

    After a fault nothing more is asked of either port; what is in flight comes to its end. `stat_fault` keeps the first
    cause and its address until a reset.

    Timing: a word per cycle and direction; `latency` depends on the memories.

    Members
    -------
    i_dma : stream of descriptors, addresses in bytes, relative to `cfg_device_base` or `cfg_host_base`
    o_done : stream of {tag, error}, as the KVMU takes it: in order for each target tier
    device, host : AXI4
    cfg_device_base, cfg_host_base : byte addresses, multiples of 4 KiB
    cfg_device_words, cfg_host_words : sizes of these regions in words
    stat_fault : sticky ; stat_idle : no burst in flight
    """

    latency = None

    def __init__(self, *, word: int, burst: int = BURST, depth: int = 64, address_bits: int = 48, tags: int = 4):
        self.word, self.burst, self.depth, self.address_bits, self.tags = word, burst, depth, address_bits, tags
        tag_bits = (tags - 1).bit_length()
        self.masters = [
            Master(word=word, burst=burst, readers=1, writers=1, address_bits=address_bits) for _ in range(2)
        ]
        completion = data.StructLayout({"tag": range(tags), "error": 1})
        bus = self.masters[0].axi.signature
        super().__init__(
            {
                "i_dma": In(stream.Signature(descriptor_layout(address_bits, tag_bits))),
                "o_done": Out(stream.Signature(completion)),
                "device": Out(bus),
                "host": Out(bus),
                **{f"cfg_{side}_base": In(address_bits) for side in ("device", "host")},
                **{f"cfg_{side}_words": In(WORD_BITS + 1) for side in ("device", "host")},
                "stat_fault": Out(FAULT),
                "stat_idle": Out(1),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "Dma":
        """The transfer engine of one core: a word is a row of the matrix engine."""
        return cls(word=16 * config.dpe_inputs)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput, as written into the generated unit's JSON."""
        return {"latency": self.latency, "words_per_cycle": 1, "bytes_per_word": self.word // 8}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        tag_bits = (self.tags - 1).bit_length()
        m.submodules.copy_engine = copy_engine = CopyEngine(
            word=self.word, address_bits=self.address_bits, own_bits=tag_bits
        )
        halt = Signal()
        faults, idle = [copy_engine.fault], []
        for side, name in enumerate(("device", "host")):
            master, sizes = self.masters[side], {"word": self.word, "burst": self.burst, "depth": self.depth}
            m.submodules[name] = master
            m.submodules[f"{name}_reader"] = reader = ReadEngine(**sizes)
            m.submodules[f"{name}_writer"] = writer = WriteEngine(**sizes)
            attach(m, copy_engine, side, reader, writer)
            wiring.connect(m, reader.port, master.read[0])
            wiring.connect(m, writer.port, master.write[0])
            wiring.connect(m, master.axi, wiring.flipped(getattr(self, name)))
            m.d.comb += master.base.eq(getattr(self, f"cfg_{name}_base"))
            for engine in (reader, writer):
                m.d.comb += [engine.limit.eq(getattr(self, f"cfg_{name}_words")), engine.halt.eq(halt)]
                faults.append(engine.fault)
                idle.append(engine.idle)
        given, done = self.i_dma.payload, Signal(self.o_done.payload.shape())
        m.d.comb += [
            copy_engine.i.valid.eq(self.i_dma.valid & ~halt),
            self.i_dma.ready.eq(copy_engine.i.ready & ~halt),
            copy_engine.i.payload.source.eq(given.source),
            copy_engine.i.payload.target.eq(given.target),
            copy_engine.i.payload.from_host.eq(given.source_tier != Tier.DEVICE),
            copy_engine.i.payload.to_host.eq(given.target_tier != Tier.DEVICE),
            copy_engine.i.payload.bytes.eq(given.bytes),
            copy_engine.i.payload.own.eq(given.tag),
            self.stat_idle.eq(Cat(*idle).all()),
            halt.eq(Value.cast(self.stat_fault.cause).any()),
            done.tag.eq(copy_engine.o.payload),
        ]
        m.submodules.answers = answers = SyncFIFOBuffered(width=len(Value.cast(done)), depth=4 * MAX_OPEN_COPIES)
        m.d.comb += [
            answers.w_data.eq(done),
            answers.w_en.eq(copy_engine.o.valid),
            Value.cast(self.o_done.payload).eq(answers.r_data),
            self.o_done.valid.eq(answers.r_rdy),
            answers.r_en.eq(self.o_done.ready),
        ]
        for fault in reversed(faults):
            with m.If(~halt & Value.cast(fault.cause).any()):
                m.d.sync += self.stat_fault.eq(fault)
        return m
