"""Counters of events, as every unit has them."""

from collections.abc import Mapping
from typing import Any

from amaranth import Module, Mux, Signal, Value, ValueLike


def tally(m: Module, counter: Signal, event: ValueLike, clear: ValueLike) -> None:
    """Add `event` to `counter` a cycle later, so that what is counted may be late in its cycle; `clear` zeroes it."""
    happened = Signal.like(Value.cast(event), name=f"{counter.name}_event")
    m.d.sync += [
        happened.eq(Mux(clear, 0, event)),
        counter.eq(Mux(clear, 0, (counter + happened)[: len(counter)])),
    ]


def count(m: Module, unit: Any, events: Mapping[Any, ValueLike]) -> None:
    """Count in `stat_NAME` of `unit`, which `stat_clear` zeroes, for every event by its name."""
    for name, event in events.items():
        tally(m, getattr(unit, f"stat_{name}"), event, unit.stat_clear)
