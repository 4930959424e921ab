"""Published figures of kind `system` or `arith` compared with the values of this model.

An evaluator of `sw_model.papers` returns the model's value of a figure in the shape of the published value. No value is
fitted to a figure: all figures share one set of `Assumptions`. `FREE_ASSUMPTIONS` lists the free choices, and
`MEASURED_ASSUMPTIONS` the numbers that are measured on the golden models and the netlists of this project.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from sw_model.assumptions import Assumptions
from sw_model.papers import arithmetic, codecsight, mosaic_hybrid, programs, quickvideo, synthesis, vrex
from sw_model.papers.figures import DATA, published
from sw_model.papers.programs import ProgramRow, program_rows
from sw_model.papers.vrex import Case
from util import text
from util.progress import Progress, no_progress

USES = ("system", "arith")
PAPERS = (vrex, synthesis, codecsight, mosaic_hybrid, quickvideo)
FREE_ASSUMPTIONS = {
    "resident tokens": "4096 newest tokens per stream stay in device memory",
    "vision weights": "read once for a frame; the programs read them for each block of 43 to 64 patches",
    "GPU operations": "30 eager operations a decoder layer, 16 a vision layer, each with a measured overhead",
    "GPU copies": "V-Rex's GPU baselines wait for each layer's copy, over a real link and drive in both presets",
    "video decoding": "a core decodes at the same speed with and without others: 3.5 ms per frame of 1080 lines",
    "answer length": "the answer to each of CodecSight's requests has 16 tokens",
    "DRAM energy": "5 pJ/bit for LPDDR5 (4 to 6 quoted), 3.97 for HBM2e",
    "idle devices": "a waiting drive draws no power, a used link and a GPU all of theirs",
}
MEASURED_ASSUMPTIONS = {
    "resident hits": "KV that one step fetched serves 0.31 of the next selection: golden ReSV on the synthetic stream",
    "idle units": "a waiting unit draws 0.26 of its power: the mapped MAC tree, idle and under random operands",
}


@dataclass(frozen=True)
class Reading:
    """The model's value of one figure.

    model         number, list or dictionary in the shape of the published value
    in_tolerance  the evaluator's verdict; None: the tolerance decides. A figure with the tolerance `shape` is evaluated
                  by a trend that the comment states.
    comment       conditions of the value
    depends_on    the assumption, or the contradiction in the paper, that a residual depends on
    """

    model: Any
    in_tolerance: bool | None = None
    comment: str = ""
    depends_on: str = ""


@dataclass(frozen=True)
class Row:
    """One figure: published value, model value, largest relative residual, verdict and comment.

    verdict               `inside`, `outside` or `not modelled`
    numbers_in_tolerance  how many of its numbers are inside the tolerance, and how many it has; None without a numeric
                          tolerance
    """

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
    comment: str
    numbers_in_tolerance: tuple[int, int] | None = None


@dataclass(frozen=True)
class Reproduction:
    """The rows of all figures, the contradictions of their papers, and what the model assumes.

    free_assumptions, measured_assumptions  `FREE_ASSUMPTIONS`, `MEASURED_ASSUMPTIONS`
    programs  times of programs: all recorded ones, or for some figures of V-Rex's Fig. 13 those with a published time
    """

    rows: tuple[Row, ...]
    contradictions: tuple[str, ...]
    free_assumptions: dict[str, str]
    measured_assumptions: dict[str, str]
    programs: tuple[ProgramRow, ...] = ()

    def score(self, use: str = "system") -> tuple[int, int, int]:
        """Numbers of figures of one kind: inside the tolerance, with a verdict, all."""
        rows = [r for r in self.rows if r.use == use]
        evaluated = [r for r in rows if r.verdict in ("inside", "outside")]
        return sum(r.verdict == "inside" for r in evaluated), len(evaluated), len(rows)

    def json(self) -> dict[str, Any]:
        """The comparison as plain values."""
        return {
            "score": {use: dict(zip(("inside", "evaluated", "all"), self.score(use), strict=True)) for use in USES},
            "targets": [vars(row) for row in self.rows],
            "contradictions": list(self.contradictions),
            "free assumptions": self.free_assumptions,
            "measured assumptions": self.measured_assumptions,
            "programs": [row.json() for row in self.programs],
        }

    def as_text(self) -> str:
        """A table of the figures, then their comments, contradictions and assumptions."""
        head = ("target", "verdict", "residual %", "tolerance %", "published", "model")
        body = [
            (r.id, r.verdict, "" if r.residual is None else f"{100 * r.residual:+.0f}", allowed(r.tolerance),
             brief(r.published), brief(r.model))
            for r in self.rows
        ]  # fmt: skip
        lines = [text.table(head, body), *(f"{r.id}: {r.comment}" for r in self.rows if r.comment)]
        lines += ["", *(f"contradiction: {c}" for c in self.contradictions)]
        lines += ["", *(f"assumed, {name}: {value}" for name, value in self.free_assumptions.items())]
        lines += [*(f"measured, {name}: {value}" for name, value in self.measured_assumptions.items()), ""]
        for use in USES:
            inside, evaluated, total = self.score(use)
            if total:
                lines.append(f"{use}: {inside} of {evaluated} evaluated are inside their tolerance, of {total} targets")
        if self.programs:
            lines += ["", programs.as_text(self.programs), ""]
        counts = [row.numbers_in_tolerance for row in self.rows if row.numbers_in_tolerance]
        if counts:
            inside, total = (sum(pair) for pair in zip(*counts, strict=True))
            lines.append(f"single numbers with a tolerance: {inside} of {total} inside")
        return "\n".join(lines)


def allowed(tolerance: float | str | None) -> str:
    """A tolerance in per cent, `shape`, or nothing."""
    return f"{100 * tolerance:.0f}" if isinstance(tolerance, float) else tolerance or ""


def brief(value: Any) -> str:
    """A nested value with four significant digits."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k}: {brief(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief, value)) + "]"
    if isinstance(value, float):
        return f"{value:.4g}"
    return "" if value is None else str(value)


def numbers(value: Any) -> list[float]:
    """The numbers of a nested value in their order."""
    if isinstance(value, dict):
        return [x for v in value.values() for x in numbers(v)]
    if isinstance(value, list | tuple):
        return [x for v in value for x in numbers(v)]
    return [float(value)] if isinstance(value, int | float) and not isinstance(value, bool) else []


def worst_residual(model: Any, target: Any) -> float | None:
    """The relative error of the largest magnitude, or None when the numbers of values differ."""
    values, references = numbers(model), numbers(target)
    if not values or len(values) != len(references):
        return None
    pairs = zip(values, references, strict=True)
    errors = [value / ref - 1 if ref else (0.0 if value == 0 else float("inf")) for value, ref in pairs]
    return max(errors, key=abs)


def count_in_tolerance(model: Any, target: Any, tolerance: Any) -> tuple[int, int] | None:
    """How many numbers of the model are inside the tolerance, and how many there are; None without a numeric one."""
    values, references = numbers(model), numbers(target)
    if not isinstance(tolerance, float) or len(values) != len(references) or not values:
        return None
    pairs = zip(values, references, strict=True)
    return sum(abs(value - ref) <= tolerance * abs(ref) for value, ref in pairs), len(references)


def row_of(target: dict[str, Any], reading: Reading) -> Row:
    """The row of a published figure and the model's value."""
    residual = worst_residual(reading.model, target["value"])
    tolerance = target.get("tolerance")
    in_tolerance = reading.in_tolerance
    if in_tolerance is None and residual is not None:
        if target["use"] == "arith" or tolerance is None:
            # plain arithmetic; 1 % covers the rounding of every printed value
            in_tolerance = abs(residual) <= 0.01
        elif isinstance(tolerance, float):
            in_tolerance = abs(residual) <= tolerance
    comment = reading.comment
    if in_tolerance is False and reading.depends_on:
        reason = f"depends on: {reading.depends_on}"
        comment = f"{comment}; {reason}" if comment else reason
    verdict = "not modelled" if in_tolerance is None else "inside" if in_tolerance else "outside"
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
        comment=comment,
        numbers_in_tolerance=count_in_tolerance(reading.model, target["value"], tolerance),
    )


def evaluate(name: str, assume: Assumptions, link: str) -> Reading:
    """The model's value of the figure `name`."""
    if name in arithmetic.EVALUATORS:
        return Reading(*arithmetic.EVALUATORS[name]())
    for papers in PAPERS:
        if name in papers.EVALUATORS:
            return Reading(*papers.EVALUATORS[name](Case(assume, link)))
    return Reading(None, comment="not modelled: no evaluator")


def rows(figures: list[str], assume: Assumptions, link: str, progress: Progress) -> Iterator[Row]:
    """The rows of the figures that `figures` select, in their order in the list of published figures."""
    targets = [target for name, target in published().items() if not figures or selects(figures, name)]
    for done, target in enumerate(targets, 1):
        yield row_of(target, evaluate(target["id"], assume, link))
        progress("figures", done, len(targets))


def selects(figures: Iterable[str], name: str) -> bool:
    """Whether `name` is one of `figures` or begins with one and a dot."""
    return any(name == figure or name.startswith(figure + ".") for figure in figures)


def reproduce(
    *figures: str, assume: Assumptions | None = None, link: str = "paper", progress: Progress = no_progress
) -> Reproduction:
    """All figures, or those whose identifier is one of `figures` or begins with one (`vrex.fig13`).

    Raises ValueError for an identifier that selects no figure, and for an unknown link preset.
    """
    for figure in figures:
        if not any(selects([figure], name) for name in published()):
            raise ValueError(f"figure must be an identifier such as vrex.fig13, mosaic.vram or qv, got {figure!r}")
    result = tuple(rows(list(figures), assume or Assumptions(), link, progress))
    papers = " ".join(row.paper for row in result).lower()
    contradictions = json.loads((DATA / "targets.json").read_text())["contradictions"]  # lines "Paper: contradiction"
    selected = tuple(line for line in contradictions if line.split(":")[0].lower() in papers)
    points = tuple(point for point in programs.ROWS if not figures or programs.paper_ms(point) is not None)
    of_programs = any(row.id.startswith("vrex.fig13") for row in result)
    times = tuple(program_rows(points)) if of_programs else ()
    return Reproduction(result, selected, FREE_ASSUMPTIONS, MEASURED_ASSUMPTIONS, times)
