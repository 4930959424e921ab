"""Speed of QuickCodec compared with sequential decoding of the same file, on two cores.

Run by hand: python -m tests.sw_model.media.bench_quickcodec [--video FILE] [--repeat 5] [--workers 2]. Both decode
every frame to RGB in memory, alternately and in this one run; the frames must be identical. The sequential decoder is
a minimal PyAV loop on one thread. Without a file, the program first encodes a clip of 1280 x 720.
"""

import argparse
import tempfile
import time
from pathlib import Path

import av
import numpy as np

from sw_model.media import clip, quickcodec


def sequential(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        frames = np.empty((stream.frames, stream.height, stream.width, 3), np.uint8)
        for slot, frame in enumerate(container.decode(stream)):
            frames[slot] = frame.reformat(format="rgb24", interpolation="AREA").to_ndarray()
        return frames


def seconds(work):
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def large_clip(folder, frames):
    pictures = clip.synthesise(frames, width=1280, height=720, scene_frames=60)
    return clip.encode(pictures, Path(folder) / "large.mp4", gop=30, options={"preset": "superfast", "bf": "2"})


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--video", type=Path)
    parser.add_argument("--frames", type=int, default=900, help="frames of the clip that is encoded without --video")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.video or large_clip(folder, args.frames)
        ratios = []
        for _ in range(args.repeat):
            slow, frames = seconds(lambda: sequential(path))
            fast, decoded = seconds(lambda: quickcodec.decode(path, workers=args.workers))
            assert np.array_equal(decoded.frames, frames)
            ratios.append(slow / fast)
            print(f"{len(frames)} frames: {slow:.2f} s, {args.workers} processes {fast:.2f} s: {ratios[-1]:.2f}")
        print(f"median {np.median(ratios):.2f} times faster, best {max(ratios):.2f}; all frames identical")


if __name__ == "__main__":
    main()
