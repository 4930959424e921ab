"""KVPU: KV prediction unit. It connects HCU, HC table, WTU and KVMU (V-Rex, Fig. 9 and 10)."""

import enum as python_enum

from amaranth import Cat, Const, Module, Mux, Signal, Value, unsigned
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.common.counters import count
from hw.common.fork import fork
from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.dre import hc_table, hcu
from hw.dre.hc_table import HcTable
from hw.dre.hcu import HCU
from hw.dre.kvmu import command as kvmu_command
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.wtu.wtu import WTU

MAX_ROW_GROUPS = 8  # groups of joined score rows in the WTU at one time


class Op(enum.Enum, shape=unsigned(2)):
    """Operation of one input beat."""

    CODE = 0  # the hash code of the next token
    BEGIN = 1  # start empty tables for layer `layer`
    SELECT = 2  # after the codes of a step with `query`: the next group of joined score rows is for KV head `head`
    FETCH = 3  # after the last SELECT of a step: fetch the selected pages, then end the step


class Stat(python_enum.StrEnum):
    """Counters of the KVPU itself, 32 bits each, cleared by `stat_clear`."""

    STEPS = "steps"  # steps completed
    CLUSTERING = "clustering"  # cycles in which tokens of a step are clustered
    SELECTING = "selecting"  # cycles from the last token of a step to its last selected cluster
    FETCHING = "fetching"  # cycles from there until the KVMU has accepted FETCH and STEP


class KVPU(wiring.Component):
    """Clusters the tokens of a step, selects clusters by the scores of its queries, and issues the transfers.

    A step is a packet of hash codes. The HCU assigns each code to a cluster. The assignment updates the HC table,
    stores the token in the KVMU (APPEND) and leaves on `o_assignment`. With `query` in the last code, score rows
    follow: one word and one token count per cluster in cluster order. They go to the WTU directly. The operation
    SELECT gives the KV head of a group of joined rows; it is accepted when the table of the step is complete in memory
    or on `o_write`. Each list of selected clusters becomes SELECT commands of the KVMU for this KV head. After FETCH
    and the last list, one FETCH of the KVMU reads the selected pages into the staging bank that the previous step did
    not use. STEP, the offload, ends every step.

    Steps follow one another. Inside a step the units overlap: a token is stored while the next one is compared, and
    the clusters of one KV head are marked while the rows of the next KV head are selected.

    Timing: `latency` is None, it depends on the data; the cycle formulas of the units hold. No combinational path
    leads from one stream to another, but `i.ready` depends on a field of its own beat.

    Numerics: integers only.

    Parameters
    ----------
    config : sizes of the units

    Members
    -------
    i : stream of `command` ; i_scores, o_again : streams `i` and `o_again` of the WTU
    o_assignment : assignments of the HCU; the LXE updates the mean keys with them
    o_write : writes of the HC table to memory
    o_row : cutoff of every score row ; o : replies of the KVMU, except those of SELECT
    o_dma, i_done, o_complete : see `KVMU`
    clusters : clusters in the table, the length of a score row
    cfg_* : see the units ; cfg_retain_fetched : fetched pages stay in device memory
    stat_* : see `Stat` ; stat_UNIT_* : the counters of the units

    Source: V-Rex (arXiv 2512.12284), section V-B, Fig. 9 and 10.
    """

    latency = None

    def __init__(self, config: Config):
        self.config = config
        self.hcu, self.table = HCU.from_config(config), HcTable.from_config(config)
        self.wtu, self.kvmu = WTU.from_config(config), KVMU.from_config(config)
        self.units = {"hcu": self.hcu, "hc_table": self.table, "wtu": self.wtu, "kvmu": self.kvmu}
        self.command = data.StructLayout(
            {
                "op": Op,
                "hash": config.hash_bits,
                "layer": range(self.kvmu.layers),
                "head": range(config.kv_heads),
                "query": 1,
                "last": 1,
            }
        )
        settings, counters = {}, {}
        for unit, component in self.units.items():
            for name, member in component.signature.members.items():
                if name.startswith("cfg_"):
                    assert name not in settings
                    settings[name] = In(member.shape)
                elif name.startswith("stat_") and name != "stat_clear":
                    counters[f"stat_{unit}_{name.removeprefix('stat_')}"] = Out(member.shape)
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "i_scores": In(stream.Signature(self.wtu.sizes.beat)),
                "o_again": Out(stream.Signature(self.wtu.sizes.again)),
                "o_assignment": Out(stream.Signature(self.hcu.assignment)),
                "o_write": Out(stream.Signature(self.table.write)),
                "o_row": Out(stream.Signature(self.wtu.sizes.result)),
                "o": Out(stream.Signature(self.kvmu.reply)),
                "o_dma": Out(stream.Signature(self.kvmu.o_dma.payload.shape())),
                "i_done": In(stream.Signature(self.kvmu.i_done.payload.shape())),
                "o_complete": Out(stream.Signature(self.kvmu.o_complete.payload.shape())),
                "clusters": Out(range(self.table.max_clusters + 1)),
                **settings,
                "cfg_retain_fetched": In(1),
                "stat_clear": In(1),
                **{f"stat_{name}": Out(32) for name in Stat},
                **counters,
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "KVPU":
        """The KVPU of one core."""
        return cls(config)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and the cycle formulas of the units, as written into the JSON of the generated unit."""
        return {"latency": self.latency, **{name: unit.timing for name, unit in self.units.items()}}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        self._connect_units(m)
        update = stream.Signature(self.table.command).create(path=("update",))
        append = stream.Signature(self.kvmu.command).create(path=("append",))
        self._split_assignment(m, update, append)
        m.submodules.rows = rows = SkidBuffer(self.wtu.i.payload.shape())
        wiring.connect(m, wiring.flipped(self.i_scores), rows.i)
        wiring.connect(m, rows.o, self.wtu.i)
        wiring.connect(m, self.wtu.o_again, wiring.flipped(self.o_again))
        head = self.i.payload.head
        m.submodules.heads = heads = SyncFIFOBuffered(width=max(1, len(head)), depth=MAX_ROW_GROUPS)

        in_step = Signal()  # tokens of a step are clustered
        marking = Signal()  # the lists of the WTU become SELECT commands
        with m.FSM(init="CODES") as fsm:
            self._cluster_tokens(m, update, append, in_step)
            self._select_clusters(m, heads, marking)
            self._end_step(m)
            steps = fsm.ongoing("STEP") & self.kvmu.i.ready
            selecting = Cat(fsm.ongoing(name) for name in ("TABLE", "ROWS", "LISTS")).any()
            fetching = fsm.ongoing("FETCH") | fsm.ongoing("STEP")
        self._mark_clusters(m, heads, marking)
        events = {
            Stat.STEPS: steps,
            Stat.CLUSTERING: in_step,
            Stat.SELECTING: selecting,
            Stat.FETCHING: fetching,
        }
        count(m, self, events)
        return m

    def _connect_units(self, m: Module) -> None:
        """Connect the ports of the units to the ports of the KVPU: settings, counters and streams."""
        for name, unit in self.units.items():
            m.submodules[name] = unit
            m.d.comb += unit.stat_clear.eq(self.stat_clear)
            for port in unit.signature.members:
                if port.startswith("cfg_"):
                    m.d.comb += getattr(unit, port).eq(getattr(self, port))
                elif port.startswith("stat_") and port != "stat_clear":
                    m.d.comb += getattr(self, f"stat_{name}_{port.removeprefix('stat_')}").eq(getattr(unit, port))
        wiring.connect(m, self.table.o_write, wiring.flipped(self.o_write))
        wiring.connect(m, self.wtu.o_row, wiring.flipped(self.o_row))
        wiring.connect(m, self.kvmu.o_dma, wiring.flipped(self.o_dma))
        wiring.connect(m, wiring.flipped(self.i_done), self.kvmu.i_done)
        wiring.connect(m, self.kvmu.o_complete, wiring.flipped(self.o_complete))
        reply = self.kvmu.o.payload
        m.d.comb += [
            self.clusters.eq(self.table.clusters),
            self.table.o.ready.eq(1),  # the KVPU does not use READ and LIST
            self.wtu.o.ready.eq(1),  # the KVPU uses the list of clusters instead of the bitmap
            self.o.payload.eq(reply),
            self.o.valid.eq(self.kvmu.o.valid & (reply.op != kvmu_command.Op.SELECT)),
            self.kvmu.o.ready.eq(self.o.ready | (reply.op == kvmu_command.Op.SELECT)),
        ]

    def _split_assignment(self, m: Module, update: stream.Interface, append: stream.Interface) -> None:
        """Send each assignment of the HCU to the HC table, to the KVMU and to `o_assignment`."""
        assignment = self.hcu.o.payload
        fork(m, "assignment", self.hcu.o, [update, append, self.o_assignment])
        m.d.comb += [
            self.o_assignment.payload.eq(assignment),
            update.payload.op.eq(hc_table.Op.UPDATE),
            update.payload.token.eq(assignment.token),
            update.payload.cluster.eq(assignment.cluster),
            update.payload.hash.eq(assignment.hash),
            update.payload.count.eq(assignment.count),
            update.payload.opened.eq(assignment.opened),
            append.payload.op.eq(kvmu_command.Op.APPEND),
            append.payload.cluster.eq(assignment.cluster),
            self.hcu.i.payload.hash.eq(self.i.payload.hash),
            self.hcu.i.payload.last.eq(self.i.payload.last),
        ]

    def _cluster_tokens(self, m: Module, update: stream.Interface, append: stream.Interface, in_step: Signal) -> None:
        """CODES clusters the tokens of a step; BEGIN_TABLE and BEGIN_KVMU start empty tables."""
        beat, hcu_in, hcu_out = self.i.payload, self.hcu.i, self.hcu.o
        codes_complete = Signal()  # the last code of the step has entered
        queried = Signal()  # score rows follow
        layer = Signal.like(beat.layer)
        with m.State("CODES"):
            begins = (beat.op == Op.BEGIN) & ~codes_complete
            # the HCU accepts BEGIN when it is idle; its last assignment must have left as well
            # SELECT and FETCH wait for the state ROWS
            is_selection = (beat.op == Op.SELECT) | (beat.op == Op.FETCH)
            blocked = codes_complete | (begins & hcu_out.valid) | is_selection
            m.d.comb += [
                hcu_in.payload.op.eq(Mux(begins, hcu.Op.BEGIN, hcu.Op.TOKEN)),
                hcu_in.valid.eq(self.i.valid & ~blocked),
                self.i.ready.eq(hcu_in.ready & ~blocked),
                *_drive(self.table.i, update),
                *_drive(self.kvmu.i, append),
            ]
            with m.If(self.i.valid & self.i.ready):
                m.d.sync += [in_step.eq(~begins), layer.eq(beat.layer)]
                with m.If(begins):
                    m.next = "BEGIN_TABLE"
                with m.Elif(beat.last):
                    m.d.sync += [codes_complete.eq(1), queried.eq(beat.query)]
            with m.If(hcu_out.valid & hcu_out.ready & hcu_out.payload.last):
                m.d.sync += [codes_complete.eq(0), in_step.eq(0)]
                m.next = "STEP"
                with m.If(queried):
                    m.next = "TABLE"
        with m.State("BEGIN_TABLE"):
            m.d.comb += [self.table.i.valid.eq(1), self.table.i.payload.op.eq(hc_table.Op.BEGIN)]
            with m.If(self.table.i.ready):
                m.next = "BEGIN_KVMU"
        with m.State("BEGIN_KVMU"):
            self._command_kvmu(m, op=kvmu_command.Op.BEGIN, layer=layer)
            with m.If(self.kvmu.i.ready):
                m.next = "CODES"

    def _select_clusters(self, m: Module, heads: SyncFIFOBuffered, marking: Signal) -> None:
        """TABLE waits for the writes of the HC table; ROWS accepts SELECT and FETCH; LISTS waits for the last list.

        `heads` holds the KV head of every list that the WTU has not completed.
        """
        index, op = self.wtu.o_index, self.i.payload.op
        m.d.comb += [
            heads.w_data.eq(self.i.payload.head),
            heads.r_en.eq(marking & index.valid & index.ready & index.payload.last),
        ]
        with m.State("TABLE"), m.If(self.table.i.ready):  # the last update has written its entry
            m.next = "ROWS"
        with m.State("ROWS"):
            m.d.comb += [
                marking.eq(1),
                heads.w_en.eq(self.i.valid & (op == Op.SELECT)),
                self.i.ready.eq(Mux(op == Op.SELECT, heads.w_rdy, op == Op.FETCH)),
            ]
            with m.If(self.i.valid & (op == Op.FETCH)):
                m.next = "LISTS"
        with m.State("LISTS"):
            m.d.comb += marking.eq(1)
            with m.If((heads.level == 0) & ~heads.r_rdy):
                m.next = "FETCH"

    def _mark_clusters(self, m: Module, heads: SyncFIFOBuffered, marking: Signal) -> None:
        """While `marking`, turn each selected cluster into a SELECT command for its KV head."""
        index, kv_heads = self.wtu.o_index, self.config.kv_heads
        with m.If(marking & heads.r_rdy):
            m.d.comb += [
                self.kvmu.i.valid.eq(index.valid & ~index.payload.last),
                self.kvmu.i.payload.op.eq(kvmu_command.Op.SELECT),
                self.kvmu.i.payload.cluster.eq(index.payload.cluster),
                self.kvmu.i.payload.heads.eq((Const(1, kv_heads) << heads.r_data)[:kv_heads]),
                index.ready.eq(index.payload.last | self.kvmu.i.ready),
            ]

    def _end_step(self, m: Module) -> None:
        """FETCH reads the selected pages, STEP offloads the oldest pages."""
        bank = Signal()  # staging bank of the next FETCH
        with m.State("FETCH"):
            self._command_kvmu(m, op=kvmu_command.Op.FETCH, retain=self.cfg_retain_fetched, bank=bank)
            with m.If(self.kvmu.i.ready):
                m.d.sync += bank.eq(~bank)
                m.next = "STEP"
        with m.State("STEP"):
            self._command_kvmu(m, op=kvmu_command.Op.STEP)
            with m.If(self.kvmu.i.ready):
                m.next = "CODES"

    def _command_kvmu(self, m: Module, **fields: Value | kvmu_command.Op) -> None:
        """Offer a command to the KVMU in the present state."""
        m.d.comb += self.kvmu.i.valid.eq(1)
        m.d.comb += [self.kvmu.i.payload[name].eq(value) for name, value in fields.items()]


def _drive(sink: stream.Interface, source: stream.Interface) -> list:
    """Statements that connect two streams in the present state."""
    return [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
