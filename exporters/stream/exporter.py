"""The exporter that streams a run to a collector."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import re
import shlex
import ssl
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.journal import JournalExporter
from stepscope.exporters.network.outcomes import Outcomes
from stepscope.exporters.stream import protocol
from stepscope.exporters.stream.address import NO_TOKEN, Address, Token
from stepscope.exporters.stream.shipper import Head, Shipper
from stepscope.exporters.stream.step_summary import summary_of
from stepscope.exporters.stream.transport import Feed, LinkSettings, LinkStatistics, Transport
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ClosedError, ControlError, OutputError
from stepscope.runtime.events.clock import ClockSync
from stepscope.runtime.export.exporter import DeliveryResult, UnsentFiles
from stepscope.runtime.export.run import LiveJournal, refuse_another_run
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.journal.segments import segment_paths
from stepscope.runtime.requests.command import VERSION as CONTROL
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.note import BUFFER_DIRECTORY, note_nothing
from stepscope.runtime.settings import checked
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import suggesting
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, Facts

if TYPE_CHECKING:
    from stepscope.exporters.stream.websocket import WebSocketTransport

log = logging.getLogger("stepscope")

BEAT_S = 5.0
"""Seconds after which a summary is sent though no step has ended."""
NO_FACTS: Facts = np.zeros(0, FACTS_DTYPE)
BUFFER = "buffer"
"""Name of the journal that an exporter writes if the run keeps none of all windows."""


class CollectorExporter:
    """Streams the run's journal to `stepscope collect`, which stores the same files.

    Training never waits. Frames that the collector has not confirmed stay in the journal, and are sent when the connection is
    there again; nothing is stored twice, as the collector knows the number of the next frame. When the run ends before all is
    confirmed, report and log say which `stepscope deliver` sends the rest. Segments that were sent are deleted when the
    journal reaches its size limit.

    A run without a journal of all windows (`Options.journal` off, or `keep_last`) gets one in the directory `unsent`, as a buffer:
    its segments are deleted when the collector has them.

    Args:
        url: `ws://`, `wss://`, `http://` or `https://`, with or without a path.
        token: what the collector asks for: itself, the file that holds it, or a function that returns it, which are read
            again for each connection; `None`: that of the environment variable STEPSCOPE_TOKEN, if it is set. It is
            sent in a header, and shown nowhere.
        settings: times and sizes.
        tls: how to check the collector's certificate, if not as usual.

    Raises:
        TypeError: an argument is not what it should be.
        ValueError: for a URL that is none of these or holds a password, for `ws://` or `http://` to another machine unless
            `LinkSettings.insecure` allows it, and if the token's file holds none.
        OSError: if the token's file cannot be read.
        ImportError: if the packages that it needs are not installed; says how to get them.
    """

    name = "collector"

    @suggesting
    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        settings: LinkSettings | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._transport_type = _transport_type()
        self._settings = checked.settings("settings", settings, LinkSettings)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise TypeError(f"tls must be an ssl.SSLContext, {got(tls)}; TLS is used by itself with wss://")
        self._address = Address(url, token, insecure=self._settings.insecure)
        self._tls = tls
        self.stream = ""
        """Id of the stream, which names its directory at the collector; empty before `open`."""
        self.unsent_files: UnsentFiles | None = None
        """The journal, if the run ended before all of it was confirmed."""
        self._buffer: JournalExporter | None = None
        """The journal that this exporter writes itself."""
        self._journal: LiveJournal | None = None
        self._shipper: Shipper | None = None
        self._transport: Transport | None = None
        self._watching: asyncio.Task[None] | None = None
        self._beating: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop
        self._summarized = -math.inf
        """Time of the last summary, in seconds of the loop's clock."""
        self._run: Run | None = None
        self._exported: Counter[int] = Counter()
        """Events that were passed to `export` and whose outcome was not reported, by window."""
        self._received = 0
        """Events passed to `export`."""
        self._confirmed: Counter[int] = Counter()
        """Events that the collector confirmed, and that are not reported yet: `export` may be called later."""
        self._outcomes = Outcomes()
        self._ending = False
        """Whether the run is being closed."""
        self._closed = False

    @property
    def url(self) -> str:
        """The address to which the stream is sent."""
        return self._address.url

    @property
    def needs_events(self) -> bool:
        """Whether it writes the events itself, as the run keeps no journal of all windows."""
        return self._journal is None or self._buffer is not None

    async def open(self, run: Run) -> None:
        refuse_another_run(self, self._run)
        self._run = run
        journal = await self._opened_journal(run)
        head = Head.of(journal.path)
        self.stream = head.stream
        journal.follow(self)
        self._journal = journal
        self._shipper = Shipper(journal.path, lambda: journal.end, self._advanced)
        version = 0 if run.control is None else CONTROL
        hello = protocol.Hello(head.stream, head.sync, head.run, version, run.steps is not None)
        obey = None if run.control is None else self._obey
        self._transport = self._make_transport(Feed(self._shipper, hello, self._synced, self._limit_segments, obey))
        self._transport.start()
        self._loop = asyncio.get_running_loop()
        if run.steps is not None:
            run.steps.follow(self._receive_steps)
            self._beating = asyncio.create_task(self._beat(), name="stepscope summaries")
        self._watching = asyncio.create_task(self._watch(journal), name="stepscope shipper")

    async def _opened_journal(self, run: Run) -> LiveJournal:
        """The run's journal, once it is open; else one that this exporter writes."""
        journal = run.journal
        if journal is not None:
            await journal.changed.wait_for(lambda: journal.end or journal.failed)
            if journal.end:
                return journal
        self._buffer = JournalExporter(
            run.output_dir / BUFFER_DIRECTORY / BUFFER, max_bytes=self._settings.buffer_bytes
        )
        # `stepscope recover` does not look for a buffer.
        await self._buffer.open(msgspec.structs.replace(run, note_output=note_nothing))
        return self._buffer.writer

    def _make_transport(self, feed: Feed) -> Transport:
        return self._transport_type(self._address, self._settings, self._tls, feed)

    async def _watch(self, journal: LiveJournal) -> None:
        """Wakes the transport whenever the journal has grown, until it is closed."""
        assert self._transport is not None
        seen = 0
        while journal.is_open:
            self._transport.wake()
            await journal.changed.wait_for(lambda: journal.end > seen or not journal.is_open)  # noqa: B023
            seen = journal.end
        self._transport.wake()

    def _receive_steps(self, facts: Facts) -> None:
        """Called on the thread of the run's loop; if the run has ended, on that of this exporter."""
        assert self._journal is not None
        summary = self._summary(facts)
        if len(facts):
            self._journal.add_facts(summary)
        with contextlib.suppress(RuntimeError):  # the exporter's loop is closed
            self._loop.call_soon_threadsafe(self._send_summary, summary)

    def _summary(self, facts: Facts) -> protocol.StepSummary:
        journal = self._journal
        assert journal is not None
        lost = journal.lost + journal.dropped + journal.deleted_unsent
        return summary_of(facts, events=journal.written, lost=lost)

    def _send_summary(self, summary: protocol.StepSummary) -> None:
        if self._transport is not None and not self._closed:
            self._transport.summarize(msgspec.structs.replace(summary, ended=self._ending))
            self._summarized = self._loop.time()

    async def _beat(self) -> None:
        """Sends a summary without steps where none end, so that the collector knows that the process is there."""
        while True:
            remaining = self._summarized + BEAT_S - self._loop.time()
            if remaining <= 0:
                self._send_summary(self._summary(NO_FACTS))
            await asyncio.sleep(max(remaining, 1.0))

    async def _obey(self, text: bytes) -> bytes:
        """Carries out a command of the collector's."""
        assert self._run is not None and self._run.control is not None
        try:
            command = decode_json(text, Command)
        except ControlError as error:
            return json_bytes(Answer(error=str(error)))
        answer = await asyncio.wrap_future(self._run.control(command))
        while len(encoded := json_bytes(answer)) > protocol.MAX_ORDER:
            answer = msgspec.structs.replace(answer, windows=answer.windows[len(answer.windows) // 2 + 1 :])
        return encoded

    async def export(self, batch: EventBatch) -> None:
        if self._shipper is None:
            raise ClosedError("the collector's exporter was not opened")
        self._exported[batch.window] += len(batch)
        self._received += len(batch)
        if self._buffer is None:
            return
        before = self._buffer.written + self._buffer.dropped_cap
        try:
            await self._buffer.export(batch)
        except BaseException:
            self._drop(batch.window, len(batch) - (self._buffer.written + self._buffer.dropped_cap - before), "error")
            raise

    async def close_window(self, window: Window) -> None:
        if self._buffer is not None:
            await self._buffer.close_window(window)

    async def aclose(self) -> None:
        if self._transport is None or self._journal is None or self._closed:
            return
        try:
            if self._buffer is not None:
                await self._buffer.aclose()
            journal = self._journal
            self._ending = True
            self._send_summary(self._summary(NO_FACTS))
            settings = self._settings
            await self._transport.finish(settings.closing_seconds, settings.timeout, lambda: not journal.is_open)
            await journal.changed.wait_for(lambda: not journal.is_open)  # else fewer events would count as kept
            await self._transport.close()
        except asyncio.CancelledError:
            if problem := await self._save_unsent():
                raise OutputError(problem) from None
            raise
        if problem := await self._save_unsent():
            raise OutputError(problem)

    def delivery_results(self) -> list[DeliveryResult]:
        """Returns outcomes since the last call: events that were confirmed, or are in the journal when the run ends, are exported."""
        if not self._closed:
            self._account()
        return self._outcomes.drain()

    def _account(self) -> None:
        """Counts confirmed events as exported."""
        if self._shipper is not None:
            self._confirmed += self._shipper.drain_confirmed()
        for window in [*self._confirmed]:
            count = min(self._confirmed[window], self._exported[window])
            self._outcomes.export(window, count)
            self._remove(window, count)
            self._confirmed[window] -= count
        self._confirmed = +self._confirmed

    def statistics(self) -> LinkStatistics | None:
        """State and history of the connection; `None` before `open`."""
        return None if self._transport is None else self._transport.statistics()

    def _advanced(self, position: int) -> None:
        """Lets the journal delete what the collector has."""
        assert self._journal is not None
        self._journal.advance(self, position, delete=self._buffer is not None)

    def _synced(self, sync: ClockSync) -> None:
        # On a thread: the journal may wait for a slow disk.
        asyncio.get_running_loop().run_in_executor(None, self._write_sync, sync)

    def _limit_segments(self, segment_bytes: int) -> None:
        assert self._journal is not None
        asyncio.get_running_loop().run_in_executor(None, self._journal.limit_segments, segment_bytes)

    def _write_sync(self, sync: ClockSync) -> None:
        assert self._journal is not None
        try:
            self._journal.write_sync(sync)
        except ClosedError:
            return  # the run has ended meanwhile
        except OutputError as error:
            log.warning("a comparison of the clocks is not in the journal: %s", error)

    def _drop(self, window: int, count: int, reason: str) -> None:
        self._outcomes.drop(window, reason, count)
        self._remove(window, count)

    def _remove(self, window: int, count: int) -> None:
        self._exported[window] -= count
        if self._exported[window] <= 0:
            del self._exported[window]

    async def _save_unsent(self) -> str:
        """Ends everything at once. Returns what is wrong; empty if nothing is."""
        assert self._transport is not None and self._shipper is not None and self._journal is not None
        shipper, journal, statistics = self._shipper, self._journal, self._transport.statistics()
        self._transport.abort()
        for task in (self._watching, self._beating):
            if task is not None:
                task.cancel()
        if self._run is not None and self._run.steps is not None:
            self._run.steps.unfollow(self._receive_steps)
        self._account()
        self._closed = True
        why = f"{self._transport.where}: {statistics.last_error or 'not confirmed in time'}"
        complete = shipper.is_confirmed and not journal.is_open
        if not complete:
            self._count_unsent(journal)
            command = shlex.join(["stepscope", "deliver", str(journal.path), *self._delivery()])
            self.unsent_files = UnsentFiles(str(journal.path), why, command)
        shipper.close()
        reason = "cap" if journal.dropped or journal.deleted_unsent else "undelivered"
        for window, count in [*self._exported.items()]:
            self._drop(window, count, reason)
        if complete and self._buffer is not None and not shipper.left_out_frames:
            await asyncio.to_thread(delete_buffer, self._buffer.path)
        if not shipper.left_out_frames:
            return ""
        return (
            f"{shipper.left_out_frames} frames are too large for {self._transport.where}, and were not sent: they have "
            f"{shipper.left_out:,} events, or ends of windows"
        )

    def _count_unsent(self, journal: LiveJournal) -> None:
        """Counts events that are in the journal as unsent. The windows of other events are unknown: the newest count as lost."""
        lost = max(self._received - (journal.written - journal.lost - journal.deleted_unsent), 0)
        for window in sorted(self._exported):
            count = min(self._exported[window], max(self._exported.total() - lost, 0))
            self._outcomes.add_unsent(window, count)
            self._remove(window, count)

    def _delivery(self) -> list[str]:
        """Options with which `stepscope deliver` sends the journal to the same collector."""
        assert self._transport is not None
        needs_token = self._address.has_token or NO_TOKEN in self._transport.statistics().last_error
        token = ["--token-file", str(self._address.token_file or "FILE")] if needs_token else []
        return ["--url", self.url, *token, *(["--insecure"] if self._settings.insecure else [])]


def is_buffer(journal: Path) -> bool:
    """Whether a journal is the buffer of an exporter, by its name."""
    return journal.parent.name == BUFFER_DIRECTORY and re.fullmatch(rf"{BUFFER}(-\d+)?", journal.name) is not None


def delete_buffer(path: Path) -> None:
    """Deletes a journal that the collector has, and its directory if nothing else is there."""
    for segment in segment_paths(path):
        segment.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.parent.rmdir()


def _transport_type() -> type[WebSocketTransport]:
    """`WebSocketTransport`, imported when an exporter is made: it needs packages that few programs have."""
    try:
        module = import_module("stepscope.exporters.stream.websocket")
    except ImportError as error:
        raise ImportError(f"CollectorExporter needs packages: pip install 'stepscope[collector]' ({error})") from error
    found: type[WebSocketTransport] = module.WebSocketTransport
    return found
