"""The cores as golden models: they execute programs on memory images, with the results of the RTL in every bit.

The interpreter executes the commands that move data and compute. The golden KV prediction unit executes those of the
retrieval unit, on the store in the same device memory. Commands are executed in program order, without time. Of several
cores, one executes its program up to a BARRIER, then the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, fields, replace
from typing import Protocol

import numpy as np

from compiler.memory import page_layout
from golden import vector_kernels as kernels
from golden.core_interpreter import CoreInterpreter, NewToken
from golden.kvmu import Command as KvmuCommand
from golden.kvmu import Fault, Op, Reply
from golden.kvmu.transfer import Tier
from golden.kvpu import HeadScores, Kvpu
from golden.selection import sortable
from golden.store.layout import TABLE_UNIT
from golden.vpe import widen
from hw.config import Config
from hw.core.isa import COMMAND_BYTES, LIST_SETS, MAX_CORES, Command, Destination
from hw.lxe.microcode import Instruction, Source
from hw.lxe.operand_memory import OperandMemory
from util import checks


class MachineFault(RuntimeError):
    """The retrieval unit refused a command; the message names the command and the cause."""


@dataclass
class Retrieved:
    """What a step retrieved, for each layer in order.

    past : tokens of the context before the step ; clusters : clusters of the context
    attended : for each KV head, past tokens that it attends to ; fetched : bytes from host memory or storage
    offloaded : bytes to host memory or storage ; released : pages that were released
    kept : tokens of the step that were stored; empty if no token was dropped
    """

    past: list[int] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    attended: list[list[int]] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)
    offloaded: list[int] = field(default_factory=list)
    released: list[int] = field(default_factory=list)
    kept: list[list[int]] = field(default_factory=list)

    def of_stream(self, number: int, streams: int) -> Retrieved:
        """The part of stream `number` of a step of several streams, which take turns in every layer."""
        return Retrieved(*(getattr(self, each.name)[number::streams] for each in fields(self)))


class Observer(Protocol):
    """Follows what a machine does: to predict its cycles, or to repeat it in a simulation."""

    def wrote(self, images: Mapping[int, bytes]) -> None:
        """Images (word address -> bytes) were written to the device memory."""

    def running(self, programs: list[list[Command]]) -> AbstractContextManager[None]:
        """Context in which the machine executes a program on each core."""


class GoldenMachine:
    """Cores, their device memory and the memory behind the host link.

    Parameters
    ----------
    config : sizes of a core ; cores : number of cores
    device, host : memory images ; `table.memory` must be a view of `device` at the store
    table : KV prediction unit on the store
    programs : vector programs by word address ; varying : those whose instructions take the length of a row
    interpreter : class of the interpreter
    signed : the scores are BF16 numbers of either sign

    Attributes
    ----------
    instructions : vector programs by word address
    interpreters : one per core
    observers : are told of all writes of `put` and of all programs
    written, read, runs : bytes of all images and programs, bytes that `host_get` returned, and number of `run`, so far
    """

    def __init__(
        self,
        config: Config,
        device: bytearray,
        host: bytearray,
        table: Kvpu,
        programs: Mapping[int, list[Instruction]],
        varying: Iterable[int],
        interpreter: type[CoreInterpreter] = CoreInterpreter,
        cores: int = 1,
        signed: bool = False,
    ):
        self.config, self.device, self.host, self.table = config, device, host, table
        self.instructions = programs
        self.observers: list[Observer] = []
        self.signed = signed
        self.written = self.read = self.runs = 0
        self.word_bytes = 2 * config.dpe_inputs
        varying = set(varying)
        memory = OperandMemory.from_config(config)
        sized_programs = {at: sized(program, at in varying) for at, program in programs.items()}
        self.interpreters = [
            interpreter(
                [device, host],
                inputs=config.dpe_inputs,
                weight_rows=memory.weight_rows,
                activation_rows=memory.activation_rows,
                slots=config.dpe_accumulators,
                vector_rows=config.vpe_rows,
                head_words=config.head_dim // config.dpe_inputs,
                align_bits=config.align_bits,
                layout=page_layout(config),
                weight_bits=config.weight_bits,
                programs=sized_programs,
            )
            for _ in range(checks.integer("cores", cores, 1, MAX_CORES))
        ]
        self.leader = self.interpreters[0]
        self._pages: list[list[tuple[int, int]]] = [[] for _ in range(LIST_SETS * config.kv_heads)]
        self._lists = 0  # page lists of the open context
        self._set_pages(0, [[] for _ in range(config.kv_heads)])
        self.retrieved = Retrieved()
        self._codes = np.zeros(0, np.uint32)
        self._scores: list[HeadScores] = []
        self._copied = 0  # transfers of the KVMU that are done

    def put(self, images: Mapping[int, bytes]) -> None:
        """Write memory images (word address -> bytes) to the device memory."""
        for word, image in images.items():
            at = word * self.word_bytes
            if at + len(image) > len(self.device):
                raise ValueError(f"image must end at byte {len(self.device)} at most, got {at + len(image)}")
            self.device[at : at + len(image)] = image
            self.written += len(image)
        for observer in self.observers:
            observer.wrote(images)

    def get(self, word: int, nbytes: int) -> np.ndarray:
        """Bytes of the device memory from a word address on, uint8."""
        at = word * self.word_bytes
        return np.frombuffer(bytes(self.device[at : at + nbytes]), np.uint8)

    def host_get(self, word: int, nbytes: int) -> np.ndarray:
        """As `get`, for what the host of a real machine reads: the bytes are counted."""
        self.read += nbytes
        return self.get(word, nbytes)

    def run(self, *programs: Iterable[Command]) -> Retrieved:
        """Execute one program on each core; returns what the layers retrieved.

        Raises `MachineFault` when the retrieval unit refuses a command, or the programs meet at different barriers.
        """
        lists = [list(program) for program in programs]
        if len(lists) > len(self.interpreters):
            raise ValueError(f"programs must be at most {len(self.interpreters)}, one per core, got {len(lists)}")
        self.retrieved = Retrieved()
        self.runs, self.written = self.runs + 1, self.written + sum(map(len, lists)) * COMMAND_BYTES
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer.running(lists))
            running = [self._execute(core, commands) for core, commands in zip(self.interpreters, lists, strict=False)]
            while True:
                met = [next(core, None) for core in running]
                if met == [None] * len(met):
                    return self.retrieved
                if met != [len(met)] * len(met):
                    raise MachineFault(f"cores of a BARRIER must be {len(met)} on all cores, got {met}")

    def _execute(self, core: CoreInterpreter, program: list[Command]) -> Iterator[int]:
        """Execute a program; yields the number of cores of each BARRIER, after which all of these cores go on."""
        for command in program:
            if command.name == "BARRIER":
                yield command.fields["cores"]
            own = getattr(self, f"_{command.name.lower()}", None)
            if own is not None:
                own(command.fields)
            core.execute(command)
            if command.name == "CLUSTER":  # the codes before it have cleared the piece
                core.piece = self._piece

    def _set_clusters(self, count: int) -> None:
        for core in self.interpreters:
            core.clusters = count

    def _set_pages(self, lists: int, pages: list[list[tuple[int, int]]]) -> None:
        self._pages[lists * len(pages) : (lists + 1) * len(pages)] = pages
        for core in self.interpreters:
            core.pages = self._pages

    # commands of the retrieval unit, and hash codes

    def _open(self, fields: Mapping[str, int]) -> None:
        self._check(self.table.open(fields["context"]))
        context = self.table.context
        self.leader.mean_keys_word = int(context.header["mean_keys_base"]) * TABLE_UNIT // self.word_bytes
        self._set_clusters(int(context.header["clusters"]))
        self.retrieved.past.append(int(context.header["tokens"]))
        self._scores, self._lists = [], fields.get("lists", 0)
        self.leader.kept = None

    def _vector(self, fields: Mapping[str, int]) -> None:
        if fields.get("destination", 0) != Destination.CODES:
            return
        beats, stride = fields["a_beats"], fields["a_stride"]
        rows = [self.get(fields["a"] + row * stride, beats * self.word_bytes) for row in range(fields["repeat"])]
        projected = np.stack(rows).view("<u2")[:, : self.config.hash_bits]
        self._codes = kernels.signs(widen(projected))

    def _keep(self, fields: Mapping[str, int]) -> None:
        norms = self.get(fields["source"], 2 * fields["tokens"]).view("<u2")
        selected = self.table.keep(norms, fields["count"]).selected[0]
        self.leader.kept = deque(selected.tolist())
        self.retrieved.kept.append(np.flatnonzero(selected).tolist())

    def _cluster(self, fields: Mapping[str, int]) -> None:
        assigned, replies = self.table.cluster(self._codes)
        self._check(replies)
        stored = [reply for reply in replies if reply.op == Op.APPEND]
        address = self.table.kvmu.address
        self._piece = [
            NewToken(
                int(assigned.cluster[n]),
                bool(assigned.opened[n]),
                int(assigned.count[n]),
                [address(reply.page, head, reply.slot)[1] // self.word_bytes for head in range(self.config.kv_heads)],
                reply.slot,
            )
            for n, reply in enumerate(stored)
        ]
        self._set_clusters(int(self.table.context.header["clusters"]))

    def _select(self, fields: Mapping[str, int]) -> None:
        clusters = self.leader.clusters
        if not clusters:
            return
        rows = [
            self.get(fields["source"] + row * fields["stride"], 2 * clusters).view("<u2")
            for row in range(fields["rows"])
        ]
        keys = sortable(np.stack(rows)) if self.signed else np.stack(rows)
        own = fields.get("counts", 0)
        counts = self.get(own, 2 * clusters).view("<u2") if own else None
        self._scores.append(HeadScores(fields.get("head", 0), keys, counts))

    def _fetch(self, fields: Mapping[str, int]) -> None:
        _, _, replies = self.table.retrieve(self._scores)
        self._check(replies)
        self.retrieved.fetched.append(self._transfer())
        self._scores = []
        pages: list[list[tuple[int, int]]] = [[] for _ in range(self.config.kv_heads)]
        for reply in replies:
            if reply.op == Op.SELECT and not reply.last and reply.count:
                pages[reply.head].append((reply.address // self.word_bytes, reply.count))
        self._set_pages(self._lists, pages)
        self.retrieved.clusters.append(self.leader.clusters)
        self.retrieved.attended.append([sum(tokens for _, tokens in head) for head in pages])

    def _release(self, fields: Mapping[str, int]) -> None:
        kept = {"index": fields.get("first", 0), "page": fields.get("last", 0)}
        replies = self.table.kvmu.execute(KvmuCommand(Op.EVICT, cluster=fields.get("cluster", 0), **kept))
        self._check(replies)
        self.retrieved.released.append(replies[-1].count)

    def _move(self, fields: Mapping[str, int]) -> None:
        self._check(self.table.kvmu.execute(KvmuCommand(Op.MOVE, **fields)))
        self._transfer()

    def _offload(self, fields: Mapping[str, int]) -> None:
        self.leader.kept = None
        self._check(self.table.commit())
        self.retrieved.offloaded.append(self._transfer())

    def _transfer(self) -> int:
        """Copy the bytes that the KVMU moves; returns those from or to host memory or storage."""
        moved = 0
        memories = {Tier.DEVICE: self.device, Tier.HOST: self.host, Tier.STORAGE: self.host}
        for piece in self.table.kvmu.extents[self._copied :]:
            source, target = memories[Tier(piece.source_tier)], memories[Tier(piece.target_tier)]
            target[piece.target : piece.target + piece.nbytes] = source[piece.source : piece.source + piece.nbytes]
            moved += piece.nbytes * (piece.source_tier != piece.target_tier)
        self._copied = len(self.table.kvmu.extents)
        return moved

    def _check(self, replies: Iterable[Reply]) -> None:
        for reply in replies:
            if reply.fault:
                raise MachineFault(f"{Op(reply.op).name} was refused: {Fault(reply.fault).name}")


def sized(program: list[Instruction], varies: bool) -> Callable[[int, int], list[Instruction]]:
    """A vector program as a function of the beats of a row and of the elements in its last beat."""

    def build(beats: int, tail: int) -> list[Instruction]:
        if not varies:
            return program
        sources = (Source.STREAM, Source.MEMORY)
        return [replace(op, beats=beats, tail=tail) if op.a in sources else op for op in program]

    return build
