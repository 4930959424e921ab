"""Retrieval policies with one interface: `POLICIES` by name, `load` by name or from a Python file."""

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
from util.policy_file import policy_class

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
    if name.endswith(".py"):
        return policy_class(name, Policy)
    if name not in POLICIES:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)} or a .py file, got {name!r}")
    return POLICIES[name]
