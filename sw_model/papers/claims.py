"""Claims of V-Rex under two link presets: `paper`, with the nominal link of Table I, and `realistic`, with packets, the
drive behind the link, and every read of the KV cache replayed bank by bank.

A claim is reached when the model gives at least the claimed value (for a time: at most); within 25 % it is nearly
reached.
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
    """A number in the paper that the model should reach.

    what         description of the quantity, with its unit
    where        section or figure of the paper
    value        the claimed value
    model        gives the model's value
    upper_bound  the model's value should be at most the claimed one, else at least
    """

    what: str
    where: str
    value: float
    model: Callable[[Case], float]
    upper_bound: bool = False

    def verdict(self, value: float) -> str:
        """`reached`, `nearly` or `missed` for a value of the model."""
        share = self.value / value if self.upper_bound else value / self.value
        return "reached" if share >= 1 else "nearly" if share >= 1 - NEAR else "missed"


@dataclass(frozen=True)
class ClaimResult:
    """A claim with the model's value under each link preset."""

    claim: Claim
    values: dict[str, float]

    def verdict(self, link: str) -> str:
        """The verdict under one link preset."""
        return self.claim.verdict(self.values[link])


def _frame_speedup(gpu: str, vrex: str, n: int, batch: int = 1) -> Callable[[Case], float]:
    return lambda case: case.frame(gpu, "full", n, batch).total_s / case.frame(vrex, "resv", n, batch).total_s


def _text_speedup(gpu: str, vrex: str, n: int) -> Callable[[Case], float]:
    return lambda case: case.text(gpu, "full", n).total_s / case.text(vrex, "resv", n).total_s


def _energy_gain(gpu: str, vrex: str, n: int) -> Callable[[Case], float]:
    return lambda case: case.frame(gpu, "full", n).total_j / case.frame(vrex, "resv", n).total_j


def _session_speedup(case: Case) -> float:
    load = coin_session(40000)
    return case.run("agx-orin", "full", load).total_s / case.run("vrex8", "resv", load).total_s


EDGE, SERVER = ("agx-orin", "vrex8"), ("a100", "vrex48")
CLAIMS = (
    Claim("V-Rex8 frames per second at 1K", "Abstract", 8.3, lambda c: c.frame("vrex8", "resv", 1000).fps),
    Claim("V-Rex8 frames per second at 40K", "Abstract", 3.9, lambda c: c.frame("vrex8", "resv", 40000).fps),
    Claim("V-Rex8 ms per token at 40K", "Fig. 13", 97, lambda c: 1e3 * c.text("vrex8", "resv", 40000).total_s, True),
    Claim("V-Rex48 ms per frame at 40K", "Fig. 13", 48, lambda c: 1e3 * c.frame("vrex48", "resv", 40000).total_s, True),
    Claim("V-Rex48 ms per token at 40K", "Fig. 13", 15, lambda c: 1e3 * c.text("vrex48", "resv", 40000).total_s, True),
    Claim("frames over AGX Orin at 1K", "Fig. 13", 2.2, _frame_speedup(*EDGE, 1000)),
    Claim("frames over AGX Orin at 40K", "Fig. 13", 7.3, _frame_speedup(*EDGE, 40000)),
    Claim("frames over AGX Orin at 40K, batch 4", "Fig. 13", 13.8, _frame_speedup(*EDGE, 40000, 4)),
    Claim("tokens over AGX Orin at 40K", "Fig. 13", 15.1, _text_speedup(*EDGE, 40000)),
    Claim("frames over A100 at 1K", "Fig. 13", 2.6, _frame_speedup(*SERVER, 1000)),
    Claim("frames over A100 at 40K", "Fig. 13", 7.3, _frame_speedup(*SERVER, 40000)),
    Claim("frames over A100 at 40K, batch 8", "Fig. 13", 19.7, _frame_speedup(*SERVER, 40000, 8)),
    Claim("tokens over A100 at 40K", "Fig. 13", 16.8, _text_speedup(*SERVER, 40000)),
    Claim("a COIN session over AGX Orin at 40K", "Fig. 14", 5.4, _session_speedup),
    Claim("energy per frame over AGX Orin at 40K", "Fig. 13", 10.2, _energy_gain(*EDGE, 40000)),
    Claim("energy per frame over A100 at 40K", "Fig. 13", 29.7, _energy_gain(*SERVER, 40000)),
)


def evaluate(assume: Assumptions | None = None, progress: Progress = no_progress) -> list[ClaimResult]:
    """Every claim under both link presets."""
    results: list[ClaimResult] = []
    for claim in CLAIMS:
        values = {link: claim.model(Case(assume or Assumptions(), link)) for link in LINKS}
        results.append(ClaimResult(claim, values))
        progress("claims", len(results), len(CLAIMS))
    return results


def as_text(results: list[ClaimResult]) -> str:
    """The results as a table of text."""
    head = ("claim", "where", "claimed", *(column for link in LINKS for column in (link, "")))
    rows = [
        (
            r.claim.what,
            r.claim.where,
            f"{'at most ' if r.claim.upper_bound else ''}{r.claim.value:g}",
            *(column for link in LINKS for column in (f"{r.values[link]:.3g}", r.verdict(link))),
        )
        for r in results
    ]
    return text.table(head, rows)
