"""CodecSight: uses motion vectors of the video codec to skip patches and to reuse keys and values.

Three parts in the order of a stream: motion masks from the decoder's motion vectors (Eq. 3 and 4), window plans that
say which frames a sliding window reuses, and selective refresh of the reused keys and values (Eq. 5). Masks are
computed with integers; the refresh runs on the float64 decoder of `golden.reference_decoder`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from golden.reference_decoder import Decoder, DecoderConfig, KVCache, LayerInput, attention, embeddings
from util import checks

RECTANGLE = ("w", "h", "dst_x", "dst_y")
FIELDS = (*RECTANGLE, "motion_x", "motion_y", "motion_scale")
COMPUTE, REFRESH, REUSE = "compute", "refresh", "reuse"
ACTIONS = (COMPUTE, REFRESH, REUSE)


@dataclass(frozen=True)
class CodecSightConfig:
    """Parameters of the method. Window, stride and group of pictures (GOP) count sampled frames.

    window, stride     frames of a window; frames between two windows
    gop                frames from one I-frame to the next
    mv_threshold       motion of a patch in pixels of the coded picture above which it is dynamic
    mv_compare         `gt` or `ge`: comparison with mv_threshold
    alpha              weight of the residual in the motion measure (0: motion only)
    resample           reduction of codec blocks to a patch: `max`, `mean` (by area) or `nearest` (centre)
    group              side, in patches, of the square that becomes one token
    uncovered_dynamic  True: a patch without a motion vector (intra coded) is dynamic; False: it has no motion, and its
                       residual alone decides
    force_first_anchor True: the first reused frame of a window is always refreshed
    anchor             frames to refresh: `i_frames`, `none`, `all`, `random` or `topk`; the last two choose as many
                       frames as there are I-frames in the overlap
    """

    window: int = 80
    stride: int = 16
    gop: int = 16
    mv_threshold: float = 0.25
    mv_compare: str = "gt"
    alpha: float = 0
    resample: str = "max"
    group: int = 2
    uncovered_dynamic: bool = True
    force_first_anchor: bool = True
    anchor: str = "i_frames"

    def __post_init__(self) -> None:
        checks.one_of("mv_compare", self.mv_compare, ("gt", "ge"))
        checks.one_of("resample", self.resample, ("max", "mean", "nearest"))
        checks.one_of("anchor", self.anchor, ("i_frames", "none", "all", "random", "topk"))
        for name in ("window", "gop", "group"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("stride", self.stride, 1, self.window)
        checks.real("mv_threshold", self.mv_threshold, 0)
        checks.real("alpha", self.alpha, 0)


# -- motion masks


class MotionMask:
    """Dynamic patches of a video stream, frame by frame in decoding order.

    coded    (width, height) of the coded picture in pixels
    resized  (width, height) of the picture for the vision encoder in pixels
    patch    side of a square patch in pixels

    Masks are bool (rows, columns) over the patches.
    """

    def __init__(self, config: CodecSightConfig, coded: tuple[int, int], resized: tuple[int, int], patch: int):
        self.config = config
        for name, size in (("coded", coded), ("resized", resized)):
            if len(size) != 2:
                raise ValueError(f"{name} must be (width, height), got {size}")
        self.coded = tuple(checks.integer("coded", side, 1) for side in coded)
        self.resized = tuple(checks.integer("resized", side, 1) for side in resized)
        self.patch = checks.integer("patch", patch, 1)
        step = patch * config.group
        if any(side % step for side in self.resized):
            raise ValueError(f"resized must be a multiple of {step} pixels, got {resized}")
        self.shape = (resized[1] // patch, resized[0] // patch)
        self._since_i = np.zeros(self.shape, bool)
        self._started = False

    def motion(self, vectors: np.ndarray) -> np.ndarray:
        """Motion of each patch in pixels of the coded picture: float64 (rows, columns), -1 where no codec block is.

        `vectors` is FFmpeg's export, a structured array with the fields of `FIELDS`: `dst` is the centre of a w x h
        block that moved by `motion / motion_scale` pixels. For blocks with two vectors (B-frames) the longer vector
        counts.
        """
        check_vectors(vectors)
        x, y, scale = (vectors[name].astype(np.int64) for name in ("motion_x", "motion_y", "motion_scale"))
        return self._resample(_rectangles(vectors), np.sqrt(x * x + y * y) / scale)

    def dynamic(
        self,
        vectors: np.ndarray,
        residual: np.ndarray | None = None,
        intra: np.ndarray | None = None,
        intra_residual: np.ndarray | None = None,
    ) -> np.ndarray:
        """Eq. 3 and 4: patches of one P- or B-frame that moved, bool (rows, columns).

        vectors         motion vectors as in `motion`; an array of length 0 if the frame has none
        residual        one value for each vector: the sum of absolute differences of its block, at least 0, in any
                        unit; required when `alpha` is not 0
        intra           intra-coded blocks, which have no vector: structured array with the fields of `RECTANGLE`;
                        None: none
        intra_residual  one value for each intra block, as `residual`; required when `alpha` is not 0

        The motion of a patch comes from its vectors, its residual from all its blocks.
        """
        measure = self.motion(vectors)
        decided = measure >= 0
        blocks = _rectangles(vectors)
        if intra is not None:
            check_vectors(intra, RECTANGLE, "intra")
            blocks = np.concatenate([blocks, _rectangles(intra)])
        if self.config.alpha:
            if residual is None:
                raise ValueError(f"residual must not be None when alpha is {self.config.alpha}")
            values = _residuals("residual", residual, len(vectors))
            if intra is not None and len(intra):
                if intra_residual is None:
                    raise ValueError("intra_residual must not be None when intra has blocks and alpha is not 0")
                values = np.concatenate([values, _residuals("intra_residual", intra_residual, len(intra))])
            patch_residual = self._resample(blocks, values)
            measure = np.maximum(measure, 0) + self.config.alpha * np.maximum(patch_residual, 0)
            if not self.config.uncovered_dynamic:
                decided |= patch_residual >= 0
        over = np.greater if self.config.mv_compare == "gt" else np.greater_equal
        out = np.full(self.shape, self.config.uncovered_dynamic)
        out[decided] = over(measure[decided], self.config.mv_threshold)
        return out

    def update(
        self,
        kind: str,
        vectors: np.ndarray,
        residual: np.ndarray | None = None,
        intra: np.ndarray | None = None,
        intra_residual: np.ndarray | None = None,
    ) -> np.ndarray:
        """Mask of the next frame of kind `I`, `P` or `B`; the other arguments are those of `dynamic`.

        All patches of an I-frame are dynamic. For other frames, patches that moved since the last I-frame are dynamic.
        """
        if checks.one_of("kind", kind, ("I", "P", "B")) == "I":
            self._since_i = np.zeros(self.shape, bool)
            self._started = True
            return np.ones(self.shape, bool)
        if not self._started:
            raise ValueError(f"kind must be I for the first frame, got {kind!r}")
        self._since_i |= self.dynamic(vectors, residual, intra, intra_residual)
        return self._since_i.copy()

    def _resample(self, blocks: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Reduce one non-negative value per codec block to one value per patch; -1 where no block is.

        Block [x0, x1) and patch column p overlap iff x0 * rw < (p + 1) * P * W and x1 * rw > p * P * W, all in
        integers; rows likewise.
        """
        blocks, value = _longest_per_block(blocks, value)
        rows, columns = self.shape
        wide, tall, x_centre, y_centre = blocks.T
        left, right = _extent(x_centre, wide)
        top, bottom = _extent(y_centre, tall)
        if self.config.resample == "nearest":
            return self._at_centres(left, right, top, bottom, value)
        x = _Span(left, right, self.resized[0], self.patch * self.coded[0], columns)
        y = _Span(top, bottom, self.resized[1], self.patch * self.coded[1], rows)
        max_motion = np.full(self.shape, -1.0)
        total, area = np.zeros(self.shape), np.zeros(self.shape)
        for i in range(y.longest):
            for j in range(x.longest):
                row, in_row, height = y.step(i)
                column, in_column, width = x.step(j)
                overlap = in_row & in_column
                at = (row[overlap], column[overlap])
                np.maximum.at(max_motion, at, value[overlap])
                np.add.at(area, at, (height * width)[overlap])
                np.add.at(total, at, (height * width * value)[overlap])
        if self.config.resample == "max":
            return max_motion
        return np.divide(total, area, out=max_motion, where=area > 0)

    def _at_centres(
        self, left: np.ndarray, right: np.ndarray, top: np.ndarray, bottom: np.ndarray, value: np.ndarray
    ) -> np.ndarray:
        out = np.full(self.shape, -1.0)
        for row, column in np.ndindex(self.shape):
            x = (2 * column + 1) * self.patch * self.coded[0]  # centre, in units of 1 / (2 * resized)
            y = (2 * row + 1) * self.patch * self.coded[1]
            in_frame = (2 * left * self.resized[0] <= x) & (x < 2 * right * self.resized[0])
            in_frame &= (2 * top * self.resized[1] <= y) & (y < 2 * bottom * self.resized[1])
            if in_frame.any():
                out[row, column] = value[in_frame].max()
        return out


class _Span:
    """Patches that each codec block overlaps along one axis, computed with integers."""

    def __init__(self, low: np.ndarray, high: np.ndarray, resized: int, pitch: int, count: int):
        self.low, self.high, self.pitch = low * resized, high * resized, pitch
        self.first = np.maximum(self.low // pitch, 0)
        self.last = np.minimum(-(-self.high // pitch) - 1, count - 1)
        self.longest = int((self.last - self.first).max(initial=-1)) + 1

    def step(self, i: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The i-th patch of every block, whether this patch exists, and their overlap in units of 1 / resized."""
        patch = self.first + i
        overlap = np.minimum(self.high, (patch + 1) * self.pitch) - np.maximum(self.low, patch * self.pitch)
        return patch, patch <= self.last, overlap


def check_vectors(vectors: np.ndarray, fields: Sequence[str] = FIELDS, name: str = "vectors") -> None:
    """Check motion vectors or intra blocks.

    Raises ArgumentTypeError if the array is not structured or lacks one of `fields`, ValueError if a scale or size is
    not positive.
    """
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 1:
        raise checks.ArgumentTypeError(
            f"{name} must be a structured array of one axis with the fields {', '.join(fields)}, got {vectors!r}"
        )
    names = vectors.dtype.names or ()
    if missing := [field for field in fields if field not in names]:
        raise checks.ArgumentTypeError(f"{name} must have the fields {', '.join(fields)}, lacks {', '.join(missing)}")
    for field in fields:
        if not np.issubdtype(vectors[field].dtype, np.integer):
            raise checks.ArgumentTypeError(
                f"{name} must have integer fields, got dtype {vectors[field].dtype} for {field}"
            )
        if field in ("w", "h", "motion_scale") and (vectors[field] <= 0).any():
            index = int(np.argmax(vectors[field] <= 0))
            raise ValueError(f"{name} must have {field} above 0, got {vectors[field][index]} at index {index}")


def _residuals(name: str, residual: np.ndarray, count: int) -> np.ndarray:
    values = checks.reals(name, residual, count)
    if (values < 0).any():
        index = int(np.argmax(values < 0))
        raise ValueError(f"{name} must be at least 0, got {values[index]} at index {index}")
    return values


def _rectangles(vectors: np.ndarray) -> np.ndarray:
    """Width, height and centre of each block, int64 (n, 4)."""
    return np.stack([vectors[name].astype(np.int64) for name in RECTANGLE], axis=1)


def _extent(centre: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    low = centre - size // 2
    return low, low + size


def _longest_per_block(blocks: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distinct blocks (n, 4) and the largest value of those with the same position and size."""
    distinct, block_index = np.unique(blocks, axis=0, return_inverse=True)
    longest = np.full(len(distinct), -np.inf)
    np.maximum.at(longest, block_index, value)
    return distinct, longest


def complete_groups(mask: np.ndarray, group: int) -> np.ndarray:
    """Groups of `group` x `group` patches with at least one dynamic patch: bool (rows / group, columns / group)."""
    checks.integer("group", group, 1)
    if np.ndim(mask) != 2:
        raise ValueError(f"mask must have two axes, got shape {np.shape(mask)}")
    rows, columns = mask.shape
    if rows % group or columns % group:
        raise ValueError(f"mask must have multiples of {group} patches, got {rows} x {columns} patches")
    squares = mask.reshape(rows // group, group, columns // group, group)
    return np.logical_or.reduce(squares, axis=(1, 3))


def patch_mask(groups: np.ndarray, group: int) -> np.ndarray:
    """Patches that the vision encoder processes: all patches of the selected groups, bool (rows, columns)."""
    checks.integer("group", group, 1)
    return groups.repeat(group, axis=0).repeat(group, axis=1)


def restore(features: np.ndarray, mask: np.ndarray, fill: float = 0.0) -> np.ndarray:
    """Write features (n, D) of the selected positions, in row-major order, into an array (rows, columns, D).

    `fill` is the value at all other positions.
    """
    if np.asarray(mask).dtype != bool:
        raise checks.ArgumentTypeError(f"mask must be an array of bool, got {np.asarray(mask).dtype}")
    if len(features) != np.count_nonzero(mask):
        raise ValueError(f"features must be one per selected position ({np.count_nonzero(mask)}), got {len(features)}")
    features = checks.reals("features", features)
    out = np.full((*mask.shape, *features.shape[1:]), checks.real("fill", fill))
    out[mask] = features
    return out


# -- windows


def window_plan(
    index: int,
    config: CodecSightConfig,
    scores: Sequence[float] | None = None,
    rng: np.random.Generator | None = None,
) -> dict[int, str]:
    """Action of window `index` for each of its frames: `compute`, `refresh` or `reuse`, by frame number.

    `scores` (one per overlapped frame, for anchor `topk`) and `rng` (for anchor `random`) choose as many frames as
    there are I-frames in the overlap.
    """
    start = checks.integer("index", index, 0) * config.stride
    frames = range(start, start + config.window)
    if index == 0:
        return dict.fromkeys(frames, COMPUTE)
    overlap = list(frames[: config.window - config.stride])
    plan = {f: REUSE if f < start + len(overlap) else COMPUTE for f in frames}
    for f in _anchors(overlap, config, scores, rng):
        plan[f] = REFRESH
    if config.force_first_anchor and overlap:
        plan[overlap[0]] = REFRESH
    return plan


def _anchors(
    overlap: list[int],
    config: CodecSightConfig,
    scores: Sequence[float] | None,
    rng: np.random.Generator | None,
) -> list[int]:
    i_frames = [f for f in overlap if f % config.gop == 0]
    if config.anchor == "i_frames":
        return i_frames
    if config.anchor in ("none", "all"):
        return overlap if config.anchor == "all" else []
    if config.anchor == "random":
        if rng is None:
            raise ValueError("rng must not be None for anchor 'random'")
        return sorted(int(f) for f in rng.choice(overlap, len(i_frames), replace=False))
    if scores is None:
        raise ValueError("scores must not be None for anchor 'topk'")
    ranked = np.argsort(-checks.reals("scores", scores, len(overlap)), kind="stable")
    return sorted(overlap[i] for i in ranked[: len(i_frames)])


def processed_fraction(plan: dict[int, str], gop: int, pruned: Fraction | float) -> Fraction:
    """Share of a window's tokens that are processed, if a share `pruned` of every computed P-frame is static."""
    if not plan:
        raise ValueError("plan must have at least one frame, got none")
    checks.integer("gop", gop, 1)
    share = pruned if isinstance(pruned, Fraction) else Fraction(checks.real("pruned", pruned))
    if not 0 <= share <= 1:
        raise ValueError(f"pruned must be between 0 and 1, got {pruned}")
    work = Fraction(0)
    for frame, action in plan.items():
        if action != REUSE:
            work += 1 if action == REFRESH or frame % gop == 0 else 1 - share
    return work / len(plan)


# -- selective refresh


@dataclass(frozen=True)
class TokenLayout:
    """Token order of a window: `prefix` tokens, the tokens of the frames in order, `text` tokens."""

    prefix: int
    frames: dict[int, int]  # tokens of each frame, by frame number, ascending
    text: int

    def __post_init__(self) -> None:
        checks.integer("prefix", self.prefix, 0)
        checks.integer("text", self.text, 0)
        for frame, count in self.frames.items():
            checks.integer(f"frames[{frame}]", count, 0)
        if list(self.frames) != sorted(self.frames):
            raise ValueError(f"frames must ascend, got {list(self.frames)}")

    @property
    def slots(self) -> int:
        """Tokens of the window."""
        return self.prefix + sum(self.frames.values()) + self.text

    def of(self, frame: int) -> np.ndarray:
        """Token positions of a frame in the window."""
        if frame not in self.frames:
            raise ValueError(f"frame must be one of {', '.join(map(str, self.frames))}, got {frame}")
        start = self.prefix + sum(n for f, n in self.frames.items() if f < frame)
        return np.arange(start, start + self.frames[frame])


def carry_over(
    old: KVCache,
    old_layout: TokenLayout,
    new_layout: TokenLayout,
    plan: dict[int, str],
    config: DecoderConfig,
    temporal: float = 1,
) -> tuple[KVCache, np.ndarray]:
    """Cache of the next window with the reused entries, and the slots to compute, int64 ascending.

    The prefix does not change. Reused frames keep their values. Their keys are rotated by `p_new - p_old` (Eq. 5),
    minus the tokens of the frames that left the window. With several position axes, height and width of a token do not
    change, and its time moves by `temporal` for each frame that left. `old` has at least the slots of `old_layout`.
    """
    checks.real("temporal", temporal)
    if old_layout.prefix != new_layout.prefix:
        raise ValueError(f"new_layout must have a prefix of {old_layout.prefix} tokens, got {new_layout.prefix}")
    for frame in new_layout.frames:
        if frame not in plan:
            raise ValueError(f"plan must have an action for every frame of new_layout, lacks frame {frame}")
        checks.one_of(f"plan[{frame}]", plan[frame], ACTIONS)
    reused = [np.arange(new_layout.prefix)]
    sources = [np.arange(new_layout.prefix)]
    for frame in new_layout.frames:
        if plan[frame] == REUSE:
            if frame not in old_layout.frames:
                present = f"frames {', '.join(map(str, old_layout.frames))}" if old_layout.frames else "no frames"
                raise ValueError(f"old_layout must have reused frame {frame}, got {present}")
            if old_layout.frames[frame] != new_layout.frames[frame]:
                raise ValueError(
                    f"old_layout must have {new_layout.frames[frame]} tokens for reused frame {frame}, "
                    f"got {old_layout.frames[frame]}"
                )
            reused.append(new_layout.of(frame))
            sources.append(old_layout.of(frame))
    old.check(config, "old")
    for layer, keys in enumerate(old.k):
        if len(keys) < old_layout.slots:
            raise ValueError(f"old.k[{layer}] must have at least {old_layout.slots} slots, got {len(keys)}")
    cache = KVCache.empty(config, new_layout.slots)
    to, source = np.concatenate(reused), np.concatenate(sources)
    shift = (to - source).astype(np.float64)[:, None]
    if config.sections is not None:
        left = sum(1 for f in old_layout.frames if f < min(new_layout.frames, default=0))
        steps = np.where(to < new_layout.prefix, 0.0, -temporal * left)
        shift = np.stack([steps] + [np.zeros(len(to))] * (len(config.sections) - 1), axis=1)[:, None, :]
    for layer in range(config.layers):
        cache.k[layer][to] = config.rotate(old.k[layer][source], shift)
        cache.v[layer][to] = old.v[layer][source]
    active = np.ones(new_layout.slots, bool)
    active[to] = False
    return cache, np.flatnonzero(active)


def refresh(decoder: Decoder, x: np.ndarray, positions: np.ndarray, slots: np.ndarray, cache: KVCache) -> np.ndarray:
    """Recompute the active tokens layer by layer; returns their hidden states (A, hidden).

    x          (A, hidden), embeddings of the active tokens
    positions  RoPE positions of the active tokens
    slots      int (A,), ascending: their positions in `cache`, which receives their keys and values

    Each active token attends to every slot up to its own. A refused call does not change the cache.
    """
    x = embeddings("x", x, decoder.config)
    cache.check(decoder.config)
    cache.check(decoder.config, slots=len(cache.k[0]))
    slot_ids = checks.integers("slots", slots, len(x), low=0, high=len(cache.k[0]) - 1)
    if (np.diff(slot_ids) <= 0).any():
        raise ValueError(f"slots must be strictly ascending, got {slot_ids.tolist()}")
    allowed = np.arange(len(cache.k[0])) <= slot_ids[:, None]

    def attend(new: LayerInput) -> tuple[np.ndarray, None]:
        cache.k[new.layer][slot_ids] = new.k
        cache.v[new.layer][slot_ids] = new.v
        return attention(new.q, cache.k[new.layer], cache.v[new.layer], allowed), None

    return decoder.run(x, positions, attend)
