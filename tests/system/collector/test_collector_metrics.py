"""The collector's metrics, read by Prometheus itself; counters and sums never fall, whatever is forgotten or comes again."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from hypothesis import example, given
from hypothesis import strategies as st

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.views import StorageView
from stepscope.collector.retention.storage import Storage
from stepscope.collector.runs.evicted import Evicted
from stepscope.collector.web.metrics import exposition
from stepscope.exporters.stream.protocol import Hello
from stepscope.runtime.events.record import empty_block
from tests.support.basics import at_once, missing, require
from tests.support.collecting import collecting, send_request, trained, wait_until
from tests.support.streams import CONNECTION, SYNC
from tests.unit.collector.test_collector_live import a_life, events_frame, run_of

TOKEN = "a-token-of-this-test"


@contextmanager
def prometheus(directory: Path, target: str) -> Generator[str]:
    """Prometheus, which reads a collector twice a second; its address."""
    if shutil.which("prometheus") is None:
        missing("Prometheus", "Install it (on Debian: apt-get install prometheus).")
    (directory / "token").write_text(TOKEN)
    job = {
        "job_name": "stepscope",
        "scrape_interval": "500ms",
        "scrape_timeout": "500ms",
        "authorization": {"credentials_file": str(directory / "token")},
        "static_configs": [{"targets": [target]}],
    }
    (directory / "prometheus.yml").write_text(json.dumps({"scrape_configs": [job]}))
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = ["prometheus", f"--config.file={directory}/prometheus.yml", f"--storage.tsdb.path={directory}/data"]
    with (directory / "log").open("w") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            process.kill()
            process.wait()


def test_prometheus_reads_it(tmp_path: Path) -> None:
    """Each rank's metrics are there with their values, asked for with the token."""
    with collecting(tmp_path / "runs", STEPSCOPE_TOKEN=TOKEN) as collector:
        trained(collector.url, 3, token=TOKEN)
        allowed = {"Authorization": f"Bearer {TOKEN}"}
        view = wait_until(lambda: [one for one in collector.get("/v1/ranks", allowed) if one["state"] == "ended"])[0]
        with prometheus(tmp_path, urlsplit(collector.url).netloc) as url:

            def value(query: str) -> Any:
                try:
                    answer = send_request(f"{url}/api/v1/query?query={quote(query)}")
                except OSError:
                    return None  # it is not there yet
                if answer.status == 503:
                    return None  # nor ready
                found = answer.json()["data"]["result"]
                return found[0]["value"][1] if found else None

            assert float(wait_until(lambda: value('stepscope_rank_step{rank="3"}'))) == 29
            assert float(value('stepscope_rank_events{id="job-3"}')) == view["events"]
            assert float(value('stepscope_ranks{state="ended"}')) == 1
            assert float(value("stepscope_received_events_total")) == view["events"]
            assert float(value("stepscope_rank_step_seconds")) == view["step_ms"] / 1000
            assert value('up{job="stepscope"}') == "1"


def test_any_name_is_a_label() -> None:
    """Names of hosts and runs come from the network: the text stays what Prometheus reads."""
    parse: Any = require("prometheus_client.parser").text_string_to_metric_families
    streams = Streams(8)
    names = ['a"b', "a\\b", "a\nb", "é{}", ""]
    for number, name in enumerate(names):
        streams.add(Stream(f"{number:032x}", run_of(1, name)))
    text = exposition(at_once(Live(streams, Downloads(Path("/nowhere")), exposed=False).snapshot()), 7).decode()
    families = {family.name: family for family in parse(text)}
    assert len(families["stepscope_rank_up"].samples) == len(names)
    assert families["stepscope_refused_requests"].samples[0].value == 7


SUMS = ("events", "bytes", "dropped")


def a_longer_life() -> list[tuple[int, int, bytes]]:
    """A short run, with more events at its end."""
    return [*a_life()[:-1], events_frame(empty_block(40), source="recorder"), a_life()[-1]]


class Watched:
    """A live state whose sums are compared each time with those before."""

    def __init__(self, streams: Streams, storage: Storage | None = None) -> None:
        self.streams = streams
        self.live = Live(streams, Downloads(Path("/nowhere")), exposed=False, storage=self._stored)
        self._storage = storage
        self.known: dict[tuple[str, str], float] = {}

    def _stored(self, discarded: int) -> StorageView | None:
        return None if self._storage is None else self._storage.view(discarded)

    def look(self) -> dict[tuple[str, str], float]:
        """All sums now, by (job or what counts, name)."""
        snapshot = at_once(self.live.snapshot(age=0))
        found = {("counter", name): value for name, value in counters(exposition(snapshot, 0).decode()).items()}
        for job in (None, *(entry.id for entry in snapshot.jobs or [])):
            view = at_once(self.live.snapshot(job)).job
            found |= {(f"job {job}", name): getattr(view, name) for name in SUMS}
        found |= {(rank.id, "starts"): rank.count for rank in self.streams}
        for key, value in found.items():
            assert value >= self.known.get(key, 0), key
        # A rank of which nothing is known any more may begin anew.
        known = {key: value for key, value in self.known.items() if key[1] != "starts"}
        self.known = {**known, **found}
        return found


def counters(text: str) -> dict[str, float]:
    """The counters of an exposition."""
    parse: Any = require("prometheus_client.parser").text_string_to_metric_families
    return {one.name: one.value for family in parse(text) if family.type == "counter" for one in family.samples}


def feed(streams: Streams, number: int, rank: int, count: int) -> Stream:
    """A connection that brings the next frames of a stream, of which the first are evicted, and is gone again."""
    life = a_longer_life()
    run = run_of(rank, f"job{rank % 2}")
    with streams.connected(Hello(f"{number:032x}", SYNC, run), CONNECTION) as stream:
        new = life[stream.next : stream.next + count]
        stream.add_frames(new, 0, stream.next + len(new))
        if stream.next > 3:
            stream.windows.evict(Evicted(segment=0, frames=3, nbytes=900, events=40))
    return stream


@example([(1, 1), (2, 1), (2, 6), (1, 2), (2, 1)])
@given(st.lists(st.tuples(st.integers(0, 11), st.integers(1, 6)), max_size=30))
def test_no_sum_falls(moves: list[tuple[int, int]]) -> None:
    """Streams that come back, are forgotten, are deleted, and all of that in any order."""
    watched = Watched(streams := Streams(2))
    for number, count in moves:
        stream = feed(streams, number, number // 3, count)
        watched.look()
        if stream.ended and number % 3 == 2:
            streams.deleted(f"{number - 1:032x}")
        watched.look()
