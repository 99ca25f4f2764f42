"""Storage governance: which windows a collector gives up so that its files stay within their limit."""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.collector.store import Store
from stepscope.runtime.checked import Checked
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discard import Place, discard, places
from stepscope.runtime.journal.frames import FrameReader
from stepscope.runtime.journal.records import RunRecord, WindowRecord, decode_record

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 10.0

Count = Annotated[int, msgspec.Meta(ge=0)]


class StoragePolicy(Checked, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept when there is not room for all. Unknown fields are refused."""

    max_bytes: Count = 0
    """On disk, of all streams together; 0: no limit."""
    newest: Count = 8
    """Windows that are given up after the slowest."""
    slowest: Count = 8
    """Windows that are given up after all others, by the mean of their steps on the slowest rank."""


class Held(msgspec.Struct, frozen=True):
    """A window of one stream, as far as it takes room."""

    stream: str
    group: Hashable
    """The same for what is one window of several ranks: it is kept, or given up, on all of them."""
    window: int
    nbytes: int
    end_ns: int
    """Unix time of its end, or of its latest event."""
    step_ns: float
    """Mean duration of its steps; 0 if there is none."""
    closed: bool = True


def choose(held: Sequence[Held], policy: StoragePolicy, used: int) -> list[Held]:
    """What to give up, in this order, so that the limit is met.

    First come closed windows that are neither among the newest nor the slowest, the oldest first; then the slowest ones,
    the least slow first; then the newest ones, but for the last. Windows that are still open are given up in part, by
    `Storage`, when nothing else is left.

    Args:
        held: every window of every stream.
        policy: the limit, and what is dear.
        used: bytes on disk now.
    """
    if not policy.max_bytes or used <= policy.max_bytes:
        return []
    groups: defaultdict[Hashable, list[Held]] = defaultdict(list)
    for one in held:
        groups[one.group].append(one)
    closed = [group for group in groups.values() if all(one.closed for one in group)]
    closed.sort(key=lambda group: max(one.end_ns for one in group))
    newest = closed[max(len(closed) - policy.newest, 0) :]
    by_pace = sorted(closed, key=lambda group: max(one.step_ns for one in group))
    slowest = [group for group in by_pace[max(len(by_pace) - policy.slowest, 0) :] if group not in newest]
    others = [group for group in closed if group not in newest and group not in slowest]
    given_up: list[Held] = []
    for group in (*others, *slowest, *newest[:-1]):
        if used <= policy.max_bytes:
            break
        given_up += [one for one in group if one.nbytes]
        used -= sum(one.nbytes for one in group)
    return given_up


class Freed(msgspec.Struct, frozen=True):
    """What one call of `Storage.enforce` did."""

    used: int
    """Bytes on disk afterwards, about."""
    freed: int
    windows: int
    """Windows, counted on each stream, whose events were given up."""
    events: int


class Storage:
    """Keeps the files of a store within their limit. Calls block on the disk: not for the collector's loop."""

    def __init__(self, store: Store, policy: StoragePolicy) -> None:
        self._store, self._policy = store, policy

    async def run(self) -> None:
        """Looks every few seconds, until it is cancelled."""
        while True:
            try:
                await asyncio.to_thread(self.enforce)
            except OSError as error:
                log.error("the limit of the disk cannot be kept: %s", error)
            await asyncio.sleep(LOOK_SECONDS)

    def used(self) -> int:
        """Bytes on disk of all streams."""
        return sum(_on_disk(path) for _, path in self._store.journals())

    def enforce(self) -> Freed:
        """Gives up what there is no room for.

        Events go, in place; steps, accounts and metadata of their windows stay, and so does everything's number.

        Raises:
            OSError: if a file cannot be written.
        """
        used = self.used()
        if not self._policy.max_bytes or used <= self._policy.max_bytes:
            return Freed(used, 0, 0, 0)
        paths: dict[str, Path] = {}
        held: list[Held] = []
        where: dict[tuple[str, int], list[Place]] = {}
        for stream, path in self._store.journals():
            try:
                held += _survey(stream, path, where)
            except FormatError as error:
                log.warning("%s is left alone: %s", path, error)
                continue
            paths[stream] = path
        freed = events = 0
        chosen = choose(held, self._policy, used)
        for one in chosen:
            frames = where[one.stream, one.window]
            freed += discard(paths[one.stream], frames)
            events += sum(place.header.count for place in frames)
        more = self._oldest_of_open(held, where, used - freed)
        for stream, frames in more.items():
            freed += discard(paths[stream], frames)
            events += sum(place.header.count for place in frames)
        if events:
            log.warning(
                "%d events of %d windows were given up: the limit is %d bytes",
                events,
                len(chosen),
                self._policy.max_bytes,
            )
        return Freed(self.used(), freed, len(chosen), events)

    def _oldest_of_open(
        self, held: Iterable[Held], where: dict[tuple[str, int], list[Place]], used: int
    ) -> dict[str, list[Place]]:
        """The oldest frames of windows that have no end, by stream, when giving up all others was not enough."""
        surplus = used - self._policy.max_bytes
        frames = [
            (place.header.first_ns, place.number, one.stream, place)
            for one in held
            if not one.closed
            for place in where[one.stream, one.window]
        ]
        chosen: defaultdict[str, list[Place]] = defaultdict(list)
        for *_, stream, place in sorted(frames, key=lambda frame: frame[:3]):
            if surplus <= 0:
                break
            chosen[stream].append(place)
            surplus -= place.length - place.kept
        return chosen


def _on_disk(path: Path) -> int:
    return os.stat(path, follow_symlinks=False).st_blocks * 512


def _survey(stream: str, path: Path, where: dict[tuple[str, int], list[Place]]) -> list[Held]:
    """The windows of a journal and their frames."""
    run: RunRecord | None = None
    ends: dict[int, WindowRecord] = {}
    reader = FrameReader(path, follow=False)
    try:
        while (frame := reader.next(lambda _: True)) is not None:
            kind, _, payload = frame
            if kind == fmt.FrameType.WINDOW_CLOSED and (record := decode_record(kind, payload)) is not None:
                ends[record.index] = record
            elif kind == fmt.FrameType.RUN:
                run = decode_record(kind, payload)
    finally:
        reader.close()
    for place in places(path):
        where.setdefault((stream, place.header.window), []).append(place)
    name = (run.name, run.world_size) if run is not None else stream
    shift = run.anchor.wall(0) if run is not None else 0
    return [
        _held(stream, (name, window), window, frames, ends.get(window), shift)
        for (owner, window), frames in where.items()
        if owner == stream
    ]


def _held(stream: str, group: Hashable, window: int, frames: list[Place], end: WindowRecord | None, shift: int) -> Held:
    nbytes = sum(place.length - place.kept for place in frames)
    if end is None:
        return Held(stream, group, window, nbytes, max(place.header.last_ns for place in frames) + shift, 0.0, False)
    steps = max(end.step_count, 1)
    return Held(stream, group, window, nbytes, end.end_ns + shift, (end.end_ns - end.start_ns) / steps)
