"""Steps of the demo: pictures of a long video, and an RTL with wrong output."""

import pytest

from cli.demo import steps
from hw.config import Config
from hw.dre.hcu import HCU
from sim.ports.hcu import cluster_rule
from sw_model.media import clip
from sw_model.media.clip import Clip


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = clip.encode(clip.synthesise(20, width=96, height=64), tmp_path_factory.mktemp("film") / "film.mp4")
    unit = HCU.from_config(Config.preset("tiny"))
    rule = cluster_rule(unit, hamming_threshold=4, window_tokens=40)
    options = {"hash_bits": unit.hash_bits, "layers": 1, "grid": 1, "rule": rule}
    return steps.cluster_video(Clip(path, "film", "", ""), **options, progress=lambda *told: None), unit, rule


def test_number_of_pictures_is_limited(video):
    made, _, _ = video
    assert [picture.index for picture in made.pictures] == list(range(0, 16, 2)) and made.frames == 20


def test_wrong_rtl_output_raises(video, monkeypatch):
    made, unit, rule = video
    real = steps.simulate

    def mismatch(*arguments, **options):
        record = real(*arguments, **options)
        record.outputs["o"]["count"][3] += 1
        return record

    assert steps.through_rtl(made, unit, rule).tokens == 40
    monkeypatch.setattr(steps, "simulate", mismatch)
    with pytest.raises(ArithmeticError, match=r"the RTL differs from the golden model: .*'count': 1"):
        steps.through_rtl(made, unit, rule)
