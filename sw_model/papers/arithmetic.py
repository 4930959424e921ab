"""Published arithmetic, computed again from its inputs.

Each evaluator returns (value,) or (value, in_tolerance, comment), see `sw_model.papers.reproduce.Reading`.
"""

from collections.abc import Callable
from typing import Any

from hw.config import Config
from sw_model.papers.figures import published
from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B

# V-Rex Table III: mm2 and mW of one core by unit, and its percentages, which have more digits than its areas
AREA: dict[str, float] = published()["vrex.area"]["value"]
POWER: dict[str, float] = published()["vrex.power"]["value"]
AREA_PCT: dict[str, float] = published()["vrex.area_pct"]["value"]
HASH_BITS = Config.preset("paper").hash_bits
CLUSTER_TOKENS = 32  # mean tokens of a cluster (V-Rex, section VI-B)


def peak() -> tuple[Any, ...]:
    """Peak TFLOPS by number of cores."""
    return ({8: load_system("vrex8").peak_tflops, 48: load_system("vrex48").peak_tflops},)


def area_scaled() -> tuple[Any, ...]:
    """Area of each machine in mm2."""
    value = {"V-Rex8": 8 * AREA["total"], "V-Rex48": 48 * AREA["total"], "AGX": 200, "A100": 826}
    return value, None, "the GPU areas are the vendor's values; they are not computed"


def dre_share() -> tuple[Any, ...]:
    """Share of the DRE in the power and the area of a core, in per cent."""
    power = 100 * sum(POWER[k] for k in ("HCU", "WTU", "KVMU")) / POWER["total"]
    area = sum(AREA_PCT[k] for k in ("HCU", "WTU", "KVMU"))
    return (
        {"power_pct": power, "area_pct": area},
        abs(power - 2.2) < 0.05 and abs(area - 2.0) < 0.05,
        "2.18 % and 2.04 % from Table III; section VI-F prints 2.4 % of the power",
    )


def hash_dim() -> tuple[Any, ...]:
    """Size of a hash code relative to the key of a token."""
    share = HASH_BITS / (LLAMA3_8B.key_dim * 16)
    return share, share <= 0.005, "the paper gives an upper bound; one hash code covers all KV heads"


def hc_overhead() -> tuple[Any, ...]:
    """Bytes of a cluster's entry (mean key, token list, three words) over those of its keys and values."""
    entry_bytes = 2 * LLAMA3_8B.key_dim + CLUSTER_TOKENS * 4 + 3 * 4
    return (entry_bytes / (CLUSTER_TOKENS * LLAMA3_8B.kv_bytes),)


def power_delta() -> tuple[Any, ...]:
    """Power that V-Rex saves over the GPUs, in per cent."""
    edge = 100 * (1 - 35 / 40)
    server = 100 * (1 - 203.68 / 300)
    return {"edge": edge, "server": server}, None, "Table I gives 12.5 % for the edge, the text prints 11.4 %"


def hybrid_cache() -> tuple[Any, ...]:
    """KV cache of the baseline and of the hybrid in 10**6 bytes."""
    token = 36 * 2 * 2 * 128 * 2
    return [223.1, 640 * token / 1e6], None, "40 blocks of 16 tokens of Qwen2.5-VL-3B; the baseline is not computed"


def codec_scale() -> tuple[Any, ...]:
    """GPUs for 500,000 streams."""
    gpus = 500_000 / 0.6
    return gpus, round(gpus, -5) == 800_000, "0.6 streams per GPU; the paper prints one digit"


def grouped(full: float, printed: float) -> tuple[Any, ...]:
    """The activations of one of 225 groups; the full size is not computed."""
    value = full / 225
    return [full, value], round(value, 2) == printed, "1/225, printed with two decimals; the full size is not computed"


def kv_gib_of_one_hour() -> tuple[Any, ...]:
    """KV of one hour: 28 layers, keys and values, 8 heads of 512 in 16 bit, 256 tokens of each of 3600 frames."""
    value = 28 * 2 * 8 * 512 * 2 * 3600 * 256 / 2**30
    return value, None, "with 256 tokens a frame at one frame a second"


EVALUATORS: dict[str, Callable[[], tuple[Any, ...]]] = {
    "vrex.peak": peak,
    "vrex.area_scaled": area_scaled,
    "vrex.dre_share": dre_share,
    "vrex.hash_dim": hash_dim,
    "vrex.hc_overhead": hc_overhead,
    "vrex.power_delta": power_delta,
    "hybrid.tokens_hour": lambda: (196 * 3600,),
    "hybrid.t2.cache": hybrid_cache,
    "hybrid.t2.conc": lambda: (
        [968, 968 * 223.1 / 23.6],
        None,
        "pool of the first column over the cache of the second",
    ),
    "hybrid.t2.delta": lambda: ([1 - 23.6 / 223.1, 223.1 / 23.6],),
    "codec.naive": lambda: (80 / 16,),
    "codec.tokens": lambda: (256 * 40 * 2,),
    "codec.fig10": lambda: ((12 - 4) / 12,),
    "codec.scale": codec_scale,
    "qv.frames_bytes": lambda: (3600 * 3 * 1920 * 800,),
    "qv.d1.attn": lambda: grouped(21.1, 0.09),
    "qv.d1.mlp": lambda: grouped(112.5, 0.5),
    "qv.d2.kv": kv_gib_of_one_hour,
}
