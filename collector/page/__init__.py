"""The live page: static files, and where they are served."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from litestar import Request, Response, get

_DIRECTORY = Path(__file__).parent
_MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_FILES = {
    "/" if path.name == "index.html" else f"/page/{path.name}": path
    for path in sorted(_DIRECTORY.iterdir())
    if path.suffix in _MEDIA_TYPES
}

PATHS = frozenset(_FILES)
"""Paths at which the page's files are served; no other file is."""


@get(sorted(PATHS), include_in_schema=False)
async def send(request: Request[Any, Any, Any]) -> Response[bytes]:
    """Sends one of the page's files."""
    path = _FILES[request.scope["path"]]
    return Response(await asyncio.to_thread(path.read_bytes), media_type=_MEDIA_TYPES[path.suffix])
