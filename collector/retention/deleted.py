"""How many streams were deleted whole, ever since the directory of the collector was made."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from stepscope.runtime.files.private_files import replace_private

log = logging.getLogger("stepscope.collector")

NAME = "deleted"
"""Of the file, in the directory of a collector."""


class Count(msgspec.Struct, frozen=True):
    """Of all streams that were deleted for want of room."""

    streams: int = 0
    events: int = 0
    """That they had brought, with those that were evicted before."""
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
        if self.count.last != stream:
            self.set(Count(self.count.streams + 1, self.count.events + events, stream))

    def set(self, count: Count) -> None:
        """Sets the count: to what it was before, if a stream could not be deleted.

        Raises:
            OSError: if that cannot be noted.
        """
        replace_private(self._path, msgspec.json.encode(count))
        self.count = count
