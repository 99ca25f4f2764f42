"""The HTTP interface under `/v1`, and what goes with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from litestar import Controller, Litestar, Response, Router, get, post
from litestar.connection import ASGIConnection
from litestar.di import NamedDependency, Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody, PathParameter, QueryParameter

from stepscope.collector.downloads.downloads import Download, Source
from stepscope.collector.live.job_windows import Group, window_detail
from stepscope.collector.live.stream import State as StreamState
from stepscope.collector.live.streams import Rank
from stepscope.collector.live.views import (
    Chart,
    Health,
    Heatmap,
    JobEntry,
    JobView,
    RankDetail,
    RankView,
    Snapshot,
    Ticket,
    TicketRequest,
    WindowDetail,
    WindowView,
)
from stepscope.collector.orders.order import OrderResult, WindowOrder
from stepscope.collector.problems import MEDIA_TYPE, Problem, ProblemError
from stepscope.collector.runs.windows import MAX_WINDOWS
from stepscope.collector.web import charts, metrics
from stepscope.collector.web.charts import HeatmapQuery, Heatmaps
from stepscope.collector.web.guard import ORDERS
from stepscope.collector.web.requests import ANY_PARAMETERS, AnyRequest, Exact, Streamed, check_parameters, refused
from stepscope.collector.web.tables import Table, Tables
from stepscope.collector.web.tokens import TICKET_SECONDS
from stepscope.runtime.errors import FormatError

if TYPE_CHECKING:
    from stepscope.collector.app import Collector

_STREAM = "/v1/streams/{stream:str}"
_WINDOW = ORDERS + "/{window:int}"
_OF_STREAM = _STREAM + "/windows/{window:int}"
_BYTES = "application/octet-stream"
JobName = Annotated[str | None, QueryParameter(max_length=1024)]
"""The requested job, if the collector has several."""
Number = Annotated[int, PathParameter(ge=0, lt=1 << 32)]
"""Index of a window."""

TOGETHER = 256
"""Streams whose files are looked for at once: thousands may take a network's disk longer than one request may wait."""

_PROBLEMS = {
    400: "A parameter is wrong.",
    401: "The token is missing or wrong.",
    403: "This may not be done here.",
    404: "There is none.",
    409: "It is not clear what is meant.",
    413: "Too much was sent.",
    500: "It went wrong here.",
    503: "Too many ask at once, or the disk does not answer.",
}


def _problems(*more: int) -> dict[int, ResponseSpec]:
    """Answers beside 200, for the OpenAPI document: those of every operation, and of these statuses."""
    return {
        status: ResponseSpec(Problem, description=text, media_type=MEDIA_TYPE, generate_examples=False)
        for status, text in _PROBLEMS.items()
        if status in (400, 401, 403, *more)
    }


def unread_order(request: AnyRequest, error: HTTPException) -> Response[Problem]:
    """Logs an order that cannot be read, with the reason."""
    answer = refused(request, error)
    found = answer.content
    _note(request, "ordered", outcome="refused", status=found.status, why=found.detail[:200])
    return answer


async def not_exposed(connection: ASGIConnection[Any, Any, Any, Any], _: BaseRouteHandler) -> None:
    """Refuses orders if anybody could give them.

    Raises:
        ProblemError: 403.
    """
    collector: Collector = connection.app.state.collector
    if collector.settings.exposed:
        why = "this collector can be reached by anybody: it takes no commands without token and TLS"
        client = connection.client
        collector.audit.refuse(why, client.host if client else "", connection.scope["path"], "POST")
        raise ProblemError(403, why)


class Api(Controller):
    """Answers requests from the live state and the files of the application's collector."""

    guards = [check_parameters]

    def __init__(self, owner: Router) -> None:
        super().__init__(owner)
        assert isinstance(owner, Litestar)
        self._collector: Collector = owner.state.collector
        self._tables = Tables()
        self._heatmaps = Heatmaps()
        self._charts = charts.Charts(self._collector.streams)

    @get("/v1/jobs", summary="The jobs, by name", responses=_problems())
    async def jobs(self, request: AnyRequest) -> list[JobEntry]:
        """The jobs that the token gives access to."""
        return [job for job in await self._collector.live.jobs() if _may_read(request, job.id)]

    @get("/v1/job", summary="The ranks of a job together, or of all jobs", responses=_problems())
    async def job(self, request: AnyRequest, job: JobName = None) -> JobView:
        return (await self._collector.live.snapshot(_job(request, job))).job

    @get("/v1/ranks", summary="Every rank, of a job or of all", responses=_problems())
    async def ranks(self, request: AnyRequest, job: JobName = None) -> list[RankView]:
        return (await self._collector.live.snapshot(_job(request, job))).ranks

    @get("/v1/ranks/{rank:str}", summary="A rank with its starts and windows", responses=_problems(404))
    async def rank(self, request: AnyRequest, rank: FromPath[str]) -> RankDetail:
        found = await self._collector.live.rank(rank)
        if found is None or not _may_read(request, found.rank.job_id):
            raise ProblemError(404, "no rank of this id was seen; /v1/ranks has those that were")
        return found

    @get("/v1/steps", summary="Step times over time", responses=_problems())
    async def steps(
        self,
        request: AnyRequest,
        job: JobName = None,
        range: FromQuery[charts.Range] = "recent",
        ranks: Annotated[str, QueryParameter(max_length=4096)] = "",
    ) -> Chart:
        """`ranks` has the ids of those to show one by one, with commas between them."""
        ids = [id for id in ranks.split(",") if id]
        return await self._charts.chart(range, ids, _job(request, job))

    @get(
        "/v1/heatmap",
        summary="Times of steps of all ranks of a job, beside each other; default: of the job with most ranks",
        responses=_problems(),
        dependencies={"picture": Provide(HeatmapQuery, sync_to_thread=False)},
    )
    async def heatmap(self, request: AnyRequest, picture: NamedDependency[HeatmapQuery]) -> Heatmap:
        job = _job(request, picture.job)
        ranks: dict[str, list[Rank]] = {}
        now = time.monotonic()
        for rank in self._collector.streams:
            if (
                rank.latest.state(now) is not StreamState.DIED
            ):  # it may have died far behind, or ahead, of where the others are now
                ranks.setdefault(rank.latest.job, []).append(rank)
        if job is None:  # steps of different jobs have nothing in common
            job = max(ranks, key=lambda each: len(ranks[each]), default=None)
        return await self._heatmaps.heatmap(ranks.get(job or "", []), msgspec.structs.replace(picture, job=job))

    @get(ORDERS, summary="The newest windows", responses=_problems())
    async def windows(
        self, request: AnyRequest, job: JobName = None, limit: Annotated[int, QueryParameter(ge=1, le=200)] = 50
    ) -> list[WindowView]:
        return await self._collector.live.windows(limit, _job(request, job))

    @post(
        ORDERS,
        summary="Asks running processes for a window, extends or aborts one, or lists what is armed",
        status_code=200,
        dto=Exact[WindowOrder],
        return_dto=None,
        responses=_problems(403, 404, 409, 413),
        guards=[not_exposed],
        exception_handlers={HTTPException: unread_order},
        opt=ANY_PARAMETERS,
    )
    async def order(self, request: AnyRequest, data: JSONBody[WindowOrder]) -> OrderResult:
        command = "order"
        try:
            order = msgspec.structs.replace(data, job=_job(request, data.job or None) or "")
            command = f"order {order.command}"
            _note(request, command, ranks="all" if order.ranks is None else str(order.ranks)[:200])
            result = await self._collector.orders.obey(order)
        except ProblemError as error:
            why = error.detail[:200]
            _note(request, command.replace("order", "ordered"), outcome="refused", status=error.status, why=why)
            raise
        _note(request, f"ordered {order.command}", outcome=result.outcome, ranks=len(result.ranks))
        return result

    @get(_WINDOW, summary="A window of a job, rank by rank", responses=_problems(404, 409))
    async def window(self, request: AnyRequest, window: Number, job: JobName = None) -> WindowDetail:
        return await asyncio.to_thread(window_detail, await self._group(request, window, job))

    @get(
        _OF_STREAM + "/statistics",
        summary="What a window holds, per name and category",
        media_type="application/json",
        responses=_problems(404, 500, 503),
    )
    async def statistics(self, request: AnyRequest, stream: FromPath[str], window: Number) -> Response[Table]:
        path = await self._file(request, stream)
        return Streamed(self._tables.send(path, window))

    @get(
        _STREAM + "/journal",
        summary="The segments of a stream that exist, as one file, as far as they are written",
        media_type=_BYTES,
        responses=_problems(404, 503),
    )
    async def journal(self, request: AnyRequest, stream: FromPath[str]) -> Response[bytes]:
        path = await self._file(request, stream)
        return _sent(request, self._collector.downloads.journal(path), f"{stream}.journal")

    @get(
        _OF_STREAM + "/{kind:str}",
        summary="A window of a stream as a file, such as `chrome`",
        media_type=_BYTES,
        responses=_problems(404, 500, 503),
    )
    async def window_file(
        self, request: AnyRequest, stream: FromPath[str], window: Number, kind: FromPath[str]
    ) -> Response[bytes]:
        download = _kind(self._collector.downloads.of_rank, kind)
        path = await self._file(request, stream)
        live = self._collector.streams.all.get(stream)
        name = stream if live is None else f"rank{live.run.rank}" if live.run.rank is not None else stream
        return self._made(request, download, [Source(name, path)], window, f"{name}-window{window}")

    @get(
        _WINDOW + "/{kind:str}",
        summary="A window of all ranks of a job as a file, as `stepscope merge` writes it",
        media_type=_BYTES,
        responses=_problems(404, 409, 500, 503),
    )
    async def merged_file(
        self, request: AnyRequest, window: Number, kind: FromPath[str], job: JobName = None
    ) -> Response[bytes]:
        download = _kind(self._collector.downloads.of_all, kind)
        group = await self._group(request, window, job)
        # Also what a rank did before it was started again: its steps show which windows belong together.
        wanted = {
            stream.id: rank.id for rank in self._collector.streams for stream in rank.streams if stream.job == group.job
        }
        paths: dict[str, Path] = {}
        ids = list(wanted)
        for at in range(0, len(ids), TOGETHER):
            part = ids[at : at + TOGETHER]
            paths |= await self._collector.disk.try_run(partial(self._collector.store.existing_of, part))
        sources = {id: Source(wanted[id], path, group.job) for id, path in paths.items()}
        rows = [row for row in group.rows if row.start.stream.id in sources]
        if not rows:
            raise ProblemError(404, f"no file is left of window {group.index}")
        # The one by which the window is found in the files, which hold more windows than are known here.
        row = next((row for row in rows if row.window.index == group.index), rows[0])
        first = sources.pop(row.start.stream.id)
        return self._made(request, download, [first, *sources.values()], row.window.index, f"all-window{group.index}")

    @get(
        "/v1/events",
        summary="The live state of a job or of all, once a second: events `snapshot`, whose data are of this type",
        media_type="text/event-stream",
        responses=_problems(503),
    )
    async def events(self, request: AnyRequest, job: JobName = None) -> Response[Snapshot]:
        events = self._collector.events
        if events.full:
            raise ProblemError(503, "too many listen already", {"Retry-After": "10"})
        return Streamed(events.listen(_job(request, job), alone=_own_job(request) is not None))

    @post(
        "/v1/tickets",
        summary="A ticket for one download, for the parameter `ticket` of its address",
        status_code=200,
        dto=Exact[TicketRequest],
        return_dto=None,
        responses=_problems(413),
        opt=ANY_PARAMETERS,
    )
    async def ticket(self, request: AnyRequest, data: JSONBody[TicketRequest]) -> Ticket:
        _note(request, "ticket")
        return Ticket(ticket=self._collector.tickets.issue(data.path, request.auth), seconds=TICKET_SECONDS)

    @get("/metrics", summary="For Prometheus", media_type="text/plain", responses=_problems(), opt=ANY_PARAMETERS)
    async def metrics(self, request: AnyRequest) -> Response[str]:
        collector = self._collector
        snapshot = await collector.live.snapshot(_own_job(request))
        text = await asyncio.to_thread(metrics.exposition, snapshot, collector.audit.refused)
        return Response(text.decode(), headers={"Content-Type": metrics.CONTENT_TYPE})

    @get("/healthz", summary="Whether it answers", responses=_problems(), opt=ANY_PARAMETERS)
    async def health(self) -> Health:
        return Health()

    async def _group(self, request: AnyRequest, index: int, job: str | None) -> Group:
        """The window of all ranks of a job that is asked for."""
        job = _job(request, job)
        found = await self._collector.live.window(index, job)
        if not found:
            of = "" if job is None else f" of the job {job!r}"
            raise ProblemError(
                404,
                f"no rank{of} has window {index}, or it is not among the newest {MAX_WINDOWS} of a rank, which are shown; "
                f"what is left of an older one `stepscope merge --window {index}` reads in the collector's directory",
            )
        if len(found) > 1:
            names = ", ".join(repr(group.job) for group in found)
            raise ProblemError(409, f"several jobs have window {index}, choose one with ?job=...: {names}"[:2000])
        return found[0]

    async def _file(self, request: AnyRequest, id: str) -> Path:
        """Sends the file of a stream."""
        try:
            path = await self._collector.disk.try_run(lambda: self._collector.store.existing(id))
        except FormatError as error:
            raise ProblemError(404, str(error)) from error
        stream = self._collector.streams.all.get(id)
        if path is None or not _may_read(request, None if stream is None else stream.job):
            raise ProblemError(404, "there is no stream of this id")
        return path

    def _made(self, request: AnyRequest, kind: Download, sources: list[Source], window: int, name: str) -> Streamed:
        """Sends a file that is made of streams' files."""
        return _sent(request, self._collector.downloads.send(kind, sources, window), f"{name}{kind.suffix}")


def _sent(request: AnyRequest, chunks: AsyncGenerator[bytes], name: str) -> Streamed:
    """A file to be saved under a name."""
    _note(request, "download")
    return Streamed(chunks, {"Content-Disposition": f'attachment; filename="{name}"'})


def _note(request: AnyRequest, action: str, **facts: str | int) -> None:
    collector: Collector = request.app.state.collector
    client = request.client
    collector.audit.line(action, client.host if client else "", path=request.scope["path"], **facts)


def _own_job(request: AnyRequest) -> str | None:
    """The only job that the token of a request gives access to; `None`: all jobs."""
    return None if request.auth is None else request.auth.job


def _may_read(request: AnyRequest, job: str | None) -> bool:
    """True if the token of a request gives access to a job. An unknown job, `None`, needs access to all."""
    return _own_job(request) in (None, job)


def _job(request: AnyRequest, job: str | None) -> str | None:
    """The job that a request is about: the one that it names, or else all to which its token gives access.

    Raises:
        ProblemError: 403 if the token is for another job.
    """
    if job is not None and not _may_read(request, job):
        raise ProblemError(403, f"this token is for the job {_own_job(request)!r} only")
    return job if job is not None else _own_job(request)


def _kind(kinds: dict[str, Download], name: str) -> Download:
    if name not in kinds:
        raise ProblemError(404, f"known kinds are {', '.join(sorted(kinds)) or 'none'}")
    return kinds[name]
