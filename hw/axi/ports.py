"""AXI4 and AXI4-Lite ports, and the streams between engines and master.

Memory is addressed in words of the bus width, counted from the start of a region. Bursts have the type INCR, at most
`burst` words (a power of two, at most 4 KiB), and do not cross a multiple of that length, so none crosses 4 KiB.
"""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

from amaranth import unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

BOUNDARY = 4096  # bytes; no burst crosses a multiple of it
WORD_ADDRESS_BITS = 32  # width of a word address
COUNT_BITS = 24  # width of a number of words
INCR = 1  # AXI burst type: ascending addresses


class Response(enum.Enum, shape=unsigned(2)):
    """AXI response."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Cause(enum.Enum, shape=unsigned(4)):
    """Cause of a fault."""

    NONE = 0
    SLVERR = 1  # memory responded SLVERR
    DECERR = 2  # memory responded DECERR
    REGION = 3  # an address outside its region, or not a multiple of a word
    OPCODE = 4  # unknown opcode
    TRUNCATED = 5  # a program without END
    TABLE = 6  # a table of the DRE is full or refused a command
    SIZE = 7  # a row or tile does not fit its memory
    BARRIER = 8  # another core of the step stopped


FAULT = data.StructLayout({"cause": Cause, "address": WORD_ADDRESS_BITS})  # a fault, or Cause.NONE
# Words to transfer: first word address and number of words. `last`: completion is reported.
JOB = data.StructLayout({"address": WORD_ADDRESS_BITS, "count": COUNT_BITS, "last": 1})


def burst_bits(burst: int) -> int:
    """Width of the length of a burst minus one."""
    return max(1, (burst - 1).bit_length())


def request_layout(burst: int) -> data.StructLayout:
    """A burst: first word address, and number of words minus one."""
    return data.StructLayout({"address": WORD_ADDRESS_BITS, "length": burst_bits(burst)})


def read_layout(word: int) -> data.StructLayout:
    """A beat of read data with its response."""
    return data.StructLayout({"data": word, "resp": Response, "last": 1})


def write_layout(word: int) -> data.StructLayout:
    """A beat of write data."""
    return data.StructLayout({"data": word, "strobe": word // 8, "last": 1})


def read_port(word: int, burst: int) -> wiring.Signature:
    """Between a read engine and the master; the engine accepts read data at any time."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(request_layout(burst))),
            "response": In(stream.Signature(read_layout(word), always_ready=True)),
        }
    )


def write_port(word: int, burst: int) -> wiring.Signature:
    """Between a write engine and the master; the engine accepts responses at any time."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(request_layout(burst))),
            "data": Out(stream.Signature(write_layout(word))),
            "response": In(stream.Signature(Response, always_ready=True)),
        }
    )


def axi4(*, address_bits: int, data_bits: int, id_bits: int) -> wiring.Signature:
    """AXI4, manager side, without the signals that are constant for every burst (lock, cache, prot, qos, region)."""
    check_width(data_bits)
    members: dict[str, wiring.Member] = {}
    for channel in ("aw", "ar"):
        members |= {
            f"{channel}valid": Out(1),
            f"{channel}ready": In(1),
            f"{channel}id": Out(id_bits),
            f"{channel}addr": Out(address_bits),
            f"{channel}len": Out(8),
            f"{channel}size": Out(3),
            f"{channel}burst": Out(2),
        }
    members |= {"wvalid": Out(1), "wready": In(1), "wdata": Out(data_bits), "wstrb": Out(data_bits // 8)}
    members |= {"wlast": Out(1), "bvalid": In(1), "bready": Out(1), "bid": In(id_bits), "bresp": In(2)}
    members |= {"rvalid": In(1), "rready": Out(1), "rid": In(id_bits), "rdata": In(data_bits), "rresp": In(2)}
    return wiring.Signature(members | {"rlast": In(1)})


def axi4_lite(*, address_bits: int) -> wiring.Signature:
    """AXI4-Lite with 32-bit data, manager side, without `prot`."""
    members: dict[str, wiring.Member] = {}
    for channel in ("aw", "ar"):
        members |= {f"{channel}valid": Out(1), f"{channel}ready": In(1), f"{channel}addr": Out(address_bits)}
    members |= {"wvalid": Out(1), "wready": In(1), "wdata": Out(32), "wstrb": Out(4)}
    members |= {"bvalid": In(1), "bready": Out(1), "bresp": In(2)}
    return wiring.Signature(members | {"rvalid": In(1), "rready": Out(1), "rdata": In(32), "rresp": In(2)})


def check_width(data_bits: int) -> None:
    """Raises ValueError unless AXI defines a data bus of this width."""
    if data_bits not in (8 << n for n in range(8)):
        raise ValueError(f"data_bits must be 8, 16, 32, .. 1024, got {data_bits}")


def check_burst(burst: int, word: int) -> None:
    """Raises ValueError unless bursts of `burst` words of `word` bits are possible."""
    check_width(word)
    max_burst = min(256, BOUNDARY * 8 // word)
    if not 1 <= burst <= max_burst or burst & (burst - 1):
        raise ValueError(f"burst must be a power of two, at most {max_burst}, got {burst}")
