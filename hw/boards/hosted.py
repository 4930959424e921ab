"""A unit on a board: streams and settings through a serial port, and a self-test that needs no host."""

from __future__ import annotations

from dataclasses import dataclass, field

from amaranth import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.boards import codes
from hw.boards.protocol import Vectors, table
from hw.boards.selftest import SelfTest
from hw.boards.uart import Receiver, Transmitter

RESET_CYCLES = 8


@dataclass
class Message:
    """Something to tell the host: wanted by someone, granted for one cycle when it goes."""

    wanted: Value
    content: Value
    granted: Signal = field(default_factory=lambda: Signal(name="granted"))


class Hosted(wiring.Component):
    """`unit` behind a serial port.

    After power-up, and on request, the self-test runs; the unit is reset before and after. Everything else is
    in `hw.boards.codes`: one beat of each stream is held here until the unit takes it, results leave as the line can
    carry them. Half a message that stays so for `patience` cycles is forgotten.

    Parameters
    ----------
    unit : what to host; its inputs other than streams and `cfg_*` are 0
    vectors : of the self-test
    divisor : cycles of one bit of the serial port
    patience : cycles; also of the self-test without a beat

    Members
    -------
    rx, tx : the serial port
    busy, passed, failed : the self-test runs, and how the last one ended ; lost : a byte was lost
    """

    def __init__(self, unit: wiring.Component, vectors: Vectors, *, divisor: int, patience: int = 1 << 20):
        self.unit, self.vectors, self.divisor, self.patience = unit, vectors, divisor, patience
        self.table = table(unit)
        ports = {name: Out(1) for name in ("busy", "passed", "failed", "lost")}
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), **ports})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reset = Signal(init=1)
        m.submodules.unit = ResetInserter(reset)(self.unit)
        m.submodules.selftest = test = SelfTest(self.unit, self.vectors, patience=self.patience)
        m.d.comb += self.busy.eq(test.busy)
        code, word, complete = self._receive(m)
        messages: list[Message] = []

        def answer(number: int, when: Value) -> None:
            """Send a message without payload some time after `when`."""
            waiting = Signal(name=f"answer_{number}")
            messages.append(message := Message(waiting, Const(number, 8)))
            m.d.sync += waiting.eq((waiting & ~message.granted) | when)

        settings = Signal(sum(self.table.settings.values()))
        with m.If(complete & (code == codes.SETTINGS)):
            m.d.sync += settings.eq(word)
        confirmed = self._control(m, test, reset, code, word, complete, messages)
        answer(codes.TAKEN + codes.SETTINGS, confirmed)
        at = 0
        for name, width in self.table.settings.items():
            own = self.vectors.settings.get(name, 0)  # of the test, while it runs
            m.d.comb += Value.cast(getattr(self.unit, name)).eq(Mux(test.busy, own, settings[at : at + width]))
            at += width

        for one in self.table.inputs:
            port, played = getattr(self.unit, one.name), getattr(test, f"to_{one.name}")
            held, full = Signal(one.width, name=f"held_{one.name}"), Signal(name=f"full_{one.name}")
            taken = full & port.ready & ~test.busy
            m.d.comb += [
                port.valid.eq(Mux(test.busy, played.valid, full)),
                Value.cast(port.payload).eq(Mux(test.busy, played.payload, held)),
                played.ready.eq(port.ready & test.busy),
            ]
            with m.If(taken | reset):
                m.d.sync += full.eq(0)
            with m.If(complete & (code == one.code)):
                m.d.sync += [held.eq(word), full.eq(1)]
            answer(codes.TAKEN + one.code, taken & ~reset)
        for one in self.table.outputs:
            port, checked = getattr(self.unit, one.name), getattr(test, f"from_{one.name}")
            payload = Value.cast(port.payload)
            messages.append(message := Message(port.valid & ~test.busy & ~reset, Cat(Const(one.code, 8), payload)))
            m.d.comb += [
                checked.valid.eq(port.valid & test.busy),
                checked.payload.eq(payload),
                port.ready.eq(Mux(test.busy, checked.ready, message.granted)),
            ]
        self._send(m, messages)
        return m

    def _receive(self, m: Module) -> tuple[Signal, Value, Signal]:
        """Code and payload of a message from the host, and the cycle in which they are complete."""
        m.submodules.receiver = receiver = Receiver(divisor=self.divisor)
        m.d.comb += [receiver.rx.eq(self.rx), self.lost.eq(receiver.lost), receiver.o.ready.eq(1)]
        byte = receiver.o.payload
        lengths = {codes.CONTROL: 1, codes.SETTINGS: self.table.settings_bytes}
        lengths |= {one.code: one.bytes for one in self.table.inputs}
        longest = max(lengths.values())
        code, place, left = Signal(8), Signal(range(longest)), Signal(range(longest + 1))
        body, complete, idle = Signal(8 * longest), Signal(), Signal(range(self.patience + 1))
        m.d.sync += [complete.eq(0), idle.eq(Mux(receiver.o.valid | (left == 0), 0, idle + 1))]
        with m.If(receiver.o.valid & (left == 0)):
            m.d.sync += [code.eq(byte), place.eq(0)]
            with m.Switch(byte):
                for number, length in lengths.items():
                    with m.Case(number):
                        m.d.sync += left.eq(length)
        with m.Elif(receiver.o.valid):
            m.d.sync += [body.word_select(place, 8).eq(byte), place.eq(place + 1), left.eq(left - 1)]
            m.d.sync += complete.eq(left == 1)
        with m.Elif(idle == self.patience):
            m.d.sync += left.eq(0)
        return code, body, complete

    def _control(
        self,
        m: Module,
        test: SelfTest,
        reset: Signal,
        code: Value,
        word: Value,
        complete: Value,
        messages: list[Message],
    ) -> Value:
        """Resets the unit, then runs the test, or tells the state, or confirms settings: the result's cycle. Units may
        read their settings at reset."""
        confirm = 3
        count, then = Signal(range(RESET_CYCLES + 1), init=RESET_CYCLES), Signal(2, init=codes.TEST)
        ran, tested, telling, cause = Signal(), Signal(), Signal(), Signal(2)
        state = Cat(tested, self.passed, self.lost, Const(0, codes.CAUSE - 3), cause)
        messages.append(message := Message(telling, Cat(Const(codes.STATE, 8), state, Const(0, 8 - len(state)))))
        last = Signal()
        m.d.comb += [
            reset.eq(count != 0),
            last.eq(count == 1),
            test.begin.eq(last & (then == codes.TEST)),
            test.stop.eq(complete & ((code == codes.CONTROL) | (code == codes.SETTINGS))),
            self.passed.eq(tested & test.passed),
            self.failed.eq(tested & ~test.passed),
        ]
        m.d.sync += [ran.eq(test.busy), telling.eq((telling & ~message.granted) | (last & (then == codes.RESET)))]
        with m.If(reset):
            m.d.sync += count.eq(count - 1)
        with m.If(ran & ~test.busy):
            m.d.sync += tested.eq(1)
            with m.If(~reset):  # the test's own end
                m.d.sync += [count.eq(RESET_CYCLES), then.eq(codes.RESET)]
        with m.If(complete & (code == codes.CONTROL)):
            m.d.sync += [count.eq(RESET_CYCLES), then.eq(word[:2]), cause.eq(word[:2])]
        with m.Elif(complete & (code == codes.SETTINGS)):
            m.d.sync += [count.eq(RESET_CYCLES), then.eq(confirm)]
        return last & (then == confirm)

    def _send(self, m: Module, messages: list[Message]) -> None:
        """One message after the other, the first wanted one first."""
        m.submodules.transmitter = transmitter = Transmitter(divisor=self.divisor)
        longest = max(-(-len(message.content) // 8) for message in messages)
        shift, left = Signal(8 * longest), Signal(range(longest + 1))
        m.d.comb += [self.tx.eq(transmitter.tx), transmitter.i.valid.eq(left != 0), transmitter.i.payload.eq(shift[:8])]
        with m.If((left != 0) & transmitter.i.ready):
            m.d.sync += [shift.eq(shift[8:]), left.eq(left - 1)]
        for number, message in enumerate(messages):
            earlier = Cat(other.wanted for other in messages[:number]).any() if number else Const(0)
            m.d.comb += message.granted.eq(message.wanted & ~earlier & (left == 0))
            with m.If(message.granted):
                m.d.sync += [shift.eq(message.content), left.eq(-(-len(message.content) // 8))]
