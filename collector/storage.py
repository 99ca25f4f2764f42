"""Storage governance: which windows a collector gives up so that its files stay within their limit."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from stepscope.collector.store import Store
from stepscope.collector.streams import Streams
from stepscope.collector.views import StorageView
from stepscope.runtime.checked import Checked
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.discard import Place, discard, places
from stepscope.runtime.journal.frames import FrameReader
from stepscope.runtime.journal.records import RunRecord, WindowRecord, decode_record

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 10.0
PATIENCE = 2.0
"""Seconds that it waits at most for a part that is being uploaded."""

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
    copied: bool = True
    """Whether it is elsewhere as well, if everything is to be copied."""


def choose(held: Sequence[Held], policy: StoragePolicy, used: int) -> list[Held]:
    """What to give up, in this order, so that the limit is met.

    First come closed windows that are neither among the newest nor the slowest, the oldest first; then the slowest ones,
    the least slow first; then the newest ones, but for the last. What is to be copied and was not yet comes after what was.
    Windows that are still open are given up in part, by `Storage`, when nothing else is left.

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
    order = [*others, *slowest, *newest[:-1]]
    for group in sorted(order, key=lambda group: not all(one.copied for one in group)):
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
    discarded: dict[tuple[str, int], int] = {}
    """By stream and window: events that were given up, now and before."""


class Storage:
    """Keeps the files of a store within their limit. Calls block on the disk: not for the collector's loop."""

    def __init__(
        self,
        store: Store,
        policy: StoragePolicy,
        streams: Streams | None = None,
        copied: Callable[[str], int] | None = None,
    ) -> None:
        """
        Args:
            store: whose files they are.
            policy: what is kept.
            streams: are told what was given up.
            copied: how many bytes of a stream's file are elsewhere as well, if they are to be.
        """
        self._store, self._policy, self._streams, self._copied = store, policy, streams, copied
        self._untold: dict[tuple[str, int], int] = {}
        self._used: int | None = None
        self._problem = ""

    async def run(self) -> None:
        """Looks every few seconds, until it is cancelled."""
        while True:
            try:
                freed = await asyncio.to_thread(self.enforce)
                self._used, self._problem = freed.used, ""
                self._untold |= freed.discarded
            except OSError as error:
                self._problem = f"the limit of the disk cannot be kept: {error}"
                log.error("%s", self._problem)
            self._tell()
            await asyncio.sleep(LOOK_SECONDS)

    def view(self) -> StorageView | None:
        """How much there is, as of the last look; `None` before the first."""
        if self._used is None:
            return None
        return StorageView(
            used_bytes=self._used,
            limit_bytes=self._policy.max_bytes or None,
            free_bytes=shutil.disk_usage(self._store.directory).free,
            discarded_events=0 if self._streams is None else self._streams.totals()[0].discarded,
            problem=self._problem,
        )

    def _tell(self) -> None:
        known = {} if self._streams is None else self._streams.all
        for (id, window), events in list(self._untold.items()):
            stream = known.get(id)
            if stream is not None and stream.restoring:
                continue  # it counts what it reads
            del self._untold[id, window]
            if stream is not None:
                stream.windows.discarded_in_all(window, events)

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
        if not self._store.rewriting.acquire(timeout=PATIENCE):
            return Freed(used, 0, 0, 0)  # looked at again in a moment
        try:
            return self._give_up(used)
        finally:
            self._store.rewriting.release()

    def _give_up(self, used: int) -> Freed:
        gone: Counter[tuple[str, int]] = Counter()
        paths: dict[str, Path] = {}
        held: list[Held] = []
        where: dict[tuple[str, int], list[Place]] = {}
        for stream, path in self._store.journals():
            try:
                copied = None if self._copied is None else self._copied(stream)
                held += _survey(stream, path, where, gone, copied)
            except FormatError as error:
                log.warning("%s is left alone: %s", path, error)
                continue
            paths[stream] = path
        freed = events = 0
        chosen = choose(held, self._policy, used)
        for one in chosen:
            frames = where[one.stream, one.window]
            freed += discard(paths[one.stream], frames)
            count = sum(place.header.count for place in frames)
            gone[one.stream, one.window] += count
            events += count
        more = self._oldest_of_open(held, where, used - freed)
        for stream, frames in more.items():
            freed += discard(paths[stream], frames)
            events += sum(place.header.count for place in frames)
            for place in frames:
                gone[stream, place.header.window] += place.header.count
        if events:
            log.warning(
                "%d events of %d windows were given up: the limit is %d bytes",
                events,
                len(chosen),
                self._policy.max_bytes,
            )
        return Freed(self.used(), freed, len(chosen), events, dict(gone))

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


def _survey(
    stream: str,
    path: Path,
    where: dict[tuple[str, int], list[Place]],
    gone: Counter[tuple[str, int]],
    copied: int | None,
) -> list[Held]:
    """The windows of a journal, their frames, and how many events of them are gone; `copied`: bytes that are elsewhere."""
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
            elif kind == fmt.FrameType.DISCARDED and (found := fmt.decode_events_header(payload)) is not None:
                gone[stream, found[0].window] += found[0].count
    finally:
        reader.close()
    for place in places(path):
        where.setdefault((stream, place.header.window), []).append(place)
    name = (run.name, run.world_size) if run is not None else stream
    shift = run.anchor.wall(0) if run is not None else 0
    return [
        _held(stream, (name, window), window, frames, ends.get(window), shift, copied)
        for (owner, window), frames in where.items()
        if owner == stream
    ]


def _held(
    stream: str,
    group: Hashable,
    window: int,
    frames: list[Place],
    end: WindowRecord | None,
    shift: int,
    copied: int | None,
) -> Held:
    nbytes = sum(place.length - place.kept for place in frames)
    if end is None:
        return Held(stream, group, window, nbytes, max(place.header.last_ns for place in frames) + shift, 0.0, False)
    step_ns = (end.end_ns - end.start_ns) / max(end.step_count, 1)
    whole = copied is None or max(place.at + place.length for place in frames) < copied
    return Held(stream, group, window, nbytes, end.end_ns + shift, step_ns, copied=whole)
