"""Retrieval policies with one interface: `POLICIES` by name, `load` by name or from a Python file."""

from pathlib import Path
from types import ModuleType

from sw_model.policies.base import LLAMA3_8B, STAGES, Matmul, ModelShape, Policy, Selection, Step, Work
from sw_model.policies.codecsight import CodecSight
from sw_model.policies.full import Full
from sw_model.policies.hybrid import Hybrid
from sw_model.policies.infinigen import InfiniGen, InfiniGenP
from sw_model.policies.mosaic import Mosaic
from sw_model.policies.oaken import Oaken
from sw_model.policies.quickprefill import QuickPrefill
from sw_model.policies.rekv import ReKV
from sw_model.policies.resv import ReSV

__all__ = [
    "COMPARED", "DEFAULT", "LLAMA3_8B", "POLICIES", "STAGES", "Matmul", "ModelShape", "Policy", "ReSV", "Selection",
    "Step", "Work", "load",
]  # fmt: skip

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (Full, InfiniGen, InfiniGenP, ReKV, ReSV, Mosaic, QuickPrefill, CodecSight, Hybrid, Oaken)
}

DEFAULT = ReSV.name  # the policy of a run that does not name one
COMPARED = tuple(policy.name for policy in (ReSV, Mosaic, QuickPrefill, CodecSight, Hybrid))  # by `vrex compare`


def load(name: str) -> type[Policy]:
    """The policy class called `name`, or the one policy class that a Python file defines (`name` ends in .py).

    Raises ValueError for an unknown name, a missing file, or a file that does not define exactly one complete policy.
    """
    if not name.endswith(".py"):
        if name not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)} or a .py file, got {name!r}")
        return POLICIES[name]
    path = Path(name)
    if not path.is_file():
        raise ValueError(f"policy file must exist, got {name!r}")
    module = ModuleType(path.stem)
    module.__file__ = str(path)
    try:  # not imported: an import writes byte code next to the user's file, and can read outdated byte code
        exec(compile(path.read_bytes(), path, "exec"), vars(module))
    except (Exception, SystemExit) as error:  # a user's file can raise anything; report it in one line
        raise ValueError(f"policy file {name!r} must run, got {type(error).__name__}: {error}") from error
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Policy) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise ValueError(f"policy file {name!r} must define one subclass of Policy, got {len(classes)}")
    (policy,) = classes
    missing = sorted(policy.__abstractmethods__) + ["name"] * (not isinstance(getattr(policy, "name", None), str))
    if missing:
        raise ValueError(f"policy file {name!r}: {policy.__name__} must define {', '.join(missing)}")
    return policy
