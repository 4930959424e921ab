"""On-chip memory of the LXE: operands of the matrix engine, and sizes of all memories (V-Rex, section VI-F)."""

from collections.abc import Sequence
from dataclasses import dataclass

from amaranth import Cat, Module, Mux, Signal, Value, ValueLike
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.formats import BF16, FP32
from hw.common.memory import SinglePortRam
from hw.config import Config


@dataclass(frozen=True)
class OnChipMemory:
    """Size of one on-chip memory: banks of `rows` rows of `width` bits."""

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


class HalvedRam(wiring.Component):
    """Memory in two halves, each with one port: while one is written, the other one can be read.

    The user must not read and write the same half in one cycle.

    Timing: `r_data` has the row `r_addr` one cycle after `r_en`, and keeps it until the cycle after the next `r_en`.

    Parameters
    ----------
    rows, width : size of the memory
    half : rows of the first half, 1 to `rows`; without a second half all rows share one port

    Members
    -------
    w_addr, w_en, w_data : row to write
    r_addr, r_en, r_data : row to read
    """

    latency = 1

    def __init__(self, *, rows: int, width: int, half: int):
        self.rows, self.width, self.half = rows, width, half
        super().__init__(
            {
                "w_addr": In(range(rows)),
                "w_en": In(1),
                "w_data": In(width),
                "r_addr": In(range(rows)),
                "r_en": In(1),
                "r_data": Out(width),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        written, read, shown = self.second(self.w_addr), self.second(self.r_addr), Signal()
        with m.If(self.r_en):
            m.d.sync += shown.eq(read)
        rows = []
        for name, number, first, depth in (("first", 0, 0, self.half), ("second", 1, self.half, self.rows - self.half)):
            if not depth:
                continue
            m.submodules[name] = memory = SinglePortRam(depth=depth, width=self.width)
            m.d.comb += [
                memory.w_addr.eq((self.w_addr - first)[: len(memory.w_addr)]),
                memory.w_data[0].eq(self.w_data),
                memory.w_mask.eq(self.w_en & (written == number)),
                memory.r_addr.eq((self.r_addr - first)[: len(memory.r_addr)]),
                memory.r_en.eq(self.r_en & (read == number)),
            ]
            rows.append(memory.r_data[0])
        m.d.comb += self.r_data.eq(Mux(shown, rows[-1], rows[0]))
        return m

    def second(self, row: Value) -> Value:
        """Whether the row is in the second half."""
        return row >= self.half


class OperandMemory(wiring.Component):
    """Memory of weights and activations, read as beats of the matrix engine.

    A row has `inputs` BF16 codes. Row r of the weights is in bank r mod `load_rows` at address r div `load_rows`, so
    that one read gives `load_rows` rows.

    Weights and activations have two halves each, and each half has one port: a program loads one half while it uses the
    other. If a read and a write meet in one half, the rarer access goes first. A read of weights gives `load_rows`
    rows, a write one: the write waits. An activation row is written once and read for each block of results: the read
    waits.

    Timing: one write and one read of each kind per cycle. The beat of a read follows one cycle later and stays until it
    is accepted. `i_write.ready` depends combinationally on its payload, on `i_weights` and on `o_weights.ready`; the
    ready of a read stream on the ready of its output, and that of `i_activations` also on its payload and on `i_write`.
    There is no other combinational path.

    Parameters
    ----------
    inputs : BF16 codes of a row
    load_rows : rows of a beat of weights
    weight_rows : rows of the weights, a multiple of `load_rows`
    tile_rows : rows of a tile of weights, a multiple of `load_rows`
    activation_rows : rows of the activations
    accumulators : accumulators of the matrix engine

    Attributes
    ----------
    weight_half, activation_half : rows of the first half; a half of the weights has whole tiles

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
        When a parameter is below 1, or `weight_rows` or `tile_rows` is not a multiple of `load_rows`.
    """

    latency = 1

    def __init__(
        self, *, inputs: int, load_rows: int, weight_rows: int, tile_rows: int, activation_rows: int, accumulators: int
    ):
        sizes = {"inputs": inputs, "load_rows": load_rows, "accumulators": accumulators}
        for name, value in {**sizes, "activation_rows": activation_rows}.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, value in (("weight_rows", weight_rows), ("tile_rows", tile_rows)):
            if value < 1 or value % load_rows:
                raise ValueError(f"{name} must be a multiple of load_rows = {load_rows}, got {value}")
        self.inputs, self.load_rows, self.accumulators = inputs, load_rows, accumulators
        self.weight_rows, self.activation_rows = weight_rows, activation_rows
        self.weight_half = weight_rows // tile_rows // 2 * tile_rows or weight_rows
        self.activation_half = activation_rows // 2 or activation_rows
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
            tile_rows=config.dpe_trees,
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
        m.submodules.activations = activations = HalvedRam(
            rows=self.activation_rows, width=row_bits, half=self.activation_half
        )
        rows, half = self.weight_rows // self.load_rows, self.weight_half // self.load_rows
        banks = [HalvedRam(rows=rows, width=row_bits, half=half) for _ in range(self.load_rows)]
        self._activations(m, activations)
        self._weights(m, banks)
        return m

    def _activations(self, m: Module, memory: HalvedRam) -> None:
        """Connect the memory of the activations. A read waits for a write in its half."""
        write, read, beat = self.i_write.payload, self.i_activations.payload, self.o_activations.payload
        written = self.i_write.valid & write.activations
        same_half = memory.second(write.row) == memory.second(read.row)
        accepted = _accept(m, self.i_activations, self.o_activations, wait=written & same_half)
        m.d.comb += [
            memory.w_addr.eq(write.row[: len(memory.w_addr)]),
            memory.w_data.eq(Value.cast(write.codes)),
            memory.w_en.eq(written),
            memory.r_addr.eq(read.row),
            memory.r_en.eq(accepted),
            Value.cast(beat.x).eq(memory.r_data),
        ]
        control = ("accumulator", "first", "last", "release")
        with m.If(accepted):
            m.d.sync += [getattr(beat, name).eq(getattr(read, name)) for name in control]

    def _weights(self, m: Module, banks: Sequence[HalvedRam]) -> None:
        """Connect the banks of the weights. A write waits for a read in its half."""
        write, address, read = self.i_write.payload, self.i_write.payload.row // self.load_rows, self.i_weights.payload
        accepted = _accept(m, self.i_weights, self.o_weights)
        waits = accepted & (banks[0].second(address) == banks[0].second(read))
        written = self.i_write.valid & ~write.activations & ~waits
        m.d.comb += self.i_write.ready.eq(write.activations | ~waits)
        for k, bank in enumerate(banks):
            m.submodules[f"weights{k}"] = bank
            m.d.comb += [
                bank.w_addr.eq(address[: len(bank.w_addr)]),
                bank.w_data.eq(Value.cast(write.codes)),
                bank.w_en.eq(written & (write.row % self.load_rows == k)),
                bank.r_addr.eq(read),
                bank.r_en.eq(accepted),
            ]
        m.d.comb += Value.cast(self.o_weights.payload).eq(Cat(*(bank.r_data for bank in banks)))


def _accept(m: Module, request: stream.Interface, answer: stream.Interface, wait: ValueLike = 0) -> Signal:
    """Whether a read is accepted: when `answer` has no beat, or its beat is accepted in this cycle, unless `wait`."""
    accepted, is_free = Signal(), ~answer.valid | answer.ready
    m.d.comb += [request.ready.eq(is_free & ~wait), accepted.eq(request.valid & request.ready)]
    with m.If(is_free):
        m.d.sync += answer.valid.eq(accepted)
    return accepted
