"""Sizes and settings of the KVMU."""

from dataclasses import dataclass
from functools import cache

from golden.page_layout import PageLayout
from golden.store import NONE
from util import checks


@dataclass(frozen=True)
class KvmuConfig:
    """Sizes and settings of one KVMU.

    kv_heads, head_dim    KV heads; elements of one head
    page_tokens           token slots of a page
    tags                  DMA tags
    page_frames_base      byte address of the page frames in device memory
    staging_base          byte address of the staging area in device memory
    staging_head_pages    head pages of each of the two banks of the staging area
    max_resident_tokens   tokens of all contexts that stay in device memory after STEP
    max_cluster_tokens    token count at which a cluster is saturated
    window_tokens         candidates of the HCU are clusters whose first token is at most this old; 0: no limit
    offload_to_storage    True: new pages are offloaded to storage instead of host memory
    max_descriptor_bytes  largest DMA descriptor
    max_page_references   largest reference count of a page, its own cluster excluded
    max_clusters, max_pages, page_frames  largest sizes in the headers of the store
    address_bits          width of a byte address
    lanes, kv_bits        elements of a memory word, bits of a stored element, see `golden.page_layout.PageLayout`
    """

    kv_heads: int
    head_dim: int
    page_tokens: int
    tags: int = 4
    page_frames_base: int = 0
    staging_base: int = 0
    staging_head_pages: int = 0
    max_resident_tokens: int = 1
    max_cluster_tokens: int = 65535
    window_tokens: int = 4096
    offload_to_storage: bool = False
    max_descriptor_bytes: int = 4096
    max_page_references: int = 15
    max_clusters: int = NONE
    max_pages: int = NONE
    page_frames: int = NONE
    address_bits: int = 48
    lanes: int = 64
    kv_bits: int = 16

    def __post_init__(self) -> None:
        for name in ("kv_heads", "head_dim", "tags", "max_descriptor_bytes"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("page_tokens", self.page_tokens, 1, 32)
        _ = self.layout  # checks its sizes
        checks.integer("max_cluster_tokens", self.max_cluster_tokens, 1, 65535)
        checks.integer("max_page_references", self.max_page_references, 1, 255)
        for name in ("page_frames_base", "staging_base", "staging_head_pages", "max_resident_tokens", "window_tokens"):
            checks.integer(name, getattr(self, name), 0)

    @property
    def layout(self) -> PageLayout:
        """Layout of a head page."""
        return _layout(self.head_dim, self.page_tokens, self.lanes, self.kv_bits)

    @property
    def head_page_bytes(self) -> int:
        """Bytes of the keys and values of one page for one KV head."""
        return self.layout.head_page_bytes

    @property
    def page_bytes(self) -> int:
        """Bytes of the keys and values of one page, all KV heads."""
        return self.head_page_bytes * self.kv_heads

    @property
    def heads(self) -> range:
        """Numbers of the KV heads."""
        return range(self.kv_heads)

    @property
    def key_bytes(self) -> int:
        """Bytes of a mean key, all KV heads."""
        return 2 * self.head_dim * self.kv_heads


@cache
def _layout(*sizes: int) -> PageLayout:
    """The layout of these sizes, which is used for every address."""
    return PageLayout(*sizes)
