"""Readers of randomly damaged files: they return a result or raise one line that names the file."""

import gzip
import itertools
import json
import re
import resource
import shutil
import signal
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from compiler import board_host as host
from compiler.checkpoint import Checkpoint, CheckpointError
from hw.core import isa
from sw_model import request, sweep
from sw_model.media import clip, trace, video
from sw_model.media.stream import BF16, Chunk, Geometry
from sw_model.memory.spec import load_memory
from sw_model.memory.ssd import load_ssd
from sw_model.policies import load as load_policy
from sw_model.policies import rekv
from sw_model.preset_file import PRESETS
from sw_model.systems import load_system
from synth import report
from synth.library import reader as library
from synth.library.liberty import library_text
from tests.compiler.checkpoints import write_random
from tests.compiler.test_board_host import DESCRIPTION
from tests.hw.core.test_isa import random_command
from tests.synth.test_report import unit
from util import files

INDEX = "model.safetensors.index.json"
SECONDS, MEMORY = 20, 1 << 30  # that one file may take
TOKEN = re.compile(rb'"[^"\n]*"|[A-Za-z_][\w.]*|-?\d[\d.eE]*|\s+|.', re.S)
VALUES = (
    b"0 -1 1 2 3.5 -0.0 1e308 1e999 -1e-320 1e-30 nan inf -inf NaN Infinity 18446744073709551616 0x10 1_0 true false"
    b' null None "" "x" "nan" "0" "a b" [] {} [[]] [1] {"a":1} (1) a.b __class__ \xff \xc3\xa9'
).split(b" ")
MARKS = rb"( ) [ ] { } , ; : = ! ' . / \ # /* */ //".split(b" ")
MARKS += [b'"', b"\n", b"\0", b" "]
LONG = [mark * 5000 for mark in (b"1", b"x", b"[", b"(", b"!", b'{"a":')]


def damaged(rng: np.random.Generator, content: bytes, text: bool) -> bytes:
    """`content` with one to four random errors: in bytes, or for text mostly in values or words."""
    values = text and rng.random() < 0.5
    for _ in range(rng.integers(1, 5)):
        words = text and (values or rng.random() < 0.9)
        pieces = TOKEN.findall(content) if words else [content[k : k + 1] for k in range(len(content))]
        at, to = sorted(rng.integers(0, len(pieces) + 1, 2).tolist())
        short = min(to, at + int(rng.integers(1, 9)))
        kinds = (VALUES, VALUES, VALUES, MARKS, LONG)
        kind = kinds[int(rng.integers(3 if values else 5))]
        replacement = kind[int(rng.integers(len(kind)))] if text else rng.bytes(int(rng.integers(1, 9)))
        if values and (indices := [k for k, piece in enumerate(pieces) if re.match(rb'["\w-]', piece)]):
            at = indices[int(rng.integers(len(indices)))]
            other = pieces[indices[int(rng.integers(len(indices)))]]
            pieces[at] = other if rng.random() < 0.2 else replacement
            content = b"".join(pieces)
            continue
        match int(rng.integers(8)):
            case 0:  # truncate
                pieces = pieces[:at]
            case 1:  # remove
                pieces[at:short] = []
            case 2:  # duplicate
                pieces[at:at] = pieces[at:short]
            case 3:  # move
                pieces[at:short], pieces[to:to] = [], pieces[at:short]
            case 4:  # insert
                pieces[at:at] = [replacement]
            case _:  # replace
                pieces[at : at + 1] = [replacement]
        content = b"".join(pieces)
    return content


@contextmanager
def bounds():
    """Limits time to `SECONDS` and memory to `MEMORY`."""

    def stop(number, frame):
        raise AssertionError(f"more than {SECONDS} s")

    handler, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, handler)


def small_library(folder: Path) -> bytes:
    """The header of the built-in library and some of its cells."""
    head, *cells = re.split(r"(?=^  cell \()", library_text().rstrip().removesuffix("}"), flags=re.M)
    names = ("INV_X1", "NAND2_X1", "FA_X1", "DFF_X1", "LATCH_X1", "BUF_X1")
    return (head + "".join(cell for cell in cells if cell.split("(")[1].split(")")[0] in names) + "}\n").encode()


def read_liberty(path):
    cells = library.load([path])
    cells.require(timing=True, power=True, cells=cells.names)
    assert cells.fo4_ps is not None and cells.buffers is not None and cells.json()
    cells.find({"s": "a ^ b ^ c", "co": "a * b + b * c + a * c"}, 3)
    assert cells.loaded_path.exists()


def two_chunks(folder: Path) -> bytes:
    q, k = np.ones((1, 3, 2, 4), BF16), np.ones((1, 3, 1, 4), BF16)
    chunks = [Chunk(stage, 3 * n + np.arange(3), q, k, k) for n, stage in enumerate(("frame", "text"))]
    return trace.write_trace(folder / "complete", Geometry(1, 2, 1, 4), chunks, {"model": "none"}).read_bytes()


def read_trace(path):
    assert all(chunk.tokens >= 0 for chunk in trace.Trace(path).chunks())


def trace_head(folder: Path) -> bytes:
    """The JSON header of a safetensors file."""
    content = two_chunks(folder)
    return content[8 : 8 + int.from_bytes(content[:8], "little")]


def read_trace_head(path):
    head, intact = path.read_bytes(), two_chunks(path.parent)
    path.write_bytes(len(head).to_bytes(8, "little") + head + intact[8 + int.from_bytes(intact[:8], "little") :])
    read_trace(path)


def checkpoint_file(name: str, shards: int = 1) -> Callable[[Path], bytes]:
    """A file of a small LLaVA checkpoint."""

    def intact(folder: Path) -> bytes:
        write_random(folder / "checkpoint", "llava", np.random.default_rng(0), shards=shards)
        return (folder / "checkpoint" / name).read_bytes()

    return intact


def read_checkpoint_file(name: str, shards: int = 1) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        checkpoint_file(name, shards)(path.parent)
        path.replace(path.parent / "checkpoint" / name)
        checkpoint = Checkpoint(path.parent / "checkpoint")
        assert all(checkpoint.load(key).dtype == np.uint16 for key in checkpoint.table)
        assert np.isfinite(checkpoint.spec.text.rope.frequencies()).all()

    return read


def film(name: str, codec: str = "libx264") -> Callable[[Path], bytes]:
    def intact(folder: Path) -> bytes:
        pictures = clip.synthesise(6, width=48, height=32, scene_frames=4)
        return clip.encode(pictures, folder / name, gop=3, codec=codec).read_bytes()

    return intact


def read_video(path):
    assert video.probe(path).width > 0
    assert all(frame.rgb(8, 8).shape == (8, 8, 3) for frame in video.decode(path))


def read_system(path):
    load_system(path)
    assert request.Request(system=str(path), policy="full").run().total_s >= 0


def read_run(path):
    assert request.parse(request.recall(path).json())


def read_power(path):
    assert all(name.startswith("power.") for name in request.synthesised_power(path))


def read_report(path):
    result = report.read(path)
    assert report.compare(result, report.report([unit()])).table()


def read_policy(path):
    assert isinstance(load_policy(str(path)).name, str)


def program() -> list[isa.Command]:
    return [random_command(np.random.default_rng(n)) for n in range(20)]


def read_program(path):
    code = path.read_bytes()
    commands = [isa.decode(code[at : at + isa.COMMAND_BYTES]) for at in range(0, len(code), isa.COMMAND_BYTES)]
    assert isa.assemble(isa.disassemble(commands)) == commands


def read_assembly(path):
    assert isa.encode(isa.assemble(path.read_text(errors="replace"))) is not None


def read_vectors(path):
    assert host.Session(host.load(path)).begin()


PLAN = sweep.parse_sweep({"name": "small", "grid": {"tokens": [1000, 2000], "policy": ["resv", "full"]}})
HEAD = {"sweep": PLAN.name, "digest": PLAN.digest}
ROWS = [{"run": index, **item.json(), "total_ms": 1.5} for index, item in enumerate(PLAN.requests)]


def journal(folder: Path) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in (HEAD, *([row] for row in ROWS[:3])))


def table(folder: Path) -> bytes:
    return json.dumps({**HEAD, "rows": 4, "table": ROWS}).encode()


def resumed(out):
    with sweep.journal(out, PLAN) as (rows, _):
        assert all(ROWS[number].items() >= PLAN.requests[number].json().items() for number in rows)


def read_journal(path):
    out = path.with_suffix(".csv")
    path.rename(sweep.journal_path(out))
    resumed(out)


def read_table(path):
    path.with_suffix(".csv").touch()
    resumed(path.with_suffix(".csv"))


@dataclass(frozen=True)
class Case:
    """A reader and a valid file; `error`: exceptions that it may raise; `many`: number of files in the long test."""

    read: Callable[[Path], None]
    intact: Callable[[Path], bytes]
    suffix: str
    error: type[Exception] = ValueError
    text: bool = True
    many: int = 5000


def preset(name: str) -> Callable[[Path], bytes]:
    return lambda folder: (PRESETS / f"{name}.toml").read_bytes()


CASES = {
    "Liberty": Case(read_liberty, small_library, ".lib", library.LibraryError),
    "gzip": Case(
        read_liberty, lambda folder: gzip.compress(small_library(folder)), ".lib.gz", library.LibraryError, False
    ),
    "trace": Case(read_trace, two_chunks, ".safetensors", trace.TraceError, False),
    "head of a trace": Case(read_trace_head, trace_head, ".safetensors", trace.TraceError),
    "weights": Case(
        read_checkpoint_file("model.safetensors"),
        checkpoint_file("model.safetensors"),
        "",
        CheckpointError,
        False,
        many=500,
    ),
    "configuration": Case(
        read_checkpoint_file("config.json"), checkpoint_file("config.json"), "", CheckpointError, many=500
    ),
    "index": Case(read_checkpoint_file(INDEX, 2), checkpoint_file(INDEX, 2), "", CheckpointError, many=500),
    "mp4": Case(read_video, film("a.mp4"), ".mp4", video.VideoError, False),
    "mkv": Case(read_video, film("a.mkv"), ".mkv", video.VideoError, False),
    "avi": Case(read_video, film("a.avi", "mpeg4"), ".avi", video.VideoError, False),
    "system": Case(read_system, preset("vrex8"), ".toml"),
    "GPU": Case(read_system, preset("agx-orin"), ".toml"),
    "memory": Case(load_memory, preset("memory/lpddr5-6400-256b"), ".toml"),
    "drive": Case(load_ssd, preset("ssd/bg6-like"), ".toml"),
    "sweep": Case(
        sweep.load_sweep,
        lambda folder: (
            b'name = "x"\n[fixed]\npolicy = "resv"\n[grid]\ntokens = [10, 20]\n"link.nominal_gbps" = [2, 4.5]\n'
        ),
        ".toml",
    ),
    "journal of a sweep": Case(read_journal, journal, ".journal"),
    "table of a sweep": Case(read_table, table, ".json"),
    "run of a sweep": Case(read_run, table, ".json"),
    "run": Case(read_run, lambda folder: json.dumps({"request": request.Request().json()}).encode(), ".json"),
    "power": Case(read_power, lambda folder: json.dumps([unit(), unit("dpe")]).encode(), ".json"),
    "synthesis": Case(read_report, lambda folder: json.dumps(report.report([unit()])).encode(), ".json"),
    "policy": Case(read_policy, lambda folder: Path(rekv.__file__).read_bytes(), ".py"),
    "program": Case(read_program, lambda folder: isa.encode(program()), ".bin", isa.AssemblyError, False),
    "assembly": Case(read_assembly, lambda folder: isa.disassemble(program()).encode(), ".s", isa.AssemblyError),
    "vectors": Case(read_vectors, lambda folder: json.dumps(DESCRIPTION).encode(), ".json"),
}
UNNAMED = (isa.AssemblyError, library.LibraryError)  # a program has no file; a library goes by its own name


@pytest.fixture
def refusal(tmp_path, monkeypatch):
    """Reads a damaged file of a case and returns the error message, or None when the file was readable."""
    monkeypatch.setenv("VREX_BUILD", str(tmp_path / "build"))
    numbers = itertools.count()

    def read(case, content):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        path = folder / f"some{case.suffix}"
        path.write_bytes(content)
        try:
            with bounds():
                case.read(path)
        except case.error as error:
            message = str(error)
            assert "\n" not in message, message
            assert str(folder) in message or path.name in message or issubclass(case.error, UNNAMED), message
            return message
        finally:
            shutil.rmtree(folder)
        return None

    return read


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["few", "many"])
def test_random_damage_is_handled(name, many, seed, tmp_path, refusal):
    case = CASES[name]
    intact = case.intact(tmp_path)
    assert refusal(case, intact) is None
    files = case.many if many else 30
    messages = set()
    for number in range(files):
        content = damaged(np.random.default_rng([seed, number]), intact, case.text)
        try:
            messages.add(refusal(case, content))
        except Exception as error:
            raise AssertionError(f"file {number} of seed {seed}: {content[:2000]!r}") from error
    assert messages != {None} or case.read is read_table  # an unreadable table is computed again


DEEP = "[" * 5000
# errors that random damage revealed: reader, text of its file, replacement, error message; None: the file is valid
KNOWN_DAMAGE = [
    (
        "Liberty",
        "nom_temperature : 25",
        "nom_temperature : warm",
        "nom_temperature and wire load must be numbers, got .*'warm'",
    ),
    ("Liberty", "area : 0.", "area : nan; x : 0.", "cell INV_X1 is invalid: number must be finite, got nan"),
    ("Liberty", '"!(A * B)"', '"!(A * B"', "2-input NAND, the unit of area, is missing"),
    ("Liberty", '"!(A * B)"', f'"{"!" * 5000}A"', "2-input NAND, the unit of area, is missing"),
    (
        "Liberty",
        "cell_rise (delay) {",
        'cell_rise (delay) { index_1 ("2, 2");',
        "index_1 .* must ascend",
    ),
    ("Liberty", "cell_rise (delay) {", "cell_rise (delay) { index_1 (2);", "cell_rise must have 1 x"),
    ("Liberty", "fall_transition", "fall_something", "cell INV_X1 must have an arc with cell_fall, "),
    ("Liberty", "library (predictive14)", 'library ("../../predictive14")', None),
    ("mkv", "Lavf", "La\xc3(", None),
    ("system", "name =", f"name = {DEEP}", "is not TOML"),
    ("system", "mhz = { value = 800", 'mhz = { value = "8"', r"core\.clock_mhz must be a finite number, got '8'"),
    ("system", "mhz = { value = 800", "mhz = { value = 1e308", r"core\.clock_mhz must be between 1e-15 and 1e\+15"),
    ("system", "clock_mhz = { value = 800", "wtu_lanes = { value = 12", r"core\.clock_mhz is missing"),
    ("system", "[core]", "[core]\ncores = { value = true, source = 's' }", r"core\.cores"),
    (
        "system",
        "[core]",
        "[core]\nwtu_lanes = { value = 12, source = 's' }",
        r"core\.wtu_lanes.*12.*power of two|must be a power of two",
    ),
    ("system", 'value = "paper"', 'value = ["paper"]', r"core\.config"),
    ("system", 'memory = "lpddr5', 'memory = "lpddr9', "memory must be one of .*got 'lpddr9"),
    ("memory", '[["', '[[["a"], 1], ["', r"mapping A must have valid digits, got \(\['a'\], 1\)"),
    ("drive", "channels = { value = 4", f"channels = {{ value = {'8' * 5000}", "is not TOML: Exceeds the limit"),
    ("drive", "channels = { value = 4", "channels = { value = 0", r"some\.toml: .*channels must be positive, got 0"),
    ("journal of a sweep", '[{"run": 1', f'[{DEEP}{{"run": 1', "is damaged in line 3: remove it to start over"),
    ("journal of a sweep", '[{"run": 1', '[{"run": 9', "is damaged in line 3"),
    ("journal of a sweep", '[{"run": 1', '[{"run": 2', "is damaged in line 3"),  # another's row
    ("journal of a sweep", '[{"run": 1', '[1, {"run": 1', "is damaged in line 3"),
    ("table of a sweep", '"table": ', '"table": 7, "x": ', None),
    ("table of a sweep", '{"run": 1', '{"run": 2', None),
    ("table of a sweep", "{", f'{{"x": {DEEP}', None),
    ("run of a sweep", '[{"run": 0', '[0, {"run": 0', "holds neither a run nor a sweep"),
    ("run of a sweep", '"tokens": 1000', '"tokens": 0', r"run file .*some\.json: tokens must be at least 1"),
    ("run", "{", DEEP, "is not JSON"),
    ("power", '"power": [', '"power": "x", "y": [', "is not what `vrex synth --power --json` prints"),
    ("power", "{", DEEP, "is not JSON"),
    ("synthesis", '"fmax_mhz"', '"fmin_mhz"', "not a report of vrex synth"),
    ("synthesis", '"area_um2": 500.0', '"area_um2": "large"', "not a report of vrex synth"),
    ("synthesis", "{", DEEP, "is not JSON"),
    ("vectors", "115200", '"fast"', "baud, codes, widths and fields must be integers from 0 to 2"),
    ("vectors", "341", "4096", "i must have words of 9 bits"),
    ("vectors", '"code": 2', '"code": 700', "codes must be bytes"),
    ("vectors", "{", DEEP, "not the vectors of a board"),
]


@pytest.mark.parametrize(("name", "old", "new", "message"), KNOWN_DAMAGE, ids=lambda x: str(x)[:24])
def test_known_damage_is_reported(name, old, new, message, tmp_path, refusal):
    intact = CASES[name].intact(tmp_path).decode("latin1")
    assert old in intact
    error = refusal(CASES[name], intact.replace(old, new, 1).encode("latin1"))
    assert error is None if message is None else re.search(message, error or ""), error


def test_incomplete_command_is_rejected():
    for code in (b"", isa.encode(program())[:63], isa.encode(program())[:65]):
        with pytest.raises(isa.AssemblyError, match=f"bytes of a command must be 64, got {len(code)}"):
            isa.decode(code)


def test_endless_file_is_rejected(refusal, monkeypatch):
    """A device file can be endless; the reader stops at a limit."""
    monkeypatch.setattr(files, "MAX_BYTES", 1000)
    for name in ("sweep", "run", "power", "synthesis"):
        assert "larger than 0 MiB" in refusal(CASES[name], b"{" + bytes(1000))
