"""Storage governance: a collector's files stay within their limit, and events of windows are given up for that."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from stepscope.collector.discarding.discard import block_bytes
from stepscope.collector.files.disk_use import DiskUse, disk_use, on_disk
from stepscope.collector.files.store import Store
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import StorageView
from stepscope.collector.retention.deleting import Deleted, Deleting
from stepscope.collector.retention.giving_up import GivingUp
from stepscope.collector.retention.holdings import Holdings
from stepscope.collector.retention.inventory import Inventory
from stepscope.collector.retention.retention import StoragePolicy, ranking
from stepscope.runtime.errors import FormatError, OutputError

log = logging.getLogger("stepscope.collector")

LOOK_SECONDS = 10.0
UNLIMITED_LOOK_SECONDS = 600.0
"""Between two looks at the whole directory where the disk has no limit."""
LEAST_SECONDS = 0.2
"""Between two looks, however much is written."""
LATE = 2.0
"""Seconds for which a write may wait for the disk before that is a problem."""
RECORDS = 4
"""What of the limit's bytes the records of windows may take whose events are gone, before they go as well: one part in so many."""
PATIENCE = 2.0
"""Seconds that it waits at most for frames that are being read for a copy."""


class Freed(msgspec.Struct, frozen=True):
    """What one call of `Storage.enforce` did."""

    used: int
    """Bytes on disk afterwards."""
    counted: int
    """Those that the limit is for: with the room that is kept for downloads."""
    freed: int = 0
    windows: int = 0
    """Windows, counted on each stream, whose events were given up."""
    events: int = 0
    discarded: dict[tuple[str, int], int] = {}
    """By stream and window of which some were given up: events that are gone, with those before."""
    removed_bytes: int = 0
    """Length of files that were deleted: others hold all of them, or their streams were over."""
    deleted: list[str] = []
    """Streams that were over, and are no more."""
    busy: bool = False
    """Whether nothing could be given up because something was being copied all the time."""


class Storage:
    """Keeps the files of a store within their limit. Calls block on the disk: not for the collector's loop.

    Everything counts that the collector has written to its directory. Above the limit less a sixteenth something is given
    up until another sixteenth is free, and streams write no further than the limit before the next look.
    """

    def __init__(
        self,
        store: Store,
        policy: StoragePolicy,
        streams: Streams | None = None,
        copied: Callable[[str], int] | None = None,
        downloads: int = 0,
    ) -> None:
        """
        Args:
            store: whose files they are; it is told how much may be written.
            policy: what is kept.
            streams: are told what was given up.
            copied: how many bytes of a stream's file are elsewhere as well, if they are to be.
            downloads: bytes of the limit that nothing else takes, for files that are made for downloads: these need not wait
                until something was given up for them, which could be what they are to hold.

        Raises:
            OutputError: if there is a limit, and the file system cannot free parts of files.
        """
        self._store, self._policy, self._streams, self._copied = store, policy, streams, copied
        self._downloads = downloads
        self._untold: dict[tuple[str, int], int] = {}
        self._deleted = Deleted(store.directory)
        self._used: int | None = None
        self._bytes_then = 0
        """Of streams, when `_used` was found."""
        self._next_look = 0.0
        self._free = 0
        self._problem = ""
        self._inventories: dict[str, Inventory] = {}
        self.unreadable: dict[str, str] = {}
        """Journals that are left as they are, by their streams, and what is wrong with them; as of the last pass."""
        self._faults: dict[str, str] = {}
        self._block = _block(store.directory) if policy.max_bytes else 0
        store.room.bound(policy.max_bytes, policy.slack)

    async def run(self) -> None:
        """Looks every few seconds, and whenever so much was written that it must, until it is cancelled."""
        room = self._store.room
        while True:
            try:
                # To look is to ask for every file of the directory.
                if self._policy.max_bytes or self._store.crowd or time.monotonic() >= self._next_look:
                    await self._look_and_enforce()
                self._free = (await asyncio.to_thread(shutil.disk_usage, self._store.directory)).free
            except OSError as error:
                self._problem = f"the limit of the disk cannot be kept: {error}"
                log.error("%s", self._problem)
            self._tell()
            await asyncio.sleep(LEAST_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await room.due.wait()

    async def _look_and_enforce(self) -> None:
        room = self._store.room
        room.begin()
        self._bytes_then = self._store.bytes
        freed = await asyncio.to_thread(self.enforce, room.wanted, self._store.crowd)
        self._used, self._problem = freed.used, ""
        self._next_look = time.monotonic() + UNLIMITED_LOOK_SECONDS
        self._untold |= freed.discarded
        self._store.bytes -= freed.removed_bytes
        self._bytes_then -= freed.removed_bytes
        self._forget(freed.deleted)
        await room.end(freed.counted, "what could be given up is being copied" if freed.busy else "")

    def view(self, discarded: int = 0) -> StorageView | None:
        """How much there is, as of the last look; `None` before the first. Nothing is asked of the disk.

        Args:
            discarded: events of all streams that were given up.
        """
        if self._used is None:
            return None
        # Without a limit the disk is looked at rarely.
        grown = 0 if self._policy.max_bytes else max(self._store.bytes - self._bytes_then, 0)
        waits = self._store.waits
        late = f"the disk does not answer: a write has waited for it for {waits:.0f} s" if waits > LATE else ""
        unreadable = list(self.unreadable.items())
        said = f"{unreadable[0][0]}: {unreadable[0][1]}"[:500] if unreadable else ""
        return StorageView(
            used_bytes=self._used + grown,
            limit_bytes=self._policy.max_bytes or None,
            free_bytes=self._free,
            waits_s=round(waits, 1),
            discarded_events=discarded,
            deleted_streams=self._deleted.count.streams,
            deleted_events=self._deleted.count.events,
            unreadable=len(unreadable),
            problem=late or self._problem or said,
        )

    def _forget(self, deleted: Iterable[str]) -> None:
        if self._streams is not None:
            for stream in deleted:
                self._streams.deleted(stream)

    def _tell(self) -> None:
        known = {} if self._streams is None else self._streams.all
        for (id, window), events in list(self._untold.items()):
            stream = known.get(id)
            if stream is not None and stream.restoring:
                continue  # it counts what it reads
            del self._untold[id, window]
            if stream is not None:
                stream.windows.discarded_in_all(window, events)

    def enforce(self, wanted: int = 0, crowd: int = 0) -> Freed:
        """Gives up what there is no room for.

        Streams of which others have everything go whole, and so do those that are over when the time of their last window has
        come. Of others events go, in place, and later the records of windows that have no events left. Everything else keeps
        its place and its number. A journal that cannot be read or written is left as it is.

        Args:
            wanted: bytes for which there must be room afterwards.
            crowd: streams that others are to take the place of.

        Raises:
            OSError: if the directory cannot be read.
        """
        policy = self._policy
        self._faults = {}
        use = self._use()
        counted = self._counted(use)
        most = policy.max_bytes - max(policy.slack, wanted)
        surplus = counted - most + policy.slack if counted > most else 0
        if not policy.max_bytes or not (surplus or crowd):
            self.unreadable = {**self.unreadable, **self._faults}
            return Freed(use.total, counted)
        self._look()
        try:
            with self._store.frames.held(PATIENCE):
                return self._give_up(use, surplus, crowd)
        except TimeoutError:
            return Freed(use.total, counted, busy=True)  # looked at again in a moment
        finally:
            self.unreadable = self._faults

    def _use(self) -> DiskUse:
        return disk_use(self._store.directory, self._unseen)

    def _counted(self, use: DiskUse) -> int:
        """Bytes that count."""
        return use.streams + max(use.downloads, self._downloads)

    def _unseen(self, path: Path, error: OSError) -> None:
        """A file or directory cannot be looked at: if it is of a stream, it costs that one."""
        stream = self._store.stream_at(path)
        if not stream:
            raise error
        self._left(stream, self._store.path(stream), error)

    def _look(self) -> None:
        """Reads what is new in the journals; those that are kept no more are forgotten."""
        kept = dict(self._store.journals(self._unseen))
        self._inventories = {stream: one for stream, one in self._inventories.items() if stream in kept}
        for stream, path in kept.items():
            inventory = self._inventories.get(stream) or Inventory(path)
            if self._isolated(stream, path, inventory.look):
                self._inventories[stream] = inventory

    def _isolated(self, stream: str, path: Path, work: Callable[[], object]) -> bool:
        """Whether it was done; a journal that it fails for is noted, and said once for each reason."""
        try:
            work()
        except FileNotFoundError:
            return False  # somebody has deleted it
        except Exception as error:  # also a fault of ours: what somebody has sent is not to cost the others their limit
            self._left(stream, path, error)
            return False
        return True

    def _left(self, stream: str, path: Path, error: Exception) -> None:
        known = isinstance(error, (FormatError, OSError))
        said = str(error) if known else f"{type(error).__name__}: {error}"
        if said not in (self.unreadable.get(stream), self._faults.get(stream)):
            log.warning("%s is left as it is: %s", path, said, exc_info=None if known else error)
        self._faults[stream] = said

    def _give_up(self, use: DiskUse, surplus: int, crowd: int) -> Freed:
        removed, length, count = self._remove_superseded(surplus, crowd)
        # Who reads a file to bring its state back has counted some of its records already.
        unread = set[str]() if self._streams is None else set(self._streams.unread)
        holdings = Holdings(self._inventories, self._streams, self._copied)
        ranked = ranking(holdings.windows, self._policy)
        deleting = Deleting(self._store, self._deleted, holdings.over(ranked.dear), self._isolated)
        giving = GivingUp(
            self._inventories,
            surplus - removed,
            self._isolated,
            self._store.borders.of,
            recorded=self._inventories.keys() - unread,
        )
        giving.left()
        if count < crowd:
            giving.count(deleting.places(crowd - count, holdings.over(())))
        streams = use.streams - removed - giving.freed
        giving.records(streams - holdings.nbytes - self._policy.max_bytes // RECORDS)
        for group in ranked.given_up:
            dear = any(one.group in ranked.dear for one in group)
            end = None if dear else max((one.end_ns for one in group), default=0)
            giving.count(deleting.until(end, giving.surplus))
            if dear:
                giving.records(giving.surplus)
            if giving.surplus <= 0:
                break
            giving.whole([one for one in group if one.stream not in deleting.done])
        giving.count(deleting.until(None, giving.surplus))
        giving.records(giving.surplus)
        giving.oldest([one for one in ranked.trimmed if one.stream not in deleting.done])
        giving.oldest([one for one in ranked.last if one.stream not in deleting.done])
        giving.records(giving.surplus)
        for stream in deleting.done:
            del self._inventories[
                stream
            ]  # it may come again, in a file that looks like this one: numbers of files are used again
        if giving.events or removed or deleting.done:
            log.warning(
                "%d events of %d windows, %d streams that were over, and %d bytes that other streams have, were given up: "
                "the limit is %d bytes",
                giving.events, giving.windows, len(deleting.done), length, self._policy.max_bytes,
            )  # fmt: skip
        freed = removed + giving.freed
        try:
            use = self._use()
        except OSError as error:  # what was given up is to be told all the same
            log.warning("the disk cannot be looked at again: %s", error)
            use = DiskUse(use.streams - freed, use.downloads)
        return Freed(
            use.total,
            self._counted(use),
            freed,
            giving.windows,
            giving.events,
            giving.gone,
            length + deleting.length,
            deleting.done,
        )

    def _remove_superseded(self, surplus: int, crowd: int) -> tuple[int, int, int]:
        """Deletes streams of which others have everything; bytes on disk, and of their length, and how many they were."""
        freed = length = count = 0

        def remove(stream: str, path: Path) -> None:
            nonlocal freed, length, count
            about = path.lstat()
            if self._store.remove(stream):
                freed += on_disk(about)
                length += about.st_size
                count += 1

        for stream, path in self._store.superseded(self._unseen):
            if freed >= surplus and count >= crowd:
                break
            self._isolated(stream, path, lambda: remove(stream, path))  # noqa: B023
        return freed, length, count


def _block(directory: Path) -> int:
    """Bytes of the blocks in which the file system frees parts of files.

    Raises:
        OutputError: if it does not.
    """
    try:
        block = block_bytes(directory)
    except OSError as error:
        raise OutputError(error.errno, f"nothing can be written: {error.strerror}", str(directory)) from error
    if not block:
        raise OutputError(
            f"the disk cannot be kept within a limit (disk_bytes, --disk): the file system of {directory} does not free "
            "parts of files; use a directory on ext4, XFS, Btrfs or tmpfs, or max_bytes (--max-bytes), above which "
            "nothing is taken"
        )
    return block
