"""AXI4 and AXI4-Lite ports as the core uses them, and the layouts between its own parts.

Memory is seen as words of the bus's width, numbered from the start of a region. Bursts are INCR, never longer than
`burst` words (a power of two, at most 4 KiB) and never across a multiple of that, so none crosses 4 KiB.
"""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

from amaranth import unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

BOUNDARY = 4096  # no burst crosses a multiple of this many bytes
WORD_BITS = 32  # of the number of a word
COUNT_BITS = 24  # of a number of words
INCR = 1


class Response(enum.Enum, shape=unsigned(2)):
    """What a memory answers."""

    OKAY = 0
    EXOKAY = 1
    SLVERR = 2
    DECERR = 3


class Cause(enum.Enum, shape=unsigned(4)):
    """Why the core stopped."""

    NONE = 0
    SLVERR = 1  # the memory answered SLVERR
    DECERR = 2  # the memory answered DECERR
    REGION = 3  # an address beyond the end of its region, or inside a word
    OPCODE = 4  # no such command
    TRUNCATED = 5  # the program ended without END
    TABLE = 6  # a table of the DRE is full or refused a command
    SIZE = 7  # a row, list or tile is larger than the memory for it


FAULT = data.StructLayout({"cause": Cause, "address": WORD_BITS})  # no fault: NONE
JOB = data.StructLayout({"address": WORD_BITS, "count": COUNT_BITS, "last": 1})  # words to move; `last`: report the end


def burst_bits(burst: int) -> int:
    """Width of a burst's length less one."""
    return max(1, (burst - 1).bit_length())


def request_layout(burst: int) -> data.StructLayout:
    """A burst: its first word, words less one."""
    return data.StructLayout({"address": WORD_BITS, "length": burst_bits(burst)})


def read_layout(word: int) -> data.StructLayout:
    """A beat that was read."""
    return data.StructLayout({"data": word, "response": Response, "last": 1})


def write_layout(word: int) -> data.StructLayout:
    """A beat to write."""
    return data.StructLayout({"data": word, "strobe": word // 8, "last": 1})


def read_port(word: int, burst: int) -> wiring.Signature:
    """Between a reader and the master; the reader takes data at any time."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(request_layout(burst))),
            "answer": In(stream.Signature(read_layout(word), always_ready=True)),
        }
    )


def write_port(word: int, burst: int) -> wiring.Signature:
    """Between a writer and the master; the writer takes responses at any time."""
    return wiring.Signature(
        {
            "request": Out(stream.Signature(request_layout(burst))),
            "data": Out(stream.Signature(write_layout(word))),
            "answer": In(stream.Signature(Response, always_ready=True)),
        }
    )


def axi4(*, address_bits: int, data_bits: int, id_bits: int) -> wiring.Signature:
    """AXI4, the manager's side; signals that are constant for every burst of the core are left to the integrator."""
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
    """AXI4-Lite with 32-bit data, the manager's side."""
    members: dict[str, wiring.Member] = {}
    for channel in ("aw", "ar"):
        members |= {f"{channel}valid": Out(1), f"{channel}ready": In(1), f"{channel}addr": Out(address_bits)}
    members |= {"wvalid": Out(1), "wready": In(1), "wdata": Out(32), "wstrb": Out(4)}
    members |= {"bvalid": In(1), "bready": Out(1), "bresp": In(2)}
    return wiring.Signature(members | {"rvalid": In(1), "rready": Out(1), "rdata": In(32), "rresp": In(2)})


def check_width(data_bits: int) -> None:
    """ValueError unless AXI has a bus of that width."""
    if data_bits not in (8 << n for n in range(8)):
        raise ValueError(f"data_bits = {data_bits}: must be 8, 16, 32, .. 1024")


def check_burst(burst: int, word: int) -> None:
    """ValueError unless bursts of that many words of `word` bits are possible."""
    check_width(word)
    most = min(256, BOUNDARY * 8 // word)
    if not 1 <= burst <= most or burst & (burst - 1):
        raise ValueError(f"burst = {burst}: must be a power of two, at most {most}")
