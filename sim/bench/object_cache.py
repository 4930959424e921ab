"""Compiler wrapper that caches the objects of Verilator's own sources, half the work of a small build.

Verilator's makefiles call it through `OBJCACHE`: `object_cache.py FOLDER g++ ... -o OBJECT SOURCE`. It caches only
sources that do not depend on the design. ccache is used instead if it is installed.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def compile(folder: Path, command: list[str]) -> int:
    """Run the compiler, or copy the cached object of an equal command; returns the exit status."""
    source = Path(command[-1])
    if not source.stem.startswith("verilated") or "-o" not in command:
        return subprocess.run(command, check=False).returncode
    target = Path(command[command.index("-o") + 1])
    compiler = Path(shutil.which(command[0]) or command[0]).resolve()
    key_text = f"{compiler}\0{compiler.stat().st_mtime_ns}\0" + "\0".join(command)
    key = hashlib.sha256(key_text.encode() + source.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    cached = folder / f"{source.stem}-{key}.o"
    with (folder / f"{cached.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds that run side by side compile once
        if not cached.exists():
            status = subprocess.run(command, check=False).returncode
            if status:
                return status
            temporary = cached.with_suffix(".part")
            shutil.copyfile(target, temporary)
            temporary.replace(cached)
    shutil.copyfile(cached, target)
    return 0


if __name__ == "__main__":
    sys.exit(compile(Path(sys.argv[1]), sys.argv[2:]))
