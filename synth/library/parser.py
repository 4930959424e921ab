"""Parser of Liberty text: nested groups with attributes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_TOKEN = re.compile(r'"([^"]*)"|([{}();:,\n])|([^\s{}();:,"]+)')


class LibraryError(ValueError):
    """A library is missing, damaged, or lacks data that a flow needs; the message is one line with its name."""

    def __init__(self, text: str):
        super().__init__(" ".join(text.split()))  # a quoted text of a file may have several lines


@dataclass
class LibertyGroup:
    """A Liberty group, `kind (args) { attributes, groups }`, with its span in the text."""

    kind: str
    args: tuple[str, ...]
    attributes: dict[str, list[str]] = field(default_factory=dict)
    groups: list[LibertyGroup] = field(default_factory=list)
    span: tuple[int, int] = (0, 0)

    def get(self, name: str, default: str = "") -> str:
        values = self.attributes.get(name)
        return values[0] if values else default

    def of(self, kind: str) -> Iterator[LibertyGroup]:
        return (group for group in self.groups if group.kind == kind)


def parse(text: str, name: str) -> LibertyGroup:
    """The `library` group of a Liberty text without comments; raises `LibraryError` when it is damaged."""
    root = LibertyGroup("", ())
    stack = [root]
    words: list[str] = []
    state, start = "", 0  # state: the mark after the first word: ":" attribute, "(" arguments, ")" their end
    for match in _TOKEN.finditer(text):
        string, mark, word = match.groups()
        if mark is None:
            if not words:
                start, state = match.start(), ""
            elif state == ")":  # an attribute whose semicolon is missing ended with the arguments
                stack[-1].attributes[words[0]] = words[1:]
                words, state, start = [], "", match.start()
            words.append(string if word is None else word)
        elif mark in ":(":
            state = state or mark
        elif mark == ")":
            state = ")"
        elif mark == "\n":
            if state == ":" and len(words) > 1:  # real libraries forget semicolons
                stack[-1].attributes[words[0]] = words[1:]
                words, state = [], ""
        elif mark == "{":
            if not words:
                raise LibraryError(f"library {name}: group at byte {match.start()} must have a name, got none")
            group = LibertyGroup(words[0], tuple(words[1:]), span=(start, 0))
            stack[-1].groups.append(group)
            stack.append(group)
            words, state = [], ""
        elif mark in ";}":
            if words:
                stack[-1].attributes[words[0]] = words[1:]
            words, state = [], ""
            if mark == "}":
                if len(stack) == 1:
                    raise LibraryError(
                        f"library {name}: braces must match, got an extra closing brace at byte {match.start()}"
                    )
                done = stack.pop()
                done.span = (done.span[0], match.end())
    if len(stack) > 1:
        raise LibraryError(
            f"library {name}: braces must match, "
            f"got a file that ends inside {stack[-1].kind} ({' '.join(stack[-1].args)})"
        )
    libraries = list(root.of("library"))
    if len(libraries) != 1:
        raise LibraryError(f"library {name}: file must have one library group, got {len(libraries)}")
    return libraries[0]
