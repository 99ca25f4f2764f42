"""The rights of a token: which requests it allows, for which job, and for how long."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import secrets
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import msgspec
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

import stepscope as sc
from stepscope.cli.main import main
from stepscope.cli.network.collect import _exporter  # pyright: ignore[reportPrivateUsage]
from stepscope.collector.errors import ExposureError
from stepscope.collector.settings import CollectorSettings
from stepscope.collector.web import tokens
from stepscope.collector.web.guard import WITHDRAWN
from stepscope.collector.web.tokens import ALL, TokenFile, Tokens
from stepscope.exporters.specimens import batch_of, run_in, spans
from stepscope.exporters.stream import protocol
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import encode_record
from stepscope.runtime.loop_threads.ending_tasks import end_tasks
from tests.support.basics import poll
from tests.support.collecting import Answer, CollectorProcess, send_request, trained, training, wait_until
from tests.support.collecting import collecting as collecting_apart
from tests.support.collectors import Running, answer, collecting, connected, journals
from tests.support.messages import refused
from tests.support.streams import RUN, STREAM, SYNC, run_frame

ADMIN, INGEST, READ, CONTROL = (f"token-for-{scope}-01" for scope in ("all", "ingest", "read", "control"))
ORDER = json.dumps({"command": "arm", "steps": 1}).encode()


def bearer(token: str) -> dict[str, str]:
    """The header of a request with a token."""
    return {"Authorization": f"Bearer {token}"}


def token_files(directory: Path, **contents: str) -> dict[str, Any]:
    """Files of tokens, by the fields of the settings."""
    found: dict[str, Any] = {}
    for scope, content in contents.items():
        path = directory / f"{scope}-tokens"
        path.write_text(content)
        path.chmod(0o600)
        found["token_file" if scope == "all" else f"{scope}_token_file"] = path
    return found


def options(files: dict[str, Any]) -> list[str]:
    """The options of the command line for them."""
    return [text for name, path in files.items() for text in (f"--{name.replace('_', '-')}", str(path))]


def replace(path: Path, content: str) -> None:
    """Writes a file as those do who want no reader to see half of it."""
    new = path.with_suffix(".new")
    new.write_text(content)
    new.chmod(0o600)
    os.replace(new, path)


def stream_status(url: str, token: str) -> tuple[int, dict[str, Any]]:
    """The status and the problem with which a connection for a stream is answered; 101 and nothing if it is made."""
    try:
        with connect(f"ws://{urlsplit(url).netloc}/v1/stream", additional_headers=bearer(token)):
            return 101, {}
    except InvalidStatus as error:
        body = error.response.body
        is_problem = error.response.headers["Content-Type"].startswith("application/problem")
        return error.response.status_code, json.loads(body or b"{}") if is_problem else {}


def test_each_scope_allows_its_own_requests(tmp_path: Path) -> None:
    """Control implies read; what a valid token lacks is 403, and named. Without a valid token it is 401."""
    files = token_files(tmp_path, all=ADMIN, ingest=INGEST, read=f"{READ}\n\n{READ}-2\n", control=CONTROL)
    with collecting_apart(tmp_path / "c", *options(files)) as collector:

        def sends(token: str) -> tuple[int, dict[str, Any]]:
            return stream_status(collector.url, token)

        def orders(token: str) -> Answer:
            return send_request(f"{collector.url}/v1/windows", bearer(token), method="POST", body=ORDER)

        for token, scopes in {
            ADMIN: {"ingest", "read", "control"},
            INGEST: {"ingest"},
            READ: {"read"},
            f"{READ}-2": {"read"},
            CONTROL: {"read", "control"},
        }.items():
            status, answer = sends(token)
            assert status == (426 if "ingest" in scopes else 403), (token, answer)  # it does not offer the protocol
            assert send_request(f"{collector.url}/v1/jobs", bearer(token)).status == (200 if "read" in scopes else 403)
            for path in ("/v1/events", "/metrics", f"/v1/streams/{'a' * 32}/journal"):
                if "read" not in scopes:
                    answered = send_request(collector.url + path, bearer(token))
                    assert answered.status == 403 and "does not allow to read" in answered.json()["detail"]
                    assert answered.headers["www-authenticate"] == 'Bearer error="insufficient_scope", scope="read"'
            found = orders(token)
            assert found.status == (404 if "control" in scopes else 403)  # nobody is connected
            if "control" not in scopes:
                assert "it lacks the scope 'control' (--control-token-file)" in found.json()["detail"]
        for token in (f"{READ}x", READ[:-1], f"{READ} {READ}-2", ""):
            assert (orders(token).status, send_request(f"{collector.url}/v1/jobs", bearer(token)).status) == (401, 401)
        assert sends("x" * 20)[0] == 401
        output = "".join(collector.stop())
    assert not any(token in output for token in (ADMIN, INGEST, READ, CONTROL))


def test_a_path_written_in_another_way_needs_the_same_scope(tmp_path: Path) -> None:
    """The guard checks the same path that the application answers, however the request writes it."""
    files = token_files(tmp_path, read=READ, control=CONTROL)
    with collecting_apart(tmp_path / "c", *options(files)) as collector:
        for path in ("/v1/windows/", "//v1/windows", "/v1//windows//", "/v1%2Fwindows", "/v1/windows%2F"):
            for token, status in ((READ, 403), (CONTROL, 404)):
                answered = send_request(f"{collector.url}{path}", bearer(token), method="POST", body=ORDER)
                assert answered.status == status, (path, answered.body)
        for path in ("//healthz/", "/healthz"):
            assert send_request(f"{collector.url}{path}").status == 200
        site = {**bearer(READ), "Sec-Fetch-Site": "same-site"}
        assert send_request(f"{collector.url}/v1//streams/{'a' * 32}/journal/", site).status == 403


def test_a_scope_without_a_token_is_closed(tmp_path: Path) -> None:
    """One file is enough that nobody comes without a token; the environment's token does not count then."""
    files = token_files(tmp_path, ingest=INGEST)
    with collecting_apart(tmp_path / "c", *options(files), STEPSCOPE_TOKEN=ADMIN) as collector:
        assert send_request(f"{collector.url}/v1/jobs").status == 401
        assert send_request(f"{collector.url}/v1/jobs", bearer(ADMIN)).status == 401
        assert send_request(f"{collector.url}/v1/jobs", bearer(INGEST)).status == 403
        trained(collector.url, 0, token=INGEST)
        assert "no token is set" not in collector.stop()[1]


def test_a_ticket_has_the_rights_of_its_token(tmp_path: Path) -> None:
    """A token without the right to read gets none, and one of a job opens nothing of another."""
    files = token_files(tmp_path, ingest=INGEST, read=f"job=one {READ}")
    with collecting_apart(tmp_path / "c", *options(files)) as collector:

        def ticket(token: str, path: str) -> Answer:
            body = json.dumps({"path": path}).encode()
            return send_request(f"{collector.url}/v1/tickets", bearer(token), method="POST", body=body)

        assert ticket(INGEST, "/v1/jobs").status == 403
        for path, status in (("/v1/ranks?job=one", 200), ("/v1/ranks?job=two", 403)):
            shown = ticket(READ, path).json()["ticket"]
            assert send_request(f"{collector.url}{path}&ticket={shown}").status == status
        shown = ticket(READ, "/v1/jobs").json()["ticket"]
        replace(files["read_token_file"], f"job=one {READ}-2")
        wait_until(lambda: send_request(f"{collector.url}/v1/jobs", bearer(READ)).status == 401)
        assert send_request(f"{collector.url}/v1/jobs?ticket={shown}").status in (401, 403)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Generator[CollectorProcess]:
    """A collector with the jobs `one x1` and `two x1`, and tokens for each."""
    directory = tmp_path_factory.mktemp("jobs")
    files = token_files(
        directory,
        all=ADMIN,
        ingest=f"job=one x1 {INGEST}",
        read=f"job=one x1 {READ}\njob=two x1 {READ}-2",
        control=f"job=one x1 {CONTROL}",
    )
    with collecting_apart(directory / "c", *options(files)) as collector:
        trained(collector.url, 0, token=INGEST, name="one", world=1)
        trained(collector.url, 0, token=ADMIN, name="two", world=1)
        wait_until(lambda: [one["state"] for one in collector.get("/v1/ranks", bearer(ADMIN))] == ["ended"] * 2)
        yield collector


def test_a_token_of_a_job_shows_that_job_only(jobs: CollectorProcess) -> None:
    """In lists, sums, charts, metrics and live events, whether or not it asks for it; of another it gets nothing."""
    every = {view["job_id"]: view for view in jobs.get("/v1/ranks", bearer(ADMIN))}
    assert set(every) == {"one x1", "two x1"}
    ids = quote(",".join(view["id"] for view in every.values()))
    for token, own, other in (
        (READ, "one x1", "two x1"),
        (f"{READ}-2", "two x1", "one x1"),
        (CONTROL, "one x1", "two x1"),
    ):

        def get(path: str, token: str = token) -> Any:
            return jobs.get(path, bearer(token))

        assert [job["id"] for job in get("/v1/jobs")] == [own]
        assert [view["id"] for view in get("/v1/ranks")] == [every[own]["id"]]
        assert get("/v1/job")["events"] == get(f"/v1/job?job={quote(own)}")["events"] == every[own]["events"]
        assert [series["id"] for series in get(f"/v1/steps?range=all&ranks={ids}")["series"]] == [every[own]["id"]]
        assert {window["job_id"] for window in get("/v1/windows")} == {own}
        assert get("/v1/windows/0")["window"]["job_id"] == own
        metrics = send_request(f"{jobs.url}/metrics", bearer(token)).body.decode()
        assert f'id="{every[own]["id"]}"' in metrics and f'id="{every[other]["id"]}"' not in metrics
        for path in (
            "/v1/job",
            "/v1/ranks",
            "/v1/steps",
            "/v1/windows",
            "/v1/windows/0",
            "/v1/windows/0/chrome",
            "/v1/events",
        ):
            answered = send_request(f"{jobs.url}{path}?job={quote(other)}", bearer(token))
            assert answered.status == 403 and f"for the job '{own}' only" in answered.json()["detail"], path
        with events(jobs.url, token) as first:
            assert [view["job_id"] for view in first["ranks"]] == [own]
            assert [job["id"] for job in first["jobs"]] == [own]
    with events(jobs.url, ADMIN) as first:
        assert [job["id"] for job in first["jobs"]] == ["one x1", "two x1"], "others see all"


def test_a_token_of_a_job_downloads_that_job_only(jobs: CollectorProcess) -> None:
    """Answers have nothing of another job."""
    every = {view["job_id"]: view for view in jobs.get("/v1/ranks", bearer(ADMIN))}
    for job, status in (("one x1", 200), ("two x1", 404)):
        stream, rank = every[job]["stream"], every[job]["id"]
        for path in (
            f"/v1/ranks/{quote(rank)}",
            f"/v1/streams/{stream}/journal",
            f"/v1/streams/{stream}/windows/0/statistics",
            f"/v1/streams/{stream}/windows/0/chrome",
        ):
            assert send_request(jobs.url + path, bearer(READ)).status == status, path
            assert send_request(jobs.url + path, bearer(ADMIN)).status == 200, path
    merged = send_request(f"{jobs.url}/v1/windows/0/chrome", bearer(READ))
    assert merged.status == 200, "there is one job with this window"
    assert send_request(f"{jobs.url}/v1/windows/0/chrome", bearer(ADMIN)).status == 409


def test_a_token_of_a_job_orders_windows_of_that_job_only(jobs: CollectorProcess) -> None:
    """Where several jobs are connected it means its own."""
    with (
        training(jobs.url, 0, token=ADMIN, name="one", world=1, steps=10_000),
        training(jobs.url, 0, token=ADMIN, name="two", world=1, steps=10_000),
    ):

        def order(token: str, **fields: str) -> Answer:
            body = json.dumps({"command": "status", "patience": 0.5, **fields}).encode()
            return send_request(f"{jobs.url}/v1/windows", bearer(token), method="POST", body=body)

        wait_until(
            lambda: len([one for one in jobs.get("/v1/ranks", bearer(ADMIN)) if one["state"] == "connected"]) == 2
        )
        refusal = order(CONTROL, job="two x1")
        assert refusal.status == 403 and "for the job 'one x1' only" in refusal.json()["detail"]
        for fields in ({}, {"job": "one x1"}):
            # These do not obey a collector; the response names the ranks.
            assert "none of 1 connected processes" in order(CONTROL, **fields).json()["detail"]
        assert "none of 2 connected processes" in order(ADMIN).json()["detail"]


@contextlib.contextmanager
def events(url: str, token: str) -> Generator[dict[str, Any]]:
    """The first of the live events; they go on inside."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=40)
    try:
        connection.request("GET", "/v1/events", headers=bearer(token))
        response = connection.getresponse()
        assert response.status == 200
        while not (line := response.readline()).startswith(b"data:"):
            assert line
        yield json.loads(line[5:])
    finally:
        connection.close()


def hello_of_job(job: str, stream: str = STREAM) -> bytes:
    """The first message of a stream of a job."""
    return protocol.encode(protocol.Hello(stream, SYNC, msgspec.structs.replace(RUN, job=job)))


async def test_an_ingest_token_of_a_job_sends_that_job_only(tmp_path: Path) -> None:
    """By what it says of itself, by what its frames say, and by what is known of the stream; the exporter is not to come again."""
    files = token_files(tmp_path, ingest=f"{INGEST}\njob=one {INGEST}-1\njob=two {INGEST}-2")
    async with collecting(tmp_path / "c", **files) as running:
        one, two = ({"additional_headers": bearer(f"{INGEST}-{number}")} for number in (1, 2))
        async with connected(running.url, **one) as made:
            await made.send(hello_of_job("two"))
            refusal = await answer(made)
            assert isinstance(refusal, protocol.Refused) and not refusal.retry
            assert refusal.reason == "its token allows streams of the job 'one', and this one is of 'two'"
        async with connected(running.url, **one) as made:
            await made.send(hello_of_job("one"))
            assert isinstance(await answer(made), protocol.Welcome)
            run = msgspec.structs.replace(RUN, job="two")
            frame = b"".join(map(bytes, fmt.encode_frame(SYNC, fmt.FrameType.RUN, 0, [encode_record(run)])))
            await made.send(protocol.encode(protocol.Frames(0, 1, 0, 20), frame))
            refusal = await answer(made)
            assert isinstance(refusal, protocol.Refused) and "this one is of 'two'" in refusal.reason
            assert not running.journal().exists()
        async with connected(running.url, **one) as made:
            await made.send(hello_of_job("one"))
            assert isinstance(await answer(made), protocol.Welcome)
        async with connected(running.url, **two) as made:
            await made.send(hello_of_job("two"))  # the stream of the other job
            refusal = await answer(made)
            assert isinstance(refusal, protocol.Refused) and not refusal.retry
        async with connected(running.url, additional_headers=bearer(INGEST)) as made:
            await made.send(hello_of_job("two", "b" * 32))
            assert isinstance(await answer(made), protocol.Welcome)
            await made.send(protocol.encode(protocol.Frames(0, 1, 0, 20), run_frame(0)))
            assert await answer(made) == protocol.Ack(1), "without a job it may send anything"


@contextlib.asynccontextmanager
async def serving(directory: Path, files: dict[str, Any]) -> AsyncGenerator[Running]:
    """A collector in this process that looks at its files."""
    async with collecting(directory, **files) as running:
        looking = asyncio.create_task(running.collector.tokens.run())
        try:
            yield running
        finally:
            await end_tasks(looking)


async def status(running: Running, token: str) -> int:
    """How a request with a token is answered."""
    return (await asyncio.to_thread(send_request, f"http://127.0.0.1:{running.port}/v1/jobs", bearer(token))).status


async def test_tokens_are_replaced_without_a_pause(tmp_path: Path) -> None:
    """The new one is valid together with the old one, and the old one is not when it is removed; other requests go on."""
    files = token_files(tmp_path, read=READ, ingest=f"{INGEST}\n{INGEST}-2")
    async with serving(tmp_path / "c", files) as running:
        async with (
            connected(running.url, additional_headers=bearer(INGEST)) as removed,
            connected(running.url, additional_headers=bearer(f"{INGEST}-2")) as stays,
        ):
            for made, stream in ((removed, STREAM), (stays, "b" * 32)):
                await made.send(hello_of_job("one", stream))
                assert isinstance(await answer(made), protocol.Welcome)
            replace(files["read_token_file"], f"{READ}\n{READ}-new\n")
            await poll(lambda: running.collector.tokens.find(f"{READ}-new"))
            assert [await status(running, token) for token in (READ, f"{READ}-new")] == [200, 200]
            replace(files["read_token_file"], f"{READ}-new\n")
            replace(files["ingest_token_file"], f"{INGEST}-2")
            began = time.monotonic()
            assert await answer(removed) == protocol.Refused(WITHDRAWN, False)
            assert time.monotonic() - began < 10
            await poll(lambda: running.collector.tokens.find(READ) is None)
            assert [await status(running, token) for token in (READ, f"{READ}-new")] == [401, 200]
            await stays.send(protocol.encode(protocol.Ping(1)))
            assert isinstance(await answer(stays), protocol.Pong)


def test_live_events_end_with_their_token(tmp_path: Path) -> None:
    """Those of others go on; what was sent is no complete answer, and the log says why and is quiet else."""
    files = token_files(tmp_path, read=f"{READ}\n{READ}-2")
    with collecting_apart(tmp_path / "c", *options(files)) as collector:
        parts = urlsplit(collector.url)
        with contextlib.ExitStack() as opened:
            streams: dict[str, http.client.HTTPResponse] = {}
            for token in (READ, f"{READ}-2"):
                connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=40)
                opened.callback(connection.close)
                connection.request("GET", "/v1/events", headers=bearer(token))
                streams[token] = opened.enter_context(connection.getresponse())
                assert streams[token].readline() == b"event: snapshot\n"
            replace(files["read_token_file"], f"{READ}-2")
            with pytest.raises(http.client.IncompleteRead):
                streams[READ].read()
            for _ in range(10):
                assert streams[f"{READ}-2"].readline()
        output = collector.stop()[1]
    assert WITHDRAWN in output and "ASGI" not in output and "Traceback" not in output


async def test_an_exporter_goes_on_with_the_next_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads its file again: what was recorded meanwhile is there in the end."""
    monkeypatch.setattr(tokens, "INTERVAL", 0.1)
    files, own = token_files(tmp_path, ingest=INGEST), tmp_path / "own-token"
    own.write_text(INGEST)
    own.chmod(0o600)
    settings = sc.exporters.LinkSettings(timeout=5.0, first_delay=0.01, longest_delay=0.2)
    async with serving(tmp_path / "c", files) as running:
        exporter = sc.CollectorExporter(running.url, token=own, settings=settings)
        await exporter.open(run_in(tmp_path / "run"))
        await poll(lambda: (found := exporter.statistics()) is not None and found.connected)
        replace(files["ingest_token_file"], f"{INGEST}-next")
        await poll(lambda: (found := exporter.statistics()) is not None and found.refused)
        await exporter.export(batch_of(spans(["work"])))
        replace(own, f"{INGEST}-next")
        await poll(lambda: (found := exporter.statistics()) is not None and found.connected)
        await exporter.aclose()
        assert exporter.unsent_files is None
        assert len(list(journals(running.directory))) == 1


@pytest.mark.parametrize("content", [None, "two words here", f"job=x {ADMIN}"])
async def test_a_file_that_becomes_invalid_changes_nothing(
    content: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tokens that it had stay valid, and the log says so once, without the line."""
    monkeypatch.setattr(tokens, "INTERVAL", 0.1)
    files = token_files(tmp_path, all=ADMIN, read=READ)
    async with serving(tmp_path / "c", files) as running:
        if content is None:
            files["read_token_file"].unlink()
        else:
            replace(files["read_token_file"], content)
        await poll(lambda: "stay as they were" in caplog.text)
        await asyncio.sleep(0.3)
        assert caplog.text.count("stay as they were") == 1
        assert not content or content not in caplog.text
        assert await status(running, READ) == 200
        replace(files["read_token_file"], f"{READ}-2")
        await poll(lambda: running.collector.tokens.find(f"{READ}-2"))
        assert await status(running, READ) == 401


def test_a_file_is_not_read_while_it_is_written(tmp_path: Path) -> None:
    """A file that is written in two parts ends nobody's request after the first; it is read when two looks find it the same."""
    path = token_files(tmp_path, read=f"{READ}\n{READ}-2\n")["read_token_file"]
    file = TokenFile(path, ALL, CollectorSettings(directory=tmp_path))
    before = list(file.tokens)
    for _ in range(3):
        path.write_text(f"{READ}\n")
        assert not file.changed()
        path.write_text(f"{READ}\n{READ}-2\n")
        assert not file.changed() and not file.changed() and file.tokens == before
    path.write_text(f"{READ}\n")
    assert [file.changed() for _ in range(4)] == [False, True, False, False]
    assert file.tokens == before[:1]


async def test_a_token_that_is_moved_to_another_job_ends_its_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if it had been removed: what it was admitted for is not allowed any more."""
    monkeypatch.setattr(tokens, "INTERVAL", 0.1)
    files = token_files(tmp_path, ingest=f"job=one {INGEST}")
    async with (
        serving(tmp_path / "c", files) as running,
        connected(running.url, additional_headers=bearer(INGEST)) as made,
    ):
        await made.send(hello_of_job("one"))
        assert isinstance(await answer(made), protocol.Welcome)
        replace(files["ingest_token_file"], f"job=two {INGEST}")
        assert await answer(made) == protocol.Refused(WITHDRAWN, False)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        (f"{READ}\nnot a token", ("line 2", "job=NAME TOKEN")),
        (f"job= {READ}", ("line 1",)),
        (f"job=a {READ}\njob=b {READ}", ("twice", "'a'", "'b'")),
        (" \n ", ("empty",)),
    ],
)
def test_a_file_that_is_invalid_at_the_start_is_refused(
    content: str, facts: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the line, and without the token."""
    files = token_files(tmp_path, read=content)
    with refused(ValueError, *facts) as caught:
        Tokens(CollectorSettings(directory=tmp_path, **files))
    assert READ not in str(caught.value)
    assert main(["collect", "--dir", str(tmp_path / "c"), *options(files), "--port", "0"]) == 1
    output = capsys.readouterr().err
    assert facts[0] in output and READ not in output


def test_short_tokens_let_no_other_machine_in(tmp_path: Path) -> None:
    """From files as well; on this machine they are accepted."""
    files = token_files(tmp_path, ingest="short", read=READ)
    with refused(ExposureError, "0.0.0.0", "5 characters", "16") as caught:
        Tokens(CollectorSettings(directory=tmp_path, host="0.0.0.0", insecure=True, **files))
    assert "short" not in str(caught.value)
    found = Tokens(CollectorSettings(directory=tmp_path, **files)).find("short")
    assert found is not None and found.scopes == {"ingest"}


def test_a_token_in_two_files_has_both_scopes(tmp_path: Path) -> None:
    """If it is for the same job in both."""
    made = Tokens(CollectorSettings(directory=tmp_path, **token_files(tmp_path, ingest=READ, read=READ)))
    found = made.find(READ)
    assert found is not None and found.scopes == {"ingest", "read"}
    assert made.allows(found, "ingest") and not made.allows(found, "control")


def test_every_token_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many comparisons are made whichever token it is, each of all bytes."""
    compared: list[tuple[int, int]] = []
    compare = secrets.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return compare(one, other)

    files = token_files(tmp_path, read="\n".join(f"token-{number}" for number in range(50)))
    made = Tokens(CollectorSettings(directory=tmp_path, **files))
    monkeypatch.setattr(secrets, "compare_digest", counted)
    for text, there in (("token-0", True), ("token-49", True), ("none", False), ("x" * 5000, False)):
        compared.clear()
        assert (made.find(text) is not None) == there
        assert compared == [(32, 32)] * 50


def test_the_line_for_training_scripts_has_a_file_that_they_can_use(tmp_path: Path) -> None:
    """The collector's own, if it has one token and nothing else."""
    files = token_files(tmp_path, ingest=f"{INGEST}\n", all=f"job=one {ADMIN}")
    assert f"token=Path({str(files['ingest_token_file'])!r})" in _exporter("https://head:1", files["ingest_token_file"])
    assert "token=Path('file with one token')" in _exporter("https://head:1", files["token_file"])
