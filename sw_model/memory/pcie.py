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
