"""Messages of errors, warnings and commands: a test checks the type and the data, tests/messages.json holds the wording.

`make messages` writes that file anew. It is a plugin of pytest, with the options `--update-messages` and `--messages`.
"""

from __future__ import annotations

import ast
import difflib
import functools
import getpass
import json
import logging
import re
import socket
import sys
import tempfile
import warnings
from collections.abc import Generator, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar, cast

import pytest

from tests.support.basics import ROOT

E = TypeVar("E", bound=BaseException)

SNAPSHOT = ROOT / "tests" / "messages.json"
"""`{"module::test[parameters]": [message, ...]}`."""

# From run to run, and from machine to machine, these differ. The first that fits comes first.
_VARYING = [
    (re.compile(pattern), name)
    for pattern, name in (
        (r"/[^\s'\"]*/pytest-of-[^/]+/pytest-\d+/(popen-gw\d+/)?[^/\s'\":;,)]+", "<tmp>"),
        (r"\bstepscope-\d+-\w{8}\b", "<session>"),
        (re.escape(tempfile.gettempdir()) + r"/tmp[\w]{8}", "<tmp>"),
        (re.escape(sys.executable), "<python>"),
        (re.escape(str(ROOT)), "<root>"),
        (r"(?<=127\.0\.0\.1:)\d+", "<port>"),
        (r"(?<=\bpid )\d{2,}|(?<=\bprocess )\d{2,}", "<pid>"),
        (r"(?<=; )(?:no process of this user takes|(?:of its children )?these take) commands.*", "<processes>"),
        (r"\b0x(?:[0-9a-f]{6,}|[0-9a-f]+(?=\.\.\.))", "<address>"),
        (r"\b(?=[0-9]*[a-f])[0-9a-f]{16,}\b", "<id>"),
        (r"[\w.-]+_\d+_\d{17}(?=_)", "<run>"),
        (r"\b\d{8}-\d{6}(?:-\d+)?\b", "<time>"),
        (rf"\b{re.escape(socket.gethostname())}\b", "<host>"),
        (rf"(?<=user ){re.escape(getpass.getuser())}\b", "<user>"),
    )
]
_LOOP = re.compile(r"\[(?:asyncio|uvloop)(?:\]|-)")


class refused(Generic[E]):  # noqa: N801
    """In place of `pytest.raises(..., match=...)`: the error has the facts, and the wording of the snapshot.

    Gives what `pytest.raises` gives.

    Args:
        error_type: as `pytest.raises` takes it.
        facts: data that the message must have however it is worded: a field, the value, the nearest name, a command.
        snapshot: False if the wording differs from run to run.
    """

    def __init__(self, error_type: type[E] | tuple[type[E], ...], *facts: object, snapshot: bool = True) -> None:
        self._raises = pytest.raises(error_type)
        self._facts = facts
        self._snapshot = snapshot

    def __enter__(self) -> pytest.ExceptionInfo[E]:
        self._caught = self._raises.__enter__()
        return self._caught

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        __tracebackhide__ = True
        if not self._raises.__exit__(kind, error, traceback):
            return False
        value = self._caught.value
        text = "\n".join([str(value), *getattr(value, "__notes__", ())])
        for fact in self._facts:
            assert str(fact) in text, f"the message has no {str(fact)!r}: {text}"
        if self._snapshot:
            _compare([text])
        return True


def check_messages(
    source: str | Iterable[str | logging.LogRecord | warnings.WarningMessage], *facts: object, snapshot: bool = True
) -> list[str]:
    """Lines or messages that have all the facts: there is one at least, and they have the wording of the snapshot.

    Args:
        source: what a program printed, of which each line counts, or records of logging, of which those of our loggers do.
        facts: data that the message must have however it is worded. Without any, all count.
        snapshot: False if the wording differs from run to run.
    """
    __tracebackhide__ = True
    texts = source.splitlines() if isinstance(source, str) else [text for one in source for text in _text(one)]
    found = [text for text in texts if text.strip() and all(str(fact) in text for fact in facts)]
    assert found, f"no message has {', '.join(map(repr, map(str, facts)))}: {texts}"
    if snapshot:
        _compare(found)
    return found


def _text(one: str | logging.LogRecord | warnings.WarningMessage) -> list[str]:
    if isinstance(one, str):
        return [one]
    if isinstance(one, logging.LogRecord):
        return [one.getMessage()] if one.name.partition(".")[0] == "stepscope" else []
    return [str(one.message)]


def constant(text: str) -> str:
    """A message without what differs from run to run."""
    for pattern, name in _VARYING:
        text = pattern.sub(name, text)
    return text


def key_of(nodeid: str) -> str:
    """The key of a test: its module without folders, its name and parameters, the same for all event loops."""
    path, _, name = nodeid.partition("::")
    return f"{Path(path).stem}::" + _LOOP.sub(lambda loop: "[" if loop[0].endswith("-") else "", name, count=1)


class _Running:
    """The messages so far of the test that runs."""

    key = ""
    messages: list[str] = []
    stored: Mapping[str, list[str]] = {}
    updating = False


def _compare(texts: list[str]) -> None:
    __tracebackhide__ = True
    for text in dict.fromkeys(map(constant, texts)):  # the test checks how often it came
        place = len(_Running.messages)
        _Running.messages.append(text)
        if _Running.updating:
            continue
        stored = _Running.stored.get(_Running.key, [])
        assert place < len(stored), f"a new message; `make messages` takes it over: {text}"
        if text != stored[place]:
            lines = "\n".join(difflib.ndiff(stored[place].splitlines(), text.splitlines()))
            raise AssertionError(f"a message has changed; `make messages` takes the new one over:\n{lines}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--update-messages` takes messages over, `--messages` names another snapshot."""
    parser.addoption("--update-messages", action="store_true", help=f"write messages of tests that pass to {SNAPSHOT}")
    parser.addoption("--messages", type=Path, default=SNAPSHOT, help="the snapshot of messages")


def pytest_configure(config: pytest.Config) -> None:
    """Reads the snapshot."""
    path = Path(str(config.getoption("messages")))
    _Running.stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    _Running.updating = bool(config.getoption("update_messages"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """An update runs those tests that look at messages."""
    if not config.getoption("update_messages"):
        return
    known = {_function(key) for key in _Running.stored}
    left_out = [item for item in items if _function(key_of(item.nodeid)) not in known and not _has_messages(item)]
    gone = set(left_out)
    items[:] = [item for item in items if item not in gone]
    config.hook.pytest_deselected(items=left_out)


def _has_messages(item: pytest.Item) -> bool:
    """True if a test calls one of the two, or a function of its file that is no test does."""
    names = _functions_with_messages(item.path)
    return item.name.partition("[")[0] in names or any(not name.startswith("test_") for name in names)


@functools.cache
def _functions_with_messages(path: Path) -> set[str]:
    return {
        function.name
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(isinstance(node, ast.Name) and node.id in ("refused", "check_messages") for node in ast.walk(function))
    }


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test begins, without messages."""
    _Running.key = key_of(item.nodeid)
    _Running.messages = []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that passes has all messages of its snapshot."""
    result = yield
    missing = _Running.stored.get(_Running.key, [])[len(_Running.messages) :]
    if _Running.updating:
        item.user_properties.append(("messages", _Running.messages))
    elif missing:
        pytest.fail(f"messages that are not there any more; `make messages` removes them: {missing}", pytrace=False)
    return result


_seen: set[str] = set()
_passed: dict[str, list[str]] = {}
_summary: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collects the messages of tests, of all processes that run them."""
    key = key_of(report.nodeid)
    _seen.add(key)
    if report.when == "call" and report.passed:
        _passed.update((key, cast(list[str], texts)) for kind, texts in report.user_properties if kind == "messages")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the snapshot."""
    config = session.config
    if not config.getoption("update_messages") or hasattr(config, "workerinput"):
        return
    path = Path(str(config.getoption("messages")))
    stored = dict(_Running.stored)
    # Of a test that ran with some of its parameters only, the others stay.
    partly = bool(config.option.keyword or session.shouldstop or any("::" in part for part in config.args))
    ran: set[str] = set() if partly else {_function(key) for key in _seen}
    gone = left_over(stored, path.parent) | {key for key in stored if _function(key) in ran and key not in _seen}
    gone |= {key for key, texts in _passed.items() if not texts}
    new = {key: stored[key] for key in stored if key not in gone} | {
        key: texts for key, texts in _passed.items() if texts
    }
    path.write_text(json.dumps(new, indent=1, ensure_ascii=False, sort_keys=True) + "\n", encoding="utf-8")
    for word, keys in (
        ("new", new.keys() - stored.keys()),
        ("changed", {key for key in new.keys() & stored.keys() if new[key] != stored[key]}),
        ("removed", stored.keys() - new.keys()),
    ):
        _summary.extend(f"{word}: {key}" for key in sorted(keys))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells which tests have other messages now."""
    for line in _summary:
        terminalreporter.write_line(f"messages {line}")


def left_over(keys: Iterable[str], tests: Path) -> set[str]:
    """Those keys whose tests are nowhere below a directory."""
    pattern = re.compile(r"^\s*(?:async )?def (test_\w+)", re.MULTILINE)
    there = {
        f"{path.stem}::{name}"
        for path in tests.rglob("test_*.py")
        for name in pattern.findall(path.read_text(encoding="utf-8"))
    }
    return {key for key in keys if _function(key) not in there}


def _function(key: str) -> str:
    return key.partition("[")[0]
