"""Cycle formulas of the accelerator's units; each says where it comes from.

HCU and WTU: the units' own cycle contracts, which their simulations hold exactly. DPE: one 64 x 64 tile
times one vector a cycle, the next tile's weights loading meanwhile at one row a cycle. VPE: one element per
lane and pass.
"""

from math import ceil

from sw_model.systems import Core

# passes of the vector engine over each element; `op` counts single operations
VPE_PASSES = {"softmax": 4, "norm": 3, "rope": 3, "silu_mul": 3, "gelu": 2, "add": 1, "op": 1}


def hcu_cycles(pairs: float, hash_bits: int, core: Core) -> int:
    """`pairs` comparisons of a token's code with a leader's, leaders split over the cores: ceil(bits / lanes) each."""
    return ceil(pairs / core.cores) * ceil(hash_bits / core.hcu_lanes)


def wtu_cycles(rows: float, entries: float, passes: float, core: Core) -> int:
    """Selecting in `rows` rows of `entries` scores, rows split over the cores: load with minimum and
    maximum, sum, and one sweep per bucket examined."""
    return ceil(ceil(rows / core.cores) * ceil(entries / core.wtu_lanes) * (2 + passes))


def dpe_cycles(vectors: float, inputs: float, outputs: float, core: Core, times: float = 1) -> int:
    """`times` products of (vectors x inputs) by (inputs x outputs), tiles split over the cores."""
    tiles = times * ceil(inputs / core.dpe_cols) * ceil(outputs / core.dpe_rows)
    return ceil(ceil(tiles / core.cores) * max(vectors, core.dpe_rows))


def vpe_cycles(elements: float, what: str, core: Core) -> int:
    return ceil(elements / (core.vpe_lanes * core.cores)) * VPE_PASSES[what]
