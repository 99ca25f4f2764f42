"""The web application: the operations of the HTTP interface, the page's files, and what is answered if one fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response
from litestar.datastructures import State
from litestar.enums import MediaType
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from stepscope.collector import page
from stepscope.collector.errors import StuckError
from stepscope.collector.problems import Problem, ProblemError, problem
from stepscope.collector.web.api import Api
from stepscope.collector.web.requests import MOST_BODY, refused
from stepscope.runtime.version import VERSION

if TYPE_CHECKING:
    from stepscope.collector.app import Collector

log = logging.getLogger("stepscope.collector")


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
