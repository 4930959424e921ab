"""Pages of the documentation site: the Markdown files of the repository, and pages generated from the code.

MkDocs calls `on_config` and `on_files`. A page has the same path in the site and in the repository, so links
work in both.
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
from hw.registry import UNITS, RegisteredUnit
from synth.generate import fields, timing
from vrex import parser

ROOT = Path(__file__).resolve().parent.parent
warnings.simplefilter("ignore", UnusedElaboratable)  # units are built only to describe them

TUTORIALS = ("generate", "verify", "run", "streams", "policy", "system", "figure", "serving")
FOLDERS = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")
MEASUREMENTS = "docs/measurements/"
PRESET = "paper"  # the sizes on a unit's page


def sources() -> list[str]:
    """Markdown files of the repository that are pages, by path."""
    readmes = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("README.md"))
    paths = [ROOT / "README.md", *readmes, *sorted((ROOT / "docs").rglob("*.md"))]
    return [path.relative_to(ROOT).as_posix() for path in paths]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """The table of contents."""
    names = sources()
    folders = [name for name in names if name.endswith("/README.md")]
    config.nav = [
        {"Overview": "README.md"},
        {"Architecture": "docs/ARCHITECTURE.md"},
        {"Glossary": "docs/GLOSSARY.md"},
        {"Tutorials": [f"docs/tutorials/{name}.md" for name in TUTORIALS]},
        {"Folders": [{name.removesuffix("/README.md"): name} for name in folders if name.count("/") == 1]},
        {"Packages": [{name.removesuffix("/README.md"): name} for name in folders if name.count("/") > 1]},
        {"Units": ["docs/units/index.md", *({name: f"docs/units/{name}.md"} for name in UNITS)]},
        {"Instructions": "docs/instructions.md"},
        {"Registers": "docs/registers.md"},
        {"Store": "docs/STORE.md"},
        {"Sign-off": "docs/signoff.md"},
        {"Numerics": "docs/numerics.md"},
        {"Area, timing and power": "docs/synthesis.md"},
        {
            "Measurements": sorted(
                (name for name in names if MEASUREMENTS in name), key=lambda name: "index" not in name
            )
        },
        {"Commands": "docs/commands.md"},
        {"Contributing": "docs/CONTRIBUTING.md"},
        {"Changelog": "docs/CHANGELOG.md"},
    ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """All pages: files of the repository and pages generated from the code."""
    theme = [file for file in files if not file.src_uri.endswith(".md")]
    pictures = (path for path in (ROOT / "docs/pictures").iterdir() if path.suffix in (".png", ".svg"))
    others = [ROOT / "docs/site.css", *(ROOT / "docs/examples").glob("*.py"), *pictures]
    names = [*sources(), *sorted(path.relative_to(ROOT).as_posix() for path in others)]
    copied = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in names]
    pages = {"docs/commands.md": commands(), "docs/units/index.md": index()}
    pages |= {"docs/instructions.md": instructions(), "docs/registers.md": registers()}
    pages |= {f"docs/units/{unit.name}.md": page(unit) for unit in UNITS.values()}
    generated = [File.generated(config, name, content=text) for name, text in pages.items()]
    return Files([*theme, *copied, *generated])


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table."""
    lines = [list(head), ["---"] * len(list(head)), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def commands() -> str:
    """The `--help` text of every command."""
    os.environ["COLUMNS"] = "100"  # argparse reads the width of the terminal
    (actions,) = (a for a in parser()._actions if isinstance(a, argparse._SubParsersAction))
    pages = [f"## vrex {name}\n\n```text\n{command.format_help()}```" for name, command in actions.choices.items()]
    return "\n\n".join(["# Commands", "The output of `--help`.", *pages]) + "\n"


def index() -> str:
    """The list of units."""
    rows = [(f"[{unit.name}]({unit.name}.md)", unit.summary, f"`{unit.module}`") for unit in UNITS.values()]
    text = (
        "The units of `hw/registry.py`. Each can be generated, verified and synthesised by its name. Sizes on the "
        f"pages are those of the preset `{PRESET}`; `vrex generate UNIT --preset PRESET --json` prints any other."
    )
    return f"# Units\n\n{text}\n\n{table(('unit', 'summary', 'module'), rows)}\n"


def instructions() -> str:
    """The commands of the core."""
    parts = ["# Instruction set", isa.__doc__ or "", isa.markdown(), "## Values of fields"]
    for code in (isa.ExecUnit, isa.SyncEvent, isa.LengthSource, isa.Fit, isa.Destination):
        parts += code_table(code)
    return "\n\n".join(parts) + "\n"


def registers() -> str:
    """The registers of the core."""
    core = UNITS["core"].build(PRESETS[PRESET])
    text = "AXI4-Lite with words of 32 bits. A register with more bits has two words, the lower half first."
    return f"# Register map\n\n{text}\n\n{core.map.markdown()}"


class RecordingConfig(Config):
    """A configuration that records which of its parameters were read."""

    def __getattribute__(self, name: str) -> Any:
        if name in Config.__dataclass_fields__:
            object.__getattribute__(self, "__dict__").setdefault("_read", set()).add(name)
        return object.__getattribute__(self, name)


def page(unit: RegisteredUnit) -> str:
    """One unit's page: docstring, timing, ports, codes, counters, parameters."""
    config = RecordingConfig(**PRESETS[PRESET].asdict())
    config.__dict__["_read"] = set()  # the constructor has read every value
    component = unit.build(config)
    for member in (component, *vars(component).values()):
        if getattr(member, "config", None) is config:
            member.elaborate(None)  # reads some parameters only now
    home = next(folder for folder in Path(*unit.module.split(".")).parents if (ROOT / folder / "README.md").exists())
    parts = [
        f"# {unit.name}",
        f"{unit.summary}. Source: `{unit.module.replace('.', '/')}.py`, tests: `{unit.tests}`. "
        f"[How it works](../../{home.as_posix()}/README.md).",
        docstring(type(component)),
        "## Cycles",
        table(("quantity", "value"), ((name, f"`{value}`") for name, value in flat(timing(component)))),
        "## Ports",
        table(("port", "direction", "bits", "fields (bits)"), ports(component)),
    ]
    for code in codes(component):
        parts += code_table(code)
    if rows := counters(component):
        parts += ["## Counters", table(("counter", "bits", "counts"), rows)]
    text = "Parameters of `hw.Config` that the unit uses."
    parts += ["## Configuration", text, parameters(config.__dict__["_read"])]
    return "\n\n".join(part for part in parts if part) + "\n"


def docstring(kind: type) -> str:
    """A docstring as Markdown: sections become headings, definitions become lists."""
    text = inspect.getdoc(kind) or ""
    head, *sections = re.split(r"^(\w+)\n-+\n", text, flags=re.M)
    parts = [head.strip()]
    for title, body in zip(sections[::2], sections[1::2], strict=True):
        convert = {"Parameters": definitions, "Members": definitions, "Raises": errors}.get(title, str.strip)
        parts += [f"## {title}", convert(body)]
    return "\n\n".join(parts)


def definitions(body: str) -> str:
    """A list from lines such as `name, name : meaning ; name : meaning`; indented lines continue the one above."""
    items: list[str] = []
    for line in body.strip().splitlines():
        if line[:1].isspace() and items:
            items[-1] += " " + line.strip()
        elif line.strip():
            items += re.split(r" ?; (?=[\w*, ]+ : )", line)
    split = (item.partition(" : ") for item in items)
    return "\n".join(f"- `{name}`: {meaning}" if colon else f"- {name}" for name, colon, meaning in split)


def errors(body: str) -> str:
    """A list from the section `Raises`: an error, and below it its cause, indented."""
    entries = re.findall(r"^(\S.*)\n((?:\s+.+\n?)+)", body, re.M)
    return "\n".join(f"- `{name}`: {' '.join(cause.split())}" for name, cause in entries)


def flat(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names and values of nested dictionaries; the names of the outer ones come first."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}: ")
        else:
            yield prefix + name.replace("_", " "), "depends on the data" if value is None else value


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
    """The enumerations in the payloads of its ports, and the faults that it reports."""
    kinds: dict[type[enum.Enum], None] = {}

    def collect(shape: Any) -> None:
        if isinstance(shape, enum.EnumMeta):
            kinds[shape] = None
        elif isinstance(shape, data.ArrayLayout):
            collect(shape.elem_shape)
        elif isinstance(shape, data.Layout):
            for _, field in shape:
                collect(field.shape)

    for _, member, _ in component.signature.flatten(component):
        collect(member.shape)
    fault = getattr(sys.modules[type(component).__module__], "Fault", None)
    if fault is not None and any(name.startswith("stat_fault") for name in component.signature.members):
        kinds[fault] = None
    return list(kinds)


def code_table(code: type[enum.Enum]) -> list[str]:
    """Heading, meaning and codes of an enumeration."""
    rows = [(f"`{name}`", value, comment) for name, value, comment in members(code)]
    return [f"### {code.__name__}", inspect.getdoc(code) or "", table(("", "code", ""), rows)]


def members(code: type[enum.Enum]) -> list[tuple[str, object, str]]:
    """Name, value and comment of each member."""
    comments = dict(re.findall(r"^ +(\w+) = [^#\n]+# (.*)$", inspect.getsource(code), re.M))
    return [(item.name, getattr(item.value, "value", item.value), comments.get(item.name, "")) for item in code]


def counters(component: wiring.Component) -> list[tuple[str, object, str]]:
    """Name, width and meaning of each `stat_*` port, including those of its submodules."""
    meaning: dict[str, str] = {}
    submodules = ((f"{name}_", unit) for name, unit in getattr(component, "units", {}).items())
    for prefix, unit in (("", component), *submodules):
        stat = getattr(importlib.import_module(type(unit).__module__), "Stat", None)
        meaning |= {f"stat_{prefix}{value}": comment for _, value, comment in (members(stat) if stat else ())}
    return [
        (f"`{name}`", Shape.cast(member.shape).width, meaning.get(name, "see Members"))
        for name, member in component.signature.members.items()
        if name.startswith("stat_") and name != "stat_clear"
    ]


def parameters(read: set[str]) -> str:
    """Meaning, and value in each preset, of the parameters that were read."""
    comments = dict(re.findall(r"^ +(\w+): int = [^#\n]+# (.*)$", inspect.getsource(Config), re.M))
    names = [field.name for field in dataclasses.fields(Config) if field.name in read]
    rows = [(f"`{n}`", *(getattr(PRESETS[p], n) for p in PRESETS), comments[n]) for n in names]
    return table(("parameter", *PRESETS, "meaning"), rows)
