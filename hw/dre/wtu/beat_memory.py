"""Memory of the WTU for the beats of stored rows."""

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import Ram, SinglePortRam


class BeatMemory(wiring.Component):
    """Ring of beats with one writer and one or two readers. Consecutive beats are in different banks.

    With `single_port` there are two banks for each reader. A bank has one port: reads go first. A beat whose bank is
    read waits in registers and is written at most `readers` cycles later. This is enough because

    - no two written beats within three cycles are in the same bank,
    - no reader reads the same bank twice within three cycles (with one reader: two cycles), and
    - two readers never read the same bank in the same cycle.

    The user guarantees this: beats are written in order, each reader reads the beats of a row in order, waits several
    cycles before it reads them again, and two readers read beats of different parity. If the ring has too few beats for
    all banks, each beat has its own bank, which is not read before it is written. A beat must not be read in the
    `readers` cycles after its write.

    Without `single_port`, even and odd beats are in two banks with a read port and a write port.

    Timing: `r_data` is valid one cycle after `read`, for one cycle.

    Parameters
    ----------
    depth : beats, a power of two ; width : bits of one lane ; lanes : lanes of a beat
    readers : number of readers, 1 or 2 ; single_port : see above

    Members
    -------
    arrives, write, w_at, w_data : a beat arrives, it is written, its position, its lanes
    previous : `w_data` of the newest cycle with `arrives` before this one
    read, r_at, r_data : for each reader: read enable, position, lanes one cycle later
    update, u_data : write the beat that the last reader read in the previous cycle; never together with `write`, and
        never in a cycle in which a beat of the same parity is read
    """

    latency = 1

    def __init__(self, *, depth: int, width: int, lanes: int, readers: int, single_port: bool):
        self.depth, self.width, self.lanes, self.readers = depth, width, lanes, readers
        self.single_port = single_port
        beat = data.ArrayLayout(width, lanes)
        super().__init__(
            {
                "arrives": In(1),
                "write": In(1),
                "w_at": In(range(depth)),
                "w_data": In(beat),
                "previous": Out(beat),
                "read": In(readers),
                "r_at": In(data.ArrayLayout(range(depth), readers)),
                "r_data": Out(data.ArrayLayout(beat, readers)),
                "update": In(1),
                "u_data": In(beat),
            }
        )

    @property
    def banks(self) -> int:
        """Number of banks."""
        return min(self.depth, 2 * self.readers if self.single_port else 2)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.banks.bit_length() - 1
        kind = SinglePortRam if self.single_port else _TwoPortRam
        banks = [kind(depth=self.depth // self.banks, width=self.width, words=self.lanes) for _ in range(self.banks)]
        reads = Signal(self.banks)  # banks that are read
        last = Signal(range(self.depth))  # position that the last reader read
        m.d.sync += last.eq(self.r_at[self.readers - 1])
        with m.If(self.arrives):
            m.d.sync += self.previous.eq(self.w_data)
        for reader in range(self.readers):
            bank = Signal(bits, name=f"bank{reader}")
            m.d.sync += bank.eq(self.r_at[reader][:bits])
            m.d.comb += self.r_data[reader].eq(Array(Value.cast(memory.r_data) for memory in banks)[bank])
        beats = self._waiting_beats(m, reads, bits)
        for n, bank in enumerate(banks):
            m.submodules[f"bank{n}"] = bank
            r_addr: Value = self.r_at[0][bits:]
            for reader in range(self.readers):
                selected = self.read[reader] & (self.r_at[reader][:bits] == n)
                with m.If(selected):
                    m.d.comb += reads[n].eq(1)
                if reader:
                    r_addr = Mux(selected, self.r_at[reader][bits:], r_addr)
            updated = self.update & (last[:bits] == n)
            w_addr, w_data, written = beats[0][1][bits:], Mux(self.update, self.u_data, self.w_data), updated
            for k, (valid, position, lanes) in enumerate(beats):
                selected = valid & (position[:bits] == n)
                written = written | (selected & ~(reads[n] & self.single_port))
                if k:
                    w_addr = Mux(selected, position[bits:], w_addr)
                    w_data = Mux(selected, lanes, w_data)
            m.d.comb += [
                bank.r_en.eq(reads[n]),
                bank.r_addr.eq(r_addr),
                bank.w_mask.eq(written.replicate(self.lanes)),
                bank.w_addr.eq(Mux(self.update, last[bits:], w_addr)),
                Value.cast(bank.w_data).eq(w_data),
            ]
        return m

    def _waiting_beats(self, m: Module, reads: Signal, bits: int) -> list[tuple[Value, Value, Value]]:
        """Beats to write: valid, position and lanes of the beat that arrives and of those that wait."""
        beats: list[tuple[Value, Value, Value]] = [(self.write, self.w_at, Value.cast(self.w_data))]
        if not self.single_port:
            return beats
        for k in range(1, self.readers + 1):
            valid, position, lanes = beats[-1]
            waits, waiting_at = Signal(name=f"waits{k}"), Signal.like(position, name=f"waiting_at{k}")
            m.d.sync += waits.eq(valid & reads.bit_select(position[:bits], 1))
            waiting: Value = Value.cast(self.previous) if k == 1 else Signal(len(lanes), name=f"waiting{k}")
            with m.If(valid):
                m.d.sync += waiting_at.eq(position)
                if k > 1:
                    m.d.sync += waiting.eq(lanes)
            beats.append((waits, waiting_at, waiting))
        return beats


class _TwoPortRam(Ram):
    """Memory whose user never reads and writes the same row in the same cycle."""

    def __init__(self, *, depth: int, width: int, words: int):
        super().__init__(depth=depth, width=width, words=words, bypass=False)
