"""Overlap of decoding and prefill in a session of QuickPrefill: `python -m tests.sw_model.bench_quickvideo`.

Decoding processes of QuickCodec feed groups of frames of a real clip to a tiny LLaVA model with random weights on the
golden machine. It measures wall seconds of decoding alone, of prefill alone (decoded groups in memory) and of both, and
prints the last one compared with the larger of the first two. Prefill is software here, so that it competes with the
decoding processes for the cores of the host; a machine of its own does not.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, repeat
from pathlib import Path

import numpy as np

from compiler.checkpoint import Checkpoint
from compiler.policies import QuickPrefillPolicy
from compiler.runtime import Limits, Machine, compile_model
from hw.config import Config
from sw_model.media import quickcodec, video
from sw_model.media.clip import encode, find_clip
from tests.compiler.checkpoints import write_random

GROUP, RUNS = 4, 3  # frames of a group; the smallest time of as many runs counts
LARGE, REPEATS = (1280, 544), 4  # width and height of an enlarged clip; times that it has the frames


def prefill(machine: Machine, groups: Iterable[np.ndarray]) -> int:
    """A session that prefills groups of frames; returns its frames."""
    session, frames = machine.session(), 0
    for group in groups:
        session.frame_group([[picture] for picture in group])
        frames += len(group)
    return frames


def seconds(work: Callable[[], object]) -> float:
    """Wall seconds, the smallest of `RUNS` runs."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


@dataclass(frozen=True)
class Overlap:
    """Wall seconds of decoding alone, of prefill alone, and of both at once, for the frames of a clip."""

    clip: str
    frames: int
    workers: int
    decode_s: float
    prefill_s: float
    both_s: float

    @property
    def ratio(self) -> float:
        """Both at once as a multiple of the larger part."""
        return self.both_s / max(self.decode_s, self.prefill_s)


def measure(clip: Path, *, fps: float, workers: int = 1) -> Overlap:
    """Time decoding, prefill and both on frames of a clip, `fps` of them per second of the video."""
    with tempfile.TemporaryDirectory() as folder:
        write_random(Path(folder), "llava-siglip", np.random.default_rng(1), changes={"vision_config.image_size": 12})
        config = Config.preset("tiny").replace(page_frames=1024, max_pages=256)
        limits = Limits(streams=1 + 2 * RUNS, tokens=480, pooled=2)
        machine = compile_model(Checkpoint(Path(folder)), config, limits, QuickPrefillPolicy(0.5, GROUP))

        def decoded() -> Iterator[np.ndarray]:
            return quickcodec.groups(clip, GROUP, fps=fps, workers=workers)

        groups = list(decoded())
        prefill(machine, groups[:1])  # compiles the kernels
        decode_s = seconds(lambda: list(decoded()))
        prefill_s = seconds(lambda: prefill(machine, groups))
        both_s = seconds(lambda: prefill(machine, decoded()))
    return Overlap(clip.name, sum(map(len, groups)), workers, decode_s, prefill_s, both_s)


def enlarged(clip: Path, folder: Path) -> Path:
    """The frames of a clip, enlarged to `LARGE` and repeated, as a new video, whose decoding takes longer."""
    frames = quickcodec.decode(clip, size=LARGE).frames
    target = folder / f"{clip.stem}-large.mp4"
    return encode(chain.from_iterable(repeat(frames, REPEATS)), target, fps=video.probe(clip).frame_rate)


def cases() -> None:
    """Print the results of a clip and of its enlarged form, with one and two decoding processes, as lines of JSON."""
    with tempfile.TemporaryDirectory() as folder:
        clip = find_clip(folder).path
        for path, fps in ((clip, 10.0), (enlarged(clip, Path(folder)), 2.5)):
            for workers in (1, 2):
                result = measure(path, fps=fps, workers=workers)
                print(json.dumps(asdict(result) | {"ratio": result.ratio}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fps", type=float, default=10.0, help="sampling rate in frames per second (default 10)")
    parser.add_argument("--workers", type=int, default=1, help="decoding processes (default 1)")
    parser.add_argument("--clip", type=Path, help="a video of your own (default a clip of an installed package)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = measure(args.clip or find_clip(folder).path, fps=args.fps, workers=args.workers)
    print(f"{result.clip}: {result.frames} frames in groups of {GROUP}, {result.workers} processes")
    total_s = result.decode_s + result.prefill_s
    print(f"decode {result.decode_s:.2f} s, prefill {result.prefill_s:.2f} s, sum {total_s:.2f} s")
    print(f"both {result.both_s:.2f} s, {result.ratio:.2f} times the larger part, {os.cpu_count()} CPU cores")


if __name__ == "__main__":
    main()
