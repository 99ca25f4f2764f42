"""Fixtures of every test. stepscope is imported before torch, because only so it can arm torch's ITT hook."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import settings

from stepscope.runtime import _core
from stepscope.runtime.annotations import tasks
from stepscope.runtime.recording import recorder
from stepscope.runtime.session.directory import session_of
from tests.support import disks, forked
from tests.support.basics import heed_interrupts, missing
from tools.checklist import PAGE, unshown

importlib.import_module("stepscope")

# Many tests count events; those of the signals set the variable themselves, for the programs that they start.
os.environ["STEPSCOPE_SIGNALS"] = "none"
pytest_plugins = ["tests.support.messages"]

heed_interrupts()
forked.Serving.on = True

# A machine under load is slow, not wrong.
settings.register_profile("everyday", deadline=None, max_examples=20)
settings.register_profile("all", deadline=None)

WHICH = "STEPSCOPE_TESTS"
"""Environment variable by which worker processes learn which tests run: `everyday` or `all`."""
RUN_AGAIN = tuple(Path(__file__).with_name(folder) for folder in ("integration", "system", "stress"))
"""Tests with real processes and servers, of which those that fail run once more: a machine that others load for seconds breaks
their timeouts. The summary counts them as rerun."""
RERUN = pytest.mark.flaky(reruns=1, reruns_delay=10, rerun_except="from pytest-timeout")
"""Ten seconds later, as the load may have passed by then. A test that hangs fails at once: nothing would end it the second time."""
SLOW_TESTS = Path(__file__).with_name("slow_tests.txt")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--all`: also the slow tests, with both event loops and all examples of properties."""
    parser.addoption(
        "--all", action="store_true", help="run also the tests of tests/slow_tests.txt, on both event loops"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Without `--all`, and without files that are named, the everyday tests run."""
    if not hasattr(config, "workerinput"):
        everyday = config.args_source is pytest.Config.ArgsSource.TESTPATHS and not config.getoption("--all")
        os.environ[WHICH] = "everyday" if everyday else "all"
        if config.getoption("numprocesses", None):
            config.pluginmanager.register(FailuresAtOnce(config))
    settings.load_profile(os.environ[WHICH])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves out the slow tests, if only the everyday ones are to run; notes which rows of the checklist each test shows."""
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in RUN_AGAIN):
            item.add_marker(RERUN)
        item.user_properties += [("checklist", row) for mark in item.iter_markers("checklist") for row in mark.args]
    if os.environ[WHICH] == "all":
        return
    slow = set(SLOW_TESTS.read_text(encoding="utf-8").split())
    left_out = [item for item in items if _name(item) in slow]
    items[:] = [item for item in items if _name(item) not in slow]
    config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """A test that needs a package ends where that is missing. Nothing is imported here."""
    for package in (name for mark in item.iter_markers("needs") for name in mark.args):
        if importlib.util.find_spec(package) is None:
            missing(f"the package {package}", "`make test` installs it.")


_shown: set[str] = set()
"""Rows of the checklist that tests have shown which passed."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Notes what a test has shown."""
    if report.when == "call" and report.passed:
        _shown.update(str(row) for kind, row in report.user_properties if kind == "checklist")


class FailuresAtOnce:
    """Shows each failure when it happens: a run that is cut short later would show none of them.

    Args:
        config: of the process that has the terminal.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Shows a test that failed, also if it runs once more."""
        terminal: Any = self._config.pluginmanager.getplugin("terminalreporter")
        if report.outcome in ("failed", "rerun") and terminal is not None:
            terminal.write_line(f"\n{report.nodeid} failed ({report.when}):\n{report.longreprtext}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A whole run in which every part is required fails if a row of the checklist was shown by no test that passed."""
    config = session.config
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.getoption("--all")
    if not whole or hasattr(config, "workerinput") or os.environ.get("STEPSCOPE_REQUIRE_ALL") != "1":
        return
    missing = unshown(PAGE.read_text(encoding="utf-8"), _shown)
    if missing and not config.getoption("collectonly"):
        print(f"\nno test that passed shows these rows of docs/checklist.md: {', '.join(missing)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _name(item: pytest.Item) -> str:
    """As in the list: the module without its folders, and the function without its parameters."""
    return f"{item.path.stem}::{item.name.partition('[')[0]}"


def pytest_asyncio_loop_factories(config: pytest.Config) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Runs each async test on asyncio's own loop and on uvloop; of the everyday tests, and for their messages, on asyncio's."""
    if os.environ[WHICH] == "everyday" or config.getoption("update_messages"):
        return {"asyncio": asyncio.SelectorEventLoop}
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("stepscope")}


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fails a test that leaves one of stepscope's threads running."""
    before = _our_threads()
    yield
    ending = time.monotonic() + 30  # one that was cancelled may have its last lines to run, on a busy machine
    while (left := sorted(thread.name for thread in _our_threads() - before)) and time.monotonic() < ending:
        time.sleep(0.01)
    if left:
        pytest.fail(f"threads left running: {', '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def no_session_left() -> Iterator[None]:
    """Fails a test that leaves a session in a usual place: programs of later tests would find it above them, and join it."""
    yield
    if (mine := recorder.current()) is not None:
        mine.delivered(None)  # tests of the recorder itself have no profiler that would
    if left := session_of(os.getpid()):
        pytest.fail(f"session left: {left}", pytrace=False)


@pytest.fixture(autouse=True)
def nothing_watched() -> Iterator[None]:
    """Each test begins with thread pools and loops as Python makes them: some record without a profiler."""
    yield
    tasks.release()


@pytest.fixture(autouse=True)
def categories_left() -> Iterator[None]:
    """Fails a test that uses up the process's categories: events of later tests would have none."""
    before = _core.counts()["categories_full"]
    yield
    if _core.counts()["categories_full"] > before:
        pytest.fail("the process has no categories left; use fewer, or a program of its own", pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def working_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs for which no directory is named, and programs that begin where the tests are, leave nothing in the checkout."""
    base = tmp_path_factory.mktemp("working-directory")
    deep = base.joinpath(*"d" * (len(str(base)) // 3 + 1))  # else commands would show the paths of tests relative to it
    deep.mkdir(parents=True)
    with contextlib.chdir(deep):
        yield


@pytest.fixture
def output_dir(tmp_path: Path) -> Path:
    """An empty directory for the output of a run."""
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def session_dir(tmp_path: Path) -> Path:
    """An empty directory for a session's rings, to look at what a profiler leaves there."""
    path = tmp_path / "session"
    path.mkdir()
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB, to be filled."""
    with disks.small_disk(tmp_path / "small-disk", 1 << 20) as path:
        yield path
