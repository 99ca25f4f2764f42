"""`explain` of what was really recorded: the cause first, nothing where nothing stands out, a refusal where there is too little."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import stepscope as sc
from stepscope.analysis.explain import explain, judge
from stepscope.analysis.findings import Answer, Finding
from stepscope.analysis.page.content import content_of
from stepscope.analysis.page.render import report_html
from stepscope.analysis.rules.evidence import Job
from stepscope.analysis.rules.ranks import check_slow_rank
from stepscope.analysis.tables.data_pipeline import MOST_PIPELINES
from stepscope.analysis.tables.rank_summary import RankSummary, Sample
from stepscope.runtime.control.entry_points.environment import SIGNALS_VARIABLE
from stepscope.runtime.errors import FormatError
from stepscope.runtime.flight.triggers.slow_step import SlowStep
from stepscope.runtime.windows.step_facts import Phase
from stepscope.runtime.windows.step_parts import columns_of
from tests.support.basics import require
from tests.support.commands import python, stepscope
from tests.support.killed_programs import Crash

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def record(directory: Path, step: Callable[[int], None], steps: int = 30) -> Path:
    """A run of so many steps."""
    with sc.trace(output_dir=directory) as profiler:
        for number in range(steps):
            step(number)
            profiler.step()
    return directory


def span(name: str, seconds: float) -> None:
    """A span that lasts so long."""
    with sc.span(name):
        time.sleep(seconds)


OPERATORS: list[dict[str, Any]] = [
    {"id": 1, "type": "Map", "workers": 3, "children": [2], "capacity": 16},
    {"id": 2, "type": "Generator", "workers": 1, "children": [], "capacity": 16},
]
"""Of a pipeline of MindSpore."""


def describe_pipeline(source: str = "MindSpore") -> None:
    """Records the facts of a pipeline."""
    sc.instant("data pipeline", category="data pipeline", source=source, interval_ms=20, operators=OPERATORS)


@pytest.mark.checklist("D13")
@pytest.mark.parametrize("sampled", [True, False])
def test_data_of_another_loader(tmp_path: Path, sampled: bool) -> None:
    """A data set of MindSpore is no DataLoader: the operator of its pipeline that is too slow is named where it was sampled, and what to
    record where it was not."""

    def step(number: int) -> None:
        with sc.span("TupleIterator.__next__", category="dataloader"):
            time.sleep(0.004)
        span("work", 0.001)
        if sampled and number == 0:
            describe_pipeline()
        if sampled:
            for name, value in (("Map(id=1) queue", 0), ("Generator(id=2) queue", 16)):
                sc.counter(name, value, category="data pipeline")

    answer = explain(record(tmp_path / "run", step))
    (first, *_) = answer.findings
    assert first.id == "input-bound-pipeline" and "waits for data" in first.title and (first.cost or 0) > 0.5
    assert "TupleIterator.__next__ takes" in first.evidence[0]
    assert " ".join(str(answer).split()).count("slower than Generator(id=2)") == sampled, (
        "a finding's evidence is not said twice"
    )
    if sampled:
        assert "its output to 0%: it is slower than Generator(id=2)" in first.evidence[1]
        assert first.action == "num_parallel_workers above 3 for Map"
    else:
        assert "data_process=True" in first.evidence[1] and "cheaper" in first.action


def test_data_of_a_loader_of_the_programs_own(tmp_path: Path) -> None:
    """The span that the program wrote is named, and no DataLoader, which it has none of."""

    def step(_: int) -> None:
        with sc.span("load", category="data"):
            time.sleep(0.004)
        span("work", 0.001)

    text = str(explain(record(tmp_path / "run", step)))
    assert "load takes" in text and "cheaper" in text and "DataLoader" not in text, text


@pytest.mark.checklist("D13")
def test_the_numbers_of_a_pipeline(tmp_path: Path) -> None:
    """The text and the JSON have each operator with its workers, processor and queue, and the slowest one, as the report has them."""
    readings = {
        "Map(id=1) queue": 2,
        "Generator(id=2) queue": 16,
        "Map(id=1) processor": 60,
        "batch waited for (ms)": 3.0,
    }

    def step(number: int) -> None:
        if number == 0:
            describe_pipeline()
        for name, value in readings.items():
            sc.counter(name, value, category="data pipeline")
        sc.counter("host cpu %", 87, category="host")

    run = record(tmp_path / "run", step)
    answer = msgspec.json.decode(stepscope("explain", str(run), "--json", cwd=tmp_path).stdout, type=Answer)
    (pipeline,) = answer.ranks[0].pipelines
    map_, generator = pipeline.operators
    assert (pipeline.source, pipeline.waited_ns, pipeline.bottleneck) == ("MindSpore", 3e6, "Map(id=1)")
    assert pipeline.machine_use == 87
    assert (map_.workers, map_.used_per_worker, map_.capacity, map_.queued) == (3, 20, 16, 2)
    assert (map_.filled, map_.empty, generator.filled, generator.used_per_worker) == (12.5, 0, 100, None)
    assert (pipeline.advice[0].kind, pipeline.advice[0].operator) == ("slower", "Map(id=1)")
    text = stepscope("explain", str(run), cwd=tmp_path).stdout
    message = " ".join(text.split())
    assert "Data pipeline of MindSpore; the loop waited 3.00ms for a batch on average" in message
    assert "the processors are 87% busy; the slowest operator is Map(id=1)" in message
    assert f"{pipeline.advice[0].text}. Try num_parallel" in message
    assert "Map(id=1) 3 20% 2.0 of 16 12% 0%" in message and "Generator(id=2) 1 – 16.0 of 16 100% 0%" in message
    page = report_html(run)
    assert pipeline.advice[0].text in page and ">12 %</td>" in page
    assert "a batch for 3.00ms on average. The processors are 87 % busy" in page


@pytest.mark.parametrize(("ns_a_step", "known"), [(10, True), (10**9, False)])
def test_use_of_processors_with_a_pipeline(ns_a_step: int, known: bool, tmp_path: Path) -> None:
    """Without counters of the host, the signals say how busy the processors are. No more than all of them are named."""

    def step(number: int) -> None:
        sc.counter("batch waited for (ms)", 3.0, category="data pipeline")
        sc.counter("processors", 2, category="processor demand")
        sc.counter("processors in use", number * ns_a_step, category="processor demand")
        if number == 0:
            describe_pipeline()

    (pipeline,) = explain(record(tmp_path / "run", step)).ranks[0].pipelines
    assert ((pipeline.machine_use or 0) > 0) is known


def test_more_pipelines_than_are_shown(tmp_path: Path) -> None:
    """The answer has as many as the report shows, and both say how many they leave out."""

    def step(number: int) -> None:
        if number < MOST_PIPELINES + 2:
            sc.instant("DataLoader", category="loader", workers=2, prefetch=2, dataset=f"Photos{number}")
            sc.counter("batches ready", number, category="loader")

    run = record(tmp_path / "run", step)
    answer = explain(run)
    (rank,) = answer.ranks
    assert (len(rank.pipelines), rank.more_pipelines) == (MOST_PIPELINES, 2)
    text, page = str(answer), report_html(run)
    assert text.count("pipeline of torch") == page.count("Data pipeline of torch") == MOST_PIPELINES
    assert "2 more data pipelines not shown" in text and "2 more data pipelines not shown" in page


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_that_start_anew_for_each_pass(persistent: bool, tmp_path: Path) -> None:
    """The first batch of each pass is waited for: for new workers, or for something else."""

    def step(number: int) -> None:
        if number % 10 == 0:
            sc.instant("DataLoader", category="loader", workers=2, persistent=persistent)
        span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 0.0002 if number % 10 else 0.06)
        span("work", 0.004)

    found = {finding.id: finding for finding in explain(record(tmp_path / "run", step, 60)).findings}
    assert ("workers-restart" in found) is not persistent and ("periodic-stall" in found) is persistent
    if not persistent:
        assert "persistent_workers=True" in found["workers-restart"].action


def test_a_counter_that_is_no_number(tmp_path: Path) -> None:
    """With the step in which it came first."""

    def step(number: int) -> None:
        span("aten::mm", 0.001)
        sc.counter("loss", float("nan") if number >= 25 else 1.0)

    (finding,) = [one for one in explain(record(tmp_path / "run", step)).findings if one.id == "not-finite"]
    assert finding.steps == (25,) and "loss" in finding.title


@pytest.mark.parametrize(("steps", "text"), [(0, "Steps are missing"), (1, "Steps are missing"), (5, "5 steps were")])
def test_too_few_steps_are_refused(steps: int, text: str, tmp_path: Path) -> None:
    """With the reason and what to record; the few are shown all the same."""
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        for _ in range(steps):
            span("work", 0.001)
            profiler.step()
    answer = explain(tmp_path / "run")
    assert answer.refused and text in answer.refused and not answer.findings


def test_there_is_nothing(tmp_path: Path) -> None:
    """One line says what is missing where."""
    with pytest.raises(FileNotFoundError, match="nowhere"):
        explain(tmp_path / "nowhere")
    with pytest.raises(FormatError, match="no recording"):
        explain(tmp_path)
    done = stepscope("explain", tmp_path / "nowhere", cwd=tmp_path)
    assert done.returncode == 1 and "nowhere" in done.stderr and "Traceback" not in done.stderr


def test_a_loop_of_python_alone_is_no_fault(tmp_path: Path) -> None:
    """Tight, and with many steps: it is explained in no time, too."""
    with sc.trace(output_dir=tmp_path / "run") as profiler:
        for number in range(20_000):
            sum(range(number % 100))
            profiler.step()
    answer = explain(tmp_path / "run")
    assert answer.verdict.startswith("No fault that is known. 1") and not answer.findings


@pytest.mark.parametrize(("samples", "reported"), [(2, False), (12, True)])
def test_a_few_samples_name_no_place(samples: int, reported: bool, tmp_path: Path) -> None:
    """Where no fault is known."""
    recording = sc.load(record(tmp_path / "run", lambda _: time.sleep(0.001)))
    summary = RankSummary(recording.ranks[0])
    at = int(summary.judged_steps["begin"][3])
    summary.samples = [Sample(at + number, "<module> (/p/own.py:14)", "R", "") for number in range(samples)]
    answer = judge(recording, [summary])
    assert answer.verdict.startswith("No fault that is known.") and ("own.py:14" in str(answer)) is reported


def first_of(directory: Path, program: str) -> Finding:
    """Runs a program with all signals, and returns the first finding."""
    file = directory / "own.py"
    file.write_text(f"import sys, time\nimport stepscope as sc\n{program}")
    done = python(file, directory / "run", cwd=directory)
    assert done.returncode == 0, done.stderr
    return explain(directory / "run").findings[0]


@pytest.mark.parametrize(("signals", "span"), [("all", "work"), ("steps", "work"), ("steps", "micro_step")])
def test_the_span_that_waits_is_named(signals: str, span: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program is no function that could be named, or no stack was sampled. One of our own callbacks says nothing."""
    monkeypatch.setenv(SIGNALS_VARIABLE, signals)
    first = first_of(
        tmp_path,
        "with sc.trace(output_dir=sys.argv[1]) as profiler:\n"
        "    for _ in range(25):\n"
        f"        with sc.span('{span}'):\n"
        "            time.sleep(0.05)\n"
        "        with sc.span('aten::mm', category='cpu_op'):\n"
        "            pass\n"
        "        profiler.step()\n",
    )
    named = span == "work"
    assert first.id == "program-waits" and ("most of it in the span" in first.title) is named
    assert first.action.startswith("work: move" if named else "move")


@pytest.mark.parametrize("mode", [True, False])
def test_anomaly_detection_that_was_left_on(mode: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch itself does it, in a training of many small operators."""
    torch = require("torch")
    monkeypatch.setenv(SIGNALS_VARIABLE, "steps,stacks")
    weights = torch.ones(8, requires_grad=True)
    with torch.autograd.set_detect_anomaly(mode), sc.trace(output_dir=tmp_path / "run") as profiler:
        for _ in range(150):
            value = weights
            for _ in range(100):
                value = value * 1.01
            value.sum().backward()
            profiler.step()
    found = {finding.id for finding in explain(tmp_path / "run").findings}
    assert ("anomaly-detection" in found) is mode


def test_a_program_that_waits_and_computes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finding has the cost of the wait alone, and the function that waits."""
    monkeypatch.delenv(SIGNALS_VARIABLE)
    first = first_of(
        tmp_path,
        "def load():\n"
        "    time.sleep(0.03)\n"
        "def compute():\n"
        "    begin = time.thread_time()\n"
        "    while time.thread_time() - begin < 0.02: pass\n"
        "with sc.trace(output_dir=sys.argv[1]) as profiler:\n"
        "    for _ in range(40):\n"
        "        with sc.span('load'): load()\n"
        "        with sc.span('compute'): compute()\n"
        "        profiler.step()\n",
    )
    assert first.id == "program-waits" and 0.2 < (first.cost or 0) < 0.8  # computing takes longer while other work runs
    assert 25e6 < (first.cost_ns or 0) < 40e6 and first.places[0].function == "load"


def test_a_span_around_the_loop_is_not_named(tmp_path: Path) -> None:
    """Its own time is that which no span in a step covers."""

    def step(_: int) -> None:
        span("load", 0.003)
        span("store", 0.003)
        time.sleep(0.004)

    with sc.trace(output_dir=tmp_path / "run") as profiler, sc.span("epoch"):
        for number in range(30):
            step(number)
            profiler.step()
    verdict = explain(tmp_path / "run").verdict
    assert "most of it in" in verdict and "epoch" not in verdict


def test_a_rank_whose_steps_take_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named, if only as likely, where no collective says who waits for whom."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, seconds in enumerate((0.004, 0.024)):
        monkeypatch.setenv("RANK", str(rank))
        record(tmp_path / "job" / f"rank{rank}", lambda _, seconds=seconds: span("work", seconds), steps=25)  # type: ignore[misc]
    found = {finding.id: finding for finding in explain(tmp_path / "job").findings}
    slow = found["slow-rank"]
    assert slow.ranks == (1,) and slow.certainty == "likely" and "no collective was recorded" in slow.evidence[1]
    assert slow.cost is not None and slow.cost > 0.3


def test_a_rank_that_waits_for_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time without communication is as long as the parts of that are, though the wait is not the rank's own; parts that
    are no share of a step have no column."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    def step(data: float, communication: float) -> None:
        span(LOADER, data)
        span("all_reduce", communication)
        with sc.span("short"):
            pass

    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        record(tmp_path / f"rank{rank}", lambda _, rank=rank: step(0.002 + 0.02 * rank, 0.021 - 0.02 * rank))  # type: ignore[misc]
    recording = sc.load(tmp_path)
    summaries = [RankSummary(rank) for rank in recording.ranks]
    slow = summaries[1]
    slow.judged_steps["run_queue_ns"] = slow.phase(Phase.DATA) // 4
    (found,) = check_slow_rank(Job(summaries))
    times = re.findall(r"takes ([\d.]+)ms, .* ([\d.]+)ms here", found.evidence[1])
    assert found.ranks == (1,) and float(times[0][0]) >= float(times[0][1]) > 20
    page = content_of(recording, summaries, judge(recording, summaries))
    assert {"#data", "#communication"} <= set(page.rank_columns) and "#other spans" not in page.rank_columns


def test_a_callback_that_blocks_its_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No task does: it is a function that was passed to `call_later`."""
    monkeypatch.delenv(SIGNALS_VARIABLE)

    def refresh(loop: asyncio.AbstractEventLoop) -> None:
        end = time.thread_time() + 0.1
        while time.thread_time() < end:
            pass
        loop.call_later(0.1, refresh, loop)

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.call_soon(refresh, loop)
        for _ in range(100):
            await asyncio.sleep(0.01)

    with (
        sc.trace(output_dir=tmp_path, options=sc.Options(signals=("tasks", "stacks"))),
        asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner,
    ):
        runner.run(serve())
    first = explain(tmp_path).findings[0]
    assert first.id == "loop-blocked" and first.places[0].function.endswith("refresh")
    assert first.places[0].file == __file__ and "run_in_executor" in first.action
    assert "refresh (" in first.evidence[0] and "serve" in first.evidence[1]


def test_a_run_that_was_killed(tmp_path: Path) -> None:
    """The answer says how to record more; what was recovered is no other run than the journal that it was made of."""
    crash = Crash(tmp_path).execute(
        """
        profiler.start()
        for number in range(60):
            with sc.span("work"):
                time.sleep(0.002)
            profiler.step()
            number == 30 and profiler.flush()
        die()
        """.replace("profiler.start()", "import time; profiler.start()")
    )
    killed = explain(crash.run)
    assert f"`stepscope recover {crash.run}` may bring back more" in killed.trust and "or still runs" in killed.trust
    made = crash.recover().journal
    recovered = sc.load(crash.run)
    assert [rank.path for rank in recovered.ranks] == [made] and not recovered.notes
    assert not recovered.ranks[0].ended and len(recovered.ranks[0].steps) == 60
    assert "1 process did not end in order, and was recovered." in explain(recovered).trust
    record(crash.run, lambda _: span("work", 0.001), 25)
    later = sc.load(crash.run)
    assert len(later.ranks[0].steps) == 25 and later.notes == [
        f"{crash.run / 'journal'} is of an earlier run: name it to read it"
    ]


def test_why_events_were_dropped(tmp_path: Path) -> None:
    """The two largest reasons."""
    recording = sc.load(record(tmp_path / "run", lambda _: span("work", 0.001), 3))
    recording.ranks[0].dropped = {"late": 1, "overflow": 70, "inbox": 20}
    assert "91 dropped (overflow 70, inbox 20)" in explain(recording).trust


def test_missing_time_of_a_source_is_in_the_line_on_trust(tmp_path: Path) -> None:
    """And in what programs read; of several processes the sum."""
    recording = sc.load(record(tmp_path / "run", lambda _: span("work", 0.001), 3))
    (rank,) = recording.ranks
    assert not rank.missing and not explain(recording).missing
    rank.missing = {"torch": 1_200_000_000, "mine": 4_000_000}
    answer = explain(recording)
    assert answer.trust.endswith("none dropped, 1.20s of torch and 4.00ms of mine missing.")
    assert answer.missing == {"torch": 1_200_000_000, "mine": 4_000_000}
    recording.ranks.append(rank)
    assert "2.40s of torch and 8.00ms of mine missing in 2 processes." in explain(recording).trust


@pytest.mark.needs("torch")
def test_memory_that_torchs_profiler_holds(tmp_path: Path) -> None:
    """In kineto mode it holds gradients that the program has freed; so nobody can know whether the program's memory grows."""
    torch: Any = importlib.import_module("torch")
    model = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 1))
    optimizer, x = torch.optim.SGD(model.parameters()), torch.randn(64, 512)

    def closure() -> Any:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        return loss

    with sc.trace(backends=[sc.TorchBackend("kineto")], output_dir=tmp_path) as profiler:
        for _ in range(40):
            optimizer.step(closure)
            profiler.step()
    answer = explain(tmp_path)
    assert "memory-grows" not in [finding.id for finding in answer.findings]
    assert any(why.startswith("whether memory grows") for why in answer.unknown)


def test_a_file_that_is_no_journal_is_noted_once(tmp_path: Path) -> None:
    """Nothing is merged here."""
    record(tmp_path / "run", lambda _: span("work", 0.001), 3)
    (tmp_path / "run" / "other.journal").write_text("none")
    (note,) = sc.load(tmp_path / "run").notes
    assert "other.journal" in note and "not merged" not in note


def test_steps_as_a_table(tmp_path: Path) -> None:
    """Parts have the names that the answer shows, and add up to the step."""

    def step(_: int) -> None:
        span(LOADER, 0.001)

    (rank,) = sc.load(record(tmp_path / "run", step, steps=5)).ranks
    assert repr(rank) == f"<Rank {rank.name!r} on {rank.host}, pid {rank.pid}: 1 window>"
    columns = columns_of(rank.steps)
    assert list(columns)[:5] == ["window", "step", "begin_ns", "end_ns", "duration_ns"] and "cpu_ns" in columns
    parts = [columns[name] for name in columns if name == "data" or name.startswith("not covered")]
    assert columns["data"].all() and np.sum(parts, axis=0).tolist() == columns["duration_ns"].tolist()
    assert {column.ndim for column in columns.values()} == {1}
    assert rank.steps["phases"][:, Phase.DATA].tolist() == columns["data"].tolist()
    if importlib.util.find_spec("pandas"):
        assert list(rank.steps_pandas().columns) == list(columns)
    if importlib.util.find_spec("pyarrow"):
        assert rank.steps_arrow().num_rows == len(rank.steps)


def test_why_a_saved_step_was_slow(tmp_path: Path) -> None:
    """The trigger of a flight recorder, and the part that took longer than usual, where one did. The report has it, too."""
    recorder = sc.FlightRecorder(steps=8, triggers=(SlowStep(),))
    with sc.trace(output_dir=tmp_path / "run", keep_last=recorder) as profiler:
        for number in range(50):
            with sc.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                time.sleep(0.2 if number == 40 else 0.001)
            with sc.span("work"):
                time.sleep(0.003)
            if number == 45:
                profiler.save("by hand")
            profiler.step()
    answer = explain(tmp_path / "run")
    (text,) = [each for each in answer.ranks[0].saved if "step 40" in each]
    assert text.startswith("step 40 took") and text.endswith("more in data")
    assert text in " ".join(str(answer).split()) and text in report_html(tmp_path / "run")
    assert "by hand" not in str(answer.ranks[0].saved)
    with sc.trace(output_dir=tmp_path / "few", keep_last=3) as profiler:
        for _ in range(5):
            span("work", 0.001)
            profiler.step()
        profiler.save("by hand")
    assert "keep_last" in explain(tmp_path / "few").refused


@pytest.mark.parametrize("operator", ["aten::mul_", "aten::_fused_adam_"])
def test_an_optimizer_that_is_not_fused(operator: str, tmp_path: Path) -> None:
    """It is no fault, and yet the verdict names the quicker one."""

    def step(_: int) -> None:
        with sc.span("aten::mm", category="cpu_op"):
            time.sleep(0.003)
        with sc.span("Optimizer.step#Adam.step"), sc.span(operator, category="cpu_op"):
            time.sleep(0.002)

    answer = explain(record(tmp_path / "run", step))
    assert not answer.findings and answer.verdict.startswith("Nothing stands out")
    assert ("Adam(..., fused=True)" in answer.verdict) is (operator == "aten::mul_")
