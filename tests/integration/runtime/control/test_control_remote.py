"""Windows that another process asks for, over the socket."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path

import pytest

import stepscope
from stepscope import Control
from stepscope.cli.main import main
from stepscope.control import WindowRequest
from stepscope.errors import ControlError
from stepscope.runtime.control.entry_points.client import ask_process, ask_socket
from stepscope.runtime.control.entry_points.local_socket import peer_user
from stepscope.runtime.requests.command import Command
from stepscope.runtime.session.directory import session_of
from stepscope.runtime.session.system import parent_of
from tests.support.background_loop import QUICK, looping, wait
from tests.support.basics import ROOT
from tests.support.launch import launched, run_to_end
from tests.support.messages import check_messages, refused

# over the socket


def test_commands_over_the_socket(output_dir: Path) -> None:
    """Each is answered with what becomes of it."""
    with looping(output_dir, Control(socket=True), name="one") as (profiler, windows):
        me = os.getpid()
        (answer,) = ask_process(me, Command(command="arm", request=WindowRequest(steps=3, run_id="a")), 30)
        assert answer.armed is not None and answer.armed.accepted and answer.profiler == "one" and answer.pid == me
        wait(lambda: windows)
        assert windows[0].metadata["armed"]["trigger"] == "socket"
        assert [step.number for step in windows[0].steps] == list(range(answer.armed.first or 0, answer.armed.last + 1))  # type: ignore[operator]
        (answer,) = ask_process(me, Command(command="arm", request=WindowRequest(start_step=1, steps=3)), 30)
        assert answer.armed is not None and "is in the past" in answer.armed.reason
        ask_process(me, Command(command="arm", request=WindowRequest(steps=1_000_000, run_id="b")), 30)
        wait(lambda: profiler.current_action.records)
        (answer,) = ask_process(me, Command(command="extend", steps=3), 30)
        assert answer.armed is not None and answer.armed.accepted
        (answer,) = ask_process(me, Command(command="abort", run_id="b"), 30)
        assert [status.run_id for status in answer.windows] == ["b"]
        wait(lambda: len(windows) == 2)
        (answer,) = ask_process(me, Command(command="status"), 30)
        assert [status.state for status in answer.windows] == ["recorded", "aborted"]
        (answer,) = ask_process(me, Command(command="arm"), 30)
        assert answer.error == "arm lacks a request"
        (answer,) = ask_process(me, Command(command="status", version=9), 30)
        assert "version 9 of commands is not known here" in answer.error


def test_two_profilers_answer_over_one_socket(output_dir: Path) -> None:
    """And none does once they are closed; the socket is gone then."""
    with looping(output_dir / "a", Control(socket=True), name="a"):
        with looping(output_dir / "b", Control(socket=True), name="b"):
            assert sorted(answer.profiler for answer in ask_process(os.getpid(), Command(command="status"), 30)) == [
                "a",
                "b",
            ]
        assert [answer.profiler for answer in ask_process(os.getpid(), Command(command="status"), 30)] == ["a"]
        session = session_of(os.getpid())
        assert session is not None and (session / "socket").stat().st_mode & 0o777 == 0o600
        assert session.stat().st_mode & 0o777 == 0o700
    with (
        looping(output_dir / "c", Control(path=str(output_dir))),
        refused(ControlError, os.getpid(), "trace(control=Control(socket=True))", "STEPSCOPE_OPTIONS"),
    ):
        ask_process(os.getpid(), Command(command="status"), 30)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]\n",
        b'{"command": "arm", "request": {"steps": 0}}\n',
        b'{"command": "kill"}\n',
        b"x" * 200_000,
    ],
)
def test_nonsense_over_the_socket(output_dir: Path, content: bytes) -> None:
    """It is answered with what is wrong, or not at all; the next command is obeyed."""
    with looping(output_dir, Control(socket=True)):
        session = session_of(os.getpid())
        assert session is not None
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(30)
            sock.connect(str(session / "socket"))
            assert peer_user(sock) == os.geteuid()
            with contextlib.suppress(ConnectionError):
                sock.sendall(content)
                sock.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                reply = b"".join(iter(lambda: sock.recv(1 << 16), b""))
                assert not reply or b"error" in reply
        assert len(ask_process(os.getpid(), Command(command="status"), 30)) == 1


def test_a_process_that_does_not_listen_is_named(tmp_path: Path) -> None:
    """The message says what is missing."""
    with refused(ControlError, "process 1"):
        ask_process(1, Command(command="status"), 1)
    for nobody in (0, (1 << 22) + 1, 1 << 70):  # Linux has no numbers above 1 << 22
        with refused(ControlError, nobody):
            ask_process(nobody, Command(command="status"), 1)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(tmp_path / "s"))
        sock.listen()
        with refused(ControlError, "0.1 s"):
            ask_socket(tmp_path / "s", Command(command="status"), 0.1, "it")
    with refused(ControlError, "trace(control=Control(socket=True))", "STEPSCOPE_OPTIONS"):
        ask_socket(tmp_path / "s", Command(command="status"), 1, "it")


PROGRAM = """
import sys, time
import stepscope
windows = []
control = stepscope.Control(socket=True)
with stepscope.trace(control=control, output_dir=sys.argv[1], on_trace_ready=windows.append, name="prog") as profiler:
    print("ready", flush=True)
    end = time.monotonic() + 90
    while not windows and time.monotonic() < end:
        with stepscope.span("work"):
            time.sleep(0.001)
        profiler.step()
print([len(window.steps) for window in windows])
"""


def test_the_command_line_and_a_process(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`stepscope arm --pid`: what it prints, and its exit codes."""
    with launched([sys.executable, "-c", PROGRAM, str(tmp_path)], cwd=ROOT, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        pid = str(process.pid)
        assert main(["arm", "--pid", pid, "--start", "0", "--steps", "2"]) == 1
        assert "refused: start_step 0 is in the past" in capsys.readouterr().out
        assert main(["arm", "--pid", pid, "--status"]) == 0
        assert f"prog (pid {pid}, step " in capsys.readouterr().out
        assert main(["arm", "--pid", pid, "--steps", "2", "--run-id", "x", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)[0]["armed"]["run_id"] == "x"
        assert process.communicate(timeout=60)[0] == "[2]\n"
    assert main(["arm", "--pid", pid, "--steps", "2"]) == 1
    check_messages(capsys.readouterr().err, f"process {pid}")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("--steps 2", "one of the arguments --pid --url --list is required"),
        ("--pid 1", "--steps N, --stop N or --seconds S"),
        ("--pid 1 --steps 0", "steps"),
        ("--pid 1 --steps 2 --seconds 1", "steps=2"),
        ("--pid 1 --start x --steps 2", "--start: 'x'"),
        ("--pid 1 --ranks 3-1 --steps 2", "3-1"),
        ("--pid 1 --extend", "--extend"),
        ("--pid 1 --url http://x --steps 1", "not allowed with argument --pid"),
        ("--pid 1 --abort --extend --steps 1", "not allowed with argument --abort"),
        ("--url http://x --status --start 5", "--start goes with a window\n"),
        ("--url http://x --abort --steps 5", "--steps goes with a window or --extend\n"),
        ("--url http://x --status --run-id a", "--run-id goes with a window or --abort\n"),
        ("--url http://x --extend --steps 5 --queue", "--queue"),
        ("--pid 1 --steps 5 --token-file x", "--token-file goes with --url\n"),
        ("--pid 1 --abort --ranks 3", "--ranks goes with a window, or with --url\n"),
        ("--list --status", "--status goes with --pid or --url\n"),
        ("--list --job a", "--job"),
    ],
)
def test_wrong_usage(arguments: str, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error comes before any request; options that would be ignored are named, with those that they go with."""
    with pytest.raises(SystemExit) as ended:
        main(["arm", *arguments.split()])
    assert ended.value.code == 2
    error = capsys.readouterr().err.partition("error: ")[2]
    assert text in error, error


def test_processes_that_can_be_asked_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And is named where another process was asked: of a launcher its children."""
    launcher = "import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', *sys.argv[1:]]).returncode)"
    command = [sys.executable, "-c", launcher, PROGRAM, str(tmp_path)]
    with launched(command, cwd=ROOT, stdout=-1, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        assert main(["arm", "--list", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        (pid,) = [each["pid"] for each in found if parent_of(each["pid"]) == process.pid]
        assert main(["arm", "--list"]) == 0
        assert f"pid {pid}: prog, step " in capsys.readouterr().out
        assert main(["arm", "--pid", str(process.pid), "--steps", "2"]) == 1
        check_messages(capsys.readouterr().err, f": {pid}", snapshot=False)  # others may be named, too
        with stepscope.trace(output_dir=tmp_path, options=QUICK):
            assert main(["arm", "--pid", str(os.getpid()), "--steps", "2"]) == 1
            assert "needs trace(control=Control(socket=True)) or STEPSCOPE_OPTIONS; " in (
                output := capsys.readouterr().err
            )
            assert str(pid) in output
        assert main(["arm", "--pid", str(pid), "--steps", "2"]) == 0
        assert process.communicate(timeout=60)[0] == "[2]\n"


UNBOUND = """
import sys
import stepscope
options = stepscope.Options(journal=False, session_dir=sys.argv[1])
with stepscope.trace(control=stepscope.Control(socket=True), output_dir=sys.argv[1], options=options) as profiler:
    profiler.step()
print(*profiler.diagnostics(), sep="\\n")
"""


def test_a_socket_that_cannot_be_bound_is_in_the_diagnostics(tmp_path: Path) -> None:
    """Its path is too long; the loop goes on."""
    place = tmp_path / ("long" * 30)
    place.mkdir()
    ended = run_to_end([sys.executable, "-c", UNBOUND, str(place)], timeout=60, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert f"control: no commands are taken at {place}" in ended.stdout
