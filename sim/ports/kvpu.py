"""Port values of the KV prediction unit and register values of a core."""

# mypy: disable-error-code="assignment"
# (to mypy, members of Amaranth's enumerations are integers)

from __future__ import annotations

from golden.kvpu import Kvpu
from hw.dre.wtu.command import KeyOrder
from sim.ports import PREFIX
from sim.ports.hcu import hcu_ports
from sim.ports.kvmu import kvmu_ports
from sim.ports.wtu import wtu_ports

# registers that a core's driver leaves at 0, their value after reset
_OPTIONAL = ("hamming_inclusive", "first_match", "key_order", "max_descriptor_bytes", "retain_fetched")


def kvpu_ports(golden: Kvpu, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Port values of the KV prediction unit: those of its three units, and whether fetched pages stay resident."""
    return {
        **kvmu_ports(golden.kvmu.config, golden.kvmu.base),
        **hcu_ports(golden.rule),
        **wtu_ports(golden.wtu, golden.target, key_order),
        f"{PREFIX}retain_fetched": int(golden.retain),
    }


def core_settings(golden: Kvpu, key_order: KeyOrder = KeyOrder.PLAIN) -> dict[str, int]:
    """Values of a core's registers for its KV prediction unit; optional settings only if they are not 0."""
    values = {name.removeprefix(PREFIX): value for name, value in kvpu_ports(golden, key_order).items()}
    return {name: value for name, value in values.items() if value or name not in _OPTIONAL}
