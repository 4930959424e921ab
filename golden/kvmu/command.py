"""Commands, replies and faults of the KVMU."""

from dataclasses import dataclass
from enum import IntEnum


class Op(IntEnum):
    """Operations, numbered as in the RTL."""

    OPEN = 0
    APPEND = 1
    STEP = 2
    SELECT = 3
    FETCH = 4
    LOOKUP = 5
    FIND = 6
    MOVE = 7
    SEAL = 8
    FREE = 9
    MIGRATE = 10
    SYNC = 11
    HOLD = 12
    MARK = 13
    EVICT = 14


class Fault(IntEnum):
    """Reasons for which a command is rejected, numbered as in the RTL.

    The RTL has further causes for errors of transfers and of the memory, and for a full undo log.
    """

    NONE = 0
    OP = 1
    CLUSTER = 2
    ADDRESS = 3
    NO_PAGE = 4
    NO_PAGE_FRAME = 5
    NOT_RESIDENT = 6
    STAGING = 7
    REGION = 8
    HELD = 11
    CONTEXT = 12
    UNCOMMITTED = 13
    FETCHING = 15


@dataclass(frozen=True)
class Command:
    """One command. Fields that the operation does not read are 0.

    opened, hash  APPEND and MOVE: the cluster is new and has this hash code
    heads, retain, bank  SELECT and MARK: KV heads (a bit each); pages become resident and the newest ones; bank of
                         the staging area
    """

    op: int
    context: int = 0
    cluster: int = 0
    opened: int = 0
    hash: int = 0
    page: int = 0
    slot: int = 0
    head: int = 0
    heads: int = 0
    index: int = 0
    tier: int = 0
    retain: int = 0
    bank: int = 0


@dataclass(frozen=True)
class Reply:
    """One beat of a reply. The last beat of a command has `last` = 1."""

    op: int
    fault: int = 0
    page: int = 0
    slot: int = 0
    head: int = 0
    tier: int = 0
    address: int = 0
    count: int = 0
    transit: int = 0
    tagged: int = 0
    tag: int = 0
    last: int = 0


class CommandFault(Exception):
    """A command is refused for `fault`."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.name)
        self.fault = fault
