"""The one table of separately buildable units: generate, verify, synth, formal and the docs all read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from amaranth.lib import wiring

from hw.arith.dot import DotTree
from hw.config import Config
from hw.core.core import Core
from hw.core.dma import Dma
from hw.core.multicore import MultiCore
from hw.dre.hc_table import HcTable
from hw.dre.hcu import HCU
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.kvpu import KVPU
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.lxe.dpe import DPE
from hw.lxe.memory import OperandMemory
from hw.lxe.vpe import VPE


@dataclass(frozen=True)
class Unit:
    """One separately buildable unit.

    Attributes
    ----------
    name : its name on the command line and of its Verilog top module
    build : makes the component from a configuration
    summary : one line for listings
    module : Python module that defines it
    """

    name: str
    build: Callable[[Config], wiring.Component]
    summary: str
    module: str

    @property
    def tests(self) -> str:
        """The file with its tests, from the project's root."""
        *folders, name = self.module.split(".")
        return "/".join(("tests", *folders, f"test_{name}.py"))


UNITS = {
    unit.name: unit
    for unit in (
        Unit(
            "dot_tree",
            DotTree.from_config,
            "Fused BF16 dot product: one MAC tree of the matrix engine",
            "hw.arith.dot",
        ),
        Unit(
            "core",
            Core.from_config,
            "Core: programs of commands from memory, AXI4 masters, AXI4-Lite registers, interrupt",
            "hw.core.core",
        ),
        Unit(
            "multicore",
            MultiCore.from_config,
            "Multi-core: several cores on one device memory port, one host port and one AXI4-Lite port",
            "hw.core.multicore",
        ),
        Unit(
            "dma",
            Dma.from_config,
            "Transfer engine: the KVMU's descriptors as AXI4 bursts between device memory and host link",
            "hw.core.dma",
        ),
        Unit(
            "hcu",
            HCU.from_config,
            "Hash clustering unit: nearest-leader search by Hamming distance",
            "hw.dre.hcu",
        ),
        Unit(
            "hc_table",
            HcTable.from_config,
            "HC table: entries of the hash clusters, and their token lists in memory",
            "hw.dre.hc_table",
        ),
        Unit(
            "kvmu",
            KVMU.from_config,
            "KV cache management unit: paging, residency, and selections as DMA descriptors",
            "hw.dre.kvmu.kvmu",
        ),
        Unit(
            "kvpu",
            KVPU.from_config,
            "KV prediction unit: HCU, HC table, WTU and KVMU as one stream machine",
            "hw.dre.kvpu",
        ),
        Unit(
            "wtu",
            WTU.from_config,
            "Weighted cumulative-sum threshold unit: a histogram of each row narrows down its cutoff",
            "hw.dre.wtu.wtu",
        ),
        Unit(
            "wtu_sweep",
            partial(WTU.from_config, design=WtuDesign.SWEEP),
            "Weighted cumulative-sum threshold unit: bucket sorters that read the row once per bucket",
            "hw.dre.wtu.wtu",
        ),
        Unit(
            "dpe",
            DPE.from_config,
            "Matrix engine: MAC trees side by side, double-buffered weights, FP32 sums over tiles",
            "hw.lxe.dpe",
        ),
        Unit(
            "operand_memory",
            OperandMemory.from_config,
            "On-chip memory of the matrix engine: weights and activations as beats",
            "hw.lxe.memory",
        ),
        Unit(
            "vpe",
            VPE.from_config,
            "Vector engine: micro-programs for softmax, norms, RoPE, hash bits, means",
            "hw.lxe.vpe",
        ),
    )
}


def unit(name: str) -> Unit:
    """The unit called `name`; raises `ValueError` that lists the valid names."""
    if name not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {name!r}")
    return UNITS[name]
