"""What is proved of every unit and of the queues they share; each specification's docstring is the property."""

import re
from dataclasses import dataclass

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


def kept(m: Module, name: str, port: "stream.Interface | Channel") -> tuple[Signal, Value]:
    """A beat of the last cycle was not taken; and whether the stream still offers it unchanged, if so."""
    payload = Value.cast(port.payload)
    waits, before = Signal(name=f"{name}_waits"), Signal(len(payload), name=f"{name}_before")
    m.d.sync += [waits.eq(port.valid & ~port.ready), before.eq(payload)]
    return waits, ~waits | (port.valid & (payload == before))


@dataclass(frozen=True)
class Channel:
    """One stream of a unit, or one channel of an AXI port of it; `flow` as seen from outside."""

    name: str
    flow: wiring.Flow
    valid: Value
    ready: Value
    payload: Value


def channels(unit: wiring.Component) -> tuple[list[Channel], dict[str, Value]]:
    """The streams and AXI channels of a unit, and all its other inputs."""
    found, inputs = [], {}
    for name, member in unit.signature.members.items():
        port = getattr(unit, name)
        if member.is_port:
            if member.flow is In:
                inputs[name] = Value.cast(port)
        elif isinstance(member.signature, stream.Signature):
            found.append(Channel(name, member.flow, port.valid, port.ready, Value.cast(port.payload)))
        else:
            signals = {what: getattr(port, what) for what in member.signature.members}
            flows = {
                what: one.flow if member.flow is Out else one.flow.flip()
                for what, one in member.signature.members.items()
            }
            for channel in ("aw", "w", "b", "ar", "r"):
                own = [
                    what
                    for what in signals
                    if re.fullmatch(f"{channel}(id|addr|len|size|burst|data|strb|resp|last)", what)
                ]
                valid = f"{channel}valid"
                payload = Cat(signals[what] for what in own)
                found.append(
                    Channel(f"{name}_{channel}", flows[valid], signals[valid], signals[f"{channel}ready"], payload)
                )
    return found, inputs


class StreamContract(wiring.Component):
    """Every stream out of the unit offers a beat unchanged until it is taken, if every stream into it does so, too.

    The channels of AXI ports are streams. `cfg_*` are constant, all other inputs arbitrary. Each cover says that a beat
    can wait and be taken.
    """

    def __init__(self, unit: wiring.Component):
        self.unit, self.modules = unit, getattr(unit, "modules", {})
        self.channels, self.inputs = channels(unit)
        ports: dict[str, wiring.Member] = {name: In(value.shape()) for name, value in self.inputs.items()}
        for channel in self.channels:
            if channel.flow is In:
                ports |= {f"{channel.name}_valid": In(1), f"{channel.name}_payload": In(len(channel.payload))}
            else:
                ports |= {f"{channel.name}_ready": In(1), f"cover_{channel.name}": Out(1)}
        super().__init__(ports)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.unit = self.unit
        constant(m, *(getattr(self, name) for name in self.inputs if name.startswith("cfg_")))
        m.d.comb += [value.eq(getattr(self, name)) for name, value in self.inputs.items()]
        for channel in self.channels:
            waits, unchanged = kept(m, channel.name, channel)
            if channel.flow is In:
                m.d.comb += [
                    channel.valid.eq(getattr(self, f"{channel.name}_valid")),
                    channel.payload.eq(getattr(self, f"{channel.name}_payload")),
                    Assume(unchanged),
                ]
            else:
                ready = getattr(self, f"{channel.name}_ready")
                m.d.comb += [
                    channel.ready.eq(ready),
                    Assert(unchanged),
                    getattr(self, f"cover_{channel.name}").eq(waits & channel.valid & ready),
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
