"""Access to a collector, and its log of refused requests."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from stepscope.collector.errors import ExposureError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web.guard import MOST_ADDRESS_BYTES, MOST_PARAMETERS
from stepscope.collector.web.tokens import ALL, MAX_TICKETS, Tickets, Token
from tests.support.certificates import certify
from tests.support.collecting import collecting, send_request, trained, wait_until
from tests.support.collectors import COMMAND
from tests.support.launch import run_to_end
from tests.support.messages import refused

TOKEN = "a-token-of-this-test"
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}
HOLDER = Token(b"digest", ALL)


def stream_url(url: str) -> str:
    """Where exporters connect."""
    return f"ws://{urlsplit(url).netloc}/v1/stream"


def test_nothing_is_reported_without_the_token(tmp_path: Path) -> None:
    """No data, no metrics, no stream; the page and what describes the interface have no data. Tries are noted, tokens never."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with collecting(tmp_path / "runs", "--token-file", str(file)) as collector:
        for path in ("/v1/job", "/v1/ranks", "/v1/events", "/metrics", "/v1/steps", "/v1/nothing"):
            for headers in (
                None,
                {"Authorization": f"Bearer {TOKEN}x"},
                {"Authorization": TOKEN},
                {"Authorization": "Bearer é"},
            ):
                answer = send_request(collector.url + path, headers)
                assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert send_request(f"{collector.url}/v1/job?token={TOKEN}").status == 401
        with pytest.raises(InvalidStatus) as refused:
            connect(stream_url(collector.url), additional_headers={"Authorization": "Bearer wrong"})
        assert refused.value.response.status_code == 401
        for path in ("/", "/page/app.js", "/healthz", "/openapi.json"):
            assert send_request(collector.url + path).status == 200
        trained(collector.url, 0, token=TOKEN)
        wait_until(lambda: collector.get("/v1/job", headers=ALLOWED)["ended"])
        assert b"stepscope_ranks" in send_request(f"{collector.url}/metrics", headers=ALLOWED).body
        output = "".join(collector.stop())
    files = [tmp_path / "runs" / name for name in ("audit.jsonl", "refused.jsonl")]
    audit = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert [line["action"] for line in audit[:-1] if line["action"] != "refused"] == ["start", "stream", "stop"]
    assert max(line.get("refused", 0) for line in audit) >= 5
    assert TOKEN not in output + json.dumps(audit)
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_a_refusal_is_a_line_with_the_reason(tmp_path: Path) -> None:
    """Of a wrong token, and of TLS to a collector without a certificate; nothing that the web server says of itself."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector:
        with pytest.raises(InvalidStatus):
            connect(stream_url(collector.url))
        with pytest.raises(OSError):
            send_request(collector.url.replace("http", "https") + "/healthz")
        output = collector.stop()[1].splitlines()
    assert len(output) == 2 and all(" 127.0.0.1" in line and "is refused: " in line for line in output), output
    assert "the collector's token" in output[0] and "it speaks no HTTP" in output[1]


def test_a_token_from_the_environment_may_end_with_a_line(tmp_path: Path) -> None:
    """As what a secret is mounted from does: who shows it is let in, and so is who has it in the same way."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=f"{TOKEN}\n") as collector:
        assert send_request(f"{collector.url}/v1/job", headers=ALLOWED).status == 200
        assert send_request(f"{collector.url}/v1/job").status == 401


def test_a_ticket_is_for_one_download(tmp_path: Path) -> None:
    """Only who has the token gets one, and it opens one address once."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector:
        wanted = json.dumps({"path": "/v1/windows?limit=7"}).encode()
        assert send_request(f"{collector.url}/v1/tickets", method="POST", body=wanted).status == 401
        answer = send_request(f"{collector.url}/v1/tickets", method="POST", body=wanted, headers=ALLOWED)
        ticket = answer.json()["ticket"]
        assert send_request(f"{collector.url}/v1/windows?limit=7&ticket={ticket}").status == 200
        assert send_request(f"{collector.url}/v1/windows?limit=7&ticket={ticket}").status == 401
        ticket = send_request(f"{collector.url}/v1/tickets", method="POST", body=wanted, headers=ALLOWED).json()[
            "ticket"
        ]
        assert send_request(f"{collector.url}/v1/job?ticket={ticket}").status == 401
        for written, asked in (
            ("/v1//job/", "/v1//job/?"),
            ("/v1/job", "/v1/job/?"),
            ("/v1/job?job=", "/v1/job?job=&"),
        ):
            body = json.dumps({"path": written}).encode()
            ticket = send_request(f"{collector.url}/v1/tickets", method="POST", body=body, headers=ALLOWED).json()[
                "ticket"
            ]
            assert send_request(f"{collector.url}{asked}ticket={ticket}").status == 200
        ticket = send_request(
            f"{collector.url}/v1/tickets", method="POST", body=b'{"path": "/v1/job"}', headers=ALLOWED
        ).json()["ticket"]
        assert send_request(f"{collector.url}/v1/job?job=&ticket={ticket}").status == 401
        nowhere = send_request(
            f"{collector.url}/v1/tickets", method="POST", body=b'{"path": "http://[::1"}', headers=ALLOWED
        )
        assert nowhere.status == 200, "it opens nothing, as no request has such a path"
        for wrong, status in (
            (b"{", 400),
            (b'{"path": 1}', 400),
            (b'{"path": "/", "x": 1}', 400),
            (b" " * 200_000, 413),
        ):
            assert (
                send_request(f"{collector.url}/v1/tickets", method="POST", body=wrong, headers=ALLOWED).status == status
            )


def test_long_addresses_are_refused(tmp_path: Path) -> None:
    """Before they are read, by whatever name they ask."""
    with collecting(tmp_path) as collector:
        for address in (
            f"/v1/ranks/{'x' * MOST_ADDRESS_BYTES}",
            f"/v1/job?x{'&x' * MOST_PARAMETERS}",
            f"/healthz?{'x' * 60_000}",
        ):
            assert send_request(f"{collector.url}{address}").status == 414
        assert send_request(f"{collector.url}/healthz?x{'&x' * (MOST_PARAMETERS - 1)}").status == 200


def test_tickets_are_bounded() -> None:
    """Each request issues a new ticket, but only the newest are valid."""
    tickets = Tickets()
    issued = [tickets.issue("/a", HOLDER) for _ in range(MAX_TICKETS + 1)]
    assert not tickets.use(issued[0], "/a", []) and tickets.use(issued[1], "/a", [])
    assert not tickets.use(issued[2], "/b", [])


def test_pages_of_others_get_nothing(tmp_path: Path) -> None:
    """A name that leads to this machine is not this machine, and a page of another origin opens no stream."""
    with collecting(tmp_path) as collector:
        assert send_request(f"{collector.url}/v1/ranks", headers={"Host": "127.0.0.1.evil.example"}).status == 421
        assert send_request(f"{collector.url}/v1/ranks", headers={"Host": "[::1]:7"}).status == 200
        with pytest.raises(InvalidStatus) as refused:
            connect(stream_url(collector.url), origin=Origin("http://evil.example"))
        assert refused.value.response.status_code == 403
        wanted = json.dumps({"path": "/"}).encode()
        assert (
            send_request(
                f"{collector.url}/v1/tickets", method="POST", body=wanted, headers={"Origin": "https://evil.example"}
            ).status
            == 403
        )
        for path in ("/v1/ranks", f"/v1/streams/{'a' * 32}/windows/0/statistics", "/metrics"):
            answer = send_request(collector.url + path, headers={"Sec-Fetch-Site": "cross-site"})
            assert answer.status == 403 and b"another site" in answer.body, path
        for site in ("same-origin", "same-site", "none"):
            assert send_request(f"{collector.url}/v1/ranks", headers={"Sec-Fetch-Site": site}).status == 200
        assert send_request(collector.url, headers={"Sec-Fetch-Site": "cross-site"}).status == 200, (
            "links lead to the page"
        )
        answer = send_request(f"{collector.url}/v1/ranks", headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in answer.headers


def test_every_answer_keeps_browsers_in_bounds(tmp_path: Path) -> None:
    """Nothing is loaded from elsewhere, framed, guessed or stored; the response does not name the server's software."""
    with collecting(tmp_path) as collector:
        for path in ("/", "/page/app.js", "/v1/ranks", "/v1/nothing", "/metrics"):
            headers = send_request(collector.url + path).headers
            assert headers["content-security-policy"].startswith(
                "default-src 'none'; script-src 'self'; style-src 'self'"
            )
            assert (headers["x-content-type-options"], headers["x-frame-options"]) == ("nosniff", "DENY")
            assert headers["cache-control"] == "no-store" and "server" not in headers
            # It has no ports: browsers would refuse http: to every other service of the host.
            assert "strict-transport-security" not in headers


def test_exposure_is_refused_unless_it_is_asked_for(tmp_path: Path) -> None:
    """Off loopback there must be a token and TLS; the page shows `--insecure`."""
    for settings in (
        CollectorSettings(directory=tmp_path, host="0.0.0.0"),
        CollectorSettings(directory=tmp_path, host="0.0.0.0", token=TOKEN),
        CollectorSettings(directory=tmp_path, host="0.0.0.0", certificate=tmp_path / "none"),
    ):
        with refused(ExposureError, "0.0.0.0", "127.0.0.1", "--insecure"):
            settings.check_exposure()
    with collecting(tmp_path, "--insecure") as collector:
        assert not collector.get("/v1/job")["exposed"], "on loopback nothing is exposed"


def orders(directory: Path, name: str) -> list[dict[str, object]]:
    """Lines that a collector wrote about orders, or about those who may give none."""
    lines = [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("path") == "/v1/windows"]


ORDER = json.dumps({"command": "arm", "steps": 1}).encode()


def test_an_exposed_collector_takes_no_orders(tmp_path: Path) -> None:
    """Without a token it does not start where others can reach it; `--insecure` lets it, and everybody is refused, here too."""
    started = run_to_end([*COMMAND, "collect", "--dir", str(tmp_path), "--host", "0.0.0.0", "--port", "0"])
    assert started.returncode == 1 and "say --insecure" in started.stderr
    with collecting(tmp_path, "--host", "0.0.0.0", "--insecure") as collector:
        assert collector.get("/v1/job")["exposed"], "the page shows it to everybody"
        for body in (ORDER, b"{"):
            answer = send_request(f"{collector.url}/v1/windows", method="POST", body=body)
            assert answer.status == 403 and "without token and TLS" in answer.json()["detail"]
        collector.stop()
    assert [(line["method"], line["client"]) for line in orders(tmp_path, "refused")] == [("POST", "127.0.0.1")] * 2
    assert orders(tmp_path, "audit") == []
    clear = CollectorSettings(directory=tmp_path, host="0.0.0.0", token=TOKEN, insecure=True)
    assert clear.exposed, "a token that everybody can read on the way is none"


def test_orders_need_the_token_and_leave_lines(tmp_path: Path) -> None:
    """Each order has lines in the log: that it came, and its outcome."""
    with collecting(tmp_path, STEPSCOPE_TOKEN=TOKEN) as collector:
        url = f"{collector.url}/v1/windows"
        for headers in (None, {"Authorization": f"Bearer {TOKEN}x"}, {"Authorization": "Bearer "}):
            assert send_request(url, method="POST", body=ORDER, headers=headers).status == 401
        assert send_request(url, method="POST", body=ORDER, headers=ALLOWED).status == 404
        assert send_request(url, method="POST", body=b'{"command": "arm", "steps": 0}', headers=ALLOWED).status == 400
        assert send_request(url, method="POST", body=b'{"steps": 1, "ranks": "3-1"}', headers=ALLOWED).status == 400
        collector.stop()
    refused = orders(tmp_path, "refused")
    assert [(line["method"], line["client"]) for line in refused] == [("POST", "127.0.0.1")] * 3
    assert all("token" in str(line["why"]) for line in refused)
    lines = orders(tmp_path, "audit")
    assert [(line["action"], line.get("outcome"), line.get("status")) for line in lines] == [
        ("order arm", None, None),
        ("ordered arm", "refused", 404),
        ("ordered", "refused", 400),
        ("order arm", None, None),
        ("ordered arm", "refused", 400),
    ]
    assert "connected processes takes commands" in str(lines[1]["why"])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    return certify(tmp_path_factory.mktemp("tls"))
