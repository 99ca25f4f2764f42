"""The HTTP interface under `/v1`, and what goes with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from stepscope.collector.downloads.downloads import Download, Source
from stepscope.collector.files.journal_copy import JournalCopy
from stepscope.collector.live.job_windows import Group
from stepscope.collector.live.stream import State
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
from stepscope.collector.live.window_views import window_detail
from stepscope.collector.orders.order import OrderResult, WindowOrder
from stepscope.collector.problems import ProblemError
from stepscope.collector.runs.windows import KEPT
from stepscope.collector.web import charts, metrics, openapi, path_number
from stepscope.collector.web.guard import ORDERS
from stepscope.collector.web.heatmap import HeatmapQuery, Heatmaps
from stepscope.collector.web.operation import AnyParameters, NoParameters, Operations, body
from stepscope.collector.web.streamed import Streamed
from stepscope.collector.web.tables import Table, Tables
from stepscope.collector.web.tickets import SECONDS
from stepscope.collector.web.tokens import Token
from stepscope.runtime.errors import FormatError

if TYPE_CHECKING:
    from stepscope.collector.app import Collector

_STREAM = "/v1/streams/{stream}"
_WINDOWS = ORDERS
_WINDOW = f"{_WINDOWS}/{{window:{path_number.KIND}}}"
_OF_STREAM = f"{_STREAM}/windows/{{window:{path_number.KIND}}}"
_BYTES = "application/octet-stream"


class JobQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which job, if the collector has several."""

    job: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class ChartQuery(JobQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which step times to tell."""

    range: charts.Range = "recent"
    ranks: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Ids of ranks to tell one by one, with commas between them."""


class WindowsQuery(JobQuery, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many windows to tell."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class Api:
    """Answers requests from the live state and the files."""

    _operations: Operations[Api] = Operations()

    def __init__(self, collector: Collector) -> None:
        """Args: whose state it is."""
        self._collector = collector
        self._tables = Tables()
        self._heatmaps = Heatmaps()
        self._charts = charts.Charts(collector.streams)
        self._document = msgspec.json.encode(openapi.document(self._operations.all))

    def routes(self) -> list[Route]:
        """For the web application."""
        return [Route(one.path, partial(one.serve, self), methods=[one.method]) for one in self._operations.all]

    @_operations.add("/v1/jobs", NoParameters, "The jobs, by name", answer=list[JobEntry])
    async def _jobs(self, request: Request, query: NoParameters) -> list[JobEntry]:
        return [job for job in self._collector.live.jobs() if _may_read(request, job.id)]

    @_operations.add("/v1/job", JobQuery, "The ranks of a job together, or of all jobs", answer=JobView)
    async def _job(self, request: Request, query: JobQuery) -> JobView:
        return self._collector.live.snapshot(_job(request, query.job)).job

    @_operations.add("/v1/ranks", JobQuery, "Every rank, of a job or of all", answer=list[RankView])
    async def _ranks(self, request: Request, query: JobQuery) -> list[RankView]:
        return self._collector.live.snapshot(_job(request, query.job)).ranks

    @_operations.add(
        "/v1/ranks/{rank}", NoParameters, "A rank with its starts and windows", answer=RankDetail, problems=(404,)
    )
    async def _rank(self, request: Request, query: NoParameters) -> RankDetail:
        found = self._collector.live.rank(request.path_params["rank"])
        if found is None or not _may_read(request, found.rank.job_id):
            raise ProblemError(404, "no rank of this id was seen; /v1/ranks has those that were")
        return found

    @_operations.add("/v1/steps", ChartQuery, "Step times over time", answer=Chart)
    async def _steps(self, request: Request, query: ChartQuery) -> Chart:
        ids = [id for id in query.ranks.split(",") if id]
        return await self._charts.chart(query.range, ids, _job(request, query.job))

    @_operations.add(
        "/v1/heatmap",
        HeatmapQuery,
        "Times of steps of all ranks of a job, beside each other; default: of the job with most ranks",
        answer=Heatmap,
    )
    async def _heatmap(self, request: Request, query: HeatmapQuery) -> Heatmap:
        job = _job(request, query.job)
        ranks: dict[str, list[Rank]] = {}
        now = time.monotonic()
        for rank in self._collector.streams:
            if (
                rank.latest.state(now) is not State.DIED
            ):  # it may have died far behind, or ahead, of where the others are now
                ranks.setdefault(rank.latest.job, []).append(rank)
        if job is None:  # steps of different jobs have nothing in common
            job = max(ranks, key=lambda each: len(ranks[each]), default=None)
        return await self._heatmaps.heatmap(ranks.get(job or "", []), msgspec.structs.replace(query, job=job))

    @_operations.add(_WINDOWS, WindowsQuery, "The newest windows", answer=list[WindowView])
    async def _windows(self, request: Request, query: WindowsQuery) -> list[WindowView]:
        return await self._collector.live.windows(query.limit, _job(request, query.job))

    @_operations.add(
        _WINDOWS,
        AnyParameters,
        "Asks running processes for a window, extends or aborts one, or tells what is armed",
        body=WindowOrder,
        answer=OrderResult,
        problems=(403, 404, 409, 413),
    )
    async def _order(self, request: Request, query: AnyParameters) -> OrderResult:
        if self._collector.settings.exposed:
            why = "this collector can be reached by anybody: it takes no commands without token and TLS"
            client = request.client
            self._collector.audit.refuse(why, client.host if client else "", request.url.path, request.method)
            raise ProblemError(403, why)
        command = "order"
        try:
            order = await body(request, WindowOrder)
            order = msgspec.structs.replace(order, job=_job(request, order.job or None) or "")
            command = f"order {order.command}"
            self._note(request, command, ranks="all" if order.ranks is None else str(order.ranks)[:200])
            result = await self._collector.orders.obey(order)
        except ProblemError as error:
            why = error.detail[:200]
            self._note(request, command.replace("order", "ordered"), outcome="refused", status=error.status, why=why)
            raise
        self._note(request, f"ordered {order.command}", outcome=result.outcome, ranks=len(result.ranks))
        return result

    @_operations.add(_WINDOW, JobQuery, "A window of a job, rank by rank", answer=WindowDetail, problems=(404, 409))
    async def _window(self, request: Request, query: JobQuery) -> WindowDetail:
        return window_detail(self._group(request, query))

    @_operations.add(
        _OF_STREAM + "/statistics",
        NoParameters,
        "What a window holds, per name and category",
        answer=Table,
        problems=(404, 500, 503),
    )
    async def _statistics(self, request: Request, query: NoParameters) -> Response:
        id, path = await self._file(request)
        window: int = request.path_params["window"]
        stream = self._collector.streams.all.get(id)
        known = () if stream is None else stream.windows
        closed = any(one.index == window and not one.open for one in known)
        return Streamed(self._tables.send(path, window, closed=closed), "application/json")

    @_operations.add(
        _STREAM + "/journal",
        NoParameters,
        "The segments of a stream that exist, as one file, as far as they are written",
        media_type=_BYTES,
        problems=(404, 503),
    )
    async def _journal(self, request: Request, query: NoParameters) -> Response:
        id, path = await self._file(request)
        chunks = self._collector.downloads.journal(lambda: JournalCopy(path))
        return self._sent(request, chunks, _BYTES, f"{id}.journal")

    @_operations.add(
        _OF_STREAM + "/{kind}",
        NoParameters,
        "A window of a stream as a file, such as `chrome`",
        media_type=_BYTES,
        problems=(404, 500, 503),
    )
    async def _window_file(self, request: Request, query: NoParameters) -> Response:
        kind = _kind(self._collector.downloads.of_rank, request)
        id, path = await self._file(request)
        stream = self._collector.streams.all.get(id)
        name = id if stream is None else f"rank{stream.run.rank}" if stream.run.rank is not None else id
        window: int = request.path_params["window"]
        return self._made(request, kind, [Source(name, path)], window, f"{name}-window{window}")

    @_operations.add(
        _WINDOW + "/{kind}",
        JobQuery,
        "A window of all ranks of a job as a file, as `stepscope merge` writes it",
        media_type=_BYTES,
        problems=(404, 409, 500, 503),
    )
    async def _merged_file(self, request: Request, query: JobQuery) -> Response:
        kind = _kind(self._collector.downloads.of_all, request)
        group = self._group(request, query)
        # Also what a rank did before it was started again: which windows belong together its steps tell.
        wanted = {
            stream.id: rank.id for rank in self._collector.streams for stream in rank.streams if stream.job == group.job
        }
        kept = await self._collector.disk.ask(lambda: self._collector.store.kept_of(wanted))
        sources = {id: Source(wanted[id], path, group.job) for id, path in kept.items()}
        rows = [row for row in group.rows if row.stream.id in sources]
        if not rows:
            raise ProblemError(404, f"no file is left of window {group.index}")
        # The one by which the window is found in the files, which hold more windows than are known here.
        row = next((row for row in rows if row.window.index == group.index), rows[0])
        first = sources.pop(row.stream.id)
        return self._made(request, kind, [first, *sources.values()], row.window.index, f"all-window{group.index}")

    @_operations.add(
        "/v1/events",
        JobQuery,
        "The live state of a job or of all, once a second: events `snapshot`, whose data are of this type",
        answer=Snapshot,
        media_type="text/event-stream",
        problems=(503,),
    )
    async def _events(self, request: Request, query: JobQuery) -> Response:
        events = self._collector.events
        if events.full:
            raise ProblemError(503, "too many listen already", {"Retry-After": "10"})
        job = _job(request, query.job)
        return Streamed(events.listen(job, alone=_own_job(request) is not None), "text/event-stream")

    @_operations.add(
        "/v1/tickets",
        AnyParameters,
        "A ticket for one download, for the parameter `ticket` of its address",
        body=TicketRequest,
        answer=Ticket,
        problems=(413,),
    )
    async def _ticket(self, request: Request, query: AnyParameters) -> Ticket:
        wanted = await body(request, TicketRequest)
        self._note(request, "ticket")
        return Ticket(ticket=self._collector.tickets.issue(wanted.path, request.state.token), seconds=SECONDS)

    @_operations.add("/metrics", AnyParameters, "For Prometheus", media_type="text/plain")
    async def _metrics(self, request: Request, query: AnyParameters) -> Response:
        collector = self._collector
        snapshot = collector.live.snapshot(_own_job(request))
        text = await asyncio.to_thread(metrics.exposition, snapshot, collector.audit.refused)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    @_operations.add("/healthz", AnyParameters, "Whether it answers", answer=Health)
    async def _health(self, request: Request, query: AnyParameters) -> Health:
        return Health()

    @_operations.add("/openapi.json", AnyParameters, "This document", answer=dict[str, Any])
    async def _openapi(self, request: Request, query: AnyParameters) -> Response:
        return Response(self._document, media_type="application/json")

    def _group(self, request: Request, query: JobQuery) -> Group:
        """The window of all ranks of a job that is asked for."""
        index: int = request.path_params["window"]
        job = _job(request, query.job)
        found = self._collector.live.window(index, job)
        if not found:
            of = "" if job is None else f" of the job {job!r}"
            raise ProblemError(
                404,
                f"no rank{of} has window {index}, or it is not among the newest {KEPT} of a rank, which are shown; what is left "
                f"of an older one `stepscope merge --window {index}` reads in the collector's directory",
            )
        if len(found) > 1:
            names = ", ".join(repr(group.job) for group in found)
            raise ProblemError(409, f"several jobs have window {index}, choose one with ?job=...: {names}"[:2000])
        return found[0]

    async def _file(self, request: Request) -> tuple[str, Path]:
        """The id and the file of the stream that is asked for."""
        id: str = request.path_params["stream"]
        try:
            path = await self._collector.disk.ask(lambda: self._collector.store.existing(id))
        except FormatError as error:
            raise ProblemError(404, str(error)) from error
        stream = self._collector.streams.all.get(id)
        if path is None or not _may_read(request, None if stream is None else stream.job):
            raise ProblemError(404, "there is no stream of this id")
        return id, path

    def _made(self, request: Request, kind: Download, sources: list[Source], window: int, name: str) -> Response:
        """A file that is made of streams' files."""
        chunks = self._collector.downloads.send(kind, sources, window)
        return self._sent(request, chunks, kind.media_type, f"{name}{kind.suffix}")

    def _sent(self, request: Request, chunks: AsyncGenerator[bytes], media_type: str, name: str) -> Response:
        """A file to be saved under a name."""
        self._note(request, "download")
        return Streamed(chunks, media_type, {"Content-Disposition": f'attachment; filename="{name}"'})

    def _note(self, request: Request, action: str, **facts: str | int) -> None:
        client = request.client
        self._collector.audit.line(action, client.host if client else "", path=request.url.path, **facts)


def _own_job(request: Request) -> str | None:
    """The only job that the token of a request gives access to; `None`: all jobs."""
    token: Token | None = request.state.token
    return None if token is None else token.job


def _may_read(request: Request, job: str | None) -> bool:
    """Whether the token of a request gives access to a job. One that is not known, `None`, needs access to all."""
    return _own_job(request) in (None, job)


def _job(request: Request, asked: str | None) -> str | None:
    """The job that a request is about: the one that it asks for, or else all to which its token gives access.

    Raises:
        ProblemError: 403 if the token is for another job.
    """
    if asked is not None and not _may_read(request, asked):
        raise ProblemError(403, f"this token is for the job {_own_job(request)!r} only")
    return asked if asked is not None else _own_job(request)


def _kind(known: dict[str, Download], request: Request) -> Download:
    name: str = request.path_params["kind"]
    if name not in known:
        raise ProblemError(404, f"known kinds are {', '.join(sorted(known)) or 'none'}")
    return known[name]
