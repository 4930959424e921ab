"""Policies: which past tokens a layer attends to, and which pages it keeps.

`load_policy` returns a policy by name, or the policy of a Python file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from compiler.policies.base import Policy, Selection, TableSizes
from compiler.policies.codecsight import CodecSightPolicy
from compiler.policies.full import FullPolicy
from compiler.policies.hybrid import HybridPolicy
from compiler.policies.infinigen import InfiniGenPolicy, InfiniGenPPolicy
from compiler.policies.mosaic import MosaicPolicy
from compiler.policies.oaken import OakenPolicy
from compiler.policies.quickprefill import QuickPrefillPolicy
from compiler.policies.rekv import RekvPolicy
from compiler.policies.resv import ResvPolicy
from compiler.policies.window import WindowPolicy
from util.policy_file import policy_class

POLICIES: dict[str, type[Policy]] = {
    policy.name: policy
    for policy in (
        ResvPolicy,
        FullPolicy,
        WindowPolicy,
        HybridPolicy,
        RekvPolicy,
        QuickPrefillPolicy,
        CodecSightPolicy,
        MosaicPolicy,
        InfiniGenPolicy,
        InfiniGenPPolicy,
        OakenPolicy,
    )
}

__all__ = [
    "POLICIES",
    "CodecSightPolicy",
    "FullPolicy",
    "HybridPolicy",
    "InfiniGenPPolicy",
    "InfiniGenPolicy",
    "MosaicPolicy",
    "OakenPolicy",
    "Policy",
    "QuickPrefillPolicy",
    "RekvPolicy",
    "ResvPolicy",
    "Selection",
    "TableSizes",
    "WindowPolicy",
    "load_policy",
]


def load_policy(name: str, options: Mapping[str, Any]) -> Policy:
    """The policy `name`, or the one policy that a Python file defines (`name` ends in .py), with values of its fields.

    Raises ValueError for an unknown name, a missing file, a file that does not define exactly one policy, or an unknown
    option.
    """
    kind = policy_class(name, Policy) if name.endswith(".py") else POLICIES.get(name)
    if kind is None:
        raise ValueError(f"policy must be one of {', '.join(POLICIES)} or a .py file, got {name!r}")
    names = [field.name for field in fields(kind)]
    for option in options:
        if option not in names:
            raise ValueError(f"option of policy {kind.name} must be one of {', '.join(names)}, got {option!r}")
    return kind(**options)
