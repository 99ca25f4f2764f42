"""The live page's view of running jobs: verdicts and the heat map, from facts of steps."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest

from stepscope.analysis.live import judge_steps
from stepscope.collector.live.stream import State, Stream
from stepscope.collector.live.streams import Streams
from stepscope.collector.live.verdicts import MAX_RANKS, LiveProcess, Verdicts
from stepscope.collector.live.views import JobVerdict, LiveFinding
from stepscope.collector.web.charts import HeatmapQuery, Heatmaps
from stepscope.exporters.stream.protocol import Hello, StepSummary
from stepscope.exporters.stream.step_summary import facts_of, summary_of
from stepscope.runtime.journal.format import FrameType
from stepscope.runtime.journal.records import WindowOpened
from stepscope.runtime.requests.command import Answer, Command
from stepscope.runtime.windows.step_facts import FACTS_DTYPE, SIGNALS, Phase
from tests.support.basics import poll
from tests.support.collecting import collecting, wait_until
from tests.support.launch import start
from tests.support.streams import CONNECTION
from tests.unit.collector.test_collector_live import events_frame, record_frame, run_of, steps

STEP = 20_000_000
"""ns."""
BEGIN = 10**15
LOADER = """
import sys, time
import stepscope as sc
from stepscope.exporters.stream.exporter import CollectorExporter
with sc.trace(exporters=[CollectorExporter(sys.argv[1])], name="loading") as profiler:
    for step in range(int(sys.argv[2])):
        with sc.span("next", category="data"):
            time.sleep(0.02)
        with sc.span("forward"):
            time.sleep(0.005)
        profiler.step()
"""


def summary(
    work: list[int],
    *,
    first: int = 10,
    data: float = 0.05,
    together: int = 0,
    stalls: int = 0,
    well: int = 0,
    stalled: Phase = Phase.CHECKPOINT,
    runs: float = 1.0,
    queued: int = 0,
    preempted: float = 1,
) -> StepSummary:
    """A summary of steps with so much work each, in ns.

    Args:
        data: share of the work that loads data.
        together: ns after which collectives let all ranks go on; 0: there are none.
        stalls: every so many steps one takes 200 ms longer.
        well: steps before the first that does.
        stalled: the phase that does.
        runs: share of the steps for which the thread runs; backward takes no more.
        queued: ns for which the thread waits for a processor in each longer step.
        preempted: how often it is made to wait in a step.
    """
    facts: Any = np.zeros(len(work), FACTS_DTYPE)
    took = np.array(work, np.int64)
    facts["phases"][:, Phase.DATA] = took * data
    facts["phases"][:, Phase.BACKWARD] = took * min(runs, 0.5)
    if together:
        facts["phases"][:, Phase.COMMUNICATION] = together - took
        took = np.full(len(work), together)
    if stalls:
        facts["phases"][well::stalls, stalled] += 200_000_000
        took[well::stalls] += 200_000_000
    facts["end"] = BEGIN + first * STEP + np.cumsum(took)
    facts["begin"], facts["step"] = facts["end"] - took, first + np.arange(len(work))
    for name in SIGNALS:
        facts[name] = np.nan
    facts["operators"], facts["cpu_ns"] = 10, took * runs
    if queued:
        facts["run_queue_ns"], facts["preemptions"] = np.where(np.array(work) > STEP, queued, 0), preempted
    return summary_of(facts, events=0, lost=0)


def streams_of(*ranks: StepSummary, name: str = "job") -> Streams:
    """A job whose ranks have sent these."""
    streams = Streams(4096)
    for number, sent in enumerate(ranks):
        stream = Stream(f"{number:032x}", run_of(number, name))
        stream.connection = CONNECTION
        stream.add_summary(sent)
        streams.add(stream)
    return streams


async def judged(streams: Streams) -> list[JobVerdict]:
    """The first verdict."""
    return (await judging(streams)).of(None)


async def judging(streams: Streams) -> Verdicts:
    """The verdicts, when there is one."""
    verdicts = Verdicts(streams, judge_steps)
    task = asyncio.create_task(verdicts.run())
    try:
        await poll(lambda: verdicts.of(None))
    finally:
        task.cancel()
    return verdicts


FAULTS: dict[str, tuple[Callable[[], list[StepSummary]], str, list[int]]] = {
    "a slow rank": (
        lambda: [summary([32_000_000 if rank == 3 else STEP] * 100, together=33_000_000) for rank in range(8)],
        "slow-rank",
        [3],
    ),
    "a rank that has become slow": (
        lambda: [
            summary([STEP] * 100 + [32_000_000 if rank == 1 else STEP] * 20, together=33_000_000) for rank in range(2)
        ],
        "slow-rank",
        [1],
    ),
    "a slow rank, and one that ended before": (
        lambda: [
            summary([32_000_000 if rank == 3 else STEP] * 100, together=33_000_000, first=10 if rank == 7 else 1000)
            for rank in range(8)
        ],
        "slow-rank",
        [3],
    ),
    "a slow loader": (lambda: [summary([STEP] * 60, data=0.5) for _ in range(2)], "input-bound-in-process", []),
    "a stall every 20 steps": (lambda: [summary([STEP] * 200, stalls=20)], "periodic-stall", []),
    "a stall of one rank, for which the others wait": (
        lambda: [
            summary(
                [STEP] * 200,
                together=21_000_000,
                stalls=20,
                stalled=Phase.CHECKPOINT if rank == 1 else Phase.COMMUNICATION,
            )
            for rank in range(3)
        ],
        "periodic-stall",
        [1],
    ),
    "garbage collections of one rank, for which the others wait": (
        lambda: [
            summary(
                [STEP] * 200,
                together=21_000_000,
                stalls=20,
                stalled=Phase.GARBAGE_COLLECTION if rank == 1 else Phase.COMMUNICATION,
            )
            for rank in range(3)
        ],
        "garbage-collection",
        [1],
    ),
    "a rank whose processor others use": (
        lambda: [
            summary(
                [32_000_000 if rank == 1 else STEP] * 100, together=33_000_000, queued=6_000_000 if rank == 1 else 0
            )
            for rank in range(2)
        ],
        "processors-contended",
        [1],
    ),
    "a program that sleeps": (lambda: [summary([STEP] * 60, runs=0.1)], "program-waits", []),
    "a thread that waits for processors, without a count of how often": (
        lambda: [summary([STEP + 1] * 60, queued=10_000_000, preempted=np.nan)],
        "processors-contended",
        [],
    ),
    "stalls that have begun": (lambda: [summary([STEP] * 460, stalls=20, well=400)], "periodic-stall", []),
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_fault_is_named(fault: str) -> None:
    """By the rules of `stepscope explain`, with what to do about it."""
    planted, rule, ranks = FAULTS[fault]
    (verdict,) = await judged(streams_of(*planted()))
    finding = verdict.findings[0]
    assert (finding.id, finding.ranks) == (rule, ranks)
    assert finding.action and finding.evidence and finding.cost > 0.1
    # How many processors there are is not known here, nor whether they are free.
    assert "num_workers=" not in finding.action
    assert (verdict.job_id, verdict.ranks) == ("job", len(planted()))


async def test_ranks_whose_newest_steps_have_not_come_are_compared() -> None:
    """All ranks are compared in the same steps, so a rank that has sent fewer is one of those that wait."""
    newest = [30, 30, 20]
    ranks = [
        summary([STEP] * 100 + [32_000_000 if rank == 1 else STEP] * newest[rank], together=33_000_000)
        for rank in range(3)
    ]
    (verdict,) = await judged(streams_of(*ranks))
    (finding,) = verdict.findings
    assert finding.title.startswith("Rank 1 holds the others up")


async def test_a_rank_that_waits_less_for_processors_is_not_slow() -> None:
    """The others take longer in turns, as they wait for processors; that a third one has more to do costs nothing."""
    busy = [[30_000_000 if step % 2 == turn else STEP for step in range(60)] for turn in (0, 1)]
    ranks = [summary(work, together=31_000_000, queued=18_000_000) for work in busy]
    (verdict,) = await judged(streams_of(*ranks, summary([STEP + 1_000_000] * 60, together=31_000_000)))
    assert [finding.id for finding in verdict.findings if finding.ranks] == []


@pytest.mark.parametrize(
    ("data", "part", "action"), [(0.6, "data", "a loader that"), (0.05, "backward", "give all ranks equal")]
)
async def test_what_makes_work_uneven(data: float, part: str, action: str) -> None:
    """Another rank has more to do in each step: items that take longer to load, or larger batches."""
    works = [[32_000_000 if step % 2 == turn else STEP for step in range(100)] for turn in (0, 1)]
    (verdict,) = await judged(streams_of(*(summary(work, together=33_000_000, data=data, runs=0.3) for work in works)))
    (uneven,) = (finding for finding in verdict.findings if finding.id == "uneven-work")
    assert f"11.9ms more to do than the others in that step, most of it {part}" in uneven.evidence[1]
    assert uneven.action.startswith(action) and uneven.gain == "up to 11.9ms of each step"


@pytest.mark.parametrize(("longer_ms", "is_found"), [(8, True), (3, False)])
async def test_ranks_that_have_little_more_to_do_are_not_uneven(longer_ms: int, is_found: bool) -> None:
    """However long they wait, as for a processor that the others have."""
    longer = STEP + longer_ms * 1_000_000
    works = [[longer if step % 2 == turn else STEP for step in range(100)] for turn in (0, 1)]
    waits = [summary(work, together=33_000_000) for work in works]
    (verdict,) = await judged(streams_of(*waits))
    assert ([finding.id for finding in verdict.findings] == ["uneven-work"]) is is_found


@pytest.mark.parametrize(("more_ms", "is_found"), [(0.1, False), (6, True)])
async def test_the_slow_rank_mostly_takes_longer(more_ms: float, is_found: bool) -> None:
    """To come last in most steps by next to nothing, and otherwise as late as the others, is no fault of one rank."""
    usual = STEP, STEP + int(more_ms * 1e6)
    works = [[40_000_000 if step % 3 == rank else usual[rank] for step in range(99)] for rank in (0, 1)]
    (verdict,) = await judged(streams_of(*(summary(work, together=41_000_000) for work in works)))
    assert ("slow-rank" in [finding.id for finding in verdict.findings]) is is_found


async def test_logging_in_each_step_is_named_without_its_calls() -> None:
    """Which they are is not sent."""
    (verdict,) = await judged(streams_of(summary([STEP] * 60, stalls=1, stalled=Phase.LOGGING)))
    (finding,) = verdict.findings
    assert finding.id == "saves-and-logs" and finding.evidence[0].startswith("calls take 200ms of a step")


async def test_equal_ranks_have_no_fault() -> None:
    """The verdict says how many steps were judged, and finds nothing."""
    (verdict,) = await judged(streams_of(*(summary([STEP] * 100, together=21_000_000) for _ in range(4))))
    assert verdict.findings == [] and (verdict.steps, verdict.ranks) == (100, 4)


async def test_runs_of_two_names_in_a_job_do_not_compare() -> None:
    """Each of two ranks trains and evaluates; a rank that trains slower than the other is found all the same."""
    for slow, found in ((20, []), (32, ["The steps of rank 1 take 1.6 times as long as those of the other ranks."])):
        streams = Streams(16)
        for number, (rank, name, ms) in enumerate(
            [(0, "train", 20), (1, "train", slow), (0, "test", 60), (1, "test", 60)]
        ):
            stream = Stream(f"{number:032x}", msgspec.structs.replace(run_of(rank, name), job="job"))
            stream.connection = CONNECTION
            stream.add_summary(summary([ms * 1_000_000] * 40))
            streams.add(stream)
        verdicts = await judging(streams)
        (verdict,) = verdicts.of("job")
        assert [finding.title for finding in verdict.findings] == found and verdict.ranks == 4
        assert verdicts.slow_ranks() == ({("job", "train", 1)} if found else set())


async def test_bad_steps_of_one_job_do_not_end_the_verdicts_of_others() -> None:
    """Steps that count anew, that take no time, or that are known in part cost their job its verdict at most."""
    streams = streams_of(summary([STEP] * 60, data=0.5))
    odd = summary([STEP] * 30, first=100)
    odd_times = msgspec.structs.replace(odd, runs=[msgspec.structs.replace(odd.runs[0], steps=bytes(8 * 40))])
    for number in range(2):
        stream = Stream(f"{number + 100:032x}", run_of(number, "odd"))
        stream.connection = CONNECTION
        for sent in (odd, summary([STEP] * 30, first=20), odd_times):
            stream.add_summary(sent)
        streams.add(stream)

    def judge(processes: Sequence[LiveProcess]) -> Sequence[LiveFinding]:
        if processes[0].run.name == "odd":
            raise ZeroDivisionError
        return judge_steps(processes)

    for how in (judge, judge_steps):
        verdicts = Verdicts(streams, how)
        task = asyncio.create_task(verdicts.run())
        try:
            await poll(lambda: verdicts.of("job"))  # noqa: B023
            await asyncio.sleep(0)
            assert not task.done()
        finally:
            task.cancel()
        assert verdicts.of("job")[0].findings[0].id == "input-bound-in-process"


async def test_of_many_ranks_the_slow_one_is_compared() -> None:
    """Only some are compared, and one that has become slow is among them."""
    ranks = [
        summary([STEP] * 80 + [32_000_000 if rank == 777 else STEP] * 20, together=33_000_000) for rank in range(1000)
    ]
    (verdict,) = await judged(streams_of(*ranks))
    assert verdict.ranks == MAX_RANKS and verdict.findings[0].ranks == [777]


@pytest.mark.parametrize(
    ("silence", "slowest", "opened", "found"),
    [
        (40, STEP, True, True),
        (40, 30_000_000_000, True, False),
        (20, STEP, True, False),
        (40, STEP, False, False),
    ],
)
async def test_a_job_that_ends_no_more_steps(
    silence: float, slowest: int, opened: bool, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared with its longest steps, and the rank that is behind is named. Between two windows no step is recorded."""
    monkeypatch.setattr("stepscope.collector.live.verdicts.INTERVAL_S", 0.01)
    streams = streams_of(*(summary([STEP] * 50 + [slowest] + [STEP] * (9 if rank == 2 else 10)) for rank in range(4)))
    for rank in streams:
        if opened:
            rank.latest.windows.opened(msgspec.msgpack.encode(WindowOpened(index=0, at_ns=BEGIN)))
            rank.latest.windows.stepped_to(0, 10, 60)
        rank.latest.steps_at -= silence
    verdicts = Verdicts(streams, judge_steps)
    task = asyncio.create_task(verdicts.run())
    try:
        if not found:
            await poll(lambda: verdicts.of(None))
            await asyncio.sleep(0.1)
            assert all(one.id != "steps-stopped" for one in verdicts.of(None)[0].findings)
            return
        await poll(lambda: verdicts.of(None) and verdicts.of(None)[0].findings)
        (finding,) = verdicts.of(None)[0].findings
        assert (finding.id, finding.ranks) == ("steps-stopped", [2]) and "py-spy dump --pid" in finding.action
        next(iter(streams)).latest.add_summary(summary([STEP], first=71))
        await poll(lambda: not verdicts.of(None)[0].findings)
    finally:
        task.cancel()


def job_of_which_one_stops(ends: bool) -> Streams:
    """Rank 2 ended its last step a minute ago, before rank 1 became slow."""
    late = [32_000_000 if rank == 1 else STEP for rank in range(3)]
    streams = streams_of(*(summary([STEP] * 100 + [late[rank]] * (0 if rank == 2 else 30)) for rank in range(3)))
    stopped = streams.ranks["job-2"].latest
    stopped.steps_at -= 60
    for rank in streams:
        rank.latest.windows.opened(msgspec.msgpack.encode(WindowOpened(index=0, at_ns=BEGIN)))
        rank.latest.windows.stepped_to(0, 10, 60)
    stopped.ended = ends
    return streams


@pytest.mark.parametrize("ends", [True, False])
async def test_a_rank_that_ends_no_more_steps_is_named_and_silences_nobody(ends: bool) -> None:
    """The others are compared in all of their steps; one that has ended is not named."""
    verdicts = await judging(job_of_which_one_stops(ends))
    (verdict,) = verdicts.of(None)
    found = {finding.id: finding.ranks for finding in verdict.findings}
    assert found == ({} if ends else {"steps-stopped": [2]}) | {"slow-rank": [1]} and verdict.ranks == 2
    assert ends or "py-spy dump --pid" in verdict.findings[0].action


def test_a_job_is_judged_while_it_runs(tmp_path: Any) -> None:
    """A real loop, the command line's collector: the answer is there before the loop ends, and the heat map has its steps."""
    with collecting(tmp_path) as collector:
        signals = {**os.environ, "STEPSCOPE_SIGNALS": "steps"}
        process = start([sys.executable, "-c", LOADER, collector.url, "2000"], env=signals)
        try:
            found = wait_until(lambda: [one for one in collector.get("/v1/job")["verdicts"] if one["findings"]])
            assert process.poll() is None
            (rank,) = collector.get("/v1/ranks")
        finally:
            process.kill()
            process.wait()
        assert found[0]["findings"][0]["id"] == "input-bound-in-process" and found[0]["job_id"] == "loading"
        assert rank["data_share"] > 0.5 and rank["resident_bytes"] > 1 << 20 and 0 <= rank["cpu_share"] <= 1
        heatmap = collector.get("/v1/heatmap?job=loading")
        assert heatmap["columns"] >= 20 and heatmap["rows"] == [rank["id"]] and heatmap["value"] == "whole"


async def test_a_heatmap_of_many_ranks_and_steps() -> None:
    """A cell has the slowest of its ranks and steps, and the median of its column."""
    streams = streams_of(
        *(summary([(4 if (rank, step) == (5, 30) else 1) * STEP for step in range(100)], first=1) for rank in range(40))
    )
    drawn = await Heatmaps().heatmap(list(streams), HeatmapQuery(rows=10, columns=50, value="own"))
    assert (drawn.first_step, drawn.steps_per_column, drawn.columns) == (1, 2, 50)
    assert (len(drawn.rows), drawn.ranks_per_row, drawn.ranks, drawn.value) == (10, 4, 40, "whole")
    cells = np.frombuffer(drawn.values, np.uint8).reshape(10, 50)
    assert cells[1, 15] == 128 + 64, "four times the median"
    assert (np.delete(cells.ravel(), 50 + 15) == 128).all() and set(drawn.median_ms) == {20.0}
    part = await Heatmaps().heatmap(list(streams), HeatmapQuery(from_rank=5, to_rank=5, from_step=30, to_step=32))
    assert (part.ranks, part.first_step, part.columns) == (1, 30, 3)
    assert np.frombuffer(part.values, np.uint8).tolist() == [128, 128, 128], "alone, it is the median"
    streams.ranks["job-7"].latest.add_summary(summary([STEP] * 10, first=10**9))
    again = await Heatmaps().heatmap(list(streams), HeatmapQuery())
    assert (again.first_step, again.columns) == (1, 100), "a rank that counts otherwise changes its own row only"
    nothing = await Heatmaps().heatmap([], HeatmapQuery())
    assert (nothing.columns, nothing.values, nothing.rows) == (0, b"", [])


class _Process:
    control = 1

    async def order(self, command: Command, seconds: float) -> Answer:
        """Answers at once."""
        return Answer(step=5)


def test_a_stream_that_another_collector_takes_over_stays() -> None:
    """Events that were written here are counted; state and steps come from the summaries. The first summary has no rate."""
    streams = Streams(16)
    hello = Hello("e" * 32, b"sync", run_of(4), summaries=True)
    with streams.connected(hello, CONNECTION) as stream:
        stream.add_frames([], 100, 0)
    assert not stream.remote
    stream.seen -= 100
    assert stream.state(stream.seen + 100) is State.DIED
    streams.add_shared_summary(hello, msgspec.structs.replace(summary([STEP] * 30), events=10**9), _Process())
    assert stream.state(stream.seen) is State.CONNECTED and stream.steps.last == 39
    streams.add_shared_summary(hello, StepSummary(0, 0, 0, [], b"", ended=True), None)
    assert stream.state(stream.seen) is State.ENDED
    other = Hello("d" * 32, b"sync", run_of(5), summaries=True)
    streams.add_shared_summary(other, msgspec.structs.replace(summary([STEP] * 30), events=10**9), None)
    heard = streams.all[other.stream]
    assert heard.events == 10**9 and heard.event_rate.per_second(heard.seen) == 0


def test_streams_that_are_heard_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of which nothing was heard for longest, when there are too many: new ones are shown."""
    monkeypatch.setattr("stepscope.collector.live.streams.MAX_REMOTE", 16)
    streams = Streams(2)
    for number in range(100):
        hello = Hello(f"{number:032x}", b"sync", run_of(number), summaries=True)
        streams.add_shared_summary(hello, summary([STEP] * 10), None)
    assert f"{99:032x}" in streams.all and f"{0:032x}" not in streams.all and 10 < len(streams.all) <= 21


def test_steps_that_come_while_files_are_read_count_once() -> None:
    """They are added when the files were read, but for those that the files have."""
    stream = Stream("c" * 32, run_of(0))
    stream.restoring = True
    stream.add_summary(summary([STEP] * 30))
    assert stream.steps.count == 0
    read = Stream("c" * 32, run_of(0))
    read.add_summary(summary([STEP] * 20))
    stream.steps = read.steps
    stream.finish_restoring()
    assert (stream.steps.count, stream.steps.last) == (30, 39)


def test_steps_that_another_than_the_process_sends_are_shown() -> None:
    """They are read from the frames when no summaries come any more, but for those that summaries had."""
    stream = Stream("c" * 32, run_of(0))
    stream.sends_summaries = True
    stream.add_summary(summary([STEP] * 30))
    frame = events_frame(steps([STEP] * 40, BEGIN + 10 * STEP, 10))
    stream.add_frames([frame], 0, 1)
    assert (stream.steps.count, stream.steps.last) == (30, 39)
    stream.heard_at -= 20
    stream.add_frames([frame], 0, 2)
    assert (stream.steps.count, stream.steps.last) == (40, 49)


def test_streams_of_other_collectors_are_shown() -> None:
    """A rank that is heard is there without files; when its frames come, these are counted."""
    streams = Streams(16)
    hello = Hello("f" * 32, b"sync", run_of(4), summaries=True)
    streams.add_shared_summary(hello, summary([STEP] * 30), _Process())
    (rank,) = streams
    stream = rank.latest
    assert stream.remote and stream.steps.last == 39 and stream.state(stream.seen) is State.CONNECTED
    assert stream.state(stream.seen + 20) is State.SILENT and stream.state(stream.seen + 40) is State.DIED
    streams.add_shared_summary(hello, StepSummary(500, 2, 0, [], b"", ended=True), None)
    assert (stream.events, stream.lost, stream.state(stream.seen)) == (500, 2, State.ENDED)
    stream.add_frames([], 0, 0)
    assert not stream.remote and stream.events == 0, "they are counted from its frames now"


@pytest.mark.parametrize("took", [20_000_001, 20_000_003])
@pytest.mark.parametrize("facts_first", [True, False])
def test_steps_whose_facts_are_in_frames_count_once(took: int, facts_first: bool) -> None:
    """A journal that is delivered has both, in any order. Facts round the times, up or down. The run goes on as they come."""
    stream = Stream("c" * 32, run_of(0))
    for first in (10, 50):
        begin = BEGIN + 10 * STEP + (first - 10) * took
        facts = summary([took] * 40, first=first)
        run = msgspec.structs.replace(facts.runs[0], begin_ns=begin)
        frames = [
            record_frame(FrameType.STEP_FACTS, msgspec.structs.replace(facts, runs=[run])),
            events_frame(steps([took] * 40, begin, first)),
        ]
        stream.add_frames(frames if facts_first else frames[::-1], 0, stream.next + 2)
    assert (stream.steps.count, stream.steps.last) == (80, 89)
    assert (stream.steps.newest(80)["own_ms"] > 0).all() and stream.steps_at == pytest.approx(stream.seen, abs=5)


def test_facts_that_a_journal_has_twice_are_judged_once() -> None:
    """Two exporters send it, and the newest come again while its file is read."""
    stream = Stream("c" * 32, run_of(0))
    stream.restoring = True
    sent = [summary([STEP] * 40, first=first) for first in (10, 50, 90)]
    frames = [record_frame(FrameType.STEP_FACTS, one) for one in sent for _ in range(2)]
    stream.add_restored(frames, 0, len(frames))
    for one in sent[1:]:
        stream.add_summary(one)
    stream.finish_restoring()
    stream.add_summary(summary([STEP] * 40, first=130))
    assert facts_of([each.summary for each in stream.summaries])["step"].tolist() == [*range(10, 170)]
