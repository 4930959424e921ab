"""Message codes of the serial protocol between a host and a board. A host needs only Python to import this file.

A message has a code byte and a payload, lowest byte first. The code determines the length of the payload. The host
sends one beat of an input stream and waits for the answer `ACCEPTED` before it sends the next beat of this stream. The
host must read continuously.
"""

from enum import IntEnum

CONTROL = 0x00  # to the board, one byte: `RESET` or `TEST`; the board answers with `STATE` at the end
SETTINGS = 0x01  # to the board: values of all `cfg_*` ports, first port in the lowest bits; answer: `ACCEPTED`
FIRST = 0x02  # to the board: a beat of the first input stream; the following codes are the following streams
ACCEPTED = 0x40  # from the board, no payload: this code plus the code of the message that the unit accepted
STATE = 0x80  # from the board, one byte: flags, and from bit `CAUSE` on the answered `CONTROL` byte, 0 after power-up
RESULT = 0x81  # from the board: a beat of the first output stream; the following codes are the following streams

RESET, TEST = 1, 2  # payloads of `CONTROL`
TESTED, PASSED, LOST = 1, 2, 4  # flags of `STATE`: a self-test is complete; it passed; a received byte was lost
CAUSE = 4  # lowest bit of the answered `CONTROL` byte in `STATE`


class Access(IntEnum):
    """Kinds of accesses to a core with memories on a board: the last byte of a beat of its stream `access`.

    A beat is the word to write, the address in three bytes (words of a memory, bytes of the registers) and the kind.
    """

    WRITE_REGISTER = 0
    READ_REGISTER = 1  # reply: the register
    WRITE_DEVICE = 2
    READ_DEVICE = 3  # reply: the word of the device memory
    WRITE_HOST = 4
    READ_HOST = 5  # reply: the word of the host memory
    WAIT = 6  # for the interrupt, at most as many cycles as the word says; reply: whether it came
    CLEAR = 7  # write 0 into every word of both memories
