"""Golden clustering rules and the port values of the HCU."""

from __future__ import annotations

from typing import Any

from golden.clustering import ClusterRule
from hw.dre.hcu import HCU
from sim.ports import PREFIX


def cluster_rule(unit: HCU, **changes: Any) -> ClusterRule:
    """The golden clustering rule with the limits of `unit`; `changes` are its other fields."""
    return ClusterRule(**{"max_candidates": unit.max_candidates, "max_clusters": 1 << unit.cluster_bits, **changes})


def hcu_ports(rule: ClusterRule) -> dict[str, int]:
    """Port values of the HCU."""
    names = ("hamming_threshold", "hamming_inclusive", "first_match", "window_tokens", "max_cluster_tokens")
    return {f"{PREFIX}{name}": int(getattr(rule, name)) for name in names}
