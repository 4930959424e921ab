"""A campaign tells a test that checks everything from one that does not, and knows what no test could notice."""

import pytest

from sim.mutants.campaign import CampaignError, run
from tests.sim.mutant_cases import Sums

CASES = "tests/sim/mutant_cases.py"
COUNT = 30


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("mutants")


def campaign(root, test, **options):
    return run("sums", Sums(), [f"{CASES}::{test}"], COUNT, root=root, **options)


def test_a_weak_test_leaves_survivors_and_a_strong_one_kills_them(root):
    weak, strong = campaign(root, "test_sums"), campaign(root, "test_sums_and_counter")
    assert weak.killed + len(weak.equivalent) + len(weak.survivors) == len(weak.mutants) == COUNT
    for mutant, result in weak.survivors:
        assert "stat_words" in mutant.wire or mutant.sources[-1].startswith(CASES), mutant
        assert result.how.startswith("can differ from cycle")
    assert weak.survivors and weak.score < 1
    assert not strong.survivors and strong.score == 1
    # where two equal registers are compared, a fault that hides a difference is none
    assert strong.equivalent and strong.equivalent == weak.equivalent
    assert {mutant.mode for mutant, _ in strong.equivalent} == {"const0"}


def test_a_campaign_goes_on_where_it_was_stopped(root):
    first = campaign(root, "test_sums_and_counter")
    file = max(root.glob("*/results.jsonl"), key=lambda path: path.stat().st_mtime)
    rows = file.read_text().splitlines(keepends=True)
    file.write_text("".join(rows[:26]) + rows[26][:9])
    again = campaign(root, "test_sums_and_counter")
    assert [(r.mutant, r.killed) for r in again.results] == [(r.mutant, r.killed) for r in first.results]
    assert file.read_text().startswith("".join(rows[:26]))


def test_what_cannot_be_a_campaign(tmp_path):
    with pytest.raises(CampaignError, match="test_that_fails fails without a mutant: KeyError"):
        campaign(tmp_path, "test_that_fails")
    with pytest.raises(CampaignError, match="no test simulates it"):
        campaign(tmp_path, "test_of_something_else")
    with pytest.raises(ValueError, match="mutants = 0: must be 1 to 65535"):
        run("sums", Sums(), [CASES], 0, root=tmp_path)
