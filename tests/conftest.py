"""Fixtures of every test. stepscope is imported before torch, because only so it can arm torch's ITT hook."""

from __future__ import annotations

import asyncio
import importlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import uvloop
from hypothesis import settings

from stepscope.runtime import tasks
from tests import disks
from tests.support import heed_interrupts

importlib.import_module("stepscope")

heed_interrupts()

# A machine under load is slow, not wrong.
settings.register_profile("stepscope", deadline=None)
settings.load_profile("stepscope")


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Runs each async test once on asyncio's own loop and once on uvloop."""
    return {"asyncio": asyncio.SelectorEventLoop, "uvloop": uvloop.new_event_loop}


def _our_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("stepscope")}


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    """Fails a test that leaves one of stepscope's threads running."""
    before = _our_threads()
    yield
    ending = time.monotonic() + 5  # one that was cancelled may have its last lines to run
    while (left := sorted(thread.name for thread in _our_threads() - before)) and time.monotonic() < ending:
        time.sleep(0.01)
    if left:
        pytest.fail(f"threads left running: {', '.join(left)}", pytrace=False)


@pytest.fixture(autouse=True)
def nothing_watched() -> Iterator[None]:
    """Each test begins with thread pools and loops as Python makes them: some record without a profiler."""
    yield
    tasks.release()


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
