"""Energy of a run by consumer: the units of the accelerator or the GPU board, device memory, link and drive."""

from collections import defaultdict
from collections.abc import Sequence

from sw_model.engine import PS_PER_S
from sw_model.graph import ScheduledPhase
from sw_model.systems import System


def energy_j(system: System, phases: Sequence[ScheduledPhase], idle_share: float) -> dict[str, float]:
    """Joules by consumer.

    A unit of an accelerator draws the power of V-Rex Table III at work and the share `idle_share` of it while it waits.
    The drive draws its power while it transfers. The device memory takes energy per bit. A link that a step uses draws
    its power for the entire step. A GPU draws its board power for the entire run.
    """
    power, core = system.power, system.core
    out: dict[str, float] = defaultdict(float)
    for scheduled in phases:
        n = scheduled.phase.count
        total_s = n * scheduled.timeline.makespan_ps / PS_PER_S
        busy = {k: t / PS_PER_S * n for k, t in scheduled.timeline.resource_busy_ps().items()}
        link_s = max(busy.get("PCIe", 0.0), busy.get("SSD", 0.0))
        if core:
            bits = 8 * n * sum(b for (_, name), b in scheduled.timeline.bytes_moved().items() if name == "DRAM")
            units = (
                ("LXE", power.dpe_mw + power.lxe_memory_mw, busy.get("LXE", 0.0)),
                ("VPE", power.vpe_mw, busy.get("VPE", 0.0)),
                ("DRE", power.hcu_mw, busy.get("HCU", 0.0)),
                ("DRE", power.wtu_mw, busy.get("WTU", 0.0)),
                ("DRE", power.kvmu_mw, link_s),
            )
            for unit, milliwatts, busy_s in units:
                powered_s = busy_s + idle_share * (total_s - busy_s)
                out[unit] += milliwatts * 1e-3 * core.config.cores * powered_s
            out["DRAM"] += power.dram_pj_per_bit * 1e-12 * bits
            out["PCIe"] += power.pcie_w_per_lane * system.link.lanes * (total_s if busy.get("PCIe") else 0.0)
        else:
            out["board"] += power.board_w * total_s
        out["storage"] += power.storage_w * link_s
    return {k: v for k, v in out.items() if v}
