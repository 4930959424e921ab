"""Energy of a run by consumer: the units of the accelerator or the GPU board, device memory, link and drive."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from sw_model.engine import PS_PER_S
from sw_model.graph import ScheduledPhase
from sw_model.systems import System


def energy_j(system: System, phases: Sequence[ScheduledPhase], idle_share: float) -> dict[str, float]:
    """Joules by consumer of all phases."""
    out: dict[str, float] = defaultdict(float)
    for scheduled in phases:
        n, timeline = scheduled.phase.count, scheduled.timeline
        busy_s = {k: t / PS_PER_S * n for k, t in timeline.resource_busy_ps().items()}
        dram_bytes = n * sum(b for (_, name), b in timeline.bytes_moved().items() if name == "DRAM")
        part = consumers_j(system, n * timeline.makespan_ps / PS_PER_S, busy_s, dram_bytes, idle_share)
        for name, joules in part.items():
            out[name] += joules
    return {k: v for k, v in out.items() if v}


def consumers_j(
    system: System, total_s: float, busy_s: Mapping[str, float], dram_bytes: float, idle_share: float
) -> dict[str, float]:
    """Joules by consumer in `total_s`, of which each resource works for `busy_s`.

    A unit of an accelerator draws the power of V-Rex Table III at work and the share `idle_share` of it while it waits.
    The codecs work while the device memory transfers.
    The drive draws its power while it transfers. The device memory takes energy per bit. A link that a step uses draws
    its power for the entire step. A GPU draws its board power for the entire run.
    """
    power, core = system.power, system.core
    out: dict[str, float] = defaultdict(float)
    link_s = max(busy_s.get("PCIe", 0.0), busy_s.get("SSD", 0.0))
    if core:
        units = (
            ("LXE", power.dpe_mw + power.lxe_memory_mw, busy_s.get("LXE", 0.0)),
            ("VPE", power.vpe_mw, busy_s.get("VPE", 0.0)),
            ("DRE", power.hcu_mw, busy_s.get("HCU", 0.0)),
            ("DRE", power.wtu_mw, busy_s.get("WTU", 0.0)),
            ("DRE", power.kvmu_mw, max(link_s, busy_s.get("KVMU", 0.0))),
            ("codecs", power.kv_codec_mw + power.weight_codec_mw, busy_s.get("DRAM", 0.0)),
        )
        for unit, milliwatts, busy in units:
            out[unit] += milliwatts * 1e-3 * core.config.cores * (busy + idle_share * (total_s - busy))
        out["DRAM"] += power.dram_pj_per_bit * 1e-12 * 8 * dram_bytes
        out["PCIe"] += power.pcie_w_per_lane * system.link.lanes * (total_s if busy_s.get("PCIe") else 0.0)
    else:
        out["board"] += power.board_w * total_s
    out["storage"] += power.storage_w * link_s
    return out
