"""What the retrieval unit decides at run time: numbers of clusters and of attended tokens, and the page lists."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.hdl import ValueLike
from amaranth.lib import data

from hw.axi.ports import WORD_ADDRESS_BITS
from hw.core.isa import LIST_SETS, LengthSource

LENGTH_BITS = 24


def lengths_layout(kv_heads: int) -> data.StructLayout:
    """The run-time lengths: clusters of the open context, and the past tokens of every page list."""
    return data.StructLayout({"clusters": LENGTH_BITS, "tokens": data.ArrayLayout(LENGTH_BITS, LIST_SETS * kv_heads)})


def entries_layout(kv_heads: int, max_pages: int) -> data.ArrayLayout:
    """Number of entries of every page list: those of all KV heads, then their second lists."""
    return data.ArrayLayout(range(max_pages + 1), LIST_SETS * kv_heads)


def decisions_layout(kv_heads: int, max_pages: int) -> data.StructLayout:
    """Decisions of a retrieval unit that commands of other units use.

    lengths : run-time lengths
    list_base, list_entries : word address of the page lists, number of entries of each list
    """
    return data.StructLayout(
        {
            "lengths": lengths_layout(kv_heads),
            "list_base": WORD_ADDRESS_BITS,
            "list_entries": entries_layout(kv_heads, max_pages),
        }
    )


def command_length(
    m: Module, name: str, lengths: data.View, command: data.View, kv_heads: int, counted: ValueLike = 0
) -> Signal:
    """Length of a command: the run-time length that its fields `length` and `head` select, plus its field `extra`.

    `counted` : what the last COUNT of this core has read
    """
    value, tokens = Signal(LENGTH_BITS, name=name), Signal(LENGTH_BITS, name=f"{name}_tokens")
    m.d.comb += tokens.eq(Array(lengths.tokens[n] for n in range(LIST_SETS * kv_heads))[command.head])
    source_value = Mux(command.length == LengthSource.TOKENS, tokens, 0)
    source_value = Mux(command.length == LengthSource.CLUSTERS, lengths.clusters, source_value)
    source_value = Mux(command.length == LengthSource.COUNTED, counted, source_value)
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
