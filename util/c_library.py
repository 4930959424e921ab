"""Compilation of generated C with the C compiler of the system."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = ("-std=c99", "-O2", "-fwrapv", "-fPIC", "-shared")


class CompilerError(RuntimeError):
    """There is no C compiler, or it refuses the code."""


def c_library(source: str, folder: Path) -> ctypes.CDLL:
    """Load the library of C code, which is compiled once and kept in `folder`.

    The file is named after the source, the compiler and the machine. If the folder is not writable, every process
    compiles for itself. The compiler is that of the environment variable CC, or `cc`.

    Raises CompilerError.
    """
    compiler = os.environ.get("CC") or "cc"
    parts = [compiler, *FLAGS, sys.platform, platform.machine(), source]
    name = f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}.so"
    path = folder / name
    if path.exists():
        return ctypes.CDLL(str(path))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        work, is_kept = tempfile.TemporaryDirectory(dir=folder, suffix=".part"), True
    except OSError:
        work, is_kept = tempfile.TemporaryDirectory(), False
    with work as part:
        library = Path(part) / name
        _compile(compiler, source, library)
        if is_kept:
            library = library.replace(path)  # only when it is complete
        return ctypes.CDLL(str(library))  # a loaded file may be deleted


def _compile(compiler: str, source: str, path: Path) -> None:
    command = [*shlex.split(compiler), *FLAGS, "-x", "c", "-", "-o", str(path)]
    try:
        done = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    except OSError:
        message = f"C compiler {compiler} is not installed (Debian: apt install gcc); CC names another one"
        raise CompilerError(message) from None
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
        raise CompilerError(f"C compiler {compiler} failed: {error}")
