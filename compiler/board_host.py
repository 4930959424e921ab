"""Host program of a board: sends the test vectors of a build over the serial port and checks the results.

    python -m compiler.board_host /dev/ttyUSB0 build/board/vectors.json

It needs only Python and a POSIX terminal. `hw.boards.codes` defines the messages. `Session` performs no input or output
itself (bytes in, bytes out), so a simulation of the board uses the same code.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hw.boards.codes import CAUSE, CONTROL, LOST, PASSED, RESET, SETTINGS, STATE, TAKEN, TEST, TESTED
from util.progress import Progress, no_progress

MAX_CHARACTERS = 1 << 28  # of a file of vectors
QUIET_S = 5.0  # without a byte for this time, the board counts as stopped


class BoardError(RuntimeError):
    """The board does not respond, or a response differs from the golden model."""


class Session:
    """Runs the self-test of the board, then the same vectors through the serial port.

    Parameters
    ----------
    description : content of the file of vectors: `table`, `settings`, `inputs`, `outputs`, `echo`; words are integers

    Attributes
    ----------
    done : all vectors were sent, and all results were correct
    received : beats of every output stream so far
    """

    def __init__(self, description: Mapping[str, Any]):
        table = description["table"]
        self._inputs = {one["name"]: one for one in table["inputs"]}
        self._outputs = {one["code"]: one for one in table["outputs"]}
        self._names = {one["code"]: one["name"] for one in table["inputs"]}
        self._widths = table["settings"]
        self._settings = description["settings"]
        self._echo = {one["asked"]: one for one in description["echo"]}
        self._waiting = {name: list(description["inputs"].get(name, ())) for name in self._inputs}
        self._expected = {one["name"]: description["outputs"].get(one["name"], []) for one in table["outputs"]}
        self._busy: set[str] = set()
        self._buffer = b""
        self._phase = "reset"
        self.received: dict[str, list[int]] = {name: [] for name in self._expected}

    @property
    def done(self) -> bool:
        beats = all(len(words) == len(self._expected[name]) for name, words in self.received.items())
        return self._phase == "streams" and beats and not self._busy and not any(self._waiting.values())

    @property
    def progress(self) -> tuple[str, int, int]:
        """Phase, number of results so far, and total number of results."""
        total = sum(map(len, self._expected.values()))
        return self._phase, sum(map(len, self.received.values())), total

    def begin(self) -> bytes:
        """First bytes to send."""
        return bytes([CONTROL, RESET])

    def feed(self, data: bytes) -> bytes:
        """Process `data` from the board and return the bytes to send; raises `BoardError` on a wrong result."""
        self._buffer += data
        request = b""
        while self._buffer and (length := self._length(self._buffer[0])) <= len(self._buffer):
            message, self._buffer = self._buffer[:length], self._buffer[length:]
            request += self._message(message[0], int.from_bytes(message[1:], "little"))
        return request

    def _length(self, code: int) -> int:
        """Length in bytes of a message from the board."""
        if code == STATE:
            return 2
        if code in self._outputs:
            return 1 + self._bytes(self._outputs[code])
        if code - TAKEN == SETTINGS or code - TAKEN in self._names:
            return 1
        raise BoardError(f"unexpected message code 0x{code:02x}: line noise, or the bitstream of another unit")

    @staticmethod
    def _bytes(channel: Mapping[str, Any]) -> int:
        return -(-int(channel["width"]) // 8)

    def _message(self, code: int, word: int) -> bytes:
        if code == STATE:
            return self._state(word)
        if self._phase in ("reset", "self-test"):  # sent before the reset
            return b""
        if code in self._outputs:
            return self._result(self._outputs[code], word)
        if code - TAKEN == SETTINGS:
            self._phase = "streams"
            return b"".join(self._next(name) for name in self._inputs)
        self._busy.discard(self._names[code - TAKEN])
        return self._next(self._names[code - TAKEN])

    def _state(self, word: int) -> bytes:
        if word & LOST:
            raise BoardError("the board lost a byte: check the baud rate")
        cause = word >> CAUSE
        if self._phase == "reset" and cause == RESET:
            self._phase = "self-test"
            return bytes([CONTROL, TEST])
        if self._phase == "self-test" and cause == TEST:
            if not word & TESTED or not word & PASSED:
                raise BoardError("the self-test of the board failed: its outputs differ from the golden model")
            self._phase = "settings"
            packed = at = 0
            for name, width in self._widths.items():
                packed |= self._settings.get(name, 0) << at
                at += width
            return bytes([SETTINGS]) + packed.to_bytes(-(-at // 8), "little")
        if self._phase in ("settings", "streams"):
            raise BoardError(f"the board was reset in phase {self._phase}")
        return b""

    def _next(self, name: str) -> bytes:
        """Next beat of an input stream, if the board has accepted the previous one."""
        if name in self._busy or not self._waiting[name]:
            return b""
        self._busy.add(name)
        channel = self._inputs[name]
        word = self._waiting[name].pop(0)
        return bytes([channel["code"]]) + word.to_bytes(self._bytes(channel), "little")

    def _result(self, channel: Mapping[str, Any], word: int) -> bytes:
        name = channel["name"]
        number, expected = len(self.received[name]), self._expected[name]
        self.received[name].append(word)
        if number >= len(expected):
            raise BoardError(f"{name} must have {len(expected)} beats, got beat {number}")
        if word != expected[number]:
            raise BoardError(f"{name}: beat {number} must be 0x{expected[number]:x} (golden model), got 0x{word:x}")
        if name not in self._echo:
            return b""
        echo, answer = self._echo[name], 0
        for source, target, width in echo["fields"]:
            answer |= (word >> source & ((1 << width) - 1)) << target
        self._waiting[echo["answer"]].append(answer)
        return self._next(echo["answer"])


def talk(
    session: Session,
    write: Callable[[bytes], Any],
    read: Callable[[], bytes],
    progress: Progress = no_progress,
) -> None:
    """Run a session over a serial line; `read` waits a short time and returns the received bytes, possibly none."""
    write(session.begin())
    last_byte_time = time.monotonic()
    while not session.done:
        data = read()
        now = time.monotonic()
        last_byte_time = now if data else last_byte_time
        if now - last_byte_time > QUIET_S:
            raise BoardError(f"no byte from the board for {QUIET_S:g} s in phase {session.progress[0]}")
        if answer := session.feed(data):
            write(answer)
        progress(*session.progress)


def open_line(port: str, baud: int) -> tuple[Callable[[bytes], Any], Callable[[], bytes]]:
    """Write and read functions of a raw serial port, 8 bits, no parity; `OSError` or `ValueError` if it fails."""
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
        raise OSError(f"port must be a serial port, got {port} ({error.args[-1]})") from error
    termios.tcflush(line, termios.TCIOFLUSH)

    def read() -> bytes:
        return os.read(line, 4096) if select.select([line], [], [], 0.2)[0] else b""

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(line, data) :]

    return write, read


def load(path: Path) -> dict[str, Any]:
    """Read a file of vectors; `ValueError` for invalid content, `OSError` if it cannot be read."""
    try:
        with path.open() as file:
            description = json.loads(file.read(MAX_CHARACTERS))
        check(description)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: invalid file of vectors ({type(error).__name__}: {error})") from error
    return description


def check(description: dict[str, Any]) -> None:
    """Raise an error unless `description` has every field that a session needs and every word fits its channel."""
    table = description["table"]
    inputs, outputs = ({one["name"]: one for one in table[side]} for side in ("inputs", "outputs"))
    widths = {name: one["width"] for name, one in (inputs | outputs).items()} | table["settings"]
    words = {
        **description["inputs"],
        **description["outputs"],
        **{name: [value] for name, value in description["settings"].items()},
    }
    numbers = [description["baud"], *widths.values(), *(one["code"] for one in (inputs | outputs).values())]
    numbers += [number for one in description["echo"] for field in one["fields"] for number in field]
    if not all(type(number) is int and 0 <= number < 1 << 24 for number in numbers):
        raise ValueError("baud, codes, widths and fields must be whole numbers")
    if not all(one["code"] < 256 for one in (inputs | outputs).values()):
        raise ValueError("codes must be bytes")
    for one in description["echo"]:
        width = outputs[one["asked"]]["width"], inputs[one["answer"]]["width"]
        if any(source + bits > width[0] or target + bits > width[1] for source, target, bits in one["fields"]):
            raise ValueError(f"fields of the echo {one['answer']} must lie in beats of {width} bits")
    for name, values in words.items():
        if not isinstance(values, list) or not all(
            type(word) is int and 0 <= word < 1 << widths[name] for word in values
        ):
            raise ValueError(f"{name} must have words of {widths[name]} bits")


def main(argv: list[str]) -> int:
    """`PORT VECTORS`; returns the exit status."""
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
    print(f"self-test passed; results through the serial port equal the golden model: {counts}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
