"""The exporter that streams a run to a collector."""

from __future__ import annotations

import asyncio
import logging
import shlex
import ssl
import time
import uuid
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepscope.exporters.base import EventBatch, Run, Window
from stepscope.exporters.collector import protocol
from stepscope.exporters.collector.address import NO_TOKEN, Address, Token
from stepscope.exporters.collector.backlog import Backlog
from stepscope.exporters.collector.connecting import Connecting, LinkStatistics
from stepscope.exporters.collector.outgoing import Outgoing
from stepscope.exporters.collector.settings import LinkSettings
from stepscope.exporters.collector.spool import Spool, StreamNote
from stepscope.exporters.one_run import refuse_another_run
from stepscope.runtime.control.agreement.peer import this_machine
from stepscope.runtime.control.entry_points.decoding import decode_json
from stepscope.runtime.errors import ClosedError, ControlError, OutputError
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.export.delivery_outcome import UnsentFiles
from stepscope.runtime.export.exporter import DeliveryResult
from stepscope.runtime.files.encoding import json_bytes
from stepscope.runtime.journal.records import ClockSync, run_record
from stepscope.runtime.journal.writer import JournalWriter
from stepscope.runtime.requests.command import VERSION as CONTROL
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.session.system import process_identity
from stepscope.runtime.settings import checked
from stepscope.runtime.settings.arguments import got
from stepscope.runtime.settings.validation import suggesting

if TYPE_CHECKING:
    from stepscope.exporters.collector.link import Link

log = logging.getLogger("stepscope")

SAFE_AFTER = 1.0
"""Seconds of closing after which what is not confirmed is put on disk, before waiting on."""
RETRY_SPOOL = 5.0
"""Seconds until a spool that could not be written is tried again."""


class CollectorExporter:
    """Streams everything to `stepscope collect`, which writes it as a journal.

    Training is never held up. What the collector has not confirmed waits in memory, then on disk in the run's directory,
    and is sent again when the connection is there again; what finds no room is left out, and counted as `cap`. Nothing is
    written twice, for the collector knows the number of the next frame. What is not confirmed when the run ends is kept on
    disk, and report and log say which `stepscope deliver` sends it; what finds no room there counts as dropped, reason
    `undelivered`.

    Args:
        url: `ws://`, `wss://`, `http://` or `https://`, with or without a path.
        token: what the collector asks for: itself, the file that holds it, or a function that gives it, which are read
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
    takes_commands = True
    """Whether commands can reach the process by the way that the stream goes."""
    max_frame = protocol.MAX_FRAME
    """Bytes of a frame at most."""

    @suggesting
    def __init__(
        self,
        url: str,
        *,
        token: Token = None,
        settings: LinkSettings | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._link_type = _link_type()
        self._settings = checked.settings("settings", settings, LinkSettings)
        if tls is not None and not isinstance(tls, ssl.SSLContext):
            raise TypeError(f"tls must be an ssl.SSLContext, {got(tls)}; TLS is used by itself with wss://")
        self._address = Address(url, token, insecure=self._settings.insecure)
        self._tls = tls
        self.stream = uuid.uuid4().hex
        """The stream's id, which names it at the collector."""
        self.kept: UnsentFiles | None = None
        """Where that is which was not confirmed when the run ended; `None` if it was, or the run goes on."""
        self._backlog = Backlog(self._settings.memory_bytes)
        self._spool: Spool | None = None
        self._writer: JournalWriter | None = None
        self._link: Connecting | None = None
        self._run: Run | None = None
        self._metadata: dict[str, Any] = {}
        self._restate = self._closed = False
        self._spool_tried = 0.0

    @property
    def url(self) -> str:
        """Where the stream goes."""
        return self._address.url

    @property
    def dropped_cap(self) -> int:
        """Events left out because the collector was away, and memory and spool full."""
        return 0 if self._writer is None else self._writer.dropped

    async def open(self, run: Run) -> None:
        refuse_another_run(self, self._run)
        settings = self._settings
        writer = JournalWriter(
            Path(self.url),
            max_bytes=settings.memory_bytes + settings.spool_bytes,
            create=self._outgoing,
            holes=True,
            max_frame=self.max_frame,
        )
        record = protocol.short(run_record(run, run.anchor.wall_ns))
        unusable = ""
        if settings.spool_bytes:
            me = process_identity()
            note = StreamNote(
                stream=self.stream,
                sync=writer.sync_word,
                run=record,
                pid=me["pid"],
                start_time=me["start_time"],
                machine=this_machine(),
            )
            self._spool, unusable = _spool(run, settings, note)
        self._backlog = Backlog(settings.memory_bytes, self._spool)
        self._backlog.error = unusable
        writer.open(run)
        self._run, self._writer = run, writer
        version = 0 if run.control is None or not self.takes_commands else CONTROL
        self._link = self._make_link(
            lambda: protocol.Hello(self.stream, writer.sync_word, self._backlog.oldest, record, control=version)
        )
        self._link.start()

    def _make_link(self, hello: Callable[[], protocol.Hello]) -> Connecting:
        return self._link_type(
            self._address,
            self._settings,
            self._tls,
            self._backlog,
            hello,
            synced=self._synced,
            missed=self._missed,
            obey=None if self._run is None or self._run.control is None else self._obey,
        )

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
        writer = self._opened()
        before = writer.written + writer.dropped
        try:
            self._write_news(writer)
            writer.write_batch(batch)
        except BaseException:
            left = len(batch) - (writer.written + writer.dropped - before)
            self._backlog.refuse(batch.window, left, "error")
            raise

    async def close_window(self, window: Window) -> None:
        writer = self._opened()
        self._write_news(writer)
        writer.write_anchor(ClockAnchor.read())
        writer.write_window(window)

    async def aclose(self) -> None:
        if self._link is None or self._closed:
            return
        try:
            self._write_end()
            await self._settle()
            await self._link.close()
        except asyncio.CancelledError:
            if problem := self._leave():
                raise OutputError(problem) from None
            raise
        if problem := self._leave():
            raise OutputError(problem)

    def settle(self) -> list[DeliveryResult]:
        """What became of events since the last call: a confirmed one is exported, and one that is kept."""
        return self._backlog.outcomes()

    def statistics(self) -> LinkStatistics | None:
        """What the connection has been through; `None` before `open`."""
        return None if self._link is None else self._link.statistics()

    def _outgoing(self, path: Path) -> Outgoing:
        settings = self._settings
        return Outgoing(path, self._backlog, settings.memory_bytes + settings.spool_bytes, self._wake)

    def _opened(self) -> JournalWriter:
        if self._writer is None:
            raise ClosedError("the collector's exporter was not opened")
        return self._writer

    def _wake(self) -> None:
        if self._link is not None:
            self._link.wake()

    def _synced(self, sync: ClockSync) -> None:
        if self._writer is not None and self._writer.is_open:
            self._writer.write_sync(sync)

    def _missed(self, next: int) -> None:
        """The collector has lost, or never had, what frames that wait are read with: it is sent before them."""
        if self._writer is None or self._run is None or self._backlog.restated:
            return
        oldest = self._backlog.oldest
        frames = self._writer.restated(oldest)
        # In place of frames that it lacks; not of all of them, or nobody would see that any are missing.
        if len(frames) < oldest - next:
            self._backlog.put_ahead(frames)
        else:
            self._restate = True

    def _write_news(self, writer: JournalWriter) -> None:
        assert self._run is not None
        if self._restate:
            # There was no place for it before the frames that wait.
            self._restate, self._metadata = False, {}
            writer.restate(self._run)
        metadata = dict(self._run.metadata())
        if metadata != self._metadata:
            self._metadata = metadata
            writer.write_metadata(metadata)
        now = time.monotonic()
        if self._backlog.error and now - self._spool_tried > RETRY_SPOOL:
            self._spool_tried = now
            self._backlog.spill()

    def _write_end(self) -> None:
        if self._writer is None or self._run is None or not self._writer.is_open:
            return
        try:
            self._write_news(self._writer)
            self._writer.write_anchor(ClockAnchor.read())
            self._writer.write_ledger(self._run.ledger())
        finally:
            self._writer.close()

    async def _settle(self) -> None:
        """Waits until everything is confirmed, or will not be."""
        assert self._link is not None
        try:
            async with asyncio.timeout(SAFE_AFTER):
                await self._link.settled()
        except TimeoutError:
            self._backlog.spill()
            await self._link.settled()

    def _leave(self) -> str:
        """Ends everything at once, and notes what is kept; what is wrong with the rest, empty if there is none."""
        assert self._link is not None and self._run is not None
        self._closed = True
        why = f"{self._link.where}: {self._link.statistics().last_error or 'not confirmed in time'}"
        self._link.abort()
        self._backlog.spill()
        left, on_disk = len(self._backlog), self._backlog.on_disk
        lost = self._backlog.leave("undelivered")["lost"]
        if on_disk and self._spool is not None:
            command = shlex.join(["stepscope", "deliver", str(self._run.output_dir), *self._delivery()])
            self.kept = UnsentFiles(str(self._spool.directory), why, command)
        problems = [self._closed_spool()]
        if left > on_disk:
            what = f"{lost:,} events are lost" if lost else "the end of the stream is lost"
            problems.append(f"{what}: {why}; {self._backlog.error or 'LinkSettings.spool_bytes is 0'}")
        return "; ".join(filter(None, problems))

    def _delivery(self) -> list[str]:
        """How `stepscope deliver` gets to where this goes."""
        assert self._link is not None
        asked = self._address.token_given or NO_TOKEN in self._link.statistics().last_error
        token = ["--token-file", str(self._address.token_file or "FILE")] if asked else []
        return ["--url", self.url, *token, *(["--insecure"] if self._settings.insecure else [])]

    def _closed_spool(self) -> str:
        try:
            if self._spool is not None:
                self._spool.close()
        except OSError as error:
            return f"the spool cannot be deleted: {error}"
        return ""


def _link_type() -> type[Link]:
    """`Link`, imported when an exporter is made: it needs packages that few programs have."""
    try:
        module = import_module("stepscope.exporters.collector.link")
    except ImportError as error:
        raise ImportError(f"CollectorExporter needs packages: pip install 'stepscope[collector]' ({error})") from error
    found: type[Link] = module.Link
    return found


def _spool(run: Run, settings: LinkSettings, note: StreamNote) -> tuple[Spool | None, str]:
    """The spool, or why there is none: a full disk is no reason not to send."""
    try:
        return Spool(run.output_dir, settings.spool_bytes, note), ""
    except OutputError as error:
        log.warning("what does not fit memory will be lost if the collector is away: %s", error)
        return None, str(error)
