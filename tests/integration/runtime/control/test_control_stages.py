"""Profilers of one process that follow each other, as the stages of a training do: the ranks agree anew in each, and orders of a
collector are for one of them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest

import stepscope as sc
from stepscope.cli.main import main
from stepscope.runtime.requests.window_request import WindowRequest
from tests.integration.runtime.control.test_control_orders import order
from tests.support.background_loop import QUICK
from tests.support.basics import ROOT, poll, require
from tests.support.collectors import Running, collecting
from tests.support.control_jobs import Job, job, rank_settings
from tests.support.launch import launched

RANKS = 3


def check(running: Job, run: str, stage: str, ranks: tuple[int, ...] = (0, 1, 2)) -> int:
    """Waits for a window that all ranks have of the same stage and steps; returns its last step."""
    (steps,) = running.steps_of(run, ranks)
    assert {running.stages(rank)[run][0] for rank in ranks} == {stage}
    return steps[-1]


def go_on(running: Job, before: str, stage: str, first: tuple[int, ...] = (1,)) -> None:
    """Has all ranks begin the next stage, some of them before the others have ended the last one."""
    for ranks in (first, [rank for rank in range(len(running.ranks)) if rank not in first]):
        running.notify(f"end-{before}", ranks)
        running.notify(f"go-{stage}", ranks)


@pytest.mark.checklist("A33", "A34", "F6", "F10")
def test_requests_in_another_stage(tmp_path: Path) -> None:
    """A request that names a stage waits for it, with the reason; one between two, or one not reached, is recorded in the next
    one, once on each rank, and can be aborted. A signal between two is for nobody, and harms nobody."""
    stages = ("fit", "validate", "test", "fit2")
    settings = rank_settings(tmp_path, RANKS, stages=[stages] * RANKS, signal=[True] * RANKS)
    with job(tmp_path, settings) as running:
        running.request_window("never", start_step=1_000_000, steps=2)
        running.until_window("queued")
        waits = "it is for the stage 'validate', and this is 'fit'"
        running.request_window("later", steps=2, stage="validate")
        running.until_answer(waits)
        running.request_window("now", steps=2, stage="fit")
        check(running, "now", "fit")
        running.request_window("later", steps=2, stage="validate")
        running.until_answer(waits)
        go_on(running, "fit", "validate", (0,))
        check(running, "later", "validate")

        running.notify("end-validate")
        running.request_window("between", steps=2)
        for process in running.processes.values():
            process.send_signal(signal.SIGUSR2)
        running.notify("go-test", [1, 2])
        running.notify("go-test", [0])
        check(running, "between", "test")

        running.request_window("far", start_step=3000, steps=2)
        running.until_window("queued")
        go_on(running, "test", "fit2")
        assert check(running, "far", "fit2") == 3001
        running.request_window("long", steps=1_000_000)
        running.until_window("running")
        running.write(command="abort")
        check(running, "long", "fit2")
    for rank in range(RANKS):
        assert running.signalled(rank) == []
        assert set(running.windows(rank)) == {"now", "later", "between", "far", "long"}


@pytest.mark.checklist("F10")
@pytest.mark.parametrize("behind", [True, False])
def test_a_rank_has_one_stage_more(tmp_path: Path, behind: bool) -> None:
    """Its own is over before the others go on, or they have begun what follows."""
    stages = [("fit", "own", "validate"), ("fit", "validate"), ("fit", "validate")]
    others = [1, 2]
    with job(tmp_path, rank_settings(tmp_path, RANKS, stages=stages, patience=[4.0] * RANKS)) as running:
        running.request_window("fit", steps=2)
        check(running, "fit", "fit")
        running.notify("end-fit")
        running.notify("go-own", [0])
        if behind:
            running.notify("go-validate", others)
        running.notify("end-own", [0])
        running.notify("go-validate", [0] if behind else ())
        running.request_window("all", steps=2)
        check(running, "all", "validate")
        running.request_window("again", steps=2)
        check(running, "again", "validate")


@pytest.mark.checklist("B3", "F6", "F10")
def test_the_stages_of_a_callback(tmp_path: Path) -> None:
    """Lightning's own, two trainings among them, one rank always later than the other; each request names its stage."""
    require("lightning")
    stages = ("fit", "validate", "test", "fit2")
    settings = rank_settings(tmp_path, 2, stages=[stages] * 2)
    expected: set[str] = set()
    with job(tmp_path, settings, module="tests.support.lightning_rank") as running:
        for number, stage in enumerate(stages):
            if number:
                go_on(running, stages[number - 1], stage, (number % 2,))
            running.request_window(f"of-{stage}", steps=2, stage=stage.rstrip("2"))
            check(running, f"of-{stage}", stage, (0, 1))
            expected.add(f"of-{stage}")
    assert [set(running.windows(rank)) for rank in range(2)] == [expected] * 2


RANK = """
import os, sys, time
import stepscope
from stepscope import CollectorExporter, Control
directory, url, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
def is_notified(name):
    return any(os.path.exists(f"{directory}/{each}") for each in (name, f"{name}-{rank}", "stop"))
for stage in sys.argv[4:]:
    def ready(window, stage=stage):
        armed, steps = window.metadata["armed"], [step.number for step in window.steps]
        line = f"{armed['run_id']} {stage} {steps[0]} {steps[-1]}\\n"
        open(f"{directory}/windows-{rank}", "a").write(line)
    with stepscope.trace(control=Control(collector=True), exporters=[CollectorExporter(url)], rank=rank, name="job",
                         output_dir=f"{directory}/run", on_trace_ready=ready, metadata={"stage": stage},
                         options=stepscope.Options(drain_interval=0.05)) as profiler:
        while not is_notified(f"end-{stage}"):
            with stepscope.span("work"):
                time.sleep(0.002)
            profiler.step()
"""


@contextlib.contextmanager
def ranks_of(url: str, directory: Path, stages: Sequence[str]) -> Generator[None]:
    """Two ranks that go through these stages."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "WORLD_SIZE": "2"}
    with contextlib.ExitStack() as stack:
        for rank in range(2):
            command = [sys.executable, "-c", RANK, str(directory), url, str(rank), *stages]
            stack.enter_context(launched(command, cwd=ROOT, env=environment))
        yield
        (directory / "stop").touch()


def recorded(directory: Path, run: str) -> list[list[str]]:
    """Stage, first and last step of a window, of each rank that has it."""
    paths = [directory / f"windows-{rank}" for rank in range(2)]
    lines = [line.split() for path in paths if path.exists() for line in path.read_text().splitlines()]
    return [line[1:] for line in lines if line[0] == run]


async def stages_are(running: Running, *stages: str) -> None:
    """Waits until the ranks are in these stages."""
    answer: dict[str, Any] = {}
    while [each["stage"] for each in answer.get("ranks", ())] != list(stages):
        status, answer = await order(running.url, command="status")
        answer = answer if status == 200 and answer["outcome"] == "done" else {}


async def runs(running: Running, run: str) -> None:
    """Waits until the window of this run id is recorded on both ranks."""
    states: list[str] = []
    while states != ["running"] * 2:
        _, answer = await order(running.url, command="status")
        windows = [window for rank in answer["ranks"] for window in rank["windows"]]
        states = [window["state"] for window in windows if window["run_id"] == run]


@pytest.mark.checklist("F10")
async def test_an_order_for_a_stage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All record it in the stage that it names, and none in another; where ranks are in different ones none does."""
    async with collecting(tmp_path / "collector") as running:
        with ranks_of(running.url, tmp_path, ["fit", "validate"]):
            await stages_are(running, "fit", "fit")
            _, answer = await order(running.url, steps=2, run_id="early", stage="validate")
            assert answer["outcome"] == "refused", answer
            assert [rank["text"] for rank in answer["ranks"]] == [
                "refused: it is for the stage 'validate', and this is 'fit'"
            ] * 2
            _, answer = await order(running.url, steps=2, run_id="fit", stage="fit")
            assert answer["outcome"] == "done", answer
            await poll(lambda: len(recorded(tmp_path, "fit")) == 2)
            assert recorded(tmp_path, "fit") == [["fit", str(answer["first"]), str(answer["last"])]] * 2

            _, answer = await order(running.url, steps=1_000_000, run_id="long")
            assert answer["outcome"] == "done", answer
            await runs(running, "long")
            (tmp_path / "end-fit-1").touch()
            await stages_are(running, "fit", "validate")
            apart = "the ranks are in different stages, 'fit' (ranks 0), 'validate' (ranks 1)"
            for wanted in ({}, {"stage": "fit"}):
                _, answer = await order(running.url, steps=2, run_id="apart", **wanted)
                assert answer["outcome"] == "refused"
                assert answer["reason"] == f"{apart}: order again when all are in the same"
            _, answer = await order(running.url, command="extend", steps=2)
            assert (answer["outcome"], answer["reason"]) == ("refused", f"{apart}: extend when all are in the same")
            _, answer = await order(running.url, command="abort", run_id="long")
            assert (answer["outcome"], answer["reason"]) == ("done", f"{apart}: each ended its own")
            await poll(lambda: len(recorded(tmp_path, "long")) == 2)
            _, answer = await order(running.url, steps=1, run_id="one", ranks="1", stage="validate")
            assert answer["outcome"] == "done", answer

            (tmp_path / "end-fit-0").touch()
            await stages_are(running, "validate", "validate")
            url = running.url.replace("ws:", "http:")
            command = ["arm", "--url", url, "--steps", "2", "--run-id", "cli", "--stage", "validate"]
            assert await anyio.to_thread.run_sync(main, command) == 0, capsys.readouterr()
            assert capsys.readouterr().out.count(", validate, step ") == 2
            await poll(lambda: len(recorded(tmp_path, "cli")) == 2)
            assert {line[0] for line in recorded(tmp_path, "cli")} == {"validate"}
    assert recorded(tmp_path, "early") == recorded(tmp_path, "apart") == []


@pytest.mark.checklist("F10")
@pytest.mark.parametrize("stage", ["", "fit"])
def test_a_request_is_for_a_stage(stage: str, output_dir: Path) -> None:
    """It is refused in others, also where nobody says which stage it is; what is recorded says so in its metadata."""
    windows: list[Any] = []
    metadata = {"stage": stage} if stage else None
    with sc.trace(
        control=sc.Control(socket=True),
        metadata=metadata,
        output_dir=output_dir,
        options=QUICK,
        on_trace_ready=windows.append,
    ) as profiler:
        assert profiler.stage == stage
        refused = profiler.arm(WindowRequest(steps=1, stage="validate"))
        here = "this is 'fit'" if stage else "this profiler has none"
        assert (refused.accepted, refused.reason) == (False, f"it is for the stage 'validate', and {here}")
        assert profiler.arm(WindowRequest(steps=1, stage=stage))
        for _ in range(5):
            with sc.span("work"):
                pass
            profiler.step()
    (window,) = windows
    assert window.metadata["armed"].get("stage", "") == stage
