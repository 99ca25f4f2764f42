"""A collector: its parts, the background tasks that it runs, and its web application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.enums import MediaType, ScopeType
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import Receive, Scope, Send, WebSocketScope

from stepscope.collector import page
from stepscope.collector.audit import Audit
from stepscope.collector.clocks import server_clock
from stepscope.collector.clocks.server_clock import ServerClock
from stepscope.collector.connection import Connection
from stepscope.collector.downloads.downloads import Bounds, Downloads
from stepscope.collector.errors import StuckError
from stepscope.collector.files.blocking_pool import BlockingPool
from stepscope.collector.files.disk import DirectoryLock
from stepscope.collector.files.store import Store
from stepscope.collector.live.live import Live
from stepscope.collector.live.startup_recovery import StartupRecovery
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.verdicts import Judge, Verdicts
from stepscope.collector.live.views import PartView
from stepscope.collector.memory_budget import MemoryBudget
from stepscope.collector.orders.orders import Orders
from stepscope.collector.problems import Problem, ProblemError, problem, send_problem
from stepscope.collector.retention.policy import StoragePolicy
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.job import job_of
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.api import Api
from stepscope.collector.web.guard import WITHDRAWN, Guard
from stepscope.collector.web.live_events import LiveEvents
from stepscope.collector.web.requests import MOST_BODY, refused
from stepscope.collector.web.server import Server, hosts_of
from stepscope.collector.web.tokens import Tickets, Token, Tokens
from stepscope.collector.web.web_protocols import check_libraries
from stepscope.exporters.nats.names import Names
from stepscope.exporters.nats.servers import Servers
from stepscope.exporters.stream import protocol
from stepscope.runtime.errors import FormatError
from stepscope.runtime.journal.records import RunRecord
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from stepscope.runtime.loop_threads.loop_thread import DaemonExecutor
from stepscope.runtime.version import VERSION

if TYPE_CHECKING:
    from stepscope.collector.nats.source import NatsSource
    from stepscope.collector.upload.uploader import Uploading

log = logging.getLogger("stepscope.collector")

THREADS = 4
"""Threads that run the blocking reads of requests."""
FLUSH = 1.0
"""Seconds that writing the last lines of the audit may take at the end."""


class Collector:
    """Takes streams, keeps them as journals and shows them: `async with Collector(settings).serving() as url: ...`.

    One that was stopped is not started again.
    """

    def __init__(self, settings: CollectorSettings, judge: Judge | None = None) -> None:
        """
        Args:
            settings: where it listens, what it stores, and who may do what.
            judge: says what is slow in a job's newest steps; `None`: the page shows no verdicts.

        Raises:
            ExposureError: if others could reach it without a token and TLS, or with a token that is short.
            ListenError: if the names of its hosts are to be those of its certificate, and that has none or cannot be used.
            OutputError: if its directory cannot be made, or nothing can be uploaded to where it should.
            OSError: if a file of tokens cannot be read.
            ValueError: for a server of NATS that is none, or to which others could listen; for a file of tokens that is invalid.
            ImportError: if a package is missing that uploads or NATS need, or one has another version; says how to get it.
        """
        check_libraries()
        settings.check_exposure()
        self.tokens = Tokens(settings)
        hosts = hosts_of(settings)
        self._any_host = hosts is None
        self.settings = settings
        self.store = Store(settings)
        self.streams = Streams(settings.max_streams)
        self.orders = Orders(self.streams)
        self.budget = MemoryBudget(settings.max_intake)
        self.clock = ServerClock()
        self.audit = Audit(settings.directory)
        self.disk = BlockingPool(THREADS)
        """Runs the blocking reads of requests."""
        self.parts = BackgroundTasks()
        self.tickets = Tickets()
        # Nothing brakes a file that is being made: room for them is kept free.
        most = min(Bounds().file_bytes, settings.disk_bytes // 16 or Bounds().file_bytes)
        self.downloads = Downloads(settings.directory, Bounds(file_bytes=most))
        self.uploading = _uploading(settings, self.store)
        self.nats = self._nats_source()
        policy = StoragePolicy(
            max_bytes=settings.disk_bytes, newest=settings.keep_newest, slowest=settings.keep_slowest
        )
        uploaded = None if self.uploading is None else self.uploading.uploaded
        self.storage = Storage(self.store, policy, self.streams, uploaded, downloads=self.downloads.most)
        self.verdicts = None if judge is None else Verdicts(self.streams, judge)
        self.live = Live(
            self.streams,
            self.downloads,
            exposed=settings.exposed,
            storage=self.storage.view,
            upload=lambda: None if self.uploading is None else self.uploading.view(),
            nats=lambda: None if self.nats is None else self.nats.view(),
            parts=self.parts.view,
            unwritten=lambda: self.audit.failed,
            verdicts=self.verdicts,
        )
        self.events = LiveEvents(self.live, lambda error: self.parts.failed("events", error))
        self._lock = DirectoryLock(settings.directory)
        self.store.is_lost = self._lock.is_lost
        self.server: Server | None = None
        self._application = application(self)
        self.app = Guard(self._answer, hosts, self.tokens, self.tickets, self.audit)

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[str]:
        """Listens inside; yields the address. At the end every connection is closed with a reason, within five seconds.

        Raises:
            DirectoryInUseError: if another collector has the directory.
            ListenError: if the address is taken, or the certificate cannot be used.
            OSError: if the directory cannot be read or written.
        """
        self._lock.acquire()
        try:
            self.server = Server(self.app, self.settings, self.budget, self.events.stop, self.no_request)
            await asyncio.to_thread(server_clock.add_clock_name, self.settings.directory, self.clock.id)
            await asyncio.to_thread(self.downloads.clear)
            recovery = StartupRecovery(self.store, self.streams)
            await asyncio.to_thread(recovery.look)
            if self.nats is not None:
                with contextlib.suppress(OSError):  # it says so when it needs it; else it is remembered
                    await asyncio.to_thread(self.store.identity)
            async with self.parts.working(self._endless(), {"restoring": recovery.run()}):
                async with self.server.listening(self.settings) as url:
                    self.audit.line("start", "", url=url, pid=os.getpid())
                    if not self.settings.has_tokens:
                        log.warning("no token is set (--token-file, STEPSCOPE_TOKEN): %s", _open_to(self.settings))
                    if self._any_host:
                        log.warning(
                            "any host name is accepted (--allowed-host): pages of other sites may read all that is here"
                        )
                    yield url
                self.audit.line("stop", "", pid=os.getpid())
        finally:
            if not await self.audit.flush(FLUSH):
                log.error("the last lines of the audit are not written: the disk does not answer")
            # Another collector must not open what a thread of this one still has, be that until the process ends.
            self.store.when_unused(self._lock.release)

    def _endless(self) -> dict[str, Coroutine[Any, Any, None]]:
        """The background tasks, by their names in metrics."""
        work: dict[str, Coroutine[Any, Any, None]] = {"storage": self.storage.run()}
        if self.verdicts is not None:
            work["verdicts"] = self.verdicts.run()
        if self.tokens.has_files:
            work["tokens"] = self.tokens.run()
        if self.uploading is not None:
            work["upload"] = self.uploading.run()
        if self.nats is not None:
            work["nats"] = self.nats.run()
        return work

    def _nats_source(self) -> NatsSource | None:
        if not self.settings.nats:
            return None
        servers = Servers(self.settings.nats, self.settings.nats_access)
        try:
            from stepscope.collector.nats.source import NatsSource
        except ImportError as error:
            raise ImportError(f"NATS needs packages: pip install 'stepscope[nats]' ({error})") from error
        return NatsSource(
            servers,
            Names(self.settings.nats_team),
            self.store,
            self.streams,
            self.budget,
            self.clock,
            self.audit,
            limits=self.settings.nats_limits,
        )

    async def run(self, listening: Callable[[str], object]) -> None:
        """Serves until SIGTERM or SIGINT comes; on the main thread. A second signal does not wait for anybody.

        Args:
            listening: called with the address.

        Raises:
            DirectoryInUseError, ListenError, OSError: as `serving`.
        """
        loop = asyncio.get_running_loop()
        # A thread may be deep in a large file when all is to end: it is not waited for.
        loop.set_default_executor(DaemonExecutor())
        over = asyncio.Event()

        def stop() -> None:
            over.set()
            if self.server is not None:
                self.server.stop()

        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, stop)
        try:
            async with self.serving() as url:
                listening(url)
                await over.wait()
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == ScopeType.HTTP:
            await self._application(scope, receive, send)
        elif scope["path"] == protocol.PATH:
            await self._stream(scope, receive, send)
        else:
            why, client = f"streams go to {protocol.PATH}", scope["client"]
            self.audit.refuse(why, f"{client[0]}:{client[1]}" if client else "", scope["path"])
            await send_problem(scope, send, ProblemError(404, why))

    async def _stream(self, scope: WebSocketScope, receive: Receive, send: Send) -> None:
        token: Token | None = scope["auth"]
        admit = None if token is None or token.job is None else partial(self._admit, token.job)
        made = Connection(scope, receive, send, self.settings, self.store, self.streams, self.clock, self.audit, admit)
        with self.tokens.using(token, "ingest", lambda: made.end(WITHDRAWN, retry=False)):
            await made.serve()

    def _admit(self, job: str, stream: str, run: RunRecord) -> None:
        """Refuses what a token for one job may not send. Raises `FormatError` if the run is of another job, or the
        stream is known as one of another job."""
        stream_before = self.streams.all.get(stream)
        for other in (job_of(run), job if stream_before is None else stream_before.job):
            if other != job:
                raise FormatError(f"its token allows streams of the job {job!r}, and this one is of {other!r}")

    def no_request(self, why: str, client: tuple[str, int] | None) -> None:
        """Logs a connection that was refused before any request."""
        self.audit.refuse(why, f"{client[0]}:{client[1]}" if client else "", "")


def _open_to(settings: CollectorSettings) -> str:
    """The rights of every client of a collector without tokens, in words."""
    if settings.exposed:
        return "whoever can reach this machine can read all that is here, and send streams"
    return "every user of this machine can read all that is here, send streams, and give orders to the processes"


def _uploading(settings: CollectorSettings, store: Store) -> Uploading | None:
    if not settings.upload:
        return None
    try:
        from stepscope.collector.upload.uploader import Uploading
    except ImportError as error:
        raise ImportError(f"uploads need packages: pip install 'stepscope[upload]' ({error})") from error
    uploading = Uploading(settings.directory, settings.upload, every=settings.upload_seconds, connected=store.connected)
    store.changed = uploading.note_change
    return uploading


def application(collector: Collector) -> Litestar:
    """Args: whose state it answers from."""
    return Litestar(
        route_handlers=[Api, page.send],
        state=State({"collector": collector}),
        exception_handlers={
            ProblemError: _problem_response,
            StuckError: _stuck,
            404: _unknown,
            405: _unknown,
            HTTPException: refused,
            Exception: _failed,
        },
        request_max_body_size=MOST_BODY,
        openapi_config=OpenAPIConfig(
            title="stepscope collector",
            version=VERSION,
            path="/openapi.json",
            render_plugins=[JsonRenderPlugin(path="/", media_type=MediaType.JSON)],
            operation_id_creator=lambda handler, method, path: handler.handler_name,
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}, {}],  # without a token where none was set
        ),
        # The collector logs by itself; the environment has no say in what is shown of an error.
        logging_config=None,
        debug=False,
        pdb_on_exception=False,
    )


def _problem_response(_: Request[Any, Any, Any], error: ProblemError) -> Response[Problem]:
    return problem(error.status, error.detail, error.headers)


def _stuck(_: Request[Any, Any, Any], error: StuckError) -> Response[Problem]:
    return problem(503, str(error), {"Retry-After": "10"})


def _unknown(_: Request[Any, Any, Any], error: HTTPException) -> Response[Problem]:
    return problem(error.status_code, "there is nothing here; /openapi.json has what there is", error.headers)


def _failed(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    log.error("%s %r failed", request.method, request.scope["path"], exc_info=error)
    return problem(500, "something went wrong; the collector's log has more")


class BackgroundTasks:
    """Runs background tasks. A task that ends too early is logged, and reported to every client until the collector is
    restarted."""

    def __init__(self) -> None:
        self._problems: dict[str, str] = {}
        """The problem of each part; empty while the part runs, and after it is done."""
        self._closing = False

    @contextlib.asynccontextmanager
    async def working(
        self, endless: Mapping[str, Coroutine[Any, Any, None]], passing: Mapping[str, Coroutine[Any, Any, None]]
    ) -> AsyncGenerator[None]:
        """Runs tasks inside, by name: `endless` ones, and `passing` ones, which are done at some time."""
        tasks: list[asyncio.Task[None]] = []
        for name, work in {**passing, **endless}.items():
            self._problems[name] = ""
            task = asyncio.create_task(work, name=f"stepscope collector {name}")
            task.add_done_callback(partial(self._ended, name, done=name in passing))
            tasks.append(task)
        try:
            yield
        finally:
            self._closing = True
            await end_tasks(*tasks)

    def view(self) -> list[PartView]:
        """The state of all tasks."""
        return [PartView(name=name, problem=problem) for name, problem in self._problems.items()]

    def _ended(self, name: str, task: asyncio.Task[None], *, done: bool) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None and (self._closing or (done and not task.cancelled())):
            return
        self.failed(name, error)

    def failed(self, name: str, error: BaseException | None = None) -> None:
        """Logs a part that has ended too early: by an error, or without one."""
        why = "it ended without an error" if error is None else f"{type(error).__name__}: {error}"
        self._problems[name] = why[:500]
        log.error("the collector does not go on with a part of its work, %s: %s", name, why, exc_info=error)
