"""CodecSight: a stream is a sequence of windows, which take over keys and values and skip patches that did not move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from compiler.policies.base import TableSizes
from compiler.policies.full import FullPolicy
from golden.codecsight import CodecSightConfig
from hw.config import Config


@dataclass(frozen=True)
class CodecSightPolicy(FullPolicy):
    """CodecSight with windows of frames, each of which has a question of its own.

    Every query attends to all slots of its window up to its own. The fields are those of
    `golden.codecsight.CodecSightConfig`, in frames of the model. `compiler.window_session` has the rest.

    window, stride      frames of a window, and between two windows
    gop                 frames from one I-frame to the next
    mv_threshold        motion of a patch in pixels of the coded picture above which it is computed
    anchor              frames that are refreshed: `i_frames`, `none` or `all`
    force_first_anchor  the first frame of a window is always refreshed

    Source: CodecSight, Eq. 3 to 5; SPEC 4.
    """

    name: ClassVar[str] = "codecsight"
    windows: ClassVar[bool] = True
    window: int = 80
    stride: int = 16
    gop: int = 16
    mv_threshold: float = 0.25
    anchor: str = "i_frames"
    force_first_anchor: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefetch != "same_layer":
            raise ValueError(f"prefetch must be same_layer for policy {self.name}, got {self.prefetch!r}")
        if self.anchor in ("random", "topk"):
            raise ValueError(f"anchor must be one of i_frames, none, all for policy {self.name}, got {self.anchor!r}")
        self.rules()

    def rules(self, group: int = 1) -> CodecSightConfig:
        """Parameters of the method for a tower in which `group`**2 patches become one token."""
        return CodecSightConfig(
            window=self.window, stride=self.stride, gop=self.gop, mv_threshold=self.mv_threshold, anchor=self.anchor,
            force_first_anchor=self.force_first_anchor, group=group,
        )  # fmt: skip

    def sizes(self, config: Config, tokens: int, step: int) -> TableSizes:
        """The slots of a window; they are in no page."""
        if config.kv_bits != 16:
            raise ValueError(
                f"kv_bits must be 16 for policy {self.name}, which has no encoded pages, got {config.kv_bits}"
            )
        return TableSizes(tokens, 1, 1, 1)
