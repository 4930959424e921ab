"""Help of all commands, and a table of invalid command lines with their error messages."""

import argparse
import json
import re
import signal
import wave
from pathlib import Path

import pytest

import vrex
from sw_model.media import clip
from sw_model.media.generator import Generator, small
from sw_model.media.trace import write_trace
from synth.library.liberty import library_text

COMMANDS = vrex.parser()._subparsers._group_actions[0].choices
TINY = "--preset tiny --layers 1 --frames 6 --grid 2"

# what stands in the folder: film.mp4, t.safetensors; each half; text.mp4, empty, folder, sound.wav, policy.py, bare.lib
REFUSED = {
    # errors of argparse, which names the command
    "": "the following arguments are required: COMMAND",
    "nonsense": "argument COMMAND: invalid choice: 'nonsense'",
    "demo --layers many": "argument --layers: invalid int value: 'many'",
    "demo --simulator vcs": "argument --simulator: invalid choice: 'vcs'",
    "decode film.mp4 --size 3y4": "argument --size: must be WxH such as 320x240, got '3y4'",
    "capture m": "one of the arguments --video --prompt is required",
    "capture m --video film.mp4 --prompt x": "argument --prompt: not allowed with argument --video",
    "sweep": "the following arguments are required: file",
    "model --wings 2": "unrecognized arguments: --wings 2",
    "mutate hcu --mutants 0": "mutants must be 1 to 65535, got 0",
    # videos
    "demo --video none.mp4": "video 'none.mp4': no such file",
    "demo --video folder": "video 'folder': is a directory, not a video file",
    "demo --video text.mp4": "video 'text.mp4': not a whole video that FFmpeg can read",
    "demo --video empty": "video 'empty': not a whole video that FFmpeg can read (empty file)",
    "demo --video half.mp4": "video 'half.mp4': ",
    "demo --video sound.wav": "video 'sound.wav': holds no video stream",
    "decode none.mp4": "video 'none.mp4': no such file",
    "decode half.mp4": "video 'half.mp4': ",
    "decode film.mp4 --form gif": "form must be one of npy, png, raw, got 'gif'",
    "decode film.mp4 --out film.mp4": "form must be one of npy, png, raw, got 'mp4'",
    "decode film.mp4 --out folder": "output 'folder' exists already; name a folder that does not",
    "decode film.mp4 --workers 0": "workers must be at least 1, got 0",
    "decode film.mp4 --intervals 0": "intervals must be at least 1, got 0",
    "decode film.mp4 --fps -1": "fps must be a positive number or None, got -1.0",
    "decode film.mp4 --fps 1 --time 2": "fps and times_s exclude each other",
    "decode film.mp4 --time nan": "times_s must be a list of finite seconds, at least one, got [nan]",
    "decode film.mp4 --size 0x4": "size must be (width, height), both at least 1, got (0, 4)",
    # the demo
    f"demo --video film.mp4 {TINY} --layers 0": "layers",
    f"demo --video film.mp4 {TINY} --layers -1": "layers",
    f"demo --video film.mp4 {TINY} --grid 0": "grid",
    f"demo --video film.mp4 {TINY} --frames 0": "frames",
    f"demo --video film.mp4 {TINY} --frames -3": "frames",
    f"demo --video film.mp4 {TINY} --fps 0": "fps",
    f"demo --video film.mp4 {TINY} --fps -2.5": "fps",
    f"demo --video film.mp4 {TINY} --fps nan": "fps",
    f"demo --video film.mp4 {TINY} --stall 1": "stall",
    f"demo --video film.mp4 {TINY} --stall -0.1": "stall",
    f"demo --video film.mp4 {TINY} --seed -1": "seed",
    f"demo --video film.mp4 {TINY} --model-frames 0": "model_frames must be between 1 and 8, got 0",
    f"demo --video film.mp4 {TINY} --model-frames 9": "model_frames must be between 1 and 8, got 9",
    f"demo --video film.mp4 {TINY} --answer-tokens 0": "answer_tokens must be between 1 and 32, got 0",
    f"demo --video film.mp4 {TINY} --preset huge": "preset must be one of tiny, small, paper, got 'huge'",
    f"demo --video film.mp4 {TINY} --yosys vivado": "yosys build must be one of yowasp, pyosys, got 'vivado'",
    f"demo --video film.mp4 {TINY} --out empty/out": "empty",
    # units
    "generate gpu": "unit must be one of dot_tree, ",
    "synth gpu": "unit must be one of dot_tree, ",
    "verify gpu": "unit must be one of dot_tree, ",
    "signoff gpu": "unit must be one of dot_tree, ",
    "verify hcu --unknown": "--unknown must be with --simulator icarus and without --gates, got simulator verilator",
    "verify hcu --unknown --gates --simulator icarus": "--unknown must be with --simulator icarus and without --gates",
    "formal gpu": "unit must be one of dot_tree, ",
    "layout gpu": "unit must be one of dot_tree, ",
    "layout hcu --utilisation 2": "utilisation must be in [0.3, 0.95], got 2",
    "layout hcu --timeout-minutes 0": "timeout must be finite and at least 1, got 0.0",
    "layout hcu --module hcu.codes --power idle": "--power must be without --module, because",
    "board --unit gpu": "unit must be one of dot_tree, ",
    "board icestick": "board must be one of ulx3s, ulx3s-45f, ulx3s-12f, got 'icestick'",
    "board --unit core": "preset must be tiny for unit core, got 'small'",
    "board --beats 0": "beats must be at least 1, got 0",
    **{
        f"{command} hcu {arguments}": message
        for command in ("generate", "synth")
        for arguments, message in {
            "--preset huge": "preset must be one of tiny, small, paper, got 'huge'",
            "--set lanes=4": "parameter must be one of kv_heads, ",
            "--set hash_bits": "--set must be NAME=VALUE, got 'hash_bits'",
            "--set hash_bits=many": "--set hash_bits must be an integer, got 'many'",
            "--set hash_bits=0": "hash_bits must be at least 1, got 0",
            "--set hash_bits=-8": "hash_bits must be at least 1, got -8",
            "--preset tiny --clock-mhz 0": "clock",
            "--preset tiny --clock-mhz -5": "clock",
            "--preset tiny --yosys vivado": "yosys build must be one of yowasp, pyosys, got 'vivado'",
        }.items()
    },
    "generate hcu --preset tiny --out empty/out": "empty",
    "synth hcu --preset tiny --point best": "point must be one of area, balanced, fast, got 'best'",
    "synth hcu --preset tiny --clock-gating -1": "clock gating must be 0 or a number of registers, got -1",
    "synth hcu --preset tiny --liberty none.lib": "library none.lib: No such file",
    "synth hcu --preset tiny --liberty empty": "library empty: file must not be empty",
    "synth hcu --preset tiny --liberty bare.lib": "library predictive14: cell NAND2_X1 has no delay tables",
    "synth hcu --preset tiny --against none.json": "report none.json: No such file",
    "synth hcu --preset tiny --against t.safetensors": "report t.safetensors is not JSON",
    "synth hcu --preset tiny --against run.json": "run.json: not a report of vrex synth",
    "synth dma --preset tiny --power idle": "unit must be one of",
    "synth hcu --preset tiny --power none.mp4": "video 'none.mp4': no such file",
    # key streams
    "stats none.safetensors": "trace 'none.safetensors': no such file",
    "stats half.safetensors": "trace 'half.safetensors': truncated",
    "stats policy.py": "video 'policy.py': not a whole video",
    "stats film.mp4 --frames 0": "frames must be at least 1, got 0",
    "stats film.mp4 --layers 99999999999999999999": "layers must be between 1 and 65536",
    "stats film.mp4 --layers 0": "layers must be at least 1, got 0",
    "stats film.mp4 --grid 0": "grid must be at least 1, got 0",
    "stats t.safetensors --seed -1": "seed + layer must be at least 0, got -1",
    "stats t.safetensors --every 0": "every must be at least 1, got 0",
    "stats t.safetensors --wics-ratio 2": "wics_ratio must be finite and between 0 and 1, got 2.0",
    "stats t.safetensors --hash-bits 40": "hash_bits must be between 1 and 32, got 40",
    "stats t.safetensors --hamming-threshold -1": "hamming_threshold must be between 0 and 33, got -1",
    "quality t.safetensors --policy best": "policy must be one of full, ",
    "quality t.safetensors --policy policy.py": "policy file 'policy.py' must define one subclass of Policy, got 0",
    "quality t.safetensors --budget-frames 0": "frames must be at least 1, got 0",
    "quality m --video film.mp4": "--questions must be a file when MODEL answers questions about a video, got none",
    "quality m --questions policy.py": "--video must be a file when MODEL answers questions about a video, got none",
    "capture m --prompt x --block 0": "block must be at least 1, got 0",
    "capture m --prompt x --answer-tokens -1": "answer_tokens must be at least 0, got -1",
    "capture m --video film.mp4 --frames 0": "max_frames must be at least 1, got 0",
    # the system model
    "model --system tpu": "system must be one of a100, ",
    "model --system none.toml": "system file none.toml: No such file",
    "model --system sweep.toml": "sweep.toml: key must be one of assume, core, ",
    "model --set link.nominal_gbps=0": "system: link.nominal_gbps must be positive, got 0",
    "model --set link.none=1": "key of link in system V-Rex8 must be one of nominal_gbps, ",
    "model --set gpu.none=1": "table of system V-Rex8 must be one of core, device_memory, link, power, got 'gpu'",
    "model --set tokens": "--set must be assume.NAME=VALUE, serve.NAME=VALUE or TABLE.NAME=VALUE, got 'tokens'",
    "model --set assume.none=1": "assume.NAME must be one of chunks, ",
    "model --policy best": "policy must be one of full, ",
    "model --policy none.py": "policy file must exist, got 'none.py'",
    "model --workload film": "workload must be one of capacity, coin, frame, serve, stream, text, got 'film'",
    "model --workload serve": "workload of one run must be one of frame, text, coin, stream, got 'serve'",
    "model --tokens 0": "tokens must be at least 1, got 0",
    "model --batch 0": "batch must be at least 1, got 0",
    "model --link fast": "link must be one of paper, realistic, got 'fast'",
    "model --retrieval-ratio 2": "retrieval_ratio must be finite and between 0 and 1, got 2.0",
    "model --retrieval-ratio nan": "retrieval_ratio must be finite and between 0 and 1, got nan",
    "model --source none.mp4": "video 'none.mp4': no such file",
    "model --source generator --workload coin": "workload must be frame, text or stream with --source, got 'coin'",
    "model --source t.safetensors --workload text": "--source must have a text step after the first chunk",
    "model --power none.json": "power report none.json: No such file",
    "model --power run.json": "power report run.json is not what `vrex synth --power --json` prints",
    "model --rtl huge": "preset must be one of tiny, small, got 'huge'",
    "model --out folder": "folder: Is a directory",
    # many streams
    "serve-sim --streams two": "argument --streams: invalid int value: 'two'",
    "serve-sim --streams 0": "serve.streams must be between 1 and 100000, got 0",
    "serve-sim --devices 0": "serve.devices must be between 1 and 1024, got 0",
    "serve-sim --system tpu": "system must be one of a100, ",
    "serve-sim --policy best": "policy must be one of full, ",
    "serve-sim --tokens 0": "tokens must be at least 1, got 0",
    "serve-sim --tokens 9000000": "context at the end of the run in tokens must be between 0 and 4096000, got 9",
    "serve-sim --batch 65": "batch must be between 1 and 64, got 65",
    "serve-sim --fps 0": "serve.fps must be finite and between 0.001 and 1000000.0, got 0.0",
    "serve-sim --fps nan": "serve.fps must be finite and between 0.001 and 1000000.0, got nan",
    "serve-sim --jitter 2": "serve.jitter must be finite and between 0 and 1, got 2.0",
    "serve-sim --arrivals bursts": "serve.arrivals must be one of periodic, poisson, got 'bursts'",
    "serve-sim --priority none": "serve.priority must be one of answers, frames, oldest, got 'none'",
    "serve-sim --capacity -1": "serve.limit_ms must be finite and between 0.001 and 1000000.0, got -1.0",
    "serve-sim --set serve.none=1": "serve.NAME must be one of answer_tokens, ",
    "serve-sim --trace none.csv": "trace 'none.csv' must be a CSV file, got No such file or directory",
    "serve-sim --trace policy.py": "trace 'policy.py': columns must be time_s,stream,kind,answer_tokens, got ",
    "serve-sim --trace folder": "trace 'folder' must be a CSV file, got Is a directory",
    "serve-sim --check -1": "check must be at least 0, got -1",
    "serve-sim --out table.txt": "out must end in .csv or .parquet, got 'table.txt'",
    "model --out /dev/full/x": "/dev/full/x: ",
    "model --trace empty/x": "empty/x: ",
    "explain none.json": "run file none.json: No such file",
    "explain empty": "run file empty is not JSON",
    "explain table.json --row 2": "row must be between 0 and 1 in table.json, got 2",
    "compare --policies best": "policy must be one of full, ",
    "compare --contexts 0": "tokens must be at least 1, got 0",
    "compare --source none.mp4": "video 'none.mp4': no such file",
    "reproduce vrex.fig99": "figure must be an identifier such as vrex.fig13, mosaic.vram or qv, got 'vrex.fig99'",
    "reproduce vrex.fig13.fps --link fast": "link must be one of paper, realistic, got 'fast'",
    "sweep none.toml": "sweep file none.toml: No such file",
    "sweep policy.py": "policy.py: key must be one of name, fixed, grid, got 'x'",
    "sweep sweep.toml --out x.xls": "out must end in .csv or .parquet, got 'x.xls'",
    "sweep sweep.toml --workers 0": "workers must be at least 1, got 0",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Valid and invalid input files; refused commands must not change them."""
    folder = tmp_path_factory.mktemp("refused")
    clip.encode(clip.synthesise(24, width=96, height=64, scene_frames=10), folder / "film.mp4", gop=8)
    config = small(3)
    write_trace(folder / "t.safetensors", config.geometry, Generator(config).chunks(4, text_interval=None), {})
    for name in ("film.mp4", "t.safetensors"):
        content = (folder / name).read_bytes()
        (folder / f"half.{name.split('.')[1]}").write_bytes(content[: len(content) // 2])
    with wave.open(str(folder / "sound.wav"), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes(bytes(1600))
    texts = {
        "text.mp4": "not a film\n" * 100,
        "empty": "",
        "policy.py": "x = 1",
        "bare.lib": re.sub(r"timing \(\) \{", "nothing () {", library_text()),
        "run.json": json.dumps({"request": {"tokens": 1000}}),
        "table.json": json.dumps([{"tokens": 1000}, {"tokens": 2000}]),
        "sweep.toml": 'name = "x"\n[grid]\ntokens = [1000]\n',
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
    (folder / "folder").mkdir()
    return folder


def snapshot(folder: Path) -> dict[str, int]:
    """All files of a folder with their modification times."""
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("line", REFUSED)
def test_invalid_command_line_is_refused(line, folder, tmp_path, monkeypatch, capsys):
    """One error line on stderr, exit status 2, no output and no files."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("VREX_BUILD", str(tmp_path))
    before, handler = snapshot(folder), signal.getsignal(signal.SIGTERM)
    try:
        status = vrex.main(line.split())
    except SystemExit as stop:  # argparse
        status = stop.code
    finally:
        signal.signal(signal.SIGTERM, handler)  # which `main` took over
    out, err = capsys.readouterr()
    lines = [text for text in err.splitlines() if re.match(r"vrex( [\w-]+)?: ", text)]
    assert (status, out, len(lines)) == (2, "", 1), err
    assert REFUSED[line] in lines[0] and "Traceback" not in err, err
    assert snapshot(folder) == before


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_describes_all_options(command, capsys):
    """Every command, argument and option has a help text."""
    with pytest.raises(SystemExit) as stop:
        vrex.main([*filter(None, [command, "--help"])])
    out, err = capsys.readouterr()
    assert stop.value.code == 0 and err == ""
    assert out.startswith("usage: vrex")
    help_text = "".join(out.split())  # lines break at hyphens, too
    parser = COMMANDS[command] if command else vrex.parser()
    assert not command or "".join(parser.description.split()) in help_text
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{command}: {action.dest} has no help"
            words = "".join((action.help % vars(action)).split())
            assert words in help_text and all(option in help_text for option in action.option_strings)
    for name in () if command else COMMANDS:
        assert name in help_text
