"""Host program without a board: its serial port, its session, and its error messages."""

import json
import os
import threading

import pytest

from compiler import board_host as host
from compiler.board_host import BoardError, Session
from hw.boards.message_codes import ACCEPTED, CAUSE, CONTROL, LOST, PASSED, RESET, RESULT, SETTINGS, STATE, TEST, TESTED

DESCRIPTION = {
    "protocol": {
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
ANSWERS = {  # message to the board -> answer
    bytes([CONTROL, RESET]): bytes([STATE, RESET << CAUSE]),
    bytes([CONTROL, TEST]): bytes([STATE, TEST << CAUSE | TESTED | PASSED]),
    bytes([SETTINGS, 0x10, 0x10]): bytes([ACCEPTED + SETTINGS]),
    bytes([2, 0x55, 0x01]): bytes([ACCEPTED + 2, RESULT, 0xBC, 0x0A]),
    bytes([2, 3, 0]): bytes([ACCEPTED + 2]),
}


def test_session_with_answers_byte_by_byte():
    session = Session(DESCRIPTION)
    sent = session.begin()
    stale = bytes([STATE, TESTED, RESULT, 1, 2])  # sent before the reset: the self-test after power-up, and a result
    assert session.feed(stale) == b""
    messages = [sent]
    while sent:
        answer = ANSWERS[sent]
        sent = b"".join(session.feed(answer[k : k + 1]) for k in range(len(answer)))
        messages.append(sent)
    assert session.done and messages[:-1] == list(ANSWERS) and session.received == {"o": [0xABC]}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([bytes([0x77])], "unexpected message code 0x77 from the board"),
        ([bytes([STATE, RESET << CAUSE | LOST])], "a byte to the board was lost"),
        ([bytes([STATE, RESET << CAUSE]), bytes([STATE, TEST << CAUSE | TESTED])], "the self-test on the board failed"),
    ],
)
def test_wrong_answer_raises_board_error(answers, reason):
    session = Session(DESCRIPTION)
    session.begin()
    with pytest.raises(BoardError, match=reason):
        for answer in answers:
            session.feed(answer)


def session_with_settings():
    """A session after the message with the settings."""
    session = Session(DESCRIPTION)
    for answer in list(ANSWERS.values())[:3]:
        session.feed(answer)
    return session


def test_wrong_beat_raises_board_error():
    with pytest.raises(BoardError, match=r"beat 0 of o must be 0xabc, got 0xabd"):
        session_with_settings().feed(bytes([RESULT, 0xBD, 0x0A]))
    with pytest.raises(BoardError, match=r"o must have 1 beats, got beat 1"):
        session_with_settings().feed(2 * bytes([RESULT, 0xBC, 0x0A]))
    with pytest.raises(BoardError, match=r"the board was reset in the phase streams"):
        session_with_settings().feed(bytes([STATE, 0]))


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.json"
    path.write_text(json.dumps(DESCRIPTION))
    return path


def test_program_with_a_pseudo_terminal(vectors, capsys):
    """The other end of a pseudo-terminal answers as the board."""
    near, far = os.openpty()

    def board():
        received = b""
        while received != list(ANSWERS)[-1]:
            received += os.read(near, 1)
            if received in ANSWERS:
                os.write(near, ANSWERS[received])
                received = received if received == list(ANSWERS)[-1] else b""

    thread = threading.Thread(target=board)
    thread.start()
    assert host.main([os.ttyname(far), str(vectors)]) == 0
    thread.join()
    assert capsys.readouterr().out.startswith(
        "self-test passed; beats equal to the golden model through the serial port: 1 of o"
    )
    os.close(near), os.close(far)


def test_invalid_arguments_give_one_line(vectors, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(host, "QUIET_S", 0.1)
    near, far = os.openpty()
    echo = [{"request": "o", "answer": "i", "fields": fields} for fields in ([[0, 0, 9]], [[8, 4, 5]])]

    def changed(key, value):
        """File of the vectors with another value of `key`."""
        path = tmp_path / f"{key}.json"
        path.write_text(json.dumps({**DESCRIPTION, key: value}))
        return str(path)

    for arguments, reason in (
        ([str(tmp_path / "nothing"), str(vectors)], "No such file"),
        ([str(vectors), str(vectors)], "not a serial port"),
        ([os.ttyname(far), str(tmp_path / "none.json")], "No such file"),
        ([os.ttyname(far), str(vectors)], "no answer from the board for 0.1 s in the phase reset"),
        ([os.ttyname(far), changed("baud", 12345)], "baud must be a rate of this system's terminals, got 12345"),
        ([os.ttyname(far), changed("echo", echo)], "fields of the echo i must be inside beats of (12, 9) bits"),
    ):
        assert host.main(arguments) == 1
        error = capsys.readouterr().err
        assert reason in error and error.count("\n") == 1
    assert host.main([]) == 2
    os.close(near), os.close(far)
