"""Self-test of a unit on the board: plays the inputs from memories and compares all output beats."""

from __future__ import annotations

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import memory, stream, wiring
from amaranth.lib.fifo import SyncFIFOBuffered
from amaranth.lib.wiring import In, Out

from hw.boards.protocol import Channel, Vectors, echo_fields, protocol

ECHO_DEPTH = 32  # entries of the queue of answers
DRAIN = 256  # cycles after the last beat in which no further beat may follow


class Player(wiring.Component):
    """Sends the words of a memory in order, from `begin` on.

    Timing: one word per cycle; the first word is valid two cycles after `begin`.

    Parameters
    ----------
    words : content of the memory
    width : bits of a word

    Members
    -------
    begin : start with the first word
    o : stream of words
    done : all words were accepted
    """

    def __init__(self, words: list[int], *, width: int):
        self.words, self.width = words, width
        super().__init__({"begin": In(1), "o": Out(stream.Signature(width)), "done": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.rom = rom = memory.Memory(shape=self.width, depth=max(1, len(self.words)), init=self.words)
        read = rom.read_port()
        index, next_index = Signal(range(len(self.words) + 1)), Signal(range(len(self.words) + 1))
        m.d.comb += [
            next_index.eq(index + (self.o.valid & self.o.ready)),
            read.addr.eq(next_index),
            read.en.eq(1),
            self.o.payload.eq(read.data),
            self.done.eq(index == len(self.words)),
        ]
        m.d.sync += [index.eq(next_index), self.o.valid.eq(next_index != len(self.words))]
        with m.If(self.begin):
            m.d.sync += [index.eq(0), self.o.valid.eq(0)]
        return m


class SelfTest(wiring.Component):
    """Runs test vectors through a unit.

    Timing: `busy` is 1 from `begin` to the end of the test. The test ends `DRAIN` cycles after the last beat, at the
    first wrong beat, or after `patience` cycles without a beat.

    Parameters
    ----------
    unit : the unit whose streams are tested; the self-test does not contain it
    vectors : input beats and expected output beats
    patience : cycles without a beat after which the test fails

    Members
    -------
    begin : start the test; the unit is in reset
    stop : end the test, as failed
    busy : the test runs
    passed : the last test found all beats equal
    to_NAME, from_NAME : streams to the inputs of the unit and from its outputs
    """

    def __init__(self, unit: wiring.Component, vectors: Vectors, *, patience: int = 1 << 20):
        self.unit, self.vectors, self.patience, self.protocol = unit, vectors, patience, protocol(unit)
        super().__init__(
            {
                "begin": In(1),
                "stop": In(1),
                "busy": Out(1),
                "passed": Out(1),
                **{f"to_{channel.name}": Out(stream.Signature(channel.width)) for channel in self.protocol.inputs},
                **{f"from_{channel.name}": In(stream.Signature(channel.width)) for channel in self.protocol.outputs},
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        beats: list[Value] = []  # a beat was transferred; a beat was wrong; all beats of a stream were transferred
        mismatches: list[Value] = []
        done: list[Value] = []
        requests = {request: answer for answer, request in self.vectors.echo.items()}
        fifos: dict[str, SyncFIFOBuffered] = {}
        for channel in self.protocol.inputs:
            if channel.name in self.vectors.echo:
                fifos[channel.name] = fifo = self._echo(m, channel)
                done.append(~fifo.r_rdy)
            else:
                player = self._play(m, channel)
                done.append(player.done)
                output = getattr(self, f"to_{channel.name}")
                beats.append(output.valid & output.ready)
        for channel in self.protocol.outputs:
            answer = requests.get(channel.name)
            beat, mismatch, complete = self._check(m, channel, answer, fifos[answer] if answer else None)
            beats.append(beat)
            mismatches.append(mismatch)
            done.append(complete)

        idle_cycles = Signal(range(max(self.patience, DRAIN) + 1))
        moving, complete = Cat(*beats).any(), Cat(*done).all()
        with m.If(self.busy):
            m.d.sync += idle_cycles.eq(idle_cycles + 1)
            with m.If(moving):
                m.d.sync += idle_cycles.eq(0)
            with m.If(Cat(*mismatches).any() | (idle_cycles == self.patience) | self.stop):
                m.d.sync += [self.busy.eq(0), self.passed.eq(0)]
            with m.Elif(complete & ~moving & (idle_cycles >= DRAIN)):
                m.d.sync += [self.busy.eq(0), self.passed.eq(1)]
        with m.If(self.begin):
            m.d.sync += [self.busy.eq(1), self.passed.eq(0), idle_cycles.eq(0)]
        return m

    def _play(self, m: Module, channel: Channel) -> Player:
        """Play the beats of an input stream."""
        output = getattr(self, f"to_{channel.name}")
        player = Player(self.vectors.inputs.get(channel.name, []), width=channel.width)
        m.submodules[f"play_{channel.name}"] = player
        m.d.comb += [
            output.valid.eq(player.o.valid & self.busy),
            output.payload.eq(player.o.payload),
            player.o.ready.eq(output.ready & self.busy),
            player.begin.eq(self.begin),
        ]
        return player

    def _echo(self, m: Module, channel: Channel) -> SyncFIFOBuffered:
        """Queue of an input stream whose beats answer the beats of an output stream."""
        output = getattr(self, f"to_{channel.name}")
        fifo = SyncFIFOBuffered(width=channel.width, depth=ECHO_DEPTH)
        m.submodules[f"echo_{channel.name}"] = fifo
        m.d.comb += [output.valid.eq(fifo.r_rdy), output.payload.eq(fifo.r_data), fifo.r_en.eq(output.ready)]
        return fifo

    def _check(
        self, m: Module, channel: Channel, answer: str | None, fifo: SyncFIFOBuffered | None
    ) -> tuple[Value, Value, Value]:
        """Compare the beats of an output stream, and queue the answer to each in `fifo` if the stream has one.

        Returns whether a beat is transferred, whether it is wrong, and whether all expected beats were transferred.
        """
        source = getattr(self, f"from_{channel.name}")
        expected = Player(self.vectors.outputs.get(channel.name, []), width=channel.width)
        m.submodules[f"expect_{channel.name}"] = expected
        has_space: Value | int = 1
        if answer and fifo:
            word = Signal(len(fifo.w_data), name=f"answer_{answer}")
            for request_bit, answer_bit, width in echo_fields(self.unit, answer, channel.name):
                m.d.comb += word[answer_bit : answer_bit + width].eq(source.payload[request_bit : request_bit + width])
            m.d.comb += [fifo.w_data.eq(word), fifo.w_en.eq(source.valid & source.ready)]
            has_space = fifo.w_rdy
        # a beat after the expected ones is accepted, too, and is wrong
        m.d.comb += source.ready.eq(self.busy & has_space & (expected.o.valid | expected.done))
        beat = Signal(name=f"beat_{channel.name}")
        m.d.comb += [beat.eq(source.valid & source.ready), expected.o.ready.eq(beat), expected.begin.eq(self.begin)]
        return beat, beat & (expected.done | (source.payload != expected.o.payload)), expected.done
