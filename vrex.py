"""Entry point of the command line `vrex`: builds the parser, runs one command, reports errors and signals."""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import os
import shutil
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from cli.commands import demo, hardware, models, serving, signoff, streams, system, verification
from cli.console import Console

# the matrices are small, so a second BLAS thread costs time; NumPy reads this when it is imported
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
MAX_CHARACTERS = 500  # of an error message


def parser() -> argparse.ArgumentParser:
    """The parser of the command line."""
    top = argparse.ArgumentParser(prog="vrex", description="Open RTL, golden models and system model of V-Rex.")
    top.add_argument("--debug", action="store_true", help="show the traceback of an error")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for group in (demo, models, hardware, verification, signoff, streams, system, serving):
        group.add(commands)
    return top


def stop_children() -> None:
    """Terminate all descendants of this process."""
    process_ids = [os.getpid()]
    for pid in process_ids:
        with contextlib.suppress(OSError):  # the process has ended
            if pid != os.getpid():
                os.kill(pid, signal.SIGSTOP)  # a stopped process starts no children
            for entry in Path(f"/proc/{pid}/task").glob("*/children"):
                process_ids += map(int, entry.read_text().split())
    for number in (signal.SIGTERM, signal.SIGCONT):
        for pid in process_ids[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def reason(error: BaseException) -> str:
    """The message of an error in one line."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return f"no space left on the device of {error.filename or os.environ.get('VREX_BUILD', 'build')}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return f"not enough memory on this computer ({error or 'no size is known'})"
    text = (str(error).splitlines() or [type(error).__name__])[0]
    text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]} ..."  # a message can quote a file
    for folder in (Path(os.environ.get("VREX_BUILD", "build")), Path(os.environ.get("TMPDIR", "/tmp"))):
        if folder.exists() and shutil.disk_usage(folder).free < 1 << 20:
            return f"no space left on the device of {folder} ({text})"
    return text


def main(argv: list[str] | None = None) -> int:
    """Run one command and return its exit status; invalid input gives one line on stderr and status 2."""
    gc.set_threshold(50_000, 20, 50)  # commands make millions of objects without cycles: a sixth of `vrex reproduce`
    args = parser().parse_args(argv)
    from amaranth.hdl import UnusedElaboratable

    from hw.yosys import ToolError
    from sim.bench.build import SimulatorError
    from util.c_library import CompilerError

    warnings.simplefilter("ignore", UnusedElaboratable)  # some units are built only to read their formulas
    console = Console()

    def interrupt(number: int, frame: object) -> NoReturn:
        stop_children()  # now: `subprocess.run` kills its own child only, whose children cannot be identified then
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    try:
        return args.run(args, console) or 0
    except KeyboardInterrupt:
        console.close()
        print("vrex: interrupted; no partial files remain", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, ArithmeticError, MemoryError, OSError, ToolError, SimulatorError, CompilerError) as error:
        console.close()
        if args.debug:
            raise
        print(f"vrex: {reason(error)}", file=sys.stderr)
    finally:
        console.close()
    return 2


if __name__ == "__main__":
    sys.exit(main())
