"""Fused BF16 dot product: exact products, one alignment, one carry-save tree, one rounding."""

from collections.abc import Iterable, Sequence

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.adders import carry_save, count_ones, ripple_add
from hw.arith.formats import BF16, FP32, canonical_nan, infinity, normalise, round_and_pack, zero
from hw.common.pipeline import CreditGate, Cuts, delay
from hw.common.tree import reduce_tree
from hw.config import Config

CUTS = ("operands", "products", "sums", "total", "result")  # where a register can stand, in order
DEPTHS = {
    1: ("result",),
    2: ("products", "result"),
    3: ("products", "sums", "result"),
    4: ("operands", "products", "sums", "result"),
    5: CUTS,
}
DEPTH = 3
RADIX = 8  # lanes that one search of the largest exponent compares at once


def check_sizes(inputs: int, align_bits: int) -> None:
    """Raise `ValueError` unless a tree of these sizes can be built."""
    if inputs < 1 or inputs & (inputs - 1):
        raise ValueError(f"inputs = {inputs}: must be a power of two")
    if not 16 <= align_bits <= 30:
        raise ValueError(f"align_bits = {align_bits}: must be 16 to 30")


def planes_layout(inputs: int) -> data.ArrayLayout:
    """BF16 codes bit-sliced: element k holds bit k of every operand."""
    return data.ArrayLayout(inputs, BF16.size)


def node(m: Module, name: str, value: Value) -> Signal:
    """`value` as a signal: an expression that is used twice would be written out twice."""
    held = Signal(len(value), name=name)
    m.d.comb += held.eq(value)
    return held


def to_planes(m: Module, name: str, codes: Value) -> Signal:
    """A vector of BF16 codes bit-sliced; wires only."""
    word = node(m, name, Value.cast(codes))  # a signal: Amaranth works out an expression anew for each bit taken of it
    return node(m, f"{name}_planes", Cat(*(word[k :: BF16.size] for k in range(BF16.size))))


def any_plane(planes: Sequence[Value]) -> Value:
    return reduce_tree(lambda x, y: x | y, planes)


def all_planes(planes: Sequence[Value]) -> Value:
    return reduce_tree(lambda x, y: x & y, planes)


def largest(m: Module, planes: Sequence[Value], alive: Value) -> Value:
    """The largest of the numbers that `planes` hold in the lanes that are `alive`; 0 when none is.

    Bit by bit from the top, lanes drop out where another of their group has a one and they have not. Groups of `RADIX`
    lanes first, so that a group's lower bits are searched while the groups are compared by their upper ones.
    """
    while True:
        lanes = len(alive)
        groups = max(1, lanes // RADIX)
        found = []
        for plane in reversed(planes):
            ones = alive & plane
            while len(ones) > groups:
                ones = ones[: len(ones) // 2] | ones[len(ones) // 2 :]
            found.append(node(m, "found", ones))
            alive = node(m, "alive", alive & (plane | ~found[-1].replicate(lanes // groups)))
        planes, alive = found[::-1], Const(-1, groups)
        if groups == 1:
            return Cat(*planes)


def multiply(m: Module, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
    """Planes of (128 + a) * (128 + b) for planes of 7-bit fractions, exact; the hidden ones are wires."""
    one = Const(-1, len(a[0]))
    columns: list[list[Value]] = [[] for _ in range(16)]
    for i, x in enumerate([*a, one]):
        for k, y in enumerate([*b, one]):
            columns[i + k].append(y if i == 7 else x if k == 7 else x & y)
    return ripple_add(m, *carry_save(m, [Cat(*column) for column in columns], len(one)))[:16]


def below(m: Module, planes: Sequence[Value], top: Value) -> list[Value]:
    """Planes of ~(top - x), which is x + ~top, for the numbers x that `planes` hold.

    Gates, not full adders: one bit of `top` drives every lane, and mapping buffers only what it can see into.
    """
    found: list[Value] = []
    carry: Value = Const(0, len(planes[0]))
    for plane, bit in zip(planes, top, strict=True):
        differ = node(m, "differ", plane ^ ~bit.replicate(len(plane)))
        found.append(node(m, "not_distance", differ ^ carry))
        carry = node(m, "carry", differ & carry | ~differ & plane)
    return found


def align(m: Module, product: Sequence[Value], not_distance: Sequence[Value], near: Value, width: int) -> list[Value]:
    """Planes of the 16-bit products at the top of `width` bits, shifted right by 0 to 31, cut off; 0 if not `near`.

    Short distances come first: the value is still narrow there. `not_distance` is the inverted distance.
    """
    low = Const(0, len(near))
    value = [low] * 7 + list(product)  # and the 7 bits that shifts by 1, 2 and 4 reach
    for k, stay in enumerate(not_distance):
        move = ~stay
        if k == 3:
            value = [low] * (width - 23) + value[max(0, 23 - width) :]
        if k == 4:
            stay, move = node(m, "stay", stay & near), node(m, "move", move & near)
        moved = [*value[1 << k :], *[low] * (1 << k)][: len(value)]
        value = [node(m, f"by{1 << k}", stay & x | move & y) for x, y in zip(value, moved, strict=True)]
    return value


class DotCore(wiring.Component):
    """The arithmetic of one MAC tree as a pipeline that never stalls: y = sum of a[i] * b[i].

    operands | multiply, distances to the largest exponent | align, carry-save tree | add | normalise, round | result

    Every product is exact. It is shifted right by its distance to the largest exponent and cut off after `align_bits`
    bits, as sign and magnitude; a negative one is then complemented, and the number of negatives is one more addend of
    the carry-save tree. Nothing before the final adder propagates a carry across rows.

    All lanes are computed as planes, words with one bit of every lane: the text of the design does not grow with
    `inputs`, and a simulator computes 64 lanes with one instruction.

    Timing: `latency` cycles, one result per cycle, no stall; registers stand at the bars named by `cuts`.

    Numerics: `|y - exact| <= (N - 1) 2**(2 - W) max|a_i b_i| + 2**-24 |y| + 2**-126` with N = `inputs` and W =
    `align_bits`; the sum does not depend on any order. Subnormals are zero, a zero sum is +0; NaN, infinity times zero
    and infinities of both signs give the canonical NaN.

    Parameters
    ----------
    inputs : products N, a power of two from 1
    align_bits : alignment width W, 16 to 30
    cuts : register positions, of `CUTS`

    Members
    -------
    a, b : BF16 codes as planes ; y : FP32 code, `latency` cycles later
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, cuts: Iterable[str] = DEPTHS[DEPTH]):
        check_sizes(inputs, align_bits)
        self.inputs, self.align_bits, self.cuts = inputs, align_bits, Cuts(CUTS, cuts)
        super().__init__({"a": In(planes_layout(inputs)), "b": In(planes_layout(inputs)), "y": Out(FP32.size)})

    @property
    def latency(self) -> int:
        """Cycles from operands to result."""
        return self.cuts.latency

    @property
    def sum_bits(self) -> int:
        """Bits of the integer sum with its sign."""
        return self.align_bits + (self.inputs - 1).bit_length() + 1

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.align_bits

        def cut(position: str, name: str, value: Value) -> Signal:
            return self.cuts.at(m, position, name, value)

        # operands, and what is special about them
        a = [cut("operands", f"a{k}", self.a[k]) for k in range(BF16.size)]
        b = [cut("operands", f"b{k}", self.b[k]) for k in range(BF16.size)]
        fraction_a, exponent_a, fraction_b, exponent_b = a[:7], a[7:15], b[:7], b[7:15]
        zero_a, zero_b = (node(m, "zero", ~any_plane(exponent)) for exponent in (exponent_a, exponent_b))
        special_a, special_b = (node(m, "special", all_planes(exponent)) for exponent in (exponent_a, exponent_b))
        sign, zeros = node(m, "sign", a[15] ^ b[15]), node(m, "zeros", zero_a | zero_b)
        invalid = (special_a & (any_plane(fraction_a) | zero_b)) | (special_b & (any_plane(fraction_b) | zero_a))
        infinite = node(m, "infinite", special_a | special_b)
        plus, minus = node(m, "plus", (infinite & ~sign).any()), node(m, "minus", (infinite & sign).any())
        flags = cut("products", "flags", Cat(invalid.any() | (plus & minus), plus, minus))

        # keys, the exponents of the products; their distances to the largest of those that are not zero
        key = ripple_add(m, exponent_a, exponent_b)
        top = largest(m, key, ~zeros)
        not_distance = below(m, key, top)
        near = cut("products", "near", ~zeros & all_planes(not_distance[5:]))
        not_distance = [cut("products", f"not_distance{k}", plane) for k, plane in enumerate(not_distance[:5])]

        # products of significands; aligned
        negatives = cut("products", "negatives", count_ones(m, sign))
        sign, top = cut("products", "sign_held", sign), cut("products", "top_held", top)
        product = [cut("products", f"product{k}", p) for k, p in enumerate(multiply(m, fraction_a, fraction_b))]
        rows = align(m, product, not_distance, near, width)

        # magnitudes, complemented when negative, plus one per negative, minus its 2**width
        columns = [row ^ sign for row in rows] + [Cat()] * (self.sum_bits - width)
        lift = (-negatives)[: self.sum_bits - width]
        for start, count in ((0, negatives), (width, lift)):
            for k, bit in enumerate(count):
                columns[start + k] = Cat(columns[start + k], bit)
        first, second = (Cat(*addend) for addend in carry_save(m, columns))
        first, second = cut("sums", "first", first), cut("sums", "second", second)
        top, flags = cut("sums", "top_sums", top), cut("sums", "flags_sums", flags)

        # one carry-propagate addition; magnitude and sign
        total = node(m, "sum", (first + second)[: self.sum_bits])
        negative = total[-1]
        size = node(m, "size", ((total ^ negative.replicate(self.sum_bits)) + negative)[: self.sum_bits - 1])
        negative, size = cut("total", "negative", negative), cut("total", "magnitude", size)
        top, flags = cut("total", "top_total", top), cut("total", "flags_total", flags)

        # normalise, round, specials
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
        m.d.comb += self.y.eq(cut("result", "y_held", result))
        return m


class DotTree(wiring.Component):
    """Fused dot product of two BF16 vectors behind streams: one MAC tree as a unit of its own.

    Timing: `latency` cycles from `i` to `o`, one result per cycle when nobody stalls. `i.ready` is a register; no
    combinational path from input to output.

    Numerics, parameters: see `DotCore`. `depth` is the number of pipeline registers, 1 to 5.

    Members
    -------
    i : stream of `{a, b}`, `inputs` BF16 codes each ; o : stream of FP32 codes
    """

    def __init__(self, *, inputs: int, align_bits: int = 24, depth: int = DEPTH):
        if depth not in DEPTHS:
            raise ValueError(f"depth = {depth}: must be {min(DEPTHS)} to {max(DEPTHS)}")
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
        """Latency and throughput, as written into the generated unit's JSON."""
        return {"latency": self.latency, "results_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = DotCore(inputs=self.inputs, align_bits=self.align_bits, cuts=DEPTHS[self.depth])
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
