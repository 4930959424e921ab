"""Commands, replies, faults and counters of the KVMU."""

import enum as python_enum

from amaranth import unsigned
from amaranth.lib import data, enum

from hw.dre.transfer import Tier


class Op(enum.Enum, shape=unsigned(4)):
    """Operation of a command; in brackets further fields of the command that it reads."""

    BEGIN = 0  # start empty tables for `layer`
    APPEND = 1  # allocate a slot for the next token of `cluster`
    STEP = 2  # offload the oldest pages until `cfg_max_resident_tokens` tokens are resident
    SELECT = 3  # mark all pages of `cluster` for the heads in `heads`
    FETCH = 4  # report every marked head page and read the offloaded ones [`retain`, `bank`]
    LOOKUP = 5  # address of (`page`, `slot`, `head`)
    FIND = 6  # address of token number `index` of `cluster`, counted along its pages [`head`]
    MOVE = 7  # move the token in (`page`, `slot`) to `cluster`; its old page takes no more tokens
    SEAL = 8  # `page` takes no more tokens
    FREE = 9  # drop one reference to `page`, the one of its cluster last; without a reference, the page is free
    MIGRATE = 10  # move the offloaded copy of `page` to `tier`
    SYNC = 11  # reply when no transfer is in flight
    HOLD = 12  # add a reference to `page`; the page takes no more tokens
    MARK = 13  # mark `page` for the heads in `heads`
    EVICT = 14  # remove all pages of `cluster` except the first `index` and the last `page` pages


class Fault(enum.Enum, shape=unsigned(4)):
    """Cause of a refused command; the sticky register has one bit per cause."""

    NONE = 0
    OP = 1  # the operation does not exist
    CLUSTER = 2  # the cluster number is too large
    ADDRESS = 3  # the page, head or tier does not exist, or the slot holds no token
    NO_PAGE = 4  # every page number is in use
    NO_PAGE_FRAME = 5  # every page frame of device memory is in use
    NOT_RESIDENT = 6  # the page of the token is offloaded
    STAGING = 7  # the staging area is full
    REGION = 8  # a memory region does not fit into the address space
    STRAY = 9  # a completion without a descriptor
    TRANSFER = 10  # a completion with an error
    HELD = 11  # the page has further references, so no token can be moved out of it; or HOLD exceeds the limit


class Stat(python_enum.StrEnum):
    """Counters, cleared by `stat_clear`."""

    APPENDED = "appended"  # tokens stored by APPEND
    MOVED = "moved"  # tokens moved by MOVE
    OPENED = "opened"  # pages opened
    OFFLOADED = "offloaded"  # pages that left device memory
    FREED = "freed"  # pages freed
    HITS = "hits"  # selected head pages in device memory
    FETCHED = "fetched"  # selected head pages that were fetched
    EXTENTS = "extents"  # contiguous transfers
    DESCRIPTORS = "descriptors"  # descriptors
    BYTES = "bytes"  # bytes of all descriptors
    BUSY = "busy"  # cycles with a command
    BLOCKED_REPLY = "blocked_reply"  # busy cycles in which a reply waited for `o`
    BLOCKED_DMA = "blocked_dma"  # cycles in which a descriptor waited for `o_dma`
    WAITING = "waiting"  # cycles in which a command waited for transfers in flight


def command_layout(
    *, max_clusters: int, max_pages: int, page_tokens: int, kv_heads: int, cluster_bits: int, layers: int
) -> data.StructLayout:
    """One command per beat. Fields that the operation does not read are ignored."""
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
    """Replies: each command ends with one beat with `last`; before it, STEP and EVICT report pages, FETCH head pages.

    page, slot, head, tier, address : position of the token or head page
    transit : the bytes of this head page move under the tag `tag`
    count : tokens of the page or head page; in the last beat: pages (STEP, SELECT, MARK, EVICT), head pages (FETCH) or
        remaining references (HOLD, FREE)
    tagged : descriptors were issued under `tag`; their completion follows on `o_complete`
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
