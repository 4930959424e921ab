"""PCI Express link: transaction-layer packets, data-link overhead, tags and credits.

Closed forms give the steady rate of long transfers and the time of one DMA. Sizes are in bytes, rates in GB/s (10^9),
times in ns. Cost of a packet: framing 4 bytes (start and sequence) and LCRC 4 bytes; header of a memory request 16
bytes (64-bit addresses), of a completion 12 bytes. Reads are divided at the maximum read request and at 4 KiB,
completions at the maximum payload, the first one at the read completion boundary.

Data-link packets: one 8-byte acknowledgement and one 8-byte credit update per latency limit of the tables of the Base
Specification (a limit counts bytes of the direction in which they travel), and a 4-byte skip set per 1538 bytes. This
is the highest rate that the specification recommends; measured links lose about half as much.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf

from util import checks

GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0}
PACKET_BYTES, REQUEST_HEADER_BYTES, COMPLETION_HEADER_BYTES = 8, 16, 12
DLLP_BYTES, SKIP_SHARE, PAGE_BYTES = 8, 4 / 1538, 4096
READ_REQUESTS = (128, 256, 512, 1024, 2048, 4096)  # maximum read requests of the Base Specification
READ_COMPLETION_BOUNDARY = 64  # of root complexes
MOST_TAGS = 768  # with 10-bit tags
DESCRIPTOR_BYTES = 32
# Base Specification, Ack factors by maximum payload and link width, and the internal delay in symbols
ACK_FACTOR = {
    128: {1: 1.4, 2: 1.4, 4: 1.4, 8: 2.5, 16: 3.0},
    256: {1: 1.4, 2: 1.4, 4: 1.4, 8: 2.5, 16: 3.0},
    512: {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0, 16: 2.0},
}
INTERNAL_DELAY = {1: 19, 2: 70, 3: 115, 4: 115, 5: 115}
TLP_OVERHEAD_BYTES = 28


@dataclass(frozen=True)
class PcieLink:
    """Parameters of one link. `rcb64`: the completer answers in pieces of 64 bytes; `tags`: tags of the requester."""

    generation: int
    lanes: int
    max_payload: int = 256
    max_read_request: int = 512
    rcb64: bool = False
    tags: int = 256
    round_trip_ns: float = 800.0
    descriptor_ns: float = 20.0

    def __post_init__(self) -> None:
        if self.generation not in GT_PER_S:
            raise ValueError(f"generation must be one of {sorted(GT_PER_S)}, got {self.generation}")
        if self.max_payload not in ACK_FACTOR:
            raise ValueError(f"max_payload must be one of {sorted(ACK_FACTOR)}, got {self.max_payload}")
        if self.lanes not in ACK_FACTOR[128]:
            raise ValueError(f"lanes must be one of {sorted(ACK_FACTOR[128])}, got {self.lanes}")
        if self.max_read_request not in READ_REQUESTS:
            raise ValueError(f"max_read_request must be one of {list(READ_REQUESTS)}, got {self.max_read_request}")
        checks.integer("tags", self.tags, 1, MOST_TAGS)
        if not 0 < self.round_trip_ns < inf:
            raise ValueError(f"round_trip_ns must be positive, got {self.round_trip_ns}")
        if not 0 <= self.descriptor_ns < inf:
            raise ValueError(f"descriptor_ns must be at least 0, got {self.descriptor_ns}")

    @property
    def raw_gbps(self) -> float:
        """Payload rate of the physical layer in one direction, after the line code, GB/s."""
        code = 0.8 if self.generation < 3 else 128 / 130
        return GT_PER_S[self.generation] * self.lanes * code / 8

    @property
    def data_link_share(self) -> float:
        """Share of the raw rate that data-link packets leave."""
        factor = ACK_FACTOR[self.max_payload][self.lanes]
        limit = int((self.max_payload + TLP_OVERHEAD_BYTES) * factor / self.lanes + INTERNAL_DELAY[self.generation])
        return 2 * DLLP_BYTES / limit + SKIP_SHARE

    @property
    def packet_gbps(self) -> float:
        """Rate that remains for transaction-layer packets, GB/s."""
        return self.raw_gbps * (1 - self.data_link_share)

    def requests(self, size: int, address: int = 0) -> Iterator[tuple[int, int]]:
        """Address and size of every read request for `size` bytes: at most the maximum, none crosses 4 KiB."""
        checks.integer("size", size, 1)
        checks.integer("address", address, 0)
        end = address + size
        while address < end:
            request = min(end - address, self.max_read_request, PAGE_BYTES - address % PAGE_BYTES)
            yield address, request
            address += request

    def completions(self, size: int, address: int = 0) -> int:
        """Number of completions for a read of `size` bytes.

        The first completion of a request ends at the read completion boundary unless the request is aligned.
        """
        piece = 64 if self.rcb64 else self.max_payload
        count = 0
        for start, request in self.requests(size, address):
            first = min(request, -start % READ_COMPLETION_BOUNDARY)
            count += (first > 0) + ceil((request - first) / piece)
        return count

    def read_wire_bytes(self, size: int, address: int = 0) -> int:
        """Bytes towards the requester for `size` bytes read."""
        return size + (PACKET_BYTES + COMPLETION_HEADER_BYTES) * self.completions(size, address)

    def write_wire_bytes(self, size: int, address: int = 0) -> int:
        """Bytes away from the requester for `size` bytes written; no packet crosses 4 KiB."""
        checks.integer("size", size, 1)
        checks.integer("address", address, 0)
        packets, start, end = 0, address, address + size
        while start < end:
            part = min(end - start, PAGE_BYTES - start % PAGE_BYTES)
            packets, start = packets + ceil(part / self.max_payload), start + part
        return size + (PACKET_BYTES + REQUEST_HEADER_BYTES) * packets

    def request_wire_bytes(self, size: int, address: int = 0) -> int:
        """Bytes away from the requester for the read requests."""
        return (PACKET_BYTES + REQUEST_HEADER_BYTES) * sum(1 for _ in self.requests(size, address))

    def read_gbps(self, size: int) -> float:
        """Steady rate of reads of `size` bytes each, without a tag limit."""
        return self.packet_gbps * size / self.read_wire_bytes(size)

    def write_gbps(self, size: int) -> float:
        return self.packet_gbps * size / self.write_wire_bytes(size)

    def tag_limit_gbps(self, size: int | None = None) -> float:
        """Rate limit of the tags in GB/s: outstanding requests per round trip. `size`: bytes of a smaller request."""
        return self.tags * min(size or self.max_read_request, self.max_read_request) / self.round_trip_ns

    def fetch_gbps(self, unit: int) -> float:
        """Steady rate in GB/s of DMA reads with descriptors of `unit` bytes.

        The wire, the tags or the descriptor engine limit it.
        """
        descriptor = DESCRIPTOR_BYTES + PACKET_BYTES + COMPLETION_HEADER_BYTES
        wire = (self.read_wire_bytes(unit) + descriptor) / self.packet_gbps
        return unit / max(wire, unit / self.tag_limit_gbps(unit), self.descriptor_ns)

    def dma_ns(self, size: int, unit: int) -> float:
        """Time in ns of one DMA of `size` bytes with descriptors of `unit` bytes.

        It consists of descriptor fetch, transfer and last completion.
        """
        return 2 * self.round_trip_ns + size / self.fetch_gbps(min(unit, size))


@dataclass(frozen=True)
class Transfer:
    """Result of an event-level transfer.

    gbps         from the first request to the last completion: with the round trip of the first request
    steady_gbps  rate between a tenth and nine tenths of the completions; `gbps` when there are fewer than ten
    """

    gbps: float
    steady_gbps: float
    bytes_delivered: int
    most_in_flight: int


def transfer(link: PcieLink, size: int, unit: int, buffer_bytes: int | None = None) -> Transfer:
    """Simulate a DMA read of `size` bytes with descriptors of `unit` bytes, request by request.

    A request occupies a tag and, with `buffer_bytes`, space in the completion buffer of the requester, from its issue
    to the arrival of its completion. Completions follow each other on the wire. Descriptors are issued `descriptor_ns`
    apart. The closed forms of `PcieLink` are the steady state of this simulation (`steady_gbps`).
    """
    if size < 1 or unit < 1:
        raise ValueError(f"size and unit must be positive, got {size} and {unit}")
    request = min(unit, link.max_read_request)
    if buffer_bytes is not None and buffer_bytes < request:
        raise ValueError(f"buffer_bytes must be at least one request of {request}, got {buffer_bytes}")
    slots = link.tags if buffer_bytes is None else min(link.tags, buffer_bytes // request)
    extra = DESCRIPTOR_BYTES + PACKET_BYTES + COMPLETION_HEADER_BYTES
    arrivals: list[float] = []
    payloads: list[int] = []
    wire_free, first_done, peak_in_flight = 0.0, 0, 0
    for descriptor in range(ceil(size / unit)):
        start = descriptor * unit
        for address, payload in link.requests(min(unit, size - start), start):
            i = len(arrivals)
            issue = descriptor * link.descriptor_ns
            if i >= slots:
                issue = max(issue, arrivals[i - slots])
            while first_done < i and arrivals[first_done] <= issue:
                first_done += 1
            peak_in_flight = max(peak_in_flight, i - first_done + 1)
            wire_bytes = link.read_wire_bytes(payload, address) + (extra if address == start else 0)
            wire = wire_bytes / link.packet_gbps
            wire_free = max(wire_free, issue + link.round_trip_ns - wire) + wire
            arrivals.append(wire_free)
            payloads.append(payload)
    rate, low, high = size / arrivals[-1], len(arrivals) // 10, len(arrivals) * 9 // 10
    steady = sum(payloads[low:high]) / (arrivals[high - 1] - arrivals[low - 1]) if low else rate
    return Transfer(rate, steady, size, peak_in_flight)
