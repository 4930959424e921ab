"""Pictures as a vision tower takes them: resized, cropped, normalised, and cut into patches."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from compiler.model_spec import VisionSpec
from golden.vision import patch_rows
from util import checks, files

CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
MEANS = {"clip": CLIP, "qwen2.5-vl": CLIP}
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageProcessor:
    """Preparation of pictures for a tower.

    height, width  of the image in pixels
    patch, frames  side of a patch in pixels, and pictures of a patch
    mean, std      of each colour, of values from 0 to 1
    crop           True: the shorter side is resized and the middle is kept; False: both sides are resized
    """

    height: int
    width: int
    patch: int
    mean: tuple[float, ...] = HALF[0]
    std: tuple[float, ...] = HALF[1]
    crop: bool = False
    frames: int = 1

    def __post_init__(self) -> None:
        for name in ("height", "width", "frames"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("patch", self.patch, 1, min(self.height, self.width))
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise ValueError(f"{name} must have 3 colours, got {len(getattr(self, name))}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")

    @classmethod
    def of_checkpoint(cls, folder: Path, vision: VisionSpec, size: tuple[int, int]) -> ImageProcessor:
        """The processor of a checkpoint for images of `size` (height, width) in pixels.

        Its values are those of `preprocessor_config.json`, or of the kind of tower. `ValueError` if one is not valid.
        """
        mean, std = MEANS.get(vision.kind, HALF)
        values: dict[str, Any] = {"image_mean": mean, "image_std": std, "do_center_crop": vision.kind == "clip"}
        if (folder / FILE).exists():
            values |= files.read_json(folder / FILE, "file")
        try:
            return cls(
                *size, vision.patch_size, tuple(map(float, values["image_mean"])),
                tuple(map(float, values["image_std"])), bool(values["do_center_crop"]), vision.temporal_patch,
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / FILE}: {error}") from None

    def pixels(self, picture: np.ndarray) -> np.ndarray:
        """Normalised pixels, float64 (3, height, width), of a picture, uint8 (rows, columns, 3)."""
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise ValueError(f"picture must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}")
        pixels = np.asarray(self._resized(Image.fromarray(np.ascontiguousarray(picture))), np.float64) / 255
        return ((pixels - self.mean) / self.std).transpose(2, 0, 1)

    def patches(self, *pictures: np.ndarray) -> np.ndarray:
        """Patches of `frames` pictures, or of one that is repeated: BF16 bit patterns, see `golden.vision.patch_rows`.

        `pictures` : uint8 (rows, columns, 3) each
        """
        if len(pictures) not in (1, self.frames):
            raise ValueError(f"pictures must be 1 or {self.frames}, got {len(pictures)}")
        images = [self.pixels(picture) for picture in pictures]
        return patch_rows(np.stack(images * (self.frames // len(images)), axis=1), self.patch)

    def _resized(self, image: Image.Image) -> Image.Image:
        if not self.crop:
            return image.resize((self.width, self.height), Image.Resampling.BICUBIC)
        scale = max(self.width / image.width, self.height / image.height)
        width, height = max(self.width, round(image.width * scale)), max(self.height, round(image.height * scale))
        left, top = (width - self.width) // 2, (height - self.height) // 2
        return image.resize((width, height), Image.Resampling.BICUBIC).crop(
            (left, top, left + self.width, top + self.height)
        )
