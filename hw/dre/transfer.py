"""Conversion of pieces of memory to DMA descriptors: joining, splitting, completion tracking."""

from amaranth import Array, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree

BOUNDARY = 4096  # no descriptor crosses a multiple of this many bytes, on either side (AXI4 and PCIe)


class Tier(enum.Enum, shape=unsigned(2)):
    """Memory that holds the bytes."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class TransferKind(enum.Enum, shape=unsigned(3)):
    """Purpose of a transfer. Transfers of different kinds are never in flight at the same time."""

    FETCH = 0  # selected pages to the staging area
    RETAIN = 1  # selected pages to page frames, where they stay
    OFFLOAD = 2  # the oldest pages out of device memory
    MOVE = 3  # tokens to a page of another cluster, or to an earlier slot (compaction)
    MIGRATE = 4  # the offloaded copy of a page to another tier


def piece_layout(address_bits: int, length_bits: int) -> data.StructLayout:
    """A piece of memory to copy: addresses and tiers of both sides, number of bytes."""
    return data.StructLayout(
        {
            "source": address_bits,
            "target": address_bits,
            "source_tier": Tier,
            "target_tier": Tier,
            "bytes": length_bits,
            "last": 1,
        }
    )


def descriptor_layout(address_bits: int, tag_bits: int) -> data.StructLayout:
    """A DMA descriptor of at most `BOUNDARY` bytes; `last` ends the transfers of one tag."""
    return data.StructLayout(
        {
            "source": address_bits,
            "target": address_bits,
            "source_tier": Tier,
            "target_tier": Tier,
            "bytes": range(BOUNDARY + 1),
            "kind": TransferKind,
            "tag": tag_bits,
            "last": 1,
        }
    )


class Joiner(wiring.Component):
    """Joins pieces that are contiguous on both sides into extents.

    A piece of 0 bytes with `last` ends a sequence. The joiner keeps the last extent in a register until the next
    piece does not continue it or the sequence ends. The end of a sequence gives no extent of its own: it sets `last`
    in the pending extent, and it is dropped if no extent is pending.

    Timing: one piece per cycle; combinational paths from `i` to `o.valid` and from `o.ready` to `i.ready`.

    Parameters
    ----------
    address_bits, length_bits : widths of addresses and byte counts

    Members
    -------
    i, o : streams of `piece_layout` ; idle : no extent is pending
    """

    def __init__(self, *, address_bits: int, length_bits: int):
        self.address_bits, self.length_bits = address_bits, length_bits
        layout = piece_layout(address_bits, length_bits)
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout)), "idle": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        pending, valid = Signal(piece_layout(self.address_bits, self.length_bits)), Signal()
        # one bit more than an address: the end of the address space does not touch its start
        source_end, target_end = Signal(self.address_bits + 1), Signal(self.address_bits + 1)
        piece = self.i.payload
        end, touches = Signal(), Signal()
        m.d.comb += [
            self.idle.eq(~valid),
            end.eq(piece.last & (piece.bytes == 0)),
            touches.eq(
                valid
                & ~end
                & (piece.source == source_end)
                & (piece.target == target_end)
                & (piece.source_tier == pending.source_tier)
                & (piece.target_tier == pending.target_tier)
            ),
            self.o.valid.eq(self.i.valid & valid & ~touches),
            self.i.ready.eq(touches | ~valid | self.o.ready),
            self.o.payload.eq(pending),
            self.o.payload.last.eq(end),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                valid.eq(~end),
                source_end.eq((piece.source + piece.bytes)[: len(source_end)]),
                target_end.eq((piece.target + piece.bytes)[: len(target_end)]),
            ]
            with m.If(touches):
                m.d.sync += pending.bytes.eq((pending.bytes + piece.bytes)[: self.length_bits])
            with m.Else():
                m.d.sync += pending.eq(piece)
        return m


class Splitter(wiring.Component):
    """Splits extents into descriptors.

    No descriptor is longer than `cfg_max_descriptor_bytes`, and none crosses a multiple of `boundary` on either side.

    Timing: one descriptor per cycle, the first one cycle after its extent, without a gap between extents; a
    combinational path from `o.ready` to `i.ready`.

    Parameters
    ----------
    address_bits, length_bits, tag_bits : widths of addresses, byte counts and tags
    boundary : a power of two

    Members
    -------
    i : stream of `piece_layout`, bytes > 0 ; o : stream of `descriptor_layout`
    cfg_max_descriptor_bytes : 1 to `boundary`; 0 means `boundary`
    kind, tag : copied into every descriptor
    idle : no extent is in the splitter
    """

    def __init__(self, *, address_bits: int, length_bits: int, tag_bits: int, boundary: int = BOUNDARY):
        self.address_bits, self.length_bits, self.tag_bits = address_bits, length_bits, tag_bits
        self.boundary = boundary
        super().__init__(
            {
                "i": In(stream.Signature(piece_layout(address_bits, length_bits))),
                "o": Out(stream.Signature(descriptor_layout(address_bits, tag_bits))),
                "cfg_max_descriptor_bytes": In(range(boundary + 1)),
                "kind": In(TransferKind),
                "tag": In(tag_bits),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        remaining, valid = Signal(piece_layout(self.address_bits, self.length_bits)), Signal()
        offset_bits = self.boundary.bit_length() - 1
        size = range(self.boundary + 1)
        limits = [Signal(size, name=f"limit{n}") for n in range(4)]
        chunk_bytes, final = Signal(size), Signal()
        m.d.comb += [
            limits[0].eq(Mux(self.cfg_max_descriptor_bytes == 0, self.boundary, self.cfg_max_descriptor_bytes)),
            limits[1].eq(self.boundary - remaining.source[:offset_bits]),
            limits[2].eq(self.boundary - remaining.target[:offset_bits]),
            limits[3].eq(Mux(remaining.bytes > self.boundary, self.boundary, remaining.bytes)),
            chunk_bytes.eq(reduce_tree(lambda a, b: Mux(b < a, b, a), limits)),
            final.eq(chunk_bytes == remaining.bytes),
            self.idle.eq(~valid),
            self.o.valid.eq(valid),
            self.i.ready.eq(~valid | (self.o.ready & final)),
            self.o.payload.source.eq(remaining.source),
            self.o.payload.target.eq(remaining.target),
            self.o.payload.source_tier.eq(remaining.source_tier),
            self.o.payload.target_tier.eq(remaining.target_tier),
            self.o.payload.bytes.eq(chunk_bytes),
            self.o.payload.kind.eq(self.kind),
            self.o.payload.tag.eq(self.tag),
            self.o.payload.last.eq(remaining.last & final),
        ]
        with m.If(valid & self.o.ready):
            m.d.sync += [
                remaining.source.eq((remaining.source + chunk_bytes)[: self.address_bits]),
                remaining.target.eq((remaining.target + chunk_bytes)[: self.address_bits]),
                remaining.bytes.eq((remaining.bytes - chunk_bytes)[: self.length_bits]),
            ]
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), remaining.eq(self.i.payload)]
        return m


class Tracker(wiring.Component):
    """Counts the descriptors in flight of each tag and reports a tag when its last descriptor is done.

    One command at a time issues descriptors with the tag `tag`. `close` ends the command; the next command uses the
    next tag. Completions arrive in any order. A completion of a tag without a descriptor in flight is dropped and
    reported on `stray`.

    Timing: a completion that ends a tag appears on `o` from the next cycle on, the lowest tag first.

    Parameters
    ----------
    tags : number of tags, a power of two, at least 2
    count_bits : width of the number of descriptors in flight

    Members
    -------
    issue : a descriptor was sent with `tag`
    close : the command sends no more descriptors; only after at least one `issue`
    kind : transfer kind of the command
    tag, free : the present tag, and whether it is free
    active, active_kind : some tag is in use, and the kind of its transfers
    i_done : stream of {tag, error} ; o : stream of {tag, error}
    stray, failed : the completion of this cycle belongs to no descriptor, or reports an error

    Raises
    ------
    ValueError
        If `tags` is not a power of two of at least 2.
    """

    def __init__(self, *, tags: int, count_bits: int):
        if tags < 2 or tags & (tags - 1):
            raise ValueError(f"tags must be a power of two, at least 2, got {tags}")
        self.tags, self.count_bits = tags, count_bits
        layout = data.StructLayout({"tag": range(tags), "error": 1})
        super().__init__(
            {
                "issue": In(1),
                "close": In(1),
                "kind": In(TransferKind),
                "tag": Out(range(tags)),
                "free": Out(1),
                "active": Out(1),
                "active_kind": Out(TransferKind),
                "i_done": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)),
                "stray": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        in_flight = Array(Signal(self.count_bits, name=f"in_flight{t}") for t in range(self.tags))
        used, closed, failed_tags = Signal(self.tags), Signal(self.tags), Signal(self.tags)
        done, hit = self.i_done.payload, Signal()
        m.d.comb += [
            self.i_done.ready.eq(1),
            self.free.eq(~used.bit_select(self.tag, 1)),
            self.active.eq(used.any()),
            hit.eq(self.i_done.valid & (in_flight[done.tag] != 0)),
            self.stray.eq(self.i_done.valid & (in_flight[done.tag] == 0)),
            self.failed.eq(hit & done.error),
        ]
        report_tag, report_valid, ready = Signal(range(self.tags)), Signal(), Signal(self.tags)
        for t in range(self.tags):
            out, back = Signal(name=f"out{t}"), Signal(name=f"back{t}")
            with m.If(report_valid & self.o.ready & (report_tag == t)):
                m.d.sync += [used[t].eq(0), closed[t].eq(0), failed_tags[t].eq(0)]
            m.d.comb += [
                out.eq(self.issue & (self.tag == t)),
                back.eq(hit & (done.tag == t)),
                ready[t].eq(closed[t] & (in_flight[t] == 0)),
            ]
            m.d.sync += in_flight[t].eq(in_flight[t] + out - back)
            with m.If(out):
                m.d.sync += used[t].eq(1)
            with m.If(back & done.error):
                m.d.sync += failed_tags[t].eq(1)
        with m.If(self.issue):
            m.d.sync += self.active_kind.eq(self.kind)
        with m.If(self.close):
            m.d.sync += [closed.bit_select(self.tag, 1).eq(1), self.tag.eq(self.tag + 1)]
        # a reported tag stays on `o` until it is accepted
        with m.If(~report_valid | self.o.ready):
            m.d.sync += report_valid.eq(0)
            for t in reversed(range(self.tags)):
                with m.If(ready[t] & ~(report_valid & (report_tag == t))):
                    m.d.sync += [report_tag.eq(t), report_valid.eq(1)]
        m.d.comb += [
            self.o.valid.eq(report_valid),
            self.o.payload.tag.eq(report_tag),
            self.o.payload.error.eq(failed_tags.bit_select(report_tag, 1)),
        ]
        return m
