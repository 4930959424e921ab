"""On-chip memory of the LXE: operands of the matrix engine, and sizes of all memories (V-Rex, section VI-F)."""

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import BF16, FP32
from hw.common.memory import Ram
from hw.config import Config


@dataclass(frozen=True)
class OnChipMemory:
    """Size of one on-chip memory: banks of `rows` rows of `width` bits, with one read and one write port each."""

    name: str
    rows: int
    width: int
    banks: int = 1

    @property
    def bits(self) -> int:
        """Size in bits."""
        return self.rows * self.width * self.banks


def memories(config: Config) -> tuple[OnChipMemory, ...]:
    """The memories of the LXE: accumulators, vectors, weights, activations. Together they have `lxe_memory_bytes`.

    The accumulators and the vector memory have the sizes of their engines. Weights get three quarters of the rest and
    activations one quarter.

    Raises
    ------
    ValueError
        When `lxe_memory_bytes` is too small for one row of weights per bank.
    """
    sums = OnChipMemory("accumulators", config.dpe_accumulators, FP32.size * config.dpe_trees)
    vectors = OnChipMemory("vectors", config.vpe_rows, FP32.size * config.vpe_lanes, banks=2)  # two copies: two reads
    row = BF16.size * config.dpe_inputs
    rows = (8 * config.lxe_memory_bytes - sums.bits - vectors.bits) // row
    bank_rows = (rows - rows // 4) // config.dpe_load_rows
    if bank_rows < 1:
        least = (sums.bits + vectors.bits) // 8
        raise ValueError(
            f"lxe_memory_bytes must be above {least} (accumulators and vectors) with space for operands, "
            f"got {config.lxe_memory_bytes}"
        )
    weights = OnChipMemory("weights", bank_rows, row, config.dpe_load_rows)
    return sums, vectors, weights, OnChipMemory("activations", rows - bank_rows * config.dpe_load_rows, row)


class OperandMemory(wiring.Component):
    """Memory of weights and activations, read as beats of the matrix engine.

    A row has `inputs` BF16 codes. Row r of the weights is in bank r mod `load_rows` at address r div `load_rows`, so
    that one read gives `load_rows` rows. The user must not read a row in the cycle in which it is written. In a core
    the events LOAD and OPERANDS order LOAD and MULTIPLY, see `sim.formal.specifications.operands`.

    Timing: one write, one read of weights and one read of activations per cycle. The beat of a read follows one cycle
    later and stays until it is accepted. `i_write.ready` is always 1. The ready of a read stream depends
    combinationally on the ready of its output; there is no other combinational path.

    Parameters
    ----------
    inputs : BF16 codes of a row
    load_rows : rows of a beat of weights
    weight_rows : rows of the weights, a multiple of `load_rows`
    activation_rows : rows of the activations
    accumulators : accumulators of the matrix engine

    Members
    -------
    i_write : stream of `write`: codes for row `row` of the activations or of the weights; the row must exist
    i_weights : stream of addresses in the banks of weights
    o_weights : stream of `load_rows` rows, one beat for each address
    i_activations : stream of `read`: a row, and the accumulator and flags of its beat
    o_activations : stream of beats for the input `i` of the matrix engine

    Raises
    ------
    ValueError
        When a parameter is below 1 or `weight_rows` is not a multiple of `load_rows`.
    """

    latency = 1

    def __init__(self, *, inputs: int, load_rows: int, weight_rows: int, activation_rows: int, accumulators: int):
        sizes = {"inputs": inputs, "load_rows": load_rows, "accumulators": accumulators}
        for name, value in {**sizes, "activation_rows": activation_rows}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if weight_rows < 1 or weight_rows % load_rows:
            raise ValueError(f"weight_rows must be a multiple of load_rows = {load_rows}, got {weight_rows}")
        self.inputs, self.load_rows, self.accumulators = inputs, load_rows, accumulators
        self.weight_rows, self.activation_rows = weight_rows, activation_rows
        vector = data.ArrayLayout(BF16.size, inputs)
        control = {"accumulator": range(accumulators), "first": 1, "last": 1, "release": 1}
        self.write = data.StructLayout(
            {"row": range(max(weight_rows, activation_rows)), "activations": 1, "codes": vector}
        )
        self.read = data.StructLayout({"row": range(activation_rows), **control})
        self.activations = data.StructLayout({"x": vector, **control})
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
        """The operand memory of one core, with the rows that `memories` gives."""
        _, _, weights, activations = memories(config)
        return cls(
            inputs=config.dpe_inputs,
            load_rows=config.dpe_load_rows,
            weight_rows=weights.rows * weights.banks,
            activation_rows=activations.rows,
            accumulators=config.dpe_accumulators,
        )

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "reads_per_cycle": 2, "writes_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        row_bits = BF16.size * self.inputs
        m.submodules.activations = activations = Ram(depth=self.activation_rows, width=row_bits, bypass=False)
        bank_rows = self.weight_rows // self.load_rows
        banks = [Ram(depth=bank_rows, width=row_bits, bypass=False) for _ in range(self.load_rows)]
        m.d.comb += self.i_write.ready.eq(1)
        self._activations(m, activations)
        self._weights(m, banks)
        return m

    def _activations(self, m: Module, memory: Ram) -> None:
        """Connect the memory of the activations."""
        write, read, beat = self.i_write.payload, self.i_activations.payload, self.o_activations.payload
        accepted = _accept(m, self.i_activations, self.o_activations)
        m.d.comb += [
            memory.w_addr.eq(write.row[: len(memory.w_addr)]),
            memory.w_data[0].eq(Value.cast(write.codes)),
            memory.w_mask.eq(self.i_write.valid & write.activations),
            memory.r_addr.eq(read.row),
            memory.r_en.eq(accepted),
            Value.cast(beat.x).eq(memory.r_data[0]),
        ]
        control = ("accumulator", "first", "last", "release")
        with m.If(accepted):
            m.d.sync += [getattr(beat, name).eq(getattr(read, name)) for name in control]

    def _weights(self, m: Module, banks: Sequence[Ram]) -> None:
        """Connect the banks of the weights."""
        write = self.i_write.payload
        accepted = _accept(m, self.i_weights, self.o_weights)
        address = write.row // self.load_rows
        for k, bank in enumerate(banks):
            m.submodules[f"weights{k}"] = bank
            m.d.comb += [
                bank.w_addr.eq(address[: len(bank.w_addr)]),
                bank.w_data[0].eq(Value.cast(write.codes)),
                bank.w_mask.eq(self.i_write.valid & ~write.activations & (write.row % self.load_rows == k)),
                bank.r_addr.eq(self.i_weights.payload),
                bank.r_en.eq(accepted),
            ]
        m.d.comb += Value.cast(self.o_weights.payload).eq(Cat(*(bank.r_data[0] for bank in banks)))


def _accept(m: Module, request: stream.Interface, answer: stream.Interface) -> Signal:
    """Whether a read is accepted: when `answer` has no beat, or its beat is accepted in this cycle."""
    accepted = Signal()
    m.d.comb += [request.ready.eq(~answer.valid | answer.ready), accepted.eq(request.valid & request.ready)]
    with m.If(request.ready):
        m.d.sync += answer.valid.eq(request.valid)
    return accepted
