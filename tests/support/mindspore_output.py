"""The output of `stepscope.mindspore`, read back in tests; and small loops to record."""

from __future__ import annotations

import csv
import json
import re
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stepscope.compat.mindspore.analysis.analysis import PRODUCTS
from stepscope.mindspore import Profiler
from stepscope.runtime._core import span


def work(step: int) -> None:
    """A step of the loop: two operators of scope, as MindSpore names them, and a collective."""
    with span("Default/network/MatMul-op1"):
        with span("Default/network/Add-op2"):
            pass
    with span("Gradients/Default/MatMul-op3"):
        pass
    with span("AllReduce-op4"):
        pass
    del step


def loop(steps: int, before: Callable[[int], object], after: Callable[[int], object]) -> None:
    """A training loop with numbers from 0, and what a callback does."""
    for step in range(steps):
        before(step)
        work(step)
        after(step)


def rows(directory: Path, name: str) -> list[dict[str, str]]:
    """A table among the products of a window."""
    with (directory / PRODUCTS / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def events(directory: Path, folder: str = PRODUCTS) -> list[dict[str, Any]]:
    """The timeline of a window, which must be valid JSON: a list, as MindSpore has it."""
    found: list[dict[str, Any]] = json.loads((directory / folder / "trace_view.json").read_text(encoding="utf-8"))
    assert isinstance(found, list)
    return found


def steps_of(directory: Path, folder: str = PRODUCTS) -> list[int]:
    """Numbers of the steps in the timeline of a window."""
    prefix = "ProfilerStep#"
    names = [event["name"] for event in events(directory, folder) if event.get("ph") == "X"]
    return sorted(int(name.removeprefix(prefix)) for name in names if name.startswith(prefix))


def operators(directory: Path, folder: str = PRODUCTS) -> list[str]:
    """Names of the spans in the timeline of a window that `work` made."""
    names = [event["name"] for event in events(directory, folder) if event.get("ph") == "X"]
    return [name for name in names if "-op" in name]


def until_sampled(profiler: Profiler, source: str, times: int = 4) -> None:
    """Waits until a backend that looks from time to time has done so; fails after a minute."""
    ending = time.monotonic() + 60
    while True:
        found = re.search(rf"{source} \(every .* ms, (\d+) samples\)", str(profiler.trust_report()))
        if found is not None and int(found[1]) >= times:
            return
        assert time.monotonic() < ending, f"{source} has not looked {times} times"
        time.sleep(0.01)


def info(directory: Path) -> dict[str, Any]:
    """The description of a window next to its products; `FileNotFoundError` where there is none."""
    paths = list(directory.glob("profiler_info_*.json"))
    if not paths:
        raise FileNotFoundError(directory)
    (path,) = paths
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def windows_below(path: Path) -> Iterator[Path]:
    """Directories of windows, the oldest first."""
    found = [each.parent for each in path.rglob("profiler_info_*.json")]
    return iter(sorted(found, key=lambda each: each.stat().st_ctime_ns))


def recorded(path: Path, *, steps: int = 3, **options: Any) -> Profiler:
    """A profiler that has recorded some steps; `step()` is called at the end of each."""
    profiler = Profiler(output_path=path, start_profile=False, **options)
    profiler.start()
    loop(steps, lambda _: None, lambda _: profiler.step())
    profiler.stop()
    return profiler


def analysed(path: Path, **options: Any) -> Path:
    """The directory of a window of `recorded` steps, with its products."""
    profiler = recorded(path, **options)
    profiler.analyse()
    (directory,) = profiler.directories
    return directory


@contextmanager
def recording(output_path: Path, **options: Any) -> Generator[Profiler]:
    """A profiler that records what is done in the body, and makes the products at its end."""
    profiler = Profiler(output_path=output_path, start_profile=False, **options)
    profiler.start()
    yield profiler
    profiler.stop()
    profiler.analyse()
