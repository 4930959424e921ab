"""Lengths that a program does not know: how many clusters there are, how many tokens a head attends to."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.core.isa import LengthSource

LENGTH_BITS = 16


def lengths_layout(kv_heads: int) -> data.StructLayout:
    """What lengths come from: clusters in the table; for every KV head, past tokens it attends to."""
    return data.StructLayout({"clusters": LENGTH_BITS, "tokens": data.ArrayLayout(LENGTH_BITS, kv_heads)})


def length(m: Module, name: str, lengths: data.View, order: data.View, kv_heads: int) -> Signal:
    """The length that a command with the fields `length`, `head`, `extra` means."""
    value, tokens = Signal(LENGTH_BITS, name=name), Signal(LENGTH_BITS, name=f"{name}_tokens")
    m.d.comb += tokens.eq(Array(lengths.tokens[h] for h in range(kv_heads))[order.head])
    known = Mux(
        order.length == LengthSource.CLUSTERS, lengths.clusters, Mux(order.length == LengthSource.TOKENS, tokens, 0)
    )
    m.d.comb += value.eq(known + order.extra)
    return value


def block_count(m: Module, name: str, elements: Value, width: int) -> Signal:
    """Blocks of `width` elements that hold so many."""
    count = Signal(LENGTH_BITS, name=name)
    m.d.comb += count.eq((elements + (width - 1)) >> (width.bit_length() - 1))
    return count


def clipped_count(m: Module, name: str, total: Value, start: Value, most: Value) -> Signal:
    """How many of `total` things there are from number `start` on, at most `most`."""
    left, count = Signal(LENGTH_BITS, name=f"{name}_left"), Signal(LENGTH_BITS, name=name)
    m.d.comb += [left.eq(Mux(total > start, total - start, 0)), count.eq(Mux(left < most, left, most))]
    return count
