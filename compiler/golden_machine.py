"""The core as golden models: executes programs on memory images, with the results of the RTL in every bit.

The interpreter executes the commands that move data and compute. The golden KV prediction unit executes those of the
retrieval unit, on the store in the same device memory. Commands are executed in program order, without time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from golden import vector_kernels as kernels
from golden.core_interpreter import CoreInterpreter, NewToken
from golden.kvmu import Fault, Op, Reply
from golden.kvmu.transfer import Tier
from golden.kvpu import HeadScores, Kvpu
from golden.store.layout import TABLE_UNIT
from golden.vpe import widen
from hw.config import Config
from hw.core.isa import Command, Destination
from hw.lxe.microcode import Instruction, Source
from hw.lxe.operand_memory import OperandMemory


class MachineFault(RuntimeError):
    """The retrieval unit refused a command; the message names the command and the cause."""


@dataclass
class Retrieved:
    """What a step retrieved, for each layer in order.

    past : tokens of the context before the step ; clusters : clusters of the context
    attended : for each KV head, past tokens that it attends to ; fetched : bytes from host memory or storage
    """

    past: list[int] = field(default_factory=list)
    clusters: list[int] = field(default_factory=list)
    attended: list[list[int]] = field(default_factory=list)
    fetched: list[int] = field(default_factory=list)


class GoldenMachine:
    """A core, its device memory and the memory behind its host link.

    Parameters
    ----------
    config : sizes of the core
    device, host : memory images ; `table.memory` must be a view of `device` at the store
    table : KV prediction unit on the store
    programs : vector programs by word address ; varying : those whose instructions take the length of a row
    interpreter : class of the interpreter

    Attributes
    ----------
    instructions : vector programs by word address
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
    ):
        self.config, self.device, self.host, self.table = config, device, host, table
        self.instructions = programs
        self.word_bytes = 2 * config.dpe_inputs
        varying = set(varying)
        memory = OperandMemory.from_config(config)
        self.interpreter = interpreter(
            [device, host],
            inputs=config.dpe_inputs,
            weight_rows=memory.weight_rows,
            activation_rows=memory.activation_rows,
            slots=config.dpe_accumulators,
            vector_rows=config.vpe_rows,
            head_words=config.head_dim // config.dpe_inputs,
            align_bits=config.align_bits,
            programs={at: sized(program, at in varying) for at, program in programs.items()},
        )
        self.interpreter.pages = [[] for _ in range(config.kv_heads)]
        self.retrieved = Retrieved()
        self._codes = np.zeros(0, np.uint32)
        self._scores: list[HeadScores] = []
        self._selected = False  # the step has fetched, which also ends it
        self._copied = 0  # transfers of the KVMU that are done

    def put(self, images: Mapping[int, bytes]) -> None:
        """Write memory images (word address -> bytes) to the device memory."""
        for word, image in images.items():
            at = word * self.word_bytes
            if at + len(image) > len(self.device):
                raise ValueError(f"image must end at byte {len(self.device)} at most, got {at + len(image)}")
            self.device[at : at + len(image)] = image

    def get(self, word: int, nbytes: int) -> np.ndarray:
        """Bytes of the device memory from a word address on, uint8."""
        at = word * self.word_bytes
        return np.frombuffer(bytes(self.device[at : at + nbytes]), np.uint8)

    def run(self, program: Iterable[Command], progress: Callable[[int], Any] | None = None) -> Retrieved:
        """Execute a program; returns what its layers retrieved. `progress` gets the number of commands so far.

        Raises `MachineFault` when the retrieval unit refuses a command.
        """
        self.retrieved = Retrieved()
        for number, command in enumerate(program):
            own = getattr(self, f"_{command.name.lower()}", None)
            if own is not None:
                own(command.fields)
            self.interpreter.execute(command)
            if command.name == "CLUSTER":  # the codes before it have cleared the piece
                self.interpreter.piece = self._piece
            if progress is not None:
                progress(number)
        return self.retrieved

    # commands of the retrieval unit, and hash codes

    def _open(self, fields: Mapping[str, int]) -> None:
        self._check(self.table.open(fields["context"]))
        context = self.table.context
        self.interpreter.mean_keys_word = int(context.header["mean_keys_base"]) * TABLE_UNIT // self.word_bytes
        self.interpreter.clusters = int(context.header["clusters"])
        self.retrieved.past.append(int(context.header["tokens"]))
        self._scores, self._selected = [], False

    def _vector(self, fields: Mapping[str, int]) -> None:
        if fields.get("destination", 0) != Destination.CODES:
            return
        beats, stride = fields["a_beats"], fields["a_stride"]
        rows = [self.get(fields["a"] + row * stride, beats * self.word_bytes) for row in range(fields["repeat"])]
        projected = np.stack(rows).view("<u2")[:, : self.config.hash_bits]
        self._codes = kernels.signs(widen(projected))

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
            )
            for n, reply in enumerate(stored)
        ]
        self.interpreter.clusters = int(self.table.context.header["clusters"])

    def _select(self, fields: Mapping[str, int]) -> None:
        clusters = self.interpreter.clusters
        rows = [
            self.get(fields["source"] + row * fields["stride"], 2 * clusters).view("<u2")
            for row in range(fields["rows"])
        ]
        self._scores.append(HeadScores(fields.get("head", 0), np.stack(rows)))

    def _fetch(self, fields: Mapping[str, int]) -> None:
        replies = self._end_step()
        self._selected = True
        pages: list[list[tuple[int, int]]] = [[] for _ in range(self.config.kv_heads)]
        for reply in replies:
            if reply.op == Op.SELECT and not reply.last and reply.count:
                pages[reply.head].append((reply.address // self.word_bytes, reply.count))
        self.interpreter.pages = pages
        self.retrieved.clusters.append(self.interpreter.clusters)
        self.retrieved.attended.append([sum(tokens for _, tokens in head) for head in pages])

    def _offload(self, fields: Mapping[str, int]) -> None:
        if not self._selected:
            self._end_step()

    def _end_step(self) -> list[Reply]:
        """Select, fetch and offload; copies the bytes that the KVMU moves."""
        _, _, replies = self.table.fetch(self._scores)
        self._check(replies)
        fetched = 0
        memories = {Tier.DEVICE: self.device, Tier.HOST: self.host, Tier.STORAGE: self.host}
        for piece in self.table.kvmu.extents[self._copied :]:
            source, target = memories[Tier(piece.source_tier)], memories[Tier(piece.target_tier)]
            target[piece.target : piece.target + piece.nbytes] = source[piece.source : piece.source + piece.nbytes]
            fetched += piece.nbytes * (piece.source_tier != Tier.DEVICE)
        self._copied = len(self.table.kvmu.extents)
        self.retrieved.fetched.append(fetched)
        return replies

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
