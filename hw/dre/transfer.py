"""From pieces of memory to descriptors that a DMA engine takes: joining, cutting, completion tracking."""

from amaranth import Array, Module, Mux, Signal, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.common.tree import reduce_tree

BOUNDARY = 4096  # no descriptor crosses a multiple of this many bytes, on either side (AXI4 and PCIe)


class Tier(enum.Enum, shape=unsigned(2)):
    """Where bytes live."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


class Kind(enum.Enum, shape=unsigned(3)):
    """What a transfer is for; transfers of different kinds are never in flight together."""

    FETCH = 0  # selected pages to the staging area
    RETAIN = 1  # selected pages to frames of their own
    OFFLOAD = 2  # oldest pages out of the device memory
    MOVE = 3  # tokens to the pages of another cluster, or a compaction
    MIGRATE = 4  # a copy to another tier


def piece_layout(address_bits: int, length_bits: int) -> data.StructLayout:
    """A piece of memory to copy: addresses and tiers of both sides, bytes."""
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
    """A descriptor: at most `BOUNDARY` bytes; `last` ends the transfers of one tag."""
    return data.StructLayout(
        {
            "source": address_bits,
            "target": address_bits,
            "source_tier": Tier,
            "target_tier": Tier,
            "bytes": range(BOUNDARY + 1),
            "kind": Kind,
            "tag": tag_bits,
            "last": 1,
        }
    )


class Joiner(wiring.Component):
    """Joins pieces that touch on both sides into extents; a piece of 0 bytes with `last` ends a sequence.

    The newest extent is held back until a piece arrives that does not continue it, or the end. The end itself gives
    no extent: it marks the held one as `last`, and vanishes when there is none.

    Timing: one piece per cycle; combinational paths from `i` to `o.valid` and from `o.ready` to `i.ready`.

    Members
    -------
    i, o : streams of `piece_layout`; idle : nothing is held
    """

    def __init__(self, *, address_bits: int, length_bits: int):
        self.address_bits, self.length_bits = address_bits, length_bits
        layout = piece_layout(address_bits, length_bits)
        super().__init__({"i": In(stream.Signature(layout)), "o": Out(stream.Signature(layout)), "idle": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        held, valid = Signal(piece_layout(self.address_bits, self.length_bits)), Signal()
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
                & (piece.source_tier == held.source_tier)
                & (piece.target_tier == held.target_tier)
            ),
            self.o.valid.eq(self.i.valid & valid & ~touches),
            self.i.ready.eq(touches | ~valid | self.o.ready),
            self.o.payload.eq(held),
            self.o.payload.last.eq(end),
        ]
        with m.If(self.i.valid & self.i.ready):
            m.d.sync += [
                valid.eq(~end),
                source_end.eq((piece.source + piece.bytes)[: len(source_end)]),
                target_end.eq((piece.target + piece.bytes)[: len(target_end)]),
            ]
            with m.If(touches):
                m.d.sync += held.bytes.eq((held.bytes + piece.bytes)[: self.length_bits])
            with m.Else():
                m.d.sync += held.eq(piece)
        return m


class Splitter(wiring.Component):
    """Cuts extents into descriptors.

    None is longer than `cfg_max_descriptor_bytes`, and none crosses a multiple of `boundary` on either side.

    Timing: a descriptor per cycle, the first one cycle after its extent, no gap between extents; a combinational
    path from `o.ready` to `i.ready`.

    Members
    -------
    i : stream of `piece_layout`, bytes > 0 ; o : stream of `descriptor_layout`
    cfg_max_descriptor_bytes : 1 to `boundary`; 0 stands for `boundary`
    kind, tag : copied into every descriptor
    idle : nothing is being cut
    """

    def __init__(self, *, address_bits: int, length_bits: int, tag_bits: int, boundary: int = BOUNDARY):
        self.address_bits, self.length_bits, self.tag_bits = address_bits, length_bits, tag_bits
        self.boundary = boundary
        super().__init__(
            {
                "i": In(stream.Signature(piece_layout(address_bits, length_bits))),
                "o": Out(stream.Signature(descriptor_layout(address_bits, tag_bits))),
                "cfg_max_descriptor_bytes": In(range(boundary + 1)),
                "kind": In(Kind),
                "tag": In(tag_bits),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        rest, valid = Signal(piece_layout(self.address_bits, self.length_bits)), Signal()
        offset_bits = self.boundary.bit_length() - 1
        size = range(self.boundary + 1)
        limits = [Signal(size, name=f"limit{n}") for n in range(4)]
        take, final = Signal(size), Signal()
        m.d.comb += [
            limits[0].eq(Mux(self.cfg_max_descriptor_bytes == 0, self.boundary, self.cfg_max_descriptor_bytes)),
            limits[1].eq(self.boundary - rest.source[:offset_bits]),
            limits[2].eq(self.boundary - rest.target[:offset_bits]),
            limits[3].eq(Mux(rest.bytes > self.boundary, self.boundary, rest.bytes)),
            take.eq(reduce_tree(lambda a, b: Mux(b < a, b, a), limits)),
            final.eq(take == rest.bytes),
            self.idle.eq(~valid),
            self.o.valid.eq(valid),
            self.i.ready.eq(~valid | (self.o.ready & final)),
            self.o.payload.source.eq(rest.source),
            self.o.payload.target.eq(rest.target),
            self.o.payload.source_tier.eq(rest.source_tier),
            self.o.payload.target_tier.eq(rest.target_tier),
            self.o.payload.bytes.eq(take),
            self.o.payload.kind.eq(self.kind),
            self.o.payload.tag.eq(self.tag),
            self.o.payload.last.eq(rest.last & final),
        ]
        with m.If(valid & self.o.ready):
            m.d.sync += [
                rest.source.eq((rest.source + take)[: self.address_bits]),
                rest.target.eq((rest.target + take)[: self.address_bits]),
                rest.bytes.eq((rest.bytes - take)[: self.length_bits]),
            ]
        with m.If(self.i.ready):
            m.d.sync += [valid.eq(self.i.valid), rest.eq(self.i.payload)]
        return m


class Tracker(wiring.Component):
    """Counts the descriptors of each tag that are in flight, and reports a tag when its last one is done.

    One command at a time issues descriptors, under `tag`; `close` ends it, and the next tag, in turn, is used from
    then on. Completions may come in any order. A completion for a tag without a descriptor in flight is dropped and
    reported on `stray`.

    Timing: a completion that ends a tag appears on `o` from the next cycle on, the lowest tag first.

    Parameters
    ----------
    tags : power of two ; count_bits : width of the count of descriptors in flight

    Members
    -------
    issue : a descriptor left under `tag` ; close : no more of them (`close` without any `issue` is not allowed)
    kind : of the command that issues
    tag, free : the tag in turn, and whether it can be used
    active, active_kind : some tag is in use, and for what
    i_done : stream of {tag, error} ; o : stream of {tag, error}
    stray, failed : this cycle's completion had no descriptor, or reported an error
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
                "kind": In(Kind),
                "tag": Out(range(tags)),
                "free": Out(1),
                "active": Out(1),
                "active_kind": Out(Kind),
                "i_done": In(stream.Signature(layout)),
                "o": Out(stream.Signature(layout)),
                "stray": Out(1),
                "failed": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        flying = Array(Signal(self.count_bits, name=f"flying{t}") for t in range(self.tags))
        used, closed, wrong = Signal(self.tags), Signal(self.tags), Signal(self.tags)
        done, hit = self.i_done.payload, Signal()
        m.d.comb += [
            self.i_done.ready.eq(1),
            self.free.eq(~used.bit_select(self.tag, 1)),
            self.active.eq(used.any()),
            hit.eq(self.i_done.valid & (flying[done.tag] != 0)),
            self.stray.eq(self.i_done.valid & (flying[done.tag] == 0)),
            self.failed.eq(hit & done.error),
        ]
        offered, offer, ready = Signal(range(self.tags)), Signal(), Signal(self.tags)
        for t in range(self.tags):
            out, back = Signal(name=f"out{t}"), Signal(name=f"back{t}")
            with m.If(offer & self.o.ready & (offered == t)):
                m.d.sync += [used[t].eq(0), closed[t].eq(0), wrong[t].eq(0)]
            m.d.comb += [
                out.eq(self.issue & (self.tag == t)),
                back.eq(hit & (done.tag == t)),
                ready[t].eq(closed[t] & (flying[t] == 0)),
            ]
            m.d.sync += flying[t].eq(flying[t] + out - back)
            with m.If(out):
                m.d.sync += used[t].eq(1)
            with m.If(back & done.error):
                m.d.sync += wrong[t].eq(1)
        with m.If(self.issue):
            m.d.sync += self.active_kind.eq(self.kind)
        with m.If(self.close):
            m.d.sync += [closed.bit_select(self.tag, 1).eq(1), self.tag.eq(self.tag + 1)]
        # the tag on offer is held until it is taken
        with m.If(~offer | self.o.ready):
            m.d.sync += offer.eq(0)
            for t in reversed(range(self.tags)):
                with m.If(ready[t] & ~(offer & (offered == t))):
                    m.d.sync += [offered.eq(t), offer.eq(1)]
        m.d.comb += [
            self.o.valid.eq(offer),
            self.o.payload.tag.eq(offered),
            self.o.payload.error.eq(wrong.bit_select(offered, 1)),
        ]
        return m
