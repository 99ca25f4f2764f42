"""Merging streams that are odd: other jobs', empty, damaged, without a clock, without an end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stepscope as sc
from stepscope.analysis.live import judge_steps
from stepscope.cli.main import main
from stepscope.collector.clocks.timeline import Readings, Timeline
from stepscope.collector.downloads.downloads import Source
from stepscope.collector.downloads.downloads import merged as merged_file
from stepscope.collector.merge.aligned import renumber_flows
from stepscope.collector.merge.outputs import prepare, write_merged
from stepscope.collector.merge.plan import Selection
from stepscope.collector.merge.report import MergeReport
from stepscope.exporters.memory import MemoryExporter
from stepscope.runtime.errors import INCOMPLETE, FormatError, OutputError
from stepscope.runtime.events import tracks
from stepscope.runtime.events.clock import ClockAnchor
from stepscope.runtime.events.record import EVENT_DTYPE, Kind, empty_block
from stepscope.runtime.export.run import Run
from stepscope.runtime.journal import format as fmt
from stepscope.runtime.journal.records import ClockSync, RunRecord, WindowRecord
from stepscope.runtime.session.ranks import MAX_RANKS
from tests.support.basics import ROOT, require
from tests.support.clocks import START as CLOCK_START
from tests.support.clocks import Network, TrueClock, round_trips
from tests.support.journals import HandMade
from tests.support.launch import run_to_end
from tests.support.messages import check_messages, refused
from tests.support.ranks.streams import no_room, write_many, write_stream
from tests.support.viewers.scene import START, Scene, device_work, make_run, make_window, training


def rank_run(directory: Path, rank: int, *, job: str = "job", **changes: Any) -> Run:
    """A rank of two whose clock nobody else reads."""
    return msgspec.structs.replace(make_run(directory, rank), job=job, **changes)


def syncs_of(ahead_ns: int, delay_ns: int = 50_000) -> list[Any]:
    """Round trips around `START` to a collector whose clock shows so much more than the rank's."""
    clock = TrueClock(ahead_ns=ahead_ns)
    network = Network(out_ns=delay_ns, back_ns=delay_ns, jitter_ns=1)
    made = round_trips(clock, network, [CLOCK_START + i * 10**9 for i in range(10)], random.Random(1))
    shift = CLOCK_START - START
    return [msgspec.structs.replace(sync, sent=sync.sent - shift, returned=sync.returned - shift) for sync in made]


def add_rank(directory: Path, rank: int, ahead_ns: int | None = 0, **run: Any) -> None:
    """A stream of three steps, with a collective in each."""
    described = rank_run(directory, rank, **run)
    scene = Scene(described)
    training(scene)
    for step in range(3):
        scene.span("gloo:all_reduce", 1000 * step + 600, 50, category="user_annotation")
    syncs = [] if ahead_ns is None else syncs_of(ahead_ns)
    write_stream(directory, described, [scene.batch()], [make_window()], syncs)


def merged(
    directory: Path, selection: Selection | None = None, job: str | None = None, *others: Path
) -> tuple[MemoryExporter, MergeReport]:
    """Everything that is below directories, in memory."""
    exporter = MemoryExporter()
    sources = [directory, *others]
    merge = prepare(sources, directory / "merged", job, selection or Selection(), lambda events: None, no_room)
    return exporter, asyncio.run(merge.together(exporter))


def test_jobs_of_one_directory_are_distinguished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the launcher's id, or else by name and size; one must be chosen, and the choice is listed."""
    add_rank(tmp_path, 0, job="one")
    add_rank(tmp_path, 0, job="two")
    add_rank(tmp_path, 1, job="")
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.json")]) == 1
    check_messages(capsys.readouterr().err, "--job", "'one', 'scene x2', 'two'")
    _, report = merged(tmp_path, job="two")
    assert [member.rank for member in report.members] == [0]
    assert report.missing_ranks == "1"
    with refused(FormatError, "three", "one", "scene x2", "two"):
        merged(tmp_path, job="three")


def test_the_newest_run_of_a_rank_s_directory_is_merged(tmp_path: Path) -> None:
    """As it is explained, where a job has run with one output directory twice."""
    for steps in (2, 3):
        with sc.trace(output_dir=tmp_path / "rank0") as profiler:
            for _ in range(steps):
                profiler.step()
    exporter, report = merged(tmp_path)
    assert [len(window.steps) for window in exporter.windows] == [3]
    assert report.notes == [f"{tmp_path / 'rank0' / 'journal'} is of an earlier run: name it to read it"]


def test_the_report_has_the_findings_of_explain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The slow rank, by the same rule and with the same words, in the text, in JSON and in the trace."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, seconds in enumerate((0.002, 0.012)):
        monkeypatch.setenv("RANK", str(rank))
        with sc.trace(output_dir=tmp_path / f"rank{rank}", name="job") as profiler:
            for _ in range(30):
                with sc.span("work"):
                    time.sleep(seconds)
                profiler.step()
    (expected, *_) = [finding for finding in sc.explain(tmp_path).findings if finding.id == "slow-rank"]
    capsys.readouterr()
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.json"), "--report", str(tmp_path / "r.json")]) == 0
    assert expected.title.partition(" take ")[0] in capsys.readouterr().out
    report = msgspec.json.decode((tmp_path / "r.json").read_bytes(), type=MergeReport)
    (found,) = [finding for finding in report.findings if finding.id == "slow-rank"]
    assert found.ranks == [1] and found.action == expected.action
    events = json.loads((tmp_path / "x.json").read_text())
    about = next(event for event in events if event["name"] == "stepscope")["args"]["metadata"]["merged"]
    assert msgspec.convert(about, MergeReport).findings == report.findings


def test_without_a_collector_nothing_is_claimed(tmp_path: Path) -> None:
    """Wall clocks align then, and no bound is known."""
    add_rank(tmp_path, 0, ahead_ns=None)
    add_rank(tmp_path, 1, ahead_ns=None)
    exporter, report = merged(tmp_path)
    assert report.clock == ""
    assert [member.bound_ns for member in report.members] == [None, None]
    assert "may be off by any amount" in report.text()
    one_machine = [msgspec.structs.replace(member, machine="here") for member in report.members]
    text = msgspec.structs.replace(report, members=one_machine).text()
    assert "All ranks ran on one machine and share its clock" in text and "may be off" not in text
    assert exporter.run is not None
    assert exporter.events()["ts"].min() == make_run(tmp_path).anchor.wall_ns


def test_streams_that_say_nothing_are_named(tmp_path: Path) -> None:
    """Empty, foreign and damaged files, files without a beginning and links do not keep the others from it."""
    add_rank(tmp_path, 0)
    streams = tmp_path / "streams"
    for name, data in (("empty", b""), ("foreign", b"PK\3\4" * 100), ("torn", b"\x89SSJ\r\n")):
        (streams / name).mkdir()
        (streams / name / "journal").write_bytes(data)
    headless = HandMade(tmp_path / "streams" / "headless.journal").record(fmt.FrameType.END, {})
    (streams / "link").mkdir()
    (streams / "link" / "journal").symlink_to(headless.path)
    exporter, report = merged(tmp_path)
    assert len(report.members) == 1
    assert len(exporter)
    names = ["empty/journal", "foreign/journal", "headless.journal", "torn/journal"]
    assert sorted(journal.path for journal in report.unreadable) == [str(streams / name) for name in names]
    (without,) = (journal for journal in report.unreadable if journal.path == str(headless.path))
    assert "does not say whose journal it is" in without.reason and f"not merged: {without}" in report.text()
    assert not report.notes


def test_a_directory_without_journals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An error that says so, as for one that is not there."""
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.json")]) == 1
    assert main(["merge", str(tmp_path / "none"), "--out", str(tmp_path / "x.json")]) == 1
    assert main(["merge", str(tmp_path), "--out", str(tmp_path / "x.json"), "--format", "hta"]) == 1
    output = capsys.readouterr().err
    assert "there is no journal" in output
    assert f"stepscope merge: No such file or directory: {tmp_path / 'none'}\n" in output


def test_windows_and_steps_that_are_not_there(tmp_path: Path) -> None:
    """The error says what there is."""
    add_rank(tmp_path, 0)
    with refused(FormatError, "job", "window 4", "0 to 0", "7 to 9"):
        merged(tmp_path, Selection(window=4))
    with refused(FormatError, "job", "1-3", "7 to 9"):
        merged(tmp_path, Selection(steps=(1, 3)))


def test_a_rank_without_the_window_is_named(tmp_path: Path) -> None:
    """The merged window is incomplete, and says who is missing."""
    add_rank(tmp_path, 0)
    write_stream(tmp_path, rank_run(tmp_path, 1), [], [], syncs_of(0))
    exporter, report = merged(tmp_path, Selection(window=0))
    assert report.absent == ["rank 1: window 0"]
    assert not exporter.windows[0].complete
    assert "rank 1 has nothing of this window" in exporter.windows[0].diagnostics


def test_windows_that_a_rank_lacks_are_one_line(tmp_path: Path) -> None:
    """A rank that was killed early lacks all windows after that."""
    for rank, windows in enumerate([[0, 1, 2, 3, 4], [0, 3]]):
        described = rank_run(tmp_path, rank)
        scene = Scene(described)
        training(scene)
        write_stream(tmp_path, described, [scene.batch()], [make_window(index) for index in windows], syncs_of(0))
    _, report = merged(tmp_path)
    assert report.absent == ["rank 1: windows 1-2,4"]


def test_the_world_size_of_a_journal_is_not_believed(tmp_path: Path) -> None:
    """A world of 2 ** 60 ranks counts as unknown, and costs the journal nothing else; of the largest that is believed the
    missing ranks are counted, and written as ranges."""
    add_rank(tmp_path / "a", 0, world_size=1 << 60)
    exporter, report = merged(tmp_path / "a")
    assert report.missing_ranks == "" and exporter.events().size
    for rank in (0, 3):
        add_rank(tmp_path / "b", rank, world_size=MAX_RANKS)
    _, report = merged(tmp_path / "b")
    assert (report.missing_ranks, report.missing_count) == (f"1-2,4-{MAX_RANKS - 1}", MAX_RANKS - 2)
    assert f"missing: 1,048,574 ranks: 1-2,4-{MAX_RANKS - 1}" in report.text()
    assert main(["merge", str(tmp_path / "b"), "--out", str(tmp_path / "b.json")]) == 0
    assert (tmp_path / "b.json").stat().st_size < 100_000


def test_more_sources_than_a_command_line_has_room_for(tmp_path: Path) -> None:
    """They go through a file; those that are gone are named, and cost the others nothing."""
    add_rank(tmp_path / "a", 0)
    (path,) = (tmp_path / "a").rglob("journal")
    gone = [tmp_path / "gone" / f"{number:0200}" for number in range(12_000)]
    sources = [Source("", one) for one in (path, *gone)]
    command = merged_file("chrome").command(sources, 0, tmp_path / "out.json")
    done = run_to_end([sys.executable, *command])
    assert done.returncode == INCOMPLETE, done.stderr[-500:]
    assert (tmp_path / "out.json").stat().st_size > 1000
    assert main(["merge", str(path), "--out", str(tmp_path / "plain.json"), "--format", "chrome"]) == 0
    with pytest.raises(SystemExit):
        main(["merge", "--out", str(tmp_path / "none.json"), "--format", "chrome"])


@given(data=st.data(), members=st.integers(2, 1 << 17))
def test_flows_of_no_two_members_meet(data: st.DataObject, members: int) -> None:
    """However many members there are: each start of a rank is one. Small numbers, such as torch's, stay apart within one."""
    numbers = data.draw(st.lists(st.integers(0, members - 1), min_size=2, max_size=20, unique=True))
    ids = data.draw(st.lists(st.integers(0, (1 << 64) - 1), max_size=5)) + [1, 2, 1 << 30]
    seen: dict[int, int] = {}
    for member in numbers:
        events = empty_block(len(ids))
        events["kind"], events["id"] = int(Kind.FLOW_START), ids
        renumber_flows(events, member, members)
        made = events["id"].tolist()
        assert len(set(made[-3:])) == 3
        assert all(seen.setdefault(number, member) == member and number < 1 << 53 for number in made)


def test_devices_of_two_ranks_are_rows_of_their_own(tmp_path: Path) -> None:
    """Both ranks call theirs device 0."""
    for rank in (0, 1):
        run = rank_run(tmp_path, rank)
        scene = Scene(run)
        device_work(scene, 0)
        write_stream(tmp_path, run, [scene.batch()], [make_window()], syncs_of(0))
    exporter, _ = merged(tmp_path)
    used = {int(track) for track in exporter.events()["track"]}
    streams = [track for track in tracks.since(1) if track.id in used and track.kind is tracks.TrackKind.STREAM]
    assert len({(track.pid, track.tid) for track in streams}) == len(streams) == 4
    owners = {track.name for number in streams if (track := tracks.get(number.parent)) is not None}
    assert owners == {"rank 0: device 0", "rank 1: device 0"}


@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), st.integers(0, 10**11), st.integers(0, 10**11)), min_size=1, max_size=30
    ),
    st.floats(-400, 400),
)
def test_nesting_survives_a_merge(spans: list[tuple[int, int, int]], drift: float) -> None:
    """Aligned spans keep their order and their nesting to the nanosecond, and no self time exceeds its span."""
    clock = TrueClock(ahead_ns=12_345, drift_ppm=drift)
    syncs = round_trips(clock, Network(), [CLOCK_START + i * 10**10 for i in range(60)], random.Random(9))
    model = Timeline({"": Readings(syncs, ClockAnchor(0, 0, 0))})[""].model
    events = np.zeros(2 * len(spans), EVENT_DTYPE)
    for index, (start, before, inside) in enumerate(spans):
        inner = min(before, inside)
        events[2 * index]["ts"], events[2 * index]["dur"] = CLOCK_START + start, before + inside
        events[2 * index + 1]["ts"], events[2 * index + 1]["dur"] = CLOCK_START + start + inner, before + inside - inner
    events["kind"], events["self_dur"] = int(Kind.SPAN), events["dur"]
    model.align(events)
    outer, inner_spans = events[::2], events[1::2]
    assert (outer["ts"] <= inner_spans["ts"]).all()
    assert (outer["ts"] + outer["dur"] == inner_spans["ts"] + inner_spans["dur"]).all()
    assert (events["self_dur"] <= events["dur"]).all()


@pytest.fixture(scope="module")
def good_rank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collector's directory with one rank."""
    directory = tmp_path_factory.mktemp("good")
    add_rank(directory, 0)
    return directory


_ANY = st.sampled_from([0, 1, -1, START, -START, (1 << 62), -(1 << 62), (1 << 63) - 1, -(1 << 63)]) | st.integers(
    -(1 << 63), (1 << 63) - 1
)


@given(values=st.lists(_ANY, min_size=16, max_size=16), steps=st.lists(_ANY, max_size=9), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_numbers_from_anywhere_do_no_harm(
    values: list[int], steps: list[int], seed: int, good_rank: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Times, steps, ranks and events of a hostile stream: a good rank is merged all the same, nothing raises or overflows."""
    require("pyarrow")
    directory = tmp_path_factory.mktemp("hostile")
    shutil.copytree(good_rank / "streams", directory / "streams")
    take = iter(values)
    anchor = ClockAnchor(next(take), next(take), 0)
    made = HandMade(directory / "streams" / "x.journal")
    run = RunRecord(name="scene", anchor=anchor, rank=next(take), world_size=next(take), pid=next(take), job="job")
    made.record(fmt.FrameType.RUN, run)
    for clock in ("collector", "other"):
        sync = ClockSync(sent=next(take), arrived=next(take), answered=next(take), returned=next(take), clock=clock)
        made.record(fmt.FrameType.CLOCK_SYNC, sync)
    block = np.frombuffer(random.Random(seed).randbytes(64 * 20), EVENT_DTYPE)
    made.events(block)
    numbers = np.array([*steps, *[0] * (-len(steps) % 3)], "<i8").tobytes()
    window = WindowRecord(index=0, start_ns=next(take), end_ns=next(take), steps=numbers)
    made.record(fmt.FrameType.WINDOW_CLOSED, window)
    exporter, report = merged(directory)
    assert len(report.members) == 2
    assert report.text()
    assert "ProfilerStep#7" in exporter.names()
    asyncio.run(write_merged([directory], directory / "out.parquet", judge=judge_steps))
    asyncio.run(write_merged([directory], directory / "out.json", judge=judge_steps))


def test_counters_keep_their_values(tmp_path: Path) -> None:
    """Values lie where spans have their self time; alignment does not touch them."""
    run = rank_run(tmp_path, 0)
    scene = Scene(run)
    for value in (1.5, -2.25, 1e300):
        scene.add(Kind.COUNTER, "loss", 10, value=value)
        scene.add(Kind.MEMORY, "memory", 10, 5, value=value)
    write_stream(tmp_path, run, [scene.batch()], [make_window()], syncs_of(7 * 10**9))
    exporter, _ = merged(tmp_path)
    assert sorted(exporter.events()["value"].tolist()) == [-2.25, -2.25, 1.5, 1.5, 1e300, 1e300]


MERGE = """
import sys
from stepscope.analysis.live import judge_steps
from stepscope.cli.main import main
from tests.support.basics import peak_bytes
status = main(["merge", sys.argv[1], "--out", *sys.argv[2:]])
print(peak_bytes())
sys.exit(status)
"""


@pytest.fixture(scope="module")
def sizes(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The streams of two ranks, and ten times as many events of two others."""
    made = [tmp_path_factory.mktemp("streams") for _ in range(2)]
    for directory, events in zip(made, (150_000, 1_500_000), strict=True):
        write_many(directory, 2, events)
    return made


FRUGAL = {"MALLOC_ARENA_MAX": "1", "MALLOC_TRIM_THRESHOLD_": "0", "ARROW_DEFAULT_MEMORY_POOL": "system"}
"""Memory that was freed goes back to the system: what allocators keep for later, for each thread, depends on which threads
were there, and is not what a merge holds."""


@pytest.mark.parametrize("suffix", [".pftrace", ".parquet", " --format hta"])
def test_memory_does_not_hold_the_trace(suffix: str, sizes: list[Path], tmp_path: Path) -> None:
    """Ten times as many events take no more memory, whatever is written; in memory they would take 173 MB more."""
    if suffix == ".parquet":
        require("pyarrow.parquet")
    peaks: list[int] = []
    for directory in sizes:
        command = [sys.executable, "-c", MERGE, str(directory), *f"{tmp_path}/out-{len(peaks)}{suffix}".split(" ")]
        done = run_to_end(command, cwd=ROOT, environment=os.environ | FRUGAL, check=True)
        peaks.append(int(done.stdout.splitlines()[-1]))
    assert peaks[1] - peaks[0] < 24 << 20


def test_an_output_that_fails_leaves_existing_files(tmp_path: Path) -> None:
    """Directories get their files when all are complete; the staging place is removed."""
    add_rank(tmp_path / "in", 0)
    (tmp_path / "in" / "streams" / "x").mkdir()
    target = tmp_path / "out"
    target.mkdir()
    (target / "rank_0.json").mkdir()
    (target / "rank_0.json" / "mine").touch()
    with refused(OutputError, "rank_0.json"):
        asyncio.run(write_merged([tmp_path / "in"], target, format="hta"))
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["in", "out"]
    assert (target / "rank_0.json" / "mine").exists()


def test_unknown_formats_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the list of those that are known."""
    add_rank(tmp_path, 0)
    with pytest.raises(SystemExit, match="2"):
        main(["merge", str(tmp_path), "--out", str(tmp_path / "x.unknown")])
    check_messages(capsys.readouterr().err, ".parquet (parquet)")
    with pytest.raises(SystemExit, match="2"):
        main(["merge", str(tmp_path), "--out", "x.json", "--steps", "9-2"])
