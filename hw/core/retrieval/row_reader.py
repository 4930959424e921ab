"""Row reader: score rows and the token counts of their clusters from memory to the WTU."""

# mypy: disable-error-code="assignment,arg-type"

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.axi.engines import read_word_layout
from hw.axi.ports import JOB, WORD_ADDRESS_BITS
from hw.core.isa import SCORE_ROWS, STRIDE
from hw.core.lengths import LENGTH_BITS, block_count
from hw.dre.wtu.command import KEY_BITS, WtuSizes

PACKETS = 2  # packets whose words are requested and not yet sent

# One group of joined score rows: word address of the first row, words from one row to the next, number of rows
# and of clusters of a row, both at least 1; `uncounted`: the token counts are not read, and not defined.
ROW_GROUP = data.StructLayout(
    {"source": WORD_ADDRESS_BITS, "stride": STRIDE, "rows": SCORE_ROWS, "clusters": LENGTH_BITS, "uncounted": 1}
)


class RowReader(wiring.Component):
    """Reads a group of joined score rows and sends them to the WTU, each cluster with its token count.

    Two read engines run at the same time: one reads the words of the scores, one those of the token counts. The counts
    are the same for all rows and are read again for every row. A row of more clusters than the memory of the WTU is
    sent as often as the WTU requests on `again`.

    Timing: `width / lanes` beats per word, one beat per cycle; the words of the next packet are requested while a
    packet is sent.

    Parameters
    ----------
    sizes : sizes of the WTU
    width : BF16 elements of a memory word, a multiple of the lanes of the WTU

    Members
    -------
    i : stream of ROW_GROUP; the group is accepted when its last beat has left
    counts_base : word address of the token counts
    score_job, score_words : read engine of the scores
    count_job, count_words : read engine of the token counts
    again : stream `o_again` of the WTU
    o : stream of `WtuSizes.beat`
    """

    def __init__(self, sizes: WtuSizes, width: int):
        self.sizes, self.width = sizes, width
        words = stream.Signature(read_word_layout(KEY_BITS * width))
        super().__init__(
            {
                "i": In(stream.Signature(ROW_GROUP)),
                "counts_base": In(WORD_ADDRESS_BITS),
                "score_job": Out(stream.Signature(JOB)),
                "score_words": In(words),
                "count_job": Out(stream.Signature(JOB)),
                "count_words": In(words),
                "again": In(stream.Signature(sizes.again)),
                "o": Out(stream.Signature(sizes.beat)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        group = self.i.payload
        is_long = Signal()
        m.d.comb += is_long.eq(group.clusters > self.sizes.pairs)
        # one bit per requested packet: 1 in the last row
        m.submodules.packets = packets = SyncFIFOBuffered(width=1, depth=PACKETS)
        all_requested = self._request(m, packets, is_long)
        self._send(m, packets, is_long)
        none_left = ~packets.r_rdy & (packets.level == 0)
        m.d.comb += self.i.ready.eq(all_requested & none_left)
        return m

    def _request(self, m: Module, packets: SyncFIFOBuffered, is_long: Signal) -> Signal:
        """Request the words of each packet. Returns: all packets of the group are requested."""
        group = self.i.payload
        words = block_count(m, "words", group.clusters, self.width)
        row, offset, last_row, next_row = Signal(SCORE_ROWS), Signal(WORD_ADDRESS_BITS), Signal(), Signal()
        scores_sent, counts_sent = Signal(), Signal()  # requests of this packet
        m.d.comb += [
            last_row.eq(row + 1 == group.rows),
            self.score_job.payload.address.eq(group.source + offset),
            self.count_job.payload.address.eq(self.counts_base),
            *(job.payload.count.eq(words) for job in (self.score_job, self.count_job)),
            packets.w_data.eq(last_row),
        ]
        all_requested = Signal()
        score_done, count_done = (
            scores_sent | self.score_job.ready,
            counts_sent | self.count_job.ready | group.uncounted,
        )
        with m.FSM(name="requests"):
            with m.State("REQUEST"):
                requesting = self.i.valid & packets.w_rdy
                m.d.comb += [
                    self.score_job.valid.eq(requesting & ~scores_sent),
                    self.count_job.valid.eq(requesting & ~counts_sent & ~group.uncounted),
                    packets.w_en.eq(requesting & score_done & count_done),
                    next_row.eq(packets.w_en & ~is_long),
                ]
                with m.If(requesting):
                    m.d.sync += [
                        scores_sent.eq(score_done & ~packets.w_en),
                        counts_sent.eq(count_done & ~packets.w_en),
                    ]
                with m.If(packets.w_en & is_long):
                    m.next = "ANSWER"
                with m.Elif(packets.w_en & last_row):
                    m.next = "COMPLETE"
            with m.State("ANSWER"):  # the WTU requests the same row or the next row
                m.d.comb += [self.again.ready.eq(1), next_row.eq(self.again.valid & ~self.again.payload.again)]
                with m.If(self.again.valid):
                    m.next = "REQUEST"
                    with m.If(next_row & last_row):
                        m.next = "COMPLETE"
            with m.State("COMPLETE"):
                m.d.comb += all_requested.eq(1)
                with m.If(self.i.ready):
                    m.next = "REQUEST"
        with m.If(next_row):
            m.d.sync += [row.eq(Mux(last_row, 0, row + 1)), offset.eq(Mux(last_row, 0, offset + group.stride))]
        return all_requested

    def _send(self, m: Module, packets: SyncFIFOBuffered, is_long: Signal) -> None:
        """Send each pair of words in pieces of as many clusters as the WTU has lanes."""
        lanes, pieces = self.sizes.lanes, self.width // self.sizes.lanes
        beat, group = self.o.payload, self.i.payload
        piece, first = Signal(range(max(2, pieces))), Signal(LENGTH_BITS + 1)  # first cluster of the beat
        sent, word_end = Signal(), Signal()
        scores, counts = self.score_words.payload.data, self.count_words.payload.data
        m.d.comb += [
            self.o.valid.eq(packets.r_rdy & self.score_words.valid & (self.count_words.valid | group.uncounted)),
            sent.eq(self.o.valid & self.o.ready),
            beat.long.eq(is_long),
            beat.last.eq(first + lanes >= group.clusters),
            beat.used.eq(Mux(beat.last, group.clusters - first, lanes)),
            beat.join.eq(~packets.r_data),
            word_end.eq(beat.last | (piece == pieces - 1)),
            self.score_words.ready.eq(sent & word_end),
            self.count_words.ready.eq(sent & word_end & ~group.uncounted),
            packets.r_en.eq(sent & beat.last),
        ]
        for k in range(lanes):
            m.d.comb += [
                beat.words[k].eq(_element(scores, piece, lanes, k)),
                beat.counts[k].eq(_element(counts, piece, lanes, k)),
            ]
        with m.If(sent):
            m.d.sync += [
                first.eq(Mux(beat.last, 0, first + lanes)),
                piece.eq(Mux(word_end, 0, piece + 1)),
            ]


def _element(word: Value, piece: Value, lanes: int, lane: int) -> Value:
    """BF16 element of a lane in one piece of a word."""
    return word.word_select(piece, KEY_BITS * lanes).word_select(lane, KEY_BITS)
