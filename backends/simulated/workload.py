"""The work of a simulated accelerator: kernels on streams, a pure function of a seed.

Each stream is a sequence of slots of equal length, one kernel each: a host thread launches it early in its slot, it
begins after the launch and ends before the slot does. So kernels of a stream never overlap, launches of a thread
neither, and any stretch of any stream can be generated alone, vectorised, in any order.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.record import EVENT_DTYPE, NO_STEP, Block, Flag, Kind, empty_block
from stepscope.runtime.events.tracks import TrackKind

Times = NDArray[np.int64]

KERNELS = (
    "gemm_f16_128x256_tn",
    "gemm_f16_64x64_nn",
    "flash_attention_forward",
    "softmax_forward_f32",
    "layer_norm_forward_f32",
    "elementwise_add_f16",
    "elementwise_gelu_f16",
    "ncclDevKernel_AllReduce_Sum_f16_RING_LL",
)
LAUNCH = "cudaLaunchKernel"
FLOW = "ac2g"
"""Name and category of the arrow from a launch to its kernel, as torch writes it."""

_ID_SPACE = 1 << 62  # the recorder counts from 1: ids of simulated spans stay clear of its own
_DEVICE_BITS = 44  # flow ids stay below 2**53, which JavaScript viewers hold exactly


class Stretch(msgspec.Struct, frozen=True):
    """The kernels of consecutive slots of one stream; true times, in ns of the process's clock."""

    stream: int
    slots: NDArray[np.int64]
    """Numbers of the slots, counted from the opening of the device."""
    launched: Times
    launch_ns: int
    """Duration of every launch."""
    started: Times
    ran: Times
    """Durations of the kernels."""
    kernels: NDArray[np.int64]
    """Indices into `KERNELS`."""

    def __len__(self) -> int:
        return len(self.slots)


def scramble(numbers: NDArray[np.uint64], seed: int) -> NDArray[np.uint64]:
    """64 random-looking bits for each number (the finalizer of SplitMix64)."""
    h = numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(seed * 0xD1342543DE82EF95 + 1 & 0xFFFFFFFFFFFFFFFF)
    h ^= h >> np.uint64(30)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(27)
    h *= np.uint64(0x94D049BB133111EB)
    h ^= h >> np.uint64(31)
    return h


def chance(seed: int, *key: int) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    h = seed
    for part in key:
        h = (h ^ part) * 0x9E3779B97F4A7C15 + 0xD1342543DE82EF95 & 0xFFFFFFFFFFFFFFFF
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        h = (h ^ h >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        h ^= h >> 31
    return float(h >> 11) / 2.0**53


class Workload:
    """Kernels of every stream, and their events."""

    def __init__(self, streams: int, kernels_per_second: float, seed: int, device: int) -> None:
        self.streams = streams
        self.period = streams * 1e9 / kernels_per_second
        """Length of a slot, in ns."""
        self._seed = seed
        self._device = device
        self._flow_base = (device + 1) << _DEVICE_BITS
        parent = tracks.new(TrackKind.PROCESS, device, 0, f"simulated device {device}")
        self.stream_tracks = [
            tracks.new(TrackKind.STREAM, device, n + 1, f"stream {n + 1}", parent) for n in range(streams)
        ]
        # Outside the range of real thread ids (at most 2**22 on Linux).
        self.host_tracks = [
            tracks.new(
                TrackKind.THREAD, os.getpid(), (device + 1 << 24) + n, f"launches for stream {n + 1}", tracks.process()
            )
            for n in range(streams)
        ]
        self._names = np.array([strings.intern(name) for name in KERNELS], np.uint32)
        self._host_pair = self._pair(Kind.FLOW_START, LAUNCH, "cuda_runtime")
        self._device_pair = self._pair(Kind.FLOW_END, KERNELS[0], "kernel")

    def _pair(self, flow: Kind, name: str, category: str) -> NDArray[np.uint64]:
        """A span with a correlation id, and the end of a flow, as raw records."""
        pair: Any = empty_block(2)
        pair["kind"] = [Kind.SPAN, flow]
        pair["name"] = [strings.intern(name), strings.intern(FLOW)]
        pair["category"] = [strings.category(category), strings.category(FLOW)]
        pair["args_at"][0] = strings.intern("correlation")
        pair["flags"][0] = Flag.ARG_INLINE
        pair["step"] = NO_STEP
        return pair.view(np.uint64).reshape(2, 8)  # type: ignore[no-any-return]

    def correlations(self, stretch: Stretch) -> NDArray[np.int64]:
        """The ids that link launches, kernels and flows; unique on the device."""
        return stretch.slots * self.streams + stretch.stream + 1

    def slot_start(self, origin: int, number: int) -> int:
        """Begin of slot `number` of a recording that began at `origin`."""
        return origin + round(number * self.period)

    def stretch(self, stream: int, origin: int, base: int, first: int, last: int, stop: int | None) -> Stretch:
        """The kernels of slots [first, last) of a recording, counted from its `origin` (ns), of a stream that had `base` slots in earlier ones.

        Kernels that begin at `stop` or later are left out, and their launches with them."""
        local = np.arange(first, last, dtype=np.int64)
        h = scramble((local + base).astype(np.uint64) * np.uint64(self.streams) + np.uint64(stream), self._seed)

        def fraction(shift: int) -> NDArray[np.float64]:
            bits = (h >> np.uint64(shift)) & np.uint64(0xFFFF)
            return bits.astype(np.float64) / 65536.0

        starts = origin + np.rint(local * self.period).astype(np.int64)
        launched = starts + (fraction(0) * (0.1 * self.period)).astype(np.int64)
        started = starts + ((0.3 + 0.2 * fraction(16)) * self.period).astype(np.int64)
        ran = np.maximum(((0.2 + 0.25 * fraction(32)) * self.period).astype(np.int64), 1)
        n = len(local) if stop is None else int(np.searchsorted(started, stop))
        kernels = (h[:n] >> np.uint64(48)).astype(np.int64) % len(KERNELS)
        launch_ns = max(int(0.1 * self.period), 1)
        return Stretch(stream, local[:n] + base, launched[:n], launch_ns, started[:n], ran[:n], kernels)

    def host_block(self, stretch: Stretch) -> Block:
        """Launch spans and the beginnings of their flows, on the host's clock."""
        block, spans = self._fill(self._host_pair, stretch, stretch.launched, self.host_tracks[stretch.stream], 0)
        spans["dur"] = spans["self_dur"] = stretch.launch_ns
        return block

    def device_block(self, stretch: Stretch, started: Times, ran: Times) -> Block:
        """Kernel spans and the ends of their flows, with times as they were read from the device's clock."""
        block, spans = self._fill(self._device_pair, stretch, started, self.stream_tracks[stretch.stream], 1)
        spans["dur"] = spans["self_dur"] = ran
        spans["name"] = self._names[stretch.kernels]
        return block

    def _fill(
        self, pair: NDArray[np.uint64], stretch: Stretch, times: Times, track: int, side: int
    ) -> tuple[Block, Any]:
        raw = np.empty((len(stretch), 2, 8), np.uint64)
        raw[:] = pair
        block: Any = raw.reshape(-1).view(EVENT_DTYPE)
        spans, flows = block[0::2], block[1::2]
        correlation = self.correlations(stretch)
        spans["ts"] = flows["ts"] = times
        spans["id"] = correlation * 2 + (_ID_SPACE + (self._device << _DEVICE_BITS + 1) + side)
        spans["args_len"] = correlation & 0xFFFFFFFF
        flows["id"] = correlation + self._flow_base
        spans["track"] = flows["track"] = track
        return block, spans
