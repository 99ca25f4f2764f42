"""The HTTP API of a collector: the state of processes that train."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from stepscope.collector.live.views import RankView
from stepscope.collector.problems import MEDIA_TYPE
from stepscope.runtime.journal.reader import JournalReader
from stepscope.runtime.windows.window import Window
from tests.support.basics import ROOT, require
from tests.support.collecting import CollectorProcess, collecting, send_request, trained, training, wait_until


def all_ended(*numbers: int) -> Callable[[dict[int, Any]], bool]:
    """Whether these ranks have ended, and are all that there are."""
    return lambda ranks: set(ranks) == set(numbers) and all(view["state"] == "ended" for view in ranks.values())


def test_ranks_are_shown_as_they_train(tmp_path: Path) -> None:
    """Steps, events, windows, clock and state of each are those of its journal, and the slow one is named."""
    with collecting(tmp_path) as collector:
        speeds = (0.01, 0.01, 0.04)
        running = [training(collector.url, rank, seconds=seconds, world=4) for rank, seconds in enumerate(speeds)]
        with running[0], running[1], running[2]:
            collector.when(lambda ranks: any(view["state"] == "connected" for view in ranks.values()))
            ranks = collector.when(all_ended(0, 1, 2))
        for rank, view in ranks.items():
            assert (view["step"], view["windows"], view["incarnation"], view["dropped"]) == (29, 3, 1, 0)
            assert view["step_ms"] > 1000 * speeds[rank]
            assert view["clock_bound_us"] > 0
            path = tmp_path / "streams" / view["stream"] / "journal"
            assert view["bytes"] == path.stat().st_size
            with JournalReader(path) as reader:
                assert reader.end is None
                windows = [item for item in reader if isinstance(item, Window)]
                assert reader.end is not None and view["events"] == reader.end.events
            assert len(windows) == 3
        job = collector.get("/v1/job")
        assert (job["ranks"], job["world_size"], job["absent"], job["ended"]) == (3, 4, [3], 3)
        assert job["events"] == sum(view["events"] for view in ranks.values())
        wait_until(lambda: [view["rank"] for view in collector.get("/v1/ranks") if view["slow"]] == [2])
        assert collector.get("/v1/job")["slow"] == collector.get("/v1/jobs")[0]["slow"] == 1
        chart = collector.get("/v1/steps?range=all&ranks=job-2of4,job-0of4,nobody")
        assert [one["id"] for one in chart["series"]] == ["job-2of4", "job-0of4"]
        assert len(chart["times"]) == len(chart["median"]) == len(chart["series"][0]["step_ms"]) > 0
        assert max(step or 0 for step in chart["series"][0]["step_ms"]) <= max(chart["highest"])


def test_the_state_comes_back_after_the_collector_was_killed(tmp_path: Path) -> None:
    """The collector reads its state from the files again; a rank that goes on counts each event once."""
    with collecting(tmp_path) as collector:
        trained(collector.url, 0)
        before = collector.when(all_ended(0))[0]
        chart = collector.get("/v1/steps?range=all&ranks=job-0")
        collector.process.kill()
    with collecting(tmp_path) as collector:
        wait_until(lambda: collector.get("/v1/job")["restoring"] == 0)
        after = collector.ranks()[0]
        rates = {"events_per_s": 0.0, "bytes_per_s": 0.0}
        assert {**after, **rates} == {**before, **rates}
        (series,) = collector.get("/v1/steps?range=all&ranks=job-0")["series"]
        known = chart["series"][0]["step_ms"]
        assert known and series["step_ms"][: len(known)] == known  # the last moment may have been going on


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A collector with a rank that has ended."""
    with collecting(tmp_path_factory.mktemp("collector")) as collector:
        trained(collector.url, 0)
        collector.when(all_ended(0))
        yield collector


def test_windows_and_their_tables(finished: CollectorProcess) -> None:
    """The newest windows first; a window's ranks; what a rank did in it."""
    windows = finished.get("/v1/windows?limit=2")
    assert [window["index"] for window in windows] == [2, 1]
    assert all((one["ranks"], one["steps"], one["open"], one["incomplete"]) == (1, 10, 0, 0) for one in windows)
    detail = finished.get("/v1/windows/1")
    (row,) = detail["ranks"]
    assert detail["window"] == windows[1] and row["window"]["events"] == windows[1]["events"]
    table = finished.get(f"/v1/streams/{row['stream']}/windows/1/statistics")
    counts = {span["name"]: span["count"] for span in table["spans"]}
    assert counts == {"forward": 10, "ProfilerStep": 10}
    assert table["counters"][0]["count"] == 10


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/ranks/nobody", 404),
        ("/v1/nothing", 404),
        ("/v1/windows/99", 404),
        ("/v1/windows/0/nothing", 404),
        ("/v1/streams/STREAM/windows/99/statistics", 404),
        ("/v1/streams/STREAM/windows/99/chrome", 404),
        ("/v1/streams/" + "0" * 32 + "/journal", 404),
        ("/v1/streams/..%2f..%2fetc/journal", 404),
        ("/page/..%2fapp.py", 404),
        ("/page/__init__.py", 404),
        ("/v1/steps?range=never", 400),
    ],
)
def test_problems(finished: CollectorProcess, path: str, status: int) -> None:
    """A request that cannot be answered gets the reason, in the form of RFC 9457."""
    answer = send_request(finished.url + path.replace("STREAM", finished.ranks()[0]["stream"]))
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json")
    problem = answer.json()
    assert problem["status"] == status and problem["title"] and problem["detail"]


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("limit=0", "limit must be a whole number >= 1, got str: '0'"),
        ("limit=many", "limit must be a whole number, got str: 'many'"),
        ("limt=1", "unknown field 'limt'; did you mean 'limit'?"),
        ("limit=1&limit=2", "limit is there twice"),
    ],
)
def test_wrong_parameters(finished: CollectorProcess, query: str, text: str) -> None:
    """They are named with their value."""
    answer = send_request(f"{finished.url}/v1/windows?{query}")
    assert answer.status == 400 and f"a parameter is wrong: {text}" in answer.json()["detail"]


def test_other_methods_are_refused(finished: CollectorProcess) -> None:
    """Nothing can be written or deleted over HTTP."""
    for method in ("POST", "PUT", "DELETE"):
        answer = send_request(f"{finished.url}/v1/ranks", method=method, body=b"")
        assert (answer.status, answer.headers["content-type"]) == (405, "application/problem+json")


def test_a_head_is_answered_as_a_get_without_a_body(finished: CollectorProcess) -> None:
    """Also where the answer is made while it is sent."""
    stream = finished.ranks()[0]["stream"]
    for path in ("/", "/v1/ranks", "/metrics", "/healthz", f"/v1/streams/{stream}/journal"):
        one, other = (send_request(finished.url + path, method=method) for method in ("GET", "HEAD"))
        assert (one.status, other.status, other.body) == (200, 200, b"")
        assert other.headers["content-type"] == one.headers["content-type"]
    assert send_request(f"{finished.url}/v1/tickets", method="HEAD").status == 405


@pytest.mark.parametrize("body", [b"", b"[" * 4000, b'{"path": "\xff"}', b'{"pat": "/"}'])
def test_a_body_that_cannot_be_read(finished: CollectorProcess, body: bytes) -> None:
    """It is a fault of who sends it, and reported with the place."""
    answer = send_request(f"{finished.url}/v1/tickets", method="POST", body=body)
    assert (answer.status, answer.headers["content-type"]) == (400, "application/problem+json")
    where = "line 1, column " if body else "it is empty"
    assert answer.json()["detail"].startswith(f"what was sent cannot be read: {where}")


def test_the_openapi_document(finished: CollectorProcess) -> None:
    """It is valid, and what is answered is as it says."""
    document = finished.get("/openapi.json")
    require("openapi_spec_validator").validate(document)
    schema: Any = require("jsonschema").Draft202012Validator
    stream = finished.ranks()[0]["stream"]
    parameters = {"rank": "job-0", "stream": stream, "window": "0", "kind": "chrome"}
    checked = 0
    for path, operations in document["paths"].items():
        content = operations.get("get", {}).get("responses", {}).get("200", {}).get("content", {})
        if "application/json" not in content:
            continue
        address = path
        for name, value in parameters.items():
            address = address.replace("{" + name + "}", value)
        expected = {**content["application/json"]["schema"], "components": document["components"]}
        schema(expected).validate(finished.get(address))
        checked += 1
    assert checked >= 9
    assert set(document["components"]["schemas"]["RankView"]["properties"]) == set(RankView.__struct_fields__)


def test_live_events(finished: CollectorProcess) -> None:
    """The whole state first, then what has changed; a rank that comes is in an update within two seconds of its arrival."""
    with urllib.request.urlopen(f"{finished.url}/v1/events", timeout=40) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")

        def snapshot() -> Any:
            while not (line := answer.readline()).startswith(b"data:"):
                assert line
            return json.loads(line[5:])

        first, found = snapshot(), snapshot()
        assert first["full"] and [view["id"] for view in first["ranks"]] == ["job-0"]
        while found["ranks"]:  # its rates go down to nothing
            assert not found["full"]
            found = snapshot()
        with training(finished.url, 0, steps=10_000, name="other"):
            found = snapshot()
            while not found["ranks"]:
                found = snapshot()
        assert [view["id"] for view in found["ranks"]] == ["other-0"] and not found["full"]


def test_the_page_of_documentation_has_every_path(finished: CollectorProcess) -> None:
    """And none that is not there."""
    page = (ROOT / "docs" / "collector.md").read_text()
    named = set(re.findall(r"`(?:POST )?(/(?:v1/|metrics|healthz|openapi)[^`?]*)`", page))
    assert named == set(finished.get("/openapi.json")["paths"]) | {"/openapi.json"}


NUMBERS = [
    *("9" * digits for digits in (19, 20, 5000)),
    *(str(at + by) for at in (1 << 31, 1 << 63, 1 << 64) for by in (-1, 0)),
    *("-1", "0" * 5000 + "1", "1.5", "nan", "²", " 1", ""),
]


def addresses(document: dict[str, Any], known: dict[str, str], number: str) -> Iterator[str]:
    """Every address of a GET that takes a number, with this one in each place of the path and of the query."""
    for path, methods in document["paths"].items():
        if "get" not in methods or path == "/v1/events":
            continue
        parameters = methods["get"].get("parameters", ())
        filled = re.sub("{(.*?)}", lambda found: known.get(found[1], "{" + found[1] + "}"), path)
        for name in re.findall("{(.*?)}", path):
            others = re.sub("{(.*?)}", lambda found: "{" + name + "}" if found[1] == name else known[found[1]], path)  # noqa: B023
            yield others.replace("{" + name + "}", quote(number, safe=""))
        for parameter in parameters:
            if parameter["in"] == "query":
                yield f"{filled}?{parameter['name']}={quote(number, safe='')}"


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: f"{number[:24]} of {len(number)}")
def test_no_number_is_a_fault_of_the_collector(finished: CollectorProcess, number: str) -> None:
    """Of a path or a query: the answer says what is wrong with it, or that there is none."""
    stream = finished.ranks()[0]["stream"]
    known = {"rank": "job-0", "stream": stream, "window": "0", "kind": "chrome"}
    for address in addresses(finished.get("/openapi.json"), known, number):
        answer = send_request(finished.url + address)
        assert answer.status in (200, 400, 404), (address[:200], answer.status, answer.body[:300])
        if answer.status >= 400:
            assert answer.headers["content-type"] == MEDIA_TYPE and answer.json()["detail"]
            assert len(answer.body) < 3000
