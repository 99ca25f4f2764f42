"""A store that others wrote takes what is sent: Arize Phoenix, started on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import stepscope as sc
from stepscope.runtime.events.record import Kind
from tests.support.basics import phoenix
from tests.support.recording import rows_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PATIENCE = 100
"""Seconds that it may take to start, or to store what it accepted."""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def get_json(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its URL. It has a process group of its own, which is ended."""
    command = phoenix()
    directory = tmp_path_factory.mktemp("phoenix")
    port, grpc = free_port(), free_port()
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PHOENIX_", "OTEL_"))},
        "PHOENIX_WORKING_DIR": str(directory),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    url = f"http://127.0.0.1:{port}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [command, "serve"], env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            wait_for(url, process, directory / "log")
            yield url
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text(errors="replace")[-3000:]
        with contextlib.suppress(urllib.error.URLError, OSError):
            get_json(f"{url}/v1/projects")
            return
        time.sleep(0.2)
    pytest.fail(f"Phoenix did not start: {log.read_text(errors='replace')[-3000:]}")


def stored(url: str, project: str, count: int) -> list[dict[str, Any]]:
    """The spans of a project, when so many are stored: that happens after they were accepted."""
    found: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count and time.monotonic() < deadline:
        time.sleep(0.2)
        with contextlib.suppress(urllib.error.HTTPError):  # the project comes with its first span
            found = get_json(f"{url}/v1/projects/{project}/spans?limit=1000")["data"]
    return found


def test_phoenix_stores_the_tree(server: str, tmp_path: Path) -> None:
    """Every span is there, under its true parent, with its times, arguments and events."""
    options = sc.exporters.OtlpOptions(metrics=False, resource={"openinference.project.name": "training"})
    exporter, memory = sc.exporters.OtlpExporter(server, options=options), sc.exporters.MemoryExporter()
    with sc.trace(exporters=[exporter, memory], output_dir=tmp_path, name="job") as profiler:
        for number in range(5):
            with sc.span("forward", layer=number, rate=0.5, what="text", on=True), sc.span("inner"):
                sc.instant("seen", where="inside")
            with contextlib.suppress(ValueError), sc.span("failing"):
                raise ValueError("on purpose")
            profiler.step()
    profiler.raise_errors()
    assert not profiler.audit()
    recorded = [row for batch in memory.batches for row in rows_of(batch.events, batch.args)]
    expected = [row for row in recorded if row.kind is Kind.SPAN]
    spans = stored(server, "training", len(expected) + 2)
    by_id = {span["context"]["span_id"]: span for span in spans}
    assert len(by_id) == len(spans) == len(expected) + 2  # and those of the window and the run
    assert memory.run is not None
    anchor = memory.run.anchor
    for step in range(5):
        tree = {span["name"]: span for span in spans if span["attributes"].get("stepscope.step") == step}
        root = tree.pop(f"ProfilerStep#{step}")
        assert root["parent_id"] is None
        assert {span["context"]["trace_id"] for span in tree.values()} == {root["context"]["trace_id"]}
        parents = {name: by_id[span["parent_id"]]["name"] for name, span in tree.items()}
        assert parents == {"forward": root["name"], "inner": "forward", "failing": root["name"]}
        forward = tree["forward"]["attributes"]
        assert {key: forward[key] for key in ("layer", "rate", "what", "on")} == {
            "layer": step, "rate": 0.5, "what": "text", "on": True,
        }  # fmt: skip
        assert (tree["failing"]["status_code"], tree["failing"]["status_message"]) == ("ERROR", "ValueError")
        assert tree["failing"]["attributes"]["error.type"] == "ValueError"
        (event,) = tree["inner"]["events"]
        assert (event["name"], event["attributes"]["where"]) == ("seen", "inside")
        (row,) = [row for row in expected if (row.name, row.step) == ("forward", step)]
        for at, text in ((row.ts, tree["forward"]["start_time"]), (row.end, tree["forward"]["end_time"])):
            # Phoenix keeps microseconds, by way of a double; the bytes themselves are exact (`test_times_are_exact`).
            error = datetime.fromisoformat(text) - (EPOCH + timedelta(microseconds=anchor.wall(at) // 1000))
            assert abs(error) <= timedelta(microseconds=1)
    assert {span["attributes"].get("stepscope.span") for span in spans} == {None, "window", "run"}
