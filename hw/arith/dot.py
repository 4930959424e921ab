"""Fused BF16 dot product: exact products, one alignment, one carry-save tree, one rounding."""

from collections.abc import Iterable, Sequence

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import carry_save, count_ones, ripple_add
from hw.arith.formats import BF16, FP32, canonical_nan, infinity, normalise, round_and_pack, zero
from hw.common.pipeline import CreditGate, RegisterStages, delay
from hw.common.tree import reduce_tree
from hw.config import Config

POSITIONS = ("operands", "products", "sums", "total", "result")  # where a register is possible, in order
DEPTHS = {  # register positions by number of pipeline registers
    1: ("result",),
    2: ("products", "result"),
    3: ("products", "sums", "result"),
    4: ("operands", "products", "sums", "result"),
    5: POSITIONS,
}
DEPTH = 3
GROUP_LANES = 8  # lanes of a group in the search of the largest exponent


def check_sizes(inputs: int, align_bits: int) -> None:
    """Check the sizes of a tree. Raises `ValueError` for an invalid size."""
    if inputs < 1 or inputs & (inputs - 1):
        raise ValueError(f"inputs must be a power of two, got {inputs}")
    if not 16 <= align_bits <= 30:
        raise ValueError(f"align_bits must be 16 to 30, got {align_bits}")


def planes_layout(inputs: int) -> data.ArrayLayout:
    """Layout of BF16 codes as planes: element k has bit k of all operands."""
    return data.ArrayLayout(inputs, BF16.size)


def node(m: Module, name: str, value: Value) -> Signal:
    """A signal with the value of an expression. An expression that is used twice would be written to the text twice."""
    signal = Signal(len(value), name=name)
    m.d.comb += signal.eq(value)
    return signal


def to_planes(m: Module, name: str, codes: Value) -> Signal:
    """The planes of a vector of BF16 codes: plane k has bit k of all codes. Wires only."""
    word = node(m, name, Value.cast(codes))  # a signal, because Amaranth repeats an expression for each slice
    return node(m, f"{name}_planes", Cat(*(word[k :: BF16.size] for k in range(BF16.size))))


def any_plane(planes: Sequence[Value]) -> Value:
    """One bit per lane: whether one of the planes has a one in the lane."""
    return reduce_tree(lambda x, y: x | y, planes)


def all_planes(planes: Sequence[Value]) -> Value:
    """One bit per lane: whether all planes have a one in the lane."""
    return reduce_tree(lambda x, y: x & y, planes)


def largest(m: Module, planes: Sequence[Value], candidates: Value) -> Value:
    """The largest number among the lanes of `planes` whose bit of `candidates` is set; 0 when no bit is set.

    The search goes from the highest plane to the lowest. A lane stops to be a candidate when it has a zero and another
    candidate of its group has a one. A group has `GROUP_LANES` lanes at first. The results of the groups are compared
    in the same way, from their highest bit on, while their lower bits are still searched.
    """
    while True:
        lanes = len(candidates)
        groups = max(1, lanes // GROUP_LANES)
        results = []
        for plane in reversed(planes):
            ones = candidates & plane
            while len(ones) > groups:
                ones = ones[: len(ones) // 2] | ones[len(ones) // 2 :]
            results.append(node(m, "group_bit", ones))
            candidates = node(m, "candidates", candidates & (plane | ~results[-1].replicate(lanes // groups)))
        planes, candidates = results[::-1], Const(-1, groups)
        if groups == 1:
            return Cat(*planes)


def multiply(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Planes of the exact products (128 + a) * (128 + b) of 7-bit fractions a and b. The hidden ones need no gates."""
    ones = Const(-1, len(a[0]))
    columns: list[list[Value]] = [[] for _ in range(16)]
    for i, x in enumerate([*a, ones]):
        for k, y in enumerate([*b, ones]):
            columns[i + k].append(y if i == 7 else x if k == 7 else x & y)
    return ripple_add(m, *carry_save(m, [Cat(*column) for column in columns], len(ones)))[:16]


def inverted_distances(m: Module, planes: Sequence[Value], top: Value) -> list[Value]:
    """Planes of ~(top - x), which equals x + ~top, for the numbers x in `planes`.

    The adders are gates and not `$fa` cells: each bit of `top` drives all lanes, and the mapper inserts buffers only in
    logic that is not inside such cells.
    """
    results: list[Value] = []
    carry: Value = Const(0, len(planes[0]))
    for plane, bit in zip(planes, top, strict=True):
        differ = node(m, "differ", plane ^ ~bit.replicate(len(plane)))
        results.append(node(m, "not_distance", differ ^ carry))
        carry = node(m, "carry", differ & carry | ~differ & plane)
    return results


def align(m: Module, product: Sequence[Value], not_distance: Sequence[Value], near: Value, width: int) -> list[Value]:
    """Planes of the 16-bit products at the top of `width` bits, shifted right by 0 to 31 and truncated.

    The shift count of a lane is the complement of `not_distance`. The result of a lane is 0 if its bit of `near` is 0.
    Shifts by 1, 2 and 4 come first, because the value is still narrow.
    """
    zeros = Const(0, len(near))
    value = [zeros] * 7 + list(product)  # 7 more bits, for the shifts by 1, 2 and 4
    for k, keep in enumerate(not_distance):
        shift = ~keep
        if k == 3:
            value = [zeros] * (width - 23) + value[max(0, 23 - width) :]
        if k == 4:
            keep, shift = node(m, "keep", keep & near), node(m, "shift", shift & near)
        shifted = [*value[1 << k :], *[zeros] * (1 << k)][: len(value)]
        value = [node(m, f"by{1 << k}", keep & x | shift & y) for x, y in zip(value, shifted, strict=True)]
    return value


class DotCore(wiring.Component):
    """Fused dot product of one MAC tree, y = sum of a[i] * b[i], as a pipeline that never stalls.

    operands | multiply, distances to the largest exponent | align, carry-save tree | add | normalise, round | result

    Products are exact. Each product is shifted right by the distance of its exponent to the largest exponent, and
    truncated to `align_bits` bits of its magnitude. Negative products are then complemented; their number is one more
    addend of the carry-save tree, which completes the two's complement. Only the final adder propagates carries.

    All lanes are computed as planes, words with one bit per lane. The text of the design therefore does not grow with
    `inputs`, and a simulator computes 64 lanes with one instruction.

    Timing: `latency` cycles, one result per cycle, no stalls. A register is possible at each bar above; `registers`
    selects the positions.

    Numerics: `|y - exact| <= (N - 1) 2**(2 - W) max|a_i b_i| + 2**-24 |y| + 2**-126` with N = `inputs` and W =
    `align_bits`. The sum does not depend on the order of the products. Subnormals are zero and a zero sum is +0. A NaN,
    infinity times zero, and infinities of both signs give the canonical NaN.

    Parameters
    ----------
    inputs : products N, a power of two
    align_bits : alignment width W, 16 to 30
    registers : names from `POSITIONS` of the positions that have a register

    Members
    -------
    a, b : BF16 codes as planes
    y : FP32 code, `latency` cycles later

    Raises
    ------
    ValueError
        For an invalid size or an unknown register position.
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, registers: Iterable[str] = DEPTHS[DEPTH]):
        check_sizes(inputs, align_bits)
        self.inputs, self.align_bits = inputs, align_bits
        self.registers = RegisterStages(POSITIONS, registers)
        super().__init__({"a": In(planes_layout(inputs)), "b": In(planes_layout(inputs)), "y": Out(FP32.size)})

    @property
    def latency(self) -> int:
        """Cycles from operands to result: the number of registers."""
        return self.registers.latency

    @property
    def sum_bits(self) -> int:
        """Bits of the integer sum, with its sign."""
        return self.align_bits + (self.inputs - 1).bit_length() + 1

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.align_bits

        def register(position: str, name: str, value: Value) -> Signal:
            return self.registers.at(m, position, name, value)

        # operands; zeros, infinities and NaN
        a = [register("operands", f"a{k}", self.a[k]) for k in range(BF16.size)]
        b = [register("operands", f"b{k}", self.b[k]) for k in range(BF16.size)]
        fraction_a, exponent_a, fraction_b, exponent_b = a[:7], a[7:15], b[:7], b[7:15]
        zero_a, zero_b = (node(m, "zero", ~any_plane(exponent)) for exponent in (exponent_a, exponent_b))
        special_a, special_b = (node(m, "special", all_planes(exponent)) for exponent in (exponent_a, exponent_b))
        sign, zeros = node(m, "sign", a[15] ^ b[15]), node(m, "zeros", zero_a | zero_b)
        invalid = (special_a & (any_plane(fraction_a) | zero_b)) | (special_b & (any_plane(fraction_b) | zero_a))
        infinite = node(m, "infinite", special_a | special_b)
        plus, minus = node(m, "plus", (infinite & ~sign).any()), node(m, "minus", (infinite & sign).any())
        flags = register("products", "flags", Cat(invalid.any() | (plus & minus), plus, minus))

        # exponents of the products, and their distances to the largest exponent of a product that is not zero
        exponents = ripple_add(m, exponent_a, exponent_b)
        top = largest(m, exponents, ~zeros)
        not_distance = inverted_distances(m, exponents, top)
        near = register("products", "near", ~zeros & all_planes(not_distance[5:]))
        not_distance = [register("products", f"not_distance{k}", plane) for k, plane in enumerate(not_distance[:5])]

        # products of significands, aligned
        negatives = register("products", "negatives", count_ones(m, sign))
        sign, top = register("products", "sign_products", sign), register("products", "top_products", top)
        product = [register("products", f"product{k}", p) for k, p in enumerate(multiply(m, fraction_a, fraction_b))]
        rows = align(m, product, not_distance, near, width)

        # sum: complement of negative magnitudes, plus 1 for each (`negatives`), minus 2**width for each (`sign_bits`)
        columns = [row ^ sign for row in rows] + [Cat()] * (self.sum_bits - width)
        sign_bits = (-negatives)[: self.sum_bits - width]
        for start, count in ((0, negatives), (width, sign_bits)):
            for k, bit in enumerate(count):
                columns[start + k] = Cat(columns[start + k], bit)
        first, second = (Cat(*addend) for addend in carry_save(m, columns))
        first, second = register("sums", "first", first), register("sums", "second", second)
        top, flags = register("sums", "top_sums", top), register("sums", "flags_sums", flags)

        # one carry-propagate addition; magnitude and sign
        total = node(m, "sum", (first + second)[: self.sum_bits])
        negative = total[-1]
        size = node(m, "size", ((total ^ negative.replicate(self.sum_bits)) + negative)[: self.sum_bits - 1])
        negative, size = register("total", "negative", negative), register("total", "magnitude", size)
        top, flags = register("total", "top_total", top), register("total", "flags_total", flags)

        # normalise, round; NaN, infinities and zero
        normal, shift = normalise(m, "norm", size)
        exponent = Signal(11)
        m.d.comb += exponent.eq(top + (len(size) - 126 - self.align_bits) - shift)
        code = round_and_pack(m, FP32, negative, exponent, normal)
        result = Signal(FP32.size)
        with m.If(flags[0]):
            m.d.comb += result.eq(canonical_nan(FP32))
        with m.Elif(flags[1] | flags[2]):
            m.d.comb += result.eq(infinity(FP32, flags[2]))
        with m.Elif(~normal[-1]):
            m.d.comb += result.eq(zero(FP32, Const(0, 1)))
        with m.Else():
            m.d.comb += result.eq(code)
        m.d.comb += self.y.eq(register("result", "y_result", result))
        return m


class DotTree(wiring.Component):
    """Fused dot product of two BF16 vectors with stream interfaces: one MAC tree as a unit.

    Timing: `latency` cycles from `i` to `o`, one result per cycle when `o` does not stall. `i.ready` depends on
    registers only. There is no combinational path from input to output.

    Numerics: as `DotCore`.

    Parameters
    ----------
    inputs, align_bits : as `DotCore`
    depth : pipeline registers, 1 to 5

    Members
    -------
    i : stream of `{a, b}`, `inputs` BF16 codes each
    o : stream of FP32 codes

    Raises
    ------
    ValueError
        When a parameter is outside its range.
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, depth: int = DEPTH):
        if depth not in DEPTHS:
            raise ValueError(f"depth must be {min(DEPTHS)} to {max(DEPTHS)}, got {depth}")
        check_sizes(inputs, align_bits)
        self.inputs, self.align_bits, self.depth = inputs, align_bits, depth
        vector = data.ArrayLayout(BF16.size, inputs)
        self.operands = data.StructLayout({"a": vector, "b": vector})
        super().__init__({"i": In(stream.Signature(self.operands)), "o": Out(stream.Signature(FP32.size))})

    @classmethod
    def from_config(cls, config: Config) -> "DotTree":
        """One tree of the matrix engine."""
        return cls(inputs=config.dpe_inputs, align_bits=config.align_bits)

    @property
    def latency(self) -> int:
        """Cycles from a beat of `i` to its beat of `o`."""
        return self.depth + 2

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "results_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = DotCore(inputs=self.inputs, align_bits=self.align_bits, registers=DEPTHS[self.depth])
        m.submodules.gate = gate = CreditGate(FP32.size, stages=core.latency)
        m.d.comb += [
            Value.cast(core.a).eq(to_planes(m, "a", self.i.payload.a)),
            Value.cast(core.b).eq(to_planes(m, "b", self.i.payload.b)),
            self.i.ready.eq(gate.ready),
            gate.take.eq(self.i.valid & gate.ready),
            gate.done.eq(delay(m, "done", gate.take, core.latency)),
            gate.result.eq(core.y),
            self.o.valid.eq(gate.o.valid),
            self.o.payload.eq(gate.o.payload),
            gate.o.ready.eq(self.o.ready),
        ]
        return m
