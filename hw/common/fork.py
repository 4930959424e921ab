"""One stream to several readers."""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream


def fork(m: Module, name: str, source: stream.Interface, sinks: Sequence[stream.Interface]) -> None:
    """Offer every beat of `source` to each of `sinks` once; it leaves when the last of them has taken it.

    A sink's valid does not depend on the ready of another one. Payloads are left to the caller.
    """
    sent, taken = Signal(len(sinks), name=f"{name}_sent"), Signal(len(sinks), name=f"{name}_taken")
    m.d.comb += [taken.eq(sent | Cat(sink.ready for sink in sinks)), source.ready.eq(taken.all())]
    m.d.comb += [sink.valid.eq(source.valid & ~sent[k]) for k, sink in enumerate(sinks)]
    m.d.sync += sent.eq(Mux(source.valid & ~source.ready, taken, 0))
