"""V-Rex's claims under two presets: `paper`, with Table I's nominal link, and `realistic`, with packets, the drive
behind the link and every read of the KV cache replayed bank by bank.

A claim is reached when the model gives at least what is claimed (for a time, at most), nearly reached within 25 %.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sw_model.assumptions import LINKS, Assumptions
from sw_model.papers.vrex import Case
from sw_model.workloads import coin_session
from util import text
from util.progress import Progress, no_progress

NEAR = 0.25


@dataclass(frozen=True)
class Claim:
    """What the paper says, as a number that should be at least reached (`most`: at most)."""

    what: str
    where: str
    value: float
    model: Callable[[Case], float]
    most: bool = False

    def verdict(self, value: float) -> str:
        share = self.value / value if self.most else value / self.value
        return "reached" if share >= 1 else "nearly" if share >= 1 - NEAR else "missed"


@dataclass(frozen=True)
class Judged:
    """A claim with the model's value and verdict under each preset."""

    claim: Claim
    values: dict[str, float]

    def verdict(self, link: str) -> str:
        return self.claim.verdict(self.values[link])


def _faster(gpu: str, vrex: str, n: int, batch: int = 1) -> Callable[[Case], float]:
    return lambda case: case.frame(gpu, "full", n, batch).total_s / case.frame(vrex, "resv", n, batch).total_s


def _faster_text(gpu: str, vrex: str, n: int) -> Callable[[Case], float]:
    return lambda case: case.text(gpu, "full", n).total_s / case.text(vrex, "resv", n).total_s


def _thriftier(gpu: str, vrex: str, n: int) -> Callable[[Case], float]:
    return lambda case: case.frame(gpu, "full", n).total_j / case.frame(vrex, "resv", n).total_j


def _session(case: Case) -> float:
    load = coin_session(40000)
    return case.run("agx-orin", "full", load).total_s / case.run("vrex8", "resv", load).total_s


EDGE, SERVER = ("agx-orin", "vrex8"), ("a100", "vrex48")
CLAIMS = (
    Claim("V-Rex8 frames per second at 1K", "Abstract", 8.3, lambda c: c.frame("vrex8", "resv", 1000).fps),
    Claim("V-Rex8 frames per second at 40K", "Abstract", 3.9, lambda c: c.frame("vrex8", "resv", 40000).fps),
    Claim("V-Rex8 ms per token at 40K", "Fig. 13", 97, lambda c: 1e3 * c.text("vrex8", "resv", 40000).total_s, True),
    Claim("V-Rex48 ms per frame at 40K", "Fig. 13", 48, lambda c: 1e3 * c.frame("vrex48", "resv", 40000).total_s, True),
    Claim("V-Rex48 ms per token at 40K", "Fig. 13", 15, lambda c: 1e3 * c.text("vrex48", "resv", 40000).total_s, True),
    Claim("frames over AGX Orin at 1K", "Fig. 13", 2.2, _faster(*EDGE, 1000)),
    Claim("frames over AGX Orin at 40K", "Fig. 13", 7.3, _faster(*EDGE, 40000)),
    Claim("frames over AGX Orin at 40K, batch 4", "Fig. 13", 13.8, _faster(*EDGE, 40000, 4)),
    Claim("tokens over AGX Orin at 40K", "Fig. 13", 15.1, _faster_text(*EDGE, 40000)),
    Claim("frames over A100 at 1K", "Fig. 13", 2.6, _faster(*SERVER, 1000)),
    Claim("frames over A100 at 40K", "Fig. 13", 7.3, _faster(*SERVER, 40000)),
    Claim("frames over A100 at 40K, batch 8", "Fig. 13", 19.7, _faster(*SERVER, 40000, 8)),
    Claim("tokens over A100 at 40K", "Fig. 13", 16.8, _faster_text(*SERVER, 40000)),
    Claim("a COIN session over AGX Orin at 40K", "Fig. 14", 5.4, _session),
    Claim("energy per frame over AGX Orin at 40K", "Fig. 13", 10.2, _thriftier(*EDGE, 40000)),
    Claim("energy per frame over A100 at 40K", "Fig. 13", 29.7, _thriftier(*SERVER, 40000)),
)


def judge(assume: Assumptions | None = None, progress: Progress = no_progress) -> list[Judged]:
    """Every claim under both presets."""
    judged: list[Judged] = []
    for claim in CLAIMS:
        judged.append(Judged(claim, {link: claim.model(Case(assume or Assumptions(), link)) for link in LINKS}))
        progress("claims", len(judged), len(CLAIMS))
    return judged


def as_text(judged: list[Judged]) -> str:
    head = ("claim", "where", "claimed", *(column for link in LINKS for column in (link, "")))
    rows = [
        (
            j.claim.what,
            j.claim.where,
            f"{'at most ' if j.claim.most else ''}{j.claim.value:g}",
            *(column for link in LINKS for column in (f"{j.values[link]:.3g}", j.verdict(link))),
        )
        for j in judged
    ]
    return text.table(head, rows)
