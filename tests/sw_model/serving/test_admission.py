"""Admission: the pool of the device memory, the assignment of streams, refusals."""

import numpy as np
import pytest

from sw_model.serving.admission import Pool, admit, hash_of, largest
from sw_model.serving.arrivals import Arrivals, generate
from sw_model.serving.parameters import Serving
from sw_model.serving.simulate import simulate
from sw_model.workloads import LLAMA3_8B

TOKEN = LLAMA3_8B.kv_bytes_per_token


def admission(times, context=20000, batch=16, **values):
    serving = Serving(seconds=1, questions_per_minute=0, **values)
    return admit(serving, generate(serving), times, context, batch)


def test_resident_tokens_follow_from_the_pool(linear_times):
    """Few streams have the tokens of the assumption; more streams divide the pool; too many are refused."""
    times = linear_times(resident_tokens=4096)
    pool = Pool(times, 20020, 16)
    most = largest(pool, 1000)
    resident = [pool.resident_tokens(n) for n in range(1, most + 2)]
    assert resident[0] == 4096 and resident == sorted(resident, reverse=True)
    assert resident[most - 1] >= 25 > resident[most]
    assert 25 < resident[most - 2] < 4096
    for count in (1, most // 2, most):
        (device,) = admission(times, streams=count).devices
        assert device.resident_tokens == resident[count - 1] and len(device.streams) == count
        assert device.memory_bytes <= 32e9
        if device.resident_tokens < 4096:  # the pool is used up to a token of each stream
            assert 32e9 - device.memory_bytes < count * TOKEN
    refused = admission(times, streams=most + 3).refused
    assert list(refused) == [most, most + 1, most + 2]
    assert refused[most] == f"memory: device 0 of 1 holds at most {most} streams"


def test_memory_of_one_stream(linear_times):
    """Weights, buffers of two layers, mean keys and hash codes, retained and resident KV; computed by hand for ReSV."""
    times = linear_times()
    (device,) = admission(times, streams=1, context=16000).devices
    context = 16020
    clusters, selected = -(-context // 32), 0.327 * context  # V-Rex Table II, frames
    frame = times.work(0, context, 1)
    assert frame.attended_tokens == pytest.approx(selected, rel=0.01)
    weights = 2 * (LLAMA3_8B.params + LLAMA3_8B.vision.params)
    expected = weights + 2 * frame.attended_tokens * LLAMA3_8B.kv_bytes
    expected += clusters * (2 * 1024 + 12) * 32 + 0.31 * frame.attended_tokens * TOKEN + 4096 * TOKEN
    assert device.memory_bytes == pytest.approx(expected, rel=1e-3)


def test_policies_that_offload_everything(linear_times):
    (device,) = admission(linear_times(policy="full"), streams=2).devices
    assert device.resident_tokens == 0


def test_no_room_for_the_weights(linear_times):
    times = linear_times()
    times.system = times.system.replace(device_memory={"capacity_gb": 16})
    serving = Serving(streams=2)
    result = simulate(serving, times, 1000, 4)
    assert set(result.admission.refused) == {0, 1} and not result.served.any() and not result.holds()
    row = result.figures()
    assert row["refused_streams"] == 2 and row["refused_frames"] == row["frames"] and row["frame_p99_ms"] is None


def test_assignment(linear_times):
    """A stream goes to the device with the fewest frames, or to that of its hash."""
    frames = np.repeat([0, 1, 2, 3], [9, 2, 3, 4])
    zeros = np.zeros(len(frames), np.int64)
    arrivals = Arrivals(4, np.arange(len(frames)), frames, zeros, zeros)
    devices = admit(Serving(streams=4, devices=2), arrivals, linear_times(), 100, 4).devices
    assert [device.streams.tolist() for device in devices] == [[0], [1, 2, 3]]
    hashed = admit(Serving(streams=4, devices=2, assignment="hash"), arrivals, linear_times(), 100, 4).devices
    assert [d.streams.tolist() for d in hashed] == [[s for s in range(4) if hash_of(s) % 2 == d] for d in (0, 1)]
    assert [hash_of(s) % 8 for s in range(6)] == [7, 3, 4, 6, 3, 7]  # the same on every machine


def test_full_device_is_skipped(linear_times):
    """With two devices twice as many streams fit; then all others are refused."""
    times = linear_times()
    one = 500 - len(admission(times, streams=500).refused)
    two = admission(times, streams=500, devices=2)
    assert [len(device.streams) for device in two.devices] == [one, one] and len(two.refused) == 500 - 2 * one
