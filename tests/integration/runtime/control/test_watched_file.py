"""A watched file: whatever becomes of it, the last good content holds, and each bad one is reported once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.runtime.control.control_thread import ControlThread
from stepscope.runtime.control.entry_points.control_file import (
    ControlFile,
    decode_control_file,
    default_content,
    file_of,
)
from stepscope.runtime.control.entry_points.watched_file import LIMIT, RETRY_S, WatchedFile
from stepscope.runtime.errors import ControlError
from stepscope.runtime.steps.window_follower import WindowFollower
from tests.support.basics import ROOT
from tests.support.launch import run_to_end
from tests.support.messages import check_messages

GOOD = b'{"start_step": "next", "steps": 2}'


def wait(condition: Callable[[], object]) -> None:
    """Looks until something holds."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write(path: Path, content: bytes) -> None:
    """As editors do: a new file in place of the old."""
    draft = path.with_name("draft")
    draft.write_bytes(content)
    draft.replace(path)


@contextlib.contextmanager
def watched(path: Path, **more: Any) -> Generator[tuple[WatchedFile[ControlFile], list[ControlFile]]]:
    """A file that is watched, and the values that were reported."""
    seen: list[ControlFile] = []
    file = WatchedFile(path, decode_control_file, on_change=seen.append, **more)
    with watching(file):
        yield file, seen


@contextlib.contextmanager
def watching(file: WatchedFile[Any], pause: float = 0.01) -> Generator[ControlThread]:
    """The control thread reads the file every few milliseconds."""
    task = ControlThread(WindowFollower("file", rank=0).arming, None, file, pause=pause)
    file.create()
    file.look()
    task.start()
    try:
        yield task
    finally:
        task.close()


def test_calls_wait_for_the_end_of_a_start() -> None:
    """Such as a command that comes before: else the file would be read on two threads at once, and a request be handled twice."""
    order: list[str] = []

    def before() -> None:
        time.sleep(0.1)
        order.append("before")

    thread = ControlThread(WindowFollower("file", rank=0).arming, None, None, pause=0.01)
    thread.call_soon(partial(order.append, "call"))
    thread.start(before)
    wait(lambda: len(order) == 2)
    thread.close()
    assert order == ["before", "call"]


def status(file: WatchedFile[Any]) -> dict[str, Any]:
    """The content of the status file."""
    found: dict[str, Any] = json.loads(file.status.path.read_text())
    return found


@pytest.mark.checklist("A15", "A18", "B18")
def test_the_default_file_is_created_once_and_whole(tmp_path: Path) -> None:
    """One rank creates it, in a directory that need not be there; nobody replaces a file that is."""
    path = tmp_path / "new" / "stepscope.json"
    with watched(path, default=default_content()) as (file, seen):
        assert json.loads(path.read_text()) == json.loads(default_content())
        assert file.current == ControlFile() == seen[0]
        assert sorted(path.parent.iterdir()) == [path, file.status.path]
    path.write_bytes(GOOD)
    with watched(path, default=default_content()):
        assert path.read_bytes() == GOOD
    with watched(tmp_path / "not here.json") as (file, _):
        assert file.current is None and not file.path.exists()


@pytest.mark.checklist("A24", "A25", "F1")
@pytest.mark.parametrize(
    ("content", "line", "column", "reason"),
    [
        (b"", 1, 1, "it is empty"),
        (b'{"start_step": "next",\n "steps": 2', 2, 12, "truncated"),
        (b"[1, 2]", 1, 1, "must be a mapping, got list: [1, 2]"),
        (b"\xff\xfe{", 1, 1, "malformed"),
        (b'{\n  "start_stop": 3\n}', 2, 3, "unknown field 'start_stop'; did you mean 'start_step'?"),
        (b'{"start_step": 2,\n "steps": true}', 2, 2, "steps must be a whole number or None, got bool: True"),
        (b'{"start_step": 5,\n\n "stop_step": 4}', 3, 2, "stop_step is 4, before start_step 5"),
        (b'{"ranks": "3-1", "start_step": 1, "steps": 1}', 1, 2, "the range '3-1' runs backwards; write 1-3"),
        (b'{"command": "extend"}', 1, 2, "takes steps or seconds"),
        (b"[" * 100_000, 1, 1, ""),
    ],
)
def test_bad_content(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes, line: int, column: int, reason: str
) -> None:
    """The log and the status file name the fault and its place once; then a good file is followed."""
    path = tmp_path / "stepscope.json"
    path.write_bytes(GOOD)
    with watched(path) as (file, seen), caplog.at_level(logging.INFO, "stepscope"):
        good = file.current
        write(path, content)
        wait(lambda: status(file)["state"] == "bad")
        time.sleep(0.05)
        assert file.current is good
        shown = status(file)
        assert reason in shown["reason"]
        if "it is empty" not in shown["reason"]:
            assert shown["reason"].startswith(f"line {shown['line']}, column {shown['column']}: ")
        if reason not in ("", "malformed", "truncated"):
            assert (shown["line"], shown["column"]) == (line, column)
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert len(errors) == 1 and str(path) in errors[0].getMessage()
        write(path, b'{"start_step": 7, "steps": 2}')
        wait(lambda: file.current is not good)
        wait(lambda: status(file)["state"] == "ok")
        assert "reason" not in status(file)
    assert [value.start_step for value in seen] == ["next", 7]


@pytest.mark.checklist("F1")
def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    """Too large, a directory, a pipe, a socket, a link to nowhere or to itself, unreadable, removed: it goes on."""
    path = tmp_path / "stepscope.json"
    path.write_bytes(GOOD)
    with watched(path) as (file, seen):
        good = file.current

        def recovers() -> None:
            with contextlib.suppress(OSError):
                path.unlink()
            write(path, GOOD)
            wait(lambda: status(file)["state"] == "ok")

        def expect(problem: str) -> None:
            wait(lambda: problem in status(file).get("reason", ""))
            assert file.current is good

        write(path, b" " * (LIMIT + 1))
        expect("it is too large: 1,048,577 bytes, the limit is 1,048,576")
        with path.open("r+b") as stream:
            stream.truncate(1 << 40)
        expect("it is too large: 1,099,511,627,776 bytes")
        recovers()
        path.unlink()
        expect("there is no such file")
        path.mkdir()
        expect("it is a directory")
        path.rmdir()
        os.mkfifo(path)
        expect("it is no regular file")
        path.unlink()
        path.symlink_to(tmp_path / "nowhere")
        expect("a link to a file that does not exist")
        path.unlink()
        path.symlink_to(path)
        expect("it cannot be read")
        recovers()
        path.unlink()
        path.symlink_to("/proc/self/mem")  # a regular file that fails whoever reads it
        expect("it cannot be read: Input/output error")
        recovers()
        path.unlink()
        (tmp_path / "elsewhere.json").write_bytes(b'{"start_step": 3, "steps": 1}')
        path.symlink_to(tmp_path / "elsewhere.json")
        wait(lambda: file.current is not good)
    assert len(seen) == 2


@pytest.mark.checklist("A24", "F6")
def test_the_content_decides(tmp_path: Path) -> None:
    """The same content again is nothing new, whatever its time; another one of the same size and time is."""
    path = tmp_path / "stepscope.json"
    path.write_bytes(b'{"run_id": "a"}')
    with watched(path) as (file, seen):
        about = path.stat()
        for _ in range(3):
            write(path, b'{"run_id": "a"}')
            os.utime(path)
            time.sleep(0.03)
        assert len(seen) == 1
        with path.open("r+b") as stream:
            stream.write(b'{"run_id": "b"}')
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))
        wait(lambda: file.current is not None and file.current.run_id == "b")
    assert [value.run_id for value in seen] == ["a", "b"]


@pytest.mark.checklist("F1")
def test_commands_while_a_file_is_half_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them has the file read. It is reported only if it stays as it is, and is well with the first look after."""
    path = tmp_path / "x.json"
    path.write_bytes(GOOD)
    file, looks = WatchedFile(path, decode_control_file), threading.Semaphore(0)
    with watching(file, pause=3600) as task:

        def command() -> None:
            for _ in range(2):  # the second call comes after the look that follows the first
                task.call_soon(looks.release)
                assert looks.acquire(timeout=30)

        command()
        for number in range(50):
            path.write_bytes(b"{" * (number + 1))
            for _ in range(3):
                command()
        path.write_bytes(GOOD)
        command()
        assert status(file)["state"] == "ok" and not caplog.records
        began = time.monotonic()
        path.write_bytes(b"{")
        command()
        wait(lambda: status(file)["state"] == "bad")
        assert time.monotonic() - began >= RETRY_S
        assert (
            len(
                check_messages(
                    caplog.records, "x.json cannot be followed", "the last valid content holds", snapshot=False
                )
            )
            == 1
        )
        path.write_bytes(GOOD)
        command()
        assert status(file)["state"] == "ok"


@pytest.mark.checklist("A15", "A17")
def test_paths_of_files_and_directories(tmp_path: Path) -> None:
    """A directory, or a new path without `.json`, gets the file in it."""
    assert file_of(tmp_path) == tmp_path / "stepscope.json"
    assert file_of(tmp_path / "c.json") == tmp_path / "c.json"
    assert file_of(tmp_path / "new") == tmp_path / "new" / "stepscope.json"


def test_a_callback_of_a_change_may_fail(tmp_path: Path) -> None:
    """The error is reported, and watching goes on."""
    path = tmp_path / "x"
    path.write_bytes(b"1")

    def fail(content: bytes) -> None:
        raise RuntimeError(f"cannot follow {content.decode()}")

    file = WatchedFile(path, bytes, on_change=fail)
    with watching(file):
        write(path, b"2")
        wait(lambda: status(file).get("error") == "RuntimeError: cannot follow 2")
        write(path, b"3")
        wait(lambda: status(file).get("error") == "RuntimeError: cannot follow 3")


@pytest.mark.checklist("A24")
def test_a_status_file_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is reported once, and nothing else comes of it."""
    path = tmp_path / "x"
    path.write_bytes(b"1")
    path.with_name("x.status.json").mkdir()
    file = WatchedFile(path, bytes)
    with watching(file):
        write(path, b"2")
        wait(lambda: file.current == b"2")
    assert len(check_messages(caplog.records, ".status.json")) == 1


@pytest.mark.checklist("A20", "A26", "F9")
@pytest.mark.parametrize("end", ["", "import os; os.kill(os.getpid(), 9)"], ids=["closes nothing", "killed"])
def test_a_program_that_does_not_close_its_file_ends_all_the_same(tmp_path: Path, end: str) -> None:
    """In whatever way: neither a process nor another file than the status is left."""
    program = f"""
from pathlib import Path
from stepscope.runtime.control.entry_points.watched_file import WatchedFile
from tests.integration.runtime.control.test_watched_file import watching
watched = watching(WatchedFile(Path({str(tmp_path / "x.json")!r}), bytes, default=b"1"))
watched.__enter__()
{end}
"""
    ended = run_to_end([sys.executable, "-c", program], cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (-9 if end else 0, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "x.json.status.json"]


def test_in_a_forked_child_nothing_is_watched(tmp_path: Path) -> None:
    """It has the value, may end the watch, and may watch a file of its own."""
    path = tmp_path / "x"
    path.write_bytes(b"1")
    file = WatchedFile(path, bytes)
    with contextlib.ExitStack() as watches:
        watches.enter_context(watching(file))
        child = os.fork()
        if not child:
            code = 1
            try:
                watches.close()
                own = WatchedFile(path, bytes)
                with watching(own):
                    path.write_bytes(b"2")
                    wait(lambda: own.current == b"2")
                code = int(file.current != b"1")
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        wait(lambda: file.current == b"2")


def _encoded(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields).encode()


_values: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.just("next"),
    st.lists(st.integers(), max_size=3),
)
_fields = st.dictionaries(st.sampled_from([*ControlFile.__struct_fields__, "strat_step"]), _values, max_size=4)


@given(st.one_of(st.binary(max_size=200), st.text(max_size=100).map(str.encode), st.builds(_encoded, _fields)))
def test_any_content_is_understood_or_refused(content: bytes) -> None:
    """Nothing else is raised than the error that has the place and the reason."""
    try:
        decode_control_file(content)
    except ControlError as error:
        assert error.line >= 1 and error.column >= 1
        assert str(error)
