"""The collector's own uploads: what windows have ended goes to another store, while streams grow."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from urllib.parse import urlsplit, urlunsplit

from stepscope.collector.archive.upload import PART_BYTES, Uploaded, Uploader
from stepscope.collector.files.store import Store
from stepscope.collector.live.views import UploadView
from stepscope.runtime.errors import OutputError
from stepscope.runtime.loop_threads.ending_tasks import finish
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor

log = logging.getLogger("stepscope.collector")

SILENCE = 30.0
"""Seconds after which it is said that the other store does not answer."""
ENDING = 2.0
"""Seconds that the end of what is being written to the other store is waited for."""


class Uploading:
    """Looks every few seconds and copies what is new: streams up to their last window that has ended, or to their end.

    What is there is not copied again, also after the collector was killed. A store that fails is asked again the next time;
    for one that hangs nobody else waits.
    """

    def __init__(self, store: Store, url: str, *, every: float, part_bytes: int = PART_BYTES) -> None:
        """
        Args:
            store: whose streams are uploaded.
            url: where to, as fsspec has it.
            every: seconds between two looks.
            part_bytes: most bytes of a part.

        Raises:
            OutputError: if nothing is known that handles such a URL, or it holds a password.
        """
        parts = urlsplit(url)
        if parts.password is not None:
            raise OutputError(
                "the URL of an upload must not hold a password; give it in the file system's own variables"
            )
        self._url = urlunsplit(parts._replace(query="", fragment=""))
        self._uploader = Uploader(store, url, part_bytes=part_bytes, alone=True)
        self._every = every
        self._at: int | None = None
        self._problem = ""

    def copied(self, stream: str) -> int:
        """Bytes of a stream's file that are in the other store."""
        return self._uploader.copied(stream)

    async def run(self) -> None:
        """Goes on until it is cancelled; the part that is being copied then is copied again the next time.

        Nothing is written when this has returned, unless the store does not answer: another collector may go on then.
        """
        loop = asyncio.get_running_loop()
        # Its thread is a daemon's: a store that does not answer keeps no collector from ending.
        executor = DaemonExecutor()
        work: asyncio.Future[Uploaded] | None = None
        try:
            while True:
                try:
                    work = loop.run_in_executor(executor, self._upload)
                    await asyncio.shield(work)
                    self._problem = ""
                except Exception as error:  # whatever it is, it may be over the next time
                    if not self._problem:
                        log.error("not everything could be uploaded, and is tried again: %s", error)
                    self._problem = str(error)[:500]
                self._at = time.time_ns()
                await asyncio.sleep(self._every)
        finally:
            self._uploader.stop()
            try:
                if work is not None:
                    with contextlib.suppress(Exception):  # that it was stopped
                        await finish(work, ENDING)
            finally:
                self._uploader.lock.release()
                executor.shutdown()

    def _upload(self) -> Uploaded:
        self._uploader.lock.take()
        return self._uploader.upload(windows=True)

    def view(self) -> UploadView:
        """How far it is."""
        silence = self._uploader.archive.silence
        return UploadView(
            url=self._url,
            streams=self._uploader.done.streams,
            complete=self._uploader.done.complete,
            bytes=self._uploader.nbytes,
            waiting_bytes=self._uploader.waiting(),
            at_ns=self._at,
            problem=f"nothing was heard of the store for {silence:.0f} s" if silence > SILENCE else self._problem,
        )
