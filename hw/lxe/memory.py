"""On-chip memory of the LXE: operands of the matrix engine, and the account of every memory (V-Rex, section VI-F)."""

from dataclasses import dataclass

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import BF16, FP32
from hw.common.memory import Ram
from hw.config import Config


@dataclass(frozen=True)
class Memory:
    """One on-chip memory: `banks` times `rows` rows of `width` bits, each with one read and one write port."""

    name: str
    rows: int
    width: int
    banks: int = 1

    @property
    def bits(self) -> int:
        return self.rows * self.width * self.banks


def memories(config: Config) -> tuple[Memory, ...]:
    """Every memory of the LXE in `config`; together they have its `lxe_memory_bytes`.

    The accumulators and the vector engine have theirs; what is left holds operands, about three quarters of it weights.
    """
    sums = Memory("accumulators", config.dpe_accumulators, FP32.size * config.dpe_trees)
    vectors = Memory("vectors", config.vpe_rows, FP32.size * config.vpe_lanes, banks=2)  # two reads
    row = BF16.size * config.dpe_inputs
    rows = (8 * config.lxe_memory_bytes - sums.bits - vectors.bits) // row
    deep = (rows - rows // 4) // config.dpe_load_rows
    if deep < 1:
        raise ValueError(f"lxe_memory_bytes = {config.lxe_memory_bytes}: leaves no room for operands")
    weights = Memory("weights", deep, row, config.dpe_load_rows)
    return sums, vectors, weights, Memory("activations", rows - deep * config.dpe_load_rows, row)


class OperandMemory(wiring.Component):
    """Weights and activations on chip, read as beats of the matrix engine.

    A row is `inputs` BF16 codes. Row r of the weights lies in bank r mod `load_rows` at r div `load_rows`, so one read
    gives `load_rows` rows. A read that meets a write of the same row in the same cycle returns the new row.

    Timing: one write, one read of weights and one of activations per cycle; a read's beat follows one cycle later and
    stays until it is taken. `i_write.ready` is always 1. The ready of a read stream follows that of its output
    combinationally; there is no other combinational path.

    Parameters
    ----------
    inputs, load_rows : codes of a row, rows of a weight beat
    weight_rows, activation_rows : capacity; `load_rows` divides `weight_rows`
    slots : of the matrix engine

    Members
    -------
    i_write : stream of `write`: into the weights or the activations, at `row`, which must be there
    i_weights, o_weights : stream of places, in units of `load_rows` rows; stream of `load_rows` rows
    i_activations, o_activations : stream of `read`, a row and what goes with it; stream of the engine's activations
    """

    latency = 1

    def __init__(self, *, inputs: int, load_rows: int, weight_rows: int, activation_rows: int, slots: int):
        for name, value in (("inputs", inputs), ("load_rows", load_rows), ("slots", slots)):
            if value < 1:
                raise ValueError(f"{name} = {value}: must be at least 1")
        if weight_rows < 1 or weight_rows % load_rows:
            raise ValueError(f"weight_rows = {weight_rows}: must be a multiple of load_rows = {load_rows}")
        if activation_rows < 1:
            raise ValueError(f"activation_rows = {activation_rows}: must be at least 1")
        self.inputs, self.load_rows, self.slots = inputs, load_rows, slots
        self.weight_rows, self.activation_rows = weight_rows, activation_rows
        vector = data.ArrayLayout(BF16.size, inputs)
        along = {"slot": range(slots), "first": 1, "last": 1, "release": 1}
        self.write = data.StructLayout(
            {"row": range(max(weight_rows, activation_rows)), "activations": 1, "codes": vector}
        )
        self.read = data.StructLayout({"row": range(activation_rows), **along})
        self.activations = data.StructLayout({"x": vector, **along})
        super().__init__(
            {
                "i_write": In(stream.Signature(self.write)),
                "i_weights": In(stream.Signature(range(weight_rows // load_rows))),
                "o_weights": Out(stream.Signature(data.ArrayLayout(vector, load_rows))),
                "i_activations": In(stream.Signature(self.read)),
                "o_activations": Out(stream.Signature(self.activations)),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "OperandMemory":
        """What `memories` leaves for operands."""
        _, _, weights, activations = memories(config)
        return cls(
            inputs=config.dpe_inputs,
            load_rows=config.dpe_load_rows,
            weight_rows=weights.rows * weights.banks,
            activation_rows=activations.rows,
            slots=config.dpe_accumulators,
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput, as written into the generated unit's JSON."""
        return {"latency": self.latency, "reads_per_cycle": 2, "writes_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row_bits = BF16.size * self.inputs
        m.submodules.activations = activations = Ram(depth=self.activation_rows, width=row_bits)
        banks = [Ram(depth=self.weight_rows // self.load_rows, width=row_bits) for _ in range(self.load_rows)]
        write, writing = self.i_write.payload, self.i_write.valid
        m.d.comb += self.i_write.ready.eq(1)
        codes = Value.cast(write.codes)

        def reader(source: stream.Interface, target: stream.Interface) -> Signal:
            """High when a read is taken: nothing waits in `target`, or it leaves."""
            taken = Signal()
            m.d.comb += [source.ready.eq(~target.valid | target.ready), taken.eq(source.valid & source.ready)]
            with m.If(source.ready):
                m.d.sync += target.valid.eq(source.valid)
            return taken

        asked, beat = self.i_activations.payload, self.o_activations.payload
        taken = reader(self.i_activations, self.o_activations)
        m.d.comb += [
            activations.w_addr.eq(write.row[: len(activations.w_addr)]),
            activations.w_data[0].eq(codes),
            activations.w_mask.eq(writing & write.activations),
            activations.r_addr.eq(asked.row),
            activations.r_en.eq(taken),
            Value.cast(beat.x).eq(activations.r_data[0]),
        ]
        with m.If(taken):
            m.d.sync += [getattr(beat, name).eq(getattr(asked, name)) for name in ("slot", "first", "last", "release")]

        taken = reader(self.i_weights, self.o_weights)
        place = write.row // self.load_rows
        for k, bank in enumerate(banks):
            m.submodules[f"weights{k}"] = bank
            m.d.comb += [
                bank.w_addr.eq(place[: len(bank.w_addr)]),
                bank.w_data[0].eq(codes),
                bank.w_mask.eq(writing & ~write.activations & (write.row % self.load_rows == k)),
                bank.r_addr.eq(self.i_weights.payload),
                bank.r_en.eq(taken),
            ]
        m.d.comb += Value.cast(self.o_weights.payload).eq(Cat(*(bank.r_data[0] for bank in banks)))
        return m
