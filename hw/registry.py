"""Registry of the units that can be built separately.

The commands generate, verify, formal, synth and mutate and the documentation read this table.
"""

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
from hw.dre.hcu import HCU
from hw.dre.kvmu.kvmu import KVMU
from hw.dre.kvpu import KVPU
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.kv_codec.bfp_decoder import BfpDecoder
from hw.kv_codec.bfp_encoder import BfpEncoder
from hw.kv_codec.kv_decoder import KvDecoder
from hw.kv_codec.kv_encoder import KvEncoder
from hw.lxe.dpe import DPE
from hw.lxe.operand_memory import OperandMemory
from hw.lxe.vpe import VPE
from hw.weight_codec.weight_decoder import WeightDecoder


@dataclass(frozen=True)
class RegisteredUnit:
    """A unit that can be built separately.

    Attributes
    ----------
    name : name on the command line and name of the Verilog top module
    build : function that creates the component for a configuration
    summary : one line of description
    module : Python module of the component
    """

    name: str
    build: Callable[[Config], wiring.Component]
    summary: str
    module: str

    @property
    def tests(self) -> str:
        """Path of its test file, relative to the root of the project."""
        *folders, name = self.module.split(".")
        return "/".join(("tests", *folders, f"test_{name}.py"))


UNITS = {
    unit.name: unit
    for unit in (
        RegisteredUnit(
            "dot_tree",
            DotTree.from_config,
            "Fused BF16 dot product: one MAC tree of the matrix engine",
            "hw.arith.dot",
        ),
        RegisteredUnit(
            "core",
            Core.from_config,
            "Core: executes programs of commands; AXI4 masters, AXI4-Lite registers, interrupt",
            "hw.core.core",
        ),
        RegisteredUnit(
            "multicore",
            MultiCore.from_config,
            "Multi-core: several cores that share ports to the device memory, a host port and an AXI4-Lite port",
            "hw.core.multicore",
        ),
        RegisteredUnit(
            "dma",
            Dma.from_config,
            "DMA engine: executes the DMA descriptors of the KVMU as AXI4 bursts between device memory and host link",
            "hw.core.dma",
        ),
        RegisteredUnit(
            "hcu",
            HCU.from_config,
            "Hash clustering unit: assigns each token to the cluster with the nearest hash code",
            "hw.dre.hcu",
        ),
        RegisteredUnit(
            "kvmu",
            KVMU.from_config,
            "KV cache management unit: state of all contexts in memory, offload of old pages, DMA descriptors",
            "hw.dre.kvmu.kvmu",
        ),
        RegisteredUnit(
            "kvpu",
            KVPU.from_config,
            "KV prediction unit: HCU, WTU and KVMU, connected by streams",
            "hw.dre.kvpu",
        ),
        RegisteredUnit(
            "wtu",
            WTU.from_config,
            "Weighted cumulative-sum threshold unit: finds the cutoff of a score row with histograms",
            "hw.dre.wtu.wtu",
        ),
        RegisteredUnit(
            "wtu_sweep",
            partial(WTU.from_config, design=WtuDesign.SWEEP),
            "Weighted cumulative-sum threshold unit: finds the cutoff with one pass over the row per bucket",
            "hw.dre.wtu.wtu",
        ),
        RegisteredUnit(
            "kv_encoder",
            KvEncoder.from_config,
            "Encoder of the KV cache: words of BF16 codes become 4-bit codes with a header",
            "hw.kv_codec.kv_encoder",
        ),
        RegisteredUnit(
            "kv_decoder",
            KvDecoder.from_config,
            "Decoder of the KV cache: 4-bit codes with a header become words of BF16 codes",
            "hw.kv_codec.kv_decoder",
        ),
        RegisteredUnit(
            "bfp_encoder",
            BfpEncoder.from_config,
            "Encoder of the KV cache: words of BF16 codes become 8-bit codes with four exponents",
            "hw.kv_codec.bfp_encoder",
        ),
        RegisteredUnit(
            "bfp_decoder",
            BfpDecoder.from_config,
            "Decoder of the KV cache: 8-bit codes with four exponents become words of BF16 codes",
            "hw.kv_codec.bfp_decoder",
        ),
        RegisteredUnit(
            "weight_decoder",
            WeightDecoder.from_config,
            "Decoder of stored weights: tiles in MXFP4, INT4 or FP8 become words of BF16 codes",
            "hw.weight_codec.weight_decoder",
        ),
        RegisteredUnit(
            "dpe",
            DPE.from_config,
            "Matrix engine: array of MAC trees, double-buffered weight tiles, FP32 accumulators",
            "hw.lxe.dpe",
        ),
        RegisteredUnit(
            "operand_memory",
            OperandMemory.from_config,
            "On-chip memory of the matrix engine: weights and activations",
            "hw.lxe.operand_memory",
        ),
        RegisteredUnit(
            "vpe",
            VPE.from_config,
            "Vector engine: executes micro-programs such as softmax, RMSNorm, RoPE, hash codes, means",
            "hw.lxe.vpe",
        ),
    )
}


def unit(name: str) -> RegisteredUnit:
    """The unit `name`. Raises `ValueError` for an unknown name."""
    if name not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {name!r}")
    return UNITS[name]
