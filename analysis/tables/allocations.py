"""Allocations that backends report (`Kind.MEMORY`), each with the innermost labelled span in which it was made."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, cast

import msgspec
import numpy as np

from stepscope.analysis.findings import DeviceMemory, TagMemory
from stepscope.analysis.tables.span_choice import SpanChoice
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.events import strings
from stepscope.runtime.events.arguments import arguments
from stepscope.runtime.events.record import EventBatch, Kind
from stepscope.runtime.windows.step_facts import Phase, class_of

CAPACITY: Final = "memory_capacity"
"""Key of a run's metadata: bytes by device, such as `{"cpu/0": 16e9, "gpu/0": 80e9}`."""

MOST_ALLOCATIONS = 1 << 16
"""Allocations, and labelled spans, that are kept to break a peak down."""
OPEN_WINDOWS = 8
"""Windows of which further events may come."""
MOST_TAGS = 20
"""Labels in an answer."""

UNLABELLED: Final = ""
EARLIER: Final = "before the window"
MODULE: Final = "nn.Module: "
"""Prefix of the names that torch's profiler (`with_stack`) has for calls of modules."""

_KINDS: Final[Mapping[int, str]] = {0: "cpu", 1: "gpu", 6: "gpu", 12: "xpu"}
"""Names of torch's device types by their numbers: CPU, CUDA, HIP, XPU (c10/core/DeviceType.h)."""
_SPAN = np.dtype([("ts", "<i8"), ("end", "<i8"), ("track", "<u4"), ("name", "<u4")])


class Allocation(msgspec.Struct, frozen=True, gc=False):
    """An allocation or a release."""

    at: int
    track: int
    bytes: int
    """Below 0 for a release."""
    address: int
    in_use: int
    """Bytes that are allocated on the device after it, those that its allocator does not count among them."""
    device: str
    window: int
    step: int


def is_tag(name: str, category: str) -> bool:
    """Whether a span labels what is allocated in it: one of the program, of a module of torch, or of an optimizer."""
    return name.startswith(MODULE) or class_of(name, category) in (Phase.SPAN, Phase.OPTIMIZER)


class AllocationLog:
    """Keeps allocations and the spans that label them, up to a number.

    Args:
        labels: whether a span of this name and category labels.
        most: allocations, and spans, that are kept; further ones are counted.
    """

    def __init__(self, labels: Callable[[str, str], bool] = is_tag, most: int = MOST_ALLOCATIONS) -> None:
        self.allocations: list[Allocation] = []
        self.left_out = 0
        """Allocations and spans for which there was no room."""
        self._labels, self._most = SpanChoice(labels), most
        self._spans: list[Any] = []
        self._span_count = 0
        self._counted: Counter[str] = Counter()
        """Bytes that the allocator of each device counts."""
        self._uncounted: Counter[str] = Counter()
        """Bytes of the live blocks that it does not count, which are those in `_blocks`."""
        self._blocks: dict[tuple[str, int], int] = {}

    def update(self, batch: EventBatch) -> list[Allocation]:
        """Takes the events of a batch, and returns its allocations and releases, also those that are not kept."""
        events = batch.events
        self._add_spans(events[["kind", "name", "category", "track", "ts", "dur"]])
        memory = events[events["kind"] == Kind.MEMORY]
        memory = memory[np.argsort(memory["ts"], kind="stable")]
        found = [self._with_uncounted(one) for event in memory if (one := _allocation(event, batch)) is not None]
        room = max(self._most - len(self.allocations), 0)
        self.allocations += found[:room]
        self.left_out += max(len(found) - room, 0)
        return found

    def _with_uncounted(self, one: Allocation) -> Allocation:
        # torch reports shared memory, as of batches from workers, with a total that does not have the block itself.
        device, block = one.device, (one.device, one.address)
        uncounted = one.in_use < one.bytes and len(self._blocks) < MOST_ALLOCATIONS
        known = self._blocks.pop(block, 0)
        self._uncounted[device] -= known
        if uncounted:
            self._blocks[block] = one.bytes
            self._uncounted[device] += one.bytes
        elif one.bytes > 0 or not known:
            self._counted[device] = one.in_use
        return msgspec.structs.replace(one, in_use=self._counted[device] + self._uncounted[device])

    def labelled(self) -> Iterator[tuple[str, Allocation]]:
        """The allocations in order of time, each with the innermost label that was open on its thread; empty without one."""
        spans: Any = np.concatenate(self._spans) if self._spans else np.zeros(0, _SPAN)
        spans = spans[np.lexsort((-spans["end"], spans["ts"]))]
        waiting: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
        for ts, end, track, name in spans[::-1].tolist():
            waiting[track].append((ts, end, name))
        opened: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for one in sorted(self.allocations, key=lambda each: each.at):
            later, stack = waiting[one.track], opened[one.track]
            while later and later[-1][0] <= one.at:
                _, end, name = later.pop()
                stack.append((end, name))
            while stack and stack[-1][0] < one.at:
                stack.pop()
            label = next((name for end, name in reversed(stack) if end >= one.at), None)
            yield UNLABELLED if label is None else strings.text(label), one

    def _add_spans(self, events: Any) -> None:
        spans = events[(events["kind"] == Kind.SPAN) & self._labels.of(events)]
        rows: Any = np.zeros(min(len(spans), self._most - self._span_count), _SPAN)
        self.left_out += len(spans) - len(rows)
        if len(rows):
            spans = spans[: len(rows)]
            rows["ts"], rows["end"] = spans["ts"], spans["ts"] + spans["dur"]
            rows["track"], rows["name"] = spans["track"], spans["name"]
            self._spans.append(rows)
            self._span_count += len(rows)


class _Sums(msgspec.Struct):
    allocations: int = 0
    releases: int = 0
    bytes: int = 0
    peak: int = 0
    at: int = 0
    window: int = 0
    step: int = 0


class MemoryTable:
    """Allocations by device: their number, the peak, and by which labelled spans the bytes of the peak were allocated."""

    def __init__(self) -> None:
        self._logs: dict[int, AllocationLog] = {}
        """Allocations of the windows with the peak of a device, and of the latest windows, whose events may be interleaved."""
        self._sums: defaultdict[str, _Sums] = defaultdict(_Sums)

    def update(self, batch: EventBatch) -> None:
        """Takes the events of a batch."""
        if batch.window not in self._logs:
            windows = {sums.window for sums in self._sums.values()} | set(list(self._logs)[-OPEN_WINDOWS:])
            self._logs = {window: log for window, log in self._logs.items() if window in windows}
            self._logs[batch.window] = AllocationLog()
        for one in self._logs[batch.window].update(batch):
            sums = self._sums[one.device]
            if one.bytes > 0:
                sums.allocations += 1
                sums.bytes += one.bytes
            else:
                sums.releases += 1
            if one.in_use > sums.peak:
                sums.peak, sums.at, sums.window, sums.step = one.in_use, one.at, one.window, one.step

    def devices(self, metadata: Mapping[str, Any]) -> tuple[DeviceMemory, ...]:
        """By device, the one with the highest peak first.

        Args:
            metadata: of the run, which may have `CAPACITY`.
        """
        capacity = capacity_of(metadata)
        by_tag = self._at_peak()
        found: list[DeviceMemory] = []
        for device, sums in self._sums.items():
            tags = sorted(by_tag.get(device, []), key=lambda tag: (-tag.bytes, tag.name))
            found.append(
                DeviceMemory(
                    device=device,
                    capacity=capacity.get(device),
                    allocations=sums.allocations,
                    deallocations=sums.releases,
                    allocated=sums.bytes,
                    peak=sums.peak,
                    step=sums.step if sums.step >= 0 else None,
                    tags=tuple(tags[:MOST_TAGS]),
                )
            )
        return tuple(sorted(found, key=lambda each: (-each.peak, each.device)))

    def _at_peak(self) -> dict[str, list[TagMemory]]:
        """The bytes that were held at the peak of each device, by the label that allocated them."""
        live: defaultdict[str, dict[int, tuple[str, int]]] = defaultdict(dict)
        whole = [log for log in self._logs.values() if not log.left_out]
        for tag, one in chain.from_iterable(log.labelled() for log in whole):
            sums = self._sums[one.device]
            if one.window == sums.window and one.at <= sums.at:
                if one.bytes > 0:
                    live[one.device][one.address] = tag, one.bytes
                else:
                    live[one.device].pop(one.address, None)
        found: dict[str, list[TagMemory]] = {}
        for device, blocks in live.items():
            sizes, counts = Counter[str](), Counter[str]()
            for tag, size in blocks.values():
                sizes[tag] += size
                counts[tag] += 1
            found[device] = [TagMemory(tag, size, counts[tag]) for tag, size in sizes.items()]
            if (earlier := self._sums[device].peak - sizes.total()) > 0:
                found[device].append(TagMemory(EARLIER, earlier, 0))
        return found


def capacity_of(metadata: Mapping[str, Any]) -> dict[str, int]:
    """Bytes of memory by device, as a run's metadata declare them; values that are no sizes are left out."""
    declared = metadata.get(CAPACITY)
    sizes = cast("dict[str, Any]", declared) if isinstance(declared, dict) else {}
    return {name: int(size) for name, size in sizes.items() if isinstance(size, int | float) and 0 < size < 1 << 60}


def _allocation(event: Any, batch: EventBatch) -> Allocation | None:
    values = arguments(batch, event)
    size = values.get("Bytes", 0)
    if not isinstance(size, int) or not size:
        return None
    kind, number = values.get("Device Type", 0), values.get("Device Id", -1)
    return Allocation(
        at=int(event["ts"]),
        track=int(event["track"]),
        bytes=size,
        address=int(event["id"]),
        in_use=max(int(event["value"]), 0),
        device=f"{_KINDS.get(kind, f'device {kind}')}/{max(number, 0)}",
        window=batch.window,
        step=int(event["step"]),
    )


def human_bytes(size: float) -> str:
    """`1.23 GiB`, with three digits."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB" if abs(size) < 999.5 else f"{size:,.0f} TiB"


def memory_text(memory: DeviceMemory) -> str:
    """A line about a device's memory."""
    of = f" of {human_bytes(memory.capacity)}" if memory.capacity else ""
    where = f" in step {memory.step}" if memory.step is not None else ""
    tags = ", ".join(f"{tag.share_of(memory.peak):.0%} {tag.shown}" for tag in memory.tags[:3])
    counts = f"{human_count(memory.allocations, 'allocation')}, {human_count(memory.deallocations, 'deallocation')}"
    return f"{memory.device} peaks at {human_bytes(memory.peak)}{of}{where}{f': {tags}' if tags else ''}; {counts}"
