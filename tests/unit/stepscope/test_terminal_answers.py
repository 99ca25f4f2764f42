"""The answer on a terminal: places are short, the end of a run fits, and a program without steps has no bars of one."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from stepscope.analysis.findings import Answer, Finding, Place, RankAnswer, Share, TaskTimes
from stepscope.analysis.terminal import MOST_LINES, short_places, show, show_short
from stepscope.cli.programs.ending import Ending
from stepscope.runtime.files.paths import shown_file
from stepscope.runtime.windows.step_statistics import StepStatistics as Statistics

STATISTICS = Statistics(
    steps=150,
    steady=145,
    mean=4e7,
    p50=4e7,
    p95=5e7,
    rate=25.0,
    slowest=7,
    slowest_ns=9e7,
    slowest_why="no single part",
)
PARTS = tuple(Share(f"part {number}", 4e6, 0.1) for number in range(10))
FINDING = Finding(
    id="input-bound-in-process",
    title="Input-bound: the training waits for data 32% of each step.",
    cost=0.32,
    cost_ns=1.2e7,
    evidence=tuple(f"sentence {number} " + "with many words " * 8 for number in range(4))
    + ("98% of that in Photos.__getitem__ (/somewhere/else/data/flowers.py:43)",),
    action="DataLoader(..., num_workers=4)",
    gain="a step would take less",
)


def shown(answer: Answer, width: int = 80, *, end: bool = False) -> str:
    """The answer as text."""
    text = StringIO()
    console = Console(file=text, width=width, highlight=False)
    if end:
        show_short(answer, console, [("Files", "runs/exp1")], "stepscope report runs/exp1")
    else:
        show(answer, console)
    return text.getvalue()


def test_files_are_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative below the working directory, else their last two parts; the place itself keeps the whole path."""
    monkeypatch.chdir(tmp_path)
    assert shown_file(str(tmp_path / "src" / "deep" / "train.py")) == "src/deep/train.py"
    assert shown_file("/elsewhere/pkg/data.py") == "pkg/data.py" and shown_file("train.py") == "train.py"
    assert short_places(f"in f ({tmp_path}/a b.py:3), g (/x/y/z.py:4)") == "in f (a b.py:3), g (y/z.py:4)"
    assert short_places("3 of 4 (75 %) at 10:30 (see/it:1)") == "3 of 4 (75 %) at 10:30 (see/it:1)"
    assert "/elsewhere/pkg/data.py:3" in str(Place("f", "/elsewhere/pkg/data.py", 3))
    monkeypatch.chdir("/")
    assert shown_file("/data/images/set.py") == "images/set.py"


@pytest.mark.parametrize("width", [30, 80, 200])
def test_the_end_of_a_run_fits(width: int) -> None:
    """Verdict, what to try, the largest parts, why the last window was saved, files and trust remain, whatever the finding says;
    nothing is wider."""
    rank = RankAnswer(
        rank=None, name="p", statistics=STATISTICS, shares=PARTS, saved=("step 2 hung", "step 7 took 9 s")
    )
    answer = Answer(path="runs/exp1", verdict=FINDING.title, findings=(FINDING,), ranks=(rank,), trust="1 event.")
    lines = shown(answer, width, end=True).splitlines()
    assert len(lines) <= MOST_LINES and max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert "Input-bound:" in text and "runs/exp1" in text and "stepscope report" in text and "the rest" in text
    assert "Saved step 7 took 9 s" in text and "step 2" not in text
    if width >= 80:
        assert "data/flowers.py:43" in text and "num_workers=4" in text


def test_programs_of_tasks_have_no_bars() -> None:
    """They have a line for each name of tasks, and a program without tasks has the places of its samples."""
    one_step = msgspec.structs.replace(STATISTICS, steps=1)
    task = TaskTimes(name="serve", count=3, running=2_000_000, ready=0, waiting=5_000_000_000)
    rank = RankAnswer(rank=None, name="p", statistics=one_step, shares=PARTS, tasks=(task,))
    for end in (False, True):
        text = shown(Answer(path="r", verdict="v", ranks=(rank,)), end=end)
        assert "3 × serve  ran 2.00ms, waited 5.00s" in text and "█" not in text and "1 step" not in text
    waits = msgspec.structs.replace(task, place=Place("Pool.take", "/x/y/z.py", 7, 0.9))
    rank = msgspec.structs.replace(rank, tasks=(waits,))
    assert "waited 5.00s, 90% of it in Pool.take (y/z.py:7)" in shown(Answer(path="r", verdict="v", ranks=(rank,)), 200)
    rank = msgspec.structs.replace(rank, tasks=(), places=(Place("f", "/x/y/z.py", 3, 0.8),))
    assert "80% f (y/z.py:3)" in shown(Answer(path="r", verdict="v", ranks=(rank,)))


def test_ranks_are_called_ranks() -> None:
    """And processes without a rank processes; the steps shown are those of the rank that the verdict is about."""
    ranks = tuple(RankAnswer(rank=number, name="p", statistics=STATISTICS, shares=PARTS) for number in range(3))
    slow = msgspec.structs.replace(FINDING, ranks=(2,))
    assert "3 ranks · rank 2: 150 steps" in shown(Answer(path="r", verdict="v", findings=(slow,), ranks=ranks), 200)
    others = tuple(msgspec.structs.replace(rank, rank=None) for rank in ranks)
    assert "3 processes · 150 steps" in shown(Answer(path="r", verdict="v", ranks=others), 200)


def test_the_reason_is_printed_instead_of_an_answer(tmp_path: Path) -> None:
    """An error in the answer is its text, for people and for programs, with the notes."""
    ending = Ending(path=str(tmp_path / "absent"), notes=(("Trace", "here"),))
    lines = ending.text().splitlines()
    assert lines[0].startswith("  No answer  ") and lines[1:] == ["  Trace  here"]
    answer, notes = ending.answer()
    assert answer.refused and answer.refused in lines[0] and notes == ending.notes
