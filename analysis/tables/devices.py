"""Activity of devices in steps, and of the host while they idled."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from stepscope.analysis.findings import DeviceAnswer, HostActivity, KernelTime, NameShare, RankAnswer
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.analysis.thresholds import FINDING
from stepscope.runtime.display.text_table import human_time, printable, shorten
from stepscope.runtime.events import strings, tracks
from stepscope.runtime.events.intervals import Interval
from stepscope.runtime.events.record import Block, Kind
from stepscope.runtime.windows.step_facts import (
    DEVICE_CLASS,
    MOST_INTERVALS,
    Device,
    Phase,
    Times,
    class_of,
    covered_before,
    union,
)

MOST_DEVICES = 64
"""Devices of a process that are judged."""
MOST_KERNELS = 20
"""Names of kernels in an answer on a device."""
MOST_NAME = 48
"""Columns of a name in a sentence."""
MOST_NAMES = 3
"""Names of spans in an activity of the host."""
MOST_SPANS = 1 << 18
"""Spans of a window that are kept until it is known what the host did meanwhile; in longer ones its activities have no names."""


class Activity(IntEnum):
    """Activity of the threads that step or launch. Where several go on at once, the first of them has the time."""

    SYNCHRONISING = 0
    DATA = 1
    COLLECTION = 2
    CHECKPOINT = 3
    COLLECTIVE = 4
    LAUNCH = 5
    RUNTIME = 6
    OPERATOR = 7
    PYTHON = 8


NAMES = {
    Activity.SYNCHRONISING: "waiting for the device",
    Activity.DATA: "waiting for data",
    Activity.COLLECTION: "garbage collection",
    Activity.CHECKPOINT: "checkpoint",
    Activity.COLLECTIVE: "calling collectives",
    Activity.LAUNCH: "launching kernels",
    Activity.RUNTIME: "other calls of the device's runtime",
    Activity.OPERATOR: "operators",
    Activity.PYTHON: "Python",
}
UNRECORDED = "no known activity"
"""Name for unknown work, such as Python between operators without recorded functions, or spans without a category."""

_PHASES = {
    Phase.GARBAGE_COLLECTION: Activity.COLLECTION,
    Phase.CHECKPOINT: Activity.CHECKPOINT,
    Phase.COMMUNICATION: Activity.COLLECTIVE,
    Phase.DATA: Activity.DATA,
}
_RUNTIME = {"cuda_runtime", "cuda_driver", "runtime"}
_HOST = 100
_OTHER = 255
"""Class of spans that are no activity. They may lie between two spans that are one."""
_SPAN = np.dtype(
    [
        ("ts", "<i8"),
        ("dur", "<i8"),
        ("id", "<u8"),
        ("parent", "<u8"),
        ("name", "<u4"),
        ("track", "<u4"),
        ("class", "u1"),
    ]
)
_Pieces = list[tuple[Times, Times]]


def activity_of(name: str, category: str) -> Activity | None:
    """The activity that a span of the host belongs to, by its name and category; `None` if none."""
    if category in _RUNTIME:
        lower = name.lower()
        if "synchronize" in lower:
            return Activity.SYNCHRONISING
        return Activity.LAUNCH if "launch" in lower else Activity.RUNTIME
    if category == "python_function":
        return Activity.PYTHON
    number = class_of(name, category)
    if number in _PHASES:
        return _PHASES[Phase(number)]
    return Activity.OPERATOR if category in {"cpu_op", "operator"} else None


def _class_of_span(name: str, category: str) -> int:
    number = class_of(name, category)
    if DEVICE_CLASS <= number < DEVICE_CLASS + len(Device):
        return number - DEVICE_CLASS
    activity = activity_of(name, category)
    return _OTHER if activity is None else _HOST + activity


class DeviceBuilder:
    """Gathers what devices and host did in one window.

    Args:
        most_spans: that are kept to find names by; else memory grows with the gaps between intervals, not with their number.
    """

    def __init__(self, most_spans: int = MOST_SPANS) -> None:
        self._room = most_spans
        self._spans: list[Any] = []
        self._classes = SpanChoice(_class_of_span, np.uint8)
        self._owners: dict[int, int] = {}
        self._busy: dict[tuple[int, int], _Pieces] = {}
        self._host: dict[tuple[int, int], _Pieces] = {}
        self._kernels: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._runs: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._copies: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._stepping: set[int] = set()
        self._loose = 0

    def update(self, events: Block) -> None:
        """Takes events: steps and spans; others are passed over."""
        kinds = events["kind"]
        self._stepping.update(np.unique(events["track"][kinds == Kind.STEP]).tolist())
        spans = events[(kinds == Kind.SPAN) & (events["dur"] > 0)]
        if not len(spans):
            return
        classes = self._classes.of(spans)
        begin = spans["ts"].astype(np.int64)
        end = begin + spans["dur"]
        self._add_spans(spans, classes)
        places, rows = np.unique(spans["track"].astype(np.int64) << 8 | classes, return_inverse=True)
        for at, place in enumerate(places.tolist()):
            track, number = place >> 8, place & 0xFF
            if number == _OTHER:
                continue
            chosen = rows == at
            if number >= _HOST:
                self._add(self._host, (track, number - _HOST), begin[chosen], end[chosen])
                continue
            device = self._device(track)
            self._add(self._busy, (device, number), begin[chosen], end[chosen])
            sums = self._copies if number == Device.COPY else self._kernels
            self._count(sums[device], self._runs[device], spans["name"][chosen], spans["dur"][chosen])

    def _add_spans(self, spans: Block, classes: Any) -> None:
        self._room -= len(spans)
        if self._room < 0:
            self._spans.clear()
            return
        rows: Any = np.zeros(len(spans), _SPAN)
        for field in ("ts", "dur", "id", "parent", "name", "track"):
            rows[field] = spans[field]
        rows["class"] = classes
        self._spans.append(rows[classes >= _HOST])

    def _device(self, track: int) -> int:
        """The track of the device that a stream belongs to."""
        if track not in self._owners:
            found = tracks.get(track)
            self._owners[track] = track if found is None else found.parent or track
        return self._owners[track]

    def _add(self, to: dict[tuple[int, int], _Pieces], key: tuple[int, int], begin: Times, end: Times) -> None:
        to.setdefault(key, []).append((begin, end))
        self._loose += len(begin)
        if self._loose > MOST_INTERVALS:
            for pieces_of in (self._busy, self._host):
                for each, pieces in pieces_of.items():
                    pieces_of[each] = [_union_of(pieces)]
            self._loose = 0

    def _count(self, ns: Counter[str], runs: Counter[str], names: Any, took: Any) -> None:
        unique, inverse = np.unique(names, return_inverse=True)
        counts = np.bincount(inverse)
        sums = np.zeros(len(unique), np.int64)
        np.add.at(sums, inverse, took)
        for name, total, count in zip(map(strings.text, unique.tolist()), sums.tolist(), counts.tolist(), strict=True):
            ns[name] += total
            runs[name] += count

    def finish(self, steps: Interval | None = None) -> list[DeviceUse]:
        """The activity of each device, up to `MOST_DEVICES`.

        Args:
            steps: the time, in ns, that is judged; by default that from each device's first to its last event.
        """
        host = self._activities()
        devices = sorted({device for device, _ in self._busy})
        return [self._use(device, host, steps) for device in devices[:MOST_DEVICES]]

    def _threads(self) -> set[int]:
        """The threads that step or launch kernels. Others are left out: they may wait for hours."""
        launching = {track for track, number in self._host if number in (Activity.LAUNCH, Activity.RUNTIME)}
        launching = launching or {track for track, number in self._host if number == Activity.OPERATOR}
        return launching | self._stepping

    def _activities(self) -> dict[int, tuple[Times, Times]]:
        chosen = self._threads()
        found: dict[int, tuple[Times, Times]] = {}
        for activity in Activity:
            pieces = [
                piece
                for (track, number), some in self._host.items()
                if number == activity and track in chosen
                for piece in some
            ]
            if pieces:
                found[activity] = _union_of(pieces)
        return found

    def _use(self, device: int, host: dict[int, tuple[Times, Times]], steps: Interval | None) -> DeviceUse:
        parts = {number: _union_of(pieces) for (owner, number), pieces in self._busy.items() if owner == device}
        first, last = steps or (
            min(int(begin[0]) for begin, _ in parts.values()),
            max(int(end[-1]) for _, end in parts.values()),
        )
        busy = (np.zeros(0, np.int64), np.zeros(0, np.int64))
        alone: Counter[int] = Counter()
        for number in Device:
            if number in parts:
                alone[number], busy = _join(busy, _clipped(parts[number], first, last))
        covered, by_activity = busy, Counter[int]()
        for activity, intervals in host.items():
            by_activity[activity], covered = _join(covered, _clipped(intervals, first, last))
        found = tracks.get(device)
        return DeviceUse(
            found.name if found is not None and found.name else "device",
            last - first,
            alone,
            by_activity,
            self._names(first, last, busy),
            self._kernels[device],
            self._copies[device],
            self._runs[device],
        )

    def _names(self, first: int, last: int, busy: tuple[Times, Times]) -> Counter[tuple[int, str]]:
        """Times for which spans of an activity and name were the innermost ones while the device idled."""
        spans: Any = np.concatenate(self._spans) if self._spans else np.zeros(0, _SPAN)
        spans = spans[np.isin(spans["track"], list(self._threads()))]
        if not len(spans):
            return Counter()
        begin, end = np.clip(spans["ts"], first, last), np.clip(spans["ts"] + spans["dur"], first, last)
        idle: Any = end - begin - (covered_before(*busy, end) - covered_before(*busy, begin))
        order: Any = np.argsort(spans["id"], kind="stable")
        ids: Any = spans["id"][order]
        at: Any = np.minimum(np.searchsorted(ids, spans["parent"]), len(ids) - 1)  # pyright: ignore[reportUnknownArgumentType]
        inner: Any = (spans["parent"] != 0) & (ids[at] == spans["parent"])
        own: Any = idle.copy()
        np.subtract.at(own, order[at[inner]], idle[inner])
        keys, inverse = np.unique(spans["class"].astype(np.int64) << 32 | spans["name"], return_inverse=True)
        sums = np.zeros(len(keys), np.int64)
        np.add.at(sums, inverse, np.maximum(own, 0))
        found: Counter[tuple[int, str]] = Counter()
        for key, ns in zip(keys.tolist(), sums.tolist(), strict=True):
            if ns and key >> 32 != _OTHER:
                found[key >> 32, strings.text(key & 0xFFFFFFFF)] += ns
        return found


class DeviceUse(msgspec.Struct):
    """The activity of a device in some windows. The time between windows is no idling."""

    name: str
    total: int
    alone: Counter[int]
    meanwhile: Counter[int]
    names: Counter[tuple[int, str]]
    kernels: Counter[str]
    """Time of each kernel, in ns."""
    copies: Counter[str]
    runs: Counter[str]

    def add(self, other: DeviceUse) -> None:
        """Adds another window."""
        self.total += other.total
        for name in ("alone", "meanwhile", "names", "kernels", "copies", "runs"):
            getattr(self, name).update(getattr(other, name))

    def answer(self) -> DeviceAnswer:
        """These numbers as the answer has them."""
        busy = self.alone.total()
        idle = self.total - busy
        spent = [(ns, NAMES[Activity(each)], self._mostly(each)) for each, ns in self.meanwhile.items() if ns]
        spent.sort(key=lambda each: -each[0])
        if rest := idle - sum(ns for ns, _, _ in spent):
            spent.append((rest, UNRECORDED, ()))
        return DeviceAnswer(
            name=self.name,
            total_ns=self.total,
            busy_ns=busy,
            idle_ns=idle,
            computation_ns=self.alone[Device.COMPUTE],
            communication_ns=self.alone[Device.COMMUNICATION],
            copy_ns=self.alone[Device.COPY],
            meanwhile=tuple(HostActivity(name, ns, ns / (idle or 1), names) for ns, name, names in spent),
            kernels=self._times(self.kernels),
            kernel_names=len(self.kernels),
            copies=self._times(self.copies),
        )

    def _times(self, sums: Counter[str]) -> tuple[KernelTime, ...]:
        """The names with the most time."""
        total = sums.total() or 1
        most = sorted(sums.items(), key=lambda item: (-item[1], item[0]))[:MOST_KERNELS]
        return tuple(KernelTime(name, ns, self.runs[name], ns / total) for name, ns in most)

    def _mostly(self, activity: int) -> tuple[NameShare, ...]:
        found = sorted(
            ((ns, name) for (number, name), ns in self.names.items() if number == _HOST + activity), reverse=True
        )
        total = sum(ns for ns, _ in found) or 1
        return tuple(NameShare(name, ns, ns / total) for ns, name in found[:MOST_NAMES])


def answers(windows: Iterable[tuple[DeviceBuilder, Interval | None]]) -> tuple[DeviceAnswer, ...]:
    """The activity of each device of a process, summed over windows, in the order of the devices' names.

    Args:
        windows: each with the time, in ns, that is judged; `None`: all.
    """
    found: dict[str, DeviceUse] = {}
    for builder, steps in windows:
        for use in builder.finish(steps):
            if use.name in found:
                found[use.name].add(use)
            else:
                found[use.name] = use
    return tuple(found[name].answer() for name in sorted(found, key=lambda name: (len(name), name)))


def idlest(ranks: Iterable[RankAnswer]) -> tuple[RankAnswer, DeviceAnswer] | None:
    """The device that idles most, of all processes, with its process; `None` if there is no device."""
    found = [(rank, device) for rank in ranks for device in rank.devices]
    return max(found, key=lambda each: each[1].idle, default=None)


def use_of(device: DeviceAnswer) -> str:
    """The activity of a device, as a part of a sentence."""
    parts = [
        f"{text} {human_time(ns)}"
        for text, ns in (
            ("computes", device.computation_ns),
            ("communicates without computing", device.communication_ns),
            ("copies without computing", device.copy_ns),
        )
        if ns
    ]
    return f"{', '.join(parts)}, idles {human_time(device.idle_ns)} of {human_time(device.total_ns)}"


def meanwhile_of(device: DeviceAnswer) -> str:
    """The activity of the host while a device idled, as a part of a sentence: the longest first, without those below 1 %. Activities of
    10 % or more have names of spans."""
    parts: list[str] = []
    for activity in device.meanwhile:
        if activity.share < 0.01:
            continue
        names = ", ".join(f"{shorten(printable(each.name), MOST_NAME)} {each.share:.0%}" for each in activity.names[:2])
        mostly = f" (of that {names})" if names and activity.share >= FINDING else ""
        parts.append(f"{activity.name} {activity.share:.0%}{mostly}")
    return ", ".join(parts)


def _union_of(pieces: _Pieces) -> tuple[Times, Times]:
    return union(np.concatenate([begin for begin, _ in pieces]), np.concatenate([end for _, end in pieces]))


def _clipped(intervals: tuple[Times, Times], first: int, last: int) -> tuple[Times, Times]:
    begin, end = intervals
    inside = (end > first) & (begin < last)
    return np.maximum(begin[inside], first), np.minimum(end[inside], last)


def _join(one: tuple[Times, Times], other: tuple[Times, Times]) -> tuple[int, tuple[Times, Times]]:
    """How many ns are in the second intervals alone, and the union of both."""
    both = union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1])))
    return int((both[1] - both[0]).sum() - (one[1] - one[0]).sum()), both
