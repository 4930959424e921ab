"""Port through which the components of the KVMU read and write the store, and its use in state machines.

A component drives `request` and holds it until the line cache accepts it. The cache drives `response`, once for each
request but WRITE and LOG; the component accepts it before its next request. An address is the number of a block of 32
bytes.

`reading`, `writing`, `logging` and `ordering` create the states of one request. The statements in their body hold in
the cycle in which the request is complete: the response of a read, the acceptance of a write.
"""

# mypy: disable-error-code="assignment,arg-type"

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.hdl import ValueLike
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree
from hw.dre.kvmu.records import BLOCK_BITS, BLOCK_WORDS, CLUSTER_WORDS, PAGE_WORDS, WORD_BITS, resized

STROBE_BITS = BLOCK_BITS // 16  # one write enable for 16 bits


class Access(enum.Enum, shape=unsigned(3)):
    """Operation of a request."""

    READ = 0  # the response has the block `address`
    WRITE = 1  # write the parts of a block that `strobe` selects; no response
    FLUSH = 2  # write all changed lines to memory; the response follows their acknowledgement
    INVALIDATE = 3  # drop all lines, which must not be changed; the response has no data
    LOG = 4  # write the line of the block to the undo log, because another unit changes it; no response


# Request for one block; `address` is its number.
REQUEST = data.StructLayout({"op": Access, "address": 32, "data": BLOCK_BITS, "strobe": STROBE_BITS})


def access_port() -> wiring.Signature:
    """Port of a component that reads and writes the store. The component has at most one request in progress."""
    return wiring.Signature(
        {"request": Out(stream.Signature(REQUEST)), "response": In(stream.Signature(unsigned(BLOCK_BITS)))}
    )


def merge(m: Module, sources: Sequence[stream.Interface], sink: stream.Interface) -> None:
    """Connect several streams to `sink`. At most one of them may be valid at a time; the caller guarantees it."""
    payloads = [Mux(source.valid, Value.cast(source.payload), 0) for source in sources]
    m.d.comb += [
        sink.valid.eq(Cat(source.valid for source in sources).any()),
        Value.cast(sink.payload).eq(reduce_tree(lambda a, b: a | b, payloads)),
        *(source.ready.eq(sink.ready) for source in sources),
    ]


def broadcast(m: Module, source: stream.Interface, sinks: Sequence[stream.Interface]) -> None:
    """Offer `source` to several receivers, of which at most one is ready at a time."""
    m.d.comb += source.ready.eq(Cat(sink.ready for sink in sinks).any())
    for sink in sinks:
        m.d.comb += [sink.valid.eq(source.valid), Value.cast(sink.payload).eq(Value.cast(source.payload))]


def share(m: Module, clients: Sequence[wiring.PureInterface], memory: wiring.PureInterface) -> None:
    """Connect several access ports to one memory. At most one client may have a request in progress."""
    merge(m, [client.request for client in clients], memory.request)
    broadcast(m, memory.response, [client.response for client in clients])


def words(values: Mapping[int, ValueLike]) -> tuple[Value, Value]:
    """Data and strobe of a WRITE of some words of a block, by word number."""
    content = Cat(resized(values.get(n, Const(0)), WORD_BITS) for n in range(BLOCK_WORDS))
    strobe = Const(sum(3 << 2 * n for n in values), STROBE_BITS)
    return content, strobe


def page_words(**fields: ValueLike) -> tuple[Value, Value]:
    """Data and strobe of a WRITE of some fields of a page record; `state`: see `state_word`."""
    return words({PAGE_WORDS[name]: value for name, value in fields.items()})


def cluster_words(**fields: ValueLike) -> tuple[Value, Value]:
    """Data and strobe of a WRITE of some fields of a cluster record."""
    return words({CLUSTER_WORDS[name]: value for name, value in fields.items()})


def element(value: ValueLike, width: int, index: Value) -> tuple[Value, Value]:
    """Data and strobe of a WRITE of element `index` of a block that has elements of `width` bits."""
    count, halves = BLOCK_BITS // width, width // 16
    content = resized(value, width).replicate(count)
    strobe = Const((1 << halves) - 1, STROBE_BITS) << (index[: (count - 1).bit_length()] * halves)[:4]
    return content, strobe[:STROBE_BITS]


@contextmanager
def _requesting(m: Module, request: stream.Interface, op: Access, address: Value) -> Iterator[None]:
    """Offer a request in the present state. The body holds in the cycle of the transfer."""
    m.d.comb += [request.valid.eq(1), request.payload.op.eq(op), request.payload.address.eq(address)]
    with m.If(request.ready):
        yield


@contextmanager
def reading(m: Module, memory: wiring.PureInterface, state: str, address: Value) -> Iterator[Value]:
    """State `state` reads a block. The statements of the body hold in the cycle of the response, whose data it gets."""
    response = memory.response
    with m.State(state), _requesting(m, memory.request, Access.READ, address):
        m.next = f"{state}_DATA"
    with m.State(f"{state}_DATA"):
        m.d.comb += response.ready.eq(1)
        with m.If(response.valid):
            yield response.payload


@contextmanager
def writing(
    m: Module, memory: wiring.PureInterface, state: str, address: Value, parts: tuple[Value, Value]
) -> Iterator[None]:
    """State `state` writes parts of a block (data and strobe). The body holds in the cycle of the transfer."""
    with m.State(state):
        m.d.comb += [memory.request.payload.data.eq(parts[0]), memory.request.payload.strobe.eq(parts[1])]
        with _requesting(m, memory.request, Access.WRITE, address):
            yield


@contextmanager
def logging(m: Module, memory: wiring.PureInterface, state: str, address: Value) -> Iterator[None]:
    """State `state` writes the line of a block to the undo log. The body holds in the cycle of the transfer."""
    with m.State(state), _requesting(m, memory.request, Access.LOG, address):
        yield


@contextmanager
def ordering(m: Module, memory: wiring.PureInterface, state: str, op: Access) -> Iterator[None]:
    """State `state` executes FLUSH or INVALIDATE. The body holds in the cycle of the response."""
    sent = Signal(name=f"{state.lower()}_sent")
    request, response = memory.request, memory.response
    with m.State(state):
        m.d.comb += [request.valid.eq(~sent), request.payload.op.eq(op), response.ready.eq(sent)]
        with m.If(request.valid & request.ready):
            m.d.sync += sent.eq(1)
        with m.If(sent & response.valid):
            m.d.sync += sent.eq(0)
            yield
