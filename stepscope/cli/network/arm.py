"""`stepscope arm`: asks running processes to record a window."""

from __future__ import annotations

import argparse
import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from stepscope.cli.common.messages import add_json, print_json
from stepscope.cli.common.values import option_text, seconds
from stepscope.cli.network.connection_options import add_tls, tls_context
from stepscope.exporters.network.http_failures import redirected, wants_plain, wants_tls
from stepscope.exporters.stream.address import Address
from stepscope.runtime.control.entry_points.client import ask_process, controllable_processes
from stepscope.runtime.display.text_table import human_count
from stepscope.runtime.errors import ControlError
from stepscope.runtime.requests.armed import ArmedStatus
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.requests.window_detail import detail_from
from stepscope.runtime.requests.window_request import WindowRequest
from stepscope.runtime.session.ranks import ranks_from

WINDOWS_PATH = "/v1/windows"
MOST_ANSWER_BYTES = 64 << 20
"""Largest size of an answer."""


class OrderedRank(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of one process, as far as it is shown."""

    id: str
    rank: int | None
    host: str
    pid: int
    step: int | None
    obeys: bool
    text: str
    stage: str = ""
    windows: tuple[ArmedStatus, ...] = ()


class OrderResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result, as far as it is shown."""

    outcome: str
    reason: str = ""
    first: int | None = None
    last: int | None = None
    ranks: list[OrderedRank]


def send_order(arguments: argparse.Namespace, order: dict[str, Any]) -> OrderResult:
    """Sends it; returns what became of it.

    Raises:
        ControlError: if the collector cannot be reached, refuses, or answers what cannot be read.
    """
    try:
        address = Address(arguments.url, arguments.token_file, insecure=arguments.insecure)
        headers = address.headers()
    except (ValueError, OSError) as error:
        raise ControlError(str(error)) from error
    parts = urlsplit(address.url)
    base = parts.path.removesuffix("/v1/stream").rstrip("/")
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    url = urlunsplit((scheme, parts.netloc, base + WINDOWS_PATH, "", ""))
    body = json.dumps({name: value for name, value in order.items() if value is not None}).encode()
    request = urllib.request.Request(
        url, body, {**headers, "Content-Type": "application/json", "User-Agent": "stepscope"}, method="POST"
    )
    handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
    if scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=tls_context(arguments)))
    if address.is_local:
        handlers.append(urllib.request.ProxyHandler({}))
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=12 * arguments.timeout) as response:
            content: bytes = response.read(MOST_ANSWER_BYTES)
        return msgspec.json.decode(content, type=OrderResult)
    except urllib.error.HTTPError as error:
        with error:
            if 300 <= error.code < 400:
                redirect = redirected(error.headers.get("Location", ""))
                raise ControlError(f"{arguments.url} answered {error.code}, {redirect}") from error
            raise ControlError(f"the collector at {arguments.url} refuses: {_refusal(error)}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        if scheme == "https":
            reason = wants_plain(reason, "ws") or reason
        elif isinstance(error, http.client.BadStatusLine):  # or none at all
            reason = wants_tls("wss")
        raise ControlError(f"the collector at {arguments.url} cannot be reached: {reason}") from error
    except msgspec.MsgspecError as error:
        raise ControlError(f"the answer of {arguments.url} cannot be read: {error}") from error


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects, so that the token is sent to the named host only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def _refusal(error: urllib.error.HTTPError) -> str:
    try:
        found = json.loads(error.read(MOST_ANSWER_BYTES))
        return f"{error.code}, {found['detail'] or found['title']}"
    except (ValueError, KeyError, TypeError):
        return f"{error.code} {error.reason}"


HELP = "ask running processes to record a window"
USAGE = "stepscope arm (--pid PID | --url URL | --list) [options]"
DESCRIPTION = """\
Asks running processes to record a window, that is, some steps in one piece, and shows the answer of each: one process of
this machine (--pid), or all ranks of a job through their collector (--url). A process can be asked if it was started by
`stepscope run --control`, for --url also with --collector URL, or if it has trace(control=Control(socket=True)), for --url
collector=True.

Through the collector all ranks record the same steps, or none does. If the window is extended or aborted, it ends with the
same step on all. With --pid this holds if the ranks watch one control file.
"""

EPILOG = """\
examples:
  stepscope arm --list
  stepscope arm --pid 4711 --steps 30
  stepscope arm --url https://collector.example:7788 --token-file token --ranks 0,3-5 --steps 30
  stepscope arm --url http://127.0.0.1:7788 --start 2000 --stop 2009 --run-id again
  stepscope arm --pid 4711 --seconds 5
  stepscope arm --pid 4711 --steps 3 --detail stacks,shapes
  stepscope arm --pid 4711 --extend --steps 20
  stepscope arm --pid 4711 --abort
  stepscope arm --pid 4711 --status

exit codes: 0 every process does as asked, 1 some or all do not, 2 wrong usage
"""


_GOES_WITH = (
    (("start", "stop", "warmup", "granularity", "clip", "queue", "stage", "detail"), ("arm",), "a window"),
    (("steps", "seconds"), ("arm", "extend"), "a window or --extend"),
    (("run_id",), ("arm", "abort"), "a window or --abort"),
    (("extend", "abort", "status"), ("extend", "abort", "status"), "--pid or --url"),
)
"""Options with the commands that they are for, and the words for that."""
_WITHOUT_COLLECTOR = (
    (("token_file", "ca", "certificate", "key", "insecure", "name", "job"), (), "--url"),
    (("ranks",), ("arm",), "a window, or with --url"),
)
"""The same for a request without a collector."""
_NAMES = {"start_step": "--start", "stop_step": "--stop"}
"""Names of fields whose option has another name."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declares the options."""
    where = parser.add_argument_group("whom").add_mutually_exclusive_group(required=True)
    where.add_argument("--pid", type=int, metavar="PID", help="a process of this user on this machine")
    where.add_argument("--url", help="the collector, such as https://host:7788")
    where.add_argument("--list", action="store_true", help="show which processes of this machine and user can be asked")
    parser.add_argument("--ranks", metavar="0,3-5", help="ranks that record (default: all)")
    what = parser.add_argument_group("what")
    what.add_argument(
        "--start", metavar="next|N", type=_start, default="next", help="number of the first step (default: next)"
    )
    what.add_argument("--steps", type=int, metavar="N", help="how many steps")
    what.add_argument("--stop", type=int, metavar="N", help="or the number of the last step")
    what.add_argument("--seconds", type=seconds, metavar="S", help="or how long")
    what.add_argument("--run-id", default="", metavar="ID", help="becomes part of the window's name")
    what.add_argument("--warmup", type=int, default=0, metavar="N", help="steps before these in which backends warm up")
    what.add_argument("--granularity", type=int, default=1, metavar="N", help="round to groups of N steps")
    what.add_argument("--clip", action="store_true", help="if the first step has passed, record the rest")
    what.add_argument("--queue", action="store_true", help="if another window runs, wait for its end")
    what.add_argument("--stage", default="", metavar="NAME", help="only in this stage, such as fit")
    what.add_argument(
        "--detail", metavar="TEXT", help="what to record, such as stacks,shapes,memory=off,operators=off,every=10"
    )
    other = parser.add_argument_group("instead of a window").add_mutually_exclusive_group()
    other.add_argument("--extend", action="store_true", help="add --steps or --seconds to the running window")
    other.add_argument("--abort", action="store_true", help="end the running window, and drop those that wait")
    other.add_argument("--status", action="store_true", help="show pending and finished requests")
    remote = parser.add_argument_group("collector")
    remote.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file with its token (default: $STEPSCOPE_TOKEN)"
    )
    add_tls(remote)
    remote.add_argument("--insecure", action="store_true", help="allow another machine without TLS")
    remote.add_argument("--name", default="", help="name of the runs, if several jobs are connected")
    remote.add_argument("--job", default="", help="the job, if several are connected")
    parser.add_argument(
        "--timeout", type=seconds, default=30.0, metavar="S", help="seconds to wait for answers (default: 30)"
    )
    add_json(parser, "the answers")


def run(arguments: argparse.Namespace) -> int:
    """Runs the command.

    Raises:
        StepscopeError: if nobody can be asked.
    """
    parser: argparse.ArgumentParser = arguments.parser
    try:
        ranks = ranks_from(arguments.ranks)
        command: Any = next((name for name in ("list", "extend", "abort", "status") if getattr(arguments, name)), "arm")
        request = None
        _refuse_ignored(arguments, command)
        if command == "arm":
            if arguments.steps is arguments.stop is arguments.seconds is None:
                raise ValueError("say how long the window is to be: --steps N, --stop N or --seconds S")
            request = WindowRequest(**_window(arguments), ranks=ranks, detail=detail_from(arguments.detail))
        elif command == "list":
            return _list(arguments)
        elif command == "extend" and (arguments.steps is None) == (arguments.seconds is None):
            raise ValueError("--extend takes --steps or --seconds: how much longer the window is to be")
    except ValueError as error:
        parser.error(option_text(error, "WindowRequest", _NAMES))
    if arguments.pid is not None:
        return _ask_process(arguments, command, request)
    return _ask_collector(arguments, command)


def _window(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of a window that have the same names for a process and for a collector."""
    return {
        "start_step": arguments.start,
        "steps": arguments.steps,
        "stop_step": arguments.stop,
        "seconds": arguments.seconds,
        "run_id": arguments.run_id,
        "warmup": arguments.warmup,
        "granularity": arguments.granularity,
        "past": "clip" if arguments.clip else "refuse",
        "overlap": "queue" if arguments.queue else "refuse",
        "stage": arguments.stage,
    }


def _start(text: str) -> Any:
    if text == "next" or text.isdecimal():
        return text if text == "next" else int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is no step: write next, or a number from 0")


def _refuse_ignored(arguments: argparse.Namespace, command: str) -> None:
    """Refuses options that would mean nothing.

    Raises:
        ValueError: naming one, and what it goes with.
    """
    for names, commands, partner in (*_GOES_WITH, *(_WITHOUT_COLLECTOR if arguments.url is None else ())):
        for name in names if command not in commands else ():
            if getattr(arguments, name) != arguments.parser.get_default(name):
                raise ValueError(f"--{name.replace('_', '-')} goes with {partner}")


def _list(arguments: argparse.Namespace) -> int:
    """Lists the processes that take requests. Returns 1 if there is none."""
    found = [each for pid in controllable_processes() for each in _status(pid, arguments.timeout)]
    if arguments.json:
        print_json(found)
    elif not found:
        print(
            "no process of this user takes commands: start one by `stepscope run --control`, or with trace(control=Control(socket=True))"
        )
    for answer in () if arguments.json else found:
        rank = "" if answer.rank is None else f" rank {answer.rank}"
        print(f"pid {answer.pid}: {answer.error or f'{answer.profiler}{rank}, {_where(answer)}'}")
    return 0 if any(not answer.error for answer in found) else 1


def _status(pid: int, timeout: float) -> list[Answer]:
    try:
        return ask_process(pid, Command(command="status"), min(timeout, 5.0))
    except ControlError as error:  # it ended meanwhile, or hangs
        return [Answer(pid=pid, error=str(error))]


def _ask_process(arguments: argparse.Namespace, name: Any, request: WindowRequest | None) -> int:
    command = Command(
        command=name,
        request=request,
        steps=arguments.steps or 0 if name == "extend" else 0,
        seconds=arguments.seconds or 0.0 if name == "extend" else 0.0,
        run_id=arguments.run_id or None if name == "abort" else None,
    )
    answers = ask_process(arguments.pid, command, arguments.timeout)
    if arguments.json:
        print_json(answers)
    for answer in () if arguments.json else answers:
        rank = "" if answer.rank is None else f" rank {answer.rank}"
        print(f"{answer.profiler or 'process'}{rank} (pid {answer.pid}, {_where(answer)}): {_text(name, answer)}")
        for window in answer.windows:
            _show(window)
    obeyed = (not answer.error and (answer.armed is None or answer.armed.accepted) for answer in answers)
    return 0 if all(obeyed) else 1


def _ask_collector(arguments: argparse.Namespace, name: Any) -> int:
    order = {
        "command": name,
        "name": arguments.name,
        "job": arguments.job,
        "patience": min(arguments.timeout, 60.0),
        "ranks": arguments.ranks,
        "detail": arguments.detail,
        **_window(arguments),
    }
    result = send_order(arguments, order)
    if arguments.json:
        print_json(result)
        return 0 if result.outcome == "done" else 1
    steps = "" if result.first is None else f": steps {result.first}-{'...' if result.last is None else result.last}"
    print(
        f"{result.outcome}{steps if result.outcome != 'refused' else ''}"
        + (f" ({result.reason})" if result.reason else "")
    )
    for rank in result.ranks:
        who = rank.id if rank.rank is None else f"rank {rank.rank}"
        print(f"  {who} (pid {rank.pid} on {rank.host}, {_where(rank)}): {rank.text}")
        for window in rank.windows:
            _show(window)
    return 0 if result.outcome == "done" else 1


def _where(status: Any) -> str:
    """The step at which a loop is now."""
    return f"{status.stage}, step {status.step}" if status.stage else f"step {status.step}"


def _text(command: str, answer: Answer) -> str:
    if answer.error:
        return answer.error
    if answer.armed is not None:
        return str(answer.armed)
    windows = human_count(len(answer.windows), "window")
    if command == "abort":
        return f"{windows} ended" if answer.windows else "no armed window runs or waits"
    return windows


def _show(window: Any) -> None:
    steps = "" if window.first is None else f" {window.first}-{'...' if window.last is None else window.last}"
    run = f" {window.run_id!r}" if window.run_id else ""
    why = f": {window.reason}" if window.reason else ""
    print(f"    {window.state}{run}{steps} ({window.requested}, by {window.trigger}){why}")
