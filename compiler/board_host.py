"""Host program of a board: runs the test vectors on the board through a serial port and compares the results.

    python -m compiler.board_host /dev/ttyUSB0 build/board/vectors.json

The program needs only Python, this source tree and a system with POSIX terminals. `Session` implements the protocol of
`hw.boards.message_codes` without input or output: bytes in, bytes out. A simulation of the board uses the same class.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hw.boards.message_codes import ACCEPTED, CAUSE, CONTROL, LOST, PASSED, RESET, SETTINGS, STATE, TEST, TESTED
from util.progress import Progress, no_progress

MAX_CHARACTERS = 1 << 28  # size limit of the file with the vectors
QUIET_S = 5.0  # time without a byte from the board after which the session fails


class BoardError(RuntimeError):
    """The answer of the board is missing, or differs from that of the golden model."""


class Session:
    """A test of the board: first its self-test, then the same vectors through the serial port.

    Parameters
    ----------
    description : content of `vectors.json`: `protocol`, `settings`, `inputs`, `outputs`, `echo`; words are integers

    Attributes
    ----------
    done : all beats were sent and received, and were correct
    received : received beats of each output stream
    """

    def __init__(self, description: Mapping[str, Any]):
        protocol = description["protocol"]
        self._inputs = {channel["name"]: channel for channel in protocol["inputs"]}
        self._outputs = {channel["code"]: channel for channel in protocol["outputs"]}
        self._names = {channel["code"]: channel["name"] for channel in protocol["inputs"]}
        self._widths = protocol["settings"]
        self._settings = description["settings"]
        self._echo = {echo["request"]: echo for echo in description["echo"]}
        self._waiting = {name: list(description["inputs"].get(name, ())) for name in self._inputs}
        names = [channel["name"] for channel in protocol["outputs"]]
        self._expected = {name: description["outputs"].get(name, []) for name in names}
        self._busy: set[str] = set()
        self._buffer = b""
        self._phase = "reset"
        self.received: dict[str, list[int]] = {name: [] for name in self._expected}

    @property
    def done(self) -> bool:
        """Whether the session is complete."""
        beats = all(len(words) == len(self._expected[name]) for name, words in self.received.items())
        return self._phase == "streams" and beats and not self._busy and not any(self._waiting.values())

    @property
    def progress(self) -> tuple[str, int, int]:
        """Phase, received beats, and expected beats."""
        expected_beats = sum(map(len, self._expected.values()))
        return self._phase, sum(map(len, self.received.values())), expected_beats

    def begin(self) -> bytes:
        """The first bytes for the board."""
        return bytes([CONTROL, RESET])

    def feed(self, data: bytes) -> bytes:
        """Bytes to send after `data` was received from the board. Raises `BoardError` on a wrong answer."""
        self._buffer += data
        request = b""
        while self._buffer and (length := self._length(self._buffer[0])) <= len(self._buffer):
            message, self._buffer = self._buffer[:length], self._buffer[length:]
            request += self._message(message[0], int.from_bytes(message[1:], "little"))
        return request

    def _length(self, code: int) -> int:
        """Length of a message from the board, in bytes."""
        if code == STATE:
            return 2
        if code in self._outputs:
            return 1 + self._bytes(self._outputs[code])
        if code - ACCEPTED == SETTINGS or code - ACCEPTED in self._names:
            return 1
        raise BoardError(
            f"unexpected message code 0x{code:02x} from the board: noise, or the bitstream of another unit"
        )

    @staticmethod
    def _bytes(channel: Mapping[str, Any]) -> int:
        """Bytes of a beat."""
        return -(-int(channel["width"]) // 8)

    def _message(self, code: int, word: int) -> bytes:
        """Process a message from the board; returns the bytes to send."""
        if code == STATE:
            return self._state(word)
        if self._phase in ("reset", "self-test"):  # sent before the reset
            return b""
        if code in self._outputs:
            return self._result(self._outputs[code], word)
        if code - ACCEPTED == SETTINGS:
            self._phase = "streams"
            return b"".join(self._next(name) for name in self._inputs)
        self._busy.discard(self._names[code - ACCEPTED])
        return self._next(self._names[code - ACCEPTED])

    def _state(self, word: int) -> bytes:
        """Process the message `STATE`; returns the bytes to send."""
        if word & LOST:
            raise BoardError("a byte to the board was lost: check the baud rate")
        status = word >> CAUSE
        if self._phase == "reset" and status == RESET:
            self._phase = "self-test"
            return bytes([CONTROL, TEST])
        if self._phase == "self-test" and status == TEST:
            if not word & TESTED or not word & PASSED:
                raise BoardError("the self-test on the board failed: its outputs differ from those of the golden model")
            self._phase = "settings"
            packed = at = 0
            for name, width in self._widths.items():
                packed |= self._settings.get(name, 0) << at
                at += width
            return bytes([SETTINGS]) + packed.to_bytes(-(-at // 8), "little")
        if self._phase in ("settings", "streams"):
            raise BoardError(f"the board was reset in the phase {self._phase}")
        return b""

    def _next(self, name: str) -> bytes:
        """Message with the next beat of an input stream, if the unit has accepted the previous beat."""
        if name in self._busy or not self._waiting[name]:
            return b""
        self._busy.add(name)
        channel = self._inputs[name]
        word = self._waiting[name].pop(0)
        return bytes([channel["code"]]) + word.to_bytes(self._bytes(channel), "little")

    def _result(self, channel: Mapping[str, Any], word: int) -> bytes:
        """Compare a beat of an output stream; returns the bytes to send."""
        name = channel["name"]
        number, expected = len(self.received[name]), self._expected[name]
        self.received[name].append(word)
        if number >= len(expected):
            raise BoardError(f"{name} must have {len(expected)} beats, got beat {number}")
        if word != expected[number]:
            raise BoardError(f"beat {number} of {name} must be 0x{expected[number]:x}, got 0x{word:x}")
        if name not in self._echo:
            return b""
        echo, answer = self._echo[name], 0
        for request_bit, answer_bit, width in echo["fields"]:
            answer |= (word >> request_bit & ((1 << width) - 1)) << answer_bit
        self._waiting[echo["answer"]].append(answer)
        return self._next(echo["answer"])


def talk(
    session: Session,
    write: Callable[[bytes], Any],
    read: Callable[[], bytes],
    progress: Progress = no_progress,
) -> None:
    """Run a session over a serial line. `read` waits for a short time and returns the received bytes, if any."""
    write(session.begin())
    last_byte_time = time.monotonic()
    while not session.done:
        data = read()
        current = time.monotonic()
        last_byte_time = current if data else last_byte_time
        if current - last_byte_time > QUIET_S:
            raise BoardError(f"no answer from the board for {QUIET_S:g} s in the phase {session.progress[0]}")
        if answer := session.feed(data):
            write(answer)
        progress(*session.progress)


def open_line(port: str, baud: int) -> tuple[Callable[[bytes], Any], Callable[[], bytes]]:
    """Functions that write and read a serial port (8 bits, no parity, raw). Raises `OSError` or `ValueError`."""
    import os
    import select
    import termios

    if (rate := getattr(termios, f"B{baud}", None)) is None:
        raise ValueError(f"baud must be a rate of this system's terminals, got {baud}")
    line = os.open(port, os.O_RDWR | os.O_NOCTTY)
    try:
        flags = termios.CS8 | termios.CREAD | termios.CLOCAL
        termios.tcsetattr(line, termios.TCSANOW, [0, 0, flags, 0, rate, rate, termios.tcgetattr(line)[6]])
    except termios.error as error:
        raise OSError(f"{port}: not a serial port ({error.args[-1]})") from error
    termios.tcflush(line, termios.TCIOFLUSH)

    def read() -> bytes:
        return os.read(line, 4096) if select.select([line], [], [], 0.2)[0] else b""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(line, data) :]

    return write, read


def load(path: Path) -> dict[str, Any]:
    """Read `vectors.json`. Raises `ValueError` for invalid content and `OSError` when the file cannot be read."""
    try:
        with path.open() as file:
            description = json.loads(file.read(MAX_CHARACTERS))
        check(description)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not the vectors of a board ({type(error).__name__}: {error})") from error
    return dict(description)


def check(description: dict[str, Any]) -> None:
    """Check that `description` has all keys of a session and that each word fits its stream. Raises an error if not."""
    protocol = description["protocol"]
    inputs, outputs = ({channel["name"]: channel for channel in protocol[side]} for side in ("inputs", "outputs"))
    channels = inputs | outputs
    widths = {name: channel["width"] for name, channel in channels.items()} | protocol["settings"]
    settings = {name: [value] for name, value in description["settings"].items()}
    words = {**description["inputs"], **description["outputs"], **settings}
    numbers = [description["baud"], *widths.values(), *(channel["code"] for channel in channels.values())]
    numbers += [number for echo in description["echo"] for field in echo["fields"] for number in field]
    if not all(type(number) is int and 0 <= number < 1 << 24 for number in numbers):
        raise ValueError("baud, codes, widths and fields must be integers from 0 to 2**24 - 1")
    if not all(channel["code"] < 256 for channel in channels.values()):
        raise ValueError("codes must be bytes")
    for echo in description["echo"]:
        width = outputs[echo["request"]]["width"], inputs[echo["answer"]]["width"]
        if any(source + bits > width[0] or target + bits > width[1] for source, target, bits in echo["fields"]):
            raise ValueError(f"fields of the echo {echo['answer']} must be inside beats of {width} bits")
    for name, values in words.items():
        if not isinstance(values, list) or not all(
            type(word) is int and 0 <= word < 1 << widths[name] for word in values
        ):
            raise ValueError(f"{name} must have words of {widths[name]} bits")


def main(argv: list[str]) -> int:
    """Run the program with the arguments `PORT VECTORS.json`; returns the exit status."""
    if len(argv) != 2:
        print("usage: python -m compiler.board_host PORT VECTORS.json", file=sys.stderr)
        return 2
    try:
        description = load(Path(argv[1]))
        session = Session(description)
        talk(session, *open_line(argv[0], description["baud"]))
    except (BoardError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    counts = ", ".join(f"{len(words)} of {name}" for name, words in session.received.items())
    print(f"self-test passed; beats equal to the golden model through the serial port: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
