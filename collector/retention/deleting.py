"""Deletes streams that are over, and remembers how many there were."""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import msgspec

from stepscope.collector.files.disk_use import on_disk
from stepscope.collector.files.store import Store
from stepscope.collector.retention.giving_up import Isolated
from stepscope.collector.retention.holdings import Over
from stepscope.runtime.files.private_files import replace_private

log = logging.getLogger("stepscope.collector")

NAME = "deleted"
"""Of the file, in the directory of a collector."""


class Count(msgspec.Struct, frozen=True):
    """Of all streams that were deleted for want of room."""

    streams: int = 0
    events: int = 0
    """That they had brought, with those that were given up before."""
    last: str = ""
    """Id of the last one: who is killed between the count and the deletion does not count it twice."""


class Deleted:
    """The count, as it is on disk. Calls block."""

    def __init__(self, directory: Path) -> None:
        """Args: of a collector."""
        self._path = directory / NAME
        try:
            self.count = msgspec.json.decode(self._path.read_bytes(), type=Count)
        except FileNotFoundError:
            self.count = Count()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("%s cannot be read, it is begun anew: %s", self._path, error)
            self.count = Count()

    def add(self, stream: str, events: int) -> None:
        """A stream is to be deleted.

        Raises:
            OSError: if that cannot be noted.
        """
        if self.count.last == stream:
            return
        count = Count(self.count.streams + 1, self.count.events + events, stream)
        self._write(count)
        self.count = count

    def take_back(self, before: Count) -> None:
        """The stream that was to be deleted is still there: the count is what it was before.

        Raises:
            OSError: if that cannot be noted; the next start counts the stream once more then.
        """
        self.count = before
        self._write(before)

    def _write(self, count: Count) -> None:
        replace_private(self._path, msgspec.json.encode(count))


class Deleting:
    """The act, stream by stream. Calls block on the disk."""

    def __init__(self, store: Store, deleted: Deleted, over: Iterable[Over], isolated: Isolated) -> None:
        """Args: whose streams; the count; those that may go, the oldest first; how to do what may fail for one of them."""
        self._store, self._deleted, self._isolated = store, deleted, isolated
        self._over = deque(over)
        self.done: list[str] = []
        """Those that are gone."""
        self.length = 0
        """Bytes of their files."""

    def places(self, count: int, dear: Iterable[Over] = ()) -> int:
        """Deletes so many streams, those that may go before others.

        Args:
            count: of streams.
            dear: others that may go for that, the oldest first.

        Returns:
            Bytes that were freed.
        """
        freed = 0
        others = deque(dear)
        while len(self.done) < count and (self._over or others):
            one = (self._over or others).popleft()
            if one.stream not in self.done:
                freed += self._freed(one)
        return freed

    def until(self, end_ns: int | None, surplus: int) -> int:
        """Deletes streams whose last windows were before a time, until so much is freed.

        Args:
            end_ns: Unix time; `None`: all of them.
            surplus: bytes.

        Returns:
            Bytes that were freed.
        """
        freed = 0
        while self._over and freed < surplus and (end_ns is None or self._over[0].end_ns <= end_ns):
            freed += self._freed(self._over.popleft())
        return freed

    def _freed(self, one: Over) -> int:
        found: list[int] = []
        self._isolated(one.stream, one.inventory.path, lambda: found.append(self._delete(one)))
        return sum(found)

    def _delete(self, one: Over) -> int:
        about = one.inventory.path.lstat()
        if self._store.connected(one.stream) or about.st_size != one.inventory.size:
            return 0  # it goes on
        before = self._deleted.count
        self._deleted.add(one.stream, one.inventory.events)
        try:
            if not self._store.remove(one.stream):
                return 0
        finally:
            if os.path.lexists(one.inventory.path):
                self._deleted.take_back(before)
        self.done.append(one.stream)
        self.length += about.st_size
        return on_disk(about)
