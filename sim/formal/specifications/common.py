"""Specifications of all streams and of shared queues; the docstring of each specification is the property."""

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
    """Assume that the ports keep their value in all cycles."""
    values = Cat(*ports)
    running, previous = Signal(), Signal.like(values, name="constants")
    m.d.sync += [running.eq(1), previous.eq(values)]
    m.d.comb += Assume(~running | (values == previous))


def stability(m: Module, name: str, port: "stream.Interface | Channel") -> tuple[Signal, Value]:
    """Whether a beat of the previous cycle was not accepted, and whether the stream then repeats it unchanged."""
    payload = Value.cast(port.payload)
    waits, previous = Signal(name=f"{name}_waits"), Signal(len(payload), name=f"{name}_previous")
    m.d.sync += [waits.eq(port.valid & ~port.ready), previous.eq(payload)]
    return waits, ~waits | (port.valid & (payload == previous))


@dataclass(frozen=True)
class Channel:
    """One stream of a unit, or one channel of its AXI port; `flow` is the direction seen from outside."""

    name: str
    flow: wiring.Flow
    valid: Value
    ready: Value
    payload: Value


def channels(unit: wiring.Component) -> tuple[list[Channel], dict[str, Value]]:
    """The streams and AXI channels of a unit, and all its other inputs."""
    streams, inputs = [], {}
    for name, member in unit.signature.members.items():
        port = getattr(unit, name)
        if member.is_port:
            if member.flow is In:
                inputs[name] = Value.cast(port)
        elif isinstance(member.signature, stream.Signature):
            streams.append(Channel(name, member.flow, port.valid, port.ready, Value.cast(port.payload)))
        else:
            signals = {pin: getattr(port, pin) for pin in member.signature.members}
            flows = {
                pin: signal.flow if member.flow is Out else signal.flow.flip()
                for pin, signal in member.signature.members.items()
            }
            for channel in ("aw", "w", "b", "ar", "r"):
                fields = [
                    pin
                    for pin in signals
                    if re.fullmatch(f"{channel}(id|addr|len|size|burst|data|strb|resp|last)", pin)
                ]
                valid = f"{channel}valid"
                payload = Cat(signals[pin] for pin in fields)
                streams.append(
                    Channel(f"{name}_{channel}", flows[valid], signals[valid], signals[f"{channel}ready"], payload)
                )
    return streams, inputs


class StreamContract(wiring.Component):
    """Every output stream repeats a beat unchanged until the reader accepts it, if every input stream does the same.

    The channels of AXI ports count as streams. `cfg_*` inputs are constant, all other inputs are arbitrary. Each cover
    shows that a beat can wait and then be accepted.
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
            waits, unchanged = stability(m, channel.name, channel)
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
    """Every input beat leaves once, in order, and within `patience` cycles while the reader is ready.

    The specification tracks one arbitrary beat: its word and the number of beats ahead of it. The queue contains at
    most `depth` beats. A beat stays for at least one cycle.
    """

    def __init__(self, queue: wiring.Component, *, depth: int, patience: int):
        self.queue, self.depth, self.patience = queue, depth, patience
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
        accepted, sent, tracked = Signal(), Signal(), Signal()
        occupancy, ahead = Signal(range(self.depth + 2)), Signal(range(self.depth + 2))
        word, wait_cycles = Signal(self.width), Signal(range(self.patience + 2))
        output = Value.cast(queue.o.payload)
        m.d.comb += [
            queue.i.valid.eq(self.offer),
            Value.cast(queue.i.payload).eq(self.word),
            queue.o.ready.eq(self.ready),
            accepted.eq(queue.i.valid & queue.i.ready),
            sent.eq(queue.o.valid & queue.o.ready),
            Assert(occupancy <= self.depth),
            Assert(~sent | (occupancy != 0)),
            Assert(~(sent & tracked & (ahead == 0)) | (output == word)),
            Assert(wait_cycles <= self.patience),
            self.cover_full.eq(occupancy == self.depth),
            self.cover_passed.eq(sent & tracked & (ahead == 0)),
        ]
        m.d.sync += [
            occupancy.eq(occupancy + accepted - sent),
            wait_cycles.eq(Mux((occupancy == 0) | sent | ~self.ready, 0, wait_cycles + 1)),
        ]
        with m.If(sent & tracked):
            m.d.sync += [ahead.eq(ahead - 1), tracked.eq(ahead != 0)]
        with m.If(accepted & self.pick & ~tracked):
            m.d.sync += [tracked.eq(1), word.eq(self.word), ahead.eq(occupancy - sent)]
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
            next_word = Signal.like(word, name=f"word{stage}")
            m.d.sync += next_word.eq(word)
            word = next_word
        m.d.comb += [
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "accepted", gate.take, self.stages)),
            gate.result.eq(word),
        ]
        wiring.connect(m, gate.o, wiring.flipped(self.o))
        return m


class ForkSpec(wiring.Component):
    """Every reader accepts every beat exactly once before the beat leaves, independently of the other readers."""

    def __init__(self, *, readers: int):
        self.readers = readers
        super().__init__({"offer": In(1), "ready": In(readers), "cover_diverged": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        source = stream.Signature(1).create(path=("source",))
        sinks = [stream.Signature(1).create(path=("sink", str(k))) for k in range(self.readers)]
        fork(m, "beat", source, sinks)
        _, unchanged = stability(m, "source", source)
        received = Signal(self.readers)
        m.d.comb += [
            source.valid.eq(self.offer),
            Assume(unchanged),
            self.cover_diverged.eq(source.valid & source.ready & received.any()),
        ]
        for k, sink in enumerate(sinks):
            accepts = sink.valid & sink.ready
            m.d.comb += [
                sink.ready.eq(self.ready[k]),
                Assert(sink.valid == (source.valid & ~received[k])),
                Assert(~(source.valid & source.ready) | (received[k] ^ accepts)),
            ]
            m.d.sync += received[k].eq(source.valid & ~source.ready & (received[k] | accepts))
        return m
