"""RTLIL of a unit in a configuration, cached until one of the unit's source files changes."""

from __future__ import annotations

import ast
import importlib.metadata
import json
from functools import cache
from pathlib import Path

from hw import emit, registry
from hw.config import Config
from util.files import ROOT, build_root, digest, write


@cache
def sources(module: str) -> frozenset[Path]:
    """Source files of `module` and of all modules of the project that it imports."""
    source_files: dict[str, Path] = {}
    module_names = [module]
    for name in module_names:
        path = next((p for p in _candidates(name) if p.exists()), None)
        if name in source_files or path is None:
            continue
        source_files[name] = path
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                module_names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                module_names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return frozenset(source_files.values())


def _candidates(module: str) -> tuple[Path, Path]:
    path = ROOT.joinpath(*module.split("."))
    return path.with_suffix(".py"), path / "__init__.py"


def rtlil(unit: str, config: Config) -> str:
    """RTLIL of `unit`; raises `ValueError` for an unknown unit or a configuration that is invalid for it."""
    entry = registry.unit(unit)
    files = sorted(sources(entry.module) | sources(emit.__name__))
    options = json.dumps(getattr(entry.build, "keywords", {}), default=str)
    texts = [path.read_text() for path in files]
    key = digest(unit, json.dumps(config.asdict()), options, importlib.metadata.version("amaranth"), *texts)
    path = build_root() / "rtlil" / f"{unit}-{key}.il"
    if not path.exists():
        write(path, emit.to_rtlil(entry.build(config), unit))
    return path.read_text()
