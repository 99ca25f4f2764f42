"""Regions whose object is entered while it is entered already: each entry is a record of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepscope as sc
import stepscope.mxnet as mxnet
import stepscope.nvtx as nvtx
import stepscope.torch as ours
from stepscope.compat.torch import record_function as module
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from tests.support.operators import torch

REGIONS: dict[str, Callable[[], Any]] = {
    "record_function": lambda: ours.record_function("x", "y"),
    "span": lambda: sc.span("x", n=1),
    "Domain": lambda: sc.Domain("mine").span("x"),
    "nvtx": lambda: nvtx.annotate("x", domain="mine"),
    "nvtx without a message": lambda: nvtx.annotate(color="red"),
    "Task": lambda: mxnet.Task(mxnet.Domain("mine"), "x"),
    "Frame": lambda: mxnet.Frame(mxnet.Domain("mine"), "x"),
}
ALL = pytest.mark.parametrize("make", REGIONS.values(), ids=list(REGIONS))


def recorded(directory: Path, program: Callable[[], None]) -> list[Any]:
    """The spans of a program, by their begin."""
    memory = sc.exporters.MemoryExporter()
    with sc.trace(exporters=[memory], output_dir=directory) as profiler:
        program()
    assert profiler.audit() == ()
    spans = memory.events(kind=Kind.SPAN)
    return sorted((e for e in spans if strings.name_of(e) in ("x", "", "recursive")), key=lambda e: int(e["ts"]))


def check_nested(spans: list[Any], count: int) -> None:
    """Each lies in the one before it."""
    assert len(spans) == count
    ends = [int(span["ts"] + span["dur"]) for span in spans]
    assert ends == sorted(ends, reverse=True)


@ALL
def test_recursion(make: Callable[[], Any], output_dir: Path) -> None:
    """One object, entered three times."""
    region = make()

    def recursive(depth: int) -> None:
        with region:
            if depth:
                recursive(depth - 1)

    check_nested(recorded(output_dir, lambda: recursive(2)), 3)


@ALL
def test_a_recursive_function_with_a_decorator(make: Callable[[], Any], output_dir: Path) -> None:
    """Each call is a record."""

    @make()  # type: ignore[untyped-decorator, unused-ignore]
    def recursive(depth: int) -> None:
        if depth:
            recursive(depth - 1)

    check_nested(recorded(output_dir, lambda: recursive(2)), 3)


@ALL
def test_a_recursive_generator_with_a_decorator(make: Callable[[], Any], output_dir: Path) -> None:
    """Each resumption of each is a record, or each as a whole."""

    @make()  # type: ignore[untyped-decorator, unused-ignore]
    def recursive(depth: int) -> Generator[int]:
        yield depth
        if depth:
            yield from recursive(depth - 1)

    def work() -> None:
        assert list(recursive(1)) == [1, 0]

    spans = recorded(output_dir, work)
    assert len(spans) in (2, 5)


@ALL
def test_threads_and_tasks(make: Callable[[], Any], output_dir: Path) -> None:
    """One object that is entered by several at once is a span on the row of each."""
    region = make()
    together = threading.Barrier(3)

    def thread() -> None:
        with region:
            together.wait(30)

    async def task() -> None:
        with region:
            await asyncio.sleep(0.001)

    async def tasks() -> None:
        await asyncio.gather(task(), task())

    def program() -> None:
        threads = [threading.Thread(target=thread) for _ in range(3)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        asyncio.run(tasks())

    spans = recorded(output_dir, program)
    assert len(spans) == 5 and len({int(span["track"]) for span in spans}) == 5


def test_while_an_accelerator_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regions are torch's own then: each entry, of each thread; and it may begin and end meanwhile."""
    session = SimpleNamespace(records_device=True, here=True)
    monkeypatch.setattr(module, "session", session)
    region = ours.record_function("x")
    together = threading.Barrier(2)

    def recursive(depth: int) -> None:
        with region:
            if depth:
                recursive(depth - 1)

    def thread() -> None:
        with region:
            together.wait(30)
            recursive(1)

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:
        recursive(2)
        threads = [threading.Thread(target=thread) for _ in range(2)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        with region:
            session.records_device = False
            with region:
                pass
    here = [event for event in prof.profiler.kineto_results.events() if event.name() == "x"]
    assert len(here) >= 4  # torch records this thread only
    assert region._theirs == []  # pyright: ignore[reportPrivateUsage]
