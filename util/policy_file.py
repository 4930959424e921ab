"""Class that a user's Python file defines."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any


def policy_class(name: str, base: type[Any]) -> type[Any]:
    """The one subclass of `base` that a Python file defines; `base` has abstract methods and a class attribute `name`.

    Raises ValueError for a missing file, one that fails, or one that does not define exactly one complete subclass.
    """
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
    classes: list[type[Any]] = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, base) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ValueError(f"policy file {name!r} must define one subclass of {base.__name__}, got {len(classes)}")
    (policy,) = classes
    label = getattr(policy, "name", None)
    missing = sorted(policy.__abstractmethods__) + ["name"] * (not isinstance(label, str) or not label)
    if missing:
        raise ValueError(f"policy file {name!r}: {policy.__name__} must define {', '.join(missing)}")
    return policy
