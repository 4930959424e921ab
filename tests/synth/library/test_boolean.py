import itertools

import pytest

from synth.library.boolean import truth_table

PINS = ("A", "B", "C")


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("A", lambda a, b, c: a),
        ("!A", lambda a, b, c: not a),
        ("A'", lambda a, b, c: not a),
        ("(A B)'", lambda a, b, c: not (a and b)),
        ("!(A * B + C)", lambda a, b, c: not ((a and b) or c)),
        ("A & !B | C", lambda a, b, c: (a and not b) or c),
        ("A ^ B ^ C", lambda a, b, c: a ^ b ^ c),
        ("A B ^ C", lambda a, b, c: a and (b ^ c)),
        ("(A*B)+(A*C)+(B*C)", lambda a, b, c: a + b + c >= 2),
        ("A + 1", lambda a, b, c: True),
        ("A 0", lambda a, b, c: False),
        ("!!A''", lambda a, b, c: a),
    ],
)
def test_matches_python(text, reference):
    expected = 0
    for k, (c, b, a) in enumerate(itertools.product((0, 1), repeat=3)):
        expected |= bool(reference(a, b, c)) << k
    assert truth_table(text, PINS) == expected


@pytest.mark.parametrize("text", ["", "A +", "(A", "A)", "A % B", "D", "!", "(" * 5000], ids=lambda text: text[:9])
def test_rejects_invalid_functions(text):
    with pytest.raises(ValueError, match="function"):
        truth_table(text, PINS)
