"""Keeps a collector's directory within its limit: evicts segments of streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.collector.files.disk import disk_use, on_disk
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import StorageView
from stepscope.collector.retention.inventory import Inventory, Segment, StoredStream
from stepscope.collector.retention.policy import LAST, Candidate, StoragePolicy, candidates
from stepscope.collector.runs.evicted import Evicted, evict, read_evicted
from stepscope.runtime.errors import FormatError
from stepscope.runtime.files.private_files import replace_private
from stepscope.runtime.journal.segments import segment_paths

log = logging.getLogger("stepscope.collector")

FREE_SECONDS = 10.0
"""Seconds between two questions for the free room of the file system."""
AGAIN_SECONDS = 1.0
"""Seconds until the next measurement, if the last one failed or could not evict segments that are being read."""
LEAST_SECONDS = 0.2
"""Seconds between two measurements, however much is written."""
DELETED = "deleted"
"""Name of the file, in the directory of a collector, that counts the streams that were deleted whole ever since."""
LATE = 2.0
"""Seconds for which a write may wait for the disk before that is a problem."""


class Count(msgspec.Struct, frozen=True):
    """Counts streams that were deleted for want of room."""

    streams: int = 0
    events: int = 0
    """Events of these streams, with those that were evicted before."""
    last: str = ""
    """Id of the last deleted stream: after a kill between the count and the deletion, it is not counted twice."""


class Deleted:
    """The count, as it is on disk. Calls block."""

    def __init__(self, directory: Path) -> None:
        """Args: of a collector."""
        self._path = directory / DELETED
        try:
            self.count = msgspec.json.decode(self._path.read_bytes(), type=Count)
        except FileNotFoundError:
            self.count = Count()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read, it is begun anew: %s", self._path, error)
            self.count = Count()

    def add(self, stream: str, events: int) -> None:
        """Counts a stream that is about to be deleted. Raises `OSError` if the count cannot be written."""
        if self.count.last != stream:
            self.set(Count(self.count.streams + 1, self.count.events + events, stream))

    def set(self, count: Count) -> None:
        """Sets the count: to what it was before, if a stream could not be deleted. Raises `OSError` if that cannot be
        noted."""
        replace_private(self._path, msgspec.json.encode(count))
        self.count = count


class Measurement(msgspec.Struct):
    """Result of one measurement of the disk, and what was evicted."""

    used: int
    """Bytes on disk after the evictions."""
    counted: int
    """The same with the room that is reserved for downloads."""
    freed: int = 0
    """Bytes on disk that were freed."""
    removed_bytes: int = 0
    """Length of the files that were deleted."""
    evicted: list[tuple[str, Evicted]] = []
    """Evicted segments with their streams."""
    deleted: list[str] = []
    """Streams that were deleted whole."""
    postponed: list[str] = []
    """Streams, in the order of their segments that are evicted as soon as the live state is restored from them; nothing else is evicted
    in their place."""
    postponed_bytes: int = 0
    """Bytes on disk of these segments."""

    def removed(self, about: os.stat_result) -> None:
        """Counts a deleted file."""
        self.freed += on_disk(about)
        self.removed_bytes += about.st_size


class Storage:
    """Keeps the files of a store within their limit.

    Everything counts that the collector has written to its directory. The directory is measured when so much was written
    that less than a sixteenth of the limit may be free; if so, segments are evicted until an eighth is. Streams write no further
    than to the limit before the next measurement. Without a limit nothing is measured.
    """

    def __init__(
        self,
        store: Store,
        policy: StoragePolicy,
        streams: Streams | None = None,
        uploaded: Callable[[Path], bool] | None = None,
        downloads: int = 0,
    ) -> None:
        """
        Args:
            store: whose files they are; gets the number of bytes that may be written.
            uploaded: whether a segment is in another store, if everything is uploaded to one.
            downloads: bytes of the limit that are reserved for files that are made for downloads.
        """
        self._store, self._policy, self._uploaded = store, policy, uploaded
        self._streams = Streams(1) if streams is None else streams
        self._downloads = downloads
        self._inventory = Inventory()
        self._deleted = Deleted(store.directory)
        self._unused: int | None = None if policy.max_bytes else 0
        """Bytes that are reserved for downloads and not used; `None` before the first measurement."""
        self._free: int | None = None
        self._problem = ""
        self.unreadable: dict[str, str] = {}
        """Streams that are left as they are, and what is wrong with them; as of the last measurement."""
        self._faults: dict[str, str] = {}
        store.quota.bound(policy.max_bytes, policy.slack)

    async def run(self) -> None:
        """Measures the disk whenever so much was written that it must, until it is cancelled."""
        quota, due = self._store.quota, bool(self._policy.max_bytes)
        while True:
            try:
                due = due and await self._measure()
                self._free = (await asyncio.to_thread(shutil.disk_usage, self._store.directory)).free
                self._problem = ""
            except OSError as error:
                limit, unreadable = "the limit of the disk cannot be kept", "the collector's directory cannot be read"
                self._problem = f"{limit if self._policy.max_bytes else unreadable}: {error}"
                log.error("%s", self._problem)
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(AGAIN_SECONDS if due else FREE_SECONDS):
                    await quota.due.wait()
                    due = True

    async def _measure(self) -> bool:
        """Measures the disk once. Returns whether to measure again soon."""
        quota = self._store.quota
        quota.begin_measurement()
        done = await asyncio.to_thread(self.enforce, quota.wanted, self._store.surplus_streams)
        self._store.bytes -= done.removed_bytes
        self._unused = done.counted - done.used
        for stream, evicted in done.evicted:
            entry = self._streams.all.get(stream)
            if entry is not None:
                entry.windows.evict(evicted)
        for stream in done.deleted:
            self._streams.deleted(stream)
        self._streams.restore_first(done.postponed)
        await quota.end_measurement(done.counted)
        return bool(done.postponed)

    def view(self, discarded: int = 0) -> StorageView | None:
        """Disk use as of the last measurement and of later writes; `None` before the first. It does not ask the disk."""
        if self._unused is None or self._free is None:
            return None
        waits = self._store.waits
        late = f"the disk does not answer: a write has waited for it for {waits:.0f} s" if waits > LATE else ""
        fault = next((f"{stream}: {why}"[:500] for stream, why in self.unreadable.items()), "")
        return StorageView(
            used_bytes=self._store.quota.used - self._unused if self._policy.max_bytes else self._store.bytes,
            limit_bytes=self._policy.max_bytes or None,
            free_bytes=self._free,
            waits_s=round(waits, 1),
            discarded_events=discarded,
            deleted_streams=self._deleted.count.streams,
            deleted_events=self._deleted.count.events,
            unreadable=len(self.unreadable),
            problem=late or self._store.problem or self._problem or fault,
        )

    def enforce(self, wanted: int = 0, surplus_streams: int = 0) -> Measurement:
        """Looks at the directory, and evicts what there is no room for. Blocks on the disk.

        A stream that cannot be read, or whose files cannot be written or deleted, is left as it is.

        Args:
            wanted: bytes for which there must be room afterwards.

        Raises:
            OSError: if the directory cannot be read.
        """
        self._faults = {}
        self._store.check_directory()
        use = disk_use(self._store.directory, self._unseen)
        done = Measurement(use.total, use.streams + max(use.downloads, self._downloads))
        most = self._policy.max_bytes - max(self._policy.slack, wanted)
        surplus = done.counted - most + self._policy.slack if self._policy.max_bytes and done.counted > most else 0
        if surplus or surplus_streams:
            files = {stream: its for stream, its in use.segments.items() if stream not in self._faults}
            streams = self._inventory.look(files, self._store.connected, self._isolated)
            order = candidates(streams, self._policy, self._uploaded)
            for one in order:
                place = one.last and one.uploaded and len(done.deleted) + len(done.postponed) < surplus_streams
                if place or (done.freed + done.postponed_bytes < surplus and one.order[0] < LAST):
                    self._isolated(one.stream.id, lambda: self._evict(one, done))  # noqa: B023
            if done.evicted or done.deleted:
                log.warning(
                    "%d segments and %d streams that were over were evicted, %d bytes: the limit is %d bytes",
                    len(done.evicted), len(done.deleted), done.freed, self._policy.max_bytes,
                )  # fmt: skip
        self.unreadable = {**({} if surplus or surplus_streams else self.unreadable), **self._faults}
        done.used -= done.freed
        done.counted -= done.freed
        return done

    def _evict(self, one: Candidate, done: Measurement) -> None:
        if one.stream.id in self._streams.unread:
            done.postponed.append(one.stream.id)
            done.postponed_bytes += on_disk(one.segment.file.about)
        elif one.last:
            self._delete(one.stream, done)
        elif one.stream.id not in done.deleted:
            self._unlink(one.stream, one.segment, done)

    def _unlink(self, stream: StoredStream, segment: Segment, done: Measurement) -> None:
        """Evicts a segment after which others follow."""
        counted = segment.counted()
        evict(stream.journal, counted)
        self._store.changed(stream.id)
        done.evicted.append((stream.id, counted))
        done.removed(segment.file.about)

    def _delete(self, stream: StoredStream, done: Measurement) -> None:
        """Deletes a stream that is over, unless it goes on."""
        *others, last = stream.segments
        for segment in others:
            if os.path.lexists(segment.file.path):
                self._unlink(stream, segment, done)
        path, size = last.file.path, last.file.about.st_size
        if segment_paths(stream.journal) != [path] or path.lstat().st_size != size:
            return  # it goes on
        before = self._deleted.count
        evicted = sum(one.events for one in read_evicted(stream.journal))
        self._deleted.add(stream.id, last.counted().events + evicted)
        try:
            self._store.remove(stream.id)
        finally:
            if os.path.lexists(path):
                self._deleted.set(before)
            else:
                done.deleted.append(stream.id)
                done.removed(last.file.about)

    def _unseen(self, path: Path, error: OSError) -> None:
        """Reports a file or directory that cannot be read: only its stream is skipped."""
        stream = self._store.stream_at(path)
        if not stream:
            raise error
        self._log_skipped(stream, error)

    def _isolated(self, stream: str, work: Callable[[], object]) -> None:
        """Runs a function for one stream. If it fails, the stream stays as it is."""
        try:
            work()
        except FileNotFoundError:
            return  # somebody has deleted it
        except Exception as error:  # also a fault of ours: what somebody has sent is not to cost the others their limit
            self._log_skipped(stream, error)

    def _log_skipped(self, stream: str, error: Exception) -> None:
        """Logs a stream that stays as it is, once for each reason."""
        expected = isinstance(error, (FormatError, OSError))
        why = str(error) if expected else f"{type(error).__name__}: {error}"
        if why not in (self.unreadable.get(stream), self._faults.get(stream)):
            path = self._store.streams / stream
            log.warning("%s is left as it is: %s", path, why, exc_info=None if expected else error)
        self._faults[stream] = why
