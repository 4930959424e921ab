"""QuickVideo's figures: keyframe-parallel decoding, and its overlap with image processing and prefill.

Intervals, their order on the cores and the pipeline are the golden model's; the prefill is counted in operations of
Qwen2.5-VL-7B on the A100 preset, as CodecSight's is. What a processor core does per frame is measured: here, or by the
authors in the log that their public repository prints.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import floor, sqrt

import numpy as np

from golden import quickvideo
from sw_model.papers.codecsight import Served, prefill_s, vision_s
from sw_model.papers.vrex import Case, Value

# a film of 1080 lines, as the authors' timing scripts read, with x264's longest group of pictures
FPS, KEYFRAME_FRAMES, SAMPLED_FPS = 24, 250, 1
# what frame threads gain, for a frame waits for the rows it refers to: 10 minutes of 1080 lines in 49 s with one
# thread of FFmpeg and in 9.8 s with 16, on 16 cores (github.com/meta-pytorch/torchcodec/issues/1639)
USEFUL_THREADS = 49 / 9.8
# "up to a minute for hour-long video inputs" (abstract) with such a decoder
FRAME_S = 60 * USEFUL_THREADS / (3600 * FPS)
# what the public code does beside decoding, in decoded frames of Big Buck Bunny scaled to 1080 lines, whatever the
# processor (`tests.sw_model.bench_decoding`): it opens the film and reads all packets, of sound too, for each frame;
# starts a process for each core, which opens the film again; makes a sampled frame RGB of 448 x 448 and, unless groups
# are handed on, copies it out of shared memory
OPEN_SHARE, SCAN_SHARE, START_SHARE, CONVERT_SHARE, COPY_SHARE = 3.2, 0.0020, 23, 0.53, 0.043
# what the image processor took for 1024 frames alone, and in a thread beside the prefill (README of the public code)
PROCESSOR_S, PROCESSOR_BESIDE_S = 15.17 / 1024, 10.44 / 1024
PAIR = 2  # frames that the vision encoder joins into one


def pair_tokens(frames: int, height: int = 1080, width: int = 1920, cell: int = 28) -> int:
    """Tokens of two frames under Qwen2.5-VL's budget of pixels: 90 % of 128,000 cells for the video, 128 to 768 cells
    for a pair, sides whole cells."""
    limit = max(min(768, 0.9 * 128_000 * PAIR / frames), int(128 * 1.05))
    shrink = sqrt(height * width / (limit * cell**2))
    return floor(height / shrink / cell) * floor(width / shrink / cell)


def qwen(frames: int) -> Served:
    """Qwen2.5-VL-7B, a pair of frames at a time; four patches make a token."""
    tokens = pair_tokens(frames)
    return Served(6.5e9, 28, 3584, tokens, 0.63e9, 32, 1280, 4 * tokens)


def sequential_s(minutes: float, cores: int) -> float:
    """Decoding a film with a thread per core, each of which takes a frame."""
    return minutes * 60 * FPS * FRAME_S / min(cores, USEFUL_THREADS)


@cache
def film(minutes: float) -> quickvideo.Scan:
    frames = round(minutes * 60 * FPS)
    return quickvideo.scan((frame, frame % KEYFRAME_FRAMES == 0) for frame in range(frames))


def ready_s(minutes: float, cores: int, intervals: int, group: int) -> np.ndarray:
    """When each group of sampled frames is decoded: after scan and start, every core one interval after the other."""
    stream = film(minutes)
    cut = quickvideo.intervals(stream, intervals)
    step = FPS // SAMPLED_FPS
    sample_s = (step + CONVERT_SHARE) * FRAME_S
    costs = [[sample_s] * round(len(quickvideo.members(stream, cut, i)) / step) for i in range(len(cut))]
    delta = (2 * OPEN_SHARE + SCAN_SHARE * len(stream.stamps) + START_SHARE) * FRAME_S
    return quickvideo.ready_times(costs, cores, group, delta=delta)


def decoding_gain(minutes: float, cores: int) -> float:
    """QuickCodec, one interval a core, over a sequential decoder with as many threads."""
    copy_s = COPY_SHARE * FRAME_S * minutes * 60 * SAMPLED_FPS
    return sequential_s(minutes, cores) / (float(ready_s(minutes, cores, cores, 1).max()) + copy_s)


# torchcodec's tutorial on parallel decoding, four builds of it: 16 decoders on 16 processors 7.5 times faster than one,
# 16 frame threads 1.9 to 2.9 times
CORES = (
    "video decoding: a core that decodes beside 15 or 31 others is as fast as alone; the same two methods, measured by"
    " torchcodec on 16 processors, differ by 2.6 to 4.0"
)


def decoding(case: Case) -> Value:
    return [decoding_gain(60, cores) for cores in (16, 32)], None, "an hour of film on 16 and 32 cores", CORES


def durations(case: Case) -> Value:
    return [decoding_gain(minutes, 16) for minutes in (10, 60)], None, "10 and 60 minutes of film on 16 cores", CORES


def gap(case: Case) -> Value:
    """Seeking decodes half a group of pictures for each sample, QuickCodec everything between two samples, so much
    faster."""
    group_s = 250 / 30
    value = [decoding_gain(60, cores) * group_s / 2 for cores in (16, 32)]
    return value, 1 < value[0] < 2 * group_s, "trend: the gap is of the order of a group of pictures"


def end_to_end(case: Case) -> Value:
    """Half an hour of film: decoding, image processor and prefill one after the other, or as a pipeline of groups."""
    minutes, cores, intervals, group, kept = 30, 16, 64, 32, 0.2
    frames = minutes * 60 * SAMPLED_FPS
    model, pairs = qwen(frames), frames // PAIR
    whole = vision_s(model, pairs) + prefill_s(model, pairs, pairs)
    baseline = sequential_s(minutes, cores) + frames * PROCESSOR_S + whole

    ready = ready_s(minutes, cores, intervals, group)
    size = group // PAIR
    prefill = [vision_s(model, size) + prefill_s(model, size, size * (1 + kept * g)) for g in range(len(ready))]
    processed = quickvideo.pipeline(ready, np.full(len(ready), group * PROCESSOR_BESIDE_S))
    overlapped = float(quickvideo.pipeline(processed, np.array(prefill))[-1])
    value = [baseline, overlapped, baseline - overlapped, float(ready[0])]
    says = f"{pairs * model.tokens:.0f} tokens of Qwen2.5-VL-7B; start-up: until the first group is decoded"
    return value, None, says, "video decoding: processor and image processor of the authors"


EVALUATORS: dict[str, Callable[[Case], Value]] = {
    "qv.decode": decoding,
    "qv.dur": durations,
    "qv.gap": gap,
    "qv.e2e": end_to_end,
}
