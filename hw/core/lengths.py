"""Run-time lengths: numbers of clusters and of attended tokens, which the program refers to by their source."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data

from hw.core.isa import LengthSource

LENGTH_BITS = 24


def lengths_layout(kv_heads: int) -> data.StructLayout:
    """The run-time lengths: clusters of the open context, and for every KV head the past tokens of its selection."""
    return data.StructLayout({"clusters": LENGTH_BITS, "tokens": data.ArrayLayout(LENGTH_BITS, kv_heads)})


def command_length(m: Module, name: str, lengths: data.View, command: data.View, kv_heads: int) -> Signal:
    """Length of a command: the run-time length that its fields `length` and `head` select, plus its field `extra`."""
    value, tokens = Signal(LENGTH_BITS, name=name), Signal(LENGTH_BITS, name=f"{name}_tokens")
    m.d.comb += tokens.eq(Array(lengths.tokens[h] for h in range(kv_heads))[command.head])
    source_value = Mux(command.length == LengthSource.TOKENS, tokens, 0)
    source_value = Mux(command.length == LengthSource.CLUSTERS, lengths.clusters, source_value)
    m.d.comb += value.eq(source_value + command.extra)
    return value


def block_count(m: Module, name: str, elements: Value, width: int) -> Signal:
    """Number of blocks of `width` elements that contain `elements` elements."""
    count = Signal(LENGTH_BITS, name=name)
    m.d.comb += count.eq((elements + (width - 1)) >> (width.bit_length() - 1))
    return count


def clipped_count(m: Module, name: str, total: Value, start: Value, limit: Value) -> Signal:
    """Number of items from index `start` to the end of `total` items, at most `limit`."""
    remaining, count = Signal(LENGTH_BITS, name=f"{name}_remaining"), Signal(LENGTH_BITS, name=name)
    m.d.comb += [
        remaining.eq(Mux(total > start, total - start, 0)),
        count.eq(Mux(remaining < limit, remaining, limit)),
    ]
    return count
