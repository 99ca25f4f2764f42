"""The native ITT collector, called by torch as it calls VTune's."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.backends.torch import arm as torch_arm
from stepscope.runtime import _core
from stepscope.runtime.events import strings
from stepscope.runtime.events.record import Kind
from stepscope.runtime.schedule.detail import EVERYTHING
from tests.support.basics import ROOT, missing
from tests.support.block_contents import texts
from tests.support.operators import ARMED, environment, record, torch

pytestmark = pytest.mark.needs("torch")

if not ARMED:
    missing("torch with our ITT collector", f"{torch_arm.reason()}.")

quick = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])

Tree: TypeAlias = tuple[str, str, list[Any]]
"""Kind (`itt` or `span`), name and what happens inside."""
trees: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.sampled_from(["itt", "span"]), st.sampled_from(["aten::a", "b", "Ärger 😀", 'q"\\\n']), st.just([])),
    lambda inner: st.tuples(
        st.sampled_from(["itt", "span"]), st.sampled_from(["c10d::x", "y"]), st.lists(inner, max_size=3)
    ),
    max_leaves=12,
)


def push(name: str) -> None:
    torch.profiler.itt.range_push(name)


def pop() -> None:
    torch.profiler.itt.range_pop()


def range_of(name: str) -> None:
    push(name)
    pop()


def run(tree: Tree) -> None:
    kind, name, inside = tree
    if kind == "span":
        with sc.span(name):
            for part in inside:
                run(part)
    else:
        push(name)
        for part in inside:
            run(part)
        pop()


def flat(tree: Tree, parent: str | None = None) -> list[tuple[str, str | None]]:
    """Names with their parents' names, in the order in which they end."""
    return [pair for part in tree[2] for pair in flat(part, tree[1])] + [(tree[1], parent)]


@quick
@given(tree=trees)
def test_ranges_and_spans_nest_in_one_another(tmp_path: Path, tree: Tree) -> None:
    """Ranges of torch and user spans share a stack: parents and self times are exact across both."""
    events = record(tmp_path, lambda _: run(tree)).events(kind=Kind.SPAN)
    events = events[[not text.startswith("ProfilerStep") for text in texts(events)]]
    by_id = {int(event["id"]): event for event in events}
    found = [
        (
            strings.text(int(event["name"])),
            strings.text(int(by_id[int(event["parent"])]["name"])) if event["parent"] else None,
        )
        for event in events
    ]
    assert found == flat(tree)
    for event in events:
        inside = sum(int(child["dur"]) for child in events if child["parent"] == event["id"])
        assert int(event["self_dur"]) == int(event["dur"]) - inside


@quick
@given(actions=st.lists(st.sampled_from(["push", "push", "pop", "pop", "on", "off"]), max_size=40))
def test_any_order_of_begins_ends_and_switches_is_survived(tmp_path: Path, actions: list[str]) -> None:
    """The recording has exactly the ranges that began while recording and ended, however the calls come."""
    expected: list[str] = []

    def work(profiler: sc.Profiler) -> None:
        open_: list[str | None] = []
        recording = True
        for number, action in enumerate(actions):
            if action in ("on", "off"):
                recording = action == "on"
                _core.want(profiler._steps.serial, EVERYTHING, EVERYTHING if recording else 0)  # pyright: ignore[reportPrivateUsage]
            elif action == "push":
                push(f"range {number}")
                if recording or open_:
                    open_.append(f"range {number}" if recording else None)
            else:
                pop()
                name = open_.pop() if open_ else None
                if name:
                    expected.append(name)
        _core.want(profiler._steps.serial, EVERYTHING, EVERYTHING)  # pyright: ignore[reportPrivateUsage]
        for name in reversed(open_):
            pop()
            expected.extend([name] if name else [])

    events = record(tmp_path, work).events(kind=Kind.SPAN)
    assert [text for text in texts(events) if text.startswith("range ")] == expected


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("aten::add", "cpu_op"),
        ("AddmmBackward0", "cpu_op"),
        ("MyFunctionBackward", "cpu_op"),
        ("torch::autograd::AccumulateGrad", "cpu_op"),
        ("autograd::engine::evaluate_function: AddmmBackward0", "cpu_op"),
        ("detach", "cpu_op"),
        ("Optimizer.step#SGD.step", "user_annotation"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"),
        ("forward", "user_annotation"),
        ("", "user_annotation"),
    ],
)
def test_names_decide_categories(tmp_path: Path, name: str, category: str) -> None:
    """Operators and nodes of autograd are distinguished from regions as torch.profiler does it."""
    events = record(tmp_path, lambda _: range_of(name)).events(kind=Kind.SPAN)
    event = events[[text == name for text in texts(events)]]
    assert texts(event, "category") == [category]


def test_deep_nesting_is_bounded(tmp_path: Path) -> None:
    """Ranges deeper than can be stored are left out, and those around them are whole."""

    def work(_: sc.Profiler) -> None:
        for level in range(700):
            push(f"level {level}")
        for _level in range(700):
            pop()
        range_of("after")

    names = record(tmp_path, work).names(kind=Kind.SPAN)
    assert [name for name in names if name.startswith("level")] == [f"level {level}" for level in reversed(range(512))]
    assert names.count("after") == 1


def test_each_thread_has_its_track(tmp_path: Path) -> None:
    """Ranges of threads that run at once do not mix, and come from the track of their thread."""
    barrier = threading.Barrier(4)

    def one(name: str) -> None:
        barrier.wait()
        for _ in range(200):
            push(name)
            range_of(name)
            pop()

    def work(_: sc.Profiler) -> None:
        threads = [threading.Thread(target=one, args=(f"thread::{number}",)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    events = record(tmp_path, work).events(kind=Kind.SPAN)
    events = events[[text.startswith("thread::") for text in texts(events)]]
    assert len(events) == 4 * 400
    assert len(set(zip(events["name"].tolist(), events["track"].tolist(), strict=True))) == 4


def test_names_are_cut_and_mended(tmp_path: Path) -> None:
    """A name of a megabyte is cut, and counted; the next one is not harmed."""
    before = _core.counts()["names_cut"]

    def work(_: sc.Profiler) -> None:
        for _number in range(3):
            range_of("x" * 1_000_000)
        range_of("next")

    names = record(tmp_path, work).names(kind=Kind.SPAN)
    assert names.count("x" * _core.MAX_NAME) == 3 and names.count("next") == 1
    assert _core.counts()["names_cut"] > before


def test_a_forked_child_records_nothing_and_lives(tmp_path: Path) -> None:
    """In a forked child torch's calls find the recorder inert."""

    def work(_: sc.Profiler) -> None:
        push("aten::around")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks of a process with threads
            child = os.fork()
        if child == 0:
            range_of("aten::child")
            pop()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        pop()

    names = record(tmp_path, work).names(kind=Kind.SPAN)
    assert "aten::around" in names and "aten::child" not in names


def python(code: str, **changes: str) -> str:
    """Runs code in a Python of its own, warnings being errors, and returns what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env=environment(**changes),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_another_collector_is_left_in_place() -> None:
    """A collector that somebody else named stays named, and the reason says so."""
    code = (
        "import os; from stepscope.backends.torch import arm as torch_arm; print(torch_arm.arm()); print(torch_arm.reason())\n"
        "print(os.environ[torch_arm.VARIABLE])"
    )
    armed, reason, named = python(code, **{torch_arm.VARIABLE: "/opt/vtune/libittnotify_collector.so"}).splitlines()
    assert (armed, named) == ("False", "/opt/vtune/libittnotify_collector.so")
    assert "names another collector, /opt/vtune/libittnotify_collector.so" in reason


def test_other_users_of_itt_leave_nothing_open() -> None:
    """oneDNN loads the collector where torch's own engine records a convolution first: nothing of it is recorded."""
    code = (
        "import stepscope as sc, tempfile, torch\n"
        "from stepscope.backends.torch.backend import TorchBackend\n"
        "for mode in ('kineto', 'stream'):\n"
        "    memory = sc.exporters.MemoryExporter()\n"
        "    with tempfile.TemporaryDirectory() as place, sc.trace(backends=[TorchBackend(mode)], exporters=[memory], output_dir=place):\n"
        "        torch.nn.functional.conv2d(torch.ones(4, 16, 18, 26), torch.ones(33, 16, 3, 3))\n"
        "    print('convolution' in memory.names(), 'aten::conv2d' in memory.names())"
    )
    assert python(code).split() == ["False", "True"] * 2
