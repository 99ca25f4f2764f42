"""Serves one trace on this machine, with a copy of Perfetto's page or for the one on the network.

Source: tools/open_trace_in_ui of Perfetto: its page takes the trace's address as `#!/?url=`, and its Content-Security-Policy lets
https://ui.perfetto.dev read from port 9001 of this machine only.
"""

from __future__ import annotations

import functools
import http.server
import re
import secrets
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.cli.common.opening import PERFETTO

PERFETTO_PORT = 9001
HOST = "127.0.0.1"


class TraceServer(http.server.ThreadingHTTPServer):
    """A server of one trace, on the loopback address; `serve_forever` serves.

    Args:
        trace: file to serve.
        ui: directory of a copy of Perfetto's page; `None` for https://ui.perfetto.dev, which alone may read the trace then.
        port: 0 for any that is free.

    Raises:
        OSError: if the port is taken.
    """

    daemon_threads = True

    def __init__(self, trace: Path, ui: Path | None, port: int) -> None:
        # Nobody else on this machine can guess the address. Browsers and the page do not quote a name in one way.
        place = f"/{secrets.token_urlsafe(16)}/{re.sub(r'[^A-Za-z0-9._-]', '_', trace.name)}"
        try:
            super().__init__((HOST, port), functools.partial(_Handler, trace=trace, place=place, ui=ui))
        except OSError as error:
            raise OSError(
                error.errno,
                f"port {port} of this machine cannot be used ({error.strerror}): end what uses it, or name another (--port)",
            ) from error
        own = f"http://{HOST}:{self.server_port}"
        self.address = f"{PERFETTO if ui is None else own}/#!/?url={own}{place}"
        """Of the page that shows the trace."""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, *arguments: Any, trace: Path, place: str, ui: Path | None) -> None:
        self._trace, self._place, self._ui = trace, place, ui
        super().__init__(*arguments, directory=str(ui or trace.parent))

    def send_head(self) -> BytesIO | BinaryIO | None:
        # A page of the network that has a name of its own for this machine may not read.
        if self.headers.get("Host", "").rpartition(":")[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return None
        if self._ui is None and self.path.partition("?")[0] != self._place:
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def translate_path(self, path: str) -> str:
        return str(self._trace) if path.partition("?")[0] == self._place else super().translate_path(path)

    def end_headers(self) -> None:
        if self._ui is None:
            self.send_header("Access-Control-Allow-Origin", PERFETTO)
        self.send_header("Cache-Control", "no-cache")
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""
