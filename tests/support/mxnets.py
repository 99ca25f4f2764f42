"""Shared code of the tests of `stepscope.mxnet`: a recording in a directory of its own, and the content of its files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from stepscope import mxnet
from tests.support.launch import run_to_end

Events = list[dict[str, Any]]


def load(path: Path | str) -> Events:
    """The events of a trace in object form, which must be valid JSON now."""
    trace: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    assert trace["displayTimeUnit"] == "ms"
    events: Events = trace["traceEvents"]
    return events


def slices(events: Events, name: str) -> Events:
    """The spans of a name: those that nest, and the begins of those that do not."""
    return [event for event in events if event["name"] == name and event["ph"] in ("X", "b")]


def durations(events: Events, name: str) -> list[float]:
    """Durations of the spans of a name in ms, async pairs included, in order of their begins."""
    found = [(event["ts"], event["dur"]) for event in events if event["name"] == name and event["ph"] == "X"]
    begun = {event["id2"]["local"]: event["ts"] for event in events if event["name"] == name and event["ph"] == "b"}
    ended = {event["id2"]["local"]: event["ts"] for event in events if event["name"] == name and event["ph"] == "e"}
    found += [(begin, ended[number] - begin) for number, begin in begun.items()]
    return [dur / 1000 for _, dur in sorted(found)]


def statistics(**arguments: Any) -> dict[str, Any]:
    """`dumps(format="json")`, decoded."""
    decoded: dict[str, Any] = json.loads(mxnet.dumps(format="json", **arguments))
    return decoded


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """An empty directory to record in, with everything as when the module was imported; and so it is left."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    mxnet.close()
    mxnet.set_config()
    mxnet.set_kvstore_handle(None)


def begin(**settings: Any) -> None:
    """Records into profile.json, with statistics."""
    mxnet.set_config(**{"aggregate_stats": True, "profile_memory": False, **settings})
    mxnet.set_state("run")


def run(program: str, directory: Path, *, errors: bool = False, **environment: str) -> str:
    """Runs a program with warnings as errors; what it printed, with `errors` what it logged as well."""
    command = [sys.executable, "-W", "error", "-c", program]
    done = run_to_end(command, cwd=directory, environment={**os.environ, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout + (done.stderr if errors else "")
