"""Delivers journals later: what a run could not send, or any journal."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.exporter import BUFFER, delete_buffer, is_buffer
from stepscope.exporters.stream.shipper import Head, Shipper, has_end
from stepscope.exporters.stream.transport import Feed, Transport
from stepscope.runtime.errors import FormatError, OutputError, ProfilerStateError
from stepscope.runtime.events.clock import identity
from stepscope.runtime.journal.segments import first_names, journal_of
from stepscope.runtime.recovery.journals import suggest_journals
from stepscope.runtime.recovery.recover import recover
from stepscope.runtime.session.note import BUFFER_DIRECTORY, JOURNAL

MakeTransport = Callable[[Feed], Transport]


class Delivered(msgspec.Struct, frozen=True):
    """A journal of which the other end has all frames that it can take."""

    stream: str
    events: int
    """Number of its events."""
    left_out: int
    left_out_frames: int
    """Number of its events that are in frames which are too large for the other end, and were not sent."""


def journals_in(place: Path) -> list[Path]:
    """The journals to deliver: a named one, or those of a run's directory. Raises `FormatError` if there is none, and
    `OSError` if the directory cannot be read."""
    if not place.is_dir():
        return [journal_of(place)]
    found = [
        directory / name
        for directory, journal in ((place, JOURNAL), (place / BUFFER_DIRECTORY, BUFFER))
        if directory.is_dir()
        for name in first_names(path.name for path in directory.glob(f"{journal}*"))
        if re.fullmatch(rf"{journal}(-\d+)?", name)
    ]
    if not found:
        named = suggest_journals(place) or "name a journal"
        raise FormatError(f"nothing to deliver in {place}: it has no journal; {named}")
    return found


def complete(journal: Path, *, force: bool = False) -> None:
    """Recovers a journal whose process was killed. A complete journal stays as it is.

    Args:
        journal: its first segment.
        force: assume that a process on another machine is dead.

    Raises:
        ProfilerStateError: if the process still writes it, or may do so.
        FormatError: if it is no journal.
        OSError: if it cannot be read or completed.
    """
    run = Head.of(journal).run
    if has_end(journal):
        return
    if run.clock and run.clock != identity() and not force:
        raise ProfilerStateError(
            f"process {run.pid} on {run.host} may still write {journal}: this is another machine, or it was restarted since; run this "
            "there, or with --force if you know that the process has ended"
        )
    recover(journal)


async def deliver(journal: Path, make_transport: MakeTransport, patience_s: float) -> Delivered:
    """Sends a complete journal; returns when the other end has all of it. May be repeated: nothing is stored twice.

    An exporter's buffer is deleted then.

    Args:
        journal: its first segment.
        make_transport: makes the connection.
        patience_s: seconds without any progress after which to give up.

    Raises:
        OutputError: if the other end refuses it, or there is no progress.
        FormatError: if the journal is damaged at its beginning.
        OSError: if it cannot be read.
    """
    head = Head.of(journal)
    shipper = Shipper(journal)
    transport: Transport | None = None
    try:
        transport = make_transport(Feed(shipper, protocol.Hello(head.stream, head.sync, head.run)))
        transport.start(log_refusals=False)
        await transport.finish(patience_s, patience_s)
        statistics = transport.statistics()
        if not shipper.is_confirmed or not statistics.connections:
            late = f"nothing was confirmed for {patience_s:g} s"
            error = statistics.last_error if statistics.refused else late
            if not statistics.refused and statistics.last_error not in ("", transport.logged):
                error += f": {statistics.last_error}"
            raise OutputError(f"{transport.where} does not take the journal {journal}: {error}")
        await transport.close()
    finally:
        if transport is not None:
            transport.abort()
        shipper.close()
    if is_buffer(journal) and not shipper.left_out_frames:
        delete_buffer(journal)
    return Delivered(head.stream, shipper.drain_confirmed().total(), shipper.left_out, shipper.left_out_frames)
