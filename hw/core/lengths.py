"""Lengths that a program does not know: how many clusters there are, how many tokens a head attends to."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.core.isa import Size

SIZE_BITS = 16


def sizes_layout(kv_heads: int) -> data.StructLayout:
    """What lengths come from: clusters in the table; for every KV head, past tokens it attends to."""
    return data.StructLayout({"clusters": SIZE_BITS, "tokens": data.ArrayLayout(SIZE_BITS, kv_heads)})


def length(m: Module, name: str, sizes: data.View, order: data.View, kv_heads: int) -> Signal:
    """The length that a command with the fields `size`, `head`, `extra` means."""
    value, tokens = Signal(SIZE_BITS, name=name), Signal(SIZE_BITS, name=f"{name}_tokens")
    m.d.comb += tokens.eq(Array(sizes.tokens[h] for h in range(kv_heads))[order.head])
    known = Mux(order.size == Size.CLUSTERS, sizes.clusters, Mux(order.size == Size.TOKENS, tokens, 0))
    m.d.comb += value.eq(known + order.extra)
    return value


def blocks(m: Module, name: str, elements: Value, width: int) -> Signal:
    """Blocks of `width` elements that hold so many."""
    count = Signal(SIZE_BITS, name=name)
    m.d.comb += count.eq((elements + (width - 1)) >> (width.bit_length() - 1))
    return count


def part(m: Module, name: str, total: Value, start: Value, most: Value) -> Signal:
    """How many of `total` things there are from number `start` on, at most `most`."""
    left, count = Signal(SIZE_BITS, name=f"{name}_left"), Signal(SIZE_BITS, name=name)
    m.d.comb += [left.eq(Mux(total > start, total - start, 0)), count.eq(Mux(left < most, left, most))]
    return count
