"""Quality of policies on a model: figures of known policies, interruption at any point, the command, refusals."""

import json

import numpy as np
import pytest

import vrex
from golden.attention import attention_mass
from golden.resv import ResvConfig
from sw_model.media import clip

POLICY = """
import numpy as np
from sw_model.policies import Policy, Selection

class Known(Policy):
    name = "{name}"
    def select(self, layer, queries, stage):
        self.queries(layer, queries, stage)
        return Selection((np.arange({first}, self.past(layer)),) * self.model.kv_heads)
    def account(self, step):
        return self.work(step, 1, 1)
"""
QUESTIONS = "# time, tab, question\n0.5\twhat is this\n\n1.3\twhat is\\nnext\nwhat is this\n"


@pytest.fixture
def folder(torch, qwen, tmp_path, monkeypatch):
    """Current folder with a checkpoint, its tokenizer, a video, questions and two policies."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    monkeypatch.chdir(tmp_path)
    qwen.save_pretrained("model")
    names = ["[UNK]", "what", "is", "this", "next", *(f"word{number}" for number in range(5, 300))]
    words = {word: number for number, word in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained("model")
    pictures = clip.synthesise(48, width=96, height=64, scene_frames=20, seed=7)
    clip.encode(pictures, tmp_path / "film.mp4", gop=16)
    (tmp_path / "questions.txt").write_text(QUESTIONS)
    for name, first in (("everything", "0"), ("newest", "max(0, self.past(layer) - 3)")):
        (tmp_path / f"{name}.py").write_text(POLICY.format(name=name, first=first))
    return tmp_path


def settings(**changes):
    from sw_model.huggingface.quality import Settings

    values = {"fps": 5.0, "size": 16, "answer_tokens": 4, "device_tokens": 9, "prompt": "this is", "frames": 10}
    return Settings(model="model", video="film.mp4", questions="questions.txt", **{**values, **changes})


def results_of(comparison, policies):
    comparison.run(policies)
    return [result for policy in policies for result in comparison.results(policy)]


def test_figures_of_known_policies(folder):
    """All tokens: the answers of the full cache. The newest three tokens: a known share of the past."""
    from sw_model.huggingface.quality import Comparison

    comparison = Comparison(settings(), "out")
    rows = {row.policy: row for row in comparison.run(["everything.py", "newest.py"])}
    assert list(rows) == ["full", "everything", "newest"]
    assert (rows["full"].same, rows["full"].agreement, rows["full"].divergence) == (1, 1, 0)
    assert rows["full"].recall == pytest.approx(1)
    assert (rows["everything"].same, rows["everything"].agreement, rows["everything"].ratio) == (1, 1, 1)
    assert rows["everything"].divergence < 1e-9
    assert rows["newest"].divergence > 1e-9
    assert 0 < rows["newest"].recall < 0.9
    assert [question.time_s for question in comparison.questions] == [0.5, 1.3, np.inf]
    assert comparison.questions[1].text == "what is\nnext"
    frames = [1, 3, len(list(comparison._frames()))]  # steps of 0.4 s that end at 0.5 s or before, 1.3 s, the end
    assert frames[2] > 4
    for result, count in zip(comparison.results("newest"), frames, strict=True):
        past = [2 + 6 * count, *(2 + 6 * count + 3 + i for i in range(3))]  # prompt, frames, question, answer
        assert result.ratio == pytest.approx(np.mean([3 / n for n in past]))
        assert len(result.tokens) == 4


def test_answer_of_the_full_cache_is_that_of_the_model(folder, torch):
    from transformers import AutoModelForImageTextToText, DynamicCache

    from sw_model.huggingface.frames import steps
    from sw_model.huggingface.quality import Comparison

    result = results_of(Comparison(settings(frames=6, prompt=""), "out"), ["full"])[2]
    model = AutoModelForImageTextToText.from_pretrained("model").eval()
    cache = DynamicCache(config=model.config)
    for step in steps(model, "model", "film.mp4", fps=5.0, size=16, max_frames=6):
        model(**step.inputs, cache=cache)
    ids, position = torch.tensor([[1, 2, 3]]), int(step.inputs["position_ids"].max()) + 1
    tokens = []
    for _ in range(4):
        positions = position + torch.arange(ids.shape[1])[None]
        logits = model(input_ids=ids, position_ids=positions, cache=cache).logits[0, -1]
        position, ids = position + ids.shape[1], logits.argmax()[None, None]
        tokens.append(int(ids))
    assert result.tokens == tokens


def test_recall_is_the_mass_of_the_golden_model(torch, make_model):
    from sw_model.huggingface import RetrievalCache, prepare
    from sw_model.huggingface.quality import _Recorder

    model = prepare(make_model())
    recorder, expected = _Recorder(), []
    config = ResvConfig(wics_ratio=0.1, gqa_select="per_q_head", attend="own")
    cache = RetrievalCache("resv", options={"config": config})

    def observe(layer, queries, selection, scaling):
        recorder(layer, queries, selection, scaling)
        keys = layer.store.rows[:, :, 0].numpy()
        q = queries.transpose(0, 1).cpu().numpy()
        mass = attention_mass(q, keys)  # (Hkv, rows, N + T), rows ordered by token
        past = len(keys) - len(q)
        recall = [
            (mass[h][:, ids] * selection.allowed[h]).sum(axis=1) + mass[h][:, past:].sum(axis=1)
            for h, ids in enumerate(selection.tokens)
        ]
        if past:
            expected.append(np.mean(recall))

    cache.observer = observe
    for number in range(6):
        ids = torch.randint(0, 300, (1, 5), generator=torch.Generator().manual_seed(number))
        model(input_ids=ids.to(model.device), cache=cache)
    assert len(expected) == 5 * 3
    assert recorder.recalls == pytest.approx(expected, abs=1e-6)
    assert min(expected) < 0.9


@pytest.mark.parametrize("point", [2, 4, 7, 9, 12, 13, 15, 16])
def test_comparison_that_was_interrupted_continues(point, folder):
    """An interruption at a frame or a question: the next run repeats no finished question; the results are equal."""
    from sw_model.huggingface.quality import Comparison

    policies = ["full", "resv"]
    expected = results_of(Comparison(settings(), "whole"), policies)
    calls = []

    def interrupt(what, done, total):
        calls.append(what)
        if len(calls) == point:
            raise KeyboardInterrupt

    comparison = Comparison(settings(), "out", progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        comparison.run(policies)
    finished = sum(len(comparison.results(policy)) for policy in policies)
    calls.clear()
    again = Comparison(settings(), "out", progress=lambda what, done, total: calls.append(what))
    assert results_of(again, policies) == expected
    assert sum(what.endswith("questions") for what in calls) == 6 - finished
    assert len(calls) <= 16 - point + 6
    assert not list((folder / "out").glob("*/session-*"))
    calls.clear()
    assert results_of(again, policies) == expected
    assert not calls


def test_command_prints_a_table_and_writes_a_plot(folder, capsys):
    config = json.loads((folder / "model/config.json").read_text())
    config["text_config"]["rope_parameters"] |= {"rope_type": "linear", "factor": 2.0}  # rekv needs `default`
    (folder / "model/config.json").write_text(json.dumps(config))
    arguments = [
        "quality",
        "model",
        "--video",
        "film.mp4",
        "--questions",
        "questions.txt",
        "--fps",
        "5",
        "--size",
        "16",
    ]
    arguments += ["--answer-tokens", "3", "--policy", "resv", "--policy", "rekv", "--out", "out"]
    assert vrex.main(arguments) == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()[2:5]] == ["full", "resv", "rekv"]
    assert "rekv: policy rekv undoes the rotary embedding: rope_type must be default, got 'linear'" in out
    assert "resv: questions: 3 of 3" in err
    assert (folder / "out/quality.svg").read_text().lstrip().startswith("<?xml")
    assert vrex.main([*arguments, "--json"]) == 0  # from the stored results
    table = json.loads(capsys.readouterr().out)
    assert [row["questions"] for row in table["table"]] == [3, 3, 0]
    assert len(table["results"]) == 6
    first = table["results"][0]
    assert all(f"word{token}" in first["answer"] for token in first["tokens"] if token > 4)
    assert first["answer"] != " ".join(map(str, first["tokens"]))
    assert table == json.loads((folder / "out/quality.json").read_text())


def test_plot_has_the_figures_of_the_table(torch, monkeypatch):
    from sw_model.huggingface.quality import Row, plot
    from util.report import charts

    calls, draw = [], charts.paired_bars
    monkeypatch.setattr(charts, "paired_bars", lambda *args, **options: calls.append(args) or draw(*args, **options))
    rows = [Row("full", 2, 1, 1, 0.0, None, None), Row("resv", 2, 0.5, 0.75, 0.0123, 0.25, 0.125)]
    assert plot([*rows, Row("rekv", 0, None, None, None, None, None, "a reason")]).startswith(b"<?xml")
    ((labels, series),) = calls
    assert labels == ["full\ndivergence 0.0000", "resv\ndivergence 0.0123"]
    assert series == {"token agreement": [100, 75], "attention recall": [None, 25], "retrieved": [None, 12.5]}


def test_random_weights_need_a_configuration_only(folder, capsys):
    from sw_model.huggingface.quality import Comparison

    for path in (folder / "model").iterdir():
        if path.name != "config.json":
            path.unlink()
    rows = Comparison(settings(random_weights=True, frames=4), "out").run(["hybrid"])
    assert [row.policy for row in rows] == ["full", "hybrid"]
    assert rows[1].questions == 3


def test_comparisons_that_cannot_run_are_refused(folder, capsys, make_model):
    def refused(*changes):
        arguments = {"--video": "film.mp4", "--questions": "questions.txt", "--out": "out", "--size": "16"}
        arguments |= dict(zip(changes[::2], changes[1::2], strict=True))
        model = arguments.pop("model", "model")
        pairs = [x for name, value in arguments.items() if value is not None for x in (name, value)]
        assert vrex.main(["quality", model, *pairs, "--policy", "full"]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vrex: ")]
        return line

    (folder / "empty.txt").write_text("# nothing\n")
    (folder / "time.txt").write_text("soon\twhat\n")
    (folder / "blank.txt").write_text("1\t \n")
    (folder / "bytes.txt").write_bytes(b"\xff\xfe")
    assert "--questions must be a file when MODEL answers questions" in refused("--questions", None)
    assert "--video must be a file when MODEL answers questions" in refused("--video", None)
    assert "questions none.txt: No such file" in refused("--questions", "none.txt")
    assert "questions empty.txt must hold at least one question, got none" in refused("--questions", "empty.txt")
    assert "questions time.txt, line 1: time must be a number of seconds, got 'soon'" in refused(
        "--questions", "time.txt"
    )
    assert "questions blank.txt, line 1: question must not be empty" in refused("--questions", "blank.txt")
    assert "questions bytes.txt: 'utf-8' codec" in refused("--questions", "bytes.txt")
    assert "video 'none.mp4': no such file" in refused("--video", "none.mp4")
    assert "model 'none' cannot be loaded" in refused("model", "none")
    assert "answer_tokens must be at least 1, got 0" in refused("--answer-tokens", "0")
    assert "size must be a multiple of 8 pixels for this model, got 13" in refused("--size", "13")
    assert not (folder / "out").exists()
    make_model().save_pretrained("text")
    assert "model 'text' must be of a family that takes video (qwen2_5_vl and relatives, inter" in refused(
        "model", "text"
    )
    (folder / "out").mkdir()
    (folder / "out/settings.json").write_text("{}")
    assert "output folder out must be new or have results of the same settings: model is None, got model" in refused()
