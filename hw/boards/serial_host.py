"""Serial access to a unit on a board: a host reads and writes its streams and settings; includes a self-test."""

from __future__ import annotations

from dataclasses import dataclass, field

from amaranth import Cat, ClockDomain, ClockSignal, Const, DomainRenamer, Module, Mux, ResetSignal, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.boards import message_codes as codes
from hw.boards.protocol import Channel, Vectors, protocol
from hw.boards.selftest import SelfTest
from hw.boards.uart import Receiver, Transmitter

RESET_CYCLES = 8  # cycles of a reset of the unit


@dataclass
class Message:
    """A message to the host: a request to send it, its bits, and the grant, which is 1 in the cycle of the start."""

    request: Value
    content: Value
    grant: Signal = field(default_factory=lambda: Signal(name="grant"))


@dataclass
class Command:
    """A message from the host: code, payload, and the cycle in which it is complete."""

    code: Signal
    payload: Signal
    complete: Signal

    def has(self, code: int) -> Value:
        """Whether a message with `code` is complete in this cycle."""
        return self.complete & (self.code == code)


class SerialHost(wiring.Component):
    """A unit behind a serial port: top level of a board design.

    The self-test runs after power-up and on request. The unit is reset before and after the test. See
    `hw.boards.message_codes` for the messages. One beat of each input stream waits here until the unit accepts it. The
    unit waits until the serial line has sent its results. An incomplete message is discarded after `patience` cycles.

    Parameters
    ----------
    unit : the unit; inputs other than streams and `cfg_*` are 0
    vectors : test vectors of the self-test
    divisor : cycles of one bit of the serial line, at least 4
    patience : cycles after which an incomplete message is discarded, and after which a test without a beat fails

    Members
    -------
    rx, tx : serial line
    busy : the self-test runs
    passed, failed : result of the last self-test
    lost : a received byte was lost

    Raises
    ------
    ValueError
        When `divisor` is too small.
    """

    def __init__(self, unit: wiring.Component, vectors: Vectors, *, divisor: int, patience: int = 1 << 20):
        self.unit, self.vectors, self.divisor, self.patience = unit, vectors, divisor, patience
        self.protocol = protocol(unit)
        ports = {name: Out(1) for name in ("busy", "passed", "failed", "lost")}
        super().__init__({"rx": In(1, init=1), "tx": Out(1, init=1), **ports})

    @property
    def modules(self) -> dict[str, wiring.Component]:
        """Modules of which the unit has instances."""
        return getattr(self.unit, "modules", {})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        reset = Signal(init=1)
        m.domains.unit = ClockDomain(local=True)
        m.d.comb += [ClockSignal("unit").eq(ClockSignal()), ResetSignal("unit").eq(reset)]
        m.submodules.unit = DomainRenamer("unit")(self.unit)
        m.submodules.selftest = test = SelfTest(self.unit, self.vectors, patience=self.patience)
        m.d.comb += self.busy.eq(test.busy)
        command = self._receive(m)
        messages: list[Message] = []

        settings = Signal(sum(self.protocol.settings.values()))
        with m.If(command.has(codes.SETTINGS)):
            m.d.sync += settings.eq(command.payload)
        acknowledge = self._control(m, test, reset, command, messages)
        self._acknowledge(m, messages, codes.SETTINGS, acknowledge)
        at = 0
        for name, width in self.protocol.settings.items():
            test_setting = self.vectors.settings.get(name, 0)
            m.d.comb += Value.cast(getattr(self.unit, name)).eq(Mux(test.busy, test_setting, settings[at : at + width]))
            at += width
        for channel in self.protocol.inputs:
            self._input(m, channel, test, reset, command, messages)
        for channel in self.protocol.outputs:
            self._output(m, channel, test, reset, messages)
        self._send(m, messages)
        return m

    def _acknowledge(self, m: Module, messages: list[Message], code: int, event: Value) -> None:
        """Send the message `ACCEPTED` for `code` after `event`."""
        number = codes.ACCEPTED + code
        waiting = Signal(name=f"answer_{number}")
        messages.append(message := Message(waiting, Const(number, 8)))
        m.d.sync += waiting.eq((waiting & ~message.grant) | event)

    def _input(
        self, m: Module, channel: Channel, test: SelfTest, reset: Signal, command: Command, messages: list[Message]
    ) -> None:
        """An input stream of the unit, driven by the self-test while it runs, and by the host otherwise."""
        port, test_stream = getattr(self.unit, channel.name), getattr(test, f"to_{channel.name}")
        register, full = Signal(channel.width, name=f"beat_{channel.name}"), Signal(name=f"full_{channel.name}")
        accepted = full & port.ready & ~test.busy
        m.d.comb += [
            port.valid.eq(Mux(test.busy, test_stream.valid, full)),
            Value.cast(port.payload).eq(Mux(test.busy, test_stream.payload, register)),
            test_stream.ready.eq(port.ready & test.busy),
        ]
        with m.If(accepted | reset):
            m.d.sync += full.eq(0)
        with m.If(command.has(channel.code)):
            m.d.sync += [register.eq(command.payload), full.eq(1)]
        self._acknowledge(m, messages, channel.code, accepted & ~reset)

    def _output(self, m: Module, channel: Channel, test: SelfTest, reset: Signal, messages: list[Message]) -> None:
        """An output stream of the unit, read by the self-test while it runs, and sent to the host otherwise."""
        port, test_stream = getattr(self.unit, channel.name), getattr(test, f"from_{channel.name}")
        payload = Value.cast(port.payload)
        messages.append(message := Message(port.valid & ~test.busy & ~reset, Cat(Const(channel.code, 8), payload)))
        m.d.comb += [
            test_stream.valid.eq(port.valid & test.busy),
            test_stream.payload.eq(payload),
            port.ready.eq(Mux(test.busy, test_stream.ready, message.grant)),
        ]

    def _receive(self, m: Module) -> Command:
        """Receive the messages from the host."""
        m.submodules.receiver = receiver = Receiver(divisor=self.divisor)
        m.d.comb += [receiver.rx.eq(self.rx), self.lost.eq(receiver.lost), receiver.o.ready.eq(1)]
        byte = receiver.o.payload
        lengths = {codes.CONTROL: 1, codes.SETTINGS: self.protocol.settings_bytes}
        lengths |= {channel.code: channel.bytes for channel in self.protocol.inputs}
        longest = max(lengths.values())
        code, byte_index, remaining = Signal(8), Signal(range(longest)), Signal(range(longest + 1))
        body, complete, idle = Signal(8 * longest), Signal(), Signal(range(self.patience + 1))
        m.d.sync += [complete.eq(0), idle.eq(Mux(receiver.o.valid | (remaining == 0), 0, idle + 1))]
        with m.If(receiver.o.valid & (remaining == 0)):
            m.d.sync += [code.eq(byte), byte_index.eq(0)]
            with m.Switch(byte):
                for number, length in lengths.items():
                    with m.Case(number):
                        m.d.sync += [remaining.eq(length), complete.eq(length == 0)]
        with m.Elif(receiver.o.valid):
            m.d.sync += body.word_select(byte_index, 8).eq(byte)
            m.d.sync += [byte_index.eq(byte_index + 1), remaining.eq(remaining - 1), complete.eq(remaining == 1)]
        with m.Elif(idle == self.patience):
            m.d.sync += remaining.eq(0)
        return Command(code, body, complete)

    def _control(self, m: Module, test: SelfTest, reset: Signal, command: Command, messages: list[Message]) -> Value:
        """Reset the unit, then run the self-test, report the state, or acknowledge settings.

        New settings need a reset, because units may read their settings at reset. Returns the cycle in which settings
        are acknowledged.
        """
        confirm = 3  # a third value of `next_action`; the others are RESET (report the state) and TEST
        count, next_action = Signal(range(RESET_CYCLES + 1), init=RESET_CYCLES), Signal(2, init=codes.TEST)
        busy_d, tested, reporting, cause = Signal(), Signal(), Signal(), Signal(2)
        state = Cat(tested, self.passed, self.lost, Const(0, codes.CAUSE - 3), cause)
        messages.append(message := Message(reporting, Cat(Const(codes.STATE, 8), state, Const(0, 8 - len(state)))))
        last = Signal()
        m.d.comb += [
            reset.eq(count != 0),
            last.eq(count == 1),
            test.begin.eq(last & (next_action == codes.TEST)),
            test.stop.eq(command.has(codes.CONTROL) | command.has(codes.SETTINGS)),
            self.passed.eq(tested & test.passed),
            self.failed.eq(tested & ~test.passed),
        ]
        m.d.sync += [
            busy_d.eq(test.busy),
            reporting.eq((reporting & ~message.grant) | (last & (next_action == codes.RESET))),
        ]
        with m.If(reset):
            m.d.sync += count.eq(count - 1)
        with m.If(busy_d & ~test.busy):
            m.d.sync += tested.eq(1)
            with m.If(~reset):  # the test ended by itself
                m.d.sync += [count.eq(RESET_CYCLES), next_action.eq(codes.RESET)]
        with m.If(command.has(codes.CONTROL)):
            request = command.payload[:2]
            m.d.sync += [count.eq(RESET_CYCLES), next_action.eq(request), cause.eq(request)]
        with m.Elif(command.has(codes.SETTINGS)):
            m.d.sync += [count.eq(RESET_CYCLES), next_action.eq(confirm)]
        return last & (next_action == confirm)

    def _send(self, m: Module, messages: list[Message]) -> None:
        """Send one message at a time. The first message in `messages` that is requested has priority."""
        m.submodules.transmitter = transmitter = Transmitter(divisor=self.divisor)
        longest = max(-(-len(message.content) // 8) for message in messages)
        shift, remaining = Signal(8 * longest), Signal(range(longest + 1))
        m.d.comb += [
            self.tx.eq(transmitter.tx),
            transmitter.i.valid.eq(remaining != 0),
            transmitter.i.payload.eq(shift[:8]),
        ]
        with m.If((remaining != 0) & transmitter.i.ready):
            m.d.sync += [shift.eq(shift[8:]), remaining.eq(remaining - 1)]
        for number, message in enumerate(messages):
            earlier = Cat(other.request for other in messages[:number]).any() if number else Const(0)
            m.d.comb += message.grant.eq(message.request & ~earlier & (remaining == 0))
            with m.If(message.grant):
                m.d.sync += [shift.eq(message.content), remaining.eq(-(-len(message.content) // 8))]
