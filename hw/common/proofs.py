"""What is proved of every unit and of the queues they share; each specification's docstring is the property."""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.hdl import Assert, Assume, ValueLike
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.common.fork import fork
from hw.common.pipeline import CreditGate, delay


def constant(m: Module, *ports: ValueLike) -> None:
    """Assume that these inputs never change."""
    now = Cat(*ports)
    started, before = Signal(), Signal.like(now, name="constants")
    m.d.sync += [started.eq(1), before.eq(now)]
    m.d.comb += Assume(~started | (now == before))


def kept(m: Module, name: str, port: stream.Interface) -> tuple[Signal, Value]:
    """A beat of the last cycle was not taken; and whether the stream still offers it unchanged, if so."""
    payload = Value.cast(port.payload)
    waits, before = Signal(name=f"{name}_waits"), Signal(len(payload), name=f"{name}_before")
    m.d.sync += [waits.eq(port.valid & ~port.ready), before.eq(payload)]
    return waits, ~waits | (port.valid & (payload == before))


class StreamContract(wiring.Component):
    """Every stream out of the unit offers a beat unchanged until it is taken, if every stream into it does so, too.

    `cfg_*` are constant, all other inputs arbitrary. Each cover says that a beat can wait and be taken.
    """

    def __init__(self, unit: wiring.Component):
        self.unit, self.parts = unit, getattr(unit, "parts", {})
        self.streams: dict[str, wiring.Flow] = {}
        ports: dict[str, wiring.Member] = {}
        for name, member in unit.signature.members.items():
            port = getattr(unit, name)
            if not member.is_port and isinstance(member.signature, stream.Signature):
                self.streams[name] = member.flow
                if member.flow is In:
                    ports |= {f"{name}_valid": In(1), f"{name}_payload": In(len(Value.cast(port.payload)))}
                else:
                    ports |= {f"{name}_ready": In(1), f"cover_{name}": Out(1)}
            elif member.flow is In:
                ports[name] = In(Value.cast(port).shape())
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = unit = self.unit
        constant(m, *(getattr(self, name) for name in self.signature.members if name.startswith("cfg_")))
        for name, member in unit.signature.members.items():
            port = getattr(unit, name)
            if name not in self.streams:
                if member.flow is In:
                    m.d.comb += Value.cast(port).eq(getattr(self, name))
                continue
            waits, unchanged = kept(m, name, port)
            if member.flow is In:
                m.d.comb += [
                    port.valid.eq(getattr(self, f"{name}_valid")),
                    Value.cast(port.payload).eq(getattr(self, f"{name}_payload")),
                    Assume(unchanged),
                ]
            else:
                ready = getattr(self, f"{name}_ready")
                m.d.comb += [
                    port.ready.eq(ready),
                    Assert(unchanged),
                    getattr(self, f"cover_{name}").eq(waits & port.valid & ready),
                ]
        return m


class QueueSpec(wiring.Component):
    """What goes in comes out once, in order, and within `patience` cycles while the reader is ready.

    Followed is one beat, any: how many are ahead of it, and its word. No more than `places` beats are inside, and a
    beat stays for a cycle at least.
    """

    def __init__(self, queue: wiring.Component, *, places: int, patience: int):
        self.queue, self.places, self.patience = queue, places, patience
        self.width = len(Value.cast(queue.i.payload))
        super().__init__(
            {
                "offer": In(1),
                "word": In(self.width),
                "pick": In(1),
                "ready": In(1),
                "cover_full": Out(1),
                "cover_passed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.queue = queue = self.queue
        taken, sent, followed = Signal(), Signal(), Signal()
        inside, ahead = Signal(range(self.places + 2)), Signal(range(self.places + 2))
        word, waited = Signal(self.width), Signal(range(self.patience + 2))
        given = Value.cast(queue.o.payload)
        m.d.comb += [
            queue.i.valid.eq(self.offer),
            Value.cast(queue.i.payload).eq(self.word),
            queue.o.ready.eq(self.ready),
            taken.eq(queue.i.valid & queue.i.ready),
            sent.eq(queue.o.valid & queue.o.ready),
            Assert(inside <= self.places),
            Assert(~sent | (inside != 0)),
            Assert(~(sent & followed & (ahead == 0)) | (given == word)),
            Assert(waited <= self.patience),
            self.cover_full.eq(inside == self.places),
            self.cover_passed.eq(sent & followed & (ahead == 0)),
        ]
        m.d.sync += [
            inside.eq(inside + taken - sent),
            waited.eq(Mux((inside == 0) | sent | ~self.ready, 0, waited + 1)),
        ]
        with m.If(sent & followed):
            m.d.sync += [ahead.eq(ahead - 1), followed.eq(ahead != 0)]
        with m.If(taken & self.pick & ~followed):
            m.d.sync += [followed.eq(1), word.eq(self.word), ahead.eq(inside - sent)]
        return m


class Fifo(wiring.Component):
    """The FIFO that all units use, as a queue of words."""

    def __init__(self, *, width: int, depth: int):
        self.depth = depth
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.fifo = fifo = SyncFIFOBuffered(width=len(self.i.payload), depth=self.depth)
        wiring.connect(m, wiring.flipped(self.i), fifo.w_stream)
        wiring.connect(m, fifo.r_stream, wiring.flipped(self.o))
        return m


class GatedPipeline(wiring.Component):
    """A pipeline of `stages` registers without enable behind a `CreditGate`, as a queue of words."""

    def __init__(self, *, width: int, stages: int):
        self.stages = stages
        super().__init__({"i": In(stream.Signature(width)), "o": Out(stream.Signature(width))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.gate = gate = CreditGate(self.i.payload.shape(), stages=self.stages)
        word = self.i.payload
        for stage in range(self.stages):
            later = Signal.like(word, name=f"word{stage}")
            m.d.sync += later.eq(word)
            word = later
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "taken", gate.take, self.stages)),
            gate.result.eq(word),
        ]
        wiring.connect(m, gate.o, wiring.flipped(self.o))
        return m


class ForkSpec(wiring.Component):
    """Each reader takes each beat exactly once before it leaves, and is offered it whatever the others do."""

    def __init__(self, *, readers: int):
        self.readers = readers
        super().__init__({"offer": In(1), "ready": In(readers), "cover_apart": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        source = stream.Signature(1).create(path=("source",))
        sinks = [stream.Signature(1).create(path=("sink", str(k))) for k in range(self.readers)]
        fork(m, "beat", source, sinks)
        _, unchanged = kept(m, "source", source)
        had = Signal(self.readers)
        m.d.comb += [
            source.valid.eq(self.offer),
            Assume(unchanged),
            self.cover_apart.eq(source.valid & source.ready & had.any()),
        ]
        for k, sink in enumerate(sinks):
            takes = sink.valid & sink.ready
            m.d.comb += [
                sink.ready.eq(self.ready[k]),
                Assert(sink.valid == (source.valid & ~had[k])),
                Assert(~(source.valid & source.ready) | (had[k] ^ takes)),
            ]
            m.d.sync += had[k].eq(source.valid & ~source.ready & (had[k] | takes))
        return m
