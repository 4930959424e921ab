"""Code blocks in pages run and print the stated output; quoted commands exist.

`docs/CONTRIBUTING.md` says how a page marks blocks that are not run, are slow, or are files.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import vrex
from cli.options import configuration

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "tests", "util", "docs")
PAGES = [ROOT / "README.md", *sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
BLOCK = re.compile(r"(?:^<!-- (\w+): ([^\n]*) -->\n)?^```(\w*)\n(.*?)^```$", re.M | re.S)
LANGUAGES = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
SECONDS = 1200


@dataclass(frozen=True)
class Block:
    """One fenced block: language, text, key and value of its comment (`run` or `file`), expected output."""

    language: str
    text: str
    key: str
    value: str
    prints: str | None

    @property
    def runs(self) -> bool:
        return self.language in LANGUAGES and self.key != "file" and not self.value.startswith("no, ")

    @property
    def heavy(self) -> bool:
        return (self.key, self.value) == ("run", "heavy")


def blocks(page: Path) -> list[Block]:
    matches = BLOCK.findall(page.read_text())
    successors = [*((language, text) for _, _, language, text in matches[1:]), ("", "")]
    return [
        Block(language, text, key, value, after if kind == "text" else None)
        for (key, value, language, text), (kind, after) in zip(matches, successors, strict=False)
    ]


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


RUNNABLE = [page for page in PAGES if any(block.runs for block in blocks(page))]


@pytest.fixture
def clone(tmp_path):
    """A copy of the repository that uses the caches of this one, and its environment.

    Among them is the code that numba has compiled, in the folders of the sources: the DRAM model compiles for half a
    minute. numba accepts a copy whose times are those of the original.
    """
    unfinished = shutil.ignore_patterns("*.part", "*.tmp.*", "*.pyc*")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=unfinished)
    for file in ROOT.glob("*"):
        if file.is_file():
            shutil.copy(file, tmp_path)
    command = tmp_path / "bin" / "vrex"  # an installed command belongs to another copy
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/vrex.py" "$@"\n')
    command.chmod(0o755)
    path = os.pathsep.join(map(str, (command.parent, Path(sys.executable).parent, os.environ["PATH"])))
    build = os.environ.get("VREX_BUILD", str(ROOT / "build"))
    return tmp_path, os.environ | {"PATH": path, "PYTHONPATH": str(tmp_path), "VREX_BUILD": build}


def run_blocks(page: Path, clone, *, heavy: bool) -> None:
    folder, environment = clone
    for block in blocks(page):
        if block.key == "file":
            (folder / block.value).write_text(block.text)
        elif block.runs and (heavy or not block.heavy):
            done = subprocess.run(
                [*LANGUAGES[block.language], block.text],
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=SECONDS,
            )
            assert done.returncode == 0, f"{name(page)}:\n{block.text}\n{done.stdout}"
            if block.prints is not None:
                assert printed(block.prints, done.stdout), f"{name(page)}:\n{block.text}\n{done.stdout}"


def printed(expected: str, output: str) -> bool:
    """Whether `output` contains the lines of `expected` in sequence; `...` matches any text."""
    lines = (".*".join(map(re.escape, line.split("..."))) for line in expected.rstrip("\n").split("\n"))
    return re.search("^" + "\n".join(".*(?:\n.*)*?" if line == ".*" else line for line in lines) + "$", output, re.M)


@pytest.mark.parametrize("page", [p for p in RUNNABLE if any(b.runs and not b.heavy for b in blocks(p))], ids=name)
def test_blocks_run(page, clone):
    run_blocks(page, clone, heavy=False)


@pytest.mark.heavy
@pytest.mark.parametrize("page", [p for p in RUNNABLE if any(b.heavy for b in blocks(p))], ids=name)
def test_all_blocks_run(page, clone):
    run_blocks(page, clone, heavy=True)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_comments_are_valid(page):
    for block in blocks(page):
        assert block.key in ("", "file", "run")
        assert block.key != "run" or block.heavy or re.match(r"no, \w+ .+", block.value), block
    assert len(re.findall("^<!-- run: ", page.read_text(), re.M)) == sum(block.key == "run" for block in blocks(page))


def commands(page: Path) -> list[str]:
    """Every `vrex ...` in code: inline, in tables, in blocks."""
    text = page.read_text()
    inline = re.findall(r"`(?:\.venv/bin/)?(vrex [^`]*)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    fenced = [line for block in blocks(page) for line in block.text.split("\n") if re.match(r"!? ?vrex ", line)]
    return inline + fenced


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name)
def test_quoted_commands_exist(page, capsys):
    parser = vrex.parser()
    known = parser._subparsers._group_actions[0].choices
    for command in commands(page):
        words = shlex.split(re.split(r"[|&>]", command.lstrip("! "))[0], comments=True)[1:]
        if len(words) == 1 or words[1] == "...":
            assert words[0] in known, command
            continue
        try:
            options = parser.parse_args(words)
        except SystemExit:
            pytest.fail(f"{command}: {capsys.readouterr().err}")
        if {"preset", "set"} <= vars(options).keys() and "||" not in command:  # after `||` comes the expected error
            configuration(options)


def test_output_comparison_can_fail():
    assert printed("a\n...\nd", "a\nb\nc\nd\n") and printed("x ... z", "w\nx y z\n")
    assert not printed("a\nd", "a\nb\nd\n") and not printed("x", "xy\n")
