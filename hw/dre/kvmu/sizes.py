"""Sizes of a KVMU, the layouts of its internal streams, and the ports of components to headers and free lists."""

# mypy: disable-error-code="assignment,arg-type"

from dataclasses import dataclass
from functools import cached_property

from amaranth import unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.dre.kvmu.command import Fault, Op, candidate_layout, command_layout, reply_layout
from hw.dre.kvmu.records import BASE_BITS, BLOCK_BITS
from hw.dre.transfer import Tier, TransferKind, piece_layout
from hw.kv_codec.page_layout import PageLayout


class Report(enum.Enum, shape=unsigned(2)):
    """Reply beats of a copy job."""

    NONE = 0
    ONCE = 1  # one beat
    HEADS = 2  # one beat for each head in `reported`


class FrameAction(enum.Enum, shape=unsigned(2)):
    """What `PageFrames` does."""

    TAKE = 0  # allocate a frame for `page` of `context`; it is the newest one
    RELEASE = 1  # release `frame`
    RENEW = 2  # make `frame` the newest one


@dataclass(frozen=True, kw_only=True)
class KvmuSizes:
    """Sizes of a KVMU; see `KVMU` for their meaning."""

    kv_heads: int
    head_dim: int
    page_tokens: int
    max_pages: int
    page_frames: int
    max_clusters: int
    max_contexts: int
    word: int
    cache_lines: int
    max_window_tokens: int
    cluster_bits: int
    hash_bits: int
    address_bits: int
    tags: int
    reference_bits: int
    kv_bits: int = 16

    def __post_init__(self) -> None:
        for name in ("page_tokens", "max_pages", "page_frames"):
            value = getattr(self, name)
            if value < 2 or value & (value - 1):
                raise ValueError(f"{name} must be a power of two, at least 2, got {value}")
        for name, low, high in (
            ("kv_heads", 1, 64),
            ("head_dim", 1, 4096),
            ("reference_bits", 1, 8),
            ("max_contexts", 1, 1 << 16),
            ("page_tokens", 2, 32),
            ("cache_lines", 2, 4096),
            ("hash_bits", 1, 32),
            ("cluster_bits", 1, 32),
            ("max_window_tokens", 1, 1 << 31),
        ):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be {low} to {high}, got {getattr(self, name)}")
        if not 2 <= self.max_clusters <= 1 << self.cluster_bits:
            valid = f"2 to 2**cluster_bits = {1 << self.cluster_bits}"
            raise ValueError(f"max_clusters must be {valid}, got {self.max_clusters}")
        region = max(self.max_pages, self.page_frames) * self.page_bytes
        if region > 1 << self.address_bits:
            raise ValueError(f"address_bits must be at least {(region - 1).bit_length()}, got {self.address_bits}")

    @cached_property
    def layout(self) -> PageLayout:
        """Layout of a head page."""
        return PageLayout(head_dim=self.head_dim, page_tokens=self.page_tokens, word=self.word, kv_bits=self.kv_bits)

    @property
    def head_page_bytes(self) -> int:
        """Bytes of a head page."""
        return self.layout.head_page_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of a page."""
        return self.kv_heads * self.head_page_bytes

    @property
    def line(self) -> int:
        """Bits of a line of the cache."""
        return max(self.word, BLOCK_BITS)

    @property
    def line_blocks(self) -> int:
        """Blocks of a line of the cache."""
        return self.line // BLOCK_BITS

    @property
    def key_bytes(self) -> int:
        """Bytes of a mean key of all KV heads, BF16."""
        return self.kv_heads * self.head_dim * 2

    @property
    def page_bits(self) -> int:
        """Width of a page number."""
        return (self.max_pages - 1).bit_length()

    @property
    def frame_bits(self) -> int:
        """Width of a page frame number."""
        return (self.page_frames - 1).bit_length()

    @property
    def slot_bits(self) -> int:
        """Width of a slot number."""
        return (self.page_tokens - 1).bit_length()

    @property
    def staging_head_pages(self) -> int:
        """Largest number of head pages of a staging bank."""
        return self.max_pages * self.kv_heads

    @property
    def length_bits(self) -> int:
        """Width of the length of an extent in bytes."""
        return (self.max_pages * self.page_bytes).bit_length()

    @cached_property
    def command(self) -> data.StructLayout:
        """Layout of a command."""
        return command_layout(
            max_contexts=self.max_contexts,
            max_pages=self.max_pages,
            page_tokens=self.page_tokens,
            kv_heads=self.kv_heads,
            cluster_bits=self.cluster_bits,
            hash_bits=self.hash_bits,
        )

    @cached_property
    def reply(self) -> data.StructLayout:
        """Layout of a reply."""
        return reply_layout(
            max_pages=self.max_pages,
            page_tokens=self.page_tokens,
            kv_heads=self.kv_heads,
            address_bits=self.address_bits,
            tags=self.tags,
            reference_bits=self.reference_bits,
        )

    @cached_property
    def candidate(self) -> data.StructLayout:
        """Layout of a candidate."""
        return candidate_layout(cluster_bits=self.cluster_bits, hash_bits=self.hash_bits)

    @cached_property
    def completion(self) -> data.StructLayout:
        """Layout of a completion."""
        return data.StructLayout({"tag": range(self.tags), "error": 1})

    @cached_property
    def piece(self) -> data.StructLayout:
        """Layout of a piece of a copy."""
        return piece_layout(self.address_bits, self.length_bits)

    @cached_property
    def position(self) -> data.StructLayout:
        """A slot of a page (`number` in host memory or storage) or of a page frame (`number` in device memory).

        base : start of the backing pages in units of 4,096 bytes; not used for device memory
        """
        return data.StructLayout(
            {
                "tier": Tier,
                "base": BASE_BITS,
                "number": max(self.page_bits, self.frame_bits),
                "slot": self.slot_bits,
            }
        )

    @cached_property
    def result(self) -> data.StructLayout:
        """Result of a command: fields of its last reply beat; `located`: `target` is reported as tier and address."""
        return data.StructLayout(
            {
                "fault": Fault,
                "page": self.page_bits,
                "slot": self.slot_bits,
                "head": range(self.kv_heads),
                "count": self.reply["count"].shape,
                "located": 1,
                "target": self.position,
            }
        )

    @cached_property
    def job(self) -> data.StructLayout:
        """A job of the copy generator: reply beats of a page and pieces of its copy.

        report, copy : which beats are sent; whether the bytes are copied
        reply : op, fault, page, slot, count and last of the beats
        located : the beats have tier and address of the target
        heads, reported : KV heads that are copied, KV heads with a beat
        source, target, staged : slots of head 0; `staged`: the target is the next head page of the staging area
        tokens : slots to copy
        kind : kind of the transfers
        finish : end the transfers of this command; the other fields but `kind` are ignored
        """
        return data.StructLayout(
            {
                "op": Op,
                "fault": Fault,
                "page": self.page_bits,
                "slot": self.slot_bits,
                "count": self.reply["count"].shape,
                "tagged": 1,
                "last": 1,
                "report": Report,
                "copy": 1,
                "located": 1,
                "heads": self.kv_heads,
                "reported": self.kv_heads,
                "source": self.position,
                "target": self.position,
                "staged": 1,
                "tokens": range(self.page_tokens + 1),
                "kind": TransferKind,
                "finish": 1,
            }
        )

    @cached_property
    def frame_call(self) -> wiring.Signature:
        """Port to the page frames, see `PageFrames`."""
        request = data.StructLayout(
            {
                "action": FrameAction,
                "frame": self.frame_bits,
                "context": range(self.max_contexts),
                "page": self.page_bits,
            }
        )
        return wiring.Signature(
            {"request": Out(stream.Signature(request)), "frame": In(self.frame_bits), "available": In(1)}
        )

    @cached_property
    def page_call(self) -> wiring.Signature:
        """Port to the free pages, see `FreePages`."""
        request = data.StructLayout({"release": 1, "page": self.page_bits})
        return wiring.Signature(
            {"request": Out(stream.Signature(request)), "page": In(self.page_bits), "available": In(1)}
        )


def header_port(layout: data.StructLayout) -> wiring.Signature:
    """Port of a component that changes a header.

    `Headers` drives `value`, the register. The component drives `next`, which is `value` with some fields changed, and
    `write` for one cycle. `edit` sets both.
    """
    return wiring.Signature({"value": In(layout), "next": Out(layout), "write": Out(1)})


def edit(port: wiring.PureInterface, **fields: object) -> list:
    """Statements that change fields of a header in this cycle. By default, a component sets `next` to `value`."""
    return [port.write.eq(1), *(port.next[name].eq(value) for name, value in fields.items())]
