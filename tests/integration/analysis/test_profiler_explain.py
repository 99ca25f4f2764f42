"""`Profiler.explain()`, and what notebooks show of a profiler: while it records, when it is closed, where there is nothing."""

from __future__ import annotations

import copy
import pickle
import sys
import textwrap
import time
from pathlib import Path

import pytest

import stepscope as sc
from stepscope.runtime.errors import ProfilerStateError
from tests.support.basics import html_of
from tests.support.commands import stepscope
from tests.support.launch import STRICT, run_to_end
from tests.support.messages import refused

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
HOSTILE = "</script><b>[bold]\x1b[31m"


def output_of(program: str, *arguments: str) -> str:
    """The output of a program of its own."""
    done = run_to_end([sys.executable, "-P", *STRICT, "-c", textwrap.dedent(program), *arguments], timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def steps(profiler: sc.Profiler, count: int = 30) -> None:
    """Steps that wait for data."""
    for _ in range(count):
        with sc.span(LOADER):
            time.sleep(0.002)
        with sc.span(HOSTILE):
            pass
        profiler.step()


def test_while_it_records_and_when_it_is_closed(tmp_path: Path) -> None:
    """The answer has all events so far, without a flush by hand; an end that did not come is the end of no step."""
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        steps(profiler)
        time.sleep(0.2)
        with sc.span("after the loop"):
            pass
        early = profiler.explain()
        assert early.findings[0].id == "input-bound-in-process" and "still run" in early.trust
        first = early.ranks[0].statistics
        assert first is not None and first.steps == 30 and first.slowest_ns < 0.2e9
        steps(profiler, 10)
    late = profiler.explain()
    assert late.ranks[0].statistics is not None and late.ranks[0].statistics.steps == 40
    assert isinstance(late, sc.results.Answer) and isinstance(late.findings[0], sc.results.Finding)
    assert sc.explain(sc.load(tmp_path / "run")).findings == sc.explain(tmp_path / "run").findings == late.findings


def test_it_prints_the_answer_of_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without colours, as wide as the terminal."""
    monkeypatch.setenv("COLUMNS", "100")
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        steps(profiler)
    text = str(profiler.explain())
    done = stepscope("explain", tmp_path / "run" / "journal", cwd=tmp_path)
    assert text.split() == done.stdout.split() and "Input-bound" in text and "\x1b" not in text
    assert (
        any(line.startswith("  Input-bound") for line in text.splitlines()) and max(map(len, text.splitlines())) <= 100
    )


def test_a_profiler_without_a_journal_is_refused(tmp_path: Path) -> None:
    """A profiler that was not started, or writes no journal, cannot be explained."""
    profiler = sc.trace(output_dir=tmp_path / "run")
    with refused(ProfilerStateError, "start()"):
        profiler.explain()
    with sc.trace(output_dir=tmp_path / "other", options=sc.Options(journal=False)) as profiler:
        steps(profiler)
    with refused(ProfilerStateError, "Options.journal"):
        profiler.explain()


def test_explain_of_keep_last(tmp_path: Path) -> None:
    """Of a flight recorder all windows that were saved, which are of one process; before that, what is to be done."""
    with sc.trace(output_dir=tmp_path / "run", keep_last=sc.FlightRecorder(steps=25, triggers=())) as profiler:
        steps(profiler, 40)
        before = profiler.explain()
        assert before.refused and not before.findings and "save()" in before.refused
        for reason in ("one", "another"):
            profiler.save(reason)
            steps(profiler, 30)
        found = profiler.explain()
    assert len(found.ranks) == 1 and len(profiler.saved()) >= 2
    assert found.findings and found.findings[0].id == "input-bound-in-process"
    assert found.ranks[0].statistics is not None and found.ranks[0].statistics.steps > 40


def test_a_process_that_takes_no_part(tmp_path: Path) -> None:
    """An inert profiler raises nothing into the program: its answer says why there is none."""
    program = """
        import os, sys
        import stepscope as sc

        profiler = sc.trace(output_dir=sys.argv[1])
        profiler.start()
        if os.fork() == 0:
            answer = profiler.explain()
            print("refused:", answer.refused, flush=True)
            assert str(answer) and html_of(answer)
            os._exit(0)
        os.wait()
        profiler.close()
    """
    output = output_of(program, str(tmp_path / "run"))
    assert "refused: Nothing was recorded: " in output and "forked" in output


def test_parts_of_a_page(tmp_path: Path) -> None:
    """A profiler, its table, its answer and its report: names are text, nothing is run, styles touch nothing else."""
    with sc.trace(name=HOSTILE, output_dir=tmp_path / "run") as profiler:
        early = html_of(profiler)
        steps(profiler)
    table = profiler.summary(sort_by="count", top=1)
    parts: dict[str, tuple[str, str]] = {
        "new": (html_of(sc.trace(output_dir=tmp_path / "other")), "new"),
        "early": (early, "running"),
        "profiler": (html_of(profiler), "closed"),
        "summary": (html_of(table), "Median"),
        "aggregates": (html_of(profiler.aggregates()), "Median"),
        "explain": (html_of(profiler.explain()), "Input-bound"),
        "report": (html_of(profiler.report()), "balanced"),
    }
    for name, (html, text) in parts.items():
        assert text in html, name
        assert html.startswith('<div class="stepscope note">') and "<script" not in html and "\x1b" not in html, name
        assert "<b>" not in html, name
    assert "&lt;b&gt;" in parts["aggregates"][0] and "&lt;b&gt;" in parts["profiler"][0]
    assert type(pickle.loads(pickle.dumps(table))) is str and copy.copy(table) == table
    assert table.count("<b>") == 1 and parts["summary"][0].count("<td>") == 2, "one row has a name and a category"


def test_progress_in_a_cell(tmp_path: Path) -> None:
    """A kernel's display is updated from a thread of ours, twice a second at most; elsewhere nothing is shown or started; a display that
    fails does no harm."""
    program = """
        import sys, threading, time, types
        import stepscope as sc

        shown = []

        class Handle:
            def update(self, bundle, *, raw):
                assert raw
                shown.append((time.monotonic(), threading.current_thread().name, bundle))

        def display(bundle, *, raw, display_id):
            Handle().update(bundle, raw=raw)
            return Handle()

        with sc.trace(output_dir=sys.argv[1]) as profiler:
            with profiler.progress():
                assert "stepscope progress" not in {thread.name for thread in threading.enumerate()}
            package = sys.modules["IPython"] = types.ModuleType("IPython")
            package.get_ipython = lambda: types.SimpleNamespace(kernel=object())
            package.display = sys.modules["IPython.display"] = types.ModuleType("IPython.display")
            package.display.display = display
            with profiler.progress():
                until = time.monotonic() + 1.3
                while time.monotonic() < until:
                    profiler.step()
                    time.sleep(0.01)
            del package.display.display
            with profiler.progress():
                profiler.step()
        assert "stepscope progress" not in {thread.name for thread in threading.enumerate()}
        times, threads, bundles = zip(*shown)
        between = [late - early for early, late in zip(times[:-1], times[1:-1])]
        assert between and min(between) >= 0.5, between
        assert set(threads) == {"stepscope progress"}, threads
        assert "steps/s" in bundles[-1]["text/plain"] and bundles[-1]["text/plain"] in bundles[-1]["text/html"]
        print("ok")
    """
    assert "ok" in output_of(program, str(tmp_path / "run"))
