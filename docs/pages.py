"""What the documentation site consists of: READMEs where they are, and pages made from the code while it is built.

MkDocs calls `on_config` and `on_files`. Pages keep their place in the repository, so that one link serves both.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from amaranth.hdl import Shape, UnusedElaboratable
from amaranth.lib import data, stream, wiring
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hw.config import PRESETS, Config
from hw.core import isa
from hw.registry import UNITS, Unit
from synth.generate import fields, timing
from vrex import parser

ROOT = Path(__file__).resolve().parent.parent
warnings.simplefilter("ignore", UnusedElaboratable)  # units are built to be described

TUTORIALS = ("generate", "verify", "policy", "system", "figure")
FOLDERS = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")
PRESET = "paper"  # the sizes on a unit's page


def sources() -> list[str]:
    """Markdown files of the repository that are pages, by path."""
    readmes = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("README.md"))
    written = [ROOT / "README.md", *readmes, *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in written]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The table of contents."""
    deeper = [name for name in sources() if name.endswith("/README.md") and name.count("/") > 1]
    config.nav = [
        {"Tour": "README.md"},
        {"Tutorials": [f"docs/tutorials/{name}.md" for name in TUTORIALS]},
        {"Folders": [{folder: f"{folder}/README.md"} for folder in FOLDERS if f"{folder}/README.md" in sources()]},
        {"Parts": [{name.removesuffix("/README.md"): name} for name in deeper]},
        {"Units": ["docs/units/index.md", *({name: f"docs/units/{name}.md"} for name in UNITS)]},
        {"Instructions": "docs/instructions.md"},
        {"Registers": "docs/registers.md"},
        {"Numerics": "docs/numerics.md"},
        {"Area, timing and power": "docs/synthesis.md"},
        {"Measurements": [name for name in sources() if name.startswith("docs/measurements/")]},
        {"Commands": "docs/commands.md"},
        {"Contributing": "docs/CONTRIBUTING.md"},
        {"Changes": "docs/CHANGELOG.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every page: those that are written and those that are made."""
    theirs = [file for file in files if not file.src_uri.endswith(".md")]
    examples = [path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs/examples").glob("*.py"))]
    given = (*sources(), *examples, "docs/site.css")
    written = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in given]
    made = {"docs/commands.md": commands(), "docs/units/index.md": index()}
    made |= {"docs/instructions.md": instructions(), "docs/registers.md": registers()}
    made |= {f"docs/units/{unit.name}.md": page(unit) for unit in UNITS.values()}
    return Files([*theirs, *written, *(File.generated(config, name, content=text) for name, text in made.items())])


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def commands() -> str:
    """Every command's own help."""
    os.environ["COLUMNS"] = "100"  # argparse asks the terminal
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    pages = [f"## vrex {name}\n\n```text\n{made.format_help()}```" for name, made in actions.choices.items()]
    return "\n\n".join(["# Commands", "What `--help` says.", *pages]) + "\n"


def index() -> str:
    rows = [(f"[{unit.name}]({unit.name}.md)", unit.summary, f"`{unit.module}`") for unit in UNITS.values()]
    told = (
        f"What `hw/registry.py` lists: each can be generated, verified and synthesised by its name. Sizes are those of "
        f"the `{PRESET}` preset; `vrex generate UNIT --preset PRESET --json` tells the same of any other configuration."
    )
    return f"# Units\n\n{told}\n\n{table(('unit', 'what', 'module'), rows)}\n"


def instructions() -> str:
    """What programs of the core consist of."""
    parts = ["# Instruction set", isa.__doc__ or "", isa.markdown(), "## Values of fields"]
    for code in (isa.ExecUnit, isa.SyncEvent, isa.LengthSource, isa.Destination):
        parts += code_table(code)
    return "\n\n".join(parts) + "\n"


def registers() -> str:
    """What software sees of the core."""
    core = UNITS["core"].build(PRESETS[PRESET])
    told = "AXI4-Lite, 32 bits a word; registers of more bits take two words, the lower half first."
    return f"# Register map\n\n{told}\n\n{core.map.markdown()}"


class Watched(Config):
    """A configuration that notes which of its parameters were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Config.__dataclass_fields__:
            object.__getattribute__(self, "__dict__").setdefault("_read", set()).add(name)
        return object.__getattribute__(self, name)


def page(unit: Unit) -> str:
    """One unit's page: docstring, timing, ports, codes, counters, parameters."""
    watched = Watched(**PRESETS[PRESET].asdict())
    watched.__dict__["_read"] = set()  # building it has checked every value
    component = unit.build(watched)
    for part in (component, *vars(component).values()):
        if getattr(part, "config", None) is watched:
            part.elaborate(None)  # has kept it to read from it only then
    home = next(folder for folder in Path(*unit.module.split(".")).parents if (ROOT / folder / "README.md").exists())
    parts = [
        f"# {unit.name}",
        f"{unit.summary}. Source: `{unit.module.replace('.', '/')}.py`, tests: `{unit.tests}`. "
        f"[How it works](../../{home.as_posix()}/README.md).",
        docstring(type(component)),
        "## Cycles",
        table(("what", "value"), ((name, f"`{value}`") for name, value in flat(timing(component)))),
        "## Ports",
        table(("port", "direction", "bits", "fields (bits)"), ports(component)),
    ]
    for code in codes(component):
        parts += code_table(code)
    if rows := counters(component):
        parts += ["## Counters", table(("counter", "bits", "counts"), rows)]
    parts += ["## Configuration", "What it is built from, of `hw/config.py`.", parameters(watched.__dict__["_read"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def docstring(kind: type) -> str:
    """A docstring's text as it is, its sections as headings, its definitions as lists."""
    text = inspect.getdoc(kind) or ""
    head, *sections = re.split(r"^(\w+)\n-+\n", text, flags=re.M)
    parts = [head.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        shown = {"Parameters": definitions, "Members": definitions, "Raises": errors}.get(title, str.strip)
        parts += [f"## {title}", shown(body)]
    return "\n\n".join(parts)


def definitions(body: str) -> str:
    """`name, name : meaning ; name : meaning`, over several lines, as a list."""
    items: list[str] = []
    for line in body.strip().splitlines():
        if line[:1].isspace() and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items += re.split(r" ?; (?=[\w*, ]+ : )", line)
    split = (item.partition(" : ") for item in items)
    return "\n".join(f"- `{name}`: {meaning}" if found else f"- {name}" for name, found, meaning in split)


def errors(body: str) -> str:
    """`error`, then its cause indented, as a list."""
    found = re.findall(r"^(\S.*)\n((?:\s+.+\n?)+)", body, re.M)
    return "\n".join(f"- `{name}`: {' '.join(cause.split())}" for name, cause in found)


def flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{name}: ")
        else:
            yield before + name.replace("_", " "), "depends on the data" if value is None else value


def ports(component: wiring.Component) -> Iterator[tuple[object, ...]]:
    """One row per stream and per plain port."""
    for name, member in component.signature.members.items():
        direction = "in" if member.flow is wiring.In else "out"
        if member.is_signature and isinstance(member.signature, stream.Signature):
            shape, direction = member.signature.members["payload"].shape, f"stream {direction}"
        elif member.is_signature:
            inner = [(k, Shape.cast(m.shape).width) for k, m in member.signature.members.items() if m.is_port]
            yield f"`{name}`", f"interface {direction}", "", ", ".join(f"{k} {width}" for k, width in inner)
            continue
        else:
            shape = member.shape
        if not name.startswith("stat_"):
            layout = ", ".join(f"{f['name']} {f['width']}" for f in fields(shape))
            yield f"`{name}`", direction, Shape.cast(shape).width, layout


def codes(component: wiring.Component) -> list[type[enum.Enum]]:
    """The enumerations that its ports carry, and the faults it reports."""
    found: dict[type[enum.Enum], None] = {}

    def look(shape: Any) -> None:
        if isinstance(shape, enum.EnumMeta):
            found[shape] = None
        elif isinstance(shape, data.ArrayLayout):
            look(shape.elem_shape)
        elif isinstance(shape, data.Layout):
            for _, field in shape:
                look(field.shape)

    for _, member, _ in component.signature.flatten(component):
        look(member.shape)
    fault = getattr(sys.modules[type(component).__module__], "Fault", None)
    if fault is not None and any(name.startswith("stat_fault") for name in component.signature.members):
        found[fault] = None
    return list(found)


def code_table(code: type[enum.Enum]) -> list[str]:
    """Heading, meaning and codes of an enumeration."""
    rows = [(f"`{name}`", value, said) for name, value, said in members(code)]
    return [f"### {code.__name__}", inspect.getdoc(code) or "", table(("", "code", ""), rows)]


def members(code: type[enum.Enum]) -> list[tuple[str, object, str]]:
    """Name, value and comment of each member."""
    said = dict(re.findall(r"^ +(\w+) = [^#\n]+# (.*)$", inspect.getsource(code), re.M))
    return [(one.name, getattr(one.value, "value", one.value), said.get(one.name, "")) for one in code]


def counters(component: wiring.Component) -> list[tuple[str, object, str]]:
    """Name, width and meaning of each `stat_*` port, those of units inside included."""
    meaning: dict[str, str] = {}
    for before, part in (("", component), *((f"{n}_", p) for n, p in getattr(component, "units", {}).items())):
        stat = getattr(importlib.import_module(type(part).__module__), "Stat", None)
        meaning |= {f"stat_{before}{value}": said for _, value, said in (members(stat) if stat else ())}
    return [
        (f"`{name}`", Shape.cast(member.shape).width, meaning.get(name, "see Members"))
        for name, member in component.signature.members.items()
        if name.startswith("stat_") and name != "stat_clear"
    ]


def parameters(read: set[str]) -> str:
    """Value in each preset and meaning of the parameters that were read."""
    said = dict(re.findall(r"^ +(\w+): int = [^#\n]+# (.*)$", inspect.getsource(Config), re.M))
    names = [field.name for field in dataclasses.fields(Config) if field.name in read]
    rows = [(f"`{n}`", *(getattr(PRESETS[p], n) for p in PRESETS), said[n]) for n in names]
    return table(("parameter", *PRESETS, "meaning"), rows)
