"""The OpenAPI document of the HTTP interface, made of its operations and their types."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from stepscope.collector import problems
from stepscope.collector.problems import Problem
from stepscope.collector.web import path_number
from stepscope.collector.web.operation import Operation
from stepscope.runtime.version import VERSION

_REFERENCE = "#/components/schemas/{name}"


def document(operations: Sequence[Operation]) -> dict[str, Any]:
    """The document, of version 3.1, which takes JSON schemas as they are."""
    types = [kind for operation in operations for kind in (operation.answer, operation.body) if kind is not None]
    queries = [operation.query for operation in operations]
    schemas, components = msgspec.json.schema_components([*types, *queries, Problem], ref_template=_REFERENCE)
    by_type = dict(zip(map(repr, [*types, *queries, Problem]), schemas, strict=True))
    shown: dict[str, Any] = {
        name: schema for name, schema in components.items() if name not in {query.__name__ for query in queries}
    }
    paths: dict[str, Any] = {}
    for operation in operations:
        path = re.sub(":[a-z]+}", "}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, by_type, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "stepscope collector", "version": VERSION},
        "paths": paths,
        "components": {"schemas": shown, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        # Without a token where none was set.
        "security": [{"token": []}, {}],
    }


def _described(operation: Operation, by_type: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    schema = {"type": "string"} if operation.answer is None else by_type[repr(operation.answer)]
    if operation.media_type not in ("application/json", "text/event-stream", "text/plain"):
        schema = {}
    failures = {
        str(status): {
            "description": text,
            "content": {problems.MEDIA_TYPE: {"schema": by_type[repr(Problem)]}},
        }
        for status, text in _PROBLEMS.items()
        if status in (400, 401, 403, *operation.problems)
    }
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*_path_parameters(operation.path), *_query_parameters(operation.query, components)],
        "responses": {
            "200": {"description": "The answer.", "content": {operation.media_type: {"schema": schema}}},
            **failures,
        },
    }
    if operation.body is not None:
        content = {"application/json": {"schema": by_type[repr(operation.body)]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


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


def _path_parameters(path: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": path_number.SCHEMA if kind == path_number.KIND else {"type": "string"},
        }
        for name, _, kind in (part.partition(":") for part in re.findall("{(.*?)}", path))
    ]


def _query_parameters(query: type[msgspec.Struct], components: dict[str, Any]) -> list[dict[str, Any]]:
    properties: dict[str, Any] = components[query.__name__]["properties"]
    return [{"name": name, "in": "query", "schema": schema} for name, schema in properties.items()]
