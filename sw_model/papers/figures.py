"""Published figures by identifier, and tables of the model's values next to them."""

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from sw_model import workloads
from sw_model.assumptions import Assumptions
from sw_model.model import run
from sw_model.result import Result
from sw_model.systems import load_system

DATA = Path(__file__).parents[1] / "data"
CONTEXTS = (1000, 5000, 10000, 20000, 40000)


@lru_cache
def published() -> dict[str, dict[str, Any]]:
    """The published figures by identifier: value, paper, section or figure, and a tolerance where one is defined."""
    return {t["id"]: t for t in json.loads((DATA / "targets.json").read_text())["targets"]}


@dataclass(frozen=True)
class FrameRow:
    """One context length of V-Rex Fig. 13: time of a frame in the model and in the paper.

    kv_tokens  context length in tokens
    paper_ms   None where the paper gives no value
    """

    system: str
    kv_tokens: int
    model_ms: float
    paper_ms: float | None
    result: Result

    @property
    def residual(self) -> float | None:
        """Relative error of the model; None without a published value."""
        return None if self.paper_ms is None else self.model_ms / self.paper_ms - 1


def fig13_frames(*, link: str = "paper", assume: Assumptions | None = None) -> list[FrameRow]:
    """Latency of a frame on V-Rex8 and V-Rex48 with ReSV, batch 1, from 1K to 40K tokens (V-Rex Fig. 13)."""
    edge = published()["vrex.fig13.frame_edge_b1"]["value"]
    server = published()["vrex.fig13.frame_server"]["value"]
    paper = {"vrex8": edge, "vrex48": [server[0], None, None, None, server[-1]]}
    rows = []
    for name, values in paper.items():
        system = load_system(name)
        for n, ms in zip(CONTEXTS, values, strict=True):
            result = run(system, "resv", workloads.frame(n), link=link, assume=assume)
            rows.append(FrameRow(name, n, result.total_s * 1e3, ms, result))
    return rows
