"""Tables of programs and of the data of their steps, for the processes of the cycle model."""

# mypy: disable-error-code="arg-type"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import pairwise

import numpy as np

from compiler.memory import page_layout
from golden.kvmu import Op as StoreOp
from golden.kvmu import Piece, Tier, cut, join
from hw.config import Config
from hw.core.isa import BY_NAME, LIST_SETS, Fit, LengthSource, SyncEvent
from hw.core.isa import Command as IsaCommand
from hw.core.lengths import LENGTH_BITS
from hw.dre.hcu import HCU
from hw.dre.transfer import BOUNDARY
from hw.dre.wtu.wtu import WTU
from hw.lxe.microcode import Function, Instruction, Post, Source
from sw_model.cycles import columns as col
from sw_model.cycles.layout import TABLES, Kind
from sw_model.cycles.step_data import StepData
from sw_model.cycles.store_commands import FETCH, SYNC, Act, Candidates, CopyJob, StoreCommand

FIELDS: dict[Kind, type[IntEnum]] = {
    Kind.LOAD: col.Load,
    Kind.GATHER: col.Gather,
    Kind.MULTIPLY: col.Multiply,
    Kind.VECTOR: col.Vector,
    Kind.MEANS: col.Means,
    Kind.SELECT: col.Select,
    Kind.KEEP: col.Select,
    Kind.COPY: col.Copy,
    Kind.STORE: col.Store,
    Kind.BARRIER: col.Barrier,
}
MEANS_OPS = (  # in the order of `vector_unit.MEAN_OF_NEW` and those after it
    Instruction(a=Source.IMMEDIATE, wait=True),
    Instruction(wait=True),
    Instruction(wait=True),
    Instruction(a=Source.MEMORY, function=Function.DIVIDE, to_stream=True, wait=True),
)


class Tables:
    """Tables of the programs of one run.

    Parameters
    ----------
    config : sizes of the core
    instructions : vector programs by word address
    """

    def __init__(self, config: Config, instructions: Mapping[int, Sequence[Instruction]]):
        self.config, self.instructions = config, instructions
        self.word, self.width = 2 * config.dpe_inputs, config.dpe_inputs
        self.hcu, self.wtu = HCU.from_config(config), WTU.from_config(config)
        self.layout = page_layout(config)
        self.rows = {name: array("q") for name in TABLES}
        self.programs: dict[int, tuple[int, int]] = {}  # instructions of a vector program in the table
        self.columns = {kind: [(c, c.name.lower()) for c in fields] for kind, fields in FIELDS.items()}
        for op in MEANS_OPS:
            self._add_instruction(op)
        self.commits, self.barriers = 0, 0  # of all programs; of the first one
        self.stored_from = 0, 0  # first key and value word of the last STORE that did not resume

    def size(self, name: str) -> int:
        """Rows of a table."""
        return len(self.rows[name]) // TABLES[name]

    def add(self, name: str, *values: int) -> int:
        """Append a row, filled up with zeros; returns its number."""
        number = self.size(name)
        self.rows[name].extend(values)
        self.rows[name].extend([0] * (TABLES[name] - len(values)))
        return number

    def data(self) -> np.ndarray:
        """All tables in one array, after the places of each."""
        parts = [np.frombuffer(rows, np.int64) if rows else np.zeros(0, np.int64) for rows in self.rows.values()]
        for name, count in (("commit", self.commits), ("traffic", self.barriers)):
            parts[list(TABLES).index(name)] = np.zeros(count * TABLES[name], np.int64)
        ends = np.cumsum([len(TABLES), *map(len, parts)])
        return np.concatenate([ends[:-1].astype(np.int64), *parts])

    # Programs

    def program(
        self, program: Sequence[IsaCommand], steps: Sequence[StepData], leader: Sequence[IsaCommand] | None = None
    ) -> tuple[int, int]:
        """Add the program of a core; `steps`: data of each OPEN. Returns its first command and their number.

        `leader` : program of the core whose OPENs count, if it is not this one; a command belongs to the last OPEN with
        at most as many BARRIERs before it
        """
        first, following = self.size("command"), deque(steps)
        data, pieces, barriers = StepData(), Counter[str](), 0
        joiner, opens = _Joiner(self), deque(_opens(leader or ()))
        step = self._step(data)
        selections = [(data, step)] * LIST_SETS  # of the first and of the second page lists
        for command in program:
            barriers += command.name == "BARRIER"
            opened = command.name == "OPEN" or bool(opens and barriers >= opens[0][0])
            if opened:
                _, lists = opens.popleft() if opens else (0, command.fields.get("lists", 0))
                data, pieces = following.popleft() if following else StepData(), Counter[str]()
                step = self._step(data)
                selections[lists] = data, step
            pieces[command.name] += 1
            counted = following[0] if following else StepData()  # the context that a COUNT names is opened next
            self._command(command, data, step, pieces[command.name] - 1, selections, joiner, counted)
        if leader is None:
            self.barriers = barriers
        return first, len(program)

    def _command(
        self,
        command: IsaCommand,
        data: StepData,
        step: int,
        piece: int,
        selections: Sequence[tuple[StepData, int]],
        joiner: _Joiner,
        counted: StepData,
    ) -> None:
        name, f = command.name, command.fields
        if name == "COUNT":  # takes as long as a LOAD of a word
            name, f = "LOAD", {"source": f["header"], "rows": 1, "beats": 1}
        kind = Kind[name]
        unit = BY_NAME[command.name].unit
        tokens = data.tokens_of_piece(piece, self.config.max_step_tokens)
        row = [0] * TABLES["command"]
        first = self.rows["step_of"][step * TABLES["step_of"] + col.Step.TOKEN]
        lists, head = divmod(f.get("head", 0), self.config.kv_heads)
        selection, selected_by = selections[lists % LIST_SETS]
        length = self._length(f, data, selection.past(head), counted)
        row[: col.Command.WAITS] = (
            kind, -1 if unit is None else unit, step, first + tokens.start, first + tokens.stop, length, 0, 0,
        )  # fmt: skip
        for event, wait in command.waits.items():
            row[col.Command.WAITS + SyncEvent(event)] = wait
        for column, name in self.columns.get(kind, ()):
            row[column] = int(f.get(name, 0))
        if kind is Kind.GATHER:
            pages = selection.pages.get(head, ())
            key = (selected_by, head)
            if key not in joiner.pages:
                joiner.pages[key] = self.size("page_of")
                for address, count in pages:
                    self.add("page_of", address // self.word, count)
            row[col.Gather.PAST], row[col.Gather.PAGE] = selection.past(head), joiner.pages[key]
            row[col.Gather.PAGES], row[col.Gather.HEAD] = len(pages), head
        elif kind is Kind.VECTOR:
            fits = length + f.get("pad", 0) <= self.config.vpe_rows * self.width
            met = {Fit.ANY: True, Fit.FITS: fits, Fit.EXCEEDS: not fits}[Fit(f.get("fit", 0))]
            row[col.Vector.ROWS] = f.get("repeat", 0) if length and met else 0
            row[col.Vector.OP], row[col.Vector.OPS] = self._vector_program(f["code"])
        elif kind is Kind.MEANS:
            row[col.Means.MEAN], means = self.size("mean"), data.means(tokens)
            row[col.Means.MEANS] = len(means)
            for cluster, opened, own in means:
                self.add("mean", cluster, opened, self.size("mean_token"), len(own))
                for token in own:
                    self.add("mean_token", token)
        elif kind is Kind.SELECT:
            self._select(row, f, length, data, joiner)
        elif kind is Kind.KEEP:
            self._keep(row, f["tokens"], data)
        elif kind is Kind.STORE:
            self._store_rows(row, f, data, tokens)
        elif kind is Kind.OPEN:
            row[col.Retrieval.STORE_COMMAND] = self._store(data.opening or StoreCommand(StoreOp.OPEN), joiner)
        elif kind is Kind.FETCH:
            row[col.Retrieval.STORE_COMMAND] = self._store(FETCH, joiner)
        elif kind is Kind.RELEASE:
            release = data.releases[piece] if data.releases else StoreCommand(StoreOp.EVICT)
            row[col.Retrieval.STORE_COMMAND] = self._store(release, joiner)
        elif kind is Kind.MOVE:
            move = data.moves[piece] if data.moves else StoreCommand(StoreOp.MOVE, FETCH.actions)
            row[col.Retrieval.STORE_COMMAND] = self._store(move, joiner)
        elif kind is Kind.OFFLOAD:
            row[col.Retrieval.STORE_COMMAND] = self._store(data.committing or StoreCommand(StoreOp.STEP), joiner)
        self.rows["command"].extend(row)

    @staticmethod
    def _length(f: Mapping[str, int], data: StepData, past: int, counted: StepData) -> int:
        """Length of a command, run-time lengths resolved.

        `past` : tokens of its page list ; `counted` : step of the context of the last COUNT
        """
        known, size = 0, f.get("length", 0)
        if size in (LengthSource.CLUSTERS, LengthSource.COUNTED):
            scored = data if size == LengthSource.CLUSTERS else counted
            known = scored.clusters_after if scored.scored is None else scored.scored
        elif size == LengthSource.TOKENS:
            known = past
        return (known + f.get("extra", 0)) % (1 << LENGTH_BITS)

    def _vector_program(self, address: int) -> tuple[int, int]:
        if address not in self.programs:
            ops = self.instructions[address]
            self.programs[address] = self.size("op"), len(ops)
            for op in ops:
                self._add_instruction(op)
        return self.programs[address]

    def _add_instruction(self, op: Instruction) -> None:
        self.add(
            "op", op.beats, op.beats == 1 and op.a in (Source.STREAM, Source.MEMORY), op.wait, op.post is Post.ROTATE,
            op.post in (Post.SUM, Post.MAX, Post.LAST, Post.PACK), op.post in (Post.SUM, Post.MAX), op.rows,
            op.a is Source.STREAM, op.to_stream, op.function is Function.DIVIDE,
        )  # fmt: skip

    def _select(self, row: list[int], f: Mapping[str, int], clusters: int, data: StepData, joiner: _Joiner) -> None:
        head, is_long = f.get("head", 0), clusters > self.config.wtu_pairs
        beats = -(-clusters // self.config.wtu_lanes)
        row[col.Select.ROW] = self.size("row")
        if clusters and f.get("rows", 0):
            rows = data.rows[head] if data.rows else [(0, 0)] * f["rows"]
            if len(rows) != f["rows"]:
                raise ValueError(f"score rows of KV head {head} must be {f['rows']}, got {len(rows)}")
            for passes, levels in rows:
                cycles, packets = self.wtu.cycles(clusters, passes, levels), 1
                if is_long:
                    packets = self.wtu.packets(passes, levels)
                self.add("row", packets, cycles, cycles // (packets - 2) - beats if packets > 2 else 0)
        commands = [(select.cluster, self._store(select, joiner)) for select in data.selects.get(head, ())]
        row[col.Select.SELECT], row[col.Select.SELECTS] = self.size("select"), len(commands)
        for cluster, number in commands:
            self.add("select", cluster, number)

    def _keep(self, row: list[int], tokens: int, data: StepData) -> None:
        """KEEP is one row without token counts. A beat of its bitmap takes a cycle per kept token, at least one."""
        lanes, kept = self.config.wtu_lanes, data.kept or []
        row[col.Command.LENGTH], row[col.Select.ROWS] = tokens, 1
        row[col.Select.ROW] = self.size("row")
        passes, levels = data.norms
        cycles, packets = self.wtu.cycles(tokens, passes, levels), 1
        if tokens > self.config.wtu_pairs:
            packets = self.wtu.packets(passes, levels)
        beats = -(-tokens // lanes)
        self.add("row", packets, cycles, cycles // (packets - 2) - beats if packets > 2 else 0)
        ones = Counter(token // lanes for token in kept)
        row[col.Select.LIST] = sum(max(1, ones[beat]) for beat in range(beats - 1)) + 1

    def _store_rows(self, row: list[int], f: Mapping[str, int], data: StepData, tokens: range) -> None:
        """First rows of a STORE, that of the first kept token if some are dropped."""
        if not f.get("resume", 0):
            self.stored_from = f["keys"], f["values"]
        passed = data.kept[tokens.start - 1] + 1 if data.kept and f.get("resume", 0) else 0
        for column, word, stride in zip(
            (col.Store.KEYS, col.Store.VALUES), self.stored_from, ("key_stride", "value_stride"), strict=True
        ):
            row[column] = word + passed * f[stride]

    # Steps

    def _step(self, data: StepData) -> int:
        kept = data.kept or range(len(data.appends))
        dropped = [token - before - 1 for before, token in pairwise([-1, *kept])]
        tokens = list(zip(data.places, data.slots, data.searched, dropped, strict=True))
        commands = [self._store(append, None) for append in data.appends]
        sync, token = self._store(SYNC, None), self.size("token")
        for number, (place, slot, searched, skipped) in zip(commands, tokens, strict=True):
            cycles = self.hcu.token_cycles(*searched)
            self.add("token", number, place // self.word, cycles, skipped, slot % self.layout.block_tokens)
        return self.add(
            "step_of", data.mean_keys // self.word, data.counts // self.word, data.log // self.word, len(tokens),
            token, data.scored is not None, sync,
        )  # fmt: skip

    def _store(self, command: StoreCommand, joiner: _Joiner | None) -> int:
        """Add a command of the KVMU."""
        acts = [self._act(act, value, joiner) for act, value in command.actions]
        first = self.size("act")
        for act in acts:
            self.add("act", *act)
        return self.add("store_command", command.op, first, len(acts))

    def _act(self, act: Act, value: int | Candidates | CopyJob, joiner: _Joiner | None) -> tuple[int, ...]:
        if isinstance(value, Candidates):
            return act, value.block, value.records, value.expired
        if act is Act.FINISH:
            return act, joiner.finish() if joiner else -1
        if isinstance(value, CopyJob):
            assert joiner
            entry, piece = self.size("entry"), self.size("piece")
            for head in value.entries:
                self.add("entry", head)
            for each in value.pieces:
                self.add("piece", joiner.push(each))
            return act, self.add("job", entry, len(value.entries), value.once, piece, len(value.pieces))
        self.commits += act is Act.COMMITTED
        return act, value


def _opens(program: Sequence[IsaCommand]) -> Iterator[tuple[int, int]]:
    """Number of BARRIERs before each OPEN of a program, and its field `lists`."""
    barriers = 0
    for command in program:
        barriers += command.name == "BARRIER"
        if command.name == "OPEN":
            yield barriers, command.fields.get("lists", 0)


class _Joiner:
    """The joiner of the KVMU: pieces that follow each other become one extent. Also: pages in the table, by head."""

    def __init__(self, tables: Tables):
        self.tables, self.pending = tables, list[Piece]()
        self.pages: dict[tuple[int, int], int] = {}

    def push(self, piece: Piece) -> int:
        """Take a piece; returns the extent that it completes, or -1."""
        *complete, last = join([*self.pending, piece])
        self.pending = [last]
        return self._extent(complete[0]) if complete else -1

    def finish(self) -> int:
        """The last extent, or -1."""
        pending, self.pending = self.pending, []
        return self._extent(pending[0]) if pending else -1

    def _extent(self, extent: Piece) -> int:
        tables = self.tables
        first, parts = tables.size("descriptor"), list(self._parts(extent))
        for part in parts:
            tables.add("descriptor", *part)
        sides = extent.source_tier != Tier.DEVICE, extent.target_tier != Tier.DEVICE
        return tables.add("extent", *sides, first, len(parts))

    def _parts(self, extent: Piece) -> Iterator[tuple[int, ...]]:
        for part in cut(extent, BOUNDARY):
            yield tuple(value // self.tables.word for value in part)
