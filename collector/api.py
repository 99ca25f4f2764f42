"""The HTTP interface under `/v1`, and what goes with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from stepscope.collector import charts, metrics, openapi
from stepscope.collector.downloads import Download, Source
from stepscope.collector.job_windows import Group
from stepscope.collector.live import detail
from stepscope.collector.operation import NoParameters, Operation, answer, body, parameters
from stepscope.collector.order import OrderResult, WindowOrder
from stepscope.collector.problems import ProblemError
from stepscope.collector.streamed import Streamed
from stepscope.collector.tables import Table, Tables
from stepscope.collector.tickets import SECONDS
from stepscope.collector.views import (
    Chart,
    Health,
    JobView,
    RankDetail,
    RankView,
    Snapshot,
    Ticket,
    TicketRequest,
    WindowDetail,
    WindowView,
)
from stepscope.runtime.errors import FormatError

if TYPE_CHECKING:
    from stepscope.collector.app import Collector

_STREAM = "/v1/streams/{stream}"


class ChartQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which step times to tell."""

    range: charts.Range = "recent"
    ranks: Annotated[str, msgspec.Meta(max_length=4096)] = ""
    """Ids of ranks to tell one by one, with commas between them."""


class JobQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of which job, if the collector has several."""

    job: Annotated[str, msgspec.Meta(max_length=1024)] | None = None


class WindowsQuery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many windows to tell."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50


class Api:
    """Answers requests from the live state and the files."""

    def __init__(self, collector: Collector) -> None:
        """Args: whose state it is."""
        self._collector = collector
        self._tables = Tables()
        self.operations = self._operations()
        self._document = msgspec.json.encode(openapi.document(self.operations))

    def routes(self) -> list[Route]:
        """For the web application."""
        return [Route(one.path, one.handler, methods=[one.method]) for one in self.operations]

    def _operations(self) -> list[Operation]:
        window = _STREAM + "/windows/{window:int}"
        return [
            Operation(path="/v1/job", name="job", summary="All ranks together", handler=self._job, answer=JobView),
            Operation(path="/v1/ranks", name="ranks", summary="Every rank", handler=self._ranks, answer=list[RankView]),
            Operation(
                path="/v1/ranks/{rank}",
                name="rank",
                summary="A rank with its starts and windows",
                handler=self._rank,
                answer=RankDetail,
                problems=(404,),
            ),
            Operation(
                path="/v1/steps",
                name="steps",
                summary="Step times over time",
                handler=self._steps,
                query=ChartQuery,
                answer=Chart,
            ),
            Operation(
                path="/v1/windows",
                name="windows",
                summary="The newest windows",
                handler=self._windows,
                query=WindowsQuery,
                answer=list[WindowView],
            ),
            Operation(
                path="/v1/windows",
                name="order",
                summary="Asks running processes for a window, extends or aborts one, or tells what is armed",
                handler=self._order,
                body=WindowOrder,
                answer=OrderResult,
                problems=(403, 404, 409, 413),
            ),
            Operation(
                path="/v1/windows/{window:int}",
                name="window",
                summary="A window of a job, rank by rank",
                handler=self._window,
                query=JobQuery,
                answer=WindowDetail,
                problems=(404, 409),
            ),
            Operation(
                path=window + "/statistics",
                name="statistics",
                summary="What a window holds, per name and category",
                handler=self._statistics,
                answer=Table,
                problems=(404, 500),
            ),
            Operation(
                path=_STREAM + "/journal",
                name="journal",
                summary="The file of a stream, as far as it is written",
                handler=self._journal,
                media_type="application/octet-stream",
                problems=(404,),
            ),
            Operation(
                path=window + "/{kind}",
                name="window_file",
                summary="A window of a stream as a file, such as `chrome`",
                handler=self._window_file,
                media_type="application/octet-stream",
                problems=(404, 500, 503),
            ),
            Operation(
                path="/v1/windows/{window:int}/{kind}",
                name="merged_file",
                summary="A window of all ranks of a job as a file, as `stepscope merge` writes it",
                handler=self._merged_file,
                query=JobQuery,
                media_type="application/octet-stream",
                problems=(404, 409, 500, 503),
            ),
            Operation(
                path="/v1/events",
                name="events",
                summary="The live state once a second: events `snapshot`, whose data are of this type",
                handler=self._events,
                answer=Snapshot,
                media_type="text/event-stream",
                problems=(503,),
            ),
            Operation(
                path="/v1/tickets",
                name="ticket",
                summary="A ticket for one download, for the parameter `ticket` of its address",
                handler=self._ticket,
                body=TicketRequest,
                answer=Ticket,
                problems=(413,),
            ),
            Operation(
                path="/metrics",
                name="metrics",
                summary="For Prometheus",
                handler=self._metrics,
                media_type="text/plain",
            ),
            Operation(
                path="/healthz", name="health", summary="Whether it answers", handler=self._health, answer=Health
            ),
            Operation(
                path="/openapi.json",
                name="openapi",
                summary="This document",
                handler=self._openapi,
                answer=dict[str, Any],
            ),
        ]

    async def _job(self, request: Request) -> Response:
        parameters(request, NoParameters)
        return answer(self._collector.live.snapshot().job)

    async def _ranks(self, request: Request) -> Response:
        parameters(request, NoParameters)
        return answer(self._collector.live.snapshot().ranks)

    async def _rank(self, request: Request) -> Response:
        parameters(request, NoParameters)
        found = self._collector.live.rank(request.path_params["rank"])
        if found is None:
            raise ProblemError(404, "no rank of this id was seen; /v1/ranks has those that were")
        return answer(found)

    async def _steps(self, request: Request) -> Response:
        query = parameters(request, ChartQuery)
        ids = [id for id in query.ranks.split(",") if id]
        return answer(await charts.chart(self._collector.streams, query.range, ids))

    async def _windows(self, request: Request) -> Response:
        return answer(await self._collector.live.windows(parameters(request, WindowsQuery).limit))

    async def _order(self, request: Request) -> Response:
        if self._collector.settings.exposed:
            why = "this collector can be reached by anybody: it takes no commands without token and TLS"
            client = request.client
            self._collector.audit.refuse(why, client.host if client else "", request.url.path, request.method)
            raise ProblemError(403, why)
        command = "order"
        try:
            order = await body(request, WindowOrder)
            command = f"order {order.command}"
            self._note(request, command, ranks="all" if order.ranks is None else str(order.ranks)[:200])
            result = await self._collector.orders.obey(order)
        except ProblemError as error:
            why = error.detail[:200]
            self._note(request, command.replace("order", "ordered"), outcome="refused", status=error.status, why=why)
            raise
        self._note(request, f"ordered {order.command}", outcome=result.outcome, ranks=len(result.ranks))
        return answer(result)

    async def _window(self, request: Request) -> Response:
        return answer(detail(self._group(request)))

    async def _statistics(self, request: Request) -> Response:
        parameters(request, NoParameters)
        id, path = self._file(request)
        window: int = request.path_params["window"]
        stream = self._collector.streams.all.get(id)
        known = () if stream is None else stream.windows
        closed = any(one.index == window and not one.open for one in known)
        return Response(await self._tables.get(path, window, closed=closed), media_type="application/json")

    async def _journal(self, request: Request) -> Response:
        parameters(request, NoParameters)
        id, path = self._file(request)
        self._note(request, "download")
        return FileResponse(path, media_type="application/octet-stream", filename=f"{id}.journal")

    async def _window_file(self, request: Request) -> Response:
        parameters(request, NoParameters)
        downloads = self._collector.downloads
        kind = _kind(downloads.of_rank, request)
        id, path = self._file(request)
        stream = self._collector.streams.all.get(id)
        name = id if stream is None else f"rank{stream.run.rank}" if stream.run.rank is not None else id
        window: int = request.path_params["window"]
        return self._send(request, kind, [Source(name, path)], window, f"{name}-window{window}")

    async def _merged_file(self, request: Request) -> Response:
        downloads = self._collector.downloads
        kind = _kind(downloads.of_all, request)
        group = self._group(request)
        # Also what a rank did before it was started again: which windows belong together its steps tell.
        kept = await asyncio.to_thread(lambda: dict(self._collector.store.journals()))
        sources = {
            stream.id: Source(rank.id, kept[stream.id], group.job)
            for rank in self._collector.streams
            for stream in rank.streams
            if stream.id in kept and stream.job == group.job
        }
        rows = [row for row in group.rows if row.stream.id in sources]
        if not rows:
            raise ProblemError(404, f"no file is left of window {group.index}")
        # The one by which the window is found in the files, which hold more windows than are known here.
        row = next((row for row in rows if row.window.index == group.index), rows[0])
        first = sources.pop(row.stream.id)
        return self._send(request, kind, [first, *sources.values()], row.window.index, f"all-window{group.index}")

    def _send(self, request: Request, kind: Download, sources: list[Source], window: int, name: str) -> Response:
        self._note(request, "download")
        disposition = f'attachment; filename="{name}{kind.suffix}"'
        chunks = self._collector.downloads.send(kind, sources, window)
        return Streamed(chunks, kind.media_type, {"Content-Disposition": disposition})

    async def _events(self, request: Request) -> Response:
        parameters(request, NoParameters)
        events = self._collector.events
        if events.full:
            raise ProblemError(503, "too many listen already", {"Retry-After": "10"})
        return Streamed(events.listen(), "text/event-stream")

    async def _ticket(self, request: Request) -> Response:
        wanted = await body(request, TicketRequest)
        self._note(request, "ticket")
        return answer(Ticket(ticket=self._collector.tickets.issue(wanted.path), seconds=SECONDS))

    async def _metrics(self, request: Request) -> Response:
        collector = self._collector
        text = await asyncio.to_thread(metrics.exposition, collector.live.snapshot(), collector.audit.refused)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def _health(self, request: Request) -> Response:
        return answer(Health())

    async def _openapi(self, request: Request) -> Response:
        return Response(self._document, media_type="application/json")

    def _group(self, request: Request) -> Group:
        """The window of all ranks of a job that is asked for."""
        job = parameters(request, JobQuery).job
        index: int = request.path_params["window"]
        found = self._collector.live.window(index, job)
        if not found:
            of = "" if job is None else f" of the job {job!r}"
            raise ProblemError(404, f"no rank{of} has window {index}, or it is not among the newest any more")
        if len(found) > 1:
            names = ", ".join(repr(group.job) for group in found)
            raise ProblemError(409, f"several jobs have window {index}, choose one with ?job=...: {names}"[:2000])
        return found[0]

    def _file(self, request: Request) -> tuple[str, Path]:
        """The id and the file of the stream that is asked for."""
        id: str = request.path_params["stream"]
        try:
            path = self._collector.store.existing(id)
        except FormatError as error:
            raise ProblemError(404, str(error)) from error
        if path is None:
            raise ProblemError(404, "there is no stream of this id")
        return id, path

    def _note(self, request: Request, action: str, **facts: str | int) -> None:
        client = request.client
        self._collector.audit.line(action, client.host if client else "", path=request.url.path, **facts)


def _kind(known: dict[str, Download], request: Request) -> Download:
    name: str = request.path_params["kind"]
    if name not in known:
        raise ProblemError(404, f"known kinds are {', '.join(sorted(known)) or 'none'}")
    return known[name]
