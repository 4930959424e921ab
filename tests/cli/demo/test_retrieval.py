"""Table of retrieval quality in the report: every policy on every stream."""

import json

import pytest

from cli.demo import retrieval
from sw_model.media import clip
from sw_model.media.clip import Clip
from sw_model.media.trace import Trace
from sw_model.policies import POLICIES


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    pictures = clip.synthesise(18, width=96, height=64, seed=2)
    path = clip.encode(pictures, tmp_path_factory.mktemp("film") / "film.mp4")
    return retrieval.compare(Clip(path, "film", "", ""), grid=2, fps=None, frames=18, seed=1)


def test_tables_have_every_policy_and_stage(tables):
    assert list(tables) == ["generated", "video: film", "captured trace"]
    for rows in tables.values():
        assert {(row.policy, row.stage) for row in rows} == {(p, s) for p in POLICIES for s in ("frame", "text")}
        assert all(row.output_error == 0 for row in rows if row.policy == "full")
        assert all(row.recall < 1 for row in rows if row.policy == "quickprefill" and row.stage == "text")


def test_section_has_one_table_per_stream(tables):
    section = retrieval.section(tables)
    assert [table.caption for table in section.tables] == list(tables)
    assert all(len(table.rows) == 2 * len(POLICIES) for table in section.tables)


def test_trace_matches_config_of_its_model():
    trace = Trace(retrieval.TRACE)
    told = json.loads(retrieval.TRACE.with_name("config.json").read_text())["text_config"]
    assert trace.source["weights"] == "random, seed 0" and trace.source["type"] == "qwen2_5_vl"
    assert (trace.geometry.layers, trace.geometry.q_heads) == (told["num_hidden_layers"], told["num_attention_heads"])
    assert trace.geometry.kv_heads == told["num_key_value_heads"] and set(trace.stages) == {"frame", "text"}
