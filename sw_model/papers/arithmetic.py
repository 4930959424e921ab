"""Published arithmetic, recomputed from its inputs. Each evaluator returns (value,) or (value, inside, says)."""

from collections.abc import Callable
from typing import Any

from sw_model.systems import load_system
from sw_model.workloads import LLAMA3_8B

# V-Rex Table III, mm2 and mW of one core
AREA = {"DPE": 1.37, "VPE": 0.14, "LXE_mem": 0.34, "HCU": 0.01, "WTU": 0.02, "KVMU": 0.01, "total": 1.89}
POWER = {"DPE": 2311.39, "VPE": 122.06, "LXE_mem": 118.94, "HCU": 2.99, "WTU": 39.04, "KVMU": 15.01, "total": 2609.43}
# Table III's own percentages, finer than its areas
AREA_PCT = {"DPE": 72.79, "VPE": 7.18, "LXE_mem": 17.98, "HCU": 0.28, "WTU": 1.23, "KVMU": 0.53}


def peak() -> tuple[Any, ...]:
    return ({8: load_system("vrex8").peak_tflops, 48: load_system("vrex48").peak_tflops},)


def area_scaled() -> tuple[Any, ...]:
    value = {"V-Rex8": 8 * AREA["total"], "V-Rex48": 48 * AREA["total"], "AGX": 200, "A100": 826}
    return value, None, "GPU areas are the vendor's and only repeated"


def dre_share() -> tuple[Any, ...]:
    power = 100 * sum(POWER[k] for k in ("HCU", "WTU", "KVMU")) / POWER["total"]
    area = sum(AREA_PCT[k] for k in ("HCU", "WTU", "KVMU"))
    return (
        {"power_pct": power, "area_pct": area},
        abs(power - 2.2) < 0.05 and abs(area - 2.0) < 0.05,
        ("2.18 and 2.04 from Table III; section VI-F prints 2.4 % power"),
    )


def hash_dim() -> tuple[Any, ...]:
    share = 32 / (LLAMA3_8B.kv_heads * LLAMA3_8B.head_dim * 16)
    return share, share <= 0.005, "an upper bound; hashing goes over all KV heads"


def hc_overhead() -> tuple[Any, ...]:
    dims = LLAMA3_8B.kv_heads * LLAMA3_8B.head_dim
    return ((2 * dims + 32 * 4 + 3 * 4) / (32 * dims * 2 * 2),)


def power_delta() -> tuple[Any, ...]:
    edge = 100 * (1 - 35 / 40)
    server = 100 * (1 - 203.68 / 300)
    return {"edge": edge, "server": server}, None, "Table I gives 12.5 % for the edge, the text prints 11.4"


def hybrid_cache() -> tuple[Any, ...]:
    token = 36 * 2 * 2 * 128 * 2
    return [223.1, 640 * token / 1e6], None, "40 blocks of 16 tokens of Qwen2.5-VL-3B; the baseline is only repeated"


def codec_scale() -> tuple[Any, ...]:
    gpus = 500_000 / 0.6
    return gpus, round(gpus, -5) == 800_000, "0.6 streams per GPU, printed to one digit"


def grouped(full: float, printed: float) -> tuple[Any, ...]:
    """The activation of one of 225 groups; the full size is only repeated."""
    value = full / 225
    return [full, value], round(value, 2) == printed, "a 225th, printed to two decimals; the full size is only repeated"


def kv_one_hour() -> tuple[Any, ...]:
    """28 layers, keys and values, 8 heads of 512 in 16 bit, 256 tokens of each of 3600 frames."""
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
    "hybrid.t2.conc": lambda: ([968, 968 * 223.1 / 23.6], None, "the first column's pool over the second's cache"),
    "hybrid.t2.delta": lambda: ([1 - 23.6 / 223.1, 223.1 / 23.6],),
    "codec.naive": lambda: (80 / 16,),
    "codec.tokens": lambda: (256 * 40 * 2,),
    "codec.fig10": lambda: ((12 - 4) / 12,),
    "codec.scale": codec_scale,
    "qv.frames_bytes": lambda: (3600 * 3 * 1920 * 800,),
    "qv.d1.attn": lambda: grouped(21.1, 0.09),
    "qv.d1.mlp": lambda: grouped(112.5, 0.5),
    "qv.d2.kv": kv_one_hour,
}
