"""PCI Express: transaction-layer packets, data-link overhead, tags and credits.

Closed forms give the steady rate of long transfers and the time of one DMA; sizes are bytes, rates GB/s
(10^9), times ns. Packet costs: framing 4 (start and sequence) + LCRC 4; a memory request header of 16 with
64-bit addresses, a completion header of 12. Reads split at the maximum read request and at 4 KiB; their
completions split at the maximum payload, the first one at the read completion boundary.

Data-link packets: one 8-byte acknowledgement and one 8-byte credit update per latency limit of the Base
Specification's tables, a limit counted in bytes of the direction they travel in, and a 4-byte skip set in
1538. That is the rate the specification recommends at most; measured links lose about half of it.
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
    """One link. `rcb64` is a completer that answers in pieces of 64 bytes; `tags` are the requester's."""

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
            raise ValueError(f"generation = {self.generation} is not one of {sorted(GT_PER_S)}")
        if self.max_payload not in ACK_FACTOR:
            raise ValueError(f"max_payload = {self.max_payload} is not one of {sorted(ACK_FACTOR)}")
        if self.lanes not in ACK_FACTOR[128]:
            raise ValueError(f"lanes = {self.lanes} is not one of {sorted(ACK_FACTOR[128])}")
        if self.max_read_request < 64 or self.max_read_request > PAGE_BYTES:
            raise ValueError(f"max_read_request = {self.max_read_request} must lie in 64..{PAGE_BYTES}")
        if self.tags < 1 or self.round_trip_ns <= 0 or self.descriptor_ns < 0:
            raise ValueError("tags and round_trip_ns must be positive and descriptor_ns not negative")

    @property
    def raw_gbps(self) -> float:
        """Payload rate of the physical layer, one direction, after the line code."""
        code = 0.8 if self.generation < 3 else 128 / 130
        return GT_PER_S[self.generation] * self.lanes * code / 8

    @property
    def data_link_share(self) -> float:
        factor = ACK_FACTOR[self.max_payload][self.lanes]
        limit = int((self.max_payload + TLP_OVERHEAD_BYTES) * factor / self.lanes + INTERNAL_DELAY[self.generation])
        return 2 * DLLP_BYTES / limit + SKIP_SHARE

    @property
    def packet_gbps(self) -> float:
        """What is left for transaction-layer packets."""
        return self.raw_gbps * (1 - self.data_link_share)

    def completions(self, size: int) -> int:
        """Completions that answer aligned reads of `size` bytes in all."""
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
        """Outstanding requests over the round trip; `size` when each request is smaller than the maximum."""
        return self.tags * min(size or self.max_read_request, self.max_read_request) / self.round_trip_ns

    def fetch_gbps(self, unit: int) -> float:
        """Steady rate of DMA reads in descriptors of `unit` bytes: wire, tags, or the descriptor engine."""
        wire = (self.read_wire_bytes(unit) + 32 + PACKET_BYTES + COMPLETION_HEADER_BYTES) / self.packet_gbps
        return unit / max(wire, unit / self.tag_limit_gbps(unit), self.descriptor_ns)

    def dma_ns(self, size: int, unit: int) -> float:
        """One DMA of `size` bytes in descriptors of `unit`: descriptor fetch, transfer, last completion."""
        return 2 * self.round_trip_ns + size / self.fetch_gbps(min(unit, size))


@dataclass(frozen=True)
class Transfer:
    """What an event-level transfer gives."""

    gbps: float
    bytes_delivered: int
    most_in_flight: int


def transfer(link: PcieLink, size: int, unit: int, buffer_bytes: int | None = None) -> Transfer:
    """A DMA read of `size` bytes in descriptors of `unit`, request by request.

    A request needs a tag and, with `buffer_bytes`, room in the requester's completion buffer, both held from its issue
    to its completion's arrival; its completions follow each other on the wire, descriptors issue `descriptor_ns`
    apart. The closed forms of `PcieLink` are this in the steady state.
    """
    if size < 1 or unit < 1:
        raise ValueError(f"size = {size} and unit = {unit} must be positive")
    request = min(unit, link.max_read_request)
    if buffer_bytes is not None and buffer_bytes < request:
        raise ValueError(f"buffer_bytes = {buffer_bytes} is smaller than one request of {request}")
    slots = link.tags if buffer_bytes is None else min(link.tags, buffer_bytes // request)
    per_descriptor = ceil(unit / request)
    extra = 32 + PACKET_BYTES + COMPLETION_HEADER_BYTES
    arrivals: list[float] = []
    wire_free, first_done, most, done = 0.0, 0, 0, 0
    for i in range(ceil(size / request)):
        payload = min(request, size - done)
        done += payload
        issue = i // per_descriptor * link.descriptor_ns
        if i >= slots:
            issue = max(issue, arrivals[i - slots])
        while first_done < i and arrivals[first_done] <= issue:
            first_done += 1
        most = max(most, i - first_done + 1)
        wire = link.read_wire_bytes(payload) + (extra if i % per_descriptor == 0 else 0)
        wire_free = max(wire_free, issue + link.round_trip_ns - wire / link.packet_gbps) + wire / link.packet_gbps
        arrivals.append(wire_free)
    return Transfer(done / arrivals[-1], done, most)
