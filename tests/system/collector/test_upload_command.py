"""`stepscope upload`: it follows whatever the store does, and what was uploaded is used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import pytest

from stepscope.cli.main import main
from stepscope.collector.clocks import server_clock
from tests.integration.collector.test_merge import syncs_of
from tests.support.collecting import collecting
from tests.support.messages import said
from tests.support.object_stores import Stream, contents, following
from tests.unit.collector.test_merge_clocks import OURS, add, named


def line(stream: IO[str] | None) -> str:
    """The next line that a process writes."""
    assert stream is not None
    return stream.readline()


def test_what_fails_is_reported_and_tried_again(tmp_path: Path) -> None:
    """With pauses that grow, as long as it fails; then as often as before."""
    stream = Stream(tmp_path / "collected", windows=12)
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    with following(tmp_path / "collected", remote, 0.05) as process:
        for least in (0.05, 0.05, 0.1):
            told = line(process.stderr)
            assert str(remote) in told
            pause = float(told.rpartition("tried again in ")[2].removesuffix(" s\n"))
            assert least <= pause <= 2 * least
        remote.unlink()
        closed = len(stream.segments) - 1
        assert line(process.stdout).startswith(f"1 streams, 0 complete: {closed} objects")
        assert line(process.stdout).startswith("1 streams, 0 complete: 0 objects")
        stream.end()
        while not (told := line(process.stdout)).startswith("1 streams, 1 complete: 1 objects"):
            assert told.startswith("1 streams, 0 complete: 0 objects")
    assert contents(remote) == contents(tmp_path / "collected" / "streams")


def merged(directory: Path, out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """The spans of all ranks, and what the command says of them."""
    assert main(["merge", str(directory), "--out", str(out)]) == 0
    events = json.loads(out.read_text())
    spans = sorted((event["pid"], event["ts"], event["dur"], event["name"]) for event in events if event["ph"] == "X")
    return spans, capsys.readouterr().out


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """What a collector keeps of two ranks, whose clocks it has compared with its own."""
    directory = tmp_path / "job"
    for rank in (0, 1):
        add(directory, rank, named(syncs_of(rank * 10**9), OURS))
    server_clock.add_clock_name(directory, OURS)
    return directory


def test_what_was_uploaded_is_restored_and_merged(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times of ranks are aligned as before; restoring again restores what is missing."""
    url, back = f"file://{tmp_path / 'remote'}", tmp_path / "back"
    assert main(["upload", str(job), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams, 2 complete: 2 objects")
    assert main(["upload", str(job), url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"streams": 2, "complete": 2, "objects": 0, "nbytes": 0}
    assert main(["upload", "--restore", str(back), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams: 2 segments")
    assert main(["upload", "--restore", str(back), url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["streams"] == 2
    made = {name: data for name, data in contents(job / "streams").items() if name.endswith("/journal")}
    assert contents(back / "streams") == made
    assert server_clock.read_clock_names(back) == frozenset({OURS})
    spans, report = merged(back, tmp_path / "back.json", capsys)
    assert (spans, report) == merged(job, tmp_path / "job.json", capsys) and len(spans) > 20
    second = max(back.glob("streams/*/journal"))
    second.write_bytes(second.read_bytes()[:1000])
    assert main(["upload", "--restore", str(back), url]) == 0
    assert capsys.readouterr().out.startswith("2 streams: 1 segments")
    assert contents(back / "streams") == made


def test_what_cannot_be_restored(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is; and not into the files of a collector that runs."""
    remote = tmp_path / "remote"
    assert main(["upload", "--restore", str(tmp_path / "back"), f"file://{remote}"]) == 1
    said(capsys.readouterr().err, "stepscope upload", "URL")
    assert not (tmp_path / "back").exists()
    assert main(["upload", str(job), f"file://{remote}"]) == 0
    with collecting(tmp_path / "back"):
        assert main(["upload", "--restore", str(tmp_path / "back"), f"file://{remote}"]) == 1
        said(capsys.readouterr().err, "stepscope upload", "/back")
    assert not list(tmp_path.glob("back/streams/*/journal"))


def test_what_cannot_be_uploaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upload", str(tmp_path), f"file://{tmp_path / 'remote'}"]) == 1
    said(capsys.readouterr().err, tmp_path, "streams")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--restore", "--unfinished"], "neither --unfinished nor --follow"),
        (["--restore", "--follow", "1"], "neither --unfinished nor --follow"),
        (["--follow", "0"], "seconds above 0"),
        (["--follow", "nan"], "seconds above 0"),
    ],
)
def test_wrong_usage_is_reported(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["upload", "somewhere", "memory://x", *given])
    assert ended.value.code == 2 and said in capsys.readouterr().err
