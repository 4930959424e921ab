"""Event counters of units."""

from collections.abc import Mapping
from typing import Any

from amaranth import Module, Mux, Signal, Value, ValueLike


def tally(m: Module, counter: Signal, event: ValueLike, clear: ValueLike) -> None:
    """Add `event` to `counter` one cycle later, so that `event` may be a long path. `clear` sets `counter` to zero.

    The counter changes only in cycles after an event, so that its clock can be gated.
    """
    event_d = Signal.like(Value.cast(event), name=f"{counter.name}_event")
    m.d.sync += event_d.eq(Mux(clear, 0, event))
    with m.If(clear):
        m.d.sync += counter.eq(0)
    with m.Elif(event_d.any()):
        m.d.sync += counter.eq(counter + event_d)


def count(m: Module, unit: Any, events: Mapping[Any, ValueLike], *, enable: bool = True) -> None:
    """Count each event NAME in the port `stat_NAME` of `unit`. The port `stat_clear` sets all counters to zero.

    Without `enable` the ports stay zero, and synthesis removes the counters.
    """
    for name, event in events.items() if enable else ():
        tally(m, getattr(unit, f"stat_{name}"), event, unit.stat_clear)
