"""Partition of a design into blocks that are mapped one by one and cached.

Blocks are RTLIL modules. Modules that differ only in the names of instances are one block, which is mapped once.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from functools import cache

from util.files import digest

CLOCK = "clk"  # the clock port of every unit and block
FLAT_BYTES = 1_500_000  # RTLIL text up to this size is one block: about 30,000 cells, half a minute
MIN_BYTES = 20_000  # smaller modules are never blocks

_MODULE = re.compile(r"^(?:attribute [^\n]*\n)*module (\\\S+)\n.*?^end\n", re.M | re.S)
_INSTANCE = re.compile(r"^  cell (\\\S+) (\S+)$", re.M)


@dataclass(frozen=True)
class Block:
    """One block of a design.

    Attributes
    ----------
    name : module name
    rtlil : the module and the modules that are flattened into it
    children : number of instances of inner blocks by name
    count : instances of this block in the design
    """

    name: str
    rtlil: str
    children: dict[str, int]
    count: int


def partition(rtlil: str, top: str, *, flat_bytes: int = FLAT_BYTES, min_bytes: int = MIN_BYTES) -> list[Block]:
    """The blocks of a design, leaves first, the top last; a design of up to `flat_bytes` is one block."""
    texts = {match.group(1): match.group(0) for match in _MODULE.finditer(rtlil)}
    root = f"\\{top}"

    @cache
    def content(name: str) -> str:
        """Hash of a module and of its submodules, independent of module names and of the order of ports."""
        statements = [
            _INSTANCE.sub(lambda m: f"  cell {content(m[1]) if m[1] in texts else m[1]} {m[2]}", statement)
            for statement in _statements(texts[name])
        ]
        return digest(*sorted(statements))

    same: dict[str, str] = {}
    representative = {name: same.setdefault(content(name), name) for name in sorted(texts)}
    representative[root] = root

    @cache
    def size(name: str) -> int:
        return len(texts[name]) + sum(size(child) for child, _ in _INSTANCE.findall(texts[name]) if child in texts)

    @cache
    def total(name: str) -> Counter[str]:
        """Instances of every module below one of `name`, by representative."""
        module_counts: Counter[str] = Counter()
        for child, _ in _INSTANCE.findall(texts[name]):
            if child in texts:
                module_counts[representative[child]] += 1
                module_counts.update(total(representative[child]))
        return module_counts

    repeats = total(root)
    block_names: list[str] = []

    def split(name: str) -> None:
        if size(name) <= flat_bytes:
            return
        for child in dict.fromkeys(representative[c] for c, _ in _INSTANCE.findall(texts[name]) if c in texts):
            split(child)
            large = size(child) >= min_bytes and (repeats[child] > 1 or size(child) > flat_bytes // 10)
            if large and child not in block_names:
                block_names.append(child)

    split(root)
    block_names.append(root)
    blocks = []
    for name in block_names:
        text, children = _collect(name, texts, representative, {*block_names} - {name})
        blocks.append(Block(name[1:], text, dict(children), repeats[name] if name != root else 1))
    return blocks


def _statements(module: str) -> list[str]:
    """The statements of a module: cells with sorted connections, processes, and other lines."""
    statements: list[str] = []
    lines = iter(module.split("\n"))
    for line in lines:
        if line.startswith(("module ", "attribute ", "end")) or not line:
            continue
        if line.startswith("  cell "):
            inner = []
            while (text := next(lines)) != "  end":
                inner.append(text)
            statements.append("\n".join([line, *sorted(inner)]))
        elif line.startswith("  process "):
            inner = [line]
            while inner[-1] != "  end":
                inner.append(next(lines))
            statements.append("\n".join(inner))
        else:
            statements.append(re.sub(r" (input|output|inout) \d+ ", r" \1 ", line))
    return statements


def _collect(
    name: str, texts: dict[str, str], representative: dict[str, str], blocks: set[str]
) -> tuple[str, Counter[str]]:
    """Text of `name` and of the modules flattened into it, and the number of instances of its inner blocks."""
    module_texts: dict[str, str] = {}
    children: Counter[str] = Counter()

    def visit(module: str, times: int) -> None:
        for child, _ in _INSTANCE.findall(texts[module]):
            if child in texts:
                block = representative[child]
                if block in blocks:
                    children[block[1:]] += times
                else:
                    visit(block, times)
        module_texts[module] = _INSTANCE.sub(lambda m: f"  cell {representative.get(m[1], m[1])} {m[2]}", texts[module])

    visit(name, 1)
    return "\n".join(module_texts.values()), children


def stub(block: Block) -> str:
    """The block's module as RTLIL black box: ports only."""
    text = next(m.group(0) for m in _MODULE.finditer(block.rtlil) if m.group(1) == f"\\{block.name}")
    ports = re.findall(r"^  wire .*(?:input|output|inout) \d+.*$", text, re.M)
    return "\n".join(["attribute \\blackbox 1", f"module \\{block.name}", *ports, "end", ""])
