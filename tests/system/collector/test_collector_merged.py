"""Windows of all ranks, downloaded from a collector that runs: whole, streamed, and given up when nobody waits."""

from __future__ import annotations

import gzip
import io
import json
import urllib.parse
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from stepscope.cli.main import main
from tests.support.basics import peak_bytes, require
from tests.support.collecting import CollectorProcess, collecting, send_request, trained, training, wait_until
from tests.support.pftrace import Trace
from tests.support.ranks.streams import write_many

TOKEN = "a-token-of-this-test"
SHOWN = {"Authorization": f"Bearer {TOKEN}"}


def ticket(collector: CollectorProcess, path: str) -> str:
    """The address of a download, with a ticket and without a token."""
    answer = send_request(f"{collector.url}/v1/tickets", SHOWN, method="POST", body=json.dumps({"path": path}).encode())
    assert answer.status == 200, answer.body
    return f"{collector.url}{path}{'&' if '?' in path else '?'}ticket={answer.json()['ticket']}"


def names_in(kind: str, body: bytes) -> Counter[str]:
    """Spans in a file, by name; it must be whole."""
    if kind == "perfetto":
        return Counter(one.name for one in Trace(body).slices())
    if kind == "chrome":
        return Counter(event["name"] for event in json.loads(gzip.decompress(body)) if event.get("ph") == "X")
    table: Any = require("pyarrow.parquet").read_table(io.BytesIO(body))
    rows = table.select(["kind", "name"]).to_pylist()
    return Counter(row["name"] for row in rows if row["kind"] == "span")


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A collector with a token, of which two ranks of one job have ended, and one of another."""
    with collecting(tmp_path_factory.mktemp("collector"), STEPSCOPE_TOKEN=TOKEN) as collector:
        for rank in (0, 1):
            trained(collector.url, rank, token=TOKEN, world=2)
        trained(collector.url, 0, token=TOKEN, name="other", steps=10)
        wait_until(lambda: [view["state"] for view in collector.get("/v1/ranks", SHOWN)] == ["ended"] * 3)
        yield collector


@pytest.mark.parametrize(
    ("kind", "suffix"), [("perfetto", ".pftrace"), ("chrome", ".json.gz"), ("parquet", ".parquet")]
)
def test_a_window_of_all_ranks(kind: str, suffix: str, three: CollectorProcess) -> None:
    """Each kind that the collector offers, with a ticket, is a whole file of the ranks of the job."""
    if kind == "parquet":
        require("pyarrow.parquet")
    assert kind in three.get("/v1/job", SHOWN)["merged_files"]
    answer = send_request(ticket(three, f"/v1/windows/1/{kind}"))
    assert answer.status == 200, answer.body
    assert answer.headers["content-disposition"] == f'attachment; filename="all-window1{suffix}"'
    assert "content-length" not in answer.headers
    found = names_in(kind, answer.body)
    steps = {name: count for name, count in found.items() if name.startswith("ProfilerStep#")}
    assert found["forward"] == 20 and sum(steps.values()) == 20
    wait_until(lambda: not list((three.directory / "downloads").iterdir()))


def test_jobs_are_not_mixed(three: CollectorProcess) -> None:
    """Where several have a window one must be chosen; an error is reported before the first byte."""
    answer = send_request(f"{three.url}/v1/windows/0/chrome", SHOWN)
    assert answer.status == 409 and "'job x2', 'other'" in answer.json()["detail"]
    for job, count in (("job x2", 20), ("other", 10)):
        query = urllib.parse.urlencode({"job": job})
        answer = send_request(f"{three.url}/v1/windows/0/chrome?{query}", SHOWN)
        assert names_in("chrome", answer.body)["forward"] == count
    assert send_request(f"{three.url}/v1/windows/0/chrome?job=nobody", SHOWN).status == 404
    assert send_request(f"{three.url}/v1/windows/2/chrome?job=other", SHOWN).status == 404
    assert send_request(f"{three.url}/v1/windows/0/chrome?jobb=other", SHOWN).status == 400


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A collector of two ranks with 400,000 spans each."""
    directory = tmp_path_factory.mktemp("big")
    write_many(directory, 2, 400_000)
    with collecting(directory) as collector:
        collector.when(lambda ranks: len(ranks) == 2 and all(view["windows"] == 1 for view in ranks.values()))
        yield collector


def test_a_big_one_is_streamed(big: CollectorProcess, tmp_path: Path) -> None:
    """The collector's memory does not hold the file, which is the one that the command writes."""
    collector = big
    send_request(f"{collector.url}/v1/windows/0/perfetto")
    before = peak_bytes(collector.process.pid)
    found = b""
    with urllib.request.urlopen(f"{collector.url}/v1/windows/0/perfetto", timeout=60) as answer:
        while chunk := answer.read(1 << 16):
            found += chunk
    assert len(found) > 10_000_000
    assert peak_bytes(collector.process.pid) - before < len(found) // 2
    target = tmp_path / "merged.pftrace"
    assert main(["merge", str(collector.directory / "streams"), "--window", "0", "--out", str(target)]) == 0
    assert found == target.read_bytes()


def test_while_streams_grow(tmp_path: Path) -> None:
    """A window that is over, and one that is not, of ranks that train and stream meanwhile."""
    with collecting(tmp_path) as collector:
        running = [training(collector.url, rank, steps=100_000, seconds=0.02, world=2) for rank in (0, 1)]
        with running[0], running[1]:
            ranks = collector.when(
                lambda ranks: (
                    set(ranks) == {0, 1} and all(view["windows"] >= 2 and view["step"] for view in ranks.values())
                )
            )
            for kind in ("perfetto", "chrome"):
                answer = send_request(f"{collector.url}/v1/windows/1/{kind}")
                assert answer.status == 200, answer.body
                assert names_in(kind, answer.body)["forward"] == 20

            def begun() -> Any:
                # The window that is recorded now: the collector has the newest only.
                latest = max(view["windows"] for view in collector.ranks().values())
                answer = send_request(f"{collector.url}/v1/windows/{latest}/chrome")
                return answer if answer.status == 200 else None

            answer = wait_until(begun)
            assert names_in("chrome", answer.body)["forward"] <= 20
            # Training goes on meanwhile; what it records is drained once a second.
            collector.when(lambda after: all(after[rank]["step"] > ranks[rank]["step"] for rank in (0, 1)))
