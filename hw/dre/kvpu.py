"""KVPU: KV prediction unit; HCU, HC table, WTU and KVMU as one stream machine (V-Rex, Fig. 9 and 10)."""

import enum as python_enum

from amaranth import Cat, Const, Module, Mux, Signal, unsigned
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
from hw.dre.wtu import command as wtu_command
from hw.dre.wtu.wtu import WTU

HEADS_WAITING = 8  # groups of rows inside the WTU whose KV head is remembered


class Op(enum.Enum, shape=unsigned(1)):
    """What one input beat asks for."""

    CODE = 0  # the hash code of the next token
    BEGIN = 1  # forget everything and start the tables of `layer`


class Stat(python_enum.StrEnum):
    """Counters of the chain itself, 32 bits each, cleared by `stat_clear`; each unit's own have its name before."""

    STEPS = "steps"  # steps completed
    CLUSTERING = "clustering"  # cycles in which tokens of a step were under way
    SELECTING = "selecting"  # cycles from the last token of a step to its last selected cluster
    FETCHING = "fetching"  # cycles from there until the KVMU had taken FETCH and STEP


class KVPU(wiring.Component):
    """Clusters the tokens of a step, takes the scores of its queries, and issues the transfers they need.

    A step is a packet of hash codes. Each code goes through the HCU; its assignment updates the HC table, places the
    token (APPEND) and leaves on `o_assignment`. With `query` in the last code, scores follow: rows of one key per
    cluster, in cluster order, head by head; `join` keeps a row's selection back to be united with the next row's.
    The HC table's counts go to the WTU ahead of them. Each list of selected clusters becomes SELECT commands for its
    KV head; behind the last row comes one FETCH, into the staging bank that the step before did not use. Every
    step ends with STEP, the offload. No software stands between: what leaves are places for keys and values, units
    to read, descriptors.

    The steps follow one another; inside a step the units overlap: a token is placed while the next is compared, and a
    head's clusters are marked while the next head's rows are selected.

    Timing: data dependent (`latency` None); the units' own formulas hold inside. No combinational path leads from one
    stream to another, but `i.ready` and `i_scores.ready` depend on the beat's own fields.

    Numerics: integers only.

    Parameters
    ----------
    config : sizes of the units

    Members
    -------
    i : stream of `command` ; i_scores : stream of `score`
    o_assignment : assignments as the HCU gives them (the LXE updates the representative keys with them)
    o_write : the HC table's writes to memory
    o_row : cutoff of every score row ; o : replies of the KVMU, but for SELECT
    o_dma, i_done, o_complete : as the KVMU's
    size : clusters in the table, the length of a score row
    cfg_* : as the units' ; cfg_retain_fetched : fetched pages become resident
    stat_*, stat_UNIT_* : see `Stat`, and the units'
    """

    latency = None

    def __init__(self, config: Config):
        self.config = config
        self.hcu, self.table = HCU.from_config(config), HcTable.from_config(config)
        self.wtu, self.kvmu = WTU.from_config(config), KVMU.from_config(config)
        self.units = {"hcu": self.hcu, "hc_table": self.table, "wtu": self.wtu, "kvmu": self.kvmu}
        self.command = data.StructLayout(
            {"op": Op, "hash": config.hash_bits, "layer": range(self.kvmu.layers), "query": 1, "last": 1}
        )
        self.score = data.StructLayout(
            {
                "words": data.ArrayLayout(wtu_command.KEY_BITS, config.wtu_lanes),
                "used": range(config.wtu_lanes + 1),
                "join": 1,  # as the WTU's beats
                "last": 1,  # of the row
                "head": range(config.kv_heads),  # of the row
                "final": 1,  # the row is the step's last one
            }
        )
        settings, counters = {}, {}
        for unit, part in self.units.items():
            for name, member in part.signature.members.items():
                if name.startswith("cfg_"):
                    assert name not in settings
                    settings[name] = In(member.shape)
                elif name.startswith("stat_") and name != "stat_clear":
                    counters[f"stat_{unit}_{name.removeprefix('stat_')}"] = Out(member.shape)
        super().__init__(
            {
                "i": In(stream.Signature(self.command)),
                "i_scores": In(stream.Signature(self.score)),
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
        """Latency and the units' formulas, as written into the generated unit's JSON."""
        return {"latency": self.latency, **{name: part.timing for name, part in self.units.items()}}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        for name, part in self.units.items():
            m.submodules[name] = part
            m.d.comb += part.stat_clear.eq(self.stat_clear)
            for port in part.signature.members:
                if port.startswith("cfg_"):
                    m.d.comb += getattr(part, port).eq(getattr(self, port))
                elif port.startswith("stat_") and port != "stat_clear":
                    m.d.comb += getattr(self, f"stat_{name}_{port.removeprefix('stat_')}").eq(getattr(part, port))
        wiring.connect(m, self.table.o_write, wiring.flipped(self.o_write))
        wiring.connect(m, self.wtu.o_row, wiring.flipped(self.o_row))
        wiring.connect(m, self.kvmu.o_dma, wiring.flipped(self.o_dma))
        wiring.connect(m, wiring.flipped(self.i_done), self.kvmu.i_done)
        wiring.connect(m, self.kvmu.o_complete, wiring.flipped(self.o_complete))
        answer = self.kvmu.o.payload
        m.d.comb += [
            self.clusters.eq(self.table.clusters),
            self.table.o.ready.eq(1),  # READ and LIST are not used here
            self.wtu.o.ready.eq(1),  # the list says the same
            self.o.payload.eq(answer),
            self.o.valid.eq(self.kvmu.o.valid & (answer.op != kvmu_command.Op.SELECT)),
            self.kvmu.o.ready.eq(self.o.ready | (answer.op == kvmu_command.Op.SELECT)),
        ]

        beat, given, bank = self.i.payload, self.hcu.o.payload, Signal()
        inside, taken, queried = Signal(), Signal(), Signal()  # a step is under way; its last code is in; scores follow
        layer = Signal.like(beat.layer)
        # each phase of a step owns the inputs of the table and the KVMU
        update = stream.Signature(self.table.command).create(path=("update",))
        append = stream.Signature(self.kvmu.command).create(path=("append",))
        fork(m, "assignment", self.hcu.o, [update, append, self.o_assignment])
        m.d.comb += [
            self.o_assignment.payload.eq(given),
            update.payload.op.eq(hc_table.Op.UPDATE),
            update.payload.token.eq(given.token),
            update.payload.cluster.eq(given.cluster),
            update.payload.hash.eq(given.hash),
            update.payload.count.eq(given.count),
            update.payload.opened.eq(given.opened),
            append.payload.op.eq(kvmu_command.Op.APPEND),
            append.payload.cluster.eq(given.cluster),
            self.hcu.i.payload.hash.eq(beat.hash),
            self.hcu.i.payload.last.eq(beat.last),
        ]

        # score rows, and the KV head of each list they give
        m.submodules.rows = rows = SkidBuffer(self.wtu.i.payload.shape())
        wiring.connect(m, rows.o, self.wtu.i)
        row, picked = self.i_scores.payload, self.wtu.o_index.payload
        m.submodules.heads = heads = SyncFIFOBuffered(width=max(1, len(row.head)), depth=HEADS_WAITING)
        apart = Signal()  # the row ends a group: a list follows
        marking = Signal()
        m.d.comb += [
            apart.eq(row.last & (~row.join | row.final)),
            heads.w_data.eq(row.head),
            heads.w_en.eq(self.i_scores.valid & self.i_scores.ready & apart),
            heads.r_en.eq(self.wtu.o_index.valid & self.wtu.o_index.ready & picked.last),
        ]

        with m.FSM(init="CODES") as fsm:
            with m.State("CODES"):
                begins = (beat.op == Op.BEGIN) & ~taken
                # the HCU takes BEGIN when it is idle; its last assignment must have left, too
                blocked = taken | (begins & self.hcu.o.valid)
                m.d.comb += [
                    self.hcu.i.payload.op.eq(Mux(begins, hcu.Op.BEGIN, hcu.Op.TOKEN)),
                    self.hcu.i.valid.eq(self.i.valid & ~blocked),
                    self.i.ready.eq(self.hcu.i.ready & ~blocked),
                    *_drive(self.table.i, update),
                    *_drive(self.kvmu.i, append),
                ]
                with m.If(self.i.valid & self.i.ready):
                    m.d.sync += [inside.eq(~begins), layer.eq(beat.layer)]
                    with m.If(begins):
                        m.next = "BEGIN_TABLE"
                    with m.Elif(beat.last):
                        m.d.sync += [taken.eq(1), queried.eq(beat.query)]
                with m.If(self.hcu.o.valid & self.hcu.o.ready & given.last):
                    m.d.sync += [taken.eq(0), inside.eq(0)]
                    m.next = "STEP"
                    with m.If(queried):
                        m.next = "COUNTS"
            with m.State("BEGIN_TABLE"):
                m.d.comb += [self.table.i.valid.eq(1), self.table.i.payload.op.eq(hc_table.Op.BEGIN)]
                with m.If(self.table.i.ready):
                    m.next = "BEGIN_KVMU"
            with m.State("BEGIN_KVMU"):
                m.d.comb += [
                    self.kvmu.i.valid.eq(1),
                    self.kvmu.i.payload.op.eq(kvmu_command.Op.BEGIN),
                    self.kvmu.i.payload.layer.eq(layer),
                ]
                with m.If(self.kvmu.i.ready):
                    m.next = "CODES"
            with m.State("COUNTS"):
                m.d.comb += [self.table.i.valid.eq(1), self.table.i.payload.op.eq(hc_table.Op.COUNTS)]
                with m.If(self.table.i.ready):
                    m.next = "LOAD"
            with m.State("LOAD"):
                counts = self.table.o_counts
                m.d.comb += [
                    rows.i.valid.eq(counts.valid),
                    rows.i.payload.op.eq(wtu_command.Op.COUNTS),
                    rows.i.payload.used.eq(counts.payload.used),
                    rows.i.payload.last.eq(counts.payload.last),
                    counts.ready.eq(rows.i.ready),
                    *(rows.i.payload.words[k].eq(counts.payload.counts[k]) for k in range(self.wtu.sizes.lanes)),
                ]
                with m.If(counts.valid & counts.ready & counts.payload.last):
                    m.next = "ROWS"
            with m.State("ROWS"):
                room = heads.w_rdy | ~apart
                m.d.comb += [
                    marking.eq(1),
                    rows.i.valid.eq(self.i_scores.valid & room),
                    rows.i.payload.op.eq(wtu_command.Op.KEYS),
                    rows.i.payload.words.eq(row.words),
                    rows.i.payload.used.eq(row.used),
                    rows.i.payload.join.eq(row.join & ~row.final),
                    rows.i.payload.last.eq(row.last),
                    self.i_scores.ready.eq(rows.i.ready & room),
                ]
                with m.If(self.i_scores.valid & self.i_scores.ready & row.last & row.final):
                    m.next = "LISTS"
            with m.State("LISTS"):
                m.d.comb += marking.eq(1)
                with m.If((heads.level == 0) & ~heads.r_rdy):
                    m.next = "FETCH"
            with m.State("FETCH"):
                m.d.comb += [
                    self.kvmu.i.valid.eq(1),
                    self.kvmu.i.payload.op.eq(kvmu_command.Op.FETCH),
                    self.kvmu.i.payload.retain.eq(self.cfg_retain_fetched),
                    self.kvmu.i.payload.bank.eq(bank),
                ]
                with m.If(self.kvmu.i.ready):
                    m.d.sync += bank.eq(~bank)
                    m.next = "STEP"
            with m.State("STEP"):
                m.d.comb += [self.kvmu.i.valid.eq(1), self.kvmu.i.payload.op.eq(kvmu_command.Op.STEP)]
                with m.If(self.kvmu.i.ready):
                    m.next = "CODES"

        with m.If(marking):
            m.d.comb += [
                self.kvmu.i.valid.eq(self.wtu.o_index.valid & ~picked.last),
                self.kvmu.i.payload.op.eq(kvmu_command.Op.SELECT),
                self.kvmu.i.payload.cluster.eq(picked.cluster),
                self.kvmu.i.payload.heads.eq((Const(1, self.config.kv_heads) << heads.r_data)[: self.config.kv_heads]),
                self.wtu.o_index.ready.eq(picked.last | self.kvmu.i.ready),
            ]

        events = {
            Stat.STEPS: fsm.ongoing("STEP") & self.kvmu.i.ready,
            Stat.CLUSTERING: inside,
            Stat.SELECTING: Cat(fsm.ongoing(name) for name in ("COUNTS", "LOAD", "ROWS", "LISTS")).any(),
            Stat.FETCHING: fsm.ongoing("FETCH") | fsm.ongoing("STEP"),
        }
        count(m, self, events)
        return m


def _drive(sink: stream.Interface, source: stream.Interface) -> list:
    """Connect two streams for as long as the present state lasts."""
    return [sink.valid.eq(source.valid), sink.payload.eq(source.payload), source.ready.eq(sink.ready)]
