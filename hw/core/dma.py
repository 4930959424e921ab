"""Copies between device memory and host link: the copy engine, and the unit `dma` with its own AXI4 masters."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import ReadEngine, WriteEngine, read_word_layout, write_word_layout
from hw.axi.master import Master
from hw.axi.ports import COUNT_BITS, FAULT, JOB, WORD_ADDRESS_BITS, Cause
from hw.common.fork import fork
from hw.config import Config
from hw.dre.transfer import Tier, descriptor_layout
from hw.kv_codec.page_encoder import PageEncoder
from hw.kv_codec.page_layout import PageLayout

BURST = 16  # words of the longest burst
MAX_OPEN_COPIES = 16  # copies whose last word is not written
ROUTE = data.StructLayout({"from_host": 1, "to_host": 1})  # sides of source and target of a copy


class CopyEngine(wiring.Component):
    """Performs copies between two sides: device memory and host link.

    Every copy becomes a read job on the side of its source and a write job on the side of its target. Reads run ahead
    of writes by the depth of the read engine; copies start in order. The copy engine does not check whether a copy
    reads what an earlier copy writes. A copy whose addresses or length are not whole words is dropped with a fault.
    With encoded pages, a copy with `encode` writes the key or the value that it reads encoded, from unit `first` of the
    target word on.

    ```
    copies ──┬─> read jobs ──> read engines ──> words ─┐
             ├─> routes ──────────────────────────────>├──> write engines ──> done ──┐
             ├─> write jobs ──────────────────────────────────^                      ├──> owners of done copies
             └─> owners ─────────────────────────────────────────────────────────────┘
    ```

    Timing: one word per cycle; one copy per cycle; `i.ready` depends on registers and on the ready of the jobs.

    Parameters
    ----------
    word : bits of a memory word
    address_bits : bits of a byte address
    owner_bits : bits of the owner of a copy
    max_open : copies whose last word is not written
    layout : of a head page; None: no copy is encoded

    Members
    -------
    i : stream of `copy`: addresses and length in bytes; `owner` is returned
    o : stream of owners of copies that memory has acknowledged; always ready
    read, write : for each side (device, host), jobs and words of a read and of a write engine, and its `done`
    fault : REGION: a copy does not consist of whole words
    idle : all copies are reported
    """

    def __init__(
        self,
        *,
        word: int,
        address_bits: int = 48,
        owner_bits: int = 3,
        max_open: int = MAX_OPEN_COPIES,
        layout: PageLayout | None = None,
    ):
        self.word, self.address_bits, self.owner_bits, self.max_open = word, address_bits, owner_bits, max_open
        self.layout = layout if layout and layout.is_encoded else None
        encoding = {"encode": 1, "first": range(self.layout.word_units)} if self.layout else {}
        self.route = data.StructLayout({**ROUTE.members, **encoding}) if encoding else ROUTE
        self.copy = data.StructLayout(
            {
                "source": address_bits,
                "target": address_bits,
                "from_host": 1,
                "to_host": 1,
                "bytes": COUNT_BITS + (word // 8).bit_length() - 1,
                "owner": owner_bits,
                **encoding,
            }
        )
        job = Out(stream.Signature(JOB))
        read = {"job": job, "data": In(stream.Signature(read_word_layout(word)))}
        write = {"job": job, "data": Out(stream.Signature(write_word_layout(word))), "done": In(1)}
        super().__init__(
            {
                "i": In(stream.Signature(self.copy)),
                "o": Out(stream.Signature(owner_bits, always_ready=True)),
                "read": Out(wiring.Signature(read)).array(2),
                "write": Out(wiring.Signature(write)).array(2),
                "fault": Out(FAULT),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.routes = routes = SyncFIFOBuffered(width=self.route.size, depth=self.max_open)
        owners = [SyncFIFOBuffered(width=self.owner_bits, depth=self.max_open) for _ in range(2)]
        m.submodules.device_owners, m.submodules.host_owners = owners
        accepted = stream.Signature(self.copy).create(path=("accepted",))
        self._check(m, accepted)
        names = ("read_jobs", "write_jobs", "records")
        read_jobs, write_jobs, records = sinks = [stream.Signature(1).create(path=(name,)) for name in names]
        fork(m, "copy", accepted, sinks)
        self._send_jobs(m, read_jobs, write_jobs)
        self._record(m, records, routes, owners)
        self._move_words(m, routes)
        self._report(m, owners)
        return m

    @property
    def _shift(self) -> int:
        """Bits of a byte address below the word address."""
        return (self.word // 8).bit_length() - 1

    def _check(self, m: Module, accepted: stream.Interface) -> None:
        """Drops copies that do not consist of whole words and reports them."""
        copy, shift, is_aligned = self.i.payload, self._shift, Signal()
        low_bits = [copy.source[:shift], copy.target[:shift], copy.bytes[:shift]] if shift else []
        m.d.comb += [
            is_aligned.eq(~Cat(*low_bits).any() if low_bits else 1),
            accepted.valid.eq(self.i.valid & is_aligned),
            accepted.payload.eq(copy),
            self.i.ready.eq(Mux(is_aligned, accepted.ready, 1)),
        ]
        m.d.sync += self.fault.eq(0)
        with m.If(self.i.valid & ~is_aligned):
            address = (copy.target >> shift)[:WORD_ADDRESS_BITS]
            m.d.sync += [self.fault.cause.eq(Cause.REGION), self.fault.address.eq(address)]

    def _send_jobs(self, m: Module, read_jobs: stream.Interface, write_jobs: stream.Interface) -> None:
        """A read job on the side of the source, a write job on the side of the target."""
        copy, shift = self.i.payload, self._shift
        for jobs, request, address, on_host, last in (
            ([self.read[side].job for side in range(2)], read_jobs, copy.source, copy.from_host, 0),
            ([self.write[side].job for side in range(2)], write_jobs, copy.target, copy.to_host, 1),
        ):
            for side, job in enumerate(jobs):
                m.d.comb += [
                    job.valid.eq(request.valid & (on_host == side)),
                    job.payload.address.eq((address >> shift)[:WORD_ADDRESS_BITS]),
                    job.payload.count.eq((copy.bytes >> shift)[:COUNT_BITS]),
                    job.payload.last.eq(last),
                ]
            if self.layout and last:
                with m.If(copy.encode):
                    m.d.comb += jobs[0].payload.count.eq(self.layout.words(copy.first, self.layout.key_units))
            m.d.comb += request.ready.eq(Mux(on_host, jobs[1].ready, jobs[0].ready))

    def _record(
        self, m: Module, records: stream.Interface, routes: SyncFIFOBuffered, owners: list[SyncFIFOBuffered]
    ) -> None:
        """The route of the copy's words, and its owner in the queue of its target's side."""
        copy, route = self.i.payload, Signal(self.route)
        m.d.comb += [
            records.ready.eq(routes.w_rdy & owners[0].w_rdy & owners[1].w_rdy),
            route.from_host.eq(copy.from_host),
            route.to_host.eq(copy.to_host),
            routes.w_data.eq(route),
            routes.w_en.eq(records.valid & records.ready),
        ]
        if self.layout:
            m.d.comb += [route.encode.eq(copy.encode), route.first.eq(copy.first)]
        for side, fifo in enumerate(owners):
            m.d.comb += [
                fifo.w_data.eq(copy.owner),
                fifo.w_en.eq(records.valid & records.ready & (copy.to_host == side)),
                fifo.r_en.eq(self.write[side].done),
            ]

    def _move_words(self, m: Module, routes: SyncFIFOBuffered) -> None:
        """Words of the oldest route from its source to its target."""
        route, word = data.View(self.route, routes.r_data), Signal(self.word + 1)
        valid, ready = Signal(), Signal()
        sources, targets = ([port[side].data for side in range(2)] for port in (self.read, self.write))
        if self.layout:
            targets[0] = self._encode(m, route, word)
        m.d.comb += [
            valid.eq(routes.r_rdy & Mux(route.from_host, sources[1].valid, sources[0].valid)),
            word.eq(Mux(route.from_host, sources[1].payload, sources[0].payload)),
            ready.eq(Mux(route.to_host, targets[1].ready, targets[0].ready)),
            routes.r_en.eq(valid & ready & word[-1]),
        ]
        for side, (source, target) in enumerate(zip(sources, targets, strict=True)):
            m.d.comb += [
                source.ready.eq(routes.r_rdy & ready & (route.from_host == side)),
                target.valid.eq(valid & (route.to_host == side)),
                target.payload.data.eq(word[: self.word]),
            ]
            if "strobe" in target.payload.shape().members:
                m.d.comb += target.payload.strobe.eq(-1)

    def _encode(self, m: Module, route: data.View, word: Signal) -> stream.Interface:
        """The encoder before the writer of device memory; returns its input, without the data."""
        assert self.layout
        m.submodules.encoder = encoder = PageEncoder(self.layout)
        wiring.connect(m, encoder.o, wiring.flipped(self.write[0].data))
        m.d.comb += [
            encoder.i.payload.last.eq(word[-1]),
            encoder.i.payload.encode.eq(route.encode),
            encoder.i.payload.first.eq(route.first),
        ]
        return encoder.i

    def _report(self, m: Module, owners: list[SyncFIFOBuffered]) -> None:
        """Owners of acknowledged copies; those of the host side wait while one of the device side is reported."""
        m.submodules.host_done = host_done = SyncFIFOBuffered(width=self.owner_bits, depth=2 * self.max_open)
        device = self.write[0].done
        m.d.comb += [
            host_done.w_data.eq(owners[1].r_data),
            host_done.w_en.eq(self.write[1].done),
            host_done.r_en.eq(~device),
            self.o.valid.eq(device | host_done.r_rdy),
            self.o.payload.eq(Mux(device, owners[0].r_data, host_done.r_data)),
            self.idle.eq(~Cat(fifo.r_rdy | (fifo.level != 0) for fifo in (*owners, host_done)).any()),
        ]


def attach(m: Module, copy_engine: CopyEngine, side: int, reader: ReadEngine, writer: WriteEngine) -> None:
    """Connects one side of a copy engine to its read and write engines."""
    wiring.connect(m, copy_engine.read[side].job, reader.i)
    wiring.connect(m, reader.o, copy_engine.read[side].data)
    wiring.connect(m, copy_engine.write[side].job, writer.i)
    wiring.connect(m, copy_engine.write[side].data, writer.i_data)
    m.d.comb += copy_engine.write[side].done.eq(writer.done)


class Dma(wiring.Component):
    """Transfer engine: performs the descriptors of the KVMU through two AXI4 masters.

    After a fault the engines request no further bursts; bursts in flight complete. `stat_fault` keeps the first fault
    until reset.

    Timing: one word per cycle and direction; `latency` None: it depends on the memories.

    Parameters
    ----------
    word : bits of a memory word
    burst : words of the longest burst
    depth : words that the read and write engines buffer
    address_bits : bits of a byte address
    tags : number of transfer tags

    Members
    -------
    i_dma : stream of descriptors; addresses in bytes, relative to `cfg_device_base` or `cfg_host_base`
    o_done : stream of {tag, error}; in order for each target tier
    device, host : AXI4 manager ports
    cfg_device_base, cfg_host_base : byte addresses of the two regions, multiples of 4 KiB
    cfg_device_words, cfg_host_words : sizes of these regions in words
    stat_fault : first fault since reset
    stat_idle : no burst is in flight
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
                **{f"cfg_{side}_words": In(WORD_ADDRESS_BITS + 1) for side in ("device", "host")},
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
        tag_bits, has_fault = (self.tags - 1).bit_length(), Signal()
        m.submodules.copy_engine = engine = CopyEngine(
            word=self.word, address_bits=self.address_bits, owner_bits=tag_bits
        )
        faults, idle = [engine.fault], []
        for side, name in enumerate(("device", "host")):
            for memory_engine in self._connect_side(m, engine, side, name):
                m.d.comb += [
                    memory_engine.limit.eq(getattr(self, f"cfg_{name}_words")),
                    memory_engine.halt.eq(has_fault),
                ]
                faults.append(memory_engine.fault)
                idle.append(memory_engine.idle)
        descriptor, copy = self.i_dma.payload, engine.i.payload
        m.d.comb += [
            engine.i.valid.eq(self.i_dma.valid & ~has_fault),
            self.i_dma.ready.eq(engine.i.ready & ~has_fault),
            copy.source.eq(descriptor.source),
            copy.target.eq(descriptor.target),
            copy.from_host.eq(descriptor.source_tier != Tier.DEVICE),
            copy.to_host.eq(descriptor.target_tier != Tier.DEVICE),
            copy.bytes.eq(descriptor.bytes),
            copy.owner.eq(descriptor.tag),
            self.stat_idle.eq(Cat(*idle).all()),
            has_fault.eq(Value.cast(self.stat_fault.cause).any()),
        ]
        self._send_completions(m, engine)
        for fault in reversed(faults):
            with m.If(~has_fault & Value.cast(fault.cause).any()):
                m.d.sync += self.stat_fault.eq(fault)
        return m

    def _connect_side(self, m: Module, copy_engine: CopyEngine, side: int, name: str) -> tuple[ReadEngine, WriteEngine]:
        """Master, read engine and write engine of one side."""
        master, sizes = self.masters[side], {"word": self.word, "burst": self.burst, "depth": self.depth}
        m.submodules[name] = master
        m.submodules[f"{name}_reader"] = reader = ReadEngine(**sizes)
        m.submodules[f"{name}_writer"] = writer = WriteEngine(**sizes)
        attach(m, copy_engine, side, reader, writer)
        wiring.connect(m, reader.port, master.read[0])
        wiring.connect(m, writer.port, master.write[0])
        wiring.connect(m, master.axi, wiring.flipped(getattr(self, name)))
        m.d.comb += master.base.eq(getattr(self, f"cfg_{name}_base"))
        return reader, writer

    def _send_completions(self, m: Module, copy_engine: CopyEngine) -> None:
        """Queue of completions; the copy engine does not wait."""
        done = Signal(self.o_done.payload.shape())
        m.submodules.completions = completions = SyncFIFOBuffered(
            width=len(Value.cast(done)), depth=4 * MAX_OPEN_COPIES
        )
        m.d.comb += [
            done.tag.eq(copy_engine.o.payload),
            completions.w_data.eq(done),
            completions.w_en.eq(copy_engine.o.valid),
            Value.cast(self.o_done.payload).eq(completions.r_data),
            self.o_done.valid.eq(completions.r_rdy),
            completions.r_en.eq(self.o_done.ready),
        ]
