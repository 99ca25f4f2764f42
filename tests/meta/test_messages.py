"""The snapshot of messages: what has changed fails, and an update takes over no message that lacks a fact."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.messages import SNAPSHOT, check_messages, constant, key_of, left_over, refused

TWO = """
import pytest
from tests.support.messages import check_messages, refused

@pytest.mark.parametrize("value", [1, 2])
def test_first(value, tmp_path):
    with refused(ValueError, "size", value) as caught:
        raise ValueError(f"size is {value}, below {tmp_path}")
    assert caught.value.args

def test_second():
    check_messages("one\\nrun: stepscope recover\\n", "stepscope recover")
"""


class Suite:
    """A file of tests with a snapshot of its own."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "pytest.ini").write_text("[pytest]\n")
        self.write(TWO)

    def write(self, text: str) -> None:
        (self.place / "test_some.py").write_text(text)

    def run(self, *options: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest", "-p", "tests.support.messages", "-p", "no:cacheprovider"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command += ["--messages", "messages.json", "test_some.py", *options]
        return run_to_end(command, cwd=self.place, environment=environment)

    def messages(self) -> dict[str, list[str]]:
        read: dict[str, list[str]] = json.loads((self.place / "messages.json").read_text())
        return read


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    """With messages of others that are reused."""
    made = Suite(tmp_path)
    done = made.run("--update-messages")
    assert done.returncode == 0 and "messages new: test_some::test_second" in done.stdout, done.stdout + done.stderr
    return made


def test_a_changed_message_fails_until_it_is_taken_over(suite: Suite) -> None:
    """The text is compared whole; what a path is in this run does not count."""
    messages = suite.messages()
    assert messages["test_some::test_first[2]"] == ["size is 2, below <tmp>"]
    assert suite.run().returncode == 0
    suite.write(TWO.replace("below", "under"))
    failed = suite.run()
    assert failed.returncode == 1 and "2 failed, 1 passed" in failed.stdout
    assert "`make messages`" in failed.stdout and "- size is 2, below <tmp>" in failed.stdout
    updated = suite.run("--update-messages", "-p", "xdist", "-n2")
    assert updated.returncode == 0 and "messages changed: test_some::test_first[2]" in updated.stdout, updated.stdout
    assert suite.messages() == {
        key: [text.replace("below", "under") for text in texts] for key, texts in messages.items()
    }
    assert suite.run().returncode == 0


@pytest.mark.parametrize("lacking", [TWO.replace("size is", "it is"), TWO.replace("run: stepscope recover", "run it")])
def test_a_message_without_a_fact_is_not_taken_over(suite: Suite, lacking: str) -> None:
    """A test that failed leaves its messages as they are."""
    messages = suite.messages()
    suite.write(lacking)
    failed = suite.run("--update-messages")
    assert failed.returncode == 1 and ("has no 'size'" in failed.stdout or "no message has 'stepscope" in failed.stdout)
    assert suite.messages() == messages


def test_obsolete_texts_are_removed_and_reported(suite: Suite) -> None:
    """A test that is gone, one case of a test, and a message of a test that is still there."""
    suite.write(TWO.replace("[1, 2]", "[1]").replace("    check_messages(", "    print("))
    failed = suite.run()
    assert failed.returncode == 1 and "not there any more; `make messages` removes them" in failed.stdout
    part = suite.run("--update-messages", "-k", "first")
    assert part.returncode == 0 and "messages" not in part.stdout
    updated = suite.run("--update-messages")
    assert "messages removed: test_some::test_first[2]" in updated.stdout
    assert "messages removed: test_some::test_second" in updated.stdout
    assert suite.messages().keys() == {"test_some::test_first[1]"}
    suite.write("def test_third(): ...")
    assert "messages removed: test_some::test_first[1]" in suite.run("--update-messages").stdout
    assert suite.messages() == {}


def test_a_test_without_a_message_in_the_snapshot_fails(suite: Suite) -> None:
    """The message has the command."""
    (suite.place / "messages.json").unlink()
    failed = suite.run()
    assert failed.returncode == 1 and failed.stdout.count("a new message; `make messages` takes it over") >= 3


def test_errors_that_are_not_raised_fail() -> None:
    """As `pytest.raises` has it."""
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"), refused(ValueError, "x", snapshot=False):
        pass
    with pytest.raises(KeyError), refused(ValueError, "x", snapshot=False):
        raise KeyError("x")


def test_records_of_other_loggers_are_not_ours() -> None:
    """All records of ours that have the facts are returned."""
    records = [
        logging.LogRecord(name, logging.WARNING, "", 1, "%s of %s", (name, "x"), None)
        for name in ("stepscope", "asyncio", "stepscope.collector")
    ]
    assert check_messages(records, "x", snapshot=False) == ["stepscope of x", "stepscope.collector of x"]
    with pytest.raises(AssertionError, match="no message has 'asyncio'"):
        check_messages(records, "asyncio", snapshot=False)


def test_varying_parts_of_messages() -> None:
    """Loops share messages; a port that is named otherwise than with its address is a value."""
    assert key_of("tests/unit/test_a.py::test_b[asyncio-c]") == key_of("tests/unit/test_a.py::test_b[uvloop-c]")
    assert key_of("tests/unit/test_a.py::test_b[uvloop]") == "test_a::test_b"
    assert constant(f"{ROOT}/x: process {os.getpid()} at 127.0.0.1:1234, port 7") == (
        "<root>/x: process <pid> at 127.0.0.1:<port>, port 7"
    )


def test_no_message_is_of_a_test_that_is_missing() -> None:
    """`make messages` removes them."""
    assert left_over(json.loads(SNAPSHOT.read_text(encoding="utf-8")), SNAPSHOT.parent) == set()
