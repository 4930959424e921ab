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

MEANS = {"clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))}
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
FILE = "preprocessor_config.json"


@dataclass(frozen=True)
class ImageProcessor:
    """Preparation of pictures for a tower of a fixed image size.

    size, patch  sides of the image and of a patch in pixels
    mean, std    of each colour, of values from 0 to 1
    crop         True: the shorter side is resized and the middle is kept; False: both sides are resized
    """

    size: int
    patch: int
    mean: tuple[float, ...] = HALF[0]
    std: tuple[float, ...] = HALF[1]
    crop: bool = False

    def __post_init__(self) -> None:
        checks.integer("size", self.size, 1)
        checks.integer("patch", self.patch, 1, self.size)
        for name in ("mean", "std"):
            if len(getattr(self, name)) != 3:
                raise ValueError(f"{name} must have 3 colours, got {len(getattr(self, name))}")
        if min(self.std) <= 0:
            raise ValueError(f"std must be positive, got {self.std}")

    @classmethod
    def of_checkpoint(cls, folder: Path, vision: VisionSpec) -> ImageProcessor:
        """The processor of a checkpoint: `preprocessor_config.json`, or the values of its kind of tower.

        `ValueError` if the tower has no fixed image size or a value of the file is not valid.
        """
        if vision.image_size is None:
            raise ValueError(f"image_size of a {vision.kind} tower must be a number of pixels, got None")
        mean, std = MEANS.get(vision.kind, HALF)
        values: dict[str, Any] = {"image_mean": mean, "image_std": std, "do_center_crop": vision.kind == "clip"}
        if (folder / FILE).exists():
            values |= files.read_json(folder / FILE, "file")
        try:
            return cls(
                vision.image_size, vision.patch_size, tuple(map(float, values["image_mean"])),
                tuple(map(float, values["image_std"])), bool(values["do_center_crop"]),
            )  # fmt: skip
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / FILE}: {error}") from None

    def pixels(self, picture: np.ndarray) -> np.ndarray:
        """Normalised pixels, float64 (3, size, size), of a picture, uint8 (height, width, 3)."""
        if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
            raise ValueError(f"picture must be uint8 (height, width, 3), got {picture.dtype} {picture.shape}")
        pixels = np.asarray(self._resized(Image.fromarray(np.ascontiguousarray(picture))), np.float64) / 255
        return ((pixels - self.mean) / self.std).transpose(2, 0, 1)

    def patches(self, picture: np.ndarray) -> np.ndarray:
        """Patches of a picture, uint8 (height, width, 3): BF16 bit patterns, see `golden.vision.patch_rows`."""
        return patch_rows(self.pixels(picture), self.patch)

    def _resized(self, image: Image.Image) -> Image.Image:
        if not self.crop:
            return image.resize((self.size, self.size), Image.Resampling.BICUBIC)
        scale = self.size / min(image.size)
        width, height = (max(self.size, round(side * scale)) for side in image.size)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        return image.resize((width, height), Image.Resampling.BICUBIC).crop(
            (left, top, left + self.size, top + self.size)
        )
