"""Admission of streams: the device of each stream, and the share of the device memory that its KV cache gets.

The device memory holds the weights, the buffers of two layers of fetched KV for the largest batch, and a pool. For each
stream the pool holds the data that the policy always keeps in device memory (mean keys, hash codes, representatives),
and the fetched KV that stays for the next step. The rest is divided equally: every stream of a device has the same
number of resident tokens, at most `resident_tokens` of the assumptions. Older tokens are offloaded.

A stream is refused when a device would have less than the tokens of one step for each stream. All sizes are those of
the longest context at the end of the run, so no stream is stopped later.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from sw_model.model import retained_share, weight_bytes
from sw_model.serving.arrivals import Arrivals
from sw_model.serving.parameters import FRAME, KINDS, Serving
from sw_model.serving.step_times import StepTimes


@dataclass(frozen=True)
class Device:
    """One device after admission.

    streams          numbers of its streams, ascending
    resident_tokens  newest tokens of each stream that stay in device memory
    memory_bytes     device memory in use at the end of the run
    """

    streams: np.ndarray
    resident_tokens: int
    memory_bytes: int


@dataclass(frozen=True)
class Admission:
    """The devices, and the refused streams with their reasons."""

    devices: tuple[Device, ...]
    refused: dict[int, str]


@dataclass(frozen=True)
class Pool:
    """Memory of one device: bytes of a number of streams whose contexts have at most `context` tokens."""

    times: StepTimes
    context: int
    batch: int

    @property
    def capacity_bytes(self) -> int:
        """Device memory."""
        return floor(self.times.system.device_memory.capacity_gb * 1e9)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in all layers."""
        return self.times.model.kv_bytes_per_token

    @property
    def stream_bytes(self) -> int:
        """Data of one stream that is always in device memory, without resident tokens."""
        times, layers, most = self.times, self.times.model.layers, 0.0
        for kind in range(len(KINDS)):
            one, two = (times.work(kind, self.context, n) for n in (1, 2))
            index = two.predict_read_bytes - one.predict_read_bytes  # without what all streams share
            always = max(0.0, one.attend_read_bytes - one.fetch_bytes)
            retained = retained_share(times.policy, times.system, one, times.assume) * one.fetch_bytes
            most = max(most, index + always + retained)
        return ceil(most * layers)

    def shared_bytes(self, streams: int) -> int:
        """Weights, and the buffers for the fetch of two layers of a batch."""
        model, batch = self.times.model, min(self.batch, streams)
        fetch = max(self.times.work(kind, self.context, batch).fetch_bytes for kind in range(len(KINDS)))
        return ceil(weight_bytes(model, self.times.assume) + 2 * fetch)

    def resident_tokens(self, streams: int) -> int:
        """Resident tokens of each of `streams` streams; negative if not even the other data fits."""
        free = self.capacity_bytes - self.shared_bytes(streams) - streams * self.stream_bytes
        least = max(self.times.new_tokens)
        return min(max(self.times.max_resident, least), free // (streams * self.token_bytes))

    def fits(self, streams: int) -> bool:
        """Whether every stream has room for the tokens of a step."""
        return self.resident_tokens(streams) >= max(self.times.new_tokens)

    def device(self, streams: list[int]) -> Device:
        """The device with these streams."""
        count = len(streams)
        if not count:
            return Device(np.zeros(0, np.int64), 0, self.shared_bytes(1))
        resident = self.resident_tokens(count)
        kept = min(resident, self.context)
        used = self.shared_bytes(count) + count * (self.stream_bytes + kept * self.token_bytes)
        return Device(np.array(streams, np.int64), min(resident, self.times.max_resident), used)


def admit(serving: Serving, arrivals: Arrivals, times: StepTimes, context: int, batch: int) -> Admission:
    """Assign each stream, in order of its number, to a device, or refuse it.

    context  tokens of every stream at the start
    batch    largest number of streams in a step
    """
    growth = arrivals.tokens_of(times.new_tokens[FRAME], serving.question_tokens)
    pool = Pool(times, context + int(growth.max(initial=0)), batch)
    most = largest(pool, arrivals.streams)
    frames = arrivals.frames_of()
    members: list[list[int]] = [[] for _ in range(serving.devices)]
    load = [0] * serving.devices
    refused: dict[int, str] = {}
    for stream in range(arrivals.streams):
        if serving.assignment == "hash":
            number = hash_of(stream) % serving.devices
        else:
            number = min(range(serving.devices), key=lambda d: (len(members[d]) >= most, load[d], len(members[d]), d))
        if len(members[number]) >= most:
            refused[stream] = f"memory: device {number} of {serving.devices} holds at most {most} streams"
            continue
        members[number].append(stream)
        load[number] += int(frames[stream])
    return Admission(tuple(map(pool.device, members)), refused)


def largest(pool: Pool, limit: int) -> int:
    """The largest number of streams up to `limit` that fit into one device; 0: none."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if pool.fits(middle) else (low, middle - 1)
    return low


def hash_of(stream: int) -> int:
    """A number from the number of a stream, the same on every machine."""
    return int.from_bytes(hashlib.sha256(str(stream).encode()).digest()[:8], "little")
