"""Copies of one stream for several receivers."""

from collections.abc import Sequence

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import stream


def fork(m: Module, name: str, source: stream.Interface, sinks: Sequence[stream.Interface]) -> None:
    """Offer each beat of `source` once to each of `sinks`. The beat is complete when all sinks have accepted it.

    The valid of a sink does not depend on the ready of another sink. The caller connects the payloads.
    """
    sent, accepted = Signal(len(sinks), name=f"{name}_sent"), Signal(len(sinks), name=f"{name}_taken")
    m.d.comb += [accepted.eq(sent | Cat(sink.ready for sink in sinks)), source.ready.eq(accepted.all())]
    m.d.comb += [sink.valid.eq(source.valid & ~sent[k]) for k, sink in enumerate(sinks)]
    m.d.sync += sent.eq(Mux(source.valid & ~source.ready, accepted, 0))
