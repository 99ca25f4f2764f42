"""Names of what the exporters and collectors of a team share in NATS, those of each job apart from those of others.

A NATS user can be limited to the subjects of one job, as each begins with `stepscope.<team>.<job>.`, and so does the key of a
stream in the bucket of `Hello`s, after the bucket's name.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, NamedTuple

import msgspec

from stepscope.exporters.stream.protocol import job_of
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.settings.validation import find_invalid_value

Team = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9_-]{1,32}\Z")]

DEFAULT_TEAM = "default"
PARTITIONS = 32
"""Parts of a team's streams, each of which one collector takes at a time."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_STREAM = re.compile(r"[0-9a-f]{32}")


def job_token(job: str) -> str:
    """A job's name as a part of a subject: itself if it has at most 64 letters, digits, `_` and `-`; else what is left of it, and a hash."""
    if _PLAIN.fullmatch(job):
        return job
    # No plain name has an equals sign, so no job has the token of another one.
    digest = hashlib.sha256(job.encode(errors="replace")).hexdigest()[:16]
    return f"{re.sub('[^A-Za-z0-9_-]', '_', job)[:32]}={digest}"


def partition_of(stream: str) -> int:
    """The partition to which a stream belongs, by its id."""
    return int(stream[:8], 16) % PARTITIONS


class StreamNames(NamedTuple):
    """Names of one stream."""

    key: str
    """The stream's key in buckets."""
    frames: str
    live: str
    """Subject of its summaries, which are not stored."""
    orders: str
    """Subject of commands for its process, which answers."""
    clock: str
    """Subject of `Ping`, which the collector that takes the stream answers."""
    inbox: str
    """Prefix of subjects on which its process gets answers."""


class Names:
    """Names of a team. Raises `ValueError` if it is no name of a team."""

    def __init__(self, team: str = DEFAULT_TEAM) -> None:
        invalid = find_invalid_value(team, Team, "team")
        if invalid is not None:
            raise ValueError(f"{invalid.text}: lower-case letters, digits, _ and -, at most 32")
        self.team = team
        self.stream = f"STEPSCOPE_{team.upper()}"
        """Name of the stream in JetStream; it has the frames of all streams."""
        self.hellos, self.ended, self.leases = (f"stepscope-{team}-{what}" for what in ("hellos", "ended", "leases"))
        self._prefix = f"stepscope.{team}"
        self.frames = f"{self._prefix}.*.frames.>"
        self.live, self.clocks = f"{self._prefix}.*.live.*", f"{self._prefix}.*.clock.*"
        self.inbox = f"{self._prefix}.$collectors"
        """Prefix of subjects on which collectors get answers. No job has this token."""

    def partition(self, number: int) -> str:
        """Subjects of the frames of a partition."""
        return f"{self._prefix}.*.frames.{number}.*"

    def of(self, run: RunRecord, stream: str) -> StreamNames:
        """Names of a stream."""
        job = job_token(job_of(run))
        base = f"{self._prefix}.{job}"
        return StreamNames(
            key=f"{job}.{stream}",
            frames=f"{base}.frames.{partition_of(stream)}.{stream}",
            live=f"{base}.live.{stream}",
            orders=f"{base}.orders.{stream}",
            clock=f"{base}.clock.{stream}",
            inbox=f"{base}.inbox",
        )


def key_of(subject: str) -> str:
    """The key of the stream to which a subject belongs. Raises `FormatError` if it names no stream, or a partition to
    which the stream does not belong."""
    _, _, job, kind, *rest = subject.split(".")
    stream = rest[-1]
    if not _STREAM.fullmatch(stream):
        raise FormatError("the id of a stream is 32 hexadecimal digits")
    if kind == "frames" and rest[0] != str(partition_of(stream)):
        raise FormatError(f"the stream belongs to partition {partition_of(stream)}")
    return f"{job}.{stream}"
