"""The long runs run, at the smallest size: nothing is lost or left, and the picture is one."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec
import pytest

from benchmarks.endurance import command
from benchmarks.endurance.cycles import Cycles, Kind
from benchmarks.endurance.leak_check import of_cycles
from benchmarks.endurance.plot import Line, svg
from benchmarks.endurance.watch import Sample, slope


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a small run."""
    path = tmp_path_factory.mktemp("endurance") / "report.json"
    arguments = ["--spans", "60000", "--rate", "20000", "--cycles", "20", "--no-limits", "--report", str(path)]
    arguments += ["--flight-spans", "100000"]
    assert command.main(arguments) == 0
    return path


def test_nothing_is_lost_or_left(report: Path) -> None:
    """Every span is at both outputs, and after closing no thread, no descriptor and no file remains."""
    seen = msgspec.json.decode(report.read_bytes(), type=command.Report)
    assert not command.problems(seen)
    assert seen.long.end.spans == 60_000 and len(seen.long.end.outputs) == 2
    assert all(exported >= 60_000 for _, exported, _, _ in seen.long.end.outputs.values())
    assert seen.long.samples and seen.long.last is not None
    assert seen.long.last.descriptors < seen.long.samples[-1].descriptors
    assert {cycles.kind for cycles in seen.cycles} == set(Kind)
    assert seen.flight is not None and seen.flight.end.spans == 100_000 and seen.flight.end.windows > 0


def test_the_page_is_made_of_a_saved_report(report: Path, tmp_path: Path) -> None:
    """Without measuring again."""
    page, picture = tmp_path / "page.md", tmp_path / "memory.svg"
    assert command.main(["--from", str(report), "--markdown", str(page), "--plot", str(picture)]) == 0
    assert "**60,000 spans**" in page.read_text() and "![Memory over the run](memory.svg)" in page.read_text()
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_a_loss_is_a_problem(report: Path) -> None:
    """One event that no account names is reported."""
    seen = msgspec.json.decode(report.read_bytes(), type=command.Report)
    offered, exported, _, _ = seen.long.end.outputs["journal"]
    seen.long.end.outputs["journal"] = (offered, exported - 1, {}, 0)
    seen.long.left.append("stepscope-1-x")
    seen.long.end.descriptors.append("/a/journal")
    lost = "1 events lost without a count"
    assert command.problems(seen) == [lost, "left in /dev/shm: stepscope-1-x", "descriptor left: /a/journal"]


def cycles(**grown: float) -> Cycles:
    """Ten thousand cycles, looked at twenty times; what is named grows by so much with each."""

    def values(what: str, least: int) -> list[int]:
        return [int(least + grown.get(what, 0) * number) for number in numbers]

    numbers = range(500, 10_001, 500)
    private, shared, shm = values("private", 30 << 20), values("shared", 1 << 20), values("shm", 344_064)
    descriptors, threads = values("descriptors", 10), values("threads", 2)
    rows = zip(numbers, private, shared, shm, descriptors, threads, strict=True)
    return Cycles(
        kind=Kind.LIFE,
        count=10_000,
        milliseconds=1.0,
        samples=[Sample(float(number), number, *row) for number, *row in rows],
        tracks=values("tracks", 3),
        names=values("names", 34),
        objects=values("objects", 50_000),
        blocks=values("blocks", 400_000),
        heap=values("heap", 20 << 20),
        events=1,
        problems=[],
    )


@pytest.mark.parametrize(
    ("what", "by", "problem"),
    [
        ("private", 6000.0, "6,000.0 bytes of resident memory more with each; 5000 is what counts as flat"),
        ("shared", 8192.0, "8,192.0 bytes of resident memory more with each; 5000 is what counts as flat"),
        ("heap", 80.0, "80.0 bytes in use more with each; 64 is what counts as flat"),
        ("blocks", 1.0, "1.0 blocks of Python's memory more with each; 0.5 is what counts as flat"),
        ("shm", 64.0, "64.0 bytes of /dev/shm more with each; 10 is what counts as flat"),
        ("objects", 1.0, "1.0 Python objects more with each; 0.5 is what counts as flat"),
        ("tracks", 0.001, "tracks grew from 8 to 13"),
        ("names", 1.0, "names grew from 5534 to 10034"),
        ("descriptors", 0.001, "descriptors grew from 10 to 20"),
        ("threads", 1.0, "threads grew from 502 to 10002"),
    ],
)
def test_growth_with_each_cycle_is_a_problem(what: str, by: float, problem: str) -> None:
    """Of every kind of thing that a start may leave behind; what does not grow is none."""
    assert not of_cycles(cycles())
    assert of_cycles(cycles(**{what: by})) == [f"{Kind.LIFE}: {problem}"]


def test_flight_steps_that_pile_up_are_a_problem(report: Path) -> None:
    """A flight recorder whose memory grows with the run; what comes and goes with each save does not count."""
    seen = msgspec.json.decode(report.read_bytes(), type=command.Report)
    assert seen.flight is not None
    seen.flight.end.spans = command.FLIGHT_SPANS

    def samples(each: int) -> list[Sample]:
        spikes = (40 << 20, 0, 0)
        return [Sample(float(n), n, (30 << 20) + spikes[n % 3] + n * each, 0, n * each, 20, 5) for n in range(60)]

    seen.flight.samples = samples(0)
    assert not command.problems(seen)
    seen.flight.samples = samples(1 << 20)
    assert [problem.partition(" by ")[0] for problem in command.problems(seen)] == [
        "the flight recorder: memory grew",
        "the flight recorder: /dev/shm grew",
    ]
    seen.flight.samples = samples(0)
    seen.flight.end.problems.append("an account")
    assert command.problems(seen) == ["the flight recorder: an account"]


def test_slope_and_plot() -> None:
    """A line's slope is its own; names are escaped, and many points are thinned."""
    line = [(float(x), 3.0 * x + 1) for x in range(1000)]
    assert slope(line) == pytest.approx(3.0) and slope([]) == 0.0
    drawn = svg("a < b", "x", "y", [Line("l & m", line)])
    assert ElementTree.fromstring(drawn) is not None and "l &amp; m" in drawn and len(drawn) < 8000
