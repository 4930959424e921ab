"""The host's side without a board: the terminal it opens, and what it says of boards that are wrong."""

import json
import os
import threading

import pytest

from compiler import board_host as host
from compiler.board_host import BoardError, Session
from hw.boards.codes import CAUSE, CONTROL, LOST, PASSED, RESET, RESULT, SETTINGS, STATE, TAKEN, TEST, TESTED

DESCRIPTION = {
    "table": {
        "inputs": [{"name": "i", "code": 2, "width": 9}],
        "outputs": [{"name": "o", "code": RESULT, "width": 12}],
        "settings": {"cfg_a": 4, "cfg_b": 9},
    },
    "settings": {"cfg_b": 0x101},
    "inputs": {"i": [0x155, 3]},
    "outputs": {"o": [0xABC]},
    "echo": [],
    "baud": 115200,
}
TOLD = {  # what the board is sent -> what it answers, byte by byte
    bytes([CONTROL, RESET]): bytes([STATE, RESET << CAUSE]),
    bytes([CONTROL, TEST]): bytes([STATE, TEST << CAUSE | TESTED | PASSED]),
    bytes([SETTINGS, 0x10, 0x10]): bytes([TAKEN + SETTINGS]),
    bytes([2, 0x55, 0x01]): bytes([TAKEN + 2, RESULT, 0xBC, 0x0A]),
    bytes([2, 3, 0]): bytes([TAKEN + 2]),
}


def test_a_session_byte_by_byte():
    session = Session(DESCRIPTION)
    sent = session.begin()
    stale = bytes([STATE, TESTED, RESULT, 1, 2])  # from before: the test at power-up, and a result of another host's
    assert session.feed(stale) == b""
    said = [sent]
    while sent:
        answer = TOLD[sent]
        sent = b"".join(session.feed(answer[k : k + 1]) for k in range(len(answer)))
        said.append(sent)
    assert session.done and said[:-1] == list(TOLD) and session.received == {"o": [0xABC]}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([bytes([0x77])], "unexpected message code 0x77"),
        ([bytes([STATE, RESET << CAUSE | LOST])], "the board lost a byte"),
        ([bytes([STATE, RESET << CAUSE]), bytes([STATE, TEST << CAUSE | TESTED])], "the self-test of the board failed"),
    ],
)
def test_wrong_answers(answers, reason):
    session = Session(DESCRIPTION)
    session.begin()
    with pytest.raises(BoardError, match=reason):
        for answer in answers:
            session.feed(answer)


def ready():
    """A session whose streams have begun."""
    session = Session(DESCRIPTION)
    for answer in list(TOLD.values())[:3]:
        session.feed(answer)
    return session


def test_wrong_beats():
    with pytest.raises(BoardError, match=r"o: beat 0 must be 0xabc \(golden model\), got 0xabd"):
        ready().feed(bytes([RESULT, 0xBD, 0x0A]))
    with pytest.raises(BoardError, match=r"o must have 1 beats, got beat 1"):
        ready().feed(2 * bytes([RESULT, 0xBC, 0x0A]))
    with pytest.raises(BoardError, match=r"the board was reset in phase streams"):
        ready().feed(bytes([STATE, 0]))


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(DESCRIPTION))
    return path


def test_through_a_terminal(vectors, capsys):
    """A pseudo-terminal whose other end answers as the board."""
    near, far = os.openpty()

    def board():
        heard = b""
        while heard != list(TOLD)[-1]:
            heard += os.read(near, 1)
            if heard in TOLD:
                os.write(near, TOLD[heard])
                heard = heard if heard == list(TOLD)[-1] else b""

    answering = threading.Thread(target=board)
    answering.start()
    assert host.main([os.ttyname(far), str(vectors)]) == 0
    answering.join()
    assert capsys.readouterr().out.startswith(
        "self-test passed; results through the serial port equal the golden model: 1 of o"
    )
    os.close(near), os.close(far)


def test_refusals_are_one_line(vectors, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(host, "QUIET_S", 0.1)
    near, far = os.openpty()
    echo = [{"asked": "o", "answer": "i", "fields": fields} for fields in ([[0, 0, 9]], [[8, 4, 5]])]

    def odd(key, value):
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({**DESCRIPTION, key: value}))
        return str(path)

    for arguments, reason in (
        ([str(tmp_path / "nothing"), str(vectors)], "No such file"),
        ([str(vectors), str(vectors)], "port must be a serial port"),
        ([os.ttyname(far), str(tmp_path / "none.json")], "No such file"),
        ([os.ttyname(far), str(vectors)], "no byte from the board for 0.1 s in phase reset"),
        ([os.ttyname(far), odd("baud", 12345)], "baud must be a rate of this system's terminals, got 12345"),
        ([os.ttyname(far), odd("echo", echo)], "fields of the echo i must lie in beats of (12, 9) bits"),
    ):
        assert host.main(arguments) == 1
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1
    assert host.main([]) == 2
    os.close(near), os.close(far)
