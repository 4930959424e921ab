"""Memory of the WTU for the beats of stored rows."""

from collections.abc import Sequence

from amaranth import Array, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from hw.common.memory import SinglePortRam


class BeatMemory(wiring.Component):
    """Ring of beats with one writer and one or two readers. Consecutive beats are in different banks.

    There are two banks for each reader, with one port each. Reads go first: the writer waits while the bank of its beat
    is read. Readers and writer go through the banks in the same order; a writer that has waited follows in a bank that
    none of them reads. Two readers must read beats of different parity in one cycle.

    Timing: `r_data` is valid one cycle after `read`, for one cycle. `w_ready` depends combinationally on `w_at`, `read`
    and `r_at`.

    Parameters
    ----------
    depth : beats, a power of two ; width : bits of one lane ; lanes : lanes of a beat
    readers : number of readers, 1 or 2

    Members
    -------
    write, w_at, w_data : a beat to write, its position, its lanes; only while `w_ready`
    w_ready : the bank of position `w_at` can be written in this cycle
    read, r_at, r_data : for each reader: read enable, position, lanes one cycle later
    update, u_data : write the beat that the last reader read in the previous cycle; never together with `write`, and
        never in a cycle in which a beat of the same parity is read
    """

    latency = 1

    def __init__(self, *, depth: int, width: int, lanes: int, readers: int):
        self.depth, self.width, self.lanes, self.readers = depth, width, lanes, readers
        beat = data.ArrayLayout(width, lanes)
        super().__init__(
            {
                "write": In(1),
                "w_at": In(range(depth)),
                "w_data": In(beat),
                "w_ready": Out(1),
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
        return min(self.depth, 2 * self.readers)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        bits = self.banks.bit_length() - 1
        depth = self.depth // self.banks
        banks = [SinglePortRam(depth=depth, width=self.width, words=self.lanes) for _ in range(self.banks)]
        reads = Signal(self.banks)  # banks that are read
        last = Signal(range(self.depth))  # position that the last reader read
        m.d.sync += last.eq(self.r_at[self.readers - 1])
        self._show(m, banks, bits)
        position = Mux(self.update, last, self.w_at)
        m.d.comb += self.w_ready.eq(~reads.bit_select(self.w_at[:bits], 1))
        for n, bank in enumerate(banks):
            m.submodules[f"bank{n}"] = bank
            r_addr: Value = self.r_at[0][bits:]
            for reader in range(self.readers):
                selected = self.read[reader] & (self.r_at[reader][:bits] == n)
                with m.If(selected):
                    m.d.comb += reads[n].eq(1)
                if reader:
                    r_addr = Mux(selected, self.r_at[reader][bits:], r_addr)
            m.d.comb += [
                bank.r_en.eq(reads[n]),
                bank.r_addr.eq(r_addr),
                bank.w_mask.eq(((self.write | self.update) & (position[:bits] == n)).replicate(self.lanes)),
                bank.w_addr.eq(position[bits:]),
                bank.w_data.eq(Mux(self.update, self.u_data, self.w_data)),
            ]
        return m

    def _show(self, m: Module, banks: Sequence[SinglePortRam], bits: int) -> None:
        """Drive `r_data`: each parity, which one reader reads in a cycle, selects one of its banks first."""
        rows = []
        for parity in range(min(2, self.banks)):
            bank = Signal(max(1, bits - 1), name=f"bank{parity}")
            for reader in range(self.readers):
                with m.If(self.read[reader] & (self.r_at[reader][0] == parity)):
                    m.d.sync += bank.eq(self.r_at[reader][1:bits])
            rows.append(Signal(self.u_data.shape(), name=f"row{parity}"))
            m.d.comb += rows[-1].eq(Array(memory.r_data for memory in banks[parity::2])[bank])
        for reader in range(self.readers):
            odd = Signal(name=f"odd{reader}")
            m.d.sync += odd.eq(self.r_at[reader][0])
            m.d.comb += self.r_data[reader].eq(Mux(odd, rows[-1], rows[0]))
