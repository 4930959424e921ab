"""Columns of the tables that hold programs and the data of steps, see `tables.py`.

The names of the columns of a kind of command are those of its fields, in capitals, and of what follows from the data of
the step.
"""

from enum import IntEnum


class Command(IntEnum):
    """Columns of all commands.

    KIND, UNIT : kind of the command and unit that executes it
    STEP, TOKENS, TOKENS_END : step, and tokens of the step or of its piece
    LENGTH : length, run-time lengths resolved
    START, DONE : cycles in which it has started and ended, written by the model
    WAITS : first of the wait fields
    """

    KIND = 0
    UNIT = 1
    STEP = 2
    TOKENS = 3
    TOKENS_END = 4
    LENGTH = 5
    START = 6
    DONE = 7
    WAITS = 8


class Load(IntEnum):
    SOURCE = 15
    STRIDE = 16
    ROWS = 17
    BEATS = 18
    LIMIT = 19
    BLOCK = 20


class Gather(IntEnum):
    """PAST: past tokens of the head; PAGE, PAGES: its first page in the table, and their number."""

    HEAD = 15
    VALUES = 16
    RESTART = 17
    BLOCKS = 18
    STEP_WORD = 19
    STRIDE = 20
    TOKENS = 21
    PAST = 22
    PAGE = 23
    PAGES = 24
    SKIP = 25
    WORD = 26
    WORDS = 27


class Multiply(IntEnum):
    M_BLOCKS = 15
    K_BLOCKS = 16
    VECTORS = 17
    LAST = 18
    OUT = 19
    STRIDE = 20
    WIDE = 21
    LIMIT = 22
    BLOCK = 23


class Vector(IntEnum):
    """ROWS: repetitions that have an effect; OP, OPS: first instruction in the table, and their number."""

    CODE = 15
    A = 16
    A_STRIDE = 17
    A_BEATS = 18
    A_WIDE = 19
    A_AGAIN = 20
    B = 21
    B_STRIDE = 22
    B_BEATS = 23
    B_WIDE = 24
    B_USED = 25
    DESTINATION = 26
    OUT = 27
    OUT_STRIDE = 28
    OUT_BEATS = 29
    OUT_WIDE = 30
    PAD = 31
    GROUP = 32
    ROWS = 33
    OP = 34
    OPS = 35


class Means(IntEnum):
    """MEAN, MEANS: first cluster in the table, and their number."""

    KEYS = 15
    STRIDE = 16
    MEAN = 17
    MEANS = 18


class Select(IntEnum):
    """Also of KEEP. ROW: first row in the table; SELECT, SELECTS: first selected cluster, and their number; LIST:
    cycles of the list of KEEP; COUNTS: word address of the token counts, 0: those of the context.
    """

    SOURCE = 15
    STRIDE = 16
    ROWS = 17
    ROW = 18
    SELECT = 19
    SELECTS = 20
    LIST = 21
    COUNTS = 22


class Copy(IntEnum):
    SOURCE = 15
    TARGET = 16
    WORDS = 17
    FROM_HOST = 18
    TO_HOST = 19


class Store(IntEnum):
    KEYS = 15
    VALUES = 16
    KEY_STRIDE = 17
    VALUE_STRIDE = 18


class Retrieval(IntEnum):
    """Of OPEN, FETCH, RELEASE, MOVE and OFFLOAD: their command of the KVMU."""

    STORE_COMMAND = 15


class Barrier(IntEnum):
    CORES = 15


class Step(IntEnum):
    """MEAN_KEYS, COUNTS, LOG: word addresses; APPENDS: tokens; TOKEN: first one; HAS_ROWS: there are score rows;
    SYNC: command of the KVMU.
    """

    MEAN_KEYS = 0
    COUNTS = 1
    LOG = 2
    APPENDS = 3
    TOKEN = 4
    HAS_ROWS = 5
    SYNC = 6


class Token(IntEnum):
    """Command of the KVMU, word address of the slot, cycles of the search, dropped tokens right before it; with encoded
    pages the slot in the block at this address.
    """

    APPEND = 0
    PLACE = 1
    SEARCH = 2
    DROPPED = 3
    SLOT = 4


class Row(IntEnum):
    """A score row. PAUSE: cycles after a pass of a long row until the next pass can begin."""

    PACKETS = 0
    CYCLES = 1
    PAUSE = 2


class Selected(IntEnum):
    CLUSTER = 0
    STORE_COMMAND = 1


class Mean(IntEnum):
    """A mean key. OPENED: the cluster is new; TOKEN, TOKENS: its tokens of the piece."""

    CLUSTER = 0
    OPENED = 1
    TOKEN = 2
    TOKENS = 3


class Op(IntEnum):
    """An instruction. VARIES: its beats are those of the row; the others: steps of the engine that it uses."""

    BEATS = 0
    VARIES = 1
    WAITS = 2
    ROTATES = 3
    REDUCES = 4
    FOLDS = 5
    ROWS = 6
    STREAMS = 7
    TO_STREAM = 8
    DIVIDES = 9


class StoreCommand(IntEnum):
    """A command of the KVMU: operation, first action, actions."""

    OP = 0
    ACT = 1
    ACTS = 2


class Action(IntEnum):
    """An action, see `Act`; records and how many of them are expired, of CANDIDATES."""

    ACT = 0
    VALUE = 1
    RECORDS = 2
    EXPIRED = 3


class Job(IntEnum):
    """A job of the copy generator. ONCE: one reply instead of one for each head."""

    ENTRY = 0
    ENTRIES = 1
    ONCE = 2
    PIECE = 3
    PIECES = 4


class Extent(IntEnum):
    """An extent to copy, its descriptors."""

    FROM_HOST = 0
    TO_HOST = 1
    DESCRIPTOR = 2
    DESCRIPTORS = 3


class Descriptor(IntEnum):
    SOURCE = 0
    TARGET = 1
    WORDS = 2
