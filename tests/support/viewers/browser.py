"""A headless Chromium that reaches nothing but this machine, and a web server for what it shows."""

from __future__ import annotations

import functools
import http.server
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.basics import chromium, require

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]


@contextmanager
def open_page(instead: Mapping[str, Path] | None = None) -> Generator[Page]:
    """An empty page of a fresh browser.

    Args:
        instead: for a part of a foreign address, the script that is served in its place. Every other request that
            leaves this machine is refused.
    """
    replaced = instead or {}

    def answer(route: Route) -> None:
        url = route.request.url
        found = next((path for part, path in replaced.items() if part in url), None)
        if found is not None:
            route.fulfill(path=found, content_type="text/javascript")
        elif url.startswith(("http://127.0.0.1:", "http://localhost:", "data:", "blob:")):
            route.continue_()
        else:
            route.abort()

    playwright: Any = require("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=str(chromium()), headless=True, args=FLAGS)
        try:
            context = browser.new_context(viewport={"width": 1500, "height": 950}, service_workers="block")
            context.route("**/*", answer)
            yield context.new_page()
        finally:
            browser.close()


@contextmanager
def served(directory: Path, extra: Mapping[str, Path] | None = None) -> Generator[str]:
    """Serves a directory on this machine; gives the address.

    Args:
        extra: files from elsewhere, by the path that they are served at.
    """
    files = extra or {}

    class Handler(http.server.SimpleHTTPRequestHandler):
        def translate_path(self, path: str) -> str:
            found = files.get(path.partition("?")[0])
            return str(found) if found is not None else super().translate_path(path)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(directory)))
    thread = threading.Thread(target=server.serve_forever, name="test web server", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
