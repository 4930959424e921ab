"""Work of the public QuickCodec besides decoding, in decoded frames: `python -m tests.sw_model.bench_decoding`.

A clip of 1080 lines with sound is read packet by packet and decoded on one thread. Every 24th picture is converted to
RGB of 448 x 448 (Lanczos) and stored by channels; the pictures are copied out of shared memory. A process starts that
imports the modules of a decoding process. Processor seconds, best of three; `sw_model.papers.quickvideo` holds the
shares.
"""

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from fractions import Fraction
from multiprocessing import shared_memory
from pathlib import Path

import av
import numpy as np

from sw_model.media import clip

FPS, SAMPLE_RATE, SIDE = 24, 48000, 448


def with_sound(source: Path, path: Path) -> Path:
    """A clip with the source's pictures at 1080 lines and noise as sound."""
    rng = np.random.default_rng(1)
    with av.open(str(source)) as pictures, av.open(str(path), "w") as out:
        video = out.add_stream("libx264", rate=FPS, options={"preset": "medium", "crf": "21"})
        video.width, video.height, video.pix_fmt = 1920, 1080, "yuv420p"
        sound = out.add_stream("aac", rate=SAMPLE_RATE, layout="stereo")
        heard = 0
        for shown, picture in enumerate(pictures.decode(video=0)):
            large = picture.reformat(1920, 1080, format="yuv420p", interpolation="BICUBIC")
            frame = av.VideoFrame.from_ndarray(large.to_ndarray(), format="yuv420p")
            frame.pts, frame.time_base = shown, Fraction(1, FPS)
            out.mux(video.encode(frame))
            while heard < shown * SAMPLE_RATE / FPS:
                noise = rng.normal(0, 0.1, (2, 1024)).astype(np.float32)
                piece = av.AudioFrame.from_ndarray(noise, format="fltp", layout="stereo")
                piece.sample_rate, piece.pts, piece.time_base = SAMPLE_RATE, heard, Fraction(1, SAMPLE_RATE)
                heard += 1024
                out.mux(sound.encode(piece))
        out.mux(video.encode(None))
        out.mux(sound.encode(None))
    return path


def best(work: Callable[[], object]) -> float:
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return min(times)


def decode(path: Path) -> list[av.VideoFrame]:
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        return [frame for number, frame in enumerate(container.decode(stream)) if number % FPS == 0]


def scan(path: Path) -> list[int]:
    keyframes, last = [], -1
    with av.open(str(path)) as container:
        for packet in container.demux():
            if packet.stream.type == "video" and packet.pts is not None:
                last = max(last, packet.pts)
                if packet.is_keyframe:
                    keyframes.append(packet.pts)
    return [*keyframes, last]


def convert(frames: list[av.VideoFrame], out: np.ndarray) -> None:
    for frame in frames:
        rgb = frame.reformat(SIDE, SIDE, format="rgb24", interpolation="LANCZOS").to_ndarray()
        np.copyto(out, rgb.transpose(2, 0, 1))


def copied(pictures: int) -> float:
    """Processor seconds for each picture copied out of shared memory into new pages."""
    size = pictures * SIDE * SIDE * 3
    memory = shared_memory.SharedMemory(create=True, size=size)
    try:
        memory.buf[:] = bytes(size)
        return best(lambda: bytes(memory.buf)) / pictures
    finally:
        memory.close()
        memory.unlink()


def started() -> float:
    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return children.ru_utime + children.ru_stime

    before = used()
    for _ in range(3):
        subprocess.run([sys.executable, "-c", "import av, numpy, pickle, base64"], check=True)
    return (used() - before) / 3


def main() -> None:
    film = next(one for one in clip.real_clips() if one.name == "Big Buck Bunny")
    with tempfile.TemporaryDirectory() as folder:
        path = with_sound(film.path, Path(folder) / "film.mp4")
        with av.open(str(path)) as container:
            count = container.streams.video[0].frames
        frame = best(lambda: decode(path)) / count
        sampled, out = decode(path), np.empty((3, SIDE, SIDE), np.uint8)
        opening = best(lambda: av.open(str(path)).close())
        shares = {
            "opening": opening,
            "scan, for each frame": (best(lambda: scan(path)) - opening) / count,
            "conversion, for each sampled frame": best(lambda: convert(sampled, out)) / len(sampled),
            "copy, for each sampled frame": copied(400),
            "start of a process": started(),
        }
    print(f"decoding a frame: {frame * 1e3:.2f} ms")
    for what, seconds in shares.items():
        print(f"{what}: {seconds / frame:.4g} frames")


if __name__ == "__main__":
    main()
