"""`vrex run`: tiny random models on a short video; answers, sessions, backends, and refused input in one line."""

import json
import shutil
import signal
from pathlib import Path

import av
import numpy as np
import pytest
from ml_dtypes import bfloat16
from tokenizers import Tokenizer, models, pre_tokenizers, processors

import vrex
from compiler.checkpoint import Checkpoint
from compiler.policies import (
    FullPolicy,
    InfiniGenPPolicy,
    MosaicPolicy,
    OakenPolicy,
    RekvPolicy,
    ResvPolicy,
    WindowPolicy,
)
from compiler.runtime import Limits, compile_model
from hw.config import Config
from sim.bench.model_run import ModelMismatch, ModelRun
from sw_model.media import clip
from sw_model.media.video import decode, sample
from tests.compiler import checkpoints

WORDS = ["<s>", "<unk>", *(f"w{n}" for n in range(2, 48))]
BEGIN = 0
TINY = ("--preset", "tiny", "--tokens", 64)
ASK = ("--ask", "w3 w4 w5", "--answer-tokens", 4)
FILM = ("--video", "film.mp4", "--frames", 2)


def write_tokenizer(folder: Path) -> None:
    """A tokenizer of words between spaces, which begins every text with <s>."""
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", BEGIN)])
    tokenizer.add_special_tokens(["<s>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def write_empty_video(path: Path) -> None:
    """A video with a stream and no frame."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        container.start_encoding()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """A folder with models and videos, good and bad."""
    folder, rng = tmp_path_factory.mktemp("models"), np.random.default_rng(5)
    for name, family in (("llava", "llava"), ("other", "llava"), ("llama", "llama"), ("qwen", "qwen2.5-vl")):
        checkpoints.write_random(folder / name, family, rng, shards=2 if name == "llava" else 1)
        write_tokenizer(folder / name)
    clip.encode(clip.synthesise(24, width=64, height=48, scene_frames=6), folder / "film.mp4", gop=8)
    write_empty_video(folder / "empty.avi")
    (folder / "text.mp4").write_text("not a film\n" * 100)
    return folder


@pytest.fixture
def run(capsys, tmp_path, inputs, monkeypatch):
    """Runs `vrex run` in a copy of the folder; returns status, stdout and stderr."""
    shutil.copytree(inputs, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)  # `main` installs a handler

    def run_command(*arguments):
        status = vrex.main(["run", *(str(argument) for argument in arguments)])
        return status, *capsys.readouterr()

    yield run_command
    signal.signal(signal.SIGTERM, before)


def result(output):
    status, out, err = output
    assert status == 0, err
    return json.loads(out)


def test_answer_is_that_of_the_runtime(run):
    """The command samples the video, begins with <s>, and asks the question without another <s>."""
    made = result(run("llava", *FILM, *ASK, *TINY, "--json"))
    machine = compile_model(Checkpoint("llava"), Config.preset("tiny"), Limits(tokens=64), ResvPolicy(0.3, 7))
    session = machine.session()
    session.prompt([BEGIN])
    for frame in list(sample(decode("film.mp4"), 1))[:2]:
        session.frame(frame.rgb())
    answer = list(session.ask([3, 4, 5], count=4))
    assert made["tokens"] == answer and made["answer"] == " ".join(WORDS[n] for n in answer if n != BEGIN)
    assert made["position"] == session.position == 1 + 2 * 9 + 3 + len(answer) - 1
    kinds = [step["kind"] for step in made["steps"]]
    assert kinds == ["prompt", "frame", "frame", "question", *["answer"] * (len(answer) - 1)]
    assert [step["commands"] for step in made["steps"]] == [step.commands for step in session.steps]
    assert {step["cycles"] for step in made["steps"]} == {None}


def test_several_videos_are_streams_of_one_machine(run):
    """Steps of two frames, until the shorter video ends; the answers are those of two runs."""
    clip.encode(clip.synthesise(40, width=64, height=48, scene_frames=5, seed=2), "long.mp4", gop=8)
    sizes = ("--preset", "tiny", "--tokens", 72, "--pooled", 2)  # a frame has four tokens
    options = (*ASK, *sizes, "--json")
    alone = [result(run("llava", "--video", name, *options)) for name in ("film.mp4", "long.mp4")]
    made = result(run("llava", "--video", "film.mp4", "--video", "long.mp4", *options, "--backend", "cycles"))
    assert [stream["video"] for stream in made["streams"]] == ["film.mp4", "long.mp4"]
    assert [stream["tokens"] for stream in made["streams"]] == [each["tokens"] for each in alone]
    assert [stream["answer"] for stream in made["streams"]] == [each["answer"] for each in alone]
    assert made["position"] == sum(each["position"] for each in alone)
    frames = [[step["tokens"] for step in each["steps"] if step["kind"] == "frame"] for each in alone]
    together = [step["tokens"] for step in made["steps"] if step["kind"] == "frames"]
    assert len(frames[0]) < len(frames[1]) and together == [8] * len(frames[0]) + frames[1][len(frames[0]) :]
    assert all(step["cycles"] > 0 for step in made["steps"])
    status, out, err = run("llava", "--video", "film.mp4", "--video", "long.mp4", *ASK, *sizes)
    assert status == 0, err
    assert (
        out.startswith(f"film.mp4: {alone[0]['answer']}\nlong.mp4: {alone[1]['answer']}\n") and "in 2 sessions" in out
    )
    refused = (("--session", "s.vrex"), "video must be one with --session, got 2"), (
        ("--policy", "rekv"), "video must be one for policy rekv, got 2",
    )  # fmt: skip
    for options, message in refused:
        status, _, err = run("llava", *FILM, "--video", "long.mp4", *sizes, *options)
        assert status == 2 and message in err


def test_text(run):
    """The table has one line for each kind of step; the answer comes first."""
    made = result(run("llava", *FILM, *ASK, *TINY, "--json"))
    status, out, err = run("llava", *FILM, *ASK, *TINY)
    lines = out.splitlines()
    assert status == 0 and lines[0] == made["answer"] and "weights: 0 of " in err and "frames: 0 of 2" in err
    assert [line.split()[0] for line in lines[-5:-1]] == ["prompt", "frame", "question", "answer"]
    assert lines[-1] == f"{made['position']} tokens in the session"
    assert "predicted" not in out and "RTL" not in out
    out = run("llama", "--prompt", "w7 w8", *TINY)[1]
    assert "prompt" in out and out.endswith("3 tokens in the session\n")  # <s> w7 w8


def test_predicted_time(run):
    made = result(run("llava", *FILM, *ASK, *TINY, "--backend", "cycles", "--json"))
    for step in made["steps"]:
        assert step["cycles"] > step["commands"] and step["ms"] == pytest.approx(step["cycles"] / 800e3)  # at 800 MHz
    two = result(run("llava", *FILM, *TINY, "--backend", "cycles", "--cores", 2, "--json"))["steps"]
    assert two[-1]["cycles"] < 1.1 * made["steps"][2]["cycles"]  # at this size commands and barriers take the time
    out = run("llava", *FILM, *TINY, "--backend", "cycles", "--system", "vrex48")[1]
    assert "predicted, ms" in out and "predicted, cycles" in out


def test_session_is_saved_and_resumed(run, tmp_path):
    """Two runs of one frame each, then the question: the same tokens as in one run."""
    whole = result(run("llava", *FILM, *ASK, *TINY, "--json"))
    film = clip.encode(list(clip.synthesise(24, width=64, height=48, scene_frames=6))[10:], tmp_path / "rest.mp4")
    frames = [next(decode(path)).rgb() for path in ("film.mp4", film)]
    first = result(run("llava", "--video", "film.mp4", "--frames", 1, *TINY, "--session", "s", "--json"))
    assert first["position"] == 10
    second = result(run("llava", "--video", film, "--frames", 1, *ASK, *TINY, "--session", "s", "--json"))
    session = compile_model(Checkpoint("llava"), Config.preset("tiny"), Limits(tokens=64), ResvPolicy(0.3, 7)).session()
    session.prompt([BEGIN])
    for picture in frames:
        session.frame(picture)
    assert second["tokens"] == list(session.ask([3, 4, 5], count=4))
    assert second["position"] == session.position == whole["position"]
    third = result(run("llava", "--prompt", "w9", *TINY, "--session", "s", "--json"))
    assert third["position"] == session.position + 1  # no second <s>


def test_pooled_frames(run):
    """Four tokens of a frame instead of nine."""
    made = result(run("llava", *FILM, *ASK, *TINY, "--pooled", 2, "--json"))
    limits = Limits(tokens=64, pooled=2)
    session = compile_model(Checkpoint("llava"), Config.preset("tiny"), limits, ResvPolicy(0.3, 7)).session()
    session.prompt([BEGIN])
    for frame in list(sample(decode("film.mp4"), 1))[:2]:
        session.frame(frame.rgb())
    assert made["tokens"] == list(session.ask([3, 4, 5], count=4))
    assert [step["tokens"] for step in made["steps"]][:4] == [1, 4, 4, 3]


def test_selection_for_the_next_layer(run):
    """The commands of a step and the answer are those of the runtime with the same setting."""
    made = result(run("llava", *FILM, *ASK, *TINY, "--prefetch", "next_layer", "--json"))
    retrieval = ResvPolicy(0.3, 7, prefetch="next_layer")
    session = compile_model(Checkpoint("llava"), Config.preset("tiny"), Limits(tokens=64), retrieval).session()
    session.prompt([BEGIN])
    for frame in list(sample(decode("film.mp4"), 1))[:2]:
        session.frame(frame.rgb())
    assert made["tokens"] == list(session.ask([3, 4, 5], count=4))
    assert [step["commands"] for step in made["steps"]] == [step.commands for step in session.steps]


@pytest.mark.parametrize(
    "policy, options",
    [
        (FullPolicy(), ()),
        (OakenPolicy(), ()),
        (WindowPolicy(sink=4, recent=8), ("sink=4", "recent=8")),
        (RekvPolicy(frames=1, prefetch="next_layer"), ("frames=1", "prefetch=next_layer")),
        (InfiniGenPPolicy(budget=4, column_share=0.5), ("budget=4", "column_share=0.5")),
    ],
    ids=["full", "oaken", "window", "rekv", "infinigenp"],
)
def test_policies(policy, options, run):
    """A real video through the tower: the answer, the commands and the moved bytes of the runtime."""
    arguments = [part for option in options for part in ("--option", option)]
    made = result(run("llava", *FILM, *ASK, *TINY, "--policy", policy.name, *arguments, "--json"))
    config = policy.core(Config.preset("tiny"))
    session = compile_model(Checkpoint("llava"), config, Limits(tokens=64), policy).session()
    session.prompt([BEGIN])
    for frame in list(sample(decode("film.mp4"), 1))[:2]:
        session.frame(frame.rgb())
    assert made["tokens"] == list(session.ask([3, 4, 5], count=4))
    for name, values in (
        ("commands", [step.commands for step in session.steps]),
        ("fetched_bytes", [sum(step.retrieved.fetched) for step in session.steps]),
        ("offloaded_bytes", [sum(step.retrieved.offloaded) for step in session.steps]),
        ("released_pages", [sum(step.retrieved.released) for step in session.steps]),
        ("input_bytes", [step.input_bytes for step in session.steps]),
        ("output_bytes", [step.output_bytes for step in session.steps]),
    ):
        assert [step[name] for step in made["steps"]] == values, name
    assert [step["round_trips"] for step in made["steps"]][:4] == [1, 2, 2, 1]  # a picture is a program of its own
    frame = session.steps[1]
    angles, pixels, codes = 9 * 2 * 4 * 4, 9 * 48 * 2, 16 * 2 * (policy.name == "rekv")
    assert frame.input_bytes == frame.commands * 64 + angles + pixels + codes
    answered = session.steps[-1].output_bytes  # logits and choice
    assert frame.output_bytes == 0 and answered == 4 * session.machine.spec.text.vocabulary + 4


def test_decisions_of_the_host(run):
    """Mosaic: the programs that store tokens, the bytes that the host reads and writes, and predicted cycles."""
    small = ("--pooled", 2, "--step", 4, "--option", "budget=8", "--set", "page_frames=128")
    made = result(run("llava", *FILM, *ASK, *TINY, *small, "--policy", "mosaic", "--backend", "cycles", "--json"))
    config = Config.preset("tiny").replace(page_frames=128)
    limits = Limits(tokens=64, step=4, pooled=2)
    session = compile_model(Checkpoint("llava"), config, limits, MosaicPolicy(budget=8)).session()
    session.prompt([BEGIN])
    for frame in list(sample(decode("film.mp4"), 1))[:2]:
        session.frame(frame.rgb())
    assert made["tokens"] == list(session.ask([3, 4, 5], count=4))
    for name in ("input_bytes", "output_bytes", "round_trips"):
        assert [step[name] for step in made["steps"]] == [getattr(step, name) for step in session.steps], name
    assert [step["round_trips"] for step in made["steps"]][:4] == [2, 3, 3, 2]
    assert min(step["output_bytes"] for step in made["steps"]) > 0
    assert min(step["cycles"] / step["commands"] for step in made["steps"]) > 1


PICTURE = ("--height", 16, "--width", 24)  # 2 x 3 tokens of Qwen2.5-VL
PAIRS = ("--video", "film.mp4", "--fps", 5, "--frames", 3)  # a frame of Qwen2.5-VL is two pictures, 0.4 s


def test_video_of_qwen_in_one_run_and_resumed(run):
    """Two steps: pictures 1 and 2 at 0 s, and picture 3, which is repeated, at 0.4 s. Then the question, also in a
    second run that resumes the first one."""
    whole = result(run("qwen", *PAIRS, *ASK, *TINY, *PICTURE, "--json"))
    limits = Limits(tokens=64, height=16, width=24)
    session = compile_model(Checkpoint("qwen"), Config.preset("tiny"), limits, ResvPolicy(0.3, 7)).session()
    session.prompt([BEGIN])
    pictures = [frame.rgb() for frame in sample(decode("film.mp4"), 5)][:3]
    session.frame(*pictures[:2], seconds=0.0)
    session.frame(pictures[2], seconds=0.4)
    answer = list(session.ask([3, 4, 5], count=4))
    assert whole["tokens"] == answer and whole["position"] == session.position == 1 + 2 * 6 + 3 + len(answer) - 1
    assert [step["kind"] for step in whole["steps"]][:4] == ["prompt", "frame", "frame", "question"]
    assert [step["commands"] for step in whole["steps"]] == [step.commands for step in session.steps]
    status, _, err = run("qwen", *PAIRS, *TINY, *PICTURE, "--session", "s")
    assert status == 0 and "frames: 0 of 2" in err
    second = result(run("qwen", *ASK, *TINY, *PICTURE, "--session", "s", "--json"))
    assert (second["tokens"], second["position"]) == (answer, whole["position"])


RTL = ("--backend", "rtl", "--step", 4, "--resident", 6, *TINY)


def test_rtl_of_a_resumed_session(run):
    """The core simulates the steps after the resumed ones; its bits and its cycles are reported."""
    assert run("llama", "--prompt", "w7 w8 w9", *TINY, "--step", 4, "--resident", 6, "--session", "s")[0] == 0
    status, out, err = run("llama", "--ask", "w3", "--answer-tokens", 1, *RTL, "--session", "s")
    assert status == 0, err
    assert "RTL, cycles" in out and out.endswith(
        "5 tokens in the session\nall bits of the RTL are equal to those of the golden machine\n"
    )
    predicted, simulated = (int(cell.replace(",", "")) for cell in out.splitlines()[-3].split()[-3:-1])
    assert abs(simulated / predicted - 1) < 0.1


def test_rtl_that_differs(run, tmp_path, monkeypatch):
    """Status 1, one line, and no session file."""

    def check(self, **options):
        raise ModelMismatch("element 3 of the logits of program 0 must be 0x1, got 0x2")

    monkeypatch.setattr(ModelRun, "check", check)
    status, _, err = run("llama", "--ask", "w3", *RTL, "--session", "s")
    assert status == 1 and not (tmp_path / "s").exists()
    assert err.endswith(
        "vrex: the RTL differs from the golden machine: element 3 of the logits of program 0 must be 0x1, got 0x2\n"
    )


REFUSED = {
    "llama --ask w3 --cores 0": "cores must be between 1 and 64, got 0",
    "none --ask w3": "checkpoint 'none': config.json is missing",
    "llava": "--video, --prompt or --ask is missing",
    "llava --ask w3 --answer-tokens 0": "answer_tokens must be at least 1, got 0",
    "llava --video film.mp4 --frames 0": "frames must be at least 1, got 0",
    "llava --video film.mp4 --frames -2": "frames must be at least 1, got -2",
    "llava --video film.mp4 --fps 0": "fps must be a positive number or None, got 0.0",
    "llava --video none.mp4": "video 'none.mp4': no such file",
    "llava --video text.mp4": "video 'text.mp4': not a whole video that FFmpeg can read",
    "llava --video empty.avi": "video 'empty.avi': ",
    "llama --video film.mp4": "model must have a vision tower to watch a video, got one of family llama",
    "llava --ask w3 --policy none": "policy must be one of resv, full, window, hybrid, rekv, "
    "quickprefill, codecsight, mosaic, infinigen, infinigenp, oaken or a .py file, got 'none'",
    "llava --ask w3 --policy mosaic --set kv_bits=4": "kv_bits must be 16 for policy mosaic, which moves tokens, got 4",
    "llava --ask w3 --set kv_bits=5": "kv_bits must be 4, 8 or 16, got 5",
    "llava --ask w3 --policy full --ratio 0.3": "option of policy full must be one of prefetch, got 'ratio'",
    "llava --ask w3 --policy window --option sink": "--option must be NAME=VALUE, got 'sink'",
    "llava --ask w3 --policy window --option sink=6": "sink must be a multiple of page_tokens = 4, got 6",
    "llava --video film.mp4 --policy window --resident 6": "resident must be 0 for policy window, got 6",
    "llava --ask w3 --ratio 0": "ratio must be above 0 and at most 1, got 0.0",
    "llava --ask w3 --ratio 1.5": "ratio must be above 0 and at most 1, got 1.5",
    "llava --ask w3 --ratio nan": "ratio must be finite, got nan",
    "llava --ask w3 --hamming-threshold -1": "hamming_threshold must be at least 0, got -1",
    "llava --ask w3 --memory 3": "memory must hold the model and its contexts, got 3 bytes",
    "llava --ask w3 --memory 40000": "memory must hold the model and its contexts, got 40000 bytes",
    "llava --ask w3 --memory -1": "memory must be at least 0, got -1",
    "llava --ask w3 --tokens 513": "tokens must be at most 512 positions of the model, got 513",
    "llava --ask w3 --resident -1": "resident must be at least 0, got -1",
    "llava --ask w3 --backend cycles --system a100": "system must be of kind vrex, got 'A100'",
    "llava --ask w3 --preset huge": "preset must be one of tiny, small, paper, got 'huge'",
    "llava --video film.mp4 --tokens 18": "tokens of a session must be at most 18, got 19",
    "llama --prompt w3,w3,w3,w3 --tokens 4": "tokens of a session must be at most 4, got 5",
    "llama --ask w3 --answer-tokens 4 --tokens 4": "tokens must be at least 5 for the question and its answer, got 4",
    "llama --ask w3 --height 8": "height must be 0 for a model without a vision tower, got 8",
    "llava --video film.mp4 --width 16": "width must be the image_size 12 of the tower, got 16",
    "llava --video film.mp4 --pooled 4": "pooled must be at most 3, the rows of patches of a picture, got 4",
    "llava --video film.mp4 --pooled -1": "pooled must be at least 0, got -1",
    "llama --ask w3 --pooled 2": "pooled must be 0 for a model without a vision tower, got 2",
    "qwen --video film.mp4 --pooled 2": "pooled must be 0 for a tower of kind qwen2.5-vl, got 2",
    "qwen --video film.mp4": "tokens of a frame must be less than page_frames = 16 of the core, got 64",
    "qwen --video film.mp4 --height 12": "height must be a multiple of the 8 pixels of a token, got 12",
    "qwen --video film.mp4 --height -8": "height must be at least 0, got -8",
    "qwen --video film.mp4 --height 16 --width 24 --step 5": "step must be at least the 6 tokens of a frame, got 5",
    "llama --ask w3 --step 16": "step must be less than page_frames = 16 of the core, got 16",
    "llama --ask w3 --resident 16": "resident must be 1 to 8, which is page_frames = 16 of the core without",
    "llama --ask w3 --session none/s": "session must be in a folder that exists, got 'none/s'",
    "llama --ask w3 --session llava": "llava: ",
}  # a comma in a text is a space


def test_cores_give_the_same_answer(run):
    """Three cores, two of which share the KV heads."""
    lines = [result(run("llava", *FILM, *ASK, *TINY, "--cores", cores, "--json")) for cores in (1, 3)]
    assert lines[0]["tokens"] == lines[1]["tokens"]
    assert [step["fetched_bytes"] for step in lines[0]["steps"]] == [
        step["fetched_bytes"] for step in lines[1]["steps"]
    ]
    assert lines[0]["steps"][0]["commands"] < lines[1]["steps"][0]["commands"]  # of all programs


@pytest.mark.parametrize("line", REFUSED)
def test_refused(run, tmp_path, line):
    refused(run, tmp_path, line, REFUSED[line])


def refused(run, tmp_path, line, message):
    """The command ends with status 2, one line that is no progress, and writes nothing."""
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    options = [] if "--preset" in line else ["--preset", "tiny"]
    options += [] if "--tokens" in line else ["--tokens", "64"]
    options += [] if "--session" in line else ["--session", "new"]
    status, out, err = run(*(word.replace(",", " ") for word in line.split()), *options)
    errors = [text for text in err.splitlines() if not text.startswith(("weights", "frames"))]
    assert status == 2 and out == "" and len(errors) == 1, (out, err)
    assert errors[0].startswith(f"vrex: {message}"), err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def edit(path, change):
    config = json.loads(path.read_text())
    change(config)
    path.write_text(json.dumps(config))


def integers(folder):
    """The weights of a model, one of them as integers."""
    rng = np.random.default_rng(1)
    tensors = checkpoints.random_tensors(checkpoints.shapes_of(checkpoints.config_of("llama")), rng, bfloat16)
    checkpoints.write(folder, checkpoints.config_of("llama"), tensors | {"model.norm.weight": np.zeros(32, np.int32)})


DAMAGED = {  # what happens to a model, and the message
    "no tokenizer": (
        "llava", lambda at: (at / "tokenizer.json").unlink(), "checkpoint 'llava': tokenizer.json is missing",
    ),
    "damaged tokenizer": ("llava", lambda at: cut(at / "tokenizer.json"), "llava/tokenizer.json: "),
    "no shard": (
        "llava", lambda at: (at / "model-00002-of-00002.safetensors").unlink(),
        "checkpoint 'llava': model-00002-of-00002.safetensors is missing",
    ),
    "truncated shard": (
        "llava", lambda at: cut(at / "model-00001-of-00002.safetensors"),
        "checkpoint 'llava': model-00001-of-00002.safetensors is truncated or no safetensors file",
    ),
    "dtype": (
        "llama", integers, "checkpoint 'llama': model.norm.weight must be one of BF16, F16, F32, got I32",
    ),
    "architecture": (
        "llama", lambda at: edit(at / "config.json", lambda c: c.update(architectures=["MambaForCausalLM"])),
        "checkpoint 'llama': ",
    ),
    "contradiction": (
        "llama", lambda at: edit(at / "config.json", lambda c: c.update(intermediate_size=40)),
        "checkpoint 'llama': model.layers.0.mlp.",
    ),
    "pictures": (
        "llava", lambda at: (at / "preprocessor_config.json").write_text('{"image_mean": [0.5]}'),
        "llava/preprocessor_config.json: mean must have 3 colours, got 1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_model(run, tmp_path, damage):
    model, function, message = DAMAGED[damage]
    function(tmp_path / model)
    refused(run, tmp_path, f"{model} --ask w3", message)


def test_unusable_session(run, tmp_path):
    """A damaged file, a file of another model with the same sizes, one of other sizes, and one that is too long."""
    assert result(run("llava", "--prompt", "w3 w4", *TINY, "--session", "s", "--json"))["position"] == 3
    data = bytearray((tmp_path / "s").read_bytes())
    model, other = (Checkpoint(name).fingerprint() for name in ("llava", "other"))
    assert model != other
    (tmp_path / "half").write_bytes(data[: len(data) // 2])
    (tmp_path / "noise").write_bytes(bytes(200))
    data[-5] ^= 4
    (tmp_path / "flipped").write_bytes(data)
    for line, message in {
        "llava --session half": "half: bytes must be ",
        "llava --session noise": "noise: magic must be ",
        "llava --session flipped": "flipped: SHA-256 of the section ",
        "other --session s": f"s: model must be {other:#010x}, got {model:#010x}",
        "llava --session s --preset small": "s: head_dim must be ",
        "llava --session s --tokens 2": "tokens",
    }.items():
        refused(run, tmp_path, f"{line} --ask w5 --answer-tokens 1", message)
