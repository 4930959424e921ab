"""The machine of the cycle model as one array of integers: names of its numbers and arrays, and where they are.

Processes write `k.name` for a number and `k.name[i, j]` for an element of an array, with the core as the first index of
an array that every core has. Tables are parts of a second array, which holds the programs and the data of the steps.
"""

from __future__ import annotations

from enum import IntEnum
from math import prod
from typing import Any

from golden.kvmu import Op
from hw.core.isa import MAX_CORES, ExecUnit, SyncEvent
from hw.weight_codec.tile_layout import Encoding

PROCESSES, FRAME, VARIABLES = 4096, 96, 3  # frames; numbers of a frame; state, process, core, then the variables
WHEEL = 256  # cycles ahead whose processes are in lists; those of later cycles are in a heap
HEAP = PROCESSES
DEPTH = 64  # largest number of entries of a queue, a power of two
ITEM = 4  # numbers of an entry
MAX_LINES = 64  # lines of the cache of a KVMU
FLIGHT = 32  # bursts of one reader, a power of two
PORTS = 1 + MAX_CORES  # memory ports: the host link, then those of the device memory


class Side(IntEnum):
    """Memories of a core."""

    DEVICE = 0
    HOST = 1


class Engine(IntEnum):
    """Readers and writers of a core, those of the device port in the order of their AXI IDs."""

    READ_PROGRAM = 0
    READ_CODE = 1
    READ_LOAD = 2
    READ_VECTOR = 3
    READ_COPY = 4
    READ_STORE = 5
    READ_SCORES = 6
    READ_COUNTS = 7
    READ_PAGES = 8
    READ_HOST = 9
    WRITE_MATRIX = 10
    WRITE_VECTOR = 11
    WRITE_STORE = 12
    WRITE_COPY = 13
    WRITE_PAGES = 14
    WRITE_HOST = 15


READERS = 10
WRITERS = len(Engine) - READERS


class Queue(IntEnum):
    """Queues of a core. The first ones are the command queues, numbered as the units."""

    LOAD = ExecUnit.LOAD
    MATRIX = ExecUnit.MATRIX
    VECTOR = ExecUnit.VECTOR
    RETRIEVAL = ExecUnit.RETRIEVAL
    COPY = ExecUnit.COPY
    SYNC = ExecUnit.SYNC
    CODES = 6  # hash codes to the retrieval unit
    ROUTES = 7  # copies whose words are to be moved
    COPIED = 8  # copies of the COPY unit that are issued
    FILL = 9  # LOAD: jobs of the operand memory
    MULTIPLY = 10  # MATRIX: commands to the engine, to the output, results, ends
    RESULTS_OF = 11
    RESULTS = 12
    MATRIX_ENDS = 13
    INSTRUCT = 14  # VECTOR: commands to instructions, input, output
    FETCH = 15
    DRAIN = 16
    CODE = 17  # instructions, input pieces, input beats, output beats, ends
    PIECES = 18
    BEATS = 19
    OUT = 20
    VECTOR_ENDS = 21
    JOINED = 22  # beginning and end of MEANS
    AVERAGED = 23
    HASH_CODES = 24  # retrieval: tokens before the HCU, its results
    ASSIGNED = 25
    STORE = 26  # KVMU: commands, entries of page lists, extents, descriptors
    ENTRIES = 27
    EXTENTS = 28
    DESCRIPTORS = 29
    RUNS = 30  # LOAD: words of one kind before the operand memory, with encoded pages


class Count(IntEnum):
    """Counters of a core that processes wait for. The first ones are the events of commands."""

    LOAD = SyncEvent.LOAD
    MATRIX = SyncEvent.MATRIX
    VECTOR = SyncEvent.VECTOR
    RETRIEVAL = SyncEvent.RETRIEVAL
    COPY = SyncEvent.COPY
    SYNC = SyncEvent.SYNC
    OPERANDS = SyncEvent.OPERANDS
    SLOTS_WRITTEN = 7  # pieces whose keys and values are stored
    STORED = 8  # for each writer: jobs with `last` that memory has acknowledged
    ANSWERED = STORED + WRITERS  # for each writer: bursts that are answered
    CREDITS = ANSWERED + WRITERS  # result slots after the engine
    OPERANDS_READ = CREDITS + 1
    ENTRIES_READ = CREDITS + 2  # entries of the page list that have arrived and are not used
    SLOTS = CREDITS + 3  # tokens with a slot, in the cycle in which it is recorded
    LISTS = CREDITS + 4  # lists of selected clusters that have left the WTU
    REPORTED = CREDITS + 5  # lists of which the reporter of the WTU has read all beats
    SENT = CREDITS + 6  # lists of which all beats have left the memory, if the row is long
    BEATS_LISTED = CREDITS + 7  # beats of selections whose clusters are commands of the KVMU
    BEGUN = CREDITS + 8  # packets that may be requested
    EXTENTS_SENT = CREDITS + 9  # extents whose descriptors are accepted
    DESCRIPTORS_ISSUED = CREDITS + 10
    TRANSFERS = CREDITS + 11  # commands whose copies are complete
    REPLIED = CREDITS + 12  # for each operation of the KVMU: last replies
    BARRIERS = REPLIED + len(Op)  # BARRIERs that have started


COUNTERS = Count.BARRIERS + 1


class Bell(IntEnum):
    """Events that resume the processes that wait for them: first number of each kind."""

    PUT = 0  # of every queue: an entry was put; space is free
    GET = len(Queue)
    COUNT = 2 * len(Queue)  # of every counter
    FREED = COUNT + COUNTERS  # of every engine: the job is issued; a burst is answered
    ANSWER = FREED + len(Engine)
    WORD = ANSWER + len(Engine)  # a word was put
    SPACE = WORD + len(Engine)  # a word was removed
    ARRIVED = SPACE + len(Engine)  # of every port: a burst was requested


BELLS = Bell.ARRIVED + PORTS


class Ask(IntEnum):
    """A call of a memory timing model: its arguments and its results."""

    CONFIRM = 0  # 0: arrive, 1: confirm
    SIDE = 1
    CYCLE = 2
    ADDRESS = 3
    BYTES = 4
    WRITE = 5
    LOOK_AHEAD = 6  # 1: the compiled DRAM model returns the exact cycle; 0: a lower bound
    NUMBER = 7
    READY = 8


NUMBERS: dict[str, tuple[int, ...]] = {
    # scheduler: cycle, frames in lists, heap, first free frame, process that called outside, overflow of a queue
    "now": (), "waiting": (), "heap_size": (), "heap_count": (), "free": (), "resumed": (), "overflow": (),
    "first": (WHEEL,), "last": (WHEEL,), "heap": (HEAP, 2), "next": (PROCESSES,),
    "ask": (len(Ask),),
    # sizes, see `machine.py`
    "cores": (), "word_bytes": (), "width": (), "head_words": (), "kv_heads": (), "page_words": (), "loads": (),
    "engine_latency": (), "fold_cycles": (), "divide_cycles": (), "wtu_lanes": (), "wtu_pairs": (), "lines": (),
    "list_beats": (), "line_words": (), "line_blocks": (), "list_words": (), "list_entries": (), "record_words": (),
    "word_records": (), "code_words": (), "max_step_tokens": (), "word_codes": (), "command_words": (),
    "word_commands": (), "stages": (),
    # encoded pages, 0 or 1; tokens of a block, words of its keys; units of a word, of a record, of the key of a token;
    # cycles of the encoder and of the decoder of a record
    "encoded": (), "block_tokens": (), "key_block_words": (), "word_units": (), "record_units": (), "key_units": (),
    "encoder_latency": (), "decoder_latency": (),
    # encoded weights, 0 or 1; by format, words of the header and of the codes of a tile
    "decodes": (), "tile_headers": (len(Encoding),), "tile_codes": (len(Encoding),),
    # memories: whether the model is compiled, whether its first answer is final
    "is_native": (len(Side),), "is_final": (len(Side),),
    # ports, which cores share: next free cycle of requests and of written words, next wake-up, readers, waiting words
    "device_ports": (), "request_free": (PORTS,), "data_free": (PORTS,), "wake": (PORTS,),
    "order": (PORTS, MAX_CORES * READERS), "ordered": (PORTS,), "backlog": (PORTS,),
    "commits": (),
    # words of the bursts of each memory: read, written; BARRIERs of core 0 at which they are recorded
    "moved": (len(Side), 2), "marks": (),
    "frame": (PROCESSES, FRAME),
}  # fmt: skip
PER_CORE: dict[str, tuple[int, ...]] = {
    "base": (len(Side),),
    "bell_first": (BELLS,), "bell_last": (BELLS,),
    "value": (COUNTERS,),
    "depth": (len(Queue),), "latency": (len(Queue),), "head": (len(Queue),), "count": (len(Queue),),
    "at": (len(Queue), DEPTH), "item": (len(Queue), DEPTH, ITEM),
    # master: next free cycle of AR, AW and W
    "ar_free": (len(Side),), "aw_free": (len(Side),), "w_free": (len(Side),),
    # engines
    "active": (len(Engine),), "in_flight": (len(Engine),), "size": (len(Engine),), "used": (len(Engine),),
    "words": (len(Engine),), "word_head": (READERS,), "word_at": (READERS, DEPTH),
    "released": (READERS,), "release_head": (READERS,), "release_at": (READERS, DEPTH),
    "bursts": (len(Engine),), "burst_head": (READERS,), "burst": (READERS, FLIGHT, 3), "is_ordered": (READERS,),
    "last_answer": (len(Engine),),
    # sequencer
    "issued": (len(ExecUnit),), "end": (), "started": (len(ExecUnit), DEPTH), "start_head": (len(ExecUnit),),
    "start_count": (len(ExecUnit),),
    # LOAD: page of the list, tokens served, token of the page
    "page": (), "tokens_read": (), "slot": (),
    # encoded pages: run of words or records, those that are left, next unit; of the records of a key, the first one and
    # the end of those that are used, and the next one; cycles in which the newest record or word is taken, and in which
    # it arrives; cycle in which the encoder sends its last word
    "run_encoded": (), "run_left": (), "run_at": (), "run_first": (), "run_end": (), "run_record": (), "taken": (),
    "delivered": (), "encoder_end": (),
    # copy engine: jobs issued to each side's writer
    "written": (len(Side),),
    # retrieval: step and its number; tokens that need a slot; steps with rows; lists, and beats of all of them;
    # end of the newest row in reporter and selector, of the two rows before; beats of short rows and when they are read
    "step": (), "steps": (), "slots_needed": (), "syncs": (), "lists": (), "selection_beats": (), "report_end": (),
    "selector": (), "row_end": (2,), "beats": (), "freed": (1 << 13,), "accepted": (2,), "begun": (),
    # KVMU: words and entries of the cache, entries of the page lists; pieces and transfers
    "tag": (MAX_LINES,), "dirty": (MAX_LINES,), "recent": (MAX_LINES,), "evicted": (), "jobs": (), "log_word": (),
    "log_entries": (), "counts": (4,), "list_length": (256,), "listed": (), "pieces_stored": (), "extents_issued": (),
    "descriptors_sent": (), "newest": (len(Side),), "transfers": (),
}  # fmt: skip


class Kind(IntEnum):
    """Kinds of commands in the table of commands."""

    LOAD = 0
    GATHER = 1
    MULTIPLY = 2
    VECTOR = 3
    MEANS = 4
    OPEN = 5
    CLUSTER = 6
    SELECT = 7
    FETCH = 8
    OFFLOAD = 9
    COPY = 10
    STORE = 11
    END = 12
    BARRIER = 13
    RELEASE = 14
    KEEP = 15
    MOVE = 16


TABLES = {  # columns, see `columns.py`
    "command": 39, "step_of": 7, "token": 5, "row": 3, "select": 2, "mean": 4, "mean_token": 1, "page_of": 2, "op": 10,
    "store_command": 3, "act": 4, "job": 5, "entry": 1, "piece": 1, "extent": 4, "descriptor": 3, "commit": 4,
    "traffic": 4,
}  # fmt: skip


def _places(arrays: dict[str, tuple[int, ...]]) -> tuple[dict[str, int], int]:
    places, end = {}, 0
    for name, shape in arrays.items():
        places[name], end = end, end + prod(shape)
    return places, end


PLACES, CORES_AT = _places(NUMBERS)
CORE_PLACES, CORE_SIZE = _places(PER_CORE)
FRAME_AT = PLACES["frame"]


def machine_size(cores: int) -> int:
    """Numbers of a machine."""
    return CORES_AT + cores * CORE_SIZE


def index_of(name: str, indices: list[str]) -> str:
    """Source of an element of a number or array, `m[...]`, or of a table, `d[...]`."""
    if name in TABLES:
        row, column = indices
        return f"d[d[{list(TABLES).index(name)}] + ({row}) * {TABLES[name]} + {column}]"
    if name in NUMBERS:
        shape, start = NUMBERS[name], str(PLACES[name])
    elif name in PER_CORE:
        shape, start = PER_CORE[name], f"{CORES_AT + CORE_PLACES[name]} + {indices[0]} * {CORE_SIZE}"
        indices = indices[1:]
    else:
        raise KeyError(f"name of the machine must be of layout.py, got {name}")
    if len(indices) != len(shape):
        raise IndexError(f"indices of {name} must be {len(shape)}, got {len(indices)}")
    terms = [f"({index}) * {prod(shape[n + 1 :])}" for n, index in enumerate(indices)]
    return f"m[{' + '.join([start, *terms])}]"


def place(name: str, *indices: int) -> int:
    """Position of an element in the array of the machine."""
    text = index_of(name, [str(index) for index in indices])
    return int(eval(text.removeprefix("m[").removesuffix("]"), {}))


class Machine:
    """Type of `k` in processes, which are translated and never run as Python."""

    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: Any) -> None: ...
