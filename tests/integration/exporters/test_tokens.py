"""Secrets from files and the environment: too open, empty, too short."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from stepscope.build import trace
from stepscope.cli.main import main
from stepscope.collector.errors import ExposureError
from stepscope.collector.settings import LEAST_TOKEN, CollectorSettings
from stepscope.exporters.network.secrets import read_secret
from stepscope.exporters.stream.address import Address
from stepscope.exporters.stream.exporter import CollectorExporter
from tests.support.collecting import collecting, send_request
from tests.support.commands import stepscope
from tests.support.messages import check_messages, refused

TOKEN = "a-token-of-this-test"


def file(path: Path, text: str, mode: int) -> Path:
    """A file of these permissions."""
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(("mode", "what"), [(0o600, ""), (0o640, "read"), (0o604, "read"), (0o622, "change")])
def test_a_secret_that_others_can_read_is_a_warning(
    mode: int, what: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is accepted all the same, and reported once, until that changes."""
    secret = file(tmp_path / "secret", f" {TOKEN}\n", mode)
    with caplog.at_level(logging.WARNING):
        assert [read_secret(secret), read_secret(secret)] == [TOKEN] * 2
        text = f"permissions {mode:04o} of {secret} are too open: others than its owner can {what} this secret; chmod 600 {secret}"
        assert [record.getMessage() for record in caplog.records] == ([text] if what else [])
        secret.chmod(0o666)
        read_secret(secret)
    assert check_messages(caplog.records, "0666") and TOKEN not in caplog.text


def test_a_file_without_a_secret_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By all that use it: each wants a token to be asked for, or shown."""
    empty = file(tmp_path / "token", " \n\t\n", 0o600)
    with refused(ValueError, "token"):
        Address("ws://localhost:7788", empty).headers()
    for command in (
        ("collect", "--dir", tmp_path / "c"),
        ("deliver", tmp_path, "--url", "ws://localhost:1"),
        ("arm", "--url", "ws://localhost:1", "--steps", "1"),
    ):
        assert main([*map(str, command), "--token-file", str(empty)]) == 1, command
        check_messages(capsys.readouterr().err, empty)
    assert not (tmp_path / "c").exists()


def test_a_file_that_is_not_there_is_reported_at_once(tmp_path: Path) -> None:
    """Not when the run is over and nothing was sent; a file that may not be read, or a directory, is reported as well."""
    url, token = "ws://localhost:7788", tmp_path / "token"
    with refused(FileNotFoundError, token):
        CollectorExporter(url, token=token)
    token.mkdir()
    with refused(IsADirectoryError, token):
        CollectorExporter(url, token=token)
    token.rmdir()
    with refused(ValueError, token):
        CollectorExporter(url, token=file(token, "", 0o600))
    CollectorExporter(url, token=file(token, TOKEN, 0o600))


@pytest.mark.parametrize("text", ["", "\n"])
def test_an_environment_with_nothing_in_it_is_no_token(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where the command failed that should have put it there: who does so wants one."""
    monkeypatch.setenv("STEPSCOPE_TOKEN", text)
    assert main(["collect", "--dir", str(tmp_path / "c")]) == 1
    check_messages(capsys.readouterr().err, "STEPSCOPE_TOKEN")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize("insecure", [False, True])
def test_a_short_token_lets_nobody_else_in(tmp_path: Path, insecure: bool) -> None:
    """It can be guessed over a network; on this machine it is accepted. The message has the remedy, but not the token."""
    short = "abc" * 5
    assert len(short) == LEAST_TOKEN - 1
    reached: dict[str, Any] = {"host": "0.0.0.0", "certificate": tmp_path / "chain.pem"}
    with refused(ExposureError, "0.0.0.0", "15 characters", "16", "token_urlsafe") as caught:
        CollectorSettings(directory=tmp_path, token=short, insecure=insecure, **reached).check_exposure()
    assert short not in str(caught.value)
    CollectorSettings(directory=tmp_path, token=f"{short}d", insecure=insecure, **reached).check_exposure()
    CollectorSettings(directory=tmp_path, token="t").check_exposure()


def test_a_missing_token_of_a_delivery_is_reported_once(tmp_path: Path) -> None:
    """Not by the log as well, which would say that it is tried again. Where nobody is, the log says why."""
    with trace(output_dir=tmp_path / "run"):
        pass
    journal = str(tmp_path / "run" / "journal")
    with collecting(tmp_path / "c", "--token-file", str(file(tmp_path / "token", TOKEN, 0o600))) as collector:
        refused = stepscope("deliver", journal, "--url", collector.url, cwd=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.count("token missing or wrong") == 1 == len(refused.stderr.splitlines()), refused.stderr
    away = stepscope("deliver", journal, "--url", collector.url, "--timeout", "2", cwd=tmp_path)
    assert away.returncode == 1 and away.stderr.count("ConnectionRefusedError") == 1, away.stderr
    check_messages(away.stderr, "2 s")


def test_a_collector_says_that_nobody_is_asked_for_a_token(tmp_path: Path) -> None:
    """Once, at its start, with who can do what; and of a token, that others can read it."""
    with collecting(tmp_path / "one") as collector:
        output = collector.stop()[1]
    assert output.count("no token is set") == 1 and "every user of this machine can read all that is here" in output
    with collecting(tmp_path / "two", "--host", "0.0.0.0", "--insecure") as collector:
        url = collector.url.replace("0.0.0.0", "127.0.0.1")
        assert send_request(f"{url}/v1/jobs", {"Host": "anything.example"}).status == 200
        output = collector.stop()[1]
    assert output.count("any host name is accepted (--allowed-host)") == 1
    assert output.count("no token is set") == 1 and "whoever can reach this machine can read all" in output
    token = file(tmp_path / "token", TOKEN, 0o644)
    with collecting(tmp_path / "three", "--token-file", str(token)) as collector:
        assert send_request(f"{collector.url}/v1/job").status == 401
        output = collector.stop()[1]
    assert "no token" not in output and output.count(f"permissions 0644 of {token} are too open") == 1
