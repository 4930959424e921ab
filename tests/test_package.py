"""The wheel: it contains every file that the commands need, and the commands work outside the source tree."""

import os
import shutil
import signal
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import vrex
from sw_model.media import clip

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("cli", "compiler", "golden", "hw", "sim", "sw_model", "synth", "util")
SWEEP = 'name = "links"\n[fixed]\npolicy = "resv"\n[grid]\ntokens = [1000, 40000]\n'
# command line -> text on stdout
COMMANDS = {
    "generate hcu --preset tiny": "build/generated/hcu/hcu.v",
    "synth hcu --preset tiny": "hcu",
    "model --system vrex8 --policy resv": "energy",
    "explain --tokens 1000": "device memory",
    "compare --policies resv full --contexts 1000 --report page.html": "resv",
    "reproduce vrex.fig13.fps": "1 of 1 judged are inside",
    "sweep sweep.toml --workers 1": "build/sweeps/links.csv: 2 rows",
    "decode film.mp4 --workers 2": "24 frames of 96 x 64",
    "stats film.mp4": "retrieval ratio",
    "quality film.mp4 --policy resv": "resv",
    "formal hcu --quick": "reached:",
    "model --rtl tiny --frames 1": "last step",
}
SOURCE_ONLY = ("verify", "coverage", "mutate", "signoff")


@pytest.fixture(autouse=True)
def restore_handler():
    """`main` installs a handler of SIGTERM."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of the source tree, built from a copy: a build folder would add files of earlier builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, source / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in ("pyproject.toml", "vrex.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / file, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", build, out], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (path,) = out.glob("*.whl")
    return path


def test_wheel_contains_all_modules_and_data(wheel):
    """Everything in the packages except the READMEs, which are pages of the documentation."""
    files = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_file())
    expected = {path.relative_to(ROOT).as_posix() for path in files if "__pycache__" not in path.parts}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == {"vrex.py", *(name for name in expected if not name.endswith(".md"))}
    assert {Path(name).suffix for name in names} >= {".py", ".toml", ".json", ".safetensors", ".j2"}


def test_wheel_metadata_names_command_and_licence(wheel):
    archive, version = (
        zipfile.ZipFile(wheel),
        tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"],
    )
    folder = f"vrex_rtl-{version}.dist-info"
    assert "vrex = vrex:main" in archive.read(f"{folder}/entry_points.txt").decode()
    assert f"{folder}/licenses/LICENSE" in archive.namelist()


@pytest.mark.parametrize("command", SOURCE_ONLY)
def test_command_without_source_tree_is_refused(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cli.options.ROOT", tmp_path)
    assert vrex.main([command, "hcu"]) == 2
    assert capsys.readouterr() == (
        "",
        f"vrex: {command} needs the source tree: clone the repository and run make setup\n",
    )


def test_command_without_pytest_is_refused(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert vrex.main(["verify", "hcu"]) == 2
    assert capsys.readouterr().err == "vrex: verify needs pytest: run make setup\n"


@pytest.mark.heavy
def test_commands_work_from_installed_wheel(wheel, tmp_path):
    """In a new virtual environment, in a folder without the project; downloads the dependencies unless pip has them."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VREX", "VIRTUAL"))
    }
    python, folder = tmp_path / "venv" / "bin" / "python", tmp_path / "away"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel]
    subprocess.run(install, check=True, env=environment)
    folder.mkdir()
    (folder / "sweep.toml").write_text(SWEEP)
    clip.encode(clip.synthesise(24, width=96, height=64, scene_frames=10), folder / "film.mp4", gop=8)

    def run(line):
        command = [python.with_name("vrex"), *line.split()]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    for line, text in COMMANDS.items():
        done = run(line)
        assert done.returncode == 0 and text in done.stdout, (line, done.stdout, done.stderr)
    for command in SOURCE_ONLY:
        done = run(f"{command} hcu")
        assert done.returncode == 2 and "needs the source tree" in done.stderr, (command, done.stderr)
