"""The live page: static files, and where they are served."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

_DIRECTORY = Path(__file__).parent
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES = {
    "/" if path.name == "index.html" else f"/page/{path.name}": path
    for path in sorted(_DIRECTORY.iterdir())
    if path.suffix in _MEDIA_TYPES
}

PATHS = frozenset(_FILES)
"""Where its files are served: these and no others."""


def routes() -> list[Route]:
    """For the web application."""
    return [Route(path, _send) for path in PATHS]


async def _send(request: Request) -> Response:
    path = _FILES[request.url.path]
    return FileResponse(path, media_type=_MEDIA_TYPES[path.suffix])
