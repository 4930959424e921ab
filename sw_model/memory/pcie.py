"""PCI Express link: transaction-layer packets, data-link overhead, tags and credits.

Closed forms give the steady rate of long transfers and the time of one DMA. Sizes are in bytes, rates in GB/s (10^9),
times in ns. Cost of a packet: framing 4 bytes (start and sequence) and LCRC 4 bytes; header of a memory request 16
bytes (64-bit addresses), of a completion 12 bytes. Reads are divided at the maximum read request and at 4 KiB,
completions at the maximum payload, the first one at the read completion boundary.

Data-link packets: one 8-byte acknowledgement and one 8-byte credit update per latency limit of the tables of the Base
Specification (a limit counts bytes of the direction in which they travel), and a 4-byte skip set per 1538 bytes. This
is the highest rate that the specification recommends; measured links lose about half as much.
"""

from dataclasses import dataclass
from math import ceil

GT_PER_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0}
PACKET_BYTES, REQUEST_HEADER_BYTES, COMPLETION_HEADER_BYTES = 8, 16, 12
DLLP_BYTES, SKIP_SHARE, PAGE_BYTES = 8, 4 / 1538, 4096
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
        if self.max_read_request < 64 or self.max_read_request > PAGE_BYTES:
            raise ValueError(f"max_read_request must be between 64 and {PAGE_BYTES}, got {self.max_read_request}")
        if self.tags < 1 or self.round_trip_ns <= 0 or self.descriptor_ns < 0:
            raise ValueError("tags and round_trip_ns must be positive and descriptor_ns not negative")

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

    def completions(self, size: int) -> int:
        """Number of completions for aligned reads of `size` bytes in all."""
        piece = 64 if self.rcb64 else min(self.max_payload, self.max_read_request)
        return ceil(size / piece)

    def read_wire_bytes(self, size: int) -> int:
        """Bytes towards the requester for `size` bytes read."""
        return size + (PACKET_BYTES + COMPLETION_HEADER_BYTES) * self.completions(size)

    def write_wire_bytes(self, size: int) -> int:
        return size + (PACKET_BYTES + REQUEST_HEADER_BYTES) * ceil(size / self.max_payload)

    def request_wire_bytes(self, size: int) -> int:
        """Bytes away from the requester for the read requests."""
        return (PACKET_BYTES + REQUEST_HEADER_BYTES) * ceil(size / self.max_read_request)

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
        wire = (self.read_wire_bytes(unit) + 32 + PACKET_BYTES + COMPLETION_HEADER_BYTES) / self.packet_gbps
        return unit / max(wire, unit / self.tag_limit_gbps(unit), self.descriptor_ns)

    def dma_ns(self, size: int, unit: int) -> float:
        """Time in ns of one DMA of `size` bytes with descriptors of `unit` bytes.

        It consists of descriptor fetch, transfer and last completion.
        """
        return 2 * self.round_trip_ns + size / self.fetch_gbps(min(unit, size))


@dataclass(frozen=True)
class Transfer:
    """Result of an event-level transfer."""

    gbps: float
    bytes_delivered: int
    most_in_flight: int


def transfer(link: PcieLink, size: int, unit: int, buffer_bytes: int | None = None) -> Transfer:
    """Simulate a DMA read of `size` bytes with descriptors of `unit` bytes, request by request.

    A request occupies a tag and, with `buffer_bytes`, space in the completion buffer of the requester, from its issue
    to the arrival of its completion. Completions follow each other on the wire. Descriptors are issued `descriptor_ns`
    apart. The closed forms of `PcieLink` are the steady state of this simulation.
    """
    if size < 1 or unit < 1:
        raise ValueError(f"size and unit must be positive, got {size} and {unit}")
    request = min(unit, link.max_read_request)
    if buffer_bytes is not None and buffer_bytes < request:
        raise ValueError(f"buffer_bytes must be at least one request of {request}, got {buffer_bytes}")
    slots = link.tags if buffer_bytes is None else min(link.tags, buffer_bytes // request)
    per_descriptor = ceil(unit / request)
    extra = 32 + PACKET_BYTES + COMPLETION_HEADER_BYTES
    arrivals: list[float] = []
    wire_free, first_done, peak_in_flight, done = 0.0, 0, 0, 0
    for i in range(ceil(size / request)):
        payload = min(request, size - done)
        done += payload
        issue = i // per_descriptor * link.descriptor_ns
        if i >= slots:
            issue = max(issue, arrivals[i - slots])
        while first_done < i and arrivals[first_done] <= issue:
            first_done += 1
        peak_in_flight = max(peak_in_flight, i - first_done + 1)
        wire = link.read_wire_bytes(payload) + (extra if i % per_descriptor == 0 else 0)
        wire_free = max(wire_free, issue + link.round_trip_ns - wire / link.packet_gbps) + wire / link.packet_gbps
        arrivals.append(wire_free)
    return Transfer(done / arrivals[-1], done, peak_in_flight)
