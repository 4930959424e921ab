"""Table of the claims that are proved of every unit of `hw.registry` and of its submodules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from amaranth.lib import wiring

from hw.common.pipeline import SkidBuffer
from hw.config import Config
from hw.core.dma import Dma
from hw.core.isa import ExecUnit
from hw.dre.wtu.command import SelectionMode
from hw.dre.wtu.wtu import WTU, WtuDesign
from hw.registry import unit
from hw.weight_codec.weight_decoder import WeightDecoder
from sim.formal.specifications import dma as dma_proofs
from sim.formal.specifications import hcu as hcu_proofs
from sim.formal.specifications import kvmu as kvmu_proofs
from sim.formal.specifications import memory as memory_proofs
from sim.formal.specifications import operands as operand_proofs
from sim.formal.specifications import wtu as wtu_proofs
from sim.formal.specifications.barrier import BarrierSpec
from sim.formal.specifications.common import Fifo, ForkSpec, GatedPipeline, QueueSpec, StreamContract
from sim.formal.specifications.sequencer import SequencerSpec


@dataclass(frozen=True)
class Claim:
    """One property of a unit or of one of its submodules.

    Attributes
    ----------
    name : unique within a unit
    build : returns the specification, whose docstring is the property
    depth : number of cycles of a bounded proof; None: all cycles
    steps : (all cycles) k of a k-induction; None: abc finds the invariant
    unroll : the bounded proof compares with a specification (`sim.formal.engine.prove`)
    any_memory : the proof holds for any data that memories return
    slow : the proof takes minutes
    """

    name: str
    build: Callable[[], wiring.Component]
    depth: int | None = None
    steps: int | None = None
    unroll: bool = False
    any_memory: bool = False
    slow: bool = False


# queues inside units
FIFO = Claim("fifo", lambda: QueueSpec(Fifo(width=2, depth=4), depth=4, patience=2))
SKID = Claim("skid_buffer", lambda: QueueSpec(SkidBuffer(2), depth=2, patience=1))
PIPELINE = Claim("gated_pipeline", lambda: QueueSpec(GatedPipeline(width=2, stages=2), depth=5, patience=5))
FORK = Claim("fork", lambda: ForkSpec(readers=3))
# memories with one port
BUFFERED = Claim("buffered_memory", memory_proofs.BufferedRamSpec)
KEYS = Claim("key_memory", lambda: memory_proofs.BeatMemorySpec(readers=2))
COUNTS = Claim("count_memory", lambda: memory_proofs.BeatMemorySpec(readers=1))


def _dma() -> Dma:
    return Dma(word=8, burst=2, depth=2, address_bits=12, tags=2)


def _threshold(design: WtuDesign) -> WTU:
    return WTU(lanes=2, pairs=4, max_row_clusters=8, buckets=4, count_bits=3, cluster_bits=4, design=design)


def _selection(design: WtuDesign, mode: str) -> Claim:
    def build() -> wiring.Component:
        return wtu_proofs.small(design, getattr(SelectionMode, mode))

    depth = wtu_proofs.CYCLES[design] + 1
    return Claim(f"selection_{mode.lower()}", build, depth, unroll=True, slow=True)


# stream contracts that are not proved at preset `tiny` for all cycles and any memory
CONTRACTS = {
    "dma": Claim("streams", lambda: StreamContract(_dma()), steps=2, any_memory=True),
    "wtu": Claim("streams", lambda: StreamContract(_threshold(WtuDesign.HISTOGRAM)), any_memory=True),
    "wtu_sweep": Claim("streams", lambda: StreamContract(_threshold(WtuDesign.SWEEP)), any_memory=True),
    "weight_decoder": Claim(
        "streams", lambda: StreamContract(WeightDecoder(lanes=4)), steps=2, any_memory=True, slow=True
    ),
}

SUBMODULES: dict[str, tuple[Claim, ...]] = {
    "core": (
        FIFO,
        *(
            Claim(f"sequencer_{exec_unit.name.lower()}", partial(SequencerSpec, exec_unit), steps=3, any_memory=True)
            for exec_unit in ExecUnit
        ),
        # memories without bypass
        Claim("transposer_memory", operand_proofs.TransposerMemory, any_memory=True),
        Claim("operand_writes", operand_proofs.OperandWrites, any_memory=True),
        Claim("matrix_reads", operand_proofs.MatrixReads, depth=16, any_memory=True, slow=True),
    ),
    "dma": (
        FIFO,
        Claim("copier", dma_proofs.small_copier, depth=10),
        Claim("reader", dma_proofs.small_reader),
        Claim("writer", dma_proofs.small_writer),
    ),
    "hcu": (FIFO, BUFFERED, Claim("nearest_leader", hcu_proofs.small, depth=14)),
    "kvmu": tuple(
        Claim(name, build, depth, slow=name in kvmu_proofs.SLOW) for name, (build, depth) in kvmu_proofs.PROOFS.items()
    ),
    "kvpu": (FIFO, FORK, SKID),
    "wtu": (
        *(FIFO, PIPELINE, FORK, KEYS, COUNTS),
        *(_selection(WtuDesign.HISTOGRAM, mode) for mode in ("BUDGET", "COUNT")),
    ),
    "wtu_sweep": (FIFO, PIPELINE, FORK),
    "multicore": (FIFO, Claim("barrier", lambda: BarrierSpec(cores=3))),
    "dot_tree": (PIPELINE,),
    "kv_encoder": (PIPELINE,),
    "kv_decoder": (PIPELINE,),
    "bfp_encoder": (PIPELINE,),
    "bfp_decoder": (PIPELINE,),
    "weight_decoder": (),
    "dpe": (PIPELINE,),
    "vpe": (FIFO, PIPELINE),
}


# units without a stream contract: their ports are buses, or streams of inner units that have their own contract
COMPOSED = {"core", "kvmu", "kvpu", "multicore"}


def claims(name: str) -> tuple[Claim, ...]:
    """Claims of the unit `name`, beginning with the contract of its streams.

    Raises `ValueError` that lists the valid names.
    """
    build = unit(name).build
    contract = Claim("streams", lambda: StreamContract(build(Config.preset("tiny"))), any_memory=True)
    contracts = () if name in COMPOSED else (CONTRACTS.get(name, contract),)
    return (*contracts, *SUBMODULES.get(name, (FIFO,)))
