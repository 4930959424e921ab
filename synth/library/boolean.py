"""Liberty's Boolean functions as truth tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

_TOKEN = re.compile(r"\s*([A-Za-z_][\w\[\].]*|[01]|[!'*&+|^()])")


@cache
def truth_table(function: str, pins: tuple[str, ...]) -> int:
    """Bit k of the result is the value of `function` when pin i has bit i of k.

    Operators as in Liberty: `!a`, `a'`, `a * b`, `a & b`, `a b`, `a ^ b`, `a + b`, `a | b`, parentheses, 0 and 1.
    Raises `ValueError` if the text is not a function of `pins`.
    """
    tokens, position = [], 0
    text = function.strip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise ValueError(f"function {function!r}: cannot read {text[position:]!r}")
        tokens.append(match.group(1))
        position = match.end()
    size = 1 << len(pins)
    full = (1 << size) - 1
    columns = {pin: sum(1 << k for k in range(size) if k >> i & 1) for i, pin in enumerate(pins)}
    try:
        value, remaining_tokens = _sum(tokens, columns, full, function)
    except RecursionError:
        raise ValueError(f"function {function!r} is nested too deeply") from None
    if remaining_tokens:
        raise ValueError(f"function {function!r}: cannot read {' '.join(remaining_tokens)!r}")
    return value


def _sum(tokens: Sequence[str], columns: dict[str, int], full: int, text: str) -> tuple[int, Sequence[str]]:
    value, tokens = _product(tokens, columns, full, text)
    while tokens and tokens[0] in "+|":
        right, tokens = _product(tokens[1:], columns, full, text)
        value |= right
    return value, tokens


def _product(tokens: Sequence[str], columns: dict[str, int], full: int, text: str) -> tuple[int, Sequence[str]]:
    value, tokens = _exclusive(tokens, columns, full, text)
    while tokens and tokens[0] not in "+|)":
        right, tokens = _exclusive(tokens[1:] if tokens[0] in "*&" else tokens, columns, full, text)
        value &= right
    return value, tokens


def _exclusive(tokens: Sequence[str], columns: dict[str, int], full: int, text: str) -> tuple[int, Sequence[str]]:
    value, tokens = _factor(tokens, columns, full, text)
    while tokens and tokens[0] == "^":
        right, tokens = _factor(tokens[1:], columns, full, text)
        value ^= right
    return value, tokens


def _factor(tokens: Sequence[str], columns: dict[str, int], full: int, text: str) -> tuple[int, Sequence[str]]:
    if not tokens:
        raise ValueError(f"function {text!r} ends early")
    head, tokens = tokens[0], tokens[1:]
    if head == "!":
        value, tokens = _factor(tokens, columns, full, text)
        value ^= full
    elif head == "(":
        value, tokens = _sum(tokens, columns, full, text)
        if not tokens or tokens[0] != ")":
            raise ValueError(f"function {text!r}: a parenthesis is not closed")
        tokens = tokens[1:]
    elif head in ("0", "1"):
        value = full if head == "1" else 0
    elif head in columns:
        value = columns[head]
    else:
        raise ValueError(f"function {text!r}: {head!r} is not one of {', '.join(columns)}")
    while tokens and tokens[0] == "'":
        value, tokens = value ^ full, tokens[1:]
    return value, tokens
