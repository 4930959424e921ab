"""Golden configurations and the port values of the WTU."""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from typing import Any

from golden.wicsum import WtuConfig
from hw.dre.wtu.command import KeyOrder, SelectionMode
from sim.ports import PREFIX

# selection mode of the WTU -> weight and stop rule of the golden configuration
SELECTIONS = {
    SelectionMode.RATIO: ("score_x_tc", "ratio"),
    SelectionMode.BUDGET: ("tc", "budget"),
    SelectionMode.COUNT: ("one", "count"),
}


def wtu_ports(config: WtuConfig, selection_target: int, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Port values of the WTU."""
    modes = {selection: mode for mode, selection in SELECTIONS.items()}
    if (mode := modes.get((config.weight, config.stop_rule))) is None:
        choices = ", ".join("/".join(selection) for selection in modes)
        raise ValueError(f"weight/stop_rule must be one of {choices}, got {config.weight}/{config.stop_rule}")
    return {
        f"{PREFIX}selection_mode": _number(mode),
        f"{PREFIX}key_order": _number(key_order),
        f"{PREFIX}selection_target": selection_target,
        f"{PREFIX}refine_levels": config.refine_levels,
    }


def _number(member: Any) -> int:
    """Value of an enumeration member; type checkers take Amaranth's members for plain values."""
    return int(member.value)
