"""Commands that are killed at a random moment, and full or read-only disks.

Complete results stay complete, no half-written file appears under a result's name, and the next run succeeds.
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import vrex
from hw.config import Config
from hw.registry import unit
from sim.bench.build import build
from sw_model.media import clip

ROOT = Path(__file__).resolve().parent.parent
TINY = "--preset tiny --layers 1 --frames 6 --grid 2 --model-frames 1 --answer-tokens 1"
SWEEP = 'name = "x"\n[fixed]\nworkload = "text"\n[grid]\ntokens = [1000, 2000, 3000]\nsystem = ["vrex8", "agx-orin"]\n'


@dataclass(frozen=True)
class Command:
    """A command line that writes `out...`, and how often the slow test kills it."""

    line: str
    kills: int = 6


COMMANDS = {
    "generate": Command("generate hcu operand_memory --preset tiny --out out"),
    "synth": Command("synth operand_memory --preset tiny --point area --out out"),
    "demo": Command(f"demo --video film.mp4 {TINY} --out out", kills=3),
    "decode": Command("decode film.mp4 --size 640x480 --workers 2 --out out.npy"),
    "decode to pictures": Command("decode film.mp4 --size 640x480 --workers 2 --out out"),
    "sweep": Command("sweep sweep.toml --workers 2 --out out.csv"),
    "model": Command("model --out out.json --trace out.trace.json --report out.html"),
    "core": Command("model --rtl tiny --frames 1 --out out.json", kills=3),
    "compare": Command("compare --policies resv full --contexts 1000 40000 --report out.html"),
    "reproduce": Command("reproduce vrex.fig13 --report out.html"),
    "formal": Command("formal hcu --quick", kills=3),
    "board": Command("board --preset tiny --beats 20 --out out", kills=2),
    "verify": Command("verify operand_memory", kills=2),
}


def start(line: str, folder: Path) -> subprocess.Popen:
    """Start the command in `folder` in a new process group."""
    command = [sys.executable, str(ROOT / "vrex.py"), *line.split()]
    where = os.environ | {"VREX_BUILD": str(folder / "build"), "PYTHONPATH": str(ROOT)}
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=where, start_new_session=True, **quiet)


def finished(line: str, folder: Path) -> float:
    """Run the command, require exit status 0, and return the elapsed seconds."""
    begin = time.monotonic()
    _, err = (process := start(line, folder)).communicate(timeout=1200)
    assert process.returncode == 0, err
    return time.monotonic() - begin


def results(folder: Path) -> list[Path]:
    """Files under the result names of the commands."""
    paths = [path for path in folder.glob("out*") for path in (path.rglob("*") if path.is_dir() else [path])]
    return sorted(path for path in paths if path.is_file() and not path.name.startswith("."))


def check_complete(path: Path) -> None:
    """Require that a result can be read to its end."""
    content = path.read_bytes()
    assert content, path
    if path.suffix == ".json":
        json.loads(content)
    elif path.suffix == ".html":
        assert content.rstrip().endswith(b"</html>"), path
    elif path.suffix == ".npy":
        assert np.load(path).shape == (60, 480, 640, 3)
    elif path.suffix == ".csv":
        assert content.count(b"\n") == 7
    elif path.suffix == ".v":
        assert content.rstrip().endswith(b"endmodule"), path
    elif path.suffix == ".png":
        assert content.endswith(b"IEND\xaeB`\x82"), path


@pytest.fixture
def folder(tmp_path):
    clip.encode(clip.synthesise(60, width=96, height=64, scene_frames=20), tmp_path / "film.mp4", gop=10)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    return tmp_path


def remove_results(folder: Path, *, caches: bool) -> None:
    """Remove all results, and the build cache too if `caches`."""
    for path in [*folder.glob("out*"), *folder.glob(".out*"), *[folder / "build"] * caches]:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("name", "kills"),
    [("synth", 1), ("decode", 1)]
    + [pytest.param(name, command.kills, marks=pytest.mark.heavy) for name, command in COMMANDS.items()],
)
def test_killed(name, kills, folder, rng):
    """Kill at random moments, with and without a build cache; then run to the end, which no stale lock delays."""
    command = COMMANDS[name]
    seconds = finished(command.line, folder)
    expected = [path.relative_to(folder) for path in results(folder)]
    for path in results(folder):
        check_complete(path)
    for number in range(kills):
        remove_results(folder, caches=number % 2 == 0)
        process = start(command.line, folder)
        try:
            process.communicate(timeout=rng.uniform(0.05, 1) * seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        for path in results(folder):
            check_complete(path)
        finished(command.line, folder)
        assert [path.relative_to(folder) for path in results(folder)] == expected
        for path in results(folder):
            check_complete(path)


def test_an_interrupted_simulator_build_is_repeated(own_builds):
    """A truncated object file with a new time stamp is not linked."""
    component = unit("operand_memory").build(Config.preset("tiny"))
    first = build(component, "operand_memory")
    (first.folder / "finished").unlink()
    for path in (first.folder / "operand_memory", *first.folder.glob("*.a")):
        path.unlink()
    for path in first.folder.glob("*.o"):
        path.write_bytes(path.read_bytes()[:100])
    assert build(component, "operand_memory").folder == first.folder
    assert (first.folder / "finished").exists()


# command line -> the result file, which exists before the command runs; None: it must not exist
WRITES = {
    "generate hcu --preset tiny --out DISK/out": "out/hcu/hcu.v",
    "synth operand_memory --preset tiny --point area --out DISK/out": "out/synth.json",
    f"demo --video film.mp4 {TINY} --out DISK/out": "out/index.html",
    "decode film.mp4 --size 640x480 --out DISK/out.npy": "out.npy",
    "decode film.mp4 --size 640x480 --out DISK/out.raw": "out.raw",
    "decode film.mp4 --size 640x480 --out DISK/out": None,
    "sweep sweep.toml --workers 1 --out DISK/out.csv": "out.csv",
    "model --out DISK/out.json": "out.json",
    "model --trace DISK/out.json": "out.json",
    "model --report DISK/out.html": "out.html",
    "compare --policies resv full --contexts 1000 --report DISK/out.html": "out.html",
    "reproduce vrex.fig13.fps --report DISK/out.html": "out.html",
}
LIGHT = "generate hcu --preset tiny --out DISK/out"
EACH = pytest.mark.parametrize(
    "line", [LIGHT, *(pytest.param(line, marks=pytest.mark.heavy) for line in WRITES if line != LIGHT)]
)


def in_namespace(script: str, *arguments: object, folder: Path) -> subprocess.CompletedProcess:
    """Run a shell script in a new mount namespace; skip the test where this user may not create one."""
    unshare = shutil.which("unshare")
    own = [unshare, "--mount", "--map-root-user", "sh", "-ec"]
    if unshare is None or subprocess.run([*own, "mount -t tmpfs none /mnt"], capture_output=True).returncode:
        pytest.skip("needs unshare and permission to mount a tmpfs")
    where = os.environ | {"VREX_BUILD": str(folder / "build"), "PYTHONPATH": str(ROOT)}
    words = ["sh", *map(str, arguments)]
    return subprocess.run([*own, script, *words], cwd=folder, env=where, capture_output=True, text=True, check=False)


def on_disk(line: str, folder: Path, spoil: str) -> subprocess.CompletedProcess:
    """Run the command on a small disk with an old result after the shell command `spoil`; the old result must stay."""
    disk, old = folder / "disk", WRITES[line]
    disk.mkdir()
    script = (
        'mount -t tmpfs -o size=64k none "$1"; cd "$1"; old="$2"; shift 2\n'
        'if [ "$old" ]; then mkdir -p "$(dirname "$old")"; echo old > "$old"; fi\n'
        f'{spoil}; cd "$OLDPWD"; status=0; "$@" || status=$?\n'
        'if [ "$old" ]; then [ "$(cat disk/"$old")" = old ] || echo "the old result is gone" >&2; fi\n'
        'find disk -name ".*" -size +0 ! -name "*.journal" >&2; exit $status'
    )
    words = line.replace("DISK", str(disk)).split()
    done = in_namespace(script, disk, old or "", sys.executable, ROOT / "vrex.py", *words, folder=folder)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert sum(text.startswith("vrex: ") for text in done.stderr.splitlines()) == 1, done.stderr
    return done


@EACH
def test_full_disk(line, folder):
    done = on_disk(line, folder, "dd if=/dev/zero of=rest bs=1k 2> rest.log || true")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("vrex: ") and ("o space left on" in last or "bytes of disk" in last), done.stderr
    assert str(folder / "disk") in last or "bytes of disk" in last, done.stderr


@EACH
def test_read_only_disk(line, folder):
    done = on_disk(line, folder, 'mount -o remount,ro "$PWD"')
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"vrex: {folder}/disk") and last.endswith(": Read-only file system"), done.stderr


@pytest.mark.parametrize(
    "line",
    ["model --out out.json", "model --report out.html", "sweep sweep.toml --workers 1 --out out.csv",
     "decode film.mp4 --workers 1 --out out.npy"],
)  # fmt: skip
def test_file_size_limit(line, folder, monkeypatch, capsys):
    """A file size limit of the process has the effect of a full disk."""
    monkeypatch.chdir(folder)
    out = folder / line.split()[-1]
    out.write_text("old")
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGTERM)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        status = vrex.main(line.split())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGTERM, handler)
    lines = [text for text in capsys.readouterr().err.splitlines() if text.startswith("vrex: ")]
    assert status == 2 and len(lines) == 1 and ("File too large" in lines[0] or "bytes of disk" in lines[0])
    assert out.read_text() == "old"
    assert [path.name for path in folder.glob(".*")] in ([], [".out.csv.journal"])
