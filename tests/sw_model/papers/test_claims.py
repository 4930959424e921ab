"""Claims: verdicts by hand, and the whole table in which the realistic preset never helps the accelerator alone."""

import pytest

from sw_model.assumptions import Assumptions
from sw_model.papers.claims import CLAIMS, Claim, Judged, as_text, judge
from sw_model.papers.vrex import Case


def test_verdicts():
    more = Claim("speed", "here", 4.0, lambda case: 0.0)
    assert [more.verdict(v) for v in (5.0, 4.0, 3.0, 2.9)] == ["reached", "reached", "nearly", "missed"]
    less = Claim("time", "here", 40.0, lambda case: 0.0, most=True)
    assert [less.verdict(v) for v in (30, 40, 50, 60)] == ["reached", "reached", "nearly", "missed"]
    told = as_text([Judged(less, {"paper": 30.0, "realistic": 60.0})])
    assert "at most 40" in told and "reached" in told and "missed" in told


def test_frame_rate_is_the_models():
    claim = next(c for c in CLAIMS if c.what == "V-Rex8 frames per second at 40K")
    case = Case(Assumptions(), "paper")
    assert claim.model(case) == case.frame("vrex8", "resv", 40000).fps


def test_all_claims_are_judged_under_both_presets(monkeypatch):
    monkeypatch.setattr("sw_model.papers.claims.CLAIMS", [claim for claim in CLAIMS if "session" in claim.what])
    told = []
    (session,) = judge(progress=lambda what, done, total: told.append((what, done, total)))
    assert told == [("claims", 1, 1)] and set(session.values) == {"paper", "realistic"}
    assert session.values["paper"] > 1 and judge() == [session]


@pytest.mark.heavy
def test_realistic_links_cost():
    judged = {j.claim.what: j for j in judge()}
    assert len(judged) == len(CLAIMS)
    rate = judged["V-Rex8 frames per second at 40K"].values
    assert rate["realistic"] < 0.85 * rate["paper"]
    # weights, not the link, make a token: the same under both
    token = judged["V-Rex8 ms per token at 40K"].values
    assert token["realistic"] == pytest.approx(token["paper"], rel=0.02)
