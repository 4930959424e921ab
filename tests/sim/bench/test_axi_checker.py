"""The AXI checker raises an error for every violated rule."""

import pytest

from sim.bench import axi
from sim.bench.axi import AxiChecker, AxiProtocolError

AW, AR = (0, 0x100, 1, 3, 1), (1, 0x100, 1, 3, 1)  # two words of eight bytes


@pytest.fixture
def checker(monkeypatch):
    monkeypatch.setattr(axi, "cycle", lambda: 0)
    return AxiChecker("port", 8, longest=16, outstanding=2)


def check_violation(checker, text, *cycles):
    *legal, last = cycles
    for arguments in legal:
        checker.observe(*arguments)
    with pytest.raises(AxiProtocolError, match=text):
        checker.observe(*last)


def test_legal_transfers_are_counted(checker):
    for arguments in (
        ("aw", AW, False),
        ("aw", AW, True),
        ("ar", AR, True),
        ("w", (1, 255, 0), True),
        ("r", (1, 7, 0, 0), True),
        ("w", (2, 255, 1), True),
        ("r", (1, 8, 0, 1), True),
        ("b", (0, 0), True),
    ):
        checker.observe(*arguments)
    checker.finish()
    assert checker.bursts == {"read": 1, "write": 1} and checker.beats == {"read": 2, "write": 2}


@pytest.mark.parametrize(
    "text, cycles",
    [
        ("aw changed", [("aw", AW, False), ("aw", None, False)]),
        ("w changed", [("aw", AW, True), ("w", (1, 255, 0), False), ("w", (2, 255, 0), True)]),
        ("r changed", [("ar", AR, True), ("r", (1, 7, 0, 0), False), ("r", (1, 8, 0, 0), False)]),
        ("burst type 0", [("ar", (1, 0x100, 1, 3, 0), True)]),
        ("size 4 bytes", [("ar", (1, 0x100, 1, 2, 1), True)]),
        ("not aligned", [("aw", (0, 0x104, 1, 3, 1), True)]),
        ("burst of 17 words", [("aw", (0, 0x100, 16, 3, 1), True)]),
        ("crosses 4 KiB", [("ar", (1, 0xFF8, 1, 3, 1), True)]),
        ("3 read bursts in flight", [("ar", AR, True)] * 3),
        ("3 write bursts in flight", [("aw", AW, True)] * 3),
        ("a word without a burst", [("w", (1, 255, 0), True)]),
        ("wlast = 1 with 2", [("aw", AW, True), ("w", (1, 255, 1), True)]),
        ("wlast = 0 with 1", [("aw", AW, True), ("w", (1, 255, 0), True), ("w", (1, 255, 0), True)]),
        ("an answer to no burst", [("aw", AW, True), ("w", (1, 255, 0), True), ("b", (0, 0), True)]),
        ("a beat of no burst of ID 0", [("ar", AR, True), ("r", (0, 7, 0, 0), True)]),
        ("rlast = 1 with 1", [("ar", AR, True), ("r", (1, 7, 0, 1), True)]),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_violated_rule_raises_error(checker, text, cycles):
    check_violation(checker, text, *cycles)


def test_open_bursts_at_end_raise_error(checker):
    checker.observe("ar", AR, True)
    with pytest.raises(AxiProtocolError, match="1 bursts without an end"):
        checker.finish()
    checker.reset()
    checker.observe("aw", AW, False)
    with pytest.raises(AxiProtocolError, match=r"channels \['aw'\] wait"):
        checker.finish()
