"""Policies: which past tokens a layer attends to, and which pages it keeps.

`load_policy` returns a policy by name, or the policy of a Python file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import ModuleType

from compiler.policies.base import Policy, Selection, TableSizes
from compiler.policies.full import FullPolicy
from compiler.policies.rekv import RekvPolicy
from compiler.policies.resv import ResvPolicy
from compiler.policies.window import WindowPolicy

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy for policy in (ResvPolicy, FullPolicy, WindowPolicy, RekvPolicy)
}

__all__ = [
    "POLICIES",
    "FullPolicy",
    "Policy",
    "RekvPolicy",
    "ResvPolicy",
    "Selection",
    "TableSizes",
    "WindowPolicy",
    "load_policy",
]


def load_policy(name: str, options: Mapping[str, object]) -> Policy:
    """The policy `name`, or the one policy that a Python file defines (`name` ends in .py), with values of its fields.

    Raises ValueError for an unknown name, a missing file, a file that does not define exactly one policy, or an unknown
    option.
    """
    kind = _of_file(name) if name.endswith(".py") else POLICIES.get(name)
    if kind is None:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)} or a .py file, got {name!r}")
    names = [field.name for field in fields(kind)]
    for option in options:
        if option not in names:
            raise ValueError(f"option of policy {kind.name} must be one of {', '.join(names)}, got {option!r}")
    return kind(**options)  # type: ignore[arg-type]


def _of_file(name: str) -> type[Policy]:
    """The policy that a Python file defines."""
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"policy file must exist, got {name!r}")
    module = ModuleType(f"vrex_policy_{path.stem}")
    module.__file__ = str(path)
    # dataclasses look up the module of a class; it is not imported, because an import writes byte code next to the file
    sys.modules[module.__name__] = module
    try:
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:  # a user's file can raise anything; report it in one line
        raise ValueError(f"policy file {name!r} must run, got {type(error).__name__}: {error}") from error
    finally:
        del sys.modules[module.__name__]
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ValueError(f"policy file {name!r} must define one subclass of Policy, got {len(classes)}")
    if not classes[0].name:
        raise ValueError(f"policy file {name!r}: {classes[0].__name__} must define name")
    return classes[0]
