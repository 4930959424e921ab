"""KVPU: KV prediction unit. It connects HCU, WTU and KVMU (V-Rex, Fig. 9 and 10)."""

# mypy: disable-error-code="assignment,arg-type"

import enum as python_enum

from amaranth import Const, Module, Mux, Signal, Value, unsigned
from amaranth.hdl import Shape
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout, write_word_layout
from hw.axi.ports import JOB
from hw.common.counters import count
from hw.common.fork import fork
from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.dre import hcu
from hw.dre.hcu import HCU
from hw.dre.kvmu import command as kvmu_command
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.wtu.command import KeyOrder, SelectionMode
from hw.dre.wtu.wtu import WTU

MAX_GROUPS = 8  # SELECT commands in the WTU at one time


class Op(enum.Enum, shape=unsigned(3)):
    """Operation of one input beat."""

    CODE = 0  # the hash code of the next token
    OPEN = 1  # open `context`
    SELECT = 2  # rows for KV head `head` follow on `i_scores`; their selections are united
    FETCH = 3  # fetch the selected pages
    STEP = 4  # offload the oldest pages and commit the step
    RELEASE = 5  # release the pages of `cluster`, except the first `first_pages` and the last `last_pages` ones
    KEEP = 6  # a row of norms follows on `i_scores`, one per token; the `count` smallest ones leave on `o_kept`
    MOVE = 7  # move the token in `page`, `slot` to `cluster`, which is `opened` with `hash` if it is new


class Stat(python_enum.StrEnum):
    """Counters of the KVPU itself, 32 bits each, cleared by `stat_clear`."""

    STEPS = "steps"  # steps whose commit was started
    OPENING = "opening"  # cycles in which a context is opened
    CLUSTERING = "clustering"  # cycles in which tokens of a step are clustered
    SELECTING = "selecting"  # cycles in which a SELECT is in progress
    ENDING = "ending"  # cycles in which FETCH, RELEASE, MOVE or STEP waits until the KVMU accepts it


class KVPU(wiring.Component):
    """Clusters the tokens of a step, selects clusters by the scores of its queries, and issues the transfers.

    A context is the state of one layer of one stream; it is in device memory. OPEN reads the headers of a context and
    loads its candidates into the HCU. The tokens of a step arrive in one or more packets of hash codes. The HCU assigns
    each code to a cluster. The assignment goes to the KVMU, which stores the token (APPEND), and leaves on
    `o_assignment`. With `query` in the last code of a packet, the KVMU then writes its changed lines to memory (SYNC),
    so that the token counts in memory are up to date.

    SELECT announces score rows of a KV head: one packet of (key, token count) pairs per row, one pair per cluster in
    cluster order. The rows of one SELECT are joined; the last one has `join` = 0. The list of selected clusters becomes
    SELECT commands of the KVMU, which reports their pages at once. FETCH ends the fetch: the KVMU completes the
    transfers into the staging bank that the previous fetch did not use. RELEASE removes pages from a cluster (EVICT
    of the KVMU); it is part of a step. MOVE moves a token to another cluster; the HCU learns of it when the context is
    opened after another one. STEP offloads the oldest pages and commits.

    KEEP selects tokens of a step instead of clusters: the WTU works in mode COUNT and reversed order, and the selection
    leaves as a bitmap. Then the hash codes of the selected tokens arrive.

    Commands execute in order. A token is stored while the next one is compared, and the pages of one KV head are read
    while the rows of the next KV heads are selected.

    Timing: `latency` is None, it depends on the data; the cycle formulas of the units hold. No combinational path
    leads from one stream to another, but `i.ready` depends on the operation.

    Numerics: integers only.

    Parameters
    ----------
    config : sizes of the units

    Members
    -------
    i : stream of `command`
    i_scores : stream of `scores`, the beats of `WTU` with `keep` in the rows of KEEP ; o_again : see `WTU`
    o_assignment : assignments of the HCU; the LXE updates the mean keys with them
    o_row : cutoff of every score row ; o_kept : bitmap of KEEP ; o : replies of the KVMU
    o_dma, i_done, o_complete : see `KVMU`
    read_job, read_words, write_job, write_words, write_done : read engine and write engine for the store
    settled : memory has acknowledged all writes to the store
    clusters, counts_base, mean_keys_base : of the open context: clusters; byte addresses in units of 128
    cfg_* : see the units ; cfg_retain_fetched : see `retain` of SELECT
    stat_* : see `Stat` ; stat_UNIT_* : the counters of the units

    Source: V-Rex (arXiv 2512.12284), section V-B, Fig. 9 and 10.
    """

    latency = None

    def __init__(self, config: Config):
        self.config = config
        self.hcu, self.wtu, self.kvmu = HCU.from_config(config), WTU.from_config(config), KVMU.from_config(config)
        self.units = {"hcu": self.hcu, "wtu": self.wtu, "kvmu": self.kvmu}
        self.word = 16 * config.dpe_inputs
        self.command = data.StructLayout(
            {
                "op": Op,
                "hash": config.hash_bits,
                "query": 1,
                "last": 1,
                "context": self.kvmu.command["context"].shape,
                "head": range(config.kv_heads),
                "cluster": self.kvmu.command["cluster"].shape,
                "first_pages": self.kvmu.command["page"].shape,
                "last_pages": self.kvmu.command["page"].shape,
                "count": config.cluster_bits,
                "page": self.kvmu.command["page"].shape,
                "slot": self.kvmu.command["slot"].shape,
                "opened": 1,
            }
        )
        self.scores = data.StructLayout({**self.wtu.sizes.beat.members, "keep": 1})
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "i_scores": In(stream.Signature(self.scores)),
                "o_again": Out(stream.Signature(self.wtu.o_again.payload.shape())),
                "o_assignment": Out(stream.Signature(self.hcu.assignment)),
                "o_row": Out(stream.Signature(self.wtu.sizes.result)),
                "o_kept": Out(stream.Signature(self.wtu.sizes.bitmap)),
                "o": Out(stream.Signature(self.kvmu.reply)),
                "o_dma": Out(stream.Signature(self.kvmu.o_dma.payload.shape())),
                "i_done": In(stream.Signature(self.kvmu.i_done.payload.shape())),
                "o_complete": Out(stream.Signature(self.kvmu.o_complete.payload.shape())),
                "read_job": Out(stream.Signature(JOB)),
                "read_words": In(stream.Signature(read_word_layout(self.word))),
                "write_job": Out(stream.Signature(JOB)),
                "write_words": Out(stream.Signature(write_word_layout(self.word))),
                "write_done": In(1),
                "settled": Out(1),
                "clusters": Out(self.kvmu.clusters.shape()),
                "counts_base": Out(self.kvmu.counts_base.shape()),
                "mean_keys_base": Out(self.kvmu.mean_keys_base.shape()),
                **self._settings(),
                "cfg_retain_fetched": In(1),
                "stat_clear": In(1),
                **{f"stat_{name}": Out(32) for name in Stat},
                **self._counters(),
            }
        )

    def _settings(self) -> dict[str, wiring.Member]:
        """Ports for the settings of the units. Units share a setting of the same name; the widest port counts."""
        settings: dict[str, wiring.Member] = {}
        for unit in self.units.values():
            for name, member in unit.signature.members.items():
                if name.startswith("cfg_"):
                    width = Shape.cast(member.shape).width
                    if name not in settings or width > Shape.cast(settings[name].shape).width:
                        settings[name] = In(member.shape)
        return settings

    def _counters(self) -> dict[str, wiring.Member]:
        """Ports for the counters of the units."""
        return {
            f"stat_{unit}_{name.removeprefix('stat_')}": Out(member.shape)
            for unit, component in self.units.items()
            for name, member in component.signature.members.items()
            if name.startswith("stat_") and name != "stat_clear"
        }

    @classmethod
    def from_config(cls, config: Config) -> "KVPU":
        """The KVPU of one core."""
        return cls(config)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and the cycle formulas of the units, as written into the JSON of the generated unit."""
        return {"latency": self.latency, **{name: unit.timing for name, unit in self.units.items()}}

    @property
    def memory_bits(self) -> dict[str, int]:
        """Size of each memory of the units in bits."""
        return {f"{name}_{key}": bits for name, unit in self.units.items() for key, bits in unit.memory_bits.items()}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.rows = rows = SkidBuffer(self.wtu.i.payload.shape())
        self._connect_units(m, rows)
        append = stream.Signature(self.kvmu.command).create(path=("append",))
        self._split_assignment(m, append)
        m.submodules.commands = commands = SkidBuffer(self.kvmu.command)
        wiring.connect(m, commands.o, self.kvmu.i)
        m.submodules.heads = heads = SyncFIFOBuffered(width=max(1, len(self.i.payload.head)), depth=MAX_GROUPS)
        bank = Signal()  # staging bank of the next fetch
        in_step = Signal()  # tokens of a step are clustered
        selecting = Signal()  # a list of clusters is outstanding
        keeping = Signal()  # from KEEP to the end of its bitmap and list
        m.d.comb += [selecting.eq((heads.level != 0) | heads.r_rdy), heads.w_data.eq(self.i.payload.head)]
        self._keep_tokens(m, rows, keeping)

        with m.FSM(init="COMMANDS") as fsm:
            with m.State("COMMANDS"):
                self._cluster_tokens(m, in_step)
                begins = self.i.valid & ~in_step & ~keeping
                with m.If(append.valid):
                    m.d.comb += _drive(commands.i, append)
                with m.Elif(self.wtu.o_index.valid & heads.r_rdy):
                    self._select_pages(m, commands, heads, bank)
                with m.Elif(begins & (self.i.payload.op != Op.SELECT)):
                    self._execute(m, commands, bank, selecting)
                    with m.If(self.i.ready & (self.i.payload.op == Op.KEEP)):
                        m.d.sync += keeping.eq(1)
                with m.If(begins & (self.i.payload.op == Op.SELECT)):  # its rows follow, also while clusters leave
                    m.d.comb += [heads.w_en.eq(1), self.i.ready.eq(heads.w_rdy)]
            self._synchronize(m, commands)
            self._open(m, commands)
            opening = fsm.ongoing("OPEN") | fsm.ongoing("OPENING")
        op = self.i.payload.op
        events = {
            Stat.STEPS: self.i.valid & self.i.ready & (op == Op.STEP),
            Stat.OPENING: opening,
            Stat.CLUSTERING: in_step,
            Stat.SELECTING: selecting,
            Stat.ENDING: self.i.valid & ((op == Op.FETCH) | (op == Op.RELEASE) | (op == Op.MOVE) | (op == Op.STEP)),
        }
        count(m, self, events, enable=bool(self.config.dre_counters))
        return m

    def _connect_units(self, m: Module, rows: SkidBuffer) -> None:
        """Connect the ports of the units to the ports of the KVPU: settings, counters and streams."""
        for name, unit in self.units.items():
            m.submodules[name] = unit
            m.d.comb += unit.stat_clear.eq(self.stat_clear)
            for port in unit.signature.members:
                if port.startswith("cfg_"):
                    setting = Value.cast(getattr(self, port))
                    m.d.comb += getattr(unit, port).eq(setting[: len(Value.cast(getattr(unit, port)))])
                elif port.startswith("stat_") and port != "stat_clear":
                    m.d.comb += getattr(self, f"stat_{name}_{port.removeprefix('stat_')}").eq(getattr(unit, port))
        wiring.connect(m, rows.o, self.wtu.i)
        wiring.connect(m, self.wtu.o_again, wiring.flipped(self.o_again))
        wiring.connect(m, self.wtu.o_row, wiring.flipped(self.o_row))
        for name in ("o", "o_dma", "o_complete", "read_job", "write_job", "write_words"):
            wiring.connect(m, getattr(self.kvmu, name), wiring.flipped(getattr(self, name)))
        for name in ("i_done", "read_words"):
            wiring.connect(m, wiring.flipped(getattr(self, name)), getattr(self.kvmu, name))
        m.d.comb += [
            self.kvmu.write_done.eq(self.write_done),
            self.settled.eq(self.kvmu.settled),
            self.clusters.eq(self.kvmu.clusters),
            self.counts_base.eq(self.kvmu.counts_base),
            self.mean_keys_base.eq(self.kvmu.mean_keys_base),
        ]

    def _keep_tokens(self, m: Module, rows: SkidBuffer, keeping: Signal) -> None:
        """Settings, rows and results of the WTU during KEEP. SELECT uses the list of clusters, KEEP the bitmap."""
        row, count, bitmap_left, list_ended = self.i_scores, Signal.like(self.i.payload.count), Signal(), Signal()
        row_taken, admitted = Signal(), Signal()  # a row enters only with the settings of its command
        follows_again = Signal()  # another packet of the same row follows; known from the first beat of a packet on
        m.d.comb += [
            admitted.eq(Mux(row.payload.keep, keeping & ~row_taken, ~keeping)),
            rows.i.valid.eq(row.valid & admitted),
            row.ready.eq(rows.i.ready & admitted),
            *(rows.i.payload[name].eq(row.payload[name]) for name in rows.i.payload.shape().members),
            self.o_kept.valid.eq(self.wtu.o.valid & keeping),
            self.o_kept.payload.eq(self.wtu.o.payload),
            self.wtu.o.ready.eq(self.o_kept.ready | ~keeping),
        ]
        with m.If(self.o_again.valid):
            m.d.sync += follows_again.eq(self.o_again.payload.again)
        with m.If(self.i.valid & ~keeping):
            m.d.sync += count.eq(self.i.payload.count)
        with m.If(keeping):
            m.d.comb += [
                self.wtu.cfg_selection_mode.eq(SelectionMode.COUNT),
                self.wtu.cfg_key_order.eq(KeyOrder.REVERSED),
                self.wtu.cfg_selection_target.eq(count),
                self.wtu.o_index.ready.eq(1),
            ]
            with m.If(row.valid & row.ready & row.payload.last & ~follows_again):
                m.d.sync += row_taken.eq(1)
            with m.If(self.o_kept.valid & self.o_kept.ready & self.o_kept.payload.last):
                m.d.sync += bitmap_left.eq(1)
            with m.If(self.wtu.o_index.valid & self.wtu.o_index.payload.last):
                m.d.sync += list_ended.eq(1)
            with m.If(bitmap_left & list_ended):
                m.d.sync += [keeping.eq(0), row_taken.eq(0), bitmap_left.eq(0), list_ended.eq(0)]

    def _split_assignment(self, m: Module, append: stream.Interface) -> None:
        """Send each assignment of the HCU to the KVMU and to `o_assignment`."""
        assignment = self.hcu.o.payload
        fork(m, "assignment", self.hcu.o, [append, self.o_assignment])
        m.d.comb += [
            self.o_assignment.payload.eq(assignment),
            append.payload.op.eq(kvmu_command.Op.APPEND),
            append.payload.cluster.eq(assignment.cluster),
            append.payload.opened.eq(assignment.opened),
            append.payload.hash.eq(assignment.hash),
        ]

    def _cluster_tokens(self, m: Module, in_step: Signal) -> None:
        """Send hash codes to the HCU; after the last one wait until its assignment has left."""
        command, hcu_in, hcu_out = self.i.payload, self.hcu.i, self.hcu.o
        codes_complete = Signal()  # the last code of the step has entered
        queried = Signal()  # score rows follow
        is_code = (command.op == Op.CODE) & ~codes_complete
        m.d.comb += [
            hcu_in.payload.op.eq(hcu.Op.TOKEN),
            hcu_in.payload.hash.eq(command.hash),
            hcu_in.payload.last.eq(command.last),
            hcu_in.valid.eq(self.i.valid & is_code),
            self.i.ready.eq(hcu_in.ready & is_code),
        ]
        with m.If(hcu_in.valid & hcu_in.ready):
            m.d.sync += in_step.eq(1)
            with m.If(command.last):
                m.d.sync += [codes_complete.eq(1), queried.eq(command.query)]
        with m.If(hcu_out.valid & hcu_out.ready & hcu_out.payload.last):
            m.d.sync += [codes_complete.eq(0), in_step.eq(0)]
            with m.If(queried):
                m.next = "SYNC"

    def _select_pages(self, m: Module, commands: SkidBuffer, heads: SyncFIFOBuffered, bank: Signal) -> None:
        """Turn a selected cluster into a SELECT command for its KV head; the end of a list ends its head."""
        index = self.wtu.o_index
        heads_mask = Const(1, self.config.kv_heads) << heads.r_data
        _command(
            m,
            commands,
            valid=~index.payload.last,
            op=kvmu_command.Op.SELECT,
            cluster=index.payload.cluster,
            heads=heads_mask[: self.config.kv_heads],
            retain=self.cfg_retain_fetched,
            bank=bank,
        )
        m.d.comb += [
            index.ready.eq(index.payload.last | commands.i.ready),
            heads.r_en.eq(index.payload.last),
        ]

    def _execute(self, m: Module, commands: SkidBuffer, bank: Signal, selecting: Signal) -> None:
        """Execute a command other than CODE and SELECT. All but OPEN wait for all lists."""
        command = self.i.payload
        with m.Switch(command.op):
            with m.Case(Op.OPEN):
                m.next = "OPEN"
            with m.Case(Op.KEEP):
                m.d.comb += self.i.ready.eq(~selecting)
            with m.Case(Op.FETCH):
                _command(m, commands, valid=~selecting, op=kvmu_command.Op.FETCH)
                m.d.comb += self.i.ready.eq(~selecting & commands.i.ready)
                with m.If(self.i.ready):
                    m.d.sync += bank.eq(~bank)
            with m.Case(Op.RELEASE):
                _command(
                    m,
                    commands,
                    valid=~selecting,
                    op=kvmu_command.Op.EVICT,
                    cluster=command.cluster,
                    index=command.first_pages,
                    page=command.last_pages,
                )
                m.d.comb += self.i.ready.eq(~selecting & commands.i.ready)
            with m.Case(Op.MOVE):
                fields = {name: command[name] for name in ("cluster", "page", "slot", "opened", "hash")}
                _command(m, commands, valid=~selecting, op=kvmu_command.Op.MOVE, **fields)
                m.d.comb += self.i.ready.eq(~selecting & commands.i.ready)
            with m.Case(Op.STEP):
                _command(m, commands, valid=~selecting, op=kvmu_command.Op.STEP)
                m.d.comb += self.i.ready.eq(~selecting & commands.i.ready)

    def _synchronize(self, m: Module, commands: SkidBuffer) -> None:
        """SYNC writes the changed lines of the store to memory."""
        with m.State("SYNC"):
            _command(m, commands, valid=1, op=kvmu_command.Op.SYNC)
            with m.If(commands.i.ready):
                m.next = "COMMANDS"

    def _open(self, m: Module, commands: SkidBuffer) -> None:
        """OPEN sends the command to the KVMU; OPENING loads the candidates into the HCU until the reply."""
        candidates, candidate, request = self.kvmu.o_candidates, self.kvmu.o_candidates.payload, self.hcu.i.payload
        reply = self.kvmu.o
        with m.State("OPEN"):
            _command(m, commands, valid=1, op=kvmu_command.Op.OPEN, context=self.i.payload.context)
            m.d.comb += self.i.ready.eq(commands.i.ready)
            with m.If(commands.i.ready):
                m.next = "OPENING"
        with m.State("OPENING"):
            m.d.comb += [
                self.hcu.i.valid.eq(candidates.valid),
                candidates.ready.eq(self.hcu.i.ready),
                request.op.eq(Mux(candidate.begin, hcu.Op.BEGIN, hcu.Op.LOAD)),
                request.hash.eq(candidate.hash),
                request.count.eq(candidate.count),
                request.index.eq(Mux(candidate.begin, candidate.tokens, candidate.first_token)),
                request.cluster.eq(candidate.cluster),
            ]
            with m.If(reply.valid & reply.ready & reply.payload.last & (reply.payload.op == kvmu_command.Op.OPEN)):
                m.next = "COMMANDS"


def _command(m: Module, commands: SkidBuffer, *, valid: object, **fields: object) -> None:
    """Offer a command to the KVMU in the present state."""
    m.d.comb += commands.i.valid.eq(valid)
    m.d.comb += [commands.i.payload[name].eq(value) for name, value in fields.items()]


def _drive(sink: stream.Interface, source: stream.Interface) -> list:
    """Statements that connect two streams in the present state."""
    return [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
