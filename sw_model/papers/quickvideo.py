"""QuickVideo's figures: keyframe-parallel decoding, and its overlap with image processing and prefill.

The golden model gives the intervals, their order on the cores and the pipeline. The time of the prefill follows from
the operations of Qwen2.5-VL-7B on the A100 preset, as in CodecSight. The time of a processor core per frame is
measured: here, or by the authors in the log of their public repository.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import floor, sqrt

import numpy as np

from golden import quickvideo
from sw_model.papers.codecsight import ServedModel, prefill_s, vision_s
from sw_model.papers.vrex import Case, Value

# a film of 1080 lines, as in the authors' timing scripts, with the longest group of pictures of x264
FPS, KEYFRAME_FRAMES, SAMPLED_FPS = 24, 250, 1
# speedup of frame threads, in which a frame waits for the rows that it refers to: FFmpeg decodes 10 minutes of 1080
# lines in 49 s with one thread and in 9.8 s with 16, on 16 cores (github.com/meta-pytorch/torchcodec/issues/1639)
USEFUL_THREADS = 49 / 9.8
# "up to a minute for hour-long video inputs" (abstract) with such a decoder
FRAME_S = 60 * USEFUL_THREADS / (3600 * FPS)
# work of the public code besides decoding, in decoded frames of Big Buck Bunny scaled to 1080 lines, on any processor
# (`tests.sw_model.bench_decoding`): it opens the film and reads all packets, those of sound too, for each frame; it
# starts a process for each core, which opens the film again; it converts a sampled frame to RGB of 448 x 448; without
# groups it also copies the frame out of shared memory
OPEN_SHARE, SCAN_SHARE, START_SHARE, CONVERT_SHARE, COPY_SHARE = 3.2, 0.0020, 23, 0.53, 0.043
# time of the image processor per frame, alone and in a thread during the prefill (README of the public code)
PROCESSOR_S, PROCESSOR_OVERLAPPED_S = 15.17 / 1024, 10.44 / 1024
PAIR = 2  # frames that the vision encoder joins


def pair_tokens(frames: int, height: int = 1080, width: int = 1920, cell: int = 28) -> int:
    """Tokens of two frames with the pixel budget of Qwen2.5-VL: 90 % of 128,000 cells for the video, 128 to 768 cells
    for a pair; height and width are multiples of a cell."""
    limit = max(min(768, 0.9 * 128_000 * PAIR / frames), int(128 * 1.05))
    shrink = sqrt(height * width / (limit * cell**2))
    return floor(height / shrink / cell) * floor(width / shrink / cell)


def qwen(frames: int) -> ServedModel:
    """Qwen2.5-VL-7B for pairs of frames; four patches make a token."""
    tokens = pair_tokens(frames)
    return ServedModel(6.5e9, 28, 3584, tokens, 0.63e9, 32, 1280, 4 * tokens)


def sequential_s(minutes: float, cores: int) -> float:
    """Time to decode a film with one frame thread per core."""
    return minutes * 60 * FPS * FRAME_S / min(cores, USEFUL_THREADS)


@cache
def film(minutes: float) -> quickvideo.Scan:
    """The packets of a film."""
    frames = round(minutes * 60 * FPS)
    return quickvideo.scan((frame, frame % KEYFRAME_FRAMES == 0) for frame in range(frames))


def ready_s(minutes: float, cores: int, intervals: int, group: int) -> np.ndarray:
    """Times in seconds at which the groups of sampled frames are decoded, float64 (groups,).

    After scan and start every core decodes one interval after another.
    """
    stream = film(minutes)
    cut = quickvideo.intervals(stream, intervals)
    step = FPS // SAMPLED_FPS
    sample_s = (step + CONVERT_SHARE) * FRAME_S
    costs = [[sample_s] * round(len(quickvideo.members(stream, cut, i)) / step) for i in range(len(cut))]
    delta = (2 * OPEN_SHARE + SCAN_SHARE * len(stream.stamps) + START_SHARE) * FRAME_S
    return quickvideo.ready_times(costs, cores, group, delta=delta)


def decoding_gain(minutes: float, cores: int) -> float:
    """Speedup of QuickCodec with one interval per core over a sequential decoder with as many threads."""
    copy_s = COPY_SHARE * FRAME_S * minutes * 60 * SAMPLED_FPS
    return sequential_s(minutes, cores) / (float(ready_s(minutes, cores, cores, 1).max()) + copy_s)


# torchcodec's tutorial on parallel decoding, four builds of it: 16 decoders on 16 processors 7.5 times faster than one,
# 16 frame threads 1.9 to 2.9 times
CORES = (
    "video decoding: a core decodes as fast with 15 or 31 others as alone; torchcodec measured a ratio of 2.6 to 4.0"
    " between the same two methods on 16 processors"
)


def decoding(case: Case) -> Value:
    return [decoding_gain(60, cores) for cores in (16, 32)], None, "an hour of film on 16 and 32 cores", CORES


def durations(case: Case) -> Value:
    return [decoding_gain(minutes, 16) for minutes in (10, 60)], None, "10 and 60 minutes of film on 16 cores", CORES


def gap(case: Case) -> Value:
    """Speedup over seeking, which decodes half a group of pictures for each sample; QuickCodec decodes all frames
    between two samples."""
    group_s = 250 / 30
    value = [decoding_gain(60, cores) * group_s / 2 for cores in (16, 32)]
    return value, 1 < value[0] < 2 * group_s, "trend: the gap has the order of a group of pictures"


def end_to_end(case: Case) -> Value:
    """Half an hour of film: decoding, image processor and prefill in sequence, or as a pipeline of groups."""
    minutes, cores, intervals, group, keep_share = 30, 16, 64, 32, 0.2
    frames = minutes * 60 * SAMPLED_FPS
    model, pairs = qwen(frames), frames // PAIR
    sequential_prefill_s = vision_s(model, pairs) + prefill_s(model, pairs, pairs)
    baseline = sequential_s(minutes, cores) + frames * PROCESSOR_S + sequential_prefill_s

    ready = ready_s(minutes, cores, intervals, group)
    size = group // PAIR
    prefill = [vision_s(model, size) + prefill_s(model, size, size * (1 + keep_share * g)) for g in range(len(ready))]
    processed = quickvideo.pipeline(ready, np.full(len(ready), group * PROCESSOR_OVERLAPPED_S))
    overlapped = float(quickvideo.pipeline(processed, np.array(prefill))[-1])
    value = [baseline, overlapped, baseline - overlapped, float(ready[0])]
    comment = f"{pairs * model.tokens:.0f} tokens of Qwen2.5-VL-7B; start-up: until the first group is decoded"
    return value, None, comment, "video decoding: processor and image processor of the authors"


EVALUATORS: dict[str, Callable[[Case], Value]] = {
    "qv.decode": decoding,
    "qv.dur": durations,
    "qv.gap": gap,
    "qv.e2e": end_to_end,
}
