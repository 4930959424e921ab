"""Codes of the messages between a host and a board; nothing else, so that a host needs no more than Python.

A message is a code byte and a payload of a length that the code tells, its lowest byte first. The host writes a beat
of a stream and waits for its `TAKEN` before the next of the same stream; it always reads.
"""

CONTROL = 0x00  # to the board, one byte: `RESET` or `TEST`; answered by `STATE` when that is done
SETTINGS = 0x01  # to the board: all `cfg_*` ports, the first in the lowest bits; answered by `TAKEN` of itself
FIRST = 0x02  # to the board: a beat of the first input stream; the others follow
TAKEN = 0x40  # from the board, no payload: plus the code of what was taken
STATE = 0x80  # from the board, one byte: flags, and above them what it answers, 0 after power-up
RESULT = 0x81  # from the board: a beat of the first output stream; the others follow

RESET, TEST = 1, 2  # what `CONTROL` asks for
TESTED, PASSED, LOST = 1, 2, 4  # flags of `STATE`: a test ended, was passed; a byte was lost
CAUSE = 4  # lowest bit of what it answers
