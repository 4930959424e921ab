"""Decoder of stored weights: tiles of codes and scales become rows of BF16 codes."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.arith.dot import node
from hw.arith.formats import BF16, canonical_nan, infinity, zero
from hw.axi.engines import read_word_layout
from hw.common.tree import reduce_tree
from hw.config import Config
from hw.weight_codec.tile_layout import BITS, ENCODED, GROUP, Encoding, TileLayout

COUNT_BITS = 24
CODE_BITS = 8  # of the longest code
MULTIPLES = range(8, 16)  # significands of an element, in eighths
FRACTION_BITS = 23  # of a scale

# Fields: `rows`, number of rows of tiles, and `tiles`, tiles of each row; both are at least 1.
RUN = data.StructLayout({"encoding": Encoding, "rows": COUNT_BITS, "tiles": COUNT_BITS})


def scale_layout(groups: int) -> data.StructLayout:
    """Layout of the scales of a row: what all its elements share.

    `multiples` : for each significand of an element, fraction of the product with the scale, rounded to BF16, and above
    it one bit that the exponent grows by ; `exponents` : of each group ; `nan`, `infinite`, `zero` : kind of each
    group's scale ; `zero_point` : of INT4
    """
    multiples = data.ArrayLayout(8, len(MULTIPLES))
    flags = {"nan": groups, "infinite": groups, "zero": groups}
    return data.StructLayout(
        {"multiples": multiples, "exponents": data.ArrayLayout(8, groups), "sign": 1, "zero_point": 4, **flags}
    )


class WeightDecoder(wiring.Component):
    """Decodes tiles of weights in MXFP4, INT4 or FP8: a row of a tile becomes a word of BF16 codes.

    An element is a significand of four bits times a power of two. The products of the scale with the eight normalised
    significands are rounded once for a row. An element selects one of them and adds its exponent.

    ```
    words ──┬─> header ──> entries of four rows ─┐
            └─> codes of two or four rows ───────┴─> |row: codes, multiples of the scale| ─> elements ─> o
    ```

    Timing: one row per cycle. The header of the next tile arrives while the last codes are decoded, except for one
    cycle with FP8: t tiles of n lanes take t * n cycles, with FP8 t - 1 more. The first row follows its codes by
    `latency` cycles; the header before takes a cycle per word. A run takes one cycle before its first word. The ready
    of `words` depends combinationally on the ready of `o`.

    Numerics: as `golden.weight_formats`, bit for bit. The product of element and scale is exact and is rounded to BF16,
    to nearest even. Results below the smallest normal number are zeros of their sign. Subnormal scales are zeros,
    except those of MXFP4, which are powers of two. A NaN, and zero times infinity, give the canonical NaN.

    Parameters
    ----------
    lanes : elements of a word, and rows of a tile: a power of two, at least 4

    Members
    -------
    runs : stream of RUN; the next one is accepted when all words of the one before have arrived
    words : words of a read engine
    o : stream of the same layout; `last` is 0

    Raises
    ------
    ValueError
        When `lanes` is outside its range.
    """

    latency = 2  # cycles from a word of codes to its first row

    def __init__(self, *, lanes: int):
        self.lanes, self.layout = lanes, TileLayout(lanes)
        word = read_word_layout(self.layout.word)
        super().__init__(
            {
                "runs": In(stream.Signature(RUN)),
                "words": In(stream.Signature(word)),
                "o": Out(stream.Signature(word)),
            }
        )

    @classmethod
    def from_config(cls, config: Config) -> "WeightDecoder":
        """The decoder of the weights of a core."""
        return cls(lanes=config.dpe_inputs)

    @property
    def timing(self) -> dict[str, object]:
        """Latency and throughput. The JSON file of the generated unit contains them."""
        return {"latency": self.latency, "words_per_cycle": 1}

    def elaborate(self, platform: object) -> Module:
        m, layout, words = Module(), self.layout, self.words
        run, tile = Signal(RUN), Signal(COUNT_BITS)
        header = Signal(max(map(layout.header_words, ENCODED)) * layout.word, reset_less=True)
        header_word, code_word = Signal(range(2)), Signal(range(self.lanes))

        # codes: a word of them, the entries of its rows, and the row that leaves next
        codes, has_codes, row = Signal(layout.word, reset_less=True), Signal(), Signal(range(4))
        encoding = Signal(Encoding, reset_less=True)
        entries = Signal(max(map(self._entries_bits, ENCODED)), reset_less=True)
        advance, last_row, free, take = Signal(), Signal(), Signal(), Signal()
        valid = Signal()
        m.d.comb += [
            advance.eq(~valid | self.o.ready),
            last_row.eq(self._by(encoding, {e: row == layout.rows_per_word(e) - 1 for e in ENCODED})),
            free.eq(~has_codes | last_row & advance),
        ]
        with m.If(take):
            m.d.sync += [codes.eq(words.payload.data), encoding.eq(run.encoding), row.eq(0), has_codes.eq(1)]
            selected = {e: header.word_select(code_word, self._entries_bits(e)) for e in ENCODED}
            m.d.sync += entries.eq(self._by(run.encoding, selected))
        with m.Elif(advance & has_codes):
            m.d.sync += [row.eq(row + 1), has_codes.eq(~last_row)]

        # row: codes of its elements, and the multiples of its scale
        row_codes, scale = (
            Signal(data.ArrayLayout(CODE_BITS, self.lanes), reset_less=True),
            Signal(scale_layout(layout.groups), reset_less=True),
        )
        row_encoding = Signal(Encoding, reset_less=True)
        with m.If(advance):
            m.d.sync += valid.eq(has_codes)
        with m.If(advance & has_codes):
            m.d.sync += [
                Value.cast(row_codes).eq(self._row_codes(m, codes, row, encoding)),
                Value.cast(scale).eq(self._scale(m, entries, row, encoding)),
                row_encoding.eq(encoding),
            ]
        elements = [
            self._element(m, lane, row_codes[lane], scale, lane // GROUP, row_encoding) for lane in range(self.lanes)
        ]
        m.d.comb += [self.o.valid.eq(valid), self.o.payload.data.eq(Cat(*elements))]

        # words of tiles
        last_header = self._by(run.encoding, {e: header_word == layout.header_words(e) - 1 for e in ENCODED})
        last_code = self._by(run.encoding, {e: code_word == layout.code_words(e) - 1 for e in ENCODED})
        with m.FSM(name="input"):
            with m.State("IDLE"):
                m.d.comb += self.runs.ready.eq(1)
                m.d.sync += [run.eq(self.runs.payload), tile.eq(1), header_word.eq(0)]
                with m.If(self.runs.valid):
                    m.next = "HEADER"
            with m.State("HEADER"):
                m.d.comb += words.ready.eq(1)
                with m.If(words.valid):
                    m.d.sync += [
                        header.word_select(header_word, layout.word).eq(words.payload.data),
                        header_word.eq(header_word + 1),
                        code_word.eq(0),
                    ]
                    with m.If(last_header):
                        m.next = "CODES"
            with m.State("CODES"):
                m.d.comb += [words.ready.eq(free), take.eq(words.valid & free)]
                with m.If(take):
                    m.d.sync += code_word.eq(code_word + 1)
                    with m.If(last_code):
                        m.d.sync += [header_word.eq(0), tile.eq(tile + 1)]
                        m.next = "HEADER"
                        with m.If(tile == run.tiles):
                            m.d.sync += [tile.eq(1), run.rows.eq(run.rows - 1)]
                            with m.If(run.rows == 1):
                                m.next = "IDLE"
        return m

    def _entries_bits(self, encoding: Encoding) -> int:
        """Bits of the header that belong to the rows of a word of codes."""
        return self.layout.row_entry_bits(encoding) * self.layout.rows_per_word(encoding)

    @staticmethod
    def _by(encoding: Value, values: dict[Encoding, Value]) -> Value:
        """The value of an encoding."""
        result = values[Encoding.INT4]
        for other in (Encoding.MXFP4, Encoding.FP8):
            result = Mux(Value.cast(encoding) == other.value, values[other], result)
        return result

    def _row_codes(self, m: Module, codes: Value, row: Value, encoding: Value) -> Value:
        """Codes of a row, `CODE_BITS` for each element."""
        short = node(m, "short_codes", codes.word_select(row, self.lanes * 4))
        long = node(m, "long_codes", codes.word_select(row[0], self.lanes * 8))
        padded = Cat(Cat(short[4 * lane : 4 * lane + 4], Const(0, 4)) for lane in range(self.lanes))
        return self._by(encoding, {e: long if BITS[e] == CODE_BITS else padded for e in ENCODED})

    def _scale(self, m: Module, entries: Value, row: Value, encoding: Value) -> Value:
        """Scale of a row as `scale_layout`."""
        groups = self.layout.groups
        scale = Signal(scale_layout(groups), name="row_scale")
        entry = node(m, "entry", entries.word_select(row, 32))
        exponents = node(m, "powers", entries.word_select(row, 8 * groups))
        is_mx, fraction = Signal(name="is_mx"), Signal(FRACTION_BITS, name="scale_fraction")
        m.d.comb += [
            is_mx.eq(Value.cast(encoding) == Encoding.MXFP4.value),
            fraction.eq(
                self._by(
                    encoding, {Encoding.MXFP4: Const(0), Encoding.INT4: entry[8:23] << 8, Encoding.FP8: entry[:23]}
                )
            ),
            scale.sign.eq(entry[31] & ~is_mx),
            scale.zero_point.eq(entry[:4]),
        ]
        for group in range(groups):
            exponent = node(m, f"exponent_of{group}", Mux(is_mx, exponents.word_select(group, 8), entry[23:31]))
            m.d.comb += [
                scale.exponents[group].eq(exponent),
                scale.nan[group].eq(exponent.all() & (is_mx | fraction.any())),
                scale.infinite[group].eq(exponent.all() & ~is_mx & ~fraction.any()),
                scale.zero[group].eq(~exponent.any() & ~is_mx),
            ]
        significand = node(m, "significand", Cat(fraction, Const(1, 1)))
        for k, factor in enumerate(MULTIPLES):
            m.d.comb += scale.multiples[k].eq(_rounded_multiple(m, significand, factor))
        return Value.cast(scale)

    def _element(self, m: Module, lane: int, code: Value, scale: data.View, group: int, encoding: Value) -> Value:
        """BF16 code of an element.

        The magnitude of an element is `number`, a 4-bit number, times 2**(`power` - 3).
        """
        number, power = Signal(4, name=f"number{lane}"), Signal(signed(5), name=f"power{lane}")
        negative, is_nan, nonzero = (
            Signal(name=f"negative{lane}"),
            Signal(name=f"nan{lane}"),
            Signal(name=f"some{lane}"),
        )
        difference = Signal(signed(5), name=f"difference{lane}")
        m.d.comb += difference.eq(code[:4] - scale.zero_point)
        with m.Switch(encoding):
            with m.Case(Encoding.MXFP4):
                m.d.comb += [
                    number.eq(Cat(Const(0, 2), code[0], code[1:3].any())),
                    power.eq(Mux(code[1:3].any(), code[1:3] - 1, 0)),
                    negative.eq(code[3]),
                ]
            with m.Case(Encoding.FP8):
                m.d.comb += [
                    number.eq(Cat(code[:3], code[3:7].any())),
                    power.eq(Mux(code[3:7].any(), code[3:7] - 7, -6)),
                    negative.eq(code[7]),
                    is_nan.eq(code[:7].all()),
                ]
            with m.Default():
                m.d.comb += [
                    number.eq(Mux(difference[-1], -difference, difference)[:4]),
                    power.eq(3),
                    negative.eq(difference[-1]),
                ]
        by_two, by_one = Signal(4, name=f"by_two{lane}"), Signal(4, name=f"by_one{lane}")
        shift2, shift1 = ~number[2:].any(), ~by_two[3]
        multiple, exponent = Signal(8, name=f"multiple{lane}"), Signal(signed(10), name=f"exponent{lane}")
        m.d.comb += [
            nonzero.eq(number.any()),
            by_two.eq(Mux(shift2, Cat(Const(0, 2), number[:2]), number)),
            by_one.eq(Mux(shift1, Cat(Const(0, 1), by_two[:3]), by_two)),
            multiple.eq(Array(scale.multiples[k] for k in range(len(MULTIPLES)))[by_one[:3]]),
            exponent.eq((scale.exponents[group] + power) - Cat(shift1, shift2) + multiple[7]),
        ]
        sign, result = Signal(name=f"sign{lane}"), Signal(BF16.size, name=f"element{lane}")
        m.d.comb += sign.eq(negative ^ scale.sign)
        with m.If(scale.nan[group] | is_nan | (scale.infinite[group] & ~nonzero)):
            m.d.comb += result.eq(canonical_nan(BF16))
        with m.Elif(~scale.infinite[group] & (~nonzero | scale.zero[group] | (exponent <= 0))):
            m.d.comb += result.eq(zero(BF16, sign))
        with m.Elif(scale.infinite[group] | (exponent >= 255)):
            m.d.comb += result.eq(infinity(BF16, sign))
        with m.Else():
            m.d.comb += result.eq(Cat(multiple[:7], exponent[:8], sign))
        return result


def _rounded_multiple(m: Module, significand: Value, factor: int) -> Value:
    """Fraction of `factor` / 8 times the significand, rounded to 7 bits, and whether the exponent grows by one."""
    width = FRACTION_BITS + 5
    product = Signal(width, name=f"times{factor}")
    terms = [significand << k for k in range(4) if factor >> k & 1]
    m.d.comb += product.eq(reduce_tree(lambda a, b: a + b, terms)[:width])
    grows = product[-1]
    upper = node(m, f"upper{factor}", Mux(grows, product[-8:], product[-9:-1]))
    half = Mux(grows, product[-9], product[-10])
    sticky = product[: width - 10].any() | grows & product[-10]
    up = node(m, f"up{factor}", half & (sticky | upper[0]))
    return Cat((upper + up)[:7], grows | up & upper.all())
