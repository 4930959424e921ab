"""vrex: the command line of the project. Commands are in `cli`; errors and signals end here."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from cli.commands import demo, hardware, streams, system
from cli.console import Console

# the matrices here are small: a second BLAS thread waits more than it works (read once, when NumPy is imported)
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
LONGEST = 500  # characters of a complaint


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="vrex", description="Open RTL, golden models and system model of V-Rex.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for part in (demo, hardware, streams, system):
        part.add(commands)
    return top


def stop_children() -> None:
    """Terminate every process this one started, however deep."""
    found = [os.getpid()]
    for pid in found:
        with contextlib.suppress(OSError):  # gone meanwhile
            if pid != os.getpid():
                os.kill(pid, signal.SIGSTOP)  # one that stands still starts no more
            for entry in Path(f"/proc/{pid}/task").glob("*/children"):
                found += map(int, entry.read_text().split())
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in found[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def reason(error: BaseException) -> str:
    """One line that names the culprit."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device of {error.filename or os.environ.get('VREX_BUILD', 'build')}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    text = (str(error).splitlines() or [type(error).__name__])[0]
    text = text if len(text) <= LONGEST else f"{text[:LONGEST]} ..."  # what it quotes may be a whole file
    for place in (Path(os.environ.get("VREX_BUILD", "build")), Path(os.environ.get("TMPDIR", "/tmp"))):
        if place.exists() and shutil.disk_usage(place).free < 1 << 20:
            return f"no space left on the device of {place} ({text})"
    return text


def main(argv: list[str] | None = None) -> int:
    """Run one command; bad input gives one line on stderr and status 2."""
    args = parser().parse_args(argv)
    from amaranth.hdl import UnusedElaboratable

    from hw.yosys import ToolError
    from sim.bench.build import SimulatorError

    warnings.simplefilter("ignore", UnusedElaboratable)  # units are also built to read their formulas
    console = Console()

    def interrupt(number: int, frame: object) -> NoReturn:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    try:
        return args.run(args, console) or 0
    except KeyboardInterrupt:
        console.close()
        stop_children()
        print("vrex: interrupted; nothing half-written was left", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, ArithmeticError, OSError, ToolError, SimulatorError) as error:
        console.close()
        if args.debug:
            raise
        print(f"vrex: {reason(error)}", file=sys.stderr)
    finally:
        console.close()
    return 2


if __name__ == "__main__":
    sys.exit(main())
