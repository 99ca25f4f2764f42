"""`stepscope upload`: it follows whatever the store does, and what was uploaded is used again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, Any

import pytest

from stepscope.cli.main import main
from stepscope.collector import clock_names
from stepscope.collector.archive.archive import MANIFEST
from stepscope.collector.files.store import Store
from stepscope.collector.settings import CollectorSettings
from tests.integration.collector.test_merge import syncs_of
from tests.support.archives import following
from tests.support.collecting import collecting, until
from tests.support.messages import said
from tests.support.streams import STREAM
from tests.support.windowed import END, run_of, stored, windows
from tests.unit.collector.test_merge_clocks import OURS, add, named


def line(stream: IO[str] | None) -> str:
    """The next line that a process writes."""
    assert stream is not None
    return stream.readline()


def test_what_fails_is_said_and_tried_again(tmp_path: Path) -> None:
    """With pauses that grow, as long as it fails; then as often as before."""
    store = Store(CollectorSettings(directory=tmp_path / "collected"))
    stored(store, STREAM, [run_of(), *windows(range(3), 64_000), END])
    remote = tmp_path / "remote"
    remote.write_text("in the way")
    with following(store.directory, remote, 0.05) as process:
        for pause in ("0.05", "0.1", "0.2"):
            said = line(process.stderr)
            assert str(remote) in said and f"tried again in {pause} s" in said
        remote.unlink()
        assert line(process.stdout).startswith("1 streams, 1 complete: 1 parts")
        assert line(process.stdout).startswith("1 streams, 1 complete: 0 parts")
        (remote / STREAM / MANIFEST).write_text("{")
        until(lambda: "is no manifest" in (said := line(process.stderr)) and "tried again in 0.05 s" in said)
        (remote / STREAM / MANIFEST).unlink()
        until(lambda: "1 parts" in line(process.stdout))


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
    clock_names.add(directory, OURS)
    return directory


def test_what_was_uploaded_is_restored_and_merged(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The times of ranks are aligned as before; restoring again restores what is missing."""
    url, back = f"file://{tmp_path / 'remote'}", tmp_path / "back"
    assert main(["upload", str(job), url]) == 0
    assert main(["upload", "--restore", str(back), url]) == 0
    assert "2 streams, 2 restored, 0 without their end" in capsys.readouterr().out
    first, second = sorted(back.glob("streams/*/journal"))
    assert {path.read_bytes() for path in (first, second)} == {
        path.read_bytes() for path in job.glob("streams/*/journal")
    }
    assert clock_names.read(back) == frozenset({OURS})
    spans, report = merged(back, tmp_path / "back.json", capsys)
    assert (spans, report) == merged(job, tmp_path / "job.json", capsys) and len(spans) > 20
    second.write_bytes(second.read_bytes()[:1000])
    assert main(["upload", "--restore", str(back), url]) == 0
    assert "2 streams, 1 restored" in capsys.readouterr().out
    assert {path.read_bytes() for path in (first, second)} == {
        path.read_bytes() for path in job.glob("streams/*/journal")
    }
    assert [path.name for path in second.parent.iterdir()] == ["journal"]


def test_one_that_is_damaged_there_costs_itself(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    remote, back = tmp_path / "remote", tmp_path / "back"
    assert main(["upload", str(job), f"file://{remote}"]) == 0
    part = min(remote.glob("*/journal.*"))
    part.write_bytes(bytes(part.stat().st_size))
    assert main(["upload", "--restore", str(back), f"file://{remote}"]) == 1
    said(capsys.readouterr().err, part.parent.name, snapshot=False)  # offsets
    assert [path.parent.name for path in back.glob("streams/*/journal*")] == [max(remote.glob("*/*")).parent.name]


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


def test_two_do_not_upload_to_one_place(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Beside a collector that does; to another place they may, and when it was killed to that one, too."""
    remote = tmp_path / "remote"
    with collecting(job, "--upload", f"file://{remote}", "--upload-every", "1000") as collector:
        until(lambda: collector.get("/v1/job")["upload"]["complete"] == 2)
        assert main(["upload", str(job), f"file://{remote}/"]) == 1
        said = capsys.readouterr().err
        assert f"another process (pid {collector.process.pid}) uploads to file://{remote} from {job}" in said
        assert main(["upload", str(job), f"file://{tmp_path / 'other'}"]) == 0
        collector.process.kill()
        collector.process.wait()
        assert main(["upload", str(job), f"file://{remote}"]) == 0
    assert "2 streams, 2 complete: 0 parts" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--restore", "--rest"], "neither --rest nor --follow"),
        (["--restore", "--follow", "1"], "neither --rest nor --follow"),
        (["--follow", "0"], "seconds above 0"),
        (["--follow", "nan"], "seconds above 0"),
    ],
)
def test_wrong_usage_is_told(given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["upload", "somewhere", "memory://x", *given])
    assert ended.value.code == 2 and said in capsys.readouterr().err
