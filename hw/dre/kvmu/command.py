"""What the KVMU is asked and what it answers: operations, faults, counters, payload layouts."""

import enum as python_enum

from amaranth import unsigned
from amaranth.lib import data, enum

from hw.dre.transfer import Tier


class Op(enum.Enum, shape=unsigned(4)):
    """Operations; in brackets the fields of the command that each one reads."""

    BEGIN = 0  # forget everything and start the tables of `layer`
    APPEND = 1  # a place for the next token of `cluster`
    STEP = 2  # offload the oldest pages until `cfg_max_resident_tokens` tokens are resident
    SELECT = 3  # mark all pages of `cluster` for the heads in `heads`
    FETCH = 4  # report every marked unit, bring the offloaded ones in [`retain`, `bank`]
    LOOKUP = 5  # where is (`page`, `slot`, `head`)
    FIND = 6  # where is slot number `index` of `cluster`, counted along its pages [`head`]
    MOVE = 7  # give the token in (`page`, `slot`) to `cluster`; its page takes no more tokens
    SEAL = 8  # `page` takes no more tokens
    FREE = 9  # one holder of `page` lets go, its cluster last; nobody left: forget the page and its tokens
    MIGRATE = 10  # keep the offloaded copy of `page` in `tier`
    SYNC = 11  # answer when no transfer is in flight
    HOLD = 12  # one more holder of `page`, which takes no more tokens and stays until FREE has let go of it as often
    MARK = 13  # mark `page` for the heads in `heads`
    EVICT = 14  # `cluster` lets go of all its pages but the first `index` and the last `page` ones


class Fault(enum.Enum, shape=unsigned(4)):
    """Why a command was refused; the sticky register has one bit for each."""

    NONE = 0
    OP = 1  # no such operation
    CLUSTER = 2  # no such cluster number
    ADDRESS = 3  # no such page, head or tier, or no token in that slot
    NO_PAGE = 4  # every page number is in use
    NO_PAGE_FRAME = 5  # every frame of the device memory is in use
    NOT_RESIDENT = 6  # the token's page is offloaded
    STAGING = 7  # the staging area is full
    REGION = 8  # a region does not fit into the address space
    STRAY = 9  # a completion that no descriptor waits for
    TRANSFER = 10  # a completion with an error
    HELD = 11  # others hold the page, so no token moves out of it; or HOLD finds its count at the limit


class Stat(python_enum.StrEnum):
    """Counters, cleared by `stat_clear`."""

    APPENDED = "appended"  # tokens placed by APPEND
    MOVED = "moved"  # tokens placed by MOVE
    OPENED = "opened"  # pages opened
    OFFLOADED = "offloaded"  # pages that left the device memory
    FREED = "freed"  # pages freed
    HITS = "hits"  # selected (page, head) units that were resident
    FETCHED = "fetched"  # selected (page, head) units that were not
    EXTENTS = "extents"  # contiguous transfers
    DESCRIPTORS = "descriptors"  # descriptors
    BYTES = "bytes"  # bytes of all descriptors
    BUSY = "busy"  # cycles with a command
    BLOCKED_REPLY = "blocked_reply"  # of these, waiting for `o`
    BLOCKED_DMA = "blocked_dma"  # cycles in which a descriptor waited for `o_dma`
    WAITING = "waiting"  # cycles in which a command waited for transfers in flight


def command_layout(
    *, max_clusters: int, max_pages: int, page_tokens: int, kv_heads: int, cluster_bits: int, layers: int
) -> data.StructLayout:
    """One beat is one command; fields that its operation does not read are ignored."""
    return data.StructLayout(
        {
            "op": Op,
            "cluster": cluster_bits,
            "page": range(max_pages),
            "slot": range(page_tokens),
            "head": range(kv_heads),
            "heads": kv_heads,
            "index": range(max_pages * page_tokens),
            "tier": Tier,
            "layer": range(layers),
            "retain": 1,
            "bank": 1,
        }
    )


def reply_layout(
    *, max_pages: int, page_tokens: int, kv_heads: int, address_bits: int, tags: int, reference_bits: int
) -> data.StructLayout:
    """Each command gives one beat with `last`; before it STEP and EVICT report pages, FETCH (page, head) units.

    page, slot, head, tier, address : a place; `transit`: these bytes move under tag `tag`
    count : tokens of the page or unit; in the last beat pages (STEP, SELECT, MARK, EVICT), units (FETCH) or holders
    left (HOLD, FREE)
    tagged : descriptors left under `tag`; its completion follows on `o_complete`
    """
    return data.StructLayout(
        {
            "op": Op,
            "fault": Fault,
            "page": range(max_pages),
            "slot": range(page_tokens),
            "head": range(kv_heads),
            "tier": Tier,
            "address": address_bits,
            "count": range(max(max_pages * kv_heads, page_tokens, 1 << reference_bits) + 1),
            "transit": 1,
            "tagged": 1,
            "tag": range(tags),
            "last": 1,
        }
    )
