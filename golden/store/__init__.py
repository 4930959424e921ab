"""Store: state of the retrieval engine in device memory, layout version 1.

`layout` holds the records and their views on a memory image, `create` the sizes of all tables and the functions that
make a store and its contexts, `share` the pages of several contexts, `lists` the free lists and the age list, `check`
the invariants, and `recovery` the undo log. A context is the state of one layer of one stream.
"""

from golden.store.check import check
from golden.store.create import ContextSizes, StoreSizes, create_context, create_store, delete_context, store_bytes
from golden.store.layout import NONE, Context, Store, StoreError
from golden.store.recovery import interrupted, log_entries, recover
from golden.store.share import share_pages

__all__ = [
    "NONE",
    "Context",
    "ContextSizes",
    "Store",
    "StoreError",
    "StoreSizes",
    "check",
    "create_context",
    "create_store",
    "delete_context",
    "interrupted",
    "log_entries",
    "recover",
    "share_pages",
    "store_bytes",
]
