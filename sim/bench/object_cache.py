"""Front of the C++ compiler that keeps the objects of Verilator's own sources, half the work of a small build.

Verilator's makefiles run it as `OBJCACHE`: `object_cache.py FOLDER g++ ... -o OBJECT SOURCE`. It knows only sources
that no design changes; ccache, where it is installed, takes its place.
"""

import fcntl
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path


def compile(folder: Path, command: list[str]) -> int:
    """Run the compiler, or take the object that the same command made before; the compiler's exit status."""
    source = Path(command[-1])
    if not source.stem.startswith("verilated") or "-o" not in command:
        return subprocess.run(command, check=False).returncode
    target = Path(command[command.index("-o") + 1])
    compiler = Path(shutil.which(command[0]) or command[0]).resolve()
    made = f"{compiler}\0{compiler.stat().st_mtime_ns}\0" + "\0".join(command)
    key = hashlib.sha256(made.encode() + source.read_bytes()).hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / f"{source.stem}-{key}.o"
    with (folder / f"{kept.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # builds that run side by side compile once
        if not kept.exists():
            status = subprocess.run(command, check=False).returncode
            if status:
                return status
            aside = kept.with_suffix(".part")
            shutil.copyfile(target, aside)
            aside.replace(kept)
    shutil.copyfile(kept, target)
    return 0


if __name__ == "__main__":
    sys.exit(compile(Path(sys.argv[1]), sys.argv[2:]))
