"""Model of the KVMU: executes its commands on the store in device memory; returns replies and DMA descriptors.

`command` defines commands, replies and faults, `config` sizes and settings, `transfer` the conversion of pieces of
memory to descriptors, `tables` the changes of the records, `fetch` the copies of selected pages, and `kvmu` the
execution. All values are integers; the RTL gives the same replies and descriptors in the same order, and after every
STEP the same memory.
"""

from golden.kvmu.command import Command, Fault, Op, Reply
from golden.kvmu.config import KvmuConfig
from golden.kvmu.kvmu import Candidate, Kvmu
from golden.kvmu.transfer import Descriptor, Piece, Tier, TransferKind, cut, join

__all__ = [
    "Candidate",
    "Command",
    "Descriptor",
    "Fault",
    "Kvmu",
    "KvmuConfig",
    "Op",
    "Piece",
    "Reply",
    "Tier",
    "TransferKind",
    "cut",
    "join",
]
