"""Commands, replies, faults and counters of the KVMU."""

import enum as python_enum

from amaranth import unsigned
from amaranth.lib import data, enum

from hw.dre.transfer import Tier

TOKEN_BITS = 32  # width of a token number
HASH_BITS = 32  # width of a hash code in a cluster record
COUNT_BITS = 16  # width of the token count of a cluster


class Op(enum.Enum, shape=unsigned(4)):
    """Operation of a command; in brackets further fields of the command that it reads."""

    OPEN = 0  # make `context` the open context and send its candidates
    APPEND = 1  # allocate a slot for the next token of `cluster` [`opened`, `hash`]
    STEP = 2  # offload the oldest pages, then commit the step
    SELECT = 3  # report and fetch all pages of `cluster` for the heads in `heads` [`retain`, `bank`]
    FETCH = 4  # end a fetch, which the first SELECT or MARK started
    LOOKUP = 5  # address of (`page`, `slot`, `head`)
    FIND = 6  # address of token number `index` of `cluster`, counted along its pages [`head`]
    MOVE = 7  # move the token in (`page`, `slot`) to `cluster`; its old page takes no more tokens [`opened`, `hash`]
    SEAL = 8  # `page` takes no more tokens
    FREE = 9  # drop one reference to `page`, the one of its cluster last; without a reference, the page is free
    MIGRATE = 10  # move the offloaded copy of `page` to `tier`
    SYNC = 11  # reply when no transfer is in flight
    HOLD = 12  # add a reference to `page`; the page takes no more tokens
    MARK = 13  # as SELECT, for one page: `page`
    EVICT = 14  # remove all pages of `cluster` except the first `index` and the last `page` pages


class Fault(enum.Enum, shape=unsigned(4)):
    """Cause of a refused command; the sticky register has one bit per cause."""

    NONE = 0
    OP = 1  # the operation does not exist
    CLUSTER = 2  # the cluster does not exist, is not the next one, or the context has no more clusters
    ADDRESS = 3  # the page, head or tier does not exist, or the slot holds no token
    NO_PAGE = 4  # every page number of the context is in use
    NO_PAGE_FRAME = 5  # every page frame of device memory is in use
    NOT_RESIDENT = 6  # the page of the token is offloaded
    STAGING = 7  # the staging area is full
    REGION = 8  # a memory region does not fit into the address space
    STRAY = 9  # a completion without a descriptor
    TRANSFER = 10  # a completion with an error
    HELD = 11  # the page has further references, so no token can be moved out of it; or HOLD exceeds the limit
    CONTEXT = 12  # the context does not exist, its headers are not valid, or no context is open
    UNCOMMITTED = 13  # the open context has a step in progress
    LOG = 14  # the undo log is full: the step cannot be committed
    FETCHING = 15  # a fetch is in progress; only SELECT, MARK and FETCH are valid


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
    ACCESSES = "accesses"  # blocks of the store that were read or written
    FILLS = "fills"  # lines that were read from memory
    WRITEBACKS = "writebacks"  # lines that were written to memory, without the undo log
    LOGGED = "logged"  # entries of the undo log


def command_layout(
    *, max_contexts: int, max_pages: int, page_tokens: int, kv_heads: int, cluster_bits: int, hash_bits: int
) -> data.StructLayout:
    """One command per beat. Fields that the operation does not read are ignored."""
    return data.StructLayout(
        {
            "op": Op,
            "context": range(max_contexts),
            "cluster": cluster_bits,
            "hash": hash_bits,
            "opened": 1,
            "page": range(max_pages),
            "slot": range(page_tokens),
            "head": range(kv_heads),
            "heads": kv_heads,
            "index": range(max_pages * page_tokens),
            "tier": Tier,
            "retain": 1,
            "bank": 1,
        }
    )


def reply_layout(
    *, max_pages: int, page_tokens: int, kv_heads: int, address_bits: int, tags: int, reference_bits: int
) -> data.StructLayout:
    """Replies: each command ends with one beat with `last`; before it, STEP and EVICT report pages, SELECT head pages.

    page, slot, head, tier, address : position of the token or head page
    transit : the bytes of this head page move under the tag `tag`
    count : tokens of the page (STEP, EVICT), or those from before this step (SELECT, MARK); in the last beat: pages
        (STEP, SELECT, MARK, EVICT), head pages of the fetch (FETCH) or remaining references (HOLD, FREE)
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


def candidate_layout(*, cluster_bits: int, hash_bits: int) -> data.StructLayout:
    """Candidates of the opened context: a beat with `begin`, then one beat per cluster record.

    begin : start of a table; `tokens` is the number of the next token, `cluster` that of the first candidate
    hash, first_token, count, cluster : values of one cluster record
    tokens : tokens of the context
    last : no candidate follows
    """
    return data.StructLayout(
        {
            "begin": 1,
            "hash": hash_bits,
            "first_token": TOKEN_BITS,
            "count": COUNT_BITS,
            "cluster": cluster_bits,
            "tokens": TOKEN_BITS,
            "last": 1,
        }
    )
