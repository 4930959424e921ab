"""Every published figure of kind `system` or `arith` beside what this model gives.

A target is either evaluated (a function below returns the model's value in the shape of the published one), or
reported as not modelled with the reason. Nothing here is tuned: all figures share one set of `Assumptions`, and the
free assumptions are listed in `FREE_ASSUMPTIONS`.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from sw_model.assumptions import Assumptions
from sw_model.papers import arithmetic as published_arith
from sw_model.papers import codecsight as published_codec
from sw_model.papers import mosaic_hybrid as published_other
from sw_model.papers import quickvideo as published_quickvideo
from sw_model.papers import synthesis as published_synthesis
from sw_model.papers import vrex as published_vrex
from sw_model.papers.figures import DATA, published
from sw_model.papers.vrex import Case
from util import text
from util.progress import Progress, no_progress

USES = ("system", "arith")
PAPERS = (published_vrex, published_synthesis, published_codec, published_other, published_quickvideo)
FREE_ASSUMPTIONS = {
    "resident tokens": "4096 newest tokens per stream stay in device memory",
    "resident hits": "KV fetched for one step stays until the next: 0.31 of a selection, on a synthetic stream",
    "requests in flight": "16 reads of 256 B per core, 190 ns from request to data: 82 % of LPDDR5, 56 % of HBM2e",
    "GPU operations": "30 eager operations a decoder layer, 16 a vision layer, each with a measured overhead",
    "GPU copies": "V-Rex's GPU baselines wait for each layer's copy, over a real link and drive in both presets",
    "video decoding": "a core decodes as fast beside others as alone: 3.5 ms a frame of 1080 lines",
    "answer length": "16 tokens end each of CodecSight's requests",
    "DRAM energy": "5 pJ/bit for LPDDR5 (4 to 6 quoted), 3.97 for HBM2e",
    "idle units": "a waiting unit draws its clock, 0.26 of its power, a drive nothing, a used link and a GPU all",
}


@dataclass(frozen=True)
class Reading:
    """What the model says about one target. `inside` is None where there is no verdict; `shape` targets are judged by
    a stated trend. `closes` names the assumption that would close a miss."""

    model: Any
    inside: bool | None = None
    says: str = ""
    closes: str = ""


@dataclass(frozen=True)
class Row:
    """One target: published value, model value, worst relative residual, verdict and explanation. `numbers_inside`:
    how many of its single numbers are inside the tolerance, and of how many."""

    id: str
    paper: str
    where: str
    what: str
    use: str
    published: Any
    model: Any
    residual: float | None
    tolerance: float | str | None
    verdict: str
    says: str
    numbers_inside: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reproduction:
    """All rows, their papers' contradictions, and the score among `system` targets with a verdict."""

    rows: tuple[Row, ...]
    contradictions: tuple[str, ...]
    free_assumptions: dict[str, str]

    def score(self, use: str = "system") -> tuple[int, int, int]:
        """(inside, with a verdict, all) of one kind of target."""
        rows = [r for r in self.rows if r.use == use]
        judged = [r for r in rows if r.verdict in ("inside", "outside")]
        return sum(r.verdict == "inside" for r in judged), len(judged), len(rows)

    def json(self) -> dict[str, Any]:
        return {
            "score": {use: dict(zip(("inside", "judged", "all"), self.score(use), strict=True)) for use in USES},
            "targets": [vars(row) for row in self.rows],
            "contradictions": list(self.contradictions),
            "free assumptions": self.free_assumptions,
        }

    def as_text(self) -> str:
        """The targets as a table, what is to be said about each, contradictions and assumptions."""
        head = ("target", "verdict", "residual %", "tolerance %", "published", "model")
        body = [
            (r.id, r.verdict, "" if r.residual is None else f"{100 * r.residual:+.0f}", allowed(r.tolerance),
             brief(r.published), brief(r.model))
            for r in self.rows
        ]  # fmt: skip
        parts = [text.table(head, body), *(f"{r.id}: {r.says}" for r in self.rows if r.says)]
        parts += ["", *(f"contradiction: {c}" for c in self.contradictions)]
        parts += ["", *(f"assumed, {name}: {what}" for name, what in self.free_assumptions.items()), ""]
        for use in USES:
            inside, judged, every = self.score(use)
            if every:
                parts.append(f"{use}: {inside} of {judged} judged are inside their tolerance, of {every} targets")
        single = [row.numbers_inside for row in self.rows if row.numbers_inside]
        if single:
            met, of = (sum(pair) for pair in zip(*single, strict=True))
            parts.append(f"single numbers with a tolerance: {met} of {of} inside")
        return "\n".join(parts)


def allowed(tolerance: float | str | None) -> str:
    """A tolerance in per cent, or `shape`."""
    return f"{100 * tolerance:.0f}" if isinstance(tolerance, float) else tolerance or ""


def brief(value: Any) -> str:
    """A nested value in few characters."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def numbers(value: Any) -> list[float]:
    """The numbers of a nested value in order."""
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers(v)]
    if isinstance(value, list | tuple):
        return [x for v in value for x in numbers(v)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def worst_residual(model: Any, target: Any) -> float | None:
    """The relative error of largest size, or None when the shapes differ."""
    got, want = numbers(model), numbers(target)
    if not got or len(got) != len(want):
        return None
    errors = [g / w - 1 if w else (0.0 if g == 0 else float("inf")) for g, w in zip(got, want, strict=True)]
    return max(errors, key=abs)


def inside_of(model: Any, target: Any, tolerance: Any) -> tuple[int, int] | None:
    """How many of the target's numbers the model meets, and how many there are; None without a numeric tolerance."""
    got, want = numbers(model), numbers(target)
    if not isinstance(tolerance, float) or len(got) != len(want) or not got:
        return None
    return sum(abs(g - w) <= tolerance * abs(w) for g, w in zip(got, want, strict=True)), len(want)


def judge(target: dict[str, Any], reading: Reading) -> Row:
    residual = worst_residual(reading.model, target["value"])
    tolerance = target.get("tolerance")
    inside = reading.inside
    if inside is None and residual is not None:
        if target["use"] == "arith" or tolerance is None:
            # plain arithmetic; 1 % covers the rounding of every printed value
            inside = abs(residual) <= 0.01
        elif isinstance(tolerance, float):
            inside = abs(residual) <= tolerance
    says = reading.says
    if inside is False and reading.closes:
        says = f"{says}; closed by: {reading.closes}" if says else f"closed by: {reading.closes}"
    verdict = "not modelled" if inside is None else "inside" if inside else "outside"
    return Row(
        id=target["id"],
        paper=target["paper"],
        where=target["where"],
        what=target["what"],
        use=target["use"],
        published=target["value"],
        model=reading.model,
        residual=residual,
        tolerance=tolerance,
        verdict=verdict,
        says=says,
        numbers_inside=inside_of(reading.model, target["value"], tolerance),
    )


def evaluate(name: str, assume: Assumptions, link: str) -> Reading:
    if name in published_arith.EVALUATORS:
        return Reading(*published_arith.EVALUATORS[name]())
    for papers in PAPERS:
        if name in papers.EVALUATORS:
            return Reading(*papers.EVALUATORS[name](Case(assume, link)))
    return Reading(None, says="not modelled: no evaluator")


def rows(figures: list[str], assume: Assumptions, link: str, progress: Progress) -> Iterator[Row]:
    targets = published()
    wanted = [t for k, t in targets.items() if not figures or any(k == f or k.startswith(f + ".") for f in figures)]
    for done, target in enumerate(wanted, 1):
        yield judge(target, evaluate(target["id"], assume, link))
        progress("figures", done, len(wanted))


def reproduce(
    *figures: str, assume: Assumptions | None = None, link: str = "paper", progress: Progress = no_progress
) -> Reproduction:
    """All targets, or those whose id is one of `figures` or begins with one (`vrex.fig13`). Raises ValueError for an
    id that matches nothing."""
    known = published()
    for figure in figures:
        if not any(k == figure or k.startswith(figure + ".") for k in known):
            raise ValueError(f"unknown figure {figure!r}: an id like vrex.fig13, mosaic.vram or qv")
    found = tuple(rows(list(figures), assume or Assumptions(), link, progress))
    papers = " ".join(row.paper for row in found).lower()
    contradictions = json.loads((DATA / "targets.json").read_text())["contradictions"]  # "Paper: what"
    of_these = tuple(line for line in contradictions if line.split(":")[0].lower() in papers)
    return Reproduction(found, of_these, FREE_ASSUMPTIONS)
