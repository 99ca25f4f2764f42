"""An accelerator that does not exist, and delivers activity as real ones do: late, in bursts, on its own clock."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import anyio
import anyio.lowlevel
import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.backends.simulated.workload import Workload, chance
from stepscope.runtime.errors import BackendError
from stepscope.runtime.events import clock as process_clock
from stepscope.runtime.events.clock import ClockMapping
from stepscope.runtime.schedule.action import ProfilerAction
from stepscope.runtime.settings.arguments import number_argument
from stepscope.runtime.sources.sink import BackendReport, Sink

READINGS = 64
"""Pairs of readings to which the mapping is fitted; older ones are forgotten, as real clocks change their rate."""


class DeviceClock:
    """A clock that is off by `skew` ns, drifts by `drift` ppm, and can be read with an error of up to `error` ns."""

    def __init__(self, ours: Callable[[], int], skew: int, drift: float, error: int, seed: int) -> None:
        self._ours, self._skew, self._rate, self._error, self._seed = ours, skew, drift * 1e-6, error, seed
        self._origin = ours()
        self._count = 0
        self._pairs: deque[tuple[int, int, int]] = deque(maxlen=READINGS)
        self.mapping = ClockMapping(0, 0)
        """The map of its times to ours, fitted to the readings so far. An event between the first and the last of them is
        mapped to within `error_ns` of its true time: the fit is off by a linear function, which is largest at an end, and there
        by at most what that pair is off the line plus that pair's own error."""
        self.read()

    def stamp(self, times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The device's times for these times of the process."""
        drifted: NDArray[np.int64] = np.rint((times - self._origin) * self._rate).astype(np.int64)
        return times + (drifted + self._skew)

    def read(self) -> None:
        """Reads both clocks together and fits the mapping anew.

        Of a few tries the one counts that took the shortest: a thread that is put aside in between spoils a reading.
        """
        tries: list[tuple[int, int, int]] = []
        for _ in range(3):
            self._count += 1
            before = self._ours()
            theirs = int(self.stamp(np.array([self._ours()], np.int64))[0])
            after = self._ours()
            theirs += round((2 * chance(self._seed, self._count) - 1) * self._error)
            tries.append((after - before, theirs, (before + after) // 2))
        took, theirs, ours = min(tries)
        self._pairs.append((theirs, ours, took + self._error + 1))
        self.mapping = ClockMapping.fit(list(self._pairs))

    def to_ours(self, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        """`ClockMapping.to_ours` for many stamps. Differences are small enough for doubles to hold them exactly."""
        mapping = self.mapping
        since: NDArray[np.int64] = np.rint((theirs - mapping.theirs_ns) * mapping.rate).astype(np.int64)
        return since + mapping.ours_ns

    def durations_to_ours(self, theirs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Durations of the device's clock in ours; at least 1 ns."""
        ours: NDArray[np.int64] = np.rint(theirs * self.mapping.rate).astype(np.int64)
        return np.maximum(ours, 1)

    def describe(self) -> str:
        """The mapping in words, for the trust report."""
        mapping = self.mapping
        return (
            f"the device's own clock, mapped to CLOCK_MONOTONIC by {len(self._pairs)} paired readings: "
            f"rate {mapping.rate:.9f}, error <= {mapping.error_ns} ns"
        )


_CHUNK = 65_536  # kernels generated before the loop gets a turn


class DeviceStatistics(msgspec.Struct, frozen=True):
    """Accounts since `open`: produced = delivered + lost + refused."""

    produced: int = 0
    """Events that the device made."""
    delivered: int = 0
    lost: int = 0
    """Events in buffers that the device lost, reported to `Sink.dropped`."""
    refused: int = 0
    """Events that the sink had no room for; the sink counts those itself."""


class _Recording(msgspec.Struct):
    origin: int
    base: int  # slots of each stream in recordings before
    stop: int | None = None
    closed: list[int] = []  # per stream: slots whose buffer was closed


class _Buffer(NamedTuple):
    """A full buffer of one stream, on its way. Its events are generated when it arrives."""

    due: int
    stream: int
    side: int  # 0 = launches, recorded by the host; 1 = kernels, recorded by the device
    first: int
    last: int
    number: int  # of the recording
    recording: _Recording

    @property
    def slots(self) -> tuple[int, int, int, int, int, int | None]:
        """Arguments of `Workload.stretch`."""
        recording = self.recording
        return self.stream, recording.origin, recording.base, self.first, self.last, recording.stop


class SimulatedDevice:
    """A backend with `streams` queues of kernels, launched by a host thread each, while recording.

    Every kernel is a launch span (category `cuda_runtime`), a kernel span (category `kernel`) and a flow between them,
    linked by a correlation id. Buffers of a stream are handed over when they are full, each after a delay of its own,
    launches and kernels apart: so blocks arrive late, in bursts, and out of order between streams. Kernels carry the
    device's clock, which is mapped by paired readings. The recorded events depend on the arguments, the times of the
    transitions and `clock` only.

    Args:
        streams: number of streams, 1 or more.
        kernels_per_second: over all streams; each makes four events.
        clock_skew: what the device's clock is ahead of ours, in ns.
        clock_drift: by how much it runs faster, in parts per million.
        flush_delay: seconds that a full buffer takes to arrive, on average; each takes 0.5 to 1.5 times this.
        drop: share of buffers that are lost, from 0 to 1.
        seed: chooses the kernels, delays and losses.
        clock_error: error of one reading of the device's clock, in ns.
        buffer_kernels: kernels that a buffer holds at most. Slow streams hand over sooner, after about `flush_delay`.
        device: number of the device, 0 to 255.
        name: name of the source.
        clock: our clock, in ns; a manual one makes runs repeatable, with `poll` called by hand.

    Raises:
        TypeError: for an argument that is no number, naming it.
        ValueError: for an argument out of range, naming it.
    """

    thread_bound = False

    def __init__(
        self,
        *,
        streams: int = 4,
        kernels_per_second: float = 100_000,
        clock_skew: int = 0,
        clock_drift: float = 0.0,
        flush_delay: float = 0.1,
        drop: float = 0.0,
        seed: int = 0,
        clock_error: int = 200,
        buffer_kernels: int = 8192,
        device: int = 0,
        name: str = "simulated",
        clock: Callable[[], int] = process_clock.now,
    ) -> None:
        number_argument("streams", streams, whole=True)
        for argument, value, low, high in (
            ("streams", streams, 1, 4096),
            ("kernels_per_second", kernels_per_second, 1e-3, 1e7 * max(streams, 1)),
            ("clock_drift", clock_drift, -1e5, 1e5),
            ("flush_delay", flush_delay, 0, 3600),
            ("drop", drop, 0, 1),
            ("clock_error", clock_error, 0, 10**9),
            ("buffer_kernels", buffer_kernels, 1, _CHUNK),
            ("device", device, 0, 255),
        ):
            number_argument(argument, value)
            if not low <= value <= high:
                raise ValueError(f"{argument} must be between {low:g} and {high:g}, got {value!r}")
        self.name = name
        self._workload = Workload(streams, kernels_per_second, seed, device)
        self._skew, self._drift, self._clock_error = clock_skew, clock_drift, clock_error
        self._delay, self._drop, self._seed, self._clock = round(flush_delay * 1e9), drop, seed, clock
        self._buffer = min(buffer_kernels, max(1, round(max(self._delay, 10**7) / self._workload.period)))
        self._interval = min(max(self._delay // 8, 2 * 10**6), 2 * 10**7)
        self._sink: Sink | None = None
        self._device_clock: DeviceClock | None = None
        self._reset()

    def _reset(self) -> None:
        self._last: _Recording | None = None
        self._current: _Recording | None = None
        self._pending: list[_Buffer] = []
        self._number = self._base = 0
        self._read_at = self._stated = -(1 << 62)
        self._runs_for: Sink | None = None  # the sink whose loop drives the device
        self._counts = DeviceStatistics()

    # the contract of a backend

    def open(self, sink: Sink) -> None:
        """Opens the device. Raises `BackendError` while another profiler uses it."""
        if self._sink is not None:
            raise BackendError(f"{self.name} is in use by another profiler: make a SimulatedDevice for each")
        self._reset()
        self._sink = sink
        self._device_clock = DeviceClock(self._clock, self._skew, self._drift, self._clock_error, self._seed)

    def transition(self, before: ProfilerAction, after: ProfilerAction, at: int) -> None:
        """Starts and stops recording; runs by itself on its loop meanwhile. Between two windows it just goes on."""
        if self._sink is None:
            return
        if after.records and self._current is None:
            self._current = self._last = _Recording(at, self._base, None, [0] * self._workload.streams)
            self._number += 1
        elif not after.records and self._current is not None:
            self._current.stop = at
            self._close_buffers(at)
            self._base += max(self._current.closed)
            self._current = None
        if self._busy and self._runs_for is not self._sink:
            self._runs_for = self._sink
            self._sink.run_soon(self._run)

    async def aclose(self) -> None:
        """Delivers the remaining events without waiting for them to be due. Events behind a deadline are reported as
        dropped."""
        if self._sink is None:
            return
        if self._current is not None:
            self.transition(ProfilerAction.RECORD, ProfilerAction.NONE, self._clock())
        sink = self._sink
        try:
            more = self._poll(1 << 62)
            while more:
                await anyio.lowlevel.checkpoint()
                more = self._poll(1 << 62)
        finally:
            self._sink = None
            for buffer in self._pending:
                self._lose(sink, buffer)
            self._pending.clear()

    def report(self) -> BackendReport:
        """The mapping of the clock, and the losses."""
        counts = self._counts
        notes = ["a simulated device: nothing of this was measured"]
        if counts.lost:
            notes.append(f"{counts.lost} of {counts.produced} events were lost by the device, in whole buffers")
        mapped = self._device_clock.describe() if self._device_clock else "not read yet"
        return BackendReport(mode="simulated", clock=mapped, notes=tuple(notes))

    def statistics(self) -> DeviceStatistics:
        """Accounts so far."""
        return self._counts

    def poll(self) -> None:
        """Does the work that is due now. Called by the device itself on its loop; by hand only under a manual clock."""
        while self._poll(self._clock()):
            pass

    # the device

    @property
    def _busy(self) -> bool:
        return self._current is not None or bool(self._pending)

    async def _run(self) -> None:
        sink = self._sink
        try:
            while sink is not None and self._sink is sink and self._busy:
                more = self._poll(self._clock())
                await anyio.sleep(0 if more else self._interval / 1e9)
        finally:
            # The device may have been opened again, and run for that sink, while this one slept.
            if self._runs_for is sink:
                self._runs_for = None

    def _poll(self, due: int) -> bool:
        """Hands over buffers that are due, about `_CHUNK` kernels. Returns whether more are due."""
        sink, device_clock = self._sink, self._device_clock
        if sink is None or device_clock is None:
            return False
        now = self._clock()
        if self._busy and now >= self._read_at + max(self._interval, self._delay // 16):
            self._read_at = now
            device_clock.read()
        if self._current is not None:
            self._close_buffers(now)
        room = _CHUNK
        while room > 0 and self._pending and self._pending[0].due <= due:
            buffer = heapq.heappop(self._pending)
            room -= buffer.last - buffer.first
            self._hand_over(sink, device_clock, buffer)
        self._state_watermark(sink, device_clock, now)
        return bool(self._pending) and self._pending[0].due <= due

    def _close_buffers(self, now: int) -> None:
        """Closes every buffer that is full at `now`; after the end of recording, all that have events."""
        recording = self._current
        assert recording is not None
        # Slots up to here have begun; the last of them may be cut by the end of the recording.
        begun = max(0, int((now - recording.origin) / self._workload.period))
        for stream in range(self._workload.streams):
            while (first := recording.closed[stream]) < begun + 1:
                last = first + self._buffer
                if last > begun:
                    if recording.stop is None:
                        break
                    last = begun + 1
                recording.closed[stream] = last
                full = min(self._workload.slot_start(recording.origin, last), now)
                for side in (0, 1):
                    late = round(self._delay * (0.5 + chance(self._seed, stream, recording.base + first, side)))
                    buffer = _Buffer(full + late, stream, side, first, last, self._number, recording)
                    heapq.heappush(self._pending, buffer)

    def _hand_over(self, sink: Sink, device_clock: DeviceClock, buffer: _Buffer) -> None:
        if chance(self._seed, buffer.stream, buffer.recording.base + buffer.first, buffer.side + 2) < self._drop:
            self._lose(sink, buffer)
            return
        stretch = self._workload.stretch(*buffer.slots)
        if not len(stretch):
            return
        if buffer.side == 0:
            block = self._workload.host_block(stretch)
        else:
            started = device_clock.to_ours(device_clock.stamp(stretch.started))
            stamped = device_clock.stamp(stretch.started + stretch.ran) - device_clock.stamp(stretch.started)
            block = self._workload.device_block(stretch, started, device_clock.durations_to_ours(stamped))
        accepted = sink.deliver(block)
        self._count(delivered=accepted, refused=len(block) - accepted)

    def _lose(self, sink: Sink, buffer: _Buffer) -> None:
        recording = buffer.recording
        lost = 2 * len(self._workload.stretch(*buffer.slots))
        if lost:
            sink.dropped(lost, "source", self._workload.slot_start(recording.origin, buffer.first))
            self._count(lost=lost)

    def _count(self, delivered: int = 0, lost: int = 0, refused: int = 0) -> None:
        counts = delivered + lost + refused, delivered, lost, refused
        self._counts = DeviceStatistics(*map(sum, zip(msgspec.structs.astuple(self._counts), counts, strict=True)))

    def _state_watermark(self, sink: Sink, device_clock: DeviceClock, now: int) -> None:
        """States that nothing will come that began before the oldest slot on its way, but for the error of the clock."""
        slot_start = self._workload.slot_start
        waiting = [slot_start(buffer.recording.origin, buffer.first) for buffer in self._pending]
        if self._current is not None:
            waiting += [slot_start(self._current.origin, closed) for closed in self._current.closed]
            waiting.append(now)
        if waiting:
            at = min(waiting) - 2 * device_clock.mapping.error_ns
        elif self._last is not None and self._last.stop is not None:
            at = self._last.stop
        else:
            return
        if at > self._stated:
            self._stated = at
            sink.watermark(at)
