"""The collector's metrics, read by Prometheus itself."""

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

from stepscope.collector.downloads.downloads import Downloads
from stepscope.collector.live.live import Live
from stepscope.collector.live.stream import Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.web.metrics import exposition
from tests.support.basics import at_once, missing, require
from tests.support.collecting import ask, collecting, trained, until
from tests.unit.collector.test_collector_live import run_of

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
        view = until(lambda: [one for one in collector.get("/v1/ranks", allowed) if one["state"] == "ended"])[0]
        with prometheus(tmp_path, urlsplit(collector.url).netloc) as url:

            def value(query: str) -> Any:
                try:
                    answer = ask(f"{url}/api/v1/query?query={quote(query)}")
                except OSError:
                    return None  # it is not there yet
                if answer.status == 503:
                    return None  # nor ready
                found = answer.json()["data"]["result"]
                return found[0]["value"][1] if found else None

            assert float(until(lambda: value('stepscope_rank_step{rank="3"}'))) == 29
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
