"""Claims: verdicts by hand, and the table of all claims under both link presets."""

import pytest

from sw_model.assumptions import Assumptions
from sw_model.papers.claims import CLAIMS, Claim, ClaimResult, as_text, evaluate
from sw_model.papers.vrex import Case


def test_verdicts():
    more = Claim("speed", "here", 4.0, lambda case: 0.0)
    assert [more.verdict(v) for v in (5.0, 4.0, 3.0, 2.9)] == ["reached", "reached", "nearly", "missed"]
    less = Claim("time", "here", 40.0, lambda case: 0.0, upper_bound=True)
    assert [less.verdict(v) for v in (30, 40, 50, 60)] == ["reached", "reached", "nearly", "missed"]
    table = as_text([ClaimResult(less, {"paper": 30.0, "realistic": 60.0})])
    assert "at most 40" in table and "reached" in table and "missed" in table


def test_frame_rate_claim_uses_the_model():
    claim = next(c for c in CLAIMS if c.what == "V-Rex8 frames per second at 40K")
    case = Case(Assumptions(), "paper")
    assert claim.model(case) == case.frame("vrex8", "resv", 40000).fps


def test_claims_are_evaluated_under_both_link_presets(monkeypatch):
    monkeypatch.setattr("sw_model.papers.claims.CLAIMS", [claim for claim in CLAIMS if "session" in claim.what])
    calls = []
    (session,) = evaluate(progress=lambda what, done, total: calls.append((what, done, total)))
    assert calls == [("claims", 1, 1)] and set(session.values) == {"paper", "realistic"}
    assert session.values["paper"] > 1 and evaluate() == [session]


@pytest.mark.heavy
def test_realistic_link_takes_longer():
    results = {r.claim.what: r for r in evaluate()}
    assert len(results) == len(CLAIMS)
    rate = results["V-Rex8 frames per second at 40K"].values
    assert rate["realistic"] < 0.85 * rate["paper"]
    # weights bound the time of a token, so the link does not change it
    token = results["V-Rex8 ms per token at 40K"].values
    assert token["realistic"] == pytest.approx(token["paper"], rel=0.02)
